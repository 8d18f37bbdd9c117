"""Benchmark section `secure`: times and bytes of one secure sum, with and without encryption."""

from __future__ import annotations

import hmac
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fldb_flower.federation.exchange import Broadcast
from fldb_flower.linalg.forms import Full
from fldb_flower.secure import field
from fldb_flower.secure.device import Device
from fldb_flower.secure.encoding import Encoding
from fldb_flower.secure.field import Elements
from fldb_flower.secure.header import Limits, new_header
from fldb_flower.secure.journal import Journal
from fldb_flower.secure.roster import Roster
from fldb_flower.secure.sealing import Route, seal
from fldb_flower.secure.server import ServerExchange
from fldb_flower.system.process import one_blas_thread
from fldb_flower.wire.secure_messages import Open, Pieces, encode
from fldb_flower.wire.secure_upload import blocks_of
from simulations.benchmark.algorithms import seconds

SIZES = ((100, 5), (100, 64), (100, 384), (1000, 64))  # N and d
ANSWERS, LONGEST = 30, 10.0  # n and L, which determine the scales
MISSING = 0.1  # of the devices, in both trips
_HASHES = 4  # of a sealed piece: three of HKDF, one of the nonce


def secure(repetitions: int) -> pd.DataFrame:
    """Time a device, a member and the server, in a sum of gradients, W, Hessians and counts.

    - *collect*: a device encodes its numbers, shares them and seals the pieces.
    - *open*: a member opens the pieces of all devices and adds them. The member with the longest
      pieces is timed.
    - *server*: the server takes the pieces, passes them on, compares the answers and recovers the
      sum. Other members are missing each time.

    ``bare`` are the same parts without encryption: sharing, adding, recovering. ``x`` is the
    fastest time in units of that of a reference, measured alternately: for the devices, an X25519
    exchange and AES-GCM for each piece; for the server, the solution of U equations in floats.
    Bytes are those of one device's pieces, and of the message to one member, the mean over the
    committee; the broadcast is not counted.
    """
    return pd.DataFrame([_row(agents, dimension, repetitions) for agents, dimension in SIZES])


class Rehearsal:
    """One exchange in which all devices contribute the same numbers.

    Parameters
    ----------
    agents, dimension : int
        N and d.
    """

    def __init__(self, agents: int, dimension: int) -> None:
        request = Broadcast(None, np.zeros(dimension), hessian=True)
        blocks = blocks_of(request, Full(dimension), answers=ANSWERS, longest=LONGEST)
        self.encoding = Encoding(blocks, agents)
        self._generator = np.random.default_rng(0)
        vector = self._generator.uniform(-1.0, 1.0, self.encoding.size)
        self.vector = np.append(vector[:-1], ANSWERS)
        self.keys = {f"device{place}": X25519PrivateKey.generate() for place in range(agents)}
        self.public = {name: key.public_key() for name, key in self.keys.items()}
        self.roster = Roster(1, {name: key.public_bytes_raw() for name, key in self.public.items()})
        self.limits = Limits(min_duels=1)
        self.header = new_header(
            self.roster, self.keys, exchange=bytes(16), round=1, numbers=self.encoding.size,
            encoding=b"", max_duels=ANSWERS, limits=self.limits, broadcast=b"",
        )  # fmt: skip
        self.scheme, self.committee = self.header.scheme, self.header.committee
        self.present = list(self.keys)[: round(agents * (1.0 - MISSING))]
        # The last member receives elements, the first ones seeds.
        self.sender, self.member = self.present[0], self.committee[-1]
        self.sealed, journal = self.collect()
        assert journal.contribution is not None
        self.pieces = self.scheme.messages(self.encoded(), journal.contribution.share_seed())
        self.received = {name: self._sealed_by(name) for name in self.present}
        self.openings = {name: self._opening(place) for place, name in enumerate(self.committee)}

    def encoded(self) -> Elements:
        """Return the numbers of a device as elements."""
        return self.encoding.encode(self.vector)

    def collect(self) -> tuple[dict[str, bytes], Journal]:
        """Return the sealed pieces of a device."""
        device = self._device(self.sender)
        return device.collect(self.header, Journal(), self.encoded(), ANSWERS, bytes(32), now=0.0)

    def share(self) -> list[bytes]:
        """Return the pieces of a device without encryption."""
        return self.scheme.messages(self.encoded(), bytes(32))

    def open(self) -> bytes:
        """Return the answer of a member."""
        return self._device(self.member).open(self.header, Journal(), self.received, now=0.0)[0]

    def add(self) -> Elements:
        """Return the answer of a member to pieces without encryption."""
        place, count = len(self.committee) - 1, self.encoding.size
        pieces = [self.scheme.piece(self.pieces[place], place, count) for _ in self.present]
        return field.total(np.stack(pieces))

    def answering(self) -> list[str]:
        """Return the members that answer, others in each call: matrices are cached."""
        count = max(self.scheme.needed, round(len(self.committee) * (1.0 - MISSING)))
        order = self._generator.permutation(len(self.committee))
        return [self.committee[place] for place in order[:count]]

    def serve(self, members: Sequence[str]) -> Elements:
        """Return the sum that the server recovers from the answers of some members."""
        state = ServerExchange(self.header)
        for name in self.present:
            state = state.receive(name, self.sealed)
        state = state.choose()
        for member in self.committee:
            state.pieces_for(member)
        for member in members:
            state = state.answer(member, self.openings[member])
        return state.combine().numbers

    def recover(self, members: Sequence[str]) -> Elements:
        """Return the sum from answers, without the messages before."""
        places = [self.committee.index(member) for member in members]
        pieces = np.stack([field.from_bytes(self.openings[member]) for member in members])
        assert not self.scheme.mismatches(pieces, places)
        return self.scheme.recover(pieces, places, self.encoding.size)

    def messages(self) -> tuple[int, int]:
        """Return the bytes of a device's pieces, and of the message to a member (mean)."""
        up = len(encode(Pieces(self.sealed)))
        header = self.header.to_bytes()
        down = [
            len(encode(Open(header, dict.fromkeys(self.present, piece))))
            for piece in self.sealed.values()
        ]
        return up, round(statistics.fmean(down))

    def encrypt(self, pieces: Sequence[bytes], names: Sequence[str], hashes: int = 0) -> None:
        """Encrypt pieces with a library: an X25519 exchange and AES-GCM for each one.

        With ``hashes``, the public key is decoded, and as many keyed hashes of the piece follow.
        """
        private = self.keys[self.sender]
        for piece, name in zip(pieces, names, strict=True):
            public = self.public[name]
            if hashes:
                public = X25519PublicKey.from_public_bytes(self.roster.keys[name])
            key = private.exchange(public)
            for _ in range(hashes):
                key = hmac.digest(key, piece, "sha256")
            AESGCM(key).encrypt(bytes(12), piece, None)

    def _device(self, name: str) -> Device:
        return Device(name, self.keys[name], self.roster, self.limits)

    def _sealed_by(self, name: str) -> bytes:
        route = Route(self.header.exchange, name, self.member)
        peer = self.roster.keys[self.member]
        return seal(self.pieces[-1], route, self.header.hash, self.keys[name], peer)

    def _opening(self, place: int) -> bytes:
        piece = self.scheme.piece(self.pieces[place], place, self.encoding.size)
        return field.to_bytes(field.multiply(piece, np.array([len(self.present)], np.uint64)))


