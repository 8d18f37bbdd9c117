"""FLDB-Personal: the server's sums are those of the shares that it acknowledged last."""

from __future__ import annotations

import itertools
import json
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import device_request, examples, nested
from faulty_grid import FaultyGrid
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from test_devices import DEATHS, D, Federation, no_pause, undoing

from clients.device import DeviceAgent, Limits
from clients.store import DuelStore
from fldb_flower.bandit.estimate import MIXES, VARIANCES, CommonPrior
from fldb_flower.errors import DataError
from fldb_flower.federation.exchange import Broadcast, PlayRequest
from fldb_flower.federation.history import History
from fldb_flower.linalg.arrays import unpack_arrays
from fldb_flower.linalg.linear import Form
from fldb_flower.settings import from_flat, from_nested
from fldb_flower.wire import decode_upload
from strategies import DuelingStrategy
from strategies.simulated import SimulatedChannel

__all__ = ["no_pause"]  # a fixture for all tests
NONE = CommonPrior(np.zeros((D, D)), np.zeros(D), 0.1, 0.0)
SHAPE = np.diag(np.arange(D) + 0.5)


def personal(folder, **changes):
    return Federation(folder, **{"algorithm": "fldb_personal", **changes})


def check_sums(algorithm, shares):
    """Compare the server's sums with those of shares (M, m)."""
    precision = sum((matrix for matrix, _ in shares), np.zeros((D, D)))
    shift = sum((vector for _, vector in shares), np.zeros(D))
    scale = 1e-12 * max([np.abs(matrix).max() for matrix, _ in shares])  # if large ones cancelled
    np.testing.assert_allclose(algorithm.information, precision, rtol=1e-9, atol=scale)
    np.testing.assert_allclose(algorithm.arrays["shift"], shift, rtol=1e-9, atol=1e-12)


def check_devices(federation, server):
    """Compare the server's sums with the shares that the devices have stored."""
    shares = [(np.zeros((D, D)), np.zeros(D))]
    for path in federation.stores:
        with DuelStore(path) as store:
            counted = server.devices.counted.get(store.device_id, 0)
            if counted:
                shares.append(store.share(counted))
    check_sums(server.strategy.algorithm, shares)


# --- one device ------------------------------------------------------------------------------


class Device:
    """A device with a store, and the requests of its server."""

    def __init__(self, path, min_duels=1):
        self.store = DuelStore(path)
        settings = from_flat({"dimension": D, "algorithm": "fldb_personal"}, "a test")
        self.agent = DeviceAgent(self.store, settings, Limits(min_duels))

    def answer(self, differences, preferences):
        for x, y in zip(differences, preferences, strict=True):
            duel = self.store.propose(x, 0.5, expire_after=60.0)
            self.store.record([(duel.id, y)])

    def request(self, prior=NONE, counted=0):
        """Return where the upload ends, and the change of the share."""
        broadcast = Broadcast(PlayRequest(1, 1, prior), None, shares=True)
        name = self.store.device_id
        vector, config = device_request(broadcast, name, counted=counted, upto=-1)
        (sent,), count, reply = self.agent.fit([vector], config)
        upload = decode_upload(sent, count, broadcast, Form(D))
        assert reply["header"][:3] == [count, counted, counted + count]
        return counted + count, upload


@pytest.fixture
def device(tmp_path):
    opened = Device(tmp_path / "duels.db")
    yield opened
    opened.store.close()


def mu(z):
    return 1 / (1 + np.exp(-z))


def posterior(x, y, precision, mean):
    """Return theta and the Hessian and gradient of the loss there, by SciPy's minimiser."""

    def objective(theta):
        z, off = x @ theta, theta - mean
        return (np.logaddexp(0, z) - y * z).sum() + off @ precision @ off / 2

    def slope(theta):
        return x.T @ (mu(x @ theta) - y) + precision @ (theta - mean)

    def curvature(theta):
        p = mu(x @ theta)
        return (x * (p * (1 - p))[:, None]).T @ x + precision

    found = minimize(objective, mean, jac=slope, hess=curvature, method="trust-exact", tol=1e-12)
    p = mu(x @ found.x)
    return found.x, (x * (p * (1 - p))[:, None]).T @ x, x.T @ (p - y)


