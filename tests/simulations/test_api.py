"""The Python API: run, sweep, load, callbacks, registration and the public names."""

import doctest
import importlib
import itertools
import json
import pickle
import signal
import subprocess
import sys
import textwrap
import time

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from conftest import ROOT, nested

import fldb_flower as fldb
from fldb_flower.algorithms.base import Algorithm
from fldb_flower.algorithms.ogd import FLDBOGD
from fldb_flower.environments import Contexts
from fldb_flower.errors import DataError, OutputError
from fldb_flower.federation.exchange import Broadcast
from fldb_flower.runs.plots import describe
from fldb_flower.settings import Settings, from_nested
from simulations.run import run as run_command

SMALL = {"num_agents": 4, "horizon": 12, "num_arms": 3, "dimension": 2, "tau": 3}
PUBLIC_MODULES = (
    *("fldb_flower", "fldb_flower.catalogue", "fldb_flower.bandit.learner"),
    *("simulations.api.runs", "simulations.api.sweeps"),
)


@pytest.fixture(autouse=True)
def clean(registered):
    """Remove what a test registers, and draw without a screen."""
    backend = mpl.get_backend()
    mpl.use("agg")
    yield
    mpl.use(backend)


def by_command(path, **values):
    """Run settings as the command line does; return the directory."""
    run_command(from_nested(nested(**SMALL | values, plot=False), "a test"), path)
    return path


def python(code, cwd):
    """Run a script in a new process; return what it printed."""
    script = cwd / "script.py"
    script.write_text(textwrap.dedent(code))
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=cwd,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("engine", ["vectorized", "inprocess"])
def test_a_saved_run_has_the_files_of_the_command_line(tmp_path, engine):
    expected = by_command(tmp_path / "command", algorithm="fldb_ons", engine__name=engine)
    result = fldb.run(SMALL, algorithm="fldb_ons", engine=engine)
    saved = result.save(tmp_path / "python")
    names = sorted(path.name for path in expected.iterdir())
    assert sorted(path.name for path in saved.iterdir()) == names
    for name in set(names) - {"summary.json"}:
        assert (saved / name).read_bytes() == (expected / name).read_bytes(), name
    theirs = json.loads((expected / "summary.json").read_text())
    changes = {"runtime_seconds": 0}
    assert result.summary | changes == theirs | changes
    model = json.loads((expected / "model.json").read_text())
    assert result.theta.tolist() == model["theta_sync"]


