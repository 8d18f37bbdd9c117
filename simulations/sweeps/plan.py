"""The plan of a sweep: its distinct jobs, identified by their settings, and their folders.

The folder of a job is named by its swept settings and a hash of all settings. A sweep can therefore
be extended, and its tables hold each of its jobs once, whatever else its folder contains.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fldb_flower.errors import FldbError, SettingsError, one_line
from fldb_flower.runs.results import identity
from fldb_flower.settings import Settings, to_dotted, unused

MAX_JOBS = 100_000
"""Largest number of jobs of a sweep."""
_HASH_DIGITS = 10
_LONGEST_NAME = 80


class Job(NamedTuple):
    """One job of a sweep: its swept settings (``"tau=1 seed=0"``), combination and folder."""

    name: str
    values: dict[str, Any]
    settings: Settings
    folder: Path


class Plan(NamedTuple):
    """The jobs of a sweep by identity, and the errors of invalid combinations by name.

    ``settings`` are those of all combinations, including combinations that share a job.
    """

    jobs: dict[str, Job]
    refused: dict[str, FldbError]
    settings: list[Settings]


def listed(values: Iterable[Any]) -> list[Any]:
    """Return values as a list, at most one more than the largest number of jobs."""
    return list(itertools.islice(values, MAX_JOBS + 1))


def plan(
    choices: Mapping[str, Sequence[Any]],
    swept: Collection[str],
    source: str,
    sweep: Path,
    compose: Callable[[int, dict[str, Any]], tuple[Settings, Path | None]],
) -> Plan:
    """Return the jobs of all combinations of the values; those with equal settings are one job.

    ``compose`` returns the settings of a combination, given its number, and the folder that the
    user chose for it. The default folder is an existing one with the hash of the job in the folder
    of the sweep, or a new one.
    """
    _check_sizes({name: len(values) for name, values in choices.items()}, source)
    below = sorted(sweep.iterdir(), reverse=True) if sweep.is_dir() else []
    there = {path.name.rpartition("_")[2]: path for path in below if path.is_dir()}
    found, names = Plan({}, {}, []), dict[Path, str]()
    for number, values in enumerate(itertools.product(*choices.values())):
        chosen = dict(zip(choices, values, strict=True))
        words = {key: f"{key}={chosen[key]}" for key in choices if key in swept or not swept}
        try:
            settings, folder = compose(number, chosen)
        except FldbError as error:
            found.refused[" ".join(words.values())] = error
            continue
        found.settings.append(settings)
        key = identity(settings)
        if key in found.jobs:
            continue
        ignored = unused(to_dotted(settings)).keys()
        used = [text for each, text in words.items() if not ignored & {each, f"{each}.name"}]
        used = used or [f"algorithm={settings.algorithm}"]
        if folder is None:
            digest = hashlib.sha256(key.encode()).hexdigest()[:_HASH_DIGITS]
            plain = re.sub(r"[^A-Za-z0-9.+_-]+", "-", "_".join(used)).lstrip(".")
            folder = there.get(digest, sweep / f"{plain[:_LONGEST_NAME]}_{digest}")
        found.jobs[key] = job = Job(" ".join(used), chosen, settings, folder)
        if names.setdefault(folder, job.name) is not job.name:
            raise SettingsError(
                f"hydra.sweep.subdir={folder.name}: jobs {names[folder]!r} and {job.name!r} would"
                " share this folder; leave this setting out, and each job has its own"
            )
    return found


def _check_sizes(sizes: Mapping[str, int], source: str) -> None:
    """Refuse a sweep without jobs or with too many, before they are built."""
    for name, size in sizes.items():
        if not size:
            raise SettingsError(f"{name} (from {source}): a sweep needs at least one value")
    if math.prod(sizes.values()) > MAX_JOBS:
        factors = " x ".join(
            f"{size:,}{' or more' if size > MAX_JOBS else ''} values of {name}"
            for name, size in sizes.items()
            if size > 1
        )
        raise SettingsError(
            f"{factors} (from {source}): a sweep has at most {MAX_JOBS:,} jobs; sweep over fewer"
            " values, or split the sweep"
        )


def describe_exception(error: BaseException) -> str:
    """Return an exception as one line; exceptions other than ours include their type."""
    if isinstance(error, FldbError):
        return str(error)
    return one_line(f"{type(error).__name__}: {error}".removesuffix(": "))
