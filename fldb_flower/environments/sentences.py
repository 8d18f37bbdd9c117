"""Arms that are sentences, seen through a language model; people who share a taste answer."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fldb_flower.bandit.streams import AgentStreams, make_streams, stream_arrays
from fldb_flower.environments.base import Contexts
from fldb_flower.environments.embeddings import embed
from fldb_flower.errors import DataError, one_line
from fldb_flower.linalg.arrays import to_numpy
from fldb_flower.settings import EMBEDDING_DIMENSIONS, Settings

FloatArray = NDArray[np.float64]

_OWN = Path(__file__).with_suffix(".json")
_MOST_BYTES = 2**24  # about 200,000 sentences, whose embeddings take minutes
_ALIKE = 1e-6  # rewards that differ by less, per length of the taste, are rounding errors


class Sentences:
    r"""Sentences as arms; the reward is linear in their embeddings.

    An assistant suggests what to do with a free day. In each iteration each agent draws
    ``num_arms`` different sentences of the corpus, uniformly. With e(x) the embedding of
    sentence x, of norm 1 in 384 dimensions:

    - *Taste.* ``f(x) = theta . e(x)``. theta points from the mean embedding of six
      suggestions that everybody dislikes (crowds, noise, screens) to that of six that everybody
      likes (quiet, nature); none of the twelve is an arm. Its length makes the
      rewards of the corpus have standard deviation 1, so that answers are decided but noisy: the
      best of ten arms is preferred to a random one with probability 0.8. The seed does
      not change theta.
    - *Heterogeneity.* ``theta_i = theta + sigma z_i / sqrt(v)`` with z_i from N(0, I) and v the
      variance of the corpus, ``mean ||e(x) - mean e||^2``: what is agent i's own in its rewards
      has variance ``sigma^2``, on average over z_i, where what all share has variance 1. That is
      what sigma means in the synthetic environment.
    - *Features.* With d = 384, ``phi(x) = e(x)``. With fewer, ``phi(x)`` is the centred embedding's
      part along the d leading principal components of the corpus (:func:`principal_scores`), and
      not scaled: differences of arms are those of the embeddings, projected, and not longer than 2.
      The reward keeps the rest of the embedding too, so that the model is slightly wrong:
      16 dimensions explain 89% of the variance of the rewards of our own sentences.

    Parameters
    ----------
    settings : Settings
        ``num_arms``, ``dimension`` (at most 384), ``seed``, ``environment.sigma`` and
        ``environment.path`` are used: a text file with a sentence a line, or "" for the
        sentences that come with the package.
    agents : range
        Numbers of this block's agents.

    Attributes
    ----------
    sentences : tuple of str
        The corpus.
    features : ndarray
        ``phi(x)`` of every sentence, (sentences, d), float64; not writable, as it is shared.
    theta : ndarray
        The taste that all agents share, (384,).
    rewards : ndarray
        ``f(x)`` of every sentence, (sentences,); with sigma above 0, (agents, sentences).

    Raises
    ------
    DataError
        The file cannot be read, or there are fewer different sentences than arms; one line.
    SettingsError
        The ``text`` extra is not installed; one line.
    """

    def __init__(self, settings: Settings, agents: range) -> None:
        self.sentences = _corpus(settings)
        world = _world(self.sentences, settings.dimension)
        self.features, self.theta = world.features, world.theta
        self.rewards = world.embeddings @ world.theta
        sigma = settings.environment.sigma
        if sigma > 0:
            streams = make_streams(settings, agents)
            offsets = to_numpy(streams.standard_normal("theta", 1, EMBEDDING_DIMENSIONS)[:, 0])
            # Agent by agent, so that no number depends on the block.
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
    def max_difference(settings: Settings) -> float:  # noqa: ARG004 - as others have it
        """Return 2: embeddings have norm 1, and a projection makes nothing longer."""
        return 2.0


def principal_scores(embeddings: FloatArray, dimension: int) -> FloatArray:
    """Return the rows' parts along their leading principal components, as they are.

    The mean is subtracted, so that no dimension is spent on what all sentences have in common.
    The sign of a component is arbitrary: its entry largest in magnitude is made positive.

    Parameters
    ----------
    embeddings : ndarray
        (sentences, 384).
    dimension : int
        d, at most 384. Where the sentences span fewer dimensions, the other features are 0.

    Returns
    -------
    ndarray
        (sentences, d).
    """
    centred = embeddings - embeddings.mean(axis=0)
    _, vectors = np.linalg.eigh(centred.T @ centred)  # ascending
    leading = vectors[:, ::-1][:, :dimension]
    largest = np.abs(leading).argmax(axis=0)
    scores: FloatArray = centred @ (leading * np.sign(leading[largest, np.arange(dimension)]))
    return scores


class _World(NamedTuple):
    """What all agents share; see :class:`Sentences`. ``spread`` is the square root of v."""

    embeddings: FloatArray
    features: FloatArray
    theta: FloatArray
    spread: float


@lru_cache(maxsize=8)
def _world(sentences: tuple[str, ...], dimension: int) -> _World:
    liked, disliked = _own("liked"), _own("disliked")
    rows = embed((*sentences, *liked, *disliked))
    embeddings, examples = rows[: len(sentences)], rows[len(sentences) :]
    taste = examples[: len(liked)].mean(axis=0) - examples[len(liked) :].mean(axis=0)
    deviation = (embeddings @ taste).std()
    if deviation < _ALIKE:
        raise DataError("environment.path: its sentences are all alike to the language model")
    theta = taste / deviation
    features = embeddings
    if dimension < EMBEDDING_DIMENSIONS:
        features = principal_scores(embeddings, dimension)
    for array in (features, theta):
        array.flags.writeable = False
    return _World(embeddings, features, theta, float(np.sqrt(embeddings.var(axis=0).sum())))


def _corpus(settings: Settings) -> tuple[str, ...]:
    """Return the different sentences to draw from, in their order."""
    path = settings.environment.path
    lines = _lines(path) if path else _own("sentences")
    sentences = tuple(dict.fromkeys(filter(None, map(str.strip, lines))))
    if len(sentences) < settings.num_arms:
        raise DataError(
            f"num_arms={settings.num_arms}: must be at most {len(sentences)}, as many different"
            f" sentences as {one_line(path) or 'our own text'} has, one a line"
        )
    return sentences


def _own(name: str) -> list[str]:
    sentences: list[str] = json.loads(_OWN.read_text(encoding="utf-8"))[name]
    return sentences


def _lines(path: str) -> list[str]:
    """Return the lines of the user's file, in UTF-8 with or without a byte order mark."""
    file = Path(path)
    try:
        file = file.expanduser().absolute()
        if file.exists() and not file.is_file():
            raise ValueError("it is not a file")  # to read a pipe could take forever
        if file.exists() and file.stat().st_size > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES:,} bytes")
        content = file.read_bytes()
        if b"\0" in content:
            raise ValueError("it has zero bytes: it is not text, or in UTF-16")
        return content.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        number = error.object.count(b"\n", 0, error.start) + 1
        reason = f"line {number} is not in UTF-8"
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: ~ of an unknown user
        reason = getattr(error, "strerror", None) or str(error)
    raise DataError(
        f"{one_line(file)}: cannot be read ({reason}); environment.path must name a text file in"
        " UTF-8 with a sentence a line"
    )
