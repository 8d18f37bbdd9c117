"""Sweeps: their configuration, which jobs run, where results are stored, tables and failures."""

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
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.types import HydraContext, RunMode
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from test_run import ROOT, call, signalled

from fldb_flower.errors import SettingsError
from fldb_flower.federation.history import History
from fldb_flower.runs.results import identity
from fldb_flower.settings import from_nested, hydra_entries
from simulations.engines import vectorized
from simulations.figures import PANELS, SEEDS, curves_of, settings_of
from simulations.hydra_config import store_settings
from simulations.run import run
from simulations.saved_runs import NUMBERS, Run
from simulations.sweeps.jobs import SweepCallback, attempt, failure
from simulations.sweeps.sweeper import CachingLoader, quoted, register
from simulations.sweeps.tables import curves, report, statistics, statistics_text

CONF = ROOT / "conf"
SMALL = {"num_agents": 4, "horizon": 30}
SIZES = ("num_agents=4", "horizon=30")
LAUNCHERS = [
    "basic",
    pytest.param("joblib", marks=pytest.mark.exhaustive),
    pytest.param("submitit_local", marks=pytest.mark.exhaustive),
]


@pytest.fixture
def hydra_loader():
    store_settings()
    with initialize_config_dir(str(CONF), version_base="1.3"):
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
    jobs = list(found.jobs.values())
    return jobs, refused, [job.folder for job in jobs]


def final_regret(**values):
    chosen = from_nested({**SMALL, **values}, "a test")
    history = History(chosen.horizon)
    vectorized.run(chosen, history)
    return history.regret


# --- configuration ---------------------------------------------------------------------------


def composed(*overrides, **options):
    store_settings()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", overrides=list(overrides), **options)


def test_every_config_composes_into_valid_settings(tmp_path):
    (tmp_path / "arms.csv").write_text("arm,x\na,1\nb,0\nc,0\nd,2\n")
    (tmp_path / "duels.csv").write_text("person,first,second,preference\np,a,b,1\n")
    choices = {
        f"{entry.path[0]}={name}"
        for entry in hydra_entries()
        if entry.path[-1] == "name" or entry.dotted in {"algorithm", "selection"}
        for name in entry.choices
    }
    files = {f"{file.parent.name}={file.stem}" for file in CONF.glob("*/*.yaml")}
    assert len(choices | files) > 35
    for choice in sorted(choices | files):
        needs_path = choice in {"environment=movielens", "environment=duels", "experiment=fig1d"}
        config = composed(choice, *([f"environment.path={tmp_path}"] if needs_path else []))
        chosen = from_nested(OmegaConf.to_container(config, resolve=True), "a test")
        group, _, name = choice.partition("=")
        if group != "experiment":
            found = getattr(chosen, group)
            assert name == (found if isinstance(found, str) else found.name)


def test_each_figure_has_its_experiment_and_the_papers_settings():
    experiments = {file.stem for file in (CONF / "experiment").glob("*.yaml")}
    assert experiments == {*PANELS, "people", "heterogeneity"}
    fig1c = from_nested(OmegaConf.to_container(composed("experiment=fig1c")), "a test")
    assert (fig1c.num_agents, fig1c.tau, fig1c.num_arms, fig1c.dimension) == (100, 2, 10, 5)
    # App. B: T = 500, lambda = 1 / T, alpha = 1000.
    assert (fig1c.horizon, fig1c.ridge, fig1c.alpha) == (500, 1 / 500, 1000)


def test_the_launcher_of_slurm_has_limits():
    launcher = composed("hydra/launcher=slurm", return_hydra_config=True).hydra.launcher
    assert launcher._target_.endswith("SlurmLauncher")
    assert (launcher.timeout_min, launcher.array_parallelism) == (30, 100)


# --- which jobs there are --------------------------------------------------------------------


