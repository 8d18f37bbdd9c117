"""Device federations over Flower messages in one process: every answer is counted once."""

import contextlib
import csv
import itertools
import json
import math
import random
import sqlite3
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import examples
from flwr.app import Error, Message
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_ons import first_step, ons

from clients.device import DeviceAgent, Limits
from clients.preference_agent import PreferenceAgent
from clients.store import DuelStore, Synchronization, UndoError, UnknownDuelError
from fldb_flower.bandit import theory
from fldb_flower.bandit.estimate import VARIANCES, CommonPrior, Estimate
from fldb_flower.bandit.selection import ucb, whiten
from fldb_flower.catalogue import SELECTIONS
from fldb_flower.errors import CheckpointError, DataError, OutputError, SettingsError
from fldb_flower.federation.exchange import Broadcast, PlayRequest
from fldb_flower.federation.history import Counts
from fldb_flower.linalg.linear import form_of
from fldb_flower.settings import from_flat, to_flat
from fldb_flower.wire import encode_broadcast, unpack_vector
from simulations.engines.inprocess import InProcessGrid
from strategies import channel, device_rounds
from strategies.device_rounds import DeviceDirectory, DeviceServer
from strategies.devices import DeviceChannel, short_name

D = 3
BASE = {
    "mode": "devices",
    "algorithm": "fldb_ons",
    "dimension": D,
    "devices-round-seconds": 0.0,
    "devices-rounds": 1,
    "node-wait": 0.2,
    "reply-timeout": 1.0,
}


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(device_rounds, "RETRY_SECONDS", 0.0)


class Devicegrid(InProcessGrid):
    """An in-process grid of devices; `fault(node, trip)` returns the fault of a message."""

    def __init__(self, stores, config, *, min_duels=1):
        super().__init__(len(stores), config)
        for node, path in zip(self.contexts, stores, strict=True):
            self.contexts[node].node_config.clear()
            self.contexts[node].node_config["store-path"] = str(path)
            self.contexts[node].node_config["min-duels-per-upload"] = min_duels
            self.contexts[node].node_config["max-questions"] = 10_000  # enough for all faults
        self.fault = lambda _node: "none"
        self.sent = 0

    def deliver(self, message):
        self.sent += 1
        node = message.metadata.dst_node_id
        fault = self.fault(node)
        if fault == "never arrives":
            return self.no_reply(message)
        if fault == "raises":
            return Message(Error(2, "the battery died"), reply_to=message)
        try:
            reply = super().deliver(message)
        except DataError as error:
            return Message(Error(2, str(error)), reply_to=message)  # as Flower does
        if fault == "answered twice":
            reply = super().deliver(message)
        return self.no_reply(message) if fault == "reply lost" else reply

    @staticmethod
    def no_reply(message):
        return Message(Error(5, "no reply"), reply_to=message)


class Federation:
    """Devices with stores in a folder, and a server that can be killed and restarted."""

    def __init__(self, folder, devices=3, min_duels=1, **changes):
        self.folder = folder
        self.config = {**to_flat(from_flat(BASE, "a test")), **changes}
        self.stores = [folder / f"device{number}.db" for number in range(devices)]
        self.agents = [PreferenceAgent(path) for path in self.stores]
        self.last = dict.fromkeys(range(devices), "none")  # the duel that was answered last
        self.renew_grid(min_duels=min_duels)
        self.rng = np.random.default_rng(7)
        self.theta = np.array([1.0, -2.0, 0.5])
        self.lines = []

    def renew_grid(self, min_duels=1):
        self.grid = Devicegrid(self.stores, self.config, min_duels=min_duels)

    def answer(self, device, count):
        """Propose and answer `count` duels on one device."""
        for _ in range(count):
            arms = self.rng.standard_normal((4, D))
            duel = self.agents[device].propose(arms)
            gap = self.theta @ (arms[duel.first] - arms[duel.second])
            first = self.rng.random() < 1 / (1 + math.exp(-gap))
            self.agents[device].record(duel.id, "first" if first else "second")
            self.last[device] = duel.id

    def undo(self, device, preferred=None):
        """Undo the last answer of a device, unless it is part of an upload; perhaps replace it."""
        with contextlib.suppress(UndoError, UnknownDuelError):
            self.last[device] = self.agents[device].undo(self.last[device])
            if preferred is not None:
                self.agents[device].record(self.last[device], preferred)
            return True
        return False

    def server(self, **changes):
        settings = from_flat({**self.config, **changes}, "a test")
        directory = DeviceDirectory(self.folder / "server", settings)
        server = DeviceServer(DeviceChannel(settings), Counts(), directory, self.lines.append)
        server.devices.connect(self.grid)
        return server

    def serve(self, **changes):
        server = self.server(**changes)
        server.serve(self.grid)
        server.directory.close()
        return server

    def serve_until(self, death):
        """Serve one round with a limited number of tries; the process may die around the commit."""
        server = self.server()
        commit, tries = server.directory.commit, iter(range(6))

        def dying(*arguments):
            if death != "before commit":
                commit(*arguments)
            if death != "none":
                raise KeyboardInterrupt

        def bounded(try_round=server.try_round):
            if next(tries, None) is None:
                raise KeyboardInterrupt
            return try_round()

        server.directory.commit, server.try_round = dying, bounded
        with contextlib.suppress(KeyboardInterrupt):
            server.serve(self.grid)
        server.directory.close()

    def rows(self, name="rounds"):
        with (self.folder / "server" / f"{name}.csv").open() as file:
            return list(csv.DictReader(file))

    def uploads(self):
        return [
            (int(row["round"]), row["device"], int(row["start"]), int(row["end"]))
            for row in self.rows("uploads")
        ]

    def spans(self):
        """Return the round of each upload, and which answers it covers, sorted."""
        return sorted((number, start, end) for number, _, start, end in self.uploads())

    def answer_each(self, *counts):
        for device, count in enumerate(counts):
            self.answer(device, count)

    def replace_store(self, device, backup=None):
        """Lose the store of a device, or restore it from a backup."""
        self.agents[device].close()
        for file in self.folder.glob(f"device{device}.db*"):
            file.unlink()
        if backup is not None:
            backup.rename(self.stores[device])
        self.agents[device] = PreferenceAgent(self.stores[device])

    def answers(self, ends=None):
        """Return the answers on each device, differences and preferences, up to a number."""
        found = {}
        for path in self.stores:
            with DuelStore(path) as store:
                device = short_name(store.device_id)
                duels = store.evidence(0, store.last if ends is None else ends.get(device, 0))
                x = duels.differences.reshape(-1, D)
                found[device] = np.column_stack([x, duels.preferences])
        return found

    def central(self):
        """Compute FLDB-ONS and W from the stores, with the formulas written out again."""
        answers = self.answers({device: end for _, device, _, end in self.uploads()})
        rounds, covered = {}, dict.fromkeys(answers, 0)
        for number, device, start, end in self.uploads():
            assert start == covered[device]  # contiguous: every answer once
            covered[device] = end
            rounds.setdefault(number, []).append(answers[device][start:end])
        tables = [np.concatenate(rounds[number]) for number in sorted(rounds)]
        theta = ons([(table[:, :D], table[:, D]) for table in tables])
        x = np.concatenate(tables)[:, :D]
        return theta, x.T @ x + np.eye(D) / 500, covered

    def check_central(self, server):
        theta, information, covered = self.central()
        np.testing.assert_allclose(server.strategy.algorithm.theta_sync, theta, rtol=1e-9)
        np.testing.assert_allclose(server.strategy.algorithm.information, information, rtol=1e-9)
        counted = {short_name(key): n for key, n in server.devices.counted.items() if n}
        assert counted == {key: n for key, n in covered.items() if n}
        assert server.devices.duels == sum(covered.values())


