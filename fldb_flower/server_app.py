"""Flower's ServerApp."""

import sys
from dataclasses import replace
from logging import ERROR, INFO, getLogger
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fldb_flower.errors import FldbError, SettingsError
from fldb_flower.federation.history import History
from fldb_flower.linalg.arrays import Array
from fldb_flower.runs.experiment import conduct
from fldb_flower.runs.results import RunDirectory, default_directory, is_finished
from fldb_flower.settings import Settings, from_flat, without_effect
from strategies import THETA, make_strategy
from strategies.device_rounds import make_device_server

app = ServerApp()
_LOG = getLogger("flwr")


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one experiment, or a federation of devices, over the grid and write its results."""
    try:
        settings = from_flat(context.run_config, "Flower's run config")
        if settings.mode == "devices":
            _serve_devices(settings, grid)
        else:
            settings = _on_flower(settings)
            run_experiment(settings, grid, _output_directory(settings.output_dir))
    except FldbError as error:
        sys.tracebacklimit = 0  # Flower logs the stack trace of a failed run
        _LOG.log(ERROR, "the run failed: %s", error)
        raise


def _on_flower(settings: Settings) -> Settings:
    """Set the engine; Flower determines the number of nodes, so any default must be valid."""
    nodes = min(settings.engine.num_nodes, settings.num_agents)
    return replace(settings, engine=replace(settings.engine, name="flower", num_nodes=nodes))


def run_experiment(settings: Settings, grid: Grid, path: Path) -> None:
    """Run one experiment over the nodes of a grid, and write its results to a directory."""
    if settings.resume and is_finished(path, settings):
        _say(f"{path}: finished already")
        return
    conduct(
        settings,
        RunDirectory(path, settings),
        run=lambda history, _checkpointer: play(settings, history, grid),
        say=_say,
    )


def play(settings: Settings, history: History, grid: Grid) -> Array:
    """Run one experiment over the nodes of a grid into a history; return theta_sync."""
    return make_strategy(settings, history).start(grid).arrays[THETA].numpy()


def _serve_devices(settings: Settings, grid: Grid) -> None:
    if not settings.output_dir:
        raise SettingsError(
            "output-dir is empty (from Flower's run config): set the absolute path of the directory"
            " with this federation's checkpoints, the same one in each run"
        )
    if line := without_effect([settings]):
        _say(f"warning: {line}")
    path = _output_directory(settings.output_dir)
    make_device_server(settings, path, _say).serve(grid)
    _say(f"results: {path}")


def _say(line: str) -> None:
    _LOG.log(INFO, "%s", line)


def _output_directory(chosen: str) -> Path:
    path = Path(chosen).expanduser() if chosen else default_directory()
    if not path.is_absolute():
        raise SettingsError(
            f"output-dir={chosen!r} (from Flower's run config): must be absolute, since Flower does"
            " not run in the directory that `flwr run` was started in"
        )
    return path
