"""All agents in shards of about equal size, played by one or more workers."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Iterator

from fldb_flower.federation.agents import total_of_blocks
from fldb_flower.federation.blocks import blocks_of, require_agents
from fldb_flower.federation.exchange import Broadcast, Upload
from fldb_flower.linalg.arrays import Array, join_parts, part_of
from fldb_flower.settings import AUTO, RAY, Settings
from fldb_flower.system.process import processors
from simulations.engines.workers import Groups, Processes, Workers

MIN_BLOCKS = 4
"""Minimum number of blocks in a shard, so that its work outweighs the messages."""
MAX_SHARDS = 64


class Shards:
    """All N agents, in shards.

    Shards and results do not depend on the workers (the setting ``engine.workers``): uploads are
    summed shard by shard. With two or more shards, each available processor plays some of them in
    its own process. Threads would wait for each other in every call of NumPy.

    Parameters
    ----------
    settings : Settings
        Settings of the run.

    Attributes
    ----------
    shards : list of range
        The agents of each shard.
    workers : Workers
        What plays them.
    """

    def __init__(self, settings: Settings) -> None:
        self.shards = list(_shards(settings))
        self.workers = _workers(settings, self.shards)

    def answer(self, broadcast: Broadcast, counted: int) -> Upload:
        """Play the requested iterations and return the statistics; see :class:`AgentGroup`."""
        return total_of_blocks(self.workers.answer(broadcast, counted))

    def state(self) -> dict[str, Array]:
        """Return the state of all agents as arrays; see :meth:`restore`."""
        return join_parts({str(at): state for at, state in enumerate(self.workers.state())})

    def restore(self, state: dict[str, Array]) -> None:
        """Restore a state; the run continues with identical numbers."""
        self.workers.restore([part_of(state, str(at)) for at in range(len(self.shards))])

    def close(self) -> None:
        """End the workers."""
        self.workers.close()


def _workers(settings: Settings, shards: list[range]) -> Workers:
    if settings.engine.workers == RAY:
        from simulations.engines.ray_workers import RayWorkers  # noqa: PLC0415 - imports Ray

        return RayWorkers(settings, shards)
    require_agents(settings, settings.num_agents, may_repeat=False)
    count = min(_processes(settings), len(shards))
    return Groups(settings, shards) if count < 2 else Processes(settings, shards, count)


def _processes(settings: Settings) -> int:
    """Return how many processes to use: one without fork, or with the threads of PyTorch."""
    is_daemon = multiprocessing.current_process().daemon  # which may not have children
    if sys.platform != "linux" or settings.backend != "numpy" or is_daemon:
        return 1
    workers = settings.engine.workers
    return processors() if workers == AUTO else int(workers)


def _shards(settings: Settings) -> Iterator[range]:
    """Yield shards of consecutive blocks; see `MIN_BLOCKS` and `MAX_SHARDS`."""
    blocks = list(blocks_of(settings, range(settings.num_agents)))
    size = max(MIN_BLOCKS, -(-len(blocks) // MAX_SHARDS))
    for start in range(0, len(blocks), size):
        part = blocks[start : start + size]
        yield range(part[0].start, part[-1].stop)
