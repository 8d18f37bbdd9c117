"""The engine that uses `flwr run`, with a SuperLink of its own for one run."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fldb_flower.deployment.processes import (
    HOST,
    boxed,
    flower_environment,
    free_port,
    is_open,
    last_words,
    project_folder,
    start_process,
    toml,
    tool,
)
from fldb_flower.errors import FederationError
from fldb_flower.runs.directory import SUMMARY
from fldb_flower.runs.experiment import STOPPED, StoppedError
from fldb_flower.runs.results import default_directory, stop_requested
from fldb_flower.settings import Settings, to_flat

_START_SECONDS = 60
_STOP_SECONDS = 15
_OURS = re.compile(r"the run failed: (.*)")
_FIRST_ERROR = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception): .+)$", re.MULTILINE)


def run(settings: Settings, output_dir: str | None = None) -> None:
    """Run with `flwr run` and wait for the result.

    Raises
    ------
    StoppedError
        A stop was requested.
    FederationError
        The run ended without a result, or this installation is not a checkout.
    """
    directory = Path(output_dir) if output_dir else default_directory()
    project = project_folder("engine=flower")
    with tempfile.TemporaryDirectory(prefix="fldb-flower-") as home:
        environment = {
            **flower_environment(Path(home)),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            # With the file that a crashed cluster leaves, Ray would wait forever.
            "RAY_ADDRESS": os.environ.get("RAY_ADDRESS", "local"),
        }
        with _superlink(Path(home), environment):
            if stop_requested(directory):
                raise StoppedError(f"{STOPPED}: before the run started; resume=true starts it")
            done = subprocess.run(
                _command(settings, directory, project),
                check=False,
                env=environment,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in a terminal reaches this process only
            )
    if not (directory / SUMMARY).exists():
        reason = failure_reason(done.stdout, settings)
        if reason.startswith(STOPPED):
            raise StoppedError(reason)
        raise FederationError(f"flwr run left no {SUMMARY}: {reason}")
    print(*_last_words(done.stdout), sep="\n")


def _command(settings: Settings, directory: Path, project: Path) -> list[str]:
    engine = settings.engine
    values = {**to_flat(settings), "output-dir": str(directory.absolute())}
    resources = (
        f"num-supernodes={engine.num_nodes} client-resources-num-cpus={engine.num_cpus}"
        f" client-resources-num-gpus={engine.num_gpus}"
    )
    start = [tool("flwr"), "run", str(project), "job", "--stream"]
    return [*start, "--federation-config", resources, "--run-config", toml(values)]


@contextmanager
def _superlink(home: Path, environment: Mapping[str, str]) -> Iterator[None]:
    """Start a SuperLink for simulations, and stop it by its process id."""
    api, control = free_port(), free_port()
    address = f"{HOST}:{api}"
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "job"\n\n[superlink.job]\naddress = "{address}"\ninsecure = true\n'
    )
    command = [tool("flower-superlink"), "--insecure", "--simulation", "--isolation", "subprocess"]
    command += ["--host", HOST, "--port", str(api)]
    command += ["--control-api-address", f"{HOST}:{control}"]
    with (home / "superlink.log").open("wb") as log:
        process = start_process(command, environment, log, Path.cwd())
        try:
            _wait_for(api, process, home / "superlink.log")
            yield
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            reason = last_words(log.read_text()) or "it printed nothing"
            raise FederationError(f"flower-superlink ended at once: {reason}")
        if is_open(port):
            return
        time.sleep(0.1)
    raise FederationError(f"flower-superlink did not open its port within {_START_SECONDS} s")


def failure_reason(output: str, settings: Settings) -> str:
    """Return the reason of a failure in the output of `flwr run`, as one line."""
    engine = settings.engine
    if "ActorPool is empty" in output:
        return (
            f"no client fits this machine: each asks for engine.num_cpus={engine.num_cpus} and"
            f" engine.num_gpus={engine.num_gpus:g}"
        )
    found = _OURS.findall(output) or _FIRST_ERROR.findall(output)
    if found:
        return str(found[0]).strip()
    return boxed(output) or last_words(output) or "it printed nothing"


def _last_words(output: str) -> list[str]:
    lines = [line.partition(":      ")[2] for line in output.splitlines()]
    return [line for line in lines if "final regret" in line or line.startswith("results:")]
