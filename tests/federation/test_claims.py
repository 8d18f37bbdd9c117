"""Claims of nodes are checked over all replies of an exchange, independent of their order."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import examples, nested
from flwr.app import ConfigRecord, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fldb_flower.bandit.estimate import Estimate
from fldb_flower.errors import FederationError
from fldb_flower.federation.agents import agents_of_node
from fldb_flower.federation.exchange import Broadcast, PlayRequest
from fldb_flower.federation.history import History
from fldb_flower.settings import from_flat, from_nested, to_flat
from fldb_flower.wire import UploadHeader, pack_vector
from simulations.engines.inprocess import InProcessGrid
from strategies import channel, make_strategy
from strategies.devices import DeviceChannel
from strategies.simulated import SimulatedChannel

PARTITION, PARTITIONS = 1, 2  # places in the header of an upload
AGENTS, NODES = 8, 4
FIRST = 1001  # the id of partition 0's node
FIRST_PLAY = Broadcast(PlayRequest(1, 1, Estimate(np.zeros(2), np.eye(2))), np.zeros(2))


def settings(**values):
    small = {"num_agents": AGENTS, "horizon": 5, "num_arms": 3, "dimension": 2, "tau": 1}
    nodes = {"engine__name": "inprocess", "engine__num_nodes": NODES, "quorum": 0.3}
    return from_nested(nested(**{**small, **nodes, **values}), "a test")


# --- simulated nodes: all claims of one exchange --------------------------------------------


def reply(partition, partitions, agents=24):
    """Return an upload of iteration 1 with this claim; every agent compared an arm to itself."""
    block = len(agents_of_node(partition, partitions, agents))
    header = list(UploadHeader(block, partition, partitions, block, 1))
    content = {
        "arrays": pack_vector(np.zeros(5)),  # gradient 2, triangle 3
        "config": ConfigRecord({"header": header, "outcomes": [0.0] * 5, "exchange": 1}),
    }
    return SimpleNamespace(content=RecordDict(content))


def judge(claims, order, connected):
    """Return the refused nodes with the reasons, and the names of the nodes."""
    nodes = SimulatedChannel(settings(num_agents=24), History(5))
    nodes.number, nodes.broadcast = 1, FIRST_PLAY
    for node in order:
        nodes.check(node, reply(*claims[node]))
    return nodes.disputes(connected), [nodes.name(node) for node in connected]


claims_of_nodes = st.lists(
    st.integers(1, 6).flatmap(lambda n: st.tuples(st.integers(0, n - 1), st.just(n))),
    min_size=1,
    max_size=5,
).map(dict.fromkeys).map(list)  # fmt: skip


@examples(150)
@given(claims_of_nodes, st.integers(0, 2), st.randoms(use_true_random=False))
def test_refusals_do_not_depend_on_the_order_of_arrival(claims, silent, random):
    claims = dict(enumerate(claims, start=FIRST))
    connected = range(FIRST, FIRST + len(claims) + silent)
    order = list(claims)
    expected = judge(claims, order, connected)
    random.shuffle(order)
    assert judge(claims, order, connected) == expected


def test_one_wrong_number_of_partitions_refuses_only_its_node():
    """The wrong node has the lowest or the highest id; replies arrive in every order."""
    for honest, place in itertools.product((3, 4, 5), (0, -1)):
        nodes = list(range(FIRST, FIRST + honest + 1))
        lying_node = nodes[place]
        claims = {node: (number, honest + 1) for number, node in enumerate(nodes)}
        claims[lying_node] = (claims[lying_node][0], honest + 2)
        for order in itertools.permutations(nodes):
            refused, _ = judge(claims, order, nodes)
            wanted = f"num-partitions={honest + 2}, but other nodes have {honest + 1}"
            assert refused == {lying_node: wanted}


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        # A tie is decided by the number of connected nodes.
        ([(0, 3), (1, 2)], {FIRST: "num-partitions=3, but other nodes have 2"}),
        # An undecided tie refuses all nodes.
        ([(0, 3), (1, 4)], {FIRST: "num-partitions=3, but other nodes have 4",
                            FIRST + 1: "num-partitions=4, but other nodes have 3"}),
        # Two unknown nodes that claim one partition are both refused.
        ([(0, 4), (1, 4), (1, 4), (3, 4)],
         dict.fromkeys((1002, 1003), "partition-id=1 is claimed by nodes 1002, 1003")),
    ],
)  # fmt: skip
def test_disputes_by_hand(claims, expected):
    claims = dict(enumerate(claims, start=FIRST))
    names = [
        f"node {node}" if node in expected else f"partition {partition}"
        for node, (partition, _) in claims.items()
    ]
    for order in itertools.permutations(claims):
        assert judge(claims, order, list(claims)) == (expected, names)


# --- simulated nodes: whole runs ------------------------------------------------------------


class LyingGrid(InProcessGrid):
    """One node sends false claims from a given exchange on; replies arrive in any order.

    With `twice` it also sends the correct reply.
    """

    def __init__(self, chosen, lie, shuffle, *, since=1, twice=False):
        super().__init__(NODES, to_flat(chosen))
        self.lying_node, self.place, self.number = lie
        self.shuffle, self.since, self.twice = shuffle, since, twice

    def replies(self, message):
        true = self.deliver(message)
        is_late = int(message.metadata.group_id) >= self.since
        if message.metadata.dst_node_id != self.lying_node or not is_late:
            return [true]
        config = dict(true.content["config"])
        config["header"] = list(config["header"])
        config["header"][self.place] = self.number
        content = {"arrays": true.content["arrays"], "config": ConfigRecord(config)}
        false = Message(RecordDict(content), reply_to=message)
        return [false, true] if self.twice else [false]

    def send_and_receive(self, messages, *, timeout=None):
        replies = list(super().send_and_receive(messages, timeout=timeout))
        return self.shuffle(replies)


def first(lying_node):
    """Return a function that puts the lying node's replies before all others."""
    return lambda replies: sorted(replies, key=lambda each: each.metadata.src_node_id != lying_node)


