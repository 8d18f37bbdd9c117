"""Hydra's callback for sweeps. Every run imports this module, so it imports little."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

jobs_without_result: list[str] = []
"""Failed jobs of a sweep with another sweeper than ours; then the exit status is 1."""


class SweepCallback(Callback):
    """Registers our sweeper, and writes the tables of a sweep with another sweeper.

    The jobs that another sweeper launched are not known. Its tables hold every distinct run below
    the folder of the sweep.
    """

    def on_multirun_start(self, config: DictConfig, **_kwargs: Any) -> None:
        """Register our sweeper."""
        from simulations.sweeps.sweeper import register  # noqa: PLC0415 - imports pandas

        register()

    def on_multirun_end(self, config: DictConfig, **_kwargs: Any) -> None:
        """Write the tables and the plot of a sweep with another sweeper."""
        if str(config.hydra.sweeper.get("_target_")).endswith(".GridSweeper"):
            return
        from simulations.saved_runs import find_finished  # noqa: PLC0415 - imports pandas
        from simulations.sweeps.jobs import ERROR, failure  # noqa: PLC0415
        from simulations.sweeps.tables import report  # noqa: PLC0415

        folder = Path(str(config.hydra.sweep.dir))
        runs = list(find_finished(folder).values())
        for path in sorted(folder.glob(f"*/{ERROR}")):
            jobs_without_result.append(f"{path.parent.name}: {failure(path.parent)}")
        report(runs, jobs_without_result, folder)
