"""The vault of a device in secure sums: order of writes, refusals, kills, backups, leaks."""

from __future__ import annotations

import hashlib
import math
import random
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import mpmath
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from vaults import (
    SIGNER,
    START,
    STEPS,
    Clock,
    D,
    Kills,
    Phone,
    common,
    configure,
    hostile,
    key_of,
    live,
    opened,
    personal,
    request_for,
    settings_of,
    share_by_hand,
)

from clients.preference_agent import PreferenceAgent
from clients.store import DuelStore, UndoError
from clients.uploads import UploadMaker
from clients.vault import WITHHELD, Vault, read_config
from clients.vault.ledger import LedgerFile, day_of
from fldb_flower.bandit.estimate import Estimate
from fldb_flower.errors import DataError, OutputError
from fldb_flower.federation.exchange import Broadcast, PlayRequest
from fldb_flower.secure.protocol import (
    COST,
    ESTIMATE,
    HELLO,
    LEAST_SIGMA,
    REFUSED,
    REPORT,
    SCALE,
    Reply,
    Request,
    framed,
    unframed,
)
from fldb_flower.secure.statistics import Shared

SOME = ([1.0, 0.5], 1.0), ([-0.25, 2.0], 0.0), ([3.0, 1.0], 0.5)
UNIT = 1024.0
"""Unit of all parts, a power of 2: numbers of reports are then multiples of it without rounding."""


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def phone(tmp_path, clock):
    """A device with three answers."""
    made = Phone(tmp_path / "device", clock)
    made.answer(*SOME)
    return made


def ask_for(phone, number=None, broadcast=None, **changes) -> Request:
    """Return a request with a new number, a second after the last one."""
    phone.clock.now += 1.0
    units = dict.fromkeys(("gradient", "information", "hessian", "num_duels"), UNIT)
    if broadcast is not None and broadcast.shares:
        units = dict.fromkeys(("shift", "precision", "losses", "num_duels"), UNIT)
    number = phone.clock.ms if number is None else number
    return request_for(number, broadcast, **{"units": units, **changes})


def numbers_of(duels) -> list[Fraction]:
    """Return the statistics of FLDB-ONS at theta = 0, exactly.

    The logistic function is 1/2 there, and its derivative 1/4; the features are multiples of 1/4.
    """
    gradient, gram = [Fraction(0)] * 2, [Fraction(0)] * 3
    for (x, y), won in ((map(Fraction, duel), won) for duel, won in duels):
        factor = Fraction(1, 2) - Fraction(won)
        gradient = [gradient[0] + factor * x, gradient[1] + factor * y]
        gram = [gram[0] + x * x, gram[1] + x * y, gram[2] + y * y]
    return [*gradient, *gram, *(each / 4 for each in gram), Fraction(len(duels))]


def check_numbers(integers, duels) -> None:
    """Compare the integers of a report with the exact statistics, each rounded toward zero."""
    for place, (number, right) in enumerate(zip(integers.tolist(), numbers_of(duels), strict=True)):
        factor = math.sqrt(2.0) if place in {3, 6} else 1.0  # off the diagonal
        assert number == math.trunc(float(right) / UNIT * factor * SCALE)


# --- what a report contains ------------------------------------------------------------------


def test_a_report_has_the_statistics_and_each_answer_counts_once(phone):
    first = ask_for(phone)
    check_numbers(phone.opened(first), phone.given)
    phone.answer(([0.5, -4.0], 0.0))
    second = ask_for(phone, counted=first.header.number)
    check_numbers(phone.opened(second), phone.given[3:])
    third = ask_for(phone, counted=second.header.number)
    assert not phone.opened(third).any()  # no new answers
    assert phone.store.counts() == {"open": 0, "answered": 4, "counted": 4}


def test_answers_are_sent_until_they_are_counted(phone):
    """An older or unknown number, for example of a server that was restored, changes nothing."""
    phone.opened(ask_for(phone))
    assert phone.store.sent == 3
    phone.answer(([0.5, -4.0], 0.0))
    second = ask_for(phone)
    check_numbers(phone.opened(second), phone.given)
    phone.answer(([0.25, 2.0], 1.0))
    phone.opened(ask_for(phone, counted=second.header.number))
    for counted in (0, 1, second.header.number, second.header.number - 1):
        check_numbers(phone.opened(ask_for(phone, counted=counted)), phone.given[4:])
    assert phone.store.acknowledged == 4