def last(lying_node):
    return lambda replies: first(lying_node)(replies)[::-1]


def run_over(lie, shuffle, **when):
    chosen = settings()
    history = History(chosen.horizon)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(channel, "MAX_TRIES", 2)
        make_strategy(chosen, history).start(LyingGrid(chosen, lie, shuffle, **when))
    return history


def rejected(history):
    return {line for row in history.participation for line in row.rejected}


@pytest.mark.parametrize("lying_node", [0, 2])
@pytest.mark.parametrize(
    ("place", "number", "reason"),
    [(PARTITIONS, 5, "num-partitions=5, but other nodes have 4"), (PARTITION, 3, None)],
)
def test_a_lying_node_that_replies_first_gets_no_other_node_refused(
    lying_node, place, number, reason
):
    """The false claim about its partition starts when all partitions are known."""
    lie, when = (FIRST + lying_node, place, number), {"since": 1 if reason else 2}
    early = run_over(lie, first(FIRST + lying_node), **when)
    late = run_over(lie, last(FIRST + lying_node), **when)
    assert early == late
    np.testing.assert_array_equal(early.cumulative_regret, late.cumulative_regret)
    if reason:
        assert rejected(early) == {f"node {FIRST + lying_node}: {reason}"}
    else:
        wanted = f"partition {lying_node}: partition-id=3, but it was partition {lying_node} before"
        assert rejected(early) == {wanted}
    assert all(len(row.absent) <= 1 for row in early.participation)


def test_an_unknown_node_and_the_node_whose_partition_it_claims_are_both_refused():
    lie = (FIRST + 3, PARTITION, 1)
    histories = [run_over(lie, order(FIRST + 3)) for order in (first, last)]
    assert histories[0] == histories[1]
    reason = "partition-id=1 is claimed by nodes 1002, 1004"
    assert rejected(histories[0]) == {f"node 1002: {reason}", f"node 1004: {reason}"}


@examples(45)
@given(
    lie=st.tuples(
        st.integers(FIRST, FIRST + NODES - 1),
        st.sampled_from([PARTITION, PARTITIONS]),
        st.sampled_from([0, 1, 4, 5]),
    ),
    since=st.integers(1, 3),
    twice=st.booleans(),
    random=st.randoms(use_true_random=False),
)
def test_a_run_does_not_depend_on_the_order_of_replies(lie, since, twice, random):
    def shuffled(replies):
        random.shuffle(replies)
        return replies

    histories = [
        run_over(lie, each, since=since, twice=twice) for each in (first(lie[0]), shuffled)
    ]
    assert histories[0] == histories[1]
    np.testing.assert_array_equal(*(each.cumulative_regret for each in histories))


def exchanging(grid, chosen):
    """Return a strategy over a grid, and a function that plays one iteration."""
    strategy = make_strategy(chosen, History(chosen.horizon))
    strategy.channel.connect(grid)
    estimate = Estimate(np.zeros(2), np.eye(2))
    return strategy, lambda t: strategy.exchange(Broadcast(PlayRequest(t, t, estimate), None))


