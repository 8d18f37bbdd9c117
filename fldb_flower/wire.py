"""Broadcasts and uploads as one vector and one header of integers each, and as Flower's records.

Parsing array headers is most of the cost of a small message, so a message holds a single array.
Symmetric matrices are sent as their upper triangle, or in another form of
:mod:`fldb_flower.linalg.linear`. This halves the bytes, and an upload cannot be asymmetric.

Broadcast vector: theta_hat (d) if statistics are requested; then theta_sync (d) and the triangle
of W_sync, or A of FLDB-ONS (d (d + 1) / 2), if agents select arms with the server's estimate. With
FLDB-Personal: c (d), the triangle of the sum of M_i, v and the scale; if V is learned, also rho and
the triangle of R.
Upload vector: gradient (d) and the triangle of W_new; then the Hessian's triangle and
the loss (1), each if the broadcast requests it. Empty if no statistics are requested. With
FLDB-Personal: the changes of c (d) and of the sum of M_i (triangle), 11 log losses, the squares
and the members; if V is learned, 55 log losses, and at the end the triangle of the change of G.

The ConfigRecord of a message has the header, and other integers beside it: :class:`UploadHeader`,
:class:`DeviceRequest` and :class:`DeviceUploadHeader`.

A vector's record is a plain ``.npy``. NumPy's reader parses the header as Python source, which
costs more than everything else in a small message, and allocates the announced size before
checking that the data is there. Here the header must be that of a vector of as many numbers as
follow. The result is a view of the message: nothing is copied, evaluated or unpickled.

A service on a device imports this module, but not Flower.
"""

from __future__ import annotations

import functools
import io
import itertools
import math
import reprlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fldb_flower.bandit.duels import OUTCOMES
from fldb_flower.bandit.estimate import CommonPrior, Estimate
from fldb_flower.bandit.features import Features, parse_features
from fldb_flower.errors import DataError
from fldb_flower.federation.exchange import (
    MATRICES,
    NUMBERS,
    AnyUpload,
    Broadcast,
    Outcomes,
    PlayRequest,
    ShareUpload,
    Upload,
)
from fldb_flower.linalg.arrays import Array, FloatArray
from fldb_flower.linalg.linear import Form, pack

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, RecordDict

_COMMON, _PERSONAL, _SHAPED = 1, 2, 3  # kinds of estimates and, but the last, of statistics
_LARGEST_COUNT = 2**53  # sums of many counts still fit into the 64 bits of Flower's integers
_MIB = 2**20
_HEADER_BYTES = 128  # size of the header of a vector's .npy


def _counts(numbers: Any, length: int) -> list[int]:
    """Return ``length`` integers from 0 to 2^53, or raise TypeError or ValueError."""
    if len(numbers) != length:
        raise ValueError(f"{len(numbers)} counts instead of {length}")
    for number in numbers:
        if type(number) is not int or not 0 <= number <= _LARGEST_COUNT:
            raise ValueError(f"{number!r} is not a count from 0 to 2^53")
    return list(numbers)


class BroadcastHeader(NamedTuple):
    """The integers that describe a broadcast's vector."""

    first: int  # iterations to play; both 0 if the same duels are asked about again
    last: int
    estimate: int  # 1: the vector has theta_sync and W_sync; 2: a prior
    statistics: int  # 1: it has theta_hat; 2: changes of shares are requested
    everything: int  # 1: statistics over all duels
    hessian: int
    loss: int

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> BroadcastHeader:
        """Read the ``header`` of a broadcast's ConfigRecord, from any server."""
        try:
            header = cls(*_counts(config["header"], len(cls._fields)))
        except (KeyError, TypeError, ValueError):
            raise DataError(
                "the server's broadcast has another format: the server and this node use different"
                " versions of fldb-flower; nothing was sent"
            ) from None
        if header.estimate > _SHAPED or header.statistics > _PERSONAL or max(header[4:]) > 1:
            raise DataError(f"the server's broadcast has an unknown header, {list(header)}")
        return header


