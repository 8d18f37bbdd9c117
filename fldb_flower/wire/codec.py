"""What travels: broadcasts and uploads as one vector each, and a few numbers.

Parsing array headers is most of a small message's cost, so each message holds one array.
Symmetric matrices travel as their upper triangle (or as :mod:`fldb_flower.linalg.forms` says): half
the bytes, and no upload can be asymmetric. Nothing here knows Flower; nothing here is unpickled.

Broadcast vector: theta_hat (d) if statistics are wanted; then theta_sync (d) and the triangle
of W_sync (d (d + 1) / 2) if agents play with the server's estimate.
Upload vector: gradient (d) and the triangle of W_new; then the Hessian's triangle and
the loss (1), each where the broadcast asked for it. Empty if no statistics were wanted.

**Single precision** (the setting ``wire``): the server's vectors are rounded to float32, and a node
answers in what it was asked in. Numbers are then wrong by 6e-8 of themselves, and matrices
are made definite again by who reads them (:meth:`fldb_flower.linalg.forms.Form.cover`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fldb_flower.bandit.estimate import Estimate
from fldb_flower.errors import FederationError
from fldb_flower.federation.exchange import Broadcast, PlayRequest, Regrets, Upload
from fldb_flower.linalg.arrays import Array
from fldb_flower.linalg.forms import Form, Vector, form_of
from fldb_flower.settings import WIRES

_SINGLE = float(np.finfo(np.float32).eps) / 2.0  # what rounding to float32 changes, at most


class BroadcastHeader(NamedTuple):
    """The whole numbers beside a broadcast's vector.

    Attributes
    ----------
    first, last : int
        Iterations to play, or 0.
    estimate, statistics : int
        1 if theta_sync and W_sync, and theta_hat, are in the vector.
    everything, hessian, loss : int
        1 if statistics are wanted over all duels, with the Hessian, with the loss.
    counted : int
        Acknowledgement: the last iteration whose duels the server has counted.
    """

    first: int
    last: int
    estimate: int
    statistics: int
    everything: int
    hessian: int
    loss: int
    counted: int


class UploadHeader(NamedTuple):
    """The numbers beside an upload's vector.

    Attributes
    ----------
    num_duels : int
        Duels summed over.
    partition_id, num_partitions : int
        Which of how many blocks of agents this is.
    agents, regret_first : int
        Agents that ``regret`` is summed over, and its first iteration.
    regret : list of float
        Regret of each iteration not yet acknowledged (simulation only).
    """

    num_duels: int
    partition_id: int
    num_partitions: int
    agents: int
    regret_first: int
    regret: list[float]

    def to_numbers(self) -> list[float]:
        """Return all of it as one list, which costs a transport one entry."""
        return [*map(float, self[:-1]), *self.regret]

    @classmethod
    def from_numbers(cls, numbers: Sequence[float]) -> UploadHeader:
        """Undo :meth:`to_numbers`.

        Raises
        ------
        TypeError, ValueError
            The list is too short, or a count is not a whole number.
        """
        count = len(cls._fields) - 1
        if not all(float(number).is_integer() for number in numbers[:count]):
            raise ValueError("a count is not a whole number")
        return cls._make([*map(int, numbers[:count]), list(numbers[count:])])


class UploadError(Exception):
    """An upload that must not be counted, with one reason."""


def broadcast_size(broadcast: Broadcast, form: Form) -> int:
    """Return how many numbers the broadcast's vector holds."""
    play = broadcast.play
    has_estimate = play is not None and play.estimate is not None
    return _broadcast_size(form, broadcast.theta_hat is not None, has_estimate)


def _broadcast_size(form: Form, has_point: bool, has_estimate: bool) -> int:
    return form.dimension * has_point + (form.dimension + form.size) * has_estimate


def upload_size(broadcast: Broadcast, form: Form) -> int:
    """Return how many numbers the answer's vector holds."""
    if broadcast.theta_hat is None:
        return 0
    return form.dimension + form.size * (1 + broadcast.hessian) + broadcast.loss


def traffic(
    broadcast: Broadcast, form: Form, agents: int = 1, wire: str = "float64"
) -> tuple[int, int]:
    """Return the bytes of the vectors of some agents' uploads, and of as many broadcasts.

    Every agent exchanges a message of its own, whichever node hosts it.
    """
    each = agents * np.dtype(wire).itemsize
    return upload_size(broadcast, form) * each, broadcast_size(broadcast, form) * each


def encode_broadcast(broadcast: Broadcast, wire: str = "float64") -> tuple[Vector, BroadcastHeader]:
    """Return a broadcast as a vector and whole numbers, nothing acknowledged yet.

    Parameters
    ----------
    broadcast : Broadcast
    wire : {"float64", "float32"}
        What its numbers are rounded to, and those of the answer.

    Raises
    ------
    FederationError
        A number is too large for that.
    """
    play, parts = broadcast.play, []
    if broadcast.theta_hat is not None:
        parts.append(broadcast.theta_hat)
    if play is not None and play.estimate is not None:
        information = play.estimate.information
        parts += [play.estimate.theta_sync, form_of(information).pack(information)]
    ask = BroadcastHeader(
        first=0 if play is None else play.first,
        last=0 if play is None else play.last,
        estimate=int(play is not None and play.estimate is not None),
        statistics=int(broadcast.theta_hat is not None),
        everything=int(broadcast.scope == "all"),
        hessian=int(broadcast.hessian),
        loss=int(broadcast.loss),
        counted=0,
    )
    vector = _vector(parts, wire)
    if wire == "float32" and not np.isfinite(vector).all():
        raise FederationError(
            "theta or W_sync is too large for wire=float32, whose numbers end at 3e38: use"
            " wire=float64"
        )
    return vector, ask


