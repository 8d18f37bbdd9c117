"""The matrix forms: against explicit matrices, and against runs with the full W."""

import math

import numpy as np
import pandas as pd
import pytest
from conftest import nested
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from fldb_flower.algorithms import base
from fldb_flower.bandit.estimate import Estimate
from fldb_flower.bandit.preference import logistic
from fldb_flower.bandit.selection import norms
from fldb_flower.bandit.selection.selector import find_rule
from fldb_flower.catalogue import SELECTIONS
from fldb_flower.environments import Contexts
from fldb_flower.errors import DataError, SettingsError
from fldb_flower.federation.exchange import Broadcast, PlayRequest, statistics, total
from fldb_flower.federation.history import History
from fldb_flower.federation.plausibility import implausible
from fldb_flower.linalg.linear import (
    Form,
    form_of,
    largest_norm,
    make_form,
    pack,
    solve,
    times,
    trace,
    transposed,
    whiten,
    whitened,
)
from fldb_flower.settings import from_nested
from fldb_flower.wire import (
    decode_broadcast,
    decode_upload,
    encode_broadcast,
    encode_upload,
    pack_vector,
    unpack_vector,
)
from simulations.engines import vectorized
from simulations.run import run

property_test = hypothesis_settings(deadline=None, derandomize=True, max_examples=100)

FORMS = {"full": Form(6), "diagonal": Form(6, is_diagonal=True)}
every_form = pytest.mark.parametrize("name", FORMS)


def dense(matrix):
    """Return the dense matrix of an array, by its shape."""
    return np.diag(matrix) if matrix.ndim == 1 else matrix


def some_rows(seed, n, d=6, decay=1.0):
    rng = np.random.default_rng(seed)
    turned = np.linalg.qr(rng.standard_normal((d, d)))[0]
    return rng.standard_normal((n, d)) * decay ** np.arange(d) @ turned


# --- forms of explicit rows -------------------------------------------------------------------


@property_test
@given(seed=st.integers(0, 10**6), n=st.integers(0, 30), weighted=st.booleans())
def test_full_and_diagonal_equal_the_explicit_matrices(seed, n, weighted):
    rows, weights = some_rows(seed, n), np.random.default_rng(seed).random(n)
    written_out = sum(
        ((weights[i] if weighted else 1.0) * np.outer(rows[i], rows[i]) for i in range(n)),
        np.zeros((6, 6)),
    )
    given_weights = weights if weighted else None
    np.testing.assert_allclose(FORMS["full"].gram(rows, given_weights), written_out, atol=1e-12)
    np.testing.assert_allclose(
        FORMS["diagonal"].gram(rows, given_weights), np.diag(written_out), atol=1e-12
    )


