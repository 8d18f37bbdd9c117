"""Fixed point: exact sums of integers, and their distance from the sums of floats."""

from fractions import Fraction

import numpy as np
import pytest
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st

from fldb_flower.errors import DataError, SecureError
from fldb_flower.secure import field
from fldb_flower.secure.encoding import Block, Encoding
from fldb_flower.secure.field import P

BLOCKS = (Block("gradient", 3, 4.0), Block("W", 2, 1e5), Block("duels", 1, 100, is_count=True))
bounds = st.floats(1e-300, 1e300) | st.sampled_from([1.0, 2.0**-40, 3.0, 5e-324])


@examples(150)
@given(bounds, st.integers(1, 10**6))
def test_the_scale_is_the_largest_power_of_two_without_overflow(bound, devices):
    (exponent,) = Encoding((Block("x", 1, bound),), devices).exponents

    def largest_sum(scale):  # of integers nearest to scaled values
        return devices * int(Fraction(bound) * scale + Fraction(1, 2))

    scale = Fraction(2) ** exponent
    assert largest_sum(scale) < P / 2 <= largest_sum(2 * scale) + 1


def test_scales_by_hand():
    """p / 2 is just below 2^60: 1000 < 2^10 devices leave 2^50, and bounds of 8 and 9 a scale."""
    blocks = Block("a", 1, 8.0), Block("b", 1, 9.0), Block("n", 1, 8, is_count=True)
    assert Encoding(blocks, 1000).exponents == (47, 46, 0)
    assert Encoding(blocks, 1024).exponents == (46, 46, 0)  # 2^60 is above p / 2


@examples(150)
@given(st.data(), st.integers(1, 9), bounds, bounds)
def test_sums(data, devices, first, second):
    """Equal to the sum of integers, and to the sum of floats up to half a quantum per device."""
    blocks = Block("a", 2, first), Block("b", 1, second), Block("n", 1, 7, is_count=True)
    encoding = Encoding(blocks, devices)
    a, b = st.floats(-first, first), st.floats(-second, second)
    row = st.tuples(a | st.just(first), a, b | st.just(-second), st.integers(-7, 7))
    rows = data.draw(st.lists(row, min_size=1, max_size=devices))
    encoded = np.stack([encoding.encode(np.array(each)) for each in rows])
    quanta = [encoding.quantise(np.array(each)).tolist() for each in rows]
    total = field.total(encoded)
    assert field.to_integers(total).tolist() == [sum(each) for each in zip(*quanta, strict=True)]
    found = encoding.decode(total, len(rows))
    assert (found == encoding.restore(np.sum(quanta, axis=0), len(rows))).all()
    for place, exponent in enumerate(np.repeat(encoding.exponents, [2, 1, 1]).tolist()):
        exact = sum(Fraction(each[place]) for each in rows)
        quantum = Fraction(1, 2) ** exponent if place < 3 else 0
        rounding = abs(exact) / 2**52 + Fraction(5e-324)  # of the result to a float
        assert abs(Fraction(found[place]) - exact) <= len(rows) * quantum / 2 + rounding * 2


def test_values_at_their_bounds_do_not_overflow():
    encoding = Encoding(BLOCKS, 1000)
    largest = np.array([4.0, -4.0, 4.0, 1e5, -1e5, 100])
    total = field.total(np.stack([encoding.encode(largest)] * 1000))
    assert encoding.decode(total).tolist() == (1000 * largest).tolist()


def test_resolution():
    """By hand: 100 * 4 * 2^51 < 2^60 and 100 * 1e5 * 2^36 < 2^60 are the largest scales."""
    encoding = Encoding(BLOCKS, 100)
    values = np.array([1 / 3, -np.pi, 1e-9, 1e5 / 3, 0.1, 3])
    total = field.total(np.stack([encoding.encode(values)] * 100))
    error = np.abs(encoding.decode(total) - 100 * values)
    assert error[:3].max() < 100 * 2.0**-52
    assert error[3:5].max() < 100 * 2.0**-37 + 2.0**-31  # rounded to floats, below 2^22
    assert error[5] == 0


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        (0, 4.1, "gradient[0] = 4.1: must be from -4 to 4"),
        (1, float("nan"), "gradient[1] = nan: must be from -4 to 4"),
        (2, float("-inf"), "gradient[2] = -inf: must be from -4 to 4"),
        (4, -1.1e5, "W[1] = -110000: must be from -100000 to 100000"),
        (5, 101, "duels = 101: must be from -100 to 100"),
        (5, 0.5, "duels = 0.5: must be an integer"),
    ],
)
def test_a_value_that_cannot_be_encoded(place, value, reason):
    numbers = np.zeros(6)
    numbers[place] = value
    with pytest.raises(DataError) as caught:
        Encoding(BLOCKS, 10).encode(numbers)
    assert str(caught.value) == reason


def test_a_vector_of_another_length():
    with pytest.raises(DataError, match=r"^numbers of shape \(5,\) instead of \(6,\)$"):
        Encoding(BLOCKS, 10).encode(np.zeros(5))
    with pytest.raises(SecureError, match=r"^a sum of shape \(5,\) instead of \(6,\)$"):
        Encoding(BLOCKS, 10).decode(np.zeros(5, np.uint64))


def test_a_sum_beyond_the_bounds():
    encoding = Encoding(BLOCKS, 10)
    total = field.total(np.stack([encoding.encode(np.array([0, 0, 4.0, 0, 0, 0]))] * 3))
    assert encoding.decode(total, 3)[2] == 12.0
    with pytest.raises(SecureError, match=r"^the sum of gradient\[2\] is larger than 2 devices"):
        encoding.decode(total, 2)
    with pytest.raises(SecureError, match=r"^a sum over 11 devices, encoded for 10$"):
        encoding.decode(total, 11)


@pytest.mark.parametrize("bound", [0.0, -1.0, float("nan"), float("inf")])
def test_a_bound_is_positive_and_finite(bound):
    with pytest.raises(ValueError, match="must be positive"):
        Block("gradient", 3, bound)


def test_counts_whose_sum_is_not_exact():
    with pytest.raises(
        DataError, match=r"^duels up to 1e\+12 on 10000 devices: the sum may exceed"
    ):
        Encoding((Block("duels", 1, 10**12, is_count=True),), 10_000)
