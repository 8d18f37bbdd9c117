"""One run from Python, on any engine, its result, and results read back from disk."""

from __future__ import annotations

import contextlib
import io
import tempfile
import time
import warnings
from collections.abc import Iterable, Mapping
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pandas as pd

from fldb_flower.errors import DataError, SettingsError, one_line
from fldb_flower.federation.history import History
from fldb_flower.linalg.arrays import FloatArray
from fldb_flower.privacy.plan import cautions
from fldb_flower.runs.directory import MODEL, SUMMARY
from fldb_flower.runs.experiment import out_of_memory
from fldb_flower.runs.plots import axes_for, label_axes, line_style
from fldb_flower.runs.results import (
    CONFIG,
    FILES,
    PARTICIPATION,
    PREDICTION,
    REGRET,
    STORAGE_SETTINGS,
    outcome,
    result_files,
    save_files,
)
from fldb_flower.runs.styles import dashed
from fldb_flower.settings import Settings, from_keywords, keyword_entry, to_dotted, unused
from simulations.saved_runs import Run, Unfinished, find_runs, parse, read_run, varying
from simulations.sweeps.tables import table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SOURCE = "Python"
"""Origin of the settings, in error messages."""
_SHOWN = ("num_agents", "horizon", "tau", "seed")


class Result:
    """The result of one run, from :func:`run` or :func:`load`.

    Attributes
    ----------
    settings : dict
        The settings by dotted name (``"environment.sigma"``). ``run(result.settings)`` repeats
        the run.
    summary : dict
        The content of ``summary.json``, such as ``final_regret``, ``exchanges``, ``rounds``,
        ``uploaded_bytes``, ``downloaded_bytes`` and ``runtime_seconds``.
    regret : DataFrame
        One row per iteration. The columns are ``iteration``, ``cumulative_regret`` (averaged over
        the agents) and ``exchanges``.

    Examples
    --------
    >>> import fldb_flower as fldb
    >>> result = fldb.run(algorithm="fldb_ons", num_agents=10, horizon=20, tau=1, seed=0)
    >>> result.regret.shape
    (20, 3)
    >>> result.theta.shape
    (5,)
    >>> result.settings["environment.name"]
    'synthetic'
    """

    def __init__(self, settings: dict[str, Any], files: Mapping[str, bytes]) -> None:
        self.settings = settings
        self._files = dict(files)
        self.summary: dict[str, Any] = self._read(SUMMARY)
        self.regret: pd.DataFrame = self._read(REGRET)

    def _read(self, name: str) -> Any:
        return parse(name, self._files[name]) if name in self._files else None

    @cached_property
    def theta(self) -> FloatArray | None:
        """The final common estimate theta_sync, (d,); None if there is none."""
        return cast(FloatArray | None, self._read(MODEL))

    @cached_property
    def participation(self) -> pd.DataFrame | None:
        """Participation of the nodes, one row per exchange; None on the vectorized engine.

        The columns are ``iteration``, ``asked``, ``replied``, ``absent`` and ``rejected``.
        """
        return cast(pd.DataFrame | None, self._read(PARTICIPATION))

    @cached_property
    def prediction(self) -> pd.DataFrame | None:
        """Log loss and accuracy up to each iteration; None if the run predicted no answers."""
        return cast(pd.DataFrame | None, self._read(PREDICTION))

    def plot(self, ax: Axes | None = None, **style: Any) -> Axes:
        """Plot the cumulative regret against the iterations.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Axes to draw in; those of a new figure by default.
        **style
            Properties of the :class:`matplotlib.lines.Line2D`. By default, the first curve of an
            algorithm has its color, dash pattern and label; further ones have another pattern.

        Returns
        -------
        matplotlib.axes.Axes

        Examples
        --------
        >>> import fldb_flower as fldb
        >>> ax = None
        >>> for algorithm in ["fldb_ogd", "fldb_ons"]:
        ...     result = fldb.run(algorithm=algorithm, num_agents=10, horizon=20)
        ...     ax = result.plot(ax)
        >>> [line.get_label() for line in ax.lines]
        ['FLDB-OGD', 'FLDB-ONS']
        """
        ax, algorithm = axes_for(ax), str(self.settings["algorithm"])
        others = [gid for line in ax.lines if (gid := line.get_gid())]
        default = dashed([*others, algorithm])[-1]
        look = {"label": default["label"], "gid": algorithm, **line_style(default)}
        x, y = self.regret["iteration"], self.regret["cumulative_regret"]
        (line,) = ax.plot(x, y, **look)
        line.set(**style)
        label_axes(ax)
        line.sticky_edges.y.append(0)
        ax.update_datalim([(0, 0)])
        ax.autoscale(axis="y")  # from 0; a logarithmic scale that is set later has its own limits
        ax.legend()
        return ax

    def save(self, directory: str | PathLike[str]) -> Path:
        """Write the files of the run, as the command line does, to a new directory.

        Parameters
        ----------
        directory : path-like
            It is created if missing.

        Returns
        -------
        Path
            The directory.

        Raises
        ------
        OutputError
            The directory cannot be written, or holds a run.

        Examples
        --------
        >>> import tempfile
        >>> import fldb_flower as fldb
        >>> folder = fldb.run(num_agents=10, horizon=20).save(tempfile.mkdtemp())
        >>> sorted(path.name for path in folder.iterdir())
        ['config.yaml', 'model.json', 'prediction.csv', 'regret.csv', 'summary.json']
        """
        path = checked_path(directory, "directory")
        save_files(path, self._files)
        return path

    def as_run(self, path: Path | None) -> Run:
        """Return the result as a run, after writing it to a folder of a sweep, if there is one."""
        if path is not None:
            save_files(path, self._files, replace=True)
        return Run(path or Path(), self.settings, self.summary, self.regret)

    def __repr__(self) -> str:
        ignored = unused(self.settings)
        names = [name for name in _SHOWN if name not in ignored]
        shown = ", ".join(f"{name}={self.settings.get(name)}" for name in names)
        log_loss, accuracy = map(self.summary.get, ("log_loss", "accuracy"))
        return (
            f"Result({self.settings.get('algorithm')} on {self.settings.get('environment.name')},"
            f" {shown}: {outcome(self.summary['final_regret'], log_loss, accuracy)},"
            f" {self.summary['exchanges']} exchanges)"
        )

    def _repr_html_(self) -> str:
        """Return the summary as an HTML table."""
        values = {key: value for key, value in self.summary.items() if key != "complete"}
        return pd.DataFrame({"": values}, dtype=object).to_html(header=False, border=0)


