"""The vault of a device in secure sums: exchanges, crashes, restored stores, limits, leaks."""

from __future__ import annotations

import datetime
import json
import os
import random
import shutil
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from fldb_flower.secure.journal import Journal
from fldb_flower.wire.secure_messages import Declined, Deliver, Hello, Introduced, Pieces, Refused
from fldb_flower.wire.shared_broadcast import encode_shared
from vaults import START, D, Fleet, Phone, common, shared_of

from clients.learning import PersonalLearner
from clients.store import DuelStore, Synchronization, UndoError
from clients.uploads import UploadMaker
from clients.vault import WITHHELD, Vault, read_config
from clients.vault.epoch import EpochFile
from fldb_flower.bandit.prior import CommonPrior
from fldb_flower.deployment import rosters
from fldb_flower.errors import DataError, FldbError, OutputError, SecureError
from fldb_flower.federation.exchange import Broadcast, PlayRequest
from fldb_flower.wire import secure_messages as messages

SOME = ([1.0, 0.5], 1.0), ([-0.25, 2.0], 0.0), ([3.0, 1.0], 0.5)


@pytest.fixture
def fleet(tmp_path):
    """Six devices with three answers each, which differ from device to device."""
    made = Fleet(tmp_path, 6)
    for number, phone in enumerate(made.phones.values()):
        phone.answer(*(([x + number, y], won) for (x, y), won in SOME))
    return made


def integers(duels, exponents) -> list[int]:
    """Return the numbers of FLDB-ONS at theta = 0 in fixed point, without NumPy.

    The logistic function is 1/2 there, and its derivative 1/4; the features are multiples of 1/4.
    """
    gradient, gram = [Fraction(0)] * 2, [Fraction(0)] * 3
    for difference, won in duels:
        x, y = map(Fraction, difference)
        factor = Fraction(1, 2) - Fraction(won)
        gradient = [gradient[0] + factor * x, gradient[1] + factor * y]
        gram = [gram[0] + x * x, gram[1] + x * y, gram[2] + y * y]
    hessian = [each / 4 for each in gram]
    blocks = (gradient, gram, hessian, [Fraction(len(duels))])
    scaled = [
        each * Fraction(2) ** exponent
        for block, exponent in zip(blocks, exponents, strict=True)
        for each in block
    ]
    assert all(each.denominator == 1 for each in scaled)
    return [int(each) for each in scaled]


def exact_sum(state) -> list[int]:
    """Return the sum of the field's elements as integers."""
    half, order = 2**60, 2**61 - 1
    return [n - order if n >= half else n for n in map(int, state.combine().numbers)]


def expected_sum(fleet, state, duels_of, max_duels=1000) -> list[int]:
    shared = shared_of(common(), fleet.settings())
    exponents = shared.encoding(len(state.header.asked), max_duels).exponents
    rows = [integers(duels_of(fleet.phones[name]), exponents) for name in state.chosen]
    return [sum(column) for column in zip(*rows, strict=True)]


# --- whole exchanges -------------------------------------------------------------------------


def test_the_sum_is_exact_and_each_answer_counts_once(fleet):
    _, state = fleet.exchange()
    assert state.chosen == tuple(fleet.names)
    assert exact_sum(state) == expected_sum(fleet, state, lambda phone: phone.given)
    for phone in fleet.phones.values():
        phone.answer(([0.5, -4.0], 0.0))
    _, state = fleet.exchange()
    assert exact_sum(state) == expected_sum(fleet, state, lambda phone: phone.given[3:])


def test_answers_of_an_exchange_that_was_given_up_are_part_of_the_next(fleet):
    fleet.collect(fleet.header())  # no opening
    for phone in fleet.phones.values():
        assert phone.store.sent == 3
        phone.answer(([0.5, -4.0], 0.0))
    _, state = fleet.exchange()
    assert exact_sum(state) == expected_sum(fleet, state, lambda phone: phone.given)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 8))]
)
def test_no_answer_is_lost_or_counted_twice(tmp_path, seed):
    """Requests and replies are lost at random, devices restart, and openings fail.

    The sums at theta = 0 add up: those of all exchanges that were counted are the statistics of all
    answers up to each device's last counted cut.
    """
    chance, fleet = random.Random(seed), Fleet(tmp_path, 7, min_devices=3, min_duels=2)
    total, cut_of, cuts = [0] * 9, dict.fromkeys(fleet.names, 0), dict[tuple[str, bytes], int]()
    for _ in range(10):
        for phone in fleet.phones.values():
            for _ in range(chance.choice([0, 2, 3, 4])):
                duel = [chance.randrange(-8, 9) / 4, chance.randrange(-8, 9) / 4]
                phone.answer((duel, chance.choice([0.0, 0.5, 1.0])))
            if chance.random() < 0.3:
                phone.restart()
        header = fleet.header()
        received = {}
        for name in fleet.names:
            if chance.random() < 0.2:
                continue  # the request is lost
            reply = fleet.phones[name].ask(fleet.request(header, name))
            if isinstance(reply, Pieces):
                cuts[name, header.exchange] = fleet.phones[name].store.sent
                if chance.random() < 0.8:
                    received[name] = reply
        state = fleet.collect(header, *received) if len(received) >= header.least_devices else None
        if state is None or chance.random() < 0.2:
            continue
        state = fleet.open(state)
        total = [a + b for a, b in zip(total, exact_sum(state), strict=True)]
        for name in state.chosen:
            fleet.counted[name] = header.exchange
            cut_of[name] = cuts[name, header.exchange]
    shared = shared_of(common(), fleet.settings())
    exponents = shared.encoding(7, 1000).exponents
    rows = [integers(p.given[: cut_of[name]], exponents) for name, p in fleet.phones.items()]
    assert sum(cut_of.values()) > 20
    assert total == [sum(column) for column in zip(*rows, strict=True)]


