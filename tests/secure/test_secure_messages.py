"""The bytes of secure sums: they stay the same, and what is damaged is refused."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from vaults import KEY, common, key_of, personal, request_for, settings_of

from clients.vault.ledger import Journal, Last, Ledger, Sent
from fldb_flower.errors import DataError
from fldb_flower.secure.protocol import (
    HELLO,
    REFUSED,
    REPORT,
    SCALE,
    Header,
    Reply,
    Report,
    Request,
    SumAnswer,
    SumRequest,
    framed,
    mask,
    open_seed,
    task_of,
    unframed,
)
from fldb_flower.secure.statistics import Shared, parts_of

SEALED = bytes.fromhex(
    "c4211b377318c961c11ec75b296e7d9e0a9235c5cbca34f127bc7b412f11a818"
    "53c7196dd6f8802a775a8ebb672734ad7481d2bc1d8a33c35672bf0245ac5688"
)
"""The seed 0, 1, ..., 15, sealed for KEY under HEADER."""

HEADER = Header(
    bytes(range(32)), 1_800_000_000_000, 9, 20 * SCALE, 7, hashlib.sha256(b"broadcast").digest()
)
REQUEST = Request(REPORT, HEADER, key_of(), 5, b"broadcast")
SUMS = SumRequest(HEADER, "parts", (1, 2), tuple(bytes([n]) * 64 for n in range(3)))
ANSWER = SumAnswer(
    hashlib.sha256(SUMS.to_bytes()).digest(), (1,), np.arange(18, dtype=np.uint64).reshape(2, 9)
)
TASK = HEADER.task.hex()


def vector_in(broadcast) -> bytes:
    """Return the bytes of a broadcast after its JSON, whose fields depend on the settings."""
    units = dict.fromkeys(parts_of(broadcast), 4.0)
    content = Shared(broadcast, settings_of(), 9, units).to_bytes()
    return content[4 + int.from_bytes(content[:4], "big") :]


def test_messages_and_files_have_the_known_bytes():
    """Devices, helper and server agree on them; long ones are compared by their hash."""
    ledger = Ledger().charged(20000, 0.25).begun(HEADER.task, Last(10, "ab"))
    for content, known in (
        (Request(HELLO).to_bytes(),
         b'\x00\x00\x005{"counted":0,"header":null,"key":null,"kind":"hello"}'),
        (Reply(REFUSED, "d", "why").to_bytes(),
         b'\x00\x00\x00:{"device":"d","digest":"","kind":"refused","reason":"why"}'),
        (ledger.with_sent("store", Sent(10, 3)).to_bytes(),
         b'{"created":0,"days":{"20000":0.25},"stores":{"store":[10,3]},"tasks":{"'
         + TASK.encode() + b'":[10,"ab"]}}'),
        (Journal().replied(10, 3).replied(20, 3).replied(30, 5).to_bytes(),
         b'{"counted":0,"number":30,"steps":[[10,3],[30,5]]}'),
    ):  # fmt: skip
        assert content == known
    for content, known in (
        (REQUEST.to_bytes(), "930950a39aa33dbc"),
        (Reply(REPORT, "d", report=b"abc", digest=bytes(32)).to_bytes(), "e793facf7f5f9870"),
        (SUMS.to_bytes(), "fc929e1509d4ff5c"),
        (ANSWER.to_bytes(), "2494d47a6758b47e"),
        (Report(np.arange(9, dtype=np.uint64), bytes(64)).to_bytes(), "f8063abb82dba435"),
        (mask(bytes(range(16)), 9).tobytes(), "f28bb145eebe8639"),
        (key_of().signature, "95895770811e8a6e"),
        (HEADER.digest, "bd571b4167fd1b39"),
        (task_of("tea", bytes(32), 2), "de8872bb0f0900bb"),
        (vector_in(common((2.0, 3.0))), "16d6c54e0af18247"),
        (vector_in(personal()), "e2c24f3ff0c36cd7"),
    ):
        assert hashlib.sha256(content).hexdigest()[:16] == known


def test_a_seed_that_was_sealed_before_opens():
    assert open_seed(HEADER, SEALED, KEY) == bytes(range(16))


def test_messages_are_read_as_they_were_written():
    for request in (REQUEST, Request(HELLO)):
        assert Request.from_bytes(request.to_bytes()) == request
    assert SumRequest.from_bytes(SUMS.to_bytes()) == SUMS
    read = SumAnswer.from_bytes(ANSWER.to_bytes(), SUMS)
    assert (read.request, read.refused) == (ANSWER.request, ANSWER.refused)
    np.testing.assert_array_equal(read.sums, ANSWER.sums)
    for broadcast in (common((2.0, 3.0)), personal()):
        content = request_for(1, broadcast).broadcast
        assert Shared.from_bytes(content).to_bytes() == content
        assert b"half_life" not in content  # devices of 0.3.0 read it
    settings = settings_of(algorithm="fldb_personal", half_life=50.0)
    content = Shared(personal(), settings, 9, dict.fromkeys(parts_of(personal()), 1.0)).to_bytes()
    assert Shared.from_bytes(content).to_bytes() == content
    assert Shared.from_bytes(content).settings.half_life == 50.0


def changed(message: bytes, names: tuple[str, ...], body: bytes | None = None, **changes) -> bytes:
    """Return a message with other fields, or with another body; "key__public" is an inner one."""
    fields, before = unframed(message, "it", names)
    for name, value in changes.items():
        part, _, inner = name.partition("__")
        fields[part] = {**fields[part], inner: value} if inner else value
    return framed(fields, before if body is None else body)


OF_REQUEST = ("counted", "header", "key", "kind")
OF_REPLY = ("device", "digest", "kind", "reason")
OF_SUMS = ("header", "kind", "sizes")
OF_ANSWER = ("groups", "numbers", "refused", "request")
OF_SHARED = ("duels", "header", "privacy", "settings", "units")
NO_NUMBERS = (None, True, 1.5, "1", -1, 2**60, [], {})
NO_DIGESTS = (None, 7, "", "0" * 63, "0" * 62, "0" * 66, "A" * 64, "x" * 64, "0 " * 32)
WRONG = {
    "task": NO_DIGESTS, "broadcast": NO_DIGESTS, "number": (*NO_NUMBERS, 0),
    "numbers": (*NO_NUMBERS, 0, 2**20 + 1), "sigma": (*NO_NUMBERS, 2**28 - 1, 2**54 + 1),
    "key": NO_NUMBERS,
}  # fmt: skip


def refusals():
    """Yield functions that read a message, with bytes that they must refuse."""
    request, sums = REQUEST.to_bytes(), SUMS.to_bytes()
    reply = Reply(REPORT, "d", report=b"abc", digest=bytes(32)).to_bytes()

    def answer(content: bytes) -> SumAnswer:
        return SumAnswer.from_bytes(content, SUMS)

    messages = (
        (Request.from_bytes, request, OF_REQUEST), (Reply.from_bytes, reply, OF_REPLY),
        (SumRequest.from_bytes, sums, OF_SUMS), (answer, ANSWER.to_bytes(), OF_ANSWER),
    )  # fmt: skip
    for read, message, names in messages:
        end = 4 + int.from_bytes(message[:4], "big")
        spaced = message[4:end].replace(b",", b", ", 1)
        repeated = message[4 : end - 1] + b"," + message[5:end]
        for content in (
            b"", message[:3], message[: end - 1], message.decode("latin-1"), [*message[:9]],
            len(spaced).to_bytes(4, "big") + spaced + message[end:],
            len(repeated).to_bytes(4, "big") + repeated + message[end:],
            framed({}, b""), changed(message, names, extra=1), b"\0\0\0\2[]", b"\0\0\0\3NaN",
            (60_000).to_bytes(4, "big") + b"[" * 60_000,
        ):  # fmt: skip
            yield read, content
    for changes in (
        {"kind": "other"}, {"kind": []}, {"kind": HELLO}, {"kind": "estimate"}, {"header": None},
        {"key": None}, {"counted": -1}, {"counted": True}, {"counted": 2**53 + 1}, {"body": b"x"},
    ):  # fmt: skip
        yield Request.from_bytes, changed(request, OF_REQUEST, **changes)
    for changes in (
        {"device": 1}, {"kind": None}, {"reason": []}, {"digest": "0g" * 32}, {"digest": "00"},
    ):  # fmt: skip
        yield Reply.from_bytes, changed(reply, OF_REPLY, **changes)
    for changes in (
        {"kind": "other"}, {"kind": []}, {"kind": "sum"}, {"kind": "trial"}, {"sizes": 3},
        {"sizes": []}, {"sizes": [3, 0]}, {"sizes": [4, -1]}, {"sizes": [1.0, 2]},
        {"sizes": [True, 2]}, {"sizes": [1, 1]}, {"sizes": [2, 2]}, {"body": bytes(191)},
        {"body": b""}, {"sizes": [2**20 + 1]}, {"sizes": [2**20] * 2},
    ):  # fmt: skip
        yield SumRequest.from_bytes, changed(sums, OF_SUMS, **changes)
    for changes in (
        {"groups": 3}, {"numbers": 8}, {"body": bytes(8 * 17)}, {"body": bytes(8 * 18 + 1)},
        {"request": "0" * 64}, {"refused": None}, {"refused": [-1]}, {"refused": [3]},
        {"refused": [True]}, {"refused": [1, 1]}, {"refused": [1, 0]}, {"refused": [[]]},
    ):  # fmt: skip
        yield answer, changed(ANSWER.to_bytes(), OF_ANSWER, **changes)
    for size in (0, 63, 64 + 8 * 8, 64 + 8 * 9 - 1, 64 + 8 * 9 + 1):
        yield (lambda content: Report.from_bytes(content, 9)), bytes(size)


def damaged_headers():
    """Yield requests with a wrong number, hash or key."""
    request, sums = REQUEST.to_bytes(), SUMS.to_bytes()
    for name, values in WRONG.items():
        for value in values:
            yield Request.from_bytes, changed(request, OF_REQUEST, **{f"header__{name}": value})
            yield SumRequest.from_bytes, changed(sums, OF_SUMS, **{f"header__{name}": value})
    for name, values in (
        ("expires", NO_NUMBERS), ("key", NO_NUMBERS),
        ("public", NO_DIGESTS), ("signature", (*NO_DIGESTS, "0" * 64)),
    ):  # fmt: skip
        for value in values:
            yield Request.from_bytes, changed(request, OF_REQUEST, **{f"key__{name}": value})


def damaged_broadcasts():
    """Yield broadcasts that a device must refuse, with the function that reads them."""
    good, units = common((2.0, 3.0)), dict.fromkeys(parts_of(common()), 4.0)
    for broadcast in (
        good._replace(scope="all"), good._replace(loss=True), good._replace(play=None),
    ):  # fmt: skip
        yield Shared.from_bytes, Shared(broadcast, settings_of(), 9, units).to_bytes()
    shared = Shared(good, settings_of(), 9, units).to_bytes()
    for value in (None, "auto", True, 8, 0.0, -1.0):
        yield Shared.from_bytes, changed(shared, OF_SHARED, privacy__clip=value)
        yield Shared.from_bytes, changed(shared, OF_SHARED, units__gradient=value)
    for changes in (
        {"units": {}}, {"settings": {}}, {"privacy": {}}, {"duels": -1}, {"header": [1] * 6},
        {"body": b""}, {"body": bytes(7)}, {"privacy__epsilon": -1.0}, {"settings__selection": "x"},
    ):  # fmt: skip
        yield Shared.from_bytes, changed(shared, OF_SHARED, **changes)


def test_damaged_messages_are_refused_in_one_line():
    count = 0
    for read, content in (*refusals(), *damaged_headers(), *damaged_broadcasts()):
        with pytest.raises(DataError) as error:
            assert read(content), "read"
        assert "\n" not in str(error.value)
        assert len(str(error.value)) < 400
        count += 1
    assert count > 200
