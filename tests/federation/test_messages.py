"""Encoding of messages: exact round trips, and refusal of malformed input."""

import math
import pickle
import re

import numpy as np
import pytest
from flwr.app import ArrayRecord
from hypothesis import given, settings
from hypothesis import strategies as st

from fldb_flower import wire as messages
from fldb_flower.bandit.estimate import Estimate
from fldb_flower.federation.exchange import Broadcast, Outcomes, PlayRequest, Upload
from fldb_flower.linalg.arrays import pack_arrays, unpack_arrays
from fldb_flower.linalg.linear import Form, pack_symmetric, unpack_symmetric
from fldb_flower.wire import (
    BroadcastHeader,
    DeviceUploadHeader,
    UploadError,
    UploadHeader,
    decode_broadcast,
    decode_outcomes,
    decode_upload,
    encode_broadcast,
    encode_upload,
    pack_vector,
    unpack_vector,
)

property_test = settings(deadline=None, derandomize=True, max_examples=80)


def symmetric(rng, d):
    root = rng.standard_normal((d, d))
    return root @ root.T


def some_upload(d=3, *, hessian=True, loss=True, seed=0, iterations=2):
    rng = np.random.default_rng(seed)
    return Upload(
        num_duels=5 * iterations,
        gradient=rng.standard_normal(d),
        information=symmetric(rng, d),
        hessian=symmetric(rng, d) if hessian else None,
        loss=float(rng.random()) if loss else None,
        outcomes=(Outcomes(4, 5, some_outcomes(rng, iterations)),),
    )


def some_outcomes(rng, iterations):
    """Regret, log loss, and falling numbers of five agents, for each iteration."""
    numbers = -np.sort(-rng.integers(0, 6, (iterations, 3)), axis=1)
    return np.hstack([rng.random((iterations, 2)), numbers])


def make_broadcast(*, hessian=True, loss=True, d=3):
    return Broadcast(None, np.zeros(d), hessian=hessian, loss=loss)


# --- symmetric matrices --------------------------------------------------------------------


def test_triangle_by_hand():
    matrix = np.array([[1.0, 2, 3], [2, 4, 5], [3, 5, 6]])
    assert pack_symmetric(matrix).tolist() == [1, 2, 3, 4, 5, 6]
    assert unpack_symmetric(np.arange(1.0, 7), 3).tolist() == matrix.tolist()