def test_differences_are_clipped(tmp_path, clock):
    phone = Phone(tmp_path, clock)
    phone.answer(([48.0, 0.0], 1.0))
    check_numbers(phone.opened(ask_for(phone)), [([8.0, 0.0], 1.0)])


def test_a_share_is_whole_and_relative_to_the_mean(phone):
    """Its losses are those of new answers; after all answers are deleted it is 0."""
    prior, counted = ([[3.0, 1.0], [1.0, 4.0]], [0.5, -0.25]), 0

    def values() -> np.ndarray:
        settings = settings_of(algorithm="fldb_personal", personal_ridge=0.1)
        request = ask_for(phone, broadcast=personal(*prior), settings=settings, counted=counted)
        return phone.opened(request) / SCALE * UNIT

    for answers in (3, 4):
        found = values()
        m, shift = share_by_hand(phone.given, *prior, 0.5)
        right = [*shift, m[0, 0], m[0, 1] * math.sqrt(2.0), m[1, 1]]
        np.testing.assert_allclose(found[:5], right, atol=1e-5)
        assert found[5:16].max() > 0.01
        assert found[16] == answers
        phone.answer(([0.5, -4.0], 0.0))
    values()
    counted = phone.clock.ms
    found = values()
    assert not found[5:16].any()  # all five are counted
    assert found[16] == 5.0
    phone.store.forget()
    assert not values().any()


def test_deleted_answers_are_left_out_and_those_in_a_report_cannot_be_undone(phone):
    first = ask_for(phone)
    reply = phone.ask(first)
    proposal = phone.store.propose(np.array([1.0, 1.0]), np.nan, expire_after=1e9)
    phone.store.record([(proposal.id, 1.0)])
    phone.opened(ask_for(phone, counted=first.header.number))
    with pytest.raises(UndoError, match="part of an upload"):
        phone.store.undo(proposal.id, expire_after=1.0)
    assert phone.store.prune(older_than=-1e12) == 3  # those that are counted
    check_numbers(phone.opened(ask_for(phone)), [([1.0, 1.0], 1.0)])
    phone.store.forget()
    assert phone.ask(first).kind == REFUSED
    assert not phone.opened(ask_for(phone)).any()
    phone.answer(([0.25, 2.0], 1.0))
    last = ask_for(phone)
    reply = phone.ask(last)
    check_numbers(opened(last, reply), phone.given[3:])
    phone.store.forget()
    assert phone.ask(last) == reply  # it contains no answer in the clear


# --- order of writes -------------------------------------------------------------------------


@pytest.fixture
def events(monkeypatch):
    """The order of writes and reads: ledger, answers, parts of the store, its commit."""
    seen: list[str] = []

    def observed(owner, name: str, event: Callable[..., str]) -> None:
        original = getattr(owner, name)

        def wrapper(self, *arguments, **keywords):
            seen.append(event(*arguments))
            return original(self, *arguments, **keywords)

        monkeypatch.setattr(owner, name, wrapper)

    observed(
        LedgerFile, "write", lambda ledger: f"ledger {max(s.cut for s in ledger.stores.values())}"
    )
    observed(DuelStore, "answers", lambda *_: "answers")
    observed(DuelStore, "evidence", lambda *_: "answers")
    observed(DuelStore, "keep_secure_part", lambda part, _: part)
    return seen


def test_an_exchange_is_charged_before_an_answer_is_read(phone, events):
    """And the report is stored before it is sent."""
    request = ask_for(phone)
    reply = phone.ask(request)
    check_numbers(opened(request, reply), phone.given)
    first, last = events.index("ledger 0"), events.index("ledger 3")
    assert (first, last) == (0, len(events) - 1)
    assert set(events[1:last]) == {"answers", "report", "journal"}
    assert events.index("answers") < events.index("report")
    assert phone.store.secure_part("report") == reply.to_bytes()
    assert list(phone.ledger.stores.values()) == [(request.header.number, 3)]
    assert phone.ledger.days == {day_of(phone.clock.now): COST / 400}


# --- refusals --------------------------------------------------------------------------------

OTHER = Ed25519PrivateKey.from_private_bytes(bytes(32))


