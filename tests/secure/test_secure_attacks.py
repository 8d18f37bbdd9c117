"""Attacks on secure sums by a server, a helper, devices that cooperate, and their requests.

What a device sends is checked on real vaults, and what leaves the helper on a real helper. Noise is
that of the product, drawn by OpenDP, unless a test needs numbers that it knows.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import random
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import ndtr
from secure_federation import RUN, Link, QuietHelper, ServerAlone, no_noise
from vaults import (
    SIGNER,
    Clock,
    D,
    Phone,
    common,
    hostile,
    live,
    personal,
    request_for,
    settings_of,
)

from clients.uploads import UploadMaker
from fldb_flower.errors import FederationError, OutputError, RoundAbandonedError
from fldb_flower.federation.exchange import Broadcast
from fldb_flower.privacy.accounting import largest_mu
from fldb_flower.privacy.discrete import discrete_gaussian
from fldb_flower.privacy.plan import ReleasePlan
from fldb_flower.secure import protocol as reports
from fldb_flower.secure.protocol import (
    COST,
    ESTIMATE,
    KINDS,
    REFUSED,
    REPORT,
    SCALE,
    Reply,
    Report,
    Request,
    SumRequest,
    integers_of,
    make_report,
)
from fldb_flower.secure.statistics import Shared, parts_of, size_of, vector_of
from fldb_flower.settings import from_flat
from strategies.secure import FAR

PHI = np.array([1.5, -0.5])
SIMULATIONS = 2000


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def link(tmp_path, clock):
    """A real helper, with the noise of the product."""
    made = Link(tmp_path / "helper", clock, discrete_gaussian)
    yield made
    made.helper.close()


def pair(folder, clock, **entries) -> list[Phone]:
    """Return two devices whose persons have seen the same duels, and answered the opposite."""
    phones = [Phone(folder / name, clock, max_epsilon=1000.0, **entries) for name in ("a", "b")]
    for place, phone in enumerate(phones):
        for sign in (1.0, 1.0, -1.0):
            phone.answer((list(sign * PHI), float((sign > 0.0) != place)))
    return phones


def new_request(clock: Clock, broadcast: Broadcast, **changes) -> Request:
    clock.now += 1.0
    return request_for(clock.ms, broadcast, **changes)


def units_of(broadcast: Broadcast, size: float, **sizes: float) -> dict[str, float]:
    return {**dict.fromkeys(parts_of(broadcast), size), **sizes}


def length(integers: np.ndarray) -> float:
    return math.sqrt(sum(each * each for each in integers.tolist()))


# --- refusals as answers to questions of the server ------------------------------------------

QUESTIONS = [
    *(common(size * PHI / np.linalg.norm(PHI)) for size in (-1e150, -50.0, 50.0, 1e150)),
    *(personal(variance=v) for v in (1e-310, 1e-9, 1e9, 1e300)),
    *(personal(s * np.outer(PHI, PHI), t * PHI) for s in (-1.0, 1e12) for t in (-1e12, 1e12)),
]  # fmt: skip


@pytest.mark.parametrize("broadcast", QUESTIONS)
@pytest.mark.parametrize("size", [1e-300, 1.0, 1e300])
def test_no_request_shows_an_answer_by_a_refusal(tmp_path, clock, broadcast, size):
    """Logits of 80 overflow, v decides whether a minimiser is found: for one answer, not both."""
    phones = pair(tmp_path, clock)
    units = units_of(broadcast, size)
    nothing = broadcast._replace(theta_hat=None, shares=False)
    estimate = Shared(nothing, settings_of(), 7, {}).to_bytes()
    for request in (
        new_request(clock, broadcast, units=units),
        Request(ESTIMATE, broadcast=estimate),
        new_request(clock, common(), units=units_of(common(), 100.0)),
    ):
        replies = [phone.vault.answer(request.to_bytes()) for phone in phones]
        one, other = map(Reply.from_bytes, replies)
        assert (one.kind, one.reason, one.digest) == (other.kind, other.reason, other.digest)
        assert one.kind == request.kind
        assert len(replies[0]) == len(replies[1])
    first, second = (phone.ledger for phone in phones)
    assert (first.days, first.tasks) == (second.days, second.tasks)


# --- steering and units ----------------------------------------------------------------------


@pytest.mark.parametrize("clip", [8.0, 4e7])
def test_no_request_makes_a_report_longer_than_one(tmp_path, clock, clip):
    """Also with long features, an estimate of length 300, and units that magnify."""
    (phone, _) = pair(tmp_path, clock)
    phone.answer(([1e150, -1e-150], 1.0), ([3e7, 1.0], 0.0), ([1e-160, 0.0], 1.0))
    direction = PHI / np.linalg.norm(PHI)
    lengths = []
    for broadcast, size in itertools.product(
        [common(), common(300.0 * direction), common(-300.0 * direction),
         personal(variance=1e9), personal(1e12 * np.eye(D), 1e14 * PHI, variance=1e-6)],
        [1e-300, 1e-30, 1e-6, 1.0, 1e6, 1e300],
    ):  # fmt: skip
        algorithm = "fldb_personal" if broadcast.shares else "fldb_ons"
        settings = settings_of(algorithm=algorithm, max_difference=clip)
        for part in (None, *parts_of(broadcast)):
            units = units_of(broadcast, size if part is None else 1e300, **{part or "": size})
            units.pop("", None)
            request = new_request(
                clock, broadcast, settings=settings, units=units, multiplier=2000.0
            )
            integers = phone.opened(request)
            assert sum(each * each for each in integers.tolist()) <= SCALE**2
            lengths.append(length(integers) / SCALE)
    assert sum(each > 1.0 - 1e-6 for each in lengths) > 40
    assert sum(each < 0.5 for each in lengths) > 10


@given(
    arrays(np.float64, st.integers(1, 30), elements=st.floats(width=64, allow_subnormal=True)),
    st.sampled_from([1.0, 1e-300, 1e300, 1e-9]),
)
def test_integers_have_the_length_of_one_at_most(vector, factor):
    with np.errstate(all="ignore"):
        vector = vector * factor
    integers = integers_of(vector)
    assert sum(each * each for each in integers.tolist()) <= SCALE**2
    if np.isfinite(vector).all():
        assert (np.abs(integers / SCALE) <= np.abs(vector)).all()  # toward zero
        assert (integers * np.sign(vector) >= 0.0).all()


# --- what an attacker learns from releases ---------------------------------------------------


def released(link: Link, clock: Clock, integers, multiplier: float, kinds=tuple(KINDS)):
    """Return what a server learns about a report whose exchange has no other reports.

    It also is what a server learns that knows all other reports. For each kind, an array has a row
    per simulation: one report of the helper repeats the numbers so often.
    """
    clock.now += 1.0
    tiled = np.tile(integers, SIMULATIONS)
    header = replace(
        request_for(clock.ms, multiplier=multiplier).header,
        numbers=len(tiled), key=link.key().key,
    )  # fmt: skip
    report = make_report(header, tiled, link.key().verified(SIGNER.public_key(), clock.now))
    found = {}
    for kind in kinds:
        answer = link.sums(SumRequest(header, kind, (1,), (report.sealed,)))
        found[kind] = (answer.sums[0] + report.masked).view(np.int64).reshape(SIMULATIONS, -1)
    return found


def ratio_of(observed, one, other, multiplier: float) -> np.ndarray:
    """Return the log likelihood ratio of two vectors, and in its units the mu of the two.

    It is the best attack, by Neyman and Pearson: normal with variance mu^2 and the means 0, for
    the vector ``other``, and mu^2.
    """
    step, total = (one - other).astype(float), 0.0
    for kind, values in observed.items():
        scale = multiplier * SCALE * KINDS[kind]
        total = total + (values - other) @ step / scale**2
    return total


def check_curve(of_one, of_other, mu: float) -> None:
    """Compare rates of detection and of false alarms with those of a Gaussian mechanism.

    A rate of 2,000 simulations is further away than the error with probability below 1e-6.
    """
    for at in (0.0, 0.25, 0.5, 0.75, 1.0):
        threshold = at * mu**2
        for found, rate in (
            (np.mean(of_one > threshold), ndtr(mu - at * mu)),
            (np.mean(of_other > threshold), ndtr(-at * mu)),
        ):
            error = 5.2 * math.sqrt(rate * (1.0 - rate) / SIMULATIONS) + 3.0 / SIMULATIONS
            assert abs(found - rate) < error, (at, found, rate)


def longest_reports(phones, clock, exchanges: int, multiplier: float):
    """Return reports of length 1 that only differ by the sign of the answers, (exchanges, n)."""
    broadcast = common()._replace(hessian=False)
    units = units_of(broadcast, 1e100, gradient=1e-100)
    found = []
    for _ in range(exchanges):
        request = new_request(clock, broadcast, units=units, multiplier=multiplier)
        found.append([phone.opened(request) for phone in phones])
    return found


def test_the_best_attack_at_epsilon_8_has_the_error_rates_of_the_claim(tmp_path, clock, link):
    """Over a whole run: with or without a person, and with four times mu^2 for other answers."""
    values = {**RUN, "privacy-epsilon": 8.0, "devices-rounds": 3}
    multiplier = ReleasePlan(from_flat(values, "a test")).multiplier
    phones = pair(tmp_path, clock)
    zero_out, other_answers = np.zeros((2, SIMULATIONS)), np.zeros((2, SIMULATIONS))
    for one, other in longest_reports(phones, clock, 3, multiplier):
        assert length(one) == pytest.approx(SCALE, rel=1e-6)
        assert length(one - other) == pytest.approx(2 * SCALE, rel=1e-6)
        seen = released(link, clock, one, multiplier)
        # The helper's answer does not depend on the numbers, which it does not see.
        without = {kind: each - one for kind, each in seen.items()}
        swapped = {kind: each + other for kind, each in without.items()}
        nothing = np.zeros_like(one)
        zero_out += [ratio_of(each, one, nothing, multiplier) for each in (seen, without)]
        other_answers += [ratio_of(each, one, other, multiplier) for each in (seen, swapped)]
    mu = largest_mu(8.0, 1e-6)
    assert phones[0].ledger.spent() == pytest.approx(mu**2, rel=1e-6)
    check_curve(*zero_out, mu)
    check_curve(*other_answers, 2.0 * mu)


def test_the_difference_of_two_sums_has_the_noise_that_was_charged(tmp_path, clock, link):
    """With v = 1e9 a share is almost the person's own estimate; one sum is without the person."""
    (target, friend), multiplier = pair(tmp_path, clock), 1.25
    broadcast = personal(variance=1e9)
    units = units_of(broadcast, 1e-12)
    first, second = (
        new_request(clock, broadcast, units=units, multiplier=multiplier) for _ in range(2)
    )
    own, others = target.opened(first), friend.opened(first)
    again = friend.opened(second)
    assert length(own) == pytest.approx(SCALE, rel=1e-6)
    with_target = released(link, clock, own + others, multiplier, ("trial", "sum"))
    without = released(link, clock, again, multiplier, ("sum",))
    charged = target.ledger.spent()
    assert charged == pytest.approx(COST / multiplier**2)
    # The server knows all reports but that of the target.
    none, absent = np.zeros_like(own), {k: v - own for k, v in with_target.items()}
    mu = math.sqrt(1.01) * length(own) / (multiplier * SCALE)
    assert mu**2 < charged
    check_curve(
        *(ratio_of({k: v - others for k, v in each.items()}, own, none, multiplier)
          for each in (with_target, absent)),
        mu,
    )  # fmt: skip
    # It knows only the two sums.
    noise = math.sqrt(2.0) * multiplier
    differences = [each["sum"] - without["sum"] for each in (with_target, absent)]
    shift = again - others
    mu = length(own) / (noise * SCALE)
    check_curve(*(ratio_of({"sum": each + shift}, own, none, noise) for each in differences), mu)


