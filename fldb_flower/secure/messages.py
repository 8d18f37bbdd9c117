"""What server, devices and helper send each other, as bytes.

A request to a device has one of three kinds. ``hello`` asks for the identifier of the device's
store. ``estimate`` has a broadcast that requests nothing. ``report`` has the header of an exchange,
the helper's key and the broadcast, of which the header has the hash. Both of the latter name the
last exchange in which the device's report was counted. The SuperNode passes the bytes on.

The helper is asked for sums of the masks of some reports.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from fldb_flower.errors import DataError, shown
from fldb_flower.secure.canonical import checked_integer, framed, unframed, unhex
from fldb_flower.secure.report import (
    DIGEST_BYTES,
    KINDS,
    MOST_REPORTS,
    SEALED_BYTES,
    Header,
    HelperKey,
    Words,
)

HELLO, ESTIMATE, REPORT = "hello", "estimate", "report"
REFUSED = "refused"
_LARGEST = 2**53
_MOST_REASON = 300  # characters


@dataclass(frozen=True)
class Request:
    """A request to a device."""

    kind: str
    header: Header | None = None  # and the helper's key: for reports only
    key: HelperKey | None = None
    counted: int = 0  # number of the last exchange in which its report was counted; 0: none
    broadcast: bytes = b""  # fldb_flower.secure.statistics.Shared; empty for "hello"

    def to_bytes(self) -> bytes:
        """Return the canonical bytes."""
        fields = dict(vars(self))
        return framed(fields, fields.pop("broadcast"))

    @classmethod
    def from_bytes(cls, content: bytes) -> Request:
        """Invert :meth:`to_bytes`; raise DataError if the bytes are damaged."""
        names = ("counted", "header", "key", "kind")
        fields, broadcast = unframed(content, "the request", names)
        kind, header, key = fields["kind"], fields["header"], fields["key"]
        counted = checked_integer(fields["counted"], "counted", 0, _LARGEST)
        if kind != REPORT:
            if kind not in (HELLO, ESTIMATE) or header is not None or key is not None:
                raise DataError(f"the request has the kind {shown(kind)}, or an unexpected header")
            return cls(kind, counted=counted, broadcast=broadcast)
        found = Header.from_fields(header)
        if hashlib.sha256(broadcast).digest() != found.broadcast:
            raise DataError("the broadcast has another hash than that in the header")
        return cls(kind, found, HelperKey.from_fields(key), counted, broadcast)


@dataclass(frozen=True)
class Reply:
    """A reply of a device, of the kind of the request or ``refused``."""

    kind: str
    device: str  # identifier of its store
    reason: str = ""  # why it is refused
    report: bytes = b""  # fldb_flower.secure.report.Report
    digest: bytes = b""  # of the header that the report is for

    def to_bytes(self) -> bytes:
        """Return the canonical bytes."""
        fields = {**vars(self), "reason": self.reason[:_MOST_REASON]}
        return framed(fields, fields.pop("report"))

    @classmethod
    def from_bytes(cls, content: bytes) -> Reply:
        """Invert :meth:`to_bytes`; raise DataError if the bytes are damaged."""
        fields, report = unframed(content, "the reply", ("device", "digest", "kind", "reason"))
        if not all(type(each) is str for each in fields.values()):
            raise DataError("a field of the reply is not text")
        size = DIGEST_BYTES if fields["digest"] else 0
        digest = unhex(fields.pop("digest"), "the hash in the reply", size)
        return cls(**fields, report=report, digest=digest)


@dataclass(frozen=True)
class SumRequest:
    """A question to the helper: the sums of the masks of the reports in each group."""

    header: Header
    kind: str  # one of KINDS; "trial" and "sum" have one group
    sizes: tuple[int, ...]  # the first reports are the first group, and so on
    sealed: tuple[bytes, ...]  # the sealed seeds

    def to_bytes(self) -> bytes:
        """Return the canonical bytes."""
        fields = dict(vars(self))
        return framed(fields, b"".join(fields.pop("sealed")))

    @classmethod
    def from_bytes(cls, content: bytes) -> SumRequest:
        """Invert :meth:`to_bytes`; raise DataError if the bytes are damaged."""
        fields, body = unframed(content, "the request", ("header", "kind", "sizes"))
        kind, sizes, header = fields["kind"], fields["sizes"], Header.from_fields(fields["header"])
        if kind not in [*KINDS]:
            raise DataError(f"the kind is {shown(kind)}: must be one of {', '.join(KINDS)}")
        most = MOST_REPORTS if kind == "parts" else 1
        if not isinstance(sizes, list) or not 1 <= len(sizes) <= most:
            raise DataError(f"the request has no sizes of groups, or more than {most}")
        reports = sum(checked_integer(each, "a group's size", 1, MOST_REPORTS) for each in sizes)
        if reports > MOST_REPORTS or len(body) != SEALED_BYTES * reports:
            raise DataError(f"{len(body)} bytes of reports in groups of {reports}")
        starts = range(0, len(body), SEALED_BYTES)
        sealed = tuple(body[start : start + SEALED_BYTES] for start in starts)
        return cls(header, kind, tuple(sizes), sealed)


@dataclass(frozen=True)
class SumAnswer:
    """The helper's answer."""

    request: bytes  # SHA-256 of the request
    refused: tuple[int, ...]  # places of reports that do not open, or are repeated, ascending
    sums: Words  # of G(s) over the other reports of each group, plus noise, (groups, n)

    def to_bytes(self) -> bytes:
        """Return the canonical bytes."""
        groups, numbers = self.sums.shape
        fields = {
            "groups": groups, "numbers": numbers, "refused": self.refused, "request": self.request,
        }  # fmt: skip
        return framed(fields, self.sums.astype("<u8").tobytes())

    @classmethod
    def from_bytes(cls, content: bytes, request: SumRequest) -> SumAnswer:
        """Invert :meth:`to_bytes`; raise DataError if it is no answer to the request."""
        names = ("groups", "numbers", "refused", "request")
        fields, body = unframed(content, "the helper's answer", names)
        shape = len(request.sizes), request.header.numbers
        if (fields["groups"], fields["numbers"]) != shape or len(body) != 8 * shape[0] * shape[1]:
            raise DataError("the helper's answer has another size than that of the request")
        places, digest = fields["refused"], hashlib.sha256(request.to_bytes()).digest()
        if fields["request"] != digest.hex():
            raise DataError("the helper's answer is not for this request")
        if not isinstance(places, list):
            raise DataError("the helper's answer has no places of reports")
        for each in places:
            checked_integer(each, "the place of a report", 0, len(request.sealed) - 1)
        if places != sorted(set(places)):
            raise DataError("the helper's answer repeats places of reports")
        return cls(digest, tuple(places), np.frombuffer(body, "<u8").reshape(shape))