def test_rounds_equal_a_central_computation(tmp_path):
    federation = Federation(tmp_path)
    federation.answer_each(10, 10, 10)
    server = federation.serve()
    for _ in range(5):
        for device in range(3):
            federation.answer(device, int(federation.rng.integers(0, 6)))
        federation.answer(0, 1)
        server = federation.serve()  # a new server each time: it resumes from the checkpoint
        federation.check_central(server)
    assert server.round == 6
    # Every device has the last estimate and the number of its own answers in it.
    for agent, path in zip(federation.agents, federation.stores, strict=True):
        with DuelStore(path) as store:
            known = store.synchronized()
            np.testing.assert_array_equal(known.theta, server.strategy.algorithm.theta_sync)
            # A, and the settings that identify it and its width.
            a = form_of(np.eye(D)).unpack(known.information)
            np.testing.assert_array_equal(a, server.strategy.algorithm.state()["curvature"])
            names = ("algorithm", "beta_scale", "ons_width")
            assert [known.parameters[name] for name in names] == ["fldb_ons", "auto", 0.75]
            assert known.counted == store.last == server.devices.counted[store.device_id]
        assert agent.status()["duels"] == server.devices.duels
    model = json.loads((tmp_path / "server" / "model.json").read_text())
    np.testing.assert_array_equal(model["theta_sync"], server.strategy.algorithm.theta_sync)
    assert model["algorithm"] == "fldb_ons"
    summary = json.loads((tmp_path / "server" / "summary.json").read_text())
    assert summary["complete"] is True
    assert summary["rounds"] == 6


def test_a_diagonal_form_reduces_the_upload(tmp_path):
    """W is compared with the duels in the stores; devices select with the A they received."""
    federation = Federation(tmp_path, **{"matrix-form": "diagonal"})
    for _ in range(4):
        federation.answer_each(4, 4, 4)
        server = federation.serve()
    x = np.concatenate(list(federation.answers().values()))[:, :D]
    exact = x.T @ x + np.eye(D) / 500
    got = server.strategy.algorithm.information
    np.testing.assert_allclose(got, np.diag(exact), rtol=1e-9)
    got = server.strategy.algorithm.estimate.information
    for agent, path in zip(federation.agents, federation.stores, strict=True):
        with DuelStore(path) as store:
            kept = form_of(got).unpack(store.synchronized().information)
        np.testing.assert_allclose(kept, got, rtol=1e-5, atol=1e-5)
        arms = federation.rng.standard_normal((6, D))
        duel = agent.propose(arms)
        settings = from_flat({**federation.config}, "a test")
        width = theory.width(server.devices.duels + 1, 1, settings)
        pair = ucb(arms[None], server.strategy.algorithm.theta_sync, whiten(got), width)
        assert duel.first == pair[0][0]
        assert duel.second == pair[1][0] or pair[0][0] == pair[1][0]  # if equal, it is replaced


def test_results_contain_participants_and_predictions(tmp_path):
    federation = Federation(tmp_path)
    federation.answer(0, 8)
    federation.serve()
    # Second round: only device 1 has new answers, all of them against the estimate.
    duels = [federation.agents[1].propose(federation.rng.standard_normal((3, D))) for _ in range(5)]
    for duel in duels[:3]:
        federation.agents[1].record(duel.id, "second" if duel.predicted > 0.5 else "first")
    federation.agents[1].record(duels[3].id, "first" if duels[3].predicted > 0.5 else "second")
    federation.agents[1].record(duels[4].id, "tie")  # a tie does not count as a prediction
    federation.serve()
    first, second = federation.rows()
    assert not [line for line in federation.lines if "as predicted" in line]  # 11 say little
    assert (first["asked"], first["replied"], first["contributed"]) == ("3", "3", "1")
    # Before the first broadcast, the first answer has no prediction; the others have the device's.
    assert (first["duels"], first["predicted"]) == ("8", "7")
    assert (second["asked"], second["replied"], second["contributed"]) == ("3", "3", "1")
    assert (second["duels"], second["total_duels"]) == ("5", "13")
    assert (second["predicted"], second["agreed"], second["agreement"]) == ("4", "1", "0.2500")


