"""`python -m simulations.run` as a process: exit status and output."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fldb_flower.settings import hydra_entries
from simulations import run

ROOT = Path(__file__).parents[2]


def call(*arguments, cwd=ROOT):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", "simulations.run", *arguments],
        check=False,
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment,
        timeout=300,
    )


def signalled(folder, number, pattern, count):
    """Return an environment in which a process signals itself, whatever the load of the machine.

    It does so just before it writes the file, the `count`-th one whose path matches the pattern.
    """
    (folder / "sitecustomize.py").write_text(
        "import os, re, sys\n"
        "found = []\n"
        "def hook(event, arguments):\n"
        f"    if event == 'os.rename' and re.search({pattern!r}, str(arguments[1])):\n"
        "        found.append(arguments)\n"
        f"        if len(found) == {count}:\n"
        f"            os.kill(os.getpid(), {int(number)})\n"
        "sys.addaudithook(hook)\n"
    )
    return {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}


BAD = {
    "tua=3": "tua (from the command line): there is no such setting; did you mean tau?",
    "environment.sgima=1": "did you mean environment.sigma?",
    "tau=0": "tau=0 (from the command line or conf/): must be at least 1",
    "tau=1.5": "must be a whole number, at least 1",
    "num_arms=1": "must be at least 2 and at most 100000 (a duel needs two arms)",
    "lambda=-1": "must be at least 1e-100 and at most 1e+100",
    "alpha=0": "must be at least 1e-100 and at most 1e+100",
    "num_agents=many": "must be a whole number",
    "algorithm=fldb-odg": "must be one of alone, fldb_gd, fldb_ogd",
    "tau=[1": "from the command line",
    "environment=movielens": "set it to the downloaded MovieLens ratings",
    "environment=movielens environment.path=x dimension=21": "must be at most 20 for MovieLens",
    "environment=movielens environment.path=/no/such": "/no/such",
    "engine=inprocess engine.num_nodes=7 num_agents=6": "must be at most num_agents=6",
    "hydra.run.dir=/proc/nowhere/x": "/proc/nowhere",
    "hydra.run.dir=loop": "loop: Too many levels of symbolic links",
    "-m hydra.sweep.dir=loop tau=1,2": "loop: Too many levels of symbolic links",
    "hydra.run.dir=lost": "lost: No such file or directory",
    "--config-dir texts experiment=latin": "texts/experiment/latin.yaml is not UTF-8 text (byte"
    " 0xe9 at position 4): save it",
    "--config-dir texts experiment=utf16": "texts/experiment/utf16.yaml is not UTF-8 text (byte"
    " 0xff at position 0)",
    "-m --config-dir texts experiment=utf16 tau=1,2": "utf16.yaml is not UTF-8 text (byte 0xff",
    "hydra.searchpath=[file://texts] experiment=latin": "latin.yaml is not UTF-8 text",
    "--config-dir texts experiment=bytes": 'texts/experiment/bytes.yaml", position 1',
    "-m --cfg hydra": "--multirun and --cfg (from the command line): only one of them is valid, so"
    " leave out -m",
    "-m --info": "--multirun and --info (from the command line): only one",
    "tau=${nope}": "tau=${nope} (from the command line or conf/): Interpolation key 'nope' not",
    "environment.sigma=${a.b}": "environment.sigma=${a.b} (from the command line or conf/): Interp",
    "+tau=3": "+tau=3 (from the command line): the setting exists and needs no +; write tau=3",
    "+environment.sigma=1": "the setting exists and needs no +; write environment.sigma=1",
    "+environment=synthetic": "the setting exists and needs no +; write environment=synthetic",
    "tau=10000000000000000000": "(from the command line or conf/): must be at least 1 and at most"
    " 9.2e18",
}


@pytest.mark.parametrize("arguments", BAD)
def test_bad_input_is_named_in_one_clear_line(arguments, in_process, tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "lost").symlink_to("nowhere")
    texts = tmp_path / "texts" / "experiment"
    texts.mkdir(parents=True)
    (texts / "latin.yaml").write_bytes("# a \xe9".encode("latin-1"))
    (texts / "utf16.yaml").write_bytes("tau: 3".encode("utf-16"))
    (texts / "bytes.yaml").write_bytes("tau: 3".encode("utf-16-le"))
    has_folder = "hydra.run.dir" in arguments or "-m" in arguments
    where = () if has_folder else (f"hydra.run.dir={tmp_path / 'run'}",)
    line, *output = in_process(run.main, "run", *arguments.split(), *where)
    assert output == ["", ""]
    assert len(line.splitlines()) == 1
    assert line.startswith("error: ")
    assert BAD[arguments] in line
    assert not (tmp_path / "run" / "summary.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("arguments", ["tua=3", "environment=movielens"])
def test_bad_input_ends_in_one_clear_line(arguments, tmp_path):
    where = () if "hydra.run.dir" in arguments else (f"hydra.run.dir={tmp_path / 'run'}",)
    done = call(*arguments.split(), *where)
    assert done.returncode == 1
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    assert BAD[arguments] in lines[0]
    assert done.stdout == ""
    assert not (tmp_path / "run" / "summary.json").exists()


@pytest.mark.slow
def test_an_empty_sweep_is_refused(tmp_path):
    done = call("-m", "seed=range(0)", f"hydra.sweep.dir={tmp_path / 's'}")
    assert done.returncode == 1
    assert done.stderr.strip() == (
        "error: seed=range(0) (from the command line): an empty sweep has no job to run"
    )


@pytest.mark.slow
def test_help_lists_every_setting_with_its_description():
    done = call("--help")
    assert done.returncode == 0
    text = " ".join(done.stdout.split())  # without the breaks of lines
    for entry in hydra_entries():
        assert entry.dotted.removesuffix(".name") in text
        if entry.path[-1] != "name" and entry.dotted not in ("algorithm", "selection"):
            assert entry.help in text
            assert ", ".join(entry.choices) in text


@pytest.mark.slow
def test_truncated_ratings_and_too_few_users(tmp_path, ratings):
    whole = ratings()
    for name, text, reason in (
        ("cut", whole.read_text()[:-8] + "\n", "line"),
        ("few", "1\t1\t5\t0\n2\t1\t5\t0\n", "200"),
    ):
        path = tmp_path / f"{name}.data"
        path.write_text(text)
        done = call(
            "environment=movielens", f"environment.path={path}", f"hydra.run.dir={tmp_path / name}"
        )
        assert done.returncode == 1
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
        assert str(path) in done.stderr
        assert reason in done.stderr


@pytest.mark.slow
def test_a_directory_with_a_run_is_refused(tmp_path):
    arguments = ("num_agents=5", "horizon=10", f"hydra.run.dir={tmp_path / 'run'}")
    assert call(*arguments).returncode == 0
    before = {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()}
    done = call(*arguments)
    assert done.returncode == 1
    assert "already holds a run" in done.stderr
    assert {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()} == before


@pytest.mark.slow
def test_each_run_without_a_directory_gets_its_own(tmp_path):
    for _ in range(2):
        done = call("num_agents=5", "horizon=10", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "final regret" in done.stdout
    assert len(list(tmp_path.glob("outputs/*/*/summary.json"))) == 2


@pytest.mark.slow
def test_a_sweep_runs_every_job_and_reports_the_failed_one(tmp_path):
    done = call("-m", "tau=1,0,2", "num_agents=5", "horizon=10", f"hydra.sweep.dir={tmp_path}")
    assert done.returncode == 1
    assert "job" in done.stderr
    assert "tau=0" in done.stderr
    finished = sorted(tmp_path.glob("*/summary.json"))
    assert [json.loads(path.read_text())["tau"] for path in finished] == [1, 2]