def test_the_jobs_are_the_distinct_products_of_the_overrides_in_order(hydra_loader):
    jobs, refused, folders = plan(
        hydra_loader, "tau=1,2,4,8", "num_agents=10,50,100", "seed=range(3)"
    )
    assert not refused
    expected = [
        (tau, agents, seed) for tau in (1, 2, 4, 8) for agents in (10, 50, 100) for seed in range(3)
    ]
    assert [(j.settings.tau, j.settings.num_agents, j.settings.seed) for j in jobs] == expected
    assert len(set(folders)) == 36
    jobs, *_ = plan(hydra_loader, "tau=choice(1,1,2)", "seed=0,0", "checkpoint_seconds=1,2")
    assert [job.settings.tau for job in jobs] == [1, 2]
    jobs, refused, _ = plan(hydra_loader, "tau=1,0", "seed=0,1")
    assert [job.settings.tau for job in jobs] == [1, 1]
    assert list(refused) == ["tau=0 seed=0", "tau=0 seed=1"]
    assert all("tau=0" in reason and "at least 1" in reason for reason in refused.values())


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
    assert [job.folder.name.rpartition("_")[0] for job in found.jobs.values()] == [
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


def test_sweeps_without_values_or_with_too_many_are_refused_before_jobs_are_built(hydra_loader):
    huge = "100,001 or more values of seed"
    for overrides, words in (
        (["seed=range(100000000000000000000)"], f"{huge} (from the command line): a sweep has at "),
        (["seed=shuffle(range(10,200020,2))"], huge),
        (["alpha=range(1,3e9,0.25)", "tau=1,2"], "100,001 or more values of alpha x 2 values of"),
        (
            ["seed=range(1001)", "tau=range(1,101)", "num_agents=5"],
            "1,001 values of seed x 100 values of tau (from the command line): a sweep has at most"
            " 100,000 jobs",
        ),
        (["alpha=interval(1,2)"], "alpha=interval(1,2) (from the command line): a grid needs"),
        (["seed=range(0)"], "seed (from the command line): a sweep needs at least one value"),
        (
            ["tau=1,2", "hydra.sweep.subdir=x"],
            "hydra.sweep.subdir=x: jobs 'tau=1' and 'tau=2' would share this folder",
        ),
    ):
        with pytest.raises(SettingsError) as error:
            plan(hydra_loader, *overrides)
        assert str(error.value).startswith(words)
    jobs, *_ = plan(hydra_loader, "schedule=glob(*)")
    assert [job.settings.schedule.name for job in jobs] == ["geometric", "periodic"]


def test_a_swept_experiment_is_the_whole_figure(hydra_loader):
    for name in PANELS:
        ratings = ["environment.path=x"] if name == "fig1d" else []
        jobs, refused, _ = plan(hydra_loader, f"experiment={name}", *ratings)
        wanted = {
            identity(settings_of(name, curve, seed, "x"))
            for curve in curves_of(name, ours=False).values()
            for seed in range(SEEDS)
        }
        assert not refused
        assert {identity(job.settings) for job in jobs} == wanted
        assert len(jobs) == len(curves_of(name, ours=False)) * SEEDS
    jobs, *_ = plan(hydra_loader, "experiment=fig1a", "seed=7", "algorithm=ldb,fldb_ons")
    found = [(job.settings.algorithm, job.settings.seed, job.settings.num_agents) for job in jobs]
    assert found == [("ldb", 7, 50), ("fldb_ons", 7, 50)]  # an override wins


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


def test_the_caching_loader_composes_what_hydra_composes(hydra_loader):
    master = hydra_loader.load_configuration(
        "config", overrides=["hydra.sweep.dir=/s", "tau=1,2"], run_mode=RunMode.MULTIRUN
    )
    ours = CachingLoader(hydra_loader)
    for overrides in [*COMPOSED, *COMPOSED]:  # composed, and from the copy
        expected = hydra_loader.load_sweep_config(master, overrides)
        found = ours.load_sweep_config(master, overrides)
        assert found.hydra.overrides.task == expected.hydra.overrides.task, overrides
        for part in ("job", "sweep", "launcher", "runtime"):
            assert OmegaConf.to_yaml(found.hydra[part]) == OmegaConf.to_yaml(expected.hydra[part])
        values = [OmegaConf.to_container(each, resolve=False) for each in (found, expected)]
        for each in values:
            del each["hydra"]
        assert values[0] == values[1], overrides


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


def test_odd_values_make_plain_names_and_a_name_that_the_user_chose_is_kept(hydra_loader):
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
    subdir = "hydra.sweep.subdir='${hydra.job.num}-${hydra.job.override_dirname}'"
    _, _, folders = plan(hydra_loader, "tau=1,2", subdir)
    assert list(map(str, folders)) == ["/nowhere/0-tau=1", "/nowhere/1-tau=2"]


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1))
@settings(derandomize=True, deadline=None)
def test_quoted_text_is_read_back_by_hydra(text):
    override = f"hydra.sweep.subdir={quoted(text)}"
    assert OverridesParser.create().parse_override(override).value() == text


# --- results of a sweep ----------------------------------------------------------------------

SWEEP = ("-m", "tau=1,2", "seed=0,1,2", *SIZES)
PAIRS = [(tau, seed) for tau in (1, 2) for seed in (0, 1, 2)]


