"""Secure sums with real vaults and a real server, under any schedule of faults and restarts."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from secure_grid import SecureFederation

from fldb_flower.runs.directory import CHECKPOINT
from strategies.secure_exchange import EXCHANGE

FAULTS = (
    *["none"] * 12, "request lost", "reply lost", "late", "twice", "raises", "restart",
)  # fmt: skip
WRITES = (("file", "save"), ("file", "remove"), ("directory", "commit"))


class Killed(KeyboardInterrupt):
    """The server's process ends here."""


class Machine:
    """A federation to which anything may happen."""

    def __init__(self, folder: Path, luck: random.Random) -> None:
        self.luck = luck
        self.federation = SecureFederation(folder)
        self.names = list(self.federation.phones)
        self.server_files = folder / "server"
        self.backup = folder / "backup"
        self.federation.grid.fault = lambda _name, _request: luck.choice(FAULTS)

    def session(self) -> None:
        """Serve up to three rounds; the server may die before or after a write."""
        luck, federation = self.luck, self.federation
        with federation.serving() as server, contextlib.suppress(Killed):
            for owner, name in WRITES:
                place = server.directory if owner == "directory" else server.strategy.file
                setattr(place, name, self.mortal(getattr(place, name)))
            for _ in range(luck.randint(1, 3)):
                federation.grid.absent = set(luck.sample(self.names, luck.choice([0, 0, 1, 2])))
                server.try_round()
                federation.check_counted(server)
                for name in luck.sample(self.names, luck.randint(0, len(self.names))):
                    federation.answer(name, count=luck.randint(1, 2))

    def mortal(self, write):
        def dying(*arguments):
            fate = self.luck.random()
            if fate < 0.1:
                raise Killed
            write(*arguments)
            if fate > 0.9:
                raise Killed

        return dying

    def back_up(self) -> None:
        shutil.rmtree(self.backup, ignore_errors=True)
        shutil.copytree(self.server_files, self.backup)

    def restore(self) -> None:
        """Restore the checkpoint, or also the exchange in progress."""
        if self.backup.exists():
            names = [CHECKPOINT, EXCHANGE][: self.luck.randint(1, 2)]
            for name in names:
                (self.server_files / name).unlink(missing_ok=True)
                if (self.backup / name).exists():
                    shutil.copy(self.backup / name, self.server_files / name)

    def recover(self) -> None:
        """Without further faults, all answers are counted."""
        federation = self.federation
        federation.grid.fault = lambda _name, _request: "none"
        federation.grid.absent = set()
        with federation.serving() as server:
            for _ in range(6):
                federation.answer(count=1)
                server.try_round()
            assert federation.check_counted(server) == sum(
                len(phone.given) for phone in federation.phones.values()
            ), federation.lines


def involves_few(covered: np.ndarray, least: int) -> bool:
    """Return whether a rational combination of sums is about fewer than ``least`` devices.

    ``covered`` is 1 where a sum covers an answer of a device, (sums, devices, answers). A
    combination that vanishes on all devices but some exists if, without these devices, the rows
    are dependent.
    """
    sums, devices, _ = covered.shape
    return any(
        np.linalg.matrix_rank(np.delete(covered, few, axis=1).reshape(sums, -1)) < sums
        for few in itertools.combinations(range(devices), least - 1)
    )


def opened_sums(federation: SecureFederation) -> np.ndarray:
    """Return what the opened sums cover, for :func:`involves_few`."""
    grid, names = federation.grid, list(federation.phones)
    most = max(len(phone.given) for phone in federation.phones.values())
    rows = []
    for exchange, devices in grid.openings:
        row = np.zeros((len(names), most))
        for name in devices:
            start, cut = grid.spans[name, exchange]
            row[names.index(name), start:cut] = 1.0
        rows.append(row)
    return np.array(rows).reshape(-1, len(names), most)


def run(seed: int, sessions: int) -> SecureFederation:
    luck = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(Path(folder), luck)
        federation = machine.federation
        federation.answer()
        for _ in range(sessions):
            machine.session()
            luck.choice([machine.back_up, machine.back_up, machine.restore, lambda: None])()
        machine.recover()
        exchanges = [exchange for exchange, _ in federation.grid.openings]
        assert len(set(exchanges)) == len(exchanges)  # no member opened a second set
        assert not involves_few(opened_sums(federation), least=5)
        return federation


@pytest.mark.parametrize("seed", [0, 3])
def test_every_answer_counts_once_and_no_combination_of_sums_is_about_few_devices(seed):
    run(seed, sessions=3)


@pytest.mark.exhaustive
def test_the_same_with_more_seeds_and_the_random_faults_occur():
    """Else the property would hold for want of exchanges that are continued or given up."""
    runs = [
        run(seed, sessions=5)
        for seed in range(4, 20 if "FLDB_EXHAUSTIVE" not in os.environ else 52)
    ]
    lines = [line for each in runs for line in each.lines]
    for text in ("resumes after", "asked again", "declined", "is not counted"):
        assert sum(text in line for line in lines) > 10
    assert sum(len(each.grid.openings) for each in runs) > 6 * len(runs)


def test_the_check_finds_a_combination_about_few_devices():
    """Two sums over the same answers of five devices and one more device: their difference."""
    one = np.zeros((2, 6, 3))
    one[0, :5, :2] = 1
    one[1, :6, :2] = 1
    assert involves_few(one, least=5)
    one[1, :5, :3] = 1  # the second also covers newer answers of the five
    assert not involves_few(one, least=5)
    assert involves_few(one, least=6)  # the first is about five devices