def share_by_hand(x, y, prior, own=(0, 0)):
    """Return M, m, the excess losses of all answers, and G, with the formulas of the model."""
    scale = prior.scale or (x**2).sum() / len(x) / 10
    shape, rhos = (np.eye(D), [1.0]) if prior.shape is None else (prior.shape, MIXES)
    others = np.eye(D) * scale + prior.precision - own[0]
    mean = np.linalg.solve(others, prior.shift - own[1])
    losses = []

    def covariance_of(variance, rho):
        return variance / scale * ((1 - rho) * shape + rho * np.eye(D))

    def precision(variance, rho):
        return np.linalg.inv(np.linalg.inv(others) + covariance_of(variance, rho))

    for n in range(len(x)):
        before = precision(prior.variance, prior.mix)
        theta, hessian, gradient = posterior(x[:n], y[:n], before, mean)
        each = []
        for variance, rho in itertools.product(VARIANCES, rhos):
            q = precision(variance, rho)
            linear = q @ mean + hessian @ theta - gradient
            covariance = np.linalg.inv(q + hessian)
            z = x[n] @ covariance @ linear / np.sqrt(1 + np.pi / 8 * x[n] @ covariance @ x[n])
            each.append(np.logaddexp(0, z) - y[n] * z)
        losses.append(np.minimum(np.array(each) - min(each), 1.0))
    theta, hessian, gradient = posterior(x, y, precision(prior.variance, prior.mix), mean)
    mixed = np.linalg.inv(np.eye(D) + hessian @ covariance_of(prior.variance, prior.mix))
    linear = hessian @ theta - gradient
    return mixed @ hessian, mixed @ linear, np.array(losses), np.outer(gradient, gradient)


def duels(seed, count):
    rng = np.random.default_rng(seed)
    return 2 * rng.normal(size=(count, D)), rng.choice([0.0, 0.5, 1.0], size=count)


@pytest.mark.parametrize("shape", [None, SHAPE])
def test_a_share_equals_the_formulas_of_the_model(device, shape):
    x, y = duels(0, 9)
    device.answer(x, y)
    none = NONE._replace(shape=shape, mix=0.25)
    end, first = device.request(none)
    matrix, vector, losses, scatter = share_by_hand(x, y, none)
    np.testing.assert_allclose(first.precision, matrix, rtol=1e-7)
    np.testing.assert_allclose(first.shift, vector, rtol=1e-6)
    np.testing.assert_allclose(first.losses, losses.sum(axis=0), rtol=1e-6)
    assert first.squares == pytest.approx((x**2).sum())
    # The next share has the prior of the next broadcast, without this device's own share.
    more = duels(1, 4)
    device.answer(*more)
    both = [np.concatenate(pair) for pair in zip((x, y), more, strict=True)]
    prior = CommonPrior(matrix + np.eye(D), vector + 0.5, 0.4, 2.5, shape, 0.125)
    end, second = device.request(prior, counted=end)
    after = share_by_hand(*both, prior, own=(matrix, vector))
    assert end == 13
    np.testing.assert_allclose(second.precision, after[0] - matrix, rtol=1e-5)
    np.testing.assert_allclose(second.shift, after[1] - vector, rtol=1e-5)
    np.testing.assert_allclose(second.losses, after[2][9:].sum(axis=0), rtol=1e-6)
    assert second.squares == pytest.approx((more[0] ** 2).sum())
    assert (first.members, second.members) == (1, 0)
    if shape is None:
        assert first.scatter is second.scatter is None
    else:
        np.testing.assert_allclose(first.scatter, scatter, rtol=1e-5)
        np.testing.assert_allclose(second.scatter, after[3] - scatter, rtol=1e-5, atol=1e-7)


