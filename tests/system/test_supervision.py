"""The supervision of the rounds in the documents, with the lock that a ServerApp holds."""

import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fldb_flower.runs.directory import ResultsDirectory
from fldb_flower.system.files import is_locked
from simulations import command

ROOT = Path(__file__).parents[2]
DEPLOYMENT = ROOT / "docs" / "deployment"
OUTPUT_DIR = "/var/lib/fldb/server"  # in the documents


def unit_line(name, folder):
    """Return the command of a line of the unit, for this environment and another folder.

    systemd replaces ``$$`` by ``$``, and its quotes are those of a shell.
    """
    unit = (DEPLOYMENT / "fldb-rounds.service").read_text()
    (line,) = re.findall(rf"^{name}=(.*)$", unit, re.MULTILINE)
    return shlex.split(here(line, folder))


def here(line, folder):
    program = f"{sys.executable} -m fldb_flower"
    line = re.sub(r"(/opt/fldb/venv/bin/)?fldb(?= rounds)", program, line)
    return line.replace(OUTPUT_DIR, str(folder)).replace("$$", "$")


def status(words):
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_the_unit_starts_a_run_only_if_no_server_holds_its_folder(tmp_path):
    condition = unit_line("ExecCondition", tmp_path)
    assert status(condition) == (0, f"{tmp_path}: not running\n", "")
    server = ResultsDirectory(tmp_path, "identity", user="server")
    assert status(condition) == (1, f"{tmp_path}: running\n", "")
    server.close()
    assert status(condition)[0] == 0
    found, out, error = status(unit_line("ExecCondition", tmp_path / "missing"))
    assert found == 1  # nothing is started
    assert (out, error.count("\n")) == ("", 1)


def test_the_loop_of_the_containers_starts_a_run_only_if_no_server_holds_its_folder(tmp_path):
    text = (DEPLOYMENT / "compose.yaml").read_text()
    ((check, start),) = re.findall(r"(fldb rounds .*)\n +(test .*) flwr run ", text)
    script = here(f"{check}\n{start} echo started", tmp_path)
    assert status(["sh", "-c", script])[1] == f"{tmp_path}: not running\nstarted\n"
    server = ResultsDirectory(tmp_path, "identity", user="server")
    assert status(["sh", "-c", script])[1] == f"{tmp_path}: running\n"
    server.close()
    assert status(["sh", "-c", script.replace(str(tmp_path), "/dev/null")])[1] == ""


def test_the_documents_agree_on_the_folder_and_check_it_in_one_way():
    """Every page and file; the folder is that of the settings of the run."""
    texts = [path.read_text() for path in sorted(DEPLOYMENT.iterdir()) if path.is_file()]
    found = [each for text in texts for each in re.findall(r"rounds --is-running ([^\s;]+)", text)]
    assert found == [OUTPUT_DIR] * 3
    settings = (DEPLOYMENT / "rounds.toml").read_text(), (DEPLOYMENT / "compose.yaml").read_text()
    for text in settings:
        assert re.findall(r"output-dir ?= ?[\"']([^\"']+)", text) == [OUTPUT_DIR]
    assert not [text for text in texts if "flock" in text or "dir/lock" in text]


def test_the_age_of_the_last_round(tmp_path, in_process):
    def ask(age, folder=tmp_path):
        return in_process(command.main, "fldb", "rounds", "--max-age", age, str(folder))

    assert ask("30m") == (1, f"{tmp_path}: no round was counted\n", "")
    rounds = tmp_path / "rounds.csv"
    rounds.write_text("")  # before the first round
    assert ask("30m")[0] == 1
    begin = (datetime.now(UTC) - timedelta(minutes=40)).isoformat("T", "seconds")
    rounds.write_text(f"round,time\n1,2026-01-01T00:00:00+00:00\n2,{begin}\n")
    line = f"{tmp_path}: the last round began {datetime.fromisoformat(begin)}\n"
    for age, expected in (("30m", 1), ("2399s", 1), ("41m", 0), ("1h", 0), ("1d", 0)):
        assert ask(age) == (expected, line, "")
    for age in ("30", "0m", "-1m", "1w", "m", "1.5h"):
        assert ask(age)[0] == 2
        assert ask(age)[2].startswith("error: ")
    assert ask("30m", tmp_path / "missing")[0] == 2
    for text in ("a,b\n1,2\n", "round,time\n1\n", "round,time\n1,today\n"):
        rounds.write_text(text)
        assert ask("30m") == (2, "", f"error: {rounds}: not a file of rounds\n")


def test_the_status_is_0_1_or_2(tmp_path, in_process):
    def ask(*words):
        return in_process(command.main, "fldb", "rounds", *words)

    folder = str(tmp_path)
    assert ask("--is-running", folder) == (1, f"{folder}: not running\n", "")
    server = ResultsDirectory(tmp_path, "identity", user="server")
    assert ask("--is-running", folder) == (0, f"{folder}: running\n", "")
    server.close()
    assert not list(tmp_path.iterdir())
    assert not is_locked(tmp_path)
    (tmp_path / "file").touch()
    for words in (
        ["--is-running", f"{folder}/missing"], ["--is-running", f"{folder}/file"],
        ["--is-running"], [], ["--running", folder],
    ):  # fmt: skip
        found, out, error = ask(*words)
        assert (found, out, error.count("\n")) == (2, "", 1)
        assert error.startswith("error: ")
