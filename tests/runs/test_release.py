"""Files that a released version wrote open in this one.

`PYTHONPATH=tests:tests/simulations python tests/runs/test_release.py` writes those of this version
into a new folder of `tests/data`.
"""

import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT
from test_resume import kill_at

from clients.preference_agent import PreferenceAgent
from clients.store import Synchronization
from fldb_flower.bandit.estimate import CommonPrior, ShareChange
from fldb_flower.errors import CheckpointError
from fldb_flower.runs.directory import CHECKPOINT
from fldb_flower.settings import Settings
from fldb_flower.system.commands import installed_version
from simulations.run import run

RELEASES = sorted((ROOT / "tests" / "data").glob("[0-9]*"))
RUNS = {
    name: Settings(algorithm=name, num_agents=4, horizon=40, num_arms=4, dimension=3, tau=2)
    for name in ("fldb_ogd", "fldb_ons", "fldb_personal", "fldb_gd", "ldb")
}
STRUCTURE = {"fldb_personal": "isotropic"}  # of 0.3.0
ARMS = np.array([[1.0, 0.0], [0.0, 1.0], [0.25, 0.5]])
KEYS = ["tea", "coffee", "cocoa"]
PRIOR = CommonPrior(np.diag([2.0, 3.0]), np.array([0.5, -0.25]), 0.1, 1.0)
SHARE = ShareChange(np.diag([0.5, 0.25]), np.array([0.125, -1.0]), np.arange(11.0), 2.0, 1.0)


def write(folder):
    """Write a store with answers, an open duel, a broadcast and a share; and five checkpoints."""
    with PreferenceAgent(folder / "duels.db") as agent:
        agent.name_features(["sweet", "strong"])
        for number in range(6):
            duel = agent.propose(ARMS, keys=KEYS, contents=[{"text": key} for key in KEYS])
            if number < 5:
                agent.record(duel.id, "second" if duel.second_key == "coffee" else "first")
        cut = agent.store.cut(0, 1)
        agent.store.share_change(0, cut, lambda *_: SHARE)
        packed = np.array([2.0, 0.0, 3.0])
        settings = {"algorithm": "fldb_personal", "selection": "ucb"}
        agent.store.synchronize(
            Synchronization(1.0, 7, cut, 5, np.array([0.5, 0.75]), packed, settings, PRIOR)
        )
    for name, settings in RUNS.items():
        assert kill_at(folder / name, replace(settings, checkpoint_seconds=0.0), 5)
        run(settings, folder / "whole")
        (folder / "whole" / "regret.csv").rename(folder / name / "whole.csv")
        shutil.rmtree(folder / "whole")


@pytest.fixture(params=RELEASES, ids=lambda path: path.name)
def release(request, tmp_path):
    copy = tmp_path / "release"
    shutil.copytree(request.param, copy)
    return copy


def test_there_is_a_released_version():
    assert (ROOT / "tests" / "data" / "0.3.0") in RELEASES


def test_a_store_of_a_released_version_opens_with_all_that_was_in_it(release):
    with PreferenceAgent(release / "duels.db") as agent:
        assert agent.store.counts() == {"open": 1, "answered": 5, "counted": 5}
        assert agent.explain().names == ["sweet", "strong"]
        last = agent.store.synchronized()
        assert (last.round, last.prior.variance) == (7, 0.1)
        np.testing.assert_array_equal(last.prior.precision, PRIOR.precision)
        np.testing.assert_array_equal(agent.store.share(5)[0], SHARE.precision)
        answers = agent.store.answers()
        assert len(answers.numbers) == 5
        assert (answers.differences.any(axis=1)).all()
        (left,) = agent.store.open_proposals()
        assert {left.first_key, left.second_key} < {*KEYS}
        assert agent.record(left.id, "tie") == 6
        assert sorted(agent.rank(ARMS)) == [0, 1, 2]


@pytest.mark.parametrize("name", RUNS)
def test_a_run_of_a_released_version_is_resumed(release, name):
    folder = release / name
    assert (folder / CHECKPOINT).exists()
    run(replace(RUNS[name], resume=True, personal_structure=STRUCTURE.get(name, "auto")), folder)
    resumed, whole = (pd.read_csv(folder / each) for each in ("regret.csv", "whole.csv"))
    np.testing.assert_allclose(resumed, whole, rtol=1e-6)


def test_a_run_that_0_3_0_started_does_not_go_on_with_directions(release):
    with pytest.raises(CheckpointError, match="personal_structure='isotropic'\" there"):
        run(replace(RUNS["fldb_personal"], resume=True), release / "fldb_personal")


if __name__ == "__main__":
    target = ROOT / "tests" / "data" / installed_version()
    target.mkdir()
    write(target)