def load(path: str | PathLike[str]) -> Result | pd.DataFrame:
    """Read a run, or the runs of a sweep, from a folder.

    Parameters
    ----------
    path : path-like
        The folder of a run, as written by :meth:`Result.save`, ``fldb run`` or ``flwr run``, or a
        folder that contains such folders.

    Returns
    -------
    Result or DataFrame
        The run in the folder. If there is none, the table of all finished runs below the folder:
        one row per run, with its folder as ``job``, the settings that differ, and the columns of
        :func:`sweep`. Runs without a result are left out with a warning.

    Raises
    ------
    DataError
        There is no finished run, or its files are not valid.

    Examples
    --------
    >>> import tempfile
    >>> import fldb_flower as fldb
    >>> result = fldb.run(num_agents=10, horizon=20)
    >>> fldb.load(result.save(tempfile.mkdtemp()))
    Result(fldb_ogd on synthetic, num_agents=10, horizon=20, tau=5, seed=0: final regret ...)
    """
    folder = checked_path(path, "path")
    if any((folder / name).exists() for name in (CONFIG, SUMMARY)) and folder.is_dir():
        run = read_run(folder)
        if isinstance(run, Unfinished):
            raise DataError(f"{run.path}: {run.reason}")
        files = {name: folder / name for name in FILES if (folder / name).exists()}
        contents = {name: path.read_bytes() for name, path in files.items()}
        try:
            for name, content in contents.items():
                parse(name, content)
        except DataError as error:
            raise DataError(f"{folder}: {error}") from None
        return Result(run.settings, contents)
    runs, unfinished = find_runs([folder])
    for each in unfinished:
        warnings.warn(one_line(f"{each.path}: {each.reason}"), stacklevel=2)
    if not runs:
        raise DataError(f"{folder}: contains no finished run")
    return table(runs, varying(runs), folder)


class Callback:
    """Base class of callbacks of :func:`run`: override the methods that are needed.

    Examples
    --------
    >>> import fldb_flower as fldb
    >>> class Printer(fldb.Callback):
    ...     def on_round(self, history):
    ...         print(history.iteration, history.exchanges)
    ...
    ...     def on_result(self, result):
    ...         print("finished:", result.summary["rounds"], "rounds")
    >>> result = fldb.run(
    ...     algorithm="fldb_ons", num_agents=10, horizon=20, tau=10, callbacks=[Printer()]
    ... )
    1 ...
    10 ...
    20 ...
    finished: 3 rounds
    """

    def on_round(self, history: History) -> None:
        """Handle the end of a round.

        Parameters
        ----------
        history : History
            Must not be modified. Its attributes are ``iteration``, ``regret``, ``exchanges``,
            ``rounds``, ``uploaded_bytes``, ``downloaded_bytes``, ``log_loss``, ``accuracy`` and
            others; see :class:`fldb_flower.federation.history.History`.
        """

    def on_result(self, result: Result) -> None:
        """Handle the result of the run."""


