"""The endpoints of the service."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

from fastapi import APIRouter, Depends, HTTPException, Request
from fastapi.responses import HTMLResponse
from fastapi.security import HTTPBearer
from pydantic import Field, ValidationError

from clients.preference_agent import PreferenceAgent
from clients.service.errors import status_of
from clients.service.files import Arm
from clients.service.models import (
    MAX_ANSWERS,
    Arms,
    ForgottenAnswers,
    Health,
    Prediction,
    Problem,
    ProposedDuel,
    Ranking,
    Recorded,
    Result,
    ShownArm,
    ShownDuel,
    Status,
    TwoArms,
    Weights,
)
from clients.store import Proposal
from clients.validation import Answer, Content, NamedAnswer
from fldb_flower.errors import FldbError, one_line

_T = TypeVar("_T")


class Worker:
    """An agent with its own thread, so that the event loop never waits for SQLite."""

    def __init__(self, path: Path, expire_after: float, purpose: str) -> None:
        self.agent = PreferenceAgent(path, expire_after=expire_after, purpose=purpose)
        self._thread = ThreadPoolExecutor(1)

    async def run(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Call ``function(agent, *arguments)`` in the thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, function, self.agent, *arguments)

    def close(self) -> None:
        """Wait for the thread, and close the store."""
        self._thread.shutdown()
        self.agent.close()


class Device(NamedTuple):
    """What the endpoints share; reads do not wait for writes that wait for a lock."""

    reader: Worker
    writer: Worker
    page: str
    arms: Sequence[Arm]
    choices: int


async def _device(request: Request) -> Device:
    device: Device = request.app.state.device
    return device


OfDevice = Annotated[Device, Depends(_device)]
public = APIRouter()
guarded = APIRouter(
    dependencies=[Depends(HTTPBearer(auto_error=False, description="The service's token."))],
    responses={code: {"model": Problem} for code in (401, 422, 503)},
)


@public.get("/", include_in_schema=False)
async def show_page(device: OfDevice) -> HTMLResponse:
    """Return the page for people."""
    return HTMLResponse(device.page)


@public.get("/health", tags=["device"], responses={503: {"model": Problem}})
async def health(device: OfDevice) -> Health:
    """Check that the store can be read. Needs no token."""
    try:
        await device.reader.run(_read)
    except Exception:  # details are not public
        raise HTTPException(503, "the store cannot be read") from None
    return Health()


def _read(agent: PreferenceAgent) -> None:
    agent.store.path.stat()  # SQLite continues to use a file that was deleted
    agent.store.counts()


@guarded.get("/status", tags=["device"])
async def status(device: OfDevice) -> Status:
    """Return the numbers of duels and answers, and the last synchronized estimate."""
    return Status(**await device.reader.run(PreferenceAgent.status))


@guarded.post("/duels", tags=["duels"])
async def propose(offered: Arms, device: OfDevice) -> ProposedDuel:
    """Select two of K arms to show, by the last broadcast and the answers on this device."""
    shown = offered.contents
    contents = None if shown is None else [c.model_dump(exclude_none=True) for c in shown]
    duel = await device.writer.run(
        PreferenceAgent.propose, offered.features, offered.keys, contents
    )
    return ProposedDuel(**dataclasses.asdict(duel))


@guarded.get("/duels/next", tags=["duels"], responses={404: {"model": Problem}})
async def show_next(device: OfDevice) -> ShownDuel:
    """Return the oldest open duel with contents; with ``--arms``, propose one if there is none."""
    shown = await device.reader.run(_open_proposals)
    if device.arms and not shown:
        drawn = random.SystemRandom().sample(device.arms, min(device.choices, len(device.arms)))
        arms = ([getattr(arm, name) for arm in drawn] for name in ("features", "key", "content"))
        await device.writer.run(PreferenceAgent.propose, *arms)
        shown = await device.reader.run(_open_proposals)
    if not shown:
        raise HTTPException(404, "no open duel has contents: propose one with contents")
    duel = shown[0]
    first, second = map(_shown_arm, (duel.first_key, duel.second_key), duel.contents)
    return ShownDuel(id=duel.id, expires=duel.expires, first=first, second=second)


def _open_proposals(agent: PreferenceAgent) -> list[Proposal]:
    return agent.store.open_proposals()


@guarded.post(
    "/duels/{id}/answer",
    tags=["duels"],
    responses={code: {"model": Problem} for code in (404, 409, 410)},
)
async def record(id: str, answer: Answer, device: OfDevice) -> Recorded:
    """Record which arm won. The same answer may be repeated; it keeps its number."""
    number = await device.writer.run(PreferenceAgent.record, id, answer.preferred)
    return Recorded(number=number)


@guarded.post("/answers", tags=["duels"])
async def record_many(
    answers: Annotated[list[NamedAnswer], Field(max_length=MAX_ANSWERS)], device: OfDevice
) -> list[Result]:
    """Record several answers in one durable write; each has its own result."""
    pairs = [(answer.id, answer.preferred) for answer in answers]
    return [
        Result(status=status_of(each), detail=one_line(each))
        if isinstance(each, FldbError)
        else Result(number=each)
        for each in await device.writer.run(PreferenceAgent.record_many, pairs)
    ]


@guarded.post("/rank", tags=["preferences"])
async def rank(offered: Arms, device: OfDevice) -> Ranking:
    """Sort K arms by their predicted rewards, best first."""
    order = await device.reader.run(PreferenceAgent.rank, offered.features)
    keys = offered.keys
    return Ranking(order=order, keys=None if keys is None else [keys[arm] for arm in order])


@guarded.get("/rank", tags=["preferences"], responses={404: {"model": Problem}})
async def rank_arms(device: OfDevice) -> Ranking:
    """Sort the arms of ``--arms`` by their predicted rewards, best first."""
    if not device.arms:
        raise HTTPException(404, "the service has no arms: start it with --arms, or send them")
    order = await device.reader.run(PreferenceAgent.rank, [arm.features for arm in device.arms])
    return Ranking(order=order, keys=[device.arms[arm].key for arm in order])


@guarded.post("/predict", tags=["preferences"])
async def predict(arms: TwoArms, device: OfDevice) -> Prediction:
    """Return the probability that the first of two arms is preferred."""
    return Prediction(
        probability=await device.reader.run(PreferenceAgent.predict, arms.first, arms.second)
    )


@guarded.get("/weights", tags=["preferences"])
async def explain(device: OfDevice) -> Weights:
    """Return the weight of each feature, with standard deviations."""
    return Weights(**vars(await device.reader.run(PreferenceAgent.explain)))


@guarded.delete("/answers", tags=["duels"])
async def forget(device: OfDevice) -> ForgottenAnswers:
    """Remove all open duels and answers from this device; report what cannot be undone."""
    return ForgottenAnswers(**vars(await device.writer.run(PreferenceAgent.forget)))


def _shown_arm(key: str | None, content: Any) -> ShownArm:
    try:
        return ShownArm(key=key, **Content.model_validate(content).model_dump())
    except ValidationError:  # stored by a version without validation
        return ShownArm(key=key, text=content if isinstance(content, str) else None)
