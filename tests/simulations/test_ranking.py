"""Rankings of items from comparisons, against choix, scikit-learn, SciPy and hand-worked cases."""

import itertools
from pathlib import Path
from statistics import NormalDist

import choix
import numpy as np
import pandas as pd
import pytest
from conftest import ROOT
from scipy.optimize import minimize
from scipy.stats import kendalltau
from sklearn.linear_model import LogisticRegression

import fldb_flower as fldb
from fldb_flower.environments.studies import shares
from fldb_flower.errors import DataError
from simulations import rank
from simulations.api import ranking
from simulations.api.comparisons import parse_comparisons, read_comparisons
from simulations.api.ranking import rank_items

ONE_PERSON = "there is no column person: all answers count as one person's"


def table(text: str) -> pd.DataFrame:
    header, *rows = (line.split(",") for line in text.split())
    return pd.DataFrame(rows, columns=header)


def drawn(people: int, items: int, each: int, seed: int = 0) -> pd.DataFrame:
    """Return comparisons of people whose utilities differ from common ones."""
    random = np.random.default_rng(seed)
    utilities = random.normal(size=items) + random.normal(size=(people, items))
    rows = []
    for person in range(people):
        for _ in range(each):
            i, j = random.choice(items, 2, replace=False)
            first = random.random() < 1 / (1 + np.exp(utilities[person, j] - utilities[person, i]))
            rows.append((f"p{person}", f"i{i}", f"i{j}", int(first)))
    return pd.DataFrame(rows, columns=["person", "first", "second", "preference"])


@pytest.mark.parametrize("ridge", [0.02, 1.0, 5.0])
def test_utilities_are_those_of_choix_and_of_logistic_regression(ridge: float) -> None:
    answers = drawn(1, 7, 60).drop(columns="person")
    data = parse_comparisons(answers)
    found = rank_items(answers, ridge).table.set_index("item").loc[[*data.items], "utility"]
    winners = [
        (one, other) if share else (other, one)
        for one, other, share in zip(data.first, data.second, data.preference, strict=True)
    ]
    theirs = choix.opt_pairwise(len(data.items), winners, alpha=ridge / 2, tol=1e-12)
    np.testing.assert_allclose(found, theirs, atol=1e-6)
    indicators = np.eye(len(data.items))
    differences = indicators[data.first] - indicators[data.second]
    model = LogisticRegression(C=1 / ridge, fit_intercept=False, solver="newton-cg", tol=1e-12)
    np.testing.assert_allclose(found, model.fit(differences, data.preference).coef_[0], atol=1e-6)


def test_counts_and_ties_are_repeated_and_halved_answers() -> None:
    short = table("winner,loser,tie,count a,b,no,3 b,c,,1 c,a,yes,2")
    full = table("first,second,preference a,b,1 a,b,first b,a,a b,c,1 c,a,0.5 c,a,tie")
    one, other = (rank_items(each).table for each in (short, full))
    pd.testing.assert_frame_equal(one, other)
    counts = one.set_index("item")[["wins", "losses", "ties"]]
    assert counts.T.to_dict("list") == {"a": [3, 0, 2], "b": [1, 3, 0], "c": [0, 1, 2]}


def test_intervals_are_those_of_the_learner_with_indicators_relative_to_the_mean() -> None:
    answers = drawn(1, 5, 40).drop(columns="person")
    data = parse_comparisons(answers)
    indicators = np.eye(5)
    learner = fldb.DuelingBandit(ridge=0.5, scale=None).fit(
        indicators[data.first] - indicators[data.second], data.preference
    )
    center = np.eye(5) - 0.2
    deviations = np.sqrt(np.diagonal(center @ learner.covariance_ @ center))
    found = rank_items(answers, 0.5).table.set_index("item").loc[[*data.items]]
    np.testing.assert_allclose(found["utility"], learner.coef_[0], atol=1e-9)
    np.testing.assert_allclose((found["high"] - found["low"]) / 2, 1.959964 * deviations, rtol=1e-6)


