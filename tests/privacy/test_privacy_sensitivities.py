"""Sensitivities: brute force over answers and people never exceeds the bounds, and attains them."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from fldb_flower.bandit.estimate import CommonPrior
from fldb_flower.bandit.limits import factors, units_of
from fldb_flower.bandit.policies import make_policy
from fldb_flower.bandit.streams import AgentStreams
from fldb_flower.errors import PrivacyError
from fldb_flower.federation.exchange import (
    Broadcast,
    PlayRequest,
    limited_statistics,
    sizes_and_weights,
    statistics,
)
from fldb_flower.linalg.linear import Form
from fldb_flower.privacy.mechanism import largest_square, noise_per_unit
from fldb_flower.settings import from_nested

property_test = hypothesis_settings(deadline=None, derandomize=True, max_examples=100)
D = 3


def make_settings(**values):
    privacy = {"epsilon": 1.0, **values.pop("privacy", {})}
    base = {"algorithm": "fldb_ons", "first_round": "step", "dimension": D, "num_agents": 4}
    return from_nested({**base, **values, "privacy": privacy}, "the test")


PERSONAL = {"algorithm": "fldb_personal", "first_round": "minimise"}


def scaled(upload, noise):
    """Return all released numbers of an upload as one vector, in units of the noise."""
    parts = [upload.gradient / noise.gradient]
    for name in ("information", "hessian"):
        matrix = getattr(upload, name)
        if matrix is not None:
            parts.append(matrix.ravel() / getattr(noise, name))  # its norm is the Frobenius norm
    return np.concatenate(parts)


def contribution(request, settings, differences, preferences, form=None):
    """Return the norm of what duels contribute, in units of the noise for multiplier 1."""
    noise, form = noise_per_unit(request, settings), form or Form(D)
    if settings.privacy.unit == "person":
        units = units_of(*sizes_and_weights(request, settings))
        upload = limited_statistics(request, differences, preferences, 1, form, units=units)
    else:
        upload = statistics(request, differences, preferences, differences, form)
    return np.linalg.norm(scaled(upload, noise))


def clipped(differences, longest):
    lengths = np.linalg.norm(differences, axis=1, keepdims=True)
    return differences * np.minimum(1.0, longest / np.maximum(lengths, 1e-300))


numbers = st.floats(-10, 10)
vectors = st.lists(numbers, min_size=D, max_size=D).map(np.array)


@property_test
@given(
    theta=vectors,
    duels=st.lists(st.tuples(vectors, st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=6),
    clip=st.floats(0.1, 10),
    hessian=st.booleans(),
    kind=st.tuples(
        st.sampled_from(["auto", 1.0]), st.sampled_from([Form(D), Form(D, is_diagonal=True)])
    ),
)
def test_no_duels_contribute_more_than_the_bound(theta, duels, clip, hessian, kind):
    """Of one answer, and of one person with n answers."""
    beta_scale, form = kind
    name = "diagonal" if form.is_diagonal else "full"
    differences = clipped(np.array([each for each, _ in duels]), clip)
    preferences = np.array([answer for _, answer in duels])
    for unit, count in (("answer", 1), ("person", len(duels))):
        privacy = {"unit": unit, "clip": clip}
        settings = make_settings(privacy=privacy, beta_scale=beta_scale, matrix_form=name)
        request = Broadcast(PlayRequest(5, 4 + len(duels)), theta, hessian=hessian)
        parts = differences[:count], preferences[:count]
        assert contribution(request, settings, *parts, form) <= 1.0


@pytest.mark.parametrize("form", [Form(D), Form(D, is_diagonal=True)], ids=["full", "diagonal"])
def test_the_worst_answer_attains_the_bound(form):
    """A difference of length L along a coordinate, with every logit that theta allows."""
    clip, name = 2.5, "diagonal" if form.is_diagonal else "full"
    difference = np.array([[clip, 0.0, 0.0]])
    lengths = (0.0, 0.05, 0.3, 4.0)
    for hessian, scale, length in itertools.product((False, True), ("auto", 1.0), lengths):
        privacy = {"unit": "answer", "clip": clip}
        settings = make_settings(privacy=privacy, beta_scale=scale, matrix_form=name)
        found = 0.0
        for angle in np.linspace(0.0, math.pi, 301):
            theta = length * np.array([math.cos(angle), math.sin(angle), 0.0])
            request = Broadcast(PlayRequest(1, 1), theta, hessian=hessian)
            for answer in (0.0, 1.0):
                norm = contribution(request, settings, difference, np.array([answer]), form)
                found = max(found, norm)
        assert 0.9995 < found <= 1.0


def test_a_person_attains_the_bound_and_stays_below_it_with_small_duels():
    settings = make_settings(privacy={"clip": 2.0})
    request = Broadcast(PlayRequest(11, 17), np.zeros(D))
    duels = np.tile([0.0, 2.0, 0.0], (7, 1))
    assert contribution(request, settings, duels, np.zeros(7)) == pytest.approx(1.0, abs=1e-6)
    gradient, matrix = 7 * 0.5 * 0.2, 7 * 0.2**2  # typical: 2 sqrt(7 / 8), and 4 sqrt(7 + 42 / 3)
    expected = math.hypot(
        math.sqrt(2 / 3) * gradient / (2 * math.sqrt(7 / 8)),
        math.sqrt(1 / 3) * matrix / (4 * math.sqrt(21)),
    )
    assert contribution(request, settings, 0.1 * duels, np.zeros(7)) == pytest.approx(expected)


def test_the_standard_deviations_worked_by_hand():
    """theta = 0, L = 2, one answer: |g| = r L = 1 and |W| = 4, with the weights 2/3 and 1/3.

    The largest norm of (sqrt(2/3) g / 2, sqrt(1/3) W / 4) is sqrt(1/6 + 1/3).
    """
    settings = make_settings(privacy={"unit": "answer", "clip": 2.0})
    noise = noise_per_unit(Broadcast(PlayRequest(1, 1), np.zeros(D)), settings)
    assert noise.gradient == pytest.approx(math.sqrt(1 / 2) * 2 * math.sqrt(3 / 2))
    assert noise.information == pytest.approx(math.sqrt(1 / 2) * 4 * math.sqrt(3))
    assert set(noise[2:]) == {0.0}


def test_a_part_that_selection_does_not_use_takes_little_of_the_noise():
    request = Broadcast(PlayRequest(2, 2), np.full(D, 9.0), hessian=True)
    curvature, theory = (
        noise_per_unit(request, make_settings(privacy={"unit": "answer"}, beta_scale=scale))
        for scale in ("auto", 1.0)
    )
    assert curvature.hessian < 0.9 * theory.hessian
    assert curvature.gradient < 0.9 * theory.gradient
    assert curvature.information > 4 * theory.information


@property_test
@given(gradient=st.floats(0.0, 1.0), hessian=st.floats(0.0, 1.0), residual=st.floats(0.0, 1.0))
def test_the_closed_form_is_the_maximum_over_a_grid(gradient, hessian, residual):
    r = np.linspace(0.0, residual, 20_001)
    values = gradient * r**2 + 16 * hessian * (r * (1 - r)) ** 2
    assert largest_square(gradient, hessian, residual) == pytest.approx(values.max(), abs=1e-7)


def test_what_has_no_known_sensitivity_is_refused():
    zero = np.zeros(D)
    for request, words in (
        (Broadcast(None, zero), "asks again about duels"),
        (Broadcast(PlayRequest(1, 1), zero, scope="all"), "asks again about duels"),
        (Broadcast(PlayRequest(6, 5), zero), "request to play iterations"),
        (Broadcast(PlayRequest(0, 1), zero), "request to play iterations"),
        (Broadcast(PlayRequest(1, 1), zero, loss=True), "a loss is requested"),
    ):
        with pytest.raises(PrivacyError, match=words):
            noise_per_unit(request, make_settings())
    tiny = make_settings(**PERSONAL, privacy={"clip": 1e-99})
    zeros = np.zeros((D, D)), np.zeros(D)
    with pytest.raises(PrivacyError, match=r"size of precision is 0: privacy.clip=1e-99"):
        noise_per_unit(request_of(tiny, (1, 1), *zeros, 1e150), tiny)  # M <= I / v is 0 in float64


def test_what_is_not_a_number_is_not_within_the_limit():
    (factor,) = factors({"gradient": np.array([[np.nan, 1.0]])}, {"gradient": 1.0})
    assert np.isnan(factor)  # not 1: a device then contributes zeros


# --- FLDB-Personal -------------------------------------------------------------------------


def request_of(settings, iterations, precision, shift, variance):
    prior = CommonPrior(precision, shift, variance, 0.0)
    lowest = max(variance, settings.privacy.min_variance)
    play = PlayRequest(*iterations, prior)
    return Broadcast(play, None, shares=True, lowest_variance=lowest)


def play(policy, request, rounds, settings):
    """Let a policy of one agent receive a prior, then select and learn from given duels."""
    policy.receive(request.play.estimate)
    for offset, (difference, answer) in enumerate(rounds):
        arms = np.stack([difference, np.zeros(D)])[None]
        policy.select(range(request.play.first + offset, request.play.first + offset + 1), arms)
        policy.learn(difference[None], np.array([answer]))
    units = units_of(*sizes_and_weights(request, settings))
    change = policy.shares(request.play.last, units)
    policy.acknowledge(request.play.last)
    return change


def norm(change, noise):
    parts = ("precision", "shift", "losses")
    return math.hypot(
        *(np.linalg.norm(getattr(change, part)) / getattr(noise, part) for part in parts)
    )


duel = st.tuples(vectors.map(lambda v: 3 * v), st.sampled_from([0.0, 0.5, 1.0]))


@property_test
@given(
    rounds=st.lists(st.lists(duel, min_size=1, max_size=3), min_size=1, max_size=4),
    variance=st.sampled_from([1e-3, 0.1, 1.0]),
    pull=st.floats(-1e3, 1e3),
    half_life=st.sampled_from(["none", 1.0, 10.0]),
)
def test_no_person_changes_its_share_by_more_than_the_bound(rounds, variance, pull, half_life):
    """With any prior, also below the limit of v, any answers and any half-life."""
    settings = make_settings(**PERSONAL, half_life=half_life)
    policy = make_policy(settings, AgentStreams(0, range(1)))
    last = 0
    for number, duels in enumerate(rounds):
        first, last = last + 1, last + len(duels)
        precision = 10.0 * number * np.eye(D)
        request = request_of(settings, (first, last), precision, np.full(D, pull), variance)
        noise = noise_per_unit(request, settings)
        change = play(policy, request, duels, settings)
        assert norm(change, noise) <= 1.0
        assert change.squares == pytest.approx(len(duels) * settings.clip**2)  # public
        assert change.members == (number == 0)


def test_a_person_with_long_duels_attains_the_bound():
    settings = make_settings(**PERSONAL)
    policy, last = make_policy(settings, AgentStreams(0, range(1))), 0
    duels = [(axis, answer) for axis in 50.0 * np.eye(D) for answer in (0.0, 1.0)]
    for _ in range(2):
        first, last = last + 1, last + len(duels)
        request = request_of(settings, (first, last), np.zeros((D, D)), np.zeros(D), 0.1)
        change = play(policy, request, duels, settings)
        assert norm(change, noise_per_unit(request, settings)) == pytest.approx(1.0, abs=1e-6)


def test_a_higher_limit_of_v_needs_less_noise():
    noises = []
    for least in (0.1, 0.4):
        settings = make_settings(**PERSONAL, privacy={"min_variance": least})
        request = request_of(settings, (1, 5), np.zeros((D, D)), np.zeros(D), 0.01)
        noises.append(noise_per_unit(request, settings))
    assert noises[0].precision > noises[1].precision
    assert noises[0].shift > noises[1].shift
    assert noises[0].losses == noises[1].losses