@every_form
@property_test
@given(seed=st.integers(0, 10**6), n=st.integers(1, 20))
def test_matrix_operations(name, seed, n):
    form, rng = FORMS[name], np.random.default_rng(seed)
    matrix = form.identity(0.3) + form.gram(some_rows(seed, n))
    written_out, vector = dense(matrix), rng.standard_normal(6)
    assert matrix.shape == form.shape == form.zeros().shape
    assert form_of(matrix) == form
    assert trace(matrix) == pytest.approx(np.trace(written_out))
    np.testing.assert_allclose(
        solve(matrix, vector, 0.2),
        np.linalg.solve(written_out + 0.2 * np.eye(6), vector),
        rtol=1e-9, atol=1e-12,
    )  # fmt: skip
    np.testing.assert_allclose(times(matrix, vector), written_out @ vector, atol=1e-12)
    packed = pack(matrix)
    assert packed.shape == (form.size,)
    np.testing.assert_array_equal(form.unpack(packed), matrix)

    whitener, inverse = whiten(matrix), np.linalg.inv(written_out)
    arms = rng.standard_normal((3, 4, 6))
    expected = np.sqrt(np.einsum("nki,ij,nkj->nk", arms, inverse, arms))
    np.testing.assert_allclose(norms(arms, whitener), expected, rtol=1e-9)
    c = whitened(np.eye(6), whitener)
    np.testing.assert_allclose(c @ c.T, inverse, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(whitened(np.eye(6), transposed(whitener)), c.T, atol=1e-12)
    assert np.linalg.norm(c, 2) <= largest_norm(whitener) * (1 + 1e-12)


@pytest.mark.parametrize("rule", SELECTIONS)
def test_rules_select_as_with_the_dense_matrix(rule):
    form, rng = FORMS["diagonal"], np.random.default_rng(3)
    matrix = form.identity(0.5) + form.gram(some_rows(1, 30, decay=0.5))
    arms, theta = rng.standard_normal((50, 7, 6)), rng.standard_normal(6)
    # Thompson sampling multiplies its draws by C, which is not unique; C C^T is tested elsewhere.
    noise = rng.standard_normal((50, 7)) if rule == "colstim" else np.zeros((50, 2, 6))
    got = find_rule(rule).select(arms, theta, whiten(matrix), 0.7, noise)
    expected = find_rule(rule).select(arms, theta, whiten(dense(matrix)), 0.7, noise)
    np.testing.assert_array_equal(got, expected)


@every_form
def test_tensors_give_the_same(name):
    torch = pytest.importorskip("torch")
    form, rows, weights = FORMS[name], some_rows(4, 25), np.random.default_rng(4).random(25)
    other = form.gram(torch.from_numpy(rows), torch.from_numpy(weights)).numpy()
    np.testing.assert_allclose(other, form.gram(rows, weights), rtol=1e-9, atol=1e-10)


def test_messages_hold_diagonals():
    form, rng = FORMS["diagonal"], np.random.default_rng(0)
    rows, y, theta = some_rows(0, 9), rng.random(9).round(), rng.standard_normal(6)
    information = form.identity(0.1) + form.gram(rows)
    play = PlayRequest(2, 4, Estimate(theta, information))
    sent = Broadcast(play, theta, hessian=True, loss=True)
    vector, ask = encode_broadcast(sent)
    got = decode_broadcast(unpack_vector(pack_vector(vector)), ask, form)  # as by Flower
    np.testing.assert_array_equal(got.theta_hat, theta)
    np.testing.assert_array_equal(got.play.estimate.theta_sync, theta)
    np.testing.assert_array_equal(got.play.estimate.information, information)
    vector[-1] = np.inf
    with pytest.raises(ValueError, match="not finite"):
        decode_broadcast(vector, ask, form)

    upload = statistics(sent, rows, y, rows, form)
    back = encode_upload(upload, sent)
    assert sent.sizes(form) == (back.size, vector.size) == (6 + 2 * 6 + 1, 6 + 6 + 6)
    read = decode_upload(back, 9, sent, form)
    for part in ("gradient", "information", "hessian", "loss"):
        np.testing.assert_allclose(getattr(read, part), getattr(upload, part), rtol=1e-15)


def test_sizes_by_hand():
    assert (Form(384).size, Form(384, is_diagonal=True).size) == (73_920, 384)


@every_form
def test_an_estimate_that_is_not_positive_definite_is_refused(name):
    with pytest.raises(DataError, match="W_sync is not positive definite"):
        _ = Estimate(np.zeros(6), FORMS[name].zeros()).whitener


# --- checks of uploads: see tests/federation for full matrices -----------------------------------


def exact_upload(theta, x, y, *, scope="fresh", fresh=None):
    broadcast = Broadcast(None, theta, scope=scope, hessian=True, loss=True)
    rows = x if fresh is None else fresh
    return statistics(broadcast, x, y, rows, FORMS["diagonal"]), broadcast


@property_test
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(0, 40),
    loudness=st.sampled_from([0.0, 1e-3, 1.0, 30.0, 1e3]),
    how=st.sampled_from(["drawn", "contrary", "ties"]),
    shape=st.sampled_from(["any", "one again and again", "decaying", "some are 0"]),
    scope=st.sampled_from(["fresh", "all"]),
    knows_length=st.booleans(),
    parts=st.integers(1, 4),
)
def test_honest_diagonals_are_never_refused(  # noqa: PLR0917
    seed, n, loudness, how, shape, scope, knows_length, parts
):
    """For any number of blocks of agents in a node."""
    rng = np.random.default_rng(seed)
    x = some_rows(seed, n, decay=0.3 if shape == "decaying" else 1.0)
    if shape == "one again and again" and n:
        x[:] = x[0]
    elif shape == "some are 0":
        x[rng.random((n, 6)) < 0.5] = 0.0
    theta = loudness * rng.standard_normal(6)
    z = x @ theta
    y = {
        "drawn": (rng.random(n) < logistic(z)) * 1.0,
        "contrary": (z <= 0) * 1.0,
        "ties": np.full(n, 0.5),
    }[how]
    uploads = []
    for part in range(parts):
        rows = x[part::parts]
        fresh = rows[:2] if scope == "all" else rows
        upload, broadcast = exact_upload(theta, rows, y[part::parts], scope=scope, fresh=fresh)
        uploads.append(upload)
    vector = encode_upload(total(uploads), broadcast)
    upload = decode_upload(vector, n, broadcast, FORMS["diagonal"])
    longest = float(np.linalg.norm(x, axis=1).max(initial=1e-3)) if knows_length else math.inf
    assert implausible([upload, upload], broadcast, longest) == ["", ""]


