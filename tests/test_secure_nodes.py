"""The nodes of secure sums: names, rosters, malformed replies, the estimate, and the results."""

from __future__ import annotations

import csv
import json
import logging
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from secure_grid import SecureFederation, SecureGrid
from vaults import D

from fldb_flower.deployment import rosters
from fldb_flower.errors import CheckpointError, FederationError, SettingsError
from fldb_flower.federation.exchange import Broadcast
from fldb_flower.settings import from_flat
from fldb_flower.wire import secure_messages as messages
from simulations.benchmark.secure import Rehearsal
from strategies import transport
from strategies.secure_devices import SecureDevices
from strategies.secure_exchange import EXCHANGE


def test_two_nodes_with_one_name_are_both_refused(tmp_path):
    federation = SecureFederation(tmp_path, devices=9)
    federation.answer()
    honest = True

    def tamper(name, _request, reply):
        if name == "d08" and isinstance(reply, messages.Introduced) and not honest:
            return messages.Introduced("d01", reply.version)
        return reply

    federation.grid.tamper, honest = tamper, False
    with federation.serving() as server:
        assert server.try_round()
        nodes = [federation.grid.node(name) for name in ("d01", "d08")]
        assert server.strategy.history.participation[0].rejected == tuple(
            f"node {node}: device d01 is claimed by nodes {nodes[0]}, {nodes[1]}: a device's key"
            " must not be copied to a second device"
            for node in nodes
        )
        assert set(server.devices.counted) == set(federation.phones) - {"d01", "d08"}
        # The rival goes away, and d01 takes part again.
        federation.grid.absent = {"d08"}
        federation.answer()
        assert server.try_round()
        assert set(server.devices.counted) == set(federation.phones) - {"d08"}
        # A device stays at its node while it is connected.
        federation.grid.absent = set()
        federation.answer()
        assert server.try_round()
        assert set(server.devices.counted) == set(federation.phones) - {"d08"}


def test_a_device_that_is_known_is_not_greeted_again_after_a_restart_of_the_server(tmp_path):
    federation = SecureFederation(tmp_path)
    for _ in range(2):
        federation.answer()
        federation.grid.asked.clear()
        with federation.serving() as server:
            assert server.try_round()
    assert not any(isinstance(request, messages.Hello) for _, request in federation.grid.asked)


def renew(federation, path, *arguments, **keywords):
    """Write the next version of the roster to another file."""
    path.write_bytes(federation.fleet.roster_file.read_bytes())
    rosters.renew_roster(path, federation.folder / "signer", *arguments, **keywords)
    return path


def test_a_renewed_roster_reaches_the_devices_during_the_run(tmp_path):
    """The server's file is renewed without d07; the devices have the old one."""
    federation = SecureFederation(tmp_path)
    file = tmp_path / "server-roster.json"
    file.write_bytes(federation.fleet.roster_file.read_bytes())
    with federation.serving(**{"devices-roster": str(file)}) as server:
        federation.answer()
        assert server.try_round()
        renew(federation, file, remove=["d07"])
        federation.answer()
        assert server.try_round()
        assert len(server.devices.tally().uploads) == 7
        node = federation.grid.node("d07")
        assert server.strategy.history.participation[0].rejected == (
            f"node {node} (d07): is not in the roster, version 2",
        )
        assert {header.roster for header in federation.grid.headers.values()} == {1, 2}


def test_a_device_with_a_newer_roster_than_the_server_is_left_out(tmp_path):
    federation = SecureFederation(tmp_path)
    newer = renew(federation, tmp_path / "newer.json", remove=["d00"])
    federation.fleet.configure("d06", roster=f'"{newer}"')
    federation.phones["d06"].restart()
    federation.answer()
    with federation.serving() as server:
        assert server.try_round()
        node = federation.grid.node("d06")
        assert server.strategy.history.participation[0].rejected == (
            f"node {node} (d06): has version 2 of the roster, newer than 1 on the server: renew"
            " devices-roster",
        )
        assert len(server.devices.tally().uploads) == 7


