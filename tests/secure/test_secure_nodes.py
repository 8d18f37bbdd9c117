"""Secure sums on the server, with a helper and devices in this process."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.app import ConfigRecord, RecordDict
from secure_federation import ServerAlone, device
from vaults import D, common

from fldb_flower.errors import RoundAbandonedError, SettingsError
from fldb_flower.federation.exchange import Broadcast, Upload
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
from fldb_flower.wire import UploadError

Z = 20.0  # noise multiplier
ASKED = common((0.5, -0.5))


def some_upload(seed: int) -> Upload:
    draw = np.random.default_rng(seed)
    rows = draw.normal(size=(4, D)) / 4.0
    return Upload(4, draw.normal(size=D) / 4.0, rows.T @ rows, rows.T @ rows / 8.0, None, ())


def asked_of(server) -> list[str]:
    return [request.kind for request in server.helper.asked]


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
    assert asked_of(server) == ["trial", "parts", "sum"]
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
    good = server.report(1, first, ASKED, integers)
    bad = server.report(2, second, ASKED, integers, stranger.public_key())
    server.nodes.contributions = {1: good, 2: bad}
    server.nodes.total()
    server.nodes.acknowledge()
    assert set(server.nodes.counted) == {device(1)}
    assert [len(each.sealed) for each in server.helper.asked] == [2, 1]
    server.nodes.contributions = {2: bad}
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
    integers, public = np.ones(request.header.numbers, np.int64), server.helper.private.public_key()
    good = make_report(request.header, integers, public).to_bytes()
    fields = {"kind": REPORT, "device": device(1), "report": good, "digest": request.header.digest}
    for changes in ({"digest": bytes(32)}, {"report": good[:-1]}, {"device": "x"}):
        with pytest.raises(UploadError) as error:
            server.reply(1, ASKED, Reply(**{**fields, **changes}))
        assert not error.value.is_final
    for content in ([0, 0, 0, 0], [1.5], [True], "x", 7, b""):
        record = RecordDict({"config": ConfigRecord({KEY: content})})
        with pytest.raises(UploadError, match="not an upload"):
            server.nodes.check(1, SimpleNamespace(content=record))


def test_a_refusal_is_not_asked_again():
    server = ServerAlone()
    server.ask(ASKED, [1])
    with pytest.raises(UploadError, match="budget") as error:
        server.reply(1, ASKED, Reply(REFUSED, device(1), reason="the budget is spent"))
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
