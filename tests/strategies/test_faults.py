"""Faults of messages: each duel is counted once, and an invalid upload is not counted."""

import itertools
import random
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from conftest import examples, nested
from faulty_grid import FaultyGrid
from hypothesis import given
from hypothesis import strategies as st
from reference_ons import derivatives, minimiser, ons

from fldb_flower.bandit import theory
from fldb_flower.bandit.estimate import Estimate
from fldb_flower.errors import FederationError
from fldb_flower.federation.agents import AgentBlock
from fldb_flower.federation.exchange import Broadcast, PlayRequest
from fldb_flower.federation.history import History
from fldb_flower.server_app import run_experiment
from fldb_flower.settings import from_nested, to_flat
from simulations.engines import vectorized
from simulations.engines.inprocess import LOST, UNHEARD, InProcessGrid, LossyGrid
from strategies import channel, make_strategy
from strategies.simulated import SimulatedChannel

SMALL = {"num_agents": 7, "horizon": 12, "num_arms": 4, "dimension": 3, "tau": 3, "quorum": 0.3}
TRANSPORT = ("late", "duplicate", "reorder", "crash")
REJECTED = {
    "nan": "not finite",
    "huge": "too large to square",
    "shape": "shape",
    "dtype": "not a vector of float64",
    "indefinite": "W_new is not positive semi-definite",
    "past": "an answer to exchange",
    "future": "duels instead of",
}
EVERY = ("dropout", *TRANSPORT, *REJECTED)  # faults that keep the sums over counted duels correct


def fault_of(kind, probability):
    """Return the settings and the arguments of the grid: only dropout is a user setting."""
    return ({"dropout": probability}, {}) if kind == "dropout" else ({}, {kind: probability})


def settings(nodes=3, engine="inprocess", **values):
    where = {"engine__name": engine, "engine__num_nodes": nodes}
    return from_nested(nested(**{**SMALL, **where, **values}), "a test")


def grid_of(chosen, **faults):
    """Return the product's grid if messages are only lost."""
    return FaultyGrid(chosen, **faults) if faults else LossyGrid(chosen, to_flat(chosen))


def start(chosen, grid=None):
    """Run the algorithm of the settings over a grid; return the history."""
    history = History(chosen.horizon)
    make_strategy(chosen, history).start(grid or grid_of(chosen))
    return history