class UploadHeader(NamedTuple):
    """The integers that describe an upload of simulated agents."""

    num_duels: int
    partition_id: int  # index of the block of agents
    num_partitions: int
    agents: int  # that the outcomes are summed over
    first: int  # iteration of the outcomes

    @classmethod
    def from_counts(cls, numbers: Any) -> UploadHeader:
        """Return the numbers of a reply; raise TypeError or ValueError if they are invalid."""
        return cls._make(_counts(numbers, len(cls._fields)))


class DeviceRequest(NamedTuple):
    """The ConfigRecord of a broadcast to a device; ``first = last`` in the header is the round."""

    header: BroadcastHeader
    counted: int  # number of the last answer that the server has counted
    device: str  # that ``counted`` refers to; a device with another id replies with its id only
    upto: int  # the last answer to cover if the same duels are asked about again, else -1
    duels: int  # duels of all devices on which the estimate is based
    features: Features | None = None  # of the federation, as text

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> DeviceRequest:
        """Check a ConfigRecord from any server."""
        header = BroadcastHeader.from_config(config)
        numbers = []
        for name, least in (("counted", 0), ("upto", -1), ("duels", 0)):
            number = config.get(name)
            if type(number) is not int or not least <= number <= _LARGEST_COUNT:
                raise DataError(
                    f"the server's broadcast has {name}={reprlib.repr(number)}: must be an integer"
                    f" from {least} to 2^53"
                )
            numbers.append(number)
        device = config.get("device")
        if not isinstance(device, str):
            raise DataError("the server's broadcast has no text as device")
        counted, upto, duels = numbers
        features = None
        if "features" in config:
            features = parse_features(config["features"], "the server's broadcast")
        return cls(header, counted, device, upto, duels, features)


class DeviceUploadHeader(NamedTuple):
    """The integers that describe an upload of a device; its reply has the ``device`` as well."""

    num_duels: int  # answers that the statistics are sums over
    start: int  # those after this one,
    end: int  # up to this one, as numbered by the device
    predicted: int  # of them, ties excluded: with a prediction when the duel was proposed,
    agreed: int  # and with one that was right
    held: int = 0  # answers that the device holds back for a later upload
    missing: int = 0  # distinct duels that this one lacks

    @classmethod
    def from_counts(cls, numbers: Any) -> DeviceUploadHeader:
        """Return the numbers of a reply; raise TypeError or ValueError if they are invalid."""
        return cls._make(_counts(numbers, len(cls._fields)))


class UploadError(Exception):
    """A reply that must not be counted, with the reason."""

    is_final: bool = False
    """Whether the node would reply the same if it were asked again."""

    @classmethod
    def malformed(cls, error: Exception) -> UploadError:
        """Return the error for a reply that cannot be parsed."""
        return cls(f"not an upload of this version of fldb-flower: {error!r}")


def encode_broadcast(broadcast: Broadcast) -> tuple[FloatArray, BroadcastHeader]:
    """Return a broadcast as a vector, and its header."""
    play = broadcast.play or PlayRequest(0, 0)
    estimate, parts, kind = play.estimate, [], 0
    if broadcast.theta_hat is not None:
        parts.append(broadcast.theta_hat)
    if isinstance(estimate, CommonPrior):
        numbers = np.array([estimate.variance, estimate.scale])
        parts, kind = [*parts, estimate.shift, pack(estimate.precision), numbers], _PERSONAL
        if estimate.shape is not None:
            parts, kind = [*parts, np.array([estimate.mix]), pack(estimate.shape)], _SHAPED
    elif estimate is not None:
        parts, kind = [*parts, estimate.theta_sync, pack(estimate.information)], _COMMON
    return _vector(parts), BroadcastHeader(
        first=play.first,
        last=play.last,
        estimate=kind,
        statistics=_PERSONAL if broadcast.shares else int(broadcast.theta_hat is not None),
        everything=int(broadcast.scope == "all"),
        hessian=int(broadcast.hessian),
        loss=int(broadcast.loss),
    )


