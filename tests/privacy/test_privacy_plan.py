"""The plan and the page about privacy equal computations without the product's accounting.

The number of openings is counted from the definition of the schedules. Their epsilon follows from
the exact formula of the Gaussian mechanism, by SciPy.
"""

import itertools
import math
from functools import cache

import mpmath
import pytest
from conftest import ROOT, nested
from scipy import optimize, stats

from clients.vault import VaultConfig
from clients.vault.vault import MOST_OF_LIMIT
from fldb_flower.privacy.discrete import LEAST_SCALE
from fldb_flower.privacy.plan import ReleasePlan, openings_of
from fldb_flower.secure.protocol import COST, KINDS
from fldb_flower.settings import from_flat, from_nested

DELTA = 1e-6
ALGORITHMS = ("fldb_ons", "fldb_ogd", "fldb_personal")
SCHEDULES = [
    ("periodic", 1, 20),
    ("periodic", 3, 23),  # does not divide the horizon
    ("periodic", 50, 23),  # longer than the run
    ("geometric", 1.5, 500),
    ("geometric", 1.01, 60),  # nearly every iteration
    ("geometric", 4.0, 10_000),
]


def make_settings(name, step, horizon, *, algorithm="fldb_ons", epsilon=3.0, **values):
    schedule = {"tau": step} if name == "periodic" else {"schedule__ratio": step}
    flat = {
        "num_agents": 30, "num_arms": 4, "dimension": 3, "horizon": horizon, **schedule,
        "schedule__name": name, "privacy__epsilon": epsilon, "algorithm": algorithm, **values,
    }  # fmt: skip
    return from_nested(nested(**flat), "the test")


def ends_of_rounds(name, step, horizon):
    """Return the iterations after which there is an upload, from the definitions.

    t = 1, and then every ``step`` iterations or the powers of ``step``, rounded up. What is played
    after the last of them is not uploaded.
    """
    if name == "periodic":
        ends = set(range(step, horizon + 1, step))
    else:
        ends = {math.ceil(step**k) for k in range(10_000) if k * math.log(step) < 700}
    return {1} | {t for t in ends if t <= horizon}


def delta_at(epsilon, multiplier):
    """Return delta of one Gaussian release (Balle and Wang 2018, Theorem 8)."""
    tail = stats.norm.logcdf(-0.5 / multiplier - epsilon * multiplier)
    return stats.norm.cdf(0.5 / multiplier - epsilon * multiplier) - math.exp(epsilon + tail)


@cache
def epsilon_by_formula(multiplier, releases):
    """Return epsilon of k releases: they are one release with the multiplier z / sqrt(k)."""
    if not releases:
        return 0.0
    z = multiplier / math.sqrt(releases)
    if delta_at(0.0, z) <= DELTA:
        return 0.0
    return optimize.brentq(lambda epsilon: delta_at(epsilon, z) - DELTA, 0.0, 1e3)


def test_the_plan_equals_the_formula():
    """After each opening. Together they cost what was promised, and no more."""
    for schedule in SCHEDULES:
        planned = len(ends_of_rounds(*schedule))
        for algorithm in ALGORITHMS:
            assert openings_of(make_settings(*schedule, algorithm=algorithm)) == planned
        for unit in ("answer", "person"):
            plan = ReleasePlan(make_settings(*schedule, privacy__unit=unit))
            assert plan.planned == planned
            for opening in {0, 1, planned // 2, planned - 1, planned}:
                releases = min(opening, 1) if unit == "answer" else opening
                expected = epsilon_by_formula(plan.multiplier, releases)
                assert plan.spent(opening) == pytest.approx(expected, rel=3e-3, abs=1e-6)
                assert plan.spent(opening) >= expected * (1.0 - 1e-6)  # rounded up, not down
            assert 2.99 < plan.spent(planned) <= 3.0
    # Nothing is released beyond the plan; but if it were, the plan would have the whole cost.
    plan = ReleasePlan(make_settings("periodic", 5, 20))
    expected = epsilon_by_formula(plan.multiplier, 4 * plan.planned)
    assert expected > 6.0
    assert plan.spent(4 * plan.planned) == pytest.approx(expected, rel=3e-3)


# --- the pages on privacy ---------------------------------------------------------------------

PAGES = [ROOT / "docs" / f"privacy{part}.md" for part in ("", "-cost", "-guarantee")]
PAGE = "\n".join(path.read_text(encoding="utf-8") for path in PAGES)


def table(header):
    """Return the rows of the table that begins with a header, as lists of cells."""
    lines = PAGE.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {header} |"))
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines[start + 2 :])
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def multiplier_by_formula(epsilon, releases=1):
    z = optimize.brentq(lambda z: delta_at(epsilon, z) - DELTA, 0.1, 1e3)
    return z * math.sqrt(releases)


def page_has(*words):
    text = " ".join(PAGE.split())
    for each in words:
        assert each in text


