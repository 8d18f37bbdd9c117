"""Tests of the commands for sweeps and figures."""

import signal
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from test_run import ROOT, call, signalled

from fldb_flower.federation.history import History
from fldb_flower.settings import from_nested, hydra_entries
from simulations.engines import vectorized
from simulations.figures import PANELS
from simulations.hydra_config import store_settings

CONF = ROOT / "conf"
SWEEP = ("-m", "tau=1,4", "num_agents=5,9", "seed=0,1", "horizon=40")


def composed(*overrides):
    store_settings()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", overrides=list(overrides))
    return OmegaConf.to_container(config, resolve=True)


CHOICES = {
    f"{entry.path[0]}={name}"
    for entry in hydra_entries()
    if entry.path[-1] == "name" or entry.dotted in {"algorithm", "selection"}
    for name in entry.choices
}
FILES = {f"{file.parent.name}={file.stem}" for file in CONF.glob("*/*.yaml")}


@pytest.mark.parametrize("choice", sorted(CHOICES | FILES))
def test_every_config_composes_into_valid_settings(choice, tmp_path):
    extra = ["+environment.path=x"] if "movielens" in choice or "fig1d" in choice else []
    if choice == "environment=duels":
        (tmp_path / "arms.csv").write_text("arm,x\na,1\nb,0\nc,0\nd,2\n")
        (tmp_path / "duels.csv").write_text("person,first,second,preference\np,a,b,1\n")
        extra = [f"environment.path={tmp_path}"]
    values = composed(choice, *[text.removeprefix("+") for text in extra])
    settings = from_nested(values, "a test")
    group, _, name = choice.partition("=")
    if group in ("environment", "engine", "schedule"):
        assert getattr(settings, group).name == name
    elif group in ("algorithm", "selection"):
        assert getattr(settings, group) == name


def test_each_figure_has_its_experiment_and_the_papers_settings():
    experiments = {file.stem for file in (CONF / "experiment").glob("*.yaml")}
    assert experiments == {*PANELS, "heterogeneity"}
    fig1c = from_nested(composed("experiment=fig1c"), "a test")
    assert (fig1c.num_agents, fig1c.tau, fig1c.num_arms, fig1c.dimension) == (100, 2, 10, 5)
    # App. B: T = 500, lambda = 1 / T, alpha = 1000.
    assert (fig1c.horizon, fig1c.ridge, fig1c.alpha) == (500, 1 / 500, 1000)