# --- sets of one, invented devices, repeated reports -----------------------------------------


class Recorded:
    """Noise of 0 that records what it was asked for."""

    def __init__(self) -> None:
        self.scales: list[float] = []

    def __call__(self, scales):
        self.scales += scales.tolist()
        return no_noise(scales)


@pytest.fixture
def exact(tmp_path, clock):
    """A helper without noise, and what noise it was to draw."""
    noise = Recorded()
    made = Link(tmp_path / "exact", clock, noise)
    yield made, noise
    made.helper.close()


def asked_with(link: Link, request: Request) -> Request:
    """Return a request with the key of a real helper."""
    key = link.key()
    return replace(request, key=key, header=replace(request.header, key=key.key))


def sent_report(phone: Phone, request: Request) -> Report:
    reply = phone.ask(request)
    assert reply.kind == REPORT, reply.reason
    return Report.from_bytes(reply.report, request.header.numbers)


def invented(link: Link, clock: Clock, header, count: int) -> list[Report]:
    """Return reports of devices that the server has made up; it knows their numbers: 0."""
    public = link.key().verified(SIGNER.public_key(), clock.now)
    return [make_report(header, np.zeros(header.numbers, np.int64), public) for _ in range(count)]


@pytest.mark.parametrize("friends", [0, 1, 50])
@pytest.mark.parametrize("kind", KINDS)
def test_the_noise_does_not_depend_on_who_is_in_a_sum(tmp_path, clock, exact, friends, kind):
    """A set of one person, alone or among invented devices: it is what the person charged for."""
    (link, noise), (phone, _) = exact, pair(tmp_path, clock)
    request = asked_with(link, new_request(clock, common(), multiplier=5.0))
    header = request.header
    own = sent_report(phone, request)
    others = invented(link, clock, header, friends)
    sizes = (1,) * (friends + 1) if kind == "parts" else (friends + 1,)
    sealed = tuple(each.sealed for each in (own, *others))
    answer = link.sums(SumRequest(header, kind, sizes, sealed))
    assert noise.scales == [5.0 * SCALE * KINDS[kind]] * (header.numbers * len(sizes))
    masked = own.masked if kind == "parts" else sum(each.masked for each in (own, *others))
    found = (answer.sums[0] + masked).view(np.int64)
    assert 0.0 < length(found) <= SCALE
    assert phone.ledger.spent() == pytest.approx(COST / 25.0)


