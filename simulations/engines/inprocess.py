"""Real Flower messages without Ray: the strategy and the ClientApps in one process."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from flwr.common.logger import update_console_handler

from clients.simulated import LocalContext
from fldb_flower import server_app
from fldb_flower.federation.blocks import require_agents
from fldb_flower.federation.history import History
from fldb_flower.linalg.arrays import Array
from fldb_flower.settings import Settings, to_flat
from simulations.engines.grid import InProcessGrid, LossyGrid


def run(settings: Settings, output_dir: str) -> None:
    """Run one experiment over nodes in this process and write its results.

    Raises
    ------
    SettingsError
        The agents need more memory than is available.
    """
    grid = _grid(settings)
    logging.getLogger("flwr").propagate = False  # Flower's logger has its own handler
    update_console_handler(colored=sys.stderr.isatty())
    server_app.run_experiment(settings, grid, Path(output_dir))


def play(settings: Settings, history: History) -> Array:
    """Run one experiment into a history, without files; return theta_sync.

    Raises
    ------
    SettingsError
        The agents need more memory than is available.
    """
    return server_app.play(settings, history, _grid(settings))


def _grid(settings: Settings) -> InProcessGrid:
    require_agents(settings, settings.num_agents)  # all in this process
    run_config = to_flat(settings)
    if settings.dropout:
        return LossyGrid(settings, run_config, LocalContext)
    return InProcessGrid(settings.engine.num_nodes, run_config, LocalContext)