def test_the_log_states_and_explains_the_share_of_correct_predictions(tmp_path):
    federation = Federation(tmp_path, devices=1, **{"devices-rounds": 2})
    note = "devices show pairs that are close, so about 50% as predicted is normal"
    server = federation.server()
    for count in (30, 31):
        federation.answer(0, count)
        assert server.try_round()
    (row,) = [row for row in federation.rows() if row["predicted"] == "31"]
    assert federation.lines.count(note) == 1
    share = f"{float(row['agreement']):.0%} as predicted; 1 of 1 devices replied, 61 duels so far"
    assert federation.lines[-1].endswith(share)


FAULTS = ("none", "none", "none", "never arrives", "raises", "reply lost", "answered twice")
DEATHS = ("none", "before commit", "after commit")


def undoing(federation, faults):
    """Return the fault of a message; meanwhile, a person may undo the last answer."""
    if faults.random() < 0.3:
        federation.undo(faults.randrange(3), faults.choice([None, "first", "tie"]))
    return faults.choice(FAULTS)


@pytest.mark.slow
@examples(60, parts=6)
@given(
    seed=st.integers(0, 2**32),  # seeds the faults; their number depends on timing
    servers=st.lists(
        st.tuples(st.sampled_from(DEATHS), st.lists(st.integers(0, 3), min_size=3, max_size=3)),
        min_size=1,
        max_size=4,
    ),
)
def test_any_schedule_of_faults_counts_every_answer_once(seed, servers):
    """Lost broadcasts, lost and repeated replies, failing clients, servers killed at any point.

    Meanwhile, people undo their last answers, and replace some of them.
    """
    with tempfile.TemporaryDirectory() as folder:
        federation = Federation(Path(folder), quorum=0.3, **{"node-wait": 0.001})
        faults = random.Random(seed)
        for death, answers in servers:
            for device, count in enumerate(answers):
                federation.answer(device, count)
            federation.answer(0, 1)
            federation.grid.fault = lambda _node: undoing(federation, faults)
            federation.serve_until(death)
        federation.grid.fault = lambda _node: "none"
        federation.answer(0, 6)
        server = federation.serve(quorum=1.0)
        federation.check_central(server)
        # Finally, no answer is missing.
        for path in federation.stores:
            with DuelStore(path) as store:
                assert server.devices.counted.get(store.device_id, 0) == store.last


@pytest.mark.parametrize("quorum", [0.3, 1.0])
@pytest.mark.parametrize("trip", [0, 2])
def test_answers_erased_during_an_exchange_are_not_learned_from(tmp_path, trip, quorum):
    """Answers are erased in the middle of round 1, and the round starts again."""
    federation = Federation(tmp_path, quorum=quorum)
    federation.answer_each(8, 8, 8)
    trips = itertools.count()
    results = []

    def fault(_node):
        if next(trips) == 3 * trip + 4:  # three nodes a trip, and one introduction
            results.append(federation.agents[0].forget())
        return "none"

    federation.grid.fault = fault
    server = federation.serve()
    assert (results[0].forgotten, results[0].counted) == (8, 0)
    assert results[0].may_be_counted in {0, 8}
    federation.answer(0, 4)
    server = federation.serve()
    federation.check_central(server)  # in the stores the erased answers are zeros
    with DuelStore(federation.stores[0]) as store:
        assert server.devices.counted[store.device_id] == store.last


def test_ogd_on_devices_equals_its_formula(tmp_path):
    federation = Federation(tmp_path, algorithm="fldb_ogd", alpha=10.0)
    federation.answer(0, 12)
    first = federation.serve().strategy.algorithm.theta_sync.copy()
    federation.answer(1, 6)
    federation.answer(2, 3)
    server = federation.serve()
    gradient = np.zeros(D)
    for path in federation.stores[1:]:
        with DuelStore(path) as store:
            duels = store.evidence(0, store.last)
            p = 1 / (1 + np.exp(-duels.differences @ first))
            gradient += (p - duels.preferences) @ duels.differences
    # Round 2: eta = 1 / (alpha 2); the mean of theta_hat^(1), theta_hat^(1) and the new one.
    hat = first - gradient / 20
    np.testing.assert_allclose(server.strategy.algorithm.theta_hat, hat, rtol=1e-9)
    np.testing.assert_allclose(
        server.strategy.algorithm.theta_sync, first + (hat - first) / 3, rtol=1e-9
    )


def test_the_first_round_waits_for_enough_answers(tmp_path):
    federation = Federation(tmp_path)
    federation.answer(0, 5)  # 2 d = 6 are needed
    server = federation.server()
    server.try_round()
    assert server.round == 0
    assert "5 answers; the first round needs 6" in federation.lines[-1]
    federation.answer(1, 1)
    server.try_round()
    assert server.round == 1
    federation.check_central(server)


