"""Hydra's sweep over a grid, with jobs that are identified by their settings.

A job's folder is named by its swept overrides and a hash of its settings. So a sweep can be
extended, and its tables hold each of its jobs once, whatever else is in its folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path
from types import FrameType

from hydra._internal.core_plugins import basic_sweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from fldb_flower.errors import FldbError, OutputError, SettingsError
from fldb_flower.runs.directory import CHECKPOINT, SUMMARY
from fldb_flower.runs.results import REGRET, identity, request_stop, stop_requested
from fldb_flower.settings import Settings, from_nested, hydra_entries
from simulations.saved_runs import Run, find_finished, identity_of, read_run
from simulations.sweeps.jobs import ERROR, SOURCE, describe_exception, failure
from simulations.sweeps.loader import CachingLoader
from simulations.sweeps.progress import Progress
from simulations.sweeps.tables import report

_NUMBERED = "${hydra.job.num}"  # Hydra's default name of a job's folder
_HASH_DIGITS = 10
_LONGEST_NAME = 80
_SIGNALLED = 128  # exit status: this and the signal's number


@dataclass(frozen=True)
class Job:
    """One job of a sweep.

    Attributes
    ----------
    name : str
        Its swept overrides.
    overrides : tuple of str
        What its launcher composes.
    settings : Settings
        Its settings.
    identity : str
        What a run with equal results shares with it.
    folder : Path
        Where its results go.
    """

    name: str
    overrides: tuple[str, ...]
    settings: Settings
    identity: str
    folder: Path


class GridSweeper(Sweeper):
    """Sweep over the product of the overrides, as Hydra's own sweeper does.

    Jobs with equal settings are one job. With ``resume=true``, jobs whose result is anywhere in
    the sweep's folder are not launched. At the end, the tables of exactly these jobs are written,
    and jobs without a result are named; then the exit status is 1.
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
        loader = CachingLoader(hydra_context.config_loader)
        context = HydraContext(config_loader=loader, callbacks=hydra_context.callbacks)
        self.config: DictConfig = config
        self.launcher: Launcher = Plugins.instance().instantiate_launcher(
            hydra_context=context, task_function=task_function, config=config
        )
        self._loader = loader
        self._swept: set[str] = set()  # settings, by their dotted names
        self._folder = Path(str(config.hydra.sweep.dir))

    def sweep(self, arguments: list[str]) -> None:
        """Run the jobs that have no result yet, and summarise all of them.

        Raises
        ------
        FldbError
            No job has valid settings, or the folder cannot be used.
        SystemExit
            A job has no result, or a signal came.
        """
        folder = self._folder
        jobs, refused = self.plan(arguments)
        if not jobs and len(set(refused.values())) == 1:
            raise SettingsError(next(iter(refused.values())))
        finished = _reusable(jobs, folder)
        todo = [job for job in jobs if job.identity not in finished]
        folder.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(self.config, folder / "multirun.yaml")
        try:
            with Progress([job.folder for job in todo], len(jobs), folder), self._stoppable(todo):
                trouble = self._launch(todo, folder)
        except SystemExit:
            _say_stopped(jobs, finished, folder)
            raise
        self._report(jobs, finished, refused, folder, trouble)

    def plan(self, arguments: Sequence[str]) -> tuple[list[Job], dict[str, str]]:
        """Return a sweep's distinct jobs in order, and why others are refused, by their names."""
        parser = OverridesParser.create(config_loader=self._loader)
        parsed = parser.parse_overrides([*self._params, *arguments])
        # Hydra executes its plugins' modules again when it looks for plugins: no class is imported.
        grids = basic_sweeper.BasicSweeper.split_arguments(parsed, None)[0]
        swept = {each.get_key_element(): each.is_sweep_override() for each in parsed}
        known = {entry.dotted for entry in hydra_entries()}
        keys = [key for key, is_swept in swept.items() if is_swept]
        self._swept = known.intersection([*keys, *(f"{key}.name" for key in keys)])
        quiet = () if "plot" in swept else ("plot=false",)
        jobs: dict[str, Job] = {}
        refused: dict[str, str] = {}
        for number, grid in enumerate(grids):
            varied = [text for text in grid if swept[text.partition("=")[0]]]
            name, overrides = " ".join(varied or grid), (*grid, *quiet)
            config = self._loader.load_sweep_config(self.config, list(overrides))
            try:
                settings = _settings_of(config)
            except FldbError as error:
                refused[name] = str(error)
                continue
            key = identity(settings)
            if key not in jobs:
                folder = _folder(config, number, varied or grid, key)
                for other in jobs.values():
                    if other.folder == folder:
                        raise SettingsError(
                            f"hydra.sweep.subdir={folder.name}: jobs {other.name!r} and {name!r}"
                            " would share this folder; without it, each job has its own"
                        )
                subdir = str(folder.relative_to(str(config.hydra.sweep.dir)))
                place = f"hydra.sweep.subdir={quoted(subdir)}"
                jobs[key] = Job(name, (*overrides, place), settings, key, folder)
        return list(jobs.values()), refused

    def _launch(self, todo: Sequence[Job], folder: Path) -> str:
        """Launch jobs; return what went wrong with the launcher itself, if anything did."""
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
            (folder / ERROR).write_text("".join(traceback.format_exception(error)))
            return f"{describe_exception(error)} (trace: {folder / ERROR})"
        return ""

    @contextlib.contextmanager
    def _stoppable(self, todo: Sequence[Job]) -> Iterator[None]:
        """Stop the jobs on SIGINT or SIGTERM: the running ones save themselves, no other begins.

        Raises
        ------
        SystemExit
            With 128 + the signal's number, once a signal came; at once on a second one.
        """
        if threading.current_thread() is not threading.main_thread():  # Python's rule for handlers
            yield
            return
        folder = self._folder
        # Jobs in this process handle signals themselves.
        here = str(self.config.hydra.launcher.get("_target_")).endswith(".BasicLauncher")
        came: list[int] = []

        def stop(number: int, _frame: FrameType | None) -> None:
            came.append(number)
            if here or len(came) > 1:
                sys.exit(_SIGNALLED + number)
            request_stop(folder)
            for job in todo:
                if job.folder.is_dir() and not (job.folder / SUMMARY).exists():
                    request_stop(job.folder)

        stop_requested(folder)  # of a sweep that was killed then
        before = {each: signal.signal(each, stop) for each in (signal.SIGTERM, signal.SIGINT)}
        # A terminal sends SIGINT to all its processes, and workers would die of it. They inherit
        # the mask of this thread; here, the thread that shows the progress receives the signal.
        if not here:  # Python's resource tracker unblocks SIGINT when it starts
            resource_tracker.ensure_running()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, () if here else {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            for each, handler in before.items():
                signal.signal(each, handler)
            for path in [folder, *(job.folder for job in todo)] if came else []:
                stop_requested(path)
        if came:
            sys.exit(_SIGNALLED + came[0])

    def _report(
        self,
        jobs: Sequence[Job],
        finished: dict[str, Run],
        refused: dict[str, str],
        folder: Path,
        trouble: str,
    ) -> None:
        runs, failed = [], [f"{name}: {reason}" for name, reason in refused.items()]
        for job in jobs:
            run = finished.get(job.identity) or read_run(job.folder)
            if isinstance(run, Run) and identity_of(run) == job.identity:
                runs.append(run)
            else:
                why = "a run of other settings" if isinstance(run, Run) else run.reason
                why = failure(job.folder) or _reason(job.folder, why, trouble)
                failed.append(f"{job.name}: {why}")
        report(runs, failed, folder, self._swept)
        if trouble:
            print(f"error: the launcher failed: {trouble}", file=sys.stderr)
        if failed or trouble:
            sys.exit(1)


def register() -> None:
    """Make :class:`GridSweeper` known to Hydra, by the name in ``conf/hydra/sweeper/grid.yaml``.

    ``Plugins.register`` would do the same, but by the name of this module, and Hydra accepts none
    outside ``hydra_plugins``.
    """
    Plugins.instance().class_name_to_class["hydra_plugins.fldb_flower.GridSweeper"] = GridSweeper


def _settings_of(config: DictConfig) -> Settings:
    """Return the settings in a composed configuration, which holds Hydra's own settings too."""
    values = {
        str(key): OmegaConf.to_container(value, resolve=True)
        if OmegaConf.is_config(value)
        else value
        for key, value in config.items()
        if key != "hydra"
    }
    return from_nested(values, SOURCE)


def _folder(config: DictConfig, number: int, overrides: Sequence[str], key: str) -> Path:
    """Return where a job's results go: where they are already, or a new name for its settings."""
    sweep = Path(str(config.hydra.sweep.dir))
    chosen = OmegaConf.to_container(config.hydra.sweep, resolve=False)["subdir"]  # type: ignore[call-overload, index]
    if chosen != _NUMBERED:
        with open_dict(config):
            config.hydra.job.num = config.hydra.job.id = number
        return sweep / str(config.hydra.sweep.subdir)
    digest = hashlib.sha256(key.encode()).hexdigest()[:_HASH_DIGITS]
    there = sorted(path for path in sweep.glob(f"*_{digest}") if path.is_dir())
    words = re.sub(r"[^A-Za-z0-9.+_-]+", "-", "_".join(overrides)).lstrip(".")
    return there[0] if there else sweep / f"{words[:_LONGEST_NAME]}_{digest}"


def quoted(text: str) -> str:
    """Return text as a quoted value of Hydra's grammar for overrides."""
    escaped = re.sub(r"(\\*)'", r"\1\1\\'", text)
    return f"'{escaped}'"


def _reusable(jobs: Sequence[Job], folder: Path) -> dict[str, Run]:
    """Return the results in a sweep's folder that its jobs need, by identity.

    Raises
    ------
    OutputError
        There are some, and the sweep was not asked to resume.
    """
    if any(job.settings.resume for job in jobs):
        return find_finished(folder, {job.identity for job in jobs})
    kept = (SUMMARY, REGRET, CHECKPOINT)
    begun = sum(any((job.folder / name).exists() for name in kept) for job in jobs)
    if begun:
        raise OutputError(
            f"{folder} holds runs of {begun} of the {len(jobs)} jobs: add resume=true to use them,"
            " or name another hydra.sweep.dir"
        )
    return {}


def _reason(folder: Path, unusable: str, trouble: str) -> str:
    """Return why a job has no result and left no error."""
    if (folder / SUMMARY).exists():
        return f"{folder}: {unusable}"
    if (folder / CHECKPOINT).exists():
        return "stopped; resume=true continues it"
    return "not run" if trouble else "left no result"


def _say_stopped(jobs: Sequence[Job], finished: dict[str, Run], folder: Path) -> None:
    done = sum(job.identity in finished or (job.folder / SUMMARY).exists() for job in jobs)
    print(
        f"stopped: {done} of {len(jobs)} jobs are finished and kept;"
        f" the same command with resume=true hydra.sweep.dir={folder} runs the rest",
        file=sys.stderr,
    )
