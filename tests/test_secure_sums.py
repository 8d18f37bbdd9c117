"""Secure sums in simulations: exact sums of integers, and the results of plain sums."""

import functools
import json
import random
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from conftest import examples, nested
from flwr.app import ArrayRecord
from hypothesis import given
from hypothesis import strategies as st

import fldb_flower as fldb
from fldb_flower.algorithms import Algorithm, make_algorithm
from fldb_flower.catalogue import ALGORITHMS
from fldb_flower.environments.base import Contexts
from fldb_flower.errors import DataError, FederationError, SettingsError
from fldb_flower.federation.agents import AgentGroup
from fldb_flower.federation.blocks import agents_of_node
from fldb_flower.federation.exchange import Broadcast, Federation, PlayRequest, statistics
from fldb_flower.federation.history import History
from fldb_flower.federation.plausibility import implausible
from fldb_flower.linalg.forms import make_form
from fldb_flower.settings import from_nested, to_flat
from fldb_flower.wire.secure_sums import SecureSums
from fldb_flower.wire.secure_upload import numbers_of
from simulations.engines.grid import InProcessGrid
from simulations.run import run
from strategies import make_strategy

SMALL = {"num_agents": 11, "horizon": 23, "num_arms": 4, "dimension": 3, "tau": 3}
KINDS = {
    "personal": {"algorithm": "fldb_personal"},
    "ons": {"algorithm": "fldb_ons", "first_round": "step"},
    "ogd": {"algorithm": "fldb_ogd", "first_round": "step"},
    "ons diagonal": {"algorithm": "fldb_ons", "first_round": "step", "matrix_form": "diagonal"},
    "ogd diagonal": {"algorithm": "fldb_ogd", "first_round": "step", "matrix_form": "diagonal"},
}


def settings(**values):
    return from_nested(nested(**{**SMALL, "secure": True, **values}), "a test")


def regret(directory):
    return pd.read_csv(directory / "regret.csv").cumulative_regret.to_numpy()


# --- the sum -------------------------------------------------------------------------------


class Recorded(Federation):
    """Agents on some nodes; it keeps the requests and the uploads of the nodes."""

    def __init__(self, chosen, nodes):
        super().__init__(History(chosen.horizon))
        count = chosen.num_agents
        self.groups = [AgentGroup(chosen, agents_of_node(n, nodes, count)) for n in range(nodes)]
        self.sums, self.nodes, self.kept = SecureSums(chosen), nodes, []

    def collect(self, broadcast):
        uploads = [group.answer(broadcast, self.history.iteration) for group in self.groups]
        if not broadcast.learns:
            return opened(self.sums, [], broadcast, uploads, self.nodes)
        self.kept.append((broadcast, uploads))
        integers = [self.sums.quantise(upload, broadcast, self.nodes) for upload in uploads]
        return opened(self.sums, integers, broadcast, uploads, self.nodes)

    def mark_counted(self):
        pass


def opened(sums, integers, broadcast, uploads, nodes):
    return sums.open(
        integers,
        broadcast,
        nodes,
        duels=sum(upload.num_duels for upload in uploads),
        outcomes=[each for upload in uploads for each in upload.outcomes],
    )


@functools.cache
def recorded(kind, nodes):
    """Return the sums and, for each exchange of a short run, the request and the uploads."""
    chosen = settings(horizon=9, **KINDS[kind])
    federation = Recorded(chosen, nodes)
    algorithm = make_algorithm(chosen)
    for round_ in algorithm.rounds():
        algorithm.round(federation, round_)
    return federation.sums, federation.kept


def nearest(value, exponent):
    """Return the integer nearest to ``2^exponent value``, with Python's fractions."""
    return round(Fraction(value) * Fraction(2) ** exponent)