def edited(request: Request, edit: Callable[[dict], None]) -> Request:
    """Return a request with another broadcast, of which the header has the hash."""
    names = ("duels", "header", "privacy", "settings", "units")
    fields, body = unframed(request.broadcast, "it", names)
    edit(fields)
    content = framed(fields, body)
    header = replace(request.header, broadcast=hashlib.sha256(content).digest())
    return replace(request, header=header, broadcast=content)


def refused_requests(phone) -> dict[str, tuple[Request, str]]:
    """Return requests that are refused, each with words of the reason."""
    phone.clock.now += 1.0
    now = phone.clock.ms
    good, three = request_for(now), settings_of(dimension=3)
    estimate = Broadcast(common().play, None)
    expired = replace(key_of(), expires=int(START) - 1).sign(SIGNER)
    low_order = replace(key_of(), public=bytes(32)).sign(SIGNER)
    return {
        "task": (request_for(now, task=bytes(32)), "another federation, helper or dimension"),
        "key": (request_for(now, key=key_of(key=8)), "another key of the helper"),
        "signer": (request_for(now, key=key_of(signer=OTHER)), "not signed by the pinned key"),
        "expired": (request_for(now, key=expired), "expired"),
        "low order": (request_for(now, key=low_order), "not a valid public key"),
        "past": (request_for(now - 86_400_001), "one of them is wrong"),
        "future": (request_for(now + 600_001), "one of them is wrong"),
        "before the ledger": (request_for(phone.ledger.created), "accepts exchanges after"),
        "values": (request_for(now, numbers=10), "has 10 values, and its broadcast 9"),
        "dimension": (request_for(now, common([0.0] * 3), settings=three), "dimension=3, and the"),
        "noise": (request_for(now, multiplier=4.9), "more than a tenth of the device's budget"),
        "no noise": (
            request_for(now, sigma=LEAST_SIGMA),
            f"its noise multiplier is {LEAST_SIGMA / SCALE:.4g}",
        ),
        "nothing": (request_for(now, estimate, numbers=1), "requests no statistics"),
        "public": (
            edited(good, lambda fields: fields["privacy"].update(epsilon="none")),
            "no privacy.epsilon",
        ),
        "no prior": (
            request_for(now, Broadcast(common().play, None, shares=True), numbers=17),
            "shares without a prior",
        ),
        "units": (
            edited(good, lambda fields: fields.update(units={})),
            "units of the broadcast of",
        ),
        "no unit": (
            edited(good, lambda fields: fields["units"].update(gradient=0.0)),
            "the unit of gradient must be a positive number",
        ),
        "hash": (replace(good, broadcast=good.broadcast + b"\0"), "another hash"),
    }


def test_a_refusal_costs_nothing_and_reads_no_answer(phone, events):
    requests, before = refused_requests(phone), phone.ledger
    for request, words in requests.values():
        reply = phone.ask(request)
        assert (reply.kind, reply.device, reply.report) == (REFUSED, phone.store.device_id, b"")
        assert words in reply.reason
        assert "\n" not in reply.reason
        assert phone.ledger == before
        assert not events
        assert phone.store.sent == 0
    check_numbers(phone.opened(ask_for(phone)), phone.given)


def test_a_damaged_request_is_refused(phone):
    """And not taken for damage of the files. More kinds are in test_secure_messages.py."""
    content, chance = ask_for(phone).to_bytes(), random.Random(3)
    damaged = [chance.randbytes(chance.randrange(300)) for _ in range(50)]
    good = ask_for(phone)
    good = replace(good, header=replace(good.header, task=bytes(32)))
    values = (None, True, -1, 2**70, 1e300, 1e-300, "x", "", [], {}, [[]], [1] * 7, [2**60] * 7)
    fields, _ = unframed(good.broadcast, "it", ("duels", "header", "privacy", "settings", "units"))
    for part, before in fields.items():
        changes = [{part: value} for value in values]
        if isinstance(before, dict):
            changes += [{part: {**before, name: value}} for name in before for value in values]
        edits = [edited(good, lambda f, new=new: f.update(new)).to_bytes() for new in changes]
        replies = [Reply.from_bytes(phone.vault.answer(each)) for each in edits]
        assert sum("another federation" not in reply.reason for reply in replies) > 5
        damaged += edits
    for reply in map(Reply.from_bytes, map(phone.vault.answer, damaged)):
        assert reply.kind == REFUSED
        assert reply.reason != WITHHELD
    assert not phone.ledger.days
    for place in chance.sample(range(len(content)), 300):  # a digit may be another valid one
        changed = content[:place] + chance.randbytes(1) + content[place + 1 :]
        assert Reply.from_bytes(phone.vault.answer(changed)).reason != WITHHELD