def test_a_run_writes_no_file(tmp_path):
    code = "import fldb_flower as fldb\nprint(fldb.run(num_agents=3, horizon=5))"
    assert "final regret" in python(code, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


def test_a_saved_run_is_read_back(tmp_path):
    result = fldb.run(SMALL, engine="inprocess", dropout=0.2, quorum=0.5)
    loaded = fldb.load(result.save(tmp_path / "run"))
    pd.testing.assert_frame_equal(loaded.regret, result.regret, check_exact=True)
    pd.testing.assert_frame_equal(loaded.participation, result.participation)
    pd.testing.assert_frame_equal(loaded.prediction, result.prediction, check_exact=True)
    assert loaded.settings == result.settings
    assert loaded.summary == result.summary
    assert loaded.theta.tolist() == result.theta.tolist()
    assert repr(loaded) == repr(result)
    with pytest.raises(OutputError, match="already holds a run"):
        result.save(tmp_path / "run")


def test_the_settings_of_a_result_repeat_it():
    result = fldb.run(SMALL, seed=3)
    assert fldb.run(result.settings).regret.equals(result.regret)
    other = fldb.run(result.settings, seed=4)
    assert not other.regret.equals(result.regret)
    assert other.settings == result.settings | {"seed": 4}


def test_names_of_groups():
    """Keywords, dotted names and the command line's groups set the same settings."""
    keywords = fldb.run(
        SMALL, schedule="geometric", schedule_ratio=2, environment_sigma=0.5, lambda_=0.1
    )
    dotted = fldb.run(
        {**SMALL, "schedule.name": "geometric", "schedule.ratio": 2, "environment.sigma": 0.5},
        **{"lambda": 0.1},
    )
    assert keywords.settings == dotted.settings
    assert keywords.settings["schedule.name"] == "geometric"
    assert keywords.settings["lambda"] == 0.1


@pytest.mark.exhaustive
@pytest.mark.xdist_group("flower")
def test_flower_gives_the_same_regret():
    """With FLDB-Personal, whose uploads have the most parts; test_flower has another one."""
    chosen = {**SMALL, "algorithm": "fldb_personal"}
    flower = fldb.run(chosen, engine="flower")
    expected = fldb.run(chosen).regret
    assert flower.regret.to_numpy() == pytest.approx(expected.to_numpy(), rel=1e-9)
    assert flower.participation["replied"].tolist() == flower.participation["asked"].tolist()


@pytest.mark.parametrize("engine", ["vectorized", "inprocess"])
def test_callbacks(engine):
    seen = []

    class Recorder(fldb.Callback):
        def on_round(self, history):
            seen.append((history.iteration, history.regret, history.exchanges))

        def on_result(self, result):
            seen.append(result)

    result = fldb.run(SMALL, engine=engine, callbacks=[fldb.Callback(), Recorder()])
    assert seen.pop() is result
    assert [iteration for iteration, _, _ in seen] == [1, 3, 6, 9, 12]  # ends of rounds, tau=3
    rows = result.regret.set_index("iteration")
    for iteration, regret, exchanges in seen:
        assert regret == pytest.approx(rows.cumulative_regret[iteration])
        assert exchanges == rows.exchanges[iteration]


def test_plot_and_representations():
    result = fldb.run(SMALL)
    ax = result.plot()
    assert result.plot(ax, label="again", ls=":") is ax
    first, second = ax.lines
    assert first.get_ydata() == pytest.approx(result.regret.cumulative_regret)
    assert (first.get_label(), second.get_label()) == ("FLDB-OGD", "again")
    assert (first.get_linestyle(), second.get_linestyle()) == ("--", ":")
    assert ax.get_xlabel() == "iteration $t$"
    high = fldb.run(SMALL, algorithm="random", horizon=40)
    high.plot(ax)
    assert ax.get_ylim()[0] == 0
    assert ax.get_ylim()[1] >= high.regret.cumulative_regret.max() > first.get_ydata().max()
    assert ax.get_xlim() == (0, 40)
    ax.set_yscale("log")
    lowest = min(float(line.get_ydata()[0]) for line in ax.lines)
    assert lowest / 2 < ax.get_ylim()[0] <= lowest
    third = result.plot(ax).lines[-1]
    assert first.get_color() == second.get_color() == third.get_color()
    assert ax.lines[2].get_color() != first.get_color()
    show_html = getattr(result, "_repr_html_")  # noqa: B009 - what notebooks call
    assert "final_regret" in show_html()
    assert len(repr(result)) < 120


def test_sweep_has_a_row_per_combination(tmp_path):
    table = fldb.sweep(
        SMALL, algorithm=["fldb_ogd", "ldb"], environment_sigma=np.array([0.0, 0.5]),
        seed=range(2), tau=2, progress=False,
    )  # fmt: skip
    assert table.columns[:4].to_list() == ["algorithm", "environment.sigma", "seed", "final_regret"]
    assert len(table) == 8
    for row in table.to_dict("records"):
        settings = {name: row[name] for name in ("algorithm", "environment.sigma", "seed")}
        summary = fldb.run(SMALL | settings, tau=2).summary
        for name in ("final_regret", "exchanges", "uploaded_bytes", "log_loss"):
            assert row[name] == summary.get(name) or pd.isna(row[name])


def test_sweep_runs_equal_settings_once_without_values_of_settings_without_effect():
    values = {"algorithm": ["random", "fldb_ogd", "ldb"], "tau": [1, 2], "num_agents": 3}
    text = "tau: has no effect with algorithm=random or algorithm=ldb"
    with pytest.warns(UserWarning, match=text) as warned:
        table = fldb.sweep(values, horizon=6, seed=0, progress=False)
    assert [str(each.message) for each in warned] == [text]
    assert table["algorithm"].tolist() == ["random", "fldb_ogd", "fldb_ogd", "ldb"]
    assert table["tau"].tolist() == [pd.NA, 1, 2, pd.NA]
    assert table["tau"].dtype == "Int64"
    table = fldb.sweep(SMALL, algorithm=["fldb_ogd", "FLDB-OGD"], seed=[1, 1, 2], progress=False)
    assert table[["algorithm", "seed"]].to_numpy().tolist() == [["fldb_ogd", 1], ["fldb_ogd", 2]]


def test_a_run_is_not_labelled_with_a_setting_without_effect():
    with pytest.warns(UserWarning, match=r"^tau=3: has no effect with algorithm=ldb$"):
        result = fldb.run(algorithm="ldb", tau=3, num_agents=3, horizon=6)
    assert "tau" not in repr(result)
    assert result.summary["tau"] == 3
    assert (result.theta, result.participation) == (None, None)  # no common estimate, no nodes
    chosen = Settings(algorithm="random", tau=3)
    assert describe(chosen) == "random on synthetic: N=100, T=500, K=10, d=5, seed=0"


def test_processes_give_the_same_table_and_know_what_is_registered():
    @fldb.register_selection("last_two")
    def last_two(features, theta, whitener, width, noise):
        last = np.full(len(features), features.shape[1] - 1)
        return last, last - 1

    values = {"selection": ["ucb", "last_two"], "seed": range(2), "progress": False}
    tables = [fldb.sweep(SMALL, jobs=jobs, **values) for jobs in (1, 2)]
    one, two = (each.drop(columns="runtime_seconds") for each in tables)
    pd.testing.assert_frame_equal(one, two, check_exact=True)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_failed_run_is_named_and_the_others_finish(jobs):
    steps = [0.1, 1e9, 0.2]
    values = {"algorithm": "fldb_gd", "solver": "gd", "gd_step_size": steps, "gd_steps": 5}
    with pytest.raises(fldb.SweepError, match=r"^1 of 3 runs failed: gd_step_size=10000") as error:
        fldb.sweep(SMALL, jobs=jobs, progress=False, **values)
    assert error.value.table["gd_step_size"].tolist() == [0.1, 0.2]
    assert list(error.value.errors) == ["gd_step_size=1000000000.0"]
    assert "\n" not in str(error.value)
    copy = pickle.loads(pickle.dumps(error.value))
    assert (str(copy), copy.errors) == (str(error.value), error.value.errors)


def test_a_saved_sweep_is_read_back_extended_and_repaired(tmp_path):
    values = {"tau": [1, 2], "progress": False, "directory": tmp_path}
    first = fldb.sweep(SMALL, seed=range(2), **values)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("regret.csv")}
    assert len(times) == 4
    table = fldb.sweep(SMALL, seed=range(3), **values)
    assert len(table) == 6
    assert all(path.stat().st_mtime_ns == before for path, before in times.items())
    assert table.merge(first, how="inner").shape == first.shape
    loaded = fldb.load(tmp_path).set_index("job").sort_index()
    pd.testing.assert_frame_equal(loaded, table.set_index("job").sort_index(), check_exact=True)
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "sweep.csv"), table)
    assert fldb.load(tmp_path / table["job"][0]).summary["tau"] == table["tau"][0]
    next(tmp_path.glob("tau-1_*/summary.json")).write_text('{"algor')  # runs that did not finish
    next(tmp_path.glob("tau-2_*/summary.json")).unlink()
    again = fldb.sweep(SMALL, seed=range(3), **values).drop(columns="runtime_seconds")
    pd.testing.assert_frame_equal(again, table.drop(columns="runtime_seconds"))