@given(kind=st.sampled_from(list(KINDS)), nodes=st.sampled_from([1, 2, 4, 11]), seed=st.integers(0))
@examples(60)
def test_any_subset_in_any_order_is_summed_exactly(kind, nodes, seed):
    """The upload equals the sum of Python's integers, divided by the scale and rounded once."""
    rng = random.Random(seed)
    sums, kept = recorded(kind, nodes)
    broadcast, uploads = rng.choice(kept)
    chosen = rng.sample(uploads, rng.randint(1, nodes))  # a subset in random order
    encoding = sums.encoding(broadcast, nodes)
    exponents = [
        exponent
        for block, exponent in zip(encoding.blocks, encoding.exponents, strict=True)
        for _ in range(block.size)
    ]
    integers = [sums.quantise(upload, broadcast, nodes) for upload in chosen]
    for vector, upload in zip(integers, chosen, strict=True):
        values = numbers_of(upload, broadcast).tolist()
        assert vector.tolist() == [*map(nearest, values, exponents)]
        # Values have 53 bits; the lowest bits of integers are then 0, which hides errors of sums.
        vector[np.abs(vector) > 2**20] += rng.randint(-1000, 1000)
    exact = [sum(column) for column in zip(*(v.tolist() for v in integers), strict=True)]
    got = numbers_of(opened(sums, integers, broadcast, chosen, nodes), broadcast)
    scaled = zip(exact, exponents, strict=True)
    assert got.tolist() == [float(Fraction(n) / Fraction(2) ** k) for n, k in scaled]


def test_the_sum_differs_from_floats_by_half_a_quantum_per_node():
    sums, kept = recorded("personal", 11)
    for broadcast, uploads in kept:
        encoding = sums.encoding(broadcast, 11)
        integers = [sums.quantise(upload, broadcast, 11) for upload in uploads]
        got = numbers_of(opened(sums, integers, broadcast, uploads, 11), broadcast)
        exact = [
            sum(map(Fraction, column))
            for column in zip(*(numbers_of(u, broadcast).tolist() for u in uploads), strict=True)
        ]
        at = 0
        for block, exponent in zip(encoding.blocks, encoding.exponents, strict=True):
            for place in range(at, at + block.size):
                error = abs(Fraction(got[place]) - exact[place])
                assert error <= 11 * Fraction(2) ** -exponent / 2 + abs(exact[place]) / 2**53
            at += block.size


# --- results -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_results_are_those_of_plain_sums(tmp_path, kind):
    """Another pair in one of 1,200 duels changes the regret by far more than 1e-9."""
    chosen = {"num_agents": 20, "horizon": 60, "tau": 5, **KINDS[kind]}
    run(settings(**chosen, secure=False), tmp_path / "plain")
    run(settings(**chosen), tmp_path / "secure")
    np.testing.assert_allclose(
        regret(tmp_path / "secure"), regret(tmp_path / "plain"), rtol=1e-9, atol=0
    )
    plain, secure = (
        json.loads((tmp_path / name / "model.json").read_text()) for name in ("plain", "secure")
    )
    np.testing.assert_allclose(secure["theta_sync"], plain["theta_sync"], rtol=1e-9)
    for nodes in (1, 4, 11):
        where = {"engine__name": "inprocess", "engine__num_nodes": nodes}
        run(settings(**chosen, **where), tmp_path / str(nodes))
        np.testing.assert_allclose(
            regret(tmp_path / str(nodes)), regret(tmp_path / "plain"), rtol=1e-9, atol=0
        )


@pytest.mark.parametrize("engine", ["vectorized", "inprocess"])
def test_a_repeated_run_gives_the_same_bytes(tmp_path, engine):
    for name in ("a", "b"):
        run(settings(**KINDS["personal"], engine__name=engine), tmp_path / name)
    first, second = ((tmp_path / name / "regret.csv").read_bytes() for name in ("a", "b"))
    assert first == second != b""


