"""The arms of ``--arms``: a JSON or a CSV file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from clients.service.models import ShownArm, ShownFeature
from clients.validation import LONGEST, MAX_KEY, Features, Image, Model, Text, first_error
from fldb_flower.environments.arms import parse_arms
from fldb_flower.errors import DataError
from fldb_flower.linalg.arrays import FloatArray
from fldb_flower.system.files import read_file

MOST_BYTES = 2**28
"""Largest size of the file."""

MOST_SHOWN = 12
"""Features that a page shows of an arm without text and image."""


class Arm(Model):
    """One arm of a catalogue."""

    key: Annotated[str, Field(min_length=1, max_length=MAX_KEY)]
    features: Features
    text: Text = None
    image: Image = None

    @property
    def content(self) -> dict[str, str | None]:
        """What the page shows: the key if there is neither a text nor an image."""
        return {"text": self.text or (None if self.image else self.key), "image": self.image}


@dataclass(frozen=True)
class Catalogue:
    """Arms that the service proposes duels between, and the names of their features."""

    arms: Sequence[Arm] = ()
    names: list[str] | None = None
    warning: str = ""

    @cached_property
    def features(self) -> FloatArray:
        """Phi of each arm, (K, d)."""
        return np.array([arm.features for arm in self.arms])

    @property
    def hides_features(self) -> bool:
        """Whether an arm has features that a page does not show, because it has other content."""
        has_content = any(arm.image or arm.text not in {None, arm.key} for arm in self.arms)
        return has_content and not self._is_one_hot

    def expect_dimension(self, path: Path, dimension: int | None) -> None:
        """Raise DataError if the arms have another number of features than a file says."""
        count = len(self.arms[0].features) if self.arms else None
        if None not in {count, dimension} and count != dimension:
            raise DataError(f"{path}: dimension={dimension}, but the arms have {count} features")

    def shown(self, key: str | None, content: Any, names: Sequence[str] | None) -> ShownArm:
        """Return what a page shows of an arm: its content, or its features if it has none.

        Features are not shown if they only tell the arms apart (one of them is 1, the others are
        0), or if the arm is in no catalogue, or the features have no names.
        """
        shown = ShownArm(key=key, **content)
        arm = self._by_key.get(key)
        if arm is None or shown.image or shown.text not in {None, key}:
            return shown
        if arm.content["text"] == key and names is not None and not self._is_one_hot:
            pairs = list(zip(names, arm.features, strict=True))[:MOST_SHOWN]
            shown.features = [ShownFeature(name=name, value=value) for name, value in pairs]
        return shown

    @cached_property
    def _by_key(self) -> dict[str | None, Arm]:
        return {arm.key: arm for arm in self.arms}

    @cached_property
    def _is_one_hot(self) -> bool:
        ones = (self.features == 1.0).sum(axis=1) == 1
        return bool((ones & ((self.features != 0.0).sum(axis=1) == 1)).all())


def read_arms(path: Path) -> Catalogue:
    """Return the arms in a file.

    A CSV file has the column ``arm`` (or ``key``, ``item``, ``option``), optionally ``text`` and
    ``image``, and features; see :func:`~fldb_flower.environments.arms.parse_arms`. A JSON file is a
    list of
    ``{key, features, text?, image?}``.
    """
    try:
        content = read_file(path, MOST_BYTES)
    except OSError as error:
        raise DataError(
            f"{path}: {error.strerror}; --arms must be a JSON or CSV file of at most"
            f" {MOST_BYTES // 2**20} MiB"
        ) from None
    try:
        catalogue = (_from_csv if path.suffix.lower() == ".csv" else _from_json)(content)
        _check(catalogue.arms)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    return catalogue


def _from_json(content: bytes) -> Catalogue:
    try:
        return Catalogue(TypeAdapter(list[Arm]).validate_json(content))
    except ValidationError as error:
        raise DataError(first_error(error.errors(), "the file")) from None


def _from_csv(content: bytes) -> Catalogue:
    table = parse_arms(content, LONGEST)
    arms, features = [], table.features.tolist()
    for row, (line, key) in enumerate(zip(table.lines, table.arms, strict=True)):
        shown = {name: cells[row] or None for name, cells in table.contents.items()}
        try:
            arms.append(Arm.model_validate({"key": key, "features": features[row], **shown}))
        except ValidationError as error:
            raise DataError(f"line {line}: {first_error(error.errors())}") from None
    return Catalogue(arms, [*table.names], table.warning)


def _check(arms: Sequence[Arm]) -> None:
    if len(arms) < 2:
        raise DataError(f"{len(arms)} arms: a duel needs at least two")
    seen: set[str] = set()
    for number, arm in enumerate(arms):
        count, expected = len(arm.features), len(arms[0].features)
        if count != expected:
            raise DataError(f"{number}.features: {count} numbers, but the first arm has {expected}")
        if arm.key in seen:
            raise DataError(f"{number}.key: {arm.key!r} is also the key of another arm")
        seen.add(arm.key)
