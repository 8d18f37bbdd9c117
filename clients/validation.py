"""The schema of what applications send to :class:`PreferenceAgent` or to the service.

Both report the first error with :func:`first_error`, so that an invalid value gives the same
message in both. The ``check`` functions are those of :class:`PreferenceAgent`.
"""

from __future__ import annotations

import contextlib
import re
import reprlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from numbers import Real
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from fldb_flower.errors import DataError, one_line
from fldb_flower.linalg.arrays import FloatArray, has_masked
from fldb_flower.settings import MAX_DIMENSION

LONGEST = 1e100
"""Largest absolute value of a feature, so that sums of squares are finite."""
MAX_KEY, MAX_TEXT = 1000, 10_000


class Model(BaseModel):
    """A model that refuses unknown fields."""

    model_config = ConfigDict(extra="forbid")


def described(text: str, example: object, default: Any = ..., **limits: Any) -> Any:
    """Return a field with its description and an example for /docs."""
    return Field(default=default, description=text, examples=[example], **limits)


def _as_list(values: Any) -> Any:
    """Return tuples, and arrays of NumPy, pandas and PyTorch, as lists; other values unchanged."""
    if not isinstance(values, str | list | tuple):
        with contextlib.suppress(Exception):
            values = (values if hasattr(values, "tolist") else values.__array__()).tolist()
    if isinstance(values, list | tuple):
        return [each.item() if isinstance(each, np.generic) else each for each in values]
    return values


def _of_one_length(arms: list[list[float]]) -> list[list[float]]:
    for number, arm in enumerate(arms):
        if len(arm) != len(arms[0]):
            raise ValueError(
                f"arm {number} has {len(arm)} numbers and arm 0 has {len(arms[0])}: all arms must"
                " have the same length"
            )
    return arms


def _distinct(names: list[str]) -> list[str]:
    for number, name in enumerate(names):
        if name in names[:number]:
            raise ValueError(f"name {number}, {name!r}, is also the name of another feature")
    return names


AS_LIST, OF_ONE_LENGTH = BeforeValidator(_as_list), AfterValidator(_of_one_length)
Key = Annotated[str, Field(max_length=MAX_KEY, strict=True)]
Text = Annotated[
    str | None,
    described(f"At most {MAX_TEXT} characters.", "A pot of tea", max_length=MAX_TEXT, strict=True),
]
Image = Annotated[
    str | None,
    described(
        "`data:image/...`, or an `https://` URL, whose host learns when the image is shown, and to"
        " which address.",
        "https://images.example/tea.jpg",
        pattern="^(https://|data:image/)",
        strict=True,
    ),
]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=-LONGEST, le=LONGEST)]
Features = Annotated[
    list[Number], Field(min_length=1, max_length=MAX_DIMENSION, fail_fast=True), AS_LIST
]


class Content(Model):
    """What the page shows of an arm: text, an image or both."""

    text: Text = None
    image: Image = None

    @model_validator(mode="before")
    @classmethod
    def _is_an_object(cls, value: Any) -> Any:
        if not isinstance(value, dict | Content):  # pydantic's messages differ
            raise ValueError(f"must be an object with a text or an image, not {shortened(value)}")
        return value

    @model_validator(mode="after")
    def _shows_something(self) -> Content:
        if not self.text and not self.image:
            raise ValueError("needs a text or an image")
        return self


class Arms(Model):
    """Arms to select two from."""

    features: Annotated[list[Features], Field(min_length=2, fail_fast=True), OF_ONE_LENGTH, AS_LIST]
    keys: Annotated[list[Key] | None, AS_LIST] = described(
        "K names. They stay on the device.", ["tea", "coffee", "cocoa"], None, strict=True
    )
    contents: Annotated[list[Content] | None, AS_LIST] = described(
        "What the page shows of each arm. Without them, your application shows it.",
        [{"text": "A pot of tea"}, {"text": "A cup of coffee"}, {"text": "Cocoa"}],
        None,
        strict=True,
    )

    @model_validator(mode="after")
    def _one_for_each(self) -> Arms:
        for name, values in (("keys", self.keys), ("contents", self.contents)):
            if values is not None and len(values) != len(self.features):
                raise ValueError(
                    f"{len(values)} {name} for {len(self.features)} arms: one for each, or none"
                )
        return self


class Answer(Model):
    """Which arm won."""

    preferred: Literal["first", "second", "tie"] = described(
        "Winner: `first`, `second` or `tie`.", "first"
    )


class NamedAnswer(Answer):
    """Which arm won which duel."""

    id: str = described("The duel's id.", "Zm9vYmFyYmF6cXV4", max_length=MAX_KEY, strict=True)


class FeatureNames(Model):
    """Names of the features. They stay on the device."""

    names: Annotated[
        Annotated[
            list[Annotated[Key, Field(min_length=1)]],
            Field(min_length=1, max_length=MAX_DIMENSION, strict=True, fail_fast=True),
            AfterValidator(_distinct),
        ]
        | None,
        AS_LIST,
    ] = described(
        "d different names, in the order of the features; null removes the names.",
        ["sweetness", "bitterness"],
    )


_ANSWERS = TypeAdapter(list[NamedAnswer])
_SIZES = {"missing", "too_short", "too_long", "string_too_long", "value_error"}