def personal(precision, shift, lowest=0.25) -> Broadcast:
    prior = CommonPrior(np.array(precision), np.array(shift), 0.5, 4.0)
    play = PlayRequest(1, 1, prior)
    return Broadcast(play, None, shares=True, lowest_variance=lowest)


def test_shares_add_up_over_lost_exchanges(tmp_path):
    """The sum of the changes that were counted is the sum of the devices' last shares."""
    fleet, rng = Fleet(tmp_path, 6), np.random.default_rng(4)
    settings = fleet.settings(algorithm="fldb_personal")
    precision, shift, losses, members = np.zeros((D, D)), np.zeros(D), 0.0, 0.0
    own = {name: (np.zeros((D, D)), np.zeros(D)) for name in fleet.names}
    for exchange in range(4):
        for phone in fleet.phones.values():
            phone.answer(*((rng.normal(size=D), float(rng.integers(2))) for _ in range(3)))
        broadcast = personal(precision, shift)
        if exchange in {1, 2}:  # lost
            fleet.collect(fleet.header(broadcast, settings))
            continue
        upload, _ = fleet.exchange(broadcast, settings)
        right = {}
        for name, phone in fleet.phones.items():
            learner = PersonalLearner(settings, broadcast.play.estimate, own[name])
            answers = phone.store.answers()
            right[name] = learner.share(answers.after(answers.numbers[-1]), answers)
        precision, shift = precision + upload.shares.precision, shift + upload.shares.shift
        losses, members = losses + upload.shares.losses, members + upload.shares.members
        own = {name: (each.precision, each.shift) for name, each in right.items()}
        np.testing.assert_allclose(precision, sum(m for m, _ in own.values()), atol=1e-9)
        np.testing.assert_allclose(shift, sum(m for _, m in own.values()), atol=1e-9)
        assert members == 6
    assert np.isfinite(losses).all()
    assert upload.num_duels == 6 * 9  # with those of the two lost exchanges


def test_the_estimate_is_stored_also_by_devices_that_decline(tmp_path):
    fleet = Fleet(tmp_path, 6)
    header = fleet.header(common((0.5, -1.0), round=3))
    phone = fleet.phones["d00"]
    assert phone.ask(fleet.request(header, "d00")) == Declined()
    assert phone.store.needed == 1
    estimate = phone.store.synchronized()
    assert (estimate.round, estimate.theta.tolist()) == (3, [0.5, -1.0])
    content = encode_shared(common((2.0, 3.0), round=4), fleet.settings(), duels=9)
    assert phone.ask(Deliver(content, b"")) == messages.Delivered()
    estimate = phone.store.synchronized()
    assert (estimate.round, estimate.theta.tolist(), estimate.duels) == (4, [2.0, 3.0], 9)


def test_the_last_estimate_says_what_is_counted(fleet):
    _, state = fleet.exchange()
    phone = fleet.phones["d00"]
    assert phone.store.counts()["counted"] == 0
    content = encode_shared(common(), fleet.settings(), duels=18)
    phone.ask(Deliver(content, state.header.exchange))
    assert phone.store.counts() == {"open": 0, "answered": 3, "counted": 3}


def test_equal_duels_are_one_and_duels_of_equal_arms_none(tmp_path):
    fleet = Fleet(tmp_path, 6, min_duels=2)
    for phone in fleet.phones.values():
        phone.answer(([1.0, 2.0], 1.0), ([-1.0, -2.0], 1.0), ([0.0, 0.0], 0.5), ([1.0, 2.0], 0.0))
    header = fleet.header()
    assert fleet.collect(header).sealed == {}
    assert fleet.phones["d00"].store.needed == 1
    assert fleet.phones["d00"].store.sent == 0
    fleet.phones["d00"].answer(([1.0, 3.0], 1.0))
    assert set(fleet.collect(fleet.header()).sealed) == {"d00"}


def test_at_most_max_duels_of_the_oldest_answers_are_counted(fleet):
    for phone in fleet.phones.values():
        phone.answer(([7.0, 1.0], 0.0), ([7.0, 2.0], 0.0))
    upload, _ = fleet.exchange(max_duels=4)
    assert upload.num_duels == 6 * 4
    upload, _ = fleet.exchange(max_duels=4)
    assert upload.num_duels == 6


def test_an_answer_in_a_contribution_cannot_be_undone(fleet):
    store = fleet.phones["d00"].store
    proposal = store.propose(np.array([1.0, 9.0]), np.nan, expire_after=1e9)
    store.record([(proposal.id, 1.0)])
    fleet.collect(fleet.header())
    with pytest.raises(UndoError, match="part of an upload"):
        store.undo(proposal.id, expire_after=1e9)


