"""Recorded duels of real people, from paired-comparison studies."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fldb_flower.bandit.features import Features
from fldb_flower.bandit.streams import AgentStreams, make_streams, stream_arrays
from fldb_flower.environments import Contexts
from fldb_flower.environments.studies import ARMS, DUELS, Study, read_study
from fldb_flower.errors import DataError, one_line
from fldb_flower.linalg.arrays import Array, FloatArray, IntArray, to_numpy
from fldb_flower.settings import AUTO, Settings

COMPLETE = 0.9
"""Share of the pairs that a person must have answered to count as complete."""


class Duels:
    """People's recorded answers; see :func:`~fldb_flower.environments.studies.read_study`.

    Agents are people, in the order of their first duel in ``duels.csv``. ``environment.play`` is
    ``replay`` (:class:`Replay`) or ``predict`` (:class:`Predict`), and the class of an instance is
    one of these two. ``auto`` is replay if at least half of all people of the study have answered
    at least 90% of the pairs, otherwise predict.

    People with fewer than ``environment.min_answers`` answers are left out, as are, in predict,
    those with fewer than ``horizon``. Of the others, the first ``environment.max_people`` are used.
    """

    def __new__(cls, settings: Settings, agents: range) -> Duels:  # noqa: ARG004 - as __init__
        """Return an instance of the class that the settings choose."""
        return object.__new__(Predict if settings.environment.play == "predict" else Replay)

    def __init__(self, settings: Settings, agents: range) -> None:
        self._study, self._people = study, people = _chosen(settings)
        given = study.preference[np.isin(study.person, people)]
        counts = f"{len(given):,} answers, {np.count_nonzero(given == 0.5):,} of them ties"
        self.found = f"{counts}, in {one_line(study.folder / DUELS)}"
        self._arrays = stream_arrays(settings)

    @staticmethod
    def names(settings: Settings) -> tuple[str, ...]:
        """Return the names of the features."""
        return read_study(settings.environment.path).names

    @staticmethod
    def implied(settings: Settings) -> dict[str, Any]:
        """Return the values of settings that are ``auto``, as the study determines them.

        They are ``play``, ``num_agents`` (the number of people), ``dimension`` (the number of
        features) and in predict ``horizon`` (the median number of answers, rounded down).
        """
        study = read_study(settings.environment.path)
        panel = choose(study, settings)
        values = {"play": panel.play, "num_agents": len(panel.people)}
        values["dimension"] = study.features.shape[1]
        return values if panel.horizon is None else {**values, "horizon": panel.horizon}

    @staticmethod
    def caution(settings: Settings) -> str | None:
        """Return a line about texts in arms.csv, and people left out because of the horizon."""
        study = read_study(settings.environment.path)
        warning = study.warning and f"{ARMS}: {study.warning}"
        if settings.environment.play != "predict":
            return warning or None
        answers = study.answers
        answers = answers[answers >= settings.environment.min_answers]
        if not (few := np.count_nonzero(answers < settings.horizon)):
            return warning or None
        return f"{warning}; " * bool(warning) + (
            f"{few} of {len(answers)} people have fewer than"
            f" horizon={settings.horizon} answers and are left out;"
            f" horizon={answers.min()} keeps all"
        )

    @staticmethod
    def max_difference(settings: Settings) -> float:
        """Return the largest distance of two arms that an agent may see; 1 if all are equal."""
        study, people = _chosen(settings)
        if settings.environment.play == "predict":
            rows = np.isin(study.person, people)
            features = standardised(study, people)
            differences = features[study.first[rows]] - features[study.second[rows]]
            return float(np.linalg.norm(differences, axis=1).max()) or 1.0
        features = scaled(study, settings)
        longest = max(np.linalg.norm(features - row, axis=1).max() for row in features)
        return float(longest) or 1.0


class Replay(Duels):
    """Agents choose freely among some arms.

    In each iteration, each agent sees ``num_arms`` distinct arms of the study, drawn uniformly. The
    answer to the pair that its policy selects is the person's recorded preference, averaged over
    repeated answers in either order; 0.5 if there is none. A pair that the agent has selected
    before has no new answer. The reward of an arm is the person's Borda score: its mean share of
    wins against the other arms, where a pair without an answer counts as a tie.

    Unless ``environment.scale=none``, features are divided by their standard deviations over the
    arms of the study, which makes units irrelevant. A common linear reward is per deviation, too.
    """

    shows_pairs = False

    def __init__(self, settings: Settings, agents: range) -> None:
        super().__init__(settings, agents)
        study, self._num_agents, self._num_arms = self._study, len(agents), settings.num_arms
        self._count = count = len(study.arms)
        place, low, high, share = study.averaged(self._people[agents.start : agents.stop])
        keys = self._keys(place, low, high)
        self._answers: dict[int, float] = dict(zip(keys.tolist(), share.tolist(), strict=True))
        self._asked: set[int] = set()
        self._shown = np.empty((0, settings.num_arms), dtype=np.int64)  # arms of the last contexts
        self._features = self._arrays.make(scaled(study, settings))
        size = len(agents) * count
        gains = np.bincount(place * count + low, share - 0.5, size)
        gains -= np.bincount(place * count + high, share - 0.5, size)
        scores = 0.5 + gains.reshape(len(agents), count) / (count - 1)
        self._rewards = self._arrays.make(scores)
        self._agents = self._arrays.arange(len(agents))[:, None, None]

    def _keys(self, place: IntArray, low: IntArray, high: IntArray) -> IntArray:
        """Return the numbers of agents' pairs of arms."""
        return (place * self._count + low) * self._count + high

    def contexts(self, streams: AgentStreams, iterations: int) -> Contexts:
        """Draw distinct arms for each agent and iteration."""
        arms = streams.permutations("arms", iterations, self._count, self._num_arms)
        self._shown = to_numpy(arms).swapaxes(0, 1).reshape(-1, self._num_arms)
        return Contexts(self._features[arms], self._rewards[self._agents, arms])

    def answers(self, first: IntArray, second: IntArray) -> FloatArray:
        """Return the recorded preference of each selected pair; NaN if it was selected before."""
        rows = np.arange(len(self._shown))
        one, other = self._shown[rows, first], self._shown[rows, second]
        low, high = np.minimum(one, other), np.maximum(one, other)
        shares = np.full(len(rows), math.nan)
        for row, key in enumerate(self._keys(rows % self._num_agents, low, high).tolist()):
            if key not in self._asked:
                self._asked.add(key)
                shares[row] = self._answers.get(key, 0.5)
        oriented: FloatArray = np.where(one < other, shares, 1.0 - shares)
        oriented[one == other] = np.nan
        return oriented

    def state(self) -> dict[str, Array]:
        """Return the pairs asked so far."""
        return {"asked": np.array(sorted(self._asked), dtype=np.int64)}

    def restore(self, state: dict[str, Array]) -> None:
        """Restore what :meth:`state` returned."""
        self._asked = set(state["asked"].tolist())


