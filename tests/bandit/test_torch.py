"""Agents on PyTorch tensors: the same results as with NumPy, and draws on the device."""

import sys

import numpy as np
import pytest
from conftest import nested
from scipy import stats

from fldb_flower.bandit.estimate import CommonPrior, Estimate
from fldb_flower.bandit.streams import TorchStreams, make_streams
from fldb_flower.catalogue import ALGORITHMS, SELECTIONS
from fldb_flower.errors import SettingsError
from fldb_flower.federation.agents import AgentGroup
from fldb_flower.federation.exchange import Broadcast, PlayRequest
from fldb_flower.federation.history import History
from fldb_flower.linalg.arrays import pack_arrays, unpack_arrays
from fldb_flower.settings import from_nested
from simulations.engines import vectorized
from simulations.run import run

torch = pytest.importorskip("torch", reason="backend=cpu needs the torch extra")

SMALL = {"num_agents": 9, "num_arms": 5, "dimension": 4, "horizon": 12, "tau": 3}


def settings(**values):
    return from_nested(nested(**{**SMALL, **values}), "a test")


def results(**values):
    chosen = settings(**values)
    history = History(chosen.horizon)
    theta = vectorized.run(chosen, history)
    return theta, history.cumulative_regret


def expect_same(backend="cpu", **values):
    theta, regret = results(**values)
    other_theta, other_regret = results(**values, backend=backend)
    np.testing.assert_allclose(other_theta, theta, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(other_regret, regret, rtol=1e-9)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_tensors_on_the_cpu_give_the_same_as_numpy(algorithm, ratings):
    for selection in SELECTIONS:
        expect_same(algorithm=algorithm, selection=selection)
        if algorithm in {"fldb_ogd", "fldb_ons"}:
            expect_same(algorithm=algorithm, selection=selection, matrix_form="diagonal")
    if algorithm in {"ldb", "alone", "fldb_personal"}:  # steps between two fits
        expect_same(algorithm=algorithm, horizon=40, tau=10, refit_ratio=1.5)
    movielens = {"environment__name": "movielens", "environment__path": str(ratings())}
    expect_same(algorithm=algorithm, **movielens)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("rng", ["numpy", "torch"])
def test_a_state_goes_through_bytes_into_a_new_process(algorithm, rng):
    chosen = settings(algorithm=algorithm, selection="thompson", backend="cpu", rng=rng)
    through, resumed = AgentGroup(chosen, range(2, 9)), AgentGroup(chosen, range(2, 9))
    theta, information = np.arange(4.0), np.eye(4)
    scope = "all" if algorithm == "fldb_gd" else "fresh"
    estimate = Estimate(theta, information)
    is_personal = ALGORITHMS[algorithm].agents == "personal"
    if is_personal:
        estimate = CommonPrior(information, theta, 0.3, 1.0)
        if algorithm == "fldb_personal":
            estimate = estimate._replace(shape=np.diag([2.0, 1.0, 0.5, 0.5]), mix=0.1)
    for first, last in ((1, 1), (2, 4), (5, 6)):
        play = PlayRequest(first, last, estimate)
        broadcast = Broadcast(play, theta, scope, hessian=True, shares=is_personal)
        one, two = (group.answer(broadcast, first - 1) for group in (through, resumed))
        np.testing.assert_array_equal(one.outcomes[0].sums, two.outcomes[0].sums)
        for first_part, second_part in zip(one, two, strict=True):
            if hasattr(first_part, "shape"):
                assert type(first_part) is np.ndarray
                np.testing.assert_array_equal(first_part, second_part)
        saved = unpack_arrays(pack_arrays(resumed.state()))
        resumed = AgentGroup(chosen, range(2, 9))
        resumed.restore(saved)


def test_nodes_of_flower_use_the_device(tmp_path):
    values = {"engine__name": "inprocess", "engine__num_nodes": 3, "algorithm": "fldb_ons"}
    run(settings(**values), tmp_path / "numpy")
    run(settings(**values, backend="cpu"), tmp_path / "cpu")
    regret = [
        np.loadtxt(tmp_path / name / "regret.csv", delimiter=",", skiprows=1, usecols=1)
        for name in ("numpy", "cpu")
    ]
    np.testing.assert_allclose(*regret, rtol=1e-9)


# --- rng=torch -----------------------------------------------------------------------------


def torch_streams(agents, seed=0):
    streams = make_streams(settings(backend="cpu", rng="torch", seed=seed), agents)
    assert isinstance(streams, TorchStreams)
    return streams


def test_draws_on_the_device_are_keyed_by_agent_and_iteration(monkeypatch):
    monkeypatch.setattr(TorchStreams, "COHORT", 8)
    whole = torch_streams(range(40)).standard_normal("a", 6, 3, 2)
    assert whole.shape == (40, 6, 3, 2)
    assert whole.dtype == torch.float64
    part = torch_streams(range(7, 20))
    drawn = [part.standard_normal("a", count, 3, 2) for count in (1, 2, 3)]
    assert torch.equal(torch.cat(drawn, dim=1), whole[7:20])
    assert len({tuple(row) for row in whole.flatten(1).tolist()}) == 40
    assert not torch.equal(torch_streams(range(40), seed=1).standard_normal("a", 6, 3, 2), whole)
    assert not torch.equal(torch_streams(range(40)).standard_normal("b", 6, 3, 2), whole)


def test_draws_on_the_device_have_their_distributions():
    streams = torch_streams(range(500))
    cases = [
        (streams.standard_normal("a", 40, 2), stats.norm.cdf),
        (streams.random("b", 40), stats.uniform.cdf),
        (streams.logistic("c", 40), stats.logistic.cdf),
    ]
    for drawn, cdf in cases:
        assert stats.kstest(drawn.numpy().ravel(), cdf).pvalue > 1e-3
    pairs = streams.permutations("d", 40, 7, 3).numpy().reshape(-1, 3)
    assert all(len(set(row)) == 3 for row in pairs.tolist())
    counts = np.bincount(pairs.ravel(), minlength=7)
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("environment", ["synthetic", "movielens"])
@pytest.mark.parametrize("sigma", [0.0, 0.5])
def test_worlds_are_drawn_on_the_device(environment, sigma, ratings):
    values = {"environment__name": environment, "backend": "cpu", "rng": "torch"}
    values |= {"environment__sigma": sigma}
    if environment == "movielens":
        values["environment__path"] = str(ratings())
    first, again = results(**values), results(**values)
    np.testing.assert_array_equal(first[1], again[1])
    assert (np.diff(first[1]) >= 0).all()
    assert (results(**values, seed=1)[1] != first[1]).any()


# --- missing requirements ------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_without_torch_the_error_names_a_remedy(backend, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        SettingsError, match=rf"backend={backend} needs the torch extra: pip install"
    ):
        results(backend=backend)


def test_without_a_gpu_the_error_names_a_remedy(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SettingsError, match=r"finds no GPU.*engine.num_gpus=0\.1"):
        results(backend="cuda")


def test_draws_of_torch_need_a_device_of_torch():
    with pytest.raises(SettingsError, match=r"rng='torch' .*needs backend=cpu or backend=cuda"):
        settings(rng="torch")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("selection", SELECTIONS)
def test_a_gpu_gives_the_same_as_numpy(algorithm, selection):
    expect_same("cuda", algorithm=algorithm, selection=selection)
