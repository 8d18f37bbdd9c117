"""Nodes and servers of other formats: one line, and every answer is still counted once."""

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from test_devices import Federation, no_pause  # noqa: F401

from clients import simulated
from fldb_flower.errors import DataError
from fldb_flower.settings import from_flat

OTHER_REQUEST = {"ask": [1, 1, 0, 1, 0, 0, 0, 0]}
OTHER_REPLY = {"answer": [10.0, 0.0, 10.0, 9.0, 7.0]}  # floats in a record of metrics


def one_line(text):
    assert "\n" not in text
    assert "fldb-flower" in text
    assert "version" in text
    return text


@pytest.fixture
def federation(tmp_path):
    """Return three devices with ten answers each, which are all counted once at the end."""
    made = Federation(tmp_path, quorum=0.5)
    for device in range(3):
        made.answer(device, 10)
    deliver = made.grid.deliver
    yield made
    made.grid.deliver = deliver  # the other side was upgraded
    made.check_central(made.serve())
    assert sum(end - start for *_, start, end in made.uploads()) == 30


def test_a_device_refuses_the_broadcast_of_another_server(federation):
    deliver, errors = federation.grid.deliver, []

    def other(message):
        config = dict(message.content["config"])
        del config["header"]
        message.content["config"] = ConfigRecord({**config, **OTHER_REQUEST})
        reply = deliver(message)
        errors.append(one_line(reply.error.reason))
        return reply

    federation.grid.deliver = other
    federation.serve_until("none")
    assert errors[0].startswith("the server's broadcast has another format")
    assert not federation.uploads()


def test_a_server_refuses_the_reply_of_another_device_and_counts_the_others(federation, caplog):
    deliver, old = federation.grid.deliver, next(iter(federation.grid.contexts))

    def other(message):
        reply = deliver(message)
        if message.metadata.dst_node_id != old or reply.has_error():
            return reply
        content = {"arrays": reply.content["arrays"], "numbers": MetricRecord(OTHER_REPLY)}
        return Message(RecordDict(content), reply_to=message)

    federation.grid.deliver = other
    federation.serve()
    lines = [each.message for each in caplog.records if each.levelname == "WARNING"]
    assert lines
    assert all(f"node {old}: not an upload of this version" in one_line(line) for line in lines)
    assert len(federation.uploads()) == 2


def test_a_simulated_node_refuses_the_broadcast_of_another_server():
    client = simulated.SimulatedAgents(from_flat({"num-agents": 2, "dimension": 3}, "a test"), 0, 1)
    with pytest.raises(DataError) as error:
        client.fit([np.zeros(3)], OTHER_REQUEST)
    one_line(str(error.value))