def test_of_two_items_the_probability_of_being_best_is_that_of_a_normal_difference() -> None:
    row = rank_items(table("winner,loser,count a,b,5 b,a,3")).table.iloc[0]
    expected = NormalDist().cdf(row["utility"] / ((row["high"] - row["utility"]) / 1.959964))
    assert row["best"] == pytest.approx(expected, abs=4 * 0.5 / 20_000**0.5)


def test_with_people_the_fit_is_the_maximum_of_the_joint_posterior() -> None:
    data, ridge, variance = parse_comparisons(drawn(3, 4, 12)), 0.7, 0.4
    fit = ranking.fit(data, ridge, variance)

    def objective(flat: np.ndarray) -> float:
        common, *own = flat.reshape(4, 4)
        z = np.array(own)[data.person, data.first] - np.array(own)[data.person, data.second]
        loss = np.log1p(np.exp(-np.where(data.preference == 1, z, -z))).sum()
        spread = sum(((each - common) ** 2).sum() for each in own)
        return float(loss + ridge / 2 * (common**2).sum() + spread / (2 * variance))

    best = minimize(objective, np.zeros(16), method="BFGS", options={"gtol": 1e-9})
    np.testing.assert_allclose(fit.utilities, best.x[:4], atol=1e-5)
    np.testing.assert_allclose(fit.own, best.x[4:].reshape(3, 4), atol=1e-5)
    step = 1e-4 * np.eye(16)  # the inverse of the whole Hessian, by differences
    hessian = np.array([
        [
            objective(best.x + a + b) - objective(best.x + a - b)
            - objective(best.x - a + b) + objective(best.x - a - b)
            for a in step
        ]
        for b in step
    ]) / 4e-8  # fmt: skip
    center = np.eye(4) - 0.25
    expected = center @ np.linalg.inv(hessian)[:4, :4] @ center
    np.testing.assert_allclose(fit.covariance, expected, rtol=1e-3, atol=1e-5)


def test_left_out_comparisons_are_predicted_as_if_they_had_not_been_answered() -> None:
    data = parse_comparisons(drawn(6, 5, 15))
    approximate = ranking.fit(data, 1.0, 1.0).left_out
    for row in range(0, len(data.first), 9):
        times = data.times.copy()
        times[row] = 1e-12
        exact = ranking.fit(data._replace(times=times), 1.0, 1.0).left_out[row]
        assert approximate[row] == pytest.approx(exact, abs=0.1)


def test_the_variance_of_people_is_zero_where_they_agree_and_found_where_they_differ() -> None:
    random = np.random.default_rng(1)
    same = drawn(1, 5, 400, seed=2)
    same["person"] = [f"p{number}" for number in random.integers(0, 20, len(same))]
    assert rank_items(same).variance in {0.0, ranking.VARIANCES[1]}
    apart = rank_items(drawn(40, 5, 40))
    assert apart.variance is not None
    assert 0.3 <= apart.variance <= 3.2  # 1, in steps of sqrt(10)
    assert apart.log_loss[1] < apart.log_loss[0]
    assert apart.gain is not None
    assert apart.gain[0] == pytest.approx(apart.log_loss[0] - apart.log_loss[1])
    assert apart.gain[0] > 2 * apart.gain[1]
    assert apart.accuracy[1] > apart.accuracy[0]


def test_the_error_of_the_gain_is_that_of_the_mean_over_people() -> None:
    answers = drawn(10, 4, 20)
    data, found = parse_comparisons(answers), rank_items(answers)
    assert found.variance is not None
    assert found.gain is not None
    fits = [ranking.fit(data, 1.0, variance) for variance in (0.0, found.variance)]
    common, own = (np.log1p(np.exp(-(2 * data.preference - 1) * fit.left_out)) for fit in fits)
    by_person = pd.Series(common - own).groupby(data.person).mean()  # 20 answers each
    assert found.gain == pytest.approx((by_person.mean(), by_person.sem()))