def test_hello_and_estimates_cost_nothing(phone):
    before = phone.ledger
    assert phone.ask(Request(HELLO)) == Reply(HELLO, phone.store.device_id)
    shared = Shared(Broadcast(common((2.0, 3.0), round=4).play, None), settings_of(), 9, {})
    reply = phone.ask(Request(ESTIMATE, broadcast=shared.to_bytes()))
    assert reply == Reply(ESTIMATE, phone.store.device_id)
    estimate = phone.store.synchronized()
    assert (estimate.round, estimate.theta.tolist(), estimate.duels) == (4, [2.0, 3.0], 9)
    assert (phone.ledger, phone.store.sent) == (before, 0)
    request = ask_for(phone)
    phone.opened(request)
    assert phone.store.acknowledged == 0
    phone.ask(Request(ESTIMATE, counted=request.header.number, broadcast=shared.to_bytes()))
    assert phone.store.acknowledged == 3
    assert not phone.opened(ask_for(phone)).any()


def common_with(information) -> Broadcast:
    return common()._replace(play=PlayRequest(1, 1, Estimate(np.zeros(D), information)))


@pytest.mark.parametrize(
    ("broadcast", "is_used"),
    [
        (common((1e300, -1e300)), False),
        (common_with(-np.eye(D)), False),
        (personal(np.eye(D) * 1e-300, [1e300, 1e300], variance=1e300), False),
        (common((1e140, -1e140)), True),
        (common_with(np.eye(D) * 1e-320), False),
        (personal(np.eye(D) * 1e200, [0.0, 0.0], variance=1e300), False),
        (personal(np.eye(D) * 1e100, [1e50, 0.0], variance=1e100), False),
    ],
    ids=["theta", "not definite", "shift", "long theta", "tiny W", "v", "large shares"],
)
def test_an_estimate_that_cannot_be_used_is_left_out(phone, broadcast, is_used, caplog):
    """The report is sent as usual, and the person's next duel can be proposed."""
    phone.opened(ask_for(phone, broadcast=common((0.5, -1.0), round=3)))
    assert phone.opened(ask_for(phone, broadcast=broadcast)).shape
    assert (phone.store.synchronized().theta.tolist() != [0.5, -1.0]) == is_used
    assert ("an estimate from the server is not used" in caplog.text) != is_used
    with PreferenceAgent(phone.path) as agent:
        assert 0.0 <= agent.propose([[0.1, 0.9], [0.8, 0.2]]).predicted <= 1.0
        assert np.isfinite(agent.explain().deviations).all()


def test_a_failure_of_the_statistics_reports_zeros(phone, monkeypatch, caplog):
    def fail(*_):
        raise ZeroDivisionError("of answer 3")

    monkeypatch.setattr(UploadMaker, "report", fail)
    request = ask_for(phone)
    assert not phone.opened(request).any()
    assert "of answer 3" in caplog.text
    assert phone.ledger.spent() == COST / 400
    monkeypatch.undo()
    check_numbers(phone.opened(ask_for(phone)), phone.given)


def test_damage_of_the_files_is_named_only_in_the_log(phone, caplog):
    phone.config.ledger.write_text("{}")
    reply = phone.ask(ask_for(phone))
    assert (reply.kind, reply.reason) == (REFUSED, WITHHELD)
    assert f"{phone.config.ledger} has []: must have created" in caplog.text
    phone.config.ledger.unlink()
    phone.store.keep_secure_part("journal", b"{}")
    assert phone.ask(ask_for(phone)).reason == WITHHELD
    assert "the journal of secure sums in" in caplog.text


# --- the limit -------------------------------------------------------------------------------


def delta_of(epsilon: float, mu: float) -> float:
    """Return delta of a Gaussian mechanism (Balle and Wang 2018), with mpmath."""
    with mpmath.workdps(40):
        low, high = (
            mu / 2 - mpmath.mpf(epsilon) / mu,
            -mpmath.mpf(mu) / 2 - mpmath.mpf(epsilon) / mu,
        )
        return float(mpmath.ncdf(low) - mpmath.exp(epsilon) * mpmath.ncdf(high))