def test_load_names_what_is_missing(tmp_path):
    for path, reason in ((tmp_path / "none", "does not exist"), (tmp_path, "no finished run")):
        with pytest.raises(DataError, match=reason):
            fldb.load(path)
    result = fldb.run(SMALL)
    for name in ("a", "b"):
        result.save(tmp_path / name)
    (tmp_path / "a" / "summary.json").unlink()
    with pytest.raises(DataError, match=r"a: no summary\.json$"):
        fldb.load(tmp_path / "a")
    with pytest.warns(UserWarning, match=r"a: no summary\.json$"):
        table = fldb.load(tmp_path)
    assert table["job"].to_list() == ["b"]


@pytest.mark.parametrize("engine", ["vectorized", "inprocess"])
def test_an_environment_and_an_algorithm_of_ones_own(engine):
    """With theta fixed at (1, 0) and no exploration, the best of the arms 1, 2, 4 is always shown.

    The environment's reward is the first feature.
    """

    @fldb.register_environment("ladder")
    class Ladder:
        def __init__(self, settings, agents):
            self.agents = len(agents)

        def contexts(self, streams, iterations):
            shape = (self.agents, iterations, 3)
            features = np.broadcast_to(np.array([[1.0, 0], [2, 0], [4, 0]]), (*shape, 2))
            return Contexts(features.copy(), np.broadcast_to([1.0, 2, 4], shape).copy())

    @fldb.register_algorithm("fixed")
    class Fixed(Algorithm):
        def learn(self, federation, round_):
            federation.exchange(Broadcast(self.play(round_), self.theta_sync))
            return {"theta_sync": np.array([1.0, 0.0])}

    result = fldb.run(
        SMALL, environment="ladder", algorithm="fixed", beta_scale=0, tau=1, engine=engine
    )
    assert result.theta.tolist() == [1.0, 0.0]
    steps = np.diff(result.regret.cumulative_regret, prepend=0)
    assert steps == pytest.approx([6.0] + [0.0] * 11)  # theta = 0 at first: 2 * 4 - 1 - 1
    with pytest.raises(fldb.SettingsError, match="random, coldb, fixed; did you mean fixed"):
        fldb.run(algorithm="fixd")