def test_the_page_has_the_multipliers_and_what_epsilon_means():
    for words, *cells in table("rounds"):
        releases = int(words.split(",")[0])
        for epsilon, cell in zip((1.0, 3.0, 8.0), cells, strict=True):
            assert float(cell) == pytest.approx(multiplier_by_formula(epsilon, releases), rel=5e-3)
    for epsilon, *cells in table("epsilon per period"):
        multiplier = multiplier_by_formula(float(epsilon))
        for periods, cell in zip((1, 2, 4, 12), cells, strict=True):
            assert float(cell) == pytest.approx(epsilon_by_formula(multiplier, periods), rel=5e-3)
    shares = []
    for epsilon, right in table("epsilon | right guesses, at most"):
        # Of two lists of answers the distance is twice that of a list and none.
        distance = 1 / multiplier_by_formula(float(epsilon))
        share = float(right.removesuffix("%"))
        assert share == pytest.approx(100 * stats.norm.cdf(distance), abs=0.5)
        shares.append(round(100 * stats.norm.cdf(distance / 2)))
    first, second, third = shares
    page_has(f"in at most {first}%, {second}% and {third}% of the cases")
    # A replaced unit: half of the multiplier is four times the cost.
    one, three, eight = (epsilon_by_formula(multiplier_by_formula(e), 4) for e in (1.0, 3.0, 8.0))
    page_has(f"{one:.2f} instead of 1, {three:.2f} instead of 3, and {eight:.1f} instead of 8")
    bound = (math.e - 1 + 2 * DELTA) / (math.e + 1)
    exact = 2 * stats.norm.cdf(0.5 / multiplier_by_formula(1.0)) - 1
    page_has(rf"(e^\varepsilon + 1)$ = {bound:.2f}")
    page_has(f"(true minus false positive rate) is {exact:.2f}")


SECURE = {
    "mode": "devices", "algorithm": "fldb-ons", "dimension": 5, "secure": True,
    "max-difference": 2.0, "privacy-epsilon": 3.0, "devices-helper": "https://helper.example",
    "devices-helper-key": "/helper.pub", "devices-helper-token": "/token",
}  # fmt: skip


def test_the_page_has_the_charge_of_an_exchange():
    """Of the sum, and of two answers with ten times the noise."""
    assert sorted(KINDS.values()) == [1, 10, 10]
    assert math.isclose(COST, 1.02)
    page_has("(1 + 1/100 + 1/100) / z^2", "charges $1.02 / z^2$ for each exchange")
    page_has("z is 1% larger")
    plan = ReleasePlan(from_flat({**SECURE, "devices-rounds": 16}, "a test"))
    larger = plan.multiplier / multiplier_by_formula(3.0, 16)
    assert larger == pytest.approx(math.sqrt(1.02), rel=1e-3)
    assert plan.deviation == pytest.approx(math.sqrt(2) * plan.multiplier)
    assert plan.spent(16) == pytest.approx(epsilon_by_formula(plan.multiplier, 1.02 * 16), rel=1e-3)


def test_the_page_has_the_limit_of_an_exchange():
    """The default limit of the owner, and a tenth of it."""
    limit, delta = (
        VaultConfig.__dataclass_fields__[f"max_{each}"].default for each in ("epsilon", "delta")
    )
    assert (limit, delta, MOST_OF_LIMIT) == (3.0, DELTA, 0.1)
    least = multiplier_by_formula(limit) * math.sqrt(1.02 / MOST_OF_LIMIT)
    page_has(f"one with z below {least:.2f}", "At your limit, 3 by default", "at least 10 rounds")
    for rounds, is_refused in ((9, True), (10, False)):
        plan = ReleasePlan(from_flat({**SECURE, "devices-rounds": rounds}, "a test"))
        assert (plan.multiplier < least * (1 - 1e-6)) == is_refused


def test_the_discrete_gaussian_is_close_to_a_rounded_one():
    """At the smallest scale, up to 12 standard deviations, with 60 digits."""
    page_has(
        r"8 / s^2 < 2 \times 10^{-16}",
        "sum to less than $10^{-32}$",
        f"at least $2^{{{math.log2(LEAST_SCALE):.0f}}}$",
    )
    assert 2 * stats.norm.sf(12) < 1e-32
    with mpmath.workdps(60):
        s = mpmath.mpf(LEAST_SCALE)
        total = s * mpmath.sqrt(2 * mpmath.pi)  # of exp(-k^2 / 2 s^2), up to exp(-2 pi^2 s^2)
        for deviations in (0, 1, 5, 12):
            k = deviations * s
            discrete = mpmath.exp(-(k**2) / (2 * s**2)) / total
            rounded = mpmath.erfc((k - 0.5) / (s * mpmath.sqrt(2)))
            rounded = (rounded - mpmath.erfc((k + 0.5) / (s * mpmath.sqrt(2)))) / 2
            assert abs(rounded / discrete - 1) < 8 / s**2 < 2e-16
