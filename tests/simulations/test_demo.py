"""Tests of the demonstration: a local federation with simulated people."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from local_processes import logs_on_failure, processes_of

from simulations import demo as demo_module

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("federation")]


@pytest.fixture
def demo(tmp_path):
    """Start `python -m simulations.demo`; check that it leaves no process."""
    folder = tmp_path / "demo"
    command = [sys.executable, "-m", "simulations.demo", "--dir", str(folder)]
    started = []

    def start(*options: str) -> subprocess.Popen[str]:
        pipes = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
            "stdin": subprocess.DEVNULL,
        }
        started.append(subprocess.Popen([*command, *options], cwd=ROOT, text=True, **pipes))
        return started[-1]

    with logs_on_failure(folder):
        yield start
        for process in started:
            assert process.poll() is not None
        assert not processes_of(folder)


def read_until(process, words, lines):
    """Append the lines of the output, up to one that contains the words."""
    while words not in (line := process.stdout.readline()):
        assert line, "".join(lines)
        lines.append(line)
    lines.append(line)


def round_line(number):
    return re.compile(
        rf"^round {number}: \d+ duels, 1 of 2 devices; \d+% of all pairs correct$",
        re.MULTILINE,
    )


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_the_demonstration_runs_until_ctrl_c_and_cleans_up(demo):
    process, output = demo("--devices", "2", "--people", "1"), []
    read_until(process, " of all pairs correct", output)
    process.send_signal(signal.SIGINT)
    output += process.communicate(timeout=300)[0].splitlines(keepends=True)
    assert process.returncode == 128 + signal.SIGINT, output
    assert output[-1] == "stopped\n"
    lines = [re.sub("(?<=#token=).{16,}", "TOKEN", line.strip()) for line in output]
    assert [re.sub(r":\d+/", ":PORT/", line) for line in lines[1:9]] == [
        "starting the SuperLink",
        "registering the keys of 2 devices",
        *(f"waiting for devices: {connected} of 2 are connected" for connected in range(2)),
        "simulated users are answering duels on device1",
        "device2 is yours: http://127.0.0.1:PORT/#token=TOKEN",
        "starting the rounds; the first one takes about 8 exchanges",
        "correct: pairs of drinks that the estimate orders as the simulated users do",
    ]
    # The first round needs one exchange to count the answers, and more for the minimisation.
    for exchange in (1, 2, 3):
        assert lines.count(f"round 1: exchange {exchange}") == 1, output
    assert round_line(1).search("".join(output))


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_the_server_of_the_secure_demonstration_learns_sums_and_ends_after_its_rounds(demo):
    process = demo("--secure", "--devices", "5", "--rounds", "2")
    output = process.communicate(timeout=800)[0]
    assert process.returncode == 0, output
    assert "secure sums with epsilon=50, a limit too large to protect anybody" in output
    assert "starting the rounds; each is one report of every device" in output
    line = r"a noisy sum over \d of 5 devices, about \d+ duels; \d+% of all pairs correct"
    for number in (1, 2):
        assert re.search(rf"^round {number} of 2: {line}$", output, re.MULTILINE), output


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", ["flower-supernode", "flwr-serverapp"])
def test_a_process_that_is_killed_ends_the_demonstration_with_one_line(demo, tmp_path, part):
    process, lines = demo("--devices", "2", "--people", "1"), []
    read_until(process, "round 1: exchange 1", lines)
    found = [each for each in processes_of(tmp_path) if part in " ".join(each.cmdline()[:2])]
    found[0].kill()
    output = process.communicate(timeout=300)[0].splitlines()
    assert process.returncode == 1
    assert [line for line in output if line.startswith("error: ")] == output[-1:]
    what = r"device\d-supernode .* SIGKILL" if part == "flower-supernode" else "the ServerApp ended"
    assert re.match(f"error: {what}", output[-1])


@pytest.mark.exhaustive
def test_the_demonstration_is_stopped_by_sigterm(demo):
    process, lines = demo("--devices", "1", "--people", "0"), []
    read_until(process, "is yours", lines)
    process.terminate()
    assert process.communicate(timeout=300)[0].splitlines()[-1] == "stopped"
    assert process.returncode == 128 + signal.SIGTERM


def test_an_invalid_option_gives_a_one_line_error(in_process):
    for words, message in (
        (["--people", "4"], "--people 4: must be at most --devices 3"),
        (["--devices", "0"], "argument --devices: '0' must be a whole number, at least 1"),
        (["--rounds", "3", "--minutes", "2"], "not allowed with argument"),
        (["--dir", "/dev/null/demo"], "cannot use /dev/null/demo: Not a directory"),
    ):
        status, out, error = in_process(demo_module.main, "demo", *words)
        assert (out, error) == ("", "")
        assert re.fullmatch(f"error: [^\n]*{re.escape(message)}[^\n]*", status)


def test_the_lines_of_a_round_by_hand():
    arms = np.array([arm["features"] for arm in demo_module.arms()])
    hot, sweet = np.eye(6)[:2]
    pairs = [(x, y) for number, x in enumerate(arms) for y in arms[:number]]
    same = [(x[0] > y[0]) == (x[1] > y[1]) for x, y in pairs if x[0] != y[0] and x[1] != y[1]]
    noise = 1e-9 * np.arange(1, 7)  # no ties
    share = demo_module.correct(sweet + noise, hot + noise)
    assert sum(same) <= share * len(pairs) <= sum(same) + len(pairs) - len(same)
    assert demo_module.correct(2.0 * hot + noise, hot + 0.5 * noise) == 1.0
    assert demo_module.correct(-hot - noise, hot + noise) == 0.0
    wait = "round {}, exchange 2: 1 of 3 devices have replied, waiting up to 60 s"
    assert demo_module.progress(wait.format(1), " of 3") == "round 1 of 3: exchange 2"
    assert demo_module.progress(wait.format(2), " of 3") == ""


def test_a_relative_folder_is_that_of_the_caller(tmp_path, monkeypatch):
    folders = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo_module, "demonstrate", lambda _options, folder: folders.append(folder))
    demo_module.main(["--dir", "demo"])
    assert folders == [tmp_path / "demo"]  # the processes have other working directories


def test_a_line_at_the_end_says_where_the_folder_is(monkeypatch, tmp_path, capsys):
    folders = []
    monkeypatch.setattr(demo_module, "demonstrate", lambda _, folder: folders.append(folder))
    demo_module.main(["--minutes", "0.01"])
    assert capsys.readouterr().out == "the demo has ended; its folder is removed (--dir keeps it)\n"
    assert not folders[0].exists()
    demo_module.main(["--minutes", "0.01", "--dir", str(tmp_path)])
    assert capsys.readouterr().out == f"the demo has ended; its folder is {tmp_path}\n"
