"""A device learns from its own answers at once: estimates, selection, rankings."""

from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pytest
from conftest import ROOT
from scipy.optimize import minimize
from scipy.stats import kendalltau

from clients.preference_agent import PreferenceAgent
from clients.store import Synchronization
from fldb_flower.bandit.estimate import CommonPrior
from fldb_flower.errors import DataError, SettingsError
from fldb_flower.linalg.linear import pack

D = 3


def mu(z):
    return 1 / (1 + np.exp(-z))


def answer(agent, arms, theta, count, rng):
    """Answer duels by the Bradley-Terry-Luce model; return them."""
    duels = []
    for _ in range(count):
        duel = agent.propose(arms)
        agent.offers = [*getattr(agent, "offers", []), arms]
        difference = arms[duel.first] - arms[duel.second]
        first = rng.random() < mu(difference @ theta)
        agent.record(duel.id, "first" if first else "second")
        duels.append(duel)
    return duels


def scales(offers):
    """Root of the mean variance within the first 1, 2, 4, ... offers."""
    count = 2 ** int(np.log2(len(offers)))
    return np.sqrt(np.mean([arms.var(axis=0, ddof=1) for arms in offers[:count]], axis=0))


def posterior(agent, precision, mean, s=1.0):
    """Return theta and the covariance given all answers, by SciPy's minimiser.

    The prior is of features divided by ``s``, and the result per unit of the features.
    """
    duels = agent.store.answers()
    x, y = duels.differences / s, duels.preferences

    def objective(theta):
        z, off = x @ theta, theta - mean
        return (np.logaddexp(0, z) - y * z).sum() + off @ precision @ off / 2

    theta = minimize(objective, mean, method="BFGS", options={"gtol": 1e-9}).x
    p = mu(x @ theta)
    covariance = np.linalg.inv((x * (p * (1 - p))[:, None]).T @ x + precision)
    s = s * np.ones(D)
    return theta / s, covariance / np.outer(s, s)


# --- estimates -------------------------------------------------------------------------------


def check_posterior(agent, precision, mean, s=1.0):
    theta, covariance = posterior(agent, precision, mean, s)
    found = agent.explain()
    np.testing.assert_allclose(found.weights, theta, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.deviations, np.sqrt(np.diag(covariance)), rtol=1e-5)
    arms = np.random.default_rng(9).normal(size=(6, len(mean)))
    assert agent.rank(arms) == np.argsort(-(arms @ theta)).tolist()
    x = arms[0] - arms[1]
    right = mu(x @ theta / np.sqrt(1 + np.pi / 8 * x @ covariance @ x))
    assert agent.predict(arms[0], arms[1]) == pytest.approx(right, abs=1e-5)
    assert agent.predict(arms[1], arms[0]) == pytest.approx(1 - right, abs=1e-5)


def alone(agent, s):
    """Return the prior of a device that never met a server: variance 1 / lambda_0 + v."""
    squares = ((agent.store.answers().differences / s) ** 2).sum(axis=1)
    scale = squares.mean() / 10
    return np.eye(D) * scale / (1 / 1.0 + 0.1)


def test_without_a_server_the_posterior_is_that_of_the_own_answers(agent):
    rng, units = np.random.default_rng(0), np.array([1.0, 0.3, 2.0])
    for count in (1, 1, 7, 30):
        answer(agent, rng.normal(size=(6, D)) * units, np.array([1.0, -1.0, 0.5]), count, rng)
        s = scales(agent.offers)
        check_posterior(agent, alone(agent, s), np.zeros(D), s)


def personal(agent, prior, counted, **parameters):
    agent.store.synchronize(
        Synchronization(
            received=50.0,
            round=3,
            counted=counted,
            duels=100,
            theta=np.zeros(D),
            information=prior.precision[np.triu_indices(D)],
            parameters={"algorithm": "fldb_personal", **parameters},
            prior=prior,
        )
    )


def test_after_a_broadcast_of_fldb_personal_the_prior_is_that_of_the_others(agent):
    rng = np.random.default_rng(1)
    theta = np.array([1.0, -1.0, 0.5])
    answer(agent, rng.normal(size=(6, D)), theta, 4, rng)
    others = np.diag([3.0, 4.0, 5.0])
    prior = CommonPrior(others, others @ theta, 0.3, 2.0)
    personal(agent, prior, counted=0, personal_ridge=0.5)
    a = others + 0.5 * 2.0 * np.eye(D)
    precision = np.linalg.inv(np.linalg.inv(a) + 0.3 / 2.0 * np.eye(D))
    mean = np.linalg.solve(a, others @ theta)
    check_posterior(agent, precision, mean)
    answer(agent, rng.normal(size=(6, D)), theta, 5, rng)
    check_posterior(agent, precision, mean)


