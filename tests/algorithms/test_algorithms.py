"""The algorithms against rounds computed by hand, scikit-learn, and the paper's orderings."""

import itertools
import math

import numpy as np
import pytest
from conftest import scikit_learn_minimiser, with_regrets
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from fldb_flower.algorithms import run_algorithm
from fldb_flower.algorithms.schedules import periodic, round_ends
from fldb_flower.bandit.estimate import Estimate
from fldb_flower.catalogue import ALGORITHMS
from fldb_flower.errors import SettingsError
from fldb_flower.federation.agents import AgentGroup
from fldb_flower.federation.exchange import Broadcast, Federation, Outcomes, PlayRequest, Upload
from fldb_flower.federation.history import History
from fldb_flower.settings import AUTO, from_nested
from simulations.engines.vectorized import DirectFederation, run

property_test = hypothesis_settings(deadline=None, derandomize=True, max_examples=60)


def chosen(**values):
    small = {"num_agents": 3, "num_arms": 4, "dimension": 2, "tau": 1, "kappa_mu": 0.5}
    return from_nested({**small, "lambda": 1.0, **values}, "a test")


# --- rounds computed by hand ---------------------------------------------------------------
#
# The fake agents' loss at t = 1 is quadratic, f(theta) = ||theta - m||^2 / 2 with Hessian I, so
# Newton's method needs one step: exchange 1 plays and evaluates at 0 (gradient -m), exchange 2
# finds the gradient 0 at (1 + ridge)^-1 m. The gradients of later rounds are prescribed.

INFORMATION = [np.diag([1.0, 2.0]), np.diag([10.0, 20.0]), np.diag([100.0, 200.0]), np.eye(2)]


class Prescribed(Federation):
    """Agents with prescribed uploads; records the broadcasts."""

    def __init__(self, horizon, minimum, rounds):
        super().__init__(History(horizon))
        self.minimum = np.array(minimum)
        self.rounds = list(rounds)
        self.played = []  # broadcasts that played duels
        self.counted = []

    def collect(self, broadcast):
        if broadcast.play is not None:
            self.played.append(broadcast)
        number = len(self.played) - 1
        first, last = self.played[-1].play.first, self.played[-1].play.last
        outcomes = Outcomes(first, 1, with_regrets(np.arange(first, last + 1.0)))
        if broadcast.theta_hat is None:
            return Upload(0, np.zeros(2), np.zeros((2, 2)), None, None, (outcomes,))
        if number == 0:
            gradient, hessian = broadcast.theta_hat - self.minimum, np.eye(2)
        else:
            gradient, hessian = self.rounds[number - 1]
        return Upload(
            num_duels=3,
            gradient=np.array(gradient, dtype=float),
            information=INFORMATION[number],
            hessian=np.array(hessian, dtype=float) if broadcast.hessian else None,
            loss=None,
            outcomes=(outcomes,),
        )

    def mark_counted(self):
        self.counted.append(self.history.iteration)

    @property
    def spans(self):
        return [(broadcast.play.first, broadcast.play.last) for broadcast in self.played]


def gradients(*rounds):
    return [(gradient, np.eye(2)) for gradient in rounds]


