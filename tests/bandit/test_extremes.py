"""Numbers of extreme size: a run either completes with finite numbers or ends with one error.

`pyproject.toml` turns RuntimeWarning into an error, so neither case emits a warning.
"""

import json
import math
import os
import tempfile
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from conftest import examples, nested, with_regrets
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from fldb_flower.algorithms.ons import FLDBONS
from fldb_flower.algorithms.schedules import Round
from fldb_flower.bandit.estimate import Estimate
from fldb_flower.bandit.streams import AgentStreams
from fldb_flower.catalogue import ALGORITHMS
from fldb_flower.environments import Contexts, make_environment
from fldb_flower.environments.synthetic import Synthetic
from fldb_flower.errors import ConvergenceError, DataError, FldbError, SettingsError
from fldb_flower.federation import agents as agents_module
from fldb_flower.federation.agents import AgentGroup
from fldb_flower.federation.exchange import Broadcast, PlayRequest
from fldb_flower.federation.history import History
from fldb_flower.runs.results import RunDirectory
from fldb_flower.settings import Entry, Settings, from_nested, hydra_entries
from fldb_flower.system import process
from fldb_flower.system.process import size_text
from simulations.engines import vectorized
from simulations.run import run

SMALL = {
    "num_agents": 3, "horizon": 6, "num_arms": 3, "dimension": 4, "tau": 2,
    "gd_steps": 4, "checkpoint_seconds": 1e9, "node_wait": 0.01,
    "plot": False,
}  # fmt: skip
ACCEPTED_UP_TO = {
    "num_agents": 40, "horizon": 40, "num_arms": 40, "dimension": 40, "gd_steps": 40,
    "engine.num_nodes": 40, "node_wait": 0.1, "reply_timeout": 0.1,
}  # fmt: skip
EXTREMES = [
    *(0.0, 5e-324, 2.2e-308, 1e-308, 1e-150, 1e-101, 1e-100, 1e-30, 1e-16, 1e-8, 0.5, 1 - 1e-16),
    *(1.0, 1 + 2.3e-16, 2.0, 3.0, 1e3, 1e8, 1e16, 2.0**53, 2.0**63, 1e30, 1e99, 1e100, 1e101),
    *(1e150, 1e154, 1e155, 1e306, 1e308, 1.7976931348623157e308, math.inf),
]
OF_NODES = {"robust", "fraction_train", "quorum", "dropout", "faults"}
NUMBERS = [entry for entry in hydra_entries() if entry.kind in {int, float}]
REALS = [entry for entry in NUMBERS if entry.kind is float]
FIXED = {"engine.name", "environment.name", "backend", "rng"}  # these require files or devices
NAMES = [entry for entry in hydra_entries() if entry.choices and entry.dotted not in FIXED]


@pytest.fixture(autouse=True)
def no_pictures():
    """Draw the plots of the runs with plot=true."""


def accepts(entry: Entry, value: float | int | str) -> bool:
    try:
        entry.check(value, entry.dotted, "a test")
    except FldbError:
        return False
    return True


def extremes(entry: Entry) -> tuple[list[float | int | str], list[float | int | str]]:
    """Return accepted and refused numbers of a setting: of extreme size, and at its limits.

    Sizes and waiting times that are accepted but would take minutes are omitted.
    """
    limits = entry.limits
    values = [*EXTREMES, *(-value for value in EXTREMES), math.nan, 10**30]
    for limit in (limits.minimum, limits.maximum):
        values += [limit, math.nextafter(limit, -math.inf), math.nextafter(limit, math.inf)]
    slow = ACCEPTED_UP_TO.get(entry.dotted, math.inf)
    accepted = [value for value in values if accepts(entry, value)]
    refused = [value for value in values if not accepts(entry, value)]
    return [value for value in accepted if not slow < value < 1e12], refused


def some(entries: list[Entry], least: int, most: int) -> st.SearchStrategy[list[Entry]]:
    return st.lists(
        st.sampled_from(entries), min_size=least, max_size=most, unique_by=lambda each: each.dotted
    )


