"""The engine that uses `flwr run`, with a SuperLink of its own for one run."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fldb_flower.deployment.processes import (
    HOST,
    free_port,
    is_open,
    project_folder,
    reason_in,
    toml,
    tool,
)
from fldb_flower.errors import FederationError
from fldb_flower.runs.directory import SUMMARY
from fldb_flower.runs.experiment import STOPPED, StoppedError
from fldb_flower.runs.results import CONFIG, discard_unfinished, stop_requested
from fldb_flower.settings import Settings, to_flat
from simulations.engines import SLOW_START, STARTS
from simulations.local_process import LocalProcess, configure_flwr, environment

_LINK = "job"  # name of the SuperLink in Flower's configuration
_SIGNAL_SECONDS = 1.0  # at most until a signal is handled
_OUTCOME = " | final "  # in the line with the result


def run(settings: Settings, output_dir: str) -> None:
    """Run with `flwr run` and wait for the result; again if Ray does not start in time."""
    directory = Path(output_dir)
    command = _command(settings, directory, project_folder("engine=flower"))
    with (
        tempfile.TemporaryDirectory(prefix="fldb-flower-") as folder,
        superlink(Path(folder)) as home,
    ):
        is_new = not (directory / CONFIG).exists()
        for _ in range(STARTS):
            if stop_requested(directory):
                raise StoppedError(f"{STOPPED}: before the run started; resume=true starts it")
            output = _output_of(command, environment(home))
            if (directory / SUMMARY).exists():
                lines = [line.partition(":      ")[2] for line in output.splitlines()]
                shown = [each for each in lines if each.startswith("results:") or _OUTCOME in each]
                print(*shown, sep="\n")
                return
            reason = failure_reason(output, settings)
            if reason.startswith(STOPPED):
                raise StoppedError(reason)
            if SLOW_START not in output:
                break
            if is_new:  # the server claimed the directory before Ray failed
                discard_unfinished(directory)
    raise FederationError(f"flwr run left no {SUMMARY}: {reason}")


def _output_of(command: list[str], variables: dict[str, str]) -> str:
    """Run a command and return its output; signals are handled meanwhile.

    Python calls the handler of a signal between two instructions of the main thread. A read
    without a timeout can outlast a signal that arrives just before it, or at another thread.
    """
    with subprocess.Popen(
        command,
        env=variables,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C in a terminal reaches this process only
    ) as process:
        while True:
            try:
                return process.communicate(timeout=_SIGNAL_SECONDS)[0]
            except subprocess.TimeoutExpired:
                continue  # nothing of the output is lost
            except BaseException:
                process.kill()
                raise


def _command(settings: Settings, directory: Path, project: Path) -> list[str]:
    engine = settings.engine
    values = {**to_flat(settings), "output-dir": str(directory.absolute())}
    resources = (
        f"num-supernodes={engine.num_nodes} client-resources-num-cpus={engine.num_cpus}"
        f" client-resources-num-gpus={engine.num_gpus}"
    )
    start = [tool("flwr"), "run", str(project), _LINK, "--stream"]
    return [*start, "--federation-config", resources, "--run-config", toml(values)]


@contextmanager
def superlink(folder: Path) -> Iterator[Path]:
    """Start a SuperLink for simulations, and stop it at the end.

    Yields the home of its processes. With this home, it is the default SuperLink of ``flwr run``.
    """
    port, control = free_port(), free_port()
    command = [tool("flower-superlink"), "--insecure", "--simulation", "--isolation", "subprocess"]
    command += ["--host", HOST, "--port", str(port)]
    command += ["--control-api-address", f"{HOST}:{control}"]
    # The run resolves relative paths of the settings in this directory.
    process = LocalProcess("superlink", folder, command, cwd=Path.cwd())
    try:
        process.start()
        process.wait_until(lambda: is_open(port), f"listening on port {port}")
        configure_flwr(process.home, _LINK, f"{HOST}:{port}", "insecure = true")
        yield process.home
    finally:
        process.stop()


def failure_reason(output: str, settings: Settings) -> str:
    """Return the reason of a failure in the output of `flwr run`, as one line."""
    engine = settings.engine
    if "ActorPool is empty" in output:
        return (
            f"no client fits this machine: each asks for engine.num_cpus={engine.num_cpus} and"
            f" engine.num_gpus={engine.num_gpus:g}"
        )
    return reason_in(output)
