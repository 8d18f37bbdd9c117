"""Groups of agents against Algorithm 1 in explicit loops, and against each other."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fldb_flower.bandit.estimate import Estimate
from fldb_flower.bandit.streams import AgentStreams, shared_generator
from fldb_flower.catalogue import SELECTIONS
from fldb_flower.environments import Contexts
from fldb_flower.errors import DataError
from fldb_flower.federation import agents as agents_module
from fldb_flower.federation.agents import (
    AHEAD,
    AgentGroup,
    OfferStream,
    agents_of_node,
    total_of_blocks,
)
from fldb_flower.federation.exchange import Broadcast, PlayRequest
from fldb_flower.linalg.arrays import Arrays, pack_arrays, unpack_arrays
from fldb_flower.settings import from_nested

N, K, D, T = 3, 4, 2, 7

property_test = settings(deadline=None, derandomize=True, max_examples=60)


def small(**changes):
    values = {"num_agents": N, "num_arms": K, "dimension": D, "horizon": T, "seed": 5, **changes}
    return from_nested(values, "a test")


def estimates(count, d=D, seed=0):
    """Return distinct estimates and positive definite matrices, as in different broadcasts."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        root = rng.standard_normal((d, d))
        yield rng.standard_normal(d), root @ root.T + 0.1 * np.eye(d)


def asked(first, last, estimate, point=None, **what):
    """Return a request to play with (theta, W), and for statistics at a point, by default theta."""
    play = PlayRequest(first, last, Estimate(*estimate))
    return Broadcast(play, estimate[0] if point is None else point, **what)


def world(chosen, agent):
    """Arms (T, K, d), latent rewards (T, K) and answer noise (T,) of one agent."""
    streams = AgentStreams(chosen.seed, range(agent, agent + 1))
    features = streams.standard_normal("arms", T, K, D)[0]
    noise = streams.logistic("preferences", T)[0]
    theta = shared_generator(chosen.seed, "theta").standard_normal(D)
    if chosen.environment.sigma:
        own = AgentStreams(chosen.seed, range(agent, agent + 1)).standard_normal("theta", 1, D)
        theta = theta + chosen.environment.sigma * own[0, 0]
    rewards = [[sum(theta[k] * arm[k] for k in range(D)) for arm in row] for row in features]
    return features, rewards, noise


def selected(arms, theta, information, beta, kappa_mu):
    """Algorithm 1, lines 4 and 5, with an explicit inverse."""
    inverse = np.linalg.inv(information)
    predicted = [sum(theta[k] * arm[k] for k in range(D)) for arm in arms]
    first = max(range(K), key=lambda arm: predicted[arm])
    scores = []
    for arm in range(K):
        x = arms[arm] - arms[first]
        norm = math.sqrt(sum(x[i] * inverse[i, j] * x[j] for i in range(D) for j in range(D)))
        scores.append(predicted[arm] - predicted[first] + beta / kappa_mu * norm)
    return first, max(range(K), key=lambda arm: scores[arm])


def by_hand(chosen, plays):
    """Algorithm 1 in loops: (iteration, agent) -> difference, y, regret."""
    duels = {}
    ridge = 1 / chosen.horizon if chosen.lambda_ == "auto" else chosen.lambda_
    for play in plays:
        for t in range(play.first, play.last + 1):
            inside = 1 + t * chosen.num_agents * chosen.kappa_mu / (D * ridge)
            beta = math.sqrt(2 * math.log(1 / chosen.delta) + D * math.log(inside))
            beta *= 1.0 if chosen.beta_scale == "auto" else chosen.beta_scale
            if chosen.algorithm == "fldb_ons":  # a number of standard deviations
                beta = chosen.ons_width * chosen.kappa_mu
            for agent in range(chosen.num_agents):
                features, rewards, noise = world(chosen, agent)
                arms, f = features[t - 1], rewards[t - 1]
                first, second = selected(
                    arms,
                    play.estimate.theta_sync,
                    play.estimate.information,
                    beta,
                    chosen.kappa_mu,
                )
                won = noise[t - 1] < f[first] - f[second]  # with probability mu(f - f')
                regret = 2 * max(f) - f[first] - f[second]
                duels[t, agent] = arms[first] - arms[second], float(won), regret
    return duels


