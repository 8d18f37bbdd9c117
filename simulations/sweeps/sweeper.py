"""Hydra's sweep over a grid, with jobs that are identified by their settings."""

from __future__ import annotations

import contextlib
import pickle
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import resource_tracker
from pathlib import Path
from types import FrameType
from typing import Any, cast

from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType, Quote, QuotedString
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict
from tqdm import tqdm

from fldb_flower.errors import FldbError, OutputError, SettingsError
from fldb_flower.privacy.plan import cautions
from fldb_flower.runs.directory import CHECKPOINT, SUMMARY
from fldb_flower.runs.results import REGRET, request_stop, stop_requested
from fldb_flower.settings import Settings, hydra_entries
from fldb_flower.system.progress import is_shown, progress
from fldb_flower.system.startup import SIGNALLED, handling_signals, sigint_blocked
from simulations.saved_runs import Run, read_run
from simulations.sweeps.jobs import ERROR, failure, settings_of
from simulations.sweeps.plan import Job, Plan, describe_exception, listed, plan
from simulations.sweeps.tables import report

_SOURCE = "the command line"
_NUMBERED = "${hydra.job.num}"  # Hydra's default name of the folder of a job


class GridSweeper(Sweeper):
    """Sweeps over the product of the overrides, as Hydra's basic sweeper does.

    Jobs with equal settings are one job. With ``resume=true``, finished jobs are not launched. At
    the end, the tables of these jobs are written. Jobs without a result are reported, and the exit
    status is then 1.
    """

    def __init__(self, params: Mapping[str, str] | None = None) -> None:
        self._params = _overrides(params or {})

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Create the launcher, with a loader that composes each file once."""
        self._loader = cast(ConfigLoader, CachingLoader(hydra_context.config_loader))
        context = HydraContext(config_loader=self._loader, callbacks=hydra_context.callbacks)
        self.config: DictConfig = config
        self.launcher: Launcher = Plugins.instance().instantiate_launcher(
            hydra_context=context, task_function=task_function, config=config
        )
        HydraConfig.instance().set_config(config)
        self._folder = Path(str(config.hydra.sweep.dir))
        self._swept: set[str] = set()  # dotted names of settings

    def sweep(self, arguments: list[str]) -> None:
        """Run the jobs that have no result yet, and write the tables of all jobs.

        The process exits with a status if a job has no result, or a signal arrived.
        """
        found = self.plan(arguments)
        jobs, reasons = list(found.jobs.values()), {str(each) for each in found.refused.values()}
        if not jobs and len(reasons) == 1:
            raise SettingsError(*reasons)
        if not any(job.settings.resume for job in jobs):
            self._refuse_started(jobs)
        todo = [job for job in jobs if not _is_finished(job)]
        self._folder.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(self.config, self._folder / "multirun.yaml")
        for line in cautions(*found.settings):  # jobs have no output
            print(f"warning: {line}", file=sys.stderr)
        try:
            with self._progress(todo, len(jobs)), self._stoppable(todo):
                trouble = self._launch(todo)
        except SystemExit:
            done = sum(map(_is_finished, jobs))
            kept = f"{done} of {len(jobs)} jobs are finished" if done else "no job is finished"
            command = f"the same command with resume=true hydra.sweep.dir={self._folder}"
            rest = "rest" if done else "jobs"
            print(f"stopped: {kept}; {command} runs the {rest}", file=sys.stderr)
            raise
        self._report(found, trouble)

    def plan(self, arguments: Sequence[str]) -> Plan:
        """Return the jobs of a sweep."""
        choices, swept = self._choices(arguments)
        known = {entry.dotted for entry in hydra_entries()}
        self._swept = known.intersection([*swept, *(f"{key}.name" for key in swept)])
        subdir = OmegaConf.to_container(self.config.hydra.sweep, resolve=False)["subdir"]  # type: ignore[call-overload, index]

        def compose(number: int, values: dict[str, str]) -> tuple[Settings, Path | None]:
            done()
            config = self._loader.load_sweep_config(self.config, _overrides(values))
            with open_dict(config.hydra.job):
                config.hydra.job.num = config.hydra.job.id = number
            # For resolvers such as ${hydra:job.num}; `set_config` would copy it, which takes long.
            HydraConfig.instance().cfg = cast(Any, config)
            if "experiment" in swept and config.hydra.sweeper.params:
                names = ",".join(choices["experiment"])
                raise SettingsError(
                    f"experiment={names} (from {_SOURCE}): one that defines a sweep must be the"
                    f" only one, as in fldb sweep experiment={names.partition(',')[0]}; the paper's"
                    f" figures are drawn by fldb figures {names.replace(',', ' ')}"
                )
            own = None if subdir == _NUMBERED else self._folder / str(config.hydra.sweep.subdir)
            return settings_of(config), own

        with progress("plan", unit="job") as done:
            return plan(choices, swept, _SOURCE, self._folder, compose)

    def _choices(self, arguments: Sequence[str]) -> tuple[dict[str, list[str]], set[str]]:
        """Return the values of each override, and the overrides that are swept."""
        parser = OverridesParser.create(config_loader=self._loader)
        choices: dict[str, list[str]] = {}
        swept = set()
        for each in parser.parse_overrides([*self._params, *arguments]):
            key = each.get_key_element()  # a later override of a key wins
            swept.discard(key)
            if not each.is_sweep_override():
                choices[key] = [each.get_value_element_as_str()]
            elif each.is_discrete_sweep():
                choices[key] = listed(each.sweep_string_iterator())
                swept.add(key)
            else:
                raise SettingsError(
                    f"{each.input_line} (from {_SOURCE}): a grid needs choices or a range;"
                    " intervals need another hydra/sweeper"
                )
        return choices, swept

    def _refuse_started(self, jobs: Sequence[Job]) -> None:
        kept = (SUMMARY, REGRET, CHECKPOINT)
        started = sum(any((job.folder / name).exists() for name in kept) for job in jobs)
        if started:
            raise OutputError(
                f"{self._folder} holds runs of {started} of the {len(jobs)} jobs: add resume=true"
                " to use them, or name another hydra.sweep.dir"
            )

    @contextlib.contextmanager
    def _progress(self, todo: Sequence[Job], total: int) -> Iterator[None]:
        """Show the progress: a bar in a terminal, one line elsewhere.

        Jobs may run in any process. The files in their folders show which of them ended.
        """
        earlier = total - len(todo)
        if not is_shown():
            before = f", {earlier} of them finished before" if earlier else ""
            jobs = "1 job" if total == 1 else f"{total} jobs"
            print(f"{jobs} in {self._folder}{before}", flush=True)
        waiting, failures = list(todo), 0

        def count(bar: tqdm[Any] | None) -> None:
            nonlocal waiting, failures
            if bar is None:
                return
            failed = [job for job in waiting if (job.folder / ERROR).exists()]
            left = [job for job in waiting if job not in failed and not _is_finished(job)]
            if failures := failures + len(failed):
                bar.set_postfix(failed=failures, refresh=False)
            bar.update(len(waiting) - len(left))
            waiting = left

        # Without a terminal too: this thread receives SIGINT while the main thread blocks it.
        with progress("", total, "job", initial=earlier, keep=True, poll=count):
            yield

    def _launch(self, todo: Sequence[Job]) -> str:
        """Launch jobs; return the error of the launcher, or an empty string."""
        batch = []
        for job in todo:
            (job.folder / ERROR).unlink(missing_ok=True)
            place = quoted(str(job.folder.relative_to(self._folder)))
            plot = [] if "plot" in job.values else ["plot=false"]
            batch.append([*_overrides(job.values), *plot, f"hydra.sweep.subdir={place}"])
        try:
            if batch:
                self.launcher.launch(batch, initial_job_idx=0)
        except (FldbError, HydraException) as error:
            return describe_exception(error)
        except Exception as error:
            trace = self._folder / ERROR
            trace.write_text("".join(traceback.format_exception(error)))
            return f"{describe_exception(error)} (trace: {trace})"
        return ""

    @contextlib.contextmanager
    def _stoppable(self, todo: Sequence[Job]) -> Iterator[None]:
        """Stop the jobs on SIGINT or SIGTERM: running jobs save their state, no other job starts.

        The process then exits with status 128 + number; at once on a second signal.
        """
        # Jobs in this process handle signals themselves.
        here = str(self.config.hydra.launcher.get("_target_")).endswith(".BasicLauncher")
        received: list[int] = []

        def stop(number: int, _frame: FrameType | None) -> None:
            received.append(number)
            if here or len(received) > 1:
                sys.exit(SIGNALLED + number)
            request_stop(self._folder)
            for job in todo:
                if job.folder.is_dir() and not _is_finished(job):
                    request_stop(job.folder)

        stop_requested(self._folder)  # clears the request of an earlier, killed sweep
        with handling_signals(stop), contextlib.ExitStack() as stack:
            if not here:
                # A terminal sends SIGINT to all processes: children inherit the mask, and the
                # thread that shows the progress receives it.
                if sys.platform != "win32":
                    resource_tracker.ensure_running()  # starting it would unblock SIGINT
                stack.enter_context(sigint_blocked())
            yield
        if received:
            for path in (self._folder, *(job.folder for job in todo)):
                stop_requested(path)
            sys.exit(SIGNALLED + received[0])

    def _report(self, found: Plan, trouble: str) -> None:
        runs, failed = [], {name: str(reason) for name, reason in found.refused.items()}
        with progress("read", len(found.jobs), "job") as done:
            for key, job in found.jobs.items():
                run = read_run(job.folder, key)
                if isinstance(run, Run):
                    runs.append(run)
                elif reason := failure(job.folder):
                    failed[job.name] = reason
                elif _is_finished(job):
                    failed[job.name] = f"{job.folder} {run.reason}"
                elif (job.folder / CHECKPOINT).exists():
                    failed[job.name] = "stopped; resume=true resumes it"
                else:
                    failed[job.name] = "not run" if trouble else "left no result"
                done()
        errors = [f"job {name}: {reason}" for name, reason in failed.items()]
        errors += [f"the launcher failed: {trouble}"] if trouble else []
        report(runs, errors, self._folder, self._swept)


def register() -> None:
    """Register :class:`GridSweeper` by the name in ``conf/hydra/sweeper/grid.yaml``.

    ``Plugins.register`` would use the name of this module, and Hydra accepts plugins only from
    ``hydra_plugins``.
    """
    Plugins.instance().class_name_to_class["hydra_plugins.fldb_flower.GridSweeper"] = GridSweeper


def _is_finished(job: Job) -> bool:
    return (job.folder / SUMMARY).exists()


def _overrides(values: Mapping[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in values.items()]


def quoted(text: str) -> str:
    """Return text as a quoted value of Hydra's grammar for overrides."""
    return QuotedString(text, Quote.single).with_quotes()


