"""The server of secure sums, with devices that have real vaults."""

from __future__ import annotations

import contextlib
import random
from fractions import Fraction

import numpy as np
import pytest
from secure_grid import SecureFederation
from vaults import D

from clients.vault import read_config
from fldb_flower.errors import CheckpointError
from fldb_flower.federation.exchange import statistics
from fldb_flower.linalg.forms import form_of
from fldb_flower.runs.directory import CHECKPOINT
from fldb_flower.secure.header import Header
from fldb_flower.secure.roster import read
from fldb_flower.secure.sealing import Route, seal
from fldb_flower.secure.server import ServerExchange
from fldb_flower.settings import from_flat
from fldb_flower.wire import secure_messages as messages
from fldb_flower.wire.secure_upload import numbers_of
from fldb_flower.wire.shared_broadcast import decode_shared
from strategies.device_directory import DeviceDirectory, RoundRow
from strategies.device_rounds import make_device_server
from strategies.device_tally import Tally
from strategies.secure_exchange import EXCHANGE


def exact_sum(federation, header, broadcast, names) -> list[Fraction]:
    """Return the sum of the integers of devices, in units of their scales, with Python integers."""
    shared = decode_shared(header.broadcast)
    encoding = shared.encoding(len(header.asked), header.max_duels)
    scales = [
        Fraction(2) ** exponent
        for block, exponent in zip(encoding.blocks, encoding.exponents, strict=True)
        for _ in range(block.size)
    ]
    total = [0] * len(scales)
    for name in names:
        start, cut = federation.grid.spans[name, header.exchange]
        given = federation.phones[name].given[start:cut]
        x, y = (np.array(column) for column in zip(*given, strict=True))
        upload = statistics(broadcast, x, y, x, form_of(np.eye(D)))
        numbers = numbers_of(upload, broadcast)
        total = [
            sum_ + round(Fraction(number) * scale)
            for sum_, number, scale in zip(total, numbers, scales, strict=True)
        ]
    return [sum_ / scale for sum_, scale in zip(total, scales, strict=True)]


def test_the_server_learns_from_the_exact_sum(tmp_path):
    federation = SecureFederation(tmp_path)
    with federation.serving() as server:
        for _ in range(3):
            federation.answer()
            assert server.try_round(), federation.lines
            header = federation.grid.headers[bytes.fromhex(server.devices.counted["d00"])]
            broadcast, upload = federation.uploads[-1]
            numbers = numbers_of(upload, broadcast)
            expected = exact_sum(federation, header, broadcast, federation.phones)
            assert [Fraction(number) for number in numbers] == expected
            assert upload.num_duels == 16
        assert federation.check_counted(server) == 48


def test_fldb_personal_adds_the_shares_of_the_devices(tmp_path):
    federation = SecureFederation(
        tmp_path, **{"algorithm": "fldb_personal", "first-round": "minimise"}
    )
    with federation.serving() as server:
        for _ in range(3):
            federation.answer(count=3)
            assert server.try_round(), federation.lines
        algorithm = server.strategy.algorithm
    shares = [phone.store.share(phone.store.last) for phone in federation.phones.values()]
    precision, shift = (sum(parts) for parts in zip(*shares, strict=True))
    np.testing.assert_allclose(algorithm.information, precision, atol=1e-12)
    np.testing.assert_allclose(algorithm.arrays["shift"], shift, atol=1e-12)
    assert algorithm.arrays["offered"][1:].tolist() == [8 * 9, 8]


def is_collect(request):
    return isinstance(request, messages.Collect)


def is_open(request):
    return isinstance(request, messages.Open)


def test_a_silent_device_is_not_in_the_sum_and_its_answers_count_later(tmp_path):
    federation = SecureFederation(tmp_path)
    with federation.serving() as server:
        federation.answer()
        federation.grid.fault = lambda name, request: (
            "request lost" if name == "d03" and is_collect(request) else "none"
        )
        assert server.try_round()
        assert len(server.devices.tally().uploads) == 7
        assert federation.check_counted(server) == 14
        federation.grid.fault = lambda _name, _request: "none"
        federation.answer("d00", "d01", "d02", "d04", "d05", "d06")
        assert server.try_round()
        assert federation.check_counted(server) == 28
        row = server.strategy.history.participation[0]
        assert (row.asked, row.replied) == (8, 8)
        assert row.absent == ("d07",)  # it declined: it has no new answers