def sums_by_hand(duels, theta_hat):
    """Algorithm 1, lines 7 to 9, and the Hessian: gradient, information, Hessian, loss."""
    gradient, information, hessian, loss = np.zeros(D), np.zeros((D, D)), np.zeros((D, D)), 0.0
    for difference, y, _ in duels.values():
        mu = 1 / (1 + math.exp(-float(np.dot(theta_hat, difference))))
        gradient += (mu - y) * difference
        information += np.outer(difference, difference)
        hessian += mu * (1 - mu) * np.outer(difference, difference)
        loss -= y * math.log(mu) + (1 - y) * math.log(1 - mu)
    return gradient, information, hessian, loss


def assert_upload(upload, duels, theta_hat, played):
    gradient, information, hessian, loss = sums_by_hand(duels, theta_hat)
    assert upload.num_duels == len(duels)
    np.testing.assert_allclose(upload.gradient, gradient, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(upload.information, information, rtol=1e-12, atol=1e-12)
    if upload.hessian is not None:
        np.testing.assert_allclose(upload.hessian, hessian, rtol=1e-12, atol=1e-12)
        assert upload.loss == pytest.approx(loss, rel=1e-12)
    (outcomes,) = upload.outcomes
    assert (outcomes.first, outcomes.agents) == (played.start, N)
    expected = [sum(duels[t, agent][2] for agent in range(N)) for t in played]
    np.testing.assert_allclose(outcomes.sums[:, 0], expected, rtol=1e-12, atol=1e-12)


def log_of(group):
    """Return the uncounted differences and preferences, by iteration and then by agent."""
    return group.blocks[0].log.fresh()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"seed": 11, "beta_scale": 0.25, "delta": 0.4},
        {"kappa_mu": 0.2, "lambda": 0.7},
        {"environment": {"sigma": 0.8}},
        {"beta_scale": 0.0},
        {"algorithm": "fldb_ons", "ons_width": 0.6, "kappa_mu": 0.2},
    ],
    ids=["defaults", "narrow", "kappa", "heterogeneous", "greedy", "ons"],
)
@pytest.mark.parametrize(("drawn", "together"), [(1, 1), (8, 1), (1, 2), (8, 9)])
def test_a_group_plays_algorithm_1(changes, drawn, together, monkeypatch):
    """For any number of iterations that are drawn and selected together."""
    monkeypatch.setattr(agents_module, "AHEAD", drawn)
    monkeypatch.setattr(agents_module, "BLOCK_NUMBERS", together * N * K * D)
    chosen = small(**changes)
    group = AgentGroup(chosen, range(N))
    counted, seen, points = 0, set(), estimates(4, seed=1)
    spans = [(1, 1), (2, 4), (5, 5), (6, 7)]
    for span, estimate, (theta_hat, _) in zip(spans, estimates(4), points, strict=True):
        request = asked(*span, estimate, theta_hat, hessian=True, loss=True)
        upload = group.answer(request, counted)
        duels = by_hand(chosen, [request.play])
        assert_upload(upload, duels, theta_hat, range(span[0], span[1] + 1))
        differences, preferences = log_of(group)
        np.testing.assert_allclose(differences, [duel[0] for duel in duels.values()], atol=1e-14)
        assert preferences.tolist() == [duel[1] for duel in duels.values()]
        seen |= set(preferences.tolist())
        counted = span[1]
    assert seen == {0.0, 1.0}


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("algorithm", ["fldb_ons", "random", "ldb"])
def test_iterations_selected_together_equal_those_selected_one_by_one(
    algorithm, selection, monkeypatch
):
    chosen = small(algorithm=algorithm, selection=selection)
    uploads, (estimate,) = [], estimates(1)
    for together in (1, 2, 100):
        monkeypatch.setattr(agents_module, "BLOCK_NUMBERS", together * N * K * D)
        group = AgentGroup(chosen, range(N))
        uploads.append(group.answer(asked(1, 7, estimate, np.ones(D), hessian=True), 0))
    for other in uploads[1:]:
        close(other, uploads[0])


