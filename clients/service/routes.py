"""The endpoints of the service."""

from __future__ import annotations

import dataclasses
import random
from typing import Annotated, Any, NamedTuple

import numpy as np
from fastapi import APIRouter, Depends, HTTPException, Query, Request
from fastapi.responses import HTMLResponse
from fastapi.security import HTTPBearer
from pydantic import Field, ValidationError

from clients.preference_agent import PreferenceAgent
from clients.service.catalogue import Catalogue
from clients.service.errors import status_of
from clients.service.models import (
    MAX_ANSWERS,
    Arms,
    ForgottenAnswers,
    Health,
    Prediction,
    Privacy,
    Problem,
    ProposedDuel,
    Ranking,
    Recorded,
    Reopened,
    Result,
    ShownArm,
    ShownDuel,
    Status,
    TwoArms,
    Weights,
)
from clients.service.worker import Worker
from clients.store import Proposal
from clients.validation import Answer, Content, FeatureNames, NamedAnswer
from clients.vault import Vault
from fldb_flower.errors import FldbError, one_line


class Device(NamedTuple):
    """What the endpoints share; reads do not wait for writes that wait for a lock."""

    reader: Worker
    writer: Worker
    page: str
    catalogue: Catalogue
    choices: int
    vault: Vault | None


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


@guarded.get("/status", tags=["device"], response_model_exclude_unset=True)
async def status(device: OfDevice) -> Status:
    """Return the numbers of duels and answers, and the last synchronized estimate."""
    vault, privacy = device.vault, None
    if vault is not None:
        spent = await device.reader.run(lambda _agent: vault.spent())
        privacy = Privacy(**spent._asdict())
    return Status(
        **await device.reader.run(PreferenceAgent.status),
        secure=vault is not None,
        privacy=privacy,
    )


@guarded.post("/duels", tags=["duels"])
async def propose(offered: Arms, device: OfDevice) -> ProposedDuel:
    """Select two of K arms to show, by the last broadcast and the answers on this device."""
    shown = offered.contents
    contents = None if shown is None else [c.model_dump(exclude_none=True) for c in shown]
    features = np.array(offered.features)  # an array is not validated again
    duel = await device.writer.run(PreferenceAgent.propose, features, offered.keys, contents)
    return ProposedDuel(**dataclasses.asdict(duel))


@guarded.get("/duels/next", tags=["duels"], responses={404: {"model": Problem}})
async def show_next(device: OfDevice) -> ShownDuel:
    """Return the oldest open duel with contents; with ``--arms``, propose one if there is none."""
    shown = await device.reader.run(_open_proposals)
    if device.catalogue.arms and not shown:
        arms = device.catalogue.arms
        drawn = random.SystemRandom().sample(arms, min(device.choices, len(arms)))
        offered = ([getattr(arm, name) for arm in drawn] for name in ("features", "key", "content"))
        await device.writer.run(PreferenceAgent.propose, *offered)
        shown = await device.reader.run(_open_proposals)
    if not shown:
        raise HTTPException(404, "no open duel has contents: propose one with contents")
    duel, names = shown[0], await device.reader.run(_names)
    first, second = (
        device.catalogue.describe(_shown_arm(key, content), names)
        for key, content in zip((duel.first_key, duel.second_key), duel.contents, strict=True)
    )
    return ShownDuel(id=duel.id, expires=duel.expires, first=first, second=second)


def _names(agent: PreferenceAgent) -> list[str] | None:
    return agent.store.feature_names


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


@guarded.delete(
    "/duels/{id}/answer",
    tags=["duels"],
    responses={code: {"model": Problem} for code in (404, 409)},
)
async def undo(id: str, device: OfDevice) -> Reopened:
    """Remove the last answer, unless it is part of an upload; the duel can be answered again.

    A request without a reply may be repeated; it then returns the same id. The duel has no contents
    and no keys any more: show the two arms again.
    """
    return Reopened(id=await device.writer.run(PreferenceAgent.undo, id))


@guarded.delete(
    "/duels/{id}",
    tags=["duels"],
    status_code=204,
    responses={code: {"model": Problem} for code in (404, 409)},
)
async def skip(id: str, device: OfDevice) -> None:
    """Remove an open duel without an answer. Nothing is learned; other duels are proposed first."""
    await device.writer.run(PreferenceAgent.skip, id)


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
    order = await device.reader.run(PreferenceAgent.rank, np.array(offered.features))
    keys = offered.keys
    return Ranking(order=order, keys=None if keys is None else [keys[arm] for arm in order])


@guarded.get("/rank", tags=["preferences"], responses={404: {"model": Problem}})
async def rank_arms(device: OfDevice) -> Ranking:
    """Sort the arms of ``--arms`` by their predicted rewards, best first."""
    catalogue = device.catalogue
    if not catalogue.arms:
        raise HTTPException(404, "the service has no arms: start it with --arms, or send them")
    order = await device.reader.run(PreferenceAgent.rank, catalogue.features)
    return Ranking(order=order, keys=[catalogue.arms[arm].key for arm in order])


@guarded.get("/favourites", tags=["preferences"])
async def favourites(
    device: OfDevice,
    most: Annotated[int, Query(description="Length of the list.", ge=1, le=100)] = 5,
) -> list[ShownArm]:
    """Return the best arms of ``--arms`` by the current estimate, best first.

    The list is empty without ``--arms``, and as long as no arm is preferred to another.
    """
    catalogue = device.catalogue
    if not catalogue.arms:
        return []
    names = await device.reader.run(_names)
    best = await device.reader.run(PreferenceAgent.favourites, catalogue.features, most)
    arms = [catalogue.arms[arm] for arm in best]
    return [catalogue.describe(_shown_arm(arm.key, arm.content), names) for arm in arms]


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


@guarded.put("/features", tags=["preferences"])
async def name_features(named: FeatureNames, device: OfDevice) -> FeatureNames:
    """Set the names of the features, which the page and ``/weights`` show."""
    await device.writer.run(PreferenceAgent.name_features, named.names)
    return named


@guarded.delete("/answers", tags=["duels"])
async def forget(device: OfDevice) -> ForgottenAnswers:
    """Remove all open duels and answers from this device; report what cannot be undone."""
    return ForgottenAnswers(**vars(await device.writer.run(PreferenceAgent.forget)))


def _shown_arm(key: str | None, content: Any) -> ShownArm:
    try:
        return ShownArm(key=key, **Content.model_validate(content).model_dump())
    except ValidationError:  # stored by a version without validation
        return ShownArm(key=key, text=content if isinstance(content, str) else None)
