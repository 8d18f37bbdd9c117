"""`python -m clients.service --store duels.db`: a device's duels over HTTP, and a page for people.

For programs in any language on the device, and for the person in front of it: the page at ``/``
shows duels and takes answers, ``/docs`` describes every endpoint. It listens on this machine
alone and answers only those who have its token.

Answers that arrive together share one durable write (:class:`Committer`); a reply leaves after
the write that holds its answer. An image of a duel is a ``data:`` or an ``https:`` URL: the
latter tells its host that it is shown, to whom and when, so it is the application's to choose.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import functools
import ipaddress
import itertools
import os
import random
import re
import secrets
import socket
import stat
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import uvicorn
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.security import HTTPBearer
from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clients import validation
from clients.preference_agent import EXPIRE_AFTER, MOST_SECONDS, Duel, PreferenceAgent
from clients.service import connections
from clients.service.connections import Limits
from clients.store import ConflictingAnswerError, DuelExpiredError, Proposal, UnknownDuelError
from clients.validation import (
    MAX_KEY,
    Answer,
    Content,
    Image,
    Model,
    NamedAnswer,
    Text,
    first_error,
)
from fldb_flower.errors import (
    DataError,
    FldbError,
    OutputError,
    SettingsError,
    extra_missing,
    one_line,
)
from fldb_flower.system.commands import Parser, bounded
from fldb_flower.system.pages import digest
from fldb_flower.system.signals import interruptible

PORT = 8377
MAX_BODY = 32 * 2**20
"""Bytes of a request's body."""
LIMITS = Limits()
MAX_ARMS, MAX_FEATURES, MAX_ANSWERS = 10_000, 2048, 10_000

_ASSETS = "/static-offline-docs"  # where fastapi-offline serves what /docs consists of
_PUBLIC = {"/", "/health", "/docs", "/openapi.json"}
_NOTHING = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_DOCS = (  # Swagger's own start is an inline script; the page holds no data but /openapi.json
    f"{_NOTHING}; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline';"
    " img-src 'self' data:; connect-src 'self'"
)
_STATUS = {
    UnknownDuelError: 404,
    ConflictingAnswerError: 409,
    DuelExpiredError: 410,
    DataError: 422,
    OutputError: 503,
}
_GRACE = 40  # seconds that a stop waits for replies: longer than SQLite waits for a lock
_T = TypeVar("_T")


# ---- What travels -------------------------------------------------------------------------


_Features = Annotated[
    list[validation.Number], Field(min_length=1, max_length=MAX_FEATURES, fail_fast=True)
]


class Arms(validation.Arms):
    """Arms to select two from."""

    features: Annotated[
        list[_Features],
        Field(
            description="phi of each arm: K lists of d numbers. K may differ each time, d may not.",
            examples=[[[0.1, 0.9], [0.8, 0.2], [0.5, 0.5]]],
            min_length=2,
            max_length=MAX_ARMS,
            fail_fast=True,
        ),
        validation.OF_ONE_LENGTH,
    ]


class ProposedDuel(Model):
    """Two arms to show to a person, in random order: the first is the favourite."""

    id: str = Field(description="Names the duel when it is answered.")
    first: int = Field(description="Place of the first arm among those sent, from 0.")
    second: int = Field(description="Place of the second arm; never the same.")
    first_key: str | None = Field(description="The first arm's key, where keys were sent.")
    second_key: str | None = Field(description="The second arm's key.")
    predicted: float | None = Field(
        description="P(first preferred) by the estimate in use; null before the first"
        " synchronization."
    )
    expires: float = Field(description="Until when it can be answered, in seconds since 1970.")


class ShownArm(Model):
    """An arm as a page shows it."""

    key: str | None = Field(default=None, description="The application's name for it.")
    text: str | None = None
    image: str | None = Field(default=None, description="URL.")


class ShownDuel(Model):
    """A duel that a page can show; put the two arms in random order."""

    id: str = Field(description="Names the duel when it is answered.")
    expires: float = Field(description="Until when it can be answered, in seconds since 1970.")
    first: ShownArm
    second: ShownArm


class Recorded(Model):
    """The answer is on the disk."""

    number: int = Field(description="Number of the answer on this device, from 1.")