def test_reports_end_at_the_limit(phone, caplog):
    """With twelve exchanges, each of a tenth of the limit, ten are answered."""
    multiplier = math.sqrt(10.0 * COST / phone.config.most) * (1.0 + 1e-9)
    replies = [phone.ask(ask_for(phone, multiplier=multiplier)) for _ in range(12)]
    assert [reply.kind for reply in replies] == [REPORT] * 10 + [REFUSED] * 2
    assert replies[-1].reason == "the device's limit of privacy is spent"
    spent = phone.vault.spent()
    assert (spent.max_epsilon, spent.delta, spent.days, spent.refused) == (3.0, 1e-6, None, True)
    mu = math.sqrt(10 * COST) / multiplier
    assert delta_of(spent.epsilon, mu) == pytest.approx(1e-6, rel=1e-6)
    assert spent.epsilon == pytest.approx(3.0, abs=1e-6)
    assert "max_epsilon=3 in " in caplog.text
    phone.restart()
    assert phone.ask(ask_for(phone)).kind == REFUSED
    configure(phone.folder, max_epsilon=3.5)
    phone.restart()
    assert phone.ask(ask_for(phone)).kind == REPORT
    assert not phone.vault.spent().refused


def test_the_limit_holds_for_any_period(tmp_path, clock):
    """Reports are answered as soon as, and not before, the period allows them."""
    phone = Phone(tmp_path, clock, privacy_days=30)
    multiplier, replied = math.sqrt(10.0 * COST / phone.config.most) * (1 + 1e-9), []
    for _ in range(200):
        clock.now += 86_400 / 2
        if phone.ask(ask_for(phone, multiplier=multiplier)).kind == REPORT:
            replied.append(clock.now)
    assert len(replied) > 20
    for first, later in zip(replied, replied[10:], strict=False):
        assert 30 * 86_400 < later - first < 33 * 86_400


def test_two_federations_share_a_ledger_and_its_limit(tmp_path, clock):
    ledger = f'"{tmp_path / "shared.ledger"}"'
    one = Phone(tmp_path / "one", clock, ledger=ledger)
    other = Phone(tmp_path / "other", clock, ledger=ledger, federation='"coffee"')
    task = other.config.task
    multiplier = math.sqrt(10.0 * COST / one.config.most) * (1.0 + 1e-9)
    kinds = []
    for _ in range(7):
        clock.now += 1.0
        kinds.append(one.ask(request_for(clock.ms, multiplier=multiplier)).kind)
        kinds.append(other.ask(request_for(clock.ms, task=task, multiplier=multiplier)).kind)
    assert kinds == [REPORT] * 10 + [REFUSED] * 4


def test_a_wrong_clock_refuses_and_changes_nothing(phone):
    phone.opened(ask_for(phone))
    request = ask_for(phone)
    before, right = phone.ledger, phone.clock.now
    for now in (0.0, 1e6, START - 86_402, START + 86_410):
        phone.clock.now = now
        assert "one of them is wrong" in phone.ask(request).reason
        phone.restart()
        assert phone.ledger == before
    phone.clock.now = right
    check_numbers(phone.opened(request), phone.given)


@pytest.mark.parametrize("now", [0.0, START + 1e9])
def test_a_ledger_of_a_wrong_clock_is_of_use_once_it_is_right(tmp_path, now):
    clock = Clock(now)
    phone = Phone(tmp_path, clock)
    assert phone.ask(request_for(2000)).kind == REFUSED  # an exchange of 1970
    clock.now = START
    phone.ask(Request(HELLO))
    phone.restart()
    check_numbers(phone.opened(ask_for(phone)), [])


# --- kills -----------------------------------------------------------------------------------


@pytest.fixture
def kills(monkeypatch):
    return Kills(monkeypatch)


@pytest.mark.parametrize("at", range(STEPS + 1))
def test_a_kill_at_any_write(phone, kills, at):
    """The number is charged once, and answered with the same bytes or not at all."""
    request = ask_for(phone)
    assert (kills.run(at, phone, request) is None) == (at < STEPS)
    charges = phone.ledger.spent()
    assert charges == (0.0 if at == 0 else COST / 400)
    first, again = phone.ask(request), phone.ask(request)
    assert first == again
    assert phone.ledger.spent() == COST / 400
    if first.kind == REPORT:
        check_numbers(opened(request, first), phone.given)
    else:
        assert "after an interruption" in first.reason
        assert 1 <= at < 12  # charged, and rolled back in the store
    counted = request.header.number if first.kind == REPORT else 0
    phone.answer(([0.5, -4.0], 0.0))
    second = ask_for(phone, counted=counted)
    check_numbers(phone.opened(second), phone.given[3:] if counted else phone.given)


