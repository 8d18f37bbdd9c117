"""DuelingBandit: the estimate, scikit-learn's conventions, proposals and invalid input."""

import itertools
import math
import pickle
import subprocess
import sys
from fractions import Fraction

import mpmath
import numpy as np
import pandas as pd
import pytest
from conftest import ROOT

import fldb_flower as fldb
from fldb_flower.bandit.selection.informative import most_informative
from fldb_flower.errors import ConvergenceError


def duels(n=200, d=3, seed=0):
    """Draw duels from the preference model with a theta of length about 2."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    theta = rng.normal(size=d) * 2 / np.sqrt(d)
    return x, (rng.random(n) < 1 / (1 + np.exp(-x @ theta))).astype(int)


@pytest.mark.parametrize("ridge", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_agrees_with_logistic_regression(ridge, weighted):
    linear_model = pytest.importorskip("sklearn.linear_model")
    x, y = duels()
    weights = np.random.default_rng(1).integers(0, 4, len(y)) if weighted else None
    theirs = linear_model.LogisticRegression(
        C=1 / ridge, fit_intercept=False, tol=1e-12, max_iter=10_000
    ).fit(x, y, weights)
    ours = fldb.DuelingBandit(ridge=ridge, scale=None).fit(x, y, weights)
    assert ours.coef_ == pytest.approx(theirs.coef_, abs=1e-6)
    assert ours.predict_proba(x) == pytest.approx(theirs.predict_proba(x), abs=1e-6)
    assert (ours.predict(x) == theirs.predict(x)).all()
    assert ours.decision_function(x) == pytest.approx(theirs.decision_function(x), abs=1e-5)
    assert ours.score(x, y, weights) == pytest.approx(theirs.score(x, y, weights))
    assert ours.coef_.shape == theirs.coef_.shape
    assert ours.intercept_.tolist() == [0.0]
    assert ours.classes_.tolist() == theirs.classes_.tolist()


def test_a_share_of_answers_equals_these_answers():
    """A tie is half a win each; 3 wins of 4 are one duel of weight 4 with share 0.75."""
    x = np.array([[1.0, 2.0], [0.5, -1.0]])
    apart = fldb.DuelingBandit().fit(np.repeat(x, 4, axis=0), [1, 1, 1, 0, 0, 0, 1, 1])
    together = fldb.DuelingBandit().fit(x, [0.75, 0.5], sample_weight=[4, 4])
    assert together.coef_ == pytest.approx(apart.coef_, abs=1e-12)


def test_covariance_is_the_inverse_hessian():
    x, y = duels(d=2)
    learner = fldb.DuelingBandit(ridge=0.5, scale=None).fit(x, y)

    def gradient(theta):
        return x.T @ (1 / (1 + np.exp(-x @ theta)) - y) + 0.5 * theta

    steps = 1e-5 * np.eye(2)
    theta = learner.coef_[0]
    columns = [(gradient(theta + step) - gradient(theta - step)) / 2e-5 for step in steps]
    assert learner.covariance_ == pytest.approx(np.linalg.inv(columns), rel=1e-6)
    assert learner.standard_errors_ == pytest.approx(np.sqrt(np.diag(learner.covariance_)))


SCALED = {  # differences, preferences, weights
    "one": ([[1.0]], [1], [1]),
    "a contradiction": ([[1.0], [2.0], [-1.0]], [1, 0, 1], [1, 2, 0.5]),
    "a tie and a win": ([[1.0], [3.0]], [0.5, 1], [1, 1]),
    "a tie and a tiny win": ([[1.0], [1e-9]], [0.5, 1], [1, 1e-3]),
    "one of two features": ([[1.0, 3.0]], [1], [1]),
    "separable": ([[1.0, 2.0], [2.0, -1.0], [3.0, 0.5]], [1, 0, 1], [1, 1, 4]),
    "not separable": ([[1.0, 2.0], [2.0, -1.0]] * 2, [1, 0, 0, 1], [1, 1, 0.5, 0.2]),
    "ties and a win": ([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]], [0.5, 1, 0.7], [1, 1, 3]),
    "weights": ([[1.0, 2.0], [2.0, -1.0], [1.0, 0.5], [1.0, 2.0]], [1, 0, 1, 0], [1, 1e-6, 1, 1]),
    "a long duel": ([[1.0, 0.0], [1e8, 1e3]], [1, 1], [1, 1]),
}
UNITS = [1e-150, 1e-100, 1e-20, 1e-8, 1.0, 1e8, 1e20, 1e100, 1e150]


def exact_fit(duels, ridge, theta):
    """Newton's step from theta, (d,), and the inverse Hessian after it, by mpmath."""
    rows, answers, weights = ([mpmath.mpf(float(x)) for x in np.ravel(each)] for each in duels)
    d = len(theta)
    rows = [mpmath.matrix(rows[start : start + d]) for start in range(0, len(rows), d)]
    steps, theta = [], mpmath.matrix(theta.tolist())
    for _ in range(2):
        gradient, hessian = ridge * theta, ridge * mpmath.eye(d)
        for x, y, weight in zip(rows, answers, weights, strict=True):
            z = (x.T * theta)[0]
            wins, loses = 1 / (1 + mpmath.exp(-z)), 1 / (1 + mpmath.exp(z))
            gradient += weight * ((1 - y) * wins - y * loses) * x
            hessian += weight * wins * loses * x * x.T
        steps.append(-mpmath.lu_solve(hessian, gradient))
        theta += steps[-1]
    assert mpmath.norm(steps[1]) <= 1e-6 * mpmath.norm(steps[0]) + 1e-20 * mpmath.norm(theta)
    return theta, hessian**-1


