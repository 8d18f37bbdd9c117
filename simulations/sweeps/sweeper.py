"""Hydra's sweep over a grid, with jobs that are identified by their settings.

The folder of a job is named by its swept overrides and a hash of its settings. A sweep can
therefore be extended, and its tables hold each of its jobs once, whatever else its folder holds.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from multiprocessing import resource_tracker
from pathlib import Path
from types import FrameType
from typing import cast

from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString, RangeSweep
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from fldb_flower.errors import FldbError, OutputError, SettingsError
from fldb_flower.privacy.usefulness import cautions
from fldb_flower.runs.directory import CHECKPOINT, SUMMARY
from fldb_flower.runs.results import REGRET, identity, request_stop, stop_requested
from fldb_flower.settings import Settings, hydra_entries, to_dotted, unused
from fldb_flower.system.progress import progress
from fldb_flower.system.startup import SIGNALLED, handling_signals, sigint_blocked
from simulations.saved_runs import Run, find_finished, identity_of, read_run
from simulations.sweeps.jobs import (
    ERROR,
    check_number,
    describe_exception,
    failure,
    settings_of,
)
from simulations.sweeps.loader import CachingLoader
from simulations.sweeps.progress import progress_of_jobs
from simulations.sweeps.tables import report

_SOURCE = "the command line"
_NUMBERED = "${hydra.job.num}"  # Hydra's default name of the folder of a job
_HASH_DIGITS = 10
_LONGEST_NAME = 80


@dataclass(frozen=True)
class Job:
    """One job of a sweep."""

    name: str  # its swept overrides
    overrides: tuple[str, ...]  # that its launcher composes
    settings: Settings
    identity: str  # see fldb_flower.runs.results.identity
    folder: Path


class GridSweeper(Sweeper):
    """Sweeps over the product of the overrides, as Hydra's basic sweeper does.

    Jobs with equal settings are one job. With ``resume=true``, jobs with a result anywhere below
    the folder of the sweep are not launched. At the end, the tables of these jobs are written.
    Jobs without a result are reported, and the exit status is then 1.
    """

    def __init__(
        self, max_batch_size: int | None = None, params: Mapping[str, str] | None = None
    ) -> None:
        self._batch_size = max_batch_size
        self._params = [f"{key}={value}" for key, value in (params or {}).items()]

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Create the launcher, with a loader that composes each file once."""
        loader = cast(ConfigLoader, CachingLoader(hydra_context.config_loader))
        context = HydraContext(config_loader=loader, callbacks=hydra_context.callbacks)
        self.config: DictConfig = config
        self.launcher: Launcher = Plugins.instance().instantiate_launcher(
            hydra_context=context, task_function=task_function, config=config
        )
        self._loader = loader
        self._swept: set[str] = set()  # dotted names of settings
        self._planned: list[Settings] = []  # of all combinations
        HydraConfig.instance().set_config(config)
        self._folder = Path(str(config.hydra.sweep.dir))

    def sweep(self, arguments: list[str]) -> None:
        """Run the jobs that have no result yet, and write the tables of all jobs.

        Raises
        ------
        FldbError
            No job has valid settings, or the folder cannot be used.
        SystemExit
            A job has no result, or a signal arrived.
        """
        folder = self._folder
        jobs, refused = self.plan(arguments)
        if not jobs and len(set(refused.values())) == 1:
            raise SettingsError(next(iter(refused.values())))
        finished = _reusable(jobs, folder)
        todo = [job for job in jobs if job.identity not in finished]
        folder.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(self.config, folder / "multirun.yaml")
        for line in cautions(*self._planned):  # jobs have no output
            print(f"warning: {line}", file=sys.stderr)
        try:
            shown = progress_of_jobs([job.folder for job in todo], len(jobs), folder)
            with shown, self._stoppable(todo):
                trouble = self._launch(todo)
        except SystemExit:
            _say_stopped(jobs, finished, folder)
            raise
        self._report(jobs, finished, refused, trouble)

    def plan(self, arguments: Sequence[str]) -> tuple[list[Job], dict[str, str]]:
        """Return the distinct jobs of a sweep in order, and the reasons of invalid ones by name."""
        parser = OverridesParser.create(config_loader=self._loader)
        parsed = parser.parse_overrides([*self._params, *arguments])
        swept = {each.get_key_element(): each.is_sweep_override() for each in parsed}
        known = {entry.dotted for entry in hydra_entries()}
        keys = [key for key, is_swept in swept.items() if is_swept]
        self._swept = known.intersection([*keys, *(f"{key}.name" for key in keys)])
        no_plot = () if "plot" in swept else ("plot=false",)
        self._planned.clear()
        jobs: dict[str, Job] = {}
        refused: dict[str, str] = {}
        combinations = _combinations(parsed)
        with progress("plan", len(combinations), "job") as done:
            for number, combination in enumerate(combinations):
                varied = [each for each in combination if swept[each.partition("=")[0]]]
                try:
                    job = self._job(number, varied or combination, (*combination, *no_plot))
                except FldbError as error:
                    refused[" ".join(varied or combination)] = str(error)
                else:
                    jobs.setdefault(job.identity, job)
                done()
        _require_distinct_folders(jobs.values())
        return list(jobs.values()), refused

    def _job(self, number: int, varied: Sequence[str], overrides: tuple[str, ...]) -> Job:
        config = self._loader.load_sweep_config(self.config, list(overrides))
        with open_dict(config):
            config.hydra.job.num = config.hydra.job.id = number
        HydraConfig.instance().set_config(config)  # for resolvers such as ${hydra:job.num}
        settings = settings_of(config)
        self._planned.append(settings)
        key = identity(settings)
        ignored = unused(to_dotted(settings))
        names = ((text, text.partition("=")[0]) for text in varied)
        used = [text for text, name in names if not ignored.keys() & {name, f"{name}.name"}]
        varied = used or [f"algorithm={settings.algorithm}"]
        folder = _folder(config, varied, key)
        place = f"hydra.sweep.subdir={quoted(str(folder.relative_to(self._folder)))}"
        return Job(" ".join(varied), (*overrides, place), settings, key, folder)

    def _launch(self, todo: Sequence[Job]) -> str:
        """Launch jobs; return the error of the launcher, or an empty string."""
        for job in todo:
            (job.folder / ERROR).unlink(missing_ok=True)
        size = self._batch_size or len(todo)
        try:
            for first in range(0, len(todo), size or 1):
                batch = [job.overrides for job in todo[first : first + size]]
                self.launcher.launch(batch, initial_job_idx=first)
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

        Raises
        ------
        SystemExit
            With status 128 + number after a signal; at once on a second one.
        """
        folder = self._folder
        # Jobs in this process handle signals themselves.
        here = str(self.config.hydra.launcher.get("_target_")).endswith(".BasicLauncher")
        received: list[int] = []

        def stop(number: int, _frame: FrameType | None) -> None:
            received.append(number)
            if here or len(received) > 1:
                sys.exit(SIGNALLED + number)
            request_stop(folder)
            for job in todo:
                if job.folder.is_dir() and not (job.folder / SUMMARY).exists():
                    request_stop(job.folder)

        stop_requested(folder)  # clears the request of an earlier, killed sweep
        with handling_signals(stop), contextlib.nullcontext() if here else _sigint_blocked():
            yield
        if received:
            for path in (folder, *(job.folder for job in todo)):
                stop_requested(path)
            sys.exit(SIGNALLED + received[0])

    def _report(
        self, jobs: Sequence[Job], finished: dict[str, Run], refused: dict[str, str], trouble: str
    ) -> None:
        runs, failed = [], [f"{name}: {reason}" for name, reason in refused.items()]
        with progress("read", len(jobs), "job") as done:
            for job in jobs:
                run = finished.get(job.identity) or read_run(job.folder)
                if isinstance(run, Run) and identity_of(run) == job.identity:
                    runs.append(run)
                else:
                    why = "a run of other settings" if isinstance(run, Run) else run.reason
                    why = failure(job.folder) or _reason(job.folder, why, trouble)
                    failed.append(f"{job.name}: {why}")
                done()
        report(runs, failed, self._folder, self._swept)
        if trouble:
            print(f"error: the launcher failed: {trouble}", file=sys.stderr)
        if failed or trouble:
            sys.exit(1)


def register() -> None:
    """Register :class:`GridSweeper` by the name in ``conf/hydra/sweeper/grid.yaml``.

    ``Plugins.register`` would use the name of this module, and Hydra accepts plugins only from
    ``hydra_plugins``.
    """
    Plugins.instance().class_name_to_class["hydra_plugins.fldb_flower.GridSweeper"] = GridSweeper


def _combinations(overrides: Sequence[Override]) -> list[tuple[str, ...]]:
    """Return the overrides of every combination of the values; later overrides of a key win.

    Raises
    ------
    SettingsError
        There are too many, which are not built, or an override is not discrete.
    """
    choices: dict[str, list[str]] = {}
    last = {each.get_key_element(): each for each in overrides}
    check_number({key: number_of_values(each) for key, each in last.items()}, _SOURCE)
    for each in overrides:
        key = each.get_key_element()
        if not each.is_sweep_override():
            values = [each.get_value_element_as_str()]
        elif each.is_discrete_sweep():
            values = list(each.sweep_string_iterator())
        else:
            raise SettingsError(
                f"{each.input_line} (from {_SOURCE}): a grid needs choices or a range; intervals"
                " need another hydra/sweeper"
            )
        if not values:
            raise SettingsError(
                f"{each.input_line} (from {_SOURCE}): a sweep needs at least one value"
            )
        choices[key] = [f"{key}={value}" for value in values]
    return list(itertools.product(*choices.values()))


def number_of_values(override: Override) -> int:
    """Return the number of values of an override, of a range without building it."""
    sweep = override.value()
    if isinstance(sweep, RangeSweep):
        start, stop, step = (Fraction(str(each)) for each in (sweep.start, sweep.stop, sweep.step))
        return max(0, math.ceil((stop - start) / step))
    is_discrete = override.is_sweep_override() and override.is_discrete_sweep()
    return sum(1 for _ in override.sweep_iterator()) if is_discrete else 1


def _require_distinct_folders(jobs: Iterable[Job]) -> None:
    names: dict[Path, str] = {}
    for job in jobs:
        other = names.setdefault(job.folder, job.name)
        if other != job.name:
            raise SettingsError(
                f"hydra.sweep.subdir={job.folder.name}: jobs {other!r} and {job.name!r} would"
                " share this folder; without it, each job has its own"
            )


@contextlib.contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Block SIGINT, which a terminal sends to all processes, in this thread and its children.

    The thread that shows the progress receives it instead.
    """
    if sys.platform != "win32":
        resource_tracker.ensure_running()  # starting it would unblock SIGINT
    with sigint_blocked():
        yield


