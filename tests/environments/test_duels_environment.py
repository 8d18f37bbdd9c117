"""environment=duels: reading, replay and prediction of recorded answers, on studies made by hand.

The last tests read real studies; set FLDB_DUELS to the folder of `.ci/get-real-duels`.
"""

import json
import math
import os
import shutil
import tempfile
from pathlib import Path

import hypothesis
import numpy as np
import pytest
from conftest import nested
from hypothesis import strategies as st
from test_resume import kill_at, results

from fldb_flower.bandit.streams import AgentStreams
from fldb_flower.environments import make_environment, max_difference
from fldb_flower.environments.duels import standardised
from fldb_flower.environments.studies import read_study
from fldb_flower.errors import DataError, SettingsError
from fldb_flower.federation.agents import AgentGroup
from fldb_flower.federation.exchange import Broadcast, PlayRequest
from fldb_flower.federation.history import History
from fldb_flower.privacy.plan import cautions
from fldb_flower.settings import (
    EnvironmentSettings,
    Settings,
    from_flat,
    from_nested,
    to_dotted,
    unflatten,
)
from simulations.api.comparisons import read_comparisons
from simulations.api.runs import load
from simulations.engines import vectorized
from simulations.run import run

ARMS = "arm,x,y\nA,1,0\nB,0,2\nC,3,5\n"
# bob answers each pair once; ann answers A/B three times, in both orders, and never B/C.
DUELS = """person,first,second,preference
bob,C,A,1
ann,A,B,1
bob,C,B,1
ann,B,A,0
ann,C,A,0.5
bob,A,B,0
ann,A,B,0
"""
FEATURES = {"A": (1.0, 0.0), "B": (0.0, 2.0), "C": (3.0, 5.0)}
BORDA = [  # bob, ann
    {"A": 0.0, "B": 1 / 2, "C": 1.0},
    {"A": (2 / 3 + 1 / 2) / 2, "B": (1 / 3 + 1 / 2) / 2, "C": 1 / 2},
]
SHARES = [  # of wins of the first arm
    {"AB": 0.0, "AC": 0.0, "BC": 0.0},
    {"AB": 2 / 3, "AC": 1 / 2, "BC": 1 / 2},
]


@pytest.fixture
def study(tmp_path):
    return write(tmp_path / "study", ARMS, DUELS)


def write(folder, arms, duels):
    folder.mkdir(exist_ok=True)
    (folder / "arms.csv").write_text(arms)
    (folder / "duels.csv").write_text(duels)
    return folder


RAW = {"environment__play": "replay", "environment__scale": "none"}


def settings(folder, **values):
    base = {"environment__name": "duels", "environment__path": str(folder), "num_arms": 3}
    return from_nested(nested(**{**base, **values}), "a test")


def arm_of(features):
    return next(name for name, each in FEATURES.items() if tuple(features) == each)


def play(chosen, iterations, agents=None):
    """Play at random; return the sums over the duels at theta = 0."""
    group = AgentGroup(chosen, agents or range(chosen.num_agents))
    zero = np.zeros(chosen.dimension)
    return group.answer(Broadcast(PlayRequest(1, iterations, None), zero), 0)


TIES = "person,first,second,preference\nann,A,B,0.5\nbob,A,C,0.5\nbob,B,C,0.5\n"
CYCLE = "person,first,second,preference\nann,A,B,1\nann,B,C,1\nann,C,A,1\n"


def test_a_study_in_which_no_arm_is_better_is_refused(tmp_path):
    for number, (duels, playing, found) in enumerate(
        [
            (TIES, "replay", "3 answers, 3 of them ties"),
            (TIES, "predict", "3 answers, 3 of them ties"),
            (CYCLE, "replay", "3 answers, 0 of them ties"),  # all Borda scores are 1/2
        ]
    ):
        folder = write(tmp_path / str(number), ARMS, duels)
        chosen = settings(folder, environment__play=playing, horizon=1, algorithm="fldb_personal")
        with pytest.raises(DataError, match=f"^environment=duels: no arm .*; found {found}, in "):
            vectorized.run(chosen, History(1))
    chosen = settings(folder, environment__play="predict", horizon=1, algorithm="fldb_personal")
    vectorized.run(chosen, History(1))


def regret_of(chosen):
    """Return the average regret of each iteration."""
    history = History(chosen.horizon)
    vectorized.run(chosen, history)
    return np.diff(history.cumulative_regret, prepend=0.0)