def test_without_new_answers_only_the_estimate_is_sent(tmp_path):
    federation = Federation(tmp_path)
    federation.answer(0, 9)
    server = federation.serve()
    late = PreferenceAgent(tmp_path / "late.db")
    federation.stores.append(tmp_path / "late.db")
    federation.renew_grid()
    server = federation.server()
    server.try_round()
    assert server.round == 1
    waits = "round 2 waits: no new answers from 4 devices"
    assert federation.lines[-1] == waits
    server.try_round()
    assert federation.lines.count(waits) == 1
    assert late.status()["round"] == 2
    np.testing.assert_array_equal(late.status()["theta"], server.strategy.algorithm.theta_sync)


def test_fewer_answers_than_an_upload_must_cover_are_held_back(tmp_path):
    federation = Federation(tmp_path, min_duels=5)
    federation.answer_each(6, 4)
    federation.serve()
    assert federation.spans() == [(1, 0, 6)]
    federation.answer_each(4, 1)
    server = federation.serve()
    assert federation.spans() == [(1, 0, 6), (2, 0, 5)]
    federation.check_central(server)


@pytest.mark.parametrize(
    ("options", "least", "numbers"),
    [
        ({}, 3 * D, 15),  # a gradient and two symmetric matrices
        ({"matrix-form": "diagonal"}, 3 * D, 9),
        # M, m, 55 or 11 losses, two numbers, and the change of g g^T
        ({"algorithm": "fldb_personal"}, 25, 72),
        ({"algorithm": "fldb_personal", "personal-structure": "isotropic"}, 3 * D, 22),
    ],
)
def test_by_default_duels_have_more_coordinates_than_an_upload_has_numbers(
    tmp_path, options, least, numbers
):
    """At least three duels for each feature, and otherwise as few as possible."""
    federation, sizes = Federation(tmp_path, devices=2, **options), set()
    for context in federation.grid.contexts.values():
        del context.node_config["min-duels-per-upload"]
    deliver = federation.grid.deliver

    def recording(message):
        reply = deliver(message)
        if reply.has_content():
            sizes.add(unpack_vector(reply.content["arrays"]).size)
        return reply

    federation.grid.deliver = recording
    federation.answer_each(least, least - 1)
    federation.serve()
    device = short_name(federation.agents[0].store.device_id)
    assert federation.uploads() == [(1, device, 0, least)]
    assert max(sizes) == numbers < least * D
    assert least == 3 * D or (least - 1) * D <= numbers


@pytest.mark.parametrize(("changes", "counts"), [({}, True), ({"quorum": 1.0}, False)])
def test_by_default_a_round_counts_if_half_of_the_devices_reply(tmp_path, changes, counts):
    federation = Federation(tmp_path, devices=4, **{"node-wait": 0.001}, **changes)
    federation.answer_each(6, 6, 6, 6)
    federation.grid.fault = lambda node: "none" if node % 2 else "never arrives"
    server = federation.server()
    assert server.try_round() == counts
    assert server.devices.duels == (12 if counts else 0)
    # One of four is too few.
    federation.answer_each(6, 6, 6, 6)
    federation.grid.fault = lambda node: "none" if node % 4 == 1 else "never arrives"
    assert not server.try_round()


def test_a_large_backlog_is_uploaded_in_several_rounds(tmp_path):
    federation = Federation(tmp_path, devices=2, **{"devices-max-duels": 8})
    federation.answer_each(20, 3)
    for _ in range(3):
        server = federation.serve()
    assert federation.spans() == [(1, 0, 3), (1, 0, 8), (2, 8, 16), (3, 16, 20)]
    federation.check_central(server)


def test_an_upload_that_exceeds_the_limit_is_not_counted(tmp_path):
    federation = Federation(tmp_path, devices=2)
    federation.answer_each(6, 6)
    federation.config = {**federation.config, "devices-max-duels": 5}  # devices allow 10,000
    federation.serve_until("none")
    assert federation.uploads() == []
    assert any("6 duels, more than 5 in a round" in line for line in federation.lines)


CATALOGUE = np.random.default_rng(1).normal(size=(5, D))  # 10 pairs


def estimate_of(theta):
    """Return a broadcast of FLDB-ONS with W = 100 I."""
    information = 100 * np.eye(D)[np.triu_indices(D)]
    return Synchronization(9.0, 2, 0, 50, np.array(theta), information, {"algorithm": "fldb_ons"})


def answer_catalogue(agent, count, arms=CATALOGUE):
    """Answer duels as a person of theta = (1, -2, 0.5); return the pairs."""
    pairs = []
    for _ in range(count):
        duel = agent.propose(arms)
        gap = np.array([1.0, -2.0, 0.5]) @ (arms[duel.first] - arms[duel.second])
        agent.record(duel.id, "first" if gap > 0 else "second")
        pairs.append(frozenset((duel.first, duel.second)))
    return pairs


@pytest.mark.parametrize(
    ("purpose", "algorithm", "selection"),
    [
        *(("suggest", "fldb_ons", selection) for selection in SELECTIONS),
        *(("suggest", algorithm, "ucb") for algorithm in ("fldb_ogd", "fldb_personal")),
        *(("rank", algorithm, "ucb") for algorithm in ("fldb_ons", "fldb_personal")),
    ],
)
def test_a_person_who_continues_to_answer_takes_part_again(tmp_path, purpose, algorithm, selection):
    """Each upload needs 6 distinct pairs of a catalogue of 10: 6 answers are enough each time."""
    federation = Federation(
        tmp_path, devices=1, min_duels=6, algorithm=algorithm, selection=selection
    )
    with PreferenceAgent(federation.stores[0], purpose=purpose) as agent:
        answer_catalogue(federation.agents[0], 60)  # before the first request, any pairs
        answer_catalogue(agent, 6, np.random.default_rng(2).normal(size=(40, D)))
        federation.serve()
        for number in (2, 3):
            pairs = answer_catalogue(agent, 6)
            assert len(set(pairs)) == 6
            assert agent.status()["needed"] == 0
            server = federation.serve()
            assert server.round == number
        assert len(set(answer_catalogue(agent, 10))) == 10
        answer_catalogue(agent, 5)  # all pairs were asked
    assert federation.spans()[1:] == [(2, 66, 72), (3, 72, 78)]