@pytest.mark.parametrize("at", range(8))
def test_a_kill_while_a_missing_ledger_is_replaced(phone, kills, at):
    phone.opened(ask_for(phone))
    phone.answer(([0.5, -4.0], 0.0))
    phone.config.ledger.unlink()
    kills.run(at, phone, ask_for(phone))
    phone.restart()
    assert phone.vault.spent().epsilon == pytest.approx(3.0)
    configure(phone.folder, max_epsilon=5.0)
    phone.restart()
    phone.clock.now += 700.0
    assert not phone.opened(ask_for(phone)).any()


# --- backups, and several stores --------------------------------------------------------------


def copied(path: Path) -> Path:
    copy = path.with_suffix(".backup")
    with DuelStore(path) as store:
        store.backup(copy)
    return copy


def restore(phone, copy: Path) -> None:
    phone.store.close()
    for suffix in ("-wal", "-shm"):
        path = Path(f"{phone.path}{suffix}")
        path.unlink(missing_ok=True)
    shutil.copy(copy, phone.path)
    phone.start()


def test_a_restored_store_sends_no_answer_again(phone, caplog):
    copy = copied(phone.path)
    phone.answer(([0.5, -4.0], 0.0))
    request = ask_for(phone)
    phone.opened(request)
    restore(phone, copy)
    assert "may be a backup: its answers up to number 4 are not sent again" in caplog.text
    assert "after an interruption" in phone.ask(request).reason
    assert phone.ledger.spent() == COST / 400
    assert (phone.store.last, phone.store.sent) == (4, 4)
    phone.answer(([0.25, 2.0], 1.0))
    for counted in (0, request.header.number):
        check_numbers(phone.opened(ask_for(phone, counted=counted)), phone.given[4:])


def test_a_restored_store_does_not_send_what_is_in_a_report_that_it_lacks(phone, kills):
    """The process is killed when a report is stored, and the ledger has no cut of it."""
    copy, request = copied(phone.path), ask_for(phone)
    assert kills.run(12, phone, request) is None
    check_numbers(phone.opened(request), phone.given)
    restore(phone, copy)
    assert not phone.opened(ask_for(phone, counted=request.header.number)).any()
    phone.answer(([0.5, -4.0], 0.0))
    phone.opened(ask_for(phone))
    copy.unlink()
    copy, second = copied(phone.path), ask_for(phone)
    phone.opened(second)  # on the same answers as the last report that the backup has
    restore(phone, copy)
    assert not phone.opened(ask_for(phone, counted=second.header.number)).any()


def test_a_missing_ledger_counts_as_spent(phone, caplog):
    request = ask_for(phone)
    phone.opened(request)
    phone.answer(([0.5, -4.0], 0.0))
    phone.config.ledger.unlink()
    assert phone.vault.spent().epsilon == pytest.approx(3.0)
    phone.restart()
    assert "vault.ledger is missing, or older than" in caplog.text
    assert "max_epsilon in " in caplog.text
    assert phone.vault.spent().epsilon == pytest.approx(3.0)
    assert "accepts exchanges after" in phone.ask(request).reason
    phone.clock.now += 700.0
    assert phone.ask(ask_for(phone)).reason == "the device's limit of privacy is spent"
    configure(phone.folder, max_epsilon=5.0)
    phone.restart()
    assert not phone.opened(ask_for(phone)).any()  # the store may be a backup as well
    phone.answer(([0.25, 2.0], 1.0))
    check_numbers(phone.opened(ask_for(phone)), phone.given[4:])


def test_an_older_ledger_counts_as_missing(phone):
    phone.opened(ask_for(phone))
    old = phone.config.ledger.read_bytes()
    second = ask_for(phone)
    phone.opened(second)
    phone.config.ledger.write_bytes(old)
    phone.restart()
    assert phone.vault.spent().epsilon > 3.0
    assert phone.ask(second).kind == REFUSED