def first_error(errors: Sequence[Any], value_name: str = "") -> str:
    """Return the first of ``ValidationError.errors()`` as one line: the field, and its value.

    ``value_name`` is the name of the whole value, for errors that are in no single field.
    """
    error = errors[0]
    place = ".".join(str(part) for part in error["loc"] if part not in {"body", "path", "query"})
    # pydantic writes all digits of a limit such as 1e100.
    message = re.sub(
        r"\d{17,}(\.0)?", lambda found: f"{float(found[0]):g}", error["msg"]
    ).removeprefix("Value error, ")
    if error["type"] not in _SIZES:
        message += f", not {shortened(error['input'])}"
    if not place and error["type"] != "value_error":
        place = value_name
    return one_line(f"{place}: {message}" if place else message)


def shortened(value: object) -> str:
    """Return the beginning of a value's repr; of any value."""
    try:
        return reprlib.repr(value)
    except Exception:  # an integer with too many digits for str(), or an invalid __repr__
        return f"a value of type {type(value).__name__}"


@contextlib.contextmanager
def _as_data_error() -> Iterator[None]:
    try:
        yield
    except ValidationError as error:
        raise DataError(first_error(error.errors(include_url=False))) from None


def check_features(features: ArrayLike) -> FloatArray:
    """Return valid features, (K, d)."""
    return check_arms(features, None, None)[0]


class Table(NamedTuple):
    """Arms as they were given; of a data frame, its numbers in the order of the features."""

    numbers: Any
    labels: list[Any] | None = None  # of rows
    columns: list[str] | None = None  # names of the features

    @property
    def keys(self) -> list[str] | None:
        """The labels as keys."""
        return None if self.labels is None else [str(label) for label in self.labels]


def read_table(features: Any, names: Sequence[str] | None) -> Table:
    """Return arms, with the columns of a data frame in the order of ``names``, if they have names.

    DataError if a column is missing or unknown, or an entry is no number.
    """
    if not hasattr(features, "columns"):
        return Table(features)
    given, labels = list(features.columns), list(getattr(features, "index", range(len(features))))
    named = all(isinstance(name, str) for name in given)
    used = list(names) if named and names is not None else given
    if sorted(used, key=str) != sorted(given, key=str):
        missing, unknown = Counter(used) - Counter(given), Counter(given) - Counter(used)
        found = [f"{', '.join(each)} {kind}" for each, kind in (
            (missing, "missing"), (unknown, "unknown or duplicated"),
        ) if each]  # fmt: skip
        valid = f"must be {', '.join(used)}"
        raise DataError(one_line(f"features: columns {'; '.join(found)}; {valid}"))
    rows = features.to_numpy()[:, [given.index(name) for name in used]]
    if rows.dtype.kind not in "biuf" or not (np.abs(rows) <= LONGEST).all():
        for label, row in zip(labels, rows.tolist(), strict=True):
            for name, value in zip(used, row, strict=True):
                if not isinstance(value, Real) or not abs(float(value)) <= LONGEST:
                    fault = f"column {name} of row {label} is {shortened(value)}"
                    raise DataError(one_line(f"features: {fault}: must be within +-{LONGEST:g}"))
    return Table(rows.astype(np.float64), labels, used if named else None)


def read_row(features: Any, names: Sequence[str] | None) -> Any:
    """Return one arm; of a Series whose labels are names, in the order of ``names``."""
    if not hasattr(features, "to_frame") or not hasattr(features, "index"):
        return features
    return read_table(features.to_frame().T, names).numbers[0]


def check_arms(
    features: ArrayLike, keys: object, contents: object
) -> tuple[FloatArray, list[str] | None, list[dict[str, Any]] | None]:
    """Return features (K, d), keys and contents as the store keeps them; :class:`Arms`."""
    if has_masked(features):
        raise DataError("features: entries are masked; each must be a number")
    array = _valid_array(features)  # validating each number is slow
    rows = features if array is None else [[0.0]] * len(array)
    with _as_data_error():
        arms = Arms.model_validate({"features": rows, "keys": keys, "contents": contents})
    shown = arms.model_dump(include={"contents"}, exclude_none=True).get("contents")
    return np.array(arms.features) if array is None else array, arms.keys, shown


def check_answer(duel_id: object, preferred: object = "tie") -> None:
    """Check one :class:`NamedAnswer`."""
    with _as_data_error():
        NamedAnswer.model_validate({"id": duel_id, "preferred": preferred})


def check_answers(answers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return answers as pairs of a duel's id and the preference; :class:`NamedAnswer`."""
    try:
        given = [dict(zip(("id", "preferred"), each, strict=True)) for each in answers]
    except (TypeError, ValueError):
        raise DataError("answers must be pairs of a duel's id and a preference") from None
    with _as_data_error():
        return [(answer.id, answer.preferred) for answer in _ANSWERS.validate_python(given)]


def check_names(names: object, dimension: int | None) -> list[str] | None:
    """Return names of d features as a list; d is None if it is not yet known."""
    with _as_data_error():
        checked = FeatureNames.model_validate({"names": names}).names
    if checked is not None and dimension not in {None, len(checked)}:
        raise DataError(f"names: {len(checked)} names for {dimension} features: one for each")
    return checked


def _valid_array(features: Any) -> FloatArray | None:
    """Return an array of valid features as float64; None if each number has to be validated."""
    if isinstance(features, list | tuple) or not hasattr(features, "__array__"):
        return None
    with contextlib.suppress(Exception):  # of another library
        array = np.asarray(features)
        if array.dtype.kind in "fiu" and array.ndim == 2 and len(array) >= 2:
            arms = array.astype(np.float64)
            if 1 <= arms.shape[1] <= MAX_DIMENSION and (np.abs(arms) <= LONGEST).all():
                return arms
    return None
