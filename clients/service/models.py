"""Requests and replies of the service."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from clients import validation
from clients.validation import Features, Model

MAX_ARMS, MAX_ANSWERS = 10_000, 10_000

_EXPIRES = "Expiry time, in seconds since 1970, by the device's clock when the duel was proposed."
_ID = "Zm9vYmFyYmF6cXV4"
_TEA = {"key": "tea", "text": "A pot of tea"}
_COFFEE = {"key": "coffee", "text": "A cup of coffee"}


class Arms(validation.Arms):
    """Arms to select two from."""

    features: Annotated[
        list[Features],
        Field(
            description="phi of each arm: K lists of d numbers. K may vary, d may not.",
            examples=[[[0.1, 0.9], [0.8, 0.2], [0.5, 0.5]]],
            min_length=2,
            max_length=MAX_ARMS,
            fail_fast=True,
        ),
        validation.OF_ONE_LENGTH,
    ]


class ProposedDuel(Model):
    """Two arms to show in random order; the first is the favourite."""

    id: str = Field(description="Identifies the duel when it is answered.", examples=[_ID])
    first: int = Field(description="Index of the first arm among those sent, from 0.", examples=[1])
    second: int = Field(
        description="Index of the second arm; it differs from the first.", examples=[0]
    )
    first_key: str | None = Field(
        description="The first arm's key, if keys were sent.", examples=["coffee"]
    )
    second_key: str | None = Field(
        description="The second arm's key, if keys were sent.", examples=["tea"]
    )
    predicted: float | None = Field(
        description="P(first preferred) by the current estimate; null before the first answer and"
        " broadcast.",
        examples=[0.73],
    )
    expires: float = Field(description=_EXPIRES, examples=[1.8e9])


class ShownFeature(Model):
    """A feature of an arm."""

    name: str = Field(description="Name of the feature.", examples=["sweetness"])
    value: float = Field(description="Its value.", examples=[0.9])


class ShownArm(Model):
    """An arm as a page shows it."""

    key: str | None = Field(
        default=None, description="The application's name for the arm.", examples=["tea"]
    )
    text: str | None = Field(default=None, description="Plain text.", examples=["A pot of tea"])
    image: str | None = Field(
        default=None, description="URL.", examples=["https://images.example/tea.jpg"]
    )
    features: list[ShownFeature] | None = Field(
        default=None,
        description="The features of an arm of `--arms` that has neither a text nor an image, if"
        " features have names; at most 12.",
        examples=[[{"name": "sweetness", "value": 0.9}]],
    )


class ShownDuel(Model):
    """A duel that a page can show; show the two arms in random order."""

    id: str = Field(description="Identifies the duel when it is answered.", examples=[_ID])
    expires: float = Field(description=_EXPIRES, examples=[1.8e9])
    first: ShownArm = Field(description="The favourite.", examples=[_TEA])
    second: ShownArm = Field(description="The other arm.", examples=[_COFFEE])


class Recorded(Model):
    """The answer is stored durably."""

    number: int = Field(description="Number of the answer on this device, from 1.", examples=[12])


class Reopened(Model):
    """The answer was removed durably, and its duel is open again, under another id."""

    id: str = Field(
        description="Identifies the duel when it is answered again. The old id is unknown from now"
        " on, so that a late copy of the answer changes nothing.",
        examples=[f"{_ID}~"],
    )


class Result(Model):
    """Result of one of several answers."""

    number: int | None = Field(
        default=None, description="Number of the answer if it was recorded.", examples=[12]
    )
    status: int = Field(
        default=200,
        description="HTTP status of the answer if it were sent alone.",
        examples=[200],
    )
    detail: str | None = Field(
        default=None, description="Reason if it was not recorded.", examples=[None]
    )


class ForgottenAnswers(Model):
    """What was removed from this device, and what cannot be undone."""

    proposals: int = Field(description="Open duels that were removed.", examples=[1])
    forgotten: int = Field(
        description="Answers that were removed before they were acknowledged.", examples=[3]
    )
    may_be_counted: int = Field(
        description="Those of them that had been uploaded: the server may have counted them.",
        examples=[0],
    )
    counted: int = Field(
        description="Answers that the server has counted. Their copies on this device are removed."
        " With FLDB-Personal, the next round subtracts them from the server's sums; with other"
        " algorithms, the sums keep them.",
        examples=[9],
    )


class TwoArms(Model):
    """Two arms to compare."""

    first: Features = Field(description="phi of the first arm: d numbers.", examples=[[0.1, 0.9]])
    second: Features = Field(description="phi of the second arm.", examples=[[0.8, 0.2]])


class Prediction(Model):
    """What the current estimate predicts."""

    probability: float = Field(description="P(first preferred), from 0 to 1.", examples=[0.73])


class Ranking(Model):
    """Arms by their predicted rewards, best first."""

    order: list[int] = Field(description="Indices of the arms, from 0.", examples=[[1, 0, 2]])
    keys: list[str | None] | None = Field(
        description="Keys in this order; null without keys.",
        examples=[["coffee", "tea", "cocoa"]],
    )


class Weights(Model):
    """The estimate of theta; the lists of numbers are empty before the first duel and broadcast."""

    names: list[str] | None = Field(
        description="Name of each feature; null if they have none.",
        examples=[["sweetness", "bitterness"]],
    )
    weights: list[float] = Field(
        description="Weight of each feature in the reward of an arm.", examples=[[0.8, -0.3]]
    )
    deviations: list[float] = Field(
        description="Standard deviation of each weight.", examples=[[0.2, 0.4]]
    )
    own: bool = Field(
        description="True if it is this person's own theta, which each answer changes at once:"
        " before the first broadcast, and with FLDB-Personal. False if it is the server's, in which"
        " an answer counts from the next round on.",
        examples=[True],
    )


class Privacy(Model):
    """What the reports to secure sums have cost, and the owner's limit."""

    epsilon: float = Field(
        description="Epsilon of all reports: what the server learns from them about the person is"
        " (epsilon, delta)-differentially private.",
        examples=[1.8],
    )
    delta: float = Field(description="Delta of both epsilons.", examples=[1e-6])
    max_epsilon: float = Field(description="The owner's limit of epsilon.", examples=[3.0])
    days: int | None = Field(
        description="Both epsilons are for the last so many days; null: for all reports.",
        examples=[365],
    )
    refused: bool = Field(
        description="Whether the device did not take part in the last exchange, because of the"
        " limit.",
        examples=[False],
    )


