"""Attacks on secure sums by a server, the relay's user, a device, and bad luck.

Each test is about real vaults or the real server, and fails without the protection that it is
about.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import stat
import threading

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from vaults import Fleet, common

from clients.store import DuelStore, duel_key
from clients.uploads import UploadMaker
from clients.vault import Vault, read_config
from clients.vault.epoch import EpochFile
from fldb_flower.bandit.prior import CommonPrior
from fldb_flower.deployment.rosters import load_device_key
from fldb_flower.errors import DataError, SecureError
from fldb_flower.federation.exchange import Broadcast, PlayRequest
from fldb_flower.linalg.forms import make_form
from fldb_flower.secure import roster as rosters
from fldb_flower.secure.field import echelon
from fldb_flower.secure.journal import Journal
from fldb_flower.secure.sealing import Route, seal, unseal
from fldb_flower.secure.server import ServerExchange
from fldb_flower.secure.sharing import Scheme
from fldb_flower.wire import secure_messages as messages
from fldb_flower.wire.secure_upload import upload_of
from fldb_flower.wire.shared_broadcast import decode_shared, encode_shared

MAGIC = b"fldb-flower node 1\n"


def message(index: bytes) -> bytes:
    """Return the bytes of a message with any JSON."""
    return MAGIC + len(index).to_bytes(4, "big") + index


NO_NUMBERS = [b"NaN", b"Infinity", b"1e999", b"[" * 900 + b"]" * 900]


@pytest.mark.parametrize("value", NO_NUMBERS, ids=["NaN", "Infinity", "1e999", "nested"])
def test_json_without_canonical_form_is_one_error_on_both_sides(value):
    reply = message(b'{"kind":"refused","lengths":{},"values":{"reason":' + value + b"}}")
    request = message(b'{"kind":"hello","lengths":{"roster":' + value + b'},"values":{}}')
    with pytest.raises(DataError):
        messages.decode_reply(reply)
    with pytest.raises(DataError):
        messages.decode_request(request)


def test_an_unsigned_roster_costs_no_check_of_its_keys(monkeypatch):
    checked = []
    read_key = X25519PublicKey.from_public_bytes
    monkeypatch.setattr(
        X25519PublicKey, "from_public_bytes", lambda key: checked.append(key) or read_key(key)
    )
    keys = {f"d{n}": base64.b64encode(os.urandom(31) + b"\0").decode() for n in range(100)}
    fields = {"devices": keys, "format": 1, "not_after": None, "not_before": None, "version": 2}
    signature = base64.b64encode(bytes(64)).decode()
    content = json.dumps({"roster": fields, "signature": signature}).encode()
    with pytest.raises(SecureError, match="signature of the roster, version 2, is not by"):
        rosters.read_signed(content, Ed25519PrivateKey.generate().public_key())
    assert not checked


# Bounds that the server chooses.


def test_a_server_cannot_search_for_the_bounds_of_the_answers_of_one_device(tmp_path):
    """Whether numbers fit into the bounds is one bit about a device: once for each cut."""
    fleet = Fleet(tmp_path, 6)
    phone = fleet.phones["d00"]
    phone.answer(([1.9, 0.3], 1.0), ([0.5, 0.2], 0.0))
    replies = []
    for longest in (0.1, 0.5, 1.0, 2.0, 4.0, 8.0):  # W_new[0, 0] is 3.86, at most 5 L^2 fits
        header = fleet.header(settings=fleet.settings(max_difference=longest), max_duels=5)
        replies.append(phone.ask(fleet.request(header, "d00")))
    assert isinstance(replies[0], messages.Refused)
    assert [type(each) for each in replies[1:]] == [messages.Declined] * 5


def test_a_refusal_for_the_bounds_is_repeated_after_a_restart_and_loses_nothing(tmp_path):
    fleet = Fleet(tmp_path, 6)
    for phone in fleet.phones.values():
        phone.answer(([1.9, 0.3], 1.0), ([0.5, 0.2], 0.0))
    header = fleet.header(settings=fleet.settings(max_difference=0.1), max_duels=5)
    for name, phone in fleet.phones.items():
        first = phone.ask(fleet.request(header, name))
        assert isinstance(first, messages.Refused)
        phone.restart()
        assert phone.ask(fleet.request(header, name)) == first
        phone.answer(([0.25, 1.0], 1.0))
    upload, _ = fleet.exchange()
    assert upload.num_duels == 6 * 3
    assert upload.gradient == pytest.approx([-4.95, -3.3])  # (1/2 - answer) phi of each duel


def test_a_repetition_after_a_contribution_of_other_numbers_is_unaffected(tmp_path):
    """The numbers of an earlier contribution are never sent for a later cut."""
    fleet = Fleet(tmp_path, 6)
    for phone in fleet.phones.values():
        phone.answer(([0.1, 0.3], 1.0))
    fleet.exchange()
    phone = fleet.phones["d01"]
    phone.answer(([1.9, 0.3], 1.0))
    header = fleet.header(settings=fleet.settings(max_difference=0.1), max_duels=5)
    for _ in range(2):
        reply = phone.ask(fleet.request(header, "d01"))
        assert isinstance(reply, messages.Refused)


def test_by_default_a_server_obtains_no_sum_over_fewer_than_3_d_duels(tmp_path):
    """A sum over up to d duels gives them away, so a limit of 1 would protect nothing."""
    fleet = Fleet(tmp_path, 6)
    file = fleet.configure("d00")
    lines = [line for line in file.read_text().splitlines() if "min_duels" not in line]
    file.write_text("\n".join(lines))
    phone = fleet.phones["d00"]
    phone.restart()
    phone.answer(([1.9, 0.3], 1.0), ([0.5, 0.2], 0.0))
    reply = phone.ask(fleet.request(fleet.header(), "d00"))  # d = 2, four other devices
    assert isinstance(reply, messages.Refused)
    assert reply.reason == "the exchange has min_duels=1, and the device requires 2"
    fleet.limits["min_duels"] = 2
    assert isinstance(phone.ask(fleet.request(fleet.header(), "d00")), messages.Pieces)


# Numbers without a meaning.


@pytest.mark.parametrize(("size", "loss"), [(1.7e308, False), (1e160, True)])
def test_an_estimate_of_any_size_has_a_reply_that_does_not_depend_on_the_answers(
    tmp_path, size, loss
):
    """Infinite products would be an error for some answers only: a question about them."""
    fleet = Fleet(tmp_path, 6)
    broadcast = Broadcast(PlayRequest(1, 1), np.zeros(2), loss=loss)
    large = broadcast._replace(theta_hat=np.array([size, -size]))
    shared = encode_shared(large, fleet.settings(), duels=7)
    header = dataclasses.replace(fleet.header(broadcast), broadcast=shared)
    replies = set()
    for phone, difference in zip(fleet.phones.values(), ([0.1, 0.1], [1.9, 1.9]), strict=False):
        phone.answer((difference, 1.0))
        reply = phone.ask(fleet.request(header, phone.name))
        assert isinstance(reply, messages.Refused)
        replies.add(reply.reason)
    assert len(replies) == 1


@pytest.mark.parametrize(
    ("precision", "variance", "lowest"),
    [(np.eye(2), 1e-310, 0.1), (np.eye(2), 0.3, 1e-310), (-1e308 * np.eye(2), 0.3, 0.1),
     (np.array([[1e300, 1e300], [1e300, 1e300]]), 1e300, 1e-300)],
)  # fmt: skip
def test_a_prior_without_a_meaning_is_refused(tmp_path, precision, variance, lowest):
    fleet = Fleet(tmp_path, 6)
    phone = fleet.phones["d00"]
    phone.answer(([0.1, 0.1], 1.0), ([1.0, 0.1], 0.0))
    prior = CommonPrior(precision, np.zeros(2), variance, 1.0)
    broadcast = Broadcast(PlayRequest(1, 1, prior), None, shares=True, lowest_variance=lowest)
    shared = encode_shared(broadcast, fleet.settings(algorithm="fldb_personal"), duels=7)
    for request in (
        messages.Deliver(shared, b""),
        fleet.request(dataclasses.replace(fleet.header(), broadcast=shared), "d00"),
    ):
        assert isinstance(phone.ask(request), messages.Refused | messages.Delivered)


# Files.


def test_the_epoch_file_is_private_also_after_exchanges(tmp_path):
    """It has the number of answers that the device has sent."""
    fleet = Fleet(tmp_path, 6)
    file = tmp_path / "d00" / "device.key.epoch"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for phone in fleet.phones.values():
        phone.answer(([0.1, 0.3], 1.0))
    fleet.exchange()
    assert b'"cut":1' in file.read_bytes()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


# All that a server sees, and what follows from it.


def key_of(fleet: Fleet, name: str):
    return load_device_key(fleet.folder / name / "device.key")


def held_pieces(fleet: Fleet, state: ServerExchange, sender: str, members) -> dict[int, np.ndarray]:
    """Return the pieces of a device that the keys of some members open, by place."""
    header, found = state.header, {}
    for member in members:
        place = header.committee.index(member)
        peer = key_of(fleet, sender).public_key().public_bytes_raw()
        route = Route(header.exchange, sender, member)
        content = unseal(
            state.sealed[sender][member], route, header.hash, key_of(fleet, member), peer
        )
        found[place] = header.scheme.piece(content, place, header.numbers)
    return found


def read_duel(fleet: Fleet, state: ServerExchange, sender: str, members) -> np.ndarray | None:
    """Return the duel of a device that sent only one, from the keys of some members, or None.

    The loser's features are subtracted from the winner's, so it has the answer as well.
    """
    header = state.header
    pieces = held_pieces(fleet, state, sender, members)
    if equations(header.scheme, pieces) < header.scheme.packed:
        return None
    numbers = header.scheme.recover(np.stack([*pieces.values()]), [*pieces], header.numbers)
    shared = decode_shared(header.broadcast)
    values = shared.encoding(len(header.asked), header.max_duels).decode(numbers, 1)
    return read_upload(upload_of(values, shared.broadcast, make_form(shared.settings)))


def read_upload(upload) -> np.ndarray:
    """Return the one duel of an upload, as tests/test_security.py does."""
    values, vectors = np.linalg.eigh(upload.information)
    phi = vectors[:, -1] * np.sqrt(values[-1])
    return -phi * np.sign(upload.gradient @ phi)


def rank(matrix: np.ndarray) -> int:
    return len(echelon(matrix)[1])


def equations(scheme: Scheme, members) -> int:
    """Return how many equations about l packed numbers follow from the pieces of members."""
    rows = scheme.generator[sorted(members)]
    return rank(rows) - rank(rows[:, scheme.packed :])


def equations_about(scheme: Scheme, device: int, devices: int, observed) -> int:
    """Return how many equations about the numbers of one device follow from sums of pieces.

    Parameters
    ----------
    observed : list of (int, list of int)
        The place of a member, and the weights of the devices in the sum of pieces that it opened.
    """
    matrix = np.stack([
        np.kron(np.array(weights, np.uint64), scheme.generator[place])
        for place, weights in observed
    ])  # fmt: skip
    owner, kind = np.divmod(np.arange(matrix.shape[1]), scheme.needed)
    about = (owner == device) & (kind < scheme.packed)
    return rank(matrix) - rank(matrix[:, ~about])


def test_a_duel_is_read_from_a_plain_upload_and_not_from_what_a_secure_server_sees(tmp_path):
    """The server has all sealed pieces, the keys of T members, and the opened sum."""
    fleet = Fleet(tmp_path, 10)
    duel = np.array([1.5, -0.25])
    for phone in fleet.phones.values():
        phone.answer((duel, 0.0) if phone.name == "d00" else ([0.5, 1.0], 1.0))
    broadcast = common()
    _, state = fleet.exchange(broadcast)
    plain, _ = UploadMaker(fleet.phones["d00"].store, fleet.settings()).upload(broadcast, 0, 1)
    assert read_upload(plain) == pytest.approx(-duel)
    scheme = state.header.scheme
    assert (scheme.tolerated, scheme.random_rows, scheme.needed) == (2, 6, 8)
    members = [name for name in state.header.committee if name != "d00"]
    assert read_duel(fleet, state, "d00", members[:8]) == pytest.approx(-duel, abs=1e-9)
    for known in range(7):  # 0: the server alone; 2: T members; 6: R members
        assert read_duel(fleet, state, "d00", members[:known]) is None
        assert equations(scheme, range(known)) == 0
    # The sum does not help: T members know their pieces of each device, and the sum of all pieces.
    each = np.eye(10, dtype=int).tolist()
    observed = [(place, weights) for place in range(2) for weights in each]
    observed += [(place, [1] * 10) for place in range(10)]
    assert equations_about(scheme, 0, 10, observed) == 0


def test_two_sets_shown_to_different_vaults_reveal_nothing_of_a_device_in_one_of_them(tmp_path):
    fleet = Fleet(tmp_path, 10)
    for phone in fleet.phones.values():
        phone.answer(([0.5, 1.0], 1.0))
    header = fleet.header()
    state = fleet.collect(header).choose()
    scheme, content = header.scheme, header.to_bytes()
    colluders = [name for name in header.committee if name != "d00"][:2]
    observed = []
    for place, name in enumerate(header.committee):
        pieces = state.pieces_for(name)
        without = {each: piece for each, piece in pieces.items() if each != "d00"}
        if name in colluders:
            observed += [(place, weights) for weights in np.eye(10, dtype=int).tolist()]
            continue
        sets = [pieces, without] if place % 2 else [without, pieces]
        phone, opened = fleet.phones[name], 0
        for shown in (*sets, *sets):
            reply = phone.ask(messages.Open(content, shown))
            if isinstance(reply, messages.Opened):
                assert shown is sets[0]
                opened += 1
                observed.append((place, [int(each in shown) for each in fleet.names]))
            phone.restart()
        assert opened == 2  # the first set, twice
    assert equations_about(scheme, 0, 10, observed) == 0
    both = [(place, [int(k > 0 or full) for k in range(10)]) for place in range(10)
            for full in (0, 1)]  # fmt: skip
    assert equations_about(scheme, 0, 10, both) == scheme.packed  # if they opened both


# Requests that a vault refuses.


def contributed(tmp_path, count=6, **limits):
    """Return devices with one answer each, and an exchange that all have contributed to."""
    fleet = Fleet(tmp_path, count, **limits)
    for phone in fleet.phones.values():
        phone.answer(([0.5, 1.0], 1.0))
    return fleet, fleet.collect(fleet.header()).choose()


def opening(fleet: Fleet, state: ServerExchange, name: str, pieces, header=None):
    content = (header or state.header).to_bytes()
    return fleet.phones[name].ask(messages.Open(content, pieces))


def test_no_vault_opens_a_sum_of_too_few_devices(tmp_path):
    fleet, state = contributed(tmp_path)
    assert state.header.least_devices == 5
    for count in range(1, 5):
        for name in fleet.names:
            pieces = dict(list(state.pieces_for(name).items())[:count])
            reply = opening(fleet, state, name, pieces)
            assert isinstance(reply, messages.Refused)
            assert f"a sum of {count} devices: must be at least 5" in reply.reason
    fewer = dataclasses.replace(state.header, min_devices=1)
    reply = opening(fleet, state, "d00", dict(list(state.pieces_for("d00").items())[:2]), fewer)
    assert isinstance(reply, messages.Refused)


def test_pieces_of_another_theta_or_exchange_open_on_no_vault(tmp_path):
    """One device was asked at another theta; of another one, earlier pieces are replayed."""
    fleet, earlier = contributed(tmp_path)
    for phone in fleet.phones.values():
        phone.answer(([1.0, 0.25], 1.0))
    header = fleet.header()
    shared = encode_shared(common((5.0, -5.0)), fleet.settings(), duels=7)
    other = dataclasses.replace(header, broadcast=shared)
    state = ServerExchange(header)
    for name in fleet.names:
        reply = fleet.phones[name].ask(fleet.request(other if name == "d03" else header, name))
        assert isinstance(reply, messages.Pieces)
        replayed = earlier.sealed[name] if name == "d04" else reply.sealed
        state = state.receive(name, replayed)
    state = state.choose()
    for name in header.committee:
        reply = opening(fleet, state, name, state.pieces_for(name))
        if name == "d03":
            assert isinstance(reply, messages.Refused)
            assert "two different headers" in reply.reason
        else:
            assert reply == messages.Blamed(("d03", "d04"))
    with pytest.raises(SecureError, match="0 of 6 members"):
        state.combine()


def test_an_invented_device_has_no_key_on_any_vault(tmp_path):
    """Neither by its name in a header, nor by a roster of the server, nor by pieces of its own."""
    fleet, state = contributed(tmp_path)
    header, phone = state.header, fleet.phones["d00"]
    asked = (*header.asked, "invented")
    for changes in (
        {"asked": asked},
        {"asked": asked, "committee": (*header.committee[:-1], "invented")},
        {"committee": (*header.committee[:-1], "invented")},
        {"committee": header.committee[::-1]},
    ):
        fleet.now += 60
        wrong = dataclasses.replace(
            header, exchange=bytes(16), round=int(fleet.now * 1000), **changes
        )
        assert isinstance(phone.ask(fleet.request(wrong, "d00")), messages.Refused)
    roster, _ = rosters.read(fleet.roster_file.read_bytes())
    own = Ed25519PrivateKey.generate()
    public = X25519PrivateKey.generate().public_key().public_bytes_raw()
    forged = rosters.sign(roster.renewed({"invented": public}), own)
    reply = phone.ask(messages.Hello(forged))
    assert isinstance(reply, messages.Refused)
    assert "not by the pinned key" in reply.reason
    own_pieces = {
        name: seal(
            bytes(8 * header.scheme.columns(header.numbers)), Route(header.exchange, "d05", name),
            header.hash, X25519PrivateKey.generate(), roster.keys[name],
        )
        for name in header.committee
    }  # fmt: skip
    for name in fleet.names:
        pieces = {**state.pieces_for(name), "d05": own_pieces[name]}
        assert opening(fleet, state, name, pieces) == messages.Blamed(("d05",))


def test_a_second_set_is_not_opened_after_the_vault_was_restarted(tmp_path):
    fleet, state = contributed(tmp_path)
    for name in fleet.names:
        pieces = state.pieces_for(name)
        assert isinstance(opening(fleet, state, name, pieces), messages.Opened)
        fleet.phones[name].restart()
        fewer = {each: piece for each, piece in pieces.items() if each != "d05"}
        reply = opening(fleet, state, name, fewer)
        assert isinstance(reply, messages.Refused)
        assert "opened for another set" in reply.reason


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("algorithm", ["fldb_ons", "fldb_personal"])
def test_whatever_a_server_acknowledges_no_cut_is_sent_twice(tmp_path, seed, algorithm):
    """The server names any exchange as counted, also in deliveries, and chooses the limits."""
    rng = np.random.default_rng(seed)
    fleet = Fleet(tmp_path, 6, min_duels=2)
    settings = fleet.settings(algorithm=algorithm)
    broadcast = common()
    if algorithm == "fldb_personal":
        prior = CommonPrior(np.eye(2), np.zeros(2), 0.3, 1.0)
        broadcast = Broadcast(PlayRequest(1, 1, prior), None, shares=True, lowest_variance=0.1)
    phone, known, cuts = fleet.phones["d00"], [b""], [0]
    for _ in range(25):
        phone.answer(*((rng.normal(size=2), 1.0) for _ in range(rng.integers(0, 4))))
        if rng.random() < 0.1:
            phone.store.forget()
        if rng.random() < 0.2:
            phone.restart()
        fleet.limits["min_duels"] = int(rng.integers(2, 4))
        header = fleet.header(broadcast, settings, max_duels=int(rng.integers(3, 9)))
        if rng.random() < 0.5:
            counted = known[rng.integers(len(known))]
            phone.ask(messages.Deliver(header.broadcast, counted))
        counted = known[rng.integers(len(known))]
        reply = phone.ask(messages.Collect(header.to_bytes(), counted))
        if isinstance(reply, messages.Declined):
            continue
        assert isinstance(reply, messages.Pieces), reply
        last = Journal.from_bytes(phone.store.secure_part("journal") or b"").contribution
        assert last is not None
        assert last.cut >= cuts[-1] + header.min_duels
        assert last.cut - last.start <= header.max_duels
        fresh = phone.store.evidence(max(cuts[-1], last.start), last.cut)
        assert len({duel_key(each) for each in fresh.differences if each.any()}) >= 2
        cuts.append(last.cut)
        known.append(header.exchange)
    assert len(cuts) > 5


def test_two_stores_with_one_key_open_one_set_also_at_the_same_time(tmp_path, monkeypatch):
    """The second request arrives after the first one is stored, and before the epoch is written."""
    fleet, state = contributed(tmp_path)
    name, pieces = state.header.committee[0], state.pieces_for(state.header.committee[0])
    copy = tmp_path / "copy.db"
    fleet.phones[name].store.backup(copy)
    content, fewer = state.header.to_bytes(), dict(list(pieces.items())[:5])
    request = messages.encode(messages.Open(content, fewer))
    replies, threads, write = [], [], EpochFile.write

    def other_request():
        with DuelStore(copy) as store:
            config = read_config(fleet.folder / name / "vault.toml")
            vault = Vault(store, config, clock=lambda: fleet.now)
            replies.append(messages.decode_reply(vault.answer(request)))

    def slow_write(self, epoch):
        if not threads:
            threads.append(threading.Thread(target=other_request))
            threads[0].start()
            threads[0].join(0.5)
        write(self, epoch)

    monkeypatch.setattr(EpochFile, "write", slow_write)
    assert isinstance(opening(fleet, state, name, pieces), messages.Opened)
    threads[0].join()
    assert isinstance(replies[0], messages.Refused)
    assert "not later than" in replies[0].reason


def test_a_backup_from_before_the_first_exchange_needs_the_epoch_file_too(tmp_path):
    """Without the file, the vault would open a second set for an exchange of the last days."""
    fleet = Fleet(tmp_path, 6)
    phone, backup = fleet.phones["d00"], tmp_path / "backup.db"
    phone.store.backup(backup)
    for each in fleet.phones.values():
        each.answer(([0.5, 1.0], 1.0))
    state = fleet.open(fleet.collect(fleet.header()))
    phone.store.close()
    for file in [*phone.folder.glob("duels.db*"), phone.folder / "device.key.epoch"]:
        file.unlink()
    backup.rename(phone.path)
    with pytest.raises(DataError, match=r"device\.key\.epoch is missing"):
        phone.start()
    assert "d00" in state.chosen
