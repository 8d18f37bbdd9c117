"""FLDB-Personal on devices: the server's sums are those of the last acknowledged shares."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from test_devices import DEATHS, FAULTS, D, Devicegrid, Federation, no_pause

from clients.preference_agent import PreferenceAgent
from clients.store import DuelStore

__all__ = ["no_pause"]  # a fixture for all tests


def personal(folder, **changes):
    return Federation(folder, **{"algorithm": "fldb_personal", **changes})


def check_sums(federation, server):
    """Compare the server's sums with the shares that the devices have stored."""
    precision, shift = np.zeros((D, D)), np.zeros(D)
    for path in federation.stores:
        with DuelStore(path) as store:
            matrix, vector = store.share(server.devices.counted.get(store.device_id, 0))
        precision += matrix
        shift += vector
    algorithm = server.strategy.algorithm
    scale = max(np.abs(precision).max(), 1.0)
    np.testing.assert_allclose(algorithm.information, precision, rtol=1e-9, atol=1e-12 * scale)
    np.testing.assert_allclose(algorithm.arrays["shift"], shift, rtol=1e-9, atol=1e-9)


def test_two(tmp_path):
    federation = personal(tmp_path)
    for device in range(3):
        federation.answer(device, 10)
    for _ in range(5):
        federation.answer(0, 3)
        federation.answer(1, 1)
        server = federation.serve()
        check_sums(federation, server)
    print(
        federation.lines, server.strategy.algorithm.arrays, server.strategy.algorithm.heterogeneity
    )