def test_answers_that_were_pruned_before_the_first_exchange(tmp_path):
    fleet = Fleet(tmp_path, 6)
    for phone in fleet.phones.values():
        phone.store.close()
        phone.path.unlink()
        (phone.folder / "device.key.epoch").unlink()
        with DuelStore(phone.path) as store:
            duels = [store.propose(np.array([1.0, n]), np.nan, expire_after=1e9) for n in range(5)]
            store.record([(duel.id, 1.0) for duel in duels])
            assert store.cut(0, 1, 3) == 3
            plain = Synchronization(START, 1, 3, 18, np.zeros(D), np.eye(D)[np.triu_indices(D)], {})
            store.synchronize(plain)
            assert store.prune(-1.0) == 3
        phone.start()
    upload, _ = fleet.exchange()
    assert upload.num_duels == 6 * 2


@pytest.mark.parametrize(("failed", "covered"), [(2, slice(1, 5)), (3, slice(2, 6))])
@pytest.mark.parametrize("algorithm", ["fldb_ons", "fldb_personal"])
def test_after_many_failed_exchanges_the_oldest_answers_are_left_out(
    tmp_path, algorithm, failed, covered
):
    """With n = 4, the cuts are 2, 4, 5 and 6: from the fifth answer on, one more each time."""
    fleet, settings = Fleet(tmp_path, 6), None
    broadcast = common()
    if algorithm == "fldb_personal":
        broadcast = personal(np.zeros((D, D)), np.zeros(D))
        settings = fleet.settings(algorithm=algorithm)
    for turn in range(failed + 1):
        for phone in fleet.phones.values():
            phone.answer(([2.0, turn], 1.0), ([turn, 3.0], 0.0))
        if turn < failed:
            fleet.collect(fleet.header(broadcast, settings, max_duels=4))
    upload, state = fleet.exchange(broadcast, settings, max_duels=4)
    assert upload.num_duels == 6 * 4
    if algorithm == "fldb_ons":
        right = expected_sum(fleet, state, lambda phone: phone.given[covered], max_duels=4)
        assert exact_sum(state) == right
        return
    # The share is that of all answers. Losses and squares are sums over whole cuts: from the third
    # answer on, of which the differences are (2, 1), (1, 3), (2, 2) and (2, 3).
    squares = sum([5, 10, 8, 13][: covered.stop - 2])
    assert upload.shares.squares == pytest.approx(6 * squares, rel=1e-9)
    learner = PersonalLearner(settings, broadcast.play.estimate)
    answers = fleet.phones["d00"].store.answers(0, covered.stop)
    share = learner.share(answers.after(covered.stop), answers)
    np.testing.assert_allclose(upload.shares.precision, 6 * share.precision, rtol=1e-9)
    np.testing.assert_allclose(upload.shares.shift, 6 * share.shift, rtol=1e-9)


# --- crashes and repetition ------------------------------------------------------------------


def test_a_repetition_is_identical_after_a_restart_with_other_arithmetic(fleet, monkeypatch):
    header, phone = fleet.header(), fleet.phones["d00"]
    request = fleet.request(header, "d00")
    first = phone.ask(request)
    upload = UploadMaker.upload

    def other(self, *arguments):
        made, duels = upload(self, *arguments)
        return made._replace(gradient=made.gradient + 1e-9), duels

    monkeypatch.setattr(UploadMaker, "upload", other)
    phone.restart()
    phone.answer(([5.0, 5.0], 1.0))
    assert isinstance(first, Pieces)
    assert phone.ask(request) == first
    again = phone.ask(fleet.request(fleet.header(), "d00"))
    assert isinstance(again, Pieces)  # with new answers
    assert again != first


class CrashError(Exception):
    """The process ends here."""


@pytest.mark.parametrize("place", ["before storing", "before the epoch", "before the reply"])
@pytest.mark.parametrize("kind", ["collect", "open"])
def test_a_crash_at_any_point_changes_nothing(fleet, monkeypatch, place, kind):
    header, phone = fleet.header(), fleet.phones["d00"]
    request = fleet.request(header, "d00")
    if kind == "open":
        state = fleet.collect(header).choose()
        request = messages.Open(header.to_bytes(), state.pieces_for("d00"))

    def crash(*_):
        raise CrashError

    with monkeypatch.context() as patch:
        if place == "before storing":
            patch.setattr(Journal, "contribute" if kind == "collect" else "open", crash)
        elif place == "before the epoch":
            patch.setattr(EpochFile, "write", crash)
        else:
            patch.setattr("clients.vault.vault.encode", crash)
        with pytest.raises(CrashError):
            phone.ask(request)
    phone.restart()
    reply = phone.ask(request)
    assert isinstance(reply, Pieces | messages.Opened)
    assert phone.ask(request) == reply
    state = fleet.collect(header)
    state = fleet.open(state)
    assert exact_sum(state) == expected_sum(fleet, state, lambda each: each.given)


def test_a_failure_to_write_gives_no_reply(fleet, monkeypatch, caplog):
    def full(*_):
        raise OutputError("no space left: 3 answers")

    with monkeypatch.context() as patch:
        patch.setattr(EpochFile, "write", full)
        request = fleet.request(fleet.header(), "d00")
        assert fleet.phones["d00"].ask(request) == Refused(WITHHELD)
    assert "no space left" in caplog.text
    assert isinstance(fleet.phones["d00"].ask(request), Pieces)


def test_two_vaults_use_one_store(fleet):
    phone = fleet.phones["d00"]
    other = Phone(phone.folder, phone.name, phone.clock)
    for _ in range(3):
        request = messages.encode(fleet.request(fleet.header(), "d00"))
        with ThreadPoolExecutor(2) as pool:
            replies = [pool.submit(each.vault.answer, request) for each in (phone, other)]
        one, two = (reply.result() for reply in replies)
        assert one == two
        assert isinstance(messages.decode_reply(one), Pieces)
        phone.answer(([1.0, phone.store.last], 1.0))
    assert phone.store.sent == 5
    other.store.close()