def test_shares_that_were_computed_with_another_structure_are_converted(device):
    """A server starts with a learned V while an isotropic share is counted, and back."""
    device.answer(*duels(0, 6))
    end, first = device.request()
    shaped = NONE._replace(shape=SHAPE)
    end, again = device.request(shaped)  # the same request of another server: the same share
    np.testing.assert_array_equal(again.precision, first.precision)
    np.testing.assert_array_equal(again.losses.reshape(-1, len(MIXES)).T, [first.losses] * 5)
    np.testing.assert_array_equal(again.scatter, 0.0)
    device.answer(*duels(1, 4))
    own = first.precision, first.shift
    later = prior_with(own)._replace(shape=SHAPE, mix=0.5)
    end, change = device.request(later, counted=end)
    both = [np.concatenate(pair) for pair in zip(duels(0, 6), duels(1, 4), strict=True)]
    *_, scatter = share_by_hand(*both, later, own=own)
    np.testing.assert_allclose(change.scatter, scatter, rtol=1e-4, atol=1e-7)
    end, back = device.request(NONE, counted=6)
    assert back.scatter is None
    np.testing.assert_array_equal(back.losses, change.losses.reshape(-1, len(MIXES))[:, -1])


def as_vector(change):
    parts = (change.precision.ravel(), change.shift, change.losses, change.squares, change.members)
    return np.hstack(parts)


def test_a_repeated_request_returns_the_same_change(device):
    device.answer(*duels(0, 5))
    end, before = device.request()
    for prior in (NONE, CommonPrior(np.eye(D), np.ones(D), 3.0, 2.0)):
        again = device.request(prior)
        assert again[0] == end == 5
        np.testing.assert_array_equal(as_vector(again[1]), as_vector(before))
    end, nothing = device.request(counted=5)
    assert end == 5
    np.testing.assert_array_equal(as_vector(nothing), 0.0)


def test_a_change_covers_the_uploads_that_were_not_counted(device):
    """The reply with the first four answers is lost: the next change has all excess losses."""
    x, y = duels(0, 7)
    device.answer(x[:4], y[:4])
    _, lost = device.request()
    device.answer(x[4:], y[4:])
    end, change = device.request()
    assert end == 7
    assert change.squares == pytest.approx((x**2).sum())
    assert change.losses.sum() > lost.losses.sum()


def test_a_forgotten_share_is_subtracted_without_new_answers(tmp_path):
    device = Device(tmp_path / "duels.db", min_duels=3)
    device.answer(*duels(0, 4))
    end, before = device.request()
    device.answer(*duels(1, 2))  # not enough for another upload
    assert device.store.forget().counted == 0
    end, gone = device.request()  # the server has not counted the upload
    assert end == 5
    np.testing.assert_array_equal(gone.precision, 0.0)
    end, minus = device.request(counted=4)  # the server has counted it
    assert end == 5
    np.testing.assert_array_equal(minus.precision, -before.precision)
    np.testing.assert_array_equal(minus.shift, -before.shift)
    np.testing.assert_array_equal(minus.losses, 0.0)
    assert (before.members, gone.members, minus.members) == (1, 0, -1)
    for counted in (4, 5):
        device.store.forget()  # again, before and after the acknowledgement
        assert device.request(counted=counted)[0] == 5
    device.answer(*duels(2, 3))  # later answers have another share
    end, after = device.request(counted=5)
    assert end == 8
    np.testing.assert_allclose(
        after.precision, share_by_hand(*duels(2, 3), NONE)[0], rtol=1e-6, atol=1e-9
    )
    device.store.close()


def test_answers_forgotten_during_a_request_are_not_uploaded(device, monkeypatch):
    device.answer(*duels(0, 4))
    share = device.store.share

    def forgetting(cut):
        device.store.forget()
        return share(cut)

    monkeypatch.setattr(device.store, "share", forgetting)
    with pytest.raises(DataError, match="answers up to 4 were forgotten during this round"):
        device.request()
    monkeypatch.undo()
    end, nothing = device.request()
    assert end == 4
    np.testing.assert_array_equal(nothing.precision, 0.0)


def prior_with(share):
    """Return a prior whose sums contain a share and those of other devices."""
    return CommonPrior(share[0] + np.eye(D), share[1] + 0.3, 0.1, 2.0)


