"""Packed sharing: sums, errors and, by ranks of matrices, what pieces reveal."""

from itertools import combinations

import numpy as np
import pytest
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st

from fldb_flower.errors import SecureError, SettingsError
from fldb_flower.secure import field
from fldb_flower.secure.field import P
from fldb_flower.secure.sharing import Scheme, interpolation

SEED = bytes(range(32))
SIZES = [5, 6, 7, 8, 10, 13, 20, 37, 100, 128, 256]


def random(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, P, shape, dtype=np.uint64)


def rank(matrix):
    return len(field.echelon(matrix)[1])


def value_at(known, target):
    """Evaluate the polynomial through the (point, value) pairs, in Python's integers."""
    total = 0
    for point, value in known:
        term = value
        for other, _ in known:
            if other != point:
                term = term * (target - other) * pow(point - other, -1, P) % P
        total += term
    return total % P


@pytest.mark.parametrize(
    ("committee", "tolerated", "random_rows", "needed", "packed"),
    [
        *[(5, 1, 3, 4, 1), (6, 1, 3, 5, 2), (8, 1, 4, 7, 3)],
        *[(100, 20, 60, 80, 20), (128, 25, 76, 103, 27), (256, 51, 153, 205, 52)],
    ],
)
def test_sizes(committee, tolerated, random_rows, needed, packed):
    scheme = Scheme.of(committee)
    assert scheme == Scheme(committee, needed, random_rows, tolerated)
    assert scheme.packed == packed


def test_sizes_of_all_committees():
    for committee in range(5, 257):
        scheme = Scheme.of(committee)
        assert scheme.packed >= 1
        assert scheme.random_rows >= scheme.tolerated
        # Of two sums in disjoint honest members and T common ones, one has at most R pieces.
        assert (committee + scheme.tolerated) // 2 <= scheme.random_rows


@pytest.mark.parametrize("committee", [-1, 0, 4, 257])
def test_committees_of_other_sizes(committee):
    with pytest.raises(SettingsError, match=f"^a committee of {committee} members: must be from 5"):
        Scheme.of(committee)


def test_a_scheme_that_packs_nothing():
    with pytest.raises(ValueError, match="packs no number"):
        Scheme(10, 6, 6, 2)


