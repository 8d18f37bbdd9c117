"""The helper without HTTP: it opens seeds, and answers each question about an exchange once.

**Keys.** Devices pin the helper's signing key. It signs HPKE keys, which exist only in memory. One
is created at each start, and a week before the newest one expires. Expired keys are removed. A copy
of the directory and of the signing key therefore opens no seed.

**Answers.** Noise must be drawn only once: the mean of two answers would have less noise. Each kind
of answer about an exchange is given once, the exchanges of a task have ascending numbers, and an
exchange has one header. A repeated request gets the same bytes: an answer is stored before it is
returned. The protection does not depend on the files. A helper with an old directory or without one
has another key, and cannot open reports that were sealed before. A restart therefore ends the
exchanges in progress, but their stored answers can be fetched again.

**Reports.** Each seed is used once in a request, so that no report is counted twice.
"""

from __future__ import annotations

import stat
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fldb_flower.errors import DataError, FldbError, OutputError, SecureError
from fldb_flower.linalg.arrays import FloatArray, IntArray
from fldb_flower.privacy.discrete import discrete_gaussian
from fldb_flower.secure.protocol import (
    AHEAD_SECONDS,
    KINDS,
    VALID_SECONDS,
    HelperKey,
    SumAnswer,
    SumRequest,
    Words,
    framed,
    mask,
    open_seed,
    sha256,
    unframed,
)
from fldb_flower.system.files import lock_folder, make_folder, replace_file, reported

RENEW_SECONDS = 7 * 86_400
"""Time before its expiry at which a key is replaced: a fetched key is valid for a week."""

MOST_SUMS = 2**24
"""Largest number of values in an answer. Noise takes about 20 microseconds per value."""

_SUFFIX = ".answer"
_OTHERS = 0o077
_AT_ONCE = 2**16  # values of noise drawn by one call


class Answer(NamedTuple):
    """The last answer of a kind to a task, as it is stored; hashes are hexadecimal."""

    task: str
    kind: str
    number: int  # of the exchange
    header: str  # hash of the exchange's header
    request: str  # hash of the request
    content: bytes = b""