def _folder(config: DictConfig, overrides: Sequence[str], key: str) -> Path:
    """Return the folder of a job: an existing one with its hash, or a new name."""
    sweep = Path(str(config.hydra.sweep.dir))
    chosen = OmegaConf.to_container(config.hydra.sweep, resolve=False)["subdir"]  # type: ignore[call-overload, index]
    if chosen != _NUMBERED:
        return sweep / str(config.hydra.sweep.subdir)
    digest = hashlib.sha256(key.encode()).hexdigest()[:_HASH_DIGITS]
    there = sorted(path for path in sweep.glob(f"*_{digest}") if path.is_dir())
    words = re.sub(r"[^A-Za-z0-9.+_-]+", "-", "_".join(overrides)).lstrip(".")
    return there[0] if there else sweep / f"{words[:_LONGEST_NAME]}_{digest}"


def quoted(text: str) -> str:
    """Return text as a quoted value of Hydra's grammar for overrides."""
    return QuotedString(text, Quote.single).with_quotes()


def _reusable(jobs: Sequence[Job], folder: Path) -> dict[str, Run]:
    """Return the results of the jobs in the folder of the sweep, by identity.

    Raises
    ------
    OutputError
        There are results, but ``resume`` is not set.
    """
    if any(job.settings.resume for job in jobs):
        return find_finished(folder, {job.identity for job in jobs})
    kept = (SUMMARY, REGRET, CHECKPOINT)
    started = sum(any((job.folder / name).exists() for name in kept) for job in jobs)
    if started:
        raise OutputError(
            f"{folder} holds runs of {started} of the {len(jobs)} jobs: add resume=true to use"
            " them, or name another hydra.sweep.dir"
        )
    return {}


def _reason(folder: Path, unusable: str, trouble: str) -> str:
    """Return why a job without ``error.txt`` has no result."""
    if (folder / SUMMARY).exists():
        return f"{folder}: {unusable}"
    if (folder / CHECKPOINT).exists():
        return "stopped; resume=true resumes it"
    return "not run" if trouble else "left no result"


def _say_stopped(jobs: Sequence[Job], finished: dict[str, Run], folder: Path) -> None:
    done = sum(job.identity in finished or (job.folder / SUMMARY).exists() for job in jobs)
    kept = f"{done} of {len(jobs)} jobs are finished" if done else "no job is finished"
    command = f"the same command with resume=true hydra.sweep.dir={folder}"
    print(f"stopped: {kept}; {command} runs the {'rest' if done else 'jobs'}", file=sys.stderr)