def cost_over_primitives(repetitions: int) -> list[dict[str, Any]]:
    """Compare a device's part of a secure sum (N=100, d=5) with its primitives, alternately.

    Of each piece, these are an X25519 agreement, the four hashes of HKDF and of the nonce, and
    AES-GCM; of the sum, the arithmetic in the field with NumPy.
    """
    one = Rehearsal(100, 5)
    longest = one.pieces[-1:] * len(one.present)
    parts: dict[str, tuple[Callable[[], Any], Callable[[], Any], tuple[Any, ...]]] = {
        "collect": (one.collect, one.share, (one.pieces, one.committee)),
        "open": (one.open, one.add, (longest, one.present)),
    }
    rows = []
    for name, (call, arithmetic, pieces) in parts.items():
        ratios = [
            seconds(call) / (seconds(arithmetic) + seconds(one.encrypt, *pieces, _HASHES))
            for _ in range(max(repetitions, 9))
        ]
        rows.append(
            {
                "figure": f"secure sums, {name} / bare primitives",
                "ratio": round(statistics.median(ratios), 2),
                "goal": 1.5,
            }
        )
    return rows


def _row(agents: int, dimension: int, repetitions: int) -> dict[str, Any]:
    one = Rehearsal(agents, dimension)
    with one_blas_thread():  # as on devices
        times = {
            name: np.array([[seconds(call) for call in each] for _ in range(repetitions)])
            for name, each in _calls(one).items()
        }
    total = len(one.present) * one.encoding.quantise(one.vector)
    assert (field.to_integers(one.serve(one.answering())) == total).all()
    assert one.open() == one.openings[one.member]
    row: dict[str, Any] = {
        "N": agents,
        "d": dimension,
        "c": len(one.committee),
        "l": one.scheme.packed,
    }
    for name, measured in times.items():
        milliseconds = 1e3 * np.median(measured, axis=0)
        row[f"{name}, ms"], row[f"{name} bare, ms"] = milliseconds[:2].round(1).tolist()
        fastest = measured.min(axis=0)  # the ratio hardly depends on the load
        row[f"{name}, x"] = round(float(fastest[0] / fastest[2]), 1)
    up, down = one.messages()
    return row | {"up, bytes": up, "to a member, bytes": down}


def _calls(one: Rehearsal) -> dict[str, tuple[Callable[[], Any], ...]]:
    """Return of each part: the call, that without encryption, and the reference."""
    scheme, generator = one.scheme, np.random.default_rng(0)
    matrix = generator.standard_normal((scheme.needed, scheme.needed))
    right = generator.standard_normal((scheme.needed, scheme.columns(one.encoding.size)))
    longest = one.pieces[-1:] * len(one.present)
    return {
        "collect": (one.collect, one.share, lambda: one.encrypt(one.pieces, one.committee)),
        "open": (one.open, one.add, lambda: one.encrypt(longest, one.present)),
        "server": (
            lambda: one.serve(one.answering()),
            lambda: one.recover(one.answering()),
            lambda: np.linalg.solve(matrix, right),
        ),
    }
