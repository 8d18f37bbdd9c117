"""Secure sums on the server, with a helper and devices in this process."""

from __future__ import annotations

import hashlib
import math
import time
from types import SimpleNamespace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.app import ConfigRecord, RecordDict

from fldb_flower.bandit.estimate import VARIANCES, CommonPrior, Estimate, ShareChange
from fldb_flower.errors import PrivacyError, RoundAbandonedError, SettingsError
from fldb_flower.federation.exchange import Broadcast, PlayRequest, Upload
from fldb_flower.linalg.forms import make_form
from fldb_flower.secure.messages import (
    ESTIMATE,
    HELLO,
    REFUSED,
    REPORT,
    Reply,
    Request,
    SumAnswer,
    SumRequest,
)
from fldb_flower.secure.report import (
    KINDS,
    LEAST_SIGMA,
    SCALE,
    HelperKey,
    integers_of,
    make_report,
    mask,
    open_seed,
    task_of,
)
from fldb_flower.secure.statistics import Shared, size_of, upload_of, vector_of
from fldb_flower.settings import from_flat
from fldb_flower.wire.codec import UploadError
from strategies.secure_nodes import KEY, SecureNodes

D = 3
VALUES = {
    "mode": "devices", "algorithm": "fldb_ons", "dimension": D, "secure": True,
    "privacy-epsilon": 3.0, "privacy-clip": 2.0, "devices-rounds": 5,
    "devices-helper": "http://127.0.0.1:1", "devices-helper-key": "/k",
    "devices-helper-token": "/t",
}  # fmt: skip
Z = 20.0  # noise multiplier


class FakeHelper:
    """A helper without noise that records what it is asked."""

    def __init__(self) -> None:
        self.private, signer = X25519PrivateKey.generate(), Ed25519PrivateKey.generate()
        public = self.private.public_key().public_bytes_raw()
        self._key = HelperKey(7, int(time.time()) + 1000, public).sign(signer)
        self.asked: list[SumRequest] = []
        self.shift = 0

    def key(self) -> HelperKey:
        return self._key

    def sums(self, request: SumRequest) -> SumAnswer:
        self.asked.append(request)
        seeds = [open_seed(request.header, each, self.private) for each in request.sealed]
        refused = tuple(place for place, seed in enumerate(seeds) if seed is None)
        sums = np.zeros((len(request.sizes), request.header.numbers), np.uint64)
        start = 0
        for group, size in enumerate(request.sizes):
            for seed in seeds[start : start + size]:
                if seed is not None:
                    sums[group] += mask(seed, request.header.numbers)
            start += size
        sums += np.uint64(self.shift)
        digest = hashlib.sha256(request.to_bytes()).digest()
        return SumAnswer.from_bytes(SumAnswer(digest, refused, sums).to_bytes(), request)


class Federation:
    """Secure nodes, and devices that send given statistics."""

    def __init__(
        self, noise=lambda scales: np.zeros(scales.shape, np.int64), multiplier=Z, **values
    ) -> None:
        self.settings = from_flat({**VALUES, **values}, "a test")
        self.helper, self.spent, self.most = FakeHelper(), 0, 10**6
        self.form, self.broadcast = make_form(self.settings), b""
        task = task_of("fldb", bytes(32), D)
        self.nodes = SecureNodes(self.settings, self.helper, task, multiplier, self.spend, noise)

    def spend(self, number: int) -> int:
        if self.spent == self.most:
            raise PrivacyError("privacy.epsilon=3 is spent")
        self.spent += 1
        return number

    def ask(self, broadcast, nodes):
        """Begin an exchange; return the request to each node."""
        self.nodes.begin(broadcast)
        return self.requests(nodes)

    def requests(self, nodes):
        contents = self.nodes.contents(nodes, 1, None, None)
        requests = [Request.from_bytes(each["config"][KEY]) for each in contents]
        self.broadcast = requests[-1].broadcast
        return requests

    def reply(self, node, broadcast, reply):
        content = RecordDict({"config": ConfigRecord({KEY: reply.to_bytes()})})
        return self.nodes.check(node, SimpleNamespace(content=content), 1, broadcast)

    def greet(self, nodes, broadcast):
        """Let nodes introduce the devices 1, 2, ..."""
        for node in nodes:
            assert self.reply(node, broadcast, Reply(HELLO, device(node))) is None
        self.nodes.disputes(nodes)

    def report(self, node, request, broadcast, integers):
        public = self.helper.private.public_key()
        report = make_report(request.header, integers, public).to_bytes()
        reply = Reply(REPORT, device(node), report=report, digest=request.header.digest)
        return self.reply(node, broadcast, reply)


def device(node: int) -> str:
    return f"{node:032x}"