def test_pairs_that_are_open_or_skipped_count_as_asked(tmp_path):
    with PreferenceAgent(tmp_path / "duels.db") as agent:
        agent.store.synchronize(estimate_of([1.0, -2.0, 0.5]))
        agent.store.cut(0, 6)
        duels = [agent.propose(CATALOGUE) for _ in range(4)]
        agent.skip(duels[0].id)
        duels += [agent.propose(CATALOGUE) for _ in range(6)]
        assert len({frozenset((duel.first, duel.second)) for duel in duels}) == 10


def test_equal_arms_are_no_pair(tmp_path):
    """Four arms, of which two are equal: three pairs, which are asked before one is repeated."""
    arms = np.array([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.5, 1.0, 0.0]])
    with PreferenceAgent(tmp_path / "duels.db") as agent:
        agent.store.synchronize(estimate_of([1.0, 0.0, 0.0]))
        agent.store.cut(0, 9)
        answer_catalogue(agent, 3, arms)
        assert agent.status()["needed"] == 9 - 3
        begin = time.process_time()
        duel = agent.propose(np.ones((3000, D)))
        assert duel.first != duel.second
        assert time.process_time() - begin < 2.0


def test_the_log_states_which_answers_are_held_back(tmp_path):
    federation = Federation(tmp_path, devices=3, min_duels=5)
    federation.answer(0, 9)
    federation.serve()
    arms = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    answer_catalogue(federation.agents[0], 41, arms)  # three pairs
    server = federation.server()
    assert not server.try_round()
    assert federation.lines[-1] == ("round 2 waits: 41 answers held back, 2 distinct pairs missing")
    answer_catalogue(federation.agents[2], 7, arms[:2])
    assert not server.try_round()
    held = "48 answers held back by 2 devices, 2 to 4 distinct pairs missing on each"
    assert federation.lines[-1] == f"round 2 waits: {held}"
    federation.answer(1, 5)
    assert server.try_round()
    assert "held back by 2 devices" in federation.lines[-1]
    server.directory.close()


def a_device(path, algorithm, arms, **changes):
    """Return an agent with three answers, and the Flower client of its store."""
    agent = PreferenceAgent(path)
    for _ in range(3):
        agent.record(agent.propose(arms).id, "first")
    settings = from_flat({**BASE, "algorithm": algorithm, **changes}, "a test")
    return agent, DeviceAgent(agent.store, settings, Limits(1, 100))


def message_of(store, estimate, theta_hat=None, **changes):
    """Return the vector and the config of a broadcast that a device can use."""
    is_personal = isinstance(estimate, CommonPrior)
    broadcast = Broadcast(PlayRequest(4, 4, estimate), theta_hat, shares=is_personal)
    vector, header = encode_broadcast(broadcast)
    config = {"header": list(header), "counted": 0, "upto": -1, "duels": 50, **changes}
    config.setdefault("device", store.device_id)
    return vector, {name: value for name, value in config.items() if value is not MISSING}


