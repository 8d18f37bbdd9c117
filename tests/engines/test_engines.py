"""All engines give the same results, independent of the transport."""

import json
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from conftest import nested
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
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


EQUAL = [
    *({"algorithm": name} for name, entry in ALGORITHMS.items() if entry.agents != "pooled"),
    *({"selection": rule} for rule in ("maxinp", "colstim", "maxpairucb", "thompson")),
    *({"algorithm": name, "first_round": "step"} for name in ("fldb_ogd", "fldb_ons")),
    {"algorithm": "fldb_ogd", "schedule__name": "geometric", "matrix_form": "diagonal"},
    {"algorithm": "fldb_ons", "schedule__name": "geometric"},
    {"algorithm": "fldb_ons", "matrix_form": "diagonal"},
    {"algorithm": "fldb_gd", "solver": "gd", "gd_steps": 3, "schedule__name": "geometric"},
    {"environment__sigma": 0.7},
    {"environment__name": "movielens"},
]


@pytest.mark.parametrize("values", EQUAL, ids=str)
def test_regret_exchanges_and_bytes_do_not_depend_on_engine_or_nodes(values, ratings):
    if "environment__name" in values:
        values = {**values, "environment__path": str(ratings())}
    expected = History(SMALL["horizon"])
    vectorized.run(settings(**values), expected)
    assert (expected.node_uploaded_bytes, expected.node_downloaded_bytes) == (0, 0)
    for nodes in (1, 4, 11):
        chosen = settings(**values, engine__name="inprocess", engine__num_nodes=nodes)
        got = History(chosen.horizon)
        inprocess.play(chosen, got)
        np.testing.assert_allclose(got.cumulative_regret, expected.cumulative_regret, rtol=1e-9)
        np.testing.assert_array_equal(got.exchanges_by_iteration, expected.exchanges_by_iteration)
        assert got.uploaded_bytes == expected.uploaded_bytes
        assert got.downloaded_bytes == expected.downloaded_bytes


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


@pytest.mark.parametrize("engine", ["vectorized", "inprocess"])
def test_a_run_directory_depends_on_the_settings_only_and_is_not_overwritten(tmp_path, engine):
    for name in ("a", "b"):
        run(settings(engine__name=engine), tmp_path / name)
    before = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    assert {"config.yaml", "regret.png"} <= before.keys()
    assert before["regret.csv"] == (tmp_path / "b" / "regret.csv").read_bytes()
    table = pd.read_csv(tmp_path / "a" / "regret.csv")
    assert list(table.columns) == ["iteration", "cumulative_regret", "exchanges"]
    assert list(table.iteration) == list(range(1, 24))
    assert (table.cumulative_regret.diff().dropna() >= 0).all()
    summary = json.loads(before["summary.json"])
    assert summary["complete"] is True
    assert summary["final_regret"] == table.cumulative_regret.iloc[-1]
    assert summary["exchanges"] == table.exchanges.iloc[-1]
    # tau = 3, T = 23: rounds end at 1 (the first minimiser), 3, 6, ..., 21.
    assert summary["rounds"] == 8
    # 11 agents that each send gradient 3 + triangle 6; the first solve sends Hessians too.
    solve = summary["exchanges"] - 7
    assert summary["uploaded_bytes"] == 11 * 8 * (7 * 9 + solve * 15)
    assert summary["downloaded_bytes"] == 11 * 8 * (8 * 12 + (solve - 1) * 3)
    with pytest.raises(OutputError, match="already holds a run"):
        run(settings(seed=1, engine__name=engine), tmp_path / "a")
    assert {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()} == before


@pytest.mark.slow
def test_client_modules_import_no_heavy_module_and_vectorized_agents_no_flower():
    heavy = ("torch", "pandas", "matplotlib", "hydra", "omegaconf", "scipy")
    for modules, unwanted in (
        ("clients.simulated, fldb_flower.client_app", heavy),
        ("simulations.run, simulations.engines.vectorized", ("flwr",)),
    ):
        code = f"import sys, {modules}; print([m for m in {unwanted!r} if m in sys.modules])"
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[]"


class ChangingGrid(InProcessGrid):
    """Replies to the n-th message are changed by ``changes[n]``; the last replies come first."""

    def __init__(self, num_nodes, run_config, changes):
        super().__init__(num_nodes, run_config)
        self.changes, self.delivered = changes, 0

    def deliver(self, message):
        reply = super().deliver(message)
        self.delivered += 1
        return self.changes.get(self.delivered, lambda same: same)(reply)

    def pull_messages(self, message_ids):
        return reversed(super().pull_messages(message_ids))


def over(changes, **values):
    """Run over four nodes whose replies are changed; return the history and theta_sync."""
    chosen = settings(engine__name="inprocess", engine__num_nodes=4, **values)
    history = History(chosen.horizon)
    return history, play(chosen, history, ChangingGrid(4, to_flat(chosen), changes))


def change_duels(reply):
    config = reply.content["config"]
    config["header"] = [config["header"][0] + 1, *config["header"][1:]]
    return reply


def without_arrays(reply):
    content = RecordDict({"x": MetricRecord({"y": 1})})
    return Message(content=content, metadata=reply.metadata)


@pytest.mark.parametrize("change", [change_duels, without_arrays])
def test_an_invalid_reply_is_requested_again_and_counted_once(change):
    """Other faults are tested in `test_faults.py`."""
    clean, theta = over({})
    history, same = over({2: change, 47: change, 48: change})
    np.testing.assert_array_equal(same, theta)
    np.testing.assert_array_equal(history.cumulative_regret, clean.cumulative_regret)
    # With a quorum, the duels of an absent node are uploaded later. The first solve sends several
    # messages to 4 nodes; the fault is in a reply well after it.
    history, _ = over({4 * clean.exchanges - 6: change}, quorum=0.75)
    missed = [row for row in history.participation if row.replied < row.asked]
    assert [len(row.rejected) for row in missed] == [1]
    np.testing.assert_array_equal(history.state()["agents"], SMALL["num_agents"])


def test_nodes_that_cannot_run_the_settings_are_refused():
    def without_partition(grid):
        grid.contexts[1002].node_config.clear()

    for nodes, values, change, error, reason in (
        (
            2,
            {},
            without_partition,
            SettingsError,
            "--node-config 'partition-id=0 num-partitions=2'",
        ),
        (3, {"num_agents": 2}, id, FederationError, "3 nodes for num-agents=2"),
        (0, {"node_wait": 0.05}, id, FederationError, "0 nodes connected within node-wait=0.05 s"),
    ):
        chosen = settings(**values)
        grid = InProcessGrid(nodes, to_flat(chosen))
        change(grid)
        with pytest.raises(error, match=re.escape(reason)):
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


STRATEGIES = {
    "fldb_ogd": FLDBOGDStrategy,
    "fldb_gd": FLDBGDStrategy,
    "fldb_ons": FLDBONSStrategy,
    "fldb_personal": FLDBPersonalStrategy,
    "ldb": DuelingStrategy,
}


@pytest.mark.parametrize(("algorithm", "strategy"), STRATEGIES.items())
def test_each_algorithm_runs_as_a_flower_strategy(algorithm, strategy):
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


def test_a_named_strategy_runs_no_other_algorithm():
    for algorithm, strategy in STRATEGIES.items():
        if algorithm != "ldb":
            reason = f"algorithm=ldb: .* needs algorithm={algorithm}"
            with pytest.raises(SettingsError, match=reason):
                strategy(settings(algorithm="ldb"), History(5))
