"""All engines give the same results, independent of the transport."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from conftest import nested
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from threadpoolctl import threadpool_info, threadpool_limits

from clients.simulated import LocalContext
from fldb_flower.catalogue import ALGORITHMS
from fldb_flower.errors import FederationError, OutputError, SettingsError
from fldb_flower.federation.agents import AgentGroup
from fldb_flower.federation.history import History
from fldb_flower.server_app import play
from fldb_flower.settings import from_nested, to_flat
from simulations.engines import inprocess, vectorized
from simulations.engines.inprocess import InProcessGrid
from simulations.run import run
from strategies import (
    DuelingStrategy,
    FLDBGDStrategy,
    FLDBOGDStrategy,
    FLDBONSStrategy,
    FLDBPersonalStrategy,
    make_strategy,
)

SMALL = {"num_agents": 11, "horizon": 23, "num_arms": 4, "dimension": 3, "tau": 3}


def settings(**values):
    return from_nested(nested(**{**SMALL, **values}), "a test")


def regret(directory):
    return pd.read_csv(directory / "regret.csv")


@pytest.mark.parametrize("nodes", [1, 4, 11])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_inprocess_equals_vectorized_for_any_number_of_nodes(tmp_path, algorithm, nodes):
    run(settings(algorithm=algorithm), tmp_path / "v")
    one = settings(algorithm=algorithm, engine__name="inprocess", engine__num_nodes=nodes)
    run(one, tmp_path / "i")
    expected, got = regret(tmp_path / "v"), regret(tmp_path / "i")
    np.testing.assert_allclose(got.cumulative_regret, expected.cumulative_regret, rtol=1e-9)
    assert list(got.exchanges) == list(expected.exchanges)


@pytest.mark.parametrize("nodes", [1, 4, 11])
@pytest.mark.parametrize("algorithm", ["fldb_ogd", "fldb_ons"])
def test_a_first_step_agrees_across_engines(tmp_path, algorithm, nodes):
    step = {"algorithm": algorithm, "first_round": "step"}
    counts = [1 + t // 3 for t in range(1, 24)]  # t = 1, then 3, 6, ..., 21
    run(settings(**step), tmp_path / "v")
    run(settings(**step, engine__name="inprocess", engine__num_nodes=nodes), tmp_path / "i")
    expected, got = regret(tmp_path / "v"), regret(tmp_path / "i")
    np.testing.assert_allclose(got.cumulative_regret, expected.cumulative_regret, rtol=1e-9)
    assert list(got.exchanges) == list(expected.exchanges) == counts
    run(settings(algorithm=algorithm), tmp_path / "minimised")
    assert not np.allclose(
        regret(tmp_path / "minimised").cumulative_regret, expected.cumulative_regret
    )


@pytest.mark.parametrize("selection", ["maxinp", "colstim", "maxpairucb", "thompson"])
def test_selection_rules_agree_across_engines(tmp_path, selection):
    run(settings(selection=selection), tmp_path / "v")
    run(
        settings(selection=selection, engine__name="inprocess", engine__num_nodes=4), tmp_path / "i"
    )
    np.testing.assert_allclose(
        regret(tmp_path / "i").cumulative_regret,
        regret(tmp_path / "v").cumulative_regret,
        rtol=1e-9,
    )


def test_movielens_and_heterogeneous_agents_agree_across_engines(tmp_path, ratings):
    worlds = {
        "movielens": {"environment__name": "movielens", "environment__path": str(ratings())},
        "sigma": {"environment__sigma": 0.7},
    }
    for name, world in worlds.items():
        run(settings(**world), tmp_path / name / "v")
        run(settings(**world, engine__name="inprocess", engine__num_nodes=4), tmp_path / name / "i")
        np.testing.assert_allclose(
            regret(tmp_path / name / "i").cumulative_regret,
            regret(tmp_path / name / "v").cumulative_regret,
            rtol=1e-9,
        )


@pytest.mark.parametrize("engine", ["vectorized", "inprocess"])
def test_same_seed_gives_the_same_bytes(tmp_path, engine):
    for name in ("a", "b"):
        run(settings(engine__name=engine), tmp_path / name)
    first, second = ((tmp_path / name / "regret.csv").read_bytes() for name in ("a", "b"))
    assert first == second
    assert first != b""


def test_blas_has_one_thread_also_with_many_features():
    """Otherwise, results depend on the processors, and processes wait for each other's threads."""
    threads = []

    def on_progress(_history):
        threads.append({each["num_threads"] for each in blas()})

    def blas():
        return [each for each in threadpool_info() if each["user_api"] == "blas"]

    chosen = settings(algorithm="random", dimension=400)
    history = History(chosen.horizon, on_progress)
    with threadpool_limits(2, user_api="blas"):
        vectorized.run(chosen, history)
    assert threads
    assert all(each == {1} for each in threads)