def test_a_device_that_refuses_does_not_stop_the_round_and_is_named(tmp_path):
    federation = SecureFederation(tmp_path)
    federation.fleet.configure("d05", min_duels=3)
    federation.phones["d05"].restart()
    federation.answer()
    with federation.serving() as server:
        assert server.try_round()
        assert len(server.devices.tally().uploads) == 7
        (line,) = server.strategy.history.participation[0].rejected
        assert line == "d05: the exchange has min_duels=1, and the device requires 3"


def test_a_sum_with_too_few_contributions_is_continued(tmp_path):
    """8 devices: T = 1, so a sum needs 4 + 1. No device has new answers in two rounds."""
    federation = SecureFederation(tmp_path)
    federation.answer("d00", "d01", "d02", "d03")
    with federation.serving() as server:
        assert not server.try_round()
        assert federation.lines[-1] == (
            "round 1 is not counted: 4 of 8 devices contributed, 4 declined (too few new answers),"
            " and 0 were refused or did not reply; a secure sum needs 5; the others are asked again"
        )
        assert not federation.grid.openings
        federation.answer("d06")
        federation.grid.asked.clear()
        assert server.try_round()
        assert federation.check_counted(server) == 5 * 2
        collected = {name for name, request in federation.grid.asked if is_collect(request)}
        assert collected == {"d04", "d05", "d06", "d07"}
        assert len(federation.grid.headers) == 1


def test_an_exchange_whose_set_is_not_fixed_ends_with_the_run(tmp_path):
    federation = SecureFederation(tmp_path)
    federation.answer("d00", "d01", "d02", "d03")
    with federation.serving() as server:
        assert not server.try_round()
        assert not (server.directory.path / EXCHANGE).exists()
    federation.answer()
    with federation.serving() as server:
        assert server.try_round()
        assert len(federation.grid.headers) == 2
        assert federation.check_counted(server) == 4 * 4 + 4 * 2


def test_a_sum_with_too_few_contributions_is_replaced_if_many_more_devices_come(tmp_path):
    federation = SecureFederation(tmp_path)
    federation.answer("d00", "d01", "d02", "d03")
    federation.grid.absent = {"d05", "d06", "d07"}
    with federation.serving() as server:
        assert not server.try_round()
        federation.grid.absent = {"d06"}
        assert not server.try_round()  # 7 devices are not 1.5 times as many as 5
        assert len(federation.grid.headers) == 1
        federation.grid.absent = set()
        federation.answer()
        assert server.try_round()
        assert len(federation.grid.headers) == 2
        assert federation.check_counted(server) == 4 * 4 + 4 * 2


def test_a_sum_that_absent_devices_cannot_complete_is_replaced(tmp_path):
    federation = SecureFederation(tmp_path)
    federation.answer("d00", "d01", "d02")
    federation.grid.absent = {"d06", "d07"}
    with federation.serving() as server:
        assert not server.try_round()
        federation.grid.absent = {"d04", "d05"}  # d03 and three that contributed are left
        federation.answer()
        assert server.try_round()
        assert len(federation.grid.headers) == 2
        assert federation.check_counted(server) == 3 * 4 + 3 * 2


def test_too_few_devices_are_reported_with_what_the_sum_needs(tmp_path):
    federation = SecureFederation(tmp_path)
    federation.answer()
    federation.grid.absent = {"d00", "d01", "d02", "d03"}
    with federation.serving() as server:
        assert server.strategy.least_nodes == 5
        assert not server.try_round()
        assert "4 devices are present: a secure sum needs 5" in federation.lines[-1]


FAULTS = (
    "none",
    "none",
    "none",
    "request lost",
    "reply lost",
    "late",
    "twice",
    "raises",
    "restart",
)