def test_a_damaged_or_older_roster_stops_no_running_server(tmp_path):
    federation = SecureFederation(tmp_path)
    file = tmp_path / "server-roster.json"
    renew(federation, file, remove=["d07"])
    with federation.serving(**{"devices-roster": str(file)}) as server:
        federation.answer()
        assert server.try_round()
        content = file.read_bytes()
        file.write_bytes(federation.fleet.roster_file.read_bytes())
        assert not server.try_round()
        assert federation.lines[-1].endswith("has version 1: must be at least 2, as before")
        file.write_text("no roster")
        assert not server.try_round()
        assert "the roster file is not valid JSON" in federation.lines[-1]
        file.write_bytes(content)
        federation.answer()
        assert server.try_round()


@pytest.mark.parametrize("content", [None, b"no roster"])
def test_a_server_without_a_roster_does_not_start(tmp_path, content):
    if content is not None:
        (tmp_path / "roster.json").write_bytes(content)
    values = {
        "mode": "devices", "algorithm": "fldb_personal", "secure": True, "max-difference": 2.0,
        "devices-roster": str(tmp_path / "roster.json"),
    }  # fmt: skip
    with pytest.raises(SettingsError, match=r"devices-roster=.*roster\.json") as error:
        SecureDevices(from_flat(values, "a test"))
    assert "\n" not in str(error.value)


def test_the_last_estimate_reaches_all_devices_and_the_run_ends(tmp_path):
    federation = SecureFederation(tmp_path)
    federation.answer()
    with federation.serving() as server:
        server.serve(federation.grid)
        for phone in federation.phones.values():
            known = phone.store.synchronized()
            np.testing.assert_array_equal(known.theta, server.strategy.algorithm.theta_sync)
            assert (known.counted, known.duels) == (2, 16)
    summary = json.loads((tmp_path / "server" / "summary.json").read_text())
    assert (summary["rounds"], summary["devices"], summary["duels"]) == (1, 8, 16)
    assert summary["complete"] is True
    assert summary["node_uploaded_bytes"] > 8 * 8 * 32  # a seed for each member at least


def test_bytes_are_those_that_the_benchmark_measures(tmp_path):
    """Both trips of 12 devices. Names are shorter here, and both requests have the header."""
    federation, rehearsal = SecureFederation(tmp_path, devices=12), Rehearsal(12, D)
    with federation.serving() as server:
        federation.answer()
        assert server.try_round()  # the first round of FLDB-ONS has no Hessian
        before = server.strategy.history.counts()
        federation.answer()
        assert server.try_round()
        after = server.strategy.history.counts()
    counts = {name: after[name] - before[name] for name in after}
    _, header = federation.grid.headers.values()
    assert header.numbers == rehearsal.encoding.size
    up, to_member = rehearsal.messages()
    opening = len(messages.encode(messages.Opened(rehearsal.openings[rehearsal.member])))
    names = sum(len(name) - len("d00") for name in rehearsal.keys)
    assert counts["uploaded_bytes"] == pytest.approx(12 * (up - names + opening), rel=0.01)
    pieces = (to_member - len(rehearsal.header.to_bytes())) * 12 / len(rehearsal.present) - names
    expected = 12 * (2 * len(header.to_bytes()) + pieces)
    assert counts["downloaded_bytes"] == pytest.approx(expected, rel=0.05)
    assert counts["node_uploaded_bytes"] == counts["uploaded_bytes"]
    assert before["node_uploaded_bytes"] > before["uploaded_bytes"]  # introductions


def test_the_server_waits_until_enough_devices_for_a_sum_are_connected(tmp_path):
    federation = SecureFederation(tmp_path)
    federation.answer()
    federation.grid.absent = {"d00", "d01", "d02", "d03"}

    class Lines(list):
        def append(self, line):
            super().append(line)
            if "waiting for more" in line:
                federation.grid.absent = set()

    federation.lines = Lines()
    with federation.serving() as server:
        server.serve(federation.grid)
    assert federation.lines[0] == ("round 1: 4 of 5 devices are connected, waiting for more")
    assert any(line.startswith("round 1: 16 duels of 8") for line in federation.lines)


