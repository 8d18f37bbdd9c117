"""Requests and replies of the service."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from clients import validation
from clients.validation import Features, Model, described

MAX_ARMS, MAX_ANSWERS = 10_000, 10_000

_EXPIRES = "Expiry time, in seconds since 1970, by the device's clock when the duel was proposed."
_ANSWERED = "Identifies the duel when it is answered."
_ID = "Zm9vYmFyYmF6cXV4"


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


class ShownFeature(Model):
    """A feature of an arm."""

    name: str = described("Name of the feature.", "sweetness")
    value: float = described("Its value.", 0.9)


class ShownArm(Model):
    """An arm as a page shows it."""

    key: str | None = described("The application's name for the arm.", "tea", None)
    text: str | None = described("Plain text.", "A pot of tea", None)
    image: str | None = described("URL.", "https://images.example/tea.jpg", None)
    features: list[ShownFeature] | None = described(
        "At most 12 named features of an arm of `--arms` that has neither a text nor an image.",
        [{"name": "sweetness", "value": 0.9}],
        None,
    )


class Favourite(ShownArm):
    """One of the best arms, as a page shows it."""

    preferred: float = described("P(preferred to the average of `--arms`), by the estimate.", 0.77)
    low: float = described("Lower end of its 95% interval.", 0.65)
    high: float = described("Upper end.", 0.86)


class ShownDuel(Model):
    """A duel that a page can show; show the two arms in random order."""

    id: str = described(_ANSWERED, _ID)
    expires: float = described(_EXPIRES, 1.8e9)
    first: ShownArm = described("The favourite.", {"key": "tea", "text": "A pot of tea"})
    second: ShownArm = described("The other arm.", {"key": "coffee", "text": "A cup of coffee"})


class Recorded(Model):
    """The answer is stored durably."""

    number: int = described("Number of the answer on this device, from 1.", 12)


class Reopened(Model):
    """The answer was removed durably, and its duel is open again, under another id."""

    id: str = described(f"{_ANSWERED} The old id is unknown from now on.", f"{_ID}~")


class Result(Model):
    """Result of one of several answers."""

    number: int | None = described("Number of the answer if it was recorded.", 12, None)
    status: int = described("HTTP status of the answer if it were sent alone.", 200, 200)
    detail: str | None = described("Reason if it was not recorded.", None, None)


class TwoArms(Model):
    """Two arms to compare."""

    first: Features = described("phi of the first arm: d numbers.", [0.1, 0.9])
    second: Features = described("phi of the second arm.", [0.8, 0.2])


class Prediction(Model):
    """What the current estimate predicts."""

    probability: float = described("P(first preferred), from 0 to 1.", 0.73)


class Predictions(Model):
    """How many of the last 50 answers were predicted correctly."""

    answers: int = described("How many of the last 50 answers are left on the device.", 50)
    predicted: int = described("Answers, ties excluded, with a prediction.", 47)
    right: int = described("Correct predictions.", 31)
    expected: float = described("Number that the estimate expected to be correct.", 29.6)


class Ranking(Model):
    """Arms by their predicted rewards, best first."""

    order: list[int] = described("Indices of the arms, from 0.", [1, 0, 2])
    keys: list[str | None] | None = described(
        "Keys in this order; null without keys.", ["coffee", "tea", "cocoa"]
    )


class Privacy(Model):
    """The cost of the reports to secure sums, and the owner's limit."""

    epsilon: float = described("What the server learns is (epsilon, delta)-private.", 1.8)
    delta: float = described("Delta of both epsilons.", 1e-6)
    max_epsilon: float = described("The owner's limit of epsilon.", 3.0)
    days: int | None = described("Period of both epsilons in days; null: unlimited.", 365)
    refused: bool = described("Whether the limit has prevented the last report.", False)


class Status(BaseModel):
    """State of the device."""

    open: int = described("Duels without an answer.", 1)
    answered: int = described("Number of the last answer on this device.", 12)
    counted: int = described("Answers that the server has acknowledged.", 9)
    sent: int = described("Number of the last uploaded answer; later ones can be undone.", 9)
    undoable: str | None = described("The duel whose answer can be undone now: the last.", _ID)
    needed: int | None = described(
        "Distinct duels that the next upload lacks; null before the server has requested one.", 3
    )
    minimum: int | None = described(
        "Minimum of distinct duels in an upload; absent before the server has requested one.",
        15,
        None,
    )
    pairs: int | None = described("Pairs of the arms of --arms; absent without it.", 28, None)
    dimension: int | None = described("d; null before the first duel or broadcast.", 2)
    theta: list[float] | None = described(
        "The last synchronized estimate, d numbers; null before the first.", [0.5, -0.2]
    )
    round: int | None = described("The server's round of this estimate.", 4)
    duels: int | None = described("Duels of all devices that it is computed from.", 1234)
    received: float | None = described("Time of its receipt, in seconds since 1970.", 1.7e9)
    secure: bool = described("Whether the device takes part in secure sums only.", True)
    privacy: Privacy | None = described("Cost of its reports; null without secure sums.", None)


class Health(Model):
    """The service is running and its store can be read."""

    status: Literal["ok"] = Field(default="ok", examples=["ok"])


class Problem(Model):
    """An error."""

    detail: str = described("One line.", "'none' is unknown")