def test_agents_of_other_processes_and_later_ones_know_the_same(agent, path):
    rng, arms = np.random.default_rng(2), np.random.default_rng(3).normal(size=(8, D))
    with PreferenceAgent(path) as other:
        for one, another in ((agent, other), (other, agent), (agent, other)):
            answer(one, arms, np.ones(D), 3, rng)
            np.testing.assert_allclose(another.explain().weights, one.explain().weights, rtol=1e-6)
    with PreferenceAgent(path) as later:
        np.testing.assert_allclose(later.explain().weights, agent.explain().weights, rtol=1e-6)
        later.forget()
    assert agent.explain().weights == [0.0] * D
    assert agent.predict(arms[0], arms[1]) == 0.5
    assert agent.rank(arms) == list(range(8))
    assert agent.propose(arms).predicted is None


def test_before_the_first_duel_nothing_is_known(agent):
    assert (agent.explain().weights, agent.explain().deviations) == ([], [])
    assert agent.rank([[1.0], [2.0]]) == [0, 1]
    assert agent.predict([1.0], [2.0]) == 0.5
    assert agent.store.dimension is None


def test_invalid_arguments(agent, path):
    agent.propose(np.eye(D))
    for call in (agent.rank, lambda arms: agent.predict(*arms)):
        with pytest.raises(DataError, match="features of 2 numbers each: this device's have 3"):
            call(np.eye(2))
    with pytest.raises(DataError, match="arm 1 has 2 numbers and arm 0 has 3"):
        agent.predict([1.0, 2.0, 3.0], [1.0, 2.0])
    with pytest.raises(DataError, match="purpose='learn': must be suggest or rank"):
        PreferenceAgent(path, purpose="learn")


# --- selection -------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["full", "diagonal"])
def test_w_of_the_server_includes_the_answers_that_it_has_not_counted(agent, form):
    """UCB by lines 4 and 5 of Algorithm 1, with the differences of two answers added to W."""
    rng = np.random.default_rng(4)
    theta, beta = np.array([0.2, -0.1, 0.1]), 0.2
    information, seen = np.diag([20.0, 5.0, 9.0]), []
    packed = np.diag(information) if form == "diagonal" else information[np.triu_indices(D)]
    answer(agent, rng.normal(size=(5, D)), theta, 3, rng)  # counted
    parameters = {"algorithm": "fldb_ogd", "beta_scale": beta, "lambda_": 0.1, "matrix_form": form}
    agent.store.synchronize(Synchronization(50.0, 3, 3, 10, theta, packed, parameters))
    for number in range(8):
        arms = rng.normal(size=(7, D))
        gram = information + sum((np.outer(x, x) for x in seen), np.zeros((D, D)))
        if form == "diagonal":
            gram = np.diag(np.diag(gram))
        growth = D * math.log(1 + (10 + number + 1) / (D * 0.1))
        width = beta * math.sqrt(2 * math.log(10) + growth)
        gaps = arms - arms[np.argmax(arms @ theta)]
        norms = np.sqrt(np.einsum("kd,de,ke->k", gaps, np.linalg.inv(gram), gaps))
        norms[np.argmax(arms @ theta)] = -np.inf  # if it is the best, it is replaced
        (duel,) = answer(agent, arms, theta, 1, rng)
        assert duel.first == np.argmax(arms @ theta)
        assert duel.second == np.argmax(arms @ theta + width * norms)
        assert duel.predicted == pytest.approx(mu(theta @ (arms[duel.first] - arms[duel.second])))
        seen.append(arms[duel.first] - arms[duel.second])
    deviations = 2 * np.sqrt(np.diag(np.linalg.inv(information)))  # before these answers
    assert (np.array(agent.explain().deviations) < deviations).all()


def test_the_second_arm_is_the_least_compared_one_that_may_be_best(agent):
    """Theta = (1, 0, 0), with standard deviations 1 / 20, 1 / sqrt 5 and 1 / sqrt 5."""
    arms = np.array([[2.0, 0.0, 0.0], [1.9, 0.5, 0.0], [1.8, 0.0, 0.5], [-2.0, 0.0, 0.0]])
    prior = CommonPrior(np.diag([400.0, 4.0, 4.0]), np.array([401.0, 0.0, 0.0]), 1e-6, 1.0)
    personal(agent, prior, counted=0)
    # Leads of arm 0: 0.1, 0.2 and 4; deviations 0.22, 0.22 and 0.2: arms 1 and 2 may be best.
    pairs = []
    for _ in range(6):
        duel = agent.propose(arms)
        pairs.append((duel.first, duel.second))
        agent.record(duel.id, "tie")
    assert set(pairs) <= {(a, b) for a in range(3) for b in range(3)}
    asked = [tuple(sorted(pair)) for pair in pairs]
    assert len(set(asked[:2])) == 2


