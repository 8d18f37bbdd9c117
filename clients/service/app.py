"""The service of one device: its endpoints, and the threads that use the store.

The SuperNode's token opens the endpoint of secure sums only, and no other token opens it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import numpy as np
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request
from fastapi.responses import HTMLResponse, Response
from fastapi.security import HTTPBearer
from fastapi_offline import FastAPIOffline
from pydantic import Field

from clients.preference_agent import EXPIRE_AFTER, Duel, PreferenceAgent, Weights
from clients.service import models
from clients.service.catalogue import Catalogue
from clients.service.http import (
    BINARY,
    NOTHING,
    Guard,
    add_handlers,
    binary_body,
    status_of,
)
from clients.service.limits import LIMITS
from clients.store import Forgotten, Proposal, database
from clients.validation import Answer, FeatureNames, NamedAnswer
from clients.vault import Vault, VaultConfig
from fldb_flower.errors import FldbError, OutputError, one_line
from fldb_flower.system.commands import installed_version
from fldb_flower.system.files import digest, read_part

BODIES = {"/node": 64 * 2**20}
"""Largest bodies of requests, in bytes: a SuperNode's broadcast may contain a matrix, (d, d)."""
MOST_SHOWN = 10
"""Duels whose contents are kept in memory after they were shown."""
_PUBLIC = {"/", "/health", "/docs", "/openapi.json"}
_PARTS = {"js": ("basics", "service", "learned", "page"), "css": ("page",)}
_DOCS_POLICY = (  # Swagger UI starts with an inline script; the page has no data but /openapi.json
    f"{NOTHING}; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline';"
    " img-src 'self' data:; connect-src 'self'"
)


def load_page() -> tuple[str, str]:
    """Return the page with its style and script inline, and the policy that allows only those."""
    text = read_part("clients", "page/index.html")
    digests = []
    for name, parts in _PARTS.items():
        part = "".join(read_part("clients", f"page/{each}.{name}") for each in parts)
        text = text.replace(f"{{{{{name}}}}}", part)
        digests.append(digest(part))
    script, style = digests
    return text, (
        f"{NOTHING}; script-src '{script}'; style-src '{style}'; connect-src 'self';"
        " img-src data: https:"  # the images that applications may send
    )


_T = TypeVar("_T")


