"""A device with a real vault, its kills, and the server's and the helper's side of an exchange."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from test_shares import posterior

from clients.store import DuelStore
from clients.vault import Vault, VaultConfig, read_config
from clients.vault.ledger import Ledger, LedgerFile
from fldb_flower.bandit.estimate import CommonPrior, Estimate
from fldb_flower.federation.exchange import Broadcast, PlayRequest
from fldb_flower.linalg.linear import make_form
from fldb_flower.secure.protocol import (
    ESTIMATE,
    REPORT,
    SCALE,
    Header,
    HelperKey,
    Reply,
    Report,
    Request,
    mask,
    open_seed,
    task_of,
)
from fldb_flower.secure.statistics import Shared, parts_of, size_of
from fldb_flower.settings import DevicesSettings, PrivacySettings, Settings

D = 2
START = 1.8e9
"""Time of the first exchange, in seconds since 1970."""

SIGNER = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
KEY = X25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
EXPIRES = int(START) + 10**8
TASK = task_of("tea", SIGNER.public_key().public_bytes_raw(), D)


class Clock:
    """A clock that is set by hand."""

    def __init__(self, now: float = START) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    @property
    def ms(self) -> int:
        return round(self.now * 1000)


class Phone:
    """One device: its folder, its store and its vault, which can be restarted."""

    def __init__(self, folder: Path, clock: Clock, store: str = "duels.db", **entries: Any) -> None:
        self.folder, self.clock, self.path = folder, clock, folder / store
        self.given: list[tuple[list[float], float]] = []
        self.file = configure(folder, **entries)
        self.start()

    def start(self) -> None:
        self.store = DuelStore(self.path)
        self.config: VaultConfig = read_config(self.file)
        self.vault = Vault(self.store, self.config, clock=self.clock)

    def restart(self) -> None:
        self.store.close()
        self.start()

    @property
    def ledger(self) -> Ledger | None:
        return LedgerFile(self.config.ledger).read()

    def answer(self, *duels: tuple[Sequence[float], float]) -> None:
        """Record answers: difference and preference of each duel."""
        for difference, preference in duels:
            proposal = self.store.propose(np.array(difference, float), np.nan, expire_after=1e9)
            (number,) = self.store.record([(proposal.id, preference)])
            assert isinstance(number, int)
            self.given.append((list(difference), preference))

    def ask(self, request: Request) -> Reply:
        return Reply.from_bytes(self.vault.answer(request.to_bytes()))

    def opened(self, request: Request) -> np.ndarray:
        """Return the integers of the report to a request."""
        return opened(request, self.ask(request))


def configure(folder: Path, **changes: Any) -> Path:
    """Write ``vault.toml`` and the helper's public key; return the former."""
    folder.mkdir(parents=True, exist_ok=True)
    public = SIGNER.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (folder / "helper.pub").write_bytes(public)
    (folder / "helper.pub").chmod(0o600)
    entries = {"federation": '"tea"', "helper": '"helper.pub"', "dimension": D, **changes}
    file = folder / "vault.toml"
    file.write_text("".join(f"{name} = {value}\n" for name, value in entries.items()))
    file.chmod(0o600)
    return file


def settings_of(**changes: Any) -> Settings:
    """Return the settings of a server's run."""
    private = PrivacySettings(**{"epsilon": 3.0, "delta": 1e-6, **changes.pop("privacy", {})})
    values = {"dimension": D, "max_difference": 8.0, "algorithm": "fldb_ons", **changes}
    devices = DevicesSettings(rounds=10)
    return Settings(mode="devices", privacy=private, devices=devices, **values)


def common(theta: Sequence[float] = (0.0, 0.0), round: int = 1) -> Broadcast:
    """Return a broadcast of FLDB-ONS."""
    estimate = Estimate(np.array(theta), np.eye(len(theta)))
    return Broadcast(PlayRequest(round, round, estimate), np.array(theta), hessian=True)


def personal(precision: Any = None, shift: Any = None, variance: float = 0.5) -> Broadcast:
    """Return a broadcast of FLDB-Personal."""
    precision = np.eye(D) if precision is None else np.array(precision, float)
    shift = np.zeros(D) if shift is None else np.array(shift, float)
    prior = CommonPrior(precision, shift, variance, 4.0)
    return Broadcast(PlayRequest(1, 1, prior), None, shares=True)


def key_of(
    public: X25519PrivateKey = KEY, signer: Ed25519PrivateKey = SIGNER, key: int = 7
) -> HelperKey:
    """Return a signed HPKE key of the helper."""
    return HelperKey(key, EXPIRES, public.public_key().public_bytes_raw()).sign(signer)


def request_for(
    number: int,
    broadcast: Broadcast | None = None,
    *,
    counted: int = 0,
    multiplier: float = 20.0,
    settings: Settings | None = None,
    units: dict[str, float] | None = None,
    key: HelperKey | None = None,
    **changes: Any,
) -> Request:
    """Return the request of an exchange; ``changes`` are of its header."""
    broadcast = common() if broadcast is None else broadcast
    is_personal = broadcast.shares
    algorithm = "fldb_personal" if is_personal else "fldb_ons"
    settings = settings or settings_of(algorithm=algorithm)
    units = units or dict.fromkeys(parts_of(broadcast), 1000.0)
    content = Shared(broadcast, settings, 7, units if broadcast.learns else {}).to_bytes()
    header = Header(
        task=TASK,
        number=number,
        numbers=size_of(broadcast, make_form(settings)),
        sigma=round(multiplier * SCALE),
        key=7,
        broadcast=hashlib.sha256(content).digest(),
    )
    return Request(REPORT, replace(header, **changes), key or key_of(), counted, content)