@pytest.mark.parametrize("seed", range(3))
def test_lost_late_and_repeated_messages_count_every_answer_once(tmp_path, seed):
    federation, faults = SecureFederation(tmp_path, **{"node-wait": 0.2}), random.Random(seed)
    with federation.serving() as server:
        federation.grid.fault = lambda _name, _request: faults.choice(FAULTS)
        for _ in range(3):
            federation.answer()
            server.try_round()
        federation.grid.fault = lambda _name, _request: "none"
        federation.answer()
        while not server.try_round():
            federation.answer()
        federation.answer()
        assert server.try_round()
        assert federation.check_counted(server) == sum(
            len(phone.given) for phone in federation.phones.values()
        )


def test_up_to_t_members_may_be_missing(tmp_path):
    federation = SecureFederation(tmp_path)
    federation.answer()
    federation.grid.fault = lambda name, request: (
        "request lost" if name == "d03" and is_open(request) else "none"
    )
    with federation.serving() as server:
        assert server.try_round()
        assert federation.check_counted(server) == 16


def test_with_more_missing_members_the_same_set_is_asked_again(tmp_path):
    """Two of eight are missing: the exchange is continued in the next round."""
    federation = SecureFederation(tmp_path)
    federation.answer()
    federation.grid.fault = lambda name, request: (
        "raises" if name in {"d03", "d04"} and is_open(request) else "none"
    )
    with federation.serving() as server:
        assert not server.try_round()
        assert federation.lines[-1] == (
            "round 1 is not counted: 6 of 8 members opened the sum of 8 devices; it needs 7;"
            " 2 devices (d03, d04): ConnectionRefusedError: the service is down; they are asked"
            " again in the next round"
        )
        federation.answer()
        federation.grid.asked.clear()
        federation.grid.fault = lambda _name, _request: "none"
        assert server.try_round()
        assert {name for name, _ in federation.grid.asked} == {"d03", "d04"}
        assert federation.check_counted(server) == 16
        assert server.try_round()
        assert federation.check_counted(server) == 32
    ((_, first), (_, second)) = federation.grid.openings
    assert first == second == tuple(federation.phones)


def test_an_exchange_is_given_up_after_three_rounds_and_nothing_is_lost(tmp_path):
    federation = SecureFederation(tmp_path)
    federation.answer()
    federation.grid.fault = lambda name, request: (
        "request lost" if name in {"d03", "d04"} and is_open(request) else "none"
    )
    with federation.serving() as server:
        assert [server.try_round() for _ in range(3)] == [False] * 3
        assert federation.lines[-1].endswith("it needs 7; the exchange is given up")
        assert not (tmp_path / "server" / EXCHANGE).exists()
        federation.answer(count=1)
        federation.grid.fault = lambda _name, _request: "none"
        assert server.try_round()
        assert federation.check_counted(server) == 24


class Killed(KeyboardInterrupt):
    """The server's process ends here."""


def killed_at(server, place, number):
    """Let the server die before or after a write."""
    file, directory = server.strategy.file, server.directory
    owner, name = {"exchange": (file, "save"), "checkpoint": (directory, "commit")}[place]
    write = getattr(owner, name)

    def dying(*arguments):
        if number:
            write(*arguments)
        raise Killed

    setattr(owner, name, dying)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("place", ["exchange", "checkpoint"])
def test_a_killed_server_counts_every_answer_once(tmp_path, place, after):
    federation = SecureFederation(tmp_path)
    for _ in range(2):
        federation.answer()
        with federation.serving() as server:
            killed_at(server, place, after)
            with contextlib.suppress(Killed):
                server.try_round()
    federation.answer()
    with federation.serving() as server:
        assert server.try_round()
        if federation.check_counted(server) < 48:  # that was the exchange in progress
            assert server.try_round()
        assert federation.check_counted(server) == 48
    opened = [exchange for exchange, _ in federation.grid.openings]
    assert len(set(opened)) == len(opened)  # one set each


def test_the_set_is_on_the_disk_before_a_member_is_asked(tmp_path):
    federation, stored = SecureFederation(tmp_path), []

    def fault(_name, request):
        if is_open(request):
            state = ServerExchange.from_bytes((tmp_path / "server" / EXCHANGE).read_bytes())
            stored.append(state.chosen == tuple(request.sealed))
        return "none"

    federation.answer()
    federation.grid.fault = fault
    with federation.serving() as server:
        assert server.try_round()
    assert stored == [True] * 8


