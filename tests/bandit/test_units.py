"""DuelingBandit with data as people have them: units, names, uncertainty, and changing taste."""

import pickle

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fldb_flower as fldb
from fldb_flower.bandit.features import Features
from fldb_flower.errors import ConvergenceError


def answered(n, d=3, seed=0):
    """Draw duels and answers of a theta of length about 2."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    return x, (rng.random(n) < 1 / (1 + np.exp(-2 * x @ rng.normal(size=d)))).astype(int)


RULES = st.sampled_from(["ucb", "maxinp", "colstim", "maxpairucb", "thompson"])
POWERS = st.lists(st.integers(-20, 20).map(lambda k: 2.0**k), min_size=3, max_size=3)
FACTORS = st.lists(st.floats(-6, 6).map(lambda u: 10.0**u), min_size=3, max_size=3)


def played(units, seed, rule, logged, half_life):
    """Return pairs, and a learner of logged duels, some without a feature, and of 12 answers."""
    rng = np.random.default_rng(seed)
    learner = fldb.DuelingBandit(selection=rule, random_state=seed, half_life=half_life)
    if logged:
        x, y = answered(logged, seed=seed)
        x[:, 2] = 0.0  # this feature differs for the first time in an offer
        learner.fit(x * units, y)
    pairs = []
    for _ in range(12):
        arms = rng.normal([0.0, 20.0, 0.0], size=(5, 3)) * units
        i, j = learner.propose(arms)
        learner.record(arms[i], arms[j], float(rng.random() < 0.5))
        pairs.append((i, j))
    return pairs, learner


@pytest.mark.slow
@given(
    POWERS | FACTORS, st.integers(0, 10**6), RULES, st.integers(0, 4), st.sampled_from([None, 5])
)
def test_units_change_no_choice_and_no_prediction(units, seed, rule, logged, half_life):
    """To the bit if factors are powers of two, which cause no rounding."""
    pairs, plain = played(np.ones(3), seed, rule, logged, half_life)
    others, scaled = played(np.array(units), seed, rule, logged, half_life)
    assert others == pairs
    x = np.random.default_rng(seed + 1).normal(size=(20, 3))
    assert (scaled.rank(x * units) == plain.rank(x)).all()
    tolerance = 0.0 if all(np.frexp(units)[0] == 0.5) else 1e-9
    for one, other in [
        (scaled.predict_proba(x * units), plain.predict_proba(x)),
        (scaled.coef_ * units, plain.coef_),
        (scaled.standard_errors_ * units, plain.standard_errors_),
        (scaled.scale_ / units, plain.scale_),
        (scaled.predict_utility(x * units, True)[1], plain.predict_utility(x, True)[1]),
        (scaled.sample_coef(3, 0) * units, plain.sample_coef(3, 0)),
    ]:
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def regret(units, scale, seed):
    """Return the regret per duel of 60 proposed duels of ten arms, in units of utility."""
    rng = np.random.default_rng(seed)
    learner, theta, lost = fldb.DuelingBandit(scale=scale), np.array([1.0, -1.0, 1.0]), 0.0
    for _ in range(60):
        arms = rng.normal(size=(10, 3))
        i, j = learner.propose(arms * units)
        lost += 2 * (arms @ theta).max() - (arms[i] + arms[j]) @ theta
        wins = rng.random() < 1 / (1 + np.exp(-(arms[i] - arms[j]) @ theta))
        learner.record(arms[i] * units, arms[j] * units, float(wins))
    return lost / 60


def test_one_feature_in_cm_instead_of_m_changes_no_regret():
    """Without scales it does, most where numbers become small; scales cost nothing in one unit."""
    metres, small, large = np.ones(3), np.array([0.01, 1.0, 1.0]), np.array([100.0, 1.0, 1.0])
    runs = {
        (unit, scale): np.array([regret(units, scale, seed) for seed in range(20)])
        for unit, units in {"m": metres, "cm": large, "hm": small}.items()
        for scale in ("auto", None)
    }
    for unit, least in {"cm": 0.1, "hm": 0.4}.items():
        np.testing.assert_allclose(runs[unit, "auto"], runs["m", "auto"], rtol=1e-9)
        assert (runs[unit, None] - runs[unit, "auto"]).mean() > least
    cost = runs["m", "auto"] - runs["m", None]
    assert cost.mean() < cost.std(ddof=1) / np.sqrt(len(cost))


def test_scales_are_typical_deviations_of_offered_arms_and_duels():
    """A duel is an offer of two arms: all squared differences of pairs, with K - 1 for an offer."""
    arms = np.array([[0.0, 0.1, 5.0], [2.0, 0.1, 1.0], [4.0, 0.1, 3.0]])
    learner = fldb.DuelingBandit()
    learner.propose(arms)
    learner.record(arms[0], arms[2], 1)
    pairs = [(arms[i] - arms[j]) ** 2 for i in range(3) for j in range(i)]
    mean = (2 * np.mean(pairs, axis=0) + (arms[0] - arms[2]) ** 2) / 3
    expected = np.sqrt(mean / 2)
    expected[1] = 1.0  # always 0.1
    assert learner.scale_ == pytest.approx(expected)
    x = np.random.default_rng(0).normal(size=(5000, 2))
    assert fldb.DuelingBandit().fit(x * np.sqrt(2), np.tile([0, 1], 2500)).scale_ == pytest.approx(
        1.0, abs=4 / np.sqrt(2 * 5000)
    )
    weighted = fldb.DuelingBandit().fit([[1.0], [3.0]], [1, 0], sample_weight=[3, 1])
    assert weighted.scale_ == pytest.approx([np.sqrt((3 * 1 + 9) / 4 / 2)])
    assert Features.of_arms(arms).scales[1] == 1.0


def test_scales_can_be_given():
    """The ridge is then that of features divided by them."""
    x, y = answered(30)
    scale = [10.0, 1.0, 0.5]
    ours = fldb.DuelingBandit(scale=scale).fit(x, y)
    plain = fldb.DuelingBandit(scale=None).fit(x / scale, y)
    assert ours.coef_ == pytest.approx(plain.coef_ / scale, rel=1e-9)
    for wrong in ("car", [1.0], [1.0, 0.0, 1.0], 3.0, [[1.0] * 3]):
        with pytest.raises(ValueError, match=r"^scale=.*: must be 'auto', None, or 3 numbers from"):
            fldb.DuelingBandit(scale=wrong).fit(x, y)
    for scale, ridge, x in ((1e100, 1e100, 1e-100), (1e-100, 1e-100, 1e100)):
        with pytest.raises(ConvergenceError, match="gives no accurate estimate with differences"):
            fldb.DuelingBandit(scale=[scale], ridge=ridge).fit([[x]], [1])
    for wrong in (0, -1.0, "a", np.nan):
        with pytest.raises(ValueError, match=r"^half_life=.*: must be a number, above 0"):
            fldb.DuelingBandit(half_life=wrong).fit([[1.0]], [1])


@pytest.mark.parametrize("half_life", [None, 7.0])
def test_all_ways_to_learn_give_the_same_estimate(half_life):
    rng = np.random.default_rng(3)
    first, second = rng.normal(size=(2, 30, 3)) * [1.0, 1e4, 1e-3]
    y = rng.integers(0, 3, 30) / 2
    at_once = fldb.DuelingBandit(half_life=half_life).fit(first - second, y)
    online, parts = (fldb.DuelingBandit(half_life=half_life) for _ in range(2))
    for each in zip(first, second, y, strict=True):
        online.record(*each)
    for part in np.array_split(np.arange(30), 4):
        parts.partial_fit((first - second)[part], y[part])
    for other in (online, parts, parts.fit(first - second, y)):
        np.testing.assert_allclose(other.coef_, at_once.coef_, rtol=1e-9)
        np.testing.assert_allclose(other.covariance_, at_once.covariance_, rtol=1e-9)


def test_half_life_gives_the_weights_of_scikit_learn():
    linear_model = pytest.importorskip("sklearn.linear_model")
    x, y = answered(60)
    factors = np.random.default_rng(1).integers(1, 4, 60)
    theirs = linear_model.LogisticRegression(fit_intercept=False, tol=1e-12, max_iter=10_000)
    theirs.fit(x, y, factors * 0.5 ** (np.arange(60)[::-1] / 10))
    ours = fldb.DuelingBandit(scale=None, half_life=10).fit(x, y, factors)
    assert ours.coef_ == pytest.approx(theirs.coef_, abs=1e-6)
    short = fldb.DuelingBandit(scale=None, half_life=1e-300).fit(x, y)
    last = fldb.DuelingBandit(scale=None).fit(x[-1:], y[-1:])
    assert short.coef_ == pytest.approx(last.coef_, abs=1e-9)


def answers_until_the_sign_is_right(seed, half_life, proposed, most):
    """Return after how many answers the sign of a weight, which turned after 400, is right."""
    rng = np.random.default_rng(seed)
    learner = fldb.DuelingBandit(half_life=half_life)

    def answer(weight):
        arms = rng.normal(size=(10, 3))
        i, j = learner.propose(arms) if proposed else (0, 1)
        logit = weight * (arms[i, 0] - arms[j, 0])
        return arms[i], arms[j], float(rng.random() < 1 / (1 + np.exp(-logit)))

    if proposed:
        for _ in range(400):
            learner.record(*answer(2.0))
    else:
        first, second, y = zip(*(answer(2.0) for _ in range(400)), strict=True)
        learner.fit(np.array(first) - second, y)
    for count in range(1, most + 1):
        if learner.record(*answer(-2.0)).coef_[0, 0] < 0:
            return count
    return np.inf


@pytest.mark.exhaustive
def test_a_changed_taste_is_learned_with_a_half_life():
    counts = {
        proposed: [answers_until_the_sign_is_right(seed, 100, proposed, 150) for seed in range(20)]
        for proposed in (True, False)
    }
    assert np.median(counts[True]) <= 60
    assert np.median(counts[False]) <= 110
    for proposed in (True, False):
        without = [answers_until_the_sign_is_right(s, None, proposed, 300) for s in range(8)]
        assert np.median(without) == np.inf


CAFES = pd.DataFrame(
    {
        "price": [3.0, 4.0, 6.0, 5.0],
        "metres": [900, 200, 300, 800],
        "wifi": [True, True, False, True],
    },
    index=["Alma", "Bean", "Cup", "Dora"],
)


def test_a_table_is_answered_with_its_labels_and_matched_by_name():
    """The same as arrays, with columns in any order, whole tables or rows."""
    learner, plain = fldb.DuelingBandit(), fldb.DuelingBandit()
    for order in (
        ["price", "metres", "wifi"],
        ["wifi", "price", "metres"],
        ["metres", "wifi", "price"],
    ):
        first, second = learner.propose(CAFES[order])
        i, j = plain.propose(CAFES.to_numpy(float))
        assert (first, second) == (CAFES.index[i], CAFES.index[j])
        learner.record(first, second, 1.0)
        plain.record(*CAFES.to_numpy(float)[[i, j]], 1.0)
    learner.record(CAFES.loc["Dora"][::-1], CAFES[["wifi", "metres", "price"]].iloc[[1]], 0)
    plain.record(*CAFES.to_numpy(float)[[3, 1]], 0)
    assert learner.feature_names_in_.tolist() == ["price", "metres", "wifi"]
    assert (learner.coef_ == plain.coef_).all()
    assert learner.rank(CAFES[["wifi", "metres", "price"]]).tolist() == [
        CAFES.index[k] for k in plain.rank(CAFES.to_numpy(float))
    ]
    assert (
        learner.rank(CAFES.to_numpy(float)).tolist() == plain.rank(CAFES.to_numpy(float)).tolist()
    )
    differences = CAFES.astype(float).diff().iloc[1:]
    reordered = differences[["wifi", "price", "metres"]]
    assert (learner.predict_proba(reordered) == plain.predict_proba(differences.to_numpy())).all()
    assert (learner.fit(reordered, [1, 0, 1]).feature_names_in_ == [*reordered]).all()
    assert not hasattr(learner.fit(differences.to_numpy(), [1, 0, 1]), "feature_names_in_")


def test_labels_of_any_type():
    table = pd.DataFrame({"size": [1.0, 5.0, 2.0]}, index=[30, 10, 20])
    learner = fldb.DuelingBandit().record([1.0], [0.0], 1)
    assert learner.rank(table).tolist() == [10, 20, 30]
    assert set(learner.propose(table)) <= {10, 20, 30}
    assert learner.record(10, 30, 1.0).coef_[0, 0] > 0
    pairs = table.set_index(pd.MultiIndex.from_tuples([("a", 1), ("a", 2), ("b", 1)]))
    assert tuple(learner.rank(pairs)[0]) == ("a", 2)
    one, other = learner.propose(pairs)
    assert learner.record(one, other, 1.0) is learner
    learner.propose(table.to_numpy())
    with pytest.raises(ValueError, match="first has shape"):
        learner.record(10, 30, 1.0)


WITH_TEXT = CAFES.assign(wifi=["yes", "yes", "no", "yes"])
WITH_NAN = CAFES.assign(price=[3.0, 4.0, np.nan, 5.0])
REFUSED = {  # method, arguments of a learner of CAFES, the error
    "rank": [
        ((CAFES.drop(columns="price"),), "arms: The feature names .* missing: price$"),
        ((CAFES.rename(columns={"price": "€"}),), "time: €. Feature .* missing: price$"),
        ((CAFES.assign(a=1, b=1),), "unseen at fit time: a, b$"),
        ((CAFES.set_axis(["price", "price", "wifi"], axis=1),), "the columns .* distinct"),
        ((CAFES.set_axis(["price", 1, 2], axis=1),), "arms has the columns .* or no strings"),
        ((WITH_TEXT,), r"strings; see pandas\.get_dummies\(.*\) \(row Alma, column wifi\)"),
        ((WITH_NAN,), r"arms contains nan: must .* \(row Cup, column price\)"),
        ((np.where(np.eye(3) > 0, np.inf, 1.0),), r"arms contains inf: .* \(row 0, column 0\)"),
        ((CAFES.assign(wifi=[True, None, True, True]),), r"\(row Bean, column wifi\)"),
    ],
    "propose": [((pd.concat([CAFES, CAFES[:1]]),), "arms has the label 'Alma' twice")],
    "record": [
        (("Zoe", "Bean", 1), r"first='Zoe': must be features, or .*last \(Alma, Bean, Cup, Dora\)"),
        (("Alma", CAFES.loc["Bean"].rename({"price": "cost"}), 1), "second: The feature names"),
        (("Alma", "Bean", 2), "preferred=2: must be"),
        (("Alma", [1.0, 2.0], 1), "second has 2 features, but DuelingBandit is expecting 3"),
    ],
    "fit": [((CAFES, [1, 0, np.nan, 1]), r"y contains nan: .* \(entry 2\)")],
}  # fmt: skip


def test_refused_tables_change_nothing():
    learner = fldb.DuelingBandit(random_state=0)
    learner.propose(CAFES)
    learner.record("Bean", "Alma", 1)
    before = pickle.dumps(learner.__dict__)
    for method, cases in REFUSED.items():
        for arguments, message in cases:
            with pytest.raises(ValueError, match=message) as error:
                getattr(learner, method)(*arguments)
            assert "\n" not in str(error.value)
    assert pickle.dumps(learner.__dict__) == before


def test_utilities_and_samples_have_the_moments_of_the_posterior():
    x, y = answered(30)
    learner = fldb.DuelingBandit().fit(x * [1.0, 1e3, 1e-2], y)
    arms = answered(8, seed=5)[0] * [1.0, 1e3, 1e-2]
    utility, std = learner.predict_utility(arms, return_std=True)
    assert (learner.predict_utility(arms) == utility).all()
    for k, arm in enumerate(arms):
        assert utility[k] == pytest.approx(arm @ learner.coef_[0])
        assert std[k] == pytest.approx(np.sqrt(arm @ learner.covariance_ @ arm))
    samples = learner.sample_coef(20_000, random_state=1)
    errors = (samples - learner.coef_) / learner.standard_errors_
    assert abs(errors.mean(axis=0)).max() < 4 / np.sqrt(20_000)
    outer = np.outer(learner.standard_errors_, learner.standard_errors_)
    assert errors.T @ errors / 20_000 == pytest.approx(learner.covariance_ / outer, abs=0.05)
    assert (learner.sample_coef(2, random_state=3) == learner.sample_coef(2, random_state=3)).all()
    with pytest.raises(ValueError, match="n_samples=0: must be a whole number, at least 1"):
        learner.sample_coef(0)
    for method in ("predict_utility", "sample_coef"):
        with pytest.raises(ValueError, match="has no estimate yet"):
            getattr(fldb.DuelingBandit(), method)([[1.0]])


def test_pipelines_and_column_transformers():
    """A scaler in front, and a catalogue with texts and gaps that becomes a table of numbers."""
    compose = pytest.importorskip("sklearn.compose")
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    x, y = answered(50)
    pipeline = make_pipeline(StandardScaler(with_mean=False), fldb.DuelingBandit(scale=None))
    pipeline.fit(x * [1.0, 1e3, 1e-2], y)
    plain = fldb.DuelingBandit(scale=x.std(axis=0)).fit(x, y)
    np.testing.assert_allclose(
        pipeline.predict_proba(x * [1.0, 1e3, 1e-2]), plain.predict_proba(x), rtol=1e-9
    )
    catalogue = CAFES.assign(kind=["bar", "bar", "shop", "shop"], price=[3.0, 4.0, np.nan, 5.0])
    prepare = compose.make_column_transformer(
        (OneHotEncoder(sparse_output=False), ["kind"]), (SimpleImputer(), ["price", "metres"])
    ).set_output(transform="pandas")
    arms = prepare.fit_transform(catalogue)
    learner = fldb.DuelingBandit()
    for _ in range(20):
        first, second = learner.propose(arms)
        learner.record(first, second, float(catalogue.metres[first] < catalogue.metres[second]))
    assert learner.rank(prepare.transform(catalogue)).tolist() == ["Bean", "Cup", "Dora", "Alma"]
    assert learner.feature_names_in_[0] == "onehotencoder__kind_bar"


def test_a_pickled_learner_of_release_0_3_0():
    """It has neither scales nor a half-life, and continues as a plain ridge."""
    x, y = answered(20)
    old = fldb.DuelingBandit(scale=None).fit(x, y)
    for name in ("scale", "half_life", "scale_", "_offers"):
        del old.__dict__[name]
    loaded = pickle.loads(pickle.dumps(old))
    loaded.propose(x)
    assert loaded.scale_.tolist() == [1.0] * 3
    expected = fldb.DuelingBandit(scale=None).fit([*x, *x], [*y, *y]).coef_
    assert loaded.partial_fit(x, y).coef_ == pytest.approx(expected, rel=1e-9)