def test_statistics_at_several_points_of_the_same_duels():
    chosen = small()
    group = AgentGroup(chosen, range(N))
    request = asked(1, 3, *estimates(1))
    duels = by_hand(chosen, [request.play])
    for number, (theta_hat, _) in enumerate(estimates(4, seed=2)):
        broadcast = Broadcast(None if number else request.play, theta_hat, hessian=True, loss=True)
        assert_upload(group.answer(broadcast, 0), duels, theta_hat, range(1, 4))


def test_after_the_last_exchange_of_a_round_no_duel_is_stored():
    """Uploads are the same, and a repeated message is refused instead of an empty upload."""
    chosen = small()
    kept, dropped = AgentGroup(chosen, range(N)), AgentGroup(chosen, range(N))
    counted = 0
    for last, estimate in zip((3, 5, 7), estimates(3), strict=True):
        request = asked(counted + 1, last, estimate, hessian=True)
        one, other = kept.answer(request, counted), dropped.answer(request, counted)
        if last > 3:  # the last exchange of rounds 2 and 3; round 1 has two
            other = dropped.answer(request._replace(final=True), counted)
        same(one, other)
        counted = last
    assert [len(log_of(group)[1]) for group in (kept, dropped)] == [2 * N, 0]
    for again in (request._replace(final=True), Broadcast(None, estimate[0])):
        with pytest.raises(RuntimeError, match="the reply up to iteration 7 is not counted"):
            dropped.answer(again, 5)


def test_scope_all_sums_over_every_duel_but_information_over_the_fresh():
    chosen = small(algorithm="fldb_gd")
    group = AgentGroup(chosen, range(N))
    (one, two), ((theta_hat, _),) = estimates(2), estimates(1, seed=3)
    first, second = asked(1, 2, one, theta_hat), asked(3, 3, two, theta_hat)
    group.answer(first._replace(scope="all"), 0)
    upload = group.answer(second._replace(scope="all", hessian=True, loss=True), 2)
    first, second = first.play, second.play
    gradient, _, hessian, loss = sums_by_hand(by_hand(chosen, [first, second]), theta_hat)
    _, fresh_information, _, _ = sums_by_hand(by_hand(chosen, [second]), theta_hat)
    assert upload.num_duels == 3 * N
    np.testing.assert_allclose(upload.gradient, gradient, rtol=1e-12)
    np.testing.assert_allclose(upload.hessian, hessian, rtol=1e-12)
    assert upload.loss == pytest.approx(loss, rel=1e-12)
    np.testing.assert_allclose(upload.information, fresh_information, rtol=1e-12)
    assert (upload.outcomes[0].first, len(upload.outcomes[0].sums)) == (3, 1)


def test_ldb_is_algorithm_1_of_one_agent_with_scikit_learns_estimate():
    linear_model = pytest.importorskip("sklearn.linear_model")
    chosen = small(algorithm="ldb", seed=2, kappa_mu=0.1, **{"lambda": 1.0})
    group = AgentGroup(chosen, range(N))
    group.answer(Broadcast(PlayRequest(1, T), None), 0)
    differences = log_of(group)[0].reshape(T, N, D)
    for agent in range(N):
        features, rewards, noise = world(chosen, agent)
        theta, information, duels, answers = np.zeros(D), 1.0 / 0.1 * np.eye(D), [], []
        for t in range(1, T + 1):
            inside = 1 + t * 1 * 0.1 / (D * 1.0)  # N = 1
            beta = math.sqrt(2 * math.log(10) + D * math.log(inside))
            first, second = selected(features[t - 1], theta, information, beta, 0.1)
            difference = features[t - 1][first] - features[t - 1][second]
            won = float(noise[t - 1] < rewards[t - 1][first] - rewards[t - 1][second])
            np.testing.assert_allclose(differences[t - 1, agent], difference, atol=1e-14)
            # Each duel and its mirror image with half the weight: both classes always occur.
            duels += [difference, -difference]
            answers += [won, 1 - won]
            information = information + np.outer(difference, difference)
            model = linear_model.LogisticRegression(
                C=1.0, fit_intercept=False, tol=1e-12, max_iter=10**4
            )
            theta = model.fit(duels, answers, sample_weight=[0.5] * len(answers)).coef_[0]