def test_repeated_reports_and_seeds_weigh_once(tmp_path, clock, exact, monkeypatch):
    """Else the person's part would be multiplied, and the noise not."""
    (link, noise), (phone, _) = exact, pair(tmp_path, clock)
    request = asked_with(link, new_request(clock, common(), multiplier=5.0))
    own, header = sent_report(phone, request), request.header
    public = link.key().verified(SIGNER.public_key(), clock.now)
    monkeypatch.setattr(reports.os, "urandom", lambda count: bytes([7]) * count)
    zeros = np.zeros(header.numbers, np.int64)
    one, same_seed = (make_report(header, zeros, public) for _ in range(2))
    assert one.sealed != same_seed.sealed
    sealed = (own.sealed, one.sealed, own.sealed, same_seed.sealed, *[own.sealed] * 20)
    answer = link.sums(SumRequest(header, "sum", (len(sealed),), sealed))
    assert answer.refused == (2, *range(3, len(sealed)))
    by_hand = answer.sums[0] + own.masked + one.masked
    assert 0.0 < length(by_hand.view(np.int64)) <= SCALE
    noise.scales.clear()
    parts = link.sums(SumRequest(header, "parts", (1, 1, 2), (own.sealed,) * 2 + sealed[2:4]))
    assert parts.refused == (1, 2)
    assert not parts.sums[1].any()  # the repetition is not in it
    assert len(noise.scales) == 3 * header.numbers  # also in a group of repetitions only


