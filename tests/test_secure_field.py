"""The field of 2^61 - 1 against Python's integers, and its key stream against published vectors."""

import numpy as np
import pytest
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st

from fldb_flower.errors import SecureError
from fldb_flower.secure import field
from fldb_flower.secure.field import P

EDGES = [0, 1, 2, 2**21 - 1, 2**21, 2**32 - 1, 2**32, 2**42, 2**53 + 1, P // 2, P // 2 + 1, P - 1]
elements = st.sampled_from(EDGES) | st.integers(0, P - 1)
vectors = st.lists(elements, min_size=1, max_size=20)


def array(numbers):
    return np.array(numbers, dtype=np.uint64)


def plain(values):
    """Return Python's integers, which do not overflow."""
    return values.astype(object)


def random(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, P, shape, dtype=np.uint64)


@examples(150)
@given(st.lists(st.integers(0, 2**64 - 1) | st.sampled_from([P, 2 * P, 8 * P]), min_size=1))
def test_reduce(numbers):
    assert field.reduce(array(numbers)).tolist() == [number % P for number in numbers]


@examples(150)
@given(vectors, elements)
def test_elementwise(numbers, other):
    values, others = array(numbers), array([other])
    assert field.add(values, others).tolist() == [(v + other) % P for v in numbers]
    assert field.subtract(values, others).tolist() == [(v - other) % P for v in numbers]
    assert field.subtract(others, values).tolist() == [(other - v) % P for v in numbers]
    assert field.multiply(values, others).tolist() == [v * other % P for v in numbers]
    assert field.negate(values).tolist() == [-v % P for v in numbers]


@examples(150)
@given(vectors)
def test_sum_and_product(numbers):
    expected = 1
    for number in numbers:
        expected = expected * number % P
    assert field.total(array(numbers)) == sum(numbers) % P
    assert field.product(array(numbers)) == expected


def test_sums_and_products_are_along_their_axes():
    values = random(7, 3)
    assert (field.total(values) == plain(values).sum(axis=0) % P).all()
    assert (field.product(values) == plain(values).prod(axis=1) % P).all()
    assert field.product(values[:, :0]).tolist() == [1] * 7
    assert field.total(values[:0]).tolist() == [0] * 3


def test_a_sum_of_many_of_the_largest():
    assert field.total(np.full((100_000, 1), P - 1, np.uint64)).tolist() == [P - 100_000]


@examples(150)
@given(elements, st.integers(0, 2**70))
def test_power(number, exponent):
    assert field.power(array([number]), exponent).tolist() == [pow(number, exponent, P)]


@examples(150)
@given(st.lists(elements.filter(bool), min_size=1, max_size=5))
def test_inverse(numbers):
    assert field.inverse(array(numbers)).tolist() == [pow(number, -1, P) for number in numbers]


def test_zero_has_no_inverse():
    with pytest.raises(ZeroDivisionError, match="0 has no inverse"):
        field.inverse(array([[1, 0]]))


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (3, 7, 5), (2, 513, 3), (5, 1100, 40), (0, 3, 2), (2, 0, 3)]
)
def test_matrix_product(shape):
    rows, inner, columns = shape
    left, right = random(rows, inner), random(inner, columns, seed=1)
    expected = np.zeros((rows, columns), object) if inner == 0 else plain(left) @ plain(right) % P
    assert (field.matmul(left, right) == expected).all()


@pytest.mark.parametrize("number", [P - 1, 2**61 - 2**42 - 1, 2**42 - 1])
def test_largest_sums_of_a_matrix_product_are_exact(number):
    """With limbs of 2^21 - 1 throughout, the sums of products are the largest ones."""
    inner = 1500
    left, right = np.full((2, inner), number, np.uint64), np.full((inner, 400), number, np.uint64)
    expected = inner * number**2 % P
    assert (field.matmul(left, right) == expected).all()


def test_a_product_of_matrices_that_do_not_match():
    with pytest.raises(ValueError, match=r"^shapes \(2, 3\) and \(2, 3\) do not match$"):
        field.matmul(random(2, 3), random(2, 3))


def test_echelon_form():
    """By hand: the second column is twice the first, and the third row is the sum of the others."""
    rows, pivots = field.echelon(array([[0, 0, 3, 6], [5, 10, 0, 5], [5, 10, 3, 11]]))
    assert pivots == [0, 2]
    assert rows.tolist() == [[1, 2, 0, 1], [0, 0, 1, 2]]