def decode_broadcast(vector: FloatArray, header: BroadcastHeader, form: Form) -> Broadcast:
    """Invert :func:`encode_broadcast`; raise ValueError if the vector does not fit the header."""
    if vector.dtype != np.float64:
        raise ValueError(f"a broadcast of {vector.dtype} instead of float64")
    d, kind, has_theta = form.dimension, header.estimate, header.statistics == _COMMON
    lengths = [
        d * has_theta, d * (kind > 0), form.size * (kind > 0),
        2 * (kind >= _PERSONAL), kind == _SHAPED, form.size * (kind == _SHAPED),
    ]  # fmt: skip
    if vector.shape != (sum(lengths),):
        size = (sum(lengths),)
        raise ValueError(f"a broadcast of shape {vector.shape}; dimension={d} implies {size}")
    if not np.isfinite(vector).all():
        raise ValueError("a broadcast with a number that is not finite")
    theta_hat, first, matrix, numbers, mix, shape = _parts(vector, lengths)
    estimate: Estimate | CommonPrior | None = None
    if kind >= _PERSONAL:
        variance, scale = numbers.tolist()
        if not (variance > 0.0 and scale >= 0.0):
            raise ValueError(f"a prior with v={variance:g} and scale={scale:g}")
        estimate = CommonPrior(form.unpack(matrix), first, variance, scale)
        if kind == _SHAPED:
            estimate = estimate._replace(shape=form.unpack(shape), mix=float(mix[0]))
            if not np.linalg.eigvalsh(estimate.covariance())[0] > 0.0:
                raise ValueError("a prior whose V is not positive definite")
    elif kind:
        estimate = Estimate(first, form.unpack(matrix))
    plays = header.estimate or header.last
    return Broadcast(
        play=PlayRequest(header.first, header.last, estimate) if plays else None,
        theta_hat=theta_hat if has_theta else None,
        shares=header.statistics == _PERSONAL,
        scope="all" if header.everything else "fresh",
        hessian=bool(header.hessian),
        loss=bool(header.loss),
    )


def encode_upload(upload: AnyUpload, broadcast: Broadcast) -> FloatArray:
    """Return the statistics of an upload as one vector; outcomes travel beside it."""
    parts = [(name, getattr(upload, name)) for name in broadcast.parts]
    return _vector([
        pack(part) if name in MATRICES else np.array([part]) if name in NUMBERS else part
        for name, part in parts
    ])  # fmt: skip


def decode_upload(vector: FloatArray, num_duels: int, broadcast: Broadcast, form: Form) -> Any:
    """Invert :func:`encode_upload`; raise UploadError for a wrong shape, dtype or number."""
    parts = broadcast.parts
    size, places = _layout(tuple(broadcast.lengths(form)))
    if vector.dtype != np.float64:
        raise UploadError(f"dtype {vector.dtype} instead of float64")
    if vector.shape != (size,):
        raise UploadError(f"shape {vector.shape} instead of {(size,)}")
    with np.errstate(over="ignore", invalid="ignore"):  # raised below as an error
        square = float(vector @ vector)  # one fast pass, which overflow fails too
    if not math.isfinite(square):
        raise UploadError("a number that is not finite, or too large to square")
    if not parts:
        return Upload(num_duels, np.zeros(form.dimension), form.zeros())
    values: dict[str, Any] = {}
    for name, place in zip(parts, places, strict=True):
        part = vector[place]
        is_number = name in NUMBERS
        values[name] = (
            form.unpack(part) if name in MATRICES else float(part[0]) if is_number else part
        )
    return (ShareUpload if broadcast.shares else Upload)(num_duels, **values)


