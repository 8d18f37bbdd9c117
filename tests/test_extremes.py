"""Numbers of extreme size: a run is complete with finite numbers, or ends in one line.

`pyproject.toml` turns RuntimeWarning into an error, so that no warning precedes either.
"""

import json
import math
import tempfile
from pathlib import Path
from unittest.mock import patch

import pandas as pd
import pytest
from conftest import nested
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from fldb_flower.errors import FldbError
from fldb_flower.settings import Entry, from_nested, hydra_entries
from simulations.run import run

SMALL = {
    "num_agents": 3, "horizon": 6, "num_arms": 3, "dimension": 4, "tau": 2, "sketch_rank": 2,
    "gd_steps": 4, "checkpoint_seconds": 1e9, "node_wait": 0.01,
}  # fmt: skip
ACCEPTED_UP_TO = {
    "num_agents": 40, "horizon": 40, "num_arms": 40, "dimension": 40, "gd_steps": 40,
    "engine.num_nodes": 40, "node_wait": 0.1, "reply_timeout": 0.1,
}  # fmt: skip
EXTREMES = [
    *(0.0, 5e-324, 2.2e-308, 1e-308, 1e-150, 1e-101, 1e-100, 1e-30, 1e-16, 1e-8, 0.5, 1 - 1e-16),
    *(1.0, 1 + 2.3e-16, 2.0, 3.0, 1e3, 1e8, 1e16, 2.0**53, 2.0**63, 1e30, 1e99, 1e100, 1e101),
    *(1e150, 1e154, 1e155, 1e306, 1e308, 1.7976931348623157e308, math.inf),
]
OF_NODES = {"wire", "robust", "fraction_train", "quorum", "dropout", "faults"}
NUMBERS = [entry for entry in hydra_entries() if {int, float} & set(entry.kinds)]
REALS = [entry for entry in NUMBERS if float in entry.kinds]
FIXED = {"engine.name", "environment.name", "device", "rng"}  # or files and devices are needed
NAMES = [
    entry for entry in hydra_entries() if entry.metadata["choices"] and entry.dotted not in FIXED
]


def accepts(entry: Entry, value: float | int | str) -> bool:
    try:
        entry.check(value, entry.dotted, "a test")
    except FldbError:
        return False
    return True


def extremes(entry: Entry) -> tuple[list[float | int | str], list[float | int | str]]:
    """Return numbers that a setting accepts and refuses: of extreme size, and at its limits.

    Sizes, and seconds to wait, that are accepted but would take minutes are left out.
    """
    limits = [entry.metadata[key] for key in ("minimum", "above", "maximum", "below")]
    values = [*EXTREMES, *(-value for value in EXTREMES), math.nan, 10**30]
    for limit in limits:
        if limit is not None:
            values += [limit, math.nextafter(limit, -math.inf), math.nextafter(limit, math.inf)]
    slow = ACCEPTED_UP_TO.get(entry.dotted, math.inf)
    accepted = [value for value in values if accepts(entry, value)]
    refused = [value for value in values if not accepts(entry, value)]
    return [value for value in accepted if not slow < value < 1e12], refused


def some(entries: list[Entry], least: int, most: int) -> st.SearchStrategy[list[Entry]]:
    return st.lists(
        st.sampled_from(entries), min_size=least, max_size=most, unique_by=lambda each: each.dotted
    )


@st.composite
def cases(draw, engine):
    """Draw choices, several numbers of extreme size, and in one case of three any number."""
    unused = OF_NODES if engine == "vectorized" else set()
    names, reals = (
        [entry for entry in entries if entry.path[0] not in unused] for entries in (NAMES, REALS)
    )
    values = {"engine.name": engine}
    for entry in draw(some(names, 0, 4)):
        values[entry.dotted] = draw(st.sampled_from(entry.metadata["choices"]))
    for entry in draw(some(reals, 1, 4)):
        values[entry.dotted] = draw(st.sampled_from(extremes(entry)[0]))
    if "gd_step_size" in values:
        values |= {"algorithm": "fldb_gd", "solver": "gd"}
    if draw(st.integers(0, 2)) == 0:
        entry = draw(st.sampled_from(NUMBERS))
        accepted, refused = extremes(entry)
        values[entry.dotted] = draw(st.sampled_from(accepted + refused))
    return values


def settle(values):
    """Run the settings; return the summary, or the line that the run ended with."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        named = {name.replace(".", "__"): value for name, value in (SMALL | values).items()}
        line = None
        try:
            run(from_nested(nested(**named), "a test"), path)
        except FldbError as error:
            line = str(error)
        if line is None:
            return finite_results(path)
        assert line.isprintable()
        left = {file.name for file in path.iterdir()} if path.exists() else set()
        assert "summary.json" not in left
        assert "checkpoint.bin" in left or not left  # the directory can be used again
        return line


def finite_results(path):
    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    summary = json.loads((path / "summary.json").read_text(), parse_constant=refuse)
    assert summary["complete"] is True
    assert all(math.isfinite(value) for value in summary.values() if isinstance(value, int | float))
    table = pd.read_csv(path / "regret.csv")
    assert len(table) == summary["horizon"]
    assert table.map(math.isfinite).all(axis=None)
    last = table.cumulative_regret.iloc[-1]
    assert last == pytest.approx(summary["final_regret"], rel=1e-12)
    return summary


def fuzz(cases):
    return hypothesis_settings(
        deadline=None,
        derandomize=True,
        max_examples=cases,
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.parametrize("entry", NUMBERS, ids=lambda entry: entry.dotted)
def test_every_number_of_extreme_size_is_refused_or_works(entry):
    accepted, refused = extremes(entry)
    for value in refused:
        line = settle({entry.dotted: value})
        assert line.startswith(f"{entry.dotted}=")
        assert "(from a test): must be" in line
    assert refused
    algorithm = {"ons_ridge": "fldb_ons", "gd_step_size": "fldb_gd", "gd_steps": "fldb_gd"}
    needed = {"algorithm": algorithm.get(entry.dotted, "fldb_ogd"), "solver": "gd"}
    if entry.path[0] in OF_NODES | {"engine"}:
        needed["engine.name"] = "inprocess"
    with patch("fldb_flower.plots.plot_regret"):
        for value in accepted[:4] + accepted[-4:]:
            settle(needed | {entry.dotted: value})


@fuzz(500)
@given(values=cases("vectorized"))
def test_every_number_of_a_complete_run_is_finite(values):
    with patch("fldb_flower.plots.plot_regret"):  # takes most of the time; drawn below
        settle(values)


@fuzz(60)
@given(values=cases("inprocess"))
def test_every_number_of_a_complete_run_over_flowers_messages_is_finite(values):
    settle(values)