def test_echelon_form_solves_a_system():
    matrix, solution = random(6, 6), random(6, 1, seed=1)
    known = field.matmul(matrix, solution)
    rows, pivots = field.echelon(np.concatenate([matrix, known], axis=1))
    assert pivots == [*range(6)]
    assert (rows[:, :6] == np.eye(6)).all()
    assert (rows[:, 6:] == solution).all()


# AES-256 of the counters 0, 1 and 2 with the key 0: H and the tag of test case 13 and the
# ciphertext of test case 14 of McGrew and Viega, "The Galois/Counter Mode of Operation" (2005).
# Of the counter 2^127: the first vector of "CAVS 11.1 VarTxt, 256-bit keys" (NIST AESAVS).
BLOCKS = [
    "dc95c078a2408989ad48a21492842087",
    "530f8afbc74536b9a963b4f1c4cb738b",
    "cea7403d4d606b6e074ec5d3baf39d18",
]
BLOCK_OF_SEEDS = "ddc6bf790c15760d8d9aeb6f9a75fd4e"


def test_published_key_stream():
    text = bytes.fromhex("".join(BLOCKS))
    words = [int.from_bytes(text[start : start + 8], "little") for start in range(0, 48, 8)]
    assert field.expand(bytes(32), 6).tolist() == [word % 2**61 for word in words]
    (seed,) = field.seeds(bytes(32), 1)
    assert seed[:16].hex() == BLOCK_OF_SEEDS


def test_expansion_is_repeatable_and_a_prefix():
    seed = bytes(range(32))
    values = field.expand(seed, 1000)
    assert (values < P).all()
    assert (field.expand(seed, 10) == values[:10]).all()
    assert field.expand(seed, 0).shape == (0,)
    assert not (field.expand(bytes(32), 1000) == values).any()


def test_expansion_is_uniform():
    """Means of bits and of the values; the tolerances are six standard deviations."""
    count = 20_000
    values = field.expand(bytes(32), count)
    bits = values[:, None] >> np.arange(61, dtype=np.uint64) & np.uint64(1)
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 6 * 0.5 / count**0.5
    assert abs((values / P).mean() - 0.5) < 6 * (1 / 12 / count) ** 0.5


def test_p_is_rejected():
    words = [0, P, P - 1, 2**64 - 1, 2**61, 2**63 + 5]
    assert field.accepted(array(words)).tolist() == [0, P - 1, 0, 5]


def test_rejected_words_are_replaced(monkeypatch):
    """Reject even numbers as well, so that there is something to reject."""
    values = field.expand(bytes(32), 200)
    monkeypatch.setattr(field, "accepted", lambda words: words[words % 2 == 1] & np.uint64(P))
    odd = values[values % 2 == 1]
    assert (field.expand(bytes(32), 50) == odd[:50]).all()


def test_seeds_differ():
    derived = field.seeds(bytes(32), 50)
    assert {len(seed) for seed in derived} == {32}
    assert len({bytes(32), *derived}) == 51
    assert field.seeds(bytes(32), 3) == derived[:3]


@pytest.mark.parametrize("length", [0, 16, 31, 33])
def test_a_seed_has_32_bytes(length):
    with pytest.raises(ValueError, match=f"^a seed of {length} bytes instead of 32$"):
        field.expand(bytes(length), 1)


@examples(150)
@given(vectors)
def test_bytes(numbers):
    text = field.to_bytes(array(numbers))
    assert text == b"".join(number.to_bytes(8, "little") for number in numbers)
    assert field.from_bytes(text).tolist() == numbers


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (bytes(7), "7 bytes are no whole number of elements of 8 bytes"),
        (P.to_bytes(8, "little"), f"{P} is no element of the field: it is not below 2^61 - 1"),
        (bytes(8) + b"\xff" * 8, f"{2**64 - 1} is no element of the field: "),
    ],
)
def test_other_bytes_are_refused(text, reason):
    with pytest.raises(SecureError) as caught:
        field.from_bytes(text)
    assert str(caught.value).startswith(reason)


@examples(150)
@given(st.lists(st.integers(-(P - 1), P - 1), min_size=1))
def test_integers(numbers):
    values = field.from_integers(np.array(numbers))
    assert values.tolist() == [number % P for number in numbers]
    centred = [(number + P // 2) % P - P // 2 for number in numbers]
    assert field.to_integers(values).tolist() == centred
