"""The fastest engine: a federation that calls all agents directly, as arrays."""

from __future__ import annotations

from fldb_flower.agents import AgentGroup, one_blas_thread
from fldb_flower.algorithms import run_algorithm
from fldb_flower.federation import Broadcast, Federation, Upload
from fldb_flower.history import History
from fldb_flower.messages import traffic
from fldb_flower.settings import Settings


class DirectFederation(Federation):
    """All N agents in one group, called without messages.

    Bytes are those of N agents that each exchange a message of their own.
    """

    def __init__(self, settings: Settings, history: History) -> None:
        super().__init__(history)
        self._settings = settings
        self._group = AgentGroup(settings, range(settings.num_agents))
        self._counted = 0

    def _trip(self, broadcast: Broadcast) -> Upload:
        if broadcast.theta_hat is not None:
            settings = self._settings
            self.history.count_bytes(*traffic(broadcast, settings.dimension, settings.num_agents))
        return self._group.answer(broadcast, self._counted)

    def _confirm(self) -> None:
        self._counted = self.history.iteration


def run(settings: Settings, history: History) -> None:
    """Run the settings' algorithm over all agents in this process."""
    with one_blas_thread(settings.dimension):
        run_algorithm(DirectFederation(settings, history), settings)
