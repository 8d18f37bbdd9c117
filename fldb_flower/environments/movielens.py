"""The paper's MovieLens environment (Sec. 5 and App. B.3).

GroupLens does not permit redistribution of the data. Download ml-100k, ml-1m, ml-latest-small,
ml-25m or ml-32m, and set ``environment.path`` to it. Any other table of ratings or likes works as
well; see :meth:`~fldb_flower.environments.ratings.Ratings.liked`.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fldb_flower.bandit.streams import AgentStreams, shared_generator, stream_arrays
from fldb_flower.environments import Contexts
from fldb_flower.environments.ratings import ID_LIMIT, one_line_errors, ratings_file, read_ratings
from fldb_flower.errors import DataError, one_line
from fldb_flower.linalg.arrays import Array, FloatArray, IntArray, namespace
from fldb_flower.settings import MOVIELENS_DIMENSIONS, MOVIELENS_ITEMS, Settings

_Data: TypeAlias = tuple[FloatArray, FloatArray, str, dict[str, Any]]
"""Features, ``F``, a description of the file for error messages, and counts of ratings."""


class MovieLens:
    """Items as arms; their rewards are users' likes.

    ``H`` is the matrix of the 200 users and the 200 items with the most ratings, in descending
    order: 1 if the rating is above 3 (``environment.like``), else 0. Its first 20 rows determine
    the items' features (:func:`item_features`); the other 180 rows are ``F``. In each iteration,
    each agent draws one of these 180 users and ``num_arms`` distinct items, uniformly. The latent
    reward of item j for user i is ``F[i, j]``. The paper specifies neither the order of the rows
    nor that each agent draws its own user.

    With ``environment.users=persistent``, each agent is one user for the whole run: agent i is the
    user at position i modulo 180 of a random order of the users. Up to 180 agents are then
    different people.

    ``F`` is not linear in the features, and drawn users change in each iteration. The paper's
    regret bounds do not apply.
    """

    def __init__(self, settings: Settings, agents: range) -> None:
        with one_line_errors(Path(settings.environment.path)):
            features, feedback, self.found, _ = _data(settings)
        arrays = stream_arrays(settings)
        self.features, self.feedback = arrays.make(features), arrays.make(feedback)  # phi(x), F
        self._num_arms = settings.num_arms
        self._users: Array | None = None  # (agents, 1), if persistent
        if settings.environment.users == "persistent":
            order = shared_generator(settings.seed, "users").permutation(len(feedback))
            self._users = arrays.make(order[np.array(agents) % len(feedback), None])

    def contexts(self, streams: AgentStreams, iterations: int) -> Contexts:
        """Draw users and items; see :class:`~fldb_flower.environments.Environment`."""
        users = self._users
        if users is None:
            uniform = streams.random("user", iterations)
            xp = namespace(uniform)
            users = xp.astype(uniform * len(self.feedback), xp.int64)  # (agents, iterations)
        items = streams.permutations("items", iterations, MOVIELENS_ITEMS, self._num_arms)
        return Contexts(self.features[items], self.feedback[users[..., None], items])

    @staticmethod
    def stated(settings: Settings) -> dict[str, dict[str, Any]]:
        """Return how many ratings are likes, by which rule, for the run's summary."""
        with one_line_errors(Path(settings.environment.path)):
            return {"ratings": _data(settings)[3]}

    @staticmethod
    def max_difference(settings: Settings) -> float:  # noqa: ARG004 - the interface of all environments
        """Return 2: features have norm 1 or 0."""
        return 2.0


def like_matrix(
    users: IntArray, items: IntArray, liked: NDArray[np.bool_], size: int
) -> FloatArray:
    """Return ``H`` of App. B.3, (size, size): which of the most active users like which items.

    The most active user and the most rated item are first, equally many ratings in order of the
    ids. Of several ratings by a user of an item, the last in the file counts. A missing one is 0.
    """
    pairs = users * ID_LIMIT + items
    _, from_end = np.unique(pairs[::-1], return_index=True)
    last = len(pairs) - 1 - from_end
    rows, columns = (_rank(ids[last], size) for ids in (users, items))
    inside = (rows < size) & (columns < size)
    matrix = np.zeros((size, size))
    matrix[rows[inside], columns[inside]] = liked[last][inside]
    return matrix


def _rank(ids: IntArray, size: int) -> IntArray:
    """Return each entry's rank by frequency, from 0; ``size`` for ranks beyond it."""
    known, inverse, counts = np.unique(ids, return_inverse=True, return_counts=True)
    ranks = np.full(len(known), size)
    ranks[np.argsort(-counts, kind="stable")[:size]] = np.arange(size)  # ties: lowest id first
    return ranks[inverse]


def item_features(likes: FloatArray, dimension: int) -> FloatArray:
    """Return the features of items, (items, d), from the likes of a few users, (users, items).

    With ``likes = U S V^T``, an item's features are its row of the first ``dimension`` columns of
    V, scaled to norm 1; 0 for an item that none of these users likes. The paper specifies "SVD"
    only. With ``V S`` instead of V, the first direction dominates and LDB does not learn. The sign
    of a singular vector is arbitrary: its entry with the largest magnitude is made positive, so
    that platforms agree.
    """
    _, singular, right = np.linalg.svd(likes, full_matrices=False)
    # Columns of V with a singular value of 0 are arbitrary.
    vectors = right[:dimension] * (singular[:dimension, None] > 1e-9)  # (d, items)
    # Rounded, so that rounding errors do not decide between equal entries.
    largest = np.argmax(np.abs(vectors).round(9), axis=1)
    signs = np.where(vectors[np.arange(len(vectors)), largest] < 0, -1.0, 1.0)
    rows = (vectors * signs[:, None]).T
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    features: FloatArray = np.where(norms > 1e-9, rows, 0.0) / np.maximum(norms, 1e-9)
    return features


def _data(settings: Settings) -> _Data:
    file = ratings_file(Path(settings.environment.path).expanduser().absolute())
    version = file.stat().st_mtime_ns, file.stat().st_size
    return _processed(file, version, settings.dimension, settings.environment.like)


@lru_cache(maxsize=8)
def _processed(file: Path, version: object, dimension: int, like: float | str) -> _Data:  # noqa: ARG001
    ratings = read_ratings(file)
    for ids, name in ((ratings.users, "users"), (ratings.items, "items")):
        count = len(np.unique(ids))
        if count < MOVIELENS_ITEMS:
            raise DataError(
                f"{one_line(file)}: ratings of {count} {name}; the environment needs at least"
                f" {MOVIELENS_ITEMS} users and {MOVIELENS_ITEMS} items, as in ml-100k"
            )
    (liked, rule), stars = ratings.liked(like), ratings.stars
    above = f"{liked.sum():,} of them {rule}" if liked.any() else f"none {rule}"
    ends = f"from {stars.min():g} to {stars.max():g}"
    found = f"{len(liked):,} ratings {ends}, {above}, in {one_line(file)}"
    likes = like_matrix(ratings.users, ratings.items, liked, MOVIELENS_ITEMS)
    features = item_features(likes[:MOVIELENS_DIMENSIONS], dimension)
    counts = {"liked": int(liked.sum()), "others": int((~liked).sum()), "rule": rule}
    feedback = likes[MOVIELENS_DIMENSIONS:]
    return np.ascontiguousarray(features), feedback, found, counts