LIES = {
    "gradient ten times": (lambda u: u._replace(gradient=200 * u.gradient), "gradient"),
    "information negative": (lambda u: u._replace(information=-u.information), "W_new"),
    "information large": (lambda u: u._replace(information=1e4 * u.information), "W_new is larger"),
    "Hessian negative": (lambda u: u._replace(hessian=-u.hessian), "Hessian is not positive"),
    "Hessian large": (lambda u: u._replace(hessian=30 * u.hessian), "Hessian is larger"),
    "Hessian nothing": (lambda u: u._replace(hessian=0 * u.hessian), "Hessian is smaller"),
    "loss large": (lambda u: u._replace(loss=1e4), "loss is larger"),
    "loss negative": (lambda u: u._replace(loss=-1.0), "loss is below 0"),
}


@pytest.mark.parametrize("lie", LIES)
def test_false_diagonals_are_refused(lie):
    rng = np.random.default_rng(1)
    x = some_rows(1, 20, decay=0.4)
    longest = float(np.linalg.norm(x, axis=1).max())
    theta = 0.3 * rng.standard_normal(6)
    upload, broadcast = exact_upload(theta, x, (rng.random(20) < 0.5) * 1.0)
    change, reason = LIES[lie]
    reasons = implausible([upload, change(upload), upload], broadcast, longest)
    assert reasons[0] == reasons[2] == ""
    assert reasons[1].startswith(reason)


def test_the_hessian_of_undecided_duels_is_known():
    """At theta = 0, mu' is 1/4 for every duel, so H = W_new / 4 exactly."""
    for name, form in FORMS.items():
        broadcast = Broadcast(None, np.zeros(6), hessian=True)
        rows = some_rows(2, 2)
        upload = statistics(broadcast, rows, np.ones(2), rows, form)
        np.testing.assert_allclose(upload.hessian, upload.information / 4, atol=1e-12)
        for factor, reason in ((1.0, ""), (1.001, "Hessian is lar"), (0.999, "Hessian is sma")):
            lie = upload._replace(hessian=factor * upload.hessian)
            for longest in (100.0, math.inf):
                (found,) = implausible([lie], broadcast, longest)
                assert found.startswith(reason), name
                assert bool(found) is bool(reason)


@pytest.mark.parametrize("logit", [5.0, 20.0, 25.6518974, 33.0, 36.5, 40.0, 700.0])
def test_a_single_unlikely_answer_is_accepted(logit):
    """One duel with a very unlikely answer: mu' is of the size of rounding errors, or 0."""
    x = np.array([[1.0, 2.0, 0.0, -1.0, 0.5, 3.0]])
    broadcast = Broadcast(None, logit * x[0] / (x[0] @ x[0]), hessian=True, loss=True)
    for form in FORMS.values():
        assert implausible([statistics(broadcast, x, np.zeros(1), x, form)], broadcast) == [""]


@pytest.mark.parametrize("part", ["information", "hessian"])
def test_slightly_negative_sums_of_squares_are_refused(part):
    upload, broadcast = exact_upload(np.zeros(6), some_rows(0, 30), np.ones(30))
    matrix = getattr(upload, part).copy()
    matrix[-1] = -1e-12
    (reason,) = implausible([upload._replace(**{part: matrix})], broadcast)
    assert reason.endswith("is not positive semi-definite")