def statistics_request() -> Broadcast:
    theta = np.array([0.5, -0.5, 1.0])
    return Broadcast(PlayRequest(1, 1, Estimate(theta, np.eye(D))), theta, hessian=True)


def shares_request(last: int = 1) -> Broadcast:
    prior = CommonPrior(np.zeros((D, D)), np.zeros(D), 0.5, 0.4)
    return Broadcast(PlayRequest(last, last, prior), None, shares=True)


def some_upload(seed: int) -> Upload:
    draw = np.random.default_rng(seed)
    rows = draw.normal(size=(4, D)) / 4.0
    return Upload(4, draw.normal(size=D), rows.T @ rows, rows.T @ rows / 8.0, None, ())


def exchange(federation, broadcast, uploads, *, extra=()):
    """Carry out one exchange with a device per upload; return the sum and the contributions."""
    nodes = list(range(1, len(uploads) + 1))
    federation.ask(broadcast, nodes)
    federation.greet(nodes, broadcast)
    contributions = []
    for node, request in zip(nodes, federation.requests(nodes), strict=True):
        units = Shared.from_bytes(request.broadcast).units
        values = uploads[node - 1]
        if isinstance(values, Upload):
            values = integers_of(vector_of(values, broadcast, units, federation.form))
        contributions.append(federation.report(node, request, broadcast, values))
    total = federation.nodes.total([*contributions, *extra], broadcast)
    return total, contributions


def test_without_noise_the_sum_is_that_of_the_devices():
    federation, broadcast = Federation(), statistics_request()
    uploads = [some_upload(seed) for seed in range(6)]
    total, _ = exchange(federation, broadcast, uploads)
    np.testing.assert_allclose(total.gradient, sum(u.gradient for u in uploads), atol=1e-7)
    np.testing.assert_allclose(total.information, sum(u.information for u in uploads), atol=1e-6)
    np.testing.assert_allclose(total.hessian, sum(u.hessian for u in uploads), atol=1e-7)
    assert total.num_duels == 24
    assert [request.kind for request in federation.helper.asked] == ["trial", "sum"]


def test_the_noise_of_the_upload_is_that_of_both_parties_in_the_unit_of_each_part():
    federation, broadcast = Federation(), statistics_request()
    total, _ = exchange(federation, broadcast, [some_upload(1)])
    shared = Shared.from_bytes(federation.broadcast)
    for part in ("gradient", "information", "hessian", "num_duels"):
        expected = math.sqrt(2.0) * Z * shared.units[part]
        assert getattr(total.noise, part) == pytest.approx(expected, rel=1e-9)


def test_the_server_adds_noise_of_the_same_size_to_each_answer():
    scales = []

    def noise(asked):
        scales.append(asked)
        return np.full(asked.shape, 3 * SCALE)

    federation, broadcast = Federation(noise), statistics_request()
    total, _ = exchange(federation, broadcast, [some_upload(1)])
    assert [set(each.ravel()) for each in scales] == [{10 * Z * SCALE}, {Z * SCALE}]
    units = Shared.from_bytes(federation.broadcast).units
    expected = some_upload(1).gradient + 3 * units["gradient"]
    np.testing.assert_allclose(total.gradient, expected, atol=1e-6)


def test_the_servers_noise_is_drawn_before_the_helper_is_asked():
    order = []

    def noise(asked):
        order.append("noise")
        return np.zeros(asked.shape, np.int64)

    federation, broadcast = Federation(noise), statistics_request()
    ask = federation.helper.sums
    federation.helper.sums = lambda request: (order.append("helper"), ask(request))[1]
    exchange(federation, broadcast, [some_upload(1)])
    assert order == ["noise", "helper"] * 2


def test_a_report_far_out_of_range_is_left_out_and_not_counted(caplog):
    federation, broadcast = Federation(), statistics_request()
    lie = np.full(some_size(federation, broadcast), 10**6 * SCALE)
    honest = [some_upload(seed) for seed in range(4)]
    total, contributions = exchange(federation, broadcast, [*honest, lie])
    np.testing.assert_allclose(total.gradient, sum(u.gradient for u in honest), atol=1e-7)
    federation.nodes.acknowledge(dict(enumerate(contributions)))
    assert set(federation.nodes.counted) == {device(node) for node in range(1, 5)}
    assert [each.kind for each in federation.helper.asked] == ["trial", "parts", "sum"]
    assert "out of range" in caplog.text


def some_size(federation, broadcast):
    return size_of(broadcast, federation.form)


