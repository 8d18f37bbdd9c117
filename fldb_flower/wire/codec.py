"""Broadcasts and uploads as one vector and one header of integers each.

Parsing array headers is most of the cost of a small message, so a message holds a single array.
Symmetric matrices travel as their upper triangle, or in another form of
:mod:`fldb_flower.linalg.forms`: half the bytes, and an upload cannot be asymmetric. This module
does not import Flower, and nothing is unpickled.

Broadcast vector: theta_hat (d) if statistics are requested; then theta_sync (d) and the triangle
of W_sync (d (d + 1) / 2) if agents select arms with the server's estimate. With FLDB-Personal: c
(d), the triangle of the sum of M_i, v and the scale.
Upload vector: gradient (d) and the triangle of W_new; then the Hessian's triangle and
the loss (1), each if the broadcast requests it. Empty if no statistics are requested. With
FLDB-Personal: the changes of c (d) and of the sum of M_i (triangle), 11 log losses, the squares
and the members.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fldb_flower.bandit.duels import OUTCOMES
from fldb_flower.bandit.estimate import VARIANCES, CommonPrior, Estimate, ShareChange
from fldb_flower.errors import DataError
from fldb_flower.federation.exchange import Broadcast, Outcomes, PlayRequest, Upload
from fldb_flower.linalg.arrays import Array, FloatArray
from fldb_flower.linalg.forms import Form, pack, pack_symmetric

_COMMON, _PERSONAL = 1, 2  # kinds of estimates and statistics
_PRIOR_NUMBERS, _SHARE_NUMBERS = 2, 2  # v and scale; squares and members
_LARGEST_COUNT = 2**53  # sums of many counts still fit into the 64 bits of Flower's integers


class BroadcastHeader(NamedTuple):
    """The integers that describe a broadcast's vector.

    Attributes
    ----------
    first, last : int
        Iterations to play; both 0 if the broadcast asks about the same duels again.
    estimate : int
        1 if the vector holds theta_sync and W_sync, 2 if it holds a prior.
    statistics : int
        1 if the vector holds theta_hat, 2 if changes of shares are requested.
    everything, hessian, loss : int
        1 if statistics are requested over all duels, with the Hessian, with the loss.
    """

    first: int
    last: int
    estimate: int
    statistics: int
    everything: int
    hessian: int
    loss: int

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> BroadcastHeader:
        """Read the ``header`` of a broadcast's ConfigRecord.

        Raises
        ------
        DataError
            It is missing, or not a header of this version.
        """
        try:
            header = cls(*check_counts(config["header"], len(cls._fields)))
        except (KeyError, TypeError, ValueError):
            raise DataError(
                "the server's broadcast has another format: the server and this node use different"
                " versions of fldb-flower; nothing was sent"
            ) from None
        if max(header.estimate, header.statistics) > _PERSONAL or max(header[4:]) > 1:
            raise DataError(f"the server's broadcast has the header {list(header)}: not known")
        return header


class UploadHeader(NamedTuple):
    """The integers that describe an upload of simulated agents.

    Attributes
    ----------
    num_duels : int
        Duels summed over.
    partition_id, num_partitions : int
        Index of the block of agents, and the number of blocks.
    agents, first : int
        Agents that the outcomes are summed over, and their first iteration.
    """

    num_duels: int
    partition_id: int
    num_partitions: int
    agents: int
    first: int

    @classmethod
    def from_counts(cls, numbers: Any) -> UploadHeader:
        """Check the numbers of a reply; see :func:`check_counts`."""
        return cls._make(check_counts(numbers, len(cls._fields)))


def check_counts(numbers: Any, length: int) -> list[int]:
    """Return the numbers of a reply if they are ``length`` counts.

    Raises
    ------
    TypeError, ValueError
        They are not integers from 0 to 2^53, or not as many.
    """
    if len(numbers) != length:
        raise ValueError(f"{len(numbers)} counts instead of {length}")
    for number in numbers:
        if type(number) is not int or number < 0:
            raise ValueError(f"{number!r} is not a count")
        if number > _LARGEST_COUNT:
            raise ValueError(f"a count above {_LARGEST_COUNT}")
    return list(numbers)


class UploadError(Exception):
    """A reply that must not be counted, with the reason."""

    is_final: bool = False
    """Whether the node would reply the same if it were asked again."""

    @classmethod
    def malformed(cls, error: Exception) -> UploadError:
        """Return the error for a reply that cannot be parsed."""
        return cls(f"not an upload of this version of fldb-flower: {error!r}")


def broadcast_size(broadcast: Broadcast, form: Form) -> int:
    """Return how many numbers the broadcast's vector holds."""
    return _broadcast_size(form, _header(broadcast))