# --- numbers ---------------------------------------------------------------------------------


def test_a_number_is_released_once_whatever_is_asked(tmp_path, clock, link):
    """Reused and older numbers, other headers, other sets, restarts, and another store."""
    phones = pair(tmp_path, clock)
    phone, other = phones[0], Phone(phones[0].folder, clock, "other.db", max_epsilon=1000.0)
    first = asked_with(link, new_request(clock, common(), multiplier=5.0))
    reply = phone.ask(first)
    number = first.header.number
    changed = [
        request_for(number, common(PHI), multiplier=5.0),
        request_for(number, common(), multiplier=6.0),
        request_for(number, common(), units=units_of(common(), 1e-3), multiplier=5.0),
        request_for(number, personal(), multiplier=5.0),
        request_for(number - 1, common(), multiplier=5.0),
        request_for(number - 10_000, common(), multiplier=5.0),
        request_for(number, common(), task=bytes(32), multiplier=5.0),
    ]
    assert phone.ask(replace(first, counted=5)) == reply
    for _ in range(2):
        for request in changed:
            for each in (phone, other):
                assert each.ask(asked_with(link, request)).kind == REFUSED
        assert (
            "with another header: it needs a new" in phone.ask(asked_with(link, changed[0])).reason
        )
        assert phone.ask(first) == reply
        assert "after an interruption" in other.ask(first).reason
        phone.restart()
        other.restart()
    assert phone.ledger.spent() == pytest.approx(COST / 25.0)

    report = Report.from_bytes(reply.report, first.header.numbers)
    friends = invented(link, clock, first.header, 2)
    sets = [(report,), (report, friends[0]), (friends[0], report), (report, *friends)]
    given, refused = [], 0
    for _ in range(2):
        for kind, chosen in itertools.product(KINDS, sets):
            for header in (first.header, replace(first.header, sigma=first.header.sigma + 1)):
                sealed = tuple(each.sealed for each in chosen)
                try:
                    given.append(link.sums(SumRequest(header, kind, (len(sealed),), sealed)))
                except FederationError:
                    refused += 1
        link.restart()
    assert (len(given), refused) == (6, 2 * len(KINDS) * len(sets) * 2 - 6)
    for kind in KINDS:
        release, contents = link.released[number, kind]
        assert len(contents) == 1
        assert release.sealed == (report.sealed,)
    charged = sum((release.multiplier * KINDS[kind]) ** -2
                  for (_, kind), (release, _) in link.released.items())  # fmt: skip
    assert charged == pytest.approx(phone.ledger.spent())