# --- replay --------------------------------------------------------------------------------


def test_rewards_are_borda_scores(study):
    chosen = settings(study, **RAW)
    contexts = make_environment(chosen, range(2)).contexts(AgentStreams(0, range(2)), 5)
    for agent, borda in enumerate(BORDA):
        for features, rewards in zip(
            contexts.features[agent], contexts.rewards[agent], strict=True
        ):
            names = [arm_of(each) for each in features]
            assert sorted(names) == ["A", "B", "C"]
            assert rewards == pytest.approx([borda[name] for name in names], abs=1e-15)


def test_arms_are_drawn_uniformly(study):
    chosen = settings(study, **RAW, num_arms=2)
    contexts = make_environment(chosen, range(2)).contexts(AgentStreams(0, range(2)), 3000)
    pairs = [f"{arm_of(a)}{arm_of(b)}" for a, b in contexts.features.reshape(-1, 2, 2)]
    counts = [pairs.count(pair) for pair in ("AB", "BA", "AC", "CA", "BC", "CB")]
    assert sum(counts) == 6000
    assert max(abs(count - 1000) for count in counts) < 4 * math.sqrt(1000)


@pytest.mark.parametrize("together", [1, 4])
def test_each_pair_is_answered_once_in_either_order(study, together):
    chosen = settings(study, **RAW)
    environment = make_environment(chosen, range(2))
    streams, rng = AgentStreams(0, range(2)), np.random.default_rng(1)
    asked = [set(), set()]
    for _ in range(24 // together):
        shown = environment.contexts(streams, together).features
        first, second = rng.integers(0, 3, (2, 2 * together))
        answers = environment.answers(first, second)
        for row, answer in enumerate(answers):
            iteration, agent = divmod(row, 2)
            arms = [arm_of(shown[agent, iteration, place[row]]) for place in (first, second)]
            pair = "".join(sorted(arms))
            if arms[0] == arms[1] or pair in asked[agent]:
                assert math.isnan(answer)
                continue
            asked[agent].add(pair)
            share = SHARES[agent][pair]
            assert answer == pytest.approx(share if arms[0] < arms[1] else 1 - share, abs=1e-15)
    assert [len(pairs) for pairs in asked] == [3, 3]


def test_agents_learn_from_each_pair_once(study):
    """A long random run has asked all pairs: its sums are those of one duel per pair."""
    chosen = settings(study, **RAW, algorithm="random", horizon=80)
    upload = play(chosen, 80)
    gradient, information = np.zeros(2), np.zeros((2, 2))
    for shares in SHARES:
        for (low, high), share in shares.items():
            difference = np.subtract(FEATURES[low], FEATURES[high])
            gradient += (0.5 - share) * difference
            information += np.outer(difference, difference)
    assert upload.gradient == pytest.approx(gradient)
    assert upload.information == pytest.approx(information)


def test_regret_counts_repeated_pairs_too(study):
    """Random pairs of three arms lose two thirds of the sum of the gaps, in each iteration."""
    chosen = settings(study, **RAW, algorithm="random", horizon=4000)
    regret = regret_of(chosen)
    lost = [2 * (max(borda.values()) - np.mean(list(borda.values()))) for borda in BORDA]
    assert regret.mean() == pytest.approx(np.mean(lost), rel=0.03)
    assert regret[:2000].mean() == pytest.approx(regret[2000:].mean(), rel=0.05)
    assert regret.min() >= 0


# --- predict -------------------------------------------------------------------------------


def test_each_recorded_duel_is_shown_once_in_a_shuffled_order(tmp_path):
    arms = "arm,x\n" + "".join(f"a{number},{number**2}\n" for number in range(12))
    duels = "person,first,second,preference\n" + "".join(
        f"{person},a{first},a{(first + 1) % 12},{first % 3 / 2}\n"
        for first in range(12)
        for person in "pqr"
    )
    folder = write(tmp_path / "s", arms, duels)
    orders = set()
    for seed in (0, 1):
        chosen = settings(folder, environment__play="predict", seed=seed)
        assert (chosen.num_agents, chosen.horizon, chosen.num_arms) == (3, 12, 2)
        whole = make_environment(chosen, range(3))
        drawn = whole.contexts(AgentStreams(seed, range(3)), 12)
        answers = whole.answers(None, None).reshape(12, 3).T
        assert not drawn.rewards.any()
        scale = drawn.features.max() / 11**2
        numbers = np.sqrt(drawn.features[..., 0] / scale).round().astype(int)
        for agent in range(3):
            expected = {(each, (each + 1) % 12): each % 3 / 2 for each in range(12)}
            seen = [tuple(pair) for pair in numbers[agent].tolist()]
            assert dict(zip(seen, answers[agent], strict=True)) == expected
            orders.add(tuple(seen))
        last = make_environment(chosen, range(2, 3)).contexts(AgentStreams(seed, range(2, 3)), 12)
        assert (last.features[0] == drawn.features[2]).all()  # independent of the block
    assert len(orders) == 6


def test_differences_are_standardised(tmp_path):
    """By hand: x differs by 3 and -4 and so has root mean square sqrt(12.5); y never differs."""
    folder = write(
        tmp_path / "s",
        "arm,x,y\nA,3,7\nB,0,7\nC,4,7\n",
        "person,first,second,preference\np,A,B,1\np,B,C,0\n",
    )
    chosen = settings(folder, environment__play="predict")
    shown = make_environment(chosen, range(1)).contexts(AgentStreams(0, range(1)), 2).features[0]
    differences = shown[:, 0] - shown[:, 1]
    expected = [3 / math.sqrt(12.5), -4 / math.sqrt(12.5)]
    assert sorted(differences[:, 0]) == pytest.approx(sorted(expected))
    assert not differences[:, 1].any()
    assert max_difference(chosen) == pytest.approx(4 / math.sqrt(12.5))


def test_units_of_features_do_not_matter_in_predict(study):
    upload = play(settings(study, environment__play="predict"), 3)
    for factor in (1e-3, 1e3, 1e100):
        lines = [f"{name},{x * factor},{y * factor}" for name, (x, y) in FEATURES.items()]
        scaled = write(study.parent / f"{factor}", "\n".join(["arm,x,y", *lines]), DUELS)
        other = play(settings(scaled, environment__play="predict"), 3)
        assert other.gradient == pytest.approx(upload.gradient, rel=1e-12)
        assert other.information == pytest.approx(upload.information, rel=1e-12)


def test_agents_learn_the_recorded_duels_whatever_the_policy_selects(study):
    """All four answers of ann, standardised, are in the sums."""
    pairs = [("A", "B", 1), ("B", "A", 0), ("C", "A", 0.5), ("A", "B", 0)]  # ann's
    rows = np.array([np.subtract(FEATURES[a], FEATURES[b]) for a, b, _ in pairs])
    rows /= np.sqrt((rows**2).mean(axis=0))
    answers = np.array([answer for *_, answer in pairs])
    for algorithm in ("random", "fldb_ons", "ldb"):
        who = {"environment__play": "predict", "environment__min_answers": 4}
        chosen = settings(study, **who, algorithm=algorithm)
        assert (chosen.num_agents, chosen.horizon) == (1, 4)
        upload = play(chosen, 4)
        assert upload.gradient == pytest.approx((0.5 - answers) @ rows)
        assert upload.information == pytest.approx(rows.T @ rows)
        assert not regret_of(chosen).any()


def test_a_run_that_predicts_states_its_predictions_and_draws_no_regret(study, tmp_path, caplog):
    caplog.set_level("INFO", "fldb_flower")
    chosen = settings(study, environment__play="predict", algorithm="fldb_personal", tau=1)
    assert chosen.horizon == 3
    run(chosen, tmp_path / "run")
    text, summary = caplog.text, json.loads((tmp_path / "run" / "summary.json").read_text())
    assert "warning: " not in text
    assert f"| final log loss {summary['log_loss']:.3f}, accuracy {summary['accuracy']:.0%}" in text
    assert not (tmp_path / "run" / "regret.png").exists()
    assert "final log loss" in repr(load(tmp_path / "run"))
    run(settings(study, environment__play="predict", horizon=4, tau=1), tmp_path / "four")
    assert (
        "warning: 1 of 2 people have fewer than horizon=4 answers and are left out;"
        " horizon=3 keeps all"
    ) in caplog.text


# --- units -----------------------------------------------------------------------------------

LEARNING = ("fldb_personal", "fldb_ogd", "fldb_ons", "ldb")


def curves(folder, playing, algorithm):
    """Return the regret, and in predict the losses, of each iteration."""
    numbers = {"environment__play": playing, "algorithm": algorithm, "tau": 2, "num_arms": 4}
    chosen = settings(folder, **numbers, horizon=12)
    history = History(chosen.horizon)
    vectorized.run(chosen, history)
    return np.array([history.cumulative_regret, *(history.cumulative_predictions or ())])


@hypothesis.given(
    exponents=st.lists(st.integers(-20, 20), min_size=2, max_size=2),
    factors=st.lists(st.floats(1e-6, 1e6), min_size=2, max_size=2),
    algorithm=st.sampled_from(LEARNING),
    playing=st.sampled_from(["replay", "predict"]),
)
@hypothesis.settings(max_examples=25, deadline=None)
def test_units_of_features_do_not_matter(exponents, factors, algorithm, playing):
    """Equal to the bit for powers of two, and but for rounding for others."""
    rng = np.random.default_rng(5)
    table = np.column_stack([rng.standard_normal((6, 2)), rng.integers(0, 2, 6)])
    better = table @ [1.0, -2.0, 0.5] + rng.standard_normal((3, 6))
    lines = [
        f"p{person},a{a},a{b},{int(better[person, a] > better[person, b])}"
        for person in range(3)
        for a in range(6)
        for b in range(a)
    ]
    duels = "\n".join(["person,first,second,preference", *lines])

    def found(factor):
        rows = (table * [*factor, 1.0]).tolist()
        arms = [f"a{n},{','.join(map(repr, row))}" for n, row in enumerate(rows)]
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder), "\n".join(["arm,x,y,z", *arms]), duels)
            return curves(folder, playing, algorithm)

    expected = found([1.0, 1.0])
    assert (found(np.exp2(exponents)) == expected).all()
    assert found(factors) == pytest.approx(expected, rel=1e-9)


