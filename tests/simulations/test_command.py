"""The command `fldb`: dispatch, help and mistakes."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fldb_flower.system import startup
from fldb_flower.system.commands import bounded
from simulations import command

ROOT = Path(__file__).parents[2]


@pytest.fixture
def fldb(tmp_path):
    """Return a function that runs `fldb` as pip installs it, in an empty folder."""
    script = tmp_path / "bin" / "fldb"
    script.parent.mkdir()
    script.write_text(
        f"#!{sys.executable}\n"
        "import sys\n"
        "from simulations.command import main\n"
        "if __name__ == '__main__':\n"
        "    sys.exit(main())\n"
    )
    script.chmod(0o755)

    def call(*words, shell=None, **environment):
        return subprocess.run(
            [*(shell or [str(script)]), *words],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "PATH": f"{script.parent}{os.pathsep}{os.environ['PATH']}",
                **environment,
            },
            capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip

    return call


def test_the_script_of_the_package_is_this_command():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"fldb": "simulations.command:main"}


def test_help_lists_the_commands_and_imports_almost_nothing():
    code = (
        "import sys; sys.argv = ['fldb', '--help']\n"
        "from simulations.command import main; main()\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    listed = re.findall(r"^  (\w+) +\w", done.stdout, re.MULTILINE)
    assert listed == list(command.COMMANDS)
    assert {"run", "sweep", "figures", "report", "demo", "benchmark", "keys"} <= set(listed)
    assert not {"numpy", "hydra", "flwr", "pandas"} & set(done.stderr.split())


def test_no_argument_prints_the_help(fldb):
    assert fldb().stdout == fldb("-h").stdout == command.help_text() + "\n"


def test_python_m_is_the_same_command(fldb):
    done = fldb("-m", "fldb_flower", "keys", "--help", shell=[sys.executable])
    assert done.stdout == fldb("keys", "--help").stdout
    assert done.stdout.startswith("usage: fldb keys ")


def test_the_version_is_that_of_the_distribution(fldb):
    import importlib.metadata

    expected = f"fldb-flower {importlib.metadata.version('fldb-flower')}\n"
    assert fldb("--version").stdout == expected


@pytest.mark.parametrize("name", command.COMMANDS)
def test_each_help_names_its_command_and_no_other_spelling(name, in_process, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    status, out, error = in_process(command.main, "fldb", name, "--help")
    assert (status, error) == (0, "")
    assert re.match(rf"usage: fldb {name.replace('sweep', 'run')}\b", out)
    assert "python -m simulations.run" not in out
    assert "``" not in out


def test_a_number_that_is_out_of_range_is_named_with_the_range():
    integer, real = bounded(int, 1), bounded(float, 0.5, 2)
    assert integer("7") == 7
    assert real("2") == 2
    for convert, text, needle in (
        (integer, "1.5", "'1.5' must be a whole number, at least 1"),
        (real, "nan", "'nan' must be a number, from 0.5 to 2"),
    ):
        with pytest.raises(Exception, match=needle):
            convert(text)


@pytest.mark.slow
def test_help_ends_quietly_if_its_reader_ends(fldb):
    done = fldb("-c", "fldb run --help | head -n 1", shell=["bash"])
    assert done.stdout.startswith("usage: fldb run ")
    assert done.stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("fldb run num_agents=3 horizon=5 hydra.run.dir=run | true", 0),  # the run is finished
        ("fldb sweep seed=0,1 num_agents=3 horizon=5 hydra.sweep.dir=sweep | head -n 1", 1),
        (f"{sys.executable} -m simulations.run --help | true", 1),
    ],
)
def test_commands_are_quiet_if_the_reader_of_their_output_ends(fldb, tmp_path, line, status):
    done = fldb("-c", f"{line}; exit ${{PIPESTATUS[0]}}", shell=["bash"])
    assert (done.returncode, done.stderr) == (status, "")
    folder = tmp_path / ("sweep" if "sweep" in line else "run")
    assert len(list(folder.rglob("summary.json"))) == {"run": 1, "sweep": 2}.get(line.split()[1], 0)


def test_another_broken_pipe_than_that_of_the_output_is_reported(capfd):
    try:
        raise BrokenPipeError(32, "of a worker")
    except BrokenPipeError as error:
        startup.report_exception(type(error), error, error.__traceback__)
    assert "of a worker" in capfd.readouterr().err


def test_the_page_of_the_command_line_has_a_row_per_command():
    page = (ROOT / "docs" / "howto" / "command-line.md").read_text()
    rows = re.findall(r"^\| `fldb (\w+)` \|.*\| `python -m ([\w.]+)[ `]", page, re.MULTILINE)
    modules = {
        name: each.module.removesuffix(".__main__") for name, each in command.COMMANDS.items()
    }
    assert dict(rows) == modules
