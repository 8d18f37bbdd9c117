"""The federation on this machine, and what the demo prints of it, without Flower's processes."""

from __future__ import annotations

import argparse
import stat
import sys

import numpy as np
import pytest

from fldb_flower.errors import FederationError
from simulations import demo
from simulations.local_federation import LocalFederation
from simulations.local_process import LocalProcess

WAIT = "print('ready', flush=True); import time; time.sleep(60)"


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


# --- files -----------------------------------------------------------------------------------


def test_others_read_neither_the_folder_nor_the_database(tmp_path):
    """Other processes write the files, so their umask is checked with one of them."""
    folder = tmp_path / "above" / "demo"
    federation = LocalFederation(folder, devices=1)
    assert mode(folder) == 0o700
    part = federation.superlink
    part.command = [sys.executable, "-c", f"open({str(folder / 'superlink.db')!r}, 'w')"]
    part.start()
    part.wait_until((folder / "superlink.db").exists, "done", 60)
    part.stop()
    assert mode(folder / "superlink.db") == 0o600
    for each in (*federation.devices, federation.flwr("run"), federation.devices[0].service):
        assert each.umask == part.umask == 0o077


# --- processes that end ----------------------------------------------------------------------


@pytest.fixture
def federation(tmp_path):
    """A federation whose processes do nothing."""
    federation = LocalFederation(tmp_path / "demo", devices=2)
    parts = [federation.superlink, *federation.devices]
    parts += [each.service for each in federation.devices]
    for part in parts:
        part.command = [sys.executable, "-c", WAIT]
        part.start()
    for part in parts:
        part.wait_for("ready", "ready")
    yield federation
    federation.stop()


def follow(federation, code):
    """Report a run that is a process with this code."""
    run = LocalProcess("run1", federation.folder, [sys.executable, "-c", code])
    federation.runs.append(run)
    run.start()
    options = argparse.Namespace(minutes=1, rounds=2, people=2, secure=False)
    demo.report(federation, run, np.ones(6), options)


def test_a_killed_supernode_is_reported_at_once(federation):
    federation.check()
    federation.devices[1].kill()
    with pytest.raises(FederationError) as reported:
        follow(federation, WAIT)
    line = "device2-supernode is needed and does not run: it was ended by SIGKILL; its log is "
    assert str(reported.value) == f"{line}{federation.devices[1].log}"


def test_the_death_of_the_server_is_one_line(federation):
    noise = "import sys\nfor i in range(30): print('line', i)\n"
    for code, reason in (
        (f"{noise}sys.exit(1)", "line 29"),
        (f"{noise}print('ERROR: the run failed: disk full'); print('more')", "disk full"),
    ):
        with pytest.raises(FederationError) as reported:
            follow(federation, code)
        log = federation.runs[-1].log
        assert str(reported.value) == (
            f"the ServerApp ended before the last round; {log}: {reason}"
        )


# --- what is printed -------------------------------------------------------------------------

LINES = """\
round 1, exchange 1: 0 of 3 devices have replied, waiting up to 300 s
round 1, exchange 1: 0 of 3 devices have replied, waiting up to 285 s
round 1, exchange 2: 0 of 3 devices have replied, waiting up to 297 s
round 1, exchange 9: 2 of 3 devices have replied, waiting up to 285 s
round 1 is not counted: too few answers
round 2: 1 of 3 devices are connected, waiting for more
round 2: 1 of 3 devices are connected, waiting for more
round 2, exchange 1: 1 of 3 devices have replied, waiting up to 300 s
"""
STATES = [
    "round 1 of 2: exchange 1 of about 8",
    "round 1 of 2: exchange 2 of about 8",
    "round 1 of 2: exchange 9 of about 9",
    "round 1 is not counted: too few answers",
    "round 2: 1 of 3 devices are connected, waiting for more",
    "round 2 of 2: exchange 1 of about 1",
]


def test_each_state_is_one_line_and_none_counts_down(federation, capsys):
    with pytest.raises(FederationError, match="the ServerApp ended"):
        follow(federation, f"print({LINES!r})")
    assert capsys.readouterr().out.splitlines() == STATES


def test_a_round_of_secure_sums_is_one_exchange():
    line = "round 1, exchange 1: 4 of 5 devices have replied, waiting up to 9 s"
    assert demo.progress(line, " of 9", first=1) == "round 1 of 9: exchange 1 of about 1"
    last = "sending the last estimate: 0 of 1 devices have replied, waiting up to 300 s"
    assert demo.progress(last, "", first=8) == last.partition(", waiting")[0]