class Predict(Duels):
    """Agents see their recorded duels; the policy does not choose.

    In iteration t, each agent sees the two arms of the t-th of its recorded duels, in an order
    shuffled by the seed, and learns the recorded preference. Features are :func:`standardised`, and
    rewards are 0.
    """

    shows_pairs = True

    def __init__(self, settings: Settings, agents: range) -> None:
        super().__init__(settings, agents)
        study, people = self._study, self._people
        self._iteration = 0
        self._last = slice(0)
        duels = _shuffled(settings, study, people, agents)  # (agents, horizon)
        self._pairs = np.stack([study.first[duels], study.second[duels]], axis=-1)
        self._preferences = study.preference[duels]
        self._features = standardised(study, people)

    def contexts(self, streams: AgentStreams, iterations: int) -> Contexts:
        """Return the two arms of the next recorded duels of each agent."""
        self._last = slice(self._iteration, self._iteration + iterations)
        self._iteration += iterations
        features = self._features[self._pairs[:, self._last]]
        rewards = self._arrays.zeros(*features.shape[:-1])
        return Contexts(self._arrays.make(features), rewards)

    def answers(self, first: IntArray, second: IntArray) -> FloatArray:
        """Return the recorded preferences for the first arm."""
        return self._preferences[:, self._last].T.reshape(-1)

    def state(self) -> dict[str, Array]:
        """Return the number of duels shown."""
        return {"iteration": np.array(self._iteration)}

    def restore(self, state: dict[str, Array]) -> None:
        """Restore what :meth:`state` returned."""
        self._iteration = int(state["iteration"])