def test_forgotten_answers_are_sent_no_more(fleet):
    header = fleet.header()
    state, phone = fleet.collect(header), fleet.phones["d00"]
    before = b"".join(file.read_bytes() for file in phone.folder.glob("duels.db*"))
    journal = Journal.from_bytes(phone.store.secure_part("journal"))
    numbers, seed = phone.store.secure_part("numbers"), journal.contribution.seed.hex().encode()
    digest = journal.contribution.numbers.hex().encode()
    assert all(each in before for each in (numbers, seed, digest))
    phone.store.forget()
    after = b"".join(file.read_bytes() for file in phone.folder.glob("duels.db*"))
    assert not any(each in after for each in (numbers, seed, digest))
    assert phone.ask(fleet.request(header, "d00")) == Declined()
    phone.restart()
    assert phone.ask(fleet.request(header, "d00")) == Declined()
    state = fleet.open(state)  # as a member, it still opens
    assert exact_sum(state) == expected_sum(fleet, state, lambda each: each.given)
    phone.answer(([4.0, 4.0], 1.0))
    for name in fleet.names[1:]:
        fleet.phones[name].answer(([4.0, 4.0], 1.0))
    _, state = fleet.exchange()  # of the first exchange, nothing was counted
    assert "d00" in state.chosen
    kept = {name: phone.given for name, phone in fleet.phones.items()}
    kept["d00"] = [([0.0, 0.0], 0.5)] * 3 + phone.given[3:]
    assert exact_sum(state) == expected_sum(fleet, state, lambda each: kept[each.name])


def test_a_forgotten_share_is_subtracted_with_the_next_contribution(tmp_path):
    fleet = Fleet(tmp_path, 6)
    settings, phone = fleet.settings(algorithm="fldb_personal"), fleet.phones["d00"]
    for each in fleet.phones.values():
        each.answer(([2.0, 1.0], 1.0), ([1.0, -3.0], 0.0))
    first, _ = fleet.exchange(personal(np.zeros((D, D)), np.zeros(D)), settings)
    phone.store.forget()
    assert phone.ask(fleet.request(fleet.header(), "d00")) == Declined()
    for each in fleet.phones.values():
        each.answer(([1.0, 1.0], 1.0))
    sums = personal(first.shares.precision, first.shares.shift)
    second, _ = fleet.exchange(sums, settings)
    own = tuple(each / 6 for each in sums.play.estimate[:2])  # all have answered alike
    right = []
    for each in fleet.phones.values():
        answers = each.store.answers()
        learner = PersonalLearner(settings, sums.play.estimate, own)
        right.append(learner.share(answers.after(answers.numbers[-1]), answers))
    assert len(phone.store.answers().numbers) == 1
    total = first.shares.precision + second.shares.precision
    np.testing.assert_allclose(total, sum(share.precision for share in right), atol=1e-9)
    total = first.shares.shift + second.shares.shift
    np.testing.assert_allclose(total, sum(share.shift for share in right), atol=1e-9)


def test_pruning_deletes_the_numbers_as_well(fleet):
    _, state = fleet.exchange()
    phone = fleet.phones["d00"]
    phone.ask(Deliver(encode_shared(common(), fleet.settings(), 9), state.header.exchange))
    assert phone.store.secure_part("numbers") is not None
    assert phone.store.prune(-1.0) == 3
    assert phone.store.secure_part("numbers") is None


# --- stores that were restored from a backup --------------------------------------------------


def copied(phone, tmp_path):
    backup = tmp_path / "backup.db"
    phone.store.backup(backup)
    return backup


def restore(phone, backup):
    phone.store.close()
    for file in phone.folder.glob("duels.db*"):
        file.unlink()
    shutil.copy(backup, phone.path)
    phone.start()


def test_a_restored_store_opens_no_second_set(fleet, tmp_path, caplog):
    """The backup was made between the contribution and the opening of one exchange."""
    header = fleet.header()
    state, phone = fleet.collect(header).choose(), fleet.phones["d00"]
    backup = copied(phone, tmp_path)
    pieces = state.pieces_for("d00")
    assert isinstance(phone.ask(messages.Open(header.to_bytes(), pieces)), messages.Opened)
    restore(phone, backup)
    assert "was restored from a backup" in caplog.text
    fewer = dict(list(pieces.items())[:5])
    reply = phone.ask(messages.Open(header.to_bytes(), fewer))
    assert isinstance(reply, Refused)
    assert "not later than" in reply.reason


def test_a_restored_store_sends_no_answer_again(fleet, tmp_path):
    phone = fleet.phones["d00"]
    backup = copied(phone, tmp_path)
    fleet.exchange()
    for each in fleet.phones.values():
        each.answer(([6.0, 6.0], 1.0), ([6.0, 7.0], 1.0))
    fleet.exchange()  # up to 5
    restore(phone, backup)  # 3 answers
    assert phone.store.last == 5
    header = fleet.header()
    assert phone.ask(fleet.request(header, "d00")) == Declined()
    for each in fleet.phones.values():
        each.answer(([1.0, 1.0], 1.0))
    assert phone.store.last == 6
    upload, state = fleet.exchange()
    assert len(state.chosen) == 6
    assert upload.num_duels == 6
    phone.restart()
    assert phone.store.last == 6


