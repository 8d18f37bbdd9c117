"""A resumed run writes the same bytes as an uninterrupted run."""

import itertools
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from conftest import examples, nested
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from test_run import ROOT, call, signalled

from fldb_flower.bandit.estimate import Estimate
from fldb_flower.errors import CheckpointError, OutputError
from fldb_flower.federation.agents import AgentGroup
from fldb_flower.federation.exchange import Broadcast, PlayRequest
from fldb_flower.federation.history import History
from fldb_flower.runs import experiment
from fldb_flower.runs.directory import load_checkpoint
from fldb_flower.runs.experiment import Checkpointer, StoppedError
from fldb_flower.runs.results import RunDirectory, identity, request_stop
from fldb_flower.settings import from_nested
from simulations.run import run

SMALL = {
    "num_agents": 7,
    "horizon": 70,  # more than a block of 64 iterations
    "num_arms": 4,
    "dimension": 3,
    "tau": 3,
    "checkpoint_seconds": 0.0,
    "engine__num_nodes": 3,
}
RESULTS = ("config.yaml", "regret.csv", "prediction.csv", "participation.csv", "model.json")


class KilledError(BaseException):
    """Simulates the death of the process."""


def settings(**values):
    return from_nested(nested(**{**SMALL, **values}), "a test")


def results(path):
    """Return the results of a finished run, without its duration."""
    summary = json.loads((path / "summary.json").read_text())
    del summary["runtime_seconds"]
    files = {name: (path / name).read_bytes() for name in RESULTS if (path / name).exists()}
    left = {each.name for each in path.iterdir()}
    assert left <= {*RESULTS, "regret.png", "summary.json", ".hydra", "run.log"}, left
    return summary, files


def kill_at(path, chosen, checkpoint, *, before=False):
    """Run until just after (or before) the given checkpoint is written; False if the run ended."""
    written = 0
    save = RunDirectory.save

    def saving(self, numbers, arrays):
        nonlocal written
        written += 1
        if before and written == checkpoint:
            raise KilledError
        save(self, numbers, arrays)
        if written == checkpoint:
            raise KilledError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunDirectory, "save", saving)
        try:
            run(chosen, path)
        except KilledError:
            assert not (path / "summary.json").exists()
            return True
    return False


def saved_iteration(path):
    there = from_nested(yaml.safe_load((path / "config.yaml").read_text()), "a test")
    found = load_checkpoint(path / "checkpoint.bin", identity(there))
    return found.numbers["iteration"] if found else 0  # the run may have ended meanwhile


ALGORITHMS = {
    "fldb_ogd": {},
    "fldb_ogd around the current point": {
        "algorithm": "fldb_ogd", "projection_center": "current", "projection_radius": 0.01,
        "alpha": 1.0,
    },
    "fldb_ons": {"algorithm": "fldb_ons"},
    "fldb_ogd first step": {"algorithm": "fldb_ogd", "first_round": "step"},
    "fldb_ons first step": {"algorithm": "fldb_ons", "first_round": "step"},
    "fldb_personal": {"algorithm": "fldb_personal"},
    "fldb_ons geometric": {"algorithm": "fldb_ons", "schedule__name": "geometric"},
    "fldb_gd newton": {"algorithm": "fldb_gd"},
    "fldb_gd lbfgs": {"algorithm": "fldb_gd", "solver": "lbfgs"},
    "fldb_gd gd": {"algorithm": "fldb_gd", "solver": "gd", "gd_steps": 4},
    "ldb": {"algorithm": "ldb"},
    "random": {"algorithm": "random"},
    "coldb": {"algorithm": "coldb", "environment__clusters": 2, "environment__sigma": 2.0},
    "maxinp": {"selection": "maxinp"},
    "colstim": {"selection": "colstim"},
    "maxpairucb": {"selection": "maxpairucb"},
    "thompson": {"selection": "thompson"},
    "ldb thompson": {"algorithm": "ldb", "selection": "thompson"},
    "different agents": {"environment__sigma": 0.7},
    "diagonal": {"algorithm": "fldb_ons", "matrix_form": "diagonal"},
    "changing": {
        "algorithm": "fldb_personal", "half_life": 9, "environment__name": "changing",
        "environment__change_at": 40, "environment__drift": 0.1,
    },
    "ldb half-life": {"algorithm": "ldb", "half_life": 9},
}  # fmt: skip


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "movielens"])
def test_a_run_killed_after_any_round_resumes_to_the_same_bytes(tmp_path, algorithm, ratings):
    world = {"environment__name": "movielens", "environment__path": str(ratings())}
    values = dict(ALGORITHMS.get(algorithm, world))
    if "lbfgs" in algorithm:
        pytest.importorskip("torch")
        values["horizon"] = 10
    run(settings(**values), tmp_path / "whole")
    for number in (2, 23):  # after t = 3, and t = 66 in the second block; 70 is last
        cut = tmp_path / str(number)
        if kill_at(cut, settings(**values), number):
            assert (cut / "checkpoint.bin").exists()
            run(settings(**values, resume=True), cut)
        assert results(cut) == results(tmp_path / "whole")


