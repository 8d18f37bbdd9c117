"""Errors that are a user's to mend: one line each, shown without a stack trace."""


def one_line(text: object) -> str:
    """Return text that stays on one line of a terminal, and does nothing else there."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))


class FldbError(Exception):
    """Something the user can put right; the message is one line that says how."""


class SettingsError(FldbError):
    """A setting is unknown, of the wrong type or out of range."""


def extra_missing(
    what: str, extra: str, instead: str = "", reason: Exception | None = None
) -> SettingsError:
    """Return the error of something that needs an optional dependency of this project.

    Parameters
    ----------
    what : str
        What the user asked for.
    extra : str
        The extra to install, as ``pyproject.toml`` names it.
    instead : str
        What works without it.
    reason : Exception, optional
        Why importing it failed.
    """
    way_out = f", or use {instead}" if instead else ""
    why = "" if reason is None else f" ({reason})"
    return SettingsError(
        f"{what} needs the {extra} extra: pip install 'fldb-flower[{extra}]'{way_out}{why}"
    )


class DataError(FldbError):
    """A data file is missing, truncated or not what it should be."""


class OutputError(FldbError):
    """A result cannot be written where it was asked for."""


class FederationError(FldbError):
    """Too few nodes took part, or their uploads cannot be used."""


class ConvergenceError(FldbError):
    """A minimiser was not reached within the exchanges allowed."""


class RoundAbandonedError(FederationError):
    """A round cannot be finished now and is begun anew later; nothing was counted or lost."""


class CheckpointError(FldbError):
    """A checkpoint is damaged, or is of another run."""
