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
    fldb_flower.errors.SettingsError: num_arms=1 (from Python): must be from 2...
    """


def extra_missing(
    what: str, extra: str, instead: str = "", reason: Exception | None = None
) -> SettingsError:
    """Return the error for a setting or command whose extra is missing; ``instead`` is a remedy."""
    alternative = f", or use {instead}" if instead else ""
    why = "" if reason is None else f" ({reason})"
    command = f"pip install -e '.[{extra}]' in the clone"
    return SettingsError(f"{what} needs the {extra} extra: {command}{alternative}{why}")


class DataError(FldbError):
    """A data file is missing, truncated or invalid."""


class OutputError(FldbError):
    """A result cannot be written to the given place."""


class FederationError(FldbError):
    """Too few nodes took part, or their uploads are invalid."""


class RoundAbandonedError(FederationError):
    """A round cannot be finished now and will run again; nothing was counted or lost."""


class TooFewAnswersError(RoundAbandonedError):
    """A round waits for answers of people, which is no fault."""


class SecureError(FldbError):
    """A message of secure sums violates the protocol, or the helper refuses it."""


class PrivacyError(FldbError):
    """The budget of differential privacy is spent, or a release has no known sensitivity."""


class ConvergenceError(FldbError):
    """No minimiser was found within the allowed number of exchanges, or the estimate diverges."""


class CheckpointError(FldbError):
    """A checkpoint is damaged, or belongs to another run."""