class Witness:
    """Records each duel as it is played, and which iterations are counted in which round."""

    def __init__(self, chosen):
        self.settings = chosen
        self.duels = {}  # (first agent of a block, iteration) -> differences, preferences
        self.covered = {}  # first agent of a block -> last iteration counted
        self.rounds = []  # of rounds learned from: (last iteration, differences, preferences)

    def __enter__(self):
        self.patches = pytest.MonkeyPatch()
        play, acknowledge = AgentBlock.play_iterations, SimulatedChannel.acknowledge

        def playing(group, iterations, noise):
            block, agents = group.agents.start, len(group.agents)
            assert iterations.start > self.covered.get(block, 0), "a counted one is played again"
            play(group, iterations, noise)
            latest = [each[-len(iterations) * agents :].copy() for each in group.log.fresh()]
            for place, t in enumerate(iterations):
                own = slice(place * agents, (place + 1) * agents)
                self.duels[block, t] = latest[0][own], latest[1][own]

        def acknowledging(nodes):
            self.count(nodes.contributions)
            acknowledge(nodes)

        self.patches.setattr(AgentBlock, "play_iterations", playing)
        self.patches.setattr(SimulatedChannel, "acknowledge", acknowledging)
        return self

    def __exit__(self, *_):
        self.patches.undo()

    def run(self, grid=None):
        """Run FLDB-OGD or FLDB-ONS over the grid; return the strategy."""
        history = History(self.settings.horizon)
        self.strategy = make_strategy(self.settings, history)
        self.strategy.start(grid or grid_of(self.settings))
        return self.strategy

    def count(self, contributions):
        agents = {node: block for block, node in self.blocks()}
        learns, parts, last = self.strategy.channel.broadcast.theta_hat is not None, [], 0
        for node, contribution in contributions.items():
            block = agents[node]
            (outcomes,) = contribution.upload.outcomes
            first, last = outcomes.first, outcomes.first + len(outcomes.sums) - 1
            assert first == self.covered.get(block, 0) + 1
            parts += [self.duels[block, t] for t in range(first, last + 1)]
            self.covered[block] = last
        if learns:
            self.rounds.append((last, *(np.concatenate(rows) for rows in zip(*parts, strict=True))))

    def blocks(self):
        """Yield the first agent of each node's block; the first blocks have one agent more."""
        agents, nodes = self.settings.num_agents, self.settings.engine.num_nodes
        sizes = [agents // nodes + (place < agents % nodes) for place in range(nodes)]
        yield from zip(np.cumsum([0, *sizes[:-1]]).tolist(), range(1001, 1001 + nodes), strict=True)

    def information(self):
        differences = np.concatenate([x for _, x, _ in self.rounds])
        return np.eye(self.settings.dimension) / self.settings.horizon + differences.T @ differences

    def theta_sync(self):
        """Recompute the estimate from the counted duels with independent formulas."""
        if self.settings.algorithm == "fldb_ons":
            return ons([duels for _, *duels in self.rounds])
        return self._ogd(*self.rounds)

    def _ogd(self, first, *others):
        hats = [minimiser(*first[1:], 1.0 / self.settings.horizon)]
        if self.settings.tau == 1:
            hats *= 2  # round 1 is t = 1: its gradient vanishes
        for last, x, y in others:
            hat = hats[-1] - derivatives(hats[-1], x, y)[0] / (self.settings.alpha * last)
            way, radius = hat - hats[0], theory.projection_radius(self.settings)
            hats.append(hats[0] + way * min(1.0, radius / max(np.linalg.norm(way), 1e-300)))
        return np.mean(hats, axis=0)

    def check_counts(self):
        algorithm = self.strategy.algorithm
        np.testing.assert_allclose(algorithm.information, self.information(), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(algorithm.theta_sync, self.theta_sync(), rtol=1e-9, atol=1e-9)


def agents_reported(history):
    """Return the number of agents whose regret of each iteration is known."""
    return history.state()["agents"]


def test_the_aggregate_is_the_sum_over_the_duels_of_all_agents():
    """The gradient, then the upper triangles of W_new and the Hessian, at a given theta."""
    chosen, seen, theta = settings(algorithm="fldb_ons"), [], np.array([1.0, -0.5, 0.0])
    with Witness(chosen) as witness:
        strategy = make_strategy(chosen, History(chosen.horizon))
        strategy.channel.connect(InProcessGrid(3, to_flat(chosen)))
        aggregate = strategy.aggregate_train
        strategy.aggregate_train = lambda *arguments: seen.append(aggregate(*arguments))
        play = PlayRequest(1, 2, Estimate(np.zeros(3), np.eye(3)))
        strategy.exchange(Broadcast(play, theta, hessian=True))
    x, y = (np.concatenate(rows) for rows in zip(*witness.duels.values(), strict=True))
    gradient, hessian = derivatives(theta, x, y)
    upper = np.triu_indices(3)
    ((arrays, metrics),) = seen
    (vector,) = arrays.to_numpy_ndarrays()
    expected = np.concatenate([gradient, (x.T @ x)[upper], hessian[upper]])
    np.testing.assert_allclose(vector, expected, rtol=1e-12)
    assert dict(metrics) == {"contributed": 3, "refused": 0, "duels": 14}


# --- one kind of fault ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("algorithm", ["fldb_ogd", "fldb_ons"])
def test_counted_duels_are_counted_once_under_every_fault(kind, algorithm):
    absent = 0
    for seed in range(3):
        lost, others = fault_of(kind, 0.3)
        chosen = settings(algorithm=algorithm, seed=seed, **lost)
        with Witness(chosen) as witness:
            history = witness.run(grid_of(chosen, **others)).history
        witness.check_counts()
        # Finally, every agent's regret of every iteration is known exactly once.
        np.testing.assert_array_equal(agents_reported(history), SMALL["num_agents"])
        absent += sum(row.asked - row.replied for row in history.participation)
    assert (absent > 0) == (kind not in ("duplicate", "reorder"))


@pytest.mark.parametrize("kind", EVERY)
def test_with_a_full_quorum_faults_do_not_change_results(kind):
    """With quorum=1 every message is repeated until it is answered."""
    for algorithm in ("fldb_ogd", "fldb_ons", "fldb_gd"):
        clean = settings(algorithm=algorithm, engine="vectorized")
        history = History(clean.horizon)
        vectorized.run(clean, history)
        lost, others = fault_of(kind, 0.3)
        chosen = settings(algorithm=algorithm, quorum=1.0, **lost)
        with Witness(chosen) as witness:
            found = witness.run(grid_of(chosen, **others)).history
        assert found.exchanges == history.exchanges
        np.testing.assert_allclose(found.cumulative_regret, history.cumulative_regret, rtol=1e-9)


@pytest.mark.parametrize("algorithm", ["ldb", "random"])
def test_independent_agents_are_not_affected_by_faults(algorithm):
    clean = start(settings(algorithm=algorithm))
    chosen = settings(algorithm=algorithm, dropout=0.3)
    faulty = start(chosen, grid_of(chosen, late=0.2, crash=0.2))
    np.testing.assert_array_equal(agents_reported(faulty), SMALL["num_agents"])
    np.testing.assert_allclose(faulty.cumulative_regret, clean.cumulative_regret, rtol=1e-12)


def test_faults_do_not_change_the_random_draws_of_agents():
    """The arms and preferences of an agent are the same; only the estimates differ."""
    played = []
    for others in ({}, {"duplicate": 0.5, "reorder": 1.0}):
        with Witness(settings(algorithm="fldb_ons")) as witness:
            witness.run(grid_of(witness.settings, **others))
        played.append(witness.duels)
    assert played[0].keys() == played[1].keys()
    for key, (differences, preferences) in played[0].items():
        np.testing.assert_array_equal(differences, played[1][key][0])
        np.testing.assert_array_equal(preferences, played[1][key][1])


# --- any schedule ---------------------------------------------------------------------------

MISHAPS = [
    set(),
    {UNHEARD},
    {LOST},
    {"late"},
    {"duplicate"},
    {"crash"},
    {"duplicate", "late"},
    {"crash", LOST},
]


@pytest.mark.slow
@examples(240)
@given(
    algorithm=st.sampled_from(["fldb_ogd", "fldb_ons"]),
    agents=st.integers(2, 5),
    nodes=st.integers(1, 4),
    tau=st.integers(1, 3),
    rounds=st.integers(1, 4),
    quorum=st.sampled_from([0.01, 0.5, 1.0]),
    share=st.sampled_from([0.5, 1.0]),
    reorder=st.sampled_from([0.0, 0.7]),
    schedule=st.lists(st.sampled_from(MISHAPS), max_size=60),
    calm_end=st.booleans(),
)
def test_duels_are_counted_once_under_any_schedule(
    *, algorithm, agents, nodes, tau, rounds, quorum, share, reorder, schedule, calm_end
):
    """Lost, late, repeated and reordered messages and failing clients, in any order."""
    chosen = settings(
        min(nodes, agents), algorithm=algorithm, num_agents=agents, horizon=tau * rounds, tau=tau,
        dimension=2, num_arms=3, quorum=quorum, fraction_train=share,
    )  # fmt: skip
    faults, calm_from = iter(schedule), chosen.horizon + (not calm_end)

    def fault(_partition, request):
        return set() if request.last >= calm_from else next(faults, set())

    with Witness(chosen) as witness:
        strategy = witness.run(FaultyGrid(chosen, fault, reorder=reorder))
    witness.check_counts()
    np.testing.assert_array_equal(agents_reported(strategy.history), agents)
    if calm_end and share == 1.0 and rounds * tau > 1:
        assert sum(len(y) for _, _, y in witness.rounds) == agents * tau * rounds


# --- invalid uploads ------------------------------------------------------------------------


def of_two_nodes(kind):
    """Return a fault of some of their messages, whose choice does not depend on the kind."""
    luck = random.Random(0)

    def fault(partition, request):
        # There is no earlier message to repeat in iteration 1.
        bad = partition < 2 and request.last > 1 and luck.random() < 0.5
        return {kind} if bad else set()

    return fault


@pytest.mark.parametrize("kind", REJECTED)
@pytest.mark.parametrize("algorithm", ["fldb_ogd", "fldb_ons"])
def test_an_invalid_upload_is_equivalent_to_a_lost_one(kind, algorithm):
    chosen, seen = settings(4, algorithm=algorithm, tau=1, horizon=15), []
    for name in (LOST, kind):
        with Witness(chosen) as witness:
            seen.append(witness.run(FaultyGrid(chosen, of_two_nodes(name))))
        witness.check_counts()
    lost, rejected = seen
    state = lost.algorithm.state()
    for name, value in rejected.algorithm.state().items():
        np.testing.assert_allclose(value, state[name], rtol=1e-9)
    np.testing.assert_allclose(
        rejected.history.cumulative_regret, lost.history.cumulative_regret, rtol=1e-9
    )
    lines = list(itertools.chain(*(row.rejected for row in rejected.history.participation)))
    assert lines
    assert all(line.startswith(("partition 0: ", "partition 1: ")) for line in lines)
    assert all(REJECTED[kind] in line for line in lines)
    assert not any(row.rejected for row in lost.history.participation)


@pytest.mark.parametrize("kind", [*REJECTED, "crash", "dropout", "late"])
def test_participation_lists_absent_nodes_and_reasons(tmp_path, kind):
    lost, others = fault_of(kind, 1.0)
    chosen = settings(4, quorum=0.5, **lost)
    run_experiment(chosen, FaultyGrid(chosen, nodes=1, **others), tmp_path)
    table = pd.read_csv(tmp_path / "participation.csv", keep_default_na=False)
    assert list(table.columns) == ["iteration", "asked", "replied", "absent", "rejected"]
    first = {"iteration": 1, "asked": 4, "replied": 3}
    known = kind in REJECTED and kind not in {"past", "dtype"}  # the partition of the node
    if kind == "past":  # the first upload has no predecessor; others are replaced
        first["replied"] = 4
    assert dict(table.iloc[0][list(first)]) == first
    learned = table[(table.asked == 4) & (table.iteration > 1)].iloc[:-1]
    assert len(learned) == 4
    assert set(learned.replied) == {3}
    name = "partition 0" if known or kind == "past" else "node 1001"
    assert set(learned.absent) == {name}
    if kind in REJECTED:
        assert all(text.startswith(f"{name}: ") for text in learned.rejected)
        assert all(REJECTED[kind] in text for text in learned.rejected)
    elif kind == "crash":
        assert set(learned.rejected) == {f"{name}: a client that raises"}
    else:
        assert set(learned.rejected) == {""}


def regrets(seeds, nodes, algorithm, faults=(), **values):
    """Return the final regret for each seed, with one agent per node."""
    found = []
    for seed in range(seeds):
        chosen = settings(
            nodes, algorithm=algorithm, seed=seed, num_agents=nodes, num_arms=10, dimension=5,
            tau=5, **values,
        )  # fmt: skip
        if chosen.engine.name == "vectorized":
            vectorized.run(chosen, history := History(chosen.horizon))
        else:
            history = start(chosen, grid_of(chosen, **dict(faults)))
        found.append(history.regret)
    return np.array(found)


@pytest.mark.slow
def test_one_invalid_client_of_100_is_equivalent_to_an_absent_one():
    """Other faults are refused exactly; see above."""
    options = {"horizon": 10, "quorum": 0.9}
    absent = regrets(5, 100, "fldb_ons", {"nodes": 1}, dropout=1.0, **options)
    error = absent.std(ddof=1) / np.sqrt(5)
    for kind in ("scaled", "flipped"):
        got = regrets(5, 100, "fldb_ons", {kind: 1.0, "nodes": 1}, **options)
        assert abs(got.mean() - absent.mean()) <= 2 * error


# --- learning with absent nodes -------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "seeds", "horizon"),
    [pytest.param("fldb_ogd", 40, 200, marks=pytest.mark.exhaustive), ("fldb_ons", 10, 100)],
)
def test_learning_with_absent_nodes(algorithm, seeds, horizon):
    """Regrets of FLDB-OGD have a long tail, so it needs more seeds; the width is theory's."""
    run_of = {"horizon": horizon, "quorum": 0.5, "beta_scale": 1.0}
    clean = regrets(seeds, 20, algorithm, engine="vectorized", **run_of).mean()
    assert regrets(seeds, 20, algorithm, dropout=0.1, **run_of).mean() <= 1.2 * clean
    uniform = regrets(3, 20, "random", engine="vectorized", **run_of).mean()
    assert regrets(3, 20, algorithm, dropout=0.3, **run_of).mean() < uniform / 2


def dies_in_the_first_solve(partition, request):
    """Node 0 replies to the first exchange of t = 1 only."""
    return {"crash"} if partition == 0 and request.first != 1 else set()


def fails_in_solves(partition, request):
    """Node 0 replies when duels are played, and fails in the exchanges that minimise the loss."""
    return {"crash"} if partition == 0 and request.last == 0 else set()


@pytest.mark.parametrize("algorithm", ["fldb_ogd", "fldb_ons", "fldb_gd"])
@pytest.mark.parametrize("fault", [dies_in_the_first_solve, fails_in_solves])
def test_a_round_restarts_without_a_node_that_always_fails(algorithm, fault):
    chosen = settings(4, algorithm=algorithm, quorum=0.5, horizon=6)
    with Witness(chosen) as witness:
        strategy = witness.run(FaultyGrid(chosen, fault))
    if algorithm != "fldb_gd":
        witness.check_counts()
    first, *others = strategy.history.participation
    assert (first.asked, first.replied) == (4, 4)
    assert any(row.asked == row.replied == 3 for row in others)  # t = 1 was started again
    if fault is dies_in_the_first_solve:
        assert {row.absent for row in others if row.asked == 4} == {("partition 0",)}


def test_a_run_ends_if_a_node_of_its_quorum_always_fails():
    chosen = settings(4, quorum=1.0)
    with pytest.raises(FederationError, match=r"3 of 4 .*partition 0: a client that raises"):
        start(chosen, FaultyGrid(chosen, dies_in_the_first_solve))


def test_in_process_runs_do_not_sleep(monkeypatch):
    slept = []
    monkeypatch.setattr(channel.time, "sleep", slept.append)
    start(settings(dropout=0.3, quorum=1.0))
    assert slept
    assert set(slept) == {0.0}


@pytest.mark.parametrize("seed", range(4))  # seeds the delay of the late reply
def test_the_first_valid_reply_is_used_and_later_ones_are_ignored(seed):
    chosen, tries = settings(2, quorum=1.0, seed=seed), {0: 0, 1: 0}

    def fault(partition, request):
        tries[partition] += 1
        if partition == 0:
            return {"late", "nan"} if tries[0] == 1 else set()
        return {LOST} if tries[1] < 12 else set()  # until node 0's first reply arrives

    history = start(chosen, grid := FaultyGrid(chosen, fault))
    assert not grid.late
    assert not any(row.rejected for row in history.participation)


def test_a_client_that_raises_keeps_its_state():
    chosen, states, faults = settings(1), [], iter([{"crash"}, {"crash"}])

    def fault(_partition, _request):
        states.append(dict(grid.contexts[1001].state))
        return next(faults, set())

    grid = FaultyGrid(chosen, fault)
    start(chosen, grid)
    assert states[0] == states[1] == states[2] == {}
    assert states[3] != {}


# --- a fraction of the nodes ----------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["fldb_ogd", "fldb_ons"])
@pytest.mark.parametrize(("share", "asked"), [(0.01, 1), (0.4, 2), (0.5, 2), (0.8, 4)])
def test_a_fraction_of_the_nodes_is_sampled_and_all_duels_are_counted(algorithm, share, asked):
    chosen = settings(5, algorithm=algorithm, fraction_train=share, quorum=1.0, horizon=24, tau=2)
    with Witness(chosen) as witness:
        strategy = witness.run()
    witness.check_counts()
    np.testing.assert_array_equal(agents_reported(strategy.history), SMALL["num_agents"])
    *rounds, last = strategy.history.participation
    assert {row.asked for row in rounds} == {asked}
    assert (last.asked, last.replied, last.iteration) == (5, 5, 24)
    assert len(witness.covered) == 5  # every node took part


def test_nodes_are_sampled_by_partition_and_not_by_node_id():
    chosen = settings(6, fraction_train=0.5, num_agents=6)
    drawn = []
    for shift in (0, 3):
        strategy = make_strategy(chosen, History(chosen.horizon))
        grid = InProcessGrid(6, to_flat(chosen))
        for place, context in enumerate(grid.contexts.values()):
            context.node_config["partition-id"] = (place + shift) % 6
        strategy.channel.connect(grid)
        strategy.exchange(Broadcast(PlayRequest(1, 1), None))  # to all nodes
        nodes = strategy.channel.connected()
        partition_of = {node: strategy.channel.sort_key(node)[1] for node in nodes}
        assert sorted(partition_of.values()) == list(range(6))
        samples = [strategy.channel.sample(number, nodes) for number in range(2, 10)]
        drawn.append([[partition_of[node] for node in sample] for sample in samples])
    assert drawn[0] == drawn[1]
    assert len({tuple(each) for each in drawn[0]}) > 3
    assert all(sorted(each) == each and len(each) == 3 for each in drawn[0])


# --- from the command line ------------------------------------------------------------------

MESS = {
    "late": 0.1, "duplicate": 0.1, "reorder": 0.5, "crash": 0.1,
    "nan": 0.05, "past": 0.05, "future": 0.05,
}  # fmt: skip


def test_the_same_seed_gives_the_same_bytes(tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("other", 1)):
        chosen = settings(algorithm="fldb_ons", seed=seed, dropout=0.1)
        run_experiment(chosen, grid_of(chosen, **MESS), tmp_path / name)
    first, second, other = (
        [(tmp_path / name / file).read_bytes() for file in ("regret.csv", "participation.csv")]
        for name in ("a", "b", "other")
    )
    assert first == second
    assert first[1] != other[1]


@pytest.mark.slow
def test_a_sweep_over_dropout(tmp_path):
    command = "-m simulations.run -m engine=inprocess dropout=0,0.1,0.3 quorum=0.5 num_agents=20"
    command += f" engine.num_nodes=10 horizon=30 num_arms=4 hydra.sweep.dir={tmp_path}"
    subprocess.run([sys.executable, *command.split()], check=True, capture_output=True)
    table = pd.read_csv(tmp_path / "sweep.csv")
    assert list(table.dropout) == [0.0, 0.1, 0.3]
    assert table.final_regret.notna().all()
    shares = []
    for job in table.job:
        part = pd.read_csv(tmp_path / str(job) / "participation.csv", keep_default_na=False)
        rows = part[part.asked == 10]
        shares.append((rows.replied / rows.asked).mean())
        missing = rows.absent.str.count("partition|node")
        assert list(missing) == list(rows.asked - rows.replied)
    assert shares[0] == 1.0
    assert shares[0] > shares[1] > shares[2]
