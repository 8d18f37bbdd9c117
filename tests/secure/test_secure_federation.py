"""Secure sums from end to end: exact sums, exactly once under faults, the budget, coverage."""

from __future__ import annotations

import contextlib
import math
import random
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.app import ConfigRecord, RecordDict
from secure_federation import CLIP, RUN, SecureFederation, ServerAlone, TinyNoise, device
from vaults import SIGNER, STEPS, D, Killed, common, share_by_hand

from fldb_flower.algorithms.personal import FLDBPersonal
from fldb_flower.algorithms.schedules import Round
from fldb_flower.bandit.preference import logistic
from fldb_flower.errors import (
    CheckpointError,
    FederationError,
    PrivacyError,
    RoundAbandonedError,
    SettingsError,
)
from fldb_flower.federation.exchange import Broadcast, Noise, ShareUpload, Upload
from fldb_flower.federation.history import Counts
from fldb_flower.secure import KEY
from fldb_flower.secure.protocol import (
    ESTIMATE,
    LEAST_SIGMA,
    REFUSED,
    REPORT,
    SCALE,
    Reply,
    make_report,
)
from fldb_flower.secure.statistics import size_of, vector_of
from fldb_flower.settings import from_flat
from fldb_flower.wire import UploadError
from strategies.device_rounds import DeviceDirectory
from strategies.secure import OPENINGS, RECENT, PlannedExchanges

# --- sums ------------------------------------------------------------------------------------


def vector_by_hand(duels, broadcast, units) -> np.ndarray:
    """Return a person's statistics of FLDB-ONS in their units, shortened to length 1."""
    x = np.array([difference for difference, _ in duels]).reshape(-1, D)
    y = np.array([won for _, won in duels])
    p = logistic(x @ broadcast.theta_hat)
    w, h = x.T @ x, (x * (p * (1.0 - p))[:, None]).T @ x
    root = np.sqrt(2.0)
    parts = [((p - y) @ x) / units["gradient"]]
    for name, matrix in (("information", w), ("hessian", h)):
        if name in units:
            parts.append(np.array([matrix[0, 0], root * matrix[0, 1], matrix[1, 1]]) / units[name])
    vector = np.concatenate([*parts, [len(duels) / units["num_duels"]]])
    return vector / max(1.0, np.linalg.norm(vector))


def test_sums_are_those_of_the_answers(tmp_path):
    """Of several devices: a late one, one without new answers, and one with very many."""
    with SecureFederation(tmp_path, devices=4) as federation, federation.serving() as server:
        grid, phones = federation.grid, federation.phones
        nodes = list(grid.contexts)
        grid.absent = {nodes[3]}
        new = [0] * 4  # answers of each device that are counted
        lengths = []
        for number in range(5):
            federation.answer(0, count=2 + number)
            federation.answer(1, count=1)
            if number == 1:
                grid.absent = set()
                federation.answer(3, count=300)
            assert federation.round(server), federation.lines
            broadcast, upload = federation.sums[-1]
            units = federation.units
            taking_part = [place for place in range(4) if nodes[place] not in grid.absent]
            vectors = {
                place: vector_by_hand(phones[place].given[new[place] :], broadcast, units)
                for place in taking_part
            }
            right = sum(vectors.values())
            lengths += [np.linalg.norm(each) for each in vectors.values()]
            root = np.sqrt(2.0)
            w, count = upload.information, right[-1] * units["num_duels"]
            got = [upload.gradient / units["gradient"]]
            got.append(np.array([w[0, 0], root * w[0, 1], w[1, 1]]) / units["information"])
            assert (upload.hessian is not None) == (number > 0)
            if upload.hessian is not None:
                h = upload.hessian
                got.append(np.array([h[0, 0], root * h[0, 1], h[1, 1]]) / units["hessian"])
            # Each device rounds toward zero.
            np.testing.assert_allclose(np.concatenate(got), right[:-1], atol=5.0 / SCALE)
            assert upload.num_duels == round(count)
            new = [len(phone.given) if p in taking_part else 0 for p, phone in enumerate(phones)]
        assert max(lengths) == pytest.approx(1.0)  # the 300 answers are more than expected
        assert min(lengths) == 0.0  # no new answers
        federation.check_releases()


