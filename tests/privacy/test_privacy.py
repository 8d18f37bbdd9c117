"""Differential privacy: accounting, noise, plan, and runs on all engines."""

import itertools
import json
import math
import sys

import numpy as np
import pandas as pd
import pytest
from conftest import nested
from scipy import optimize, stats

from fldb_flower.algorithms import make_algorithm
from fldb_flower.algorithms.ons import FLDBONS
from fldb_flower.bandit.estimate import CommonPrior
from fldb_flower.catalogue import ALGORITHMS
from fldb_flower.errors import ConvergenceError, PrivacyError, SettingsError
from fldb_flower.federation.exchange import Broadcast, Federation, Noise, PlayRequest, Upload
from fldb_flower.federation.history import Counts, History
from fldb_flower.privacy import accounting
from fldb_flower.privacy.discrete import sampler
from fldb_flower.privacy.mechanism import GaussianMechanism, noise_of, simulated, with_noise
from fldb_flower.privacy.plan import cautions
from fldb_flower.runs import experiment
from fldb_flower.settings import from_flat, from_nested
from simulations.engines.vectorized import DirectFederation
from simulations.run import run

SMALL = {"num_agents": 60, "horizon": 23, "num_arms": 4, "dimension": 3, "tau": 3}
ONS = {"algorithm": "fldb_ons", "first_round": "step"}
OGD = {"algorithm": "fldb_ogd", "first_round": "step"}
PERSONAL = {"algorithm": "fldb_personal"}
ANSWER = {"privacy__epsilon": 8.0, "privacy__unit": "answer"}
PERSON = {"privacy__epsilon": 8.0}
PRIVATE = [
    pytest.param({**ONS, **ANSWER}, id="ons-answer"),
    pytest.param({**ONS, **PERSON}, id="ons-person"),
    pytest.param({**OGD, **PERSON}, id="ogd-person"),
    pytest.param({**PERSONAL, **PERSON}, id="personal-person"),
]


def settings(**values):
    return from_nested(nested(**{**SMALL, **values}), "a test")


def regret(directory):
    return pd.read_csv(directory / "regret.csv")


def summary(directory):
    return json.loads((directory / "summary.json").read_text())


# --- accounting ----------------------------------------------------------------------------


def test_multipliers_are_those_of_the_analytic_gaussian_mechanism():
    """Balle and Wang 2018, Theorem 8, up to the limits of privacy.epsilon and privacy.delta."""

    def delta_of(z, epsilon):
        upper = stats.norm.logcdf(0.5 / z - epsilon * z)
        lower = epsilon + stats.norm.logcdf(-0.5 / z - epsilon * z)
        return math.exp(upper) - math.exp(lower)

    for epsilon in (1e-3, 0.1, 3.0, 1e3):
        for delta, most in ((1e-15, 1.012), (1e-6, 1.001), (0.1, 1.002)):
            exact = optimize.brentq(
                lambda z, e=epsilon, d=delta: delta_of(z, e) / d - 1.0, 1e-2, 1e5
            )
            for releases in (1, 500):
                found = accounting.noise_multiplier(epsilon, delta, releases)
                assert 1 - 1e-6 <= found / exact / math.sqrt(releases) <= most
                spent = accounting.epsilon_of(found, delta, releases)
                assert 0.98 * epsilon <= spent <= epsilon * (1 + 1e-5)
    # Far in the tail, the distribution function is an asymptotic series.
    expected = delta_of(1 / 0.3, 10.0)
    assert 0.0 < expected < 1e-200
    assert accounting.delta_of(10.0, 0.3) == pytest.approx(expected, rel=1e-6, abs=0.0)


