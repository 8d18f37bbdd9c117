"""Membership inference by the strongest attacker stays within the bounds of epsilon and delta.

The attacker knows what all others contribute and what the target would contribute, and sees every
noisy sum. Its score is the likelihood ratio of the two worlds, with the target and without it. By
the lemma of Neyman and Pearson no other test has more power. The target is the one with the largest
influence.
"""

import dataclasses
import math
from functools import cache

import numpy as np
import pytest
from conftest import nested
from scipy import optimize, stats

from fldb_flower.algorithms import make_algorithm, run_rounds
from fldb_flower.bandit.limits import units_of
from fldb_flower.federation.agents import AgentGroup
from fldb_flower.federation.exchange import (
    Broadcast,
    Federation,
    PlayRequest,
    limited_statistics,
    sizes_and_weights,
    statistics,
    total,
)
from fldb_flower.federation.history import Counts
from fldb_flower.linalg.linear import Form
from fldb_flower.privacy.mechanism import GaussianMechanism, simulated, with_noise
from fldb_flower.settings import from_nested

EPSILON, DELTA, D, AGENTS = 1.0, 1e-6, 2, 5
LARGEST_ADVANTAGE = (math.exp(EPSILON) - 1.0 + 2.0 * DELTA) / (math.exp(EPSILON) + 1.0)  # 0.46
TRIALS = 800  # of each world
DOUBT = 1e-4  # of each confidence interval: chance of an error


def make_settings(**values):
    base = {
        "algorithm": "fldb_ons", "first_round": "step", "num_agents": AGENTS, "num_arms": 4,
        "dimension": D, "horizon": 8, "schedule__name": "geometric", "schedule__ratio": 2.0,
        "privacy__epsilon": EPSILON, "privacy__delta": DELTA, "privacy__clip": 2.0,
    }  # fmt: skip
    return from_nested(nested(**{**base, **values}), "the test")


def parts_of(upload):
    """Return the released numbers by the name of their noise."""
    names = ("gradient", "information", "hessian", "precision", "shift", "losses")
    found = {name: getattr(upload, name, None) for name in names}
    return {name: part for name, part in found.items() if part is not None}


def likelihood_ratio(released, without, difference):
    """Return the log likelihood of the world with the target minus that of the one without.

    Matrices are compared by the Frobenius product: an off-diagonal entry occurs twice in it, and
    has half the variance.
    """
    score, base = 0.0, parts_of(without)
    for name, part in parts_of(released).items():
        change = parts_of(difference)[name]
        middle = base[name] + change / 2.0
        score += float(np.vdot(part - middle, change)) / getattr(released.noise, name) ** 2
    return score


def minus(upload, other):
    """Return the difference of two uploads."""
    theirs = parts_of(other)
    return upload._replace(**{name: own - theirs[name] for name, own in parts_of(upload).items()})


# --- a small federation whose releases are drawn many times ---------------------------------


def uploads_of(request, settings, rng, first):
    """Return the sums of a round without and with the target, which has the last column.

    The others are random. The target's differences are along theta_hat, of length L, and each of
    its answers is the one that theta_hat expects least. It contributes as much as anyone can.
    """
    n = request.play.last - request.play.first + 1
    differences = rng.standard_normal((n, AGENTS, D))
    answers = rng.integers(0, 2, (n, AGENTS)).astype(float)
    norm = np.linalg.norm(request.theta_hat)
    direction = request.theta_hat / norm if norm else np.eye(D)[0]
    differences[:, -1], answers[:, -1] = settings.clip * direction, 0.0
    lengths = np.linalg.norm(differences, axis=2, keepdims=True)
    differences *= np.minimum(1.0, settings.clip / lengths)
    zeroed = differences.copy()
    if settings.privacy.unit == "person":
        zeroed[:, -1] = 0.0
    elif first:  # the target is one answer; the person's others remain
        zeroed[0, -1] = 0.0
    return [sums(request, settings, each, answers) for each in (zeroed, differences)]


def sums(request, settings, differences, answers):
    x, y, form = differences.reshape(-1, D), answers.ravel(), Form(D)
    if settings.privacy.unit == "answer":
        return statistics(request, x, y, x, form)
    units = units_of(*sizes_and_weights(request, settings))
    return limited_statistics(request, x, y, AGENTS, form, units=units)


@cache
def rounds(unit):
    """Return the requests of all rounds with the sums in both worlds."""
    settings, rng = make_settings(privacy__unit=unit), np.random.default_rng(0)
    found = []
    for round_ in make_algorithm(settings).rounds():
        if not round_.learns:
            continue
        play, number = PlayRequest(round_.first, round_.last), len(found)
        # theta_hat is where an answer can have its largest influence; see largest_square.
        request = Broadcast(play, np.array([6.0, 0.0]) * bool(number), hessian=bool(number))
        found.append((request, *uploads_of(request, settings, rng, first=number == 1)))
    return found


@cache
def scores(unit, share=1.0, trials=TRIALS):
    """Return the attacker's score by trial, in the world without and with the target.

    ``share`` is the part of the calibrated noise that is added. Rounds whose sums are equal in
    both worlds reveal nothing, so they are not drawn.
    """
    mechanism = GaussianMechanism(make_settings(privacy__unit=unit))
    rng, found = np.random.default_rng(1), np.zeros((2, trials))
    for request, *worlds in rounds(unit):
        difference = minus(worlds[1], worlds[0])
        if not any(part.any() for part in parts_of(difference).values()):
            continue
        noise = mechanism.deviations(request)
        noise = type(noise)(*(share * each for each in noise))
        for world, trial in np.ndindex(2, trials):
            released = with_noise(worlds[world], noise, simulated(rng))
            found[world, trial] += likelihood_ratio(released, worlds[0], difference)
    return found