@pytest.mark.parametrize("case", SCALED)
def test_duels_of_any_scale(case):
    """Within 1e-8 of the minimiser, or refused; by exact Newton steps from the estimate."""
    units, refused = list(itertools.product(UNITS, repeat=3)), []
    for pick in np.random.default_rng(len(case)).choice(len(units), 24, replace=False).tolist():
        unit, ridge, weight = units[pick]
        rows, answers, weights = (np.array(each, float) for each in SCALED[case])
        duels = unit * rows, answers, weight * weights
        # See test_invalid_input.
        if max(ridge, np.abs(duels[0]).max(), duels[2].max()) > 1e100:
            continue
        try:
            learner = fldb.DuelingBandit(ridge=ridge, scale=None).fit(*duels)
        except ConvergenceError:
            refused.append(math.log10(ridge) - 2 * math.log10(unit) - math.log10(weight))
            continue
        with mpmath.workdps(700):
            theta, covariance = exact_fit(duels, ridge, learner.coef_[0])
            error = mpmath.norm(mpmath.matrix(learner.coef_[0].tolist()) - theta)
            assert error <= 1e-8 * mpmath.norm(theta)
            for (i, j), found in np.ndenumerate(learner.covariance_):
                unit = mpmath.sqrt(covariance[i, i] * covariance[j, j])
                assert abs(found - covariance[i, j]) <= 1e-8 * unit
    assert not [ratio for ratio in refused if -11 < ratio < 100]


@pytest.mark.parametrize(
    ("ridge", "unit", "weight", "better"),
    [(1e-150, 1e100, 1.0, "1e+200"), (1e100, 1e-100, 1e-120, "1e-320")],
)
def test_extreme_ridges_are_refused(ridge, unit, weight, better):
    """Otherwise the probabilities, or the estimate, are too small for float64."""
    with pytest.raises(ConvergenceError) as error:
        fldb.DuelingBandit(ridge=ridge, scale=None).fit([[unit]], [1], [weight])
    assert str(error.value) == (
        f"ridge={ridge:g} gives no accurate estimate with differences of features up to {unit:.1e}"
        f" and weights up to {weight:.1e}: scale the features to about 1, or use a ridge nearer to"
        f" {better}"
    )


@pytest.mark.parametrize(
    ("ridge", "unit", "weight", "count"),
    [(1e-14, 1, 1, 1), (1e-20, 1, 1, 1), (1, 1e8, 1, 10), (1e-12, 1, 1e-12, 3), (1e-100, 1, 1, 1)],
)
def test_one_feature_without_contradictions(ridge, unit, weight, count):
    """``ridge theta = n w x mu(-x theta)``, by bisection of its logarithm."""
    learner = fldb.DuelingBandit(ridge=ridge, scale=None)
    learner.fit([[unit]] * count, [1] * count, [weight] * count)
    low, high = 1e-300, 1e3
    for _ in range(200):
        z = (low + high) / 2
        gain = math.log(count * weight) + 2 * math.log(unit) - np.logaddexp(0.0, z)
        low, high = (z, high) if gain > math.log(ridge) + math.log(z) else (low, z)
    assert learner.coef_[0, 0] * unit == pytest.approx(z, rel=1e-11)
    information = ridge * (1 + z / (1 + math.exp(-z)))  # n w x^2 mu(-z) = ridge z
    assert learner.standard_errors_[0] == pytest.approx(information**-0.5, rel=1e-9)


