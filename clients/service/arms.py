"""The ``--arms`` file: arms that the service selects from by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from clients.service.models import Features
from clients.validation import MAX_KEY, Image, Model, Text, first_error
from fldb_flower.errors import DataError


class Arm(Model):
    """One entry of the file."""

    key: Annotated[str, Field(min_length=1, max_length=MAX_KEY)]
    features: Features
    text: Text = None
    image: Image = None

    @property
    def content(self) -> dict[str, str | None]:
        """What the page shows: the key if there is neither a text nor an image."""
        return {"text": self.text or (None if self.image else self.key), "image": self.image}


def read_arms(path: Path) -> list[Arm]:
    """Return the arms in a JSON file: a list of ``{key, features, text?, image?}``.

    Raises
    ------
    DataError
        The file cannot be read or is invalid.
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
                f"{path}: {number}.features: {len(arm.features)} numbers, but the first arm has"
                f" {len(arms[0].features)}"
            )
        if arm.key in seen:
            raise DataError(f"{path}: {number}.key: {arm.key!r} is also the key of another arm")
        seen.add(arm.key)
    return arms