def test_after_a_restart_the_members_are_asked_about_the_stored_set(tmp_path):
    federation = SecureFederation(tmp_path)
    federation.answer()
    with federation.serving() as server:
        killed_at(server, "exchange", 1)
        with pytest.raises(Killed):
            server.try_round()
    federation.answer()
    federation.grid.asked.clear()
    with federation.serving() as server:
        assert server.try_round()
        assert not any(is_collect(request) for _, request in federation.grid.asked)
        assert federation.check_counted(server) == 16


@pytest.mark.parametrize("with_exchange", [False, True])
def test_a_server_restored_from_a_backup_receives_the_later_answers_again(tmp_path, with_exchange):
    federation = SecureFederation(tmp_path)
    for number in range(4):
        federation.answer()
        with federation.serving() as server:
            assert server.try_round(), federation.lines
        if number == 1:
            backup = {
                name: (tmp_path / "server" / name).read_bytes() for name in (CHECKPOINT, EXCHANGE)
            }
    (tmp_path / "server" / CHECKPOINT).write_bytes(backup[CHECKPOINT])
    if with_exchange:
        (tmp_path / "server" / EXCHANGE).write_bytes(backup[EXCHANGE])
    federation.answer()
    with federation.serving() as server:
        assert federation.check_counted(server) == 32
        for _ in range(5):
            server.try_round()
        assert federation.check_counted(server) == 80


def flipped(content: bytes) -> bytes:
    """Return bytes with another lowest bit."""
    return bytes([content[0] ^ 1]) + content[1:]


def dealt(federation, name, request, numbers=None, spoilt=()):
    """Return the pieces of a device that contributes other numbers, or wrong pieces to some."""
    phone, header = federation.phones[name], Header.from_bytes(request.header)
    private = read_config(phone.folder / "vault.toml").private
    roster, _ = read(federation.fleet.roster_file.read_bytes())
    numbers = np.zeros(header.numbers, np.uint64) if numbers is None else numbers
    pieces = header.scheme.messages(numbers, bytes(32))
    sealed = {}
    for member, piece in zip(header.committee, pieces, strict=True):
        route = Route(header.exchange, name, member)
        content = flipped(piece) if member in spoilt else piece
        sealed[member] = seal(content, route, header.hash, private, roster.keys[member])
    return messages.Pieces(sealed)


def test_a_member_with_a_wrong_sum_is_named_and_left_out_of_the_sum(tmp_path):
    """10 members: U = 8, so two further answers name one wrong answer."""
    federation = SecureFederation(tmp_path, devices=10)
    federation.answer()

    def tamper(name, _request, reply):
        if name == "d07" and isinstance(reply, messages.Opened):
            return messages.Opened(flipped(reply.opening))
        return reply

    federation.grid.tamper = tamper
    with federation.serving() as server:
        assert server.try_round()
        assert federation.check_counted(server) == 20
        assert server.strategy.history.participation[0].rejected == (
            "d07: answered with a wrong sum",
        )


def test_a_device_whose_pieces_do_not_open_is_named_and_left_out(tmp_path):
    federation = SecureFederation(tmp_path)
    federation.answer()

    def tamper(name, _request, reply):
        if name == "d02" and isinstance(reply, messages.Pieces):
            return messages.Pieces(
                {member: bytes([each[0] ^ 1]) + each[1:] for member, each in reply.sealed.items()}
            )
        return reply

    federation.grid.tamper = tamper
    with federation.serving() as server:
        assert not server.try_round()
        assert "d02: 8 of 8 members cannot open its pieces" in federation.lines[-1]
        assert "left out of the next 20 sums: d02" in federation.lines[-1]
        federation.answer()
        assert server.try_round()
        assert "d02" not in server.devices.counted
        assert federation.check_counted(server) == 28
    federation.answer()
    federation.grid.asked.clear()
    with federation.serving() as server:  # a restarted server knows it as well
        assert server.try_round()
    assert "d02" not in {name for name, _ in federation.grid.asked}