def test_an_exchange_is_not_released_again_after_the_next_one(tmp_path, clock, link):
    """The helper stores the answers of the last exchange only, and its key opens older reports."""
    (phone, _), requests = pair(tmp_path, clock), []
    for _ in range(2):
        asked = asked_with(link, new_request(clock, common(), multiplier=5.0))
        sealed = (sent_report(phone, asked).sealed,)
        requests.append(SumRequest(asked.header, "sum", (1,), sealed))
        link.sums(requests[-1])
    first, second = requests
    for kind in KINDS:
        with pytest.raises(FederationError, match="is over"):
            link.sums(replace(first, kind=kind))
    link.sums(second)  # the same bytes
    assert [len(contents) for _, contents in link.released.values()] == [1, 1]


# --- a hostile helper ------------------------------------------------------------------------


def only(sampler, scale: float):
    """Return noise that is drawn by a sampler for one scale, and 0 for others."""
    return lambda scales: sampler(scales) if scales.flat[0] == scale else no_noise(scales)


def noise_of(server: ServerAlone, dimension: int = D) -> np.ndarray:
    """Return the sum of one report, of zeros, as a vector in units of length."""
    theta = np.zeros(dimension)
    broadcast = Broadcast(common(theta).play, theta)
    zeros = np.zeros(size_of(broadcast, server.form), np.int64)
    upload = server.exchange(broadcast, [zeros])
    return vector_of(upload, broadcast, server.units, server.form)


MULTIPLIER = 3.0
WIDE = 333
"""With so many features, a report has 55,945 values: 3 % are five standard errors of a variance."""


@pytest.mark.parametrize("is_hostile", [False, True])
def test_what_the_server_uses_has_the_noise_of_both_parties(tmp_path, is_hostile):
    """And that of the server, if the helper adds none and knows the sum."""
    sampler = only(discrete_gaussian, MULTIPLIER * SCALE)
    link = Link(tmp_path / "helper", Clock(time.time()), sampler)
    helper = QuietHelper() if is_hostile else link
    vector = noise_of(ServerAlone(sampler, MULTIPLIER, helper, dimension=WIDE), WIDE)
    link.helper.close()
    assert len(vector) == 55_945
    noise = vector[:-1] / MULTIPLIER  # the last value is a count, which is rounded
    parties = 1.0 if is_hostile else 2.0
    assert np.mean(noise**2) == pytest.approx(parties, rel=0.03)
    assert abs(noise.mean()) < 5.0 * math.sqrt(parties / len(noise))