def test_random_pairs_differ_and_need_no_estimate():
    chosen = small(algorithm="random", num_arms=3, horizon=40)
    group = AgentGroup(chosen, range(N))
    group.answer(Broadcast(PlayRequest(1, 40), None), 0)
    assert (np.abs(log_of(group)[0]).sum(axis=1) > 0).all()


@pytest.mark.parametrize("algorithm", ["fldb_ogd", "fldb_gd", "ldb", "random"])
@pytest.mark.parametrize("selection", ["ucb", "thompson", "colstim"])
@pytest.mark.parametrize("sigma", [0.0, 0.5])
def test_a_group_is_the_union_of_its_parts(algorithm, selection, sigma):
    chosen = small(
        algorithm=algorithm, selection=selection, num_agents=8, environment={"sigma": sigma}
    )
    parts = [range(0, 2), range(2, 3), range(3, 7)]  # agent 7 is on another node
    whole = AgentGroup(chosen, range(7))
    groups = [AgentGroup(chosen, part) for part in parts]
    counted = 0
    for (first, last), estimate in zip([(1, 2), (3, 6)], estimates(2), strict=True):
        broadcast = asked(first, last, estimate, -estimate[0], hessian=True)
        expected = whole.answer(broadcast, counted)
        uploads = [group.answer(broadcast, counted) for group in groups]
        assert [each.outcomes[0].agents for each in uploads] == [2, 1, 4]
        close(total_of_blocks(uploads), expected)
        # Each agent's duels are equal, not only the sums.
        rows = log_of(whole)[0].reshape(-1, 7, D)
        for part, group in zip(parts, groups, strict=True):
            own = log_of(group)[0].reshape(-1, len(part), D)
            np.testing.assert_allclose(own, rows[:, part.start : part.stop], atol=1e-14)
        counted = last


def same(first, second, rtol=0.0):
    atol = 1e-12 if rtol else 0.0
    assert first.num_duels == second.num_duels
    for name in ("gradient", "information", "hessian"):
        one, two = (np.array(getattr(each, name), float) for each in (first, second))
        np.testing.assert_allclose(one, two, rtol=rtol, atol=atol, err_msg=name)
    for one, two in zip(first.outcomes, second.outcomes, strict=True):
        assert (one.first, one.agents) == (two.first, two.agents)
        np.testing.assert_allclose(one.sums, two.sums, rtol=rtol, atol=atol)


def close(first, second):
    same(first, second, rtol=1e-12)


@pytest.mark.parametrize("selection", ["ucb", "thompson"])
def test_a_broadcast_already_played_is_not_played_again(selection):
    chosen = small(selection=selection)
    repeated, once = AgentGroup(chosen, range(N)), AgentGroup(chosen, range(N))
    one, two = map(asked, (1, 4), (3, 5), estimates(2))
    first = repeated.answer(one, 0)
    same(repeated.answer(one, 0), first)
    same(repeated.answer(one, 0), first)
    same(once.answer(one, 0), first)
    same(repeated.answer(two, 3), once.answer(two, 3))
    same(repeated.answer(two, 3), once.answer(two, 3))
    assert len(log_of(repeated)[0]) == 2 * N