def test_sums_of_shares_are_those_of_all_answers(tmp_path):
    """A device without new answers sends its whole share again, and no log losses."""
    changes = {"algorithm": "fldb_personal", "personal-ridge": 0.1, "privacy-epsilon": 100.0}
    with SecureFederation(tmp_path, **changes) as federation, federation.serving() as server:
        grid = federation.grid
        nodes = list(grid.contexts)
        grid.absent = {nodes[2]}
        federation.answer(count=4)
        for number in range(5):
            if number == 2:
                grid.absent = set()
            if number < 4:
                federation.answer(0, count=2)  # not 1
            assert federation.round(server), federation.lines
            broadcast, upload = federation.sums[-1]
            prior = broadcast.play.estimate
            if number > 0:
                assert np.linalg.eigvalsh(prior.precision).min() > 0.01
            variance = max(prior.variance, 0.001)
            parts = [
                share_by_hand(phone.given, prior.precision, prior.shift, variance, CLIP)
                for node, phone in grid.phones.items() if node not in grid.absent
            ]  # fmt: skip
            units = federation.units
            for place, name in enumerate(("precision", "shift")):
                right = sum(part[place] for part in parts)
                got = getattr(upload, name)
                assert abs(right).max() > 0.1
                np.testing.assert_allclose(got, right, atol=1e-5 + 9.0 * units[name] / SCALE)
            assert upload.losses.any() == (number < 4)
            assert upload.members == {0: 2.0, 2: 1.0}.get(number, 0.0)
            assert upload.squares == pytest.approx(CLIP**2 * upload.num_duels)
            assert upload.coverage == 1.0
        federation.answer(0, count=1)
        grid.absent = set(nodes[1:])
        assert federation.round(server)
        assert federation.sums[-1][1].coverage == pytest.approx(1.0 / 3.0)


# --- exactly once ----------------------------------------------------------------------------

DEVICE_FAULTS = (
    *["none"] * 10, "request lost", "reply lost", "late", "twice", "raises", "restart", "killed",
    "killed",
)  # fmt: skip
HELPER_FAULTS = (
    *["none"] * 14, "restart", "dies before", "dies after", "lost", "gone", "server before",
    "server after",
)  # fmt: skip


class Schedule:
    """A federation to which anything may happen, from a seed."""

    def __init__(self, federation: SecureFederation, seed: int) -> None:
        self.luck, self.federation = random.Random(seed), federation
        federation.grid.fault = self._device_fault
        federation.helper.fault = lambda _kind: self.luck.choice(HELPER_FAULTS)

    def _device_fault(self, _node: int) -> str | int:
        fault = self.luck.choice(DEVICE_FAULTS)
        return self.luck.randrange(STEPS) if fault == "killed" else fault

    def _mortal(self, write):
        def dying(*arguments) -> None:
            fate = self.luck.random()
            if fate < 0.04:
                raise Killed
            write(*arguments)
            if fate > 0.96:
                raise Killed

        return dying

    def session(self) -> None:
        """Serve up to three rounds; the server may die, and devices and the helper be absent."""
        luck, federation = self.luck, self.federation
        with contextlib.suppress(Killed), federation.serving(self._mortal) as server:
            for _ in range(luck.randint(1, 3)):
                federation.helper.is_down = luck.random() < 0.1
                nodes = list(federation.grid.contexts)
                federation.grid.absent = set(luck.sample(nodes, luck.choice([0, 0, 0, 1])))
                for place in range(len(nodes)):
                    if luck.random() < 0.4:
                        federation.answer(place, count=luck.randint(1, 2))
                federation.round(server)

    def recover(self) -> None:
        """After a round without faults, each answer is counted once."""
        federation = self.federation
        federation.grid.fault = federation.helper.fault = lambda _: "none"
        federation.helper.is_down, federation.grid.absent = False, set()
        federation.answer(count=1)
        with federation.serving() as server:
            assert federation.round(server), federation.lines
            federation.check_once(server)
            assert federation.round(server), federation.lines
            federation.check_once(server)
            assert federation.sums[-1][1].num_duels == 0  # all have been counted
        federation.check_releases()