def test_online_duels_give_the_estimate_of_all_duels():
    rng = np.random.default_rng(3)
    first, second = rng.normal(size=(2, 30, 4))
    y = rng.integers(0, 3, 30) / 2
    online = fldb.DuelingBandit(dimension=4)
    for arms in zip(first, second, y, strict=True):
        online.record(*arms)
    offline = fldb.DuelingBandit().fit(first - second, y)
    assert online.coef_ == pytest.approx(offline.coef_, abs=1e-9)
    batches = fldb.DuelingBandit()
    for part in np.array_split(np.arange(30), 4):
        batches.partial_fit((first - second)[part], y[part])
    assert batches.coef_ == pytest.approx(offline.coef_, abs=1e-9)
    few = fldb.DuelingBandit().fit(first[:5], y[:5])
    assert online.fit(first[:5], y[:5]).coef_ == pytest.approx(few.coef_)  # forgets earlier duels


def test_rank_keeps_the_order_of_equal_arms_and_score_leaves_ties_out():
    learner = fldb.DuelingBandit().fit([[1.0, 0.0]], [1])
    arms = [[0.0, 9.0], [1.0, 0.0], [0.0, 1.0], [1.0, 5.0]]
    assert learner.rank(arms).tolist() == [1, 3, 0, 2]
    assert learner.score([[1.0, 0.0]] * 3, [0.9, 0.2, 0.5]) == 0.5
    assert np.isnan(learner.score([[1.0, 0.0]], [0.5]))


def test_ucb_selects_the_best_arm_and_its_challenger():
    """The bound of each arm, from the covariance."""
    x, y = duels(20, 4)
    learner = fldb.DuelingBandit(width=2.0).fit(x, y)
    arms = np.random.default_rng(5).normal(size=(12, 4))
    theta, covariance = learner.coef_[0], learner.covariance_
    best = max(range(12), key=lambda k: arms[k] @ theta)

    def bound(k):
        lead = arms[k] - arms[best]
        return lead @ theta + 2.0 * np.sqrt(lead @ covariance @ lead)

    challenger = max(range(12), key=bound)
    assert challenger != best
    assert learner.propose(arms) == (best, challenger)


@pytest.mark.parametrize("selection", ["ucb", "maxinp", "colstim", "maxpairucb", "thompson"])
def test_every_rule_proposes_two_different_arms(selection):
    arms = np.random.default_rng(0).normal(size=(6, 3))
    proposals = []
    for _ in range(2):
        learner = fldb.DuelingBandit(selection=selection, random_state=7, width=0.1)
        pairs = []
        for _ in range(20):
            i, j = learner.propose(arms)
            assert i != j
            learner.record(arms[i], arms[j], float(arms[i, 0] > arms[j, 0]))
            pairs.append((i, j))
        proposals.append(pairs)
        assert learner.rank(arms)[0] == np.argmax(arms[:, 0])
    assert proposals[0] == proposals[1]
    if selection == "thompson":  # draws differ between proposals and seeds
        one, other = (
            fldb.DuelingBandit(selection=selection, width=5.0, random_state=seed) for seed in (0, 1)
        )
        pairs = [[learner.propose(arms) for _ in range(10)] for learner in (one, other)]
        assert len({*pairs[0]}) > 1
        assert pairs[0] != pairs[1]


def test_scikit_learn_clones_and_validates():
    base = pytest.importorskip("sklearn.base")
    selection = pytest.importorskip("sklearn.model_selection")
    x, y = duels(300)
    learner = fldb.DuelingBandit(ridge=0.1)
    copy = base.clone(learner.fit(x, y))
    assert copy.get_params() == learner.get_params()
    assert not hasattr(copy, "coef_")
    assert base.is_classifier(learner)
    assert selection.cross_val_score(learner, x, y, cv=3).mean() > 0.7
    search = selection.GridSearchCV(
        learner, {"ridge": [0.1, 1000.0]}, scoring="neg_log_loss", cv=3
    ).fit(x, y)
    assert search.best_params_ == {"ridge": 0.1}