@pytest.mark.parametrize(
    "steps",
    [
        # Overlapping broadcasts play only new iterations.
        [(1, 3, 1, 0, [(1, 3, 1)]), (2, 5, 2, 0, [(1, 3, 1), (4, 5, 2)])],
        # Iterations whose broadcast was lost are played with the last estimate, or the initial one.
        [(1, 2, 1, 0, [(1, 2, 1)]), (5, 6, 3, 2, [(3, 4, 1), (5, 6, 3)])],
        [(3, 3, 1, 0, [(1, 2, 0), (3, 3, 1)])],
        # An upload that is not acknowledged is sent again; a late acknowledgement has no effect.
        [(1, 1, 1, 0, [(1, 1, 1)]), (2, 2, 2, 0, [(1, 1, 1), (2, 2, 2)]),
         (3, 3, 3, 2, [(3, 3, 3)]), (4, 4, 4, 1, [(3, 3, 3), (4, 4, 4)])],
    ],
)  # fmt: skip
def test_an_upload_covers_all_duels_that_are_not_acknowledged(steps):
    """Steps are first, last, estimate and what is counted, and then what the upload covers."""
    chosen, point = small(kappa_mu=0.5), np.array([0.3, -1.0])
    # W_0 = (lambda / kappa_mu) I with lambda = 1 / T.
    known = [(np.zeros(D), 1 / T / 0.5 * np.eye(D)), *estimates(4)]
    group = AgentGroup(chosen, range(N))
    for first, last, estimate, counted, covered in steps:
        upload = group.answer(asked(first, last, known[estimate], point), counted)
        plays = [asked(start, end, known[place]).play for start, end, place in covered]
        assert_upload(upload, by_hand(chosen, plays), point, range(covered[0][0], last + 1))


def test_without_theta_hat_only_regret_is_reported():
    chosen = small()
    play = asked(1, 2, *estimates(1)).play
    upload = AgentGroup(chosen, range(N)).answer(Broadcast(play, None), 0)
    assert upload.num_duels == 0
    assert upload.gradient.tolist() == [0.0] * D
    assert upload.information.tolist() == [[0.0] * D] * D
    assert upload.hessian is None
    assert upload.loss is None
    duels = by_hand(chosen, [play])
    expected = [sum(duels[t, agent][2] for agent in range(N)) for t in (1, 2)]
    np.testing.assert_allclose(upload.outcomes[0].sums[:, 0], expected, rtol=1e-12)


def restored(old, new):
    new.restore(unpack_arrays(pack_arrays(old.state())))
    return new


@pytest.mark.parametrize("algorithm", ["fldb_ogd", "fldb_gd", "ldb", "random"])
@pytest.mark.parametrize("selection", ["ucb", "thompson", "colstim"])
@pytest.mark.parametrize(
    ("agents", "numbers"),
    [(range(1, N), 1), (range(20, 100), 1), (range(1, N), 2**16)],
    ids=["a block", "four blocks", "drawn ahead"],
)
def test_a_restored_group_continues_identically(algorithm, selection, agents, numbers, monkeypatch):
    monkeypatch.setattr(agents_module, "BLOCK_NUMBERS", numbers)
    chosen = small(algorithm=algorithm, selection=selection, num_agents=100)
    scope = "all" if algorithm == "fldb_gd" else "fresh"
    uninterrupted, resumed = AgentGroup(chosen, agents), AgentGroup(chosen, agents)
    counted = 0
    spans = [(1, 1), (2, 4), (6, 6), (7, 7)]  # the broadcast of 5 is lost
    for (first, last), estimate in zip(spans, estimates(4), strict=True):
        broadcast = asked(first, last, estimate, scope=scope, hessian=True)
        # As between two messages of a node: serialized, then restored in a new process.
        resumed = restored(resumed, AgentGroup(chosen, agents))
        same(resumed.answer(broadcast, counted), uninterrupted.answer(broadcast, counted))
        counted = first  # the last duels of a round are acknowledged late


def pieces(chosen, *, saved=True):
    """Yield ranges of iterations, and their offers in rising and falling numbers.

    With ``saved``, each piece is taken from a stream restored from the state after the former one.
    """
    stream, taken = OfferStream(chosen, range(N), Arrays()), 0
    for most in (1, 3, 20, 1, 2, 9, 4):  # a single one is drawn with later ones
        yield slice(taken, taken + most), stream.take(most, 40 - taken)
        taken += most
        if saved:
            stream = restored(stream, OfferStream(chosen, range(N), Arrays()))


