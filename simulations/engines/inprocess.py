"""Real Flower messages without Ray: the strategy and the ClientApps in one process."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from flwr.common.logger import update_console_handler

from fldb_flower.federation.blocks import require_agents
from fldb_flower.server_app import run_experiment
from fldb_flower.settings import Settings, to_flat
from simulations.engines.grid import InProcessGrid, LossyGrid


def run(settings: Settings, output_dir: str) -> None:
    """Run one experiment over nodes in this process and write its results.

    Raises
    ------
    SettingsError
        The agents need more memory than is available.
    """
    require_agents(settings, settings.num_agents)  # all in this process
    run_config = to_flat(settings)
    grid = (
        LossyGrid(settings, run_config)
        if settings.dropout
        else InProcessGrid(settings.engine.num_nodes, run_config)
    )
    logging.getLogger("flwr").propagate = False  # Flower's logger has its own handler
    update_console_handler(colored=sys.stderr.isatty())
    run_experiment(settings, grid, Path(output_dir))
