"""The progress of commands: a bar on stderr if that is a terminal."""

import io
import sys
import time

import pandas as pd
import pytest
from conftest import nested

import fldb_flower as fldb
from fldb_flower.settings import from_nested
from fldb_flower.system import progress as progress_module
from fldb_flower.system.progress import progress
from simulations import benchmark, figures
from simulations.pools import map_in_processes
from simulations.report.__main__ import report
from simulations.run import run

SMALL = {"num_agents": 3, "horizon": 5}


class Terminal(io.StringIO):
    def isatty(self):
        return True

    def fileno(self):
        raise OSError


def on_terminal(monkeypatch, seconds):
    """Replace stderr, in the test itself, because pytest replaces it after the fixtures."""
    monkeypatch.setattr(progress_module, "_DELAY", 0.0)
    monkeypatch.setattr(progress_module, "_SECONDS", seconds)
    monkeypatch.setattr(sys, "stderr", Terminal())
    return sys.stderr


def test_time_passes_while_nothing_is_finished(monkeypatch):
    terminal = on_terminal(monkeypatch, 0.02)
    with progress("work", 4, "job") as done:
        time.sleep(0.2)
        before = terminal.getvalue()
        done()
        done(2)
        time.sleep(0.1)
    assert before.count("work:   0%") > 2
    assert "| 0/4 " in before
    assert "| 3/4 " in terminal.getvalue()
    last = terminal.getvalue().rsplit("\r", 2)[-2]
    assert last.strip() == ""  # the bar is removed


def test_short_work_and_other_files_than_terminals_have_no_bar(monkeypatch):
    for is_terminal in (False, True):
        file = Terminal() if is_terminal else io.StringIO()
        monkeypatch.setattr(sys, "stderr", file)
        with progress("work", 2, "job") as done:
            done()
        assert file.getvalue().strip() == ""


def test_the_caller_is_polled_without_a_terminal(monkeypatch):
    monkeypatch.setattr(progress_module, "_SECONDS", 0.01)
    seen = []
    with progress(poll=seen.append):
        time.sleep(0.1)
    assert len(seen) > 2
    assert set(seen) == {None}


def of_report(tmp_path):
    COMMANDS["run"][0](tmp_path)
    sys.stderr.truncate(0)
    report([tmp_path])


def of_figures(tmp_path):
    sys.argv[1:] = ["fig1a", "--output", str(tmp_path)]
    figures.main()


COMMANDS = {
    "run": (lambda path: run(from_nested(nested(**SMALL, plot=False), "x"), path / "run"), "/5 ["),
    "report": (of_report, "run ["),
    "sweep": (lambda _: fldb.sweep(SMALL, tau=[1, 2]), "/2 ["),
    "processes": (lambda _: map_in_processes(time.sleep, [0.1, 0.1], 2), "/2 ["),
    "figures": (of_figures, "draw: "),
    "benchmark": (lambda _: benchmark.main(), "benchmark: "),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_show_their_progress(command, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["command"])
    nothing = figures.Result([0.0], {"rounds": 0})
    monkeypatch.setattr(figures, "each_once", lambda each: dict.fromkeys(each, nothing))
    monkeypatch.setattr(benchmark, "algorithms", lambda _: time.sleep(0.1) or pd.DataFrame())
    terminal = on_terminal(monkeypatch, 0.01)
    play, shown = COMMANDS[command]
    play(tmp_path)
    assert shown in terminal.getvalue()
