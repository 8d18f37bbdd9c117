"""Plots never end a run, and do not depend on the user's Matplotlib configuration."""

import ast
import json
import os
import subprocess
import sys

import matplotlib as mpl
import pytest
from conftest import ROOT

from fldb_flower.runs import plots
from fldb_flower.runs.plots import save_figure
from fldb_flower.settings import from_nested
from simulations.run import run

JUPYTER = "module://matplotlib_inline.backend_inline"


@pytest.fixture(autouse=True)
def no_pictures():
    """Draw the plots."""


def line(figure):
    axes = figure.add_subplot()
    axes.plot([0, 1, 4])
    axes.set_title("squares")


def python(code, *arguments, cwd=ROOT, **environment):
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=cwd, env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


RUN = """
import sys
from pathlib import Path
from fldb_flower.settings import from_nested
from simulations.run import run
run(from_nested({"num_agents": 5, "horizon": 8}, "a test"), Path(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """Return the bytes of the plot with Matplotlib's default configuration."""
    folder = tmp_path_factory.mktemp("plain")
    assert python(RUN, folder / "run").returncode == 0
    return (folder / "run" / "regret.png").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "style"),
    [
        (JUPYTER, ""),
        ("no_such_backend", ""),
        ("", "text.usetex: True\nsavefig.dpi: 17\nfigure.facecolor: red\nlines.linewidth: 9\n"),
    ],
    ids=["Jupyter's", "misspelt", "style"],
)
def test_plots_do_not_depend_on_backend_and_matplotlibrc(backend, style, tmp_path, expected):
    (tmp_path / "matplotlibrc").write_text(style)
    environment = {"MPLBACKEND": backend} if backend else {}
    where = tmp_path / "run"
    done = python(RUN, where, cwd=tmp_path, **environment)  # the folder of matplotlibrc
    assert (done.returncode, done.stderr) == (0, "")
    assert (where / "regret.png").read_bytes() == expected


def test_plots_do_not_depend_on_the_style_and_keep_it(tmp_path):
    save_figure(tmp_path / "plain.png", line, height=2)
    with mpl.rc_context():
        mpl.style.use("dark_background")
        before = dict(mpl.rcParams)
        save_figure(tmp_path / "styled.png", line, height=2)
        assert dict(mpl.rcParams) == before
    assert (tmp_path / "plain.png").read_bytes() == (tmp_path / "styled.png").read_bytes()


@pytest.mark.slow
def test_the_backend_of_the_user_is_restored():
    code = (
        "import os; from pathlib import Path; from fldb_flower.runs.plots import save_figure\n"
        "save_figure(Path('/dev/null/x.png'), lambda figure: None, height=1)\n"
        "import matplotlib; print(matplotlib.rcParams['backend'], os.environ['MPLBACKEND'])"
    )
    assert python(code, MPLBACKEND="svg").stdout == "svg svg\n"


@pytest.mark.parametrize(
    "error", [RuntimeError("latex was not\nable"), OSError(28, "No space left on device")]
)
def test_a_failed_plot_gives_a_warning_and_keeps_the_results(error, tmp_path, monkeypatch, caplog):
    settings = from_nested({"num_agents": 5, "horizon": 8}, "a test")
    run(settings, tmp_path / "whole")

    def fail(self, *args, **kwargs):
        raise error

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", fail)
    caplog.clear()
    run(settings, tmp_path / "run")
    whole, got = (
        {each.name: each.read_bytes() for each in (tmp_path / name).iterdir()}
        for name in ("whole", "run")
    )
    assert set(whole) - set(got) == {"regret.png"}
    assert got["regret.csv"] == whole["regret.csv"]
    assert json.loads(got["summary.json"])["complete"] is True
    (warning,) = [each.message for each in caplog.records if each.levelname == "WARNING"]
    assert warning.startswith(f"no plot {tmp_path / 'run' / 'regret.png'}: ")
    assert type(error).__name__ in warning
    assert "\n" not in warning
    assert not any("plot:" in each.message for each in caplog.records if each.levelname == "INFO")


@pytest.mark.slow
def test_matplotlib_is_imported_only_to_draw(tmp_path):
    without = RUN.replace(
        "run(from", "import fldb_flower.runs.results as r\nr.plot_regret = print\nrun(from"
    )
    without += "print(*sys.modules)"
    done = python(without, tmp_path / "run")
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "simulations.engines.vectorized" in loaded
    assert not {"matplotlib", "flwr", "ray", "torch"} & loaded


def imports_matplotlib(node):
    """Whether code imports Matplotlib when it runs, not only for type checkers."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return False
    if isinstance(node, ast.Import | ast.ImportFrom):
        names = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
        return any(name.split(".")[0] == "matplotlib" for name in names)
    return any(map(imports_matplotlib, ast.iter_child_nodes(node)))


def test_one_module_imports_matplotlib():
    """Every plot uses the settings tested above."""
    folders = ("fldb_flower", "simulations", "strategies", "clients")
    files = [file for folder in folders for file in (ROOT / folder).glob("**/*.py")]
    users = [file.name for file in files if imports_matplotlib(ast.parse(file.read_text()))]
    assert users == ["plots.py"]
    assert plots.save_figure.__module__ == "fldb_flower.runs.plots"
