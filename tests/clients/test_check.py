"""The process of a device for one message: what it imports, and how long it takes to start."""

import subprocess
import sys
from pathlib import Path

import pytest

from clients import check
from message import message
from simulations import command

ROOT = Path(__file__).parents[2]
NOT_NEEDED = {
    *("fastapi_offline", "hydra", "matplotlib", "omegaconf", "pandas", "ray", "scipy", "torch"),
    *("tqdm", "clients.learning", "clients.preference_agent", "clients.selection"),
    *("clients.service", "clients.simulated", "clients.vault", "fldb_flower.algorithms"),
    *("fldb_flower.bandit.estimates", "fldb_flower.bandit.newton"),
    *("fldb_flower.bandit.policies", "fldb_flower.bandit.selection", "fldb_flower.deployment"),
    *("fldb_flower.environments", "fldb_flower.privacy", "fldb_flower.runs"),
    *("fldb_flower.secure.protocol", "simulations", "strategies"),
}
"""Modules that a reply without FLDB-Personal must not import."""


def test_a_message_imports_no_module_that_it_does_not_need():
    code = "import sys, fldb_flower.client_app, clients.device, clients.relay; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    modules = set(done.stdout.split())
    assert {"clients.device", "fldb_flower.wire", "flwr"} <= modules
    assert not modules & NOT_NEEDED
    for name in NOT_NEEDED:  # a name that is misspelled would never be found
        path = ROOT.joinpath(*name.split("."))
        known = path.is_dir() or path.with_suffix(".py").is_file()
        assert known or "." not in name


@pytest.mark.slow
def test_our_part_of_the_process_for_a_message_is_small():
    """Beside a bare app in the same process of Flower; Flower takes seconds and 126 MB."""
    rows = message(repetitions=1).set_index("app")
    assert rows.loc["ours", "MB"] < rows.loc["bare", "MB"] + 15
    assert rows.loc["ours", "CPU, s"] < 1.5 * rows.loc["bare", "CPU, s"]


def test_the_limit_is_flowers():
    from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL

    assert check.LIMIT_SECONDS == HEARTBEAT_DEFAULT_INTERVAL


@pytest.mark.parametrize(
    ("seconds", "status", "stream"), [(3.04, 0, "out"), (10.06, 0, "error"), (30.06, 1, "status")]
)
def test_a_slow_start_is_a_warning_and_one_beyond_the_limit_an_error(
    seconds, status, stream, in_process, monkeypatch
):
    monkeypatch.setattr(check, "start_seconds", lambda: seconds)
    found, out, error = in_process(command.main, "fldb", "check")
    line = f"a process for one message starts in {seconds:.1f} s, and Flower waits 30 s"
    advice = ": see 'A device never replies' in docs/deployment/operation.md"
    expected = {
        "out": (0, f"{line}\n", ""),
        "error": (0, "", f"warning: {line}{advice}\n"),
        "status": (f"error: {line}{advice}", "", ""),  # exit status 1
    }
    assert (found, out, error) == expected[stream]
    assert bool(status) == isinstance(found, str)


def test_a_process_that_hangs_or_fails_is_one_line(in_process, monkeypatch):
    for code, line in (
        ("import time; time.sleep(60)", "does not start within 0.2 s, and Flower waits 30 s"),
        ("import no_such_module", "fails: ModuleNotFoundError: No module named 'no_such_module'"),
    ):
        monkeypatch.setattr(check.start_seconds, "__defaults__", (code,))
        monkeypatch.setattr(check, "_MOST_SECONDS", 0.2 if "sleep" in code else 60)
        found, *output = in_process(command.main, "fldb", "check")
        assert found.startswith("error: a process for one message ")
        assert line in found
        assert output == ["", ""]


def test_the_start_of_a_process_is_measured():
    least = 0.3
    assert check.start_seconds(f"import time; time.sleep({least})") >= least


def test_operators_find_the_limit_where_a_device_is_set_up():
    folder = ROOT / "docs" / "deployment"
    unit = (folder / "fldb-supernode.service").read_text()
    assert "\nExecStartPre=-/opt/fldb/venv/bin/fldb check\n" in unit
    assert '"fldb check; exec flower-supernode' in (folder / "Containerfile").read_text()
    page = (folder / "operation.md").read_text()
    assert "\n## A device never replies\n" in page  # named by the command
    assert "fldb check" in page
    assert "fldb check" in (ROOT / "docs" / "deployment.md").read_text()