WORLDS = st.fixed_dictionaries(
    {
        "algorithm": st.sampled_from(["fldb_ogd", "fldb_ons", "fldb_gd", "ldb", "random"]),
        "selection": st.sampled_from(["ucb", "maxinp", "colstim", "maxpairucb", "thompson"]),
        "schedule__name": st.sampled_from(["periodic", "geometric"]),
        "environment__sigma": st.sampled_from([0.0, 0.5]),
        "num_agents": st.integers(4, 9),
        "horizon": st.integers(1, 40),
        "tau": st.integers(1, 9),
        "num_arms": st.integers(2, 5),
        "dimension": st.integers(1, 4),
        "seed": st.integers(0, 99),
    }
)


@pytest.mark.slow
@given(WORLDS, st.lists(st.tuples(st.integers(1, 15), st.booleans()), min_size=1, max_size=3))
@examples(120, suppress_health_check=list(HealthCheck))
def test_repeated_interruptions(world, kills):
    """Runs that are killed before or after any checkpoint, up to three times."""
    with tempfile.TemporaryDirectory() as folder:
        whole, cut = Path(folder, "whole"), Path(folder, "cut")
        run(settings(**world), whole)
        resume = False
        for number, before in kills:
            if not (cut / "summary.json").exists():
                kill_at(cut, settings(**world, resume=resume), number, before=before)
            resume = True
        run(settings(**world, resume=True), cut)
        assert results(cut) == results(whole)


def test_settings_with_the_same_results_identify_the_same_run():
    def own(**values):
        return identity(settings(**values))

    for algorithm in ("fldb_ogd", "ldb"):
        same = own(algorithm=algorithm)
        assert own(algorithm=algorithm, beta_scale=1) == same
        assert own(algorithm=algorithm, ons_width=2.0) == same
        assert own(algorithm=algorithm, beta_scale=0.5) != same
    ons, paper = own(algorithm="fldb_ons"), own(algorithm="fldb_ons", beta_scale=1)
    assert len({ons, paper, own(algorithm="fldb_ons", ons_width=2.0)}) == 3
    assert own(algorithm="fldb_ons", beta_scale=1, ons_width=2.0) == paper
    assert own(algorithm="fldb_ons", first_round="auto") == ons
    step = own(algorithm="fldb_ons", first_round="step").splitlines()
    assert set(step) - set(ons.splitlines()) == {"first_round='step'"}


# --- the state of agents ---------------------------------------------------------------------


