"""The helper of secure sums: exact sums, noise that is drawn once, refusals, and its service."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import ssl
import stat
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from scipy import stats
from vaults import SIGNER, START, Clock, key_of

pytest.importorskip("fastapi", reason="needs FastAPI (the service extra)")
from starlette.testclient import TestClient

from clients.helper import __main__ as service
from clients.helper import sums
from clients.helper.__main__ import create_app, main
from clients.helper.sums import AHEAD_SECONDS, RENEW_SECONDS, Helper
from fldb_flower.deployment import __main__ as deployment
from fldb_flower.deployment.keys import create, load_helper_key, load_helper_public_key
from fldb_flower.errors import DataError, FederationError, OutputError, SecureError
from fldb_flower.secure.protocol import (
    KINDS,
    SCALE,
    VALID_SECONDS,
    Header,
    HelperKey,
    SumAnswer,
    SumRequest,
    make_report,
    to_json,
)
from strategies.helper_client import HelperClient

ROOT = Path(__file__).parents[2]
NOW, NUMBER = START, int(1000 * START)
TOKEN = "a-token-of-the-tests"
BINARY = {"Content-Type": "application/octet-stream"}
BEARER = {"Authorization": f"Bearer {TOKEN}", **BINARY}


class Drawn:
    """Noise that a test knows, of distinct integers; every call is recorded."""

    def __init__(self) -> None:
        self.scales: list[np.ndarray] = []
        self.values: list[int] = []

    def __call__(self, scales: np.ndarray) -> np.ndarray:
        self.scales.append(scales)
        first = len(self.values)
        values = [(-1) ** k * (10**15 + k) for k in range(first, first + scales.size)]
        self.values += values
        return np.array(values, dtype=np.int64)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "helper"


@pytest.fixture
def start(folder, clock):
    """Return a function that starts a helper, and ends the one before."""
    running: list[Helper] = []

    def begin(**options) -> Helper:
        if running:
            running.pop().close()
            clock.now += 1
        running.append(Helper(folder, SIGNER, **{"clock": clock, "noise": Drawn(), **options}))
        return running[0]

    yield begin
    for helper in running:
        helper.close()


@pytest.fixture
def helper(start):
    return start()


def header_for(helper: Helper, number: int = NUMBER, numbers: int = 3, **changes) -> Header:
    fields = {"task": bytes(32), "sigma": 2**34, "broadcast": bytes(32), **changes}
    return Header(number=number, numbers=numbers, key=helper.keys().key, **fields)


def reports(helper: Helper, header: Header, count: int, seed: int = 0):
    """Return the numbers of devices, (count, n), and their reports."""
    limits = -SCALE, SCALE + 1
    numbers = np.random.default_rng(seed).integers(*limits, (count, header.numbers))
    public = helper.keys().verified(SIGNER.public_key(), NOW)
    return numbers, [make_report(header, each, public) for each in numbers]


def request_of(header: Header, made, kind: str = "sum", sizes=None) -> SumRequest:
    sealed = tuple(each.sealed for each in made)
    return SumRequest(header, kind, tuple(sizes or [len(made)]), sealed)


def ask(helper: Helper, request: SumRequest) -> SumAnswer:
    return SumAnswer.from_bytes(helper.answer(request.to_bytes()), request)


def question(helper: Helper, kind: str = "sum", count: int = 2, **changes) -> bytes:
    """Return the bytes of a request with new reports."""
    header = header_for(helper, **changes)
    return request_of(header, reports(helper, header, count)[1], kind).to_bytes()


def recovered(answer: SumAnswer, made, sizes) -> list[list[int]]:
    """Return the sums of the numbers by group, in Python's integers."""
    found, first = [], 0
    for masks, size in zip(answer.sums.tolist(), sizes, strict=True):
        group = [k for k in range(first, first + size) if k not in answer.refused]
        words = [masks, *(made[k].masked.tolist() for k in group)]
        total = [sum(column) % 2**64 for column in zip(*words, strict=True)]
        found.append([each - 2**64 if each >= 2**63 else each for each in total])
        first += size
    return found


# ---- Sums


