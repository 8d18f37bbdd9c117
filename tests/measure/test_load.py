"""A SuperLink under load, and the plan for many devices that is computed from it."""

import math

import pytest
from local_processes import logs_on_failure, processes_of

import capacity
import deployment
from deployment import Load


@pytest.mark.xdist_group("federation")
@pytest.mark.exhaustive
def test_light_nodes_count_each_answer_once(tmp_path):
    """Two rounds with three nodes, and a message of the bare app between them."""
    with logs_on_failure(tmp_path), Load(tmp_path, "memory") as load:
        load.grow(3)
        load.start()
        before = load.use()
        assert load.round() > 0
        used = load.use().since(before)
        assert load.bare("array") > 0
        model = load.federation.model()
        rows = load.federation.rounds()
    assert not processes_of(tmp_path)
    assert [int(row["contributed"]) for row in rows] == [3, 3]
    # Pull, 6 objects, confirm, push, 5 or 6 objects: the numbers may be those of an earlier reply.
    assert used.requests >= 3 * (1 + 6 + 1 + 1 + 5)
    assert min(used.superlink, used.ours) > 0
    assert used.up > 3 * 1000
    assert model["duels"] == sum(person.answers for person in load.people) >= 18


def row(**changes):
    chosen = {
        "database": "memory", "app": "ours", "nodes": 10, "s": 4.0, "requests": 20.0,
        "SuperLink, ms": 100.0, "ServerApp, ms": 10.0, "up, bytes": 20_000, "down, bytes": 5_000,
        "idle, ms": 50.0, "idle node, bytes": 400.0,
    }  # fmt: skip
    return {**chosen, **{key.replace("_", ", "): value for key, value in changes.items()}}


def test_costs_are_those_of_the_most_nodes():
    rows = [
        row(),
        row(nodes=110, **{"idle, ms": 250.0, "SuperLink, ms": 90.0}),
        row(database="file", nodes=500),
    ]
    # 200 ms more for 100 nodes more.
    assert capacity.costs(rows) == pytest.approx((0.09, 0.01, 0.002, 25_000, 400.0))


def test_a_ratio_compares_exchanges_one_after_the_other():
    """Sums of 110, 220 and 120 ms by 100, 100 and 60: ratios 1.1, 2.2 and 2."""
    rows = [row(nodes=5)]
    for ours, bare in ((100.0, 90.0), (210.0, 90.0), (110.0, 50.0)):
        rows += [row(**{"SuperLink, ms": ours})]
        rows += [row(app="array", requests=16.0, **{"SuperLink, ms": bare})]
    assert capacity.ratio(rows, "memory", "ours", "array") == pytest.approx(2.0)
    assert capacity.ratio(rows, "memory", "ours", "array", requests=True) == pytest.approx(1.25)


def test_the_plan_for_a_million_devices_by_hand():
    cost = capacity.Costs(
        superlink=0.0864, serverapp=0.00864, connected=0.001, message=25_000, idle=400
    )
    assume = capacity.Assumptions(sample=100_000, answers=10, rounds=20, minutes=14.4, load=0.5)
    plan = capacity.plan(1_000_000, cost, assume)
    # 100,000 of 10^6 devices a day, 5,000 in a round. All 10^7 answers of a day are counted.
    assert (plan["asked"], plan["days"], plan["counted"]) == (100_000, 10, 1e7)
    assert plan["fraction"] == pytest.approx(0.005)
    assert capacity.standard_error(25, 1e7) == pytest.approx(math.sqrt(100 / 1e7))
    # Connected: 1,000 processors for 10^6 nodes. Messages: 100,000 of 0.0864 s are 0.1 of a day.
    # A parent's child takes 0.001 + 20 * 0.0864 / 86400 = 0.00102 of a processor: 490 fit.
    # 1000.1 / 0.5, rounded up, are 2,001 servers, which have five parents, and these one.
    # 400 bytes a second, and one message in ten days.
    always = {
        "connected": 1e6, "cores": 1000 + 0.1 + 0.01, "superlinks": 2001, "levels": 3,
        "bytes": 400 * 86_400 + 2_500,
    }  # fmt: skip
    assert plan["always"] == pytest.approx(always)
    # Asked ones: 14.4 minutes are 0.01 of a day.
    sampled = {
        "connected": 1000, "cores": 1 + 0.1 + 0.01, "superlinks": 3, "levels": 2,
        "bytes": 400 * 86.4 + 2_500,
    }  # fmt: skip
    assert plan["sampled"] == pytest.approx(sampled)
    small = capacity.plan(100, capacity.Costs(0.1, 0.01, 0.001, 25_000, 400))
    assert (small["asked"], small["days"]) == (100, 1)
    assert (small["always"]["superlinks"], small["always"]["levels"]) == (1, 1)
    # Each parent has two children at least. Ten nodes take a little more than 4 processors: there
    # are 9 servers, and then 5, 3, 2 and 1.
    tree = capacity.plan(10, capacity.Costs(0.001, 0.001, 0.4, 25_000, 400))["always"]
    assert (tree["superlinks"], tree["levels"]) == (9, 5)


def test_limits_are_ratios_of_one_run(monkeypatch):
    rows = [row(), row(app="array", **{"SuperLink, ms": 90.0})]
    monkeypatch.setattr(deployment, "measurements", lambda *_arguments: iter(rows))
    (figure,) = deployment.limits()
    assert (figure["ratio"], figure["goal"]) == (1.1, 1.3)