def test_a_saved_state_of_a_group_is_not_changed_by_later_rounds():
    """Playing twice from the same restored state gives the same regret."""
    for values in (
        {"algorithm": "fldb_gd"}, {"algorithm": "ldb", "selection": "colstim"},
        {"algorithm": "random"}, {"selection": "thompson"},
    ):  # fmt: skip
        group = AgentGroup(settings(**values), range(5))

        def play(first, last, group=group):
            request = PlayRequest(first, last, Estimate(np.zeros(3), np.eye(3)))
            return group.answer(Broadcast(request, None), first - 1)

        play(1, 3)
        state = group.state()
        before = {name: array.copy() for name, array in state.items()}
        once = play(4, 4).outcomes[0].sums
        for name, array in before.items():
            np.testing.assert_array_equal(state[name], array, err_msg=name)
        group.restore(state)
        np.testing.assert_array_equal(play(4, 4).outcomes[0].sums, once)


def test_a_restored_history_continues_identically():
    def recorded(history, first, last):
        for t in range(first, last):
            history.count_exchange((t, t), learns=t % 2 == 0)
            history.uploaded_bytes += 3 * t
            history.downloaded_bytes += t
            history.add_outcomes(t, 2, [[t + 0.1, 0.5, 2, 2, 1.5]])
            history.add_outcomes(t, 3, np.array([[0.3, 0.7, 3, 1, 1]]))
            history.count_round()
        return history

    whole, cut = recorded(History(400), 1, 400), recorded(History(400), 1, 300)
    state = cut.state()
    recorded(cut, 300, 350)  # another future, then the restored state
    for again in (History(400), cut):
        again.restore(state)
        recorded(again, 300, 400)
        assert again == whole
        np.testing.assert_array_equal(again.cumulative_regret, whole.cumulative_regret)
        assert (again.log_loss, again.accuracy) == (whole.log_loss, whole.accuracy)
        np.testing.assert_array_equal(again.exchanges_by_iteration, whole.exchanges_by_iteration)


# --- stopping -----------------------------------------------------------------------------


def test_a_stop_request_saves_the_run_immediately(tmp_path, monkeypatch):
    values = {"checkpoint_seconds": 1e6}
    run(settings(**values), tmp_path / "whole")
    monkeypatch.setattr(experiment, "POLL_SECONDS", 0.0)
    (tmp_path / "cut").mkdir()
    request_stop(tmp_path / "cut")
    with pytest.raises(StoppedError, match="resumes after iteration 1 of 70"):
        run(settings(**values), tmp_path / "cut")
    assert {each.name for each in (tmp_path / "cut").iterdir()} == {"config.yaml", "checkpoint.bin"}
    run(settings(**values, resume=True), tmp_path / "cut")
    assert results(tmp_path / "cut") == results(tmp_path / "whole")


def test_another_engine_stops_without_a_checkpoint_and_starts_again(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    run(settings(engine__name="inprocess"), whole)
    cut.mkdir()
    request_stop(cut)
    with pytest.raises(StoppedError, match="nothing was saved; resume=true starts it again"):
        run(settings(engine__name="inprocess"), cut)
    assert not list(cut.iterdir())
    (cut / "checkpoint.bin").write_bytes(b"of an earlier version")
    run(settings(engine__name="inprocess", resume=True), cut)
    assert results(cut) == results(whole)


def test_slow_checkpoints_are_written_less_often(tmp_path, monkeypatch):
    """Saving takes 1 s and a round 0.1 s on the fake clock: no checkpoint for 20 s."""
    now = 0.0
    monkeypatch.setattr(experiment.time, "monotonic", lambda: now)
    chosen = settings(checkpoint_seconds=0.5)
    directory = RunDirectory(tmp_path / "run", chosen)
    saved = []

    class Federation:
        history = History(70)

        def state(self):
            nonlocal now
            now += 1.0
            saved.append(now)
            return {}

    class Algorithm:
        def state(self):
            return {}

    after_round = Checkpointer(directory, chosen, print).follow(Federation(), Algorithm())
    for _ in range(500):
        now += 0.1
        after_round()
    directory.close()
    gaps = [later - earlier for earlier, later in itertools.pairwise(saved)]
    assert len(saved) == 3
    assert all(gap == pytest.approx(21, abs=0.4) for gap in gaps)


def start(*arguments, env=None):
    return subprocess.Popen(
        [sys.executable, "-m", "simulations.run", *arguments],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env,
    )  # fmt: skip


def wait_until(condition, process):
    deadline = time.monotonic() + 300
    while not condition() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)