def test_the_most_informative_pair_of_many_arms_is_named_by_its_places():
    """Of 2,000 arms, 300 are compared. Without answers, the first candidate is the pair."""
    arms, asked = np.random.default_rng(0).normal(size=(2000, 3)), []

    def known(one, other):
        asked.append({one, other})
        return False, 0.0

    pair = most_informative(arms, np.zeros(3), np.eye(3), known)
    assert asked == [set(pair)]


def test_answers_may_be_words():
    arms, words = [[1.0, 0.2], [0.1, 0.9]], {"first": 1.0, "second": 0.0, "tie": 0.5}
    for word, number in words.items():
        one, other = (fldb.DuelingBandit().record(*arms, each) for each in (word, number))
        np.testing.assert_array_equal(one.coef_, other.coef_)


LABELS = "0 and 1 say which arm was preferred; other labels are errors"
NOT_APPLICABLE = {
    "check_estimators_dtypes": LABELS,
    "check_sample_weights_pandas_series": LABELS,
    "check_sample_weights_not_an_array": LABELS,
    "check_sample_weights_shape": LABELS,
    "check_sample_weights_not_overwritten": LABELS,
    "check_classifier_data_not_an_array": LABELS,
    "check_classifiers_classes": LABELS,
    "check_classifier_not_supporting_multiclass": LABELS,
    "check_fit2d_1feature": LABELS,
    "check_classifiers_regression_target": "shares of answers between 0 and 1 are preferences",
    "check_dtype_object": "all invalid input is a ValueError; the check wants a TypeError",
    "check_supervised_y_2d": "a single column is accepted without a warning",
}


@pytest.mark.filterwarnings("ignore:Estimator DuelingBandit does not inherit")
def test_scikit_learn_checks():
    checks = pytest.importorskip("sklearn.utils.estimator_checks")
    if not hasattr(checks, "estimator_checks_generator"):
        pytest.skip("check_estimator of scikit-learn before 1.6 has no expected failures")
    results = checks.check_estimator(
        fldb.DuelingBandit(),
        expected_failed_checks=NOT_APPLICABLE,
        on_fail=None,
        on_skip=None,
    )
    failed = [each["check_name"] for each in results if each["status"] == "failed"]
    assert failed == []
    assert sum(each["status"] == "passed" for each in results) >= 40


def test_parameters():
    learner = fldb.DuelingBandit(ridge=2.0, selection="thompson")
    assert repr(learner) == "DuelingBandit(ridge=2.0, selection='thompson')"
    assert learner.set_params(ridge=3.0, dimension=2) is learner
    assert learner.get_params() == {
        "dimension": 2, "ridge": 3.0, "width": None, "selection": "thompson",
        "random_state": None, "scale": "auto", "half_life": None,
    }  # fmt: skip
    with pytest.raises(ValueError, match="'rigde' is not a parameter of DuelingBandit: must be"):
        learner.set_params(rigde=1.0)


def test_a_learner_can_be_pickled():
    x, y = duels()
    arms = x[:8]
    learner = fldb.DuelingBandit(selection="thompson", random_state=0).fit(x, y)
    learner.propose(arms)
    copy = pickle.loads(pickle.dumps(learner))
    assert [copy.propose(arms) for _ in range(5)] == [learner.propose(arms) for _ in range(5)]
    assert (copy.partial_fit(x, y).coef_ == learner.partial_fit(x, y).coef_).all()