def test_an_estimate_that_does_not_reach_a_device_is_reported(tmp_path):
    federation = SecureFederation(tmp_path)
    federation.answer()
    with federation.serving() as server:
        assert server.try_round()
        federation.grid.fault = lambda name, _request: "raises" if name == "d03" else "none"
        play = server.strategy.algorithm.play(SimpleNamespace(first=1, last=1))
        with pytest.raises(FederationError, match=r"^d03: ConnectionRefusedError: the service"):
            server.strategy.exchange(Broadcast(play, None))


def test_results_have_the_devices_of_each_sum_and_no_counts_of_single_devices(tmp_path):
    federation = SecureFederation(tmp_path)
    federation.answer(*list(federation.phones)[:6])
    with federation.serving() as server:
        assert server.try_round()
        assert federation.lines[-1] == (
            "round 1: 12 duels of 6 devices; 8 of 8 devices replied, 12 duels so far"
        )
    with (tmp_path / "server" / "rounds.csv").open() as file:
        (row,) = csv.DictReader(file)
    names = "asked", "replied", "contributed", "duels", "total_duels", "exchanges"
    assert [int(row[name]) for name in names] == [8, 8, 6, 12, 12, 1]
    assert (row["predicted"], row["agreed"], row["agreement"]) == ("", "", "")
    uploads = (tmp_path / "server" / "uploads.csv").read_text().splitlines()
    assert uploads == ["round,device,start,end", *(f"1,d0{number},," for number in range(6))]
    model = json.loads((tmp_path / "server" / "model.json").read_text())
    assert (model["duels"], model["devices"]) == (12, 6)


NO_NUMBER = b'fldb-flower node 1\n\0\0\0\x25{"kind":NaN,"lengths":{},"values":{}}'
"""Canonical JSON has no NaN."""


def message(content, reply_to):
    return Message(RecordDict(content), reply_to=reply_to)


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (lambda to: message({}, to), "the reply has no entry 'secure'"),
        (lambda to: message({"config": ConfigRecord()}, to), "the reply has no entry 'secure'"),
        (
            lambda to: message({"config": ConfigRecord({"secure": "text"})}, to),
            "the entry 'secure' of the reply is not bytes",
        ),
        (
            lambda to: message({"config": ConfigRecord({"secure": b"\0\n"})}, to),
            "the message has another format: another version of fldb-flower sent it",
        ),
        (
            lambda to: message({"config": ConfigRecord({"secure": NO_NUMBER})}, to),
            "the message is not in canonical form",
        ),
        (
            lambda to: message({"config": ConfigRecord({"secure": bytes(2**21)})}, to),
            "2 MiB exceed max-message-mb=1",
        ),
        (
            lambda to: message(
                {"config": ConfigRecord({"secure": messages.encode(messages.Delivered())})}, to
            ),
            "replied Delivered to Collect",
        ),
        (
            lambda to: Message(Error(2, "Traceback\nValueError: no \x1b[31mred\n"), reply_to=to),
            r"ValueError: no \x1b[31mred",
        ),
    ],
    ids=range(8),
)  # fmt: skip
def test_a_malformed_reply_is_one_line_and_does_not_stop_the_round(tmp_path, reply, reason):
    federation = SecureFederation(tmp_path, **{"max-message-mb": 1.0})
    federation.answer()
    deliver = federation.grid.reply

    def malformed(phone, to, request):
        if phone.name == "d02" and isinstance(request, messages.Collect):
            return reply(to)
        return deliver(phone, to, request)

    federation.grid.reply = malformed
    with federation.serving() as server:
        assert server.try_round()
        assert server.strategy.history.participation[0].rejected == (f"d02: {reason}",)
        assert len(server.devices.tally().uploads) == 7