def run(seed: int) -> SecureFederation:
    noise = TinyNoise()
    with (
        tempfile.TemporaryDirectory() as folder,
        SecureFederation(Path(folder), 2 + seed % 2, noise) as federation,
    ):
        schedule = Schedule(federation, seed)
        for _ in range(3):
            schedule.session()
        schedule.recover()
        return federation


@pytest.mark.parametrize("first", range(0, 150, 10))
def test_each_answer_counts_once_whatever_is_lost_or_killed(first):
    lines = [line for seed in range(first, first + 10) for line in run(seed).lines]
    for text in ("resumes after", "does not reply", "the helper has no key", "duels of"):
        assert any(text in line for line in lines)


def test_a_device_that_was_restored_is_counted_once(tmp_path):
    with SecureFederation(tmp_path) as federation, federation.serving() as server:
        phone, copy = federation.phones[0], tmp_path / "copy.db"
        federation.answer()
        phone.store.backup(copy)
        assert federation.round(server), federation.lines
        phone.store.close()
        for path in phone.folder.glob("duels.db*"):
            path.unlink()
        shutil.copy(copy, phone.path)
        phone.start()
        assert federation.round(server), federation.lines
        assert federation.sums[-1][1].num_duels == 0
        federation.answer(0)
        assert federation.round(server), federation.lines
        federation.check_once(server)


# --- the helper is down ----------------------------------------------------------------------


def test_a_helper_that_is_down_costs_nothing_and_rounds_go_on(tmp_path):
    with SecureFederation(tmp_path) as federation, federation.serving() as server:
        federation.answer(count=2)
        federation.helper.is_down = True
        assert not federation.round(server)
        assert federation.lines == [
            "round 1 is not counted: the helper at http://127.0.0.1:1 does not reply: refused"
        ]
        assert not federation.grid.asked
        assert server.strategy.history.openings == 0
        federation.helper.is_down = False
        assert federation.round(server)
        federation.check_once(server)
        assert [phone.ledger.spent() for phone in federation.phones] == [cost_of(federation)] * 3
        federation.helper.is_down = True
        assert not federation.round(server)
        federation.answer(count=1)
        federation.helper.is_down = False
        assert federation.round(server)
        federation.check_once(server)
        federation.check_releases()


def cost_of(federation) -> float:
    return federation.last.header.cost


@pytest.mark.parametrize("kind", ["trial", "sum"])
def test_a_helper_that_fails_after_devices_have_replied(tmp_path, kind):
    """The exchange is charged; the answers are in the next sum."""
    with SecureFederation(tmp_path) as federation, federation.serving() as server:
        federation.answer(count=2)
        federation.helper.fault = lambda asked: "gone" if asked == kind else "none"
        assert not federation.round(server)
        assert "round 1 is not counted: the helper at" in federation.lines[-1]
        assert server.strategy.history.openings == 1
        federation.helper.fault = lambda _kind: "none"
        assert federation.round(server)
        federation.check_once(server)
        assert server.strategy.history.openings == 2
        for phone in federation.phones:
            assert phone.ledger.spent() == pytest.approx(2.0 * cost_of(federation))
        federation.check_releases()


def test_a_helper_with_another_signing_key_opens_nothing(tmp_path):
    """Devices refuse its key, without a charge."""
    other = Ed25519PrivateKey.from_private_bytes(bytes(32))
    with SecureFederation(tmp_path) as federation, federation.serving() as server:
        federation.answer(count=2)
        federation.helper.restart(other)
        assert not federation.round(server)
        assert "no device sent a report" in federation.lines[-1]
        assert not any(phone.ledger.days for phone in federation.phones)
        rejected = server.strategy.history.participation[-1].rejected
        assert all("not signed by the pinned key" in line for line in rejected)


# --- the budget ------------------------------------------------------------------------------


