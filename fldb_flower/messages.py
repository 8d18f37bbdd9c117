"""What travels: broadcasts and uploads as one float64 vector each, and a few numbers.

Parsing array headers is most of a small message's cost, so each message holds one array.
Symmetric matrices travel as their upper triangle: half the bytes, and no upload can be
asymmetric. Nothing here knows Flower; nothing here is unpickled.

Broadcast vector: theta_hat (d) if statistics are wanted; then theta_sync (d) and the triangle
of W_sync (d (d + 1) / 2) if agents play with the server's estimate.
Upload vector: gradient (d) and the triangle of W_new; then the Hessian's triangle and
the loss (1), each where the broadcast asked for it. Empty if no statistics were wanted.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fldb_flower.arrays import Array
from fldb_flower.federation import Broadcast, Play, Regrets, Upload

Vector = NDArray[np.float64]

_NUMBER_BYTES = 8


class Ask(NamedTuple):
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


class Answer(NamedTuple):
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
    def from_numbers(cls, numbers: Sequence[float]) -> Answer:
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


@functools.lru_cache
def _triangle(d: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    rows, columns = np.triu_indices(d)
    return rows, columns


def pack_symmetric(matrix: Array) -> Vector:
    """Return the upper triangle of symmetric matrices: (..., d, d) -> (..., d (d + 1) / 2)."""
    rows, columns = _triangle(matrix.shape[-1])
    packed: Vector = matrix[..., rows, columns]
    return packed


def unpack_symmetric(packed: Vector, d: int) -> NDArray[np.float64]:
    """Undo :func:`pack_symmetric`: (..., d (d + 1) / 2) -> (..., d, d)."""
    rows, columns = _triangle(d)
    matrix = np.empty((*packed.shape[:-1], d, d))
    matrix[..., rows, columns] = packed
    matrix[..., columns, rows] = packed
    return matrix


def _matrix_size(d: int) -> int:
    return d * (d + 1) // 2


def broadcast_size(broadcast: Broadcast, d: int) -> int:
    """Return how many numbers the broadcast's vector holds."""
    play = broadcast.play
    estimate = 0 if play is None or play.theta_sync is None else d + _matrix_size(d)
    return estimate + (d if broadcast.theta_hat is not None else 0)


def upload_size(broadcast: Broadcast, d: int) -> int:
    """Return how many numbers the answer's vector holds."""
    if broadcast.theta_hat is None:
        return 0
    return d + _matrix_size(d) * (1 + broadcast.hessian) + broadcast.loss


def traffic(broadcast: Broadcast, d: int, messages: int) -> tuple[int, int]:
    """Return the bytes that ``messages`` answers and as many broadcasts hold."""
    up, down = upload_size(broadcast, d), broadcast_size(broadcast, d)
    return messages * up * _NUMBER_BYTES, messages * down * _NUMBER_BYTES


def encode_broadcast(broadcast: Broadcast) -> tuple[Vector, Ask]:
    """Return a broadcast as a vector and whole numbers, nothing acknowledged yet."""
    play, parts = broadcast.play, []
    if broadcast.theta_hat is not None:
        parts.append(broadcast.theta_hat)
    if play is not None and play.theta_sync is not None:
        parts += [play.theta_sync, pack_symmetric(play.information)]
    ask = Ask(
        first=0 if play is None else play.first,
        last=0 if play is None else play.last,
        estimate=int(play is not None and play.theta_sync is not None),
        statistics=int(broadcast.theta_hat is not None),
        everything=int(broadcast.scope == "all"),
        hessian=int(broadcast.hessian),
        loss=int(broadcast.loss),
        counted=0,
    )
    return np.concatenate(parts) if parts else np.empty(0), ask


def decode_broadcast(vector: Vector, ask: Ask, d: int) -> Broadcast:
    """Undo :func:`encode_broadcast`.

    Raises
    ------
    ValueError
        The vector is not of the length that the numbers call for.
    """
    theta_hat = vector[:d] if ask.statistics else None
    rest = vector[d:] if ask.statistics else vector
    play = None
    if ask.estimate:
        information = unpack_symmetric(rest[d : d + _matrix_size(d)], d)
        play = Play(ask.first, ask.last, rest[:d], information)
    elif ask.last:
        play = Play(ask.first, ask.last)
    broadcast = Broadcast(
        play=play,
        theta_hat=theta_hat,
        scope="all" if ask.everything else "fresh",
        hessian=bool(ask.hessian),
        loss=bool(ask.loss),
    )
    if vector.shape != (broadcast_size(broadcast, d),):
        raise ValueError(
            f"a broadcast of {vector.shape} numbers; dimension={d} calls for"
            f" {broadcast_size(broadcast, d)}"
        )
    return broadcast