def test_people_have_utilities_of_their_own_and_the_common_ones_without_an_answer() -> None:
    answers = pd.concat([drawn(30, 4, 30), table("person,first,second,preference x,i0,i1,0")])
    found = rank_items(answers)
    assert found.people is not None
    common = found.table.set_index("item")["utility"]
    assert [*found.people] == [*common.index]
    assert found.people.loc["x", ["i2", "i3"]].to_list() == common[["i2", "i3"]].to_list()
    assert found.people.loc["x", "i1"] > common["i1"]
    assert found.people.loc["x", "i0"] < common["i0"]
    assert rank_items(answers.drop(columns="person")).people is None


def test_notes_name_groups_items_without_a_loss_or_a_win_and_cycles() -> None:
    groups, lost, won, cycles, _ = rank_items(
        table("winner,loser,count a,b,5 b,c,5 c,a,5 a,d,9 e,f,9")
    ).notes
    assert groups.startswith("2 groups of items were never compared with each other: a, b, c, d")
    assert lost.startswith("never lost: e.")
    assert won.startswith("never won: d, f.")
    assert cycles.startswith(
        "cycles: 3 items are in cycles of three clear majorities, such as a > b"
    )
    assert rank_items(table("winner,loser a,b b,a b,c c,b")).notes == (ONE_PERSON,)


def test_a_cycle_within_two_standard_errors_is_not_noted() -> None:
    for count, notes in ((4, 1), (5, 2)):  # 4 = 2 sqrt(4)
        answers = table(f"winner,loser,count a,b,{count} b,c,{count} c,a,{count}")
        assert len(rank_items(answers).notes) == notes


def test_notes_name_few_answers_and_names_that_may_be_the_same() -> None:
    answers = table(
        "person,winner,loser,count Anna,Aero_2,Kite,2 anna,Kite,Areo_2,1 Ben,Kite,Aero_2,9"
    )
    few, case = rank_items(answers).notes[-2:]
    assert few.startswith("people have 4.0 answers on average. With fewer than about 10,")
    assert case == "people differ in case only: Anna, anna"
    assert rank_items(answers).similar == {"Areo_2": "Aero_2"}
    lines = str(rank_items(answers)).splitlines()
    place = lines.index("* Areo_2 was compared once; is it Aero_2?")
    assert all(each in "".join(lines[2:place]) for each in ("Areo_2 *", "Aero_2 ", "Kite "))
    assert "".join(lines[2:place]).count("*") == 1
    for wrong, right in (("Clam", "Calm"), ("Dahs", "Dash"), ("xy", "yx")):  # neighbours swapped
        swapped = answers.replace({"Areo_2": wrong, "Kite": right})
        assert rank_items(swapped).similar == {wrong: right}
    assert not rank_items(answers.replace({"Areo_2": "Malc", "Kite": "Calm"})).similar
    numbered = answers.replace("Areo_2", "Aero_3").assign(count=20)
    assert not rank_items(numbered).similar
    assert [note.partition(":")[0] for note in rank_items(numbered).notes] == [
        "never won", "people differ in case only",
    ]  # fmt: skip