MISSING = "no value"
COMMON = Estimate(np.array([1.0, -2.0, 0.5]), 20.0 * np.eye(D))
PRIOR = CommonPrior(20.0 * np.eye(D), np.array([20.0, -40.0, 10.0]), 0.1, 1.0)
UNUSABLE = {
    "theta": (replace(COMMON, theta_sync=np.array([1e200, 0, 0])), {}),
    "negative theta": (replace(COMMON, theta_sync=np.array([0, -1e200, 0])), {}),
    "singular W": (replace(COMMON, information=np.zeros((D, D))), {}),
    "indefinite W": (replace(COMMON, information=np.diag([1.0, 1.0, -1.0])), {}),
    "small W": (replace(COMMON, information=1e-310 * np.eye(D)), {}),
    "large W": (replace(COMMON, information=1e300 * np.eye(D)), {}),
    "small v": (PRIOR._replace(variance=1e-320), {}),
    "large v": (PRIOR._replace(variance=1e300), {}),
    "small scale": (PRIOR._replace(scale=1e-320), {}),
    "large scale": (PRIOR._replace(scale=1e300), {}),
    "large c": (PRIOR._replace(shift=np.full(D, 1e200)), {}),
    "large sum": (PRIOR._replace(precision=1e200 * np.eye(D)), {}),
    **{
        f"{name} = {value}": (COMMON, {name: value})
        for name, values in {
            "duels": ("x", MISSING, -1, 2**60),
            "counted": (1.0, True, MISSING, 2, 9, 2**60),
            "upto": ([3], MISSING),
            "device": (5, MISSING),
            "features": (5, "x", '{"scales": [1, 1]}', '{"names": null, "scales": [1, 1, 0]}'),
            "header": (
                MISSING,
                [4, 4, 1],
                [4, "x", *[0] * 5],
                [4, 4, 7, *[0] * 4],
                [4, 4, 2, *[0] * 4],
            ),
        }.items()
        for value in values
    },
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_an_unusable_broadcast_changes_nothing_on_a_device(tmp_path, name):
    """The refusal is the same whatever the person's arms and answers are."""
    (estimate, changes), messages = UNUSABLE[name], []
    former = PRIOR if isinstance(estimate, CommonPrior) else COMMON
    algorithm = "fldb_personal" if former is PRIOR else "fldb_ons"
    for number, arms in enumerate((CATALOGUE, 1e3 * CATALOGUE[:3])):
        agent, device = a_device(tmp_path / f"{number}.db", algorithm, arms)
        vector, config = message_of(agent.store, former)
        device.fit([vector], config)
        uploads, before = agent.store.sent, agent.status()
        ranking, weights = agent.rank(CATALOGUE), agent.explain()
        known = {"counted": uploads, **changes}
        vector, config = message_of(agent.store, estimate, **known)
        with pytest.raises(DataError) as error:
            device.fit([vector], config)
        messages.append(str(error.value).replace(str(agent.store.path), "the store"))
        assert agent.status() == before
        assert (agent.rank(CATALOGUE), agent.explain()) == (ranking, weights)
        assert agent.record(agent.propose(arms).id, "tie") == 4
        agent.close()
    assert messages[0] == messages[1]
    assert len(messages[0].splitlines()) == 1


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    powers=st.tuples(*[st.floats(-330, 300)] * 4),
    seed=st.integers(0, 99),
    unit=st.sampled_from([1e-4, 1.0, 1e4]),
    algorithm=st.sampled_from(["fldb_ons", "fldb_ogd", "fldb_personal"]),
)
def test_a_device_refuses_an_estimate_or_can_use_it(powers, seed, unit, algorithm):
    rng = np.random.default_rng(seed)
    theta, information, v, scale = (float(10.0**power) for power in powers)
    differences = rng.normal(size=(6, D))
    gram, direction = differences.T @ differences, rng.normal(size=D)
    estimate = Estimate(theta * direction, information * gram)
    if algorithm == "fldb_personal":
        estimate = CommonPrior(information * gram, theta * direction, v, unit**2 * (scale % 7.0))
    with tempfile.TemporaryDirectory() as path:
        agent, device = a_device(Path(path) / "duels.db", algorithm, unit * CATALOGUE)
        vector, config = message_of(agent.store, estimate, None)
        if np.isfinite(vector).all():
            with contextlib.suppress(DataError):
                device.fit([vector], config)
        for preferred in ("first", "second", "tie"):
            arms = unit * rng.normal(size=(4, D))
            agent.record(agent.propose(arms).id, preferred)
            assert sorted(agent.rank(arms)) == [0, 1, 2, 3]
            assert 0.0 <= agent.predict(*arms[:2]) <= 1.0
            weights = agent.explain()
            assert np.isfinite([*weights.weights, *weights.deviations]).all()
        agent.close()


def test_a_device_keeps_its_estimate_if_the_sums_do_not_contain_its_share(tmp_path, caplog):
    """A lying server: c without this device's share is far larger than c. No reply shows it."""
    agent, device = a_device(tmp_path / "duels.db", "fldb_personal", CATALOGUE)
    vector, config = message_of(agent.store, PRIOR)
    device.fit([vector], config)
    cut = agent.store.sent
    with sqlite3.connect(agent.store.path) as connection:  # as computed in other units
        width = D + D * (D + 1) // 2 + len(VARIANCES) + 1
        share = np.full(width, 1e300).tobytes()
        connection.execute("UPDATE shares SET share = ? WHERE cut = ?", (share, cut))
    connection.close()
    vector, config = message_of(agent.store, PRIOR._replace(shift=PRIOR.shift / 2), counted=cut)
    before = agent.status()
    device.fit([vector], config)
    assert agent.status() == before
    assert "keeps its former estimate" in caplog.text
    agent.propose(CATALOGUE)
    agent.close()


def test_numbers_of_answers_are_left_after_any_count_of_the_server(tmp_path):
    """A server that claims to have counted very many answers cannot exhaust their numbers."""
    with DuelStore(tmp_path / "duels.db") as store:
        for start in (2**52 + 1, 2**53):
            with pytest.raises(DataError, match=f"no device has {start} answers"):
                store.cut(start, 1)
        assert store.cut(2**52, 1) == 2**52
        for number in (1, 2):
            duel = store.propose(np.ones(2), np.nan, expire_after=60.0)
            assert store.record([(duel.id, 1.0)]) == [2**52 + number]
            assert store.cut(2**52 + number - 1, 1) == 2**52 + number


def test_a_device_is_recognised_when_its_node_changes(tmp_path):
    """The node's number is new: it has another key, or the SuperLink lost its database."""
    federation = Federation(tmp_path)
    federation.answer_each(4, 4, 4)
    federation.serve()
    federation.answer_each(2, 2, 2)
    federation.stores.reverse()
    federation.renew_grid()
    server = federation.serve()
    federation.check_central(server)
    assert server.devices.duels == 18


def test_a_device_whose_store_was_lost_is_a_new_device(tmp_path):
    federation = Federation(tmp_path)
    federation.answer_each(4, 4, 4)
    federation.serve()
    federation.replace_store(0)
    federation.answer(0, 3)
    server = federation.serve()
    assert (server.devices.duels, len(server.devices.counted)) == (15, 4)


def test_answers_of_a_restored_backup_are_not_counted_twice(tmp_path):
    federation = Federation(tmp_path, devices=1)
    federation.answer(0, 7)
    federation.agents[0].store.backup(tmp_path / "backup.db")
    federation.answer(0, 3)
    federation.serve()  # 10 answers counted
    federation.replace_store(0, tmp_path / "backup.db")
    federation.answer(0, 2)  # numbers 8 and 9 of the backup; the server has counted 10
    server = federation.server()
    assert not server.try_round()
    federation.answer(0, 4)  # numbers 11 to 14
    assert server.try_round()
    assert federation.spans() == [(1, 0, 10), (2, 10, 14)]
    assert (server.round, server.devices.duels) == (2, 14)