@st.composite
def cases(draw, engine):
    """Draw choices, several numbers of extreme size, and in one of three cases any number."""
    unused = OF_NODES if engine == "vectorized" else set()
    names, reals = (
        [entry for entry in entries if entry.path[0] not in unused] for entries in (NAMES, REALS)
    )
    values = {"engine.name": engine}
    for entry in draw(some(names, 0, 4)):
        values[entry.dotted] = draw(st.sampled_from([*entry.choices]))
    for entry in draw(some(reals, 1, 4)):
        values[entry.dotted] = draw(st.sampled_from(extremes(entry)[0]))
    if "gd_step_size" in values:
        values |= {"algorithm": "fldb_gd", "solver": "gd"}
    if draw(st.integers(0, 2)) == 0:
        entry = draw(st.sampled_from(NUMBERS))
        accepted, refused = extremes(entry)
        values[entry.dotted] = draw(st.sampled_from(accepted + refused))
    return values


def run_or_error(values):
    """Run the settings; return the summary, or the one-line error."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        named = {name.replace(".", "__"): value for name, value in (SMALL | values).items()}
        line = None
        try:
            run(from_nested(nested(**named), "a test"), path)
        except FldbError as error:
            line = str(error)
        if line is None:
            return finite_results(path)
        assert line.isprintable()
        left = {file.name for file in path.iterdir()} if path.exists() else set()
        assert "summary.json" not in left
        assert "checkpoint.bin" in left or not left  # the directory can be reused
        return line


def finite_results(path):
    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    summary = json.loads((path / "summary.json").read_text(), parse_constant=refuse)
    if (path / "model.json").exists():
        model = json.loads((path / "model.json").read_text(), parse_constant=refuse)
        assert np.isfinite(model["theta_sync"]).all()
    assert summary["complete"] is True
    assert all(math.isfinite(value) for value in summary.values() if isinstance(value, int | float))
    table = pd.read_csv(path / "regret.csv")
    assert len(table) == summary["horizon"]
    assert table.map(math.isfinite).all(axis=None)
    last = table.cumulative_regret.iloc[-1]
    assert last == pytest.approx(summary["final_regret"], rel=1e-12)
    return summary


@pytest.mark.parametrize("entry", NUMBERS, ids=lambda entry: entry.dotted)
def test_every_number_of_extreme_size_is_refused_or_works(entry):
    accepted, refused = extremes(entry)
    for value in refused:
        line = run_or_error({entry.dotted: value})
        assert line.startswith(f"{entry.dotted}=")
        assert "(from a test): must be" in line
    assert refused
    algorithm = {"ons_ridge": "fldb_ons", "gd_step_size": "fldb_gd", "gd_steps": "fldb_gd"}
    needed = {"algorithm": algorithm.get(entry.dotted, "fldb_ogd"), "solver": "gd"}
    if entry.path[0] in OF_NODES | {"engine"}:
        needed["engine.name"] = "inprocess"
    for value in accepted[:4] + accepted[-4:]:
        run_or_error(needed | {entry.dotted: value})


@pytest.mark.slow
@examples(500, suppress_health_check=list(HealthCheck))
@given(values=cases("vectorized"))
def test_every_number_of_a_complete_run_is_finite(values):
    run_or_error(values)


@pytest.mark.slow
@examples(60, suppress_health_check=list(HealthCheck))
@given(values=cases("inprocess"))
def test_every_number_of_a_complete_run_over_flowers_messages_is_finite(values):
    run_or_error({"plot": True} | values)


# --- results that are not finite ---------------------------------------------------------------


def chosen(**values):
    return from_nested(nested(**SMALL | values), "a test")


class Invalid(Synthetic):
    """One number of iteration 3 is invalid: that of arm 2 of agent 1."""

    feature = reward = None

    def __init__(self, settings, agents):
        super().__init__(settings, agents)
        self._agents, self._played = agents, 0

    def contexts(self, streams, iterations):
        drawn = super().contexts(streams, iterations)
        features, rewards = drawn.features.copy(), drawn.rewards.copy()
        place = 2 - self._played
        if 1 in self._agents and 0 <= place < iterations:
            agent = self._agents.index(1)
            if self.feature is not None:
                features[agent, place, 2, 0] = self.feature
            if self.reward is not None:
                rewards[agent, place, 2] = self.reward
        self._played += iterations
        return Contexts(features, rewards)


@pytest.fixture
def invalid_world(register_world):
    """Register an environment with one invalid number; return the settings that name it."""
    return lambda **numbers: {
        "environment__name": register_world(type("World", (Invalid,), numbers))
    }


@pytest.mark.parametrize(
    ("engine", "algorithm"),
    [
        *(("vectorized", name) for name in ALGORITHMS),
        *(("inprocess", name) for name in ALGORITHMS if ALGORITHMS[name].agents != "pooled"),
    ],
)
def test_a_reward_that_is_not_finite(invalid_world, tmp_path, engine, algorithm):
    values = {"engine__name": engine, "algorithm": algorithm}
    for reward in (math.inf, math.nan, 1e308):
        with pytest.raises(FldbError) as error:
            run(chosen(**values, **invalid_world(reward=reward)), tmp_path)
        assert "iteration 3: a reward is not a finite number, or too large" in str(error.value)
        if not math.isfinite(reward):
            assert "agent 1, arm 2, iteration 3" in str(error.value)
        assert str(error.value).isprintable()
        assert not list(tmp_path.iterdir())
    run(chosen(**values), tmp_path)  # the directory can be reused
    finite_results(tmp_path)


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "random"])
def test_a_feature_that_cannot_be_used(invalid_world, tmp_path, algorithm):
    for feature in (math.inf, -math.inf, math.nan, 1e155, -1e300):
        with pytest.raises(DataError, match=r"^agent 1, arm 2, iteration 3: a feature is not"):
            run(chosen(algorithm=algorithm, **invalid_world(feature=feature)), tmp_path)
        assert not list(tmp_path.iterdir())


def test_results_that_are_not_finite_are_not_written(tmp_path):
    directory = RunDirectory(tmp_path / "run", chosen(horizon=4))
    for regrets, iteration in (
        ([1.0, 2.0, math.inf, 1.0], 3),
        ([1.0, math.nan, 1.0, 1.0], 2),
        ([1e308, 1e308, 1.0, 1.0], 2),
        ([math.inf, -math.inf, 1.0, 1.0], 1),
    ):
        history = History(4)
        history.add_outcomes(1, 1, with_regrets(regrets))
        with pytest.raises(DataError, match=rf"^regret is not finite from iteration {iteration} "):
            _ = history.cumulative_regret
        with pytest.raises(DataError):
            _ = history.regret
        with pytest.raises(DataError):
            directory.finish(history, np.zeros(4), runtime_seconds=1.0)
        assert [file.name for file in directory.path.iterdir()] == ["config.yaml"]
    with pytest.raises(ValueError, match="JSON"):
        directory.finish(History(4), np.zeros(4), runtime_seconds=math.nan)
    directory.close()
    assert not (tmp_path / "run" / "summary.json").exists()


@pytest.mark.parametrize("engine", ["vectorized", "inprocess"])
@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"environment__sigma": 1e306}, "environment.sigma=1e+306 (from a test): must be from 0"),
        ({"alpha": 1e-308}, "alpha=1e-308 (from a test): must be from 1e-100 to"),
        ({"beta_scale": 1e308}, "beta_scale=1e+308 (from a test): must be from 0 to"),
        (
            {"algorithm": "fldb_gd", "solver": "gd", "gd_steps": 100, "gd_step_size": 1e3},
            "theta_hat is not finite, or above 1e+150: gd_step_size=1000 is too large",
        ),
        (
            {"algorithm": "fldb_gd", "solver": "gd", "gd_step_size": 1e90, "lambda_": 1e90},
            "gd_step_size=1e+90 is too large; gd_step_size=auto is always stable",
        ),
    ],
)
def test_the_error_of_a_diverging_run_names_the_setting(tmp_path, engine, values, words):
    with pytest.raises(FldbError) as error:
        run(chosen(horizon=20, engine__name=engine, **values), tmp_path)
    assert words in str(error.value)
    assert "9007199254740992" not in str(error.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("engine", ["vectorized", "inprocess"])
def test_the_largest_sigma_runs_on_every_engine(tmp_path, engine):
    """Neither the number of nodes nor the engine decides whether a run is valid."""
    (sigma,) = (each for each in hydra_entries() if each.dotted == "environment.sigma")
    largest = sigma.limits.maximum
    run(chosen(environment__sigma=largest, engine__name=engine), tmp_path)
    assert finite_results(tmp_path)["final_regret"] > largest


@pytest.mark.parametrize("algorithm", ["fldb_ogd", "fldb_gd", "fldb_ons"])
@pytest.mark.parametrize("theta", [1e200, math.inf, math.nan])
@pytest.mark.parametrize("selection", ["ucb", "maxinp", "colstim", "maxpairucb", "thompson"])
def test_an_estimate_that_overflows_scores(algorithm, theta, selection):
    """The features are finite, so the error must not name one of them."""
    settings = chosen(algorithm=algorithm, selection=selection)
    group = AgentGroup(settings, range(3))
    play = PlayRequest(1, 2, Estimate(np.full(4, theta), np.eye(4)))
    with pytest.raises(ConvergenceError, match="iteration 1: the arms' scores overflow") as error:
        group.answer(Broadcast(play, np.zeros(4)), 0)
    paper, ons = "beta_scale=auto, kappa_mu=1, lambda=", "ons_width=0.75, ons_ridge=1;"
    assert (ons if algorithm == "fldb_ons" else paper) in str(error.value)


def test_a_norm_that_overflows_scores(invalid_world):
    """A feature of 1e60, and W_0^-1/2 of 1e100."""
    settings = chosen(
        kappa_mu=1e100, lambda_=1e-100, algorithm="ldb", **invalid_world(feature=1e60)
    )
    with pytest.raises(ConvergenceError, match=r"^iteration 3: the arms' scores overflow") as error:
        vectorized.run(settings, History(6))
    words = "features up to 1.0e+60 and beta_scale=auto, kappa_mu=1e+100, lambda=1e-100"
    assert words in str(error.value)


# --- sizes ---------------------------------------------------------------------------------

MANY = {"horizon": 1e7, "num_agents": 1e7}
ROUNDS = "10000000 agents would take at least 4 PB of memory, and this machine has 100 GB"
HUGE = [
    ({"horizon": 1e13}, "horizon=10000000000000: the regret of a run would take at least 560 TB"),
    ({"horizon": 1e30}, "horizon=1000000000000000019884624838656 (from a test): must be at"),
    (
        {"num_agents": 1e7, "num_arms": 1e5, "dimension": 4096},
        "num_agents=10000000, horizon=6, num_arms=100000, dimension=4096: 10000000 agents would",
    ),
    ({"tau": 1e7, **MANY}, ROUNDS),
    ({"algorithm": "fldb_gd", **MANY}, "10000000 agents would take at least 4 PB of"),
    (
        {"algorithm": "ldb", **MANY},
        "horizon=10000000, num_arms=3, dimension=4: 10000000 agents would take at least 4 PB",
    ),
    (
        {"num_arms": 1e5, "selection": "maxinp", "num_agents": 5},
        "5 agents would take at least 200 GB",
    ),
]


@pytest.mark.parametrize("engine", ["vectorized", "inprocess"])
def test_a_run_that_does_not_fit_is_refused_before_allocation(monkeypatch, tmp_path, engine):
    def allocate(*arguments):
        raise AssertionError

    monkeypatch.setattr("fldb_flower.federation.agents.AgentBlock", allocate)
    monkeypatch.setattr(process, "machine_memory", lambda: 10**11)
    for values, words in HUGE:
        if engine == "vectorized" and words == ROUNDS:
            # Only one block of 65,536 / (K d) agents, in cohorts of 32, has the duels of its round:
            # 5440 agents x 1e7 duels x (d + 1) numbers x 8 bytes.
            words = words.replace("4 PB", "2.18 TB")  # noqa: PLW2901
        with pytest.raises(FldbError) as error:
            run(chosen(engine__name=engine, engine__num_nodes=1, **values), tmp_path)
        assert words in str(error.value)
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "values",
    [
        {"algorithm": "fldb_ogd", "tau": 1},
        {"algorithm": "fldb_ogd", "tau": 300},
        {"algorithm": "fldb_ons", "schedule__name": "geometric"},
        {"algorithm": "fldb_gd", "solver": "gd"},
        {"algorithm": "ldb"},
        {"algorithm": "ldb", "horizon": 3, "dimension": 20},
        {"algorithm": "random"},
        {"algorithm": "fldb_ogd", "num_arms": 200, "dimension": 50, "horizon": 3},
        {"algorithm": "fldb_ogd", "num_arms": 200, "selection": "maxinp", "horizon": 3},
    ],
    ids=str,
)
def test_a_run_that_fits_is_not_refused(monkeypatch, values):
    """The required memory is less than what a run takes, but not less than a hundredth of it."""
    settings = chosen(**{"num_agents": 40, "horizon": 300, **values})
    required = []
    monkeypatch.setattr(agents_module, "require_memory", lambda count, what: required.append(count))
    vectorized.run(settings, History(settings.horizon))  # imports modules and fills caches
    required.clear()
    tracemalloc.start()
    try:
        vectorized.run(settings, History(settings.horizon))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak / 100 < max(required) < peak


def test_too_little_memory_gives_a_one_line_error(monkeypatch, tmp_path):
    def fail(*arguments):
        raise MemoryError("Unable to allocate 2.00 TiB")

    monkeypatch.setattr(vectorized, "run", fail)
    with pytest.raises(
        DataError, match=r"^out of memory \(Unable to allocate 2.00 TiB\): num_agents=3"
    ):
        run(chosen(), tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_available_memory(monkeypatch, tmp_path):
    """That of a container is limited by its control group."""
    there = process.machine_memory()
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 10**8 < there < physical
    (tmp_path / "v2").write_text("max\n")
    (tmp_path / "v1").write_text("123456789\n")
    monkeypatch.setattr(process, "_CGROUPS", [tmp_path / "v2"])
    assert process.machine_memory() > 123456789
    monkeypatch.setattr(process, "_CGROUPS", [tmp_path / name for name in ("v2", "v1", "missing")])
    assert process.machine_memory() == 123456789
    with pytest.raises(SettingsError, match=r"least 1 GB of memory, and .* 123 MB available$"):
        process.require_memory(10**9, "dimension=9: 1 agent")
    sizes = [1, 999, 1000, 25_300_000_000, 2 * 10**30]
    texts = ["1 bytes", "999 bytes", "1 kB", "25.3 GB", "2e+12 EB"]
    assert [size_text(size) for size in sizes] == texts


# --- objects built in Python ---------------------------------------------------------------


def test_other_arguments_are_checked_in_python_too():
    for build, words in (
        (lambda: History(0), "horizon=0 (from Python): must be at least 1"),
        (lambda: History(2.5), "horizon=2.5 (from Python): must be a whole number"),
        (lambda: History("5"), "horizon='5' (from Python)"),
        (lambda: History(10**15), "horizon=1000000000000000: the regret of a run would take"),
        (lambda: AgentStreams(-1, range(2)), "seed=-1 (from Python): must be a whole number"),
        (lambda: AgentStreams(1.5, range(2)), "seed=1.5 (from Python): must be a whole number"),
        (lambda: AgentStreams(True, range(2)), "seed=True (from Python)"),
        (lambda: AgentStreams(0, range(0)), "agents=range(0, 0) (from Python): must be a range"),
        (lambda: AgentStreams(0, range(-1, 2)), "agents=range(-1, 2) (from Python)"),
        (lambda: AgentStreams(0, range(0, 9, 2)), "agents=range(0, 9, 2) (from Python)"),
        (lambda: AgentStreams(0, 5), "agents=5 (from Python): must be a range"),
        (lambda: AgentGroup(Settings(num_agents=3), range(4)), "below num_agents=3"),
        (lambda: make_environment(Settings(num_agents=3), range(2, 4)), "below num_agents=3"),
    ):
        with pytest.raises(SettingsError) as error:
            build()
        assert words in str(error.value)
        assert str(error.value).isprintable()


@pytest.mark.parametrize("wrong", [math.inf, math.nan])
def test_a_state_that_is_not_finite_is_an_error_and_rolled_back(wrong):
    """The step may overflow in the last round, which no further exchange checks."""

    class Diverging(FLDBONS):
        def learn(self, federation, round_):
            return {"curvature": np.full_like(self.arrays["curvature"], wrong)}

    algorithm = Diverging(chosen(horizon=4))
    before = algorithm.state()
    with pytest.raises(ConvergenceError, match=r"^iteration 1: curvature is not finite: ons_ridge"):
        algorithm.round(SimpleNamespace(history=History(4)), Round(1, 1, 1))
    for name, array in algorithm.state().items():
        np.testing.assert_array_equal(array, before[name])