def test_a_sum_is_shortened_to_the_length_that_so_many_reports_can_have():
    federation, broadcast = Federation(), statistics_request()
    size = some_size(federation, broadcast)
    within = int((1.0 + 8.0 * math.sqrt(2.0) * 10.0 * Z - 1.0) * SCALE)  # of the trial
    total, _ = exchange(federation, broadcast, [np.full(size, within)])
    shared = Shared.from_bytes(federation.broadcast)
    vector = vector_of(total, broadcast, shared.units, federation.form)
    longest = 1.0 + math.sqrt(2.0) * Z * (math.sqrt(size) + 8.0)
    assert np.linalg.norm(vector) == pytest.approx(longest, rel=1e-3)


def test_reports_that_the_helper_cannot_open_are_not_in_the_sum():
    federation, broadcast = Federation(), statistics_request()
    nodes = [1, 2]
    federation.ask(broadcast, nodes)
    federation.greet(nodes, broadcast)
    first, second = federation.requests(nodes)
    integers = np.ones(first.header.numbers, np.int64)
    good = federation.report(1, first, broadcast, integers)
    sealed_for_another = X25519PrivateKey.generate().public_key()
    report = make_report(second.header, integers, sealed_for_another).to_bytes()
    reply = Reply(REPORT, device(2), report=report, digest=second.header.digest)
    bad = federation.reply(2, broadcast, reply)
    federation.nodes.total([good, bad], broadcast)
    federation.nodes.acknowledge({1: good, 2: bad})
    assert set(federation.nodes.counted) == {device(1)}
    assert [len(each.sealed) for each in federation.helper.asked] == [2, 1]


def test_no_readable_report_is_no_sum():
    federation, broadcast = Federation(), statistics_request()
    federation.helper.private = X25519PrivateKey.generate()  # another key than it announces
    federation.ask(broadcast, [1])
    federation.greet([1], broadcast)
    (request,) = federation.requests([1])
    public = X25519PrivateKey.generate().public_key()
    integers = np.ones(request.header.numbers, np.int64)
    report = make_report(request.header, integers, public).to_bytes()
    reply = Reply(REPORT, device(1), report=report, digest=request.header.digest)
    contribution = federation.reply(1, broadcast, reply)
    with pytest.raises(RoundAbandonedError, match="could open no report"):
        federation.nodes.total([contribution], broadcast)


def test_the_next_request_names_the_exchange_that_counted_the_report():
    federation, broadcast = Federation(), statistics_request()
    _, contributions = exchange(federation, broadcast, [some_upload(1)])
    federation.nodes.acknowledge({1: contributions[0]})
    first = federation.helper.asked[0].header.number
    (request,) = federation.ask(broadcast, [1])
    assert request.counted == first
    assert request.header.number > first
    (estimate,) = federation.ask(Broadcast(broadcast.play, None), [1])
    assert (estimate.kind, estimate.counted) == ("estimate", first)


def test_an_exchange_that_is_given_up_counts_nothing_and_its_number_is_not_used_again():
    federation, broadcast = Federation(), statistics_request()
    exchange(federation, broadcast, [some_upload(1)])
    first = federation.helper.asked[0].header.number
    (request,) = federation.ask(broadcast, [1])
    assert request.counted == 0
    assert request.header.number > first
    assert federation.spent == 2  # the devices are charged for both


@pytest.mark.parametrize(("planned", "used"), [(0.025, LEAST_SIGMA / SCALE), (0.3, 0.3)])
def test_noise_has_a_least_size(planned, used):
    """For very large epsilon, it is larger than needed."""
    federation, broadcast = Federation(multiplier=planned), statistics_request()
    exchange(federation, broadcast, [some_upload(1)])
    assert federation.helper.asked[0].header.multiplier == pytest.approx(used)


def test_noise_that_does_not_fit_is_one_line():
    words = r"privacy\.epsilon=0\.001 with devices\.rounds=100000000 .* at most 4194304"
    with pytest.raises(SettingsError, match=words):
        Federation(multiplier=5e6, **{"privacy-epsilon": 1e-3, "devices-rounds": 10**8})


def test_an_exchange_is_spent_before_a_device_is_asked():
    federation, broadcast = Federation(), statistics_request()
    federation.most = 0
    with pytest.raises(PrivacyError):
        federation.nodes.begin(broadcast)
    (request,) = federation.requests([1])
    assert (request.kind, request.header) == (ESTIMATE, None)


@pytest.mark.parametrize("change", ["digest", "report", "device"])
def test_a_reply_for_something_else_is_refused(change):
    federation, broadcast = Federation(), statistics_request()
    federation.ask(broadcast, [1])
    federation.greet([1], broadcast)
    (request,) = federation.requests([1])
    good = make_report(
        request.header, np.ones(request.header.numbers, np.int64),
        federation.helper.private.public_key(),
    ).to_bytes()  # fmt: skip
    fields = {"kind": REPORT, "device": device(1), "report": good, "digest": request.header.digest}
    fields[change] = {"digest": bytes(32), "report": good[:-1], "device": "x"}[change]
    with pytest.raises(UploadError) as error:
        federation.reply(1, broadcast, Reply(**fields))
    assert not error.value.is_final


