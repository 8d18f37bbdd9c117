"""Every command of the README runs, with the changes listed here that make it short."""

import itertools
import os
import re
import shlex
import subprocess
import sys
import zipfile

import pytest
from flwr.common.config import parse_config_args
from test_run import ROOT

from fldb_flower.settings import from_flat
from simulations.engines import inprocess

README = (ROOT / "README.md").read_text()
COMMANDS = [
    line
    for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    for line in block.strip().splitlines()
]
SHORT = "horizon=15"
INSTALLS = [line for line in COMMANDS if line.startswith("python3 -m venv")]
FLOWER = [line for line in COMMANDS if line.startswith("flwr run")]
PYTHON = [line for line in COMMANDS if line.startswith("python -m")]
STOP = [line for line in COMMANDS if line.startswith("kill ")]


def test_every_command_is_tested():
    assert sorted(INSTALLS + FLOWER + PYTHON + STOP) == sorted(COMMANDS)
    assert COMMANDS


def test_the_stop_command_uses_the_port_of_flower():
    from flwr.cli.constant import LOCAL_SUPERLINK_HTTP_API_PORT

    assert f"--port {LOCAL_SUPERLINK_HTTP_API_PORT}" in STOP[0]


@pytest.mark.slow
@pytest.mark.parametrize("command", PYTHON)
def test_python_commands(command, tmp_path, ratings):
    path = ratings()
    with zipfile.ZipFile(tmp_path / "ml (1).zip", "w") as archive:
        archive.write(path, "u.data")
    arguments = shlex.split(command.replace("/data/ml-100k.zip", str(path)))[1:]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    if arguments[1] == "simulations.run":
        arguments.append(SHORT)
    elif arguments[1] == "simulations.report":
        make = ["-m", "simulations.run", "-m", "seed=0,1", SHORT]
        subprocess.run([sys.executable, *make], cwd=tmp_path, env=environment, check=True)
    elif arguments[1] == "simulations.benchmark":
        arguments.append("--help")
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def options_of(command, ratings):
    """Return the run config and the federation config of a `flwr run` command."""
    words = shlex.split(command.replace("/data/ml-100k.zip", str(ratings())))
    options = dict(itertools.pairwise(words))
    config = re.sub(r" ?output-dir='[^']*'", "", options.get("--run-config", ""))
    return config, options.get("--federation-config")


@pytest.mark.exhaustive
@pytest.mark.xdist_group("flower")
@pytest.mark.parametrize("command", FLOWER)
def test_flower_commands(command, tmp_path, ratings, flwr):
    config, nodes = options_of(command, ratings)
    options = ["--federation-config", nodes] if nodes else []
    done = flwr(f"{config} {SHORT} output-dir='{tmp_path / 'run'}'".strip(), *options)
    assert (tmp_path / "run" / "summary.json").exists(), done.stdout


@pytest.mark.parametrize("command", FLOWER)
def test_configurations_of_flower_commands(command, tmp_path, ratings):
    """They run over Flower's messages; `flwr run` itself is tested in test_flower."""
    config = parse_config_args([f"{options_of(command, ratings)[0]} {SHORT}".strip()])
    inprocess.run(from_flat(config, "a test"), str(tmp_path / "run"))
    assert (tmp_path / "run" / "summary.json").exists()


def test_the_environment_of_the_readme_runs():
    from fldb_flower.catalogue import ENVIRONMENTS
    from fldb_flower.federation.history import History
    from fldb_flower.settings import from_nested
    from simulations.engines import vectorized

    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(code, {})
    regrets = {}
    for algorithm in ("fldb_ons", "random"):
        values = {"algorithm": algorithm, "environment": {"name": "sphere"}, "horizon": 60}
        settings = from_nested({**values, "tau": 1}, "a test")
        history = History(settings.horizon)
        vectorized.run(settings, history)
        regrets[algorithm] = history.regret
    ENVIRONMENTS.remove("sphere")
    assert regrets["fldb_ons"] < 0.5 * regrets["random"]