@pytest.mark.parametrize("kind", ["personal", "ons"])
@pytest.mark.parametrize(
    "partial",
    [
        {"dropout": 0.3, "quorum": 0.4, "node_wait": 300.0},
        {"fraction_train": 0.5},
        {"fraction_train": 0.5, "dropout": 0.2, "quorum": 0.5, "node_wait": 300.0},
    ],
    ids=str,
)
def test_partial_participation_gives_the_results_of_plain_sums(tmp_path, kind, partial):
    where = {"engine__name": "inprocess", "engine__num_nodes": 5, **partial}
    for name in ("plain", "secure"):
        run(settings(**KINDS[kind], **where, secure=name == "secure"), tmp_path / name)
    np.testing.assert_allclose(
        regret(tmp_path / "secure"), regret(tmp_path / "plain"), rtol=1e-9, atol=0
    )
    asked = pd.read_csv(tmp_path / "secure" / "participation.csv")
    assert (asked.replied < 5).any()
    plain = pd.read_csv(tmp_path / "plain" / "participation.csv")
    pd.testing.assert_frame_equal(asked, plain)


def test_the_python_api_has_secure_sums(tmp_path):
    chosen = {"algorithm": "fldb_personal", "num_agents": 5, "horizon": 20}
    result = fldb.run(**chosen, secure=True)
    assert result.settings["secure"] is True
    plain = fldb.run(**chosen)
    np.testing.assert_allclose(
        result.regret.cumulative_regret, plain.regret.cumulative_regret, rtol=1e-9
    )
    assert "secure: true" in (result.save(tmp_path / "saved") / "config.yaml").read_text()
    table = fldb.sweep(**chosen, secure=[False, True])
    assert sorted(table.secure) == [False, True]


# --- what the server uses ------------------------------------------------------------------


class Spied(InProcessGrid):
    """Keeps all messages and replies; ``faults[n]`` changes the n-th reply."""

    def __init__(self, chosen, faults=None):
        super().__init__(chosen.engine.num_nodes, to_flat(chosen))
        self.exchanged, self.faults = [], faults or {}

    def deliver(self, message):
        reply = super().deliver(message)
        self.exchanged.append((message, reply))
        return self.faults.get(len(self.exchanged), lambda each: each)(reply)


def over(faults=None, **values):
    chosen = settings(engine__name="inprocess", engine__num_nodes=4, **values)
    history, grid = History(chosen.horizon), Spied(chosen, faults)
    strategy = make_strategy(chosen, history)
    strategy.start(grid)
    return history, grid, strategy


@pytest.mark.parametrize("kind", KINDS)
def test_the_server_uses_no_single_upload(kind):
    _, grid, strategy = over(**KINDS[kind])
    for message, reply in grid.exchanged:
        config = reply.content["config"]
        assert config["header"][0] == 0  # the number of duels
        (vector,) = reply.content["arrays"].to_numpy_ndarrays()
        is_final = message.content["config"]["header"][3] == 0  # no statistics requested
        assert len(vector) == 0 if is_final else vector.dtype == np.int64
    replies = [each.content["arrays"] for _, each in grid.exchanged]
    assert any(len(each.to_numpy_ndarrays()[0]) for each in replies)
    for each in strategy.last_exchange.accepted:
        assert not each.upload.gradient.any()
        assert not np.any(each.upload.information)
        assert each.upload.shares is None


def test_plain_messages_are_unchanged():
    _, grid, _ = over(**KINDS["personal"], secure=False)
    for message, reply in grid.exchanged:
        assert set(message.content["config"]) == {"header", "counted", "exchange"}
        assert set(reply.content["config"]) == {"header", "outcomes", "exchange"}
        assert reply.content["arrays"].to_numpy_ndarrays()[0].dtype == np.float64


def change_vector(change):
    def fault(reply):
        (vector,) = reply.content["arrays"].to_numpy_ndarrays()
        reply.content["arrays"] = ArrayRecord([change(vector)])
        return reply

    return fault


def with_number(place, value):
    def change(vector):
        vector = vector.copy()
        vector[place] = value
        return vector

    return change_vector(change)