def test_a_lost_store_continues_after_the_last_cut(fleet):
    phone = fleet.phones["d00"]
    fleet.exchange()
    phone.store.close()
    for file in phone.folder.glob("duels.db*"):
        file.unlink()
    phone.start()
    assert phone.store.last == 3
    with pytest.raises(DataError, match="left"):
        phone.store.evidence(0, 3)


def test_another_store_does_not_evade_the_epoch_of_the_key(fleet):
    phone = fleet.phones["d00"]
    header = fleet.header()
    state = fleet.open(fleet.collect(header))
    phone.store.close()
    phone.path = phone.folder / "other.db"
    phone.start()
    assert phone.store.last == 3
    pieces = dict(list(state.pieces_for("d00").items())[:5])
    reply = phone.ask(messages.Open(header.to_bytes(), pieces))
    assert isinstance(reply, Refused)
    assert "not later than" in reply.reason


def test_a_missing_epoch_file_needs_a_new_key(fleet):
    phone = fleet.phones["d00"]
    fleet.exchange()
    phone.answer(([6.0, 5.0], 1.0))
    phone.store.close()
    (phone.folder / "device.key.epoch").unlink()
    with pytest.raises(DataError, match=r"device\.key\.epoch is missing.*create a new key"):
        phone.start()
    phone.store.close()
    for suffix in ("", ".pub"):
        (phone.folder / f"device.key{suffix}").unlink()
    rosters.create_device_key(phone.folder / "device.key")
    certified = [f"d00={phone.folder / 'device.key.pub'}"]
    rosters.renew_roster(fleet.roster_file, fleet.folder / "signer", certified, ["d00"])
    phone.start()
    for name in fleet.names[1:]:
        assert fleet.phones[name].ask(Hello(b"")) == Introduced(name, 2)
    for each in fleet.phones.values():
        each.answer(([6.0, 6.0], 1.0))
    upload, _ = fleet.exchange()
    assert upload.num_duels == 6  # the earlier ones may have been sent


def test_a_damaged_epoch_file_is_one_line(fleet):
    phone = fleet.phones["d00"]
    phone.store.close()
    (phone.folder / "device.key.epoch").write_bytes(b"{")
    with pytest.raises(DataError, match=r"device\.key\.epoch is not valid JSON"):
        phone.start()


def test_the_epoch_of_two_vaults_never_goes_back(fleet):
    phone = fleet.phones["d00"]
    other = Phone(phone.folder, phone.name, phone.clock)
    seen = []
    for turn in range(4):
        phone.answer(([2.0, turn], 1.0))
        [phone, other][turn % 2].ask(fleet.request(fleet.header(), "d00"))
        epoch = json.loads((phone.folder / "device.key.epoch").read_text())
        seen.append((epoch["contributed"], epoch["cut"]))
    assert seen == sorted(set(seen))
    assert seen[-1] == (int(fleet.now * 1000), 7)
    other.store.close()


# --- what is refused -------------------------------------------------------------------------


def refusal(fleet, header, name="d00") -> str:
    reply = fleet.phones[name].ask(fleet.request(header, name))
    assert isinstance(reply, Refused), reply
    return reply.reason


def test_another_encoding_than_that_of_the_broadcast_is_refused(fleet):
    header = fleet.header()
    wrong = replace(header, numbers=header.numbers + 1)
    assert "another encoding" in refusal(fleet, wrong)
    wrong = replace(header, encoding=header.encoding.replace(b"[2,", b"[1,"))
    assert "another encoding" in refusal(fleet, wrong)
    assert isinstance(fleet.phones["d00"].ask(fleet.request(header, "d00")), Pieces)


def test_the_owners_limits_hold(fleet):
    phone = fleet.phones["d00"]
    for limit, words in (
        ({"min_devices": 5}, "min_devices=4, and the device requires 5"),
        ({"min_duels": 2}, "min_duels=1, and the device requires 2"),
        ({"min_committee": 7}, "requires 7"),
        ({"max_duels": 500}, "max_duels=1000"),
        ({"max_difference": 5.0}, "max_difference=8, and the device accepts at most 5"),
    ):
        fleet.configure("d00", **limit)
        phone.restart()
        assert words in refusal(fleet, fleet.header())
    fleet.configure("d00", max_difference=8)
    phone.restart()
    assert isinstance(phone.ask(fleet.request(fleet.header(), "d00")), Pieces)


def test_requests_that_no_server_makes_are_refused(fleet):
    personal_settings = fleet.settings(algorithm="fldb_personal")
    phone = fleet.phones["d00"]
    nothing = common()._replace(theta_hat=None, hessian=False)
    assert "requests no statistics" in refusal(fleet, fleet.header(nothing))
    right = personal(np.eye(D), np.zeros(D))
    header = fleet.header(right, personal_settings)
    for wrong in (right._replace(lowest_variance=0.0), right._replace(play=None)):
        content = encode_shared(wrong, personal_settings, 7)
        assert "without a prior" in refusal(fleet, replace(header, broadcast=content))
    other = replace(header, broadcast=b"\0\0\0\x02{}")
    assert "the broadcast of the exchange" in refusal(fleet, other)
    other = fleet.header(common((0.0, 0.0, 0.0)), fleet.settings(dimension=3))
    assert "dimension=3, and the device has another" in refusal(fleet, other)
    reply = messages.decode_reply(phone.vault.answer(b"none"))
    assert isinstance(reply, Refused)
    assert "another format" in reply.reason
    unknown = messages.Collect(fleet.header().to_bytes(), bytes(16))
    fleet.collect(fleet.header())
    reply = phone.ask(replace(unknown, header=fleet.header().to_bytes()))
    assert "has no contribution here" in reply.reason


