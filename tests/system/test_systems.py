"""Systems without POSIX, such as Windows, and versions of Python that are too old."""

import ast
import os
import re
import sys
import tomllib
from pathlib import Path

import pytest
from local_processes import ROOT, python

from fldb_flower.errors import DataError
from fldb_flower.system import startup

WITHOUT_POSIX = ROOT / "tests" / "without_posix.py"
PRODUCT = [
    path
    for package in startup.PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
]  # fmt: skip
COMMANDS = [path for path in PRODUCT if '\nif __name__ == "__main__":' in path.read_text()]


def module_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] in ("__init__", "__main__") else parts)


# --- without POSIX ---------------------------------------------------------------------------


def test_no_module_needs_posix_when_it_is_imported(tmp_path):
    names = sorted({module_of(path) for path in PRODUCT if path.stem != "__main__"})
    names += [f"{module_of(path)}.__main__" for path in PRODUCT if path.stem == "__main__"]
    optional = {"joblib", "submitit", "torch"}  # extras
    (tmp_path / "all_modules.py").write_text(
        "import importlib\n"
        f"for name in {names}:\n"
        "    try:\n"
        "        importlib.import_module(name)\n"
        "    except ImportError as error:\n"
        f"        if error.name not in {optional}: raise\n"
    )
    done = python(WITHOUT_POSIX, "all_modules", cwd=tmp_path, first=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_simulations_run_without_posix_and_have_the_same_results(tmp_path):
    settings = ("num_agents=4", "horizon=5", "seed=3", "plot=false")
    runs = tmp_path / "there", tmp_path / "here"
    for folder, script in zip(runs, ([WITHOUT_POSIX], ["-m"]), strict=True):
        done = python(*script, "simulations.run", *settings, f"hydra.run.dir={folder}")
        assert done.returncode == 0, done.stderr
    there, here = ((folder / "regret.csv").read_bytes() for folder in runs)
    assert there == here
    sweep = ("-m", *settings[:2], "seed=1,2", f"hydra.sweep.dir={tmp_path / 'sweep'}")
    for words in (
        ("simulations.run", *sweep), ("simulations.report", tmp_path),
        ("fldb_flower.deployment", "credentials", "--host", "localhost", tmp_path / "keys"),
    ):  # fmt: skip
        done = python(WITHOUT_POSIX, *words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "sweep" / "sweep.csv").exists()
    assert (tmp_path / "report.html").exists()


def test_a_vault_is_refused_in_one_line_without_owners_of_files(tmp_path, monkeypatch):
    from fldb_flower.system.files import check_writers

    (tmp_path / "vault.toml").touch()
    monkeypatch.delattr(os, "geteuid")
    with pytest.raises(DataError, match="needs Linux or macOS"):
        check_writers(tmp_path / "vault.toml")


def test_the_documents_name_the_systems():
    for page in ("README.md", "docs/howto/install.md"):
        text = " ".join((ROOT / page).read_text().split())
        assert "Linux or macOS" in text
        assert re.search(r"Windows[^.]* untested", text)


# --- Python ----------------------------------------------------------------------------------


def test_the_oldest_python_is_that_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">={}.{}".format(*startup.PYTHON)


def test_every_command_names_the_version_of_python_that_it_needs():
    """In one process: each is run as `python -m` does, with another ``sys.version_info``."""
    code = (
        "import runpy, sys\n"
        "sys.version_info = (3, 10, 13, 'final', 0)\n"
        "before = set(sys.modules)\n"
        "for name in sys.argv[1:]:\n"
        "    try:\n"
        "        runpy.run_module(name, run_name='__main__')\n"
        "    except SystemExit as left:\n"
        "        print(left.code)\n"
        "new = [module for name, module in sys.modules.items() if name not in before]\n"
        "print(*(getattr(each, '__file__', '') for each in new), sep='\\n', file=sys.stderr)"
    )
    names = [module_of(path) for path in COMMANDS]
    assert {"simulations.run", "simulations.command", "fldb_flower", "clients.service"} <= {*names}
    done = python("-c", code, *names)
    line = (
        "error: fldb-flower needs Python 3.11 or later;"
        f" {sys.executable} is Python 3.10.13\n"
    )  # fmt: skip
    assert done.stdout == line * len(names)
    imported = [Path(each) for each in done.stderr.splitlines() if each.startswith(f"{ROOT}/")]
    assert imported
    for path in (*imported, *COMMANDS):  # what an older Python reads before the line
        ast.parse(path.read_text(), feature_version=(3, 10))
