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
from test_shares import posterior

from clients.store import DuelStore
from fldb_flower.bandit.estimate import scale_of
from fldb_flower.federation.exchange import Broadcast, ShareUpload
from fldb_flower.linalg.linear import Form, unpack_symmetric
from fldb_flower.settings import from_flat
from fldb_flower.wire import (
    BroadcastHeader,
    DeviceUploadHeader,
    decode_broadcast,
    decode_upload,
    unpack_vector,
)

DOC = (Path(__file__).parents[2] / "docs" / "deployment" / "messages.md").read_text()
D = 3


class Recorded(Federation):
    """Devices in this process; the bytes of every reply are recorded."""

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(folder, **options)
        self.replies: list[Any] = []
        self.broadcasts: list[Broadcast] = []  # of the replies
        self.private: list[bytes] = []
        deliver = self.grid.deliver

        def recording(message):
            header = BroadcastHeader.from_config(message.content["config"])
            vector = unpack_vector(message.content["arrays"])
            self.broadcasts.append(decode_broadcast(vector, header, Form(D)))
            assert vector.size == self.broadcasts[-1].sizes(Form(D))[1]
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


def lengths(algorithm: str, column: int) -> list[int]:
    """Return the numbers in each part of the vector, from the table of an algorithm."""
    pattern = rf"^\| part \|[^|]*{algorithm}.*?\n(.*?)\n\n"
    (table,) = re.findall(pattern, DOC, re.DOTALL | re.MULTILINE)
    cells = [line.strip("| ").split(" | ")[column].split(";")[0] for line in table.splitlines()[1:]]
    sizes = {"$d$": D, "$d(d+1)/2$": D * (D + 1) // 2, "as part 2": D * (D + 1) // 2, "none": 0}
    return [sizes[cell] if cell in sizes else int(cell) for cell in cells]


@pytest.mark.parametrize(
    ("options", "table", "column"),
    [
        ({}, "FLDB-ONS", 2),
        ({"algorithm": "fldb_personal"}, "FLDB-Personal", 2),
        ({"algorithm": "fldb_personal", "personal-structure": "isotropic"}, "FLDB-Personal", 3),
    ],
)
def test_an_upload_contains_only_the_documented_fields(tmp_path, options, table, column):
    documented = [length for length in lengths(table, column) if length]
    federation = Recorded(tmp_path, min_duels=5, **options)
    for device in range(3):
        federation.answer(device, 8)
    for count in (6, 30):
        federation.serve()
        for device in range(3):
            federation.answer(device, count)
    federation.serve()
    sizes = set()
    for broadcast, reply in zip(federation.broadcasts, federation.replies, strict=True):
        text = wire(reply)
        assert not [word for word in federation.private if word in text]
        vector, config = reply.content["arrays"], reply.content["config"]
        assert (set(reply.content), set(vector), set(config)) == (
            {"arrays", "config"}, {"0"}, {"header", "device"},
        )  # fmt: skip
        assert len(config["header"]) == len(DeviceUploadHeader._fields)
        size = vector["0"].shape[0]
        if size:
            assert size == sum(documented)
            assert broadcast.lengths(Form(D)) == documented
            objects = get_all_nested_objects(reply.content).values()
            sizes.add(sum(len(each.deflate()) for each in objects))
    # Its size does not grow with the number of duels.
    assert len(sizes) == 1
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


def test_the_server_can_compute_a_persons_weights(tmp_path):
    """Plain uploads of FLDB-Personal: from a share and the broadcast, theta_i follows.

    The server inverts ``M = (I + H V)^-1 H`` and ``m = (I + H V)^-1 b``, and minimises the second
    order expansion of the loss at theta_i plus the prior. Its minimiser is theta_i itself.
    """
    federation = Recorded(tmp_path, devices=3, min_duels=9, algorithm="fldb_personal")
    for count in (12, 10, 15):
        for device in range(3):
            federation.answer(device, count)
        federation.serve()
    zeros = np.zeros((D, D))
    nothing = ShareUpload(0, zeros, np.zeros(D), np.zeros(55), 0.0, 0.0, zeros)
    shares, attacked = {}, 0
    ridge = from_flat(federation.config, "a test").personal_ridge
    for broadcast, reply in zip(federation.broadcasts, federation.replies, strict=True):
        vector, config = unpack_vector(reply.content["arrays"]), reply.content["config"]
        if not vector.size:
            continue
        # What the server knows: the broadcast, this reply, and the earlier ones of the device.
        header = DeviceUploadHeader.from_counts(config["header"])
        change = decode_upload(vector, header.num_duels, broadcast, Form(D))
        own, prior = shares.get(config["device"], nothing), broadcast.play.estimate
        share = shares[config["device"]] = ShareUpload(
            *(a + b for a, b in zip(own[:7], change[:7], strict=True))
        )
        scale = prior.scale or float(scale_of(change.squares / change.num_duels))
        v, every = prior.covariance() / scale, np.eye(D)
        others = prior.precision - own.precision + ridge * scale * every
        hessian = np.linalg.solve(every - share.precision @ v, share.precision)
        linear = (every + hessian @ v) @ share.shift
        mean = np.linalg.solve(others, prior.shift - own.shift)
        q = np.linalg.inv(np.linalg.inv(others) + v)
        theta = np.linalg.solve(q + hessian, q @ mean + linear)
        # The truth: the answers, which only the device knows.
        for path in federation.stores:
            with DuelStore(path) as store:
                if store.device_id == config["device"]:
                    secret = store.evidence(0, header.end)
        true = posterior(secret.differences, secret.preferences, q, mean)
        for found, expected in zip((theta, hessian, hessian @ theta - linear), true, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)
        # g is known with its sign, so the change of g g^T reveals nothing more. Without M and m,
        # the first upload would reveal g up to its sign.
        np.testing.assert_allclose(share.scatter, np.outer(true[2], true[2]), rtol=1e-6, atol=1e-9)
        attacked += 1
    assert attacked == 9