def test_a_value_beyond_its_bound_is_named_only_in_the_log(fleet, caplog):
    fleet.phones["d00"].answer(([900.0, 0.25], 1.0))
    header = fleet.header(settings=fleet.settings(max_difference=1.0), max_duels=4)
    assert refusal(fleet, header) == WITHHELD
    assert "the gradient[0] = -450.625: must be from -4 to 4" in caplog.text
    assert fleet.phones["d00"].store.sent == 4  # the server observes the refusal: once for each cut


def test_damage_of_the_store_is_named_only_in_the_log(fleet, caplog):
    phone = fleet.phones["d00"]
    with closing(sqlite3.connect(phone.path)) as rows, rows:
        rows.execute("UPDATE secure SET content = 'x' WHERE name = 'journal'")
        rows.execute("INSERT OR REPLACE INTO secure VALUES ('journal', x'7b')")
    assert refusal(fleet, fleet.header()) == WITHHELD
    assert "the journal is not valid JSON" in caplog.text


def test_wrong_pieces_name_their_sender(fleet):
    state = fleet.collect(fleet.header()).choose()
    pieces = {**state.pieces_for("d00"), "d03": bytes(60)}
    reply = fleet.phones["d00"].ask(messages.Open(state.header.to_bytes(), pieces))
    assert reply == messages.Blamed(("d03",))


def test_no_reply_contains_a_count_a_cut_or_a_feature(fleet):
    """The numbers of the answers begin at 7654321, and a feature is pi."""
    phone, far = fleet.phones["d00"], 7654321
    phone.store.close()
    epoch = {"contributed": 1, "cut": far, "opened": 1}
    (phone.folder / "device.key.epoch").write_text(json.dumps(epoch, separators=(",", ":")))
    phone.start()
    phone.answer(([np.pi, 1.0], 1.0))
    replies = []

    def ask(request):
        replies.append(phone.vault.answer(messages.encode(request)))
        return messages.decode_reply(replies[-1])

    header = fleet.header()
    after = fleet.header()
    kinds = [
        ask(fleet.request(header, "d00")),
        ask(fleet.request(header, "d00")),
        ask(fleet.request(fleet.header(), "d00")),
        ask(fleet.request(replace(header, broadcast=header.broadcast + b"x"), "d00")),
        ask(Hello(b"")), ask(Hello(b"x")),
        ask(Deliver(header.broadcast, bytes(16))),
        ask(messages.Open(header.to_bytes(), {"d00": b"x"})),
        ask(messages.Collect(after.to_bytes(), b"\1" * 16)),
        ask(replace(fleet.request(header, "d00"), counted=header.exchange)),
    ]  # fmt: skip
    phone.answer(([np.pi, 2.0], 1.0))
    low = fleet.header(settings=fleet.settings(max_difference=0.001), max_duels=4)
    kinds += [ask(fleet.request(low, "d00"))]
    assert kinds[-1] == Refused(WITHHELD)
    with closing(sqlite3.connect(phone.path)) as rows, rows:
        rows.execute("UPDATE secure SET content = x'7b' WHERE name = 'journal'")
    kinds += [ask(fleet.request(fleet.header(), "d00"))]
    found = " ".join(type(each).__name__ for each in kinds)
    assert found == (
        "Pieces Pieces Declined Refused Introduced Refused Delivered Refused Declined Pieces"
        " Refused Refused"
    )
    pi = np.float64(np.pi).tobytes()
    for reply in replies:
        assert b"76543" not in reply
        assert pi not in reply
        assert pi[::-1] not in reply
        assert b"3.14" not in reply


# --- rosters ---------------------------------------------------------------------------------


def test_a_newer_roster_from_the_server_is_kept(fleet):
    phone, first = fleet.phones["d00"], fleet.roster_file.read_bytes()
    rosters.renew_roster(fleet.roster_file, fleet.folder / "signer", remove=["d05"])
    second = fleet.roster_file.read_bytes()
    fleet.roster_file.write_bytes(first)
    assert phone.ask(Hello(b"")) == Introduced("d00", 1)
    assert phone.ask(Hello(second)) == Introduced("d00", 2)
    reply = phone.ask(Hello(first))
    assert isinstance(reply, Refused)
    assert "version 1, older than 2" in reply.reason
    phone.restart()  # the owner's file has version 1
    assert phone.ask(Hello(b"")) == Introduced("d00", 2)
    assert "version 1 of the roster, older than 2" in refusal(fleet, fleet.header())


def renewed(fleet, **changes) -> bytes:
    """Return the next version of the roster; the file of the owners keeps the present one."""
    before = fleet.roster_file.read_bytes()
    rosters.renew_roster(fleet.roster_file, fleet.folder / "signer", **changes)
    content = fleet.roster_file.read_bytes()
    fleet.roster_file.write_bytes(before)
    return content


