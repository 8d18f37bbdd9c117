"""Regret with differential privacy: against epsilon, without exchanges, and the warning."""

import math
import re
from functools import partial
from statistics import fmean

import numpy as np
import pytest

import fldb_flower as fldb
import measured
from fldb_flower.bandit import policies
from fldb_flower.bandit.limits import factors, weights_of
from fldb_flower.federation.history import History
from fldb_flower.privacy.plan import AGENTS, EPSILONS, FACTORS, cautions, regret_factor
from fldb_flower.settings import from_nested
from simulations.engines import vectorized

SMALL = {
    "num_agents": 60, "horizon": 40, "num_arms": 5, "dimension": 3,
    "schedule": {"name": "geometric", "ratio": 2.0},
}  # fmt: skip
SEEDS = range(8)


def regrets(**values):
    found = []
    for seed in SEEDS:
        settings = from_nested({**SMALL, "seed": seed, **values}, "a test")
        history = History(settings.horizon)
        vectorized.run(settings, history)
        found.append(history.regret)
    return np.array(found)


def private(epsilon, unit="person", algorithm="fldb_ons"):
    values = {"algorithm": algorithm, "privacy": {"epsilon": epsilon, "unit": unit}}
    return values if algorithm == "fldb_personal" else {**values, "first_round": "step"}


def is_at_most(less, more):
    """Whether paired regrets are not larger, within two standard errors of the difference."""
    difference = more - less
    return difference.mean() > -2.0 * difference.std(ddof=1) / math.sqrt(len(difference))


def test_regret_does_not_grow_with_epsilon():
    for unit in ("answer", "person"):
        low, middle, high = (regrets(**private(epsilon, unit)) for epsilon in (0.1, 3.0, 1000.0))
        assert is_at_most(middle, low)
        assert is_at_most(high, middle)
        assert high.mean() < 0.6 * low.mean()
    assert np.isfinite(regrets(**private(0.01, algorithm="fldb_ogd"))).all()


def test_fldb_personal_is_not_worse_than_agents_alone():
    alone = regrets(algorithm="alone", schedule={})
    for epsilon in (0.01, 1.0, 100.0):
        shared = regrets(**private(epsilon, algorithm="fldb_personal"))
        assert is_at_most(shared, alone)
    assert shared.mean() < 0.7 * alone.mean()
    # Nearly without noise, privacy costs little.
    assert shared.mean() < 1.25 * regrets(algorithm="fldb_personal").mean()


def test_typical_log_losses_are_those_of_a_simulation(monkeypatch):
    """Within a factor of 2 in every round: log losses shrink while agents learn."""
    ratios = []

    def recorded(parts, units):
        rms = math.sqrt((parts["losses"] ** 2).sum(axis=1).mean())
        size = units["losses"] * math.sqrt(weights_of(parts)["losses"])
        ratios.append(rms / size)
        return factors(parts, units)

    monkeypatch.setattr(policies, "factors", recorded)
    values = {"algorithm": "fldb_personal", "privacy": {"epsilon": 100.0}}
    settings = from_nested({**SMALL, **values, "dimension": 5}, "a test")
    vectorized.run(settings, History(settings.horizon))
    assert len(ratios) >= 5
    assert all(0.5 < ratio < 2.0 for ratio in ratios[1:])  # nobody predicts the first answer


# --- the warning


def test_the_factors_are_those_of_the_benchmark():
    rows = measured.load()["privacy"]["rows"]
    mean = {
        (row["num_agents"], row["unit"], row["epsilon"]): fmean(row["regret"])
        for row in rows
        if (row["algorithm"], row["dimension"], row["parties"]) == ("fldb_ons", 5, 1)
    }
    for unit, table in FACTORS.items():
        for size, row in zip(AGENTS, table, strict=True):
            for epsilon, factor in zip(EPSILONS, row, strict=True):
                expected = mean[size, unit, epsilon] / mean[size, "none", "none"]
                assert factor == pytest.approx(expected, rel=0.01)
                assert regret_factor(unit, epsilon, size) == pytest.approx(factor)


def test_factors_between_measured_values_are_interpolated():
    low, high = FACTORS["person"][1][1], FACTORS["person"][2][1]
    between = regret_factor("person", 3.0, round(math.sqrt(100 * 300)))
    assert between == pytest.approx(math.sqrt(low * high), rel=0.01)
    assert regret_factor("answer", 100.0, 10**6) == FACTORS["answer"][-1][2]
    # Beyond them, only the product of epsilon and N matters.
    assert regret_factor("person", 80.0, 30) == FACTORS["person"][2][2]
    assert regret_factor("person", 0.1, 1000) == FACTORS["person"][1][0]
    assert regret_factor("answer", 0.01, 30) == FACTORS["answer"][0][0]


def warning(**values):
    """Return the warning of a run, or nothing."""
    return "".join(cautions(from_nested(values, "a test")))


def test_a_run_with_too_few_agents_warns():
    """The numbers of agents from which noise costs at most a quarter of the regret."""
    geometric = {"schedule": {"name": "geometric"}}
    for unit, epsilon, enough, too_few in (
        ("answer", 1.0, 300, 200), ("answer", 3.0, 100, 50), ("person", 3.0, 1000, 300),
        ("person", 8.0, 300, 200),
    ):  # fmt: skip
        values = {**private(epsilon, unit), **geometric}
        assert not warning(**values, num_agents=enough)
        line = warning(**values, num_agents=too_few)
        assert re.search(r"about 1\.[2-9] times the regret without noise, or more; more agen", line)
        assert ("privacy.unit=answer" in line.partition(";")[2]) == (unit == "person")
    # A person is in all 500 rounds: the noise is sqrt(500 / 16) = 5.6 times that of the table.
    many = {"num_agents": 1000, "horizon": 500, "tau": 1}
    line = warning(**private(3.0), **many)
    expected = regret_factor("person", 3.0, round(1000 / math.sqrt(500 / 16)))
    assert f"about {expected:.1f} times" in line
    assert "fewer rounds (schedule=geometric), more agents" in line
    assert not warning(**private(3.0, "answer"), **many)
    assert not warning(num_agents=2)


@pytest.mark.parametrize("call", [fldb.run, partial(fldb.sweep, progress=False)])
def test_runs_from_python_warn(call):
    """As those of the command line; a sweep once for each line, and not in each run."""
    values = {"algorithm": "fldb_ons", "first_round": "step", "num_agents": 40, "horizon": 5}
    with pytest.warns(UserWarning, match=r"^privacy\.") as caught:
        call(values, privacy_epsilon=3, privacy_delta=0.05)
    found = [each for each in caught if each.category is UserWarning]  # not of others' files
    assert [str(each.message).partition(" with ")[0] for each in found] == [
        "privacy.delta=0.05",
        "privacy.epsilon=3",
    ]
    assert {each.filename for each in found} == {__file__}


def test_a_delta_of_one_person_warns():
    for people, warns in ((999, False), (1000, True), (10**5, True)):
        values = {**private(3.0), "privacy": {"epsilon": 3, "delta": 1e-3}, "num_agents": people}
        assert (f"1 / {people}" in warning(**values)) == warns
