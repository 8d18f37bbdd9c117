"""The paper's MovieLens environment (Sec. 5 and App. B.3), from files as GroupLens publishes them.

GroupLens forbids redistribution, so that no data comes with this package: download
ml-100k, ml-1m, ml-latest-small, ml-25m or ml-32m and name it in ``environment.path``.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fldb_flower.bandit.streams import AgentStreams, stream_arrays
from fldb_flower.environments.base import Contexts
from fldb_flower.environments.ratings import ID_LIMIT, one_line_errors, ratings_file, read_ratings
from fldb_flower.errors import DataError, one_line
from fldb_flower.linalg.arrays import namespace
from fldb_flower.settings import MOVIELENS_DIMENSIONS, MOVIELENS_ITEMS, Settings

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class MovieLens:
    """Items as arms, and other people's likes as their rewards.

    The 200 users and the 200 items with most ratings make ``H``, most ratings first: 1
    where the rating is above 3, else 0. Its first 20 rows make the items' features
    (:func:`item_features`); the other 180 are ``F``. In each iteration each agent draws
    one of those 180 users and ``num_arms`` different items, all uniformly; the latent
    reward of item j for user i is ``F[i, j]``, 0 or 1. The order of the rows, and that
    each agent draws a user of its own, are our reading: the paper leaves both open.

    ``F`` is no linear function of the features, and another user answers each time, so
    that the paper's regret bounds do not apply here.

    Parameters
    ----------
    settings : Settings
        ``num_arms`` (at most 200), ``dimension`` (at most 20) and ``environment.path`` (a
        file, a folder or the zip; see :mod:`~fldb_flower.environments.ratings`) are used.
    agents : range
        Numbers of this block's agents. Nothing depends on them but the streams.

    Attributes
    ----------
    features : ndarray
        ``phi(x)`` of every item, (200, d), float64; not writable, as it is shared.
    feedback : ndarray
        ``F``, (180, 200), float64; not writable either.

    Raises
    ------
    DataError
        The path has no ratings, they cannot be read, or they are too few; one line.
    """

    def __init__(self, settings: Settings, agents: range) -> None:
        if "://" in settings.environment.path:
            raise DataError(
                f"{one_line(settings.environment.path)}: is a URL; download the file and name it"
                " in environment.path"
            )
        path = Path(settings.environment.path)
        with one_line_errors(path):
            file = ratings_file(path.expanduser().absolute())
            status = file.stat()
            version = (status.st_mtime_ns, status.st_size)
            features, feedback = _processed(file, version, settings.dimension)
        where = stream_arrays(settings)
        self.features, self.feedback = where.make(features), where.make(feedback)
        self._num_arms = settings.num_arms

    def contexts(self, streams: AgentStreams, iterations: int) -> Contexts:
        """Draw users and items; see :class:`~fldb_flower.environments.base.Environment`."""
        uniform = streams.random("user", iterations)
        xp = namespace(uniform)
        users = xp.astype(uniform * len(self.feedback), xp.int64)  # (agents, iterations)
        items = streams.permutations("items", iterations, MOVIELENS_ITEMS, self._num_arms)
        return Contexts(self.features[items], self.feedback[users[..., None], items])

    @staticmethod
    def max_difference(settings: Settings) -> float:  # noqa: ARG004 - as others have it
        """Return 2: no item's features are longer than 1."""
        return 2.0


def like_matrix(
    users: IntArray, items: IntArray, liked: NDArray[np.bool_], size: int
) -> FloatArray:
    """Return ``H`` of App. B.3: who of the most active users likes which popular item.

    Where a user rated an item more than once, only the last rating in the file counts,
    for the numbers of ratings too. Of equally many ratings, the lowest id comes first.

    Parameters
    ----------
    users, items : ndarray
        Ids, one of each per rating, (ratings,), at least 0 and below 10**9.
    liked : ndarray
        Whether that rating is above 3, (ratings,).
    size : int
        How many users and how many items; there must be as many.

    Returns
    -------
    ndarray
        (size, size), 0 or 1; a missing rating is 0. Most active user and most rated item first.
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
    """Return each entry's place by frequency (``size`` if beyond it), most frequent first."""
    known, inverse, counts = np.unique(ids, return_inverse=True, return_counts=True)
    ranks = np.full(len(known), size)
    ranks[np.argsort(-counts, kind="stable")[:size]] = np.arange(size)  # known: lowest id first
    return ranks[inverse]


def item_features(likes: FloatArray, dimension: int) -> FloatArray:
    """Return features of items from the likes of a few users.

    With ``likes = U S V^T``, an item's features are its row of the first ``dimension``
    columns of V, scaled to unit norm. The paper says "by SVD" only. Unit norm, so that no
    item is louder than another, is our choice; so is V rather than ``V S``, with which the
    first direction (what everybody likes) drowns the others and LDB learns nothing. A row
    that is zero up to rounding, as of an item that none of these users likes, becomes 0.

    The sign of a singular vector is arbitrary: its entry largest in magnitude is made
    positive, so that platforms agree (equal singular values would leave more open).

    Parameters
    ----------
    likes : ndarray
        0 or 1, (users, items).
    dimension : int
        d, at most the number of users and of items.

    Returns
    -------
    ndarray
        (items, d), rows of norm 1 or 0.
    """
    _, singular, right = np.linalg.svd(likes, full_matrices=False)
    # Directions that no user's likes have are arbitrary in V: left out.
    vectors = right[:dimension] * (singular[:dimension, None] > 1e-9)  # (d, items)
    # Rounded, or the last bit would decide between equal entries.
    largest = np.argmax(np.abs(vectors).round(9), axis=1)
    signs = np.where(vectors[np.arange(len(vectors)), largest] < 0, -1.0, 1.0)
    rows = (vectors * signs[:, None]).T
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    features: FloatArray = np.where(norms > 1e-9, rows, 0.0) / np.maximum(norms, 1e-9)
    return features


@lru_cache(maxsize=32)
def _processed(
    file: Path, version: tuple[int, int], dimension: int
) -> tuple[FloatArray, FloatArray]:
    """Return features and ``F``; the version (time, size) is there to notice a new file."""
    likes = _likes(file, version)
    features = np.ascontiguousarray(item_features(likes[:MOVIELENS_DIMENSIONS], dimension))
    feedback = likes[MOVIELENS_DIMENSIONS:]
    for array in (features, feedback):
        array.flags.writeable = False
    return features, feedback


@lru_cache(maxsize=8)
def _likes(file: Path, version: tuple[int, int]) -> FloatArray:  # noqa: ARG001 - a cache key
    users, items, liked = read_ratings(file)
    for ids, name in ((users, "users"), (items, "items")):
        count = len(np.unique(ids))
        if count < MOVIELENS_ITEMS:
            raise DataError(
                f"{one_line(file)}: ratings of {count} {name}; the environment needs at least"
                f" {MOVIELENS_ITEMS} users and {MOVIELENS_ITEMS} items, which ml-100k has"
            )
    return like_matrix(users, items, liked, MOVIELENS_ITEMS)
