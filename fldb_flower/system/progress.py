"""The progress of a command: a bar on a terminal or in a notebook, nothing elsewhere."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tqdm import tqdm

_SECONDS = 0.5  # between two updates, so that the time passes while nothing is finished
_DELAY = 1.0  # without a bar; short commands have none

Advance = Callable[..., object]
"""Counts finished units: one, or the given number."""


def is_shown() -> bool:
    """Return whether this process shows its progress: stderr is a terminal."""
    return multiprocessing.parent_process() is None and sys.stderr.isatty()


@contextlib.contextmanager
def progress(
    what: str = "",
    total: int | None = None,
    unit: str = "",
    *,
    initial: int = 0,
    keep: bool = False,
    poll: Callable[[tqdm[Any] | None], None] | None = None,
) -> Iterator[Advance]:
    """Show the progress of a block, and yield a function that counts finished units.

    Without a ``unit``, only the time is shown. ``initial`` units were finished before. With
    ``keep``, the bar is shown at once and remains afterwards. ``poll`` is called in another thread
    twice a second and at the end, with the bar, or with None if none is shown.
    """
    bar = _bar(what, total, unit, initial, keep=keep)
    ended = threading.Event()

    def tick() -> None:
        waited, is_last = 0.0, False
        while not is_last:
            is_last = ended.wait(_SECONDS)
            waited += _SECONDS
            if poll is not None:
                poll(bar)
            if bar is not None and not is_last and (keep or waited >= _DELAY):
                bar.refresh()

    ticker = threading.Thread(target=tick, daemon=True)
    if poll is not None or bar is not None:
        ticker.start()
    try:
        yield (lambda *_count: None) if bar is None else bar.update
    finally:
        ended.set()
        if ticker.ident is not None:
            ticker.join()
        if bar is not None:
            if not keep:
                bar.clear()  # close() does not, before the first unit
            bar.close()


def _bar(what: str, total: int | None, unit: str, initial: int, *, keep: bool) -> tqdm[Any] | None:
    """Return a bar; None where it would not be shown."""
    if not (is_shown() or "ipykernel" in sys.modules):
        return None
    from tqdm import TqdmWarning  # noqa: PLC0415 - takes time, and most processes show nothing

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TqdmWarning)  # in a notebook without ipywidgets
        from tqdm.auto import tqdm as kind  # noqa: PLC0415
    style: dict[str, Any] = {} if unit else {"bar_format": "{desc}: {elapsed}"}
    with contextlib.suppress(OSError, ValueError):  # a notebook has no terminal
        if 0 in os.get_terminal_size(sys.stderr.fileno()):  # as that of a script
            style |= {"ncols": 80, "nrows": 24}
    return kind(
        desc=what or None, total=total, initial=initial, unit=unit, file=sys.stderr, leave=keep,
        delay=0 if keep else _DELAY, **style,
    )  # fmt: skip
