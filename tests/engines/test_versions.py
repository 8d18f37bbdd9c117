"""Nodes and servers of different versions: one line, and every answer is still counted once."""

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from test_devices import Federation, no_pause  # noqa: F401

from clients import simulated
from fldb_flower.errors import DataError
from fldb_flower.settings import from_flat

REPLY_0_1 = {"answer": [10.0, 0.0, 10.0, 9.0, 7.0]}
"""Counts of a reply of a device with version 0.1.0: floats in a record of metrics."""


def ask(config):
    """Rewrite the ConfigRecord of a broadcast as version 0.1.0 sent it."""
    others = {name: value for name, value in config.items() if name != "header"}
    return ConfigRecord({"ask": [1, 1, 0, 1, 0, 0, 0, 0], **others})


def one_line(text):
    assert "\n" not in text
    assert "fldb-flower" in text
    assert "version" in text
    return text


def test_a_device_refuses_the_broadcast_of_an_older_server(tmp_path):
    federation = Federation(tmp_path)
    for device in range(3):
        federation.answer(device, 10)
    deliver, errors = federation.grid.deliver, []

    def older(message):
        message.content["config"] = ask(message.content["config"])
        reply = deliver(message)
        errors.append(reply.error.reason)
        return reply

    federation.grid.deliver = older
    federation.serve_until("none")
    assert errors
    assert one_line(errors[0]).startswith("the server's broadcast has another format")
    assert not federation.uploads()

    federation.grid.deliver = deliver  # the server was upgraded
    federation.check_central(federation.serve())
    assert sum(end - start for *_, start, end in federation.uploads()) == 30


def test_a_server_refuses_the_reply_of_an_older_device_and_counts_the_others(tmp_path, caplog):
    federation = Federation(tmp_path, quorum=0.5)
    for device in range(3):
        federation.answer(device, 10)
    deliver, old = federation.grid.deliver, next(iter(federation.grid.contexts))

    def older(message):
        reply = deliver(message)
        if message.metadata.dst_node_id != old or reply.has_error():
            return reply
        content = {"arrays": reply.content["arrays"], "numbers": MetricRecord(REPLY_0_1)}
        return Message(RecordDict(content), reply_to=message)

    federation.grid.deliver = older
    federation.serve()
    lines = [each.message for each in caplog.records if each.levelname == "WARNING"]
    assert lines
    for line in lines:
        assert f"node {old}: not an upload of this version" in one_line(line)
    assert len(federation.uploads()) == 2

    federation.grid.deliver = deliver  # the device was upgraded
    federation.check_central(federation.serve())
    assert sum(end - start for *_, start, end in federation.uploads()) == 30


def test_a_simulated_node_refuses_the_broadcast_of_an_older_server():
    settings = from_flat({"num-agents": 2, "dimension": 3}, "a test")
    client = simulated.SimulatedAgents(settings, 0, 1)
    with pytest.raises(DataError) as error:
        client.fit([np.zeros(3)], {"ask": [1, 1, 0, 1, 0, 0, 0, 0]})
    one_line(str(error.value))