@pytest.mark.parametrize(("kind", "factor"), KINDS.items())
def test_sums_of_groups_are_exact_and_have_noise_of_their_kind(start, kind, factor, monkeypatch):
    monkeypatch.setattr(sums, "_AT_ONCE", 7)  # drawn in several calls
    noise = Drawn()
    helper = start(noise=noise)
    header = header_for(helper, numbers=10)
    values, made = reports(helper, header, 6)
    sizes = [1, 2, 3] if kind == "parts" else [6]
    answer = ask(helper, request_of(header, made, kind, sizes))
    assert np.concatenate(noise.scales).tolist() == [header.sigma * factor] * 10 * len(sizes)
    added = np.array(noise.values).reshape(-1, 10)
    groups = np.split(values, np.cumsum(sizes)[:-1])
    assert recovered(answer, made, sizes) == [
        (group.sum(axis=0) + extra).tolist() for group, extra in zip(groups, added, strict=True)
    ]


@pytest.mark.parametrize(("kind", "count"), [("sum", 2**16), ("trial", 2**14)])
def test_noise_has_the_standard_deviation(kind, count, folder):
    """Chi-squared, with a probability of false alarms of 1e-9.

    The test of 2^16 numbers fails for a standard deviation of 0.97 with probability 0.99999.
    """
    with contextlib.closing(Helper(folder, SIGNER, clock=Clock())) as helper:
        header = header_for(helper, numbers=count)
        values, made = reports(helper, header, 2)
        (found,) = recovered(ask(helper, request_of(header, made, kind)), made, [2])
    noise = (np.array(found) - values.sum(axis=0)) / (header.sigma * KINDS[kind])
    low, high = stats.chi2.ppf(5e-10, count), stats.chi2.isf(5e-10, count)
    assert low < (noise**2).sum() < high
    assert abs(noise.sum()) < 6.2 * np.sqrt(count)
    if count == 2**16:
        assert stats.chi2.cdf(low / 0.97**2, count) > 0.99999


def test_reports_that_do_not_open_are_left_out(helper):
    header = header_for(helper)
    values, made = reports(helper, header, 2)
    _, (other,) = reports(helper, replace(header, broadcast=bytes([1] * 32)), 1)
    damaged = made[0]._replace(sealed=made[0].sealed[:-1] + bytes([made[0].sealed[-1] ^ 1]))
    _, (stranger,) = reports(Other(), header, 1)
    sent = [other, made[0], damaged, stranger, made[1]]
    answer = ask(helper, request_of(header, sent))
    assert answer.refused == (0, 2, 3)
    expected = values.sum(axis=0) + Drawn()(np.zeros(3))
    assert recovered(answer, sent, [5]) == [expected.tolist()]


class Other:
    """A helper with another HPKE key."""

    def keys(self) -> HelperKey:
        public = X25519PrivateKey.generate().public_key().public_bytes_raw()
        return HelperKey(1, int(NOW) + 10, public).sign(SIGNER)


def test_too_few_reports_are_refused_and_not_spent(start):
    helper = start(min_reports=3)
    header = header_for(helper)
    _, made = reports(helper, header, 3)
    few = request_of(header, [made[0], made[1], made[0]])
    with pytest.raises(SecureError, match=r"2 of 3 reports open, without repeated ones.*least 3"):
        ask(helper, few)
    assert ask(helper, request_of(header, made)).refused == ()


# ---- Each question once


@pytest.mark.parametrize("kind", KINDS)
def test_a_repeated_request_gets_the_same_bytes(start, kind):
    noise = Drawn()
    helper = start(noise=noise)
    sent = question(helper, kind)
    first = helper.answer(sent)
    drawn = len(noise.values)
    assert helper.answer(sent) == first
    assert len(noise.values) == drawn
    assert start().answer(sent) == first  # also by another process, without the key


def test_a_kind_is_answered_for_one_request(helper):
    header = header_for(helper)
    _, made = reports(helper, header, 3)
    ask(helper, request_of(header, made, "trial"))
    ask(helper, request_of(header, made, "parts", [1, 2]))
    for kind, sizes, chosen in (
        ("trial", [2], made[:2]),
        ("trial", [3], [made[1], made[0], made[2]]),
        ("parts", [2, 1], made),
    ):
        with pytest.raises(SecureError, match=f"the {kind} of exchange {NUMBER} was answered for"):
            ask(helper, request_of(header, chosen, kind, sizes))
    ask(helper, request_of(header, made[:2]))  # the sum may leave out a report of the trial