def test_the_next_pairs_are_new_informative_and_each_once() -> None:
    """Each pair has the largest gain, by brute force with explicit inverses of the precision."""
    text = "winner,loser,count a,b,3 b,c,1 c,d,1 d,e,2 a,e,4"
    found = rank_items(table(text), 0.5)
    utilities = found.table.set_index("item")["utility"]
    names, precision = [*"abcde"], 0.5 * np.eye(5)
    compared = {"ab": 3, "bc": 1, "cd": 1, "de": 2, "ae": 4}

    def curvature(difference: float) -> float:
        return 1.0 / (2.0 + np.exp(difference) + np.exp(-difference))

    def vector(pair: str) -> np.ndarray:
        return np.array([(name == pair[0]) - float(name == pair[1]) for name in names])

    def add(pair: str, times: float) -> None:
        nonlocal precision
        gained = times * curvature(utilities[pair[0]] - utilities[pair[1]])
        precision = precision + gained * np.outer(vector(pair), vector(pair))

    for pair, times in compared.items():
        add(pair, times)
    left, expected = {"".join(pair) for pair in itertools.combinations(names, 2)}, []
    for _ in range(10):
        gains = {}
        for pair in left:
            square = vector(pair) @ np.linalg.solve(precision, vector(pair))
            logit = (utilities[pair[0]] - utilities[pair[1]]) / np.sqrt(1 + np.pi / 8 * square)
            gains[pair] = np.log1p(curvature(logit) * square)
        expected.append(max(gains, key=gains.get))
        left.remove(expected[-1])
        add(expected[-1], 1)
    pairs = found.next_pairs(99)
    assert ["".join(sorted(pair)) for pair in pairs.to_numpy()] == expected
    assert 0 < (pairs["first"] < pairs["second"]).sum() < 10  # the order in a pair is random
    pd.testing.assert_frame_equal(found.next_pairs(3), pairs[:3])


@pytest.mark.slow
def test_the_next_pairs_rank_better_than_random_pairs() -> None:
    """Kendall's tau with the true order of ten items after 90 answers, as documented."""
    names = [*"abcdefghij"]

    def tau(seed: int, is_random: bool) -> float:
        rng, found, rows = np.random.default_rng([seed, is_random]), None, list[list[str]]()
        true = pd.Series(np.sqrt(2) * np.random.default_rng(seed).standard_normal(10), names)
        while len(rows) < 90:
            pairs = [rng.choice(names, 2, replace=False).tolist() for _ in range(5)]
            if found is not None and not is_random:
                pairs = found.next_pairs(5).to_numpy().tolist()
            for one, other in pairs:
                won = rng.random() < 1 / (1 + np.exp(true[other] - true[one]))
                rows.append([one, other] if won else [other, one])
            if not is_random or len(rows) == 90:
                found = rank_items(pd.DataFrame(rows, columns=["winner", "loser"]))
        utilities = found.table.set_index("item")["utility"]
        return kendalltau(true[utilities.index], utilities).statistic

    taus = np.array([[tau(seed, is_random) for is_random in (False, True)] for seed in range(60)])
    gained = taus[:, 0] - taus[:, 1]
    assert gained.mean() > 3 * gained.std(ddof=1) / np.sqrt(60)
    selected, random = taus.mean(axis=0)
    guide = (ROOT / "docs" / "howto" / "rank.md").read_text()
    assert f"Kendall's tau of {selected:.2f} instead of {random:.2f}" in guide.replace("\n", " ")


def test_other_names_of_columns_and_the_name_of_the_winner_are_read() -> None:
    expected = rank_items(table("first,second,preference a,b,1 b,c,0 c,a,0.5")).table
    for text in (
        "item_a,item_b,choice a,b,a b,c,item_b c,a,tie",
        "Item_1,Item_2,winner a,b,First b,c,c c,a,0.5",
        "option_a,option_b,which_won a,b,1 b,c,second c,a,Tie",
        "first,second,won a,b,A b,c,C c,a,tie",  # names in another case; A is the item a
    ):
        pd.testing.assert_frame_equal(rank_items(table(text)).table, expected)


PEOPLE = "user", "user_id", "userid", "respondent", "participant"


def test_a_column_of_people_may_have_another_name() -> None:
    answers = drawn(20, 4, 12)
    expected, pooled = rank_items(answers), rank_items(answers.drop(columns="person"))
    for name in (*PEOPLE, "User ID", "RESPONDENT"):
        found = rank_items(answers.rename(columns={"person": name}))
        pd.testing.assert_frame_equal(found.table, expected.table)
        assert found.notes == expected.notes
    width, narrow = (each.table["high"] - each.table["low"] for each in (expected, pooled))
    assert width.mean() > 1.2 * narrow.mean()  # people differ
    both = rank_items(answers.assign(user_id="x"))  # the column person is used
    pd.testing.assert_frame_equal(both.table, expected.table)
    assert both.notes == (*expected.notes, "ignored columns: user_id")
    twice = answers.rename(columns={"person": "user"}).assign(user_id="x")
    with pytest.raises(DataError, match="the columns are user, first, second, preference, user_id"):
        rank_items(twice)