def _broadcast_size(form: Form, header: BroadcastHeader) -> int:
    size = form.dimension if header.statistics == _COMMON else 0
    if header.estimate:
        size += form.dimension + form.size + _PRIOR_NUMBERS * (header.estimate == _PERSONAL)
    return size


def upload_size(broadcast: Broadcast, form: Form) -> int:
    """Return how many numbers the upload's vector holds."""
    if broadcast.shares:
        return form.dimension + form.size + len(VARIANCES) + _SHARE_NUMBERS
    if broadcast.theta_hat is None:
        return 0
    return form.dimension + form.size * (1 + broadcast.hessian) + broadcast.loss


def traffic(broadcast: Broadcast, form: Form, agents: int = 1) -> tuple[int, int]:
    """Return the bytes of the vectors of ``agents`` uploads, and of as many broadcasts.

    One message per agent and direction is counted, whichever nodes host the agents.
    """
    each = agents * 8
    return upload_size(broadcast, form) * each, broadcast_size(broadcast, form) * each


def encode_broadcast(broadcast: Broadcast) -> tuple[FloatArray, BroadcastHeader]:
    """Return a broadcast as a vector, and its header."""
    play, parts = broadcast.play, []
    if broadcast.theta_hat is not None:
        parts.append(broadcast.theta_hat)
    estimate = None if play is None else play.estimate
    if isinstance(estimate, CommonPrior):
        numbers = np.array([estimate.variance, estimate.scale])
        parts += [estimate.shift, pack_symmetric(estimate.precision), numbers]
    elif estimate is not None:
        information = estimate.information
        parts += [estimate.theta_sync, pack(information)]
    return _vector(parts), _header(broadcast)


def _header(broadcast: Broadcast) -> BroadcastHeader:
    play = broadcast.play
    estimate = None if play is None else play.estimate
    kind = _PERSONAL if isinstance(estimate, CommonPrior) else _COMMON
    return BroadcastHeader(
        first=0 if play is None else play.first,
        last=0 if play is None else play.last,
        estimate=0 if estimate is None else kind,
        statistics=_PERSONAL if broadcast.shares else int(broadcast.theta_hat is not None),
        everything=int(broadcast.scope == "all"),
        hessian=int(broadcast.hessian),
        loss=int(broadcast.loss),
    )


def _vector(parts: Sequence[Array]) -> FloatArray:
    return np.concatenate(parts) if parts else np.empty(0)


def decode_broadcast(vector: FloatArray, header: BroadcastHeader, form: Form) -> Broadcast:
    """Invert :func:`encode_broadcast`.

    Raises
    ------
    ValueError
        The vector has another length than the header implies, or holds no finite real numbers.
    """
    if vector.dtype != np.float64:
        raise ValueError(f"a broadcast of {vector.dtype} instead of float64")
    d, size = form.dimension, _broadcast_size(form, header)
    if vector.shape != (size,):
        raise ValueError(f"a broadcast of shape {vector.shape}; dimension={d} implies {(size,)}")
    if not np.isfinite(vector).all():
        raise ValueError("a broadcast with a number that is not finite")
    has_theta = header.statistics == _COMMON
    theta_hat, rest = np.split(vector, [d * has_theta])
    estimate: Estimate | CommonPrior | None = None
    if header.estimate == _PERSONAL:
        variance, scale = rest[-_PRIOR_NUMBERS:].tolist()
        if not (variance > 0.0 and scale >= 0.0):
            raise ValueError(f"a prior with v={variance:g} and scale={scale:g}")
        precision = form.unpack(rest[d:-_PRIOR_NUMBERS])
        estimate = CommonPrior(precision, rest[:d], variance, scale)
    elif header.estimate:
        estimate = Estimate(rest[:d], form.unpack(rest[d:]))
    plays = header.estimate or header.last
    return Broadcast(
        play=PlayRequest(header.first, header.last, estimate) if plays else None,
        theta_hat=theta_hat if has_theta else None,
        shares=header.statistics == _PERSONAL,
        scope="all" if header.everything else "fresh",
        hessian=bool(header.hessian),
        loss=bool(header.loss),
    )