def opened(request: Request, reply: Reply) -> np.ndarray:
    """Return the integers of a report, as server and helper together can."""
    assert reply.kind == REPORT, reply.reason
    assert request.header is not None
    assert reply.digest == request.header.digest
    report = Report.from_bytes(reply.report, request.header.numbers)
    seed = open_seed(request.header, report.sealed, KEY)
    assert seed is not None
    return (report.masked + mask(seed, request.header.numbers)).view(np.int64)


def share_by_hand(
    duels: Sequence[tuple[Sequence[float], float]],
    precision: Any,
    shift: Any,
    variance: float,
    clip: float = 8.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Return M, and m relative to the prior's mean, without limits."""
    scale = clip**2 / 10.0
    a = np.array(precision) + 0.1 * scale * np.eye(D)  # personal_ridge: see the call
    mean, v = np.linalg.solve(a, shift), variance / scale
    x, y = np.array([d for d, _ in duels]), np.array([won for _, won in duels])
    q = np.linalg.inv(np.linalg.inv(a) + v * np.eye(D))
    theta, hessian, gradient = posterior(x, y, q, mean)
    mixed = np.eye(D) + v * hessian
    m = np.linalg.solve(mixed, hessian)
    return m, np.linalg.solve(mixed, hessian @ theta - gradient) - m @ mean


class Killed(BaseException):
    """The process ends here."""


WRITES = (
    (LedgerFile, "write"), (DuelStore, "keep_secure_part"), (DuelStore, "mark_sent"),
    (DuelStore, "synchronize"),
)  # fmt: skip


class Kills:
    """Ends the process before or after a write, counted over all durable writes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen, self.at = 0, -1
        for owner, name in WRITES:
            self._wrap(monkeypatch, owner, name)

    def _wrap(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        original = getattr(owner, name)

        def wrapper(this: Any, *arguments: Any) -> None:
            self._step()
            original(this, *arguments)
            self._step()

        monkeypatch.setattr(owner, name, wrapper)

    def _step(self) -> None:
        self.seen += 1
        if self.seen - 1 == self.at:
            raise Killed

    def run(self, at: int, phone: Phone, request: Request) -> Reply | None:
        """Ask, and return the reply, or restart the device and return None."""
        self.seen, self.at = 0, at
        try:
            reply = phone.ask(request)
        except Killed:
            reply = None
        self.at = -1
        if reply is None:
            phone.restart()
        return reply


STEPS = 14
"""Before and after: ledger, journal, estimate, report, journal, cut, ledger."""


def hostile(chance: random.Random, now: int, sent: list[bytes]) -> bytes:
    """Return a request that a server makes which tries everything."""

    def size() -> float:
        return float(10.0 ** chance.uniform(-300, 300))

    if sent and chance.random() < 0.2:
        return chance.choice(sent)  # again, or an old one
    theta = [chance.choice([0.0, size(), -size()]) for _ in range(D)]
    broadcast = common(theta, round=chance.randrange(1, 9))
    units = {"gradient": size(), "information": size(), "hessian": size(), "num_duels": size()}
    if chance.random() < 0.5:
        shift = [chance.choice([0.0, size(), -size()]) for _ in range(D)]
        matrix = np.diag([size(), size()]) if chance.random() < 0.7 else np.eye(D)
        broadcast = personal(matrix, shift, variance=size())
        units = {"shift": size(), "precision": size(), "losses": size(), "num_duels": size()}
    if chance.random() < 0.3:
        units = dict.fromkeys(units, 1e-300)
    number = now + chance.choice([0, 0, 0, 0, 1, -5, 600_000, 10**7, -(10**9)])
    changes = {
        "multiplier": 10.0 ** chance.uniform(0, 6),
        "counted": chance.choice([0, now, 2**53]),
    }
    request = request_for(number, broadcast, units=units, **changes)
    content = request.to_bytes()
    if chance.random() < 0.1:
        damaged = bytearray(content)
        damaged[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        content = bytes(damaged)
    elif chance.random() < 0.1:
        shared = replace(request, kind=ESTIMATE, header=None, key=None)
        content = shared.to_bytes()
    return content


def live(phone: Phone, chance: random.Random) -> None:
    """Let the person of a device do something."""
    kind = chance.random()
    if kind < 0.3:
        exponent = chance.choice([0, 0, 0, 50, 99, -99])
        duel = (np.array([chance.gauss(0, 1), chance.gauss(0, 1)]) * 10.0**exponent).tolist()
        phone.answer((duel, chance.choice([0.0, 0.5, 1.0])))
    elif kind < 0.32:
        phone.store.forget()
    elif kind < 0.34:
        phone.store.prune(older_than=-1e12)
