"""The log of the service: few lines of each kind, whatever clients send, and no token."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Hashable, Iterator
from typing import NamedTuple

PERIOD = 60
"""Seconds between two reports of :class:`Limiter`."""

_MOST = 3  # records of a kind in each period
_LOGGERS = ("uvicorn.error", "uvicorn.access", "asyncio")


class _Dropped(NamedTuple):
    number: int
    last: logging.LogRecord


class Limiter(logging.Filter):
    """Limits the records of each kind, and counts the others.

    Records are of one kind if they have the same text before arguments are inserted, and the same
    place of the exception, if any. ``tokens`` are replaced in messages.
    """

    def __init__(self, *tokens: str) -> None:
        super().__init__()
        self._tokens = tokens
        self._passed: dict[Hashable, int] = {}
        self._dropped: dict[Hashable, _Dropped] = {}

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Filter the records of uvicorn and asyncio in this block."""
        loggers = [logging.getLogger(name) for name in _LOGGERS]
        for logger in loggers:
            logger.addFilter(self)
        try:
            yield
        finally:
            for logger in loggers:
                logger.removeFilter(self)
            self.report()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is logged now."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, asyncio.CancelledError):  # uvicorn logs their number
            return False
        kind = _kind(record, error)
        message = record.getMessage()
        for token in self._tokens:
            message = message.replace(token, "TOKEN")
        record.msg, record.args = message, None
        self._passed[kind] = self._passed.get(kind, 0) + 1
        if self._passed[kind] <= _MOST:
            return True
        number = self._dropped[kind].number if kind in self._dropped else 0
        self._dropped[kind] = _Dropped(number + 1, record)
        return False

    async def notify(self) -> None:
        """Report, as uvicorn calls it every :data:`PERIOD`."""
        self.report()

    def report(self) -> None:
        """Log how many records of each kind were not logged, and begin a new period."""
        dropped, self._dropped, self._passed = self._dropped, {}, {}
        for number, last in dropped.values():
            if number > 1:
                last.msg = f"{last.msg} (and {number - 1} more in the last minute)"
            logging.getLogger(last.name).callHandlers(last)  # not filtered


def _kind(record: logging.LogRecord, error: BaseException | None) -> Hashable:
    place = None
    if error is not None and (trace := error.__traceback__) is not None:
        while trace.tb_next is not None:
            trace = trace.tb_next
        place = trace.tb_frame.f_code, trace.tb_lineno
    return record.name, str(record.msg).partition("\n")[0], type(error), place