@property_test
@given(d=st.integers(1, 9), batch=st.integers(0, 4), seed=st.integers(0, 10**6))
def test_symmetric_matrices_round_trip_exactly(d, batch, seed):
    rng = np.random.default_rng(seed)
    square = rng.standard_normal((batch, d, d))
    matrices = square + square.swapaxes(1, 2)
    packed = pack_symmetric(matrices)
    assert packed.shape == (batch, d * (d + 1) // 2)
    np.testing.assert_array_equal(unpack_symmetric(packed, d), matrices)


# --- broadcasts ----------------------------------------------------------------------------


def assert_same_broadcast(got, sent):
    """Compare fields, those of the request and those of its estimate."""
    for name, value in sent._asdict().items():
        other = getattr(got, name)
        if isinstance(value, tuple):
            assert_same_broadcast(other, value)
        elif isinstance(value, Estimate):
            np.testing.assert_array_equal(other.theta_sync, value.theta_sync)
            np.testing.assert_array_equal(other.information, value.information)
        else:
            np.testing.assert_array_equal(other, value)


@property_test
@given(
    d=st.integers(1, 8),
    seed=st.integers(0, 10**6),
    statistics=st.booleans(),
    plays=st.sampled_from(["nothing", "alone", "with an estimate"]),
    scope=st.sampled_from(["fresh", "all"]),
    hessian=st.booleans(),
    loss=st.booleans(),
)
def test_every_kind_of_broadcast_round_trips(  # noqa: PLR0917
    d, seed, statistics, plays, scope, hessian, loss
):
    rng = np.random.default_rng(seed)
    estimate = None
    if plays == "with an estimate":
        estimate = Estimate(rng.standard_normal(d), symmetric(rng, d))
    play = None if plays == "nothing" else PlayRequest(3, 8, estimate)
    theta_hat = rng.standard_normal(d) if statistics else None
    sent = Broadcast(play, theta_hat, scope, hessian, loss)
    vector, header = encode_broadcast(sent)
    assert vector.dtype == np.float64
    assert all(type(number) is int for number in header)
    # theta_hat d; theta_sync d and a triangle d (d + 1) / 2.
    expected = d * statistics + (d + d * (d + 1) // 2) * (estimate is not None)
    assert vector.shape == (expected,) == (sent.sizes(Form(d))[1],)
    assert_same_broadcast(decode_broadcast(vector, header, Form(d)), sent)
    # The numbers are sent as a plain list.
    assert_same_broadcast(decode_broadcast(vector, BroadcastHeader(*list(header)), Form(d)), sent)


def test_a_broadcast_of_another_length_or_dimension_is_refused():
    for play in (PlayRequest(1, 2, Estimate(np.ones(3), np.eye(3))), None):
        vector, header = encode_broadcast(Broadcast(play, np.ones(3)))
        for size in (len(vector) - 1, len(vector) + 1):
            with pytest.raises(ValueError, match=r"of shape \(\d+,\); dimension=3 implies"):
                decode_broadcast(np.resize(vector, size), header, Form(3))
    vector, header = encode_broadcast(Broadcast(None, np.ones(4)))
    with pytest.raises(ValueError, match=r"of shape \(4,\); dimension=3 implies \(3,\)"):
        decode_broadcast(vector, header, Form(3))


# --- uploads -------------------------------------------------------------------------------


def encoded(upload, broadcast, partition=0, partitions=1):
    (outcomes,) = upload.outcomes
    header = UploadHeader(upload.num_duels, partition, partitions, outcomes.agents, outcomes.first)
    return encode_upload(upload, broadcast), header


def decoded(vector, header, outcomes, broadcast, form):
    upload = decode_upload(vector, header.num_duels, broadcast, form)
    return upload._replace(outcomes=(decode_outcomes(header, outcomes),))


@property_test
@given(
    d=st.integers(1, 8),
    seed=st.integers(0, 10**6),
    hessian=st.booleans(),
    loss=st.booleans(),
    iterations=st.integers(0, 5),
    partition=st.integers(0, 3),
)
def test_every_kind_of_upload_round_trips(d, seed, hessian, loss, iterations, partition):  # noqa: PLR0917
    sent = some_upload(d, hessian=hessian, loss=loss, seed=seed, iterations=iterations)
    broadcast = make_broadcast(hessian=hessian, loss=loss, d=d)
    vector, header = encoded(sent, broadcast, partition, 4)
    triangle = d * (d + 1) // 2
    expected = d + triangle + triangle * hessian + loss
    assert vector.shape == (expected,) == (broadcast.sizes(Form(d))[0],)
    received = UploadHeader.from_counts(list(header))
    assert received == header
    got = decoded(vector, received, sent.outcomes[0].sums.ravel(), broadcast, Form(d))
    for name in ("num_duels", "gradient", "information", "hessian", "loss"):
        np.testing.assert_array_equal(getattr(got, name), getattr(sent, name), err_msg=name)
    (outcomes,) = got.outcomes
    assert (outcomes.first, outcomes.agents) == (4, 5)
    np.testing.assert_array_equal(outcomes.sums, sent.outcomes[0].sums)


def test_an_upload_of_outcomes_only_contains_no_statistics():
    broadcast = Broadcast(PlayRequest(4, 5), None)
    vector, header = encoded(some_upload()._replace(num_duels=0), broadcast, 0, 1)
    assert vector.shape == (0,) == (broadcast.sizes(Form(3))[0],)
    got = decoded(vector, header, [1.0] * 10, broadcast, Form(3))
    assert got.gradient.tolist() == [0.0] * 3
    assert got.information.tolist() == [[0.0] * 3] * 3
    assert (got.num_duels, got.hessian, got.loss) == (0, None, None)
    assert len(got.outcomes[0].sums) == 2


def test_sizes_by_hand():
    # d = 4: theta 4, a triangle 10. Up 4 + 10 + 10 + 1 = 25, down 4 + 4 + 10 = 18.
    broadcast = Broadcast(
        PlayRequest(1, 1, Estimate(np.zeros(4), np.eye(4))), np.zeros(4), hessian=True, loss=True
    )
    assert broadcast.sizes(Form(4)) == (25, 18)
    assert Broadcast(None, np.zeros(4)).sizes(Form(4)) == (14, 4)
    assert Broadcast(PlayRequest(1, 1), None).sizes(Form(4)) == (0, 0)


def test_a_malformed_upload_is_refused_with_a_reason():
    """For d = 3 with Hessian and loss: 3 + 6 + 6 + 1 numbers."""
    broadcast = make_broadcast()
    valid, header = encoded(some_upload(), broadcast)
    numbers = [(place, np.nan, "not finite") for place in (0, 5, 10, 15)]
    numbers += [(1, np.inf, "not finite"), (1, -np.inf, "not finite")]
    numbers += [(1, 1e300, "too large"), (12, -1e300, "too large")]
    vectors = [
        (valid[:-1], "shape (15,) instead of (16,)"),
        (valid[:, None], "shape (16, 1) instead"),
        (valid[None], "shape (1, 16) instead"),
        (np.array(1.0), "shape () instead"),
    ]
    for place, number, reason in numbers:
        changed = valid.copy()
        changed[place] = number
        vectors.append((changed, reason))
    for kind in ("float32", "int64", "bool", "complex128", ">f8", "object"):
        vectors.append((valid.astype(kind), f"dtype {kind} instead of float64"))
    for vector, reason in vectors:
        with pytest.raises(UploadError, match=re.escape(reason)) as refused:
            decode_upload(vector, header.num_duels, broadcast, Form(3))
        assert "\n" not in str(refused.value)


def test_malformed_outcomes_are_refused_with_a_reason():
    """Regret, log loss, and the numbers of predicted, decided and correct answers of 5 agents."""
    header = UploadHeader(1, 0, 1, agents=5, first=1)
    too_many = "outcomes of more predictions than 5 agents have"
    for outcomes, reason in (
        ([-1e-9, 0, 0, 0, 0], "an outcome that is negative"),
        ([np.nan, 0, 0, 0, 0], "negative or not finite"),
        ([1.0, np.inf, 1, 1, 1], "negative or not finite"),
        ([1.0, 1.0, 1, -1, 0], "an outcome that is negative"),
        ([1.0, 2.0], "2 outcomes, not 5 for each iteration"),
        ([1.0, 1.0, 6, 5, 5], too_many),
        ([1.0, 1.0, 3, 4, 3], too_many),
        ([1.0, 1.0, 3, 3, 3.5], too_many),
        ([0.0, 0.0, 0, 0, 0, 1.0, 1.0, 9, 1, 1], too_many),
    ):
        with pytest.raises(UploadError, match=reason):
            decode_outcomes(header, outcomes)
    with pytest.raises(UploadError, match="before iteration 1"):
        decode_outcomes(header._replace(first=0), [1.0, 1.0, 1, 1, 1])


def test_vectors_of_another_length_are_refused():
    """Like FedAvg's (2,) and (1,), which would be broadcast into a wrong sum."""
    header = UploadHeader(1, 0, 1, 1, 1)
    for d, right in ((1, 2), (2, 5), (3, 9)):
        broadcast = make_broadcast(hessian=False, loss=False, d=d)
        decoded(np.ones(right), header, [0.0] * 5, broadcast, Form(d))
        for size in {*range(12)} - {right}:
            with pytest.raises(UploadError, match="shape"):
                decoded(np.ones(size), header, [0.0] * 5, broadcast, Form(d))


def test_an_upload_for_another_broadcast_is_refused():
    small, large = make_broadcast(hessian=False), make_broadcast(hessian=True)
    outcomes_only = Broadcast(PlayRequest(1, 1), None)
    for sent, asked in ((large, small), (small, large), (small, outcomes_only)):
        vector, header = encoded(some_upload(hessian=sent.hessian), sent)
        with pytest.raises(UploadError, match="shape"):
            decoded(vector, header, [0.0] * 5, asked, Form(3))


def test_counts_are_read_in_the_order_of_the_header_and_others_are_refused():
    header = UploadHeader(num_duels=6, partition_id=1, num_partitions=3, agents=5, first=4)
    assert UploadHeader.from_counts([6, 1, 3, 5, 4]) == header
    odd = ("1", 1.0, True, -1, 2**53 + 1, math.nan, math.inf, None)
    for kind in (UploadHeader, DeviceUploadHeader):
        valid = list(range(len(kind._fields)))
        assert list(kind.from_counts(valid)) == valid
        for numbers in (1, None, [], valid[1:], [*valid, 1], *([*valid[1:], each] for each in odd)):
            with pytest.raises((TypeError, ValueError)):
                kind.from_counts(numbers)


# --- states --------------------------------------------------------------------------------


@property_test
@given(
    shapes=st.lists(st.lists(st.integers(0, 4), max_size=3), max_size=5),
    kinds=st.lists(st.sampled_from(["<f8", "<i8", "<u8", "|b1", "<f4"]), min_size=5, max_size=5),
)
def test_named_arrays_round_trip_exactly(shapes, kinds):
    rng = np.random.default_rng(0)
    arrays = {
        f"part.name {number}": (100 * rng.random(shape)).astype(kind)
        for number, (shape, kind) in enumerate(zip(shapes, kinds, strict=False))
    }
    data = pack_arrays(arrays)
    assert isinstance(data, bytes)
    back = unpack_arrays(data)
    assert list(back) == list(arrays)
    for name, array in arrays.items():
        assert (back[name].dtype, back[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(back[name], array)


def test_arrays_of_any_layout_round_trip():
    """The header is cached between calls: each layout must get its own."""
    array = np.arange(24.0).reshape(4, 6)
    parts = [array[:, 1:3], array.T, array[::2, ::-1]]
    parts += [
        np.arange(6).reshape(shape).astype(kind)
        for shape in ((2, 3), (3, 2), (6,), (1, 6))
        for kind in ("<f8", "<i8")
    ]
    for part in parts:
        (back,) = unpack_arrays(pack_arrays({"a": part})).values()
        assert back.dtype == part.dtype
        np.testing.assert_array_equal(back, part)


def test_a_state_contains_no_pickle(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("pickle was used")

    for name in ("loads", "load", "dumps", "dump"):
        monkeypatch.setattr(pickle, name, refuse)
    arrays = {"a": np.arange(3.0)}
    back = unpack_arrays(pack_arrays(arrays))
    np.testing.assert_array_equal(back["a"], arrays["a"])
    # A layout with objects is refused: they could only be pointers or pickles.
    forged = pack_arrays(arrays).replace(b"<f8", b"|O8")
    with pytest.raises(ValueError, match=r"[Oo]bject|OBJECT"):
        unpack_arrays(forged)
    assert not hasattr(messages, "pickle")


# --- records -------------------------------------------------------------------------------


def test_a_record_of_a_vector_equals_that_of_flower():
    """What is refused is tested in `test_security.py`."""
    for size in (0, 1, 9, 10, 99, 100, 12345):
        vector = np.random.default_rng(size).standard_normal(size)
        record = pack_vector(vector)
        np.testing.assert_array_equal(record.to_numpy_ndarrays()[0], vector)
        np.testing.assert_array_equal(unpack_vector(record), vector)
        np.testing.assert_array_equal(unpack_vector(ArrayRecord([vector])), vector)