def test_an_own_algorithm_that_returns_nan_is_named():
    @fldb.register_algorithm("broken")
    class Broken(FLDBOGD):
        def learn(self, federation, round_):
            return {**super().learn(federation, round_), "theta_sync": self.theta_sync * np.nan}

    reason = "^iteration 1: theta_sync is not finite: .*check the arrays that Broken returns$"
    with pytest.raises(fldb.FldbError, match=reason):
        fldb.run(SMALL, algorithm="broken", tau=1)


@pytest.mark.parametrize("engine", ["vectorized", "inprocess"])
def test_a_subclass_of_online_may_exchange_again(engine):
    """Its second exchange sums over the same fresh duels: those of 4 agents in each round."""
    numbers = []

    @fldb.register_algorithm("twice")
    class Twice(FLDBOGD):
        def learn(self, federation, round_):
            changed = super().learn(federation, round_)
            numbers.append(federation.exchange(Broadcast(None, self.theta_hat)).num_duels)
            return changed

    fldb.run({**SMALL, "horizon": 9}, algorithm="twice", engine=engine)
    assert numbers == [4 * 1, 4 * 2, 4 * 3, 4 * 3]  # t = 1, 2 and 3, 4 to 6, 7 to 9


def test_names_of_the_package_cannot_be_replaced():
    for register in (fldb.register_algorithm, fldb.register_environment, fldb.register_selection):
        with pytest.raises(fldb.SettingsError, match="must be in snake_case"):
            register("Not-Snake")
    with pytest.raises(fldb.SettingsError, match="the package has it already"):
        fldb.register_algorithm("fldb_ons")