def test_no_more_exchanges_than_planned_also_over_restarts(tmp_path):
    """Of four exchanges, one is counted, one fails and two are of servers that are killed."""
    with SecureFederation(tmp_path, **{"devices-rounds": 4}) as federation:
        federation.answer(count=1)
        with federation.serving() as server:
            assert federation.round(server)
        federation.answer(count=1)
        federation.helper.fault = lambda _kind: "gone"
        with federation.serving() as server:
            assert not federation.round(server)
        for fault in ("server before", "server after"):
            federation.helper.fault = lambda _kind, fault=fault: fault
            with federation.serving() as server, pytest.raises(Killed):
                federation.round(server)
        federation.helper.fault = lambda _kind: "none"
        with federation.serving() as server:
            assert server.strategy.history.openings == 4  # and 1 in the checkpoint
            for _ in range(2):
                with pytest.raises(PrivacyError, match=r"privacy\.epsilon=3 is spent: .* 4 sums"):
                    federation.round(server)
        with federation.serving() as server, pytest.raises(PrivacyError):
            federation.round(server)
        with federation.serving() as server:
            server.serve(federation.grid)  # it ends, and sends the last estimate
        (line,) = [line for line in federation.lines if "the run ends" in line]
        assert "the run ends after round 1: privacy.epsilon=3 is spent" in line
        headers = {request.header.number for _, request in federation.grid.asked if request.header}
        assert len(headers) == 4
        for phone in federation.phones:
            spent = phone.vault.spent()
            assert spent.epsilon == pytest.approx(3.0, abs=1e-4)
            assert phone.store.synchronized().round == 1


@pytest.mark.parametrize("after", [False, True])
def test_an_exchange_is_counted_before_a_device_is_asked(tmp_path, after):
    """A server is killed before or after it writes that."""

    def mortal(write):
        def dying(name, *arguments):
            if name == OPENINGS and not after:
                raise Killed
            write(name, *arguments)
            if name == OPENINGS:
                raise Killed

        return dying

    with SecureFederation(tmp_path) as federation:
        with federation.serving(mortal) as server, pytest.raises(Killed):
            federation.round(server)
        assert not federation.grid.asked
        with federation.serving() as server:
            assert server.strategy.history.openings == after


def test_other_noise_needs_another_directory(tmp_path):
    settings, other = (from_flat({**RUN, "privacy-epsilon": e}, "a test") for e in (3.0, 4.0))
    with contextlib.closing(DeviceDirectory(tmp_path, settings)) as directory:
        PlannedExchanges(settings, Counts(), directory).spend(1000)
        with pytest.raises(CheckpointError, match="exchanges had the noise multiplier"):
            PlannedExchanges(other, Counts(), directory)


# --- few of many devices: FLDB-Personal ------------------------------------------------------


def posterior_by_hand(matrices, counts, coverages, deviation, observations):
    """Return precision and linear term of theta*, by the joint Gaussian of all unknowns.

    Unknowns are theta* and the estimates y_t that the new answers of each round alone give, with
    precision ``M_t - M_{t-1}``. Round t observes ``M_t x_t + e`` with x_t the estimate of all
    answers so far, and e of covariance ``(1 / q - 1) M_t + s^2 I``.
    """
    d, rounds = len(matrices[0]), len(matrices)
    joint, linear = np.zeros((d * (rounds + 1),) * 2), np.zeros(d * (rounds + 1))
    before = np.zeros((d, d))
    for t, matrix in enumerate(matrices):
        new = matrix - before
        place = slice(d * (t + 1), d * (t + 2))
        joint[:d, :d] += new
        joint[place, place] += new
        joint[:d, place] -= new
        joint[place, :d] -= new
        before = matrix
    before, weights = np.zeros((d, d)), np.zeros((d, d * (rounds + 1)))
    for t, (matrix, coverage) in enumerate(zip(matrices, coverages, strict=True)):
        weights[:, d * (t + 1) : d * (t + 2)] = matrix - before  # M_t x_t as a sum of the y
        before = matrix
        noise = (1.0 / coverage - 1.0) * matrix + deviation**2 * np.eye(d)
        joint += weights.T @ np.linalg.solve(noise, weights)
        linear += weights.T @ np.linalg.solve(noise, observations[t])
    cross = joint[:d, d:]
    solved = np.linalg.solve(joint[d:, d:], np.column_stack([cross.T, linear[d:]]))
    return joint[:d, :d] - cross @ solved[:, :d], linear[:d] - cross @ solved[:, d]


