"""Start of Flower's processes: project folder, environment, and reasons of failures."""

import contextlib
import io
import re
import socket
import subprocess
import sys

import pytest
from conftest import ROOT
from rich.console import Console
from rich.panel import Panel

from fldb_flower.deployment import processes
from fldb_flower.deployment.processes import HOST, free_port, project_folder, reason_in
from fldb_flower.errors import FederationError
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


def test_the_reason_of_a_failure_is_the_text_in_the_box():
    words = "No pyproject.toml found in /opt/venv/lib/python3.11/site-packages, so nothing runs"
    output = shown("Usage: flwr run [OPTIONS]", Panel(words, title="Error"))
    assert output.strip().splitlines()[-1].startswith("╰──")  # the last line is a border
    assert flower.failure_reason(output, FLOWER) == words


@pytest.mark.parametrize(
    "box", ["ROUNDED", "SQUARE", "HEAVY", "DOUBLE", "ASCII", "HORIZONTALS", "MINIMAL"]
)
def test_borders_are_not_part_of_the_reason(box):
    import rich.box

    output = shown("Loading", Panel("it broke", box=getattr(rich.box, box)))
    reason = flower.failure_reason(output, FLOWER)
    assert re.sub(r"[|+\s-]", "", reason) == "itbroke"
    assert not re.search(r"[\u2500-\u259f]", reason)


def test_output_of_borders_only_has_no_reason():
    assert flower.failure_reason(shown(Panel("")), FLOWER) == "it printed nothing"
    assert flower.failure_reason("", FLOWER) == "it printed nothing"
    assert reason_in("one\n│ two │\n╰────╯\n----\n\n") == "two"


def test_the_log_takes_precedence_over_a_box():
    output = "ERROR: the run failed: tau=0: must be at least 1\n" + shown(Panel("Run failed"))
    assert flower.failure_reason(output, FLOWER) == "tau=0: must be at least 1"


@pytest.mark.parametrize("failures", [0, 1, 2, 3])
def test_a_run_is_started_again_if_ray_is_slow(failures, monkeypatch, tmp_path):
    """Each server claims the directory, and Flower ends its process if Ray fails."""
    calls = []

    def output_of(*_command):
        calls.append(RunDirectory(tmp_path, FLOWER))
        calls[-1].close()
        if len(calls) <= failures:
            return SLOW
        (tmp_path / "summary.json").touch()
        return ""

    monkeypatch.setattr(flower, "superlink", contextlib.nullcontext)
    monkeypatch.setattr(flower, "_output_of", output_of)
    with (
        pytest.raises(FederationError, match="timed out")
        if failures == 3
        else contextlib.nullcontext()
    ):
        flower.run(FLOWER, str(tmp_path))
    assert len(calls) == min(failures + 1, 3)


def test_a_run_that_was_there_before_a_slow_start_is_kept(monkeypatch, tmp_path):
    (tmp_path / "config.yaml").write_text("of another run")
    monkeypatch.setattr(flower, "superlink", contextlib.nullcontext)
    monkeypatch.setattr(flower, "_output_of", lambda *_command: SLOW)
    with pytest.raises(FederationError, match="timed out"):
        flower.run(FLOWER, str(tmp_path))
    assert (tmp_path / "config.yaml").read_text() == "of another run"


@pytest.mark.parametrize("seen_by", ["server", "nobody"])
def test_a_run_that_was_stopped_is_not_started_again(seen_by, monkeypatch, tmp_path):
    reason = "\nERROR: the run failed: stopped: x" if seen_by == "server" else ""
    outputs = iter([SLOW + reason])

    def output_of(*_command):
        if seen_by == "nobody":
            request_stop(tmp_path)
        return next(outputs)

    monkeypatch.setattr(flower, "superlink", contextlib.nullcontext)
    monkeypatch.setattr(flower, "_output_of", output_of)
    with pytest.raises(StoppedError, match="stopped"):
        flower.run(FLOWER, str(tmp_path))


def test_a_run_that_fails_for_another_reason_is_not_started_again(monkeypatch, tmp_path):
    outputs = iter(["ERROR: the run failed: tau=0: must be at least 1"])
    monkeypatch.setattr(flower, "superlink", contextlib.nullcontext)
    monkeypatch.setattr(flower, "_output_of", lambda *_command: next(outputs))
    with pytest.raises(FederationError, match="tau=0: must be at least 1"):
        flower.run(FLOWER, str(tmp_path))


def test_a_checkout_is_found():
    assert project_folder("a test") == ROOT


@pytest.mark.parametrize("other", [None, "[project]\nname = 'something-else'\n", "not TOML ["])
def test_a_wheel_cannot_start_flower_and_raises_an_error(other, tmp_path, monkeypatch):
    """In a wheel the packages are in site-packages, possibly with another pyproject.toml."""
    site = tmp_path / "site-packages"
    folder = site / "fldb_flower" / "deployment"
    folder.mkdir(parents=True)
    if other is not None:
        (site / "pyproject.toml").write_text(other)
    monkeypatch.setattr(
        processes, "__file__", str(site / "fldb_flower" / "deployment" / "processes.py")
    )
    with pytest.raises(FederationError) as caught:
        flower.run(FLOWER, str(tmp_path / "run"))
    assert str(caught.value).startswith("engine=flower needs a checkout of fldb-flower")
    assert str(site) in str(caught.value)
    with pytest.raises(FederationError, match="needs a checkout"):
        local_federation.LocalFederation(tmp_path / "federation", 1)


def test_flowers_processes_do_not_inherit_a_matplotlib_backend(tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    monkeypatch.setenv("FLDB_SOMETHING", "else")
    for environment in (
        processes.flower_environment(tmp_path),
        local_process.environment(tmp_path),
    ):
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