def run(
    settings: Mapping[str, Any] | None = None,
    /,
    *,
    callbacks: Iterable[Callback] = (),
    **values: Any,
) -> Result:
    """Run a federation and return its result. No files are written.

    Parameters
    ----------
    settings : mapping, optional
        Settings by name, such as ``result.settings``. Keyword arguments take precedence.
    callbacks : iterable of Callback, optional
        Called after each round, and with the result. ``engine="flower"`` does not support them,
        because its server is another process.
    **values
        Settings by name. The names are those of ``flwr run`` with underscores: ``tau``,
        ``environment="movielens"``, ``environment_path``, ``schedule="geometric"``,
        ``lambda_``; and ``engine``, ``engine_num_nodes``. A mapping may also have the dotted names
        of the command line, such as ``"environment.path"``.

    Returns
    -------
    Result

    Raises
    ------
    SettingsError
        A name is unknown, a value is invalid, or two settings are incompatible.
    FldbError
        Another error that the user can fix.

    Examples
    --------
    >>> import fldb_flower as fldb
    >>> fldb.run(algorithm="fldb_ons", num_agents=10, horizon=20, tau=1, seed=0)
    Result(fldb_ons on synthetic, num_agents=10, horizon=20, tau=1, seed=0: final regret ...)

    Names of settings in a group start with the name of the group and an underscore or a dot:

    >>> a = fldb.run(environment_sigma=0.3, num_agents=10, horizon=20)
    >>> b = fldb.run({"environment.sigma": 0.3}, num_agents=10, horizon=20)
    >>> a.regret.equals(b.regret)
    True
    """
    chosen = from_keywords(merged(settings, values), SOURCE)
    for line in cautions(chosen):
        warnings.warn(line, stacklevel=2)
    return run_settings(chosen, _checked_callbacks(callbacks))


def _checked_callbacks(callbacks: Any) -> list[Callback]:
    given = list(callbacks) if isinstance(callbacks, Iterable) else [callbacks]
    for each in given:
        known = hasattr(each, "on_round") and hasattr(each, "on_result")
        if isinstance(each, type) or not known:
            raise SettingsError(
                f"callbacks={each!r} (from {SOURCE}): must be a list of instances of"
                " fldb_flower.Callback"
            )
    return given


def merged(settings: Mapping[str, Any] | None, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by dotted name; ``values`` take precedence over ``settings``."""
    if settings is not None and not isinstance(settings, Mapping):
        raise SettingsError(f"settings={settings!r} (from {SOURCE}): must be a mapping")
    chosen: dict[str, Any] = {}
    for source in (settings or {}, values):
        named = {keyword_entry(str(name), SOURCE).dotted: value for name, value in source.items()}
        if len(named) < len(source):
            spelled = ", ".join(map(str, source))
            raise SettingsError(f"{spelled} (from {SOURCE}): a setting is given twice")
        chosen |= named
    return chosen


def run_settings(settings: Settings, callbacks: list[Callback]) -> Result:
    """Run checked settings on their engine; see :func:`run`."""
    begin = time.monotonic()
    if settings.engine.name == "flower":
        result = _run_on_flower(settings, callbacks)
    else:

        def report(history: History) -> None:
            for callback in callbacks:
                callback.on_round(history)

        history = History(settings.horizon, report if callbacks else None)
        try:
            if settings.engine.name == "vectorized":
                from simulations.engines import vectorized  # noqa: PLC0415 - one engine only

                theta = vectorized.run(settings, history)
            else:
                from simulations.engines import inprocess  # noqa: PLC0415 - imports Flower

                theta = inprocess.play(settings, history)
            files = result_files(settings, history, theta, time.monotonic() - begin)
        except MemoryError as error:
            raise out_of_memory(settings, error) from None
        stored = to_dotted(settings).items()
        result = Result({k: v for k, v in stored if k not in STORAGE_SETTINGS}, files)
    for callback in callbacks:
        callback.on_result(result)
    return result


def _run_on_flower(settings: Settings, callbacks: list[Callback]) -> Result:
    from simulations.engines import flower  # noqa: PLC0415 - imports Flower

    if callbacks:
        raise SettingsError(
            "callbacks need engine=vectorized or engine=inprocess: the server of engine=flower is"
            " another process"
        )
    with tempfile.TemporaryDirectory(prefix="fldb-flower-") as folder:
        with contextlib.redirect_stdout(io.StringIO()):  # the paths of the folder
            flower.run(settings, str(Path(folder) / "run"))
        result = load(Path(folder) / "run")
    assert isinstance(result, Result)
    return result


def checked_path(value: Any, name: str) -> Path:
    """Return an argument as a path, or raise a SettingsError."""
    if not isinstance(value, str | PathLike) or not str(value):
        raise SettingsError(f"{name}={value!r} (from {SOURCE}): must be the path of a folder")
    return Path(value).expanduser()
