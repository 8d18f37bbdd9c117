"""The command line of the benchmark: tables on the screen and in result files."""

import math

import pandas as pd
import pytest

import common
import exchange
import measured
import personal
import refits
import robust
import secure
import table as tables
from fldb_flower.federation.history import History
from fldb_flower.privacy.plan import ReleasePlan
from fldb_flower.settings import from_nested
from memory import BASE, BYTES_AN_AGENT, time_and_memory
from simulations.engines import vectorized
from simulations.figures import simulate


def test_a_result_file_contains_command_date_and_machine(monkeypatch, tmp_path):
    rows = [{"what": "propose, ms", "measured": 0.25}, {"what": "regret", "measured": [1.5, 2.0]}]
    monkeypatch.setattr(personal, "pace", lambda: pd.DataFrame(rows))
    monkeypatch.setattr(measured, "FOLDER", tmp_path)
    tables.record("pace")
    content = measured.load()["pace"]
    assert content["rows"] == rows
    assert content["command"] == "python docs/measure/table.py pace"
    assert pd.Timestamp(content["date"]) <= pd.Timestamp.now(tz="UTC").tz_localize(None)
    assert "Python 3." in content["machine"]


def test_each_result_file_is_of_a_table_or_of_runs():
    for name, content in measured.load().items():
        assert ("rows" in content) == (name in tables.MODULES), name


@pytest.fixture
def few(monkeypatch):
    """Make the sections of FLDB-Personal small, and run them in this process, without data."""
    monkeypatch.delenv("FLDB_DUELS", raising=False)
    monkeypatch.setattr(personal, "MEMBERS", 4)
    monkeypatch.setattr(personal, "TRAINING", 20)
    monkeypatch.setattr(personal, "NEWCOMERS", 30)
    monkeypatch.setattr(personal, "ANSWERS", (1, 3))
    small = {"num_agents": 2, "horizon": 12, "environment": {"sigma": 0.5}}
    study = {"horizon": 2, "environment": {"name": "duels", "path": "none"}}
    monkeypatch.setattr(personal, "CASES", {"small": small, "study": study})
    monkeypatch.setattr(common, "map_in_processes", lambda call, jobs: [*map(call, jobs)])
    return small


def test_variances_compares_rules_without_the_studies_that_are_missing(few):
    table = personal.variances(seeds=1)
    assert table.case.tolist() == ["small"] * 6
    assert table.rule.tolist() == list(personal.RULES)
    # The rule of the algorithm gives its results.
    own = {"algorithm": "fldb_personal", "personal_structure": "isotropic", "tau": 1}
    chosen = from_nested({**few, **own}, "a test")
    curve, _ = simulate(chosen)
    assert table.regret[0] == [round(curve[-1], 4)]
    assert len({tuple(each) for each in table.regret}) > 1


def test_newcomers_profit_from_the_federation(few, monkeypatch):
    monkeypatch.setattr(personal, "WORLDS", {"small": {"environment": {"sigma": 0.3}}})
    table = personal.newcomers(seeds=1).set_index(["algorithm", "answers"])
    names = ("alone", "common", "isotropic", "personal")
    assert table.index.tolist() == [(name, count) for name in names for count in (1, 3)]
    assert set(table.world) == {"small"}
    assert table.log_loss["alone", 1] == [0.693147]  # log 2: nothing is known
    for name in ("common", "personal"):
        assert max(table.regret[name, 1]) < min(table.regret["alone", 1])
        assert max(table.log_loss[name, 1]) < 0.65