class Status(BaseModel):
    """State of the device."""

    open: int = Field(description="Duels without an answer.", examples=[1])
    answered: int = Field(description="Number of the last answer on this device.", examples=[12])
    counted: int = Field(description="Answers that the server has acknowledged.", examples=[9])
    sent: int = Field(
        description="Number of the last answer that is part of an upload, whether or not it"
        " arrived. Later answers can be undone.",
        examples=[9],
    )
    needed: int | None = Field(
        description="Distinct duels that must be answered before the next upload; null before the"
        " server has requested one.",
        examples=[3],
    )
    minimum: int | None = Field(
        default=None,
        description="How many distinct duels an upload has at least; absent before the server has"
        " requested one.",
        examples=[15],
    )
    dimension: int | None = Field(
        description="d; null before the first duel or broadcast.", examples=[2]
    )
    theta: list[float] | None = Field(
        description="The last synchronized estimate, d numbers; null before the first.",
        examples=[[0.5, -0.2]],
    )
    round: int | None = Field(description="The server's round of this estimate.", examples=[4])
    duels: int | None = Field(
        description="Duels of all devices that it is computed from.", examples=[1234]
    )
    received: float | None = Field(
        description="Time of its receipt, in seconds since 1970.", examples=[1.7e9]
    )
    secure: bool = Field(
        description="Whether the device takes part in secure sums only: the server learns sums with"
        " noise, of reports that it cannot read.",
        examples=[True],
    )
    privacy: Privacy | None = Field(
        description="What the reports to secure sums have cost in differential privacy; null"
        " without secure sums.",
        examples=[None],
    )


class Health(Model):
    """The service is running and its store can be read."""

    status: Literal["ok"] = Field(default="ok", examples=["ok"])


class Problem(Model):
    """An error."""

    detail: str = Field(description="One line.", examples=["'none' is unknown"])