def test_each_value_has_the_noise_of_both_parties(tmp_path):
    """The number of answers as well."""

    def noise(drawn: float):
        return lambda scales: np.full(scales.shape, round(drawn * SCALE))

    link = Link(tmp_path / "helper", Clock(time.time()), noise(30.0))
    vector = noise_of(ServerAlone(noise(20.0), 100.0, link))
    link.helper.close()
    np.testing.assert_allclose(vector, 50.0, atol=0.05)  # the number is rounded


def test_a_decision_about_a_sum_has_the_noise_of_the_server():
    """A helper that shifts the trial to the limit learns no exact number from what follows."""
    deviation = math.sqrt(2.0) * 10.0 * MULTIPLIER
    helper = QuietHelper(round((1.0 + FAR * deviation) * SCALE))
    server = ServerAlone(discrete_gaussian, MULTIPLIER, helper)
    for _ in range(60):
        with contextlib.suppress(RoundAbandonedError):  # the parts are shifted as well
            noise_of(server)
    kinds = [request.kind for request in helper.asked]
    assert kinds.count("trial") == 60
    # By chance, outside of these limits with probability 1e-6.
    assert 11 <= kinds.count("parts") <= 49


# --- worlds that differ in everything --------------------------------------------------------


@pytest.mark.parametrize(
    "requests",
    [
        200,
        pytest.param(10_000, marks=[pytest.mark.exhaustive, pytest.mark.timeout(3600)]),
    ],
)
def test_worlds_with_the_same_randomness_differ_by_what_noise_covers(
    tmp_path, clock, monkeypatch, caplog, requests
):
    """Two persons, and a device without any, get the same requests of a hostile server.

    With the same seeds, the masked numbers differ by the difference of the reports. Statistics of
    devices with answers fail at random.
    """
    caplog.set_level(logging.CRITICAL)
    chance, report, fails = random.Random(7), UploadMaker.report, random.Random(5)

    def failing(self, broadcast, known, new):
        if len(known.numbers) + len(new.numbers) and fails.random() < 0.2:
            raise fails.choice([KeyError("x"), ArithmeticError(), MemoryError(), OutputError("x")])
        return report(self, broadcast, known, new)

    monkeypatch.setattr(UploadMaker, "report", failing)
    phones = [Phone(tmp_path / name, clock, max_epsilon=1000.0) for name in ("a", "b", "none")]
    sent, counts = [], dict.fromkeys((REPORT, ESTIMATE, REFUSED), 0)
    persons, lengths = (random.Random(1), random.Random(2)), []
    for number in range(requests):
        clock.now += chance.choice([0.001, 1.0, 1000.0])
        for phone, person in zip(phones, persons, strict=False):
            live(phone, person)
            if number % 40 == 39:
                phone.store.forget()
        content = hostile(chance, clock.ms, sent[-50:])
        sent.append(content)
        bodies = []
        for phone in phones:
            stream = random.Random(number)
            monkeypatch.setattr(
                reports, "os", SimpleNamespace(urandom=lambda n, s=stream: s.randbytes(n))
            )
            bodies.append(phone.vault.answer(content))
        assert len({len(body) for body in bodies}) == 1
        replies = [Reply.from_bytes(body) for body in bodies]
        assert len({(each.kind, each.reason, each.digest) for each in replies}) == 1
        ledgers = [phone.ledger for phone in phones]
        assert len({(each.created, str(each.days), str(each.tasks)) for each in ledgers}) == 1
        counts[replies[0].kind] += 1
        if replies[0].kind != REPORT:
            continue
        numbers = Request.from_bytes(content).header.numbers
        one, other, none = (Report.from_bytes(each.report, numbers).masked for each in replies)
        for first, second, most in ((one, none, 1), (other, none, 1), (one, other, 2)):
            step = [int(each) for each in (first - second).view(np.int64)]
            assert sum(each * each for each in step) <= (most * SCALE) ** 2
        lengths.append(length((one - other).view(np.int64)) / SCALE)
    assert min(counts.values()) > requests // 40
    assert max(lengths) > 1.0
    assert len(set(lengths)) > requests // 10