def test_rank_asks_the_most_informative_pair(path):
    rng = np.random.default_rng(5)
    arms, theta = rng.normal(size=(6, D)), np.array([1.0, -1.0, 0.5])
    asked = dict.fromkeys(itertools.combinations(range(6), 2), 0)
    with PreferenceAgent(path, purpose="rank") as agent:
        answer(agent, rng.normal(size=(6, D)), theta, 1, rng)
        for _ in range(25):
            s = scales([*agent.offers, arms])
            mean, covariance = posterior(agent, alone(agent, s), np.zeros(D), s)
            gains = {}
            for (first, second), repeats in asked.items():
                x = arms[first] - arms[second]
                square = x @ covariance @ x
                p = mu(x @ mean / np.sqrt(1 + np.pi / 8 * square))
                gains[first, second] = np.log1p(p * (1 - p) * square) / (1 + repeats)
            (duel,) = answer(agent, arms, theta, 1, rng)
            pair = tuple(sorted((duel.first, duel.second)))
            assert gains[pair] == pytest.approx(max(gains.values()), rel=1e-4)
            assert arms[duel.first] @ mean >= arms[duel.second] @ mean - 1e-6
            asked[pair] += 1


@pytest.mark.parametrize("purpose", ["suggest", "rank"])
@pytest.mark.parametrize("unit", [1e-3, 1e3])
def test_the_units_of_features_do_not_matter(tmp_path, purpose, unit):
    arms, theta = np.random.default_rng(6).normal(size=(7, D)), np.array([1.0, -1.0, 0.5])
    pairs = []
    for factor in (1.0, unit):
        with PreferenceAgent(tmp_path / f"{factor}.db", purpose=purpose) as agent:
            duels = answer(agent, factor * arms, theta / factor, 25, np.random.default_rng(7))
            pairs.append(
                [(duel.first, duel.second, round(duel.predicted or 0, 6)) for duel in duels]
            )
            ranking = agent.rank(factor * arms)
        pairs[-1].append(ranking)
    assert pairs[0] == pairs[1]


def test_rank_with_many_arms(path):
    arms = np.random.default_rng(8).normal(size=(2000, D))
    with PreferenceAgent(path, purpose="rank") as agent:
        duels = answer(agent, arms, np.ones(D), 5, np.random.default_rng(8))
    assert all(duel.first != duel.second for duel in duels)


def of_people(tmp_path, purpose, count, people=60):
    """Return, for each person, distinct pairs, Kendall's tau and regret after 60 duels offline."""
    for person in range(people):
        rng = np.random.default_rng(person)
        arms, theta = rng.normal(size=(count, 5)), rng.normal(size=5)
        rewards, pairs = arms @ theta, []
        path = tmp_path / f"{purpose}{person}.db"
        with PreferenceAgent(path, purpose=purpose.replace("random", "rank")) as agent:
            if purpose == "random":
                for _ in range(60):
                    pair = rng.choice(count, 2, replace=False)
                    answer(agent, arms[pair], theta, 1, rng)
                    pairs.append(tuple(pair))
            else:
                duels = answer(agent, arms, theta, 60, rng)
                pairs += [(duel.first, duel.second) for duel in duels]
            order = agent.rank(arms)
        regret = np.mean([2 * rewards.max() - rewards[list(pair)].sum() for pair in pairs])
        tau = kendalltau(rewards, -np.argsort(order)).statistic
        yield len(set(map(frozenset, pairs))), tau, regret


@pytest.mark.slow
def test_people_who_answer_offline(tmp_path):
    """The documented table. A rule without counts asks 5 pairs, with tau 0.61 and regret 2.1."""
    rows, taus = [], {}
    for purpose, name in (("suggest", "`suggest` (default)"), ("rank", "`rank`"), ("random", "")):
        cells = []
        for count in (8, 30):
            folder = tmp_path / str(count)
            folder.mkdir(exist_ok=True)
            table = np.array(list(of_people(folder, purpose, count)))
            _, tau, regret = table.mean(axis=0)
            taus[purpose, count] = table[:, 1]
            cells += [f"{np.median(table[:, 0]):g}", f"{tau:.2f}", f"{regret:.1f}"]
        rows.append(f"| {name or 'random pairs'} | {' | '.join(cells)} |")
    guide = (ROOT / "docs" / "deployment" / "application.md").read_text()
    assert [row for row in rows if row not in guide] == []
    for other in ("suggest", "random"):  # with many arms, selecting pairs pays
        gained = taus["rank", 30] - taus[other, 30]
        assert gained.mean() > 2 * gained.std(ddof=1) / np.sqrt(len(gained))