def test_a_missing_library_is_named(monkeypatch):
    """Devices need it for noise, simulations do not."""
    monkeypatch.setitem(sys.modules, "opendp.domains", None)
    assert noise_of(settings(**ONS, **PERSON)) is not None
    with pytest.raises(SettingsError) as error:
        sampler()
    expected = "noise of a device needs the privacy extra: pip install -e '.[privacy]'"
    assert str(error.value).startswith(expected)
    assert "\n" not in str(error.value)


# --- noise ---------------------------------------------------------------------------------


class Fixed(Federation):
    """A federation with a fixed upload, whatever it is asked."""

    def __init__(self, chosen, upload):
        super().__init__(Counts(), noise_of(chosen))
        self.upload = upload

    def collect(self, broadcast):
        return self.upload

    def mark_counted(self):
        pass


def coordinates(upload, base, noise):
    """Return what was added, one number per independent coordinate, in standard deviations.

    Written without the product: off-diagonal entries count sqrt(2) times.
    """
    parts = [(upload.gradient - base.gradient) / noise.gradient]
    for name in ("information", "hessian"):
        added = getattr(upload, name) - getattr(base, name)
        np.testing.assert_array_equal(added, added.T)
        d = len(added)
        entries = [
            added[j, k] * (1.0 if j == k else math.sqrt(2.0)) for j in range(d) for k in range(j, d)
        ]
        parts.append(np.array(entries) / getattr(noise, name))
    return np.concatenate(parts)


def test_the_noise_of_openings_is_that_of_the_calibration():
    """Chi-squared tests of every coordinate, of all together, and of their independence."""
    chosen = settings(**ONS, **ANSWER, tau=1, horizon=600, dimension=3, privacy__clip=2.0)
    base = Upload(60, np.arange(3.0), np.eye(3), 0.2 * np.eye(3), None, ())
    federation = Fixed(chosen, base)
    request = Broadcast(PlayRequest(1, 1), np.full(3, 50.0), hessian=True)
    uploads = [
        federation.exchange(request._replace(play=PlayRequest(number, number)))
        for number in range(1, 601)
    ]
    # z of one release at epsilon 8; r is at most 1; weights of g, W, H: 0.66, 0.01, 0.33.
    r = np.linspace(0.0, 1.0, 100_001)
    norm = math.sqrt((0.66 * r**2 + 0.01 + 0.33 * 16 * r**2 * (1 - r) ** 2).max())
    scale = 0.65294 * norm
    expected = Noise(
        gradient=scale * 2.0 / math.sqrt(0.66),
        information=scale * 4.0 / math.sqrt(0.01),
        hessian=scale * 1.0 / math.sqrt(0.33),
    )
    assert uploads[0].noise == uploads[-1].noise
    np.testing.assert_allclose(uploads[0].noise, expected, rtol=1e-3)
    draws = np.array([coordinates(each, base, expected) for each in uploads])
    assert draws.shape == (600, 15)
    count, squares = draws.size, (draws**2).sum()
    assert 1e-4 < stats.chi2.cdf(squares, count) < 1 - 1e-4
    each = stats.chi2.cdf((draws**2).sum(axis=0), 600)
    assert (each > 1e-5).all()
    assert (each < 1 - 1e-5).all()
    assert stats.kstest(draws.ravel(), "norm").pvalue > 1e-4
    correlations = np.corrcoef(draws.T)[np.triu_indices(15, 1)]
    assert np.abs(correlations).max() < 5 / math.sqrt(600)
    assert abs(np.corrcoef(draws[1:].ravel(), draws[:-1].ravel())[0, 1]) < 5 / math.sqrt(count)


