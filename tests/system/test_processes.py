"""Start of Flower's processes: project folder, environment, and reasons of failures."""

import contextlib
import io
import re
import socket
import subprocess
import sys

import pytest
from conftest import ROOT
from rich import box
from rich.console import Console
from rich.panel import Panel

from fldb_flower.deployment import processes
from fldb_flower.deployment.processes import HOST, free_port, project_folder, reason_in
from fldb_flower.errors import FederationError, FldbError
from fldb_flower.runs.experiment import StoppedError
from fldb_flower.runs.results import RunDirectory, request_stop
from fldb_flower.settings import from_nested
from simulations import local_federation, local_process
from simulations.engines import flower

FLOWER = from_nested({"engine": {"name": "flower"}}, "a test")
SLOW = "Exception: The current node timed out during startup. This could happen"


def shown(*parts, width=60):
    """Return rich's output to a pipe."""
    console = Console(file=io.StringIO(), width=width)
    for part in parts:
        console.print(part)
    return console.file.getvalue()


def test_the_reason_of_a_failure_is_in_the_log_in_a_box_or_at_the_end():
    words = "No pyproject.toml found in /opt/venv/lib/python3.11/site-packages, so nothing runs"
    output = shown("Usage: flwr run [OPTIONS]", Panel(words, title="Error"))
    assert output.strip().splitlines()[-1].startswith("╰──")  # the last line is a border
    logged = "ERROR: the run failed: tau=0: must be at least 1\n" + shown(Panel("Run failed"))
    for text, reason in (
        (output, words),
        (logged, "tau=0: must be at least 1"),
        (shown(Panel("")), "it printed nothing"),
        ("", "it printed nothing"),
    ):
        assert flower.failure_reason(text, FLOWER) == reason
    for name in ("ROUNDED", "SQUARE", "HEAVY", "DOUBLE", "ASCII", "HORIZONTALS", "MINIMAL"):
        output = shown("Loading", Panel("it broke", box=getattr(box, name)))
        reason = flower.failure_reason(output, FLOWER)
        assert re.sub(r"[|+\s-]", "", reason) == "itbroke"
        assert not re.search(r"[\u2500-\u259f]", reason)
    assert reason_in("one\n│ two │\n╰────╯\n----\n\n") == "two"


# --- starts of Flower ------------------------------------------------------------------------


@pytest.fixture
def start(monkeypatch, tmp_path):
    """Run Flower, whose outputs are given; return the number of starts and the error."""

    def run(*outputs, before=lambda: None):
        waiting = list(outputs)

        def output_of(*_command):
            before()
            return waiting.pop(0)

        monkeypatch.setattr(flower, "superlink", contextlib.nullcontext)
        monkeypatch.setattr(flower, "_output_of", output_of)
        error = None
        try:
            flower.run(FLOWER, str(tmp_path))
        except FldbError as raised:
            error = raised
        return len(outputs) - len(waiting), error

    return run


def test_a_run_is_started_again_if_ray_is_slow(start, tmp_path):
    """Each server claims the directory, and Flower ends its process if Ray fails."""

    def claim():
        RunDirectory(tmp_path, FLOWER).close()

    count, error = start(SLOW, SLOW, SLOW, "", before=claim)
    assert (count, "timed out" in str(error)) == (3, True)
    for failures in (0, 1, 2):
        starts = iter(range(failures + 1))

        def claim_and_finish(starts=starts, failures=failures):
            claim()
            if next(starts) == failures:
                (tmp_path / "summary.json").touch()

        assert start(*[SLOW] * failures, "", before=claim_and_finish) == (failures + 1, None)
        (tmp_path / "summary.json").unlink()
        (tmp_path / "config.yaml").unlink()


def test_only_a_slow_start_of_a_new_run_that_nobody_stopped_is_repeated(start, tmp_path):
    count, error = start("ERROR: the run failed: tau=0: must be at least 1", "")
    assert (count, type(error)) == (1, FederationError)
    assert "tau=0: must be at least 1" in str(error)
    count, error = start(SLOW + "\nERROR: the run failed: stopped: x", "")  # by the server
    assert (count, type(error)) == (1, StoppedError)
    count, error = start(SLOW, "", before=lambda: request_stop(tmp_path))
    assert (count, type(error)) == (1, StoppedError)
    (tmp_path / "config.yaml").write_text("of another run")
    assert "timed out" in str(start(SLOW, SLOW, SLOW)[1])
    assert (tmp_path / "config.yaml").read_text() == "of another run"


# --- the checkout, the environment and ports -------------------------------------------------


def test_a_wheel_cannot_start_flower_and_raises_an_error(tmp_path, monkeypatch):
    """In a wheel the packages are in site-packages, possibly with another pyproject.toml."""
    assert project_folder("a test") == ROOT
    site = tmp_path / "site-packages"
    site.mkdir()
    monkeypatch.setattr(
        processes, "__file__", str(site / "fldb_flower" / "deployment" / "processes.py")
    )
    for other in ("", "[project]\nname = 'something-else'\n", "not TOML ["):
        if other:
            (site / "pyproject.toml").write_text(other)
        message = f"^engine=flower needs a checkout of fldb-flower.* {site} "
        with pytest.raises(FederationError, match=message):
            flower.run(FLOWER, str(tmp_path / "run"))
        with pytest.raises(FederationError, match="needs a checkout"):
            local_federation.LocalFederation(tmp_path / "federation", 1)


def test_flowers_processes_do_not_inherit_a_matplotlib_backend(tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    monkeypatch.setenv("FLDB_SOMETHING", "else")
    environment = local_process.environment(tmp_path)
    assert environment["FLDB_SOMETHING"] == "else"
    assert environment["FLWR_HOME"] == str(tmp_path)
    assert "MPLBACKEND" not in environment


def test_free_ports_are_distinct_within_and_between_processes():
    """Nothing listens on them yet, as while a federation is prepared."""
    code = (
        "import random\n"
        "random.SystemRandom = lambda: random.Random(0)  # all try the same ports first\n"
        "from fldb_flower.deployment.processes import free_port\n"
        "print(*(free_port() for _ in range(60)), flush=True)\n"
        "input()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    others = [subprocess.Popen([sys.executable, "-c", code], **pipes) for _ in range(4)]
    ports = [free_port() for _ in range(60)]
    ports += [int(port) for other in others for port in other.stdout.readline().split()]
    assert [other.communicate("\n")[0] for other in others] == [""] * 4
    assert len(set(ports)) == len(ports) == 5 * 60


def test_a_port_in_use_is_not_free():
    with socket.socket() as server:
        server.bind((HOST, free_port()))
        server.listen()
        assert server.getsockname()[1] not in {free_port() for _ in range(250)}