def test_ogd_with_tau_1_by_hand():
    # m = (4, -2), lambda = 1: theta_hat^(1) = (2, -1). alpha = 2.
    # Round 1 is t = 1 itself: theta_hat^(2) = theta_hat^(1), theta_sync = (2, -1).
    # t = 2: gradient (8, 0), eta = 1/4: theta_hat^(3) = (0, -1).
    #        theta_sync = ((2 + 2 + 0) / 3, -1) = (4/3, -1)
    # t = 3: gradient (0, -12), eta = 1/6: theta_hat^(4) = (0, 1).
    #        theta_sync = ((2 + 2 + 0 + 0) / 4, (-1 - 1 - 1 + 1) / 4) = (1, -1/2)
    for step_index in ("iteration", "round"):  # at tau = 1 they are the same
        settings = chosen(horizon=3, alpha=2.0, step_index=step_index)
        federation = Prescribed(3, (4, -2), gradients((8, 0), (0, -12)))
        theta = run_algorithm(federation, settings)
        np.testing.assert_allclose(theta, [1, -0.5], rtol=1e-14)

        assert federation.spans == [(1, 1), (2, 2), (3, 3)]
        syncs = [broadcast.play.estimate.theta_sync for broadcast in federation.played]
        np.testing.assert_allclose(syncs, [[0, 0], [2, -1], [4 / 3, -1]], atol=1e-14)
        hats = [broadcast.theta_hat for broadcast in federation.played]
        np.testing.assert_allclose(hats, [[0, 0], [2, -1], [0, -1]], atol=1e-14)
        # W_0 = (lambda / kappa_mu) I = 2 I, then + diag(1, 2), then + diag(10, 20).
        matrices = [np.diag(broadcast.play.estimate.information) for broadcast in federation.played]
        np.testing.assert_allclose(matrices, [[2, 2], [3, 4], [13, 24]], rtol=1e-14)
        assert not any(broadcast.hessian for broadcast in federation.played[1:])
        assert federation.counted == [1, 2, 3]


@pytest.mark.parametrize(
    ("step_index", "hats", "syncs"),
    [
        # theta_hat^(1) = (2, -1), alpha = 2; gradients (8, 0) at t = 2 and (0, -8) at t = 4.
        # step = t:   eta = 1/4 and 1/8: theta_hat = (0, -1), then (0, 0);
        #             means (1, -1) and (2/3, -2/3).
        ("iteration", [(2, -1), (0, -1)], [(2, -1), (1, -1), (2 / 3, -2 / 3)]),
        # step = t_c: eta = 1/2 and 1/4: theta_hat = (-2, -1), then (-2, 1);
        #             means (0, -1) and (-2/3, -1/3).
        ("round", [(2, -1), (-2, -1)], [(2, -1), (0, -1), (-2 / 3, -1 / 3)]),
    ],
)
def test_ogd_with_tau_2_by_hand(step_index, hats, syncs):
    settings = chosen(horizon=5, tau=2, alpha=2.0, step_index=step_index)
    federation = Prescribed(5, (4, -2), gradients((8, 0), (0, -8)))
    theta = run_algorithm(federation, settings)
    np.testing.assert_allclose(theta, syncs[-1], rtol=1e-14)
    # t = 1, then the rest of round 1, round 2, and the iterations after the last round.
    assert federation.spans == [(1, 1), (2, 2), (3, 4), (5, 5)]
    sent = [broadcast.play.estimate.theta_sync for broadcast in federation.played[1:]]
    np.testing.assert_allclose(sent, syncs, atol=1e-14)
    points = [broadcast.theta_hat for broadcast in federation.played[1:3]]
    np.testing.assert_allclose(points, hats, atol=1e-14)
    assert federation.played[3].theta_hat is None  # regret only
    assert federation.counted == [1, 2, 4, 5]


@pytest.mark.parametrize(
    ("center", "hats"),
    [
        # alpha = 1, radius 1, theta_hat^(1) = theta_hat^(2) = (2, -1).
        # t = 2: gradient (8, 0), eta = 1/2: (-2, -1) is 4 away: projected to (1, -1).
        # t = 3: gradient (9, 0), eta = 1/3: (-2, -1).
        #   initial: 4 from (2, -1): (1, -1);  current: 3 from (1, -1): (0, -1).
        # t = 4: gradient (0, -16), eta = 1/4: 4 up.
        #   initial: (1, 3) is (-1, 4) from (2, -1): (2, -1) + (-1, 4) / sqrt(17)
        #   current: (0, 3) is (0, 4) from (0, -1): (0, 0)
        (
            "initial",
            [(2, -1), (2, -1), (1, -1), (1, -1), (2 - 1 / 17**0.5, -1 + 4 / 17**0.5)],
        ),
        ("current", [(2, -1), (2, -1), (1, -1), (0, -1), (0, 0)]),
    ],
)
def test_ogd_projects_onto_the_ball_by_hand(center, hats):
    settings = chosen(horizon=4, alpha=1.0, projection_center=center, projection_radius=1.0)
    federation = Prescribed(4, (4, -2), gradients((8, 0), (9, 0), (0, -16)))
    theta = run_algorithm(federation, settings)
    np.testing.assert_allclose(theta, np.mean(hats, axis=0), rtol=1e-14)
    points = [broadcast.theta_hat for broadcast in federation.played[1:]]
    np.testing.assert_allclose(points, hats[1:4], atol=1e-14)


