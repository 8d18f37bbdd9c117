"""Tables `newcomers`, `variances` and `pace`: FLDB-Personal."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
import pandas as pd

import measured
from common import by_seed, median
from fldb_flower.algorithms import make_algorithm, run_rounds
from fldb_flower.algorithms.personal import FLDBPersonal
from fldb_flower.bandit.estimate import (
    HALF_WEIGHT,
    START,
    VARIANCES,
    CommonPrior,
    ShareChange,
    mean_variance,
)
from fldb_flower.bandit.estimates import PersonalEstimates
from fldb_flower.bandit.streams import AgentStreams
from fldb_flower.environments.synthetic import Synthetic
from fldb_flower.federation.agents import AgentGroup
from fldb_flower.federation.exchange import Broadcast, PlayRequest
from fldb_flower.federation.history import History
from fldb_flower.linalg.arrays import Array, FloatArray
from fldb_flower.settings import Settings
from simulations.benchmark import seconds, settings
from simulations.engines import vectorized
from simulations.engines.vectorized import DirectFederation

MEMBERS, TRAINING = 99, 200  # agents that are there first, and their iterations
NEWCOMERS = 100  # agents that join with each seed
ANSWERS = (1, 5, 15, 100)  # of theirs; the last number is the number of iterations
ALGORITHMS: dict[str, dict[str, Any]] = {
    "alone": {"algorithm": "alone"},
    "common": {"algorithm": "fldb_personal", "personal_variance": 1e-9},
    "isotropic": {"algorithm": "fldb_personal", "personal_structure": "isotropic"},
    "personal": {"algorithm": "fldb_personal"},
}
WORLDS: dict[str, dict[str, Any]] = {
    "every direction": {"environment": {"sigma": 0.3}},
    "2 of 10 directions": {"dimension": 10, "environment": {"sigma": 0.9, "directions": 2}},
}

Rule = Callable[[Array, float], float]


def within(nats: float) -> Rule:
    """Return the rule that chooses the largest v whose loss is at most ``nats`` above the least."""

    def largest(losses: Array, _answers: float) -> float:
        return float(VARIANCES[losses <= losses.min() + nats].max())

    return largest


def mean(tempering: float = 0.0) -> Rule:
    """Return the rule of the mean of v, with equal prior weights.

    The log losses have the weight ``n / (n + tempering)`` after n answers per agent.
    """

    def average(losses: Array, answers: float) -> float:
        weights = np.exp(answers / (answers + tempering) * (losses.min() - losses))
        return float(weights @ VARIANCES / weights.sum())

    return average


RULES: dict[str, Rule] = {
    "FLDB-Personal": mean_variance,
    "equal weights": mean(tempering=HALF_WEIGHT),
    "eta = 1": mean(),
    "least loss": within(0),
    "1 nat": within(1),
    "3 nats": within(3),
}


def _study(name: str, **more: int) -> dict[str, Any]:
    return {
        "num_arms": 4,
        "horizon": 30,
        "environment": {"name": "duels", "path": name, **more},
    }


def _synthetic(agents: int, horizon: int, sigma: float) -> dict[str, Any]:
    return {"num_agents": agents, "horizon": horizon, "environment": {"sigma": sigma}}


CASES: dict[str, dict[str, Any]] = {
    "FirstNames": _study("FirstNames"),
    "GermanParties2009": _study("GermanParties2009"),
    "CEMSChoice": _study("CEMSChoice"),
    "SoundQuality": _study("SoundQuality", max_people=200),
    "N=10, sigma=0": _synthetic(10, 300, 0.0),
    "N=10, sigma=0.3": _synthetic(10, 300, 0.3),
    "N=100, sigma=0": _synthetic(100, 150, 0.0),
    "N=100, sigma=0.1": _synthetic(100, 150, 0.1),
    "N=100, sigma=0.3": _synthetic(100, 150, 0.3),
}


class Ruled(FLDBPersonal):
    """FLDB-Personal with another rule for v."""

    rule: Rule

    def variance(self, losses: Array, answers: float, scale: float) -> float:
        """Return v by the rule."""
        return self.rule(losses, answers)


def variances(seeds: int = 10) -> pd.DataFrame:
    """Compare rules for v; return regret by seed. Studies without a path are omitted."""
    cases = [name for name in CASES if measured.is_possible({"settings": CASES[name]})]
    pairs = list(itertools.product(cases, RULES))
    found = zip(pairs, by_seed(_regret_under, pairs, seeds), strict=True)
    return pd.DataFrame({"case": case, "rule": rule, "regret": own} for (case, rule), own in found)


def _regret_under(job: tuple[tuple[str, str], int]) -> float:
    (case, rule), seed = job
    fixed = {"algorithm": "fldb_personal", "personal_structure": "isotropic", "tau": 1}
    run = {"settings": {**fixed, **CASES[case]}}
    chosen = measured.settings_of(run, seed)
    history, algorithm = History(chosen.horizon), Ruled(chosen)
    algorithm.rule = RULES[rule]
    with closing(DirectFederation(chosen, history)) as federation:
        run_rounds(federation, algorithm)
    return round(history.regret, 4)


def newcomers(seeds: int = 10) -> pd.DataFrame:
    """Let agents join a trained federation; return their regret and log loss by seed.

    99 agents learn for 200 iterations. Then 100 new agents receive the prior and answer duels,
    without further exchanges. Each row has the regret and the mean log loss of the first n answers
    of a new agent, with one value for each seed. The regret is of the pairs that the agents select.
    The log loss is of pairs of arms drawn at random, the same with each algorithm.
    """
    pairs = list(itertools.product(WORLDS, ALGORITHMS))
    curves = np.array(by_seed(_first_answers, pairs, seeds))
    return pd.DataFrame(
        [
            {
                "world": world,
                "algorithm": name,
                "answers": count,
                "regret": own[:, 0, count - 1].round(4).tolist(),
                "log_loss": own[:, 1, count - 1].round(6).tolist(),
            }
            for (world, name), own in zip(pairs, curves, strict=True)
            for count in ANSWERS
        ]
    )


def _first_answers(job: tuple[tuple[str, str], int]) -> FloatArray:
    """Return the regret and the mean log loss after each answer of new agents, (2, answers)."""
    (world, name), seed = job
    values = {**ALGORITHMS[name], "seed": seed, **WORLDS[world]}
    prior = None
    if name != "alone":
        trained = settings(**values, num_agents=MEMBERS, horizon=TRAINING)
        algorithm = make_algorithm(trained)
        assert isinstance(algorithm, FLDBPersonal)
        with closing(DirectFederation(trained, History(TRAINING))) as federation:
            run_rounds(federation, algorithm)
        prior = algorithm.prior
    # The streams of an agent depend on the seed and its number only.
    chosen = settings(**values, num_agents=MEMBERS + NEWCOMERS, horizon=ANSWERS[-1])
    agents = range(MEMBERS, chosen.num_agents)
    request = Broadcast(PlayRequest(1, chosen.horizon, prior), None)
    (outcomes,) = AgentGroup(chosen, agents).answer(request, 0).outcomes
    losses = _losses_of_random_pairs(chosen, agents, prior)
    return np.stack([
        np.cumsum(outcomes.sums[:, 0]) / NEWCOMERS,
        np.cumsum(losses) / np.arange(1, len(losses) + 1),
    ])  # fmt: skip


def _losses_of_random_pairs(
    chosen: Settings, agents: range, prior: CommonPrior | None
) -> FloatArray:
    """Return the mean log loss of each answer, predicted before it is learned from, (answers,)."""
    count, d = len(agents), chosen.dimension
    prior = prior or CommonPrior(np.zeros((d, d)), np.zeros(d), START, 1.0)
    none = np.zeros(count)
    no_shares = ShareChange(np.zeros((count, d, d)), np.zeros((count, d)), none, none, none)
    estimates = PersonalEstimates(count, d, chosen.personal_ridge)
    estimates.receive(prior, no_shares, none + prior.scale)
    streams = AgentStreams(chosen.seed, agents)
    contexts = Synthetic(chosen, agents).contexts(streams, chosen.horizon)
    differences = contexts.features[:, :, 0] - contexts.features[:, :, 1]
    gaps = contexts.rewards[:, :, 0] - contexts.rewards[:, :, 1]
    answers = (np.random.default_rng(chosen.seed).logistic(size=gaps.shape) < gaps) * 1.0
    losses = []
    for x, y in zip(differences.swapaxes(0, 1), answers.T, strict=True):
        logits = estimates.predict(x)
        losses.append(np.mean(np.logaddexp(0.0, logits) - y * logits))
        estimates.add(x, y)
    return np.array(losses)


def pace(repetitions: int = 9) -> pd.DataFrame:
    """Time FLDB-Personal alternately with other algorithms, at several sizes."""
    rows = []
    for agents, d, horizon in ((100, 5, 500), (1000, 5, 100), (100, 64, 100)):
        size = {"num_agents": agents, "dimension": d, "horizon": horizon}
        others = {"LDB": "ldb", "alone": "alone", "FLDB-OGD": "fldb_ogd"}
        runs = {name: settings(algorithm=other, **size) for name, other in others.items()}
        runs["isotropic"] = settings(
            algorithm="fldb_personal", **size, personal_structure="isotropic"
        )
        runs["own"] = settings(algorithm="fldb_personal", **size)
        times = [
            {name: seconds(vectorized.run, run, History(horizon)) for name, run in runs.items()}
            for _ in range(repetitions)
        ]
        row = {"N": agents, "d": d, "T": horizon, "seconds": median(each["own"] for each in times)}
        for name in list(runs)[:-1]:
            row[f"x {name}"] = median(each["own"] / each[name] for each in times)
        rows.append(row)
    return pd.DataFrame(rows)