GOOD = np.eye(3)
MASKED = np.ma.array(GOOD[:2], mask=[[True, False, False], [False, False, False]])
ONE_SIDED = np.array([[1.0, "2", 3.0]] * 2, dtype=object)
DATES = np.array([["2020-01-01"] * 3], "datetime64[D]")
HUGE, LONG = 10**400, r"10{96}\.\.\."
INVALID = {  # method, arguments, the error
    "fit": [
        (([[np.nan, 1, 1]], [1]), "X contains nan: must contain numbers of .* not NaN or infinity"),
        (([1.0, 2.0], [1, 0]), "X has shape"),
        (([["a", "b", "c"]], [1]), "X must contain numbers"),
        (([[1.0, 2.0]], [1]), "X has 2 features, but DuelingBandit is expecting 3"),
        (([[1e200, 0, 0]], [1]), r"X contains 1e\+200: must contain numbers of at most 1e\+100"),
        (([[HUGE, 0, 0]], [1]), "X must contain numbers: int too large"),
        ((GOOD[:1], [HUGE]), "y must contain numbers: int too large"),
        ((MASKED, [1, 1]), "X has masked entries: leave these out"),
        (([GOOD[0], MASKED[0]], [1, 1]), "X has masked entries"),
        (([[1.0, np.ma.masked, 1.0]], [1]), "X has masked"),
        ((GOOD[:2], MASKED[:, 0]), "y has masked entries"),
        ((GOOD[:2], [1, 1], MASKED[:, 0]), "sample_weight has masked entries"),
        (([["1", "2", "3"]], [1]), "X must contain numbers: it contains strings"),
        (([[b"1", b"2", b"3"]], [1]), "X must contain numbers: it contains strings"),
        ((GOOD, [1, 0, "1"]), "y must contain numbers: it contains strings"),
        ((np.empty((0, 3)), []), "X has 0 sample"),
        ((GOOD, [0, 1, 2]), "y contains 2: must be"),
        ((GOOD, [-1, 1, 1]), "y contains -1: must be"),
        ((GOOD, [0, 1, np.nan]), "y contains nan"),
        ((GOOD, [0, 1]), r"y has shape \(2,\): must be \(3,\)"),
        ((GOOD, [0, 1, 1], [1, 1, -1]), "sample_weight contains -1"),
        ((DATES, [1]), r"X must contain numbers: its type is datetime64\[D\]"),
        ((None, [1]), "X is None: must be an array"),
    ],
    "record": [
        (([Fraction(HUGE), 0, 0], GOOD[1], 1), "first must contain numbers: integer division"),
        ((MASKED[0], GOOD[1], 1), "first has masked entries"),
        ((GOOD[0], MASKED[0], 1), "second has masked entries"),
        ((1.0, 0.0, 1), r"first has shape \(\)"),
        ((GOOD[0], [1.0, 0.0], 1), "second has 2 features"),
        ((GOOD[0], GOOD[1], HUGE), f"preferred={LONG}: must be 1"),
        ((GOOD[0], GOOD[1], np.ma.masked), "preferred=masked: must be 1"),
        ((GOOD[0], GOOD[1], 2), "preferred=2: must be"),
        ((GOOD[0], GOOD[1], "left"), "preferred='left': must be"),
        ((GOOD[0], GOOD[1], np.nan), "preferred=nan: must be"),
    ],
    "propose": [
        ((MASKED,), "arms has masked entries"),
        ((ONE_SIDED,), "arms must contain numbers: it contains strings"),
        ((GOOD[:1],), "arms has fewer than two rows: a duel needs two"),
        ((np.eye(2),), "arms has 2 features"),
    ],
    "rank": [((GOOD,), "has no estimate yet: call fit or record")],
}
PARAMETERS = [  # parameters, method, the error
    ({"width": 1e308}, "propose", r"width=1e\+308: must be .* at least 0 and at most 1e\+100"),
    ({"width": HUGE}, "propose", f"width={LONG}: must be a number, at least 0"),
    ({"width": -1}, "propose", "width=-1: must be a number, at least 0 and"),
    ({"ridge": 10**5000}, "fit", r"ridge=<int>: must be .* above 0 and at most 1e\+100"),
    ({"ridge": 0}, "fit", "ridge=0: must be a number, above 0 and"),
    ({"dimension": 2.5}, "propose", "dimension=2.5: must be a whole"),
    ({"selection": "ubc"}, "propose", "selection='ubc': must be one of"),
    ({"selection": ["ucb"]}, "propose", r"selection=\['ucb'\]: must be one of"),
    ({"selection": "foo"}, "fit", "selection='foo': must be one of"),
    ({"selection": "thompson", "random_state": "a"}, "propose", "random_state='a': must be"),
]


