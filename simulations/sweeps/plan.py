"""What a sweep runs: its distinct jobs, identified by their settings, and their folders.

The folder of a job is named by its swept settings and a hash of all of them. A sweep can therefore
be extended, and its tables hold each of its jobs once, whatever else its folder holds.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fldb_flower.errors import FldbError, SettingsError, one_line
from fldb_flower.runs.results import identity
from fldb_flower.settings import Settings, to_dotted, unused

MAX_JOBS = 100_000
"""Largest number of jobs of a sweep."""
_HASH_DIGITS = 10
_LONGEST_NAME = 80


@dataclass(frozen=True)
class Job:
    """One job of a sweep."""

    number: int  # of its first combination
    words: tuple[str, ...]  # its swept settings, such as "tau=1"
    values: dict[str, Any]  # its combination
    settings: Settings

    @property
    def name(self) -> str:
        """The swept settings, for messages."""
        return " ".join(self.words)


@dataclass(frozen=True)
class Plan:
    """The jobs of a sweep by identity, and the errors of combinations without one by name.

    ``settings`` has those of all combinations, also of those that are one job.
    """

    jobs: dict[str, Job]
    refused: dict[str, FldbError]
    settings: list[Settings]


def listed(values: Iterable[Any]) -> list[Any]:
    """Return values as a list, but at most one more than there may be jobs."""
    return list(itertools.islice(values, MAX_JOBS + 1))


def plan(
    choices: Mapping[str, Sequence[Any]],
    swept: Collection[str],
    source: str,
    compose: Callable[[int, dict[str, Any]], Settings],
) -> Plan:
    """Return the jobs of all combinations of the values; those with equal settings are one job.

    ``compose`` returns the settings of a combination, given its number.
    """
    _check_sizes({name: len(values) for name, values in choices.items()}, source)
    jobs: dict[str, Job] = {}
    refused: dict[str, FldbError] = {}
    composed = []
    for number, values in enumerate(itertools.product(*choices.values())):
        chosen = dict(zip(choices, values, strict=True))
        words = {key: f"{key}={chosen[key]}" for key in choices if key in swept or not swept}
        try:
            settings = compose(number, chosen)
        except FldbError as error:
            refused[" ".join(words.values())] = error
            continue
        composed.append(settings)
        ignored = unused(to_dotted(settings)).keys()
        used = [text for key, text in words.items() if not ignored & {key, f"{key}.name"}]
        used = used or [f"algorithm={settings.algorithm}"]
        jobs.setdefault(identity(settings), Job(number, tuple(used), chosen, settings))
    return Plan(jobs, refused, composed)


def _check_sizes(sizes: Mapping[str, int], source: str) -> None:
    """Refuse too many jobs, before they are built, or none."""
    for name, size in sizes.items():
        if not size:
            raise SettingsError(f"{name} (from {source}): a sweep needs at least one value")
    if math.prod(sizes.values()) <= MAX_JOBS:
        return
    swept = {name: size for name, size in sizes.items() if size > 1}
    factors = " x ".join(
        f"{size:,}{' or more' if size > MAX_JOBS else ''} values of {name}"
        for name, size in swept.items()
    )
    raise SettingsError(
        f"{factors} (from {source}): a sweep has at most {MAX_JOBS:,} jobs; sweep over fewer"
        " values, or in several sweeps"
    )


def folders_of(jobs: Mapping[str, Job], sweep: Path) -> dict[str, Path]:
    """Return the folder of each job: an existing one with its hash, or a new name."""
    below = sorted(sweep.iterdir(), reverse=True) if sweep.is_dir() else []
    there = {path.name.rpartition("_")[2]: path for path in below if path.is_dir()}
    folders = {}
    for key, job in jobs.items():
        digest = hashlib.sha256(key.encode()).hexdigest()[:_HASH_DIGITS]
        words = re.sub(r"[^A-Za-z0-9.+_-]+", "-", "_".join(job.words)).lstrip(".")
        folders[key] = there.get(digest, sweep / f"{words[:_LONGEST_NAME]}_{digest}")
    return folders


def describe_exception(error: BaseException) -> str:
    """Return an exception as one line; exceptions other than ours include their type."""
    if isinstance(error, FldbError):
        return str(error)
    return one_line(f"{type(error).__name__}: {error}".removesuffix(": "))