def test_an_exchange_of_another_state_is_given_up(tmp_path):
    """The checkpoint was removed: the stored exchange has the broadcast of a later round."""
    federation = SecureFederation(tmp_path)
    for _ in range(2):
        federation.answer()
        with federation.serving() as server:
            assert server.try_round()
    (tmp_path / "server" / "checkpoint.bin").unlink()
    federation.answer()
    with federation.serving() as server:
        assert server.round == 0
        assert server.try_round()
        assert federation.check_counted(server) == 48


def test_a_damaged_exchange_is_one_line_with_the_remedy(tmp_path):
    federation = SecureFederation(tmp_path)
    federation.answer()
    with federation.serving() as server:
        assert server.try_round()
    file = tmp_path / "server" / EXCHANGE
    file.write_bytes(file.read_bytes()[:-1])
    with federation.serving() as server, pytest.raises(CheckpointError) as error:
        server.try_round()
    assert str(error.value).startswith(f"{file}: the state of the exchange ")
    assert str(error.value).endswith("give the exchange up: the devices send their answers again")


def test_a_secure_sum_cannot_ask_again_about_the_same_answers(tmp_path):
    federation = SecureFederation(tmp_path)
    with federation.serving() as server, pytest.raises(RuntimeError, match="answer once"):
        server.strategy.exchange(Broadcast(None, np.zeros(D)))


def test_a_share_of_the_devices_is_asked_with_fraction_train(tmp_path):
    federation = SecureFederation(tmp_path, devices=10, **{"fraction-train": 0.7})
    federation.answer()
    with federation.serving() as server:
        assert server.try_round()
    (header,) = federation.grid.headers.values()
    assert len(header.asked) == 7


def test_the_first_sum_needs_enough_answers(tmp_path):
    federation = SecureFederation(tmp_path, **{"devices-first-duels": 20})
    federation.answer()
    with federation.serving() as server:
        assert not server.try_round()
        assert federation.lines[-1].endswith(
            "16 answers; the first round needs 20 (devices-first-duels)"
        )
        federation.answer(count=1)
        assert server.try_round()
        assert federation.check_counted(server) == 24


def test_equal_reasons_of_devices_are_one_line_of_the_log(tmp_path, caplog):
    """Four of 26 owners require 3 answers, one requires 4; results name each device."""
    federation = SecureFederation(tmp_path, devices=26)  # of which five may be missing
    for number, least in enumerate((3, 3, 4, 3, 3)):
        federation.fleet.configure(f"d{number:02}", min_duels=least)
        federation.phones[f"d{number:02}"].restart()
    federation.answer()
    with caplog.at_level(logging.WARNING, "flwr"), federation.serving() as server:
        assert server.try_round()
    reason = "the exchange has min_duels=1, and the device requires"
    assert caplog.messages == [
        f"not counted: 4 devices (d00, d01, d03, ...): {reason} 3",
        f"not counted: d02: {reason} 4",
    ]
    assert server.strategy.history.participation[0].rejected == tuple(
        f"d{number:02}: {reason} {least}" for number, least in enumerate((3, 3, 4, 3, 3))
    )


def test_equal_reasons_of_nodes_are_one_line_of_the_log(tmp_path, caplog):
    """Services that do not run; later, the roster of the server has no such devices."""
    federation, down = SecureFederation(tmp_path, devices=12), {"d03", "d04"}
    federation.grid.fault = lambda name, _request: "raises" if name in down else "none"
    federation.answer()
    first, second = (federation.grid.node(name) for name in ("d03", "d04"))
    with caplog.at_level(logging.WARNING, "flwr"), federation.serving() as server:
        assert server.try_round()
        assert caplog.messages == [
            f"not asked: 2 nodes (node {first}, node {second}): ConnectionRefusedError: the service"
            " is down"
        ]
        caplog.clear()
        down.clear()
        renew(federation, federation.fleet.roster_file, remove=["d03", "d04"])
        federation.answer()
        assert server.try_round()
        assert caplog.messages == [
            f"not asked: 2 nodes (node {first} (d03), node {second} (d04)): is not in the roster,"
            " version 2"
        ]