@pytest.mark.parametrize("committee", [5, 6, 9, 16])
def test_pieces_are_values_of_the_polynomials(committee):
    scheme, count = Scheme.of(committee), 11
    numbers = random(count)
    pieces = scheme.share(numbers, SEED)
    columns = -(-count // scheme.packed)
    assert pieces.shape == (committee, columns)
    padded = [*numbers.tolist(), *[0] * (columns * scheme.packed - count)]
    for column in range(columns):
        values = padded[column::columns]
        known = [(committee + 1 + place, value) for place, value in enumerate(values)]
        known += [(v + 1, int(pieces[v, column])) for v in range(scheme.random_rows)]
        expected = [value_at(known, point) for point in range(1, committee + 1)]
        assert pieces[:, column].tolist() == expected


def test_the_first_rows_are_random_and_depend_on_the_seed_only():
    scheme = Scheme.of(10)
    seeds = field.seeds(SEED, scheme.random_rows)
    for count in (1, 30):
        pieces = scheme.share(random(count, seed=count), SEED)
        for seed, piece in zip(seeds, pieces, strict=False):
            assert (piece == field.expand(seed, pieces.shape[1])).all()


def test_pieces_are_a_linear_function():
    scheme = Scheme.of(13)
    numbers = random(scheme.packed)
    pieces = scheme.share(numbers, SEED)
    values = np.concatenate([numbers, pieces[: scheme.random_rows, 0]])
    assert (field.matmul(scheme.generator, values[:, None]) == pieces).all()


def test_a_repeated_call_gives_the_same_pieces_and_another_seed_does_not():
    scheme, numbers = Scheme.of(8), random(100)
    assert (scheme.share(numbers, SEED) == scheme.share(numbers, SEED)).all()
    assert not (scheme.share(numbers, SEED) == scheme.share(numbers, bytes(32))).any()
    assert scheme.messages(numbers, SEED) == scheme.messages(numbers, SEED)


@pytest.mark.parametrize("committee", SIZES)
@pytest.mark.parametrize("count", [1, 500])
def test_messages_are_the_pieces(committee, count):
    scheme, numbers = Scheme.of(committee), random(count)
    pieces, messages = scheme.share(numbers, SEED), scheme.messages(numbers, SEED)
    assert len(messages) == committee
    for member, (piece, message) in enumerate(zip(pieces, messages, strict=True)):
        assert (scheme.piece(message, member, count) == piece).all()
        is_short = member < scheme.random_rows and 8 * scheme.columns(count) > 32
        assert len(message) == (32 if is_short else 8 * scheme.columns(count))


def test_messages_of_another_length():
    scheme = Scheme.of(10)
    short, *_, whole = scheme.messages(random(20), SEED)
    for message, member in ((short, 9), (whole, 0), (whole[:-8], 9), (b"", 9)):
        with pytest.raises(SecureError, match=rf"^a piece of {len(message)} bytes instead of"):
            scheme.piece(message, member, 20)
    with pytest.raises(SecureError, match="is no element of the field"):
        scheme.piece(b"\xff" * len(whole), 9, 20)


@examples(150)
@given(data=st.data(), committee=st.integers(5, 40), devices=st.integers(1, 6))
def test_a_sum_of_pieces_gives_the_sum(data, committee, devices):
    """Of any devices, from any members in any order."""
    scheme, count = Scheme.of(committee), data.draw(st.integers(1, 30))
    vectors = random(devices, count, seed=data.draw(st.integers(0, 9)))
    seeds = field.seeds(SEED, devices)
    pieces = np.stack([scheme.share(*pair) for pair in zip(vectors, seeds, strict=True)])
    chosen = data.draw(st.lists(st.integers(0, devices - 1), min_size=1, unique=True))
    members = data.draw(st.permutations(range(committee)))
    members = members[: data.draw(st.integers(scheme.needed, committee))]
    opened = field.total(pieces[chosen])[members]
    expected = vectors[chosen].astype(object).sum(axis=0) % P
    assert scheme.recover(opened, members, count).tolist() == expected.tolist()
    assert scheme.mismatches(opened, members) == []


@pytest.mark.parametrize("committee", SIZES)
def test_numbers_are_recovered_without_m_members(committee):
    scheme, numbers = Scheme.of(committee), random(60)
    members = np.random.default_rng(1).permutation(committee)[: scheme.needed].tolist()
    pieces = scheme.share(numbers, SEED)[members]
    assert (scheme.recover(pieces, members, 60) == numbers).all()


def test_what_cannot_be_recovered():
    scheme = Scheme.of(10)  # U = 8, l = 2
    pieces = scheme.share(random(6), SEED)
    for members, count, reason in (
        ([*range(7)], 6, "7 pieces: a committee of 10 needs 8"),
        ([*range(7), 6], 6, "must be different, from 0 to 9"),
        ([*range(7), 10], 6, "must be different, from 0 to 9"),
        ([*range(8)], 7, "pieces of 3 elements instead of 4, for 7 numbers"),
    ):
        rows = pieces[[min(member, 9) for member in members]]
        with pytest.raises(SecureError, match=reason):
            scheme.recover(rows, members, count)
    with pytest.raises(SecureError, match="8 pieces of 9 members"):
        scheme.recover(pieces[:8], [*range(9)], 6)
    with pytest.raises(SecureError, match="needs 8"):
        scheme.mismatches(pieces[:7], [*range(7)])


@pytest.mark.parametrize("committee", SIZES)
def test_wrong_pieces_are_named(committee):
    """Up to half as many as there are checks, in all columns or in one."""
    scheme, generator = Scheme.of(committee), np.random.default_rng(committee)
    pieces = scheme.share(random(75), SEED)
    columns = pieces.shape[1]
    for answers in {committee, committee - 1, scheme.needed + 2} & set(range(committee + 1)):
        members = generator.permutation(committee)[:answers].tolist()
        liars = generator.permutation(members)[: (answers - scheme.needed) // 2].tolist()
        for error in (random(len(liars), columns), np.eye(1, columns, dtype=np.uint64)):
            opened = pieces.copy()
            opened[liars] = field.add(opened[liars], error)
            assert scheme.mismatches(opened[members], members) == sorted(liars)


@pytest.mark.parametrize("committee", [5, 9, 10, 30])
def test_more_wrong_pieces_are_detected(committee):
    """Up to as many as there are checks."""
    scheme, members = Scheme.of(committee), [*range(committee)]
    checks = committee - scheme.needed
    for wrong in range(checks // 2 + 1, checks + 1):
        opened = scheme.share(random(75), SEED)
        opened[:wrong] = field.add(opened[:wrong], random(wrong, opened.shape[1], seed=1))
        with pytest.raises(SecureError, match=f"more than {checks // 2} of {committee} pieces are"):
            scheme.mismatches(opened, members)


def test_a_device_that_deals_wrong_pieces():
    """One wrong piece is attributed to its receiver; the others give the sum of the rest."""
    scheme, members = Scheme.of(20), [*range(20)]  # D = 4
    pieces = np.stack([scheme.share(random(9, seed=i), bytes([i] * 32)) for i in range(3)])
    pieces[1, 7] = field.add(pieces[1, 7], random(pieces.shape[2]))
    opened = field.total(pieces)
    assert scheme.mismatches(opened, members) == [7]
    kept = [member for member in members if member != 7]
    expected = field.total(np.stack([random(9, seed=i) for i in range(3)]))
    assert (scheme.recover(opened[kept], kept, 9) == expected).all()
    pieces[1, ::3] = random(7, pieces.shape[2])
    with pytest.raises(SecureError, match="more than 2 of 20 pieces are wrong"):
        scheme.mismatches(field.total(pieces), members)


def test_without_further_answers_nothing_is_checked():
    scheme = Scheme.of(10)
    assert scheme.mismatches(random(8, 3), [*range(8)]) == []


# What pieces reveal. A set of equations with a matrix M over the unknowns reveals
# rank M - rank M' equations about some of the unknowns alone, where M' is M without them.


def subsets(committee, size):
    """Return all subsets of a small committee, and some of a large one."""
    if committee <= 8:
        return [list(each) for each in combinations(range(committee), size)]
    generator = np.random.default_rng(committee)
    return [generator.permutation(committee)[:size].tolist() for _ in range(3)]


@pytest.mark.parametrize("committee", [5, 6, 7, 8, 12, 25, 60])
def test_any_R_pieces_reveal_nothing(committee):  # noqa: N802
    """Their matrix over the R random values is regular, so they are uniform for all numbers."""
    scheme = Scheme.of(committee)
    over_random = scheme.generator[:, scheme.packed :]
    for size in {scheme.tolerated, scheme.random_rows}:
        for members in subsets(committee, size):
            assert rank(over_random[members]) == size


@pytest.mark.parametrize("committee", [5, 6, 7, 8, 12, 25])
def test_each_further_piece_reveals_one_equation(committee):
    """Up to l of them, so fewer than U pieces do not determine the numbers."""
    scheme = Scheme.of(committee)
    for more in range(scheme.packed + 1):
        for members in subsets(committee, scheme.random_rows + more)[:5]:
            rows = scheme.generator[members]
            assert rank(rows) - rank(rows[:, scheme.packed :]) == more


def revealed(scheme, shown):
    """Return how many equations the server learns: in all, and about device 0 alone.

    ``shown`` has pairs of a number of members and the set of devices that they add the pieces of,
    as 0 or 1 for each device. The other T members answer for every single device.
    """
    sizes, sets = zip(*shown, strict=True)
    order = np.random.default_rng(sizes[0]).permutation(scheme.committee)
    *groups, colluders = np.split(order, np.cumsum(sizes))
    assert len(colluders) == scheme.tolerated
    singles = np.eye(len(sets[0]), dtype=np.uint64)
    observed = [*zip(groups, sets, strict=True), *((colluders, single) for single in singles)]
    matrix = np.concatenate([
        np.kron(np.array(devices, np.uint64), scheme.generator[members])
        for members, devices in observed
    ])  # fmt: skip
    columns = np.arange(matrix.shape[1])
    is_number = columns % scheme.needed < scheme.packed
    is_first = is_number & (columns < scheme.needed)
    known = rank(matrix)
    return known - rank(matrix[:, ~is_number]), known - rank(matrix[:, ~is_first])


@pytest.mark.parametrize("committee", [5, 6, 7, 8, 10, 15, 20])
def test_two_sets_reveal_no_equation_about_a_device_in_one_of_them(committee):
    scheme = Scheme.of(committee)
    honest = committee - scheme.tolerated
    for first in range(honest + 1):
        second = honest - first
        most = max(first, second) + scheme.tolerated - scheme.random_rows
        expected = min(max(most, 0), scheme.packed)  # of one sum, by its pieces above R
        assert revealed(scheme, [(first, (1, 1, 1)), (second, (0, 1, 1))]) == (expected, 0)


@pytest.mark.parametrize(
    "sets", [((1, 1, 1), (0, 1, 0), (0, 0, 1)), ((1, 1, 0), (1, 0, 1), (0, 1, 1))]
)
def test_three_sets_reveal_one_sum(sets):
    """Although the difference of device 0 is a combination of the three sums."""
    scheme = Scheme.of(10)
    for first in range(9):
        for second in range(9 - first):
            shown = [*zip((first, second, 8 - first - second), sets, strict=True)]
            equations, about_device_0 = revealed(scheme, shown)
            assert equations <= scheme.packed
            assert about_device_0 == 0


def test_two_sets_in_a_large_committee():
    scheme, all_devices, all_but_one = Scheme.of(100), (1, 1), (0, 1)
    assert revealed(scheme, [(60, all_devices), (20, all_but_one)]) == (20, 0)
    assert revealed(scheme, [(40, all_devices), (40, all_but_one)]) == (0, 0)


def test_with_T_random_rows_two_sets_reveal_most_of_a_device():  # noqa: N802
    """A control: 43 + 20 pieces give the 39 numbers of the sum, and 37 + 20 all but 2 of those."""
    prototype = Scheme(committee=100, needed=59, random_rows=20, tolerated=20)
    assert prototype.packed == 39
    assert revealed(prototype, [(43, (1, 1)), (37, (0, 1))]) == (39 + 37, 37)


def test_interpolation_between_points():
    """A cubic through four points, by hand: x^3 at 0, 1, 2, 3 is 64 at 4 and -1 at -1."""
    matrix = interpolation([0, 1, 2, 3], [4, P - 1, 2])
    cubes = np.array([[0], [1], [8], [27]], dtype=np.uint64)
    assert field.matmul(matrix, cubes).ravel().tolist() == [64, P - 1, 8]
