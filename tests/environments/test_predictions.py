"""Log loss and accuracy of predicted answers, against sums by hand and scikit-learn."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from conftest import nested
from faulty_grid import FaultyGrid

from fldb_flower.algorithms import run_algorithm
from fldb_flower.bandit.duels import prediction_sums
from fldb_flower.bandit.preference import logistic
from fldb_flower.federation.agents import AgentGroup, agents_of_node
from fldb_flower.federation.exchange import Broadcast, Federation, PlayRequest
from fldb_flower.federation.history import History
from fldb_flower.settings import from_nested
from simulations.engines import vectorized
from simulations.run import run
from strategies import make_strategy
from strategies.simulated import SimulatedChannel

N, T = 6, 20


def settings(**values):
    given = {"num_agents": N, "horizon": T, "num_arms": 4, "dimension": 3, "tau": 3, "plot": False}
    return from_nested(nested(**{**given, **values}), "a test")


# Two iterations of four agents: logits and answers.
LOGITS = np.array([math.log(3), math.log(3), -math.log(4), 0.0, 0.0, 2.0, -5.0, 0.0])
ANSWERS = np.array([1.0, 0.0, 0.0, 1.0, 0.0, 0.5, 1.0, 1.0])
# Only the differences of the fourth and the last duel are 0: the fifth is orthogonal to theta.
DIFFERENCES = np.array([[1, 0], [1, 0], [1, 1], [0, 0], [0, 7], [1, 0], [1, 0], [0, 0]]) * 1.0
BY_HAND = [
    # p = 3/4 twice, once wrong, and p = 1/5.
    [math.log(4 / 3) + math.log(4) + math.log(5 / 4), 3, 3, 2],
    # p = 1/2; a tie; a wrong one.
    [math.log(2) + math.log(1 + math.exp(2)) - 1 + math.log(1 + math.exp(5)), 3, 2, 0.5],
]


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_sums_of_two_iterations_by_hand(backend):
    arrays = LOGITS, ANSWERS, DIFFERENCES
    if backend == "torch":
        torch = pytest.importorskip("torch")
        arrays = tuple(torch.from_numpy(array) for array in arrays)
    np.testing.assert_allclose(prediction_sums(*arrays, 2), BY_HAND, rtol=1e-14)


def test_sure_predictions_have_a_finite_log_loss():
    """A right one costs exp(-z), a wrong one z."""
    for logit in (30.0, 800.0, 1e4):
        logits, differences = np.full(4, logit), np.ones((4, 1))
        sums = prediction_sums(logits, np.array([1.0, 0.0, 0.5, 0.9]), differences, 4)
        expected = [math.exp(-logit), logit, logit / 2, logit / 10]
        np.testing.assert_allclose(sums[:, 0], expected, rtol=1e-12, atol=1e-12)
        assert sums[:, 3].tolist() == [1.0, 0.0, 0.0, 1.0]


def test_means_are_over_all_duels_so_far():
    history = History(3)
    assert (history.log_loss, history.accuracy) == (None, None)
    history.add_outcomes(2, 4, np.insert(BY_HAND, 0, 1.0, axis=1))
    loss, accuracy = history.cumulative_predictions
    first, both = BY_HAND[0][0] / 3, (BY_HAND[0][0] + BY_HAND[1][0]) / 6
    np.testing.assert_allclose(loss, [math.nan, first, both], rtol=1e-14)
    np.testing.assert_allclose(accuracy, [math.nan, 2 / 3, 2.5 / 5], rtol=1e-14)
    assert (history.log_loss, history.accuracy) == (loss[-1], accuracy[-1])
    ties = History(1)
    ties.add_outcomes(1, 2, [[0.0, 2 * math.log(2), 2, 0, 0]])
    assert (ties.log_loss, ties.accuracy) == (math.log(2), None)


class Recorded(Federation):
    """All agents as one group; keeps theta_sync, differences and answers of each exchange."""

    def __init__(self, chosen):
        super().__init__(History(chosen.horizon))
        self.group, self.counted, self.rounds = AgentGroup(chosen, range(N)), 0, []
        self.theta = np.zeros(chosen.dimension)

    def collect(self, broadcast):
        upload = self.group.answer(broadcast._replace(final=False), self.counted)
        if broadcast.play is not None:
            self.theta = broadcast.play.estimate.theta_sync
            duels = self.group.blocks[0].log.fresh()
            self.rounds.append((self.theta, *(each.copy() for each in duels)))
        return upload

    def mark_counted(self):
        self.counted = self.history.iteration


def test_fldb_predicts_with_the_last_broadcast():
    metrics = pytest.importorskip("sklearn.metrics")
    chosen = settings(algorithm="fldb_ons")
    federation = Recorded(chosen)
    run_algorithm(federation, chosen)
    probabilities, answers = [], []
    for theta, differences, preferences in federation.rounds:
        for difference, answer in zip(differences, preferences, strict=True):
            if difference.any():
                probabilities.append(1 / (1 + math.exp(-sum(theta * difference))))
                answers.append(answer)
    assert sum(len(duels) for _, duels, _ in federation.rounds) == N * T
    assert_scores(metrics, federation.history, probabilities, answers)


def assert_scores(metrics, history, probabilities, answers):
    loss = metrics.log_loss(answers, probabilities)
    assert history.log_loss == pytest.approx(loss, rel=1e-12)
    sides = np.sign(np.array(probabilities) - 0.5)
    right = 0.5 + 0.5 * sides * (2 * np.array(answers) - 1)
    assert history.accuracy == pytest.approx(right.mean(), rel=1e-12)
    decided = sides != 0
    share = metrics.accuracy_score(np.array(answers)[decided], sides[decided] > 0)
    assert right[decided].mean() == pytest.approx(share)


def test_an_agent_of_ldb_predicts_with_its_own_earlier_duels():
    linear_model = pytest.importorskip("sklearn.linear_model")
    metrics = pytest.importorskip("sklearn.metrics")
    chosen = settings(algorithm="ldb", **{"lambda": 1.0})
    history, group = History(T), AgentGroup(chosen, range(2))
    upload = group.answer(Broadcast(PlayRequest(1, T), None), 0)
    history.add_outcomes(*upload.outcomes[0])
    differences, preferences = group.blocks[0].log.fresh()
    differences, preferences = differences.reshape(T, 2, 3), preferences.reshape(T, 2)
    probabilities, answers = [], []
    for agent in range(2):
        theta = np.zeros(3)
        for t in range(T):
            if differences[t, agent].any():
                probabilities.append(logistic(theta @ differences[t, agent]))
                answers.append(preferences[t, agent])
            # Each duel and its mirror image with half the weight: both classes always occur.
            seen, won = differences[: t + 1, agent], preferences[: t + 1, agent]
            model = linear_model.LogisticRegression(
                C=1.0, fit_intercept=False, tol=1e-10, max_iter=10**4
            )
            halves = [0.5] * (2 * len(won))
            model.fit(np.vstack([seen, -seen]), np.hstack([won, 1 - won]), sample_weight=halves)
            theta = model.coef_[0]
    assert history.log_loss == pytest.approx(metrics.log_loss(answers, probabilities), rel=1e-5)
    right = (np.array(probabilities) > 0.5) == np.array(answers)
    right = np.where(np.array(probabilities) == 0.5, 0.5, right)
    assert history.accuracy == pytest.approx(right.mean(), rel=1e-12)


def scores(summary):
    return summary["log_loss"], summary["accuracy"]


@pytest.mark.parametrize("algorithm", ["fldb_ons", "ldb"])
def test_every_engine_and_number_of_nodes_has_the_same_scores(tmp_path, algorithm):
    history = History(T)
    vectorized.run(settings(algorithm=algorithm), history)
    assert 0 < history.log_loss < 2
    assert 0.3 < history.accuracy < 1
    for nodes in (1, 2, N):
        where = {"engine__name": "inprocess", "engine__num_nodes": nodes}
        run(settings(algorithm=algorithm, **where), tmp_path / str(nodes))
        summary = json.loads((tmp_path / str(nodes) / "summary.json").read_text())
        np.testing.assert_allclose(
            scores(summary), [history.log_loss, history.accuracy], rtol=1e-10
        )
        table = pd.read_csv(tmp_path / str(nodes) / "prediction.csv")
        assert table.columns.to_list() == ["iteration", "log_loss", "accuracy"]
        assert table.iteration.to_list() == list(range(1, T + 1))
        assert scores(table.iloc[-1]) == scores(summary)


def test_random_pairs_are_not_predicted(tmp_path):
    run(settings(algorithm="random"), tmp_path)
    assert not {"log_loss", "accuracy"} & set(json.loads((tmp_path / "summary.json").read_text()))
    assert not (tmp_path / "prediction.csv").exists()


def test_lost_late_and_repeated_replies_count_each_prediction_once(monkeypatch):
    """The duels of LDB do not depend on messages; each node has a last iteration counted."""
    where = {"engine__name": "inprocess", "engine__num_nodes": 3, "quorum": 0.3, "dropout": 0.2}
    chosen = settings(algorithm="ldb", tau=2, **where)
    covered, acknowledge = {}, SimulatedChannel.acknowledge

    def acknowledging(nodes):
        for each in nodes.contributions.values():
            (outcomes,) = each.upload.outcomes
            covered[each.claim.partition] = outcomes.first + len(outcomes.sums) - 1
        acknowledge(nodes)

    monkeypatch.setattr(SimulatedChannel, "acknowledge", acknowledging)
    history = History(T)
    faults = {"late": 0.3, "duplicate": 0.3, "reorder": 0.5, "crash": 0.2, "past": 0.2}
    make_strategy(chosen, history).start(FaultyGrid(chosen, **faults))
    assert any(row.replied < row.asked for row in history.participation)
    expected = np.zeros((T, 5))
    for partition, last in covered.items():
        group = AgentGroup(chosen, agents_of_node(partition, 3, N))
        (outcomes,) = group.answer(Broadcast(PlayRequest(1, last), None), 0).outcomes
        expected[:last] += outcomes.sums
    loss, predicted, decided, correct = expected[:, 1:].cumsum(axis=0).T
    np.testing.assert_allclose(
        history.cumulative_predictions, [loss / predicted, correct / decided], rtol=1e-12
    )
