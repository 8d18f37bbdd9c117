"""Selection rules against slow reimplementations in plain loops."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from fldb_flower.bandit import selection, theory
from fldb_flower.bandit.policies import make_policy
from fldb_flower.bandit.selection import norms, pick, rewards, whiten
from fldb_flower.bandit.selection.selector import Selector, find_rule
from fldb_flower.bandit.streams import AgentStreams
from fldb_flower.catalogue import SELECTIONS
from fldb_flower.linalg.linear import largest_frobenius, largest_norm
from fldb_flower.settings import Settings

N, K, D = 6, 5, 3
DETERMINISTIC = [name for name, rule in SELECTIONS.items() if rule.noise is None]
RANDOM = [name for name, rule in SELECTIONS.items() if rule.noise is not None]
WIDTHS = (0.0, 0.3, 2.0, 30.0)


@dataclasses.dataclass
class Case:
    features: np.ndarray
    theta: np.ndarray
    information: np.ndarray
    noise: np.ndarray | None

    def of_agent(self, agent):
        """One agent's arms, theta, W and noise."""
        own = self.theta.ndim == 2
        return (
            self.features[agent],
            self.theta[agent] if own else self.theta,
            self.information[agent] if own else self.information,
            None if self.noise is None else self.noise[agent],
        )

    def select(self, name, width):
        return find_rule(name).select(
            self.features, self.theta, whiten(self.information), width, self.noise
        )


def drawn(draw, streams, arms, d):
    return draw(streams, 1, (arms, d))[:, 0]


def make_case(name, seed, *, own, agents=N, arms=K, d=D):
    rng = np.random.default_rng(seed)
    lead = (agents,) if own else ()
    duels = rng.normal(size=(*lead, 7, d))
    information = np.swapaxes(duels, -1, -2) @ duels + 0.1 * np.eye(d)
    draw = find_rule(name).noise
    return Case(
        features=rng.normal(size=(agents, arms, d)),
        theta=rng.normal(size=(*lead, d)),
        information=information,
        noise=None if draw is None else drawn(draw, AgentStreams(seed, range(agents)), arms, d),
    )


# Brute force: one agent, loops, an explicit inverse; Python's max takes the first maximum.


def slow_norm(x, information):
    return math.sqrt(max(0.0, x @ np.linalg.inv(information) @ x))


def slow_argmax(scores):
    return max(range(len(scores)), key=lambda arm: scores[arm])


def slow_challenger(arms, theta, information, width, first):
    return slow_argmax(
        [theta @ (x - arms[first]) + width * slow_norm(x - arms[first], information) for x in arms]
    )


def slow_ucb(arms, theta, information, width, noise):
    first = slow_argmax([theta @ x for x in arms])
    return first, slow_challenger(arms, theta, information, width, first)


def slow_colstim(arms, theta, information, width, noise):
    perturbed = []
    for x, draw in zip(arms, noise, strict=True):
        eps = min(width, max(-width, draw))
        perturbed.append(theta @ x + eps * slow_norm(x, information))
    first = slow_argmax(perturbed)
    return first, slow_challenger(arms, theta, information, width, first)


def slow_maxpairucb(arms, theta, information, width, noise):
    best, pair = -math.inf, None
    for i, x in enumerate(arms):
        for j, other in enumerate(arms):
            score = theta @ (x + other) + width * slow_norm(x - other, information)
            if score > best + 1e-9:
                best, pair = score, (i, j)
    return pair


def slow_maxinp(arms, theta, information, width, noise):
    candidates = [
        i
        for i, x in enumerate(arms)
        if all(
            theta @ (x - other) + width * slow_norm(x - other, information) > 0
            for j, other in enumerate(arms)
            if j != i
        )
    ]
    best, pair = -math.inf, None
    for i in candidates:
        for j in candidates:
            score = slow_norm(arms[i] - arms[j], information)
            if score > best + 1e-9:
                best, pair = score, (i, j)
    return pair


def slow_thompson(arms, theta, information, width, noise):
    root = np.linalg.inv(np.linalg.cholesky(information).T)
    chosen = []
    for draw in noise:
        sampled = theta + width * root @ draw
        chosen.append(slow_argmax([sampled @ x for x in arms]))
    return tuple(chosen)


SLOW = {
    "ucb": slow_ucb,
    "maxinp": slow_maxinp,
    "colstim": slow_colstim,
    "maxpairucb": slow_maxpairucb,
    "thompson": slow_thompson,
}