class Worker:
    """An agent with its own thread, so that the event loop never waits for SQLite.

    At most ``most`` requests wait for it, each for a limited time, however many locks it meets.
    """

    def __init__(self, path: Path, most: int, **options: Any) -> None:
        self.agent = PreferenceAgent(path, **options)
        self._thread = ThreadPoolExecutor(1)
        self._waiting, self._most = 0, most

    async def run(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Call ``function(agent, *arguments)`` in the thread."""
        store, deadline = self.agent.store, time.monotonic() + database.BUSY_SECONDS
        if self._waiting >= self._most:
            raise OutputError(f"{self._waiting} requests already wait for {store.path}: try again")

        def call() -> _T:
            store.wait_at_most(max(0.0, deadline - time.monotonic()))
            return function(self.agent, *arguments)

        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, call)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Wait for the thread, and close the store."""
        self._thread.shutdown()
        self.agent.close()


class Device(NamedTuple):
    """What the endpoints share; reads do not wait for writes that wait for a lock."""

    reader: Worker
    writer: Worker
    page: str
    catalogue: Catalogue
    choices: int
    vault: Vault | None
    shown: dict[str, Proposal]  # the duels that were shown last, by their ids


async def _device(request: Request) -> Device:
    device: Device = request.app.state.device
    return device


def _problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": models.Problem} for status in statuses}


OfDevice = Annotated[Device, Depends(_device)]
public = APIRouter()
guarded = APIRouter(
    dependencies=[Depends(HTTPBearer(auto_error=False, description="The service's token."))],
    responses=_problems(401, 422, 503),
)


@public.get("/", include_in_schema=False)
async def show_page(device: OfDevice) -> HTMLResponse:
    """Return the page for people."""
    return HTMLResponse(device.page)


@public.get("/health", tags=["device"], responses=_problems(503))
async def health(device: OfDevice) -> models.Health:
    """Check that the store can be read. Needs no token."""

    def read(agent: PreferenceAgent) -> None:
        agent.store.path.stat()  # SQLite continues to use a file that was deleted
        agent.store.counts()

    try:
        await device.reader.run(read)
    except Exception:  # details are not public
        raise HTTPException(503, "the store cannot be read") from None
    return models.Health()


@guarded.get("/status", tags=["device"], response_model_exclude_unset=True)
async def status(device: OfDevice) -> models.Status:
    """Return the numbers of duels and answers, and the last synchronized estimate."""
    vault, privacy = device.vault, None
    if vault is not None:
        spent = await device.reader.run(lambda _agent: vault.spent())
        privacy = models.Privacy(**spent._asdict())
    state = await device.reader.run(PreferenceAgent.status)
    if count := len(device.catalogue.arms):
        state["pairs"] = count * (count - 1) // 2
    return models.Status(**state, secure=vault is not None, privacy=privacy)


@guarded.post("/duels", tags=["duels"])
async def propose(offered: models.Arms, device: OfDevice) -> Duel:
    """Select two of K arms to show, by the last broadcast and the answers on this device."""
    shown = offered.contents
    contents = None if shown is None else [c.model_dump(exclude_none=True) for c in shown]
    features = np.array(offered.features)  # an array is not validated again
    return await device.writer.run(PreferenceAgent.propose, features, offered.keys, contents)


@guarded.get("/duels/next", tags=["duels"], responses=_problems(404))
async def show_next(device: OfDevice) -> models.ShownDuel:
    """Return the oldest open duel with contents; with ``--arms``, propose one if there is none."""

    def oldest(agent: PreferenceAgent) -> Any:
        return agent.store.open_proposals(), agent.store.feature_names

    shown, names = await device.reader.run(oldest)
    if device.catalogue.arms and not shown:
        arms = device.catalogue.arms
        drawn = random.SystemRandom().sample(arms, min(device.choices, len(arms)))
        offered = ([getattr(arm, name) for arm in drawn] for name in ("features", "key", "content"))
        await device.writer.run(PreferenceAgent.propose, *offered)
        shown, names = await device.reader.run(oldest)
    if not shown:
        raise HTTPException(404, "no open duel has contents: propose one with contents")
    duel = shown[0]
    device.shown[duel.id] = duel  # for undo: the store deletes contents with the answer
    if len(device.shown) > MOST_SHOWN:
        device.shown.pop(next(iter(device.shown)))
    first, second = (
        device.catalogue.shown(key, content, names)
        for key, content in zip((duel.first_key, duel.second_key), duel.contents, strict=True)
    )
    return models.ShownDuel(id=duel.id, expires=duel.expires, first=first, second=second)


@guarded.post("/duels/{id}/answer", tags=["duels"], responses=_problems(404, 409, 410))
async def record(id: str, answer: Answer, device: OfDevice) -> models.Recorded:
    """Record which arm won. The same answer may be repeated; it keeps its number."""
    number = await device.writer.run(PreferenceAgent.record, id, answer.preferred)
    return models.Recorded(number=number)


@guarded.delete("/duels/{id}/answer", tags=["duels"], responses=_problems(404, 409))
async def undo(id: str, device: OfDevice) -> models.Reopened:
    """Remove the last answer, unless it is part of an upload; the duel can be answered again.

    A request without a reply may be repeated; it then returns the same id. The duel has contents
    and keys only if `/duels/next` has returned it lately: otherwise, show the two arms again.
    """
    shown = device.shown.get(id)
    again = await device.writer.run(lambda agent: agent.undo(id, shown=shown))
    return models.Reopened(id=again)


@guarded.delete("/duels/{id}", tags=["duels"], status_code=204, responses=_problems(404, 409))
async def skip(id: str, device: OfDevice) -> None:
    """Remove an open duel without an answer. Nothing is learned; other duels are proposed first."""
    await device.writer.run(PreferenceAgent.skip, id)


@guarded.post("/answers", tags=["duels"])
async def record_many(
    answers: Annotated[list[NamedAnswer], Field(max_length=models.MAX_ANSWERS)], device: OfDevice
) -> list[models.Result]:
    """Record several answers in one durable write; each has its own result."""
    pairs = [(answer.id, answer.preferred) for answer in answers]
    return [
        models.Result(status=status_of(each), detail=one_line(each))
        if isinstance(each, FldbError)
        else models.Result(number=each)
        for each in await device.writer.run(PreferenceAgent.record_many, pairs)
    ]


@guarded.post("/rank", tags=["preferences"])
async def rank(offered: models.Arms, device: OfDevice) -> models.Ranking:
    """Sort K arms by their predicted rewards, best first."""
    order = await device.reader.run(PreferenceAgent.rank, np.array(offered.features))
    keys = offered.keys
    return models.Ranking(order=order, keys=None if keys is None else [keys[arm] for arm in order])


@guarded.get("/rank", tags=["preferences"], responses=_problems(404))
async def rank_arms(device: OfDevice) -> models.Ranking:
    """Sort the arms of ``--arms`` by their predicted rewards, best first."""
    catalogue = device.catalogue
    if not catalogue.arms:
        raise HTTPException(404, "the service has no arms: start it with --arms, or send them")
    order = await device.reader.run(PreferenceAgent.rank, catalogue.features)
    return models.Ranking(order=order, keys=[catalogue.arms[arm].key for arm in order])


@guarded.get("/favourites", tags=["preferences"])
async def favourites(
    device: OfDevice,
    most: Annotated[int, Query(description="Length of the list.", ge=1, le=100)] = 5,
) -> list[models.Favourite]:
    """Return the best arms of ``--arms`` by the current estimate, best first.

    The list is empty without ``--arms``, and as long as no arm is preferred to another.
    """
    catalogue = device.catalogue
    if not catalogue.arms:
        return []

    def find(agent: PreferenceAgent) -> list[models.Favourite]:
        order, names = agent.favourites(catalogue.features, most), agent.store.feature_names
        shares = agent.against_average(catalogue.features)[order].tolist()
        best = [catalogue.arms[arm] for arm in order]
        shown = [dict(catalogue.shown(arm.key, arm.content, names)) for arm in best]
        return [
            models.Favourite(**arm, preferred=share, low=low, high=high)
            for arm, (share, low, high) in zip(shown, shares, strict=True)
        ]

    return await device.reader.run(find)


@guarded.post("/predict", tags=["preferences"])
async def predict(arms: models.TwoArms, device: OfDevice) -> models.Prediction:
    """Return the probability that the first of two arms is preferred."""
    probability = await device.reader.run(PreferenceAgent.predict, arms.first, arms.second)
    return models.Prediction(probability=probability)


@guarded.get("/weights", tags=["preferences"])
async def explain(device: OfDevice) -> Weights:
    """Return the weight of each feature, with standard deviations."""
    return await device.reader.run(PreferenceAgent.explain)


@guarded.get("/predictions", tags=["preferences"])
async def count_predictions(device: OfDevice) -> models.Predictions:
    """Return how many of the last 50 answers were predicted correctly."""
    return models.Predictions(**await device.reader.run(PreferenceAgent.predictions))


@guarded.put("/features", tags=["preferences"])
async def name_features(named: FeatureNames, device: OfDevice) -> FeatureNames:
    """Set the names of the features, which the page and ``/weights`` show."""
    await device.writer.run(PreferenceAgent.name_features, named.names)
    return named


@guarded.delete("/answers", tags=["duels"])
async def forget(device: OfDevice) -> Forgotten:
    """Remove all open duels and answers from this device; report what cannot be undone."""
    device.shown.clear()
    return await device.writer.run(PreferenceAgent.forget)


@public.post("/node", include_in_schema=False)
async def answer(request: Request, device: OfDevice) -> Response:
    """Return the vault's reply to a request of a secure sum, both as bytes."""
    vault = device.vault
    if vault is None:
        raise HTTPException(
            404, "this device takes no part in secure sums: start its service with --vault FILE"
        )
    content = await binary_body(request)
    reply = await device.writer.run(lambda _agent: vault.answer(content))
    return Response(reply, media_type=BINARY)


class Node(NamedTuple):
    """What a device in secure sums needs, and the token of its SuperNode."""

    config: VaultConfig
    token: str


def create_app(
    store: str | Path,
    token: str,
    *,
    catalogue: Catalogue | None = None,
    node: Node | None = None,
    choices: int = 10,
    expire_after: float = EXPIRE_AFTER,
    purpose: str = "suggest",
    half_life: float | None = None,
    any_host: bool = False,
    body_seconds: float = LIMITS.seconds,
    connections: int = LIMITS.connections,
) -> FastAPI:
    """Return the service of one device."""
    page, policy = load_page()
    path, most = Path(store).expanduser(), max(1, connections // 2)
    catalogue = catalogue or Catalogue()
    options = {"expire_after": expire_after, "purpose": purpose, "half_life": half_life}
    with ExitStack() as workers:  # closed by an error
        reader, writer = (
            workers.enter_context(closing(Worker(path, most, **options))) for _ in range(2)
        )
        writer.agent.record_many([])  # if the store cannot be written
        catalogue.expect_dimension(path, reader.agent.store.dimension)
        if catalogue.names is not None:
            writer.agent.name_features(catalogue.names)
        vault = None
        if node is not None:
            catalogue.expect_dimension(node.config.path, node.config.dimension)
            vault = Vault(writer.agent.store, node.config)
        app = _application(workers.pop_all())
    app.state.device = Device(reader, writer, page, catalogue, choices, vault, {})
    app.add_middleware(
        Guard, token=token, any_host=any_host, body_seconds=body_seconds,
        public=_PUBLIC if node is not None else {*_PUBLIC, "/node"},
        tokens={} if node is None else {"/node": node.token}, bodies=BODIES,
        policies={"/": policy, "/docs": _DOCS_POLICY},
    )  # fmt: skip
    return app


def _application(workers: ExitStack) -> FastAPI:
    """Return an application that closes the workers when it stops."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        workers.close()

    app: FastAPI = FastAPIOffline(
        title="Duels of this device",
        version=installed_version(),
        summary="Propose a duel, record which arm won.",
        description="Send the token in `Authorization: Bearer`. Every error is"
        ' `{"detail": "one line"}`.',
        redoc_url=None,
        favicon_url="data:,",
        swagger_ui_parameters={"validatorUrl": None},  # an external service
        lifespan=lifespan,
    )
    add_handlers(app)
    for router in (public, guarded):
        app.include_router(router)
    return app
