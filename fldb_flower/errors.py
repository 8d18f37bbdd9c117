"""Errors that the user can fix: one line each, shown without a traceback."""

import warnings

REMOVAL = "0.3"
"""The version in which the names that version 0.2 replaced are removed."""


def one_line(text: object) -> str:
    """Return text with unprintable characters escaped, so that it is safe on a terminal line."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))


def warn_renamed(former: str, current: str) -> None:
    """Warn that a name has a successor, and until when it is valid."""
    message = f"{former} is now called {current}; the former name is removed in version {REMOVAL}"
    warnings.warn(message, FutureWarning, stacklevel=3)


class FldbError(Exception):
    """An error that the user can fix. The message is one line that names the remedy."""


class SettingsError(FldbError):
    """A setting is unknown, of the wrong type or out of range."""


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
    return SettingsError(
        f"{what} needs the {extra} extra: pip install 'fldb-flower[{extra}]'{alternative}{why}"
    )


class DataError(FldbError):
    """A data file is missing, truncated or invalid."""


class OutputError(FldbError):
    """A result cannot be written to the given place."""


class FederationError(FldbError):
    """Too few nodes took part, or their uploads are invalid."""


class ConvergenceError(FldbError):
    """No minimiser was found within the allowed number of exchanges, or the estimate diverges."""


class RoundAbandonedError(FederationError):
    """A round cannot be finished now and will run again; nothing was counted or lost."""


class CheckpointError(FldbError):
    """A checkpoint is damaged, or belongs to another run."""