def test_invalid_input():
    rows = [(name, *row) for name, rows in INVALID.items() for row in rows]
    for name, arguments, message in rows:
        with pytest.raises(ValueError, match=message) as error:
            getattr(fldb.DuelingBandit(dimension=3), name)(*arguments)
        assert "\n" not in str(error.value)
    for parameters, name, message in PARAMETERS:
        learner = fldb.DuelingBandit(**{"dimension": 3, **parameters})
        with pytest.raises(ValueError, match=f"^{message}"):
            learner.fit(GOOD, [1, 1, 1]) if name == "fit" else learner.propose(GOOD)
    with pytest.raises(ValueError, match="arms has 4 features"):
        fldb.DuelingBandit().fit(GOOD, [1, 1, 1]).rank(np.eye(4))
    message = r"arms up to 1e\+100, width=0.75, ridge=1e-150: .* too large; use numbers of about 1"
    with pytest.raises(ValueError, match=message):
        fldb.DuelingBandit(ridge=1e-150, scale=None).propose(1e100 * GOOD)


def test_features_of_any_kind_of_array():
    pandas = pytest.importorskip("pandas")
    x, y = duels(40)
    expected = fldb.DuelingBandit().fit(x, y).coef_
    frame, series = pandas.DataFrame(x), pandas.Series(y)
    nothing_masked = np.ma.array(x, mask=np.zeros_like(x, dtype=bool)), np.ma.array(y)
    for each in (
        nothing_masked,
        (frame, series),
        (x.tolist(), y.tolist()),
        (x, y.astype(bool)),
        (x, y[:, None]),
    ):
        assert fldb.DuelingBandit().fit(*each).coef_ == pytest.approx(expected)
    before = x.copy(), y.copy()
    fldb.DuelingBandit().fit(x, y).record(x[0], x[1], True)
    assert (x == before[0]).all()
    assert (y == before[1]).all()


def test_needs_neither_scikit_learn_nor_files(tmp_path):
    code = (
        "import sys; sys.modules['sklearn'] = None\n"
        "import fldb_flower as fldb\n"
        "learner = fldb.DuelingBandit(dimension=2)\n"
        "try:\n    learner.rank([[1, 0]])\n"
        "except ValueError as error:\n    print(error)\n"
        "i, j = learner.propose([[1, 0], [0, 1]])\n"
        "print(learner.record([1, 0], [0, 1], 1).rank([[0, 1], [1, 0]]), 'flwr' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[1 0] False"
    assert "has no estimate yet" in done.stdout
    assert not list(tmp_path.iterdir())


def test_with_the_purpose_rank_each_pair_is_asked_before_one_is_asked_again():
    random = np.random.default_rng(0)
    arms = pd.DataFrame(random.normal(size=(6, 3)) * [1, 50, 0.1], [*"abcdef"])
    learner, asked = fldb.DuelingBandit(), []
    for _ in range(30):
        first, second = learner.propose(arms, purpose="rank")
        asked.append(frozenset([first, second]))
        learner.record(first, second, 0.5)
    assert len({*asked[:15]}) == 15
    assert len({*asked[15:]}) > 5
    fixed = {frozenset(learner.propose(arms)) for _ in range(5)}
    assert len(fixed) == 1
    learner = fldb.DuelingBandit().fit(arms.loc[["a"]] - arms.loc["b"], [1], sample_weight=[4])
    assert {*learner.propose(arms.loc[["a", "b", "c"]], purpose="rank")} != {"a", "b"}


def test_the_first_pair_for_a_ranking_is_the_one_that_shrinks_the_posterior_most():
    """With equal utilities, the information is that of the largest posterior deviation."""
    arms = np.random.default_rng(1).normal(size=(7, 2))
    differences = np.random.default_rng(2).normal(size=(9, 2))
    learner = fldb.DuelingBandit(scale=None).fit(differences, np.full(9, 0.5))
    assert np.allclose(learner.coef_, 0.0)
    gains = {
        (i, j): (arms[i] - arms[j]) @ learner.covariance_ @ (arms[i] - arms[j])
        for i in range(7)
        for j in range(i)
    }
    assert {*learner.propose(arms, purpose="rank")} == {*max(gains, key=gains.get)}


def test_an_unknown_purpose_and_columns_of_texts_are_refused():
    with pytest.raises(ValueError, match="purpose='learn': must be one of suggest, rank"):
        fldb.DuelingBandit().propose([[1.0], [2.0]], purpose="learn")
    table = pd.DataFrame({"colour": ["red", "blue"], "size": [1, 2]})
    with pytest.raises(ValueError, match=r"contains strings; see pandas.get_dummies\(\.\.\., drop"):
        fldb.DuelingBandit().propose(table)