def encode_upload(
    upload: Upload,
    broadcast: Broadcast,
    partition_id: int,
    num_partitions: int,
) -> tuple[FloatArray, UploadHeader]:
    """Return the upload of one block of agents as a vector and its header.

    The outcomes of each iteration travel beside them.
    """
    (outcomes,) = upload.outcomes
    header = UploadHeader(
        upload.num_duels, partition_id, num_partitions, outcomes.agents, outcomes.first
    )
    return encode_statistics(upload, broadcast), header


def decode_upload(
    vector: FloatArray,
    header: UploadHeader,
    outcomes: Sequence[float],
    broadcast: Broadcast,
    form: Form,
) -> Upload:
    """Invert :func:`encode_upload`, and refuse what cannot be a sum over duels.

    Raises
    ------
    UploadError
        The vector has another shape or dtype or a number that is not finite, or the
        outcomes are not sums over the header's agents.
    """
    upload = decode_statistics(vector, header.num_duels, broadcast, form)
    return upload._replace(outcomes=(decode_outcomes(header, outcomes),))


def decode_outcomes(header: UploadHeader, outcomes: Sequence[float]) -> Outcomes:
    """Return the outcomes of an upload.

    Raises
    ------
    UploadError
        They are not sums over the header's agents.
    """
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


def encode_statistics(upload: Upload, broadcast: Broadcast) -> FloatArray:
    """Return the statistics of an upload as one vector."""
    if upload.shares is not None:
        change = upload.shares
        numbers = np.array([change.squares, change.members])
        return _vector([change.shift, pack_symmetric(change.precision), change.losses, numbers])
    if broadcast.theta_hat is None:
        return _vector([])
    parts = [upload.gradient, pack(upload.information)]
    if upload.hessian is not None:
        parts.append(pack(upload.hessian))
    if upload.loss is not None:
        parts.append(np.array([upload.loss]))
    return _vector(parts)


def decode_statistics(
    vector: FloatArray, num_duels: int, broadcast: Broadcast, form: Form
) -> Upload:
    """Invert :func:`encode_statistics`.

    Raises
    ------
    UploadError
        The vector has a wrong shape or dtype or a number that is not finite.
    """
    size, d = upload_size(broadcast, form), form.dimension
    if vector.dtype != np.float64:
        raise UploadError(f"dtype {vector.dtype} instead of float64")
    if vector.shape != (size,):
        raise UploadError(f"shape {vector.shape} instead of {(size,)}")
    with np.errstate(over="ignore", invalid="ignore"):  # raised below as an error
        square = float(vector @ vector)  # one fast pass, which overflow fails too
    if not math.isfinite(square):
        raise UploadError("a number that is not finite, or too large to square")
    end = d + form.size
    if broadcast.shares:
        precision = form.unpack(vector[d:end])
        losses, rest = np.split(vector[end:], [-_SHARE_NUMBERS])
        change = ShareChange(precision, vector[:d], losses, *rest.tolist())
        return Upload(num_duels, np.zeros(d), form.zeros(), None, None, (), change)
    if broadcast.theta_hat is None:
        return Upload(num_duels, np.zeros(d), form.zeros(), None, None, ())
    information, hessian = form.unpack(vector[d:end]), None
    if broadcast.hessian:
        start, end = end, end + form.size
        hessian = form.unpack(vector[start:end])
    return Upload(
        num_duels=num_duels,
        gradient=vector[:d],
        information=information,
        hessian=hessian,
        loss=float(vector[end]) if broadcast.loss else None,
        outcomes=(),
    )