@functools.lru_cache(maxsize=64)
def _layout(lengths: tuple[int, ...]) -> tuple[int, list[slice]]:
    """Return the size of an upload's vector, and where its parts are."""
    ends = [0, *itertools.accumulate(lengths)]
    return ends[-1], [slice(*place) for place in itertools.pairwise(ends)]


def decode_outcomes(header: UploadHeader, outcomes: Sequence[float]) -> Outcomes:
    """Return the outcomes of an upload; raise UploadError if they cannot be sums over agents."""
    # `0 <= x < inf` is false for NaN as well.
    if header.first < 1 or not all(0.0 <= number < math.inf for number in outcomes):
        raise UploadError("an outcome that is negative or not finite, or before iteration 1")
    if len(outcomes) % len(OUTCOMES):
        raise UploadError(f"{len(outcomes)} outcomes, not {len(OUTCOMES)} for each iteration")
    sums = np.reshape(outcomes, (-1, len(OUTCOMES)))
    # Correct <= decided <= predicted <= agents.
    if (sums[:, 3:] > sums[:, 2:-1]).any() or (sums[:, 2] > header.agents).any():
        raise UploadError(f"outcomes of more predictions than {header.agents} agents have")
    return Outcomes(header.first, header.agents, sums)


@functools.lru_cache(maxsize=64)
def _npy_header(size: int) -> bytes:
    """Return the ``.npy`` header of a vector."""
    buffer = io.BytesIO()
    layout = {"descr": "<f8", "fortran_order": False, "shape": (size,)}
    np.lib.format.write_array_header_1_0(buffer, layout)
    return buffer.getvalue()


@functools.cache
def _flower() -> Any:
    from flwr import app  # noqa: PLC0415

    return app


def pack_vector(vector: FloatArray) -> ArrayRecord:
    """Return a record of one vector of float64."""
    record: ArrayRecord = _flower().ArrayRecord()  # with an argument, it copies every array
    data = _npy_header(vector.size) + vector.tobytes()
    record["0"] = _flower().Array("float64", vector.shape, "numpy.ndarray", data)
    return record


def unpack_vector(record: Any, max_mb: float = math.inf) -> FloatArray:
    """Return the vector of a message's record, read-only.

    Raise ValueError unless the record is that of one vector of float64, of at most ``max_mb`` MiB.
    """
    arrays = list(record.values()) if isinstance(record, _flower().ArrayRecord) else []
    if len(arrays) != 1:
        raise ValueError(f"{type(record).__name__} with {len(arrays)} arrays instead of one")
    data = arrays[0].data
    if len(data) > max_mb * _MIB:
        raise ValueError(f"{len(data) / _MIB:.3g} MiB exceed max-message-mb={max_mb:g}")
    size, rest = divmod(len(data) - _HEADER_BYTES, 8)
    if rest or size < 0 or not data.startswith(_npy_header(size)):
        raise ValueError("not a vector of float64 in the .npy format")
    return np.frombuffer(data, np.float64, offset=_HEADER_BYTES)


def content_bytes(content: RecordDict) -> int:
    """Return the bytes of a message's arrays, numbers and texts, keys excluded."""
    total = 0
    for record in content.values():
        for value in record.values():
            single = [getattr(value, "data", value)]  # an array has bytes
            values: list[Any] = value if isinstance(value, list) else single
            is_text = bool(values) and isinstance(values[0], str | bytes)  # as all of a list are
            total += sum(map(len, values)) if is_text else 8 * len(values)
    return total


def _vector(parts: Sequence[Array]) -> FloatArray:
    return np.concatenate(parts) if parts else np.empty(0)


def _parts(vector: FloatArray, lengths: Sequence[int]) -> list[FloatArray]:
    """Return consecutive parts of a vector."""
    ends = list(itertools.accumulate(lengths))
    return [vector[end - length : end] for end, length in zip(ends, lengths, strict=True)]