def test_pruned_answers_leave_the_next_share(device):
    device.answer(*duels(0, 6))
    device.request()
    own = device.store.share(6)
    device.request(prior_with(own), counted=6)  # acknowledged
    assert device.store.prune(-1.0) == 6
    assert device.request(prior_with(own), counted=6)[0] == 6  # nothing changes at first
    device.answer(*duels(1, 5))
    _, change = device.request(prior_with(own), counted=6)
    matrix, vector, *_ = share_by_hand(*duels(1, 5), prior_with(own), own=own)
    np.testing.assert_allclose(change.precision, matrix - own[0], rtol=1e-5)
    np.testing.assert_allclose(change.shift, vector - own[1], rtol=1e-5)


def test_a_share_that_is_not_in_the_store_stays_in_the_sums(device):
    """A restored server refers to an upload whose share was deleted: later answers are added."""
    device.answer(*duels(0, 4))
    device.request()
    lost = device.store.share(4)
    device.answer(*duels(1, 4))
    device.request(prior_with(lost), counted=4)
    device.request(prior_with(device.store.share(8)), counted=8)  # the first share is deleted
    end, change = device.request(prior_with(lost), counted=4)
    assert end == 8
    right = share_by_hand(*duels(1, 4), prior_with(lost))[0]
    np.testing.assert_allclose(change.precision, right, rtol=1e-5)
    device.answer(*duels(2, 2))
    own = device.store.share(8)
    device.request(prior_with(own), counted=8)
    both = [np.concatenate(pair) for pair in zip(duels(1, 4), duels(2, 2), strict=True)]
    right = share_by_hand(*both, prior_with(own), own=own)[0]
    np.testing.assert_allclose(device.store.share(10)[0], right, rtol=1e-5)


# --- a federation ----------------------------------------------------------------------------


def test_sums_are_those_of_the_shares_and_survive_restarts(tmp_path):
    federation = personal(tmp_path)
    for device in range(3):
        federation.answer(device, 10)
    for _ in range(4):
        federation.answer(0, 3)
        federation.answer(1, 1)
        server = federation.serve()  # a new server each time: it resumes from the checkpoint
        check_devices(federation, server)
    algorithm = server.strategy.algorithm
    model = json.loads((tmp_path / "server" / "model.json").read_text())
    assert model["heterogeneity"] == algorithm.heterogeneity > 0
    np.testing.assert_array_equal(model["theta_sync"], algorithm.theta_sync)
    prior = algorithm.prior
    for path in federation.stores:
        with DuelStore(path) as store:
            known = store.synchronized()
            assert known.counted == server.devices.counted[store.device_id]
            np.testing.assert_array_equal(known.prior.precision, prior.precision)
            np.testing.assert_array_equal(known.prior.shift, prior.shift)
            assert (*known.prior[2:4], known.prior.mix) == (*prior[2:4], prior.mix)
            np.testing.assert_array_equal(known.prior.shape, prior.shape)
            np.testing.assert_allclose(known.theta, algorithm.theta_sync, rtol=1e-12)


def test_a_device_that_leaves_is_not_in_the_sums_after_the_next_round(tmp_path):
    federation = personal(tmp_path, min_duels=5)
    for device in range(3):
        federation.answer(device, 8)
    federation.serve()
    federation.agents[2].forget()
    federation.answer(2, 3)  # not enough for an upload
    server = federation.serve()
    check_devices(federation, server)
    shares = []
    for path in federation.stores[:2]:
        with DuelStore(path) as store:
            shares.append(store.share(server.devices.counted[store.device_id]))
    check_sums(server.strategy.algorithm, shares)


def test_an_answer_that_is_undone_between_two_rounds_is_in_no_share(tmp_path):
    """Two devices: on one of them, two answers of the second round were undone."""
    federations = []
    for name, undone in (("with", 2), ("without", 0)):
        (tmp_path / name).mkdir()
        federation = personal(tmp_path / name, devices=2)
        for device in range(2):
            federation.answer(device, 6)
        federation.serve()
        assert not federation.undo(0)  # it was uploaded
        federation.answer(1, 3)
        federation.answer(0, 4)
        state = federation.rng.bit_generator.state
        for _ in range(undone):
            federation.answer(0, 1)
            assert federation.undo(0)
        federation.rng.bit_generator.state = state
        federations.append(federation.serve().strategy.algorithm)
        assert federation.agents[0].status()["answered"] == 10
    one, other = federations
    np.testing.assert_allclose(one.information, other.information, rtol=1e-9)
    np.testing.assert_allclose(one.arrays["shift"], other.arrays["shift"], rtol=1e-9)


