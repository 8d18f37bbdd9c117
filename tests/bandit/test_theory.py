"""The paper's constants and bounds against numbers computed by hand."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fldb_flower.bandit import theory
from fldb_flower.settings import Settings

BOUNDS = (theory.gd_regret_bound, theory.ogd_regret_bound, theory.periodic_ogd_regret_bound)

# t N kappa_mu / (d lambda) = 3 t, and 2 log(1 / delta) = 4: convenient by hand.
BY_HAND = Settings(
    num_agents=3, dimension=2, kappa_mu=0.5, lambda_=0.25, delta=math.exp(-2.0), alpha=2.0, tau=1
)


def make(**changes):
    """Return the settings of the published experiments with some changes."""
    return Settings(**{"tau": 1, **changes})


def test_beta_by_hand():
    # t = 1: sqrt(4 + 2 log 4) = sqrt(4 + 2.772589)
    assert theory.beta(1, 3, BY_HAND) == pytest.approx(2.602420, rel=1e-6)
    # an independent agent: 1 * 1 * 0.5 / (2 * 0.25) = 1, sqrt(4 + 2 log 2)
    assert theory.beta(1, 1, BY_HAND) == pytest.approx(math.sqrt(4.0 + 2.0 * math.log(2.0)))


def test_beta_of_the_published_experiments():
    # 500 * 100 * 1 / (5 / 500) = 5e6; 2 log 10 + 5 log(5e6 + 1) = 4.605170 + 77.124743
    assert theory.beta(500, 100, make()) == pytest.approx(9.040459, rel=1e-6)


def test_width_scales_beta():
    settings = make(beta_scale=0.5, kappa_mu=0.2)
    assert theory.width(7, 4, settings) == pytest.approx(2.5 * theory.beta(7, 4, settings))
    assert theory.width(7, 4, make(beta_scale=0.0)) == 0.0


@pytest.mark.parametrize("algorithm", ["fldb_ogd", "fldb_gd", "ldb"])
def test_the_automatic_width_is_that_of_the_theory(algorithm):
    automatic = make(algorithm=algorithm, kappa_mu=0.2)
    explicit = make(algorithm=algorithm, kappa_mu=0.2, beta_scale=1)
    assert automatic.beta_scale == "auto"
    assert theory.width(7, 4, automatic) == theory.width(7, 4, explicit)
    assert theory.prior_precision(automatic) == pytest.approx(automatic.ridge / 0.2)


def test_the_automatic_width_of_fldb_ons_is_a_number_of_deviations():
    settings = make(algorithm="fldb_ons", kappa_mu=0.2, ons_width=0.6, ons_ridge=3.0)
    assert [theory.width(t, n, settings) for t, n in ((1, 1), (500, 100))] == [0.6, 0.6]
    assert theory.prior_precision(settings) == 3.0  # A before the first duel is lambda_0 I
    paper = dataclasses.replace(settings, beta_scale=2.0)
    assert theory.width(7, 4, paper) == pytest.approx(10 * theory.beta(7, 4, settings))
    assert theory.prior_precision(paper) == pytest.approx(paper.ridge / 0.2)


def test_radius_by_hand():
    settings = dataclasses.replace(BY_HAND, horizon=1)
    # beta_1 / sqrt(0.125) = 2.602420 / 0.353553
    assert theory.radius(settings) == pytest.approx(7.360756, rel=1e-6)
    assert theory.projection_radius(settings) == pytest.approx(2 * 7.360756, rel=1e-6)
    assert theory.projection_radius(make(projection_radius=3.5)) == 3.5


def test_gd_bound_by_hand():
    # L = 2 log 4 = 2.772589; 2 * 3 L = 16.635532
    # 3 sqrt(2) * (2.602420 / 0.5) * sqrt(2 L) = 4.242641 * 5.204839 * 2.354820 = 51.999665
    bound = theory.gd_regret_bound(np.array([1]), BY_HAND)
    np.testing.assert_allclose(bound, [68.6352], rtol=1e-5)


def test_ogd_bound_by_hand():
    # E_1 = 3 sqrt(3 + 0.5) / 2 = 2.806243; 4.242641 * (5.204839 + 2.806243) * 2.354820 = 80.0360
    # t = 5: L = 2 log 16 = 5.545177, beta = sqrt(9.545177) = 3.089527,
    # E = 2.806243 * sqrt(1 + log 5) = 4.533136;
    # 6 L + 4.242641 * (6.179054 + 4.533136) * sqrt(10 L) = 33.271065 + 338.432650
    bound = theory.ogd_regret_bound(np.array([1, 5]), BY_HAND)
    np.testing.assert_allclose(bound, [96.6715, 371.7037], rtol=1e-5)


def test_periodic_bound_by_hand():
    """tau = 2, t = 4: two rounds of six agents."""
    settings = dataclasses.replace(BY_HAND, tau=2, step_index="round")
    # L = 2 log 13 = 5.129899, beta / kappa = 2 sqrt(9.129899) = 6.043145
    # E = 6 sqrt(6.5) / 2 * sqrt(1 + log 2) = 7.648529 * 1.301209 = 9.952334
    # 12 L + 4.242641 * (6.043145 + 9.952334) * sqrt(4 L) = 61.558785 + 307.4080
    bound = theory.periodic_ogd_regret_bound(np.array([4]), settings)
    np.testing.assert_allclose(bound, [368.967], rtol=1e-5)


@pytest.mark.parametrize("step_index", ["iteration", "round"])
def test_periodic_bound_is_the_theorem_of_more_agents_and_fewer_iterations(step_index):
    settings = make(num_agents=10, tau=4, alpha=7.0, step_index=step_index, lambda_=0.01)
    alpha = 28.0 if step_index == "iteration" else 7.0
    equivalent = make(num_agents=40, alpha=alpha, lambda_=0.01)
    rounds = np.arange(1, 51)
    np.testing.assert_allclose(
        theory.periodic_ogd_regret_bound(4 * rounds, settings),
        theory.ogd_regret_bound(rounds, equivalent),
    )


@pytest.mark.parametrize(
    ("step_index", "of_error", "of_term"), [("round", 1.5, 1.0), ("iteration", 0.5, 0.0)]
)
def test_how_the_error_of_gradient_descent_grows_with_tau(step_index, of_error, of_term):
    """The exponents that the docstring states, up to logarithms, from the bounds themselves.

    The part of the bound with E_t is the difference from a run with a much larger alpha.
    """
    taus, agents, t = np.array([10.0, 1000.0]), 10**6, 10**9
    terms, errors = [], []
    for tau in (10, 1000):
        base = {"num_agents": agents, "tau": tau, "step_index": step_index, "lambda_": 0.01}
        near, far = (
            float(theory.periodic_ogd_regret_bound(np.array(t), make(alpha=alpha, **base)))
            for alpha in (1e-3, 1e12)
        )
        growth = 5 * np.log1p(t * agents / (5 * 0.01))  # L: t N does not depend on tau
        log = np.sqrt(1 + np.log(t / tau))
        terms.append((near - far) / log)
        errors.append((near - far) / (3 * 2**0.5 * np.sqrt(2 * t / tau * growth)) / log)
    for values, exponent in ((errors, of_error), (terms, of_term)):
        slope = np.diff(np.log(values)) / np.diff(np.log(taus))
        np.testing.assert_allclose(slope, exponent, atol=1e-3)


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("tau", [1, 3])
def test_bounds_grow_with_the_horizon_and_sublinearly(bound, tau):
    settings = make(tau=tau)
    t = 3 * np.arange(1, 2001)
    values = bound(t, settings)
    assert (np.diff(values) > 0).all()
    average = values / t
    assert (np.diff(average) < 0).all()


@given(
    st.integers(1, 1000),
    st.integers(1, 10_000),
    st.integers(1, 50),
    st.floats(1.0, 1e6),
    st.integers(1, 9),
)
def test_ogd_is_bounded_above_gd(num_agents, t, dimension, alpha, tau):
    settings = make(num_agents=num_agents, dimension=dimension, alpha=alpha, tau=tau)
    at = np.array([t])
    gd = theory.gd_regret_bound(at, settings)
    assert np.isfinite(gd).all()
    assert (theory.ogd_regret_bound(at, settings) > gd).all()


def test_bounds_accept_torch_tensors():
    torch = pytest.importorskip("torch")
    t = np.arange(1, 20)
    for bound in BOUNDS:
        answer = bound(torch.asarray(t), make(tau=3))
        assert isinstance(answer, torch.Tensor)
        np.testing.assert_allclose(answer.numpy(), bound(t, make(tau=3)), rtol=1e-14)


def test_jensens_inequality_does_not_apply_to_different_functions():
    """The counterexample in the module to the proof of Lemma 4.5."""
    centres, iterates = [1.0, -1.0, -1.0], [1.0]
    for s in (1, 2):
        gradient = 2.0 * (iterates[-1] - centres[s - 1])
        iterates.append(iterates[-1] - gradient / (2.0 * s))
    left = sum((x - c) ** 2 for x, c in zip(iterates, centres, strict=True))
    mean = sum(iterates) / 3
    right = sum((mean - c) ** 2 for c in centres)
    assert (left, right) == (pytest.approx(5.0), pytest.approx(51 / 9))