def test_an_exchange_has_one_header(helper):
    helper.answer(question(helper, "trial"))
    for changes in ({"sigma": 2**35}, {"numbers": 2}, {"broadcast": bytes([1] * 32)}):
        with pytest.raises(SecureError, match=f"exchange {NUMBER} was answered with another head"):
            helper.answer(question(helper, "sum", **changes))
    assert helper.answer(question(helper, "sum", task=bytes([1] * 32), sigma=2**35))


def test_numbers_ascend(start):
    helper = start()
    late, old = question(helper, "trial"), question(helper, "trial", number=NUMBER - 1)
    unanswered = question(helper, number=NUMBER - 1)
    helper.answer(old)
    for kind in KINDS:
        helper.answer(late if kind == "trial" else question(helper, kind))
    for sent in (old, unanswered):
        with pytest.raises(SecureError, match=f"exchange {NUMBER - 1} is over: {NUMBER}"):
            helper.answer(sent)
    helper = start()  # from the files
    with pytest.raises(SecureError, match=f"exchange {NUMBER - 1} is over: {NUMBER}"):
        helper.answer(question(helper, number=NUMBER - 1))
    with pytest.raises(SecureError, match=f"exchange {NUMBER} was answered with another header"):
        helper.answer(question(helper))  # with the new key
    newest = question(helper, "sum", number=NUMBER + 5)
    given = helper.answer(newest)
    helper = start()  # it has newer and older files
    assert helper.answer(newest) == given
    with pytest.raises(SecureError, match=f"exchange {NUMBER} is over: {NUMBER + 5}"):
        helper.answer(question(helper, "trial"))


def test_numbers_far_ahead_of_the_clock_are_refused(helper, clock):
    number = NUMBER + 1000 * AHEAD_SECONDS
    sent = question(helper, number=number + 1000)
    with pytest.raises(SecureError, match=r"is 601 s ahead of the helper's clock: .* most 600 s"):
        helper.answer(sent)
    assert helper.answer(question(helper, number=number))
    clock.now += 1
    assert helper.answer(sent)


def test_threads_get_one_answer(start):
    """Of eight requests, each sent twice, one is answered, and noise is drawn once."""
    noise = Drawn()
    helper = start(noise=lambda scales: (time.sleep(0.05), noise(scales))[1])
    header = header_for(helper)
    _, made = reports(helper, header, 8)
    requests = [request_of(header, made[:count]).to_bytes() for count in range(1, 9)]

    def attempt(content: bytes) -> bytes | None:
        with contextlib.suppress(SecureError):
            return helper.answer(content)

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(attempt, requests * 2))
    assert len({*answers}) == 2
    assert answers.count(None) == 14
    assert len(noise.values) == 3


def test_damaged_and_large_requests_are_refused(helper, monkeypatch):
    for sent in (b"", bytes(100), question(helper)[:-1]):
        with pytest.raises(DataError):
            helper.answer(sent)
    monkeypatch.setattr(sums, "MOST_SUMS", 5)
    header = header_for(helper)
    _, made = reports(helper, header, 2)
    with pytest.raises(DataError, match="2 groups of 3 numbers: must be at most 5 in total"):
        ask(helper, request_of(header, made, "parts", [1, 1]))
    assert ask(helper, request_of(header, made)).sums.shape == (1, 3)
    assert helper.counts == {"refused": 4, "answers": 1, "opened": 2, "dropped": 0}


# ---- Failures and backups

STEPS = [(name, after) for name in ("fsync", "fchmod", "replace") for after in (False, True)]


def interrupted(monkeypatch, name: str, after: bool, end, call: int = 1) -> None:
    """Call ``end`` before or after the n-th call of a system function while an answer is stored."""
    module, attribute = (Path, name) if name == "replace" else (os, name)
    original = getattr(module, attribute)
    left = [call]

    def replaced(*arguments):
        left[0] -= 1
        if left[0] == 0 and not after:
            end()
        result = original(*arguments)
        if left[0] == 0:
            end()
        return result

    monkeypatch.setattr(module, attribute, replaced)


