"""Devices with real vaults, and a server that runs exchanges with them directly."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fldb_flower.secure.header import Header, Limits, new_header
from fldb_flower.secure.roster import read
from fldb_flower.secure.server import ServerExchange
from fldb_flower.wire.secure_upload import upload_of
from fldb_flower.wire.shared_broadcast import (
    SharedNoise,
    decode_shared,
    describe_encoding,
    encode_shared,
)

from clients.store import DuelStore
from clients.vault import Vault, read_config
from fldb_flower.bandit.estimate import Estimate
from fldb_flower.deployment import rosters
from fldb_flower.federation.exchange import Broadcast, PlayRequest, Upload
from fldb_flower.linalg.forms import make_form
from fldb_flower.privacy.discrete import noise_of_sum
from fldb_flower.privacy.plan import ReleasePlan
from fldb_flower.settings import Settings
from fldb_flower.wire import secure_messages as messages

D = 2
START = 1.8e9
"""Time of the first exchange, in seconds since 1970."""


class Phone:
    """One device: its folder, its store and its vault, which can be restarted."""

    def __init__(self, folder: Path, name: str, clock, store: str = "duels.db") -> None:
        self.folder, self.name, self.clock = folder, name, clock
        self.path = folder / store
        self.given: list[tuple[list[float], float]] = []
        self.start()

    def start(self) -> None:
        self.store = DuelStore(self.path)
        self.vault = Vault(self.store, read_config(self.folder / "vault.toml"), clock=self.clock)

    def restart(self) -> None:
        self.store.close()
        self.start()

    def answer(self, *duels: tuple[Sequence[float], float]) -> None:
        """Record answers: difference and preference of each duel."""
        for difference, preference in duels:
            proposal = self.store.propose(np.array(difference, float), np.nan, expire_after=1e9)
            (number,) = self.store.record([(proposal.id, preference)])
            assert isinstance(number, int)
            self.given.append((list(difference), preference))

    def ask(self, request: messages.Request) -> messages.Reply:
        return messages.decode_reply(self.vault.answer(messages.encode(request)))


class Fleet:
    """Devices with keys, configurations and a signed roster; and the server's side."""

    def __init__(
        self, folder: Path, count: int, budget: dict[str, Any] | None = None, **limits: Any
    ) -> None:
        self.folder, self.now, self.budget = folder, START, budget or {}
        self.limits = {"min_devices": 4, "min_duels": 1, "min_committee": 5, **limits}
        self.names = [f"d{number:02}" for number in range(count)]
        rosters.create_signing_key(folder / "signer")
        for name in self.names:
            rosters.create_device_key(folder / name / "device.key")
            self.configure(name)
        certified = [f"{name}={folder / name / 'device.key.pub'}" for name in self.names]
        rosters.create_roster(self.roster_file, folder / "signer", certified)
        self.phones = {name: Phone(folder / name, name, lambda: self.now) for name in self.names}
        self.counted: dict[str, bytes] = {}
        self.numbers = itertools.count(1)

    @property
    def roster_file(self) -> Path:
        return self.folder / "roster.json"

    def configure(self, name: str, /, **changes: Any) -> Path:
        entries = {
            "name": f'"{name}"', "key": '"device.key"', "signer": '"../signer.pub"',
            "roster": '"../roster.json"', **self.limits, **self.budget, **changes,
        }  # fmt: skip
        file = self.folder / name / "vault.toml"
        file.write_text("".join(f"{key} = {value}\n" for key, value in entries.items()))
        file.chmod(0o600)
        return file

    def settings(self, **changes: Any) -> Settings:
        return Settings(
            mode="devices",
            **{"dimension": D, "max_difference": 8.0, "algorithm": "fldb_ons", **changes},
        )

    def header(
        self,
        broadcast: Broadcast | None = None,
        settings: Settings | None = None,
        present: Iterable[str] = (),
        max_duels: int = 1000,
        **changes: Any,
    ) -> Header:
        """Return the header of the next exchange, a minute after the last one."""
        self.now += 60.0
        broadcast = common() if broadcast is None else broadcast
        settings = self.settings() if settings is None else settings
        asked = list(present) or self.names
        privacy = noise_for(broadcast, settings)
        shared = shared_of(broadcast, settings)
        encoding = shared.encoding(len(asked), max_duels)
        roster, _ = read(self.roster_file.read_bytes())
        fields = {
            "numbers": encoding.size,
            "encoding": describe_encoding(encoding),
            "broadcast": encode_shared(broadcast, settings, 7, privacy),
            "limits": Limits(**self.limits),
            **changes,
        }
        return new_header(
            roster, asked, exchange=next(self.numbers).to_bytes(16, "big"),
            round=int(self.now * 1000), max_duels=max_duels, **fields,
        )  # fmt: skip

    def request(self, header: Header, name: str) -> messages.Collect:
        return messages.Collect(header.to_bytes(), self.counted.get(name, b""))

    def collect(self, header: Header, *names: str) -> ServerExchange:
        """Ask devices for their pieces; those that decline are left out."""
        state = ServerExchange(header)
        for name in names or header.asked:
            reply = self.phones[name].ask(self.request(header, name))
            if isinstance(reply, messages.Declined):
                continue
            assert isinstance(reply, messages.Pieces), reply
            state = state.receive(name, reply.sealed)
        return state

    def open(self, state: ServerExchange, *members: str) -> ServerExchange:
        """Fix the set and ask the members."""
        state = state.choose()
        content = state.header.to_bytes()
        for name in members or state.header.committee:
            reply = self.phones[name].ask(messages.Open(content, state.pieces_for(name)))
            assert isinstance(reply, messages.Opened), reply
            state = state.answer(name, reply.opening)
        return state

    def exchange(self, *arguments: Any, **keywords: Any) -> tuple[Upload, ServerExchange]:
        """Run a whole exchange, and count it; return the sum as an upload."""
        state = self.open(self.collect(self.header(*arguments, **keywords)))
        for name in state.chosen:
            self.counted[name] = state.header.exchange
        return decoded(state), state


def noise_for(broadcast: Broadcast, settings: Settings) -> SharedNoise | None:
    """Return the noise that a server states for a broadcast; None without privacy."""
    if not settings.is_private:
        return None
    multiplier = ReleasePlan(settings).multiplier
    return SharedNoise(multiplier, noise_of_sum(broadcast, settings, multiplier))


def shared_of(broadcast: Broadcast, settings: Settings):

    return decode_shared(encode_shared(broadcast, settings, 7, noise_for(broadcast, settings)))


def decoded(state: ServerExchange) -> Upload:
    """Return the sum of an exchange as an upload."""

    header = state.header
    shared = decode_shared(header.broadcast)
    encoding = shared.encoding(len(header.asked), header.max_duels)
    numbers = encoding.decode(state.combine().numbers, len(state.chosen))
    return upload_of(numbers, shared.broadcast, make_form(shared.settings))


def common(theta: Sequence[float] = (0.0, 0.0), round: int = 1) -> Broadcast:
    """Return a broadcast of FLDB-ONS."""
    estimate = Estimate(np.array(theta), np.eye(len(theta)))
    return Broadcast(PlayRequest(round, round, estimate), np.array(theta), hessian=True)
