"""`python -m simulations.run`: what Hydra accepts works; exit status and output as a process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper

from fldb_flower.settings import hydra_entries
from simulations import run

ROOT = Path(__file__).parents[2]
SMALL = ("num_agents=3", "horizon=5", "plot=false")


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


# --- Hydra as it is --------------------------------------------------------------------------


@pytest.fixture
def settings_of(in_process, tmp_path):
    """Return a function that runs a command and returns the settings of its runs by folder."""

    def settings(*words):
        status, _, error = in_process(run.main, "run", *SMALL, *words)
        assert (status, error) == (0, "")
        paths = sorted(path.parent for path in tmp_path.rglob("summary.json"))
        return {path.name: yaml.safe_load((path / "config.yaml").read_text()) for path in paths}

    return settings


@pytest.mark.parametrize("sweep", [(), ("-m",)])
def test_resolvers_give_numbers_and_switches_as_text(settings_of, monkeypatch, sweep):
    """As in an array of Slurm: ``seed=${oc.env:SLURM_ARRAY_TASK_ID}``."""
    for name, text in (("SEED", "7"), ("SIGMA", "0.5"), ("LAMBDA", "1e-3"), ("SWITCH", "True")):
        monkeypatch.setenv(f"FLDB_{name}", text)
    ((_, found),) = settings_of(
        *sweep, "seed=${oc.env:FLDB_SEED}", "environment.sigma=${oc.env:FLDB_SIGMA}",
        "lambda=${oc.env:FLDB_LAMBDA}", "resume=${oc.env:FLDB_SWITCH}", "tau=${seed}",
        "beta_scale=${oc.env:FLDB_NONE,auto}",
    ).items()  # fmt: skip
    assert (found["seed"], found["tau"], found["environment"]["sigma"]) == (7, 7, 0.5)
    assert (found["lambda"], found["beta_scale"]) == (1e-3, "auto")


def test_a_sweep_over_a_glob(settings_of):
    found = settings_of("-m", "algorithm=glob(fldb_*,exclude=*l)")
    assert {each["algorithm"] for each in found.values()} == {"fldb_gd", "fldb_ogd", "fldb_ons"}


def test_a_folder_is_named_by_what_hydra_resolves(settings_of, tmp_path):
    assert [*settings_of("hydra.run.dir='o_${hydra:runtime.choices.algorithm}'")] == ["o_fldb_ogd"]
    subdir = "hydra.sweep.subdir='${hydra:job.override_dirname}'"
    found = settings_of("-m", "tau=1,2", "seed=3", subdir, f"hydra.sweep.dir={tmp_path}/s")
    small = "horizon=5,num_agents=3"
    assert {*found} == {"o_fldb_ogd", *(f"{small},seed=3,tau={tau}" for tau in (1, 2))}
    found = settings_of("-m", "tau=1,2", "hydra.sweep.subdir='n${hydra:job.num}'")
    assert {"n0", "n1"} <= {*found}


def test_the_mode_of_hydra_is_a_sweep_without_m(settings_of, tmp_path):
    assert sorted(
        each["tau"] for each in settings_of("hydra.mode=MULTIRUN", "tau=1,2").values()
    ) == [1, 2]
    mine = tmp_path / "conf" / "experiment"
    mine.mkdir(parents=True)
    text = "# @package _global_\nhydra: {mode: MULTIRUN, sweeper: {params: {tau: '3,4'}}}\n"
    (mine / "mine.yaml").write_text(text)
    found = settings_of("experiment=mine", f"hydra.searchpath=['file://{tmp_path}/conf']")
    assert sorted(each["tau"] for each in found.values()) == [1, 2, 3, 4]


class Middle(Sweeper):
    """The middle of an interval, and of its lower half, in two batches."""

    def setup(self, *, hydra_context, task_function, config):
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments):
        parsed = OverridesParser.create().parse_overrides(arguments)
        others = [each.input_line for each in parsed if not each.is_sweep_override()]
        (interval,) = (each for each in parsed if each.is_sweep_override())
        middle = (interval.value().start + interval.value().end) / 2
        for number, value in enumerate((middle, middle / 2)):
            jobs = [[*others, f"{interval.key_or_group}={value}"]]
            (result,) = self.launcher.launch(jobs, initial_job_idx=number)
            assert result.return_value > 0  # the regret


def test_any_registered_sweeper_may_be_chosen(settings_of, in_process, tmp_path, monkeypatch):
    target = "hydra_plugins.middle.Middle"
    Plugins.instance().class_name_to_class[target] = Middle
    group = ConfigStore.instance().repo["hydra"]["sweeper"]
    monkeypatch.setitem(group, "middle.yaml", None)  # removed after the test
    ConfigStore.instance().store("middle", {"_target_": target}, "hydra/sweeper")
    found = settings_of(
        "-m",
        "hydra/sweeper=middle",
        "environment.sigma=interval(0,1)",
        f"hydra.sweep.dir={tmp_path}/s",
    )
    assert [each["environment"]["sigma"] for each in found.values()] == [0.5, 0.25]
    assert len((tmp_path / "s" / "sweep.csv").read_text().splitlines()) == 3
    _, _, error = in_process(run.main, "run", "--info", "plugins")
    assert not error


# --- processes -------------------------------------------------------------------------------


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


def test_a_refused_run_leaves_no_folder_but_the_one_that_was_named(in_process, tmp_path):
    named = tmp_path / "mine"
    named.mkdir()
    for words in ((), (f"hydra.run.dir={named}",)):
        status, *_ = in_process(run.main, "run", "environment=duels", "environment.path=x", *words)
        assert "x/duels.csv: cannot be read" in status
    assert [*tmp_path.glob("outputs/*/*")] == []
    assert named.is_dir()


@pytest.mark.slow
def test_each_run_has_its_own_directory_and_a_directory_with_a_run_is_refused(tmp_path):
    for _ in range(2):
        done = call("num_agents=5", "horizon=10", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "final regret" in done.stdout
    there = [path.parent for path in tmp_path.glob("outputs/*/*/summary.json")]
    assert len(there) == 2
    before = {each.name: each.read_bytes() for each in there[0].iterdir()}
    done = call("num_agents=5", "horizon=10", f"hydra.run.dir={there[0]}")
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {there[0]} already holds a run")
    assert {each.name: each.read_bytes() for each in there[0].iterdir()} == before
