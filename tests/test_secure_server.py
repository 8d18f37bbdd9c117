"""The server of secure sums, with devices that have real vaults."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from secure_grid import SecureFederation
from vaults import D

from fldb_flower.federation.exchange import statistics
from fldb_flower.linalg.forms import form_of
from fldb_flower.wire.secure_upload import numbers_of
from fldb_flower.wire.shared_broadcast import decode_shared


def exact_sum(federation, header, broadcast, names) -> list[Fraction]:
    """Return the sum of the integers of devices, in units of their scales, with Python integers."""
    shared = decode_shared(header.broadcast)
    encoding = shared.encoding(len(header.asked), header.max_duels)
    scales = [
        Fraction(2) ** exponent
        for block, exponent in zip(encoding.blocks, encoding.exponents, strict=True)
        for _ in range(block.size)
    ]
    total = [0] * len(scales)
    for name in names:
        start, cut = federation.grid.spans[name, header.exchange]
        given = federation.phones[name].given[start:cut]
        x, y = (np.array(column) for column in zip(*given, strict=True))
        upload = statistics(broadcast, x, y, x, form_of(np.eye(D)))
        numbers = numbers_of(upload, broadcast)
        total = [
            sum_ + round(Fraction(number) * scale)
            for sum_, number, scale in zip(total, numbers, scales, strict=True)
        ]
    return [sum_ / scale for sum_, scale in zip(total, scales, strict=True)]


def test_the_server_learns_from_the_exact_sum(tmp_path):
    federation = SecureFederation(tmp_path)
    with federation.serving() as server:
        for round_ in range(3):
            federation.answer()
            assert server.try_round(), federation.lines
            (name, *others), _ = zip(*server.devices.tally().uploads, strict=True), None
            header = federation.grid.headers[bytes.fromhex(server.devices.counted["d00"])]
            broadcast, upload = federation.uploads[-1]
            numbers = numbers_of(upload, broadcast)
            expected = exact_sum(federation, header, broadcast, federation.phones)
            assert [Fraction(number) for number in numbers] == expected
            assert upload.num_duels == 16
        assert federation.check_counted(server) == 48