def test_a_new_store_does_not_evade_the_ledger(phone, clock):
    first = ask_for(phone)
    phone.opened(first)
    other = Phone(phone.folder, clock, "other.db")
    other.answer(*SOME)
    assert "after an interruption" in other.ask(first).reason
    check_numbers(other.opened(ask_for(other)), other.given)  # its answers were never sent
    assert phone.ledger.spent() == pytest.approx(2 * COST / 400)
    phone.answer(([0.5, -4.0], 0.0))
    check_numbers(phone.opened(ask_for(phone, counted=first.header.number)), phone.given[3:])


def test_two_stores_with_one_ledger_never_undercount(tmp_path, clock):
    """Both are asked at the same time; of the same number, one is answered."""
    multiplier = 50.0
    phones = [Phone(tmp_path, clock, f"{name}.db") for name in ("one", "two")]
    clock.now += 100.0
    replies: dict[int, list[Reply]] = {number: [] for number in range(clock.ms - 99, clock.ms)}

    def ask_all(phone):
        for number, each in replies.items():
            each.append(phone.ask(request_for(number, multiplier=multiplier)))

    threads = [threading.Thread(target=ask_all, args=[phone]) for phone in phones]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answered = [sum(reply.kind == REPORT for reply in each) for each in replies.values()]
    assert set(answered) <= {0, 1}
    assert sum(answered) > 50
    assert phones[0].ledger.spent() == pytest.approx(sum(answered) * COST / multiplier**2)


def test_the_ledger_is_readable_by_its_owner_only(phone):
    phone.opened(ask_for(phone))
    for path in (phone.config.ledger, phone.config.ledger.with_name("vault.ledger.lock")):
        assert path.stat().st_mode & 0o777 == 0o600
    phone.config.ledger.chmod(0o620)
    with pytest.raises(DataError, match=r"other users can write .*vault\.ledger"):
        phone.restart()


# --- what the server observes ----------------------------------------------------------------


@pytest.mark.parametrize("requests", [100, pytest.param(500, marks=pytest.mark.slow)])
def test_replies_tell_nothing_about_answers(tmp_path, monkeypatch, requests):
    """Two persons with different answers, and a device whose statistics fail, reply alike."""
    clock, chance = Clock(), random.Random(11)
    phones = [Phone(tmp_path / name, clock, max_epsilon=1000.0) for name in ("one", "two")]
    phones[0].answer(*SOME * 10)
    for _ in range(5):
        phones[1].answer(([1e90, -1e95], 1.0))
    report, fails = UploadMaker.report, random.Random(5)

    def failing(self, broadcast, known, new):
        if self is not None and known.numbers.size + new.numbers.size and fails.random() < 0.2:
            raise fails.choice([KeyError("x"), ArithmeticError(), MemoryError(), OutputError("x")])
        return report(self, broadcast, known, new)

    monkeypatch.setattr(UploadMaker, "report", failing)
    sent, kinds, nonzero = [], [], 0
    persons = random.Random(1), random.Random(2)
    for _ in range(requests):
        clock.now += chance.choice([0.001, 1.0, 1000.0])
        for phone, person in zip(phones, persons, strict=True):
            live(phone, person)
        content = hostile(chance, clock.ms, sent)
        sent.append(content)
        bodies = [phone.vault.answer(content) for phone in phones]
        one, other = map(Reply.from_bytes, bodies)
        assert (one.kind, one.reason, one.digest) == (other.kind, other.reason, other.digest)
        assert len(bodies[0]) == len(bodies[1])
        kinds.append(one.kind)
        first, second = phones[0].ledger, phones[1].ledger
        assert (first.created, first.days, first.tasks) == (
            second.created, second.days, second.tasks
        )  # fmt: skip
        if one.kind == REPORT:
            for reply in (one, other):
                integers = opened(Request.from_bytes(content), reply).tolist()
                assert sum(each * each for each in integers) <= SCALE**2
                nonzero += any(integers)
    assert min(map(kinds.count, (REPORT, REFUSED, ESTIMATE))) > requests // 40
    assert nonzero > requests // 10


# --- the configuration -----------------------------------------------------------------------


