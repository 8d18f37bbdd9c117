"""Real Flower messages without Ray: the strategy and the ClientApps in one process."""

from __future__ import annotations

import logging
from pathlib import Path

from fldb_flower.federation.agents import block_size
from fldb_flower.server_app import run_experiment
from fldb_flower.settings import Settings, to_flat
from fldb_flower.system.memory import require_agents
from simulations.engines.faults import Faults, FaultyGrid
from simulations.engines.grid import InProcessGrid

__all__ = ["InProcessGrid", "run"]


def run(settings: Settings, output_dir: str, faults: Faults | None = None) -> None:
    """Run one experiment over nodes in this process and write its results.

    Parameters
    ----------
    settings : Settings
        Settings of the run.
    output_dir : str
        Directory of the results.
    faults : Faults, optional
        Faults of messages besides ``dropout``, for tests.

    Raises
    ------
    SettingsError
        The agents need more memory than is available.
    """
    agents = settings.num_agents  # all in this process
    require_agents(settings, agents, min(block_size(settings), agents))
    run_config = to_flat(settings)
    grid = (
        FaultyGrid(settings, run_config, faults)
        if settings.dropout or faults
        else InProcessGrid(settings.engine.num_nodes, run_config)
    )
    logging.getLogger("flwr").propagate = False  # Flower's logger has its own handler
    run_experiment(settings, grid, Path(output_dir))