def test_every_rule_has_a_reimplementation():
    assert set(SLOW) == set(SELECTIONS)


def assert_brute_force(case, name, width):
    """Compare with the loops, agent by agent; return the pairs."""
    first, second = case.select(name, width)
    assert first.shape == second.shape == (len(case.features),)
    pairs = list(zip(first.tolist(), second.tolist(), strict=True))
    for agent, pair in enumerate(pairs):
        arms, theta, information, noise = case.of_agent(agent)
        assert pair == SLOW[name](arms, theta, information, width, noise)
    return pairs


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("name", SELECTIONS)
def test_a_rule_equals_brute_force_and_leaves_its_arguments_unchanged(name, own):
    seen = set()
    for seed in range(20):
        for width in WIDTHS:
            case, before = (make_case(name, seed, own=own) for _ in range(2))
            seen.update(assert_brute_force(case, name, width))
            for field in dataclasses.fields(Case):
                after = getattr(case, field.name)
                np.testing.assert_array_equal(after, getattr(before, field.name))
    assert len(seen) >= K * (K + 1) // 2  # the cases cover many pairs
    for d, arms in itertools.product((1, 4), (2, 3, 11)):
        assert_brute_force(make_case(name, 7, own=own, agents=13, arms=arms, d=d), name, 1.0)


@pytest.mark.parametrize("name", SELECTIONS)
def test_shared_parameters_and_tensors_give_the_same(name):
    shared = make_case(name, 3, own=False)
    copies = dataclasses.replace(
        shared,
        theta=np.tile(shared.theta, (N, 1)),
        information=np.tile(shared.information, (N, 1, 1)),
    )
    expected = shared.select(name, 0.7)
    np.testing.assert_array_equal(copies.select(name, 0.7), expected)
    torch = pytest.importorskip("torch")
    for case in (shared, copies):
        numbers = dataclasses.astuple(case)
        tensors = Case(*(None if each is None else torch.asarray(each) for each in numbers))
        first, second = tensors.select(name, 0.7)
        assert isinstance(first, torch.Tensor)
        np.testing.assert_array_equal((first.numpy(), second.numpy()), expected)


@pytest.mark.parametrize("own", [False, True])
def test_norms_and_rewards_equal_explicit_inverse(own):
    case = make_case("ucb", 0, own=own)
    size = norms(case.features, whiten(case.information))
    predicted = rewards(case.features, case.theta)
    for agent in range(N):
        arms, theta, information, _ = case.of_agent(agent)
        for arm, x in enumerate(arms):
            assert size[agent, arm] == pytest.approx(slow_norm(x, information), rel=1e-12)
            assert predicted[agent, arm] == pytest.approx(theta @ x, rel=1e-12)


def test_norms_by_hand():
    whitener = whiten(np.array([[4.0, 0.0], [0.0, 9.0]]))
    vectors = np.array([[[2.0, 0.0], [0.0, 3.0], [2.0, 3.0], [0.0, 0.0]]])
    np.testing.assert_allclose(norms(vectors, whitener), [[1.0, 1.0, math.sqrt(2.0), 0.0]])
    # At the start, one direction explored a million times, another never.
    size = norms(np.eye(3)[None], whiten(np.diag([1e12, 1.0, 1e-6])))
    np.testing.assert_allclose(size, [[1e-6, 1.0, 1e3]], rtol=1e-14)


def test_pick_takes_one_arm_of_each_agent():
    values = np.arange(24).reshape(2, 4, 3)
    np.testing.assert_array_equal(pick(values, np.array([3, 1])), [values[0, 3], values[1, 1]])
    np.testing.assert_array_equal(pick(values[..., 0], np.array([3, 1])), [9, 15])


# Ties


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_equal_arms_give_the_lowest_numbers(name):
    for seed in range(20):
        case = make_case(name, seed, own=False)
        # Doubling the arms does not change the pair with the lowest numbers.
        doubled = dataclasses.replace(case, features=np.concatenate([case.features] * 2, axis=1))
        np.testing.assert_array_equal(doubled.select(name, 1.0), case.select(name, 1.0))
        case.features[:] = case.features[:, :1]
        for width in (0.0, 1.0):
            np.testing.assert_array_equal(case.select(name, width), np.zeros((2, N)))