def test_refits_compares_runs_that_differ_in_the_fits_only(monkeypatch):
    """Up to 8 d duels are fitted one by one in both, so the regret is the same."""
    monkeypatch.setattr(common, "map_in_processes", lambda call, jobs: [*map(call, jobs)])
    world = {"num_agents": 3, "dimension": 2, "environment": {"sigma": 0.5}}
    cases = {"few": {**world, "horizon": 8}, "many": {**world, "horizon": 60}}
    monkeypatch.setattr(refits, "CASES", cases)
    table = refits.refits(seeds=2).set_index(["case", "algorithm"])
    assert table.index.tolist() == [(c, a) for c in cases for a in refits.ALGORITHMS]
    curve, _ = simulate(from_nested({**cases["many"], "algorithm": "ldb"}, "a test"))
    assert table.regret["many", "LDB"][0] == round(curve[-1], 4)
    for name in refits.ALGORITHMS:
        assert table.regret["few", name] == table.regret_refits["few", name]
    assert (table.regret["many"] != table.regret_refits["many"]).any()
    monkeypatch.setattr(refits, "SIZES", ((3, 2, 8),))
    times = refits.refit_times(1)
    assert times.algorithm.tolist() == list(refits.ALGORITHMS)
    assert (times[["x draws", "refits, x draws", "gain"]] >= 0).all(axis=None)  # 0.0: rounded
    rows = refits.limits(1, agents=2, horizon=4)
    assert [row["figure"] for row in rows[:2]] == [
        "LDB: time at N=4 / at N=2", "LDB: time at T=8 / at T=4"
    ]  # fmt: skip
    assert len(rows) == 3 * len(refits.ALGORITHMS)
    assert min(row["ratio"] for row in rows) >= 0


def test_an_exchange_of_secure_sums_by_hand(monkeypatch):
    """3 + 6 + 6 + 1 numbers of 8 bytes, and a sealed seed of 64; the rest is the description."""
    monkeypatch.setattr(secure, "SIZES", ((3, 5),))
    (row,) = secure.secure(repetitions=2).to_dict("records")
    assert (row["d"], row["N"], row["values"]) == (3, 5, 16)
    assert row["plain up, bytes"] == 8 * (3 + 6 + 6)
    assert 8 * 16 + 64 < row["up, bytes"] < 8 * 16 + 64 + 250
    assert 64 < row["to the helper, bytes"] < 64 + 500 / 5
    assert min(row[name] for name in row if name.endswith((", ms", ", s"))) >= 0.0


def test_a_dishonest_device_of_secure_sums(monkeypatch):
    """Without a lie, the run is that of the engine; a longer lie does more harm."""
    monkeypatch.setitem(robust.SECURE, "horizon", 30)
    found = [robust.regret(robust.SecureCase(12, 50.0, lie), 0) for lie in robust.LIES]
    privacy = {"epsilon": 50.0, "parties": 2, "clip": 3.0}
    values = {**robust.SECURE, "num_agents": 12, "seed": 0, "privacy": privacy}
    history = History(30)
    vectorized.run(from_nested(values, "a test"), history)
    assert found[0] == round(history.regret, 4)
    assert found[0] < found[2]
    settings = from_nested(values, "a test")
    deviation = math.sqrt(2.0) * ReleasePlan(settings).multiplier
    shortened = 12 + deviation * (math.sqrt(5 + 15 + 15 + 1) + 8.0)
    assert robust.longest_lie(settings) == pytest.approx(min(shortened, 12 + 80.0 * deviation))


@pytest.mark.exhaustive
def test_an_agent_takes_at_most_100_bytes():
    """FLDB-ONS with tau=5, d=5: the duel of t = 1 is 48 bytes; later ones are not stored."""
    peaks = [
        time_and_memory(from_nested({**BASE, "num_agents": size, "horizon": 5}, "a test"))[1]
        for size in (100_000, 300_000)
    ]
    assert 48 <= (peaks[1] - peaks[0]) / 200_000 <= BYTES_AN_AGENT


def test_costs_of_an_exchange_and_its_reference():
    costs = exchange.exchange_costs(repetitions=2, nodes=3, horizon=4)
    assert {name: len(each) for name, each in costs.items()} == dict.fromkeys(costs, 2)
    for whole, agents, bare in zip(costs["exchange"], costs["agents"], costs["bare"], strict=True):
        assert 0.0 < agents < whole
        assert bare > 0.0