def test_an_earlier_claim_is_kept_while_its_node_is_connected():
    """Two nodes claim partition 1; only one of them replies in the next exchange."""
    chosen = settings(quorum=0.5)
    grid = LyingGrid(chosen, (FIRST + 3, PARTITION, 1), list)
    strategy, exchange = exchanging(grid, chosen)
    exchange(1)
    grid.shuffle = lambda replies: [r for r in replies if r.metadata.src_node_id != FIRST + 1]
    exchange(2)
    assert sorted(strategy.channel.contributions) == [FIRST, FIRST + 2]


def test_replies_of_a_later_try_outvote_a_false_claim():
    """First only the lying node's reply arrives; then the other replies outvote it."""
    chosen, tries = settings(quorum=0.75), itertools.count()

    def shuffle(replies):
        is_first = next(tries) == 0
        return [r for r in replies if not is_first or r.metadata.src_node_id == FIRST]

    strategy, exchange = exchanging(LyingGrid(chosen, (FIRST, PARTITIONS, 5), shuffle), chosen)
    exchange(1)
    assert sorted(strategy.channel.contributions) == [FIRST + 1, FIRST + 2, FIRST + 3]
    assert rejected(strategy.history) == {f"node {FIRST}: num-partitions=5, but other nodes have 4"}


def test_the_error_of_a_failed_quorum_names_both_disputed_nodes():
    chosen = settings(quorum=1.0)
    grid = LyingGrid(chosen, (FIRST + 3, PARTITION, 1), list)
    with pytest.raises(FederationError, match=r"2 nodes \(node 1002, node 1004\): .* 1002, 1004"):
        make_strategy(chosen, History(chosen.horizon)).start(grid)


# --- devices --------------------------------------------------------------------------------

IDS = [f"{number:032x}" for number in range(4)]


def introduction(device):
    content = {
        "arrays": pack_vector(np.zeros(0)),
        "config": ConfigRecord({"header": [0] * 7, "device": device}),
    }
    return SimpleNamespace(content=RecordDict(content))


def meet(known, claims, order, connected):
    """Introduce nodes; return the refused nodes, and the device at each node."""
    devices = DeviceChannel(from_flat({"mode": "devices", "algorithm": "fldb_ons"}, "a test"))
    devices.restore({"counted": {}, "duels": 0, "nodes": known})
    for node in order:
        if known.get(node) != claims[node]:
            assert devices.check(node, introduction(claims[node])) is None
    return devices.disputes(connected), devices.state()["nodes"]


@examples(150)
@given(
    known=st.lists(st.sampled_from(IDS), unique=True, max_size=4),
    claims=st.lists(st.sampled_from(IDS), min_size=1, max_size=4),
    gone=st.sets(st.integers(1, 4)),
    random=st.randoms(use_true_random=False),
)
def test_which_devices_are_refused_does_not_depend_on_the_order(known, claims, gone, random):
    known, claims = dict(enumerate(known, start=1)), dict(enumerate(claims, start=1))
    connected, order = {*claims, *known} - gone, list(claims)
    expected = meet(known, claims, order, connected)
    random.shuffle(order)
    refused, places = meet(known, claims, order, connected)
    assert (refused, places) == expected
    assert len(set(places.values())) == len(places)  # a device is at one node
    accepted = {node: claims[node] for node in claims.keys() & connected - refused.keys()}
    assert {str(node): device for node, device in accepted.items()}.items() <= places.items()


def test_devices_that_swapped_nodes_are_both_recognised():
    known, claims = {1: IDS[0], 2: IDS[1]}, {1: IDS[1], 2: IDS[0]}
    for order in itertools.permutations(claims):
        assert meet(known, claims, order, [1, 2]) == ({}, {"1": IDS[1], "2": IDS[0]})


def test_two_unknown_nodes_with_one_store_are_both_refused():
    claims = {1: IDS[0], 2: IDS[3], 3: IDS[0]}
    for order in itertools.permutations(claims):
        refused, places = meet({}, claims, order, [1, 2, 3])
        assert places == {"2": IDS[3]}
        assert refused.keys() == {1, 3}
        assert all("is claimed by nodes 1, 3" in reason for reason in refused.values())


def test_a_known_device_is_kept_if_a_copy_replies_first():
    for order in itertools.permutations((1, 2)):
        refused, places = meet({2: IDS[0]}, {1: IDS[0], 2: IDS[0]}, order, [1, 2])
        assert refused.keys() == {1}
        assert places == {"2": IDS[0]}