def test_maxinp_keeps_two_equal_best_arms_and_a_sole_candidate():
    """The source's strict inequality would leave no candidate."""
    for arms in ([[0.0, 0.0], [1.0, 0.0], [1.0, 0.0]], [[0.0, 0.0], [5.0, 0.0], [1.0, 0.0]]):
        first, second = selection.maxinp(np.array([arms]), np.array([1.0, 0.0]), np.eye(2), 0.1)
        assert (first[0], second[0]) == (1, 1)


def test_tied_pairs_are_lexicographic():
    """Corners of a square: both diagonals are the longest, and all rewards are 0."""
    corners = np.array([[[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0], [-1.0, 1.0]]])
    for order, right in (([0, 1, 2, 3], (0, 2)), ([0, 1, 3, 2], (0, 3)), ([2, 0, 1, 3], (0, 1))):
        for rule in (selection.maxinp, selection.maxpairucb):
            first, second = rule(corners[:, order], np.zeros(2), np.eye(2), 1.0)
            assert (first[0], second[0]) == right


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_rounding_does_not_decide_ties(name):
    """Exact ties whose sums round differently in another basis."""
    lattice = np.array(list(np.ndindex(3, 3, 3)), dtype=float)[None] - 1.0
    theta = np.array([1.0, 1.0, 1.0])
    right = find_rule(name).select(lattice, theta, np.eye(3), 1.0, None)
    for seed in range(20):
        turn = stats.ortho_group.rvs(3, random_state=seed)
        # Theta and W = I are rotated with the basis: all scores are the same.
        turned = find_rule(name).select(lattice @ turn, theta @ turn, np.eye(3), 1.0, None)
        np.testing.assert_array_equal(turned, right)


@given(arrays(np.float64, (2, 4, 3), elements=st.integers(-2, 2).map(float)), st.integers(0, 3))
def test_small_integers_equal_brute_force(features, width):
    """Many ties. With W = I/4 and whole theta and width, loops also find equal scores equal."""
    theta, information = np.array([1.0, 0.0, -1.0]), np.eye(3) / 4
    first, second = selection.maxpairucb(features, theta, whiten(information), float(width))
    for agent in range(2):
        right = slow_maxpairucb(features[agent], theta, information, float(width), None)
        assert (first[agent], second[agent]) == right


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("name", SELECTIONS)
def test_features_and_thetas_that_are_no_numbers_are_refused(name, own):
    for bad in (math.nan, math.inf, -math.inf):
        features, theta = (make_case(name, 0, own=own) for _ in range(2))
        features.features[2, 1, 0] = theta.theta[..., 0] = bad
        for case in (features, theta):
            with pytest.raises(FloatingPointError, match="not a finite number"):
                case.select(name, 1.0)


# Randomness


def test_without_width_random_rules_are_greedy():
    for name in RANDOM:
        case = make_case(name, 2, own=False)
        best = rewards(case.features, case.theta).argmax(axis=1)
        np.testing.assert_array_equal(case.select(name, 0.0), (best, best))


def test_thompson_draws_have_the_documented_distribution():
    """With arms +-e_k, the selected arm is the sign of a coordinate; each agent is one draw."""
    draws, width = 40_000, 1.7
    information = np.array([[3.0, 1.0, 0.5], [1.0, 2.0, -0.4], [0.5, -0.4, 1.0]])
    theta = np.array([0.4, -0.2, 0.1])
    covariance = width**2 * np.linalg.inv(information)
    noise = drawn(selection.selector.normal_per_draw, AgentStreams(0, range(draws)), 2, 3)
    for direction in (*np.eye(3), np.array([1.0, -2.0, 0.5])):
        arms = np.tile(np.stack([direction, -direction]), (draws, 1, 1))
        chosen = selection.thompson(arms, theta, whiten(information), width, noise)
        deviation = math.sqrt(direction @ covariance @ direction)
        right = stats.norm.cdf(theta @ direction / deviation)
        for arm in chosen:
            share = (arm == 0).mean()
            assert share == pytest.approx(right, abs=4.5 * math.sqrt(0.25 / draws))
        both = ((chosen[0] == 0) & (chosen[1] == 0)).mean()  # the two draws are independent
        assert both == pytest.approx(right**2, abs=4.5 * math.sqrt(0.25 / draws))


def test_gumbel_noise_is_gumbel_and_finite_at_both_ends():
    noise = drawn(selection.selector.gumbel_per_arm, AgentStreams(0, range(2000)), 10, 3)
    assert noise.shape == (2000, 10)
    assert stats.kstest(noise.ravel(), "gumbel_r").pvalue > 1e-3

    class Ends(AgentStreams):
        def random(self, name, iterations, *shape):
            return np.array([[[0.0, 1.0 - 2.0**-53]]])

    assert np.isfinite(drawn(selection.selector.gumbel_per_arm, Ends(0, range(1)), 2, 3)).all()