@pytest.mark.parametrize("dimension", [1, 2])
@pytest.mark.parametrize("deviation", [0.01, 1.0, 10.0])
@pytest.mark.parametrize("coverage", [1.0, 0.1])
def test_the_prior_is_the_posterior_of_all_uploads(dimension, deviation, coverage):
    """Rounds with 4, 6, 7 and 20 answers; M grows like their number, and is known exactly."""
    rng = np.random.default_rng(3)
    root = rng.normal(size=(dimension, dimension)) + 2.0 * np.eye(dimension)
    counts, coverages = [4, 6, 7, 20], [1.0, coverage, coverage, 0.5]
    matrices = [count * root @ root.T / 4.0 for count in counts]
    values = {**RUN, "algorithm": "fldb_personal", "dimension": dimension}
    settings = from_flat(values, "a test")
    algorithm, sent, before = FLDBPersonal(settings), [], 0
    for t, (matrix, share) in enumerate(zip(matrices, coverages, strict=True)):
        theta = algorithm.theta_sync
        x = rng.normal(size=dimension)
        sent.append(matrix @ x)
        # The sum of few devices, relative to theta_sync; noise is that of all when divided by q.
        noise = Noise(precision=1e-9 * share, shift=deviation * share, losses=1.0)
        upload = ShareUpload(
            counts[t] - before, share * matrix, share * (matrix @ (x - theta)), np.zeros(11),
            squares=CLIP**2 * (counts[t] - before), members=0.0, noise=noise, coverage=share,
        )  # fmt: skip
        before = counts[t]
        state = algorithm.learn(SimpleNamespace(exchange=lambda _, u=upload: u), Round(t + 1, 1, 1))
        algorithm.arrays |= state
        seen = slice(0, t + 1)
        right = posterior_by_hand(matrices[seen], counts, coverages[seen], deviation, sent)
        np.testing.assert_allclose(algorithm.prior.precision, right[0], rtol=1e-5)
        np.testing.assert_allclose(algorithm.prior.shift, right[1], rtol=1e-5, atol=1e-9)


def priors_of(folder, coverage):
    """Return the priors after each of six rounds, and what the server learned from.

    Of 20 devices, all take part in the first round, and then a share of them. Settings allow the
    least noise, and the sums have none.
    """
    changes = {
        "algorithm": "fldb_personal", "privacy-epsilon": 1000.0, "devices-rounds": 20,
        "privacy-clip": 2.0, "personal-variance": 0.01, "privacy-min-variance": 0.01,
    }  # fmt: skip
    with SecureFederation(folder, 20, **changes) as federation, federation.serving() as server:
        rng, nodes = np.random.default_rng(9), list(federation.grid.contexts)
        theta = np.array([1.0, -0.5])
        for phone in federation.phones:
            x = rng.uniform(-1.4, 1.4, (20, D))
            won = rng.random(20) < logistic(x @ theta)
            phone.answer(*zip(x.tolist(), won.astype(float).tolist(), strict=True))
        priors = []
        for _ in range(6):
            assert federation.round(server), federation.lines
            priors.append((server.strategy.algorithm.prior, server.strategy.algorithm.theta_sync))
            chosen = rng.choice(nodes, round(20 * coverage), replace=False)
            federation.grid.absent = set(nodes) - set(chosen)
        return priors, [upload for _, upload in federation.sums]


def test_the_prior_does_not_shrink_when_a_tenth_takes_part(tmp_path):
    """M, scaled to all devices, and the mean are those of all, up to the error of drawing two."""
    every, full = priors_of(tmp_path / "every", 1.0)
    few, uploads = priors_of(tmp_path / "few", 0.1)
    assert [each.coverage for each in uploads] == [1.0] + [0.1] * 5
    assert [each.coverage for each in full] == [1.0] * 6
    matrices = [each.precision / each.coverage for each in uploads[1:]]
    ratio = np.trace(np.mean(matrices, axis=0)) / np.trace(full[-1].precision)
    assert ratio == pytest.approx(1.0, abs=0.2)
    sizes = [np.trace(prior.precision) for prior, _ in few]
    # By the public number of answers, there are twice as many in the second round.
    assert min(sizes[1:]) > 0.6 * sizes[0]
    assert np.trace(every[-1][0].precision) < 3.0 * sizes[-1]
    np.testing.assert_allclose(few[-1][1], every[-1][1], atol=0.25)


