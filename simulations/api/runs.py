"""One run from Python, on any engine."""

from __future__ import annotations

import contextlib
import io
import tempfile
import time
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fldb_flower.errors import SettingsError
from fldb_flower.federation.history import History
from fldb_flower.privacy.usefulness import cautions
from fldb_flower.runs.experiment import out_of_memory
from fldb_flower.runs.results import STORAGE_SETTINGS, result_files
from fldb_flower.settings import Settings, from_keywords, keyword_entry, to_dotted
from simulations.api.results import Result, load

SOURCE = "Python"
"""Origin of the settings, in error messages."""


class Callback:
    """Base class of callbacks of :func:`run`: override what is needed.

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
            It must not be changed. Its attributes are ``iteration``, ``regret``, ``exchanges``,
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
        Called after each round, and with the result. ``engine="flower"`` allows none, because its
        server is another process.
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

    Settings of a group have its name in front, with an underscore or a dot:

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