@pytest.mark.slow
def test_a_proposal_is_fast_with_thousands_of_answers(path):
    rng = np.random.default_rng(10)
    with PreferenceAgent(path) as agent:
        for _ in range(40):
            differences = rng.normal(size=(50, 10))
            duels = [agent.store.propose(x, 0.5, expire_after=9.0).id for x in differences]
            agent.store.record([(duel, 1.0) for duel in duels])
        seconds = []
        for _ in range(30):
            begin = time.process_time()
            duel = agent.propose(rng.normal(size=(8, 10)))
            seconds.append(time.process_time() - begin)
            agent.record(duel.id, "first")
    assert np.median(seconds) < 0.02


# --- tastes that change ----------------------------------------------------------------------


def weighted_posterior(agent, precision, mean, half_life):
    """Return theta and the covariance with weights by order, by SciPy's minimiser."""
    duels = agent.store.answers()
    x, y = duels.differences, duels.preferences
    weights = 0.5 ** (np.arange(len(y))[::-1] / half_life)

    def objective(theta):
        z, off = x @ theta, theta - mean
        return weights @ (np.logaddexp(0, z) - y * z) + off @ precision @ off / 2

    theta = minimize(objective, mean, method="BFGS", options={"gtol": 1e-9}).x
    p = mu(x @ theta)
    return theta, np.linalg.inv((x * (weights * p * (1 - p))[:, None]).T @ x + precision)


def test_with_a_half_life_a_device_learns_from_weighted_answers(path):
    """Alone with that of the agent; after a broadcast with that of the server."""
    rng = np.random.default_rng(5)
    arms, theta = rng.standard_normal((6, D)), np.array([1.0, -1.0, 0.5])
    arms /= arms.std(axis=0, ddof=1)  # scales of 1
    with PreferenceAgent(path, half_life=7) as agent:
        answer(agent, arms, theta, 20, rng)
        x = agent.store.answers().differences
        scale = (x * x).sum() / len(x) / 10.0
        expected = weighted_posterior(agent, np.eye(D) * scale / 1.1, np.zeros(D), 7)
        found = agent.explain()
        np.testing.assert_allclose(found.weights, expected[0], rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(found.deviations, np.sqrt(np.diag(expected[1])), rtol=1e-3)
        prior = CommonPrior(4.0 * np.eye(D), np.zeros(D), 0.2, 1.0)
        for half_life, used in ((3.0, 3.0), ("none", 1e9), (None, 1e9)):
            parameters = {"algorithm": "fldb_personal", "half_life": half_life}
            if half_life is None:  # a server, or a store, of version 0.3.0
                del parameters["half_life"]
            broadcast = Synchronization(
                time.time(), 1, 0, 9, np.zeros(D), pack(prior.precision), parameters, prior
            )
            agent.store.synchronize(broadcast)
            expected = weighted_posterior(agent, np.eye(D) / (1 / 5 + 0.2), np.zeros(D), used)
            found = agent.explain()
            np.testing.assert_allclose(found.weights, expected[0], rtol=1e-3, atol=1e-4)


def test_a_device_follows_a_taste_that_changes(tmp_path):
    """Weight +2 on the first feature for 100 answers, then -2: 21 answers of half-life 25."""
    late = {}
    for half_life, seed in itertools.product((None, 25.0), range(8)):
        rng = np.random.default_rng(seed)
        arms, number = rng.standard_normal((10, D)), 0
        with PreferenceAgent(tmp_path / f"{half_life}{seed}.db", half_life=half_life) as agent:
            answer(agent, arms, np.array([2.0, 0, 0]), 100, rng)
            while number < 60 and agent.explain().weights[0] >= 0:
                answer(agent, arms, np.array([-2.0, 0, 0]), 1, rng)
                number += 1
        late.setdefault(half_life, []).append(number)
    assert np.median(late[25.0]) <= 30 < np.median(late[None])


def test_a_half_life_out_of_range_is_refused_before_a_store_is_created(path):
    for value in (0, -1, "soon", math.nan, True):
        with pytest.raises(SettingsError, match=r"^half_life=.* \(from Python\): must be"):
            PreferenceAgent(path, half_life=value)
    assert not path.exists()
