"""Arms that are sentences, with features and rewards from a language model."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fldb_flower.bandit.streams import AgentStreams, make_streams, stream_arrays
from fldb_flower.environments.base import Contexts
from fldb_flower.environments.embeddings import embed
from fldb_flower.environments.text_files import read_text
from fldb_flower.errors import DataError, one_line
from fldb_flower.linalg.arrays import FloatArray, to_numpy
from fldb_flower.settings import EMBEDDING_DIMENSIONS, Settings

_BUILT_IN = Path(__file__).with_suffix(".json")
_MAX_BYTES = 2**24  # about 200,000 sentences
_EQUAL = 1e-6  # a smaller standard deviation of rewards is a rounding error


class Sentences:
    r"""Sentences as arms; the reward is linear in their embeddings.

    In each iteration, each agent draws ``num_arms`` distinct sentences of the corpus, uniformly.
    Let e(x) be the embedding of sentence x, of norm 1 in 384 dimensions.

    - *Reward.* ``f(x) = theta . e(x)``. theta is proportional to the difference between the mean
      embedding of six liked suggestions for a free day (quiet, nature) and that of six disliked
      ones (crowds, noise). None of the twelve is an arm. theta is scaled so that the rewards of the
      corpus have standard deviation 1: the best of ten arms is preferred to a random one with
      probability 0.8. The seed does not change theta.
    - *Heterogeneity.* ``theta_i = theta + sigma z_i / sqrt(v)`` with z_i from N(0, I) and v the
      variance of the corpus, ``mean ||e(x) - mean e||^2``. An agent's own part of its rewards then
      has variance ``sigma^2`` on average over z_i, and the common part has variance 1, as in the
      synthetic environment.
    - *Features.* With d = 384, ``phi(x) = e(x)``. With d < 384, ``phi(x)`` is the projection of the
      centred embedding on the d leading principal components (:func:`principal_scores`), not
      rescaled. The reward depends on the whole embedding, so the linear model is then inexact:
      16 dimensions explain 89% of the variance of the built-in sentences' rewards.

    Parameters
    ----------
    settings : Settings
        ``num_arms``, ``dimension`` (at most 384), ``seed``, ``environment.sigma`` and
        ``environment.path`` are used. The path is that of a text file with one sentence per line,
        or "" for the built-in sentences.
    agents : range
        Numbers of this block's agents.

    Raises
    ------
    DataError
        The file cannot be read, or has fewer distinct sentences than arms.
    SettingsError
        The ``text`` extra is not installed.
    """

    def __init__(self, settings: Settings, agents: range) -> None:
        self.sentences = _corpus(settings)
        world = shared_world(self.sentences, settings.dimension)
        self.features, self.theta = world.features, world.theta
        # (sentences,), or with sigma above 0 (agents, sentences)
        self.rewards = world.embeddings @ world.theta
        sigma = settings.environment.sigma
        if sigma > 0:
            streams = make_streams(settings, agents)
            offsets = to_numpy(streams.standard_normal("theta", 1, EMBEDDING_DIMENSIONS)[:, 0])
            # One product per agent, so that results do not depend on the block.
            own = (world.embeddings @ offsets[:, :, None])[..., 0] / world.spread
            self.rewards = self.rewards + sigma * own
        self._num_arms = settings.num_arms
        self._arrays = stream_arrays(settings)
        self._tables = [self._arrays.make(each) for each in (self.features, self.rewards)]

    def contexts(self, streams: AgentStreams, iterations: int) -> Contexts:
        """Draw sentences; see :class:`~fldb_flower.environments.base.Environment`."""
        arms = streams.permutations("sentences", iterations, len(self.sentences), self._num_arms)
        features, rewards = self._tables
        if rewards.ndim == 1:
            return Contexts(features[arms], rewards[arms])
        agents = self._arrays.arange(len(rewards))[:, None, None]
        return Contexts(features[arms], rewards[agents, arms])

    @staticmethod
    def max_difference(settings: Settings) -> float:  # noqa: ARG004 - the interface of all environments
        """Return 2: embeddings have norm 1, and projections are not longer."""
        return 2.0


def principal_scores(embeddings: FloatArray, dimension: int) -> FloatArray:
    """Return the centred rows' coordinates along their leading principal components.

    The sign of a component is arbitrary: the entry with the largest magnitude is made positive. If
    the sentences span fewer than d dimensions, the other features are 0.
    """
    centred = embeddings - embeddings.mean(axis=0)
    _, vectors = np.linalg.eigh(centred.T @ centred)  # ascending
    leading = vectors[:, ::-1][:, :dimension]
    largest = np.abs(leading).argmax(axis=0)
    scores: FloatArray = centred @ (leading * np.sign(leading[largest, np.arange(dimension)]))
    return scores


class World(NamedTuple):
    """Values that all agents share; see :class:`Sentences`. ``spread`` is the square root of v."""

    embeddings: FloatArray
    features: FloatArray
    theta: FloatArray
    spread: float


@lru_cache(maxsize=8)
def shared_world(sentences: tuple[str, ...], dimension: int) -> World:
    """Return the features and theta of a corpus; cached for all blocks of agents."""
    liked, disliked = built_in("liked"), built_in("disliked")
    rows = embed((*sentences, *liked, *disliked))
    embeddings, examples = rows[: len(sentences)], rows[len(sentences) :]
    taste = examples[: len(liked)].mean(axis=0) - examples[len(liked) :].mean(axis=0)
    deviation = (embeddings @ taste).std()
    if deviation < _EQUAL:
        raise DataError("environment.path: the language model does not distinguish its sentences")
    theta = taste / deviation
    features = embeddings
    if dimension < EMBEDDING_DIMENSIONS:
        features = principal_scores(embeddings, dimension)
    for array in (features, theta):
        array.flags.writeable = False
    return World(embeddings, features, theta, float(np.sqrt(embeddings.var(axis=0).sum())))


def _corpus(settings: Settings) -> tuple[str, ...]:
    """Return the distinct sentences in order."""
    path = settings.environment.path
    lines = _lines(path) if path else built_in("sentences")
    sentences = tuple(dict.fromkeys(filter(None, map(str.strip, lines))))
    if len(sentences) < settings.num_arms:
        raise DataError(
            f"num_arms={settings.num_arms}: must be at most {len(sentences)}, the number of"
            f" distinct sentences (one per line) in {one_line(path) or 'the built-in text'}"
        )
    return sentences


def built_in(name: str) -> list[str]:
    """Return a list of the package's own sentences: "sentences", "liked" or "disliked"."""
    sentences: list[str] = json.loads(_BUILT_IN.read_text(encoding="utf-8"))[name]
    return sentences


def _lines(path: str) -> list[str]:
    """Return the lines of a UTF-8 file, with or without a byte order mark."""
    required = "environment.path must be a UTF-8 text file with one sentence per line"
    return read_text(Path(path), required, _MAX_BYTES).splitlines()