def encode_upload(
    upload: Upload, broadcast: Broadcast, partition_id: int, num_partitions: int
) -> tuple[Vector, Answer]:
    """Return one block's upload as a vector and numbers."""
    (regrets,) = upload.regrets
    answer = Answer(
        num_duels=upload.num_duels,
        partition_id=partition_id,
        num_partitions=num_partitions,
        agents=regrets.agents,
        regret_first=regrets.first,
        regret=regrets.sums.tolist(),
    )
    return encode_statistics(upload, broadcast), answer


def decode_upload(vector: Vector, answer: Answer, broadcast: Broadcast, d: int) -> Upload:
    """Undo :func:`encode_upload`, refusing what cannot be a sum over duels.

    Raises
    ------
    UploadError
        The vector has a wrong shape or dtype or a number that is not finite, or the
        counts or the regret make no sense.
    """
    upload = decode_statistics(vector, answer.num_duels, broadcast, d)
    return upload._replace(regrets=(_regrets(answer),))


def encode_statistics(upload: Upload, broadcast: Broadcast) -> Vector:
    """Return what an upload says about duels as one vector: all of it but their number."""
    if broadcast.theta_hat is None:
        return np.empty(0)
    parts = [upload.gradient, pack_symmetric(upload.information)]
    if upload.hessian is not None:
        parts.append(pack_symmetric(upload.hessian))
    if upload.loss is not None:
        parts.append(np.array([upload.loss]))
    return np.concatenate(parts)


def decode_statistics(vector: Vector, num_duels: int, broadcast: Broadcast, d: int) -> Upload:
    """Undo :func:`encode_statistics`.

    Raises
    ------
    UploadError
        The vector has a wrong shape or dtype or a number that is not finite.
    """
    size = upload_size(broadcast, d)
    if vector.dtype != np.float64:
        raise UploadError(f"dtype {vector.dtype} instead of float64")
    if vector.shape != (size,):
        raise UploadError(f"shape {vector.shape} instead of {(size,)}")
    with np.errstate(over="ignore", invalid="ignore"):  # no warning besides the refusal
        square = float(vector @ vector)  # one fast pass; overflow counts too
    if not math.isfinite(square):
        raise UploadError("a number that is not finite, or too large to square")
    if broadcast.theta_hat is None:
        return Upload(num_duels, np.zeros(d), np.zeros((d, d)), None, None, ())
    end = d + _matrix_size(d)
    hessian = None
    if broadcast.hessian:
        start, end = end, end + _matrix_size(d)
        hessian = unpack_symmetric(vector[start:end], d)
    return Upload(
        num_duels=num_duels,
        gradient=vector[:d],
        information=unpack_symmetric(vector[d : d + _matrix_size(d)], d),
        hessian=hessian,
        loss=float(vector[end]) if broadcast.loss else None,
        regrets=(),
    )


def _regrets(answer: Answer) -> Regrets:
    if min(answer.num_duels, answer.agents, answer.regret_first - 1) < 0:
        raise UploadError(f"counts that make no sense: {answer[:-1]}")
    # `0 <= x < inf` is false for NaN as well.
    if not all(0.0 <= number < math.inf for number in answer.regret):
        raise UploadError("a regret that is negative or not finite")
    return Regrets(answer.regret_first, answer.agents, np.array(answer.regret))


def pack_arrays(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return named arrays as bytes, for a state that is read and written with each message."""
    layout = tuple((name, array.dtype.str, array.shape) for name, array in arrays.items())
    return b"".join([_layout_header(layout), *(array.tobytes() for array in arrays.values())])


@functools.lru_cache(maxsize=64)
def _layout_header(layout: tuple[tuple[str, str, tuple[int, ...]], ...]) -> bytes:
    header = json.dumps(layout).encode()
    return len(header).to_bytes(8, "little") + header


def unpack_arrays(data: bytes) -> dict[str, NDArray[Any]]:
    """Undo :func:`pack_arrays`; the arrays are read-only views of ``data``."""
    start = 8 + int.from_bytes(data[:8], "little")
    arrays = {}
    for name, dtype, shape in json.loads(data[8:start]):
        array = np.frombuffer(data, dtype, math.prod(shape), start).reshape(shape)
        arrays[name] = array
        start += array.nbytes
    return arrays