@pytest.mark.parametrize("values", PRIVATE)
def test_a_run_adds_the_noise_that_it_names(values):
    """The same agents without noise send the same numbers up to the first opening."""
    chosen = settings(**values)
    noisy, plain = (DirectFederation(chosen, History(23)) for _ in range(2))
    play = PlayRequest(1, 1, None)
    request = Broadcast(play, np.zeros(3))
    if chosen.algorithm == "fldb_personal":
        prior = CommonPrior(np.zeros((3, 3)), np.zeros(3), 0.1, 0.0)
        request = Broadcast(PlayRequest(1, 1, prior), None, shares=True, lowest_variance=0.1)
    released, sums = noisy.exchange(request), plain.collect(request)
    assert sums.noise is None
    assert released.noise == GaussianMechanism(chosen).deviations(request)
    assert released.num_duels == sums.num_duels
    got, base = released, sums
    for part in set(base._fields) & set(released.noise._fields):
        deviation = getattr(released.noise, part, 0.0)
        value = getattr(base, part)
        if deviation:
            added = np.atleast_1d(getattr(got, part) - value) / deviation
            assert 0 < np.abs(added).max() < 5
        elif part in {"squares", "members"}:
            assert getattr(got, part) == value


def test_what_would_be_released_without_noise_is_refused():
    """A gradient beside a share would be released as it is."""
    upload = Upload(1, np.zeros(2), np.eye(2), np.eye(2), None, ())
    noise = Noise(gradient=1.0, information=1.0)
    with pytest.raises(PrivacyError, match=r"sensitivity of hessian is not known"):
        with_noise(upload, noise, simulated(np.random.default_rng(0)))
    prior = CommonPrior(np.zeros((3, 3)), np.zeros(3), 0.5, 0.0)
    for values, theta, words in (
        ({**PERSONAL, **PERSON}, np.zeros(3), "shares and gradients are requested together"),
        ({**ONS, **ANSWER}, None, "shares are requested: use privacy.unit=person"),
    ):
        request = Broadcast(PlayRequest(1, 1, prior), theta, shares=True, lowest_variance=0.5)
        with pytest.raises(PrivacyError, match=words):
            GaussianMechanism(settings(**values)).require(request, 1)


def test_lengths_whose_squares_overflow_are_refused(tmp_path):
    cases = {**ONS, **ANSWER}, {**OGD, **PERSON}, {**PERSONAL, **PERSON}
    for values, clip in itertools.product(cases, (1e-100, 1e-72, 1e72, 1e100)):
        with pytest.raises(PrivacyError, match=r"privacy\.clip=.* is too far from 1") as error:
            run(settings(**values, privacy__clip=clip), tmp_path)
        assert "\n" not in str(error.value)


def test_a_scale_of_features_that_is_far_too_small_is_named(tmp_path):
    """FLDB-Personal takes L as their scale: the prior of theta is then almost flat."""
    with pytest.raises(ConvergenceError, match=r"use a larger personal_ridge .*privacy\.clip"):
        run(settings(**PERSONAL, **PERSON, privacy__clip=1e-6), tmp_path)


# --- agents clip ---------------------------------------------------------------------------


def test_agents_clip_differences_in_statistics_and_nowhere_else():
    """Every difference is longer than 0.01, so each adds exactly 0.01^2 to the trace of W."""
    whole = DirectFederation(settings(**ONS), History(23))
    short = DirectFederation(settings(**ONS, **ANSWER, privacy__clip=0.01), History(23))
    request = Broadcast(PlayRequest(1, 5, None), np.zeros(3))
    estimate = make_algorithm(settings(**ONS)).estimate
    request = request._replace(play=PlayRequest(1, 5, estimate))
    one, two = whole.collect(request), short.collect(request)
    assert np.trace(two.information) == pytest.approx(two.num_duels * 1e-4)
    assert np.trace(one.information) > 1e3 * np.trace(two.information)
    np.testing.assert_array_equal(one.outcomes[0].sums, two.outcomes[0].sums)


# --- engines -------------------------------------------------------------------------------


