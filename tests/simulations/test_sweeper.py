"""Jobs of a sweep: which jobs run, where their results are stored, and failures."""

import csv
import json
import os
import re
import signal
import string
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.types import HydraContext, RunMode
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from test_run import ROOT, call

from fldb_flower.errors import SettingsError
from fldb_flower.federation.history import History
from fldb_flower.runs.results import identity
from fldb_flower.settings import from_nested
from simulations.engines import vectorized
from simulations.figures import PANELS, SEEDS, settings_of
from simulations.hydra_config import store_settings
from simulations.run import run
from simulations.saved_runs import NUMBERS, Run
from simulations.sweeps.jobs import SweepCallback, attempt, failure, jobs_without_result
from simulations.sweeps.sweeper import CachingLoader, quoted, register
from simulations.sweeps.tables import curves, report, statistics, statistics_text

LAUNCHERS = [
    "basic",
    pytest.param("joblib", marks=pytest.mark.exhaustive),
    pytest.param("submitit_local", marks=pytest.mark.exhaustive),
]
SMALL = {"num_agents": 4, "horizon": 30}


@pytest.fixture
def hydra_loader():
    store_settings()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        yield GlobalHydra.instance().config_loader()


def sweeper_of(loader, *overrides, folder="/nowhere"):
    """Return the sweeper that Hydra would create, with its arguments."""
    given = [*overrides, f"hydra.sweep.dir={folder}", "hydra.mode=MULTIRUN"]
    config = loader.load_configuration("config", overrides=given, run_mode=RunMode.MULTIRUN)
    register()
    sweeper = Plugins.instance().instantiate_sweeper(
        hydra_context=HydraContext(loader, callbacks=None),
        task_function=lambda _config: None,
        config=config,
    )
    return sweeper, list(config.hydra.overrides.task)


def plan(loader, *overrides, folder="/nowhere"):
    """Return the jobs, the reasons of refused ones by name, and the folders of the jobs."""
    sweeper, arguments = sweeper_of(loader, *overrides, folder=folder)
    found = sweeper.plan(arguments)
    refused = {name: str(error) for name, error in found.refused.items()}
    return list(found.jobs.values()), refused, list(sweeper.folders.values())


def final_regret(**values):
    chosen = from_nested({**SMALL, **values}, "a test")
    history = History(chosen.horizon)
    vectorized.run(chosen, history)
    return history.regret


# --- which jobs there are --------------------------------------------------------------------


def test_the_jobs_are_the_product_of_the_overrides_in_order(hydra_loader):
    jobs, refused, folders = plan(
        hydra_loader, "tau=1,2,4,8", "num_agents=10,50,100", "seed=range(3)"
    )
    assert not refused
    expected = [
        (tau, agents, seed) for tau in (1, 2, 4, 8) for agents in (10, 50, 100) for seed in range(3)
    ]
    assert [(j.settings.tau, j.settings.num_agents, j.settings.seed) for j in jobs] == expected
    assert len(set(folders)) == 36


def test_jobs_with_equal_settings_are_one_job(hydra_loader):
    jobs, *_ = plan(hydra_loader, "tau=choice(1,1,2)", "seed=0,0", "checkpoint_seconds=1,2")
    assert [job.settings.tau for job in jobs] == [1, 2]