# --- what the study implies ------------------------------------------------------------------


def test_numbers_are_the_studys_by_default(study):
    """ann lacks a pair, but half of the two people are complete."""
    chosen = settings(study)
    assert (chosen.num_agents, chosen.dimension, chosen.horizon) == (2, 2, 500)
    assert chosen.environment.play == "replay"
    kebab = {"environment": "duels", "environment-path": str(study), "num-arms": 3}
    python = EnvironmentSettings(name="duels", path=str(study))
    assert chosen == from_flat(kebab, "a test") == Settings(environment=python, num_arms=3)
    assert to_dotted(chosen)["num_agents"] == 2


def test_replay_needs_half_of_the_people_with_nine_tenths_of_the_pairs(tmp_path):
    arms = "arm,x\n" + "".join(f"a{number},{number}\n" for number in range(5))  # 10 pairs
    pairs = [(a, b) for a in range(5) for b in range(a)]

    def played(*answered):
        lines = [
            f"p{person},a{a},a{b},1"
            for person, count in enumerate(answered)
            for a, b in [*pairs[:count], *pairs[:1]]  # one pair twice
        ]
        text = "\n".join(["person,first,second,preference", *lines])
        folder = write(tmp_path / "-".join(map(str, answered)), arms, text)
        return settings(folder).environment.play

    assert played(9, 1) == played(10, 9, 2, 3) == "replay"
    assert played(8) == played(9, 8, 8) == "predict"