def test_the_contents_of_a_run_directory(tmp_path):
    run(settings(), tmp_path / "run")
    table = regret(tmp_path / "run")
    assert list(table.columns) == ["iteration", "cumulative_regret", "exchanges"]
    assert list(table.iteration) == list(range(1, 24))
    assert (table.cumulative_regret.diff().dropna() >= 0).all()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["complete"] is True
    assert summary["final_regret"] == table.cumulative_regret.iloc[-1]
    assert summary["exchanges"] == table.exchanges.iloc[-1]
    assert {"config.yaml", "regret.png"} <= {p.name for p in (tmp_path / "run").iterdir()}
    # tau = 3, T = 23: rounds end at 1 (the first minimiser), 3, 6, ..., 21.
    assert summary["rounds"] == 8
    # 11 agents that each send gradient 3 + triangle 6; the first solve sends Hessians too.
    solve = summary["exchanges"] - 7
    assert summary["uploaded_bytes"] == 11 * 8 * (7 * 9 + solve * 15)
    assert summary["downloaded_bytes"] == 11 * 8 * (8 * 12 + (solve - 1) * 3)


def test_a_run_never_overwrites_another(tmp_path):
    run(settings(), tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    for engine in ("vectorized", "inprocess"):
        with pytest.raises(OutputError, match="already holds a run"):
            run(settings(seed=1, engine__name=engine), tmp_path)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


@pytest.mark.slow
def test_client_modules_import_no_heavy_module():
    heavy = ("torch", "pandas", "matplotlib", "hydra", "omegaconf", "scipy")
    code = (
        "import sys, clients.simulated, fldb_flower.client_app;"
        f"print([m for m in {heavy!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_vectorized_engine_does_not_import_flower():
    code = (
        "import sys, simulations.run, simulations.engines.vectorized; print('flwr' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


class FaultyGrid(InProcessGrid):
    """Replies to the n-th message are changed by ``faults[n]``; None loses the reply."""

    def __init__(self, num_nodes, run_config, faults):
        super().__init__(num_nodes, run_config)
        self.faults = faults
        self.delivered = 0

    def deliver(self, message):
        reply = super().deliver(message)
        self.delivered += 1
        fault = self.faults.get(self.delivered)
        return reply if fault is None else fault(reply)

    def pull_messages(self, message_ids):
        replies = [reply for reply in super().pull_messages(message_ids) if reply is not None]
        return reversed(replies)  # the order of arrival must not matter


def over(faults, **values):
    """Run over a faulty grid of 4 nodes; return the history."""
    chosen = settings(engine__name="inprocess", engine__num_nodes=4, **values)
    history = History(chosen.horizon)
    grid = FaultyGrid(4, to_flat(chosen), faults)
    return history, play(chosen, history, grid)


def change_vector(change):
    def fault(reply):
        (vector,) = reply.content["arrays"].to_numpy_ndarrays()
        reply.content["arrays"] = ArrayRecord([change(vector)])
        return reply

    return fault


def change_duels(reply):
    config = reply.content["config"]
    config["header"] = [config["header"][0] + 1, *config["header"][1:]]
    return reply


def poisoned(vector):
    vector = vector.copy()
    vector[1] = np.nan
    return vector


def indefinite(vector):
    vector = vector.copy()
    vector[3] = -1.0  # the first entry of W_new's triangle
    return vector


FAULTS = {
    "lost": lambda reply: None,
    "raised": lambda reply: Message(error=Error(2, "boom"), metadata=reply.metadata),
    "nan": change_vector(poisoned),
    "shape": change_vector(lambda vector: vector[:-1]),
    "dtype": change_vector(lambda vector: vector.astype(np.float32)),
    "indefinite": change_vector(indefinite),
    "count": change_duels,
    "empty": lambda reply: Message(
        content=RecordDict({"x": MetricRecord({"y": 1})}), metadata=reply.metadata
    ),
}


def test_results_do_not_depend_on_the_order_of_replies():
    first, _ = over({})
    chosen = settings()
    history = History(chosen.horizon)
    vectorized.run(chosen, history)
    np.testing.assert_allclose(first.cumulative_regret, history.cumulative_regret, rtol=1e-9)


@pytest.mark.parametrize("name", FAULTS)
def test_an_invalid_reply_is_requested_again_and_counted_once(name):
    clean, theta = over({})
    history, same = over({2: FAULTS[name], 47: FAULTS[name], 48: FAULTS[name]})
    np.testing.assert_array_equal(same, theta)
    np.testing.assert_array_equal(history.cumulative_regret, clean.cumulative_regret)


@pytest.mark.parametrize("name", FAULTS)
def test_with_a_quorum_a_bad_reply_counts_in_a_later_round(name):
    """The duels of an absent node are uploaded later: finally W and the regret are complete."""
    clean, _ = over({})
    # The first solve sends several messages to 4 nodes; the fault is in a reply well after it.
    history, _ = over({4 * clean.exchanges - 6: FAULTS[name]}, quorum=0.75)
    missed = [row for row in history.participation if row.replied < row.asked]
    assert len(missed) == 1
    assert len(missed[0].rejected) == (0 if name == "lost" else 1)
    # Finally, every agent's regret of every iteration was received once.
    np.testing.assert_array_equal(history.state()["agents"], SMALL["num_agents"])


def test_a_missed_quorum_ends_the_run_with_the_reasons():
    always = dict.fromkeys(range(1, 10**5, 4), FAULTS["nan"])
    with pytest.raises(FederationError, match=r"nodes answered usably.*not finite"):
        over(always | dict.fromkeys(range(5, 10**5), FAULTS["nan"]), node_wait=0.05)


def test_an_error_names_the_missing_partition_id():
    chosen = settings(engine__name="inprocess", engine__num_nodes=2)
    grid = InProcessGrid(2, to_flat(chosen))
    grid.contexts[1002].node_config.clear()
    with pytest.raises(SettingsError, match="--node-config 'partition-id=0 num-partitions=2'"):
        make_strategy(chosen, History(chosen.horizon)).start(grid)


def test_more_nodes_than_agents_is_refused():
    chosen = settings(num_agents=2)
    grid = InProcessGrid(3, to_flat(chosen))
    with pytest.raises(FederationError, match="3 nodes for num-agents=2"):
        make_strategy(chosen, History(chosen.horizon)).start(grid)


def test_the_wait_for_nodes_is_limited():
    chosen = settings(node_wait=0.05)
    grid = InProcessGrid(0, to_flat(chosen))
    with pytest.raises(FederationError, match=r"0 nodes connected within node-wait=0\.05 s"):
        make_strategy(chosen, History(chosen.horizon)).start(grid)


def test_agents_of_a_node_that_raised_are_not_used_again(monkeypatch):
    chosen = settings(node_wait=0.05)
    calls, original = [], AgentGroup.answer

    def fail_once(group, broadcast, counted):
        calls.append(group.agents.start)
        if group.agents.start == 0 and calls.count(0) == 3:
            raise ZeroDivisionError("three")
        return original(group, broadcast, counted)

    monkeypatch.setattr(AgentGroup, "answer", fail_once)
    grid = InProcessGrid(2, to_flat(chosen), LocalContext)
    with pytest.raises(FederationError, match=r"partition 0.*ZeroDivisionError: three"):
        make_strategy(chosen, History(chosen.horizon)).start(grid)
    assert calls.count(0) == 3


def test_runs_in_one_process_do_not_share_agents():
    """Another run takes place between two messages of a run."""
    chosen, other = settings(), settings(seed=7)

    class Interrupted(InProcessGrid):
        messages = 0

        def deliver(self, message):
            self.messages += 1
            if self.messages == 9:
                inprocess.play(other, History(other.horizon))
            return super().deliver(message)

    for kind in (Context, LocalContext):
        grid = Interrupted(2, to_flat(chosen), kind)
        theta = play(chosen, History(chosen.horizon), grid)
        expected = vectorized.run(chosen, History(chosen.horizon))
        np.testing.assert_allclose(theta, expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("strategy", "algorithm"),
    [
        (FLDBOGDStrategy, "fldb_ogd"),
        (FLDBGDStrategy, "fldb_gd"),
        (FLDBONSStrategy, "fldb_ons"),
        (FLDBPersonalStrategy, "fldb_personal"),
        (DuelingStrategy, "ldb"),
    ],
)
def test_each_algorithm_runs_as_a_flower_strategy(strategy, algorithm):
    """`start` has the arguments of Flower's own strategies and returns its `Result`."""
    chosen, seen = settings(algorithm=algorithm), []
    history = History(chosen.horizon)
    made = make_strategy(chosen, history)
    assert type(made) is strategy
    result = made.start(
        grid=InProcessGrid(2, to_flat(chosen)),
        initial_arrays=ArrayRecord(),
        timeout=60.0,
        train_config=ConfigRecord(),
        evaluate_fn=lambda number, arrays: seen.append((number, arrays["theta_sync"].numpy())),
    )
    theta = result.arrays["theta_sync"].numpy()
    expected = vectorized.run(chosen, History(chosen.horizon))
    np.testing.assert_allclose(theta, expected, rtol=1e-9)
    assert [number for number, _ in seen] == list(result.train_metrics_clientapp)
    np.testing.assert_array_equal(seen[-1][1], theta)
    for arguments in (
        {"initial_arrays": ArrayRecord([np.ones(2)])},
        {"num_rounds": 3},
        {"train_config": ConfigRecord({"lr": 0.1})},
        {"evaluate_config": ConfigRecord({"lr": 0.1})},
    ):
        with pytest.raises(SettingsError, match=f"{next(iter(arguments))} must be empty: "):
            made.start(InProcessGrid(2, to_flat(chosen)), **arguments)


@pytest.mark.parametrize(
    "strategy", [FLDBOGDStrategy, FLDBGDStrategy, FLDBONSStrategy, FLDBPersonalStrategy]
)
def test_a_named_strategy_runs_no_other_algorithm(strategy):
    with pytest.raises(
        SettingsError, match=f"algorithm=ldb: .* needs algorithm={strategy.ALGORITHM}"
    ):
        strategy(settings(algorithm="ldb"), History(5))