def _vector(parts: Sequence[Array], wire: str) -> Vector:
    vector: Vector = np.concatenate(parts) if parts else np.empty(0)
    with np.errstate(over="ignore"):  # to infinity, which is refused where it is read
        return vector.astype(wire, copy=False)


def _matrix(packed: Vector, form: Form) -> Vector:
    matrix = form.unpack(packed.astype(np.float64, copy=False))
    return form.cover(matrix, _SINGLE) if packed.dtype == np.float32 else matrix


def decode_broadcast(vector: Vector, ask: BroadcastHeader, form: Form) -> Broadcast:
    """Undo :func:`encode_broadcast`, whatever its numbers were rounded to.

    Raises
    ------
    ValueError
        The vector is not of the length that the numbers call for, or holds no real numbers.
    """
    if vector.dtype not in {np.dtype(wire) for wire in WIRES}:
        raise ValueError(f"a broadcast of {vector.dtype} instead of {' or '.join(WIRES)}")
    d, size = form.dimension, _broadcast_size(form, bool(ask.statistics), bool(ask.estimate))
    if vector.shape != (size,):
        raise ValueError(f"a broadcast of {vector.shape} numbers; dimension={d} calls for {size}")
    if not np.isfinite(vector).all():
        raise ValueError("a broadcast with a number that is not finite")
    theta_hat, rest = np.split(vector.astype(np.float64, copy=False), [d * bool(ask.statistics)])
    play = None
    if ask.estimate:
        estimate = Estimate(rest[:d], _matrix(vector[-form.size :], form))
        play = PlayRequest(ask.first, ask.last, estimate)
    elif ask.last:
        play = PlayRequest(ask.first, ask.last)
    return Broadcast(
        play=play,
        theta_hat=theta_hat if ask.statistics else None,
        scope="all" if ask.everything else "fresh",
        hessian=bool(ask.hessian),
        loss=bool(ask.loss),
    )


def encode_upload(
    upload: Upload,
    broadcast: Broadcast,
    partition_id: int,
    num_partitions: int,
    wire: str = "float64",
) -> tuple[Vector, UploadHeader]:
    """Return one block's upload as a vector and numbers."""
    (regrets,) = upload.regrets
    answer = UploadHeader(
        num_duels=upload.num_duels,
        partition_id=partition_id,
        num_partitions=num_partitions,
        agents=regrets.agents,
        regret_first=regrets.first,
        regret=regrets.sums.tolist(),
    )
    return encode_statistics(upload, broadcast, wire), answer


def decode_upload(
    vector: Vector, answer: UploadHeader, broadcast: Broadcast, form: Form, wire: str = "float64"
) -> Upload:
    """Undo :func:`encode_upload`, refusing what cannot be a sum over duels.

    Raises
    ------
    UploadError
        The vector has a wrong shape or dtype or a number that is not finite, or the
        counts or the regret make no sense.
    """
    upload = decode_statistics(vector, answer.num_duels, broadcast, form, wire)
    return upload._replace(regrets=(_regrets(answer),))


def encode_statistics(upload: Upload, broadcast: Broadcast, wire: str = "float64") -> Vector:
    """Return what an upload says about duels as one vector: all of it but their number."""
    if broadcast.theta_hat is None:
        return _vector([], wire)
    form = form_of(upload.information)
    parts = [upload.gradient, form.pack(upload.information)]
    if upload.hessian is not None:
        parts.append(form.pack(upload.hessian))
    if upload.loss is not None:
        parts.append(np.array([upload.loss]))
    return _vector(parts, wire)


def decode_statistics(
    vector: Vector, num_duels: int, broadcast: Broadcast, form: Form, wire: str = "float64"
) -> Upload:
    """Undo :func:`encode_statistics`.

    Raises
    ------
    UploadError
        The vector has a wrong shape or dtype or a number that is not finite.
    """
    size, d = upload_size(broadcast, form), form.dimension
    if vector.dtype != np.dtype(wire):
        raise UploadError(f"dtype {vector.dtype} instead of {wire}")
    if vector.shape != (size,):
        raise UploadError(f"shape {vector.shape} instead of {(size,)}")
    numbers = vector.astype(np.float64, copy=False)
    with np.errstate(over="ignore", invalid="ignore"):  # no warning besides the refusal
        square = float(numbers @ numbers)  # one fast pass; overflow counts too
    if not math.isfinite(square):
        raise UploadError("a number that is not finite, or too large to square")
    if broadcast.theta_hat is None:
        return Upload(num_duels, np.zeros(d), form.zeros(), None, None, ())
    end = d + form.size
    information, hessian = _matrix(vector[d:end], form), None
    if broadcast.hessian:
        start, end = end, end + form.size
        hessian = _matrix(vector[start:end], form)
    return Upload(
        num_duels=num_duels,
        gradient=numbers[:d],
        information=information,
        hessian=hessian,
        loss=float(vector[end]) if broadcast.loss else None,
        regrets=(),
    )


def _regrets(answer: UploadHeader) -> Regrets:
    if min(answer.num_duels, answer.agents, answer.regret_first - 1) < 0:
        raise UploadError(f"counts that make no sense: {answer[:-1]}")
    # `0 <= x < inf` is false for NaN as well.
    if not all(0.0 <= number < math.inf for number in answer.regret):
        raise UploadError("a regret that is negative or not finite")
    return Regrets(answer.regret_first, answer.agents, np.array(answer.regret))