def test_a_subset_of_the_people(tmp_path):
    """a has 1 answer, b 2, c 3, d 5; the median of all is 2.5, and that of b, c, d is 3."""
    counts = {"a": 1, "b": 2, "c": 3, "d": 5}
    lines = [f"{who},A,B,1" for who, count in counts.items() for _ in range(count)]
    folder = write(tmp_path / "s", ARMS, "\n".join(["person,first,second,preference", *lines]))

    def numbers(**values):
        chosen = settings(folder, environment__play="predict", **values)
        return chosen.num_agents, chosen.horizon

    assert numbers() == (3, 2)
    assert numbers(environment__min_answers=2) == (2, 3)
    assert numbers(environment__max_people=1) == (1, 2)
    assert numbers(horizon=4) == (1, 4)
    assert numbers(num_agents=2) == (2, 2)
    chosen = settings(folder, environment__play="replay", environment__min_answers=2)
    assert (chosen.num_agents, chosen.horizon) == (3, 500)
    # Agent 0 is then b, with twice as many answers as a.
    assert read_study(str(folder)).people == ("a", "b", "c", "d")


def test_the_study_is_read_again_only_if_it_changes(study):
    before, chosen = read_study(str(study)), settings(study)
    assert read_study(str(study)) is before
    (study / "duels.csv").write_text(DUELS + "carl,A,B,1\n")
    assert read_study(str(study)).people == ("bob", "ann", "carl")
    shutil.rmtree(study)  # settings of a finished run do not need it
    assert from_nested(unflatten(to_dotted(chosen)), "config.yaml") == chosen


