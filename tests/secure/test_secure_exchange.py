"""Whole exchanges of secure sums: devices with vaults, the server's nodes, and the helper."""

from __future__ import annotations

import shutil

import numpy as np
from secure_federation import SecureFederation


def right(duels) -> tuple[np.ndarray, np.ndarray]:
    """Return gradient and W at theta = 0."""
    x, y = np.array([duel for duel, _ in duels]), np.array([won for _, won in duels])
    return (0.5 - y) @ x, x.T @ x


def test_the_server_obtains_the_sum_over_new_answers(tmp_path):
    """Without noise, and to within the rounding of reports."""
    with SecureFederation(tmp_path, devices=4) as federation, federation.serving() as server:
        for number, phone in enumerate(federation.phones):
            phone.answer(([1.0 + number, 0.5], 1.0), ([-0.25, 2.0], 0.0))
        assert federation.round(server), federation.lines
        broadcast, upload = federation.sums[-1]
        assert not broadcast.theta_hat.any()
        gradient, information = right([d for phone in federation.phones for d in phone.given])
        np.testing.assert_allclose(upload.gradient, gradient, atol=1e-6)
        np.testing.assert_allclose(upload.information, information, atol=1e-5)
        federation.check_once(server)
        federation.answer()
        assert federation.round(server), federation.lines
        federation.check_once(server)
        assert all(phone.vault.spent().epsilon > 0.0 for phone in federation.phones)


def test_a_device_that_was_restored_is_counted_once(tmp_path):
    with SecureFederation(tmp_path) as federation, federation.serving() as server:
        phone, copy = federation.phones[0], tmp_path / "copy.db"
        federation.answer()
        phone.store.backup(copy)
        assert federation.round(server), federation.lines
        phone.store.close()
        for path in phone.folder.glob("duels.db*"):
            path.unlink()
        shutil.copy(copy, phone.path)
        phone.start()
        assert federation.round(server), federation.lines
        assert federation.sums[-1][1].num_duels == 0
        federation.answer(0)
        assert federation.round(server), federation.lines
        federation.check_once(server)