@pytest.mark.parametrize("fraction", [0.1, 0.5])
def test_a_share_of_the_devices_is_asked(tmp_path, fraction):
    """With ``fraction_train``: devices that are not known yet are not asked either."""
    changes = {"algorithm": "fldb_personal", "fraction-train": fraction}
    with SecureFederation(tmp_path, 10, **changes) as federation, federation.serving() as server:
        federation.answer(count=1)
        known = set()
        for _ in range(4):
            federation.grid.asked.clear()
            assert federation.round(server), federation.lines
            asked = {node for node, _ in federation.grid.asked}
            known |= asked
            assert len(asked) == round(10 * fraction)
            assert federation.sums[-1][1].coverage == pytest.approx(len(asked) / len(known))


def test_no_number_is_used_again_with_a_clock_that_was_set_back(tmp_path):
    settings = from_flat(RUN, "a test")
    directory = DeviceDirectory(tmp_path, settings)
    first = PlannedExchanges(settings, Counts(), directory).spend(1000)
    again = PlannedExchanges(settings, Counts(), directory)  # killed before a checkpoint
    assert [first, again.spend(900), again.spend(5000), again.spend(1)] == [1000, 1001, 5000, 5001]
    again.spend(900_000)
    with pytest.raises(FederationError, match="the last exchange is 800 s ahead of the server's"):
        again.spend(100_000)  # nothing is counted
    assert again.spend(500_000) == 900_001
    directory.close()


# --- the server alone -------------------------------------------------------------------------

Z = 20.0  # noise multiplier
ASKED = common((0.5, -0.5))


def some_upload(seed: int) -> Upload:
    draw = np.random.default_rng(seed)
    rows = draw.normal(size=(4, D)) / 4.0
    return Upload(4, draw.normal(size=D) / 4.0, rows.T @ rows, rows.T @ rows / 8.0, None, ())


def test_the_server_adds_noise_of_the_same_size_to_each_answer():
    """Before it asks the helper; the upload has the noise of both, in the unit of each part."""
    order, scales = [], []

    def noise(asked):
        order.append("noise")
        scales.append(asked)
        return np.full(asked.shape, 3 * SCALE)

    server = ServerAlone(noise)
    ask = server.helper.sums
    server.helper.sums = lambda request: (order.append("helper"), ask(request))[1]
    total = server.exchange(ASKED, [some_upload(1)])
    assert order == ["noise", "helper"] * 2
    assert [set(each.ravel()) for each in scales] == [{10 * Z * SCALE}, {Z * SCALE}]
    expected = some_upload(1).gradient + 3 * server.units["gradient"]
    np.testing.assert_allclose(total.gradient, expected, atol=1e-6)
    for part, unit in server.units.items():
        assert getattr(total.noise, part) == pytest.approx(math.sqrt(2.0) * Z * unit, rel=1e-9)


def test_a_report_far_out_of_range_is_left_out_and_not_counted(caplog):
    server = ServerAlone()
    lie = np.full(size_of(ASKED, server.form), 10**6 * SCALE)
    honest = [some_upload(seed) for seed in range(4)]
    total = server.exchange(ASKED, [*honest, lie])
    np.testing.assert_allclose(total.gradient, sum(u.gradient for u in honest), atol=1e-7)
    assert set(server.nodes.counted) == {device(node) for node in range(1, 5)}
    assert [request.kind for request in server.helper.asked] == ["trial", "parts", "sum"]
    assert "out of range" in caplog.text


def test_a_sum_is_shortened_to_the_length_that_so_many_reports_can_have():
    server = ServerAlone()
    size = size_of(ASKED, server.form)
    within = int((1.0 + 8.0 * math.sqrt(2.0) * 10.0 * Z - 1.0) * SCALE)  # of the trial
    total = server.exchange(ASKED, [np.full(size, within)])
    longest = 1.0 + math.sqrt(2.0) * Z * (math.sqrt(size) + 8.0)
    vector = vector_of(total, ASKED, server.units, server.form)
    assert np.linalg.norm(vector) == pytest.approx(longest, rel=1e-3)


def test_reports_that_the_helper_cannot_open_are_not_in_the_sum():
    server, stranger = ServerAlone(), X25519PrivateKey.generate()
    first, second = server.ask(ASKED, [1, 2])
    integers = np.ones(first.header.numbers, np.int64)
    good = server.report(1, first, integers)
    bad = server.report(2, second, integers, stranger.public_key())
    server.nodes.contributions = {1: good, 2: bad}
    server.nodes.total()
    server.nodes.acknowledge()
    assert set(server.nodes.counted) == {device(1)}
    assert [len(each.sealed) for each in server.helper.asked] == [2, 1]
    (second,) = server.ask(ASKED, [2])
    server.nodes.contributions = {2: server.report(2, second, integers, stranger.public_key())}
    with pytest.raises(RoundAbandonedError, match="could open no report"):
        server.nodes.total()


