"""Real Flower messages without processes: ServerApp and ClientApps in one process, no Ray."""

from __future__ import annotations

import json
import logging

from flwr.app import Context, RecordDict

from fldb_flower import server_app
from fldb_flower.agents import block_size
from fldb_flower.memory import require_agents
from fldb_flower.settings import Settings, to_flat, to_nested
from simulations.engines.faults import FaultyGrid
from simulations.engines.grid import SERVER_NODE, InProcessGrid

__all__ = ["InProcessGrid", "run"]


def run(settings: Settings, output_dir: str) -> None:
    """Run the real ServerApp over nodes in this process; it writes the results.

    Raises
    ------
    SettingsError
        The agents need more memory than there is.
    """
    agents = settings.num_agents  # all of them are in this process
    require_agents(settings, agents, min(block_size(settings), agents))
    run_config = {**to_flat(settings), "output-dir": output_dir}
    if settings.is_faulty:
        grid: InProcessGrid = FaultyGrid(settings, run_config)
    else:
        grid = InProcessGrid(settings.engine.num_nodes, run_config)
    context = Context(
        run_id=grid.run.run_id,
        node_id=SERVER_NODE,
        # What the run config cannot hold, too: which engine this is, and its faults.
        node_config={"engine": "inprocess", "settings": json.dumps(to_nested(settings))},
        state=RecordDict(),
        run_config=run_config,
    )
    logging.getLogger("flwr").propagate = False  # Flower prints its lines itself
    server_app.app(grid, context)
