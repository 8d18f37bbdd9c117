"""What is installed: the table of sizes, and the requirements of a device."""

import io
import re
import subprocess
import sys
import tomllib
import zipfile
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.cli.utils import collect_files, filter_paths_for_publish
from packaging.requirements import Requirement

import install

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


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
    core = {"hydra-core", "omegaconf", "pandas", "matplotlib", "tqdm", "filelock", "httpx"}
    assert others == core
    hidden = {"hydra", "omegaconf", "pandas", "matplotlib", "tqdm", "ray"}
    code = (
        "import importlib, sys\n"
        "class Hiding:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] in {hidden}:\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Hiding())\n"
        "import clients.device, clients.service.app, clients.service.__main__\n"
        "import fldb_flower.client_app\n"
        "import clients.helper.__main__\n"
        "import fldb_flower.deployment.__main__, simulations.command\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


# --- What Flower publishes, and what an image copies ------------------------------------------

PACKAGES = ["clients", "conf", "fldb_flower", "simulations", "strategies"]
PAGES = {"clients/page", "simulations/report"}  # folders of pages, scripts and styles


def tracked(*folders):
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--", *folders]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return set(names.strip("\0").split("\0"))


TYPED = {f"{name}/py.typed" for name in PACKAGES if name != "conf"}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """Unpack the Flower App Bundle."""
    folder = tmp_path_factory.mktemp("bundle")
    zipfile.ZipFile(io.BytesIO(build_fab_from_disk(ROOT))).extractall(folder)
    return folder


def test_flowers_app_has_all_files_of_the_packages_but_those_of_pages(bundle):
    """A new kind of file is either published, or read with a message that it is not."""
    found = {path.relative_to(bundle).as_posix() for path in bundle.rglob("*") if path.is_file()}
    assert tracked(*PACKAGES) >= TYPED
    missing = tracked(*PACKAGES) - found - TYPED
    assert {Path(name).parent.as_posix() for name in missing} == PAGES
    assert {Path(name).suffix for name in missing} == {".css", ".html", ".js"}
    assert (
        missing == tracked(*PACKAGES) - set(filter_paths_for_publish(collect_files(ROOT))) - TYPED
    )


def in_bundle(bundle, *words):
    return subprocess.run(
        [sys.executable, *words],
        cwd=bundle, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


@pytest.mark.slow
def test_both_apps_of_flower_run_from_the_bundle(bundle, tmp_path):
    code = (
        "import fldb_flower.client_app as client, fldb_flower.server_app as server\n"
        "print(client.__file__, server.__file__, client.app, server.app)"
    )
    done = in_bundle(bundle, "-c", code)
    assert (done.returncode, done.stdout.count(str(bundle))) == (0, 2), done.stderr
    words = ["engine=inprocess", "engine.num_nodes=2", "num_agents=4", "horizon=5"]
    done = in_bundle(bundle, "-m", "simulations.run", *words, f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "summary.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "clients.service --store {folder}/duels.db",
        "simulations.demo --rounds 1 --dir {folder}/demo",
        "simulations.report {folder}/runs",
    ],
)
def test_commands_with_pages_refuse_to_run_from_the_bundle(command, bundle, tmp_path):
    pytest.importorskip("fastapi_offline", reason="needs FastAPI (the service extra)")
    if "report" in command:
        pytest.importorskip("itables", reason="needs the report extra")
        words = ["num_agents=2", "horizon=3", "plot=false", f"hydra.run.dir={tmp_path}/runs/1"]
        assert in_bundle(bundle, "-m", "simulations.run", *words).returncode == 0
    done = in_bundle(bundle, "-m", *command.format(folder=tmp_path).split())
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {bundle}/")
    assert " is missing: a published Flower app has no pages, scripts or styles; use" in line
    assert " from a clone of its repository" in line
    assert not list(tmp_path.glob("duels.db*"))


def test_images_contain_the_packages_and_no_other_folder():
    """The last pattern that matches decides, as in the documentation of Docker."""
    patterns = (ROOT / ".dockerignore").read_text().split()

    def is_ignored(name):
        ignored = False
        for pattern in patterns:
            bare = pattern.removeprefix("!").removeprefix("**/")
            parts = name.split("/")
            starts = ["/".join(parts[: n + 1]) for n in range(len(parts))]
            if any(fnmatchcase(each, bare) for each in (starts if "*" not in pattern else parts)):
                ignored = not pattern.startswith("!")
        return ignored

    assert not (ROOT / ".containerignore").exists()  # Podman would prefer it
    kept = {name for name in tracked() if not is_ignored(name)}
    files = {"pyproject.toml", "README.md", "LICENSE", "docs/deployment/device-requirements.txt"}
    assert kept == tracked(*PACKAGES) | files
    for name in (".git/config", ".venv/bin/python", "outputs/run/regret.csv", "conf/__pycache__/x"):
        assert is_ignored(name), name


def test_no_text_installs_a_package_that_is_not_published():
    """In documents, docstrings and messages; the distribution is not on PyPI."""
    found = []
    for name in sorted(tracked()):
        path = ROOT / name
        if name.startswith(("tests/", "docs/figures/")) or path.suffix in (".png", ".gz", ".bin"):
            continue
        text = path.read_text("utf-8")
        for match in re.finditer(r"pip install[^`\n]*?[\s'\"]fldb[-_]flower\b", text):
            found.append(f"{name}: {match[0]}")
    assert found == []