@pytest.mark.parametrize("content", [[0, 0, 0, 0], [1.5], [True], "x", 7, b""], ids=str)
def test_a_reply_of_another_type_is_refused(content):
    """One device must not end the run: the others are charged for the exchange."""
    federation, broadcast = Federation(), statistics_request()
    federation.ask(broadcast, [1])
    record = RecordDict({"config": ConfigRecord({KEY: content})})
    with pytest.raises(UploadError, match="not an upload"):
        federation.nodes.check(1, SimpleNamespace(content=record), 1, broadcast)


def test_noise_does_not_raise_the_rate_of_answers():
    """The count may be below 0 by noise; without clipping, its mean is that of the devices."""
    noise = np.random.default_rng(5)

    def draw(scales):
        return np.rint(noise.normal(size=scales.shape) * scales).astype(np.int64)

    rates = []
    for _ in range(7):
        federation, broadcast = Federation(draw, multiplier=0.7), statistics_request()
        for _ in range(100):
            exchange(federation, broadcast, [some_upload(1)._replace(num_duels=10)])
        rates.append(federation.nodes.state()["rate"][0])
    assert np.median(rates) < 14.0


def test_a_refusal_is_not_asked_again():
    federation, broadcast = Federation(), statistics_request()
    federation.ask(broadcast, [1])
    with pytest.raises(UploadError, match="budget") as error:
        federation.reply(1, broadcast, Reply(REFUSED, device(1), reason="the budget is spent"))
    assert error.value.is_final


def test_shares_of_some_devices_are_scaled_to_all_by_the_coverage():
    federation = Federation(algorithm="fldb_personal")
    shares = [share_of(seed) for seed in range(4)]
    total, contributions = exchange(federation, shares_request(), shares)
    federation.nodes.acknowledge(dict(enumerate(contributions)))
    assert total.coverage == 1.0
    assert total.shares.members == 4.0
    total, _ = exchange(federation, shares_request(2), shares[:2])
    assert total.coverage == 0.5
    assert total.shares.members == 0.0
    expected = sum(each.shares.precision for each in shares[:2])
    np.testing.assert_allclose(total.shares.precision, expected, atol=1e-6)
    assert total.shares.squares == pytest.approx(4.0 * total.num_duels)  # clip^2 each


def share_of(seed: int) -> Upload:
    draw = np.random.default_rng(seed)
    rows = draw.normal(size=(4, D)) / 8.0
    change = ShareChange(
        rows.T @ rows, draw.normal(size=D) / 8.0, np.zeros(len(VARIANCES)), 0.0, 0.0
    )
    return Upload(8, np.zeros(D), np.zeros((D, D)), None, None, (), change)


def test_the_rate_of_answers_approaches_that_of_the_devices():
    federation, broadcast = Federation(multiplier=0.25), statistics_request()  # of Z: too much
    for _ in range(40):
        many = [some_upload(seed)._replace(num_duels=40) for seed in range(3)]
        exchange(federation, broadcast, many)
    assert federation.nodes.state()["rate"][0] == pytest.approx(40.0, abs=2.0)


def test_the_state_is_restored():
    federation, broadcast = Federation(), statistics_request()
    _, contributions = exchange(federation, broadcast, [some_upload(1)])
    federation.nodes.acknowledge({1: contributions[0]})
    other = Federation()
    other.nodes.restore(federation.nodes.state())
    (request,) = other.ask(broadcast, [1])
    assert (request.kind, request.counted) == (REPORT, federation.nodes.counted[device(1)])
    assert other.nodes.duels == federation.nodes.duels == 4


def test_the_vector_of_an_upload_has_its_frobenius_length_and_returns_the_upload():
    federation, broadcast = Federation(), statistics_request()
    upload, form = some_upload(3), federation.form
    units = {"gradient": 2.0, "information": 3.0, "hessian": 5.0, "num_duels": 7.0}
    vector = vector_of(upload, broadcast, units, form)
    square = (
        np.sum(upload.gradient**2) / 4 + np.sum(upload.information**2) / 9
        + np.sum(upload.hessian**2) / 25 + 16 / 49
    )  # fmt: skip
    assert vector @ vector == pytest.approx(square, rel=1e-12)
    back = upload_of(vector, 0.5, broadcast, units, form)
    np.testing.assert_allclose(back.hessian, upload.hessian, rtol=1e-12)
    assert back.num_duels == 4
    assert back.noise.hessian == 2.5


def test_the_kinds_cost_as_stated():
    assert KINDS == {"trial": 10, "parts": 10, "sum": 1}
