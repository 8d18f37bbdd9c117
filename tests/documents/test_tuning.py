"""The rule by which methods are tuned, and statements that results are equal."""

import json

import numpy as np
import pytest
import yaml
from conftest import ROOT
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

import documents
import measured
import tuning
from simulations import figures


def test_verdict_worked_by_hand():
    """Differences of 1, 2, 3 and 2: mean 2, standard error 0.408; t(3) has the 95 % point 2.353.

    The interval is 2 +- 0.961, which lies within 10 % of 30, and not of 29.
    """
    base, change = np.array([20.0, 30.0, 40.0, 30.0]), np.array([1.0, 2.0, 3.0, 2.0])
    for shift, word in ((0.0, "equal"), (-1.0, "larger")):
        reference = base + shift
        assert documents.verdict(reference, reference + change) == word
    assert documents.verdict(base - 1, base - 1 - change) == "smaller"
    assert documents.verdict(base, base + 30 * (change - 2.1)) == "undecided"
    assert documents.verdict(base, base + change, margin=0.05) == "larger"


@given(
    st.lists(st.tuples(st.floats(1, 100), st.floats(-3, 3)), min_size=3, max_size=12),
    st.floats(-20, 20),
)
def test_equal_is_what_two_one_sided_tests_of_scipy_reject(pairs, shift):
    reference = [each for each, _ in pairs]
    values = [each + shift + noise for each, noise in pairs]
    difference = np.subtract(values, reference)
    assume(np.ptp(difference) > 1e-3)
    bound = 0.1 * np.mean(reference)
    above = stats.ttest_1samp(difference, -bound, alternative="greater").pvalue
    below = stats.ttest_1samp(difference, bound, alternative="less").pvalue
    assume(abs(max(above, below) - 0.05) > 1e-9)
    is_equal = documents.verdict(reference, values) == "equal"
    assert is_equal == (max(above, below) < 0.05)


def test_each_method_has_the_same_grid_of_widths():
    for algorithm, name in (
        ("ldb", "beta_scale"), ("fldb_gd", "beta_scale"), ("fldb_ogd", "beta_scale"),
        ("fldb_ons", "ons_width"), ("fldb_personal", "personal_width"),
        ("alone", "personal_width"),
    ):  # fmt: skip
        tried = tuning.candidates({"algorithm": algorithm})
        assert sorted({values[name] for values in tried}) == list(tuning.WIDTHS)
        assert all(values.get("lambda", 1.0) == 1 for values in tried)
    steps = tuning.candidates({"algorithm": "fldb_ogd"})
    assert len(steps) == len(tuning.WIDTHS) * len(tuning.ALPHAS)


def test_the_least_mean_is_chosen():
    tried = {'{"ons_width": 0.1}': [1.0, 9.0], '{"ons_width": 0.3}': [4.0, 4.0]}
    assert tuning.choose(tried) == {"ons_width": 0.3}


def test_tuning_of_a_small_run():
    """The runs of the tuning seeds are repeated here one by one."""
    run = {
        "settings": {"algorithm": "fldb_ons", "num_agents": 3, "horizon": 12, "tau": 2},
        "seeds": 2, "tried": {}, "regret": [],
    }  # fmt: skip
    content = {"problem": {"ons": run}}
    tuning.tune(content)
    measured.repeat(content)
    means = {}
    for width in tuning.WIDTHS:
        regrets = []
        for seed in range(1000, 1005):
            own = {"settings": {**run["settings"], "ons_width": width}}
            regrets.append(figures.simulate(measured.settings_of(own, seed)).regret[-1])
        key = json.dumps({"ons_width": width})
        np.testing.assert_allclose(run["tried"][key], regrets, atol=1e-4)
        means[width] = np.mean(regrets)
    assert run["tuned"] == {"ons_width": min(means, key=means.get)}
    own = {"settings": {**run["settings"], **run["tuned"]}}
    found = [figures.simulate(measured.settings_of(own, seed)).regret[-1] for seed in (0, 1)]
    np.testing.assert_allclose(run["regret"], found, atol=1e-4)


def test_runs_to_tune_are_added_once():
    ldb = {"settings": {"algorithm": "ldb"}, "seeds": 10, "regret": [1.0]}
    content = {"a": {"ldb": ldb, "theory": ldb}, "b": {"fldb_ons": ldb}}
    for _ in range(2):
        tuning.extend(content)
        assert list(content["a"]) == ["ldb", "theory", "ldb_tuned"]
        assert content["a"]["ldb_tuned"]["regret"] == []
        assert list(content["b"]) == ["fldb_ons"]


def tuned_runs():
    for name, content in measured.load().items():
        for where, run in measured.runs_in(content, name):
            if "tried" in run:
                yield where, run


def test_tuned_runs_follow_the_rule():
    """Each value of the grid was tried on the tuning seeds, which are not reported."""
    runs = dict(tuned_runs())
    assert len(runs) >= 10
    for where, run in runs.items():
        expected = {json.dumps(values) for values in tuning.candidates(run["settings"])}
        assert set(run["tried"]) == expected, where
        assert {len(values) for values in run["tried"].values()} == {len(tuning.SEEDS)}, where
        means = {key: np.mean(values) for key, values in run["tried"].items()}
        assert json.loads(min(means, key=means.get)) == run["tuned"], where
        assert not set(range(run["seeds"])) & set(tuning.SEEDS)
        assert run["settings"].keys().isdisjoint({"ons_width", "beta_scale", "personal_width"})


def test_the_tuned_problems_are_those_of_the_figures_and_the_documents():
    found, expected = measured.load()["tuned"], tuning.problems()
    assert {"fig1b", "regret"} <= found.keys() <= expected.keys()
    for name, runs in found.items():
        assert list(runs) == list(expected[name])
        for label, run in runs.items():
            assert run["settings"] == expected[name][label]["settings"]


def test_the_tuned_curves_of_the_figures_are_those_of_the_results():
    for name, runs in measured.load()["tuned"].items():
        drawn = figures.curves_of(name) if name not in tuning.OTHERS else {}
        for label in runs.keys() & drawn.keys():
            own = {**runs[label]["settings"], **runs[label]["tuned"]}
            assert drawn[label] == own, (name, label)
        tuned = {label for label, run in runs.items() if "tried" in run}
        assert name in tuning.OTHERS or tuned <= drawn.keys()


def test_the_curves_are_written_for_each_figure(tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "CURVES", tmp_path / "tuned.yaml")
    content = measured.load()["tuned"]
    tuning.write_curves({**content, "n10": content["regret"]})
    written = yaml.safe_load(tuning.CURVES.read_text())
    stored = yaml.safe_load((ROOT / "conf" / "tuned.yaml").read_text())
    assert written.keys() == content.keys() - tuning.OTHERS.keys()
    assert all(stored[name] == written[name] for name in written)


@pytest.mark.parametrize("name", ["fig1b", "regret"])
def test_a_tuned_curve_has_the_result_of_its_run(name):
    results = measured.load()
    for label, run in results["tuned"][name].items():
        if label in results["figures"][name]:
            np.testing.assert_allclose(results["figures"][name][label]["regret"], run["regret"])
