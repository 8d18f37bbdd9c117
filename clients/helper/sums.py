"""The helper without HTTP: it opens seeds, and answers each question about an exchange once.

**Keys.** Devices pin the helper's signing key. It signs HPKE keys, which exist in memory only. One
is created at each start, and a week before the newest one expires. Expired keys are removed. A copy
of the directory and of the signing key therefore opens no seed.

**Answers.** Noise protects only if it is drawn once: the mean of two answers would have less. Each
kind of answer about an exchange is given once, the exchanges of a task have ascending numbers, and
an exchange has one header. A repeated request gets the same bytes: an answer is stored before it is
returned. The protection does not depend on the files. A helper with an old directory, or with none,
has another key, and opens no report that was sealed before. A restart therefore ends the exchanges
in progress, except that their stored answers can be fetched again.

**Reports.** Each seed is used once in a request, so that no report is counted twice.
"""

from __future__ import annotations

import hashlib
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fldb_flower.deployment.keys import make_folder, reported
from fldb_flower.errors import DataError, FldbError, OutputError, SecureError
from fldb_flower.linalg.arrays import FloatArray, IntArray
from fldb_flower.privacy.discrete import discrete_gaussian
from fldb_flower.secure.canonical import checked_integer, framed, unframed, unhex
from fldb_flower.secure.messages import SumAnswer, SumRequest
from fldb_flower.secure.report import (
    AHEAD_SECONDS,
    DIGEST_BYTES,
    KINDS,
    LATEST,
    VALID_SECONDS,
    Header,
    HelperKey,
    Words,
    mask,
    open_seed,
)
from fldb_flower.system.files import lock_folder, replace_file

RENEW_SECONDS = 7 * 86_400
"""A key is replaced so long before it expires: a key that was just fetched is valid for a week."""

MOST_SUMS = 2**24
"""Largest number of values in an answer. Noise takes about 20 microseconds per value."""

_SUFFIX = ".answer"
_FIELDS = ("header", "kind", "number", "request", "task")
_OTHERS = 0o077
_AT_ONCE = 2**16  # values of noise drawn by one call


class Answer(NamedTuple):
    """An answer that was given, and SHA-256 of its request."""

    request: bytes
    content: bytes


@dataclass
class Exchange:
    """The last exchange of a task: its number, its header's digest, and its answers by kind."""

    number: int
    header: bytes
    answers: dict[str, Answer] = field(default_factory=dict)


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
        self.directory = directory
        self.counts: Counter[str] = Counter()
        self._signer, self._clock, self._noise = signer, clock, noise
        self._min_reports = min_reports
        self._keys: dict[int, tuple[HelperKey, X25519PrivateKey]] = {}
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
            self._last = self._stored()
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

        SecureError means that the question was answered, the exchange is over, or the reports are
        too few; OutputError, that the answer cannot be stored. It was not given then.
        """
        with self._answering:
            try:
                return self._answer(SumRequest.from_bytes(content), content)
            except FldbError:
                self.counts["refused"] += 1
                raise

    def _answer(self, request: SumRequest, content: bytes) -> bytes:
        digest = hashlib.sha256(content).digest()
        exchange = self._exchange(request.header)
        given = exchange.answers.get(request.kind)
        if given is None:
            given = Answer(digest, self._sums(request, digest))
            self._store(request, given)
            exchange.answers[request.kind] = given
            self._last[request.header.task] = exchange
            self.counts["answers"] += 1
        elif given.request != digest:
            raise SecureError(
                f"the {request.kind} of exchange {exchange.number} was answered for another request"
            )
        return given.content

    def _exchange(self, header: Header) -> Exchange:
        """Return the last exchange of a task, or a new one that is not yet the last."""
        last, number = self._last.get(header.task), header.number
        if last is not None and number < last.number:
            raise SecureError(
                f"exchange {number} is over: {last.number}, a later one, was answered"
            )
        if last is not None and number == last.number:
            if header.digest != last.header:
                raise SecureError(f"exchange {number} was answered with another header")
            return last
        ahead = number / 1000 - self._clock()
        if ahead > AHEAD_SECONDS:
            raise SecureError(
                f"exchange {number} is {ahead:.0f} s ahead of the helper's clock: must be at most"
                f" {AHEAD_SECONDS} s"
            )
        return Exchange(number, header.digest)

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
        self.counts["opened"] += len(seeds)
        self.counts["dropped"] += len(refused)
        return SumAnswer(digest, tuple(refused), sums).to_bytes()

    def _store(self, request: SumRequest, given: Answer) -> None:
        """Store an answer durably, instead of that of the same kind about an earlier exchange."""
        header = request.header
        values = header.digest, request.kind, header.number, given.request, header.task
        path = self.directory / f"{header.task.hex()}-{request.kind}{_SUFFIX}"
        with reported(OutputError, f"store the answer in {path}"):
            fields = dict(zip(_FIELDS, values, strict=True))
            replace_file(path, framed(fields, given.content), 0o600)

    def _stored(self) -> dict[bytes, Exchange]:
        """Return the last exchange of each task from the files."""
        found: dict[bytes, Exchange] = {}
        for path in sorted(self.directory.glob(f"*{_SUFFIX}")):
            try:
                with reported(DataError, f"read {path}"):
                    fields, content = unframed(path.read_bytes(), "it", _FIELDS)
                names = ("task", "header", "request")
                task, header, request = (unhex(fields[name], name, DIGEST_BYTES) for name in names)
                number = checked_integer(fields["number"], "the number", 1, LATEST)
            except DataError as reason:
                raise DataError(f"{path} is damaged: delete it ({reason})") from None
            last = found.get(task)
            if last is None or last.number < number:
                last = found[task] = Exchange(number, header)
            if last.number == number:
                last.answers[fields["kind"]] = Answer(request, content)
        return found