class Result(Model):
    """What became of one of several answers."""

    number: int | None = Field(
        default=None, description="Number of the answer, if it was recorded."
    )
    status: int = Field(default=200, description="200, or what the answer alone would have got.")
    detail: str | None = Field(default=None, description="Why it was not recorded.")


class ForgottenAnswers(Model):
    """What was removed from this device, and what cannot be undone."""

    proposals: int = Field(description="Open duels that were removed.")
    forgotten: int = Field(description="Answers that were removed before they were acknowledged.")
    may_be_counted: int = Field(
        description="How many of these had been sent: the server may have counted them."
    )
    counted: int = Field(
        description="Answers that the server has counted: its sums keep them. Their copies on this"
        " device are removed."
    )


class Status(BaseModel):
    """What the device knows."""

    open: int = Field(description="Duels that wait for an answer.")
    answered: int = Field(description="Number of the last answer on this device.")
    counted: int = Field(description="Answers that the server has acknowledged.")
    dimension: int | None = Field(description="d; null before the first duel or broadcast.")
    theta: list[float] | None = Field(
        description="The last synchronized estimate, d numbers; null before the first one."
    )
    round: int | None = Field(description="The server's round that it is from.")
    duels: int | None = Field(description="Duels of all devices that it rests on.")
    received: float | None = Field(description="When it arrived, in seconds since 1970.")


class Health(Model):
    """The service runs and its store can be read."""

    status: Literal["ok"] = "ok"


class Problem(Model):
    """What went wrong."""

    detail: str = Field(description="One line.")


class Arm(Model):
    """One entry of the ``--arms`` file."""

    key: Annotated[str, Field(min_length=1, max_length=MAX_KEY)]
    features: _Features
    text: Text = None
    image: Image = None

    def content(self) -> dict[str, str | None]:
        """Return what the page shows: without a text or an image, the key."""
        return {"text": self.text or (None if self.image else self.key), "image": self.image}


# ---- The store, off the event loop --------------------------------------------------------


class _Worker:
    """An agent with a thread of its own: the event loop never waits for SQLite."""

    def __init__(self, path: Path, expire_after: float) -> None:
        self.agent = PreferenceAgent(path, expire_after=expire_after)
        self._thread = ThreadPoolExecutor(1)

    async def do(self, function: Callable[..., _T], *arguments: Any) -> _T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, functools.partial(function, *arguments))

    def close(self) -> None:
        self._thread.shutdown()
        self.agent.close()


Answers = Sequence[tuple[str, str]]
Results = list[int | FldbError]


class Committer:
    """Record answers that arrive while one durable write lasts in the next one, together.

    Parameters
    ----------
    write : callable
        Records (duel, preferred) pairs durably; returns a number or an error for each.
    """

    def __init__(self, write: Callable[[Answers], Awaitable[Results]]) -> None:
        self._write = write
        self._waiting: list[tuple[Answers, asyncio.Future[Results]]] = []
        self._task: asyncio.Task[None] | None = None

    async def record(self, answers: Answers) -> Results:
        """Return what became of each answer, once all of them are on the disk.

        Raises
        ------
        FldbError
            Nothing of the write that held them is on the disk.
        """
        future: asyncio.Future[Results] = asyncio.get_running_loop().create_future()
        self._waiting.append((answers, future))
        if self._task is None:
            self._task = asyncio.create_task(self._commit())
        return await asyncio.shield(future)  # a request that is given up does not end the write

    async def _commit(self) -> None:
        while self._waiting:
            together, self._waiting = self._waiting, []
            try:
                results = iter(await self._write([a for answers, _ in together for a in answers]))
            except Exception as error:  # each of them hears of it
                for _, future in together:
                    future.set_exception(error)
            else:
                for answers, future in together:
                    future.set_result(list(itertools.islice(results, len(answers))))
        self._task = None


# ---- The application ----------------------------------------------------------------------