def test_answers_before_the_federation_count(tmp_path):
    """A device with 200 answers of its own joins: they are uploaded, and help the others."""
    federation = personal(tmp_path, devices=2)
    federation.answer(0, 200)
    server = federation.serve()
    assert server.devices.duels == 200
    check_devices(federation, server)
    arms = np.random.default_rng(3).normal(size=(12, D))
    right = np.argsort(-(arms @ federation.theta)).tolist()
    assert federation.agents[1].rank(arms)[0] in right[:2]  # a device without answers
    assert federation.agents[0].rank(arms)[:2] == right[:2]


@pytest.mark.slow
@examples(45)
@given(
    seed=st.integers(0, 2**32),
    servers=st.lists(
        st.tuples(
            st.sampled_from(DEATHS),
            st.lists(st.integers(0, 3), min_size=3, max_size=3),
            st.sampled_from([None, None, 0, 1, 2]),
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_any_schedule_of_faults_keeps_the_sums(seed, servers):
    """Lost, repeated and late messages, failing clients, killed servers, devices that leave.

    Meanwhile, people undo their last answers, and replace some of them.
    """
    with tempfile.TemporaryDirectory() as folder:
        federation = personal(Path(folder), quorum=0.3, **{"node-wait": 0.001})
        faults = random.Random(seed)
        for death, answers, leaver in servers:
            for device, count in enumerate(answers):
                federation.answer(device, count)
            federation.answer(0, 1)
            federation.grid.fault = lambda _node: undoing(federation, faults)
            federation.serve_until(death)
            if leaver is not None:
                federation.agents[leaver].forget()
            server = federation.server()  # as it resumes
            check_devices(federation, server)
            server.directory.close()
        federation.grid.fault = lambda _node: "none"
        federation.answer(0, 6)
        server = federation.serve(quorum=1.0)
        check_devices(federation, server)
        for path in federation.stores:
            with DuelStore(path) as store:
                assert server.devices.counted.get(store.device_id, 0) == store.last


# --- simulated agents ------------------------------------------------------------------------


def shares_of(grid, nodes):
    """Return the share of each node that the server has counted, from the states of the nodes."""
    for node, context in grid.contexts.items():
        (content,) = nodes.contents([node])
        config: Any = content["config"]
        if not config["counted"]:
            continue
        state: Any = context.state["agents"]
        arrays = unpack_arrays(state["arrays"][8:])
        after = arrays["0.policy.own.after"][0]  # the last iteration of the share sent last
        assert config["counted"] <= after
        kind = "sent" if after == config["counted"] else "counted"
        parts = (arrays[f"0.policy.{kind}.{name}"] for name in ("precision", "shift"))
        yield tuple(part.sum(axis=0) for part in parts)


@pytest.mark.parametrize("seed", range(4))
def test_faults_of_simulated_agents_keep_the_sums(seed):
    values = {"num_agents": 7, "horizon": 12, "num_arms": 4, "dimension": D, "tau": 3}
    values |= {"quorum": 0.3, "algorithm": "fldb_personal", "seed": seed, "dropout": 0.3}
    chosen = from_nested(nested(**values, engine__name="inprocess", engine__num_nodes=3), "a test")
    grid = FaultyGrid(chosen, late=0.2, duplicate=0.3, reorder=0.5, crash=0.2, past=0.2)
    checked = []

    class Watched(DuelingStrategy):
        def try_round(self, round_):
            counted = super().try_round(round_)
            if round_.learns:
                check_sums(self.algorithm, list(shares_of(grid, self.channel)))
                checked.append(round_.number)
            return counted

    history = History(chosen.horizon)
    Watched(chosen, history, SimulatedChannel(chosen, history)).start(grid)
    assert checked == [0, 1, 2, 3, 4]  # round 0 is iteration 1
