"""scikit-learn's conventions for an estimator, without requiring scikit-learn."""

from __future__ import annotations

import inspect
import sys
from typing import Any, TypeVar

_Self = TypeVar("_Self", bound="Estimator")


class Estimator:
    """Parameters of the constructor by name, representation, and tags of a classifier.

    Constructors of subclasses only store their parameters, under the same names.
    """

    _estimator_type = "classifier"  # for scikit-learn before 1.6

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters of the constructor by name.

        Examples
        --------
        >>> import fldb_flower as fldb
        >>> fldb.DuelingBandit(dimension=3).get_params()["dimension"]
        3
        """
        return {name: getattr(self, name) for name in _parameters(type(self))}

    def set_params(self: _Self, **params: Any) -> _Self:
        """Set parameters of the constructor by name.

        Raises
        ------
        ValueError
            There is no such parameter.

        Examples
        --------
        >>> import fldb_flower as fldb
        >>> fldb.DuelingBandit().set_params(ridge=0.1)
        DuelingBandit(ridge=0.1)
        """
        known = _parameters(type(self))
        for name, value in params.items():
            if name not in known:
                raise ValueError(
                    f"{name!r} is not a parameter of {type(self).__name__}: must be one of"
                    f" {', '.join(known)}"
                )
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = _parameters(type(self))
        changed = [
            f"{name}={value!r}"
            for name, value in self.get_params().items()
            if repr(value) != repr(defaults[name].default)
        ]
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_tags__(self) -> Any:
        """Return the tags of a classifier of two classes, for scikit-learn 1.6 and later."""
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags  # noqa: PLC0415

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(multi_class=False),
            input_tags=InputTags(),
        )

    def __sklearn_is_fitted__(self) -> bool:
        """Whether there is an estimate."""
        return hasattr(self, "coef_")


class NotFittedError(ValueError, AttributeError):
    """There is no estimate yet; scikit-learn's exception has the same bases."""


def not_fitted(name: str) -> Exception:
    """Return the error of a method that needs an estimate, scikit-learn's if it is imported."""
    line = f"this {name} has no estimate yet: call fit or record first"
    if sys.modules.get("sklearn"):
        from sklearn.exceptions import NotFittedError as SklearnsError  # noqa: PLC0415

        error: Exception = SklearnsError(line)
        return error
    return NotFittedError(line)


def _parameters(kind: type) -> dict[str, inspect.Parameter]:
    """Return the parameters of a class's constructor."""
    return dict(inspect.signature(kind).parameters)