class CachingLoader:
    """Composes the configuration of a job once for each choice of configuration groups.

    Hydra takes a tenth of a second to compose a configuration, mostly to read and merge the same
    files. Here, overrides of single settings are applied to a copy (by pickle, in a seventh of the
    time of ``copy.deepcopy``). Other methods are those of Hydra's loader.
    """

    def __init__(self, loader: ConfigLoader) -> None:
        self._loader = loader
        self._composed: dict[tuple[str, ...], bytes] = {}  # pickled configurations
        self._settings = {entry.dotted for entry in hydra_entries()}

    def load_sweep_config(
        self, master_config: DictConfig, sweep_overrides: Sequence[str]
    ) -> DictConfig:
        """Return the configuration of the job with these overrides."""
        parsed = OverridesParser.create().parse_overrides(list(sweep_overrides))
        values = [each for each in parsed if self._sets_value(each, master_config)]
        others = tuple(str(each.input_line) for each in parsed if each not in values)
        if others not in self._composed:
            composed = self._loader.load_sweep_config(master_config, list(others))
            self._composed[others] = pickle.dumps(composed)
        config: DictConfig = pickle.loads(self._composed[others])
        for each in values:
            OmegaConf.update(config, each.key_or_group, each.value(), merge=True)
        task = [each for each in parsed if not each.is_hydra_override()]
        config.hydra.overrides.task = [each.input_line for each in task]
        style = config.hydra.job.config.override_dirname
        shown = [
            str(each.input_line) for each in task if each.key_or_group not in style.exclude_keys
        ]
        dirname = str(style.item_sep).join(sorted(shown))
        config.hydra.job.override_dirname = dirname.replace("=", str(style.kv_sep))
        OmegaConf.copy_cache(from_config=master_config, to_config=config)
        return config

    def _sets_value(self, override: Override, config: DictConfig) -> bool:
        """Return whether an override sets one value and does not choose a file."""
        key = override.key_or_group
        is_change = override.type == OverrideType.CHANGE and override.package is None
        is_setting = key in self._settings and key not in config.hydra.runtime.choices
        return is_change and (is_setting or key == "hydra.sweep.subdir")

    def __getattr__(self, name: str) -> Any:
        """Delegate to Hydra's loader."""
        if name == "_loader":  # while an instance is unpickled
            raise AttributeError(name)
        return getattr(self._loader, name)