@pytest.mark.parametrize("left", ["nothing", "rows of an older backup", "all rows"])
def test_tables_of_a_server_that_was_restored_have_a_header_and_only_rows(tmp_path, left):
    """From the checkpoint alone, with older tables, or with all of them."""
    federation = Federation(tmp_path, devices=1)
    tables = [tmp_path / "server" / name for name in ("rounds.csv", "uploads.csv")]
    older = []
    for _ in range(2):
        federation.answer(0, 6)
        federation.serve()
        older.append([path.read_bytes() for path in tables])
    for path, *texts in zip(tables, *older, strict=True):
        path.unlink()
        if left != "nothing":
            path.write_bytes(texts[left == "all rows"])
    federation.answer(0, 6)
    server = federation.serve()
    assert server.devices.duels == 18
    expected = {"nothing": [3], "all rows": [1, 2, 3]}.get(left, [1, 3])
    for path in tables:
        with path.open() as file:
            assert [int(row["round"]) for row in csv.DictReader(file)] == expected
        assert b"\0" not in path.read_bytes()


def test_a_copied_store_is_refused_and_the_original_is_still_counted(tmp_path):
    federation = Federation(tmp_path, devices=1)
    federation.answer(0, 8)
    federation.serve()
    federation.agents[0].store.backup(tmp_path / "copy.db")
    federation.answer(0, 3)
    federation.stores.insert(1, tmp_path / "copy.db")
    federation.renew_grid()
    server = federation.serve(quorum=0.5)
    assert server.devices.duels == 11
    reason = "claimed by nodes 1001, 1002: a store must not be copied to a second device"
    assert reason in federation.rows()[-1]["rejected"]


def test_the_width_may_change_between_two_runs_of_one_federation(tmp_path):
    federation = Federation(tmp_path, devices=1)
    federation.answer(0, 8)
    federation.serve(**{"beta-scale": 1.0})
    federation.answer(0, 3)
    server = federation.serve(**{"ons-width": 0.5})
    assert (server.round, server.devices.duels) == (2, 11)


def test_a_first_step_takes_one_exchange_per_round(tmp_path):
    federation = Federation(tmp_path, **{"first-round": "step"})
    federation.answer_each(4, 4, 4)
    server = federation.serve()
    table = np.concatenate(list(federation.answers().values()))
    assert len(table) == 12
    x, y = table[:, :D], table[:, D]
    theta, curvature = first_step(x, y)
    algorithm = server.strategy.algorithm
    np.testing.assert_allclose(algorithm.theta_sync, theta, rtol=1e-10)
    np.testing.assert_allclose(algorithm.state()["curvature"], curvature, rtol=1e-10)
    for _ in range(2):
        federation.answer(0, 3)
        server = federation.serve()
    assert (server.round, server.strategy.history.exchanges) == (3, 3)
    # The setting matters in the first round only, so it may change afterwards.
    federation.answer(1, 3)
    server = federation.serve(**{"first-round": "minimise"})
    assert (server.round, server.strategy.history.exchanges) == (4, 4)
    assert server.devices.duels == 21


def test_a_damaged_or_foreign_checkpoint_is_refused_and_kept(tmp_path):
    federation = Federation(tmp_path)
    federation.answer(0, 8)
    federation.serve()
    path = tmp_path / "server" / "checkpoint.bin"
    good = path.read_bytes()
    with pytest.raises(CheckpointError, match=r"another run.*'ons-ridge=1.0' there"):
        federation.server(**{"ons-ridge": 2.0})
    for bad, words in (
        (good[:-1], "damaged"),
        (good[:60] + bytes([good[60] ^ 1]) + good[61:], "damaged"),
        *((bad, "not a checkpoint") for bad in (b"", b"FLDB", b"something else entirely")),
    ):
        path.write_bytes(bad)
        with pytest.raises(CheckpointError, match=words):
            federation.server()
        assert path.read_bytes() == bad
    path.write_bytes(good)
    assert federation.server().round == 1


def test_a_directory_is_locked_and_contains_only_committed_rounds(tmp_path):
    federation = Federation(tmp_path)
    first = federation.server()
    with pytest.raises(OutputError, match="in use by another server"):
        federation.server()
    first.directory.close()
    federation.answer(0, 8)
    federation.serve()
    path = tmp_path / "server" / "rounds.csv"
    before = path.read_bytes()
    path.write_bytes(before + b"2,half a li")  # killed while writing
    federation.server()
    assert path.read_bytes() == before


def test_a_round_on_demand_starts_immediately(tmp_path):
    federation = Federation(tmp_path)
    federation.answer(0, 8)
    server = federation.server(**{"devices-round-seconds": 3600.0, "devices-rounds": 2})
    thread = threading.Thread(target=server.serve, args=(federation.grid,), daemon=True)
    thread.start()
    while server.round < 1:
        time.sleep(0.01)
    with PreferenceAgent(federation.stores[0]) as agent:
        assert agent.record(agent.propose(np.eye(D)).id, "first") == 9
    (tmp_path / "server" / "round-now").touch()
    thread.join(timeout=250)  # less than an hour, also on a busy machine
    assert server.round == 2
    assert not thread.is_alive()
    assert not (tmp_path / "server" / "round-now").exists()


class NetworkGrid(Devicegrid):
    """Replies arrive after some polls, the first node's first, and can be pulled once."""

    poll_seconds = None  # as in Flower's network grid, which does not define it

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.messages = {}
        self.looks = {}

    def push_messages(self, messages):
        messages = list(messages)
        ids = super().push_messages(messages)
        for key, message in zip(ids, messages, strict=True):
            self.messages[key] = message
            self.looks[key] = 2 * list(self.contexts).index(message.metadata.dst_node_id)
        return ids

    def pull_messages(self, message_ids):
        replies = []
        for key in message_ids:
            self.looks[key] -= 1
            if key not in self.pending:
                replies.append(Message(Error(3, "no such message"), reply_to=self.messages[key]))
            elif self.looks[key] < 0:
                replies += self.pending.pop(key)
        return replies


