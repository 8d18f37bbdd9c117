"""Messages of secure sums: round trips, and bytes that no sender of this version writes."""

import contextlib
import dataclasses
import json
import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from fldb_flower.bandit.estimate import Estimate
from fldb_flower.bandit.prior import CommonPrior
from fldb_flower.errors import DataError
from fldb_flower.federation.exchange import Broadcast, PlayRequest
from fldb_flower.settings import SELECTION_SETTINGS, Settings
from fldb_flower.wire import secure_messages as messages
from fldb_flower.wire.shared_broadcast import decode_shared, encode_shared

names = st.text("abz09._-", min_size=1, max_size=8).filter(lambda name: name[0] not in "._-")
sealed = st.dictionaries(names, st.binary(max_size=20), min_size=1, max_size=5)
requests = st.one_of(
    st.builds(messages.Hello, st.binary(max_size=50)),
    st.builds(messages.Collect, st.binary(max_size=50), st.sampled_from([b"", bytes(16)])),
    st.builds(messages.Open, st.binary(max_size=50), sealed),
    st.builds(messages.Deliver, st.binary(max_size=50), st.sampled_from([b"", bytes(16)])),
)
replies = st.one_of(
    st.builds(messages.Introduced, names, st.integers(1, 2**53 - 1)),
    st.builds(messages.Pieces, sealed),
    st.just(messages.Declined()),
    st.builds(messages.Opened, st.binary(max_size=50)),
    st.builds(
        messages.Blamed, st.lists(names, min_size=1, unique=True).map(lambda x: tuple(sorted(x)))
    ),
    st.just(messages.Delivered()),
    st.builds(messages.Refused, st.text(max_size=50)),
)


@given(requests)
def test_requests_return_as_they_were(request):
    assert messages.decode_request(messages.encode(request)) == request


@given(replies)
def test_replies_return_as_they_were(reply):
    assert messages.decode_reply(messages.encode(reply)) == reply


@given(st.one_of(requests, replies), st.data())
def test_damaged_bytes_are_one_error_or_another_message(message, data):
    content = bytearray(messages.encode(message))
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    for damaged in (bytes(content), bytes(content[:place])):
        for decode in (messages.decode_request, messages.decode_reply):
            with contextlib.suppress(DataError):  # and no other error
                decode(damaged)


def test_truncated_and_longer_bytes_are_refused():
    content = messages.encode(messages.Open(b"header", {"a": b"123", "b": b""}))
    for wrong in (content[:-1], content + b"0", b"", content[1:]):
        with pytest.raises(DataError, match="the message has"):
            messages.decode_request(wrong)


def test_a_request_is_no_reply():
    with pytest.raises(DataError, match="Hello is no reply"):
        messages.decode_reply(messages.encode(messages.Hello(b"")))
    with pytest.raises(DataError, match="Declined is no request"):
        messages.decode_request(messages.encode(messages.Declined()))


def shared(algorithm="fldb_personal"):
    theta, matrix = np.array([0.25, -3.0]), np.array([[2.0, 0.5], [0.5, 1.0]])
    settings = Settings(
        mode="devices", algorithm=algorithm, dimension=2, max_difference=4, lambda_=0.5
    )
    if algorithm == "fldb_personal":
        prior = CommonPrior(matrix, theta, 0.125, 2.5)
        broadcast = Broadcast(PlayRequest(7, 7, prior), None, shares=True, lowest_variance=0.0625)
    else:
        play = PlayRequest(7, 7, Estimate(theta, matrix))
        broadcast = Broadcast(play, theta, hessian=True)
    return broadcast, settings


@pytest.mark.parametrize("algorithm", ["fldb_personal", "fldb_ons"])
def test_broadcasts_return_as_they_were(algorithm):
    broadcast, settings = shared(algorithm)
    content = encode_shared(broadcast, settings, 12)
    found = decode_shared(content)
    assert encode_shared(found.broadcast, found.settings, 12) == content
    assert found.duels == 12
    assert found.broadcast.lowest_variance == broadcast.lowest_variance
    assert found.settings.max_difference == 4.0
    assert found.settings.ridge == 0.5
    for name in SELECTION_SETTINGS:
        assert getattr(found.settings, name) == getattr(settings, name)
    if algorithm == "fldb_personal":
        assert found.broadcast.play.estimate.shift.tolist() == [0.25, -3.0]
        assert found.broadcast.play.estimate.variance == 0.125
    else:
        assert found.broadcast.theta_hat.tolist() == [0.25, -3.0]
        assert found.broadcast.play.estimate.information.tolist() == [[2.0, 0.5], [0.5, 1.0]]


def test_the_encoding_follows_from_the_broadcast():
    broadcast, settings = shared("fldb_ons")
    encoding = decode_shared(encode_shared(broadcast, settings, 0)).encoding(30, answers=10)
    # Gradient 2, W and Hessian 3 each, and the number of duels, up to 10 answers with L = 4.
    bounds = [(block.size, round(block.bound, 3)) for block in encoding.blocks]
    assert bounds == [(2, 40.0), (3, 160.0), (3, 40.0), (1, 10)]
    for block, exponent in zip(encoding.blocks, encoding.exponents, strict=True):
        assert 30 * math.floor(block.bound * 2.0**exponent) <= 2**60


@given(st.data())
def test_damaged_broadcasts_are_one_error(data):
    content = bytearray(encode_shared(*shared(), 12))
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    for damaged in (bytes(content), bytes(content[:place])):
        with contextlib.suppress(DataError):  # and no other error
            decode_shared(damaged)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"settings": {}}, "are not dimension, max_difference, algorithm"),
        ({"lowest_variance": -1.0}, "lowest_variance"),
        ({"header": [1, 2]}, "is damaged: 2 counts instead of 7"),
        ({"duels": 1.5}, "duels"),
    ],
)
def test_wrong_fields_are_named(change, message):
    content = encode_shared(*shared(), 12)
    length = int.from_bytes(content[:4], "big")
    fields = {**json.loads(content[4 : 4 + length]), **change}
    index = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    with pytest.raises(DataError, match=message):
        decode_shared(len(index).to_bytes(4, "big") + index + content[4 + length :])


def test_messages_do_not_show_their_pieces():
    message = messages.Pieces({"a": b"secret"})
    assert "secret" not in repr(message)
    assert dataclasses.is_dataclass(message)
