"""Requests and replies of the service."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from clients import validation
from clients.validation import Model, Number

MAX_ARMS, MAX_FEATURES, MAX_ANSWERS = 10_000, 2048, 10_000

Features = Annotated[list[Number], Field(min_length=1, max_length=MAX_FEATURES, fail_fast=True)]


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

    id: str = Field(description="Identifies the duel when it is answered.")
    first: int = Field(description="Index of the first arm among those sent, from 0.")
    second: int = Field(description="Index of the second arm; it differs from the first.")
    first_key: str | None = Field(description="The first arm's key, if keys were sent.")
    second_key: str | None = Field(description="The second arm's key, if keys were sent.")
    predicted: float | None = Field(
        description="P(first preferred) by the current estimate; null before the first answer and"
        " broadcast."
    )
    expires: float = Field(description="Expiry time, in seconds since 1970.")


class ShownArm(Model):
    """An arm as a page shows it."""

    key: str | None = Field(default=None, description="The application's name for the arm.")
    text: str | None = None
    image: str | None = Field(default=None, description="URL.")


class ShownDuel(Model):
    """A duel that a page can show; show the two arms in random order."""

    id: str = Field(description="Identifies the duel when it is answered.")
    expires: float = Field(description="Expiry time, in seconds since 1970.")
    first: ShownArm
    second: ShownArm


class Recorded(Model):
    """The answer is stored durably."""

    number: int = Field(description="Number of the answer on this device, from 1.")


class Result(Model):
    """Result of one of several answers."""

    number: int | None = Field(default=None, description="Number of the answer if it was recorded.")
    status: int = Field(default=200, description="HTTP status of the answer if it were sent alone.")
    detail: str | None = Field(default=None, description="Reason if it was not recorded.")


class ForgottenAnswers(Model):
    """What was removed from this device, and what cannot be undone."""

    proposals: int = Field(description="Open duels that were removed.")
    forgotten: int = Field(description="Answers that were removed before they were acknowledged.")
    may_be_counted: int = Field(
        description="Those of them that had been uploaded: the server may have counted them."
    )
    counted: int = Field(
        description="Answers that the server has counted. Their copies on this device are removed."
        " With FLDB-Personal, the next round subtracts them from the server's sums; with other"
        " algorithms, the sums keep them."
    )


class TwoArms(Model):
    """Two arms to compare."""

    first: Features = Field(description="phi of the first arm: d numbers.", examples=[[0.1, 0.9]])
    second: Features = Field(description="phi of the second arm.", examples=[[0.8, 0.2]])


class Prediction(Model):
    """What the current estimate predicts."""

    probability: float = Field(description="P(first preferred), from 0 to 1.")


class Ranking(Model):
    """Arms by their predicted rewards, best first."""

    order: list[int] = Field(description="Indices of the arms, from 0.")
    keys: list[str | None] | None = Field(description="Keys in this order; null without keys.")


class Weights(Model):
    """The estimate of theta; all lists are empty before the first duel and broadcast."""

    weights: list[float] = Field(description="Weight of each feature in the reward of an arm.")
    deviations: list[float] = Field(description="Standard deviation of each weight.")


class Status(BaseModel):
    """State of the device."""

    open: int = Field(description="Duels without an answer.")
    answered: int = Field(description="Number of the last answer on this device.")
    counted: int = Field(description="Answers that the server has acknowledged.")
    dimension: int | None = Field(description="d; null before the first duel or broadcast.")
    theta: list[float] | None = Field(
        description="The last synchronized estimate, d numbers; null before the first."
    )
    round: int | None = Field(description="The server's round of this estimate.")
    duels: int | None = Field(description="Duels of all devices that it is computed from.")
    received: float | None = Field(description="Time of its receipt, in seconds since 1970.")


class Health(Model):
    """The service is running and its store can be read."""

    status: Literal["ok"] = "ok"


class Problem(Model):
    """An error."""

    detail: str = Field(description="One line.")