def create_app(
    store: str | Path,
    token: str,
    *,
    arms: Sequence[Arm] = (),
    choices: int = 10,
    expire_after: float = EXPIRE_AFTER,
    any_host: bool = False,
    body_seconds: float = LIMITS.seconds,
) -> FastAPI:
    """Return the service of one device.

    Parameters
    ----------
    store : str or Path
        The device's store; created if it does not exist.
    token : str
        What requests have to bring as ``Authorization: Bearer``.
    arms : sequence of Arm, optional
        With them, ``GET /duels/next`` proposes a duel where none waits.
    choices : int
        How many of the arms, drawn at random, a duel is selected from.
    expire_after : float
        Seconds within which a duel has to be answered.
    any_host : bool
        Serve other hosts than this machine too.
    body_seconds : float
        For the body of a request to arrive.

    Raises
    ------
    FldbError
        The store cannot be used, or the arms do not fit it.
    """
    reader, writer = _open(Path(store).expanduser(), arms, expire_after)
    committer = Committer(functools.partial(writer.do, writer.agent.record_many))

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        writer.close()
        reader.close()

    app = _application(lifespan)
    page, policy = _page()
    app.add_middleware(
        _Guard,
        token=token,
        any_host=any_host,
        body_seconds=body_seconds,
        policies={"/": policy, "/docs": _DOCS},
    )

    @app.get("/", include_in_schema=False)
    async def show_page() -> HTMLResponse:
        return HTMLResponse(page)

    @app.get("/health", tags=["device"], responses={503: {"model": Problem}})
    async def health() -> Health:
        """Say ok if the store can be read. Needs no token."""
        try:
            await reader.do(_read, reader.agent)
        except Exception:  # whatever it is, strangers do not learn more
            raise HTTPException(503, "the store cannot be read") from None
        return Health()

    guarded = APIRouter(
        dependencies=[Depends(HTTPBearer(auto_error=False, description="The service's token."))],
        responses={code: {"model": Problem} for code in (401, 422, 503)},
    )

    @guarded.get("/status", tags=["device"])
    async def status() -> Status:
        """Return what the device knows: how many duels, what it learned, when it was told."""
        return Status(**await reader.do(reader.agent.status))

    @guarded.post("/duels", tags=["duels"])
    async def propose(offered: Arms) -> ProposedDuel:
        """Select two of K arms to show, by the last synchronized estimate."""
        shown = offered.contents
        contents = None if shown is None else [c.model_dump(exclude_none=True) for c in shown]
        duel = await writer.do(writer.agent.propose, offered.features, offered.keys, contents)
        return ProposedDuel(**dataclasses.asdict(duel))

    @guarded.get("/duels/next", tags=["duels"], responses={404: {"model": Problem}})
    async def show_next() -> ShownDuel:
        """Return the oldest duel that a page can show; with ``--arms``, propose one if none is."""
        for proposal in await reader.do(reader.agent.store.open_proposals):
            return _shown(proposal)
        if not arms:
            raise HTTPException(404, "no duel waits for an answer: propose one with contents")
        drawn = random.SystemRandom().sample(arms, min(choices, len(arms)))
        duel = await writer.do(
            writer.agent.propose,
            [arm.features for arm in drawn],
            [arm.key for arm in drawn],
            [arm.content() for arm in drawn],
        )
        return _shown_of(duel, drawn)

    @guarded.post(
        "/duels/{id}/answer",
        tags=["duels"],
        responses={code: {"model": Problem} for code in (404, 409, 410)},
    )
    async def record(id: str, answer: Answer) -> Recorded:
        """Record who won. The same answer may be sent again; it keeps its number."""
        (result,) = await committer.record([(id, answer.preferred)])
        if isinstance(result, FldbError):
            raise result
        return Recorded(number=result)

    @guarded.post("/answers", tags=["duels"])
    async def record_many(
        answers: Annotated[list[NamedAnswer], Field(max_length=MAX_ANSWERS)],
    ) -> list[Result]:
        """Record several answers in one durable write; each has a result of its own."""
        results = await committer.record([(a.id, a.preferred) for a in answers])
        return [_result(result) for result in results]

    @guarded.delete("/answers", tags=["duels"])
    async def forget() -> ForgottenAnswers:
        """Remove all open duels and answers from this device; say what cannot be undone."""
        return ForgottenAnswers(**dataclasses.asdict(await writer.do(writer.agent.forget)))

    app.include_router(guarded)
    return app


def _open(path: Path, arms: Sequence[Arm], expire_after: float) -> tuple[_Worker, _Worker]:
    """Open the store twice: who reads must not wait while who writes waits for a lock."""
    reader, writer = _Worker(path, expire_after), _Worker(path, expire_after)
    try:
        writer.agent.record_many([])  # a store that cannot be written is found now
        known = reader.agent.store.dimension
        if arms and known not in {None, len(arms[0].features)}:
            raise DataError(
                f"arms of {len(arms[0].features)} features: the duels in {path} have {known}"
            )
    except FldbError:
        writer.close()
        reader.close()
        raise
    return reader, writer


