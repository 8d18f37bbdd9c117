"""Shared by all tests: Flower stays quiet, and settings are made in one line."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"


@pytest.fixture
def ratings(tmp_path: Path) -> Callable[[], Path]:
    """Write made-up ratings in the layout of ml-100k; GroupLens allows no redistribution."""

    def write() -> Path:
        import numpy as np

        rng = np.random.default_rng(5)
        lines = [
            f"{user}\t{item}\t{rng.integers(1, 6)}\t0"
            for user in range(1, 211)
            for item in rng.permutation(220)[: 120 + user % 7] + 1
        ]
        path = tmp_path / "u.data"
        path.write_text("\n".join(lines) + "\n")
        return path

    return write


def nested(**values: Any) -> dict[str, Any]:
    """Spell `environment__sigma=1` as the nested key that Hydra's users write."""
    result: dict[str, Any] = {}
    for name, value in values.items():
        node = result
        *groups, leaf = name.split("__")
        for group in groups:
            node = node.setdefault(group, {})
        node["lambda" if leaf == "lambda_" else leaf] = value
    return result