def test_the_import_is_light():
    """NumPy, pandas, Flower and Matplotlib are imported on first use."""
    code = (
        "import sys; import fldb_flower\n"
        "print({'numpy', 'pandas', 'flwr', 'matplotlib', 'sklearn', 'tqdm'} & set(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"


def test_public_names():
    assert set(fldb.__all__) <= set(dir(fldb))
    for name in fldb.__all__:
        documented = getattr(fldb, name).__doc__
        assert documented, name
        assert "Examples\n" in textwrap.dedent(documented) or issubclass(
            getattr(fldb, name), Exception
        ), name
    with pytest.raises(AttributeError, match="no attribute 'swep'"):
        fldb.swep  # noqa: B018


@pytest.mark.parametrize("module", PUBLIC_MODULES)
def test_examples_of_docstrings(module):
    result = doctest.testmod(importlib.import_module(module), optionflags=doctest.ELLIPSIS)
    assert result.failed == 0
    assert result.attempted > 0


@pytest.mark.slow
def test_an_interrupt_ends_a_sweep_and_its_processes(tmp_path):
    psutil = pytest.importorskip("psutil")
    script = tmp_path / "script.py"
    script.write_text(
        "import signal\n"
        "import fldb_flower as fldb\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # not that of a shell's `&`\n"
        "try:\n"
        "    fldb.sweep(num_agents=50, horizon=3000, tau=1, seed=range(50), jobs=2)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, str(script)],
        env={"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    parent = psutil.Process(process.pid)
    deadline = time.monotonic() + 120
    while len(children := parent.children()) < 2 and time.monotonic() < deadline:
        time.sleep(0.2)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=300)
    assert output == "interrupted\n", errors
    assert "Traceback" not in errors
    assert not psutil.wait_procs(children, timeout=100)[1]


def test_a_damaged_file_is_named_by_load(tmp_path):
    folder = fldb.run(num_agents=4, horizon=8).save(tmp_path / "run")
    for name in ("model.json", "prediction.csv"):
        whole = (folder / name).read_text()
        for content in ("", "{", "{}", "[]", "a,b\n"):
            (folder / name).write_text(content)
            with pytest.raises(fldb.FldbError, match=f"{name} is damaged"):
                fldb.load(folder)
        (folder / name).write_text(whole)


PLACE = r"must be a list of instances of fldb_flower\.Callback"
REFUSED = [
    (fldb.run, {"taau": 1}, r"^taau \(from Python\): there is no such .*; did you mean tau\?$"),
    (fldb.run, {"environment_sgima": 1}, "did you mean environment_sigma"),
    (fldb.run, {"environment.sgima": 1}, "did you mean environment_sigma"),
    (fldb.run, {"tau": 0}, r"^tau=0 \(from Python\): must be at least 1"),
    (fldb.run, {"environment.sigma": -1}, r"^environment_sigma=-1.0 .*: must be from 0"),
    (fldb.run, {"algorithm": "fldb_osn"}, r"must be one of fldb_ogd.*did you mean fldb_ons\?$"),
    (fldb.run, {"tau": [1, 2]}, r"^tau=\[1, 2\] \(from Python\): must be a whole number"),
    (fldb.run, {"dropout": 0.5}, "needs engine=inprocess"),
    (fldb.run, {"lambda": 1, "lambda_": 1}, "a setting is given twice"),
    (fldb.run, 7, "must be a mapping"),
    (fldb.sweep, {"tau": []}, "needs at least one value"),
    (fldb.sweep, {"tau": {1, 2}}, "must be a value or a list"),
    (fldb.sweep, {"tau": [1, 0]}, "^tau=0 .* must be at least 1"),
    (fldb.sweep, {"taus": [1, 2]}, "did you mean tau"),
    (fldb.sweep, {"seed": range(10**30, 0, -2)}, r"^100,001 or more values of seed \(from Python"),
    (fldb.sweep, {"seed": itertools.count()}, "^100,001 or more values of seed"),
    (fldb.sweep, {"seed": np.arange(100_001), "tau": [1, 2]}, "^100,001 or .* of seed x 2 values"),
    (
        fldb.sweep, {"seed": iter(range(1001)), "tau": range(1, 101)},
        r"^1,001 values of seed x 100 values of tau \(from Python\): a sweep has at most 100,000",
    ),
    (fldb.load, None, "must be the path of a folder"),
    (fldb.load, "", "must be the path of a folder"),
]  # fmt: skip


def test_invalid_arguments_are_refused_in_one_line_before_a_run_starts(monkeypatch, tmp_path):
    monkeypatch.setattr("simulations.api.sweeps.run_settings", pytest.fail)
    (tmp_path / "sweep.csv").write_text("precious")
    no_list = [(None, PLACE), (print, PLACE), ([fldb.Callback], PLACE), ([print], PLACE)]
    flower = {"engine": "flower", "callbacks": [fldb.Callback()]}
    for function, values, message, options in (
        *((*case, {}) for case in REFUSED),
        *((fldb.run, SMALL, message, {"callbacks": given}) for given, message in no_list),
        (fldb.run, SMALL, "^callbacks need engine=vectorized or", flower),
        (fldb.sweep, SMALL, "^jobs=0 .* must be a whole number, at least 1", {"jobs": 0}),
        (fldb.sweep, SMALL, "^jobs=2.0 .* must be a whole number", {"jobs": 2.0}),
        *(
            (fldb.sweep, SMALL, "^directory=", {"directory": each})
            for each in ("/etc/hostname", "/proc/x", "", 3)
        ),
        (fldb.sweep, SMALL, "not a table of runs", {"directory": tmp_path}),
    ):
        with pytest.raises((fldb.SettingsError, OutputError), match=message) as error:
            function(values, **options)
        assert "\n" not in str(error.value)
    assert (tmp_path / "sweep.csv").read_text() == "precious"