LONG = ("num_agents=40", "tau=2", "checkpoint_seconds=0", "plot=false")


@pytest.mark.slow
def test_signals_at_random_moments(tmp_path):
    """Each signal interrupts a run that resumed after the previous signal."""
    chance = random.Random("vectorized")
    long = (*LONG, "horizon=1500")
    assert call(*long, f"hydra.run.dir={tmp_path / 'whole'}").returncode == 0
    cut, struck = tmp_path / "cut", 0
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
        file = cut / "checkpoint.bin"
        last = file.stat().st_mtime_ns if file.exists() else 0
        process = start(*long, f"hydra.run.dir={cut}", "resume=true")
        wait_until(lambda: file.exists() and file.stat().st_mtime_ns > last, process)  # noqa: B023
        time.sleep(chance.uniform(0, 0.3))
        before = saved_iteration(cut)
        process.send_signal(number)
        _, error = process.communicate(timeout=300)
        if (cut / "summary.json").exists():  # the run had almost ended
            break
        struck += 1
        assert saved_iteration(cut) >= before > 0
        if number == signal.SIGKILL:
            assert process.returncode == -number
            continue
        assert process.returncode == 128 + number
        there = saved_iteration(cut)
        assert error.startswith(f"stopped: resume=true resumes after iteration {there} of ")
        assert len(error.splitlines()) == 1
    assert struck
    done = call(*long, f"hydra.run.dir={cut}", "resume=true")
    assert done.returncode == 0, done.stderr
    assert results(cut) == results(tmp_path / "whole")


@pytest.mark.slow
def test_a_stopped_sweep_starts_no_further_job_and_can_be_resumed(tmp_path):
    jobs = ("-m", "seed=0,1,2", *LONG, "horizon=500")
    assert call(*jobs, f"hydra.sweep.dir={tmp_path / 'whole'}").returncode == 0
    cut = tmp_path / "cut"
    stopped = signalled(tmp_path, signal.SIGTERM, r"seed-1_[^/]*/checkpoint\.bin$", 5)
    process = start(*jobs, f"hydra.sweep.dir={cut}", env=stopped)
    out, error = process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGTERM, out + error
    assert "stopped: 1 of 3 jobs are finished;" in error
    assert f"resume=true hydra.sweep.dir={cut}" in error
    assert len(error.strip().splitlines()) == 1
    assert not list(cut.glob("seed-2_*"))
    done = call(*jobs, f"hydra.sweep.dir={cut}", "resume=true")
    assert done.returncode == 0, done.stderr
    assert "3 jobs in" in done.stdout
    assert "1 of them finished before" in done.stdout
    jobs = [path.parent.name for path in cut.glob("*/summary.json")]
    assert len(jobs) == 3
    for job in jobs:
        assert results(cut / job) == results(tmp_path / "whole" / job)
    curves = [(tmp_path / name / "curves.csv").read_bytes() for name in ("whole", "cut")]
    assert curves[0] == curves[1]


# --- runs that cannot be resumed ----------------------------------------------------------


@pytest.fixture
def cut(tmp_path):
    assert kill_at(tmp_path / "cut", settings(), 5)
    return tmp_path / "cut"


def content(path):
    return {each.name: each.read_bytes() for each in path.iterdir()}


