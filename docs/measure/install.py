"""Size and time of `pip install` by dependency."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pandas as pd

ROOT = Path(__file__).parents[2]
EXTRAS = ("service", "report", "joblib", "slurm")
"""Extras to measure; PyTorch and the language model take gigabytes, and are left out."""
CORE, DEVICE = "all dependencies", "a device"
_Sizes = dict[str, int]  # bytes by name of the package


def install() -> pd.DataFrame:
    """Return a table with a row for each dependency, all of them, a device, and each extra.

    Each is installed by itself into an empty folder, from wheels that are downloaded first. The
    columns are the number of packages that it needs, their size in MB, the size of those that no
    other dependency needs (of an extra: that none needs), and the seconds of the installation.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    core = project["dependencies"]
    wanted = {requirement: [requirement] for requirement in core}
    wanted |= {CORE: core, DEVICE: device_requirements()}
    wanted |= {f"[{name}]": project["optional-dependencies"][name] for name in EXTRAS}
    with tempfile.TemporaryDirectory() as scratch:
        wheels = Path(scratch) / "wheels"
        needed = sorted(set().union(*wanted.values()))
        _pip("wheel", "--quiet", "--wheel-dir", wheels, *needed)
        measured = {
            name: _measure(requirements, wheels, Path(scratch) / str(number))
            for number, (name, requirements) in enumerate(wanted.items())
        }
    return table({name: sizes for name, (sizes, _) in measured.items()}, core).assign(
        seconds=[round(seconds, 1) for _, seconds in measured.values()]
    )


def table(sizes: Mapping[str, Mapping[str, int]], core: Collection[str]) -> pd.DataFrame:
    """Return the table without times, from the bytes of the packages that each row installs.

    ``core`` has the rows that are dependencies. The other rows are compared with all of them.
    """
    rows = []
    for name, packages in sizes.items():
        others = set[str]().union(*(sizes[each] for each in core if each != name))
        own = packages.keys() - others if name not in (CORE, DEVICE) else packages.keys()
        rows.append(
            {
                "installed": name,
                "packages": len(packages),
                "MB": _megabytes(packages.values()),
                "own MB": _megabytes(packages[each] for each in own),
            }
        )
    return pd.DataFrame(rows)


def device_requirements() -> list[str]:
    """Return the requirements of a device."""
    lines = (ROOT / "docs" / "deployment" / "device-requirements.txt").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


def _measure(requirements: Sequence[str], wheels: Path, folder: Path) -> tuple[_Sizes, float]:
    """Install requirements into a folder; return the sizes of the packages, and the seconds."""
    begin = time.perf_counter()
    _pip(
        "install", "--quiet", "--no-index", "--find-links", wheels, "--target", folder,
        *requirements,
    )  # fmt: skip
    seconds = time.perf_counter() - begin
    return {each.name.lower(): _size(each) for each in distributions(path=[str(folder)])}, seconds


def _size(distribution: Any) -> int:
    files = [Path(distribution.locate_file(file)) for file in distribution.files or ()]
    return sum(file.stat().st_size for file in files if file.is_file())


def _megabytes(sizes: Iterable[int]) -> float:
    return round(sum(sizes) / 1e6, 1)


def _pip(*arguments: str | Path) -> None:
    subprocess.run([sys.executable, "-m", "pip", *map(str, arguments)], check=True)
