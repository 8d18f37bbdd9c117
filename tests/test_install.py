"""What is installed: the table of sizes, and the requirements of a device."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from simulations.benchmark import __main__ as benchmark
from simulations.benchmark import install

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_sizes_of_shared_and_of_own_packages():
    """Worked by hand: c is shared by two dependencies, and e is only in the extra."""
    mega = 10**6
    sizes = {
        "a>=1": {"a": 3 * mega, "c": 2 * mega},
        "b": {"b": mega, "c": 2 * mega},
        install.CORE: {"a": 3 * mega, "b": mega, "c": 2 * mega},
        install.DEVICE: {"b": mega, "c": 2 * mega},
        "[x]": {"e": mega // 2, "c": 2 * mega},
    }
    found = install.table(sizes, ["a>=1", "b"])
    assert found.values.tolist() == [
        ["a>=1", 2, 5.0, 3.0],
        ["b", 2, 3.0, 1.0],
        [install.CORE, 3, 6.0, 6.0],
        [install.DEVICE, 2, 3.0, 3.0],
        ["[x]", 2, 2.5, 0.5],
    ]


def test_the_requirements_of_a_device_are_those_of_the_project():
    """Each is one of the project's, with the same versions, and without Flower's Ray."""
    extra = PROJECT["optional-dependencies"]["service"]
    known = {
        required.name: required.specifier
        for required in map(Requirement, [*PROJECT["dependencies"], *extra])
    }
    ours = [Requirement(line) for line in install.device_requirements()]
    assert {each.name for each in ours} >= {"flwr", "numpy", "fastapi"}
    for each in ours:
        assert each.specifier == known[each.name]
        assert not each.extras


def test_a_device_imports_nothing_else():
    """A finder that hides the packages of simulations stands for an environment without them."""
    pytest.importorskip("fastapi_offline", reason="needs FastAPI (the service extra)")
    needed = {each.name for each in map(Requirement, install.device_requirements())}
    others = {each.name for each in map(Requirement, PROJECT["dependencies"])} - needed
    assert others == {"hydra-core", "omegaconf", "pandas", "matplotlib", "tqdm", "filelock"}
    hidden = {"hydra", "omegaconf", "pandas", "matplotlib", "tqdm", "ray"}
    code = (
        "import importlib, sys\n"
        "class Hiding:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] in {hidden}:\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Hiding())\n"
        "import clients.device, clients.service.__main__, fldb_flower.client_app\n"
        "import fldb_flower.deployment.__main__, simulations.command\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_place_without_a_project_is_refused_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(install, "ROOT", tmp_path)
    monkeypatch.setattr("sys.argv", ["fldb benchmark", "install"])
    with pytest.raises(SystemExit, match=r"^error: no pyproject.toml in .* in a checkout$"):
        benchmark.main()
