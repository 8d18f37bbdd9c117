"""The paper's constants against numbers computed by hand."""

import dataclasses
import math

import pytest

from fldb_flower.bandit import theory
from fldb_flower.settings import Settings

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
    # r = beta_1 / sqrt(0.125) = 2.602420 / 0.353553
    assert theory.projection_radius(settings) == pytest.approx(2 * 7.360756, rel=1e-6)
    assert theory.projection_radius(make(projection_radius=3.5)) == 3.5