def test_the_next_request_names_the_exchange_that_counted_the_report():
    """If an exchange is given up, nothing is counted, and its number is not used again."""
    server = ServerAlone()
    server.exchange(ASKED, [some_upload(1)])
    first = server.helper.asked[0].header.number
    for _ in range(2):
        (request,) = server.ask(ASKED, [1])
        assert request.counted == first
    assert server.numbers == sorted(set(server.numbers))
    assert len(server.numbers) == 3  # the devices are charged for each
    (estimate,) = server.ask(Broadcast(ASKED.play, None), [1])
    assert (estimate.kind, estimate.counted) == (ESTIMATE, first)


def test_noise_has_a_least_and_a_largest_size():
    """For very large epsilon, it is larger than needed."""
    for planned, used in ((0.025, LEAST_SIGMA / SCALE), (0.3, 0.3)):
        server = ServerAlone(multiplier=planned)
        server.exchange(ASKED, [some_upload(1)])
        assert server.helper.asked[0].header.multiplier == pytest.approx(used)
    words = r"privacy\.epsilon=0\.001 with devices\.rounds=100000000 .* at most 4194304"
    with pytest.raises(SettingsError, match=words):
        ServerAlone(multiplier=5e6, **{"privacy-epsilon": 1e-3, "devices-rounds": 10**8})


def test_a_reply_for_something_else_is_refused():
    """One device must not end the run: the others are charged for the exchange."""
    server = ServerAlone()
    (request,) = server.ask(ASKED, [1])
    integers, public = (
        np.ones(request.header.numbers, np.int64),
        request.key.verified(SIGNER.public_key(), 0.0),
    )
    good = make_report(request.header, integers, public).to_bytes()
    fields = {"kind": REPORT, "device": device(1), "report": good, "digest": request.header.digest}
    for changes in ({"digest": bytes(32)}, {"report": good[:-1]}, {"device": "x"}):
        with pytest.raises(UploadError) as error:
            server.reply(1, Reply(**{**fields, **changes}))
        assert not error.value.is_final
    moved = Reply(**{**fields, "device": device(2)})
    assert server.reply(1, moved) is None  # it only introduces itself
    for content in ([0, 0, 0, 0], [1.5], [True], "x", 7, b""):
        record = RecordDict({"config": ConfigRecord({KEY: content})})
        with pytest.raises(UploadError, match="not an upload"):
            server.nodes.check(1, SimpleNamespace(content=record))


def test_a_refusal_is_not_asked_again():
    server = ServerAlone()
    server.ask(ASKED, [1])
    with pytest.raises(UploadError, match="budget") as error:
        server.reply(1, Reply(REFUSED, device(1), reason="the budget is spent"))
    assert error.value.is_final


def test_noise_does_not_raise_the_rate_of_answers():
    """The count may be below 0 by noise; without clipping, its mean is that of the devices."""
    noise = np.random.default_rng(5)

    def draw(scales):
        return np.rint(noise.normal(size=scales.shape) * scales).astype(np.int64)

    rates = []
    for _ in range(7):
        server = ServerAlone(draw, multiplier=0.7)
        for _ in range(100):
            server.exchange(ASKED, [some_upload(1)._replace(num_duels=10)])
        rates.append(server.nodes.state()["rate"][0])
    assert np.median(rates) < 14.0


def test_the_rate_of_answers_approaches_that_of_the_devices():
    server = ServerAlone(multiplier=0.25)  # of Z: too much
    for _ in range(40):
        server.exchange(ASKED, [some_upload(seed)._replace(num_duels=40) for seed in range(3)])
    assert server.nodes.state()["rate"][0] == pytest.approx(40.0, abs=2.0)
    other, state = ServerAlone(), server.nodes.state()
    other.nodes.restore(state)
    assert other.nodes.state() == state
    assert len(state["recent"]) == RECENT