@pytest.mark.parametrize("call", [1, 2])
@pytest.mark.parametrize("step", STEPS, ids=str)
def test_a_kill_releases_no_second_answer(start, folder, step, call, monkeypatch):
    """The process is killed while an answer is stored, at each step, by a fork of it."""
    helper = start(noise=np.vectorize(lambda _: int.from_bytes(os.urandom(7)), otypes=[np.int64]))
    sent = question(helper)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:  # pytest must not continue here
        try:
            interrupted(monkeypatch, *step, lambda: os._exit(9), call)
            os.write(writing, helper.answer(sent))
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:  # noqa: PTH123
        released = pipe.read()
    killed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert killed == (not released)
    helper = start()
    if released or list(folder.glob("*.answer")):
        again = helper.answer(sent)
        assert released in {b"", again}
        assert helper.answer(sent) == start().answer(sent) == again
    else:
        with pytest.raises(SecureError, match="the helper has no key"):
            helper.answer(sent)


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_an_answer_that_cannot_be_stored_is_not_given(start, step, monkeypatch):
    helper = start()
    sent = question(helper)

    def fail():
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        interrupted(patched, *step, fail, call=2 if step[0] == "fsync" else 1)
        with pytest.raises(OutputError, match=r"cannot store the answer in .*: No space left"):
            helper.answer(sent)
    given = helper.answer(sent)
    assert helper.answer(sent) == start().answer(sent) == given


def test_a_restored_backup_answers_nothing_again(folder, tmp_path):
    def started(now: float):
        return contextlib.closing(Helper(folder, SIGNER, clock=lambda: now, noise=Drawn()))

    with started(NOW) as helper:
        header = header_for(helper)
        _, made = reports(helper, header, 3)
        trial, total = (request_of(header, made, kind).to_bytes() for kind in ("trial", "sum"))
        answered = helper.answer(trial)
        shutil.copytree(folder, tmp_path / "backup")
        helper.answer(total)
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "backup", folder)
    with started(NOW + 1) as restored:
        assert restored.answer(trial) == answered
        with pytest.raises(SecureError, match=f"the helper has no key {header.key}"):
            restored.answer(total)
    shutil.rmtree(folder)  # the same without any file
    for later in (0, 1):  # also if the clock was set back: the keys then have the same number
        with started(NOW + later) as empty:
            other = replace(header, key=empty.keys().key)
            with pytest.raises(SecureError, match="0 of 3 reports open"):
                empty.answer(request_of(other, made).to_bytes())


def test_a_directory_that_is_replaced_while_the_helper_runs_changes_nothing(helper, folder):
    sent, other = (question(helper, count=count) for count in (2, 3))
    given = helper.answer(sent)
    for path in folder.iterdir():
        path.unlink()
    assert helper.answer(sent) == given
    with pytest.raises(SecureError, match="was answered for another request"):
        helper.answer(other)


def test_a_damaged_file_is_named(start, folder):
    helper = start()
    helper.answer(question(helper))
    (path,) = folder.glob("*.answer")
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(DataError, match=rf"{path} is damaged: delete it"):
        start()
    path.unlink()
    assert start()  # the failed start has not kept the lock


def test_one_helper_of_one_user_uses_the_directory(helper, folder, start):
    with pytest.raises(OutputError, match=f"another helper uses {folder}"):
        Helper(folder, SIGNER)
    helper.answer(question(helper))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()] == [0o600]
    folder.chmod(0o750)
    with pytest.raises(DataError, match=f"other users can read {folder}: chmod 700 {folder}"):
        start()
    folder.chmod(0o700)
    assert start()


# ---- Keys


def test_keys_are_signed_and_renewed_in_time(helper, clock):
    first = helper.keys()
    assert first.expires == NOW + VALID_SECONDS
    seen = {first.key: first}
    for day in range(1, 200):
        clock.now = NOW + 86_400 * day
        key = helper.keys()
        assert helper.keys() == key
        key.verified(SIGNER.public_key(), clock.now + RENEW_SECONDS - 1)
        seen.setdefault(key.key, key)
    assert list(seen) == [int(1000 * (NOW + 86_400 * day)) for day in range(0, 200, 25)]
    assert len({key.public for key in seen.values()}) == len(seen)