@pytest.mark.parametrize("values", PRIVATE)
def test_regret_does_not_depend_on_the_engine_or_the_nodes(tmp_path, values):
    run(settings(**values), tmp_path / "v")
    expected = regret(tmp_path / "v")
    for nodes in (1, 4):
        folder = tmp_path / str(nodes)
        run(settings(**values, engine__name="inprocess", engine__num_nodes=nodes), folder)
        got = regret(folder)
        np.testing.assert_allclose(got.cumulative_regret, expected.cumulative_regret, rtol=1e-9)
        assert summary(tmp_path / "v")["privacy"] == summary(folder)["privacy"]


def test_lost_replies_are_asked_for_again_and_charged_once(tmp_path):
    """A node repeats the same numbers, and the sum has noise once."""
    values = {**ONS, **PERSON, "engine__name": "inprocess", "engine__num_nodes": 4}
    run(settings(**values), tmp_path / "all")
    run(settings(**values, dropout=0.2), tmp_path / "lossy")
    np.testing.assert_allclose(
        regret(tmp_path / "lossy").cumulative_regret,
        regret(tmp_path / "all").cumulative_regret,
        rtol=1e-9,
    )
    assert summary(tmp_path / "lossy")["privacy"] == summary(tmp_path / "all")["privacy"]
    assert summary(tmp_path / "lossy")["privacy"]["openings"] == 8


# --- runs ----------------------------------------------------------------------------------


def test_the_summary_reports_what_was_spent(tmp_path):
    run(settings(**ONS), tmp_path / "plain")
    assert "privacy" not in summary(tmp_path / "plain")
    run(settings(**ONS, **PERSON), tmp_path / "private")
    entry = summary(tmp_path / "private")["privacy"]
    assert entry.pop("parties") == 1
    assert entry.pop("note").startswith("the noise is drawn from the seed, so it protects nobody")
    assert entry.pop("noise_multiplier") == pytest.approx(0.65294 * math.sqrt(8), rel=1e-3)
    assert entry.pop("spent") == pytest.approx(8.0, rel=2e-3)
    assert entry == {
        "epsilon": 8.0, "delta": 1e-6, "unit": "person", "clip": math.sqrt(6), "openings": 8,
    }  # fmt: skip


def test_seeds_have_their_own_noise():
    request = Broadcast(PlayRequest(1, 1), np.zeros(3))
    upload = Upload(60, np.zeros(3), np.eye(3), None, None, ())
    draws = {
        tuple(GaussianMechanism(settings(**ONS, **PERSON, seed=seed)).add(upload, request, n)[1])
        for seed in (0, 1)
        for n in (1, 2)
    }
    assert len(draws) == 4