def sweep(folder, *more, words=SWEEP):
    return call(*words, f"hydra.sweep.dir={folder}", *more)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Run the sweep once for several tests; return its folder and its output."""
    folder = tmp_path_factory.mktemp("sweep") / "whole"
    done = sweep(folder)
    assert (done.returncode, done.stderr) == (0, "")
    return folder, done.stdout


@pytest.mark.slow
@pytest.mark.xdist_group("sweep")
def test_a_sweep_leaves_tables_of_its_jobs_and_a_picture(swept):
    whole, output = swept
    table = pd.read_csv(whole / "sweep.csv")
    assert list(zip(table.tau, table.seed, strict=True)) == PAIRS
    assert {"exchanges", "uploaded_bytes", "runtime_seconds"} <= set(table.columns)
    assert table.final_regret.tolist() == [final_regret(tau=t, seed=s) for t, s in PAIRS]
    for row in table.itertuples():
        regret = pd.read_csv(whole / str(row.job) / "regret.csv")
        assert row.final_regret == regret.cumulative_regret.iloc[-1]
        assert not (whole / str(row.job) / "regret.png").exists()  # on request only
    rows = pd.read_csv(whole / "curves.csv")
    assert rows.groupby(["tau", "seed"]).size().to_dict() == dict.fromkeys(PAIRS, 30)
    assert (whole / "sweep.png").stat().st_size > 10_000
    lines = output.splitlines()
    assert len(lines) <= 6
    assert lines[2].split() == ["tau", "mean", "std.", "error", "exchanges", "seeds"]
    for tau, line in zip((1, 2), lines[3:5], strict=True):
        own = table[table.tau == tau]
        regret = own.final_regret
        expected = [tau, regret.mean(), regret.std() / 3**0.5, own.exchanges.mean(), 3]
        np.testing.assert_allclose([*map(float, line.split())], expected, atol=0.051, rtol=0)
    assert str(whole) in lines[5]


@pytest.mark.slow
@pytest.mark.xdist_group("sweep")
def test_without_resume_existing_jobs_are_refused_and_untouched(swept):
    whole, _ = swept
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*")}
    done = sweep(whole)
    assert done.returncode == 1
    assert done.stderr.strip() == (
        f"error: {whole} holds runs of 6 of the 6 jobs: add resume=true to use them, or name"
        " another hydra.sweep.dir"
    )
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*")} == before


@pytest.mark.slow
@pytest.mark.xdist_group("sweep")
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_an_extended_sweep_has_the_same_bytes_and_keeps_finished_jobs(swept, tmp_path, launcher):
    whole, _ = swept
    (tmp_path / "notes").mkdir()
    done = sweep(tmp_path, words=("-m", "tau=1,0,2,3", "seed=0", *SIZES))
    assert done.returncode == 1
    assert done.stderr.startswith("error: job tau=0: tau=0 (from the command line")
    before = {path: path.read_bytes() for path in tmp_path.glob("*/*")}
    done = sweep(tmp_path, f"hydra/launcher={launcher}", "resume=true")
    assert done.returncode == 0, done.stderr
    assert {path: path.read_bytes() for path in before} == before
    assert len(list(tmp_path.glob("tau-*/summary.json"))) == 7
    assert (tmp_path / "curves.csv").read_bytes() == (whole / "curves.csv").read_bytes()
    tables = [
        pd.read_csv(folder / "sweep.csv").drop(columns=["job", "runtime_seconds"])
        for folder in (whole, tmp_path)
    ]
    pd.testing.assert_frame_equal(*tables)


@pytest.mark.slow
@pytest.mark.xdist_group("sweep")
def test_a_killed_sweep_resumes_with_the_same_bytes(swept, tmp_path):
    whole, _ = swept
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
    names = [str(path.relative_to(whole)) for path in whole.glob("*/regret.csv")]
    assert len(names) == 6
    for name in ["curves.csv", *names]:
        assert (cut / name).read_bytes() == (whole / name).read_bytes(), name


@pytest.mark.slow
def test_a_chosen_folder_with_another_run_is_a_failure_and_no_row(tmp_path):
    """Users may number folders; then the numbers of an extended sweep shift."""
    run(from_nested({**SMALL, "tau": 2}, "a test"), tmp_path / "job-1")
    numbered = "hydra.sweep.subdir='job-${hydra.job.num}'"
    done = sweep(tmp_path, "resume=true", numbered, words=("-m", "tau=1,4", *SIZES))
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: job tau=4: {tmp_path / 'job-1'} holds a run of other")
    assert pd.read_csv(tmp_path / "sweep.csv").job.to_list() == ["job-0"]


@pytest.mark.slow
def test_errors_of_a_whole_sweep_are_one_line(tmp_path):
    for words, reason in (
        (["experiment=fig1a,fig1b"], "experiment=fig1a,fig1b (from the command line): one "),
        (["experiment=fig1d"], "environment.path is empty"),
    ):
        done = call("-m", *words, f"hydra.sweep.dir={tmp_path / 's'}")
        assert done.returncode == 1
        assert len(done.stderr.splitlines()) == 1
        assert reason in done.stderr
        assert not (tmp_path / "s").exists()


@pytest.mark.slow
def test_jobs_draw_their_pictures_on_request_and_single_runs_by_default(tmp_path):
    assert call("-m", *SIZES, "plot=true", f"hydra.sweep.dir={tmp_path / 'all'}").returncode == 0
    assert len(list(tmp_path.glob("all/*/regret.png"))) == 1
    done = call(*SIZES, "plot=false", f"hydra.run.dir={tmp_path / 'one'}")
    assert done.returncode == 0
    assert "regret.png" not in done.stdout
    assert {path.name for path in (tmp_path / "one").iterdir()} == {
        "config.yaml", "model.json", "prediction.csv", "regret.csv", "summary.json",
    }  # fmt: skip


@pytest.mark.slow
def test_a_sweep_in_a_terminal_shows_a_progress_bar(tmp_path):
    """In a terminal, which `script` provides."""
    command = f"{sys.executable} -m simulations.run {' '.join(SWEEP)} hydra.sweep.dir={tmp_path}/s"
    done = subprocess.run(
        ["script", "-qec", f"stty rows 24 cols 100; {command}", "/dev/null"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "6/6" in done.stdout


# --- tables ----------------------------------------------------------------------------------


def made_up(tmp_path, final, scores=(), **chosen):
    settings = {"tau": 1, "seed": 0, "schedule.name": "periodic", **chosen}
    numbers = {"final_regret": final, "exchanges": 10 * final, **dict(scores)}
    return Run(tmp_path, settings, numbers, pd.DataFrame())


def test_statistics_by_hand(tmp_path):
    """Values 1, 2, 6: mean 3, deviation sqrt(7), standard error sqrt(7 / 3)."""
    runs = [made_up(tmp_path, value, seed=seed) for seed, value in enumerate([1.0, 2.0, 6.0])]
    table = statistics([*runs, made_up(tmp_path, 5.0, tau=2)])
    assert table.columns.to_list() == ["tau", "mean", "std. error", "exchanges", "seeds"]
    np.testing.assert_allclose(table.iloc[0], [1, 3, np.sqrt(7 / 3), 30, 3])
    np.testing.assert_allclose(table.iloc[1], [2, 5, np.nan, 50, 1])
    text = statistics_text([*runs, made_up(tmp_path, 5.0, tau=2)]).splitlines()
    assert [line.split() for line in text[2:]] == [
        ["1", "3.00", "1.53", "30.0", "3"], ["2", "5.00", "-", "50.0", "1"],
    ]  # fmt: skip
    scores = [{"log_loss": 2.0, "accuracy": 0.5}, {"log_loss": 3.0, "accuracy": 1.0}]
    table = statistics([made_up(tmp_path, 0.0, each, seed=n) for n, each in enumerate(scores)])
    assert table.columns.to_list() == ["log_loss", "accuracy", "exchanges", "seeds"]
    np.testing.assert_allclose(table.iloc[0], [2.5, 0.75, 0, 2])
    lines = statistics_text([made_up(tmp_path, 1.0, tau=tau) for tau in range(1, 101)]).splitlines()
    assert len(lines) == 63
    assert lines[-1] == "... and 40 more configurations in sweep.csv"


@pytest.mark.parametrize(
    ("widths", "noted"),
    [
        ([{"algorithm": "fldb_ogd", "beta_scale": "auto"}, {"algorithm": "fldb_ons"}], "ons_width"),
        ([{"algorithm": "ldb", "beta_scale": 1}, {"algorithm": "alone"}], "personal_width"),
        (
            [{"algorithm": name} for name in ("fldb_personal", "fldb_gd", "fldb_ons")],
            "ons_width or personal_width",
        ),
        ([{"algorithm": "fldb_ogd", "beta_scale": 0.3}, {"algorithm": "fldb_ons"}], ""),
        ([{"algorithm": "fldb_ogd"}, {"algorithm": "fldb_gd"}], ""),
        ([{"algorithm": "fldb_ons", "ons_width": 0.3}, {"algorithm": "fldb_ons"}], ""),
    ],
)
def test_a_table_of_unequal_widths_has_a_note(tmp_path, widths, noted):
    """The width of the theory beside narrower ones, but no tuned width and no single algorithm."""
    default = {"beta_scale": "auto", "ons_width": 0.75, "personal_width": 0.5}
    runs = [made_up(tmp_path, 1.0, **{**default, **own}) for own in widths]
    notes = [line for line in statistics_text(runs).splitlines() if line.startswith("note")]
    assert notes == [
        f"note: algorithms with {each} explore less than those with the width of the theory"
        " (beta_scale); to compare algorithms, tune the width of each (docs/howto/sweeps.md)"
        for each in [noted] if each
    ]  # fmt: skip


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


# --- failures --------------------------------------------------------------------------------

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
        [sys.executable, "-m", "simulations.run", *arguments, *SIZES],
        check=False, capture_output=True, text=True, cwd=ROOT, timeout=300,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_an_unexpected_exception_fails_only_one_job(tmp_path, launcher):
    folder = tmp_path / "s"
    done = call_broken(
        tmp_path, "raise IndexError('no arm 7\\nof 5')", "-m", "seed=0,1,2",
        f"hydra/launcher={launcher}", f"hydra.sweep.dir={folder}",
    )  # fmt: skip
    assert done.returncode == 1
    (trace,) = folder.glob("*/error.txt")
    assert trace.parent.name.startswith("seed-1_")
    assert done.stderr.strip() == (
        f"error: job seed=1: IndexError: no arm 7\\nof 5 (trace: {trace})"
    )
    assert "Traceback (most recent call last)" in trace.read_text()
    assert list(pd.read_csv(folder / "sweep.csv").seed) == [0, 2]
    # Without the fault the job runs, and the record of the failure is deleted.
    again = sweep(folder, "resume=true", words=("-m", "seed=0,1,2", *SIZES))
    assert again.returncode == 0, again.stderr
    assert list(pd.read_csv(folder / "sweep.csv").seed) == [0, 1, 2]
    assert not trace.exists()


@pytest.mark.slow
def test_a_killed_worker_does_not_affect_other_results(tmp_path):
    assert sweep(tmp_path / "s", words=("-m", "seed=0", *SIZES)).returncode == 0
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


def test_another_sweepers_tables_hold_each_distinct_run_once(tmp_path, capsys):
    for name, seed in (("0", 0), ("1", 1), ("again", 1)):
        run(from_nested({**SMALL, "seed": seed}, "a test"), tmp_path / name)
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "error.txt").write_text("tau=0: must be at least 1\n")
    config = OmegaConf.create(
        {"hydra": {"sweep": {"dir": str(tmp_path)}, "sweeper": {"_target_": "a.Sweeper"}}}
    )
    with pytest.raises(SystemExit, match="1"):
        SweepCallback().on_multirun_end(config)
    assert list(pd.read_csv(tmp_path / "sweep.csv").job.astype(str)) == ["0", "1"]
    assert "error: job 2: tau=0: must be at least 1" in capsys.readouterr().err


@pytest.mark.exhaustive
@pytest.mark.parametrize("launcher", ["joblib", "submitit_local"])
def test_ctrl_c_stops_a_parallel_sweep_which_resumes_with_the_same_bytes(tmp_path, launcher):
    """A terminal sends SIGINT to every process of the group."""
    jobs = ["-m", "seed=0,1,2,3", "num_agents=100", "horizon=600", "tau=1"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert sweep(whole, words=jobs).returncode == 0
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
    done = sweep(cut, "resume=true", words=jobs)
    assert done.returncode == 0, done.stderr
    assert all(path.stat().st_mtime_ns == then for path, then in finished.items())
    assert (cut / "curves.csv").read_bytes() == (whole / "curves.csv").read_bytes()


# --- the paper's claims ----------------------------------------------------------------------


def final_regrets(*, seeds=10, **values):
    values = {"tau": 1, "horizon": 200, "num_agents": 100, **values}
    return np.array([final_regret(seed=seed, **values) for seed in range(seeds)])


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
    assert rises(*(final_regrets(tau=tau) for tau in (1, 8)))


@pytest.mark.exhaustive
def test_regret_falls_with_tau_if_steps_are_counted_in_rounds():
    """As Algorithm 1 prints the step size; 25 seeds show the difference."""
    reading = {"step_index": "round", "horizon": 500, "seeds": 25}
    assert rises(*(final_regrets(tau=tau, **reading) for tau in (8, 1)))