def test_a_key_is_usable_until_it_expires(helper, clock):
    header = header_for(helper, number=int(1000 * (NOW + VALID_SECONDS)))
    _, made = reports(helper, header, 2)
    clock.now = NOW + VALID_SECONDS
    assert helper.keys().key != header.key
    assert ask(helper, request_of(header, made, "trial")).refused == ()
    clock.now += 1
    with pytest.raises(
        SecureError, match=f"the helper has no key {header.key}: it has expired, or"
    ):
        ask(helper, request_of(header, made))


def test_expired_keys_are_removed_from_memory(helper, clock, monkeypatch):
    class Key:
        def public_key(self):
            return SimpleNamespace(public_bytes_raw=lambda: bytes(32))

    made = []

    def generate():
        key = Key()
        made.append(weakref.ref(key))
        return key

    monkeypatch.setattr(sums, "X25519PrivateKey", SimpleNamespace(generate=generate))
    helper.keys()
    clock.now += VALID_SECONDS
    helper.keys()
    assert [each() is None for each in made] == [False, False]
    clock.now += 1
    helper.keys()
    gc.collect()
    assert [each() is None for each in made] == [True, False]


def test_private_keys_and_seeds_are_in_no_file(start, folder, monkeypatch):
    private, seeds = X25519PrivateKey.generate(), []
    raw = private.private_bytes_raw()
    monkeypatch.setattr(sums, "X25519PrivateKey", SimpleNamespace(generate=lambda: private))
    original = sums.open_seed
    monkeypatch.setattr(
        sums, "open_seed", lambda *values: seeds.append(original(*values)) or seeds[-1]
    )
    helper = start()
    for kind in KINDS:
        helper.answer(question(helper, kind))
    content = b"".join(path.read_bytes() for path in folder.iterdir())
    assert len(content) > 100
    assert len(set(seeds)) == 6
    for secret in (raw, *seeds):
        assert secret not in content
        assert secret.hex().encode() not in content


# ---- Over HTTP


@pytest.fixture
def client(helper):
    app = create_app(helper, TOKEN)
    url = "https://helper.example"
    with TestClient(app, base_url=url, raise_server_exceptions=False) as client:
        yield client


def test_the_service_answers_and_counts(client, helper):
    reply = client.get("/keys").json()
    assert reply["signer"] == SIGNER.public_key().public_bytes_raw().hex()
    assert HelperKey.from_fields(reply["key"]).verified(SIGNER.public_key(), NOW)
    header = header_for(helper)
    _, made = reports(helper, header, 2)
    sent = request_of(header, [*made, made[0]]).to_bytes()
    replies = [client.post("/sums", content=sent, headers=BEARER) for _ in range(2)]
    for reply in replies:
        assert (reply.status_code, reply.content) == (200, helper.answer(sent))
        assert reply.headers["content-type"] == BINARY["Content-Type"]
    client.post("/sums", content=b"", headers=BEARER)
    text = client.get("/metrics", headers=BEARER).text
    lines = [line.split() for line in text.splitlines() if not line.startswith("#")]
    values = {name: float(value) for name, value in lines}
    assert values == {
        "fldb_helper_answers_total": 1, "fldb_helper_refused_total": 1,
        "fldb_helper_opened_total": 2, "fldb_helper_dropped_total": 1,
    }  # fmt: skip
    assert text.count("# TYPE ") == text.count(" counter\n") == 4
    assert client.get("/health").json() == {"status": "ok"}


REFUSALS = (
    ("POST /sums", BINARY, 401, "the token is missing or wrong"),
    ("POST /sums", {**BEARER, "Authorization": "Bearer other"}, 401, "the token is"),
    ("GET /metrics", {}, 401, "the token is missing or wrong"),
    ("POST /sums", {**BEARER, "Content-Type": "application/json"}, 415, "octet-stream"),
    ("POST /sums", BEARER, 422, "the request has 0 bytes: must have at least 4"),
    ("GET /sums", BEARER, 405, "GET is not allowed at /sums: use POST"),
    ("GET /docs", BEARER, 404, "there is nothing at /docs"),
    ("POST /node", BEARER, 404, "there is nothing at /node"),
)