def _read(agent: PreferenceAgent) -> None:
    agent.store.path.stat()  # SQLite goes on with a file that was deleted
    agent.store.counts()


def _application(lifespan: Any) -> FastAPI:
    """Return an application without endpoints whose every error is one line of JSON."""
    try:
        from fastapi_offline import FastAPIOffline  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        raise extra_missing("the service", "service") from None
    app: FastAPI = FastAPIOffline(
        title="Duels of this device",
        summary="Propose a duel, record who won.",
        description="Send the token in `Authorization: Bearer`. Every error is"
        ' `{"detail": "one line"}`.',
        redoc_url=None,
        favicon_url="data:,",
        swagger_ui_parameters={"validatorUrl": None},  # it would ask another host
        lifespan=lifespan,
    )
    app.add_exception_handler(FldbError, _on_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_refusal)
    app.add_exception_handler(Exception, _on_bug)
    return app


async def _on_error(_request: Request, error: Exception) -> JSONResponse:
    return _problem(_status_of(error), error)


async def _on_invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first, as_json = error.errors()[0], "send JSON, as Content-Type: application/json"
    if first["type"] == "json_invalid":
        return _problem(422, f"the body is not JSON: {error.__cause__}")
    if first["loc"] == ("body",) and first["type"] == "missing":
        return _problem(422, f"the body is required: {as_json}")
    if isinstance(first["input"], bytes):
        kind = request.headers.get("content-type")
        sent = "no Content-Type" if kind is None else f"Content-Type: {kind[:100]}"
        return _problem(422, f"the body has {sent}: {as_json}")
    return _problem(422, first_error(error.errors(), "the body"))


async def _on_refusal(request: Request, error: Exception) -> JSONResponse:
    """Say more than the framework does about requests that reach no endpoint."""
    assert isinstance(error, HTTPException)
    detail, headers, path = error.detail, dict(error.headers or {}), request.url.path[:200]
    if error.status_code == 400 and error.__cause__ is not None:
        detail = f"the body cannot be read: {_why_unreadable(error.__cause__)}"
    elif error.status_code == 404 and detail == "Not Found":
        detail = f"there is nothing at {path}: /docs describes the endpoints"
    elif error.status_code == 405:
        allowed = headers.get("Allow") or headers.get("allow") or "GET"
        detail = f"{request.method} is not possible at {path}: use {allowed}"
    return _problem(error.status_code, detail, **headers)


def _why_unreadable(cause: BaseException) -> str:
    if isinstance(cause, UnicodeDecodeError):
        return f"byte {cause.start} is 0x{cause.object[cause.start]:02x}, which is not UTF-8"
    if isinstance(cause, RecursionError):
        return "its JSON is nested too deeply"
    if isinstance(cause, ValueError):  # Python reads integers of so many digits only
        return f"it holds an integer of more than {sys.get_int_max_str_digits()} digits"
    return str(cause)


async def _on_bug(_request: Request, _error: Exception) -> JSONResponse:
    return _problem(500, "a mistake in the service: its own output says more")


def _problem(status: int, detail: object, **headers: str) -> JSONResponse:
    return JSONResponse({"detail": one_line(detail)}, status, headers)


def _status_of(error: Exception) -> int:
    return next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)


def _result(result: int | FldbError) -> Result:
    if isinstance(result, FldbError):
        return Result(status=_status_of(result), detail=one_line(result))
    return Result(number=result)


def _shown(proposal: Proposal) -> ShownDuel:
    """Return a stored duel as a page shows it."""
    keys = (proposal.first_key, proposal.second_key)
    first, second = map(_shown_arm, keys, proposal.contents)
    return ShownDuel(id=proposal.id, expires=proposal.expires, first=first, second=second)


def _shown_arm(key: str | None, content: Any) -> ShownArm:
    try:
        return ShownArm(key=key, **Content.model_validate(content).model_dump())
    except ValidationError:  # written by a version that did not check it
        return ShownArm(key=key, text=content if isinstance(content, str) else None)