@pytest.fixture
def network(tmp_path, monkeypatch):
    monkeypatch.setattr(channel, "NETWORK_POLL_SECONDS", 0.0)
    federation = Federation(tmp_path, **{"node-wait": 60.0, "reply-timeout": 60.0})
    federation.grid = NetworkGrid(federation.stores, federation.config)
    federation.answer_each(8, 8, 8)
    return federation


def test_a_device_receives_one_message_per_exchange_and_one_introduction(network):
    """Slow replies do not cause repeated messages."""
    server = network.serve()
    exchanges = int(network.rows()[0]["exchanges"]) + 1  # the last one sends the estimate
    assert network.grid.sent == 3 * (exchanges + 1)
    network.check_central(server)


def test_an_exchange_reports_missing_replies(network, monkeypatch):
    monkeypatch.setattr(device_rounds, "REPORT_SECONDS", 0.0)
    monkeypatch.setattr(channel, "time", SimpleNamespace(monotonic=lambda: 7.0, sleep=time.sleep))
    network.serve()
    exchanges = int(network.rows()[0]["exchanges"])
    names = [f"round 1, exchange {number}" for number in range(1, exchanges + 1)]
    names.append("sending the last estimate")
    # Devices reply at polls 1, 3 and 5; in the first exchange each gets two messages.
    assert [line for line in network.lines if "have replied" in line] == [
        f"{name}: {count} of 3 devices have replied, waiting up to 60 s"
        for name in (names[0], *names)
        for count in (0, 1, 1, 2, 2)
    ]


def test_a_wait_is_reported_at_its_start_and_every_15_seconds(tmp_path, monkeypatch):
    now = 1000.0
    monkeypatch.setattr(device_rounds.time, "monotonic", lambda: now)
    federation = Federation(tmp_path)
    lines, report = federation.lines, federation.server().report
    for now in (1000.0, 1001.0, 1014.9, 1015.0, 1029.9, 1030.1):
        report("round 1", f"at {now}")
    report("round 2", "another")
    assert lines == ["round 1: at 1000.0", "round 1: at 1015.0", "round 1: at 1030.1",
                     "round 2: another"]  # fmt: skip


def test_a_round_starts_when_enough_devices_are_connected(tmp_path):
    """The round does not wait for its scheduled time; the number of devices is reported."""
    federation = Federation(tmp_path)
    federation.answer(0, 8)
    connected = [[], [1001], [1001], [1001, 1002]]
    federation.grid.get_node_ids = lambda: connected.pop(0) if connected[1:] else connected[0]
    server = federation.server(**{"devices-round-seconds": 3600.0, "devices-at-least": 2})
    server.serve(federation.grid)
    assert server.round == 1
    assert [line for line in federation.lines if "connected" in line] == [
        "round 1: 0 of 2 devices are connected, waiting for more"
    ]


def test_without_a_written_checkpoint_no_answer_is_counted(tmp_path, monkeypatch):
    federation = Federation(tmp_path)
    federation.answer(0, 8)
    server = federation.server()

    def full(_path, _content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fldb_flower.runs.directory.replace_file", full)
    with pytest.raises(OutputError, match="No space left on device"):
        server.serve(federation.grid)
    server.directory.close()
    monkeypatch.undo()
    server = federation.serve()
    assert server.devices.duels == 8
    federation.check_central(server)


@pytest.mark.parametrize(
    ("node_config", "words"),
    [
        ({}, "has no store-path"),
        ({"store-path": "duels.db"}, "store-path='duels.db'.*must be absolute"),
        ({"min-duels-per-upload": 0}, "min-duels-per-upload=0.*at least 1"),
        ({"max-questions": "9"}, "max-questions='9'.*at least 1"),
        (
            {"min-duels-per-upload": 10_001},
            "min-duels-per-upload=10001 .*at most 10000, the server's devices-max-duels",
        ),
        (None, rf"dimension={D + 1} .*duels have {D} features"),
    ],
)
def test_an_error_names_the_setting_that_a_device_refuses(tmp_path, node_config, words):
    federation = Federation(tmp_path, devices=1)
    if node_config is None:
        federation.answer(0, 6)
        federation.config["dimension"] = D + 1
        federation.renew_grid()
    else:
        (context,) = federation.grid.contexts.values()
        context.node_config.clear()
        if node_config and "store-path" not in node_config:
            context.node_config["store-path"] = str(tmp_path / "d.db")
        context.node_config.update(node_config)
    with pytest.raises(SettingsError, match=words):
        federation.server().serve(federation.grid)


def test_algorithms_that_need_every_device_are_refused():
    for algorithm in ("fldb_gd", "ldb", "random"):
        with pytest.raises(
            SettingsError, match=r"must be one of fldb_ogd, fldb_ons, fldb_personal with"
        ):
            from_flat({**BASE, "algorithm": algorithm}, "a test")


def test_a_checkpoint_suffices_for_a_restart_and_contains_no_answer(tmp_path):
    federation = Federation(tmp_path)
    federation.answer(0, 8)
    server = federation.serve()
    checkpoint = server.directory.load()
    assert set(checkpoint.arrays) == {"theta_sync", "information", "theta_hat", "curvature"}
    assert set(checkpoint.numbers) == {"round", "devices", "counts", "openings", "sizes"}
