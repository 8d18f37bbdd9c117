"""Errors that the user can fix: one line each, shown without a traceback."""

from __future__ import annotations


def one_line(text: object) -> str:
    """Return text with unprintable characters escaped, so that it is safe on a terminal line."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))


def shown(value: object) -> str:
    """Return a value's representation as one line of at most 100 characters."""
    try:
        text = one_line(" ".join(repr(value).split()))
    except Exception:  # repr fails, for example of an integer of 5,000 digits
        return f"<{type(value).__name__}>"
    return text if len(text) <= 100 else f"{text[:97]}..."


class FldbError(Exception):
    """An error that the user can fix. The message is one line that names the remedy.

    Examples
    --------
    >>> from fldb_flower.errors import FldbError
    >>> from fldb_flower.settings import Settings
    >>> try:
    ...     Settings(algorithm="fldb_onz")
    ... except FldbError as error:
    ...     print(type(error).__name__)
    SettingsError
    """


class SettingsError(FldbError):
    """A setting is unknown, of the wrong type or out of range.

    Examples
    --------
    >>> from fldb_flower.settings import Settings
    >>> Settings(num_arms=1)
    Traceback (most recent call last):
    fldb_flower.errors.SettingsError: num_arms=1 (from Python): must be at least 2...
    """


def extra_missing(
    what: str, extra: str, instead: str = "", reason: Exception | None = None
) -> SettingsError:
    """Return the error for a missing optional dependency of this project.

    Parameters
    ----------
    what : str
        The setting or command that needs it.
    extra : str
        The extra to install, as named in ``pyproject.toml``.
    instead : str
        An alternative without it.
    reason : Exception, optional
        The error of the import.
    """
    alternative = f", or use {instead}" if instead else ""
    why = "" if reason is None else f" ({reason})"
    command = f"pip install -e '.[{extra}]' in the clone"
    return SettingsError(f"{what} needs the {extra} extra: {command}{alternative}{why}")


class DataError(FldbError):
    """A data file is missing, truncated or invalid.

    Examples
    --------
    >>> from clients.preference_agent import PreferenceAgent
    >>> PreferenceAgent("duels.db").propose([[1.0, 0.0]])
    Traceback (most recent call last):
    fldb_flower.errors.DataError: ...
    """


class OutputError(FldbError):
    """A result cannot be written to the given place.

    Examples
    --------
    >>> from clients.store import DuelStore
    >>> DuelStore("no-such-folder/duels.db")
    Traceback (most recent call last):
    fldb_flower.errors.OutputError: ...
    """


class FederationError(FldbError):
    """Too few nodes took part, or their uploads are invalid.

    Examples
    --------
    >>> from fldb_flower.federation.history import History
    >>> from fldb_flower.settings import Settings
    >>> from strategies.simulated import SimulatedChannel
    >>> SimulatedChannel(Settings(num_agents=2), History(5)).check_number(range(3))
    Traceback (most recent call last):
    fldb_flower.errors.FederationError: 3 nodes for num-agents=2: ...
    """


class SecureError(FldbError):
    """A message of secure sums violates the protocol, or the helper refuses it.

    Examples
    --------
    >>> from fldb_flower.errors import FldbError, SecureError
    >>> issubclass(SecureError, FldbError)
    True
    """


class PrivacyError(FldbError):
    """The budget of differential privacy is spent, or a release has no known sensitivity.

    Examples
    --------
    >>> from fldb_flower.errors import FldbError, PrivacyError
    >>> issubclass(PrivacyError, FldbError)
    True
    """


class ConvergenceError(FldbError):
    """No minimiser was found within the allowed number of exchanges, or the estimate diverges.

    Examples
    --------
    An overflow ends a run with one line, and the state of the algorithm is unchanged:

    >>> from fldb_flower.algorithms import run_algorithm
    >>> from fldb_flower.federation.history import History
    >>> from fldb_flower.settings import Settings
    >>> from simulations.engines.vectorized import DirectFederation
    >>> settings = Settings(algorithm="fldb_gd", solver="gd", gd_step_size=1e100, horizon=5)
    >>> run_algorithm(DirectFederation(settings, History(5)), settings)
    Traceback (most recent call last):
    fldb_flower.errors.ConvergenceError: ...
    """


class RoundAbandonedError(FederationError):
    """A round cannot be finished now and will run again; nothing was counted or lost.

    Examples
    --------
    >>> from fldb_flower.errors import FederationError, RoundAbandonedError
    >>> issubclass(RoundAbandonedError, FederationError)
    True
    """


class CheckpointError(FldbError):
    """A checkpoint is damaged, or belongs to another run.

    Examples
    --------
    >>> from pathlib import Path
    >>> from fldb_flower.runs.directory import load_checkpoint
    >>> _ = Path("checkpoint.bin").write_bytes(b"not a checkpoint")
    >>> load_checkpoint(Path("checkpoint.bin"), "the settings")
    Traceback (most recent call last):
    fldb_flower.errors.CheckpointError: ...
    """