class Panel(NamedTuple):
    """The people of a study that a run may use, and how; ``horizon`` is None in replay."""

    people: IntArray
    play: str
    horizon: int | None


def choose(study: Study, settings: Settings) -> Panel:
    """Return the people that the settings choose, some of which may be auto; see :class:`Duels`."""
    environment, answers = settings.environment, study.answers
    count, dimension = study.features.shape
    play, horizon = environment.play, None
    if play == AUTO:
        place, *_ = study.averaged(np.arange(len(study.people)))
        pairs = count * (count - 1) / 2
        complete = np.bincount(place, minlength=len(study.people)) >= COMPLETE * pairs
        play = "replay" if complete.mean() >= 0.5 else "predict"
    people = np.flatnonzero(answers >= environment.min_answers)
    name, least = "environment.min_answers", environment.min_answers
    if people.size and play == "predict":
        horizon = _given(settings.horizon, int(np.median(answers[people])))
        people = people[answers[people] >= horizon]
        name, least = "horizon", horizon
    people = people[: environment.max_people or None]
    answered = f"at most {answers.max()}, the largest number of answers of a person"
    for is_met, given, valid, file in (
        (people.size > 0, f"{name}={least}", answered, DUELS),
        (
            _given(settings.dimension, dimension) == dimension,
            f"dimension={settings.dimension}", f"{dimension}, the number of features", ARMS,
        ),
        (
            play == "predict" or settings.num_arms <= count,
            f"num_arms={settings.num_arms}", f"at most {count}, the number of arms", ARMS,
        ),
        (
            _given(settings.num_agents, 0) <= len(people), f"num_agents={settings.num_agents}",
            f"at most {len(people)}, the number of people used", DUELS,
        ),
    ):  # fmt: skip
        if not is_met:
            raise DataError(f"{given}: must be {valid} in {one_line(study.folder / file)}")
    return Panel(people, play, horizon)


def _given(value: int | str, otherwise: int) -> int:
    """Return an explicit number, or the other one for ``auto``."""
    return otherwise if isinstance(value, str) else value


def _chosen(settings: Settings) -> tuple[Study, IntArray]:
    """Return the study, and the numbers of the people that are agents."""
    study = read_study(settings.environment.path)
    return study, choose(study, settings).people[: settings.num_agents]


def scaled(study: Study, settings: Settings) -> FloatArray:
    """Return the features that replay shows (``environment.scale``), (arms, d)."""
    if settings.environment.scale == "none":
        return study.features
    return Features.of_arms(study.features).scaled(study.features)


def standardised(study: Study, people: IntArray) -> FloatArray:
    """Return the features, divided by the root mean square of their differences, (arms, d).

    The differences are those of all recorded duels of the people. A feature that is equal in the
    two arms of each duel is 0.
    """
    rows = np.isin(study.person, people)
    differences = study.features[study.first[rows]] - study.features[study.second[rows]]
    largest = np.abs(differences).max(axis=0)  # squares are of numbers up to 1
    relative = differences / np.where(largest > 0, largest, 1.0)
    deviation = largest * np.sqrt((relative**2).mean(axis=0))
    scaled: FloatArray = np.where(deviation > 0, study.features, 0.0)
    return scaled / np.where(deviation > 0, deviation, 1.0)


def _shuffled(settings: Settings, study: Study, people: IntArray, agents: range) -> IntArray:
    """Return the numbers of the duels of each agent, in a random order, (agents, horizon)."""
    most = int(study.answers[people].max())  # of all agents: the same in each block
    uniform = to_numpy(make_streams(settings, agents).random("order", 1, most))[:, 0]
    by_person = np.argsort(study.person, kind="stable")
    starts = np.cumsum(study.answers) - study.answers
    duels = np.empty((len(agents), settings.horizon), dtype=np.int64)
    for row, person in enumerate(people[agents.start : agents.stop]):
        own = by_person[starts[person] : starts[person] + study.answers[person]]
        order = np.argsort(uniform[row, : len(own)], kind="stable")
        duels[row] = own[order[: settings.horizon]]
    return duels