def test_colstim_truncates_the_noise_at_the_width():
    features = np.array([[[1.0], [2.0]]])
    for draw, right in ((1e9, 0), (-1e9, 1)):
        noise = np.array([[draw, 0.0]])
        # 0.5 + eps against 1.0, with eps truncated at +-width
        assert selection.colstim(features, np.array([0.5]), np.eye(1), 0.6, noise)[0][0] == right
        assert selection.colstim(features, np.array([0.5]), np.eye(1), 0.4, noise)[0][0] == 1


# The selector


def make_settings(name, **changes):
    return Settings(num_agents=10, num_arms=K, dimension=D, selection=name, **changes)


def features_of(iterations):
    return np.random.default_rng(9).normal(size=(iterations, 10, K, D))


@pytest.mark.parametrize("d", [1, 2, 31, 32, 33, 65, 130])
def test_whiteners_of_any_size_are_inverse_factors(d):
    """For one matrix and a batch: C C^T = W^-1, C upper triangular."""
    duels = np.random.default_rng(d).standard_normal((2, 3 * d, d))
    several = np.swapaxes(duels, 1, 2) @ duels + 0.1 * np.eye(d)
    for information, c in zip(several, whiten(several), strict=True):
        np.testing.assert_allclose(c @ c.T, np.linalg.inv(information), rtol=1e-9, atol=1e-13)
        np.testing.assert_array_equal(c, np.triu(c))
        np.testing.assert_allclose(whiten(information), c, rtol=1e-12, atol=1e-14)


def test_the_largest_norm_of_a_batch():
    assert largest_frobenius(np.array([3.0, 4.0]), 1) == 5.0
    assert largest_frobenius(np.array([[3.0, 4.0], [5.0, -12.0], [0.0, 1.0]]), 1) == 13.0
    assert largest_norm(np.array([[[3.0, 0.0], [0.0, 4.0]], [[1.0, 2.0], [2.0, 4.0]]])) == 5.0
    assert largest_norm(np.array([[1.0, 1.0], [3.0, 5.0]])) == 6.0
    assert largest_norm(np.array([8.0, 15.0])) == 17.0


@pytest.mark.parametrize("name", SELECTIONS)
def test_selector_passes_the_width_of_theory(name):
    settings = make_settings(name, beta_scale=0.5, kappa_mu=0.2)
    case = make_case(name, 4, own=False, agents=10)
    streams, own_streams = (AgentStreams(settings.seed, range(10)) for _ in range(2))
    selector, draw = Selector(settings, own_streams), find_rule(name).noise
    estimate = case.features, case.theta, whiten(case.information)
    for t in (1, 2, 5):
        noise = None if draw is None else drawn(draw, streams, K, D)
        right = find_rule(name).select(*estimate, theory.width(t, 7, settings), noise)
        np.testing.assert_array_equal(selector.select(range(t, t + 1), *estimate, 7), right)
    assert bool(own_streams.state()) is (name in RANDOM)  # others use no random numbers


@pytest.mark.parametrize("name", RANDOM)
def test_noise_changes_with_the_iteration_and_the_seed(name):
    features, case = features_of(1)[0], make_case("ucb", 1, own=False)
    chosen = set()
    for seed in (0, 1):
        selector = Selector(make_settings(name), AgentStreams(seed, range(10)))
        for t in range(1, 21):
            estimate = features, case.theta, whiten(case.information)
            pair = selector.select(range(t, t + 1), *estimate, 10)
            chosen.add(np.stack(pair).tobytes())
    assert len(chosen) > 30


@pytest.mark.parametrize("name", SELECTIONS)
def test_the_synchronized_policy_uses_the_rule_of_the_settings(name):
    settings = make_settings(name)
    policy = make_policy(settings, AgentStreams(settings.seed, range(10)))
    selector = Selector(settings, AgentStreams(settings.seed, range(10)))
    whitener = whiten(np.eye(D) * settings.ridge / settings.kappa_mu)
    for t, features in enumerate(features_of(3), start=1):
        right = selector.select(range(t, t + 1), features, np.zeros(D), whitener, 10)
        np.testing.assert_array_equal(policy.select(range(t, t + 1), features), right)