def test_columns_that_are_not_used_are_named() -> None:
    found = rank_items(table("Date,winner,loser,Colour 1,a,b,x 2,b,a,y"))
    assert found.notes == ("ignored columns: Date, Colour", ONE_PERSON)
    assert "\nNote: ignored columns: Date, Colour.\n" in str(found)


def test_a_number_is_a_name_only_if_other_answers_are_names() -> None:
    assert shares(["1", "0"], ["2", "0"], ["1", "1"]) == [1.0, 0.0]
    assert shares(["1", "0", "7"], ["2", "0", "7"], ["1", "1", "8"]) == [0.0, 1.0, 1.0]
    assert shares(["1", "a"], ["a", "a"], ["b", "b"]) == [1.0, 1.0]
    assert shares(["1.5", "", "TIE"], ["a"] * 3, ["b"] * 3) == [None, None, 0.5]


def test_letters_are_sides_unless_an_item_has_this_name_and_names_ignore_case() -> None:
    assert shares(["A", "b", "TEA"], ["tea"] * 3, ["mate"] * 3) == [1.0, 0.0, 1.0]
    assert shares(["A", "b"], ["B", "A"], ["A", "B"]) == [0.0, 0.0]  # names of items
    assert shares(["A"] * 2, ["tea", "a"], ["mate", "b"]) == [None, 1.0]
    assert shares(["Tea", "tea", "TEA"], ["tea"] * 3, ["Tea"] * 3) == [0.0, 1.0, None]


def test_other_names_of_columns_are_in_the_guide_and_in_the_message() -> None:
    guide = (ROOT / "docs" / "howto" / "rank.md").read_text()
    with pytest.raises(DataError) as error:
        parse_comparisons(table("x,y a,b"))
    names = "item_a option_a item_1 option_1 item_b option_b item_2 option_2 choice which_won won"
    for name in (*names.split(), "preferred", *PEOPLE):
        assert f"`{name}`" in guide
        assert name in str(error.value)