def test_the_automatic_radius_is_twice_the_papers_r():
    # r = beta_T / sqrt(lambda kappa_mu) with lambda = 1, kappa_mu = 1/2, N = 3, T = 2, d = 2.
    beta = math.sqrt(2 * math.log(10) + 2 * math.log(1 + 2 * 3 * 0.5 / (2 * 1.0)))
    radius = 2 * beta / math.sqrt(0.5)
    federation = Prescribed(2, (4, -2), gradients((1e6, 0)))
    theta = run_algorithm(federation, chosen(horizon=2, alpha=1.0))
    # theta_hat^(3) lies on the sphere around (2, -1); the mean of three is a third of the way.
    np.testing.assert_allclose(theta, [2 - radius / 3, -1], rtol=1e-12)


@pytest.mark.parametrize("scale", [AUTO, 1.0])
def test_ons_by_hand(scale):
    # lambda_0 = 3, m = (8, -4): theta = (2, -1), A = 3 I + I = 4 I.
    # t = 2: gradient (6, 0), H = diag(2, 0): A = diag(6, 4), theta = (2 - 1, -1) = (1, -1).
    # t = 3: gradient (0, 29), H = [[0, 1], [1, 1]]: A = [[6, 1], [1, 5]],
    #        A^-1 = [[5, -1], [-1, 6]] / 29, theta = (1 + 1, -1 - 6) = (2, -7).
    settings = chosen(algorithm="fldb_ons", horizon=4, tau=1, ons_ridge=3.0, beta_scale=scale)
    rounds = [((6, 0), np.diag([2, 0])), ((0, 29), [[0, 1], [1, 1]]), ((0, 0), np.eye(2))]
    federation = Prescribed(4, (8, -4), rounds)
    theta = run_algorithm(federation, settings)
    np.testing.assert_allclose(theta, [2, -7], rtol=1e-13)
    assert federation.spans == [(1, 1), (2, 2), (3, 3), (4, 4)]
    expected = [[0, 0], [2, -1], [1, -1], [2, -7]]
    for broadcast, point in zip(federation.played, expected, strict=True):
        np.testing.assert_allclose(broadcast.play.estimate.theta_sync, point, atol=1e-13)
        np.testing.assert_allclose(broadcast.theta_hat, point, atol=1e-13)
        assert broadcast.hessian
    # Agents select with A, or with W, which starts from lambda / kappa_mu = 2, not from lambda_0.
    a, w = [[3, 3], [4, 4], [6, 4], [6, 5]], [[2, 2], [3, 4], [13, 24], [113, 224]]
    matrices = [np.diag(broadcast.play.estimate.information) for broadcast in federation.played]
    np.testing.assert_allclose(matrices, a if scale == AUTO else w, rtol=1e-14)


