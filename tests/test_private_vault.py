"""Noise and ledger of the vault: opened sums, budgets, crashes, restored stores."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import random
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from vaults import START, Fleet, Phone, common, decoded, noise_for

from clients.store import DuelStore
from clients.uploads import UploadMaker
from clients.vault import Vault, read_config
from clients.vault.budget import Budget, BudgetError, spent_of
from clients.vault.epoch import EpochFile
from clients.vault.ledger import Ledger
from fldb_flower.bandit.prior import CommonPrior
from fldb_flower.deployment import rosters
from fldb_flower.errors import DataError, PrivacyError
from fldb_flower.federation.exchange import Broadcast, Noise, PlayRequest
from fldb_flower.privacy import accounting
from fldb_flower.privacy.discrete import device_noise, discrete_gaussian, honest_devices
from fldb_flower.secure.encoding import Block, Encoding
from fldb_flower.settings import DevicesSettings, PrivacySettings
from fldb_flower.wire.secure_messages import Declined, Pieces, Refused
from fldb_flower.wire.shared_broadcast import (
    SharedNoise,
    decode_shared,
    describe_encoding,
    encode_shared,
)

dp_accounting = pytest.importorskip("dp_accounting", reason="needs the privacy extra")
pytest.importorskip("opendp", reason="needs the privacy extra")

SOME = ([1.0, 0.5], 1.0), ([-0.25, 2.0], 0.0), ([3.0, 1.0], 0.0)
L, DELTA = 8.0, 1e-6


@pytest.fixture
def fleet(tmp_path):
    """Six devices with three answers each; a sum needs five, of which four add enough noise."""
    made = Fleet(tmp_path, 6)
    for phone in made.phones.values():
        phone.answer(*SOME)
    return made


def private(fleet, epsilon=3.0, rounds=4, **changes):
    return fleet.settings(
        first_round=changes.pop("first_round", "step"),
        privacy=PrivacySettings(epsilon=epsilon, delta=DELTA),
        devices=DevicesSettings(rounds=rounds, min_duels=1),
        **changes,
    )


def again(fleet, *names):
    """Give devices another answer."""
    for name in names or fleet.names:
        fleet.phones[name].answer(([1.0, 2.0], 1.0))


def exchange(fleet, settings, *names, **changes):
    """Ask devices for a contribution to a new exchange; return their replies."""
    header = fleet.header(settings=settings, **changes)
    return [fleet.phones[name].ask(fleet.request(header, name)) for name in names or fleet.names]


def analytic_delta(epsilon, cost):
    """Return delta of a Gaussian mechanism with the noise multiplier cost^-1/2 (Balle and Wang)."""
    mu = math.sqrt(cost)
    upper = stats.norm.cdf(mu / 2 - epsilon / mu)
    return upper - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)


# --- the noise ---------------------------------------------------------------------------------


def limited_by_hand(duels):
    """Return the numbers of one person at theta = 0, d = 2, for one typical answer of length 8."""
    x = np.array([difference for difference, _ in duels])
    y = np.array([won for _, won in duels])
    gradient, gram = x.T @ (0.5 - y), x.T @ x
    sizes = L * math.sqrt(1 / 8), L**2, L**2 / 8  # of gradient, W, H
    weights = 0.99 * 2 / 3, 0.01, 0.99 / 3  # W is not used
    parts = gradient, gram, gram / 4
    length = math.sqrt(
        sum(
            w * (part**2).sum() / size**2
            for w, part, size in zip(weights, parts, sizes, strict=True)
        )
    )
    factor = 1 / max(1.0, length)
    rows, columns = np.triu_indices(2)
    numbers = [gradient, gram[rows, columns], gram[rows, columns] / 4]
    units = [size / math.sqrt(w) for w, size in zip(weights, sizes, strict=True)]
    off = np.array([1.0, math.sqrt(0.5), 1.0])
    scales = [np.full(2, units[0]), units[1] * off, units[2] * off]
    return factor * np.concatenate(numbers), np.concatenate(scales)


def packed(upload):
    rows, columns = np.triu_indices(2)
    matrices = upload.information, upload.hessian
    return np.concatenate([upload.gradient, *(each[rows, columns] for each in matrices)])


def test_the_noise_of_opened_sums_has_the_calibrated_variance(fleet):
    """8 numbers of 6 sums over 6 devices, each with noise for 4 of them: chi-squared."""
    settings = private(fleet)
    multiplier = noise_for(common(), settings).multiplier
    scaled = []
    for number in range(6):
        new = SOME if number == 0 else (([1.0, 2.0], 1.0),)
        upload, _ = fleet.exchange(settings=settings)
        expected, scales = limited_by_hand(new)
        assert upload.num_duels == 6 * len(new)
        error = packed(upload) - 6 * expected
        scaled.append(error / (multiplier * scales * math.sqrt(6 / 4)))
        again(fleet)
    square = float((np.array(scaled) ** 2).sum())
    low, high = stats.chi2.ppf([1e-8, 1 - 1e-8], df=48)
    assert low < square < high


def test_an_owner_may_assume_more_colluders(tmp_path):
    """Of 12 devices, T = 2 cooperate with the server, or a share f of them: 7 for f = 0.6."""
    assert honest_devices(12, 10) == 10
    assert honest_devices(12, 10, colluding=0.0) == 10
    assert honest_devices(12, 10, colluding=0.6) == 5
    assert honest_devices(12, 10, colluding=0.99) == 1
    fleet = Fleet(tmp_path, 6, {"colluding": 0.99})  # each device adds the noise of the whole sum
    settings = private(fleet)
    multiplier = noise_for(common(), settings).multiplier
    for phone in fleet.phones.values():
        phone.answer(*SOME)
    scaled = []
    for number in range(4):
        upload, _ = fleet.exchange(settings=settings)
        expected, scales = limited_by_hand(SOME if number == 0 else (([1.0, 2.0], 1.0),))
        scaled.append((packed(upload) - 6 * expected) / (multiplier * scales * math.sqrt(6)))
        again(fleet)
    low, high = stats.chi2.ppf([1e-8, 1 - 1e-8], df=32)
    assert low < float((np.array(scaled) ** 2).sum()) < high


def test_the_share_of_colluders_is_as_written():
    """floor(f n) is exact for a share in hundredths; 0.29 * 100 is below 29 in floats."""
    for least, hundredths in itertools.product(range(5, 301), range(100)):
        expected = least - hundredths * least // 100
        assert honest_devices(least, least, colluding=hundredths / 100) == expected


@pytest.mark.parametrize("scale", [0.7, 3.0, 2.0**40])
def test_the_sampler_is_a_discrete_gaussian(scale):
    drawn = discrete_gaussian(np.full(5_000, scale))
    support = np.arange(-60, 61) if scale < 10 else None
    if support is None:
        assert stats.kstest(drawn / scale, stats.norm.cdf).pvalue > 1e-8
    else:
        weights = np.exp(-(support**2) / (2 * scale**2))
        expected = 5_000 * weights / weights.sum()
        kept = expected > 5
        observed = np.array([(drawn == k).sum() for k in support])
        square = ((observed - expected)[kept] ** 2 / expected[kept]).sum()
        assert square < stats.chi2.ppf(1 - 1e-8, df=kept.sum())


def test_another_exchange_has_other_noise_from_no_seed(fleet, monkeypatch):
    """With the same answers and the same random bytes for shares, the numbers differ."""
    monkeypatch.setattr("clients.vault.vault.os.urandom", bytes)
    settings, phone = private(fleet), fleet.phones["d00"]
    seen = set()
    for _ in range(3):
        exchange(fleet, settings, "d00")
        seen.add(phone.store.secure_part("numbers"))
        again(fleet, "d00")
    assert len(seen) == 3


def test_a_share_is_limited_and_whole(fleet):
    """The scaled length of (M, m - M theta, losses) is 1, and no former share is subtracted."""
    settings = private(fleet, algorithm="fldb_personal", first_round="minimise")
    prior = CommonPrior(np.zeros((2, 2)), np.zeros(2), 0.05, 0.0)
    request = Broadcast(PlayRequest(1, 1, prior), None, shares=True, lowest_variance=0.05)
    fleet.phones["d00"].answer(*SOME, *SOME, *SOME)
    store = fleet.phones["d00"].store
    store.add_cut(0, 12, 1)
    upload, _ = UploadMaker(store, settings).upload(request, 0, 12)
    change, noise = upload.shares, noise_for(request, settings)
    units = noise.noise._asdict()
    length = sum(
        float(np.sum(getattr(change, part) ** 2)) / (units[part] / noise.multiplier) ** 2
        for part in ("precision", "shift", "losses")
    )
    assert length <= 1.0
    assert (change.squares, change.members) == (12 * L**2, 1.0)
    assert store.share(12)[0].tolist() == [[0.0, 0.0], [0.0, 0.0]]  # nothing is stored
    # All answers together exceed the limit, so M is proportional to H (I + v H)^-1. H is between
    # that of the largest logits and a quarter of the Gram matrix, and v = 0.1 * 64 / 10.
    assert length == pytest.approx(1.0, rel=1e-4)
    values = np.linalg.eigvalsh(change.precision)
    assert 0.0 < values[0] < values[1] < 1 / (0.1 * 10 / L**2)


def test_personal_sums_have_noise_in_all_parts(tmp_path):
    fleet = Fleet(tmp_path, 6)
    settings = private(fleet, algorithm="fldb_personal", first_round="minimise")
    for phone in fleet.phones.values():
        phone.answer(*SOME)
    prior = CommonPrior(np.zeros((2, 2)), np.zeros(2), 0.5, 0.0)
    request = Broadcast(PlayRequest(1, 1, prior), None, shares=True, lowest_variance=0.5)
    upload, _ = fleet.exchange(request, settings=settings)
    makers = [UploadMaker(phone.store, settings) for phone in fleet.phones.values()]
    exact = [maker.upload(request, 0, 3)[0].shares for maker in makers]
    noise = noise_for(request, settings).noise
    rows, columns = np.triu_indices(2)
    off = np.array([1.0, math.sqrt(0.5), 1.0])
    found = upload.shares
    scaled = [
        (found.shift - sum(each.shift for each in exact)) / noise.shift,
        (found.precision - sum(each.precision for each in exact))[rows, columns]
        / (noise.precision * off),
        (found.losses - sum(each.losses for each in exact)) / noise.losses,
    ]
    assert (found.squares, found.members) == (6 * 3 * L**2, 6.0)
    square = float((np.concatenate(scaled) ** 2).sum()) * 4 / 6
    low, high = stats.chi2.ppf([1e-8, 1 - 1e-8], df=16)
    assert low < square < high


# --- the ledger --------------------------------------------------------------------------------


def test_replays_are_charged_once_and_new_exchanges_again(fleet):
    settings, phone = private(fleet, rounds=9), fleet.phones["d00"]
    multiplier = noise_for(common(), settings).multiplier
    header = fleet.header(settings=settings)
    first = phone.ask(fleet.request(header, "d00"))
    numbers = phone.store.secure_part("numbers")
    for _ in range(3):
        phone.restart()
        assert phone.ask(fleet.request(header, "d00")) is not None
        assert phone.store.secure_part("numbers") == numbers
    assert isinstance(first, Pieces)
    one = phone.vault.spent().epsilon
    again(fleet, "d00")
    exchange(fleet, settings, "d00")  # the first one was not counted: its answers are sent again
    two = phone.vault.spent().epsilon
    # Declined requests cost nothing.
    assert exchange(fleet, settings, "d00") == [Declined()]
    assert phone.vault.spent().epsilon == two
    for epsilon, contributions in ((one, 1), (two, 2)):
        accountant = dp_accounting.pld.PLDAccountant()
        for _ in range(contributions):
            accountant.compose(dp_accounting.GaussianDpEvent(multiplier))
        assert epsilon == pytest.approx(accountant.get_epsilon(DELTA), rel=2e-3)
        exact = analytic_delta(epsilon, contributions / multiplier**2)
        assert DELTA * 0.98 < exact <= DELTA


def test_all_planned_sums_cost_the_epsilon_of_the_run(fleet):
    settings = private(fleet, epsilon=2.0, rounds=3)
    for _ in range(3):
        exchange(fleet, settings, "d00")
        again(fleet, "d00")
    assert fleet.phones["d00"].vault.spent().epsilon == pytest.approx(2.0, rel=2e-3)


def test_beyond_the_cap_the_vault_refuses_also_after_a_restart(tmp_path, caplog):
    fleet = Fleet(tmp_path, 6, {"max_epsilon": 2.0, "max_delta": DELTA})
    again(fleet)
    settings, phone = private(fleet, epsilon=2.0, rounds=3), fleet.phones["d00"]
    for _ in range(3):
        (reply,) = exchange(fleet, settings, "d00")
        assert isinstance(reply, Pieces)
        again(fleet, "d00")
    spent = phone.vault.spent()
    assert (spent.max_epsilon, spent.delta, spent.days) == (2.0, DELTA, None)
    for _ in range(2):
        caplog.clear()
        assert exchange(fleet, settings, "d00") == [Refused("its privacy budget is spent")]
        assert phone.vault.spent() == spent._replace(refused=True)
        (line,) = caplog.messages  # for the owner
        assert line.endswith("its privacy budget is spent (max_epsilon=2 of the vault's file)")
        phone.restart()
    fleet.now += 1e8
    assert exchange(fleet, settings, "d00") == [Refused("its privacy budget is spent")]


def test_with_a_cap_sums_without_noise_are_refused(tmp_path):
    fleet = Fleet(tmp_path, 6, {"max_epsilon": 2.0, "max_delta": DELTA})
    again(fleet)
    (reply,) = exchange(fleet, fleet.settings(), "d00")
    assert isinstance(reply, Refused)
    assert "only sums with noise" in reply.reason
    (reply,) = exchange(fleet, private(fleet, epsilon=2.1, rounds=1), "d00")
    assert reply == Refused("its privacy budget is spent")
    assert fleet.phones["d00"].store.secure_part("numbers") is None


def test_sums_without_noise_count_against_a_later_cap(fleet):
    phone = fleet.phones["d00"]
    exchange(fleet, fleet.settings(), "d00")
    assert phone.vault.spent()[:4] == (None, DELTA, False, True)
    fleet.configure("d00", max_epsilon=50.0, max_delta=DELTA)
    phone.restart()
    again(fleet, "d00")
    assert exchange(fleet, private(fleet), "d00") == [Refused("its privacy budget is spent")]
    fleet.configure("d00", max_epsilon=50.0, max_delta=DELTA, privacy_days=2)
    phone.restart()
    fleet.now += 3 * 86_400.0
    (reply,) = exchange(fleet, private(fleet), "d00")
    assert isinstance(reply, Pieces)


def charged_on(days, budget, multiplier):
    """Return the readings of the clock, in days, at which a contribution is allowed."""
    ledger, allowed = Ledger(), []
    for day in days:
        with contextlib.suppress(BudgetError):
            ledger = budget.charge(ledger, multiplier, day * 86_400.0)
            allowed.append(day)
    return allowed


def test_a_clock_set_forward_and_back_renews_the_budget_once():
    """A contribution costs the whole budget of 365 days; the clock is set forward by a year."""
    budget = Budget(max_epsilon=2.0, max_delta=DELTA, days=365)
    days = [1000, 1000 + 366, 1000, 999, 1001, 0, 1000 + 366, 1000 + 731, 1000 + 732]
    allowed = charged_on(days, budget, accounting.noise_multiplier(2.0, DELTA, 1))
    assert allowed == [1000, 1000 + 366, 1000 + 732]


def test_a_budget_per_period_holds_for_any_period_and_readings_of_the_clock():
    """A contribution costs a third of the budget of 10 days."""
    budget = Budget(max_epsilon=2.0, max_delta=DELTA, days=10)
    days = (1000 + np.random.default_rng(0).normal(0.2, 0.8, size=1000).cumsum()).tolist()
    allowed = charged_on(days, budget, accounting.noise_multiplier(2.0, DELTA, 3))
    assert len(allowed) > 30
    assert max(sum(first <= day <= first + 10 for day in allowed) for first in allowed) == 3


def test_a_contribution_is_never_older_than_the_last_one(tmp_path):
    """The clocks of the device and of a server are set forward by a year, and back."""
    fleet = Fleet(tmp_path, 6, {"max_epsilon": 2.0, "max_delta": DELTA, "privacy_days": 365})
    settings, start, replies = private(fleet, epsilon=2.0, rounds=1), fleet.now, []
    for day in (0, 1, 367, 2, 368):
        fleet.now = start + day * 86_400.0
        again(fleet, "d00")
        replies += exchange(fleet, settings, "d00")
    spent = Refused("its privacy budget is spent")
    assert [isinstance(reply, Pieces) for reply in replies] == [True, False, True, False, False]
    assert (replies[1], replies[4]) == (spent, spent)
    assert "is not later than" in replies[3].reason


def copied(phone, tmp_path):
    phone.store.backup(tmp_path / "backup.db")
    return tmp_path / "backup.db"


def restore(phone, backup):
    phone.store.close()
    for suffix in ("", "-wal", "-shm"):
        phone.path.with_name(phone.path.name + suffix).unlink(missing_ok=True)
    shutil.copy(backup, phone.path)
    phone.start()


def test_a_restored_store_knows_what_was_spent(fleet, tmp_path):
    settings, phone = private(fleet), fleet.phones["d00"]
    exchange(fleet, settings, "d00")
    backup = copied(phone, tmp_path)
    again(fleet, "d00")
    exchange(fleet, settings, "d00")
    spent = phone.vault.spent()
    restore(phone, backup)
    assert phone.vault.spent() == spent
    again(fleet, "d00")
    exchange(fleet, settings, "d00")
    multiplier = noise_for(common(), settings).multiplier
    ledger = Ledger.from_bytes(phone.store.secure_part("ledger"))
    assert ledger.spent() == pytest.approx(3 / multiplier**2, rel=1e-12)


def test_without_the_epoch_file_the_budget_counts_as_spent(tmp_path, caplog):
    fleet = Fleet(tmp_path, 6, {"max_epsilon": 50.0, "max_delta": DELTA})
    again(fleet)
    settings, phone = private(fleet), fleet.phones["d00"]
    exchange(fleet, settings, "d00")
    phone.store.close()
    for name in ("device.key", "device.key.pub", "device.key.epoch"):
        (phone.folder / name).unlink()
    rosters.create_device_key(phone.folder / "device.key")
    certified = [f"d00={phone.folder / 'device.key.pub'}"]
    rosters.renew_roster(fleet.roster_file, fleet.folder / "signer", certified, ["d00"])
    phone.start()
    assert phone.vault.spent()[:4] == (None, DELTA, True, True)
    assert "as spent" in caplog.text
    fleet.phones["d01"].restart()
    again(fleet)
    here, there = exchange(fleet, settings, "d00", "d01")
    assert here == Refused("its privacy budget is spent")
    assert isinstance(there, Pieces)


def test_an_epoch_file_without_a_ledger_is_of_a_version_without_noise(fleet):
    phone = fleet.phones["d00"]
    exchange(fleet, fleet.settings(), "d00")
    path = phone.folder / "device.key.epoch"
    fields = json.loads(path.read_text())
    assert fields.pop("ledger") == {"days": [], "exact": int(START // 86_400)}
    path.write_text(json.dumps(fields, sort_keys=True, separators=(",", ":")))
    assert EpochFile(phone.folder / "device.key").read().ledger.exact == int(START // 86_400)


def test_forgotten_answers_stay_charged(fleet):
    settings, phone = private(fleet), fleet.phones["d00"]
    header = fleet.header(settings=settings)
    phone.ask(fleet.request(header, "d00"))
    spent = phone.vault.spent()
    phone.store.forget()
    assert phone.ask(fleet.request(header, "d00")) == Declined()
    assert phone.vault.spent() == spent


class KilledError(Exception):
    """The process was killed."""


PLACES = [
    (DuelStore, "keep_secure_part"),
    (DuelStore, "add_cut"),
    (EpochFile, "write"),
    (EpochFile, "read"),
    (Vault, "_advance_epoch"),
]


@pytest.mark.parametrize("seed", range(4))
def test_no_kill_makes_a_device_exceed_its_cap(tmp_path, seed, monkeypatch):
    """Before or after any write, with restored stores: at most 3 contributions leave the device."""
    fleet = Fleet(tmp_path, 6, {"max_epsilon": 2.0, "max_delta": DELTA})
    settings, phone = private(fleet, epsilon=2.0, rounds=3), fleet.phones["d00"]
    rng, sent, header, backup = random.Random(seed), set(), None, None
    for _ in range(40):
        again(fleet, "d00")
        if header is None or rng.random() < 0.6:
            header = fleet.header(settings=settings)
        with monkeypatch.context() as patch:
            if rng.random() < 0.7:
                kill_at(patch, rng)
            try:
                reply = phone.ask(fleet.request(header, "d00"))
            except KilledError:
                reply = None
        if isinstance(reply, Pieces):
            sent.add(header.exchange)
        choice = rng.random()
        if choice < 0.2 and backup is None and sent:
            backup = copied(phone, tmp_path)
        elif choice < 0.3 and backup is not None:
            restore(phone, backup)
        elif reply is None or choice < 0.4:
            phone.restart()
    assert 1 <= len(sent) <= 3
    assert phone.vault.spent().epsilon <= 2.0 * 1.002


def kill_at(patch, rng):
    """Raise before or after one of the next calls of a function that stores something."""
    kind, name = rng.choice(PLACES)
    original, wait, before = getattr(kind, name), rng.randrange(4), rng.random() < 0.5
    calls = itertools.count()

    def killed(self, *arguments):
        is_now = next(calls) == wait
        if is_now and before:
            raise KilledError
        result = original(self, *arguments)
        if is_now:
            raise KilledError
        return result

    patch.setattr(kind, name, killed)


def test_two_processes_share_one_budget(tmp_path):
    """Two vaults with their own connections to one store; 3 contributions are within the cap."""
    fleet = Fleet(tmp_path, 6, {"max_epsilon": 2.0, "max_delta": DELTA})
    settings, phone = private(fleet, epsilon=2.0, rounds=3), fleet.phones["d00"]
    config = read_config(phone.folder / "vault.toml")
    other = replace_vault(phone, config)
    sent = set()
    for _ in range(5):
        again(fleet, "d00")
        headers = [fleet.header(settings=settings) for _ in range(2)]
        asked = [(phone, headers[0]), (other, headers[1])]
        with ThreadPoolExecutor(2) as pool:
            jobs = [pool.submit(who.ask, fleet.request(each, "d00")) for who, each in asked]
        for job, each in zip(jobs, headers, strict=True):
            if isinstance(job.result(), Pieces):
                sent.add(each.exchange)
    assert len(sent) == 3
    assert phone.vault.spent() == other.vault.spent()


def test_two_stores_with_one_key_share_one_budget(tmp_path, monkeypatch):
    """The first one is killed before it replies, and is asked again after the second one."""
    fleet = Fleet(tmp_path, 6, {"max_epsilon": 2.0, "max_delta": DELTA})
    settings, phone = private(fleet, epsilon=2.0, rounds=1), fleet.phones["d00"]
    other = Phone(phone.folder, "d00", phone.clock, store="other.db")
    for each in (phone, other):
        each.answer(*SOME)
    earlier, later = (fleet.header(settings=settings) for _ in range(2))

    def killed(self):
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(Vault, "_advance_epoch", killed)
        with pytest.raises(KilledError):
            phone.ask(fleet.request(later, "d00"))
    assert other.ask(fleet.request(earlier, "d00")) == Refused("its privacy budget is spent")
    phone.restart()
    assert isinstance(phone.ask(fleet.request(later, "d00")), Pieces)


def replace_vault(phone, config):
    """Return a second phone object for the same folder, as another process would have."""
    other = object.__new__(type(phone))
    other.__dict__.update(phone.__dict__)
    other.store = DuelStore(phone.path)
    other.vault = Vault(other.store, config, clock=phone.clock)
    return other


# --- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factor", "part", "words"),
    [
        ((0.5, 0.5), None, "the noise multiplier .*needs at least"),
        ((1.0, 0.9), "gradient", "noise of .* in gradient: must be at least"),
        ((1.0, 0.9), "hessian", "noise of .* in hessian: must be at least"),
    ],
)
def test_less_noise_than_promised_is_refused(fleet, factor, part, words):
    settings, phone = private(fleet), fleet.phones["d00"]
    noise = noise_for(common(), settings)
    wrong = noise._replace(multiplier=factor[0] * noise.multiplier)
    values = {
        name: value * (factor[1] if part in {None, name} else 1.0)
        for name, value in noise.noise._asdict().items()
    }
    wrong = wrong._replace(noise=type(noise.noise)(**values))
    content = encode_shared(common(), settings, 7, wrong)
    reply = ask_with(fleet, settings, content)
    assert isinstance(reply, Refused)
    assert re.search(words, reply.reason), reply
    assert phone.store.secure_part("ledger") is None


def ask_with(fleet, settings, content):
    """Ask a device with other bytes of the broadcast, and the encoding that follows from them."""
    encoding = decode_shared(content).encoding(6, 1000)
    header = fleet.header(settings=settings, broadcast=None, encoding=describe_encoding(encoding))
    header = replace(header, broadcast=content, numbers=encoding.size)
    return fleet.phones["d00"].ask(fleet.request(header, "d00"))


def test_a_server_that_states_absurd_noise_damages_nothing(fleet):
    """1 / z^2 is 0 in float64; what the device sends is noise, and the ledger can still be read."""
    settings, phone = private(fleet), fleet.phones["d00"]
    noise = noise_for(common(), settings)
    wrong = noise._replace(
        multiplier=1e170, noise=type(noise.noise)(*(1e175 * each for each in noise.noise))
    )
    ask_with(fleet, settings, encode_shared(common(), settings, 7, wrong))
    phone.restart()
    assert phone.vault.spent().epsilon == 0.0
    again(fleet, "d00")
    (reply,) = exchange(fleet, settings, "d00")
    assert isinstance(reply, Pieces)


def test_noise_of_few_quanta_is_refused():
    """A bound of 2^40 for 2^10 devices leaves quanta of 2^-10: noise of 2^12 has 2^22 of them."""
    blocks = (Block("the gradient", 2, 2.0**40), Block("the number of duels", 1, 9, is_count=True))
    encoding = Encoding(blocks, 2**10)
    assert encoding.exponents[0] in {9, 10}
    with pytest.raises(PrivacyError, match="quanta of the encoding: must be at least"):
        device_noise(Noise(gradient=2.0**12), encoding, 1)
    with pytest.raises(PrivacyError):  # rounding would matter: 2^15 z sqrt(3)
        device_noise(Noise(gradient=2.0**22), encoding, 1, multiplier=2.0**20)
    drawn = device_noise(Noise(gradient=2.0**22), encoding, 1, multiplier=2.0)
    assert drawn[2] == 0
    assert (drawn[:2] != 0).all()


def test_a_noisy_number_beyond_its_bound_is_not_sent():
    encoding = Encoding((Block("the gradient", 1, 8.0),), 4)
    largest = encoding.blocks[0].largest(encoding.exponents[0])
    assert encoding.elements(np.array([largest]))[0] == largest
    for value in (largest + 1, -largest - 1):
        with pytest.raises(DataError, match="the gradient is larger than its bound"):
            encoding.elements(np.array([value]))


def edited(content, edit):
    """Return the bytes of a broadcast with other fields in its JSON."""
    end = 4 + int.from_bytes(content[:4], "big")
    fields = json.loads(content[4:end])
    edit(fields)
    index = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    return len(index).to_bytes(4, "big") + index + content[end:]


def test_the_broadcast_contains_all_that_determines_the_noise(fleet):
    settings = private(fleet, epsilon=2, rounds=7)
    content = encode_shared(common(), settings, 7, noise_for(common(), settings))
    shared = decode_shared(content)
    assert encode_shared(*shared) == content
    assert shared.privacy == noise_for(shared.broadcast, shared.settings)
    assert replace(shared.settings.privacy, clip="auto") == settings.privacy
    assert (shared.settings.clip, shared.settings.devices.rounds) == (L, 7)


@pytest.mark.parametrize(
    "edit",
    [
        lambda fields: fields["privacy"]["noise"].pop(),
        lambda fields: fields["privacy"].update(multiplier="2.0"),
        lambda fields: fields["privacy"].update(multiplier=0.0),
        lambda fields: fields["privacy"].pop("multiplier"),
        lambda fields: fields["privacy"].update(other=1),
        lambda fields: fields["privacy"]["settings"].update(epsilon="none"),
        lambda fields: fields["privacy"]["settings"].update(unit="answer"),
        lambda fields: fields["privacy"]["settings"].update(rounds=0),
        lambda fields: fields["privacy"]["settings"].pop("clip"),
        lambda fields: fields["privacy"]["settings"].update(other=1),
        lambda fields: fields.update(privacy=[]),
        lambda fields: fields.update(privacy=None),
    ],
)
def test_a_damaged_privacy_of_a_broadcast_is_one_line(fleet, edit):
    settings = private(fleet)
    content = encode_shared(common(), settings, 7, noise_for(common(), settings))
    with pytest.raises(DataError) as raised:
        decode_shared(edited(content, edit))
    assert "\n" not in str(raised.value)


def test_estimates_that_overflow_are_refused_whatever_the_answers(fleet):
    settings = private(fleet, algorithm="fldb_personal", first_round="minimise")
    prior = CommonPrior(np.eye(2), np.array([1e200, -1e200]), 0.5, 0.0)
    wide = Broadcast(PlayRequest(1, 1, prior), None, shares=True, lowest_variance=0.5)
    header = fleet.header(wide, settings=settings)
    for name in fleet.names[:2]:
        reply = fleet.phones[name].ask(fleet.request(header, name))
        assert isinstance(reply, Refused)
        assert "a number beyond" in reply.reason


@pytest.mark.parametrize(("first", "last"), [(6, 5), (9, 5), (0, 1)])
@pytest.mark.parametrize("algorithm", ["fldb_ons", "fldb_personal"])
def test_a_request_without_a_size_has_no_noise_and_is_refused(fleet, first, last, algorithm):
    """With no iterations, typical sizes are 0, and so would be the noise and the limit."""
    broadcast, settings = common(), private(fleet)
    if algorithm == "fldb_personal":
        settings = private(fleet, algorithm=algorithm, first_round="minimise")
        prior = CommonPrior(np.zeros((2, 2)), np.zeros(2), 0.5, 0.0)
        broadcast = Broadcast(PlayRequest(1, 1, prior), None, shares=True, lowest_variance=0.5)
    play = broadcast.play._replace(first=first, last=last)
    none = SharedNoise(noise_for(broadcast, settings).multiplier, Noise())
    content = encode_shared(broadcast._replace(play=play), settings, 7, none)
    reply = ask_with(fleet, settings, content)
    assert isinstance(reply, Refused)
    assert f"iterations {first} to {last}" in reply.reason
    assert fleet.phones["d00"].store.secure_part("ledger") is None


def test_nothing_is_charged_for_a_request_that_cannot_be_answered(fleet):
    """Of all flags of a broadcast: a loss, and all duels, are refused; others are answered."""
    settings, phone = private(fleet, rounds=9), fleet.phones["d00"]
    noise = noise_for(common(), settings)
    wide = noise._replace(noise=Noise(*(10.0 * max(noise.noise) for _ in noise.noise)))
    contributions = 0
    for hessian, loss, scope in itertools.product((False, True), (False, True), ("fresh", "all")):
        broadcast = common()._replace(hessian=hessian, loss=loss, scope=scope)
        again(fleet, "d00")
        reply = ask_with(fleet, settings, encode_shared(broadcast, settings, 7, wide))
        if loss or scope == "all":
            assert isinstance(reply, Refused)
            assert re.search("asks again" if scope == "all" else "a loss", reply.reason)
        else:
            assert isinstance(reply, Pieces)
            contributions += 1
        content = phone.store.secure_part("ledger")
        spent = 0.0 if content is None else Ledger.from_bytes(content).spent()
        assert spent == pytest.approx(contributions / noise.multiplier**2, rel=1e-12)
    assert contributions == 2


def test_whether_numbers_can_be_computed_is_not_observed(fleet, caplog):
    """With a prior of 1e60 in the first feature, Newton fails if an answer disagrees with it."""
    settings = private(fleet, algorithm="fldb_personal", first_round="minimise")
    prior = CommonPrior(np.zeros((2, 2)), np.array([1e60, 0.0]), 0.1, 0.0)
    extreme = Broadcast(PlayRequest(1, 1, prior), None, shares=True, lowest_variance=0.01)
    total, _ = fleet.exchange(extreme, settings=settings)  # all devices reply
    assert (total.num_duels, total.shares.members) == (18, 6.0)
    noise = noise_for(extreme, settings).noise
    assert 0.0 < np.abs(total.shares.losses).max() < 7.0 * math.sqrt(6 / 4) * noise.losses
    phone = fleet.phones["d00"]
    assert phone.vault.spent().epsilon > 0.0
    upload, _ = UploadMaker(phone.store, settings).upload(extreme, 0, 3)
    change = upload.shares
    assert "contributes zeros" in caplog.text
    assert not any(np.any(part) for part in (change.precision, change.shift, change.losses))
    assert (upload.num_duels, change.squares, change.members) == (3, 3 * L**2, 1.0)  # public


def test_private_settings_without_noise_are_refused(fleet):
    settings = private(fleet)
    reply = ask_with(fleet, settings, encode_shared(common(), settings, 7))
    assert reply == Refused("the exchange has privacy.epsilon, and no noise")


@pytest.mark.parametrize("module", ["opendp.measurements", "dp_accounting"])
def test_without_the_extra_the_device_refuses_with_one_line(fleet, monkeypatch, module):
    settings, phone = private(fleet, epsilon=1.7), fleet.phones["d00"]
    header = fleet.header(settings=settings)
    accounting.noise_multiplier.cache_clear()
    monkeypatch.setitem(sys.modules, module, None)
    reply = phone.ask(fleet.request(header, "d00"))
    assert isinstance(reply, Refused)
    assert "pip install -e '.[privacy]'" in reply.reason
    assert "\n" not in reply.reason
    assert phone.store.secure_part("ledger") is None


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"max_epsilon": 1.0}, "max_epsilon needs max_delta"),
        ({"max_delta": 1e-6}, "max_delta needs max_epsilon"),
        ({"privacy_days": 3}, "privacy_days needs max_epsilon and max_delta"),
        ({"max_epsilon": 0.0, "max_delta": 1e-6}, "max_epsilon=0"),
        ({"max_epsilon": 1.0, "max_delta": 1.0}, "max_delta=1"),
        ({"max_epsilon": 1e6, "max_delta": 1e-6}, "max_epsilon=1000000.0: .* 0.001 to 1000"),
        ({"max_epsilon": math.inf, "max_delta": 1e-6}, "max_epsilon=inf: .* leave it out for none"),
        ({"max_epsilon": 10**400, "max_delta": 1e-6}, "max_epsilon=1000"),
        ({"max_epsilon": 1e-9, "max_delta": 1e-6}, "max_epsilon=1e-09"),
        ({"max_epsilon": 1.0, "max_delta": 1e-300}, "max_delta=1e-300: .* 1e-15 to 0.1"),
        ({"max_epsilon": 1.0, "max_delta": 1e-6, "privacy_days": 0}, "privacy_days=0"),
        ({"colluding": 1.0}, "colluding=1"),
        ({"colluding": '"half"'}, "colluding='half'"),
    ],
)
def test_a_wrong_budget_is_one_line(fleet, entries, words):
    with pytest.raises(DataError, match=words) as raised:
        read_config(fleet.configure("d00", **entries))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "content",
    [
        b"[]",
        b'{"days":[[2,1.0],[1,1.0]],"exact":0}',
        b'{"days":[[1,-1.0]],"exact":0}',
        b'{"days":[[1]],"exact":0}',
        b'{"days":[],"exact":-1}',
    ],
)
def test_a_damaged_ledger_is_one_line(content):
    with pytest.raises(DataError, match="the ledger") as raised:
        Ledger.from_bytes(content)
    assert "\n" not in str(raised.value)


def test_contributions_with_almost_no_noise_have_no_epsilon():
    """2,000 sums at epsilon 1000, z = 0.0249, cost 3.2 million: a Gaussian has about s / 2."""
    ledger = Ledger(days=((20_000, 2_000 / 0.0249**2),))
    spent = spent_of(ledger, Budget(), 20_000 * 86_400.0)
    assert (spent.noise, spent.exact) == (True, False)
    assert spent.epsilon is None or spent.epsilon > 1.6e6


def test_answers_that_cannot_be_encoded_are_used_up_also_outside_the_store(tmp_path):
    """The refusal depends on the answers, so a restored backup must not allow a second one."""
    fleet = Fleet(tmp_path, 6)
    fleet.phones["d00"].answer(([900.0, 0.0], 1.0))  # W is beyond n L^2 for 10 answers
    (reply,) = exchange(fleet, fleet.settings(), "d00", max_duels=10)
    assert isinstance(reply, Refused)
    assert EpochFile(tmp_path / "d00" / "device.key").read().cut == 1


def test_without_privacy_the_sum_has_no_noise(fleet):
    upload, state = fleet.exchange()
    assert decoded(state).gradient.tolist() == upload.gradient.tolist()
    x = np.array([difference for difference, _ in SOME])
    np.testing.assert_allclose(upload.information, 6 * x.T @ x, rtol=1e-12)