def test_settings_without_effect_make_no_further_jobs_and_no_names(hydra_loader, tmp_path, capsys):
    overrides = "algorithm=ldb,fldb_gd,fldb_ogd", "tau=1,5,9", "refit_ratio=1,2"
    sweeper, arguments = sweeper_of(hydra_loader, *overrides, folder=tmp_path)
    found = sweeper.plan(arguments)
    assert not found.refused
    names = [job.name for job in found.jobs.values()]
    assert names == [
        "algorithm=ldb refit_ratio=1", "algorithm=ldb refit_ratio=2", "algorithm=fldb_gd",
        *(f"algorithm=fldb_ogd tau={tau}" for tau in (1, 5, 9)),
    ]  # fmt: skip
    assert [folder.name.rpartition("_")[0] for folder in sweeper.folders.values()] == [
        name.replace("=", "-").replace(" ", "_") for name in names
    ]
    sweeper.launcher = SimpleNamespace(launch=lambda *_batch, **_options: [])
    with pytest.raises(SystemExit):  # no job has a result
        sweeper.sweep(arguments)
    (line,) = [each for each in capsys.readouterr().err.splitlines() if "no effect" in each]
    assert line == (
        "warning: tau: has no effect with algorithm=ldb or algorithm=fldb_gd;"
        " refit_ratio=2.0: has no effect with algorithm=fldb_gd or algorithm=fldb_ogd"
    )
    (job,), *_ = plan(hydra_loader, "algorithm=ldb", "tau=1,5")
    assert job.name == "algorithm=ldb"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["seed=range(100000000000000000000)"], "100,001 or more values of seed (from the"),
        (["seed=shuffle(range(10,200020,2))"], "100,001 or more values of seed"),
        (["alpha=range(1,3e9,0.25)", "tau=1,2"], "100,001 or more values of alpha x 2 values of"),
        (
            ["seed=range(1001)", "tau=range(1,101)", "num_agents=5"],
            "1,001 values of seed x 100 values of tau (from the command line): a sweep",
        ),
    ],
)
def test_too_many_jobs_are_refused_before_they_are_built(hydra_loader, overrides, words):
    with pytest.raises(SettingsError) as error:
        plan(hydra_loader, *overrides)
    assert str(error.value).startswith(words)
    assert "at most 100,000 jobs" in str(error.value)


def test_a_grid_needs_values_that_can_be_listed(hydra_loader):
    with pytest.raises(SettingsError, match=r"alpha=interval\(1,2\) .* a grid needs choices"):
        plan(hydra_loader, "alpha=interval(1,2)")
    with pytest.raises(SettingsError, match=r"^seed .*: a sweep needs at least one value"):
        plan(hydra_loader, "seed=range(0)")
    jobs, *_ = plan(hydra_loader, "schedule=glob(*)")
    assert [job.settings.schedule.name for job in jobs] == ["geometric", "periodic"]


def test_refused_settings_are_named_and_the_others_planned(hydra_loader):
    jobs, refused, _ = plan(hydra_loader, "tau=1,0", "seed=0,1")
    assert [job.settings.tau for job in jobs] == [1, 1]
    assert list(refused) == ["tau=0 seed=0", "tau=0 seed=1"]
    assert all("tau=0" in reason and "at least 1" in reason for reason in refused.values())


@pytest.mark.parametrize("name", PANELS)
def test_a_swept_experiment_is_the_whole_figure(hydra_loader, name):
    ratings = ["environment.path=x"] if name == "fig1d" else []
    jobs, refused, _ = plan(hydra_loader, f"experiment={name}", *ratings)
    wanted = {
        identity(settings_of(name, curve, seed, "x"))
        for curve in PANELS[name].curves.values()
        for seed in SEEDS
    }
    assert not refused
    assert {identity(job.settings) for job in jobs} == wanted
    assert len(jobs) == len(PANELS[name].curves) * len(SEEDS)


def test_an_override_wins_over_the_experiments_sweep(hydra_loader):
    jobs, *_ = plan(hydra_loader, "experiment=fig1a", "seed=7", "algorithm=ldb,fldb_ons")
    found = [(job.settings.algorithm, job.settings.seed, job.settings.num_agents) for job in jobs]
    assert found == [("ldb", 7, 50), ("fldb_ons", 7, 50)]


COMPOSED = [
    ["tau=3"],
    ["environment.sigma=0.5", "seed=2", "hydra.sweep.subdir='a b'"],
    ["algorithm=ldb", "tau=7"],
    ["environment=movielens", "num_arms=5"],
    ["experiment=fig2c", "seed=4"],
    ["schedule=geometric", "schedule.ratio=2", "tau=2"],
    ["lambda=0.5", "lambda=0.25", "robust=trimmed"],
    ["environment.path='/x y/${seed}'", "seed=3"],
    ["++engine.num_nodes=3", "hydra.job.name=x"],
]


