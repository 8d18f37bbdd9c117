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
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fldb_flower.federation import Broadcast, Play, Regrets, Upload

Vector = NDArray[np.float64]
Numbers = dict[str, Any]
"""Names to int, float, str or list of float: what every transport can carry."""

_NUMBER_BYTES = 8
_PSD_TOLERANCE = 1e-9


class UploadError(Exception):
    """An upload that must not be counted, with one reason."""


@functools.lru_cache
def _triangle(d: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    rows, columns = np.triu_indices(d)
    return rows, columns


def pack_symmetric(matrix: NDArray[np.float64]) -> Vector:
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


def encode_broadcast(broadcast: Broadcast) -> tuple[Vector, Numbers]:
    """Return a broadcast as a vector and numbers; see the module's text for the layout."""
    play, parts = broadcast.play, []
    if broadcast.theta_hat is not None:
        parts.append(broadcast.theta_hat)
    estimate = play is not None and play.theta_sync is not None
    if play is not None and estimate:
        parts += [play.theta_sync, pack_symmetric(play.information)]
    numbers: Numbers = {
        "first": 0 if play is None else play.first,
        "last": 0 if play is None else play.last,
        "estimate": int(estimate),
        "statistics": int(broadcast.theta_hat is not None),
        "scope": broadcast.scope,
        "hessian": int(broadcast.hessian),
        "loss": int(broadcast.loss),
    }
    return np.concatenate(parts) if parts else np.empty(0), numbers


def decode_broadcast(vector: Vector, numbers: Mapping[str, Any], d: int) -> Broadcast:
    """Undo :func:`encode_broadcast`.

    Raises
    ------
    ValueError
        The vector is not of the length that the numbers call for.
    """
    theta_hat = vector[:d] if numbers["statistics"] else None
    rest = vector[d:] if numbers["statistics"] else vector
    play = None
    if numbers["last"]:
        first, last = int(numbers["first"]), int(numbers["last"])
        if numbers["estimate"]:
            play = Play(first, last, rest[:d], unpack_symmetric(rest[d : d + _matrix_size(d)], d))
        else:
            play = Play(first, last)
    scope = "all" if numbers["scope"] == "all" else "fresh"
    broadcast = Broadcast(
        play, theta_hat, scope, hessian=bool(numbers["hessian"]), loss=bool(numbers["loss"])
    )
    if vector.shape != (broadcast_size(broadcast, d),):
        raise ValueError(
            f"a broadcast of {vector.shape} numbers; dimension={d} calls for"
            f" {broadcast_size(broadcast, d)}"
        )
    return broadcast


def encode_upload(upload: Upload, broadcast: Broadcast) -> tuple[Vector, Numbers]:
    """Return one block's upload as a vector and numbers."""
    (regrets,) = upload.regrets
    numbers: Numbers = {
        "num_duels": upload.num_duels,
        "regret_first": regrets.first,
        "regret_agents": regrets.agents,
        "regret": regrets.sums.tolist(),
    }
    if broadcast.theta_hat is None:
        return np.empty(0), numbers
    parts = [upload.gradient, pack_symmetric(upload.information)]
    if upload.hessian is not None:
        parts.append(pack_symmetric(upload.hessian))
    if upload.loss is not None:
        parts.append(np.array([upload.loss]))
    return np.concatenate(parts), numbers


def decode_upload(
    vector: Vector, numbers: Mapping[str, Any], broadcast: Broadcast, d: int
) -> Upload:
    """Undo :func:`encode_upload`, refusing what cannot be a sum over duels.

    Raises
    ------
    UploadError
        The vector has a wrong shape or dtype or a number that is not finite, or a
        count or the regret makes no sense.
    """
    size = upload_size(broadcast, d)
    if vector.dtype != np.float64:
        raise UploadError(f"dtype {vector.dtype} instead of float64")
    if vector.shape != (size,):
        raise UploadError(f"shape {vector.shape} instead of {(size,)}")
    if size and not math.isfinite(float(vector @ vector)):  # one fast pass; overflow counts too
        raise UploadError("a number that is not finite, or too large to square")
    num_duels, regrets = _counts(numbers)
    if broadcast.theta_hat is None:
        return Upload(num_duels, np.zeros(d), np.zeros((d, d)), None, None, (regrets,))
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
        regrets=(regrets,),
    )


def _counts(numbers: Mapping[str, Any]) -> tuple[int, Regrets]:
    try:
        num_duels, first = int(numbers["num_duels"]), int(numbers["regret_first"])
        agents, sums = int(numbers["regret_agents"]), np.array(numbers["regret"], dtype=np.float64)
    except (KeyError, TypeError, ValueError) as error:
        raise UploadError(f"no usable counts: {error!r}") from None
    if num_duels < 0 or first < 1 or agents < 0 or sums.ndim != 1:
        raise UploadError("counts that make no sense")
    if not (np.isfinite(sums).all() and (sums >= 0).all()):
        raise UploadError("a regret that is negative or not finite")
    return num_duels, Regrets(first, agents, sums)


def indefinite(uploads: Sequence[Upload]) -> list[str]:
    """Name, for each upload, a matrix that is not positive semi-definite; "" if all are."""
    names = ["W_new"] + (["Hessian"] if uploads and uploads[0].hessian is not None else [])
    matrices = np.array(
        [[u.information] if u.hessian is None else [u.information, u.hessian] for u in uploads]
    )
    lowest = np.linalg.eigvalsh(matrices)[..., 0]  # (uploads, matrices)
    allowed = -_PSD_TOLERANCE * np.abs(np.trace(matrices, axis1=-2, axis2=-1))
    bad = lowest < allowed
    return [next((name for name, is_bad in zip(names, row, strict=True) if is_bad), "") for row in bad]