@pytest.mark.parametrize("values", PRIVATE)
def test_a_resumed_run_writes_the_same_results(tmp_path, values):
    """The releases after the last checkpoint run again with the same numbers, and count once."""
    chosen = settings(**values, checkpoint_seconds=0.0)
    run(chosen, tmp_path / "whole")
    directory = tmp_path / "stopped"
    rounds = iter(range(1_000))
    original = experiment.stop_requested
    try:
        experiment.stop_requested = lambda path: next(rounds) == 3 or original(path)
        with pytest.raises(experiment.StoppedError):
            run(chosen, directory)
    finally:
        experiment.stop_requested = original
    again = settings(**values, checkpoint_seconds=0.0, resume=True)
    run(again, directory)
    for name in ("regret.csv", "model.json"):
        assert (directory / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert summary(directory)["privacy"] == summary(tmp_path / "whole")["privacy"]


def test_an_algorithm_that_asks_twice_about_duels_is_stopped(tmp_path):
    """Its entry allows one exchange a round. A second one would release each answer again."""

    @ALGORITHMS.register("twice", online=True, exchanges="several_first")
    class Twice(FLDBONS):
        def learn(self, federation, round_):
            if round_.last == 6:
                request = Broadcast(self.play(round_), self.theta_hat, hessian=True)
                federation.exchange(request)
            return super().learn(federation, round_)

    values = {"algorithm": "twice", "first_round": "step"}
    try:
        for noise in (ANSWER, PERSON):
            with pytest.raises(PrivacyError, match=r"^algorithm=twice asks again abou[^\n]*$"):
                run(settings(**values, **noise), tmp_path)
    finally:
        del ALGORITHMS["twice"]
    assert not (tmp_path / "summary.json").exists()


def test_nothing_is_sent_that_the_budget_does_not_cover():
    federation = Fixed(settings(**ONS, **PERSON, horizon=3, tau=3), None)
    federation.history.exchanges = 2  # all that the schedule has

    def collect(broadcast):
        raise AssertionError("agents were asked")

    federation.collect = collect
    with pytest.raises(PrivacyError, match=r"the noise covers the 2 exchanges"):
        federation.exchange(Broadcast(PlayRequest(3, 3), np.zeros(3)))


# --- settings ------------------------------------------------------------------------------


REFUSED = [  # settings beside epsilon, and the line
    ({"algorithm": "ldb"}, "epsilon=8 (from a test): algorithm=ldb releases nothing, so it needs"),
    ({"algorithm": "alone"}, "epsilon=8 (from a test): algorithm=alone releases nothing"),
    ({"algorithm": "random"}, "epsilon=8 (from a test): algorithm=random releases nothing"),
    (
        {"algorithm": "fldb_gd"},
        "epsilon=8 (from a test): algorithm=fldb_gd releases many sums over all duels",
    ),
    (
        {"algorithm": "fldb_ons", "first_round": "minimise"},
        "epsilon=8 (from a test): algorithm=fldb_ons releases several sums over the duels of",
    ),
    (
        {**ONS, "robust": "trimmed"},
        "epsilon=8 (from a test): robust=trimmed: a trimmed mean has no known",
    ),
    ({**PERSONAL, **ANSWER}, "unit='answer' (from a test): algorithm=fldb_personal"),
    ({**ONS, "privacy__epsilon": 0}, "epsilon=0.0 (from a test): must be"),
    ({**ONS, "privacy__delta": 0}, "delta=0.0 (from a test): must be"),
    (
        {**ONS, "environment__name": "movielens", "environment__path": "u.data"},
        "clip='auto' (from a test): must be a number for movielens",
    ),
    (
        {**ONS, "privacy__clip": 3, "max_difference": 2},
        "clip=3 (from a test): must be at most max_difference=2",
    ),
]


def test_what_has_no_noise_is_refused_with_the_reason():
    for values, words in REFUSED:
        with pytest.raises(SettingsError) as error:
            settings(**{**PERSON, **values})
        assert str(error.value).startswith(f"privacy.{words}")
        assert "\n" not in str(error.value)


def test_settings_of_privacy_need_epsilon():
    """Devices refuse them. A simulation warns, since a sweep may compare epsilon=none,1,3."""
    for name, value in {"unit": "answer", "clip": 2.0, "delta": 1e-5, "min_variance": 0.1}.items():
        end = "has no effect with privacy.epsilon=none: no noise is added; set privacy.epsilon"
        flat = f"privacy-{name}".replace("_", "-")
        with pytest.raises(SettingsError) as error:
            from_flat({flat: value, "privacy-epsilon": "none", "mode": "devices"}, "a test")
        assert str(error.value).startswith(f"privacy.{name}={value!r} (from a test): {end}")
        assert "\n" not in str(error.value)
        (line,) = cautions(settings(**{f"privacy__{name}": value}))
        assert line == f"privacy.{name}={value!r}: {end} to a number"
        assert settings(**ONS, privacy__epsilon=1, **{f"privacy__{name}": value}).is_private


def test_the_length_that_clips():
    assert settings(**ONS).clip is None
    assert settings(**ONS, **PERSON).clip == math.sqrt(6)
    assert settings(**ONS, **PERSON, max_difference=2).clip == 2.0
    assert settings(**ONS, **PERSON, max_difference=2, privacy__clip=1).clip == 1.0
