"""Division of agents among nodes and into blocks, and the memory that they need."""

from __future__ import annotations

import math
from collections.abc import Iterator

from fldb_flower.bandit.streams import AgentStreams
from fldb_flower.catalogue import ALGORITHMS
from fldb_flower.settings import Settings
from fldb_flower.system.process import require_memory

BLOCK_NUMBERS = 2**16
"""Size of a block's features in one iteration: half a MiB, which fits in the cache."""

GPU_BLOCK_NUMBERS = 2**24
_NUMBER_BYTES = 8
_MATRICES = {"local": 1, "personal": 7}  # (d, d) of each agent with an estimate of its own


def agents_of_node(partition_id: int, num_partitions: int, num_agents: int) -> range:
    """Return the contiguous agents that a node hosts; raise ValueError if there are none.

    The first ``num_agents % num_partitions`` nodes host one agent more than the others.
    """
    if not 0 <= partition_id < num_partitions:
        raise ValueError(f"partition-id={partition_id} is not in 0..{num_partitions - 1}")
    if num_partitions > num_agents:
        raise ValueError(f"num-partitions={num_partitions} is more than num-agents={num_agents}")
    size, larger = divmod(num_agents, num_partitions)
    start = partition_id * size + min(partition_id, larger)
    return range(start, start + size + (partition_id < larger))


def blocks_of(settings: Settings, agents: range) -> Iterator[range]:
    """Split agents into blocks. Blocks end where cohorts of streams end."""
    size, start = block_size(settings), agents.start
    while start < agents.stop:
        stop = min(agents.stop, (start // size + 1) * size)
        yield range(start, stop)
        start = stop


def block_size(settings: Settings) -> int:
    """Return the largest number of agents in a block: a multiple of a cohort."""
    cohort = AgentStreams.COHORT
    return max(1, rows_in_block(settings) // cohort) * cohort


def rows_in_block(settings: Settings) -> int:
    """Return how many times the arms of one agent in one iteration fit in a block."""
    numbers = BLOCK_NUMBERS if settings.backend in {"numpy", "cpu"} else GPU_BLOCK_NUMBERS
    return numbers // (settings.num_arms * settings.dimension)


def require_agents(settings: Settings, agents: int, *, may_repeat: bool = True) -> None:
    """Raise SettingsError if the memory does not suffice for so many simulated agents.

    The estimate is a lower bound. It has the duels that are stored and, of agents with their own
    estimates, the matrices. For one block, it has the arms of an iteration, as drawn and in the
    order of iterations, and their differences from the first arm, or the norms of all pairs. If no
    message is repeated, a block's duels are dropped after the last exchange of a round
    (:attr:`~fldb_flower.federation.exchange.Broadcast.final`).
    """
    if settings.backend not in {"numpy", "cpu"}:
        return  # they are in a GPU's memory
    arms, d = settings.num_arms, settings.dimension
    policy = ALGORITHMS[settings.algorithm].agents
    stored, in_block = _stored_duels(settings), 0
    if not may_repeat and ALGORITHMS[settings.algorithm].online and policy not in _MATRICES:
        stored, in_block = int(not settings.takes_first_step), stored
    each = stored * (d + 1) + d * d * _MATRICES.get(policy, 0)
    seen = 3 * arms * d + in_block * (d + 1)
    if settings.selection in {"maxinp", "maxpairucb"} and policy != "uniform":
        seen += arms * (arms + 1) // 2
    names = ("num_agents", "horizon", "num_arms", "dimension")
    given = ", ".join(f"{name}={getattr(settings, name)}" for name in names)
    numbers = agents * each + min(block_size(settings), agents) * seen
    require_memory(numbers * _NUMBER_BYTES, f"{given}: {agents} agents")


def _stored_duels(settings: Settings) -> int:
    """Return a lower bound of the largest number of duels stored for one agent."""
    horizon, algorithm = settings.horizon, ALGORITHMS[settings.algorithm]
    if algorithm.keeps_duels or algorithm.agents in _MATRICES:
        return horizon
    if algorithm.agents == "uniform":
        return 1
    if settings.schedule.name == "periodic":
        return max(1, min(settings.tau, horizon) - 1)  # t = 1 is a round of its own
    return max(1, math.floor(horizon * (1.0 - 1.0 / settings.schedule.ratio)) - 1)
