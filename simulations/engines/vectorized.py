"""The fastest engine: all agents as arrays, called without messages."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

import numpy as np

from fldb_flower.algorithms import make_algorithm, run_rounds
from fldb_flower.errors import SettingsError
from fldb_flower.federation.exchange import Broadcast, Federation, Upload
from fldb_flower.federation.history import History
from fldb_flower.linalg.arrays import Array
from fldb_flower.linalg.forms import make_form
from fldb_flower.privacy.mechanism import noise_of
from fldb_flower.runs.experiment import Checkpointer
from fldb_flower.settings import Settings
from fldb_flower.system.process import keep_freed_memory, one_blas_thread
from fldb_flower.wire.codec import traffic
from simulations.engines.shards import Shards


class DirectFederation(Federation):
    """A federation of all N agents, called without messages."""

    history: History

    def __init__(self, settings: Settings, history: History) -> None:
        super().__init__(history, noise_of(settings))
        self._settings = settings
        self._form = make_form(settings)
        self._counted = 0
        self._agents = Shards(settings)  # last: it may start processes, which `close` ends

    def collect(self, broadcast: Broadcast) -> Upload:
        """Call all agents and return the sum of their uploads."""
        upload = self._agents.answer(broadcast, self._counted)
        if broadcast.learns:
            agents = self._settings.num_agents
            self.history.count_bytes(*traffic(broadcast, self._form, agents))
        return upload

    def mark_counted(self) -> None:
        """Store the last iteration whose duels are counted."""
        self._counted = self.history.iteration

    def state(self) -> dict[str, Array]:
        """Return the agents' state."""
        return {"counted": np.array(self._counted), **self._agents.state()}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Take back what :meth:`state` returned."""
        self._counted = int(state["counted"])
        self._agents.restore(dict(state))

    def close(self) -> None:
        """End the processes that play agents, if there are any."""
        self._agents.close()


def run(settings: Settings, history: History, checkpointer: Checkpointer | None = None) -> Array:
    """Run the settings' algorithm over all agents in this process; return its theta_sync.

    Raises
    ------
    SettingsError
        Something is asked for that needs nodes.
    """
    for name, neutral in (("robust", "none"), ("fraction_train", 1.0)):
        if (value := getattr(settings, name)) != neutral:
            raise SettingsError(
                f"{name}={value}: needs engine=inprocess or engine=flower: the vectorized engine"
                " has no nodes"
            )
    algorithm = make_algorithm(settings)
    keep_freed_memory()
    with (
        one_blas_thread(),
        closing(DirectFederation(settings, history)) as federation,
    ):
        after_round = None if checkpointer is None else checkpointer.follow(federation, algorithm)
        return run_rounds(federation, algorithm, after_round)