@pytest.mark.parametrize("overrides", COMPOSED, ids=" ".join)
def test_the_caching_loader_composes_what_hydra_composes(hydra_loader, overrides):
    master = hydra_loader.load_configuration(
        "config", overrides=["hydra.sweep.dir=/s", "tau=1,2"], run_mode=RunMode.MULTIRUN
    )
    ours = CachingLoader(hydra_loader)
    expected = hydra_loader.load_sweep_config(master, overrides)
    for _ in range(2):  # composed, and from the copy
        found = ours.load_sweep_config(master, overrides)
        assert found.hydra.overrides.task == expected.hydra.overrides.task
        for part in ("job", "sweep", "launcher", "runtime"):
            assert OmegaConf.to_yaml(found.hydra[part]) == OmegaConf.to_yaml(expected.hydra[part])
        values = [OmegaConf.to_container(each, resolve=False) for each in (found, expected)]
        for each in values:
            del each["hydra"]
        assert values[0] == values[1]


# --- names of folders ------------------------------------------------------------------------


def test_the_name_of_a_folder_depends_only_on_its_settings(hydra_loader, tmp_path):
    def folders(*overrides):
        jobs, _, found = plan(hydra_loader, *overrides, folder=tmp_path)
        keys = [(job.settings.tau, job.settings.seed) for job in jobs]
        return dict(zip(keys, found, strict=True))

    few = folders("tau=1,2", "seed=0,1")
    assert re.fullmatch(r"tau-1_seed-0_[0-9a-f]{10}", few[1, 0].name)
    for path in few.values():
        path.mkdir()
    more = folders("seed=0,1,2", "tau=1,2", "resume=true", "node_wait=9")
    assert {key: more[key] for key in few} == few
    assert len(set(more.values())) == 6
    other = folders("tau=1,2", "seed=0,1", "horizon=7")
    assert not set(other.values()) & set(few.values())


def test_odd_values_make_plain_names(hydra_loader):
    path = "environment.path='/a b/ü.data','../x=(1)'"
    _, _, folders = plan(hydra_loader, "environment=movielens", path, "alpha=1e-3,2")
    for folder in folders:
        assert set(folder.name) <= {*string.ascii_letters, *string.digits, *".+_-"}
        assert len(folder.name) <= 100
        assert not folder.name.startswith(".")
        assert str(folder.parent) == "/nowhere"
    assert len(set(folders)) == 4
    _, _, long = plan(hydra_loader, f"environment.path={'x' * 300},y")
    assert all(len(folder.name) <= 100 for folder in long)


def test_a_name_that_the_user_chose_is_kept(hydra_loader):
    subdir = "hydra.sweep.subdir='${hydra.job.num}-${hydra.job.override_dirname}'"
    _, _, folders = plan(hydra_loader, "tau=1,2", subdir)
    assert list(map(str, folders)) == ["/nowhere/0-tau=1", "/nowhere/1-tau=2"]
    with pytest.raises(SettingsError, match="jobs 'tau=1' and 'tau=2' would share this folder"):
        plan(hydra_loader, "tau=1,2", "hydra.sweep.subdir=x")


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1))
@settings(derandomize=True, deadline=None)
def test_quoted_text_is_read_back_by_hydra(text):
    override = f"hydra.sweep.subdir={quoted(text)}"
    assert OverridesParser.create().parse_override(override).value() == text