@pytest.mark.parametrize(
    "change", [lambda v: v[:-1], lambda v: v.astype(np.float64), lambda v: v.astype(np.uint64)]
)
def test_a_vector_of_another_kind_is_requested_again(change):
    clean, _, _ = over(**KINDS["ons"])
    faulty, _, strategy = over({6: change_vector(change)}, **KINDS["ons"])
    np.testing.assert_array_equal(faulty.cumulative_regret, clean.cumulative_regret)
    rejected = [line for row in faulty.participation for line in row.rejected]
    assert rejected == []  # in the end
    assert len(strategy.last_exchange.accepted) == 4


@pytest.mark.parametrize(
    ("kind", "place", "value", "reason"),
    [
        ("ons", 3, -(2**58), r"the sum over 4 nodes is not plausible: W_new is not positive semi"),
        ("ons", 3, 2**59, r"the sum over 4 nodes is not plausible: .*max_difference="),
        ("ons", 0, 2**58, r"the sum over 4 nodes is not plausible: gradient is longer"),
        ("ons", 0, 2**60, r"the sum of the gradient\[0\] is larger than 4 devices .*max_diff"),
        ("ons", -1, 1, r"a sum over \d+ duels instead of \d+"),
        ("personal", -2, 12, r"^the sum over 4 nodes is not plausible: the change of members = "),
        ("personal", -3, 2**59, r"^the sum over 4 nodes is not plausible: the mean squared len"),
    ],
)
def test_an_implausible_sum_ends_the_run_with_one_line(kind, place, value, reason):
    with pytest.raises(FederationError, match=reason) as error:
        over({6: with_number(place, value)}, **KINDS[kind])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("unit", ["person", "answer"])
def test_a_sum_with_the_limit_on_persons_may_have_less_curvature(unit):
    """A duel of logit 8 has the weight w: H = w mu'(8) x x^T, and theta W theta = 64 w < 8^2."""
    privacy = {"privacy__epsilon": 8.0, "privacy__unit": unit, "privacy__clip": 4.0}
    chosen = settings(**KINDS["ons"], max_difference=4.0, **privacy)
    sums, weight = SecureSums(chosen), 1e-3
    request = Broadcast(PlayRequest(2, 2), np.array([8.0, 0.0, 0.0]), hessian=True)
    duel, answer = np.array([[1.0, 0.0, 0.0]]), np.array([0.0])
    upload = statistics(request, duel, answer, duel, make_form(chosen))
    names = ("gradient", "information", "hessian")
    limited = upload._replace(**{name: weight * getattr(upload, name) for name in names})
    integers = sums.quantise(limited, request, 1)
    released = functools.partial(sums.open, [integers], request, 1, duels=1, outcomes=())
    if unit == "person":
        np.testing.assert_allclose(released().hessian, limited.hessian, atol=1e-9)
    else:
        with pytest.raises(FederationError, match="Hessian is smaller than W_new and theta allow"):
            released()


@pytest.mark.parametrize("engine", ["vectorized", "inprocess"])
@pytest.mark.parametrize("kind", ["personal", "ons"])
@pytest.mark.parametrize("longest", [1e-3, 0.5])
def test_longer_differences_name_the_setting(tmp_path, engine, kind, longest):
    chosen = settings(**KINDS[kind], engine__name=engine, max_difference=longest)
    with pytest.raises((DataError, FederationError)) as error:
        run(chosen, tmp_path / "run")
    assert str(error.value).endswith(
        f"; with max_difference={longest:g}, no difference of two arms may be longer than that"
    )
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run" / "summary.json").exists()


# --- other environments and algorithms -----------------------------------------------------


class UnequalUnits:
    """Normal features in units from 1 down to 1e-12; the rewards use all of them equally."""

    units = np.array([1.0, 1e-4, 1e-6, 1e-8, 1e-12])

    def __init__(self, settings, agents):
        self.shape = (len(agents), settings.num_arms, settings.dimension)

    def contexts(self, streams, iterations):
        agents, arms, d = self.shape
        normal = streams.logistic("contexts", iterations * arms * d)
        normal = normal.reshape(agents, iterations, arms, d) / 4.0
        return Contexts(normal * self.units[:d], normal.sum(axis=-1))


