"""The environment whose theta changes."""

import numpy as np
import pytest

import fldb_flower as fldb
from fldb_flower.bandit.streams import AgentStreams, shared_generator
from fldb_flower.environments.changing import Changing
from fldb_flower.errors import SettingsError
from fldb_flower.settings import from_keywords

SMALL = {"num_agents": 5, "horizon": 40, "num_arms": 4, "dimension": 3, "seed": 2}


def thetas(iterations=40, at_once=1, **values):
    """The theta of each iteration, by least squares from arms and rewards."""
    settings = from_keywords({**SMALL, "environment": "changing", **values}, "a test")
    environment, streams = Changing(settings, range(5)), AgentStreams(2, range(5))
    found = []
    for _ in range(iterations // at_once):
        features, rewards = vars_of(environment.contexts(streams, at_once))
        for row, values_of_row in zip(features.swapaxes(0, 1), rewards.swapaxes(0, 1), strict=True):
            rows, answers = row.reshape(-1, 3), values_of_row.ravel()
            found.append(np.linalg.lstsq(rows, answers, rcond=None)[0])
    return np.array(found)


def vars_of(contexts):
    return contexts.features, contexts.rewards


def test_theta_changes_when_and_as_it_is_told():
    first = shared_generator(2, "theta").standard_normal(3)
    for values, at in (({}, 20), ({"environment_change_at": 8}, 7), ({"horizon": 90}, 40)):
        found = thetas(**values)
        np.testing.assert_allclose(found[:at], np.tile(first, (at, 1)))
        np.testing.assert_allclose(found[at:], np.tile(-first, (40 - at, 1)))
    found = thetas(environment_change="redraw")
    np.testing.assert_allclose(found[20:], np.tile(found[20], (20, 1)))
    assert abs(found[20] - first).min() > 1e-3 < abs(found[20] + first).min()


def test_theta_drifts_by_steps_of_the_standard_deviation():
    found = thetas(4000, 10, environment_drift=0.1, horizon=4000)
    steps = np.diff(found, axis=0)
    assert abs(steps.mean()) < 4 * 0.1 / np.sqrt(steps.size)
    assert steps.std() == pytest.approx(0.1, rel=0.05)
    np.testing.assert_allclose(found[:40], thetas(environment_drift=0.1, horizon=4000), atol=1e-9)


@pytest.mark.parametrize("sigma", [0.0, 0.5])
def test_before_the_change_a_run_is_that_of_synthetic_to_the_bit(sigma):
    base = {**SMALL, "num_agents": 50, "algorithm": "fldb_ons", "environment_sigma": sigma}
    same, flipped, never = (
        fldb.run(**base, **values).regret.cumulative_regret.to_numpy()
        for values in (
            {},
            {"environment": "changing"},
            {"environment": "changing", "environment_change_at": 0},
        )
    )
    assert (never == same).all()
    assert (flipped[:20] == same[:20]).all()
    assert flipped[-1] > same[-1] + 10  # of the theta at the time: nobody knows the new one


@pytest.mark.parametrize("algorithm", ["fldb_ons", "fldb_personal"])
def test_engines_agree_with_drift_and_half_life(algorithm):
    base = {
        **SMALL, "algorithm": algorithm, "environment": "changing", "environment_drift": 0.05,
        "environment_change_at": 11, "half_life": 10, "environment_sigma": 0.3, "tau": 3,
    }  # fmt: skip
    one, other = (
        fldb.run(**base, engine=engine).regret.cumulative_regret.to_numpy()
        for engine in ("vectorized", "inprocess")
    )
    np.testing.assert_allclose(other, one, rtol=1e-9)


def test_its_settings_belong_to_it():
    for values in ({"change_at": 5}, {"drift": 0.1}, {"change": "redraw"}):
        keywords = {f"environment_{name}": value for name, value in values.items()}
        with pytest.raises(SettingsError, match="needs environment=changing, not synthetic"):
            from_keywords(keywords, "a test")