# --- results of a sweep ------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_an_extended_sweep_agrees_with_single_runs(tmp_path, launcher):
    """The results of an older version are in numbered folders, among other runs and folders."""
    for number, (tau, seed) in enumerate([(1, 0), (1, 1), (2, 0), (2, 1), (3, 0)]):
        run(from_nested({**SMALL, "tau": tau, "seed": seed}, "a test"), tmp_path / str(number))
    (tmp_path / "notes").mkdir()
    before = {path: path.read_bytes() for path in tmp_path.glob("*/*")}
    done = call(
        "-m", f"hydra/launcher={launcher}", "tau=1,2", "seed=0,1,2", "num_agents=4", "horizon=30",
        "resume=true", f"hydra.sweep.dir={tmp_path}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {path: path.read_bytes() for path in before} == before
    table = pd.read_csv(tmp_path / "sweep.csv", dtype={"final_regret": str})
    pairs = [(tau, seed) for tau in (1, 2) for seed in (0, 1, 2)]
    assert list(zip(table.tau, table.seed, strict=True)) == pairs
    expected = [final_regret(tau=tau, seed=seed) for tau, seed in pairs]
    assert [float(text) for text in table.final_regret] == expected
    assert [name for name in table.job if name.isdecimal()] == ["0", "1", "2", "3"]
    assert len(list(tmp_path.glob("tau-*/summary.json"))) == 2
    curves = pd.read_csv(tmp_path / "curves.csv")
    assert (curves.groupby(["tau", "seed"]).size() == 30).all()
    assert len(curves) == 6 * 30


@pytest.mark.slow
def test_a_chosen_folder_with_another_run_is_a_failure_and_no_row(tmp_path):
    """Users may number folders; then the numbers of an extended sweep shift."""
    run(from_nested({**SMALL, "tau": 2}, "a test"), tmp_path / "job-1")
    done = call(
        "-m", "tau=1,4", "num_agents=4", "horizon=30", "resume=true",
        "hydra.sweep.subdir='job-${hydra.job.num}'", f"hydra.sweep.dir={tmp_path}",
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: job tau=4: {tmp_path / 'job-1'} holds a run of other")
    assert pd.read_csv(tmp_path / "sweep.csv").job.to_list() == ["job-0"]


@pytest.mark.slow
def test_several_figures_in_one_sweep_are_refused(tmp_path):
    """Only the last one's curves and seeds would be swept."""
    done = call("-m", "experiment=fig1a,fig1b", "horizon=5", f"hydra.sweep.dir={tmp_path}")
    assert done.returncode == 1
    assert done.stderr.startswith("error: experiment=fig1a,fig1b (from the command line): one ")
    assert "python -m simulations.figures fig1a fig1b" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_without_resume_existing_jobs_are_refused_and_untouched(tmp_path):
    sweep = ("-m", "tau=1,2", "num_agents=4", "horizon=30", f"hydra.sweep.dir={tmp_path}")
    assert call(*sweep).returncode == 0
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    done = call(*sweep)
    assert done.returncode == 1
    assert done.stderr.strip() == (
        f"error: {tmp_path} holds runs of 2 of the 2 jobs: add resume=true to use them, or name"
        " another hydra.sweep.dir"
    )
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.slow
def test_invalid_common_settings_are_refused_once(tmp_path):
    done = call("-m", "experiment=fig1d", f"hydra.sweep.dir={tmp_path / 's'}")
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1
    assert "environment.path is empty" in done.stderr
    assert not (tmp_path / "s").exists()


@pytest.mark.slow
def test_jobs_draw_their_pictures_on_request_and_single_runs_by_default(tmp_path):
    small = ("num_agents=4", "horizon=30")
    assert call("-m", *small, f"hydra.sweep.dir={tmp_path / 'few'}").returncode == 0
    assert not list(tmp_path.glob("few/*/regret.png"))
    assert call("-m", *small, "plot=true", f"hydra.sweep.dir={tmp_path / 'all'}").returncode == 0
    assert len(list(tmp_path.glob("all/*/regret.png"))) == 1
    done = call(*small, "plot=false", f"hydra.run.dir={tmp_path / 'one'}")
    assert done.returncode == 0
    assert "regret.png" not in done.stdout
    assert {path.name for path in (tmp_path / "one").iterdir()} == {
        "config.yaml", "model.json", "prediction.csv", "regret.csv", "summary.json",
    }  # fmt: skip


@pytest.mark.slow
def test_a_sweep_prints_a_table_and_few_lines(tmp_path):
    done = call(
        "-m", "tau=1,2", "seed=range(4)", "num_agents=4", "horizon=30",
        f"hydra.sweep.dir={tmp_path}",
    )  # fmt: skip
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert len(lines) <= 6
    assert lines[2].split() == [
        "tau", "mean", "std.", "error", "median", "log_loss", "accuracy", "seeds",
    ]  # fmt: skip
    for tau, line in zip((1, 2), lines[3:5], strict=True):
        values = np.array([final_regret(tau=tau, seed=seed) for seed in range(4)])
        error = values.std(ddof=1) / 2
        *numbers, loss, accuracy, seeds = map(float, line.split())
        expected = [tau, values.mean(), error, np.median(values)]
        np.testing.assert_allclose(numbers, expected, rtol=1e-5)
        assert (loss > 0, 0 < accuracy < 1, seeds) == (True, True, 4)
    assert str(tmp_path) in lines[5]


def made_up(tmp_path, final, scores=(), **chosen):
    settings = {"tau": 1, "seed": 0, "schedule.name": "periodic", **chosen}
    return Run(tmp_path, settings, {"final_regret": final, **dict(scores)}, pd.DataFrame())


def test_statistics_by_hand(tmp_path):
    """Values 1, 2, 6: mean 3, deviation sqrt(7), standard error sqrt(7 / 3), median 2."""
    scores = [{"log_loss": 2.0, "accuracy": 0.5}, {"log_loss": 3.0, "accuracy": 0.5}, {}]
    runs = [
        made_up(tmp_path, value, score, seed=seed)
        for seed, (value, score) in enumerate(zip([1.0, 2.0, 6.0], scores, strict=True))
    ]
    table = statistics([*runs, made_up(tmp_path, 5.0, tau=2)])
    assert table.columns.to_list() == [
        "tau", "mean", "std. error", "median", "log_loss", "accuracy", "seeds"
    ]  # fmt: skip
    np.testing.assert_allclose(table.iloc[0], [1, 3, np.sqrt(7 / 3), 2, 2.5, 0.5, 3])
    np.testing.assert_allclose(table.iloc[1], [2, 5, np.nan, 5, np.nan, np.nan, 1])


def test_a_long_table_is_cut(tmp_path):
    runs = [made_up(tmp_path, 1.0, tau=tau) for tau in range(1, 101)]
    lines = statistics_text(runs).splitlines()
    assert len(lines) == 63
    assert lines[-1] == "... and 40 more configurations in sweep.csv"


def test_the_tables_have_no_value_of_a_setting_without_effect(tmp_path):
    values = [("ldb", 1), ("fldb_ogd", 1), ("fldb_ogd", 2)]
    runs = [
        Run(tmp_path / name, {"algorithm": name, "tau": tau, "schedule.name": "periodic"},
            dict.fromkeys(NUMBERS, 1) | {"rounds": 1},
            pd.DataFrame({"iteration": [1], "cumulative_regret": [2.0]}))
        for name, tau in values
    ]  # fmt: skip
    report(runs, [], tmp_path, ["algorithm", "tau"])
    lines = statistics_text(runs).splitlines()[2:]
    assert [line.split()[:2] for line in lines] == [
        ["ldb", "-"], ["fldb_ogd", "1"], ["fldb_ogd", "2"],
    ]  # fmt: skip
    for file in ("sweep.csv", "curves.csv"):
        with (tmp_path / file).open() as rows:
            assert [row["tau"] for row in csv.DictReader(rows)] == ["", "1", "2"]
    report(runs[1:2], [], tmp_path, ["tau"])  # the only swept value with a result has its column
    assert pd.read_csv(tmp_path / "sweep.csv").tau.to_list() == [1]


def test_the_guide_describes_the_file_of_curves(tmp_path):
    """One curve per job, not one per configuration: its columns are those that the page names."""
    page = (ROOT / "docs" / "howto" / "sweeps.md").read_text()
    _, content = re.search(r"^\| (`curves\.csv`) \| (.*) \|$", page, re.MULTILINE).groups()
    curve = pd.DataFrame({"iteration": [1, 2], "cumulative_regret": [2.0, 3.0], "exchanges": 1})
    runs = [Run(tmp_path, {"tau": 1, "seed": seed}, {}, curve) for seed in range(3)]
    table = curves(runs, ["tau", "seed"])
    assert re.findall(r"`(\w+)`", content) == [
        name for name in table.columns if name not in ("tau", "seed")
    ]
    assert content.startswith("one curve per job: its settings")
    assert table["seed"].value_counts().to_dict() == {0: 2, 1: 2, 2: 2}


# --- failures ------------------------------------------------------------------------------------

BROKEN = """
import os
import simulations.engines.vectorized as engine

original = engine.run

def run(settings, *rest):
    if settings.seed == 1:
        {failure}
    return original(settings, *rest)

engine.run = run
"""


def call_broken(tmp_path, failure, *arguments):
    """Run with an engine that fails for seed 1, in any process."""
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "sitecustomize.py").write_text(BROKEN.format(failure=failure))
    path = os.pathsep.join([str(modules), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-m", "simulations.run", *arguments, "num_agents=4", "horizon=30"],
        check=False, capture_output=True, text=True, cwd=ROOT, timeout=300,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_an_unexpected_exception_fails_only_one_job(tmp_path, launcher):
    sweep = tmp_path / "s"
    done = call_broken(
        tmp_path, "raise IndexError('no arm 7\\nof 5')", "-m", "seed=0,1,2",
        f"hydra/launcher={launcher}", f"hydra.sweep.dir={sweep}",
    )  # fmt: skip
    assert done.returncode == 1
    (trace,) = sweep.glob("*/error.txt")
    assert trace.parent.name.startswith("seed-1_")
    assert done.stderr.strip() == (
        f"error: job seed=1: IndexError: no arm 7\\nof 5 (trace: {trace})"
    )
    assert "Traceback (most recent call last)" in trace.read_text()
    assert list(pd.read_csv(sweep / "sweep.csv").seed) == [0, 2]
    # Without the fault the job runs, and the record of the failure is deleted.
    again = call(
        "-m", "seed=0,1,2", "num_agents=4", "horizon=30", "resume=true", f"hydra.sweep.dir={sweep}"
    )
    assert again.returncode == 0, again.stderr
    assert list(pd.read_csv(sweep / "sweep.csv").seed) == [0, 1, 2]
    assert not trace.exists()


@pytest.mark.slow
def test_a_killed_worker_does_not_affect_other_results(tmp_path):
    run(from_nested({**SMALL, "seed": 0}, "a test"), tmp_path / "s" / "0")
    done = call_broken(
        tmp_path, "os._exit(9)", "-m", "seed=0,1,2,3", "resume=true", "hydra/launcher=joblib",
        "hydra.launcher.n_jobs=2", f"hydra.sweep.dir={tmp_path / 's'}",
    )  # fmt: skip
    assert done.returncode == 1
    table = pd.read_csv(tmp_path / "s" / "sweep.csv", dtype=str)
    texts = [(tmp_path / "s" / job / "summary.json").read_text() for job in table.job]
    finished = {json.loads(text)["seed"] for text in texts}
    named = {int(seed) for seed in re.findall("error: job seed=([0-9]): ", done.stderr)}
    assert 0 in finished
    assert 1 in named
    assert sorted([*finished, *named]) == [0, 1, 2, 3]
    assert "error: the launcher failed: TerminatedWorkerError: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_single_run_shows_the_trace_of_an_unexpected_exception(tmp_path):
    done = call_broken(
        tmp_path, "raise IndexError('no arm 7')", "seed=1", f"hydra.run.dir={tmp_path / 'r'}"
    )
    assert done.returncode == 1
    assert "Traceback (most recent call last)" in done.stderr
    assert "IndexError: no arm 7" in done.stderr


def test_an_exception_of_a_job_is_recorded_or_propagated(tmp_path):
    def raising(error):
        def work():
            print("not shown")
            raise error

        return work

    assert attempt(raising(SettingsError("tau=0: no")), tmp_path, tmp_path) is None
    assert failure(tmp_path) == "tau=0: no"
    assert attempt(raising(MemoryError()), tmp_path, tmp_path) is None
    assert failure(tmp_path) == f"MemoryError (trace: {tmp_path / 'error.txt'})"
    for error in (KeyboardInterrupt(), SystemExit(3)):
        with pytest.raises(type(error)):
            attempt(raising(error), tmp_path, tmp_path)
    (tmp_path / "summary.json").write_text('{"final_regret": 2.5}')
    assert attempt(lambda: None, tmp_path, tmp_path) == 2.5
    assert failure(tmp_path) is None
    (tmp_path / "stop").touch()
    assert attempt(lambda: pytest.fail("it began"), tmp_path / "job", tmp_path) is None


# --- other sweepers ------------------------------------------------------------------------------


def test_another_sweepers_tables_hold_each_distinct_run_once(tmp_path, capsys):
    for name, seed in (("0", 0), ("1", 1), ("again", 1)):
        run(from_nested({**SMALL, "seed": seed}, "a test"), tmp_path / name)
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "error.txt").write_text("tau=0: must be at least 1\n")
    capsys.readouterr()
    config = OmegaConf.create(
        {"hydra": {"sweep": {"dir": str(tmp_path)}, "sweeper": {"_target_": "a.Sweeper"}}}
    )
    jobs_without_result.clear()
    SweepCallback().on_multirun_end(config)
    assert list(pd.read_csv(tmp_path / "sweep.csv").job.astype(str)) == ["0", "1"]
    assert jobs_without_result == ["2: tau=0: must be at least 1"]
    assert "error: job 2: tau=0: must be at least 1" in capsys.readouterr().err
    jobs_without_result.clear()


# --- stopping ------------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize("launcher", ["joblib", "submitit_local"])
def test_ctrl_c_stops_a_parallel_sweep_which_resumes_with_the_same_bytes(tmp_path, launcher):
    """A terminal sends SIGINT to every process of the group."""
    jobs = ["-m", "seed=0,1,2,3", "num_agents=100", "horizon=600", "tau=1"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert call(*jobs, f"hydra.sweep.dir={whole}").returncode == 0
    command = [sys.executable, "-m", "simulations.run", *jobs, f"hydra.sweep.dir={cut}"]
    process = subprocess.Popen(
        [*command, f"hydra/launcher={launcher}"], cwd=ROOT, start_new_session=True, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    deadline = time.monotonic() + 90
    while not list(cut.glob("*/config.yaml")) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=300)
    finished = {path: path.stat().st_mtime_ns for path in cut.glob("*/summary.json")}
    assert process.returncode == 128 + signal.SIGINT, error
    done = f"{len(finished)} of 4 jobs are finished" if finished else "no job is finished"
    command = f"the same command with resume=true hydra.sweep.dir={cut} runs "
    assert error.startswith(f"stopped: {done}; {command}")
    assert len(error.splitlines()) == 1
    assert len(finished) < 4
    assert not list(cut.rglob("stop"))
    done = call(*jobs, "resume=true", f"hydra.sweep.dir={cut}")
    assert done.returncode == 0, done.stderr
    assert all(path.stat().st_mtime_ns == then for path, then in finished.items())
    assert (cut / "curves.csv").read_bytes() == (whole / "curves.csv").read_bytes()