# --- runs --------------------------------------------------------------------------------------

RUN = {"num_agents": 12, "horizon": 40, "num_arms": 5, "dimension": 6, "tau": 4}


def chosen(**values):
    return from_nested(nested(**{**RUN, **values}), "a test")


def regrets(**values):
    settings = chosen(**values)
    history = History(settings.horizon)
    theta = vectorized.run(settings, history)
    return history.cumulative_regret, theta


class AlongOneAxis:
    """The arms of an agent differ in only one feature at a time, so W is diagonal."""

    def __init__(self, settings, agents):
        self.settings, self.agents = settings, agents
        self.iteration = 0

    def contexts(self, streams, iterations):
        features = streams.standard_normal("arms", iterations, self.settings.num_arms, 6)
        for offset in range(iterations):
            for place, agent in enumerate(self.agents):
                kept = (agent + self.iteration + offset) % 6
                features[place, offset, :, [f for f in range(6) if f != kept]] = 0.0
        self.iteration += iterations
        return Contexts(features, features @ np.array([1.0, -1, 2, 0.5, 0, -2]))


@pytest.mark.parametrize("first_round", ["minimise", "step"])
@pytest.mark.parametrize("algorithm", ["fldb_ogd", "fldb_ons"])
def test_if_w_is_diagonal_a_run_with_diagonals_equals_that_with_the_full_matrix(
    monkeypatch, register_world, algorithm, first_round
):
    monkeypatch.setattr(base, "APPROXIMATE_TOLERANCE", base.TOLERANCE)
    values = {"algorithm": algorithm, "environment__name": register_world(AlongOneAxis)}
    values["first_round"] = first_round
    expected, got = regrets(**values), regrets(**values, matrix_form="diagonal")
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-9)
    np.testing.assert_allclose(got[1], expected[1], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("algorithm", ["fldb_ogd", "fldb_ons"])
def test_diagonals_still_learn(algorithm):
    """Mean over ten seeds, d = 12: far below random pairs; FLDB-ONS within a third of full."""
    values = {"num_agents": 30, "horizon": 100, "dimension": 12, "algorithm": algorithm}

    def final(**more):
        return np.array([regrets(**{**values, **more}, seed=seed)[0][-1] for seed in range(10)])

    got, random, full = final(matrix_form="diagonal"), final(algorithm="random"), final()
    error = math.hypot(got.std(ddof=1), random.std(ddof=1)) / math.sqrt(10)
    assert random.mean() - got.mean() > 5 * error
    if algorithm == "fldb_ons":
        assert got.mean() < 4 / 3 * full.mean()


def test_gradient_descent_and_lbfgs_find_minimisers_without_hessians():
    pytest.importorskip("torch")
    exact, _ = regrets(algorithm="fldb_gd", solver="lbfgs")
    for solver in ({"solver": "lbfgs"}, {"solver": "gd", "gd_steps": 50}):
        got, _ = regrets(algorithm="fldb_gd", **solver, matrix_form="diagonal")
        assert got[-1] < 1.5 * exact[-1]


@pytest.mark.parametrize("algorithm", ["fldb_ogd", "fldb_ons"])
@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_the_diagonal_does_not_depend_on_the_number_of_nodes(tmp_path, algorithm, nodes):
    run(chosen(algorithm=algorithm, matrix_form="diagonal"), tmp_path / "v")
    inprocess = {"engine__name": "inprocess", "engine__num_nodes": nodes}
    run(chosen(algorithm=algorithm, matrix_form="diagonal", **inprocess), tmp_path / "i")
    tables = [pd.read_csv(tmp_path / name / "regret.csv") for name in "vi"]
    np.testing.assert_allclose(tables[1].cumulative_regret, tables[0].cumulative_regret, rtol=1e-9)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"algorithm": "ldb"}, "algorithm=ldb sends no matrices"),
        ({"algorithm": "fldb_gd"}, "use solver=lbfgs or solver=gd"),
    ],
)
def test_algorithms_without_diagonals_are_refused(values, words):
    with pytest.raises(SettingsError) as refused:
        chosen(**values, matrix_form="diagonal")
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_form_of_the_settings():
    assert make_form(chosen()).shape == (6, 6)
    assert make_form(chosen(matrix_form="diagonal")).shape == (6,)