@pytest.mark.parametrize("source", ["server", "file"])
def test_a_restored_store_accepts_no_older_roster(fleet, tmp_path, source):
    """Store and file of the owner are from before a device was removed."""
    phone, first = fleet.phones["d00"], fleet.roster_file.read_bytes()
    backup, second = copied(phone, tmp_path), renewed(fleet, remove=["d05"])
    if source == "file":
        fleet.roster_file.write_bytes(second)
        phone.restart()
    else:
        phone.ask(Hello(second))
    fleet.roster_file.write_bytes(first)
    restore(phone, backup)
    assert phone.ask(Hello(b"")) == Introduced("d00", 2)
    reply = phone.ask(Hello(first))
    assert isinstance(reply, Refused)
    assert "version 1, older than 2" in reply.reason
    assert "version 1 of the roster, older than 2" in refusal(fleet, fleet.header())
    fleet.roster_file.write_bytes(second)  # the sums with it continue
    fleet.names.remove("d05")
    for name in fleet.names:
        assert fleet.phones[name].ask(Hello(b"")) == Introduced(name, 2)
    _, state = fleet.exchange()
    assert state.chosen == tuple(fleet.names)


def test_a_restored_store_accepts_no_second_roster_of_a_version(fleet, tmp_path):
    phone = fleet.phones["d00"]
    backup, seen, other = (
        copied(phone, tmp_path),
        *(renewed(fleet, remove=[name]) for name in ("d04", "d05")),
    )
    assert phone.ask(Hello(seen)) == Introduced("d00", 2)
    restore(phone, backup)
    reply = phone.ask(Hello(other))
    assert isinstance(reply, Refused)
    assert reply.reason == "there are two different rosters of version 2"


def test_the_copy_of_the_roster_never_goes_back(fleet):
    """Of two stores with one key, the second one gets versions later."""
    phone, copy = fleet.phones["d00"], fleet.folder / "d00" / "device.key.roster"
    other = Phone(phone.folder, phone.name, phone.clock, "other.db")
    first = fleet.roster_file.read_bytes()
    second = renewed(fleet, remove=["d05"])
    fleet.roster_file.write_bytes(second)
    third = renewed(fleet, remove=["d04"])
    fleet.roster_file.write_bytes(first)
    for each, content, kept in ((phone, third, third), (other, second, third)):
        assert isinstance(each.ask(Hello(content)), Introduced)
        assert copy.read_bytes() == kept
    assert copy.stat().st_mode & 0o777 == 0o600
    other.restart()
    assert other.ask(Hello(b"")) == Introduced("d00", 3)
    other.store.close()


def test_a_copy_of_the_roster_that_cannot_be_used_is_one_line(fleet, monkeypatch, caplog):
    phone, copy = fleet.phones["d00"], fleet.folder / "d00" / "device.key.roster"
    second = renewed(fleet, remove=["d05"])
    with monkeypatch.context() as patch:
        patch.setattr("clients.vault.rosters.replace_file", full)
        assert phone.ask(Hello(second)) == Refused(WITHHELD)
    assert "cannot write" in caplog.text
    assert phone.ask(Hello(b"")) == Introduced("d00", 1)  # not stored either
    phone.store.close()
    copy.write_bytes(b"{")
    with pytest.raises(DataError, match=r"^[^ ]*device\.key\.roster: the roster file is not valid"):
        phone.start()
    copy.unlink()  # as of an earlier version
    phone.start()
    assert copy.read_bytes() == fleet.roster_file.read_bytes()


def full(*_arguments):
    raise OSError(28, "No space left on device")


def test_a_newer_file_of_the_owner_is_used(fleet, caplog):
    phone = fleet.phones["d00"]
    rosters.renew_roster(fleet.roster_file, fleet.folder / "signer", remove=["d05"])
    assert phone.ask(Hello(b"")) == Introduced("d00", 2)
    fleet.roster_file.write_bytes(b"{}")
    assert phone.ask(Hello(b"")) == Introduced("d00", 2)
    assert "roster.json" in caplog.text


def test_rosters_of_others_are_refused(fleet):
    phone = fleet.phones["d00"]
    rosters.create_signing_key(fleet.folder / "other")
    certified = [f"d00={phone.folder / 'device.key.pub'}"]
    rosters.create_roster(fleet.folder / "other.json", fleet.folder / "other", certified)
    for content, words in (
        ((fleet.folder / "other.json").read_bytes(), "not by the pinned key"),
        (b"x", "not valid JSON"),
    ):
        reply = phone.ask(Hello(content))
        assert isinstance(reply, Refused)
        assert words in reply.reason
    assert phone.ask(Hello(b"")) == Introduced("d00", 1)


def test_a_roster_that_expires_stops_sums_but_not_the_service(fleet, caplog):
    phone = fleet.phones["d00"]
    day = datetime.datetime.fromtimestamp(START, datetime.UTC).date()
    dates = {"not_before": None, "not_after": day}
    rosters.renew_roster(fleet.roster_file, fleet.folder / "signer", dates=dates)
    assert phone.ask(Hello(b"")) == Introduced("d00", 2)
    fleet.now += 2 * 86400
    assert f"valid from any day to {day}" in refusal(fleet, fleet.header())
    phone.restart()
    assert "no part in secure sums" in caplog.text
    rosters.renew_roster(
        fleet.roster_file, fleet.folder / "signer", dates={**dates, "not_after": None}
    )
    assert phone.ask(Hello(fleet.roster_file.read_bytes())) == Introduced("d00", 3)