@pytest.mark.parametrize("saved", [False, True])
def test_offers_do_not_depend_on_how_many_are_taken_at_once(saved):
    chosen = small(horizon=40)
    whole = OfferStream(chosen, range(N), Arrays()).take(40, 40)
    assert whole.features.shape == (40, N, K, D)
    for place, offers in pieces(chosen, saved=saved):
        for found, expected in zip(offers, whole, strict=True):
            np.testing.assert_array_equal(found, expected[place])


def test_an_environment_may_reuse_its_arrays(register_world):
    class Reusing:
        def __init__(self, settings, agents):
            self.arrays = np.empty((len(agents), 40, K, D)), np.empty((len(agents), 40, K))

        def contexts(self, streams, iterations):
            features, rewards = (each[:, :iterations] for each in self.arrays)
            features[:] = streams.standard_normal("arms", iterations, K, D)
            rewards[:] = features.sum(axis=-1)
            return Contexts(features, rewards)

    chosen = small(horizon=40, environment={"name": register_world(Reusing)})
    whole = OfferStream(chosen, range(N), Arrays()).take(40, 40)
    stream = OfferStream(chosen, range(N), Arrays())
    first, later = stream.take(1, 40).features.copy(), stream.take(20, 39)
    np.testing.assert_array_equal(np.concatenate([first, later.features]), whole.features[:21])


def test_a_changing_environment_continues_after_it_was_saved(register_world):
    """Rewards are the numbers of the iterations, counted by the environment."""

    class Counting:
        def __init__(self, settings, agents):
            self.agents, self.drawn = len(agents), 0

        def contexts(self, streams, iterations):
            features = streams.standard_normal("arms", iterations, K, D)
            rewards = np.empty((self.agents, iterations, K))
            rewards[:] = (self.drawn + np.arange(iterations))[:, None]
            self.drawn += iterations
            return Contexts(features, rewards)

        def state(self):
            return {"drawn": self.drawn}

        def restore(self, state):
            self.drawn = int(state["drawn"])

    chosen = small(horizon=40, environment={"name": register_world(Counting)})
    for place, offers in pieces(chosen):
        np.testing.assert_array_equal(offers.rewards[:, 0, 0], np.arange(40)[place])


def test_a_state_that_no_checkpoint_holds_is_refused_at_once(register_world):
    class Changing:
        returned = None

        def __init__(self, settings, agents):
            pass

        def contexts(self, streams, iterations):
            pass

        def state(self):
            return self.returned

        restore = contexts

    chosen = small(horizon=40, environment={"name": register_world(Changing)})
    for returned, named in (
        (7, "7: must return a dict"),
        (np.random.default_rng(0).bit_generator.state, "'state': {'state'.* must return a dict"),
        ({"history": [[1], [1, 2]]}, "'history': .* must return a dict"),
        ({"best": None}, "'best': None.* must return a dict"),
        ({1: 2}, "1: 2.* must return a dict"),
    ):
        Changing.returned = returned
        with pytest.raises(DataError, match=f"Changing.state returned .*{named}"):
            OfferStream(chosen, range(N), Arrays())


def test_offers_saved_after_each_one_are_not_drawn_again_from_the_start():
    """As on a node whose messages are all answered by new processes."""
    chosen = small(horizon=40)
    stream = OfferStream(chosen, range(N), Arrays())
    for iteration in range(40):
        stream.take(1, 40 - iteration)
        state, stream = stream.state(), OfferStream(chosen, range(N), Arrays())
        assert state["taken"] < AHEAD
        stream.restore(state)


@pytest.mark.parametrize("algorithm", ["fldb_ogd", "ldb", "random"])
@pytest.mark.parametrize("selection", ["ucb", "colstim", "thompson"])
def test_results_do_not_depend_on_blocks(algorithm, selection, monkeypatch):
    chosen = small(algorithm=algorithm, selection=selection, num_agents=140)
    broadcast = asked(1, T, *estimates(1), hessian=True)
    expected = AgentGroup(chosen, range(140)).answer(broadcast, 0)
    for numbers, blocks in ((1, 5), (64 * K * D, 3), (2**16, 1)):
        monkeypatch.setattr(agents_module, "BLOCK_NUMBERS", numbers)
        group = AgentGroup(chosen, range(140))
        assert len(group.blocks) == blocks
        close(group.answer(broadcast, 0), expected)