@pytest.mark.parametrize("algorithm", ["fldb_ogd", "fldb_ons"])
def test_the_first_step_by_hand(algorithm):
    # W_new = diag(1, 2), so H = W_new / 4 = diag(1/4, 1/2) at 0; the gradient there is (-5, 3).
    # lambda = lambda_0 = 1: Newton's step is (5 / 1.25, -3 / 1.5) = (4, -2), twice that (8, -4).
    # FLDB-ONS keeps a tenth of H: A = diag(1.025, 1.05).
    # t = 2: FLDB-OGD with alpha = 2: gradient (8, 0), eta = 1/4: theta_hat^(3) = (6, -4),
    #        theta_sync = ((8 + 8 + 6) / 3, -4); theta_hat^(2) = theta_hat^(1), as if minimised.
    #        FLDB-ONS: H = diag(0.975, 0.95): A = 2 I, theta = (8 - 8 / 2, -4).
    settings = chosen(
        algorithm=algorithm, horizon=2, alpha=2.0, first_round="step", projection_radius=100.0
    )
    federation = Prescribed(2, (5, -3), [((8, 0), np.diag([0.975, 0.95]))])
    theta = run_algorithm(federation, settings)
    np.testing.assert_allclose(federation.played[1].theta_hat, [8, -4], rtol=1e-14)
    np.testing.assert_allclose(federation.played[1].play.estimate.theta_sync, [8, -4], rtol=1e-14)
    expected = {"fldb_ogd": [22 / 3, -4], "fldb_ons": [4, -4]}[algorithm]
    np.testing.assert_allclose(theta, expected, rtol=1e-14)
    # Agents select with W or with A.
    matrices = [np.diag(broadcast.play.estimate.information) for broadcast in federation.played]
    expected = {"fldb_ogd": [[2, 2], [3, 4]], "fldb_ons": [[1, 1], [1.025, 1.05]]}[algorithm]
    np.testing.assert_allclose(matrices, expected, rtol=1e-14)
    assert (federation.history.exchanges, federation.history.rounds) == (2, 2)
    assert not federation.played[0].hessian
    if algorithm == "fldb_ogd":
        # The center is theta_hat^(1) = (8, -4); (6, -4) is 2 away: projected to (7, -4).
        settings = chosen(horizon=2, alpha=2.0, first_round="step", projection_radius=1.0)
        theta = run_algorithm(Prescribed(2, (5, -3), gradients((8, 0))), settings)
        np.testing.assert_allclose(theta, [(8 + 8 + 7) / 3, -4], rtol=1e-14)


@pytest.mark.parametrize("ridge", [1e-9, 0.7])
@pytest.mark.parametrize("num_agents", [1, 2, 40])
def test_the_first_step_is_a_least_squares_fit(num_agents, ridge):
    """Twice the fit of the logits +2 and -2, so at most 4 in the root mean square."""
    values = {"num_agents": num_agents, "dimension": 3, "horizon": 1, "ons_ridge": ridge}
    federation = recorded_run(chosen(algorithm="fldb_ons", first_round="step", **values))
    x, y = federation.duels()
    padded = np.vstack([x, np.sqrt(4 * ridge) * np.eye(3)])
    logits = np.concatenate([4 * (y - 0.5), np.zeros(3)])
    expected = 2 * np.linalg.lstsq(padded, logits, rcond=None)[0]
    np.testing.assert_allclose(federation.theta, expected, rtol=1e-6)
    assert np.mean((x @ federation.theta) ** 2) <= 16 * (1 + 1e-9)