# --- what the attacker achieves -------------------------------------------------------------


def interval(count, trials):
    """Return the exact confidence interval of a share (Clopper and Pearson 1934)."""
    found = stats.binomtest(int(count), trials).proportion_ci(1.0 - DOUBT, method="exact")
    return found.low, found.high


def rates(found, threshold):
    """Return the intervals of the false and the true positive rate."""
    return [interval((world > threshold).sum(), world.size) for world in found]


def advantage(found):
    """Return the interval of TPR - FPR at the best threshold, 0: the worlds are equally likely."""
    (false_low, false_high), (true_low, true_high) = rates(found, 0.0)
    return true_low - false_high, true_high - false_low


def separation():
    """Return the distance of two normal distributions that are (epsilon, delta)-close, exactly.

    By Balle and Wang (2018), Theorem 8; written without the product's accounting.
    """

    def excess(m):
        tail = stats.norm.logcdf(-m / 2.0 - EPSILON / m)
        return stats.norm.cdf(m / 2.0 - EPSILON / m) - math.exp(EPSILON + tail) - DELTA

    return optimize.brentq(excess, 1e-2, 1e2)


UNITS = pytest.mark.parametrize("unit", ["answer", "person"])


@UNITS
def test_the_advantage_stays_below_the_bound(unit):
    low, high = advantage(scores(unit))
    assert high < LARGEST_ADVANTAGE
    # The noise is not larger than needed either: that is what the best attack achieves.
    exact = 2.0 * stats.norm.cdf(separation() / 2.0) - 1.0
    assert exact == pytest.approx(0.094, abs=0.001)
    assert low <= exact <= high
    # A likelihood ratio of N(0, 1) and N(m, 1) is N(-m^2 / 2, m^2) or N(m^2 / 2, m^2).
    m = separation()
    for world, sign in zip(scores(unit), (-1.0, 1.0), strict=True):
        standard = (world - sign * m * m / 2.0) / m
        assert stats.kstest(standard, "norm").pvalue > DOUBT


@UNITS
def test_no_threshold_exceeds_epsilon_and_delta(unit):
    """At each threshold TPR <= e^eps FPR + delta, and the same for the errors."""
    found, m = scores(unit), separation()
    for threshold in np.quantile(found, [0.01, 0.05, 0.2, 0.5, 0.8, 0.95, 0.99]):
        (false_low, false_high), (true_low, true_high) = rates(found, threshold)
        assert true_low <= math.exp(EPSILON) * false_high + DELTA
        assert 1.0 - false_high <= math.exp(EPSILON) * (1.0 - true_low) + DELTA
        # The curve of two normal distributions at this distance passes through the box.
        assert stats.norm.cdf(stats.norm.ppf(false_low) + m) <= true_high
        assert stats.norm.cdf(stats.norm.ppf(false_high) + m) >= true_low


@UNITS
def test_the_attack_finds_noise_that_is_too_small(unit):
    """With a sixteenth of it the first test would fail, and nearly without it, it succeeds."""
    low, _ = advantage(scores(unit, share=1 / 16, trials=200))
    assert low > LARGEST_ADVANTAGE
    low, high = advantage(scores(unit, share=1e-6, trials=200))
    assert low > 0.9
    assert high == 1.0


# --- through the engine ---------------------------------------------------------------------


class Attacked(Federation):
    """Real agents, the last of which is the target: its uploads are zero in one world.

    The noise has its own seed, so the target's data is the same in all trials. What agents do
    depends on what was released before, in both worlds.
    """

    def __init__(self, settings, seed, *, is_member, has_noise=True):
        noise = GaussianMechanism(dataclasses.replace(settings, seed=seed))
        super().__init__(Counts(), noise if has_noise else None)
        self.is_member, self.score, self.counted = is_member, 0.0, 0
        last = settings.num_agents - 1
        self.others = AgentGroup(settings, range(last))
        self.target = AgentGroup(settings, range(last, last + 1))
        self.worlds = ()

    def collect(self, broadcast):
        others = self.others.answer(broadcast, self.counted)
        target = self.target.answer(broadcast, self.counted)
        self.worlds = (others, target)
        return total([others, target if self.is_member else zeros_like(target)])

    def exchange(self, broadcast):
        released = super().exchange(broadcast)
        if broadcast.learns:
            self.score += likelihood_ratio(released, *self.worlds)
        return released

    def mark_counted(self):
        self.counted = self.history.iteration


def zeros_like(upload):
    """Return what is left of a person under zero-out: numbers of duels and of agents are public."""
    return upload._replace(**{name: 0.0 * part for name, part in parts_of(upload).items()})


ENGINE_TRIALS = 300


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    ["fldb_ons", *(pytest.param(f"fldb_{kind}", marks=pytest.mark.exhaustive)
                   for kind in ("ogd", "personal"))],
)  # fmt: skip
def test_an_attack_on_whole_runs_stays_below_the_bound(algorithm):
    """The theta of each release is that of the run, and answers follow what was released."""
    first = "minimise" if algorithm == "fldb_personal" else "step"
    settings = make_settings(algorithm=algorithm, first_round=first, horizon=16)
    found = np.zeros((2, ENGINE_TRIALS))
    for seed in range(2 * ENGINE_TRIALS):
        world, trial = divmod(seed, ENGINE_TRIALS)
        federation = Attacked(settings, seed, is_member=bool(world))
        run_rounds(federation, make_algorithm(settings))
        found[world, trial] = federation.score
    _, high = advantage(found)
    assert high < LARGEST_ADVANTAGE
    # Nobody contributes more than the bound, so the mean score is at most that at the distance m.
    error = found[1].std() / math.sqrt(ENGINE_TRIALS)
    assert found[1].mean() <= separation() ** 2 / 2.0 + 4.0 * error