class Helper:
    """The helper's keys and answers, for one process at a time.

    ``signer`` is the key that devices pin, ``clock`` returns seconds since 1970, and ``noise``
    returns independent noise of given standard deviations. Requests with fewer valid reports than
    ``min_reports`` are refused.
    """

    def __init__(
        self,
        directory: Path,
        signer: Ed25519PrivateKey,
        *,
        clock: Callable[[], float] = time.time,
        noise: Callable[[FloatArray], IntArray] = discrete_gaussian,
        min_reports: int = 1,
    ) -> None:
        self.directory, self.signer = directory, signer.public_key()
        self.counts: Counter[str] = Counter()
        self._signer, self._clock, self._noise = signer, clock, noise
        self._min_reports = min_reports
        self._keys: dict[int, tuple[HelperKey, X25519PrivateKey]] = {}
        self._answers: dict[tuple[str, str], Answer] = {}  # by task and kind
        self._answering, self._changing_keys = threading.Lock(), threading.Lock()
        make_folder(directory)
        with reported(OutputError, f"use the folder {directory}"):
            if stat.S_IMODE(directory.stat().st_mode) & _OTHERS:
                raise DataError(f"other users can read {directory}: chmod 700 {directory}")
            try:
                self.close = lock_folder(directory)
            except BlockingIOError:
                raise OutputError(f"another helper uses {directory}") from None
        try:
            for path in directory.glob(f"*{_SUFFIX}"):
                self._read(path)
        except FldbError:
            self.close()
            raise

    def keys(self) -> HelperKey:
        """Return the HPKE key to use now, signed; remove expired ones."""
        with self._changing_keys:
            now = self._clock()
            for number, (key, _) in list(self._keys.items()):
                if now > key.expires:
                    del self._keys[number]
            newest = max(self._keys, default=-1)
            if newest < 0 or now > self._keys[newest][0].expires - RENEW_SECONDS:
                newest = max(int(1000 * now), newest + 1)
                private = X25519PrivateKey.generate()
                public = private.public_key().public_bytes_raw()
                key = HelperKey(newest, int(now) + VALID_SECONDS, public).sign(self._signer)
                self._keys[newest] = key, private
            return self._keys[newest][0]

    def answer(self, content: bytes) -> bytes:
        """Return the answer to the bytes of a request.

        Raises SecureError if the question was answered before, the exchange is over, or there are
        too few reports; OutputError if the answer cannot be stored, and thus is not given.
        """
        with self._answering:
            try:
                return self._answer(SumRequest.from_bytes(content), sha256(content))
            except FldbError:
                self.counts["refused"] += 1
                raise

    def _answer(self, request: SumRequest, digest: bytes) -> bytes:
        header, kind, number = request.header, request.kind, request.header.number
        task = header.task.hex()
        known = [each for each in self._answers.values() if each.task == task]
        latest = max((each.number for each in known), default=0)
        if number < latest:
            raise SecureError(f"exchange {number} is over: {latest}, a later one, was answered")
        given = {each.kind: each for each in known if each.number == number}
        if any(each.header != header.digest.hex() for each in given.values()):
            raise SecureError(f"exchange {number} was answered with another header")
        ahead = number / 1000 - self._clock()
        if not given and ahead > AHEAD_SECONDS:
            raise SecureError(
                f"exchange {number} is {ahead:.0f} s ahead of the helper's clock: must be at most"
                f" {AHEAD_SECONDS} s"
            )
        if kind not in given:
            content = self._sums(request, digest)
            new = Answer(task, kind, number, header.digest.hex(), digest.hex(), content)
            self._store(new)
            self._answers[task, kind] = new
            self.counts["answers"] += 1
            return content
        if given[kind].request != digest.hex():
            raise SecureError(f"the {kind} of exchange {number} was answered for another request")
        return given[kind].content

    def _sums(self, request: SumRequest, digest: bytes) -> bytes:
        """Return an answer with new noise."""
        header, groups = request.header, len(request.sizes)
        if groups * header.numbers > MOST_SUMS:
            raise DataError(
                f"{groups} groups of {header.numbers} numbers: must be at most {MOST_SUMS} in total"
            )
        self.keys()  # removes expired ones
        if header.key not in self._keys:
            raise SecureError(
                f"the helper has no key {header.key}: it has expired, or the helper was started"
                " again; start another exchange with its present key"
            )
        private, seeds, refused = self._keys[header.key][1], set[bytes](), []
        sums: Words = np.zeros((groups, header.numbers), dtype=np.uint64)
        group_of = np.repeat(np.arange(groups), request.sizes)
        for place, (sealed, group) in enumerate(zip(request.sealed, group_of, strict=True)):
            seed = open_seed(header, sealed, private)
            if seed is None or seed in seeds:
                refused.append(place)
                continue
            seeds.add(seed)
            sums[group] += mask(seed, header.numbers)
        if len(seeds) < self._min_reports:
            raise SecureError(
                f"{len(seeds)} of {len(request.sealed)} reports open, without repeated ones: must"
                f" be at least {self._min_reports}"
            )
        flat, scale = sums.reshape(-1), float(header.sigma * KINDS[request.kind])
        for start in range(0, flat.size, _AT_ONCE):
            part = flat[start : start + _AT_ONCE]
            part += self._noise(np.full(part.shape, scale)).view(np.uint64)
        self.counts.update(opened=len(seeds), dropped=len(refused))
        return SumAnswer(digest, tuple(refused), sums).to_bytes()

    def _store(self, answer: Answer) -> None:
        """Store an answer durably, replacing that of the same kind about an earlier exchange."""
        path = self.directory / f"{answer.task}-{answer.kind}{_SUFFIX}"
        with reported(OutputError, f"store the answer in {path}"):
            fields = answer._asdict()
            replace_file(path, framed(fields, fields.pop("content")), 0o600)

    def _read(self, path: Path) -> None:
        try:
            with reported(DataError, f"read {path}"):
                fields, content = unframed(path.read_bytes(), "it", Answer._fields[:-1])
        except DataError as reason:
            raise DataError(f"{path} is damaged: delete it ({reason})") from None
        self._answers[fields["task"], fields["kind"]] = Answer(**fields, content=content)