@pytest.mark.parametrize("kind", KINDS)
def test_features_in_unequal_units_are_plausible(register_world, tmp_path, kind):
    world = {"environment__name": register_world(UnequalUnits), "max_difference": 40.0}
    chosen = {"dimension": 5, "horizon": 40, **world, **KINDS[kind]}
    for name in ("plain", "secure"):
        run(settings(**chosen, secure=name == "secure"), tmp_path / name)
    difference = np.abs(regret(tmp_path / "secure") / regret(tmp_path / "plain") - 1)
    assert difference.max() < 1e-3 or kind != "ogd"  # OGD learns nothing from the small units


@pytest.mark.parametrize("matrix_form", ["full", "diagonal"])
@pytest.mark.parametrize("unit", 10.0 ** np.arange(0, -16, -1))
def test_rounding_to_a_quantum_violates_no_bound(matrix_form, unit):
    """Sums of integers with errors of half a quantum, for two features of which one is small."""
    chosen = settings(
        **{**KINDS["ons"], "matrix_form": matrix_form}, dimension=2, max_difference=8.0
    )
    sums, form = SecureSums(chosen), make_form(chosen)
    rng = np.random.default_rng(0)
    x = rng.uniform(-2.0, 2.0, (44, 2)) * [1.0, unit]
    theta = np.array([0.7, -1.0 / unit])
    y = (rng.logistic(size=44) < x @ theta).astype(float)
    request = Broadcast(PlayRequest(1, 4), theta, hessian=True)
    parts = [slice(4 * node, 4 * node + 4) for node in range(11)]
    uploads = [statistics(request, x[part], y[part], x[part], form) for part in parts]
    integers = [sums.quantise(upload, request, 11) for upload in uploads]
    summed = opened(sums, integers, request, uploads, 11)
    assert summed.num_duels == 44
    if unit <= 1e-8:  # below the quantum, which is about 1e-16 here
        assert implausible([summed], request, 8.0) != [""]


class Unbounded(UnequalUnits):
    units = np.ones(5)


@pytest.mark.parametrize("engine", ["vectorized", "inprocess"])
def test_an_environment_without_a_bound_needs_max_difference(register_world, tmp_path, engine):
    world = {"environment__name": register_world(Unbounded), "engine__name": engine}
    reason = r"^secure=true: .* environment=world has no bound; set max_difference$"
    with pytest.raises(SettingsError, match=reason):
        run(settings(**world, **KINDS["ons"]), tmp_path / "refused")
    run(settings(**world, **KINDS["ons"], max_difference=40.0), tmp_path / "run")
    assert (tmp_path / "run" / "summary.json").exists()


class Twice(Algorithm):
    """It asks about the same duels at two points."""

    def learn(self, federation, round_):
        first = federation.exchange(Broadcast(self.play(round_), self.theta_sync))
        theta = self.theta_sync - first.gradient / first.num_duels
        federation.exchange(Broadcast(None, theta))
        return {"theta_sync": theta}


class Everything(Algorithm):
    """It asks about all duels so far."""

    def learn(self, federation, round_):
        upload = federation.exchange(Broadcast(self.play(round_), self.theta_sync, scope="all"))
        return {"theta_sync": self.theta_sync - upload.gradient / upload.num_duels}


@pytest.mark.parametrize("engine", ["vectorized", "inprocess"])
@pytest.mark.parametrize("algorithm", [Twice, Everything])
def test_an_algorithm_that_asks_again_is_refused(tmp_path, engine, algorithm):
    ALGORITHMS.register("again", algorithm, exchanges="one", keeps_duels=True)
    try:
        with pytest.raises(SettingsError, match=r"^secure=true: algorithm=again asks for"):
            run(settings(algorithm="again", engine__name=engine), tmp_path / "run")
    finally:
        ALGORITHMS.remove("again")