def test_the_configuration(tmp_path):
    file = configure(tmp_path / "device")
    config = read_config(file)
    assert (config.federation, config.dimension, config.privacy_days) == ("tea", 2, None)
    assert (config.max_epsilon, config.max_delta) == (3.0, 1e-6)
    assert config.ledger == file.with_name("vault.ledger")
    assert config.helper.public_bytes_raw() == SIGNER.public_key().public_bytes_raw()
    changes = {"max_epsilon": 4, "max_delta": 1e-5, "privacy_days": 365, "ledger": '"../l"'}
    config = read_config(configure(tmp_path / "device", **changes))
    assert (config.max_epsilon, config.max_delta, config.privacy_days) == (4, 1e-5, 365)
    assert config.ledger == tmp_path / "device" / "../l"


WRONG_ENTRIES = (
    ({"roster": '"r"'}, "'roster' is unknown: must be one of federation, helper, ledger,"),
    ({"federation": '""'}, "federation='': must be 1 to 64 letters"),
    ({"federation": "1"}, "federation=1"),
    ({"dimension": 0}, "dimension=0: must be a whole number, 1 to 4096"),
    ({"dimension": "true"}, "dimension=True"),
    ({"dimension": "2.0"}, "dimension=2.0"),
    ({"max_epsilon": 0}, "max_epsilon=0: must be a number, 0.001 to 1000"),
    ({"max_epsilon": "nan"}, "max_epsilon=nan"),
    ({"max_epsilon": "inf"}, "max_epsilon=inf"),
    ({"max_epsilon": '"3"'}, "max_epsilon='3'"),
    ({"max_delta": 0.2}, "max_delta=0.2: must be a number, 1e-15 to 0.1"),
    ({"privacy_days": 0}, "privacy_days=0: must be a whole number, 1 to 100000"),
    ({"privacy_days": "1.5"}, "privacy_days=1.5"),
    ({"ledger": '""'}, "ledger='': must be the name of a file"),
    ({"helper": '"none.pub"'}, "cannot read .*none.pub: No such file"),
    ({"helper": '"vault.toml"'}, "vault.toml is not a public Ed25519 key"),
    ({"helper": "[]"}, r"helper=\[\]: must be the name of a file"),
)


def test_a_wrong_or_missing_entry_is_one_line(tmp_path):
    for changes, words in WRONG_ENTRIES:
        with pytest.raises(DataError, match=words) as error:
            read_config(configure(tmp_path, **changes))
        assert "\n" not in str(error.value)
    for name in ("federation", "helper", "dimension"):
        file = configure(tmp_path)
        lines = file.read_text().splitlines(keepends=True)
        file.write_text("".join(line for line in lines if not line.startswith(name)))
        with pytest.raises(DataError, match=rf"vault\.toml: {name} is missing"):
            read_config(file)


def test_files_that_others_can_write_are_refused(tmp_path):
    for name in ("vault.toml", "helper.pub"):
        for mode in (0o620, 0o602, 0o666):
            file = configure(tmp_path)
            (tmp_path / name).chmod(mode)
            with pytest.raises(DataError, match=rf"other users can write .*{name}: chmod go-w"):
                read_config(file)


def test_a_store_has_the_dimension_of_the_file(phone, tmp_path, clock):
    configure(phone.folder, dimension=3)
    with pytest.raises(DataError, match=r"vault\.toml: dimension=3, but the duels in .* have 2"):
        phone.restart()
    assert Phone(tmp_path / "new", clock).store.dimension == D  # without duels


DAMAGED_LEDGERS = (
    b"", b"[]", b'{"created":0}', b'{"created":0,"days":{},"stores":{},"tasks":[]}',
    b'{"created":0,"days":{"x":0.5},"stores":{},"tasks":{}}',
    b'{"created":0,"days":{},"stores":{"a":[1]},"tasks":{}}',
)  # fmt: skip


def test_a_ledger_that_cannot_be_used_is_one_line(tmp_path, clock):
    file = configure(tmp_path)
    words = r"vault\.ledger.*Delete the file: .* Do not restore it from a backup"
    with DuelStore(tmp_path / "duels.db") as store:
        for content in DAMAGED_LEDGERS:
            (tmp_path / "vault.ledger").write_bytes(content)
            with pytest.raises(DataError, match=words) as error:
                Vault(store, read_config(file), clock=clock)
            assert "\n" not in str(error.value)
        file = configure(tmp_path, ledger='"none/vault.ledger"')
        words = r"cannot write .*none/vault\.ledger\.lock: No such file"
        with pytest.raises(OutputError, match=words):
            Vault(store, read_config(file), clock=clock)
