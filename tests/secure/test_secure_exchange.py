"""Whole exchanges of secure sums: devices with vaults, the server's nodes, and the helper."""

from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict
from vaults import SIGNER, D, Phone, common, settings_of

from clients.helper.sums import Helper
from fldb_flower.federation.exchange import Upload
from fldb_flower.secure.messages import SumAnswer, SumRequest
from fldb_flower.secure.report import task_of
from strategies.secure_nodes import KEY, SecureNodes


def no_noise(scales):
    return np.zeros(scales.shape, dtype=np.int64)


class HelperOfNodes:
    """The helper as the server's nodes see it, without a network."""

    def __init__(self, folder) -> None:
        self.helper = Helper(folder, SIGNER, noise=no_noise)

    def key(self):
        return self.helper.keys()

    def sums(self, request: SumRequest) -> SumAnswer:
        return SumAnswer.from_bytes(self.helper.answer(request.to_bytes()), request)


class Federation:
    """A server, a helper and devices, which reply at once."""

    def __init__(self, folder, count: int) -> None:
        self.phones = [Phone(folder / f"d{number}", time.time) for number in range(count)]
        task = task_of("tea", SIGNER.public_key().public_bytes_raw(), D)
        helper = HelperOfNodes(folder / "helper")
        self.nodes = SecureNodes(settings_of(), helper, task, 20.0, int, no_noise)

    def exchange(self, broadcast=None) -> Upload:
        """Run one exchange, count it, and return the sum."""
        broadcast = broadcast or common()
        nodes, found = range(len(self.phones)), {}
        self.nodes.begin(broadcast)
        for _ in range(2):  # a device that is not known introduces itself first
            waiting = [node for node in nodes if node not in found]
            contents = self.nodes.contents(waiting, 1, None, None)
            for node, content in zip(waiting, contents, strict=True):
                reply = self.phones[node].vault.answer(content["config"][KEY])
                message = RecordDict({"config": ConfigRecord({KEY: reply})})
                checked = self.nodes.check(node, SimpleNamespace(content=message), 1, broadcast)
                if checked is not None:
                    found[node] = checked
            assert not self.nodes.disputes(nodes)
        upload = self.nodes.total([found[node] for node in sorted(found)], broadcast)
        self.nodes.acknowledge(found)
        return upload


@pytest.fixture
def federation(tmp_path):
    made = Federation(tmp_path, 4)
    for number, phone in enumerate(made.phones):
        phone.answer(([1.0 + number, 0.5], 1.0), ([-0.25, 2.0], 0.0))
    return made


def right(duels) -> tuple[np.ndarray, np.ndarray]:
    """Return gradient and W at theta = 0."""
    x, y = np.array([duel for duel, _ in duels]), np.array([won for _, won in duels])
    return (0.5 - y) @ x, x.T @ x


def test_the_server_obtains_the_sum_over_new_answers(federation):
    """Without noise, and to within the rounding of reports."""
    for place in (slice(0, 2), slice(2, 3)):
        upload = federation.exchange()
        duels = [duel for phone in federation.phones for duel in phone.given[place]]
        gradient, information = right(duels)
        np.testing.assert_allclose(upload.gradient, gradient, atol=1e-6)
        np.testing.assert_allclose(upload.information, information, atol=1e-5)
        np.testing.assert_allclose(upload.hessian, information / 4.0, atol=1e-5)
        assert upload.num_duels == len(duels)
        for phone in federation.phones:
            phone.answer(([0.5, -4.0], 0.0))
    for phone in federation.phones:
        assert phone.store.acknowledged == 2
        assert phone.vault.spent().epsilon > 0.0


def test_a_device_that_was_restored_is_counted_once(federation, tmp_path):
    phone, copy = federation.phones[0], tmp_path / "copy.db"
    phone.store.backup(copy)
    federation.exchange()
    phone.store.close()
    for suffix in ("", "-wal", "-shm"):
        (tmp_path / "d0" / f"duels.db{suffix}").unlink(missing_ok=True)
    copy.rename(phone.path)
    phone.start()
    assert federation.exchange().num_duels == 0
    phone.answer(([1.0, 0.0], 1.0))
    np.testing.assert_allclose(federation.exchange().gradient, [-0.5, 0.0], atol=1e-6)
