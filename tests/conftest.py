"""Shared by all tests: no telemetry, temporary files in memory, and small helpers."""

import gc
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from clients.preference_agent import PreferenceAgent
from fldb_flower.bandit.duels import OUTCOMES
from fldb_flower.catalogue import ALGORITHMS, ENVIRONMENTS, SELECTIONS
from fldb_flower.deployment.processes import tool
from fldb_flower.federation.exchange import Broadcast
from fldb_flower.runs.results import discard_unfinished
from fldb_flower.wire import encode_broadcast
from simulations.engines import SLOW_START, STARTS
from simulations.engines.flower import superlink
from simulations.local_process import environment

ROOT = Path(__file__).parent.parent
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

# Property tests have the same examples in each run, and no limits of time: a process may wait.
settings.register_profile(
    "tests", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tests")
# Otherwise, examples contain constants of the modules that happen to be imported.
providers.is_local_module_file = lambda _path: False

# Stores and checkpoints call fsync, which is slow on a disk and free in memory.
MEMORY = Path("/dev/shm")
ENOUGH_BYTES = 4 * 2**30
if (
    "TMPDIR" not in os.environ
    and os.access(MEMORY, os.W_OK)
    and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
    and shutil.disk_usage(MEMORY).free > ENOUGH_BYTES
):
    os.environ["TMPDIR"] = str(MEMORY)
    os.environ.setdefault("RAY_TMPDIR", "/tmp")  # the logs of Ray stay
    tempfile.tempdir = None  # read TMPDIR again


@pytest.hookimpl(tryfirst=True)  # before the tests of `-m` are selected
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests with a browser or a service, and exhaustive ones, as slow; run slow tests first.

    Workers that run in parallel then end at about the same time.
    """
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if fixtures & {"browser", "start_service"}:
            item.add_marker(pytest.mark.slow)
        if "browser" in fixtures:  # one browser per file
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
        if item.get_closest_marker("exhaustive"):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(900))  # processes take long on a busy machine
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(scope="session")
def flwr(tmp_path_factory) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Return a function that calls `flwr run`; all calls use one SuperLink, stopped at the end."""
    with superlink(tmp_path_factory.mktemp("flwr")) as home:

        def run(config: str, *options: str) -> subprocess.CompletedProcess[str]:
            words = [tool("flwr"), "run", str(ROOT), "--stream", "--run-config", config, *options]
            for _ in range(STARTS):
                done = subprocess.run(
                    words, check=False, capture_output=True, text=True, env=environment(home),
                    timeout=800,
                )  # fmt: skip
                if SLOW_START not in done.stdout + done.stderr:
                    break
                for path in re.findall(r"output-dir='([^']+)'", config):
                    discard_unfinished(Path(path))  # the server claimed it before Ray failed
            return done

        yield run


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch) -> None:
    """Skip the plots, which take longer than a small run; modules that test plots override this."""
    monkeypatch.setattr("fldb_flower.runs.results.plot_regret", lambda path, *_: path.touch())


@pytest.fixture
def registered() -> Iterator[None]:
    """Remove what an example registers."""
    before = [(each, set(each)) for each in (ALGORITHMS, SELECTIONS, ENVIRONMENTS)]
    yield
    for catalogue, names in before:
        for name in set(catalogue) - names:
            del catalogue[name]


@pytest.fixture(autouse=True)
def few_open_files() -> Iterator[None]:
    """Close the stores that earlier tests left in cycles of references; often 1,024 are allowed."""
    yield
    if psutil.Process().num_fds() > 300:
        gc.collect()


@pytest.fixture
def in_process(monkeypatch, capsys, tmp_path) -> Iterator[Callable[..., tuple[Any, str, str]]]:
    """Return a function that calls ``main`` with these words, in an empty folder.

    It returns the argument of `sys.exit` (0 without one), and the output. Where it is a text,
    Python prints it to stderr and exits with status 1.
    """
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level

    def call(main: Callable[[], None], name: str, *words: str) -> tuple[Any, str, str]:
        monkeypatch.setattr("fldb_flower.system.startup.begin", lambda: None)  # handles signals
        monkeypatch.setattr(sys, "argv", [name, *words])
        monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # set by the command; undone after the test
        monkeypatch.chdir(tmp_path)
        try:
            main()
            status: Any = 0
        except SystemExit as left:
            status = left.code or 0
        return status, *capsys.readouterr()

    yield call
    root.handlers[:], root.level = handlers, level


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of the store of a device, which does not exist yet."""
    return tmp_path / "duels.db"


@pytest.fixture
def agent(path: Path) -> Iterator[PreferenceAgent]:
    """Open an agent with the store at `path`."""
    with PreferenceAgent(path) as opened:
        yield opened


@pytest.fixture
def ratings(tmp_path: Path) -> Callable[[], Path]:
    """Write made-up ratings in the layout of ml-100k; GroupLens allows no redistribution."""

    def write() -> Path:
        rng = np.random.default_rng(5)
        lines = [
            f"{user}\t{item}\t{rng.integers(1, 6)}\t0"
            for user in range(1, 211)
            for item in rng.permutation(220)[: 120 + user % 7] + 1
        ]
        path = tmp_path / "u.data"
        path.write_text("\n".join(lines) + "\n")
        return path

    return write


@pytest.fixture
def register_world() -> Iterator[Callable[[Any], str]]:
    """Register an environment for one test; return its name."""
    yield lambda world: ENVIRONMENTS.register("world", world) and "world"
    ENVIRONMENTS.pop("world", None)


def examples(number: int, parts: int = 3, **options: Any) -> settings:
    """Return Hypothesis settings with this number of examples; outside `.ci/run --all`, a part."""
    number = number if "FLDB_EXHAUSTIVE" in os.environ else number // parts
    return settings(max_examples=number, **options)


def device_request(
    broadcast: Broadcast, device: str, *, counted: int, upto: int
) -> tuple[Any, dict[str, Any]]:
    """Return the vector and the config of a request to a device, as its server sends them."""
    vector, header = encode_broadcast(broadcast)
    config = {"counted": counted, "device": device, "upto": upto, "duels": 0}
    return vector, {"header": list(header), **config}


def nested(**values: Any) -> dict[str, Any]:
    """Spell `environment__sigma=1` as the nested key that Hydra's users write."""
    result: dict[str, Any] = {}
    for name, value in values.items():
        node = result
        *groups, leaf = name.split("__")
        for group in groups:
            node = node.setdefault(group, {})
        node["lambda" if leaf == "lambda_" else leaf] = value
    return result


def scikit_learn_minimiser(differences: Any, preferences: Any, ridge: float) -> Any:
    """scikit-learn's minimiser; mirrored duels with half the weight, so both classes occur."""
    linear_model = pytest.importorskip("sklearn.linear_model")
    model = linear_model.LogisticRegression(
        C=1 / ridge, fit_intercept=False, tol=1e-12, max_iter=10**4
    )
    mirrored = np.concatenate([differences, -differences])
    answers = np.concatenate([preferences, 1 - preferences])
    return model.fit(mirrored, answers, sample_weight=np.full(len(answers), 0.5)).coef_[0]


def with_regrets(regrets: Any) -> Any:
    """Return outcomes, (iterations, 5), of these regrets and without predictions."""
    return np.pad(np.reshape(regrets, (-1, 1)), ((0, 0), (0, len(OUTCOMES) - 1)))