def test_refusals_are_one_line(client, helper):
    for request_line, headers, status, detail in REFUSALS:
        reply = client.request(*request_line.split(), headers=headers)
        assert (reply.status_code, list(reply.json())) == (status, ["detail"])
        assert detail in reply.json()["detail"]
        assert "/docs describes" not in reply.json()["detail"]
    client.post("/sums", content=question(helper), headers=BEARER)
    reply = client.post("/sums", content=question(helper, count=3), headers=BEARER)
    assert reply.status_code == 409
    assert f"the sum of exchange {NUMBER} was answered for another" in reply.json()["detail"]


def test_bodies_are_limited(helper, monkeypatch):
    monkeypatch.setattr(service, "MOST_BYTES", 2**20)
    with TestClient(create_app(helper, TOKEN)) as client:
        for content in (bytes(2**20 + 1), iter([bytes(2**20 + 1)])):
            reply = client.post("/sums", content=content, headers=BEARER)
            assert reply.status_code == 413
            assert reply.json()["detail"] == "the body is larger than 1 MiB"


# ---- The server as its client

STRANGER = Ed25519PrivateKey.generate()


@pytest.fixture
def replying(tmp_path, monkeypatch):
    """Return a function of raw replies that returns a client, and the requests that arrived."""
    monkeypatch.setattr("strategies.helper_client._RETRY_SECONDS", 0.0)
    (tmp_path / "token").write_text("secret-token")
    servers = []

    def start(*replies: bytes, patience: float = 0.0, signer=STRANGER):
        asked = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append(self.path)
                self.wfile.write(replies[min(len(asked), len(replies)) - 1])
                self.close_connection = True

            def log_message(self, *_arguments):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        address = f"http://127.0.0.1:{server.server_port}/"
        pinned = signer.public_key()
        return HelperClient(address, tmp_path / "token", pinned, patience), asked

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def reply(status: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


WRONG = (
    (reply("200 OK", b"[" * 60_000), "recursion"),
    (reply("200 OK", b"{}"), "'key'"),
    (reply("200 OK", b"x" * 70_000), "more than 65536 bytes"),
    (reply("400 Bad", b"[" * 60_000), "replied 400: Bad"),
    (reply("400 Bad", b'{"detail": "two\\nlines"}'), "replied 400: two\\nlines"),
    (reply("302 Found", b"", "Location: http://[::1/x"), "does not reply: Invalid URL"),
    (reply("302 Found", b"", "Location: http://127.0.0.1:9/"), "replied 302: Found"),
    (b"HTTP/1.1 400 Bad\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "does not reply"),
    (b"no http\r\n\r\n", "does not reply"),
)


def test_a_wrong_reply_is_one_line(replying):
    for answer, words in WRONG:
        client, _ = replying(answer)
        with pytest.raises(FederationError) as error:
            client.key()
        text = str(error.value)
        assert words in text
        assert text.isprintable()
        assert "secret-token" not in text


def test_a_reply_that_is_cut_off_is_asked_for_again(replying):
    client, asked = replying(reply("200 OK", b"{}")[:-1], reply("200 OK", b"{}"), patience=10.0)
    with pytest.raises(FederationError, match="'key'"):
        client.key()
    assert asked == ["/keys", "/keys"]


def test_a_key_that_the_pinned_key_has_not_signed_is_refused(replying):
    key = replace(key_of(), expires=int(time.time()) + 1000).sign(SIGNER)
    content = to_json({"key": key})
    client, _ = replying(reply("200 OK", content))
    with pytest.raises(FederationError, match="not signed by the pinned key"):
        client.key()
    client, _ = replying(reply("200 OK", content), signer=SIGNER)
    assert client.key() == key


# ---- The command


@pytest.fixture
def key(tmp_path, capsys):
    path = tmp_path / "office" / "key"
    deployment.main(["helper", str(path)])
    capsys.readouterr()
    return path


def test_a_key_is_created_once(tmp_path, capsys):
    path = tmp_path / "new" / "key"
    deployment.main(["helper", str(path)])
    public = load_helper_public_key(tmp_path / "new" / "key.pub").public_bytes_raw().hex()
    lines = capsys.readouterr().out.splitlines()
    assert lines == [str(path), f"{path}.pub", f"public key {public}"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_helper_key(path).public_key().public_bytes_raw().hex() == public
    with pytest.raises(SystemExit, match=f"^error: {path} already exists: use another name$"):
        deployment.main(["helper", str(path)])
    with pytest.raises(DataError, match="is not a public Ed25519 key"):
        load_helper_public_key(path)


MISTAKES = {
    "--key {0}/none --dir {0}/d": "cannot read .*none: No such file or directory",
    "--key {0}/office/key.pub --dir {0}/d": "key.pub is not an unencrypted private Ed25519 key: `f",
    "--key {0}/office/key --dir {0}/office/key": "cannot create the folder .*key: File exists",
    "--key {0}/office/key --dir {0}/d --host 192.0.2.1": "cannot listen on 192.0.2.1, port 8378",
    "--key {0}/office/key --dir {0}/d --certificate {0}/c": "are needed together",
    "--key {0}/office/key --dir {0}/d --certificate-key {0}/c": "are needed together",
    "--key {0}/office/key --dir {0}/d --certificate {0}/c --certificate-key {0}/c": (
        "cannot use .*/c with the key .*/c: No such file"
    ),
    "--key {0}/office/key --dir {0}/d --certificate {0}/office/key --certificate-key {0}/none": (
        "cannot use .*/office/key with the key .*/none: "
    ),
    "--key {0}/office/key --dir {0}/d --certificate-key {0}/office/key --certificate {0}/office/key"
    "": "cannot use .*/office/key with the key .*/office/key: ",
    "--key {0}/office/key --dir {0}/d --min-reports 0": "--min-reports",
}


def test_a_mistake_is_one_line(tmp_path, key):
    for words, reason in MISTAKES.items():
        with pytest.raises(SystemExit, match=rf"^error: .*{reason}") as ended:
            main(words.format(tmp_path).split())
        assert str(ended.value).isprintable()
    key.chmod(0o640)
    with pytest.raises(SystemExit, match=rf"^error: other users can read .*{key}: chmod 600"):
        main(["--key", str(key), "--dir", str(tmp_path / "d")])


@pytest.fixture
def run(tmp_path, key):
    """Return a function that starts `fldb helper` and returns the process and its first line."""
    started = []

    def begin(*words: str, ready: bool = True):
        command = [sys.executable, "-m", "clients.helper", "--key", str(key), "--port", "0"]
        process = subprocess.Popen(
            [*command, "--dir", str(tmp_path / "d"), *words], cwd=ROOT, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        started.append(process)
        return process, process.stdout.readline().split() if ready else []

    yield begin
    for process in started:
        process.kill()
        process.communicate(timeout=60)


@pytest.mark.slow
def test_the_command_serves_https_and_warns_without(run, tmp_path, key):
    create(tmp_path / "ca", ["127.0.0.1"], 1)
    pair = [str(tmp_path / "ca" / name) for name in ("server.pem", "server.key")]
    process, (address, *shown) = run("--certificate", pair[0], "--certificate-key", pair[1])
    public = load_helper_public_key(key.with_name("key.pub"))
    assert shown == ["public", "key", public.public_bytes_raw().hex()]
    assert address.startswith("https://127.0.0.1:")
    context = ssl.create_default_context(cafile=str(tmp_path / "ca" / "ca.crt"))
    assert httpx.get(f"{address}/health", verify=context).json() == {"status": "ok"}
    second, _ = run(ready=False)
    assert second.communicate(timeout=60)[1] == f"error: another helper uses {tmp_path / 'd'}\n"
    assert second.returncode == 1
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=60)[1] == "stopped\n"
    assert process.returncode == 128 + signal.SIGTERM
    process, (address, *_) = run("--host", "0.0.0.0")
    assert address.startswith("http://0.0.0.0:")
    process.terminate()
    assert "warning: nothing is encrypted at 0.0.0.0" in process.communicate(timeout=60)[1]