@pytest.mark.parametrize("first_round", ["minimise", "step"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("changes", [{"tau": 1}, {"tau": 3}, {"schedule": {"name": "geometric"}}])
def test_one_exchange_in_every_round_if_and_only_if_the_settings_say_so(
    algorithm, first_round, changes
):
    if first_round == "step" and algorithm not in {"fldb_ogd", "fldb_ons"}:
        with pytest.raises(SettingsError) as refused:
            chosen(algorithm=algorithm, first_round=first_round)
        expected = f"needs algorithm fldb_ogd or fldb_ons, not {algorithm}"
        assert str(refused.value) == f"first_round='step' (from a test): {expected}"
        return
    settings = chosen(algorithm=algorithm, horizon=17, first_round=first_round, **changes)
    federation = recorded_run(settings)
    by_round = []
    for broadcast, _ in federation.trips:
        if broadcast.play is not None:
            by_round.append(0)
        by_round[-1] += broadcast.learns
    rounds, exchanges = federation.history.rounds, federation.history.exchanges
    assert exchanges == sum(by_round)
    is_one = rounds > 0 and max(by_round) == 1 and exchanges == rounds
    assert (settings.exchanges == "one") is is_one
    assert is_one is (algorithm == "fldb_personal" or first_round == "step")


# --- counting -----------------------------------------------------------------------------


def test_exchanges_and_rounds_by_hand():
    calls = []
    history = History(7, on_progress=lambda seen: calls.append(seen.rounds))
    for play, learns in (
        ((1, 1), True), (None, True), (None, True),  # t = 1: three
        ((2, 4), True), ((5, 6), True), (None, True), ((7, 7), False),  # 4: one; 6: two
    ):  # fmt: skip
        history.count_exchange(play, learns=learns)
        if play is not None:
            history.count_round()
    assert history.exchanges_by_iteration.tolist() == [3, 3, 3, 4, 4, 6, 6]
    assert history.exchanges == 6
    assert calls == [1, 2, 3, 3]  # uploads that were learned from


def test_regret_is_averaged_over_the_reporting_agents():
    history = History(3)
    history.add_outcomes(1, 2, with_regrets([4.0, 6.0]))  # two agents, t = 1 and 2
    history.add_outcomes(1, 3, with_regrets([1.0]))  # three others, t = 1
    history.add_outcomes(2, 3, with_regrets([9.0, 6.0]))
    # t = 1: 5 / 5; t = 2: 15 / 5; t = 3: 6 / 3, as two agents were lost.
    np.testing.assert_allclose(history.cumulative_regret, [1, 4, 6], rtol=1e-15)
    assert history.regret == pytest.approx(6)


@pytest.mark.parametrize("solver", ["newton", "gd"])
def test_gd_counts_every_evaluated_point(solver):
    settings = chosen(algorithm="fldb_gd", horizon=4, solver=solver, gd_steps=6)
    federation = recorded_run(settings)
    history = federation.history
    by_iteration = []
    for broadcast, _ in federation.trips:
        if broadcast.play is not None:
            by_iteration.append(0)
        by_iteration[-1] += 1
    assert np.diff(history.exchanges_by_iteration, prepend=0).tolist() == by_iteration
    assert history.exchanges == len(federation.trips)
    assert history.rounds == 4
    if solver == "gd":
        assert by_iteration == [6, 6, 6, 6]


@pytest.mark.parametrize("algorithm", ["ldb", "random"])
@pytest.mark.parametrize("horizon", [1, 49, 50, 51, 120])
def test_independent_agents_only_report_every_regret_once(algorithm, horizon):
    settings = chosen(algorithm=algorithm, horizon=horizon)
    federation = recorded_run(settings)
    assert (federation.history.exchanges, federation.history.rounds) == (0, 0)
    assert federation.history.uploaded_bytes == federation.history.downloaded_bytes == 0
    plays = [broadcast.play for broadcast, _ in federation.trips]
    assert [t for each in plays for t in range(each.first, each.last + 1)] == list(
        range(1, horizon + 1)
    )
    assert len(federation.trips) <= 50
    group = AgentGroup(settings, range(3))
    (whole,) = group.answer(Broadcast(PlayRequest(1, horizon), None), 0).outcomes
    np.testing.assert_allclose(
        federation.history.cumulative_regret, np.cumsum(whole.sums[:, 0]) / 3, rtol=1e-12
    )


# --- schedules ----------------------------------------------------------------------------


def test_geometric_rounds_by_hand():
    settings = chosen(horizon=500, schedule={"name": "geometric", "ratio": 1.5})
    ends = [1, 2, 3, 4, 6, 8, 12, 18, 26, 39, 58, 87, 130, 195, 292, 438]
    assert list(round_ends(settings)) == ends
    # A ratio close to 1 exchanges in every iteration.
    settings = chosen(horizon=500, schedule={"name": "geometric", "ratio": 1 + 1e-15})
    assert list(round_ends(settings)) == list(range(1, 501))


@property_test
@given(ratio=st.floats(1.02, 20), horizon=st.integers(1, 3000))
def test_geometric_rounds_increase_by_at_most_the_ratio(ratio, horizon):
    settings = chosen(horizon=horizon, schedule={"name": "geometric", "ratio": ratio})
    ends = list(round_ends(settings))
    assert ends[0] == 1
    assert ends == sorted(set(ends))
    assert ends[-1] <= horizon
    for before, after in itertools.pairwise(ends):
        assert after <= math.ceil(before * ratio)
    assert math.ceil(ends[-1] * ratio) > horizon
    brute = {math.ceil(ratio**power) for power in range(math.ceil(math.log(4000, ratio)))}
    assert ends == sorted(end for end in brute if end <= horizon)


@pytest.mark.parametrize(
    ("tau", "horizon", "ends"),
    [(1, 4, [1, 2, 3, 4]), (2, 7, [2, 4, 6]), (3, 9, [3, 6, 9]), (5, 4, []), (4, 4, [4])],
)
def test_periodic_rounds_end_every_tau_iterations(tau, horizon, ends):
    assert list(round_ends(chosen(tau=tau, horizon=horizon))) == ends
    every = periodic(tau)
    assert [next(every) for _ in range(3)] == [tau, 2 * tau, 3 * tau]


@pytest.mark.parametrize("algorithm", ["fldb_ogd", "fldb_ons"])
@pytest.mark.parametrize(
    "changes",
    [
        {"tau": 1, "horizon": 1},
        {"tau": 3, "horizon": 3},
        {"tau": 3, "horizon": 8},
        {"tau": 9, "horizon": 4},
        {"horizon": 20, "schedule": {"name": "geometric", "ratio": 1.5}},
    ],
)
def test_every_iteration_is_played_once_and_rounds_follow_the_schedule(algorithm, changes):
    settings = chosen(algorithm=algorithm, **changes)
    federation = recorded_run(settings)
    plays = [broadcast for broadcast, _ in federation.trips if broadcast.play is not None]
    iterations = [t for each in plays for t in range(each.play.first, each.play.last + 1)]
    assert iterations == list(range(1, settings.horizon + 1))
    learned = [each.play.last for each in plays if each.theta_hat is not None]
    assert learned == sorted({1, *round_ends(settings)})
    assert federation.history.rounds == len(learned)
    # The number of fresh duels.
    fresh = np.diff([0, *learned]) * 3
    duels = [
        upload.num_duels
        for broadcast, upload in federation.trips
        if broadcast.play is not None and broadcast.theta_hat is not None
    ]
    assert duels == fresh.tolist()


# --- on real agents -----------------------------------------------------------------------


class Recorded(DirectFederation):
    """The vectorized engine; records every exchange."""

    def __init__(self, settings, history):
        super().__init__(settings, history)
        self.trips = []

    def collect(self, broadcast):
        upload = super().collect(broadcast._replace(final=False))  # so that duels are kept
        self.trips.append((broadcast, upload))
        return upload

    def duels(self):
        """All duels stored by the agents: differences and preferences."""
        return self.workers.groups[0].blocks[0].log.all()


def recorded_run(settings):
    federation = Recorded(settings, History(settings.horizon))
    federation.theta = run_algorithm(federation, settings)
    return federation


@pytest.mark.parametrize(
    ("algorithm", "ridge"), [("fldb_ogd", 1 / 50), ("fldb_ons", 0.7)], ids=["ogd", "ons"]
)
@pytest.mark.parametrize("num_agents", [2, 7, 40])
def test_the_first_estimate_is_the_minimiser_of_the_first_duels(algorithm, ridge, num_agents):
    values = {"num_agents": num_agents, "num_arms": 4, "dimension": 3, "tau": 2, "horizon": 50}
    values |= {"algorithm": algorithm, "seed": 3, "ons_ridge": 0.7}
    settings = from_nested(values, "a test")
    group = AgentGroup(settings, range(num_agents))
    # t = 1 is played with theta_sync = 0 and W_0 = (lambda / kappa_mu) I, lambda = 1 / T.
    group.answer(Broadcast(PlayRequest(1, 1, Estimate(np.zeros(3), np.eye(3) / 50)), None), 0)
    expected = scikit_learn_minimiser(*group.blocks[0].log.fresh(), ridge)
    federation = recorded_run(settings)
    rounds = [broadcast for broadcast, _ in federation.trips if broadcast.play is not None]
    np.testing.assert_allclose(rounds[1].theta_hat, expected, rtol=1e-6, atol=1e-8)
    np.testing.assert_array_equal(rounds[1].play.estimate.theta_sync, rounds[1].theta_hat)


@pytest.mark.parametrize("solver", ["newton", "lbfgs", "gd"])
def test_gd_plays_with_the_minimiser_of_all_duels_so_far(solver):
    if solver == "lbfgs":
        pytest.importorskip("torch", reason="solver=lbfgs needs the torch extra")
    values = {"num_agents": 5, "dimension": 3, "horizon": 8, "gd_steps": 400, "kappa_mu": 0.8}
    settings = chosen(algorithm="fldb_gd", solver=solver, seed=4, **values)
    federation = recorded_run(settings)
    differences, preferences = federation.duels()
    assert len(preferences) == 8 * 5
    estimates = [trip.play.estimate for trip, _ in federation.trips if trip.play is not None]
    estimates.append(Estimate(federation.theta, None))
    np.testing.assert_array_equal(estimates[0].theta_sync, np.zeros(3))
    for t in (1, 2, 5, 8):
        seen = slice(0, 5 * t)
        expected = scikit_learn_minimiser(differences[seen], preferences[seen], 1.0)
        np.testing.assert_allclose(estimates[t].theta_sync, expected, rtol=2e-5, atol=1e-6)
    for t in (0, 1, 5):
        information = np.eye(3) / 0.8
        for row in differences[: 5 * t]:
            information = information + np.outer(row, row)
        np.testing.assert_allclose(estimates[t].information, information, rtol=1e-12, atol=1e-12)


def test_gd_with_a_geometric_schedule_minimises_after_its_rounds_only():
    """With ratio 2, the rounds end at 1, 2, 4 and 8; the last two iterations are only played."""
    schedule = {"name": "geometric", "ratio": 2.0}
    values = {"num_agents": 5, "dimension": 3, "horizon": 10, "seed": 4, "schedule": schedule}
    federation = recorded_run(chosen(algorithm="fldb_gd", **values))
    plays = [trip.play for trip, _ in federation.trips if trip.play is not None]
    assert [(each.first, each.last) for each in plays] == [(1, 1), (2, 2), (3, 4), (5, 8), (9, 10)]
    differences, preferences = federation.duels()
    for play in plays[1:]:
        seen = slice(0, 5 * (play.first - 1))
        expected = scikit_learn_minimiser(differences[seen], preferences[seen], 1.0)
        np.testing.assert_allclose(play.estimate.theta_sync, expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("size", [AUTO, 0.3])
def test_gradient_descent_uses_a_step_size_that_never_overshoots_or_the_given_one(size):
    # One step from theta = 0: eta sum (y - 1/2) difference, first duels.
    settings = chosen(algorithm="fldb_gd", horizon=1, solver="gd", gd_steps=1, gd_step_size=size)
    federation = recorded_run(settings)
    x, y = federation.duels()
    # 1 / (trace(W) / 4 + lambda) with W = W_0 + W_new.
    step = 1 / ((2 * 2 + (x**2).sum()) / 4 + 1) if size == AUTO else size
    expected = step * ((y - 0.5)[:, None] * x).sum(axis=0)
    np.testing.assert_allclose(federation.theta, expected, rtol=1e-13)


def test_bytes_by_hand():
    # d = 2: theta 2 numbers, a triangle 3. OGD at t = 1 with Newton: up 2 + 3 + 3, down 5 + 2 to
    # play and 2 to evaluate; then up 2 + 3, down 5 + 2. Three agents, 8 bytes a number.
    federation = recorded_run(chosen(algorithm="fldb_ogd", horizon=7, tau=3))
    history = federation.history
    first = history.exchanges_by_iteration[0]
    assert history.exchanges == first + 2  # rounds 3 and 6; t = 7 is not counted
    assert history.uploaded_bytes == 8 * 3 * (8 * first + 2 * 5)
    assert history.downloaded_bytes == 8 * 3 * (7 + 2 * (first - 1) + 2 * 7)


# --- the paper's orderings ----------------------------------------------------------------


GEOMETRIC = {"schedule": {"name": "geometric", "ratio": 1.5}}


def regrets(seeds=range(5), **values):
    """Final average regret for each seed, with the paper's K = 10 and d = 5."""
    found = []
    for seed in seeds:
        settings = from_nested({"horizon": 200, "tau": 1, "seed": seed, **values}, "a test")
        history = History(settings.horizon)
        run(settings, history)
        found.append(history.regret)
    return np.array(found)


def assert_clearly_below(lower, higher):
    """Paired by seed (the same theta): the mean difference exceeds two standard errors."""
    gap = higher - lower
    error = gap.std(ddof=1) / math.sqrt(len(gap))
    assert gap.mean() > 2 * error, f"{lower} is not clearly below {higher}: {gap.mean()} +- {error}"


@pytest.mark.exhaustive
def test_collaboration_beats_independent_agents_and_random_pairs():
    kinds = ["fldb_gd", "fldb_ogd", "ldb", "random"]
    found = [regrets(range(12), algorithm=kind, num_agents=50) for kind in kinds]
    for lower, higher in itertools.pairwise(found):
        assert_clearly_below(lower, higher)


def test_independent_agents_beat_random_pairs():
    """The reference values below imply the order of the other algorithms."""
    learning, guessing = (regrets(algorithm=kind, num_agents=10) for kind in ("ldb", "random"))
    assert_clearly_below(learning, guessing)


def test_regret_of_ogd_falls_with_the_number_of_agents():
    found = [regrets(range(10), algorithm="fldb_ogd", num_agents=n) for n in (10, 40, 160)]
    for higher, lower in itertools.pairwise(found):
        assert_clearly_below(lower, higher)


@pytest.mark.parametrize(
    ("values", "mean", "error"),
    [
        # Reference values of an independent implementation: T = 500, mean +- standard error.
        ({"algorithm": "fldb_gd", "num_agents": 50}, 28, 1.3),
        ({"algorithm": "fldb_ons", "beta_scale": 1, "num_agents": 50}, 31.6, 0.8),
        ({"algorithm": "fldb_ons", "beta_scale": 1, "num_agents": 50, **GEOMETRIC}, 32.9, 1.0),
        ({"algorithm": "fldb_ogd", "num_agents": 100}, 62, 11),
        ({"algorithm": "ldb", "num_agents": 10}, 289, 19),
    ],
    ids=["gd", "ons", "ons-geometric", "ogd", "ldb"],
)
def test_regret_agrees_with_the_reference_values(values, mean, error):
    found = regrets(range(4), horizon=500, **values)
    own = found.std(ddof=1) / math.sqrt(len(found))
    assert found.mean() == pytest.approx(mean, abs=3 * math.hypot(own, error))


def test_ons_on_a_geometric_schedule_needs_23_exchanges():
    values = {"algorithm": "fldb_ons", "num_agents": 100, "horizon": 500, **GEOMETRIC}
    settings = from_nested(values, "a test")
    history = History(500)
    run(settings, history)
    assert history.rounds == 16
    # 15 rounds after t = 1, where Newton takes about 8.
    assert history.exchanges - history.exchanges_by_iteration[0] == 15
    assert 5 <= history.exchanges_by_iteration[0] <= 10
