r"""Packed secret sharing: a vector in c pieces, of which any U give it back and any R nothing.

A polynomial of degree below U packs ``l = U - R`` numbers: it takes them at the points
``c + 1, ..., c + l``. Its values at the points ``1, ..., R`` are random; those at ``1, ..., c`` are
the pieces of the members of a committee. The polynomial is determined by any U of its values, and
the pieces of any R members are uniform and independent of the numbers. A sum of pieces is a piece
of the sum.

**Why R and not T random rows.** Any piece above the number of random rows gives away one linear
equation about the numbers. A server with T members on its side that shows one set of devices to
some honest members, and another set to the others, collects at most ``c + T`` pieces of the two
sums. With ``R = (c + T) // 2`` at most one of the sums has more than R pieces. The other sum stays
uniform, and with it each vector that is in one of the sets only.

**Short pieces.** The first R members' pieces are random, so 32 bytes of seed stand for each
(:meth:`Scheme.messages`), as in the share compression of Prio.

The pieces are pseudorandom: what is stated above holds for a server that cannot distinguish
AES-256 in counter mode from random bits.

References
----------
M. Franklin and M. Yung, "Communication complexity of secure computation", STOC 1992.
H. Corrigan-Gibbs and D. Boneh, "Prio: private, robust, and scalable computation of aggregate
statistics", NSDI 2017.
W. W. Peterson, "Encoding and error-correction procedures for the Bose-Chaudhuri codes", IRE
Transactions on Information Theory 6, 1960.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fldb_flower.errors import SecureError, SettingsError
from fldb_flower.secure import field
from fldb_flower.secure.field import Elements

LEAST_COMMITTEE, LARGEST_COMMITTEE = 5, 256
"""Bounds of c."""


@dataclass(frozen=True)
class Scheme:
    """Sizes of a packed secret sharing; :meth:`of` returns those of a committee.

    Members are numbered from 0, in the order of the committee.

    Attributes
    ----------
    committee : int
        c, the number of members.
    needed : int
        U, the number of pieces that determine the numbers.
    random_rows : int
        R, the number of pieces that are independent of the numbers.
    tolerated : int
        T, the number of members that may cooperate with the server.

    Examples
    --------
    >>> import numpy as np
    >>> from fldb_flower.secure.sharing import Scheme
    >>> scheme = Scheme.of(10)
    >>> scheme
    Scheme(committee=10, needed=8, random_rows=6, tolerated=2)
    >>> numbers = np.array([3, 1, 4, 1, 5], dtype=np.uint64)
    >>> pieces = scheme.share(numbers, seed=bytes(32))
    >>> pieces.shape
    (10, 3)
    >>> members = [9, 1, 2, 3, 5, 6, 7, 8]
    >>> scheme.recover(pieces[members], members, count=5)
    array([3, 1, 4, 1, 5], dtype=uint64)
    """

    committee: int
    needed: int
    random_rows: int
    tolerated: int

    def __post_init__(self) -> None:
        if not 1 <= self.random_rows < self.needed <= self.committee:
            raise ValueError(f"{self} packs no number")

    @classmethod
    def of(cls, committee: int) -> Scheme:
        """Return the scheme of a committee of c members, from 5 to 256.

        ``T = c // 5`` members may cooperate with the server, and as many may be missing:
        ``U = c - T`` and ``R = (c + T) // 2``.

        Raises
        ------
        SettingsError
            The committee is too small or too large.
        """
        if not LEAST_COMMITTEE <= committee <= LARGEST_COMMITTEE:
            raise SettingsError(
                f"a committee of {committee} members: must be from {LEAST_COMMITTEE} to"
                f" {LARGEST_COMMITTEE}"
            )
        tolerated = committee // 5
        return cls(committee, committee - tolerated, (committee + tolerated) // 2, tolerated)

    @property
    def packed(self) -> int:
        """``l = U - R``, the numbers of one polynomial."""
        return self.needed - self.random_rows

    def columns(self, count: int) -> int:
        """Return the polynomials, which is the length of a piece, for ``count`` numbers."""
        return -(-count // self.packed)

    @functools.cached_property
    def generator(self) -> Elements:
        """The pieces as a linear function of l numbers and R random values, (c, U)."""
        known = [*self._points_of_numbers, *range(1, self.random_rows + 1)]
        return interpolation(known, range(1, self.committee + 1))

    @property
    def _points_of_numbers(self) -> range:
        return range(self.committee + 1, self.committee + self.packed + 1)

    def share(self, numbers: Elements, seed: bytes) -> Elements:
        """Return the pieces of all members.

        Parameters
        ----------
        numbers : Elements
            The vector to share, (n,).
        seed : bytes
            32 bytes, random and secret. The same numbers and seed give the same pieces. Different
            numbers must not be shared with the same seed.

        Returns
        -------
        Elements
            One row for each member, (c, ceil(n / l)).
        """
        columns = self.columns(len(numbers))
        seeds = field.seeds(seed, self.random_rows)
        random = [field.expand(each, columns) for each in seeds]
        padded = np.zeros(self.packed * columns, np.uint64)
        padded[: len(numbers)] = numbers
        values = np.concatenate([padded.reshape(self.packed, columns), random])
        others = field.matmul(self.generator[self.random_rows :], values)
        return np.concatenate([values[self.packed :], others])

    def messages(self, numbers: Elements, seed: bytes) -> list[bytes]:
        """Return the pieces of :meth:`share` as one message for each member.

        Those of the first R members are seeds if these are shorter: a committee in random order
        balances who receives more.
        """
        pieces = self.share(numbers, seed)
        seeds = field.seeds(seed, self.random_rows)
        return [
            seeds[member] if self._gets_seed(member, len(piece)) else field.to_bytes(piece)
            for member, piece in enumerate(pieces)
        ]

    def piece(self, message: bytes, member: int, count: int) -> Elements:
        """Return a member's piece of ``count`` numbers from its message, (ceil(n / l),).

        Raises
        ------
        SecureError
            The message has another length, or a number is not below p.
        """
        columns = self.columns(count)
        is_seed = self._gets_seed(member, columns)
        expected = field.SEED_BYTES if is_seed else field.ELEMENT_BYTES * columns
        if len(message) != expected:
            raise SecureError(
                f"a piece of {len(message)} bytes instead of {expected} for member {member} of"
                f" {self.committee}, of {count} numbers"
            )
        return field.expand(message, columns) if is_seed else field.from_bytes(message)

    def _gets_seed(self, member: int, columns: int) -> bool:
        return member < self.random_rows and columns * field.ELEMENT_BYTES > field.SEED_BYTES

    def recover(self, pieces: Elements, members: Sequence[int], count: int) -> Elements:
        """Return the numbers, from the pieces of at least U members.

        The first U pieces are used. :meth:`mismatches` compares them with the others.

        Parameters
        ----------
        pieces : Elements
            One row for each of the members, (a, columns).
        members : sequence of int
            The members, in any order.
        count : int
            The number of numbers, n.

        Raises
        ------
        SecureError
            There are fewer than U pieces, or of another length, or members are repeated or unknown.
        """
        self._check(pieces, members)
        columns = self.columns(count)
        if pieces.shape[1] != columns:
            raise SecureError(
                f"pieces of {pieces.shape[1]} elements instead of {columns}, for {count} numbers"
            )
        points = [member + 1 for member in members[: self.needed]]
        matrix = interpolation(points, self._points_of_numbers)
        return field.matmul(matrix, pieces[: self.needed]).reshape(-1)[:count]

    def mismatches(self, pieces: Elements, members: Sequence[int]) -> list[int]:
        """Return the members whose pieces are wrong, in ascending order.

        With a answers, ``D = a - U`` checks are available. **Guaranteed:** if at most D pieces are
        wrong, an empty list means that none is. If at most ``D // 2`` are wrong, the list is
        exactly these, and the pieces of all others are right; an error instead has a probability of
        about 1e-17.
        **Not guaranteed:** more wrong pieces, if their senders cooperate, may remain unnoticed, or
        may let right pieces appear wrong. Without checks (D = 0) the list is empty. A member that
        received a wrong piece from a device appears here as well: the sum does not show which of
        the two is dishonest.

        Parameters
        ----------
        pieces : Elements
            One row for each of the members, (a, columns).
        members : sequence of int
            The members, in any order.

        Raises
        ------
        SecureError
            More than ``D // 2`` pieces are wrong, so that they cannot be named. Or there are fewer
            than U pieces, or members are repeated or unknown.
        """
        self._check(pieces, members)
        if not self._is_wrong(pieces, members):
            return []
        wrong = self._locate(pieces, members)
        kept = [place for place in range(len(members)) if place not in wrong]
        if not wrong or self._is_wrong(pieces[kept], [members[place] for place in kept]):
            checks = len(members) - self.needed
            raise SecureError(
                f"more than {checks // 2} of {len(members)} pieces are wrong: with U = "
                f"{self.needed}, they cannot be named"
            )
        return sorted(members[place] for place in wrong)

    def _check(self, pieces: Elements, members: Sequence[int]) -> None:
        if len(pieces) != len(members):
            raise SecureError(f"{len(pieces)} pieces of {len(members)} members")
        unknown = set(members).difference(range(self.committee))
        if unknown or len(set(members)) < len(members):
            raise SecureError(
                f"members {list(members)}: must be different, from 0 to {self.committee - 1}"
            )
        if len(members) < self.needed:
            raise SecureError(
                f"{len(members)} pieces: a committee of {self.committee} needs {self.needed}"
            )

    def _is_wrong(self, pieces: Elements, members: Sequence[int]) -> bool:
        """Whether the pieces are not the values of polynomials of degree below U."""
        points = [member + 1 for member in members]
        matrix = interpolation(points[: self.needed], points[self.needed :])
        expected = field.matmul(matrix, pieces[: self.needed])
        return bool((expected != pieces[self.needed :]).any())

    def _locate(self, pieces: Elements, members: Sequence[int]) -> list[int]:
        """Return the places of the wrong pieces (Peterson's decoder), or none.

        One random linear combination of the columns is decoded. With weights w_i that annihilate
        all polynomials of degree below ``a - 1``, ``s_j = sum_i w_i x_i^j r_i`` depends on the
        wrong values only. The locator, whose roots are their points, annihilates the s_j.
        """
        points = np.array(members, dtype=np.uint64) + np.uint64(1)
        digest = hashlib.sha256(field.to_bytes(pieces) + field.to_bytes(points)).digest()
        combination = field.expand(digest, pieces.shape[1])[:, None]
        values = field.matmul(pieces, combination)[:, 0]
        checks = len(members) - self.needed
        weighted = field.multiply(field.inverse(_products_of_differences(points)), values)
        syndromes = field.matmul(_powers(points, checks).T, weighted[:, None])[:, 0]
        most = checks // 2
        hankel = syndromes[np.arange(checks - most)[:, None] + np.arange(most + 1)]
        wrong = len(field.echelon(hankel[:, :most])[1])  # the rank
        rows, pivots = field.echelon(hankel[:, : wrong + 1])
        if pivots != list(range(wrong)):
            return []
        locator = np.append(field.negate(rows[:, wrong]), np.uint64(1))
        found = field.matmul(_powers(points, wrong + 1), locator[:, None])[:, 0]
        return [int(place) for place in np.flatnonzero(found == 0)]


def _powers(points: Elements, count: int) -> Elements:
    """Return the powers 0, ..., count - 1 of each point, (points, count)."""
    return np.stack([field.power(points, exponent) for exponent in range(count)], axis=1)


def _products_of_differences(points: Elements) -> Elements:
    """Return the products of the differences of each point to all others, (points,)."""
    differences = field.subtract(points[:, None], points)
    np.fill_diagonal(differences, 1)
    return field.product(differences)


def interpolation(points: Sequence[int], targets: Sequence[int]) -> Elements:
    """Return the matrix that evaluates a polynomial at other points, (targets, points).

    Parameters
    ----------
    points : sequence of int
        Different points, from 0 to p - 1. The degree of the polynomial is below their number.
    targets : sequence of int
        Points at which the polynomial is evaluated; they may be among the first ones.

    Examples
    --------
    The line through (1, 10) and (2, 12) at 0 and at 2:

    >>> import numpy as np
    >>> from fldb_flower.secure.field import matmul
    >>> from fldb_flower.secure.sharing import interpolation
    >>> matmul(interpolation([1, 2], [0, 2]), np.array([[10], [12]], dtype=np.uint64))
    array([[ 8],
           [12]], dtype=uint64)
    """
    return _interpolation(tuple(points), tuple(targets))


@functools.lru_cache(maxsize=16)
def _interpolation(points: tuple[int, ...], targets: tuple[int, ...]) -> Elements:
    known, wanted = np.array(points, np.uint64), np.array(targets, np.uint64)
    differences = field.subtract(wanted[:, None], known)
    # Lagrange: the product over all other points, from those before and those after each point.
    before, after = np.ones_like(differences), np.ones_like(differences)
    for place in range(1, len(points)):
        before[:, place] = field.multiply(before[:, place - 1], differences[:, place - 1])
        after[:, -place - 1] = field.multiply(after[:, -place], differences[:, -place])
    weights = field.inverse(_products_of_differences(known))
    matrix = field.multiply(field.multiply(before, after), weights)
    matrix.flags.writeable = False  # it is cached
    return matrix