def test_the_log_names_what_was_not_counted(tmp_path, caplog):
    federation = SecureFederation(tmp_path)
    federation.answer()
    federation.grid.fault = lambda name, _request: "raises" if name == "d01" else "none"
    with caplog.at_level(logging.WARNING, "flwr"), federation.serving() as server:
        assert server.try_round()
    node = federation.grid.node("d01")
    assert (
        caplog.messages[0] == f"not asked: node {node}: ConnectionRefusedError: the service is down"
    )


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        # As Flower's ClientApp replies: the type and the text of the exception.
        (f"{FederationError}:<'the service 'x' is down'>", "the service 'x' is down"),
        (f"{KeyError}:<''config''>", "KeyError: 'config'"),
        (f"Traceback\n  line 3\n{ConnectionRefusedError}:<'[Errno 111]'>\n",
         "ConnectionRefusedError: [Errno 111]"),
        ("out of memory", "out of memory"),
        ("", "failed without a reason"),
    ],
)  # fmt: skip
def test_the_reason_of_a_failed_node_is_one_line_without_wrapping(reason, words):
    request = Message(RecordDict(), dst_node_id=3, message_type="train")
    assert transport.failure(Message(Error(0, reason), reply_to=request)) == words


class NetworkGrid(SecureGrid):
    """A grid like Flower's: a message that was pulled already gets an error, and some are slow."""

    poll_seconds = 0.001

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.slow: dict[str, int] = {}  # message -> pulls without its reply
        self.pushed: dict[str, Message] = {}
        self.pulled: set[str] = set()
        self.slow_names: set[str] = set()

    def push_messages(self, messages):
        messages = list(messages)
        ids = super().push_messages(messages)
        for key, each in zip(ids, messages, strict=True):
            self.pushed[key] = each
            if self.phones[each.metadata.dst_node_id].name in self.slow_names:
                self.slow[key] = 3
        return ids

    def pull_messages(self, message_ids):
        replies = []
        for key in sorted(message_ids):
            if key in self.pulled:
                error = Error(1, "the message was pulled before")
                replies.append(Message(error, reply_to=self.pushed[key]))
            elif self.slow.get(key, 0):
                self.slow[key] -= 1
            else:
                replies += super().pull_messages([key])
                self.pulled.add(key)
        return replies


def test_a_device_that_is_slower_than_the_timeout_takes_part(tmp_path, monkeypatch):
    """Each reply of d03 arrives after the timeout of its request, and before that of the next."""
    monkeypatch.setattr(transport, "NETWORK_POLL_SECONDS", 0.001)
    federation = SecureFederation(tmp_path, **{"node-wait": 300.0, "reply-timeout": 0.001})
    federation.grid = NetworkGrid(federation.phones, federation.config)
    federation.answer()
    with federation.serving() as server:
        assert server.try_round() or server.try_round()
        federation.grid.slow_names = {"d03"}
        federation.answer()
        assert server.try_round()
        assert server.strategy.history.participation[0].rejected == ()
        assert federation.check_counted(server) == 32


def test_a_message_with_a_reply_is_not_pulled_again(tmp_path, monkeypatch):
    """d03 fails once, and then needs a while: Flower's error must not end the wait."""
    monkeypatch.setattr(transport, "NETWORK_POLL_SECONDS", 0.001)
    federation = SecureFederation(tmp_path, **{"node-wait": 300.0, "reply-timeout": 300.0})
    grid = federation.grid = NetworkGrid(federation.phones, federation.config)
    federation.answer()
    failures = iter([True])

    def fault(name, request):
        if name == "d03" and isinstance(request, messages.Collect) and next(failures, False):
            grid.slow_names = {"d03"}
            return "raises"
        return "none"

    grid.fault = fault
    with federation.serving() as server:
        assert server.try_round()
        assert federation.check_counted(server) == 16
    asked = [request for name, request in grid.asked if name == "d03"]
    assert (
        sum(isinstance(request, messages.Collect) for request in asked) == 1
    )  # beside the failure
