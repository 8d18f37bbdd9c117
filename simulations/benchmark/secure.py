"""Benchmark section `secure`: times and bytes of one secure sum, without encryption."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from fldb_flower.federation.exchange import Broadcast
from fldb_flower.linalg.arrays import FloatArray
from fldb_flower.linalg.forms import Full
from fldb_flower.secure import field
from fldb_flower.secure.encoding import Encoding
from fldb_flower.secure.field import Elements
from fldb_flower.secure.sharing import Scheme
from fldb_flower.wire.secure_upload import blocks_of
from simulations.benchmark.algorithms import seconds

SIZES = ((100, 5), (100, 64), (100, 384), (1000, 64))  # N and d
COMMITTEE = 128  # members, at most
ANSWERS, LONGEST = 30, 10.0  # n and L, which determine the scales
MISSING = 0.1  # of the devices, in both trips
_TAG = 16  # bytes of AES-GCM, for each piece


def secure(repetitions: int) -> pd.DataFrame:
    """Time a device, a member and the server, in a sum of gradients, W, Hessians and counts.

    A device encodes and shares its numbers. A member adds its pieces of all devices; that with
    the longest messages is timed. The server compares the answers and recovers the sum; other
    members are missing each time. Bytes are those of one device's messages, and of the messages
    to one member, the mean over the committee; they include the tags of an encryption.
    """
    return pd.DataFrame([_row(agents, dimension, repetitions) for agents, dimension in SIZES])


def _row(agents: int, dimension: int, repetitions: int) -> dict[str, Any]:
    request = Broadcast(None, np.zeros(dimension), hessian=True)
    blocks = blocks_of(request, Full(dimension), answers=ANSWERS, longest=LONGEST)
    encoding, scheme = Encoding(blocks, agents), Scheme.of(min(agents, COMMITTEE))
    present = round(agents * (1.0 - MISSING))
    answers = max(scheme.needed, round(scheme.committee * (1.0 - MISSING)))
    generator = np.random.default_rng(0)
    vector = np.append(generator.uniform(-1.0, 1.0, encoding.size - 1), ANSWERS)

    def collect() -> list[bytes]:
        return scheme.messages(encoding.encode(vector), bytes(32))

    def add(messages: Sequence[bytes], member: int) -> Elements:
        pieces = [scheme.piece(message, member, encoding.size) for message in messages]
        return field.total(np.stack(pieces))

    def combine(opened: Elements, members: Sequence[int]) -> FloatArray:
        assert not scheme.mismatches(opened, members)
        return encoding.decode(scheme.recover(opened, members, encoding.size), present)

    messages, last = collect(), scheme.committee - 1
    received = [bytes(bytearray(messages[last])) for _ in range(present)]  # copies, as if different
    total = np.stack([add([message] * present, v) for v, message in enumerate(messages)])
    expected = encoding.restore(present * encoding.quantise(vector), present)
    times: dict[str, list[float]] = {"collect": [], "open": [], "server": []}
    for _ in range(repetitions):
        members = generator.permutation(scheme.committee)[:answers].tolist()
        opened = total[members]
        times["collect"].append(seconds(collect))
        times["open"].append(seconds(add, received, last))
        times["server"].append(seconds(combine, opened, members))
        assert (combine(opened, members) == expected).all()
    uploaded = sum(map(len, messages)) + _TAG * scheme.committee
    return {
        "N": agents, "d": dimension, "c": scheme.committee, "l": scheme.packed,
        "numbers": encoding.size,
        **{f"{name}, ms": round(1e3 * statistics.median(own), 1) for name, own in times.items()},
        "up, kB": round(uploaded / 1e3, 1),
        "to a member, kB": round(uploaded * present / scheme.committee / 1e3, 1),
        "without seeds: up, kB": round(scheme.committee * (len(messages[last]) + _TAG) / 1e3, 1),
    }  # fmt: skip
