r"""The prime field of ``p = 2^61 - 1`` on uint64 arrays.

Elements are uint64 numbers below p. Functions take and return arrays of them, of at least one
dimension, unless they state otherwise. Since ``2^61 = 1 (mod p)``, a multiplication by a power of
two is a rotation of 61 bits. :func:`matmul` multiplies limbs of 21 bits in float64 BLAS products,
exactly.

Nothing here runs in constant time.

References
----------
NIST SP 800-38A (2001), section 6.5: the counter mode of AES, for :func:`expand`.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

from fldb_flower.errors import SecureError

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]

Elements: TypeAlias = NDArray[np.uint64]
"""Elements of the field."""

P = 2**61 - 1
"""The order of the field."""

ELEMENT_BYTES = 8
"""The length of an element in canonical bytes."""

SEED_BYTES = 32
"""The length of a seed: a key of AES-256."""

_BITS = 61
_P = np.uint64(P)
_LIMB = 21  # bits of a limb in a matrix product
_INNER = 512  # columns per product: sums of 3 * 512 products of limbs are below 2^53
_WIDTH = 2**14  # elements of a block of columns: its temporaries stay in the cache


def reduce(values: Elements) -> Elements:
    """Return any uint64 numbers modulo p."""
    folded: Elements = (values & _P) + (values >> np.uint64(_BITS))
    return _once(folded)


def _once(values: Elements) -> Elements:
    """Return numbers below 2 p modulo p."""
    # Below p, the difference wraps around to a larger number.
    result: Elements = np.minimum(values, values - _P)
    return result


def _rotate(values: Elements, bits: int) -> Elements:
    """Return ``2^bits v (mod p)`` for numbers v of at most 61 bits; at most p."""
    high = values >> np.uint64(_BITS - bits)
    return ((values << np.uint64(bits)) & _P) | high


def add(left: Elements, right: Elements) -> Elements:
    """Return the sum, elementwise with broadcasting."""
    return _once(left + right)


def subtract(left: Elements, right: Elements) -> Elements:
    """Return the difference, elementwise with broadcasting."""
    return _once(left + (_P - right))


def negate(values: Elements) -> Elements:
    """Return the additive inverses."""
    return _once(_P - values)


def total(values: Elements) -> Elements:
    """Return the sum over the first axis; the order of the summands does not matter."""
    low = (values & np.uint64(2**32 - 1)).sum(axis=0, keepdims=True, dtype=np.uint64)
    high = (values >> np.uint64(32)).sum(axis=0, keepdims=True, dtype=np.uint64)
    result: Elements = reduce(_rotate(reduce(high), 32) + reduce(low))[0]
    return result


def multiply(left: Elements, right: Elements) -> Elements:
    """Return the product, elementwise with broadcasting.

    Examples
    --------
    >>> import numpy as np
    >>> from fldb_flower.secure.field import P, multiply
    >>> largest = np.array([P - 1], dtype=np.uint64)
    >>> multiply(largest, largest)
    array([1], dtype=uint64)
    """
    half, mask = np.uint64(32), np.uint64(2**32 - 1)
    a, b = left >> half, left & mask
    c, d = right >> half, right & mask
    middle = a * d + b * c  # below 2^62
    low = b * d  # below 2^64
    # a c 2^64 + middle 2^32 + low, with 2^64 = 8 and middle = high 2^29 + rest
    shifted = (middle >> np.uint64(29)) + ((middle & np.uint64(2**29 - 1)) << half)
    return reduce((a * c << np.uint64(3)) + shifted + (low & _P) + (low >> np.uint64(_BITS)))


def product(values: Elements) -> Elements:
    """Return the product along the last axis; of no elements, it is 1."""
    while (count := values.shape[-1]) > 1:
        even = values[..., : count - count % 2]
        pairs = multiply(even[..., ::2], even[..., 1::2])
        values = np.concatenate([pairs, values[..., even.shape[-1] :]], axis=-1)
    return values[..., 0] if count else np.ones(values.shape[:-1], np.uint64)


def matmul(left: Elements, right: Elements) -> Elements:
    """Return the matrix product, (m, k) times (k, n).

    Each number has three limbs of 21 bits. The nine products of limbs are float64 matrix products,
    grouped by the power of two that they belong to. All sums are below 2^53, so they are exact.

    Examples
    --------
    >>> import numpy as np
    >>> from fldb_flower.secure.field import P, matmul
    >>> row = np.array([[P - 1, 2]], dtype=np.uint64)
    >>> matmul(row, row.T)
    array([[5]], dtype=uint64)
    """
    rows, inner = left.shape
    if len(right) != inner:
        raise ValueError(f"shapes {left.shape} and {right.shape} do not match")
    columns = right.shape[1]
    result = np.zeros((rows, columns), np.uint64)
    width = max(1, _WIDTH // max(rows, min(inner, _INNER), 1))
    for start in range(0, inner, _INNER):
        part = slice(start, start + _INNER)
        limbs = _limbs(left[:, part])
        for first in range(0, columns, width):
            block = slice(first, first + width)
            added = _product_of_limbs(limbs, _limbs(right[part, block]))
            result[:, block] = add(result[:, block], added)
    return result


def _limbs(values: Elements) -> list[FloatArray]:
    mask = np.uint64(2**_LIMB - 1)
    limbs = (values & mask, values >> np.uint64(_LIMB) & mask, values >> np.uint64(2 * _LIMB))
    # The conversion of signed integers is faster.
    return [limb.view(np.int64).astype(np.float64) for limb in limbs]


def _product_of_limbs(left: list[FloatArray], right: list[FloatArray]) -> Elements:
    (a, b, c), (x, y, z) = left, right
    products = (a @ x, a @ y + b @ x, a @ z + b @ y + c @ x, b @ z + c @ y, c @ z)
    turned = [
        _rotate(each.astype(np.int64).view(np.uint64), _LIMB * place % _BITS)
        for place, each in enumerate(products)
    ]
    return reduce(turned[0] + turned[1] + turned[2] + turned[3] + turned[4])


def power(values: Elements, exponent: int) -> Elements:
    """Return the elements to the power of an exponent of at least 0."""
    result = np.ones_like(values)
    for bit in f"{exponent:b}":
        result = multiply(result, result)
        if bit == "1":
            result = multiply(result, values)
    return result


def inverse(values: Elements) -> Elements:
    """Return the multiplicative inverses.

    Raises
    ------
    ZeroDivisionError
        An element is 0.
    """
    if not values.all():
        raise ZeroDivisionError("0 has no inverse")
    inverses = [pow(value, -1, P) for value in values.ravel().tolist()]
    return np.array(inverses, np.uint64).reshape(values.shape)


def echelon(matrix: Elements) -> tuple[Elements, list[int]]:
    """Return the reduced row echelon form, without rows of zeros, and the columns of its pivots.

    The number of pivots is the rank.

    Examples
    --------
    >>> import numpy as np
    >>> from fldb_flower.secure.field import echelon
    >>> rows, pivots = echelon(np.array([[2, 4, 6], [1, 2, 5]], dtype=np.uint64))
    >>> rows
    array([[1, 2, 0],
           [0, 0, 1]], dtype=uint64)
    >>> pivots
    [0, 2]
    """
    rows, pivots = matrix.copy(), list[int]()
    for column in range(rows.shape[1]):
        rank = len(pivots)
        candidates = np.flatnonzero(rows[rank:, column])
        if not len(candidates):
            continue
        chosen = rank + candidates[0]
        rows[[rank, chosen]] = rows[[chosen, rank]]
        rows[rank] = multiply(rows[rank], inverse(rows[rank, column : column + 1]))
        factors = rows[:, column].copy()
        factors[rank] = 0
        rows = subtract(rows, multiply(factors[:, None], rows[rank]))
        pivots.append(column)
    return rows[: len(pivots)], pivots


def expand(seed: bytes, count: int) -> Elements:
    """Return ``count`` elements, uniform for a uniform seed, by AES-256 in counter mode.

    The initial counter is 0. Of each 8 bytes of the key stream, as a little-endian number, the
    lowest 61 bits are used; the value p is skipped. A shorter result is a prefix of a longer one.

    Parameters
    ----------
    seed : bytes
        32 bytes.
    count : int
        Number of elements.

    Raises
    ------
    ValueError
        The seed does not have 32 bytes.
    """
    stream = _key_stream(seed, bytes(16))
    parts, missing = [np.empty(0, np.uint64)], count
    while missing:
        parts.append(accepted(np.frombuffer(stream.update(bytes(ELEMENT_BYTES * missing)), "<u8")))
        missing -= len(parts[-1])
    return np.concatenate(parts)


def accepted(words: Elements) -> Elements:
    """Return the lowest 61 bits of each uint64 number, without those that are p."""
    values = words & _P
    kept: Elements = values[values != _P]
    return kept


def seeds(seed: bytes, count: int) -> list[bytes]:
    """Return ``count`` seeds derived from one, independent of its :func:`expand`.

    They are the key stream of AES-256 in counter mode, with the initial counter 2^127.
    """
    stream = _key_stream(seed, bytes([128, *bytes(15)]))
    return [stream.update(bytes(SEED_BYTES)) for _ in range(count)]


def _key_stream(seed: bytes, counter: bytes) -> CipherContext:
    if len(seed) != SEED_BYTES:
        raise ValueError(f"a seed of {len(seed)} bytes instead of {SEED_BYTES}")
    return Cipher(AES(seed), CTR(counter)).encryptor()


def to_bytes(values: Elements) -> bytes:
    """Return the canonical bytes: 8 per element, little-endian, in C order."""
    return values.astype("<u8", copy=False).tobytes()


def from_bytes(text: bytes) -> Elements:
    """Invert :func:`to_bytes`; the result is a vector.

    Raises
    ------
    SecureError
        The length is no multiple of 8, or a number is not below p.
    """
    if len(text) % ELEMENT_BYTES:
        raise SecureError(f"{len(text)} bytes are no whole number of elements of 8 bytes")
    values = np.frombuffer(text, "<u8").astype(np.uint64)
    if len(values) and (largest := int(values.max())) >= P:
        raise SecureError(f"{largest} is no element of the field: it is not below 2^61 - 1")
    return values


def from_integers(integers: IntArray) -> Elements:
    """Return integers between -p and p, exclusive, modulo p."""
    return np.where(integers < 0, integers + P, integers).astype(np.uint64)


def to_integers(values: Elements) -> IntArray:
    """Return the integers between -p / 2 and p / 2 that are equal to the elements modulo p."""
    signed = values.astype(np.int64)
    return np.where(signed > P // 2, signed - P, signed)