REFUSED = {
    "winer,loser a,b": "the columns are winer, loser; it must have the columns",
    "winner,loser a,a": "line 2: loser is 'a'; winner is the same item",
    "winner,loser a,b ,b": "line 3: winner is ''; must be the name of an item",
    "first,second,preference a,b,2": "line 2: preference is '2'; must be first, 1 or A; second,",
    "winner,loser,count a,b,-1": "line 2: count is '-1'; must be a number from 0 to 1e9",
    "winner,loser,count a,b,0": "count is 0 in each row",
    "winner,loser,tie a,b,perhaps": "line 2: tie is 'perhaps'; must be yes, no, 1, 0 or empty",
    "winner,loser,person a,b,": "line 2: person is ''; must be a name",
    "item_a,item_b,Which_Won a,b,2": "line 2: Which_Won is '2'; must be first, 1 or A; second,",
    "Item_1,item_b,won a,a,1": "line 2: item_b is 'a'; Item_1 is the same item",
    "winner,loser": "there are no comparisons below the header",
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_table_that_cannot_be_used_is_refused_in_one_line_with_its_row(text: str) -> None:
    with pytest.raises(DataError) as error:
        parse_comparisons(table(text), "answers.csv", range(2, 9))
    assert str(error.value).startswith(f"answers.csv: {REFUSED[text]}")


def test_all_rows_with_the_same_fault_are_named() -> None:
    """The first one with its value, five others, and how many more there are."""
    rows = ["a,b", "a,a", "b,b", "a,b", *["c,c"] * 7]
    for last, others in (
        (2, "the same item"), (3, " (also line 4)"), (8, " (also line 4, 6, 7, 8, 9)"),
        (10, " (also line 4, 6, 7, 8, 9 and 2 more)"),
    ):  # fmt: skip
        text = " ".join(["winner,loser", *rows[:last]])
        with pytest.raises(DataError, match=r"^answers.csv: line 3: loser is 'a'; ") as error:
            parse_comparisons(table(text), "answers.csv", range(2, 99))
        assert str(error.value).endswith(others)


def test_an_empty_answer_names_the_remedy_and_rows_with_other_faults_are_counted() -> None:
    """Of the rows with other faults, one has two and counts once; line 3 has the first fault."""
    text = "option_a,option_b,choice,count a,b,a,1 a,b,,x a,b,c,1 a,b,,1 a,b,b,-1 b,a,a,x"
    with pytest.raises(DataError) as error:
        parse_comparisons(table(text), "a.csv", range(2, 99))
    assert str(error.value) == (
        "a.csv: line 3: choice is ''; must be first, 1 or A; second, 0 or B; tie or 0.5; a number"
        " between 0 and 1; or the name of the winner; leave out rows without an answer (also line"
        " 4, 5); lines with other faults: 2"
    )


def test_rows_of_a_data_frame_are_named_by_its_index() -> None:
    answers = pd.DataFrame({"winner": ["a", "b"], "loser": ["b", "b"]}, index=["x", "y"])
    for wrong, message in (
        (answers, "^the table: row y: loser is 'b'; winner is the same item$"),
        (answers[["loser"]], "^the table: the columns are loser; it must have the columns winner"),
        (answers.to_dict(), "^the comparisons must be a DataFrame or the path of a file, not dict"),
    ):
        with pytest.raises(DataError, match=message):
            rank_items(wrong)


def test_files_have_commas_semicolons_tabs_or_are_of_excel(tmp_path: Path) -> None:
    data = pd.DataFrame({"Winner": ["tea, green", "mate"], "LOSER": ["mate", "Kaffee für zwei"]})
    for separator in ",;\t":
        data.to_csv(
            tmp_path / f"{ord(separator)}.csv", sep=separator, index=False, encoding="utf-8-sig"
        )
    data.to_excel(tmp_path / "a.xlsx", index=False)
    for file in tmp_path.iterdir():
        assert read_comparisons(file).items == ("tea, green", "mate", "Kaffee für zwei")
    (tmp_path / "latin.csv").write_bytes("winner,loser\nä,b\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"line 2: it is not in UTF-8; .* in Excel, save it as"):
        read_comparisons(tmp_path / "latin.csv")
    with pytest.raises(DataError, match="cannot be read"):
        read_comparisons(tmp_path / "none.csv")


def test_the_command_prints_and_writes_the_ranking(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "answers.csv"
    drawn(8, 4, 20).to_csv(file, index=False)
    rank.main([str(file), "--output", str(tmp_path / "out"), "--next", "4"])
    following = pd.read_csv(tmp_path / "out-next.csv")
    assert [*following] == ["first", "second"]
    assert len({frozenset(pair) for pair in following.to_numpy()}) == 4
    output = capsys.readouterr().out
    assert output.startswith(f"{rank_items(file)}\nwritten: ")
    assert "A ranking for each person predicts" in output
    assert output.startswith("160 comparisons of 4 items by 8 people\n")
    people = pd.read_csv(tmp_path / "out-people.csv", index_col="person")
    assert people.shape == (8, 4)
    furthest = ((people - people.mean()) ** 2).sum(axis=1)
    assert f"Furthest from the common ranking: {furthest.idxmax()} (" in output
    written = pd.read_csv(tmp_path / "out.csv")
    assert [*people] == [*written["item"]]
    assert sorted(written["item"]) == ["i0", "i1", "i2", "i3"]
    assert written["utility"].is_monotonic_decreasing
    assert written["best"].sum() == pytest.approx(1.0)
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SystemExit, match=r"^error: .*none.csv: cannot be read"):
        rank.main([str(tmp_path / "none.csv")])