def _shown_of(duel: Duel, arms: Sequence[Arm]) -> ShownDuel:
    first, second = (
        ShownArm(key=arms[i].key, **arms[i].content()) for i in (duel.first, duel.second)
    )
    return ShownDuel(id=duel.id, expires=duel.expires, first=first, second=second)


def _page() -> tuple[str, str]:
    """Return the page with its style and script in it, and the policy that allows only those."""
    folder = files("clients") / "page"
    parts = {name: (folder / f"page.{name}").read_text("utf-8") for name in ("css", "js")}
    text = (folder / "index.html").read_text("utf-8")
    for name, part in parts.items():
        text = text.replace(f"{{{{{name}}}}}", part)
    script, style = (f"'{digest(parts[name])}'" for name in ("js", "css"))
    return text, (
        f"{_NOTHING}; script-src {script}; style-src {style}; connect-src 'self';"
        " img-src data: https:"  # what applications may name: see Image
    )


# ---- Who may ask, and how much ------------------------------------------------------------


class _Guard:
    """Refuse other hosts' names, wrong tokens and large bodies; add the headers of a reply."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str,
        any_host: bool,
        body_seconds: float,
        policies: dict[str, str],
    ) -> None:
        self._app = app
        self._token = token.encode()
        self._any_host = any_host
        self._body_seconds = body_seconds
        self._policies = policies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = self._refusal(scope["path"], Headers(scope=scope)) or self._app
        what = f"{scope['method']} {scope['path']}"
        receive = connections.limited(receive, what, MAX_BODY, self._body_seconds)
        await answer(scope, receive, self._protected(scope["path"], send))

    def _refusal(self, path: str, headers: Headers) -> JSONResponse | None:
        # A page on evil.example can make its name mean 127.0.0.1: then the browser lets it ask.
        if not self._any_host and not _is_this_machine(headers.get("host", "")):
            return _problem(400, "this service answers to 127.0.0.1, localhost and [::1] only")
        if path not in _PUBLIC and not path.startswith(f"{_ASSETS}/"):
            scheme, _, token = headers.get("authorization", "").partition(" ")
            known = secrets.compare_digest(token.strip().encode(), self._token)
            if scheme.lower() != "bearer" or not known:
                detail = "the token is missing or wrong: send Authorization: Bearer TOKEN"
                return _problem(401, detail, **{"WWW-Authenticate": "Bearer"})
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > MAX_BODY:
            return _problem(413, connections.too_large(MAX_BODY), Connection="close")
        return None

    def _protected(self, path: str, send: Send) -> Send:
        async def protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["Content-Security-Policy"] = self._policies.get(path, _NOTHING)
                headers["X-Content-Type-Options"] = "nosniff"
                headers["Referrer-Policy"] = "no-referrer"
                headers["Cache-Control"] = "no-store"
            await send(message)

        return protected


def _is_this_machine(host: str) -> bool:
    return re.fullmatch(r"(127\.0\.0\.1|localhost|\[::1\])(:\d+)?", host, re.I) is not None


# ---- The command --------------------------------------------------------------------------


def read_token(path: Path) -> str:
    """Return the token in a file; the first time, make both.

    Raises
    ------
    DataError
        The file holds no token.
    OutputError
        It cannot be read or written.
    """
    try:
        if not path.exists():
            _make_token(path)
        token = path.read_text("utf-8").strip()
        if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & 0o077:
            print(one_line(f"warning: others may read {path}: chmod 600"), file=sys.stderr)
    except UnicodeDecodeError:
        token = ""
    except OSError as error:
        raise OutputError(f"cannot use the token file {path}: {error.strerror}") from None
    if not re.fullmatch(r"[\w.~+/=-]{16,}", token, re.ASCII):
        raise DataError(
            f"{path} holds no token (16 or more letters and digits): delete it, and the next"
            " start makes one"
        )
    return token


def _make_token(path: Path) -> None:
    """Create the file with its token in it, or leave the one that another process created."""
    descriptor, partial = tempfile.mkstemp(dir=path.parent, prefix=path.name)  # mode 0600
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe() + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(partial, path)
        except FileExistsError:
            pass
        except OSError:  # no hard links here: FAT, Android
            os.replace(partial, path)  # noqa: PTH105
    finally:
        Path(partial).unlink(missing_ok=True)


def read_arms(path: Path) -> list[Arm]:
    """Return the arms in a JSON file: a list of ``{key, features, text?, image?}``.

    Raises
    ------
    DataError
        The file cannot be read, or is something else.
    """
    try:
        arms = TypeAdapter(list[Arm]).validate_json(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    except ValidationError as error:
        raise DataError(f"{path}: {first_error(error.errors(), 'the file')}") from None
    if len(arms) < 2:
        raise DataError(f"{path}: {len(arms)} arms: a duel needs at least two")
    seen: set[str] = set()
    for number, arm in enumerate(arms):
        if len(arm.features) != len(arms[0].features):
            raise DataError(
                f"{path}: {number}.features: {len(arm.features)} numbers, where the first arm"
                f" has {len(arms[0].features)}"
            )
        if arm.key in seen:
            raise DataError(f"{path}: {number}.key: {arm.key!r} is another arm's key too")
        seen.add(arm.key)
    return arms


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m clients.service", description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("--store", metavar="FILE", type=Path, required=True, help="the device's duels")
    add("--host", default="127.0.0.1", help="where to listen (%(default)s)")
    add("--port", type=bounded(int, 0, 65535), default=PORT, help="0: any free one (%(default)s)")
    add("--token-file", metavar="FILE", type=Path, help="(STORE.token); made if missing")
    add("--arms", metavar="FILE", type=Path, help="JSON: [{key, features, text?, image?}, ...]")
    add(
        "--choices",
        metavar="K",
        type=bounded(int, 2, MAX_ARMS),
        default=10,
        help="of --arms (%(default)s)",
    )
    add(
        "--expire-after",
        metavar="SECONDS",
        type=bounded(float, 1, MOST_SECONDS),
        default=EXPIRE_AFTER,
        help="within which a duel has to be answered (%(default).0f)",
    )
    add(
        "--max-connections",
        metavar="N",
        type=bounded(int, 1, 10_000),
        default=LIMITS.connections,
        help="at once; idle ones make room (%(default)s)",
    )
    add(
        "--request-seconds",
        metavar="SECONDS",
        type=bounded(float, 0.1, 3600),
        default=LIMITS.seconds,
        help="for a request to arrive, its body apart (%(default).0f)",
    )
    add("--allow-remote", action="store_true", help="listen beyond this machine, unencrypted")
    return parser.parse_args(argv)


def _listen(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(LIMITS.connections)
        except BaseException:
            listener.close()
            raise
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OutputError(f"cannot listen on {host}, port {port}: {reason}") from None
    return listener


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def serve(arguments: argparse.Namespace) -> None:
    """Run the service until a signal stops it.

    Raises
    ------
    FldbError
        It cannot start.
    """
    host, store = arguments.host, arguments.store.expanduser()
    remote = not _is_loopback(host)
    if remote and not arguments.allow_remote:
        raise SettingsError(
            f"--host {host}: others could reach the service; --allow-remote says that you want it"
        )
    arms = read_arms(arguments.arms) if arguments.arms else []
    with _listen(host, arguments.port) as listener:
        PreferenceAgent(store).close()  # a store that cannot be used gets no token beside it
        token = read_token(arguments.token_file or store.with_name(f"{store.name}.token"))
        app = create_app(
            store,
            token,
            arms=arms,
            choices=arguments.choices,
            expire_after=arguments.expire_after,
            any_host=arguments.allow_remote,
            body_seconds=arguments.request_seconds,
        )
        if remote:
            print(
                f"warning: who reaches {host} and has the token reads and answers duels; nothing"
                " is encrypted, the token neither",
                file=sys.stderr,
            )
        name = f"[{host}]" if ":" in host else host
        print(f"http://{name}:{listener.getsockname()[1]}/#token={token}", flush=True)
        config = connections.config(
            app,
            Limits(arguments.max_connections, arguments.request_seconds),
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_GRACE,
        )
        uvicorn.Server(config).run(sockets=[listener])


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point: exit status 1, with one line on stderr, for a mistake of the user's."""
    arguments = _arguments(argv)
    with interruptible(lambda: "stopped"):  # uvicorn raises the signal again once it is done
        try:
            serve(arguments)
        except FldbError as error:
            sys.exit(f"error: {one_line(error)}")