def sweep(folder, *more):
    return call(*SWEEP, f"hydra.sweep.dir={folder}", *more)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Run the sweep once for several tests."""
    folder = tmp_path_factory.mktemp("sweep") / "whole"
    done = sweep(folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.xdist_group("sweep")
def test_a_sweep_leaves_a_table_curves_and_a_picture(whole):
    table = pd.read_csv(whole / "sweep.csv")
    assert len(table) == 8
    assert {"tau", "num_agents", "seed", "final_regret", "exchanges", "runtime_seconds"} <= set(
        table.columns
    )
    assert sorted(zip(table.tau, table.num_agents, table.seed, strict=True)) == [
        (tau, agents, seed) for tau in (1, 4) for agents in (5, 9) for seed in (0, 1)
    ]
    for row in table.itertuples():
        regret = pd.read_csv(whole / str(row.job) / "regret.csv")
        assert row.final_regret == regret.cumulative_regret.iloc[-1]
    curves = pd.read_csv(whole / "curves.csv")
    assert len(curves) == 8 * 40
    assert (whole / "sweep.png").stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.xdist_group("sweep")
def test_joblib_gives_the_same_results_and_reports_failures(whole, tmp_path):
    joblib = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    assert sweep(tmp_path / "joblib", *joblib).returncode == 0
    for job in pd.read_csv(whole / "sweep.csv").job:
        basic, parallel = (
            (folder / job / "regret.csv").read_bytes() for folder in (whole, tmp_path / "joblib")
        )
        assert basic == parallel
    bad = ("-m", "tau=1,0", "horizon=5", f"hydra.sweep.dir={tmp_path / 'bad'}", *joblib)
    done = call(*bad)
    assert done.returncode == 1
    assert "tau=0" in done.stderr
    assert len(list((tmp_path / "bad").glob("tau-1_*/summary.json"))) == 1


@pytest.mark.slow
@pytest.mark.xdist_group("sweep")
def test_a_killed_sweep_resumes_with_the_same_bytes(whole, tmp_path):
    cut = tmp_path / "cut"
    command = [sys.executable, "-m", "simulations.run", *SWEEP, f"hydra.sweep.dir={cut}"]
    killed = signalled(tmp_path, signal.SIGKILL, r"summary\.json$", 4)
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, env=killed, check=False)
    assert done.returncode == -signal.SIGKILL
    finished = {path: path.stat().st_mtime_ns for path in cut.glob("*/summary.json")}
    assert len(finished) == 3
    done = sweep(cut, "resume=true")
    assert done.returncode == 0, done.stderr
    assert all(path.stat().st_mtime_ns == then for path, then in finished.items())
    jobs = [path.parent.name for path in whole.glob("*/regret.csv")]
    assert len(jobs) == 8
    for name in ["curves.csv", *(f"{job}/regret.csv" for job in jobs)]:
        assert (cut / name).read_bytes() == (whole / name).read_bytes(), name
    untimed = [
        pd.read_csv(folder / "sweep.csv").drop(columns="runtime_seconds") for folder in (whole, cut)
    ]
    pd.testing.assert_frame_equal(*untimed)


def figures(*arguments):
    command = [sys.executable, "-m", "simulations.figures", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.exhaustive
def test_the_curves_of_a_figure(tmp_path):
    assert figures("fig1a", "--output", str(tmp_path)).returncode == 0
    table = pd.read_csv(tmp_path / "fig1a.csv")
    assert set(table.curve) == {"LDB", "FLDB-OGD", "FLDB-GD"}
    assert set(table.seed) == {0, 1, 2}
    assert table.iteration.max() == 500
    assert (tmp_path / "fig1a.png").stat().st_size > 10_000
    # The paper's claim for Fig. 1a: collaboration helps, and FLDB-GD helps more.
    final = table[table.iteration == 500].groupby("curve").cumulative_regret.mean()
    assert final["FLDB-GD"] < final["FLDB-OGD"] < final["LDB"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [(("fig9z",), "no figure 'fig9z'"), (("fig1d",), "--movielens PATH")],
)
def test_figures_bad_input(tmp_path, arguments, reason):
    done = figures(*arguments, "--output", str(tmp_path / "f"))
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert reason in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def final_regrets(*, seeds=10, **values):
    results = []
    for seed in range(seeds):
        settings = from_nested({"tau": 1, "horizon": 200, "seed": seed, **values}, "a test")
        history = History(settings.horizon)
        vectorized.run(settings, history)
        results.append(history.regret)
    return np.array(results)


def rises(lower, higher, errors=2.0):
    difference = higher - lower
    standard_error = difference.std(ddof=1) / np.sqrt(len(difference))
    return difference.mean() > errors * standard_error


def test_the_papers_claims_at_smaller_scale():
    """Regret falls with N, rises with sigma and (paired by seed) with tau."""
    by_agents = [final_regrets(num_agents=agents) for agents in (20, 60, 180)]
    assert rises(by_agents[2], by_agents[1])
    assert rises(by_agents[1], by_agents[0])
    by_sigma = [
        final_regrets(algorithm="fldb_ons", num_arms=5, environment={"sigma": sigma})
        for sigma in (0.1, 0.316, 0.5)
    ]
    assert rises(by_sigma[0], by_sigma[1])
    assert rises(by_sigma[1], by_sigma[2])
    by_tau = [final_regrets(tau=tau, num_agents=100) for tau in (1, 8)]
    assert rises(by_tau[0], by_tau[1])


@pytest.mark.exhaustive
def test_regret_falls_with_tau_if_steps_are_counted_in_rounds():
    """As Algorithm 1 prints the step size; 25 seeds show the difference."""
    reading = {"num_agents": 100, "step_index": "round", "horizon": 500, "seeds": 25}
    as_printed = [final_regrets(tau=tau, **reading) for tau in (1, 8)]
    assert rises(as_printed[1], as_printed[0])


@pytest.mark.slow
def test_a_sweep_in_a_terminal_shows_a_progress_bar(tmp_path):
    """In a terminal, which `script` provides."""
    command = f"{sys.executable} -m simulations.run {' '.join(SWEEP)} hydra.sweep.dir={tmp_path}/s"
    done = subprocess.run(
        ["script", "-qec", f"stty rows 24 cols 100; {command}", "/dev/null"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "8/8" in done.stdout


@pytest.mark.exhaustive
def test_the_slurm_launcher_runs_as_far_as_one_machine_can(tmp_path):
    """submitit's local executor starts each job like Slurm, in a separate process."""
    done = call(
        "-m", "seed=0,1", "num_agents=5", "horizon=40", "hydra/launcher=submitit_local",
        f"hydra.sweep.dir={tmp_path}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(pd.read_csv(tmp_path / "sweep.csv")) == 2
    launcher = composed_hydra("hydra/launcher=slurm").launcher
    assert launcher._target_.endswith("SlurmLauncher")
    assert (launcher.timeout_min, launcher.array_parallelism) == (30, 100)


def composed_hydra(*overrides):
    store_settings()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", overrides=list(overrides), return_hydra_config=True).hydra
