"""The paper's MovieLens environment (Sec. 5 and App. B.3), from files as GroupLens publishes them.

GroupLens forbids redistribution, so that no data comes with this package: download
ml-100k, ml-1m, ml-latest-small, ml-25m or ml-32m and name it in ``environment.path``.
"""

from __future__ import annotations

import csv
import re
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import IO

import numpy as np
from numpy.typing import NDArray

from fldb_flower.environments.base import Contexts
from fldb_flower.errors import DataError
from fldb_flower.settings import MOVIELENS_DIMENSIONS, MOVIELENS_ITEMS, Settings
from fldb_flower.streams import AgentStreams

FILES = ("u.data", "ratings.dat", "ratings.csv")  # the first one found is read

_HEADER = "userId,movieId,rating,timestamp"
_LAYOUTS = f"tab-separated (u.data), '::'-separated (ratings.dat) or headed {_HEADER} (ratings.csv)"
_FIELDS = ("user", "item", "rating", "timestamp")
_ID_LIMIT = 10**9  # ids of at most 9 digits: GroupLens's have 6
_CHUNK = 2_000_000  # lines; bounds the memory that ml-32m takes

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
        file, a folder or the zip) are used.
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
        path = Path(settings.environment.path)
        with _one_line_errors(path):
            file = _ratings_file(path.expanduser().absolute())
            status = file.stat()
            version = (status.st_mtime_ns, status.st_size)
            self.features, self.feedback = _processed(file, version, settings.dimension)
        self._num_arms = settings.num_arms

    def contexts(self, streams: AgentStreams, iterations: int) -> Contexts:
        """Draw users and items; see :class:`~fldb_flower.environments.base.Environment`."""
        uniform = streams.random("user", iterations)
        users = (uniform * len(self.feedback)).astype(np.int64)  # (agents, iterations)
        items = streams.permutations("items", iterations, MOVIELENS_ITEMS, self._num_arms)
        return Contexts(self.features[items], self.feedback[users[..., None], items])


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
    pairs = users * _ID_LIMIT + items
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

    With ``likes = U S V^T``, an item's features are its row of ``V S``, the first
    ``dimension`` columns, scaled to unit norm. The paper says "by SVD" only: the scaling by
    ``S`` (so that inner products approximate those of the items' likes) and the unit norm
    (so that no item is louder than another) are our choice. A row that is zero up to
    rounding, as of an item that none of these users likes, becomes 0.

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
    vectors = right[:dimension]  # (d, items)
    # Rounded, or the last bit would decide between equal entries.
    largest = np.argmax(np.abs(vectors).round(9), axis=1)
    signs = np.where(vectors[np.arange(len(vectors)), largest] < 0, -1.0, 1.0)
    scaled = (vectors * (signs * singular[:dimension])[:, None]).T
    norms = np.linalg.norm(scaled, axis=1, keepdims=True)
    features: FloatArray = np.where(norms > 1e-9, scaled, 0.0) / np.maximum(norms, 1e-9)
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
    users, items, liked = _read(file)
    for ids, name in ((users, "users"), (items, "items")):
        count = len(np.unique(ids))
        if count < MOVIELENS_ITEMS:
            raise DataError(
                f"{file}: ratings of {count} {name}; the environment needs at least"
                f" {MOVIELENS_ITEMS} users and {MOVIELENS_ITEMS} items, which ml-100k has"
            )
    return like_matrix(users, items, liked, MOVIELENS_ITEMS)


@contextmanager
def _one_line_errors(path: Path) -> Iterator[None]:
    """Turn what the file system and zip files raise into a DataError."""
    try:
        yield
    except (OSError, EOFError, RuntimeError, UnicodeError, zipfile.BadZipFile, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error) or "it ends too early"
        shown = " ".join(reason.split())[:120]
        raise DataError(
            f"{path}: cannot be read ({shown}); a MovieLens file, folder or zip is needed,"
            " whole and readable: download it again if it is damaged"
        ) from error


def _ratings_file(path: Path) -> Path:
    """Return the ratings file that a path means, or the zip file."""
    if path.is_file():
        return path
    if path.is_dir():
        next(path.iterdir(), None)  # glob would take a folder that cannot be read for empty
        found = [file for name in FILES for way in (name, f"*/{name}") for file in path.glob(way)]
        names = (file.relative_to(path).as_posix() for file in found if file.is_file())
        return path / _choose(names, path)
    wrong = "is not a file or folder" if path.exists() else "no such file or folder"
    raise DataError(f"{path}: {wrong}; environment.path must name the MovieLens ratings")


def _choose(names: Iterable[str], path: Path) -> str:
    """Choose among the names in a folder or zip: top level first, then in order of FILES."""
    ranked: dict[tuple[int, int], list[str]] = {}
    for name in names:
        parts = PurePosixPath(name).parts
        if parts and parts[-1] in FILES and len(parts) <= 2 and not name.endswith("/"):
            ranked.setdefault((len(parts), FILES.index(parts[-1])), []).append(name)
    if not ranked:
        raise DataError(
            f"{path}: holds no MovieLens ratings; looked for {', '.join(FILES)}, at top level"
            " and one folder down"
        )
    best = sorted(ranked[min(ranked)])
    if len(best) > 1:
        raise DataError(f"{path}: holds {' and '.join(best)}; name the folder of one of them")
    return best[0]


@contextmanager
def _opened(file: Path) -> Iterator[IO[bytes]]:
    """Open the ratings, inside the zip if it is one."""
    with file.open("rb") as plain:
        is_zip = file.suffix.lower() == ".zip" or plain.read(4) == b"PK\x03\x04"
        plain.seek(0)
        if not is_zip:
            yield plain
            return
        archive = zipfile.ZipFile(plain)
        with archive, archive.open(_choose(archive.namelist(), file)) as member:
            yield member


def _read(file: Path) -> tuple[IntArray, IntArray, NDArray[np.bool_]]:
    """Return users, items and whether the rating is above 3, in the order of the file."""
    with _opened(file) as handle:
        first = handle.readline(1000)
    separator = _separator(first)
    if separator is None:
        wrong = f"line 1 is {_shown(first.decode('latin-1'))}" if first else "is empty"
        raise DataError(f"{file}: {wrong}; ratings must be {_LAYOUTS}")
    reason = ""
    with _opened(file) as handle:
        try:
            columns = _parse(handle, separator)
        except (ValueError, OverflowError, TypeError) as error:  # all that pandas raises
            reason = str(error)
            while handle.read(1 << 20):
                pass  # a damaged zip says so at its end, which tells more than a line
        else:
            if _is_whole(handle):
                return columns
    with _opened(file) as handle:
        fault = _fault(handle, separator)
    if fault or reason:
        example = separator.join(("196", "242", "3", "881250949"))
        fault = fault or f"cannot be read as ratings ({_shown(reason)})"
        raise DataError(
            f"{file}: {fault}; right is user, item, rating (0 to 5), timestamp, as in {example!r}"
        )
    return columns


def _is_whole(handle: IO[bytes]) -> bool:
    """Tell that the end is there: a file cut inside its last timestamp can be parsed too."""
    if isinstance(handle, zipfile.ZipExtFile):
        return True  # read to its end, it has passed its checksum
    handle.seek(-1, 2)
    return handle.read() == b"\n"


def _separator(first: bytes) -> str | None:
    """Tell the layout by its first line, so that a file may have any name."""
    text = first.decode("latin-1").strip()
    if text == _HEADER:
        return ","
    return next((mark for mark in ("::", "\t") if mark in text), None)


def _parse(handle: IO[bytes], separator: str) -> tuple[IntArray, IntArray, NDArray[np.bool_]]:
    """Read the lines with pandas, fast but without telling where a fault is.

    Columns are split at one character, as pandas is slow otherwise: ``::`` gives an empty
    column after each. One more column catches lines that are too long.

    Raises
    ------
    ValueError, OverflowError, TypeError
        Some line is not as it should be.
    """
    import pandas as pd  # noqa: PLC0415 - slow to import, and no other environment needs it

    step = len(separator)
    names = list(range(4 * step + 1))
    user, item, rating, time = names[:-1:step]
    kinds = dict.fromkeys(names, "float64") | dict.fromkeys((user, item, time), "int64")
    parts = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what pandas only warns of is checked here
        with pd.read_csv(
            handle, sep=separator[0], header=None, names=names, index_col=False, dtype=kinds,
            quoting=csv.QUOTE_NONE, skiprows=int(separator == ","), chunksize=_CHUNK,
        ) as chunks:  # fmt: skip
            for chunk in chunks:
                ids = chunk[[user, item]].to_numpy()
                surplus = chunk.drop(columns=[user, item, rating, time]).notna().to_numpy()
                outside = (ids < 0).any() or (ids >= _ID_LIMIT).any()
                if outside or surplus.any() or not chunk[rating].between(0, 5).all():
                    raise ValueError("a value is out of range")
                parts.append((ids[:, 0], ids[:, 1], (chunk[rating] > 3).to_numpy()))
    users, items, liked = (np.concatenate(column) for column in zip(*parts, strict=True))
    return users, items, liked


def _fault(lines: Iterable[bytes], separator: str) -> str | None:
    """Say what is wrong with the first line that is, or None: slow, after a failure only."""
    before: list[str] = []
    for number, line in enumerate(lines, start=1):
        text = line.decode("latin-1").strip("\r\n ")
        if not text or (number == 1 and text == _HEADER):
            continue
        fields = text.split(separator)
        cut = "" if line.endswith(b"\n") else " (the file seems cut short: download it again)"
        if len(fields) != len(_FIELDS):
            return f"line {number} has {len(fields)} fields instead of 4{cut}"
        for name, field in zip(_FIELDS, fields, strict=True):
            if not _is_valid(name, field.strip()):
                return f"line {number} has {name} {_shown(field)}{cut}"
        if cut and before and len(fields[-1]) < len(before[-1]):
            return f"line {number} has timestamp {_shown(fields[-1])}{cut}"
        before = fields
    return None


def _is_valid(name: str, field: str) -> bool:
    if name == "timestamp":
        return re.fullmatch(r"-?\d{1,18}", field, re.ASCII) is not None
    if name != "rating":
        return re.fullmatch(r"\d{1,9}", field, re.ASCII) is not None
    try:
        return 0 <= float(field) <= 5
    except ValueError:
        return False


def _shown(text: str) -> str:
    return repr(text.strip()[:40])  # one line, whatever the text
