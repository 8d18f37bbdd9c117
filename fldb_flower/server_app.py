"""Flower's entry point on the server."""

import json
import sys
from dataclasses import replace
from logging import ERROR, INFO, getLogger
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fldb_flower.errors import FldbError, SettingsError
from fldb_flower.experiment import conduct
from fldb_flower.history import History
from fldb_flower.results import RunDirectory, default_directory, is_finished
from fldb_flower.settings import Settings, from_flat, from_nested
from strategies import make_strategy
from strategies.device_results import DeviceDirectory
from strategies.device_server import DeviceServer
from strategies.devices import Devices

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
            _run_experiment(settings, grid, context)
    except FldbError as error:
        if "engine" in context.node_config:
            raise  # the engine in this process reports it
        # Flower logs a failed run's stack trace; a user's mistake has none worth reading.
        sys.tracebacklimit = 0
        _LOG.log(ERROR, "the run failed: %s", error)
        raise


def _run_experiment(settings: Settings, grid: Grid, context: Context) -> None:
    path = _output_directory(settings.output_dir)
    settings = _with_engine(settings, context)
    if settings.resume and is_finished(path, settings):
        _say(f"{path}: finished already")
        return
    conduct(
        settings,
        RunDirectory(path, settings),
        engine=str(context.node_config.get("engine", "flower")),
        run=lambda history, keeper: make_strategy(settings, history).start(grid, keeper),
        say=_say,
    )


def _with_engine(settings: Settings, context: Context) -> Settings:
    """Add what Flower's run config cannot hold: which engine runs this, and its faults."""
    whole = context.node_config.get("settings")
    if whole is None:
        # How many nodes there are, Flower knows: the default must not exceed the agents.
        nodes = min(settings.engine.num_nodes, settings.num_agents)
        engine = replace(settings.engine, name="flower", num_nodes=nodes)
        return replace(settings, engine=engine)
    return replace(from_nested(json.loads(str(whole)), "the engine"), mode=settings.mode)


def _serve_devices(settings: Settings, grid: Grid) -> None:
    if not settings.output_dir:
        raise SettingsError(
            "output-dir is empty (from Flower's run config): name the absolute folder that keeps"
            " this federation's checkpoints, the same one each time"
        )
    directory = DeviceDirectory(_output_directory(settings.output_dir), settings)
    devices = Devices(settings)
    strategy = make_strategy(settings, History(settings.horizon), devices)
    DeviceServer(settings, strategy, devices, directory, _say).serve(grid)
    _say(f"results: {directory.path}")


def _say(line: str) -> None:
    _LOG.log(INFO, "%s", line)


def _output_directory(chosen: str) -> Path:
    path = Path(chosen).expanduser() if chosen else default_directory()
    if not path.is_absolute():
        raise SettingsError(
            f"output-dir={chosen!r} (from Flower's run config): must be absolute, since the run"
            " does not know the folder that you started it from"
        )
    return path
