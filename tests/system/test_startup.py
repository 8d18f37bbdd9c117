"""Start and end of commands: signals at any moment, and modules with the same names."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from local_processes import ROOT, python
from test_resume import saved_iteration

from fldb_flower.system import startup

pytestmark = pytest.mark.slow
COMMANDS = {
    "run": ["simulations.run", "num_agents=20", "horizon=400000", "hydra.run.dir=DIR/run"],
    "sweep": ["simulations.run", "-m", "seed=1,2", "horizon=400000", "hydra.sweep.dir=DIR/sweep"],
    "fldb": ["fldb_flower", "sweep", "seed=1,2", "horizon=400000", "hydra.sweep.dir=DIR/fldb"],
    "figures": ["simulations.figures", "fig2b", "--output", "DIR/figures"],
    "report": ["simulations.report", "DIR"],
    "benchmark": ["simulations.benchmark"],
    "service": ["clients.service", "--store", "DIR/duels.db", "--port", "0"],
    "deployment": [
        *("fldb_flower.deployment", "credentials", "--host", "localhost"),
        *("--devices", "1000", "DIR/keys"),  # takes long enough to be interrupted
    ],
}


@pytest.fixture
def start(tmp_path):
    """Start a command; end it after the test if it still runs."""
    started = []

    def begin(module, *arguments, **environment):
        words = [word.replace("DIR", str(tmp_path)) for word in arguments]
        process = subprocess.Popen(
            [sys.executable, "-m", module, *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def wait_for_handlers(process):
    """Wait until the process handles SIGTERM."""
    status = Path(f"/proc/{process.pid}/status")
    while process.poll() is None:
        (caught,) = [line for line in status.read_text().splitlines() if line.startswith("SigCgt")]
        if int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1:
            return
        time.sleep(0.001)


def ends_in_one_line(process, number):
    """Allow at most one line after the measurements of a benchmark."""
    out, error = process.communicate(timeout=120)
    assert process.returncode == 128 + number, (out, error)
    lines = [line for line in error.splitlines(keepends=True) if not line.startswith("{'")]
    assert len(lines) <= 1, error
    return "".join(lines)


@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_while_a_command_starts_is_one_line(command, start):
    """It reaches all processes of the group, as in a terminal."""
    ends_soon = command in ("report", "deployment")
    for delay in (0.0,) if ends_soon else (0.0, 0.3, 1.5):
        process = start(*COMMANDS[command])
        wait_for_handlers(process)
        time.sleep(delay)
        os.killpg(process.pid, signal.SIGINT)
        ends_in_one_line(process, signal.SIGINT)


@pytest.mark.parametrize("delay", [0.1, 0.8, 2.0])
def test_sigterm_at_any_time_of_a_run(delay, start, tmp_path):
    process = start(*COMMANDS["run"], "checkpoint_seconds=0")
    wait_for_handlers(process)
    time.sleep(delay)
    process.terminate()
    line = ends_in_one_line(process, signal.SIGTERM)
    if (tmp_path / "run" / "checkpoint.bin").exists():
        assert "resume=true" in line
        assert str(saved_iteration(tmp_path / "run")) in line


def wait_until(it_is, process):
    while not it_is() and process.poll() is None:
        time.sleep(0.01)


# One round takes minutes, and its arrays about a GB.
LONG_ROUNDS = ("num_agents=500", "num_arms=2000", "horizon=50000", "tau=25000")


def test_a_second_signal_ends_a_run_or_a_sweep_at_once_with_one_line(start, tmp_path):
    """The first signal asks a run to stop, at the end of a round."""
    run, sweep = tmp_path / "run", ("-m", "seed=1,2", "hydra.sweep.dir=DIR/sweep")
    for folder, words, kept in (
        ("run", ["hydra.run.dir=DIR/run"], f"^stopped at once: nothing was saved in {run}$"),
        ("sweep/*", sweep, "resume=true"),
    ):
        process = start("simulations.run", *words, *LONG_ROUNDS)
        for file in ("config.yaml", "stop"):
            wait_until(lambda: list(tmp_path.glob(f"{folder}/{file}")), process)  # noqa: B023
            process.send_signal(signal.SIGINT)
        assert re.search(kept, ends_in_one_line(process, signal.SIGINT))


def test_a_signal_while_a_process_is_forked_ends_the_run(start, tmp_path):
    """The exception arrives before the parent has stored the new process."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal\n"
        "fork = os.fork\n"
        "def interrupted():\n"
        "    if process := fork():\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "    return process\n"
        "os.fork = interrupted\n"
    )
    words = ("engine.workers=2", "hydra.run.dir=DIR/run", *LONG_ROUNDS)
    process = start("simulations.run", *words, PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert ends_in_one_line(process, signal.SIGINT).startswith("stopped at once: nothing was saved")


@pytest.mark.parametrize("sweep", [(), ("-m",)])
def test_one_signal_ends_a_run_within_an_operation_of_the_first_iteration(start, tmp_path, sweep):
    """Python calls handlers after the operation, which takes minutes here."""
    (tmp_path / "sitecustomize.py").write_text(
        "import numpy as np, pathlib, sys\n"
        "def hook(event, arguments):\n"
        "    name = str(arguments[0]) if event == 'open' else ''\n"
        "    if 'config.yaml.' in name and name.endswith('.part'):\n"
        "        sys.modules['fldb_flower.algorithms'].Algorithm.round = slow\n"
        "def slow(self, federation, round_):\n"
        "    matrix = np.random.default_rng(0).normal(size=(5000, 5000))\n"
        "    pathlib.Path('started').touch()\n"
        "    np.linalg.svd(matrix)\n"
        "sys.addaudithook(hook)\n"
    )
    place = "hydra.sweep.dir=DIR/sweep" if sweep else "hydra.run.dir=DIR/run"
    arguments = (*sweep, "algorithm=fldb_ogd", "num_agents=2", place)
    process = start("simulations.run", *arguments, PYTHONPATH=f"{tmp_path}:{ROOT}")
    wait_until((tmp_path / "started").exists, process)
    time.sleep(1)
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    line = ends_in_one_line(process, signal.SIGINT)
    assert time.monotonic() - begin < 15
    assert line.startswith("interrupted: " if sweep else "stopped at once: nothing was saved")
    assert not list(tmp_path.rglob("config.yaml"))


@pytest.mark.exhaustive
def test_an_interrupted_sweep_names_how_it_is_resumed(start, tmp_path):
    """Between two jobs there is no run to save."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, signal, os\n"
        "def hook(event, arguments):\n"
        "    if event == 'os.mkdir' and '/sweep/seed-2_' in str(arguments[0]):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.addaudithook(hook)\n"
    )
    sweep = ("-m", "seed=1,2", "num_agents=5", "horizon=5", f"hydra.sweep.dir={tmp_path / 'sweep'}")
    process = start("simulations.run", *sweep, PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert "resume=true" in ends_in_one_line(process, signal.SIGINT)
    done = python("-m", "simulations.run", *sweep, "resume=true")
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "sweep").glob("*/summary.json"))) == 2


HIDING = """
from fldb_flower.system.startup import interruptible
import os, signal, sys
class Slow:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(10**9): pass
with interruptible():
    {}
print("went on")
"""


@pytest.mark.parametrize(
    "code",
    [
        "try: signal.raise_signal(signal.SIGINT)\n"
        "    except BaseException: raise AttributeError('hidden')",
        "try: signal.raise_signal(signal.SIGINT)\n    except BaseException: pass",
        "exec('signal.raise_signal(signal.SIGINT)')",
        "Slow()",
        "signal.raise_signal(signal.SIGINT)",
    ],
    ids=["replaced", "swallowed", "in exec", "in a destructor", "plain"],
)
def test_the_status_does_not_depend_on_who_catches_the_exception(code):
    done = python("-c", HIDING.format(code))
    assert (done.returncode, done.stderr, done.stdout) == (130, "interrupted\n", "")


def test_signal_handlers_are_installed_first():
    code = "import sys, fldb_flower.system.startup; print(*sys.modules)"
    done = python("-c", code)
    assert not {"numpy", "hydra", "pandas", "typing", "argparse"} & set(done.stdout.split())
    for file in ("run.py", "figures.py", "demo.py", "benchmark.py", "report/__main__.py"):
        text = (ROOT / "simulations" / file).read_text()
        assert text.index("startup.begin()") < text.index("\nimport ")


HEAVY = {"matplotlib", "flwr", "pandas", "torch"}


@pytest.mark.parametrize(
    "code",
    [
        "import fldb_flower",
        "import simulations.engines.vectorized",
        "from simulations import run; sys.argv = ['run', '--help']; run.main()",
        "from simulations import run\n"
        "sys.argv = ['run', 'num_agents=5', 'horizon=5', 'plot=false', 'hydra.run.dir=DIR']\n"
        "run.main()",
    ],
    ids=["package", "engine", "help", "run"],
)
def test_a_run_without_a_plot_imports_nothing_heavy(code, tmp_path):
    code = f"import sys\n{code}\nprint('imported', *sys.modules)"
    done = python("-c", code.replace("DIR", str(tmp_path / "run")))
    imported = done.stdout.splitlines()[-1].split()
    assert imported[0] == "imported"
    assert not HEAVY & {name.split(".")[0] for name in imported}


def test_a_module_that_shadows_ours_is_named(tmp_path):
    """In the working directory, or on PYTHONPATH."""
    for number, (name, module) in enumerate((
        ("conf.py", "simulations.run"),
        ("clients/__init__.py", "simulations.run"),
        ("strategies.py", "simulations.figures"),
        ("simulations.py", "clients.service"),
        ("simulations.py", "fldb_flower"),
    )):  # fmt: skip
        other = tmp_path / f"other{number}"
        (other / name).parent.mkdir(parents=True)
        (other / name).write_text("")
        for done in (
            python("-m", module, cwd=other),
            python("-m", module, cwd=tmp_path, first=other),
        ):
            assert done.returncode == 1
            (line,) = done.stderr.splitlines()
            assert line.startswith("error: ")
            assert str(other / name) in line


def test_a_module_that_shadows_ours_is_named_in_python(tmp_path):
    (tmp_path / "simulations.py").write_text("")
    done = python("-c", "import fldb_flower; fldb_flower.run", cwd=tmp_path, first=tmp_path)
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        f"ImportError: {tmp_path / 'simulations.py'} shadows fldb-flower's package"
    )


def test_a_folder_of_the_same_name_without_modules_does_not_shadow(tmp_path):
    """Python prefers a package with ``__init__.py``, wherever it is on the path."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "fldb_flower").mkdir()
    assert python("-m", "simulations.run", "--help", cwd=tmp_path).returncode == 0
    assert [startup.shadowed(name) for name in startup.PACKAGES] == [None] * 5


def test_a_missing_extra_is_named_with_its_command(tmp_path):
    """A finder that hides a module stands for an environment without it."""
    for command, missing, extra in (
        (["clients.service", "--store", "x"], "fastapi", "service"),
        (["clients.service", "--store", "x"], "uvicorn", "service"),
        (["simulations.demo"], "fastapi_offline", "service"),
        (["simulations.run", "algorithm=fldb_gd", "solver=lbfgs"], "torch", "torch"),
        (["simulations.run", "backend=cpu"], "torch", "torch"),
    ):
        (tmp_path / "sitecustomize.py").write_text(
            "from importlib.machinery import FileFinder\n"
            "found = FileFinder.find_spec\n"
            "def find_spec(self, name, target=None):\n"
            f"    hidden = (name + '.').startswith({missing!r} + '.')\n"
            "    return None if hidden else found(self, name, target)\n"
            "FileFinder.find_spec = find_spec\n"
        )
        done = python("-m", *command, cwd=tmp_path, first=tmp_path, XDG_CACHE_HOME=str(tmp_path))
        assert done.returncode == 1, done.stderr
        (line,) = done.stderr.splitlines()
        assert line.startswith("error: ")
        assert f" needs the {extra} extra: pip install -e '.[{extra}]'" in line
        if command[0] == "clients.service":  # its help needs no extra
            shown = python("-m", command[0], "--help", cwd=tmp_path, first=tmp_path)
            assert shown.stdout.startswith("usage: python -m clients.service"), shown.stderr