def test_numpys_global_seed_has_no_influence():
    uploads = []
    for seed in (1, 2):
        np.random.seed(seed)  # noqa: NPY002 - the global state is tested here
        group = AgentGroup(small(), range(N))
        uploads.append(group.answer(asked(1, 3, *estimates(1), hessian=True), 0))
    same(*uploads)


@property_test
@given(
    algorithm=st.sampled_from(["fldb_ogd", "ldb", "random"]),
    selection=st.sampled_from(list(SELECTIONS)),
    seed=st.integers(0, 10**6),
    num_arms=st.integers(2, 6),
    dimension=st.integers(1, 4),
    num_agents=st.integers(1, 5),
    beta_scale=st.sampled_from([0.0, 0.1, 1.0, 10.0]),
    sigma=st.sampled_from([0.0, 2.0]),
)
def test_no_regret_is_ever_negative(  # noqa: PLR0917
    algorithm, selection, seed, num_arms, dimension, num_agents, beta_scale, sigma
):
    chosen = small(
        algorithm=algorithm, selection=selection, seed=seed, num_arms=num_arms, horizon=4,
        dimension=dimension, num_agents=num_agents, beta_scale=beta_scale,
        environment={"sigma": sigma},
    )  # fmt: skip
    # The estimate is the true theta: the best arm is chosen twice, regret 0.
    theta = shared_generator(seed, "theta").standard_normal(dimension)
    play = PlayRequest(1, 4, Estimate(theta, 1e6 * np.eye(dimension)))
    upload = AgentGroup(chosen, range(num_agents)).answer(Broadcast(play, None), 0)
    (outcomes,) = upload.outcomes
    regrets = outcomes.sums[:, 0]
    assert regrets.shape == (4,)
    assert (regrets >= 0.0).all()
    if (algorithm, selection, beta_scale, sigma) == ("fldb_ogd", "ucb", 0.0, 0.0):
        assert (regrets == 0.0).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("algorithm", ["fldb_ogd", "ldb"])
def test_an_invalid_feature_is_reported_with_agent_arm_and_iteration(bad, algorithm, monkeypatch):
    class Broken:
        """Agent 6 receives an invalid number for arm 2 in iteration 3."""

        drawn = 0

        def contexts(self, streams, iterations):
            features = streams.standard_normal("arms", iterations, K, D)
            if self.drawn <= 2 < self.drawn + iterations:
                features[2, 2 - self.drawn, 2, 1] = bad
            self.drawn += iterations
            return Contexts(features, features.sum(axis=-1, where=np.isfinite(features)))

    chosen = small(algorithm=algorithm, num_agents=9)
    monkeypatch.setattr(agents_module, "make_environment", lambda *_: Broken())
    group = AgentGroup(chosen, range(4, 9))
    group.answer(asked(1, 2, *estimates(1)), 0)
    with pytest.raises(DataError, match=r"agent 6, arm 2, iteration 3: .*finite"):
        group.answer(asked(3, 3, *estimates(1)), 2)


@property_test
@given(data=st.data(), num_agents=st.integers(1, 300))
def test_nodes_host_each_agent_once_in_order(data, num_agents):
    nodes = data.draw(st.integers(1, num_agents))
    blocks = [agents_of_node(node, nodes, num_agents) for node in range(nodes)]
    assert list(itertools.chain.from_iterable(blocks)) == list(range(num_agents))
    sizes = [len(block) for block in blocks]
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_partitions_that_do_not_exist_are_refused():
    for partition, nodes, reason in (
        (3, 3, "partition-id=3 is not in 0..2"),
        (-1, 3, "partition-id=-1 is not in 0..2"),
        (0, 6, "num-partitions=6 is more than num-agents=5"),
        (0, 0, "partition-id=0 is not in"),
    ):
        with pytest.raises(ValueError, match=reason):
            agents_of_node(partition, nodes, 5)