def test_the_largest_difference_of_arms(study):
    """A and C. By hand: the variance of 1, 0, 3 is 14 / 9, and that of 0, 2, 5 is 38 / 9."""
    assert max_difference(settings(study, **RAW)) == pytest.approx(math.hypot(2, 5))
    scaled = math.hypot(2 / math.sqrt(14 / 9), 5 / math.sqrt(38 / 9))
    assert max_difference(settings(study)) == pytest.approx(scaled)


def test_numbers_that_do_not_fit_the_study(study):
    for values, message in (
        ({"num_arms": 4}, "num_arms=4: must be at most 3, the number of arms in .*arms.csv$"),
        ({"dimension": 3}, "dimension=3: must be 2, the number of features in .*arms.csv$"),
        ({"num_agents": 3}, "num_agents=3: must be at most 2, the number of people used in .*csv$"),
        ({"environment__min_answers": 9}, "environment.min_answers=9: must be at most 4, the larg"),
        ({"environment__play": "predict", "horizon": 5}, "horizon=5: must be at most 4, the large"),
        ({"environment__path": ""}, "environment.path is empty: set it to the folder of a study"),
    ):
        with pytest.raises(DataError, match=f"^.*{message}"):
            settings(study, **values)
    # Explicit numbers are checked when the run starts.
    sizes = {"num_agents": 2, "horizon": 5, "dimension": 3, "environment__play": "replay"}
    with pytest.raises(DataError, match="dimension=3: must be 2"):
        make_environment(settings(study, **sizes), range(2))


def test_settings_of_one_environment_are_refused_for_others():
    values = {"play": "replay", "scale": "none", "max_people": 3, "min_answers": 3}
    for name, value in values.items():
        message = rf"^environment\.{name}={value!r} \(from a test\): needs environment=duels, not s"
        with pytest.raises(SettingsError, match=message):
            from_nested({"environment": {name: value}}, "a test")
    with pytest.raises(SettingsError, match=r"users='persistent' .*: needs environment=movielens,"):
        from_nested({"environment": {"users": "persistent"}}, "a test")


# --- errors of the files ---------------------------------------------------------------------

HEADER = "person,first,second,preference\n"
BAD_FILES = {
    # file, content, message after the path
    "no arm column": (
        "arms.csv", "name,x\nA,1\n", "line 1: the first column is 'name'; it must be 'arm', the na",
    ),
    "name twice": ("arms.csv", "arm,key,x\nA,A,1\n", "line 1: the header is 'arm,key,x';"),
    "empty text": ("arms.csv", "arm,c\nA,red\nB,\n", "line 3: c of 'B' is empty; fill or remove"),
    "nan text": ("arms.csv", "arm,c\nA,red\nB,NaN\n", "line 3: c of 'B' is 'NaN'; must be a num"),
    "comma": ("arms.csv", 'arm,x\nA,"1,5"\nB,"2,5"\n', "line 2: x of 'A' is '1,5'; write numbers"),
    "column twice": ("arms.csv", "arm,x,x\nA,1,2\n", "line 1: the header is 'arm,x,x'"),
    "arm twice": ("arms.csv", "arm,x\nA,1\nB,2\n\nA,3\n", "line 5: arm is 'A'; must be a name"),
    "arm without name": ("arms.csv", "arm,x\n,1\nB,1\n", "line 2: arm is ''; must be a name"),
    "not a number": ("arms.csv", "arm,x\nA,1\nB,red\n", "line 3: x of 'B' is 'red'; must be a num"),
    "not finite": ("arms.csv", "arm,x\nA,inf\nB,1\n", "line 2: x of 'A' is 'inf'"),
    "other digits": ("arms.csv", "arm,x\nA,1\nB,\u0663\n", "line 3: x of 'B' is '\u0663'"),
    "too large": ("arms.csv", "arm,x\nA,1e200\nB,1\n", "line 2: x of 'A' is '1e200'"),
    "missing feature": ("arms.csv", "arm,x,y\nA,1,2\nB,2\n", "line 3: 2 instead of 3 fields"),
    "one arm": ("arms.csv", "arm,x\nA,1\n", "has 1 arms; a duel needs two"),
    "empty arms": ("arms.csv", "", "is empty; it must be"),
    "UTF-16": ("arms.csv", "arm,x\n".encode("utf-16"), "line 1: it is not in UTF-8"),
    "Latin-1": ("arms.csv", "arm,x\nA,1\nB\xe9,2\n".encode("latin-1"), "line 3: it is not"),
    "no person column": ("duels.csv", "who,first,second,preference\n", "line 1: the header is"),
    "unknown first": ("duels.csv", HEADER + "p,A,B,1\np,Z,B,1\n", "line 3: first is 'Z'; must be"),
    "unknown second": ("duels.csv", HEADER + "p,A,b,1\n", "line 2: second is 'b'; must be"),
    "same arm": ("duels.csv", HEADER + "p,A,A,1\n", "line 2: first and second are both 'A'"),
    "no person": ("duels.csv", HEADER + ",A,B,1\n", "line 2: person is empty"),
    "two": ("duels.csv", HEADER + "p,A,B,2\n", "line 2: preference is '2'; must be first, 1 or"),
    "no preference": ("duels.csv", HEADER + "p,A,B,\n", "line 2: preference is ''; must be first"),
    "short row": ("duels.csv", HEADER + "p,A,B\n", "line 2: 3 instead of 4 fields: 'p,A,B'"),
    "open quote": ("duels.csv", HEADER + 'p,A,"B,1\n', "line 2: unexpected end of data"),
    "no duels": ("duels.csv", HEADER, "has no duels; it must be"),
}  # fmt: skip