def test_a_device_that_was_removed_from_the_roster(fleet, caplog):
    phone, first = fleet.phones["d05"], fleet.roster_file.read_bytes()
    rosters.renew_roster(fleet.roster_file, fleet.folder / "signer", remove=["d05"])
    second = fleet.roster_file.read_bytes()
    fleet.roster_file.write_bytes(first)
    assert phone.ask(Hello(second)) == Introduced("d05", 2)
    fleet.roster_file.write_bytes(second)
    header = fleet.header(present=fleet.names[:5])
    assert "not certified" in refusal(fleet, header, "d05")
    fleet.roster_file.write_bytes(first)
    phone.restart()  # the owner's service starts
    assert "no part in secure sums" in caplog.text
    fleet.roster_file.write_bytes(second)
    phone.store.close()
    with pytest.raises(SecureError, match=r"roster\.json: the key of d05 is not certified"):
        phone.start()


# --- the configuration ------------------------------------------------------------------------


def test_the_configuration(fleet):
    config = read_config(fleet.configure("d01", min_duels=3, max_difference=4))
    assert config.name == "d01"
    assert config.key == fleet.folder / "d01" / "device.key"
    limits = config.limits
    assert (limits.min_duels, limits.min_devices, limits.min_committee) == (3, 4, 5)
    assert (limits.max_duels, config.max_difference) == (10_000, 4.0)
    file = fleet.folder / "d01" / "vault.toml"
    file.write_text(
        'name = "d01"\nkey = "device.key"\nsigner = "../signer.pub"\nroster = "../roster.json"\n'
    )
    config = read_config(file)
    assert (config.limits.min_duels, config.limits.min_devices) == (1, 10)
    assert config.max_difference == np.inf
    assert read_config(fleet.configure("d01", max_difference=10**400)).max_difference == np.inf
    assert config.least_duels(dimension=64, min_devices=10) == 20
    assert "private" not in repr(config)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"colour": '"red"'}, r"vault\.toml: 'colour' is unknown: must be one of name, key"),
        ({"name": "3"}, r"vault\.toml: name is 3"),
        ({"name": '"a b"'}, r"vault\.toml: name is 'a b'"),
        ({"key": "3"}, r"vault\.toml: key=3: must be the name of a file"),
        ({"key": '"none"'}, r"vault\.toml: cannot read .*none: No such file"),
        ({"key": '"../signer"'}, r"vault\.toml: .*signer is not an unencrypted private X25519"),
        ({"signer": '"device.key.pub"'}, r"is not a public Ed25519 key"),
        ({"min_duels": "0"}, r"vault\.toml: min_duels is 0: must be"),
        ({"min_devices": "true"}, r"vault\.toml: min_devices is True"),
        ({"min_committee": "4"}, r"vault\.toml: min_committee is 4"),
        ({"max_duels": "1.5"}, r"vault\.toml: max_duels is 1\.5"),
        ({"max_difference": "0"}, r"vault\.toml: max_difference=0: must be a positive number"),
        ({"max_difference": "nan"}, r"max_difference=nan: must be a positive number"),
        ({"max_difference": "true"}, r"max_difference=True: must be a positive number"),
        ({"min_duels": ""}, r"vault\.toml is not valid TOML"),
    ],
)
def test_a_wrong_entry_is_one_line(fleet, changes, words):
    with pytest.raises(DataError, match=words) as error:
        read_config(fleet.configure("d01", **changes))
    assert "\n" not in str(error.value)


def test_a_missing_entry_or_file_is_one_line(tmp_path, fleet):
    file = tmp_path / "vault.toml"
    with pytest.raises(DataError, match=r"cannot read .*vault\.toml: No such file"):
        read_config(file)
    file.write_text('name = "d01"\n')
    with pytest.raises(DataError, match=r"vault\.toml: key is missing"):
        read_config(file)
    (fleet.folder / "d01" / "device.key").chmod(0o640)
    with pytest.raises(DataError, match=r"other users can read the private key .*chmod 600"):
        read_config(fleet.configure("d01"))


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
@pytest.mark.parametrize("name", ["vault.toml", "signer.pub"])
def test_files_that_others_can_write_are_refused(fleet, name, mode):
    vault = fleet.folder / "d01" / "vault.toml"
    file = vault if name == "vault.toml" else fleet.folder / name
    file.chmod(0o644)  # others may read both
    assert read_config(vault).name == "d01"
    file.chmod(mode)
    with pytest.raises(DataError, match=rf"other users can write .*{name}: chmod go-w /.*{name}$"):
        read_config(vault)


@pytest.mark.parametrize("name", ["vault.toml", "signer.pub"])
def test_files_of_another_user_are_refused(fleet, monkeypatch, name):
    vault, uid, stat = fleet.folder / "d01" / "vault.toml", os.geteuid(), Path.stat

    def owned_by(owner):
        def changed(path, **options):
            found = list(stat(path, **options))
            return os.stat_result([*found[:4], owner, *found[5:]] if path.name == name else found)

        monkeypatch.setattr(Path, "stat", changed)

    owned_by(uid + 77)
    words = f"{name} belongs to user {uid + 77}: must belong to user {uid}, .* or to root$"
    with pytest.raises(DataError, match=words) as error:
        read_config(vault)
    assert "\n" not in str(error.value)
    owned_by(0)
    assert read_config(vault).name == "d01"


def test_a_roster_that_cannot_be_used_is_one_line(fleet):
    words_of = {
        b"x": r"roster\.json: .* not valid JSON",
        None: r"cannot read .*roster\.json: No such",
    }
    for content, words in words_of.items():
        fleet.roster_file.unlink()
        if content is not None:
            fleet.roster_file.write_bytes(content)
        config = read_config(fleet.configure("d01"))
        with pytest.raises(FldbError, match=words):
            Vault(DuelStore(fleet.folder / "other.db"), config)
        fleet.roster_file.touch()
