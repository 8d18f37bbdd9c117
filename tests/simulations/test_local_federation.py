"""The federation on this machine, and what the demo prints of it, without Flower's processes."""

from __future__ import annotations

import argparse
import stat
import sys
import tomllib

import numpy as np
import pytest
from local_processes import processes_of

from clients.vault import read_config
from fldb_flower.deployment.keys import load_helper_key
from fldb_flower.errors import FederationError
from simulations import demo
from simulations.local_federation import FEDERATION, LocalFederation, Secure, create_vaults
from simulations.local_process import LocalProcess

WAIT = "print('ready', flush=True); import time; time.sleep(60)"
SECURE = Secure(dimension=3, epsilon=8.0, max_epsilon=90.0)


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


def test_vaults_pin_the_helper_whose_key_is_kept_and_have_the_limit(tmp_path):
    folders = [tmp_path / "device1", tmp_path / "device2"]
    for folder in folders:
        folder.mkdir()
    create_vaults(tmp_path / "helper", folders, SECURE)
    key, public = (tmp_path / "helper").read_bytes(), (tmp_path / "helper.pub").read_bytes()
    signer = load_helper_key(tmp_path / "helper").public_key().public_bytes_raw()
    for folder in folders:
        config = read_config(folder / "vault.toml")
        assert (config.federation, config.dimension) == (FEDERATION, 3)
        assert config.max_epsilon == 90.0
        assert config.helper.public_bytes_raw() == signer
        assert (folder / "helper.pub").read_bytes() == public
    create_vaults(tmp_path / "helper", folders, Secure(3, 8.0, 70.0))
    assert (tmp_path / "helper").read_bytes() == key
    assert read_config(folders[1] / "vault.toml").max_epsilon == 70.0


def test_the_supernode_of_a_vault_is_given_neither_store_nor_vault(tmp_path):
    federation = LocalFederation(tmp_path, 2, secure=SECURE)
    for device in federation.devices:
        (config,) = (word for word in device.command if "service-url" in word)
        assert set(tomllib.loads(config.replace(" ", "\n"))) == {"service-url", "node-token-file"}
        words = " ".join(device.command)
        assert not [name for name in ("duels.db", "vault.toml", "helper") if name in words]
        folder = tmp_path / device.key.name
        options = ["--vault", folder / "vault.toml", "--node-token-file", folder / "node.token"]
        assert device.service.command[-4:] == list(map(str, options))


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
    assert not processes_of(federation.folder)


def follow(federation, code):
    """Report a run that is a process with this code."""
    run = LocalProcess("run1", federation.folder, [sys.executable, "-c", code])
    federation.runs.append(run)
    run.start()
    options = argparse.Namespace(minutes=1, rounds=2, people=2, secure=False)
    demo.report(federation, run, np.ones(6), options)


def test_the_death_of_the_server_or_of_a_supernode_is_one_line(federation):
    noise = "import sys\nfor i in range(30): print('line', i)\n"
    for code, reason in (
        (f"{noise}sys.exit(1)", "line 29"),
        (f"{noise}print('ERROR: the run failed: disk full'); print('more')", "disk full"),
    ):
        with pytest.raises(FederationError) as reported:
            follow(federation, code)
        log = federation.runs[-1].log
        assert str(reported.value) == f"the ServerApp ended before the last round; {log}: {reason}"
    federation.check()
    federation.devices[1].kill()
    with pytest.raises(FederationError) as reported:
        follow(federation, WAIT)
    line = "device2-supernode is needed but is not running: it was ended by SIGKILL; its log is "
    assert str(reported.value) == f"{line}{federation.devices[1].log}"


@pytest.mark.parametrize("secure", [None, SECURE])
def test_the_helper_is_checked_and_stopped(tmp_path, monkeypatch, secure):
    federation, stopped, running = LocalFederation(tmp_path, 1, secure=secure), [], set()
    monkeypatch.setattr(LocalProcess, "stop", lambda part: stopped.append(part.name))
    monkeypatch.setattr(LocalProcess, "is_running", property(lambda part: part.name in running))
    federation.stop()
    names = ["device1-supernode", "device1-service", "helper", "superlink"]  # this one last
    assert stopped == names
    running |= {*names}
    federation.check()
    running.discard("helper")
    if secure:
        with pytest.raises(FederationError, match="helper is needed but is not running"):
            federation.check()
    else:
        federation.check()


def test_a_failed_start_is_reported_with_its_log(tmp_path):
    for code, seconds, message in (
        ("print('no power'); exit(3)", 60, r"status 3; .*: no power$"),
        (WAIT, 0.1, r"not within 0\.1 s, .*"),
    ):
        part = LocalProcess("part", tmp_path, [sys.executable, "-c", code])
        part.start()
        with pytest.raises(FederationError, match=f"part should be ready: .*{message}"):
            part.wait_until(lambda: False, "ready", seconds)
        part.stop()
    assert not processes_of(tmp_path)


# --- what is printed -------------------------------------------------------------------------

LINES = """\
round 1, exchange 1: 0 of 3 devices have replied, waiting up to 300 s
round 1, exchange 1: 0 of 3 devices have replied, waiting up to 285 s
round 1, exchange 2: 0 of 3 devices have replied, waiting up to 297 s
round 1, exchange 9: 2 of 3 devices have replied, waiting up to 285 s
round 1 is not counted: too few answers
round 1 waits: no new answers
round 2: 1 of 3 devices are connected, waiting for more
round 2: 1 of 3 devices are connected, waiting for more
round 2, exchange 1: 1 of 3 devices have replied, waiting up to 300 s
"""
STATES = [
    "round 1 of 2: exchange 1",
    "round 1 of 2: exchange 2",
    "round 1 of 2: exchange 9",
    "round 1 is not counted: too few answers",
    "round 1 waits: no new answers",
    "round 2: 1 of 3 devices are connected, waiting for more",
]


def test_each_state_is_one_line_and_none_counts_down(federation, capsys):
    with pytest.raises(FederationError, match="the ServerApp ended"):
        follow(federation, f"print({LINES!r})")
    assert capsys.readouterr().out.splitlines() == STATES
    line = "round 1, exchange 1: 4 of 5 devices have replied, waiting up to 9 s"  # of secure sums
    assert demo.progress(line, " of 9") == "round 1 of 9: exchange 1"
    assert not demo.progress(line.replace("round 1", "round 2"), " of 9")  # has one exchange
    last = "sending the last estimate: 0 of 1 devices have replied, waiting up to 300 s"
    assert demo.progress(last, "") == last.partition(", waiting")[0]
