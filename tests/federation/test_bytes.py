"""Bytes of a run: N agents with one message each on every engine, and messages of nodes."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import nested
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from test_devices import Federation

from fldb_flower.federation.agents import agents_of_node
from fldb_flower.federation.exchange import Broadcast, PlayRequest
from fldb_flower.federation.history import History
from fldb_flower.settings import from_nested, to_flat
from fldb_flower.wire import content_bytes, pack_vector
from simulations.engines import inprocess, vectorized
from simulations.engines.inprocess import LossyGrid
from simulations.run import run
from strategies import make_strategy
from strategies.simulated import SimulatedChannel

SMALL = {"num_agents": 7, "horizon": 10, "num_arms": 4, "dimension": 4, "tau": 3, "quorum": 0.3}
FRAME = 128  # bytes of a vector's .npy header


def settings(nodes=3, **values):
    where = {"engine__name": "inprocess", "engine__num_nodes": nodes}
    return from_nested(nested(**{**SMALL, **where, **values}), "a test")


def in_process(chosen):
    history = History(chosen.horizon)
    inprocess.play(chosen, history)
    return history


def test_with_lbfgs_bytes_depend_only_on_the_number_of_exchanges():
    """PyTorch's line search amplifies rounding errors, so the number of exchanges may differ."""
    pytest.importorskip("torch")
    values = {"algorithm": "fldb_gd", "solver": "lbfgs", "matrix_form": "diagonal"}
    direct = History(SMALL["horizon"])
    vectorized.run(settings(**values), direct)
    for history in (direct, in_process(settings(3, **values))):
        exchanges = history.exchanges  # d = 4: theta_hat; theta_sync and W in each of 10 iterations
        assert history.uploaded_bytes == 7 * 8 * exchanges * (4 + 4 + 1)
        assert history.downloaded_bytes == 7 * 8 * (exchanges * 4 + 10 * (4 + 4))


def test_summaries_contain_the_bytes_of_nodes_separately(tmp_path):
    summaries = {}
    for engine in ("vectorized", "inprocess"):
        run(settings(engine__name=engine), tmp_path / engine)
        summaries[engine] = json.loads((tmp_path / engine / "summary.json").read_text())
    extra = {"node_uploaded_bytes", "node_downloaded_bytes", "participation"}
    assert summaries["inprocess"].keys() - summaries["vectorized"].keys() == extra
    for key in ("uploaded_bytes", "downloaded_bytes"):
        assert summaries["inprocess"][key] == summaries["vectorized"][key]


def test_messages_of_nodes_by_hand():
    """Random pairs, d = 4: only outcomes and headers are sent."""
    history = in_process(settings(3, algorithm="random"))
    # 10 exchanges of one iteration. Down: a header of 7 integers, the acknowledged iteration and
    # the exchange's number; up: a header of 5, five outcomes and the number. Vectors are empty.
    assert history.uploaded_bytes == history.downloaded_bytes == 0
    assert history.node_downloaded_bytes == 10 * 3 * (FRAME + 8 * 9)
    assert history.node_uploaded_bytes == 10 * 3 * (FRAME + 8 * 11)


class Measured:
    """A grid mixin that counts the bytes of the agents independently."""

    agents = (3, 2, 2)  # of 7 on three nodes
    up = down = asked = arrived = 0

    def block(self, message_or_reply, node):
        (vector,) = message_or_reply.content["arrays"].to_numpy_ndarrays()
        return self.agents[node - 1001] * vector.nbytes

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        learns = [m for m in messages if m.content["config"]["header"][3]]
        replies = list(super().send_and_receive(messages, timeout=timeout))
        self.down += sum(self.block(m, m.metadata.dst_node_id) for m in learns)
        if learns:
            self.up += sum(self.block(r, r.metadata.src_node_id) for r in replies)
        self.asked += len(messages)
        self.arrived += len(replies)
        return replies


@pytest.mark.parametrize("algorithm", ["fldb_ogd", "fldb_ons"])
@pytest.mark.parametrize(
    "values", [{"dropout": 0.3, "quorum": 1.0}, {"dropout": 0.3}, {"fraction_train": 0.5}], ids=str
)
def test_sent_and_received_bytes_are_counted(algorithm, values):
    chosen = settings(algorithm=algorithm, **values)
    grid = type("MeasuredGrid", (Measured, LossyGrid), {})(chosen, to_flat(chosen))
    # The agents of nodes that never replied can only be estimated, so all partitions are known.
    history = History(chosen.horizon)
    strategy = make_strategy(chosen, history)
    introduce(strategy.channel, chosen, {1001: 0, 1002: 1, 1003: 2})
    strategy.start(grid)
    assert (history.uploaded_bytes, history.downloaded_bytes) == (grid.up, grid.down)
    assert (grid.arrived < grid.asked) == (chosen.dropout > 0)


def introduce(nodes, chosen, partitions):
    """Let nodes (node -> partition) of three reply to exchange 0, which plays no duels."""
    nodes.number, nodes.broadcast = 0, Broadcast(PlayRequest(1, 0), None)
    for node, partition in partitions.items():
        agents = len(agents_of_node(partition, 3, chosen.num_agents))
        config = {"header": [0, partition, 3, agents, 1], "outcomes": [], "exchange": 0}
        content = {"arrays": pack_vector(np.zeros(0)), "config": ConfigRecord(config)}
        nodes.check(node, SimpleNamespace(content=RecordDict(content)))
    nodes.disputes([1001, 1002, 1003])


def test_nodes_of_unknown_partitions_share_the_remaining_agents():
    chosen = settings(3, num_agents=8)
    nodes, ids = SimulatedChannel(chosen, History(chosen.horizon)), [1001, 1002, 1003]
    assert nodes.count_agents(ids, ids) == 8
    assert nodes.count_agents(ids[:1], ids) == 8 // 3
    introduce(nodes, chosen, {1001: 0})  # hosts 3 of the 8
    assert [nodes.count_agents([node], ids) for node in ids] == [3, 2, 2]
    assert nodes.count_agents(ids, ids) == 8
    assert nodes.count_agents([], ids) == 0


def test_a_device_is_an_agent(tmp_path):
    """Rounds of FLDB-ONS with d = 3: gradient 3, W_new and Hessian 6 each."""
    federation = Federation(tmp_path)
    for device in range(3):
        federation.answer(device, 4)
    federation.serve()
    before = json.loads((tmp_path / "server" / "summary.json").read_text())
    for device in range(3):
        federation.answer(device, 2)
    federation.serve()
    after = json.loads((tmp_path / "server" / "summary.json").read_text())
    assert after["exchanges"] == before["exchanges"] + 1
    assert after["uploaded_bytes"] - before["uploaded_bytes"] == 3 * 8 * (3 + 6 + 6)
    assert after["downloaded_bytes"] - before["downloaded_bytes"] == 3 * 8 * (3 + 3 + 6)
    assert after["node_uploaded_bytes"] > before["node_uploaded_bytes"]


def test_content_is_arrays_numbers_and_texts():
    content = RecordDict(
        {
            "a": pack_vector(np.zeros(5)),
            "b": MetricRecord({"x": [1.0, 2.0], "y": 3}),
            "c": ConfigRecord({"s": "", "t": "four", "u": [b"ab", b"c"], "v": True}),
        }
    )
    assert content_bytes(content) == FRAME + 5 * 8 + 3 * 8 + 4 + 3 + 8
    assert content_bytes(RecordDict({"e": ArrayRecord()})) == 0