def test_a_refused_run_leaves_the_checkpoint_of_another_unchanged(cut, tmp_path):
    another = r"belongs to another run .*'{}' there, .*'{}' here"
    for values, reason in (
        ({"seed": 1}, another.format("seed=0", "seed=1")),
        ({"horizon": 71}, another.format("horizon=70", "horizon=71")),
        ({"lambda_": 0.5}, "belongs to another run .*lambda='auto'.* there, 'lambda=0.5' here"),
        ({"resume": False}, "unfinished run: resume=true resumes it"),
    ):
        before = content(cut)
        with pytest.raises((CheckpointError, OutputError), match=reason):
            run(settings(**{"resume": True, **values}), cut)
        assert content(cut) == before
    directory = RunDirectory(cut, settings(resume=True))
    with pytest.raises(OutputError, match="in use by another run"):
        run(settings(resume=True), cut)
    directory.close()
    whole = (cut / "checkpoint.bin").read_bytes()
    (cut / "checkpoint.bin").write_bytes(whole[:-1])
    before = content(cut)
    with pytest.raises(CheckpointError, match="is damaged"):
        run(settings(resume=True), cut)
    assert content(cut) == before
    (cut / "checkpoint.bin").write_bytes(whole)  # a backup
    run(settings(), tmp_path / "whole")
    run(settings(resume=True), cut)
    assert results(cut) == results(tmp_path / "whole")


def test_settings_of_checkpoints_may_change(cut, tmp_path):
    run(settings(), tmp_path / "whole")
    others = {"checkpoint_seconds": 5.0, "node_wait": 3.0, "reply_timeout": 7.0}
    run(settings(**others, max_message_mb=9.0, engine__num_nodes=2, resume=True), cut)
    got, expected = results(cut), results(tmp_path / "whole")
    assert got[0] == expected[0]
    assert got[1]["regret.csv"] == expected[1]["regret.csv"]


def test_without_a_checkpoint_a_run_starts_again(tmp_path):
    run(settings(), tmp_path / "whole")
    assert kill_at(tmp_path / "cut", settings(), 1, before=True)
    assert {each.name for each in (tmp_path / "cut").iterdir()} == {"config.yaml"}
    run(settings(resume=True), tmp_path / "cut")
    assert results(tmp_path / "cut") == results(tmp_path / "whole")


def test_a_finished_run_is_recognised_by_its_settings_on_every_engine(tmp_path):
    for engine in ("vectorized", "inprocess"):
        path = tmp_path / engine
        run(settings(engine__name=engine), path)
        before = content(path)
        (path / "checkpoint.bin").write_bytes(b"left by a kill between the last two steps")
        run(settings(engine__name=engine, resume=True, checkpoint_seconds=9.0), path)
        assert content(path) == before
        with pytest.raises(OutputError, match="holds a run of other settings"):
            run(settings(engine__name=engine, resume=True, tau=4), path)


# --- disks --------------------------------------------------------------------------------


def test_results_that_cannot_be_written_leave_the_checkpoint(tmp_path, monkeypatch):
    run(settings(), tmp_path / "whole")
    replace = Path.replace
    for name in ("regret.csv", "summary.json"):

        def failing(self, target, name=name):
            if Path(target).name == name:
                raise OSError(30, "Read-only file system")
            return replace(self, target)

        cut = tmp_path / name
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", failing)
            with pytest.raises(OutputError, match="Read-only file system"):
                run(settings(), cut)
        assert (cut / "checkpoint.bin").exists()
        assert not (cut / "summary.json").exists()
        run(settings(resume=True), cut)
        assert results(cut) == results(tmp_path / "whole")


# --- Flower -------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.xdist_group("flower")
def test_a_run_on_flower_is_stopped_by_a_signal(tmp_path):
    """A real `flwr run`, stopped by SIGTERM; it leaves nothing that prevents another start."""
    flower = ("engine=flower", "num_agents=9", "num_arms=4", "dimension=3", "tau=2")
    cut = tmp_path / "cut"
    process = start(*flower, "horizon=20000", f"hydra.run.dir={cut}")
    wait_until((cut / "config.yaml").exists, process)
    process.terminate()
    out, error = process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGTERM, out + error
    assert error.startswith("stopped: "), error
    assert "resume=true starts it" in error
    assert not list(cut.iterdir())
