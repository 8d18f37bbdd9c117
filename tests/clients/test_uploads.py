"""What a device uploads: the transmitted bytes, and what they reveal."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.common.serde import message_to_proto
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from test_devices import Federation

from clients.store import DuelStore
from fldb_flower.linalg.linear import unpack_symmetric
from fldb_flower.wire import DeviceUploadHeader

DOC = (Path(__file__).parents[2] / "docs" / "deployment" / "messages.md").read_text()
D = 3


class Recorded(Federation):
    """Devices in this process; the bytes of every reply are recorded."""

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(folder, **options)
        self.replies: list[Any] = []
        self.private: list[bytes] = []
        deliver = self.grid.deliver

        def recording(message):
            reply = deliver(message)
            self.replies.append(reply)
            return reply

        self.grid.deliver = recording

    def answer(self, device: int, count: int) -> None:
        for number in range(count):
            arms = self.rng.standard_normal((4, D))
            keys = [f"key-{device}-{number}-{i}" for i in range(4)]
            texts = [f"a text for {key}" for key in keys]
            agent = self.agents[device]
            duel = agent.propose(arms, keys, [{"text": text} for text in texts])
            preferred = "first" if self.rng.random() < 0.5 else "second"
            agent.record(duel.id, preferred)
            difference = arms[duel.first] - arms[duel.second]
            words = [duel.id, *keys, *texts, *map(repr, arms.ravel().tolist())]
            self.private += [word.encode() for word in words]
            self.private += [number.tobytes() for number in (*arms.ravel(), *difference)]
            evidence = np.append(difference, float(preferred == "first"))
            for row in (*arms, difference, evidence):  # four bytes may be there by chance
                self.private += [row.astype(kind).tobytes() for kind in ("f8", "f4")]


def wire(reply: Any) -> bytes:
    """Return all bytes of a reply that Flower sends: the envelope and its objects."""
    objects = get_all_nested_objects(reply).values()
    return message_to_proto(reply).SerializeToString() + b"".join(
        each.deflate() for each in objects
    )


def fields(section: str) -> set[str]:
    """Return the first column of the tables in a section of docs/deployment/messages.md."""
    (text,) = re.findall(rf"^#+ {section}\n(.*?)(?=^#|\Z)", DOC, re.DOTALL | re.MULTILINE)
    return set(re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE))


def test_an_upload_contains_only_the_documented_fields(tmp_path):
    federation = Recorded(tmp_path, min_duels=5)
    for device in range(3):
        federation.answer(device, 8)
    for count in (6, 30):
        federation.serve()
        for device in range(3):
            federation.answer(device, count)
    federation.serve()
    lengths = set()
    for reply in federation.replies:
        text = wire(reply)
        assert not [word for word in federation.private if word in text]
        vector, config = reply.content["arrays"], reply.content["config"]
        assert (set(reply.content), set(vector), set(config)) == (
            {"arrays", "config"}, {"0"}, {"header", "device"},
        )  # fmt: skip
        assert len(config["header"]) == len(DeviceUploadHeader._fields)
        size = vector["0"].shape[0]
        assert size in {0, D + D * (D + 1)}
        if size:
            objects = get_all_nested_objects(reply.content).values()
            lengths.add(sum(len(each.deflate()) for each in objects))
    # Its size does not grow with the number of duels.
    assert len(lengths) == 1
    assert {reply.content["config"]["header"][0] for reply in federation.replies} >= {8, 6, 30}
    assert fields("What reaches the server") == {
        "arrays.0",
        "config.device",
        *(f"config.header.{name}" for name in DeviceUploadHeader._fields),
    }
    envelope = message_to_proto(federation.replies[0]).metadata.DESCRIPTOR.fields
    assert fields("What Flower adds") >= {field.name for field in envelope}


def reveal(folder: Path, count: int) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray]:
    """Upload the answers 7 to 6 + count; return them, theta, the gradient and W_new."""
    federation = Recorded(folder, devices=1, min_duels=count)
    federation.answer(0, 6)
    federation.serve()
    federation.replies.clear()
    federation.answer(0, count)
    theta = json.loads((folder / "server" / "model.json").read_text())["theta_sync"]
    federation.serve()
    with DuelStore(federation.stores[0]) as store:
        secret = store.evidence(6, 6 + count)
    vectors = [np.frombuffer(r.content["arrays"]["0"].data, offset=128) for r in federation.replies]
    (vector,) = [vector for vector in vectors if vector.size]
    information = unpack_symmetric(vector[D : D + D * (D + 1) // 2], D)
    return secret, np.array(theta), vector[:D], information


def test_an_upload_of_one_duel_reveals_it(tmp_path):
    """The caveat in the documentation: why min-duels-per-upload is not 1 by default."""
    secret, theta, gradient, information = reveal(tmp_path, 1)
    values, directions = np.linalg.eigh(information)  # phi phi^T
    phi = np.sqrt(values[-1]) * directions[:, -1]
    sign = np.sign(phi @ secret.differences[0])
    np.testing.assert_allclose(sign * phi, secret.differences[0], rtol=1e-9)
    # (mu(theta phi) - y) phi reveals the preferred arm for either sign of phi.
    y = 1 / (1 + np.exp(-phi @ theta)) - gradient @ phi / (phi @ phi)
    assert y == pytest.approx(secret.preferences[0] if sign > 0 else 1 - secret.preferences[0])


def test_fewer_duels_than_dimensions_reveal_the_space_that_they_span(tmp_path):
    """What uploads of five duels reveal, as documented."""
    secret, _, _, information = reveal(tmp_path, 2)
    values, directions = np.linalg.eigh(information)
    assert values[0] == pytest.approx(0, abs=1e-12 * values[-1])
    np.testing.assert_allclose(secret.differences @ directions[:, 0], 0, atol=1e-9)