def test_a_bad_dealer_is_found_while_the_others_count(tmp_path):
    """It deals wrong pieces to half of the members: parity shows it, and not by whom."""
    federation = SecureFederation(tmp_path, devices=12)

    def tamper(name, request, reply):
        if name == "d04" and isinstance(reply, messages.Pieces):
            return dealt(
                federation, name, request, spoilt=Header.from_bytes(request.header).committee[::2]
            )
        return reply

    federation.grid.tamper = tamper
    counted = 0
    with federation.serving() as server:
        for _ in range(12):
            federation.answer()
            counted += server.try_round()
            if server.devices.suspects.left_out:
                break
        assert counted < 12
        for _ in range(2):
            federation.answer()
            assert server.try_round()
        assert set(server.devices.counted) == set(federation.phones) - {"d04"}
        assert federation.check_counted(server) == sum(
            len(phone.given) for name, phone in federation.phones.items() if name != "d04"
        )
        assert list(server.devices.suspects.left_out) == ["d04"]
    assert any("wrong" in line and "d04" in line for line in federation.lines)


def test_an_implausible_sum_is_not_counted(tmp_path):
    """A device contributes no duels and a gradient of 2^40 quanta."""
    federation = SecureFederation(tmp_path)
    federation.answer()

    def tamper(name, request, reply):
        if name == "d01" and isinstance(reply, messages.Pieces):
            header = Header.from_bytes(request.header)
            numbers = np.zeros(header.numbers, np.uint64)
            numbers[0], numbers[-1] = 2**50, 1
            return dealt(federation, name, request, numbers)
        return reply

    federation.grid.tamper = tamper
    with federation.serving() as server:
        assert not server.try_round()
        assert "the sum is not plausible: gradient is longer than" in federation.lines[-1]
        assert federation.check_counted(server) == 0


@pytest.mark.parametrize("algorithm", ["fldb_ons", "fldb_ogd"])
@pytest.mark.parametrize("form", ["full", "diagonal"])
def test_features_far_below_the_largest_difference_are_no_reason_to_refuse(
    tmp_path, algorithm, form
):
    """The second feature is below a quantum: its rounding errors are larger than itself."""
    federation = SecureFederation(tmp_path, **{"algorithm": algorithm, "matrix-form": form})
    with federation.serving() as server:
        for _ in range(2):
            for phone in federation.phones.values():
                x = federation.rng.uniform(-2.0, 2.0, (3, D)) * [1.0, 3e-9]
                phone.answer(*((row, 1.0) for row in x.tolist()))
            assert server.try_round(), federation.lines


def test_a_directory_of_plain_uploads_is_not_continued_with_secure_sums(tmp_path):
    federation = SecureFederation(tmp_path)
    settings = from_flat({**federation.config, "secure": False}, "a test")
    directory = DeviceDirectory(tmp_path / "server", settings)
    server = make_device_server(settings, directory, federation.lines.append)
    row = RoundRow(1, 0.0, 0.0, 1, 1, 1, Tally(0, ()), 0, ())
    server.directory.commit(row, server.strategy, server.devices)
    directory.close()
    with pytest.raises(CheckpointError, match="belongs to another run"):
        federation.server()


def test_a_backlog_never_makes_a_device_decline_for_ever(tmp_path):
    """Each exchange that is given up moves the cut of every device by 2; max_duels is 3."""
    federation = SecureFederation(tmp_path, **{"devices-max-duels": 3, "devices-min-duels": 2})
    federation.answer(count=20)
    federation.grid.fault = lambda name, request: (
        "request lost" if name in {"d03", "d04"} and is_open(request) else "none"
    )
    with federation.serving() as server:
        assert not any(server.try_round() for _ in range(12))  # 4 exchanges
        assert len(federation.grid.headers) == 4
        sent = [cut for (name, _), (_, cut) in federation.grid.spans.items() if name == "d00"]
        assert sorted(sent) == [3, 5, 7, 9]
        federation.grid.fault = lambda _name, _request: "none"
        assert server.try_round()
        assert federation.check_counted(server) == 8 * 11
        assert server.try_round()
        assert federation.check_counted(server) == 8 * 14