def test_an_error_names_file_line_and_value(tmp_path):
    for name, (file, content, message) in BAD_FILES.items():
        folder = write(tmp_path / name, ARMS, DUELS)
        (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(DataError) as error:
            settings(folder)
        text = str(error.value)
        assert text.startswith(f"{folder / file}: ")
        assert message in text
        assert text.isprintable()


def test_a_missing_file_or_folder(study):
    for path in (study / "duels.csv", study):
        path.unlink() if path.is_file() else shutil.rmtree(study)
        with pytest.raises(DataError, match=r"No such file or .*must be the folder of a") as error:
            settings(study)
        assert str(error.value).startswith(str(path))
    (study.parent / "file").write_text("")
    for wrong in (study.parent / "file", "~nobody-of-that-name", "a\0b"):
        with pytest.raises(DataError, match=r"cannot be read .*must be the folder of a") as error:
            settings(wrong)
        assert str(error.value).isprintable()


def test_the_files_of_rank_are_studies(tmp_path):
    """Names of the winners, other names of columns, and semicolons."""
    folder = write(tmp_path / "s", "arm;x\nA;1\nB;2\n", "")
    (folder / "duels.csv").write_text("Person;item_a;item_b;winner\np;A;B;B\np;B;A;tie\nq;A;B;A\n")
    study = read_study(str(folder))
    assert study.preference.tolist() == [0.0, 0.5, 1.0]
    assert read_comparisons(folder / "duels.csv").preference.tolist() == [0.0, 0.5, 1.0]
    for name in ("user", "User_ID", "userid", "respondent", "Participant"):
        (folder / "duels.csv").write_text(f"{name},first,second,won\np,A,B,B\nq,A,B,A\n")
        assert read_study(str(folder)).people == ("p", "q")
    for row, message in (
        ("p,A,B,", "Which Won is ''; .*; leave out rows without an answer"),
        ("p,A,C,1", "item_b is 'C'"), ("p,A,A,1", "item_a and item_b are both 'A'"),
        (",A,B,1", "user is empty"),
    ):  # fmt: skip
        (folder / "duels.csv").write_text(f"user,item_a,item_b,Which Won\n{row}\n")
        with pytest.raises(DataError, match=f"line 2: {message}"):
            read_study(str(folder))
    (folder / "duels.csv").write_text(HEADER + "p,A,B,C\n")
    for read in (read_study, lambda path: read_comparisons(Path(path) / "duels.csv")):
        with pytest.raises(
            DataError, match=r"line 2: preference is 'C'; must be first, 1 or A; .* or"
        ):
            read(str(folder))


def test_layouts_that_are_valid(tmp_path):
    """A byte order mark, CRLF, quotes, blank lines, columns in another order, and more columns."""
    folder = write(tmp_path / "s", ARMS, "")
    (folder / "arms.csv").write_bytes(b'\xef\xbb\xbfarm,x\r\n"A, big",1\r\n\r\nB,2e0\r\n')
    (folder / "duels.csv").write_text(
        'time,second,preference,first,person\n3,B, 0.25 ,"A, big",Zoë\n'
    )
    study = read_study(str(folder))
    assert (study.arms, study.people) == (("A, big", "B"), ("Zoë",))
    assert (study.first[0], study.second[0], study.preference[0]) == (0, 1, 0.25)
    assert study.features.tolist() == [[1.0], [2.0]]


def test_texts_are_indicators_in_order_of_appearance(tmp_path):
    folder = write(tmp_path / "s", "arm,x,colour,text\nA,1,red,a\nB,2,blue,b\nC,3,red,c\n", DUELS)
    assert read_study(str(folder)).features.tolist() == [[1, 1, 0], [2, 0, 1], [3, 1, 0]]


def test_a_warning_names_columns_with_a_text_for_each_arm(tmp_path):
    table = "arm,price,size\nA,59 EUR,S\nB,60 EUR,L\nC,61 EUR,S\n"
    folder = write(tmp_path / "s", table, HEADER + "p,A,B,1\np,B,C,1\np,A,C,1\nq,A,B,0\n")
    warning = "arms.csv: each arm has a different text in price; if these are numbers, remove their"
    (line,) = cautions(settings(folder))
    assert line == f"{warning} unit"
    (line,) = cautions(settings(folder, environment__play="predict", num_arms=2, horizon=2))
    assert line.startswith(f"{warning} unit; 1 of 2 people have fewer than horizon=2 answers")
    (folder / "arms.csv").write_text(table.replace("61", "60"))
    assert cautions(settings(folder)) == []


def test_arms_without_features_have_one_indicator_each(study):
    (study / "arms.csv").write_text("arm\nA\nB\nC\n")
    assert read_study(str(study)).features.tolist() == np.eye(3).tolist()
    (study / "arms.csv").unlink()
    found = read_study(str(study))
    assert found.arms == ("C", "A", "B")  # as they appear in the duels
    assert found.features.tolist() == np.eye(3).tolist()
    assert [found.arms[arm] for arm in found.first] == list("CACBCAA")
    (study / "duels.csv").write_text(DUELS + "bob,,A,1\n")
    with pytest.raises(DataError, match=r"line 9: first is ''; must be the name of an arm$"):
        read_study(str(study))


def test_without_features_the_model_is_bradley_terry(tmp_path):
    """The maximum likelihood that choix finds for the same answers, but for a ridge of 1e-7."""
    choix = pytest.importorskip("choix")
    rng = np.random.default_rng(8)
    utility = rng.standard_normal(6)
    pairs = [(a, b) for _ in range(12) for a in range(6) for b in range(6) if a != b]
    won = rng.random(len(pairs)) < [1 / (1 + np.exp(utility[b] - utility[a])) for a, b in pairs]
    lines = [f"p,{a},{b},{int(w)}" for (a, b), w in zip(pairs, won, strict=True)]
    (tmp_path / "duels.csv").write_text("\n".join(["person,first,second,preference", *lines]))
    chosen = settings(
        tmp_path, environment__play="predict", algorithm="fldb_gd", **{"lambda": 1e-7}, tau=72
    )
    theta = vectorized.run(chosen, History(chosen.horizon))
    study = read_study(str(tmp_path))
    found = standardised(study, np.arange(1)) @ theta
    order = [int(arm) for arm in study.arms]
    expected = choix.ilsr_pairwise(
        6, [(a, b) if w else (b, a) for (a, b), w in zip(pairs, won, strict=True)]
    )[order]
    assert found - found.mean() == pytest.approx(expected - expected.mean(), abs=1e-5)


# --- engines and checkpoints -----------------------------------------------------------------


@pytest.fixture
def people(tmp_path):
    """Seven people, five arms, three features; about 80 % of the pairs, some of them twice."""
    rng = np.random.default_rng(3)
    arms = [f"a{n},{','.join(f'{x:.3f}' for x in rng.standard_normal(3))}" for n in range(5)]
    rows = [
        f"p{person},a{a},a{b},{rng.integers(0, 3) / 2}"
        for person in range(7)
        for a in range(5)
        for b in range(5)
        if a != b and rng.random() < 0.6
    ]
    text = "\n".join(["person,first,second,preference", *rows])
    return write(tmp_path / "people", "\n".join(["arm,x,y,z", *arms]), text)


BOTH = pytest.mark.parametrize("play", ["replay", "predict"])
SMALL = {"plot": False, "tau": 2, "environment__min_answers": 8, "horizon": 8}


@BOTH
@pytest.mark.parametrize("algorithm", ["fldb_ons", "fldb_gd"])
def test_every_engine_and_number_of_nodes_gives_the_same_result(tmp_path, people, play, algorithm):
    chosen = {**SMALL, "environment__play": play, "algorithm": algorithm}
    regrets, thetas = [], []
    for nodes in (0, 1, 3):
        engine = {"engine__name": "inprocess", "engine__num_nodes": nodes} if nodes else {}
        path = tmp_path / str(nodes)
        run(settings(people, **chosen, **engine), path)
        regrets.append((path / "regret.csv").read_bytes())
        thetas.append(json.loads((path / "model.json").read_text())["theta_sync"])
    assert regrets[0] == regrets[1] == regrets[2]
    assert thetas[1:] == [pytest.approx(thetas[0], rel=1e-9)] * 2


@pytest.mark.parametrize(("play", "algorithm"), [("replay", "fldb_ons"), ("predict", "ldb")])
def test_an_interrupted_run_resumes_to_the_same_bytes(tmp_path, people, play, algorithm):
    chosen = {**SMALL, "environment__play": play, "algorithm": algorithm, "checkpoint_seconds": 0.0}
    run(settings(people, **chosen), tmp_path / "whole")
    assert kill_at(tmp_path / "cut", settings(people, **chosen), 2)
    run(settings(people, **chosen, resume=True), tmp_path / "cut")
    assert results(tmp_path / "cut") == results(tmp_path / "whole")


@BOTH
def test_torch_arrays_give_the_same_numbers(people, play):
    pytest.importorskip("torch")
    chosen = {**SMALL, "environment__play": play, "algorithm": "random"}
    here, there = (play_all(people, **chosen, backend=backend) for backend in ("numpy", "cpu"))
    assert here.gradient == pytest.approx(there.gradient, rel=1e-12)
    assert here.information == pytest.approx(there.information, rel=1e-12)
    drawn_there = play_all(people, **chosen, backend="cpu", rng="torch")
    assert np.isfinite(drawn_there.gradient).all()


def play_all(folder, **values):
    chosen = settings(folder, **values)
    return play(chosen, chosen.horizon)


# --- real studies ----------------------------------------------------------------------------

REAL = pytest.mark.skipif(
    "FLDB_DUELS" not in os.environ, reason="FLDB_DUELS names no folder with the real studies"
)
SIZES = {  # people, arms, features, play
    "FirstNames": (192, 6, 6, "replay"),
    "GermanParties2009": (192, 6, 6, "replay"),
    "CEMSChoice": (303, 6, 6, "replay"),
    "SoundQuality": (783, 8, 8, "replay"),
    "Train": (120, 1785, 4, "predict"),
}


def real(name):
    return Path(os.environ["FLDB_DUELS"]) / name


@REAL
def test_sizes_of_the_real_studies():
    for name, (people, arms, features, play) in SIZES.items():
        chosen = settings(real(name))
        assert (chosen.num_agents, chosen.dimension) == (people, features)
        assert chosen.environment.play == play
        assert len(read_study(str(real(name))).arms) == arms
        assert chosen.horizon == (13 if play == "predict" else 500)


@REAL
def test_a_narrow_width_alone_beats_one_theta_for_all():
    """An independent prototype has 5.9 to 6.4 alone and 12.3 to 17.4 with one theta."""
    for name in ("FirstNames", "GermanParties2009", "CEMSChoice"):
        regret = {}
        for algorithm in ("ldb", "fldb_ons"):
            chosen = {"algorithm": algorithm, "num_arms": 4, "horizon": 30, "beta_scale": 0.2}
            regret[algorithm] = regret_of(settings(real(name), **chosen, **{"lambda": 1.0})).sum()
        assert 4.0 < regret["ldb"] < 7.5
        assert 10.0 < regret["fldb_ons"] < 20.0
