"""Uploads as the numbers of a secure sum, with the bounds that determine their scales.

The numbers are the vector of :mod:`fldb_flower.wire.codec`, symmetric matrices as triangles, and
the number of duels. For n duels with differences of length at most L, an agent has::

    |g_j| <= n L,    |W_jk| <= n L^2,    |H_jk| <= n L^2 / 4,    loss <= n log(1 + e^(L |theta|))

and with FLDB-Personal (:mod:`fldb_flower.federation.share_bounds`)::

    |change of M_jk| <= 1 / v_0,    |change of m| <= 2 r(v_0)
    excess loss <= n,    squares <= n L^2
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from fldb_flower.bandit.prior import MAX_EXCESS, VARIANCES, CommonPrior, longest_shift, scale_of
from fldb_flower.errors import SettingsError
from fldb_flower.federation.exchange import Broadcast, Noise, Upload
from fldb_flower.federation.plausibility import implausible
from fldb_flower.federation.share_bounds import DRIFT, implausible_shares
from fldb_flower.linalg.arrays import FloatArray
from fldb_flower.linalg.forms import Form, Sketch
from fldb_flower.secure.encoding import Block, Encoding
from fldb_flower.wire.codec import decode_statistics, encode_statistics

INFORMATION, HESSIAN = "W_new", "the Hessian"
"""Names of the blocks of matrices."""

PARTS = {
    "the gradient": "gradient",
    INFORMATION: "information",
    HESSIAN: "hessian",
    "the loss": "loss",
    "the change of m": "shift",
    "the change of M": "precision",
    "the log losses": "losses",
}
"""Parts of :class:`~fldb_flower.federation.exchange.Noise` by names of blocks."""

MATRICES = {INFORMATION, HESSIAN, "the change of M"}
"""Names of blocks of matrices, as triangles or diagonals."""

ROOM = 12.0
"""Room for noise in the bounds of numbers, in standard deviations."""

_SLACK = 1.0 + 1e-6  # for rounding errors of an upload


def blocks_of(
    broadcast: Broadcast,
    form: Form,
    *,
    answers: int,
    longest: float,
    ridge: float = 1.0,
    agents: int = 1,
) -> tuple[Block, ...]:
    """Return the blocks of the numbers of one upload.

    Parameters
    ----------
    broadcast : Broadcast
        The request. With shares it has a prior and a positive ``lowest_variance``, v_0.
    form : Form
        Form of W_new and the Hessian: full or diagonal.
    answers : int
        Largest number of duels of an agent in the upload, n.
    longest : float
        L, an upper bound of the length of differences.
    ridge : float
        The setting ``personal_ridge``.
    agents : int
        How many agents the upload sums over at most.

    Raises
    ------
    SettingsError
        L is not finite, or the form is a sketch.
    """
    if isinstance(form, Sketch):
        raise SettingsError("secure sums need matrix_form=full or diagonal: sketches are not sums")
    if not 0.0 < longest < math.inf:
        raise SettingsError(
            f"secure sums need max_difference, the largest length of a difference: it is {longest}"
        )
    duels = agents * answers
    if broadcast.shares:
        blocks = _of_shares(broadcast, form, duels, longest, ridge, agents)
    else:
        blocks = _of_statistics(broadcast, form, duels, longest)
    return (*blocks, Block("the number of duels", 1, duels, is_count=True))


def _of_statistics(broadcast: Broadcast, form: Form, duels: int, longest: float) -> list[Block]:
    theta = broadcast.theta_hat
    if theta is None:
        return []
    most = _SLACK * duels
    with np.errstate(over="ignore"):
        logit = longest * float(np.linalg.norm(theta))
    if not logit < math.inf:
        raise SettingsError("secure sums need an estimate and max_difference with finite products")
    blocks = [
        Block("the gradient", form.dimension, most * longest),
        Block(INFORMATION, form.size, most * longest**2),
    ]
    if broadcast.hessian:
        blocks.append(Block(HESSIAN, form.size, most * longest**2 / 4.0))
    if broadcast.loss:
        blocks.append(Block("the loss", 1, most * float(np.logaddexp(0.0, logit))))
    return blocks


def _of_shares(  # noqa: PLR0917
    broadcast: Broadcast, form: Form, duels: int, longest: float, ridge: float, agents: int
) -> list[Block]:
    assert broadcast.play is not None
    prior = broadcast.play.estimate
    assert isinstance(prior, CommonPrior)
    # Until the server knows the scale, an agent uses that of its own arms.
    scale = DRIFT * (prior.scale or float(scale_of(longest**2)))
    variance = broadcast.lowest_variance / scale
    shift = 2.0 * longest_shift(form.dimension, ridge * scale, variance)
    most = _SLACK * duels
    return [
        Block("the change of m", form.dimension, _SLACK * agents * float(shift)),
        Block("the change of M", form.size, _SLACK * agents / variance),
        Block("the log losses", len(VARIANCES), most * MAX_EXCESS),
        Block("the squared length of differences", 1, most * longest**2),
        Block("the change of members", 1, agents, is_count=True),
    ]


def with_room(
    blocks: tuple[Block, ...], noise: Noise, multiplier: float, *, is_limited: bool
) -> tuple[Block, ...]:
    """Return blocks with room for the noise of a whole sum at each device.

    It is :data:`ROOM` standard deviations, also if a device assumes that no other one adds noise.
    A number then exceeds its bound with probability 4e-33, and less with others.

    Parameters
    ----------
    blocks : tuple of Block
        Of :func:`blocks_of`.
    noise : Noise
        Standard deviations of the noise of the sum.
    multiplier : float
        The noise multiplier.
    is_limited : bool
        Whether each device limits its parts to ``noise / multiplier``.
    """
    roomy = []
    for block in blocks:
        if deviation := getattr(noise, PARTS.get(block.name, ""), 0.0):
            bound = deviation / multiplier if is_limited else block.bound
            block = replace(block, bound=bound + ROOM * deviation)  # noqa: PLW2901
        roomy.append(block)
    return tuple(roomy)


def deviations_of(noise: Noise, encoding: Encoding) -> FloatArray:
    """Return the standard deviation of the noise of each number, (n,); 0 for counts.

    Off-diagonal entries of matrices have ``1 / sqrt(2)`` of it, see
    :class:`~fldb_flower.federation.exchange.Noise`.
    """
    parts = []
    for block in encoding.blocks:
        each = np.full(block.size, getattr(noise, PARTS.get(block.name, ""), 0.0))
        d = encoding.blocks[0].size
        if block.name in MATRICES and block.size > d:  # a triangle
            rows, columns = np.triu_indices(d)
            each[rows != columns] *= math.sqrt(0.5)
        parts.append(each)
    return np.concatenate(parts)


def numbers_of(upload: Upload, broadcast: Broadcast) -> FloatArray:
    """Return an upload as the numbers of :func:`blocks_of`; outcomes are left out."""
    return np.append(encode_statistics(upload, broadcast), float(upload.num_duels))


def upload_of(numbers: FloatArray, broadcast: Broadcast, form: Form) -> Upload:
    """Invert :func:`numbers_of`.

    Raises
    ------
    UploadError
        There are more or fewer numbers, or one is too large to square.
    """
    return decode_statistics(numbers[:-1], int(numbers[-1]), broadcast, form)


def implausible_sum(
    upload: Upload,
    broadcast: Broadcast,
    encoding: Encoding,
    uploads: int,
    *,
    agents: int,
    answers: int,
    longest: float,
    ridge: float,
    weighted: bool = False,
) -> str:
    """Return the first bound that a sum of uploads violates, or "" if there is none.

    Parameters
    ----------
    upload : Upload
        The sum.
    broadcast : Broadcast
        The request.
    encoding : Encoding
        That of one upload; it determines the rounding errors.
    uploads : int
        How many uploads were added.
    agents, answers : int
        The number of agents, and of all their answers so far.
    longest : float
        L, an upper bound of the length of differences.
    ridge : float
        The setting ``personal_ridge``.
    weighted : bool
        See :func:`~fldb_flower.federation.plausibility.implausible`.
    """
    if broadcast.shares:
        reasons = implausible_shares(
            [upload], [answers], broadcast, ridge=ridge, longest=longest, agents=[agents]
        )
    else:
        error = _matrix_error(encoding, uploads)
        reasons = implausible([upload], broadcast, longest, error=error, weighted=weighted)
    return reasons[0]


def _matrix_error(encoding: Encoding, count: int) -> float:
    """Return the largest rounding error of a matrix entry in the sum of ``count`` uploads."""
    each = zip(encoding.blocks, encoding.exponents, strict=True)
    matrices = (INFORMATION, HESSIAN)
    quanta = [math.ldexp(1.0, -exponent) for block, exponent in each if block.name in matrices]
    return count * max(quanta, default=0.0) / 2.0
