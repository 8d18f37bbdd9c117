"""A dueling bandit that learns from its own duels, with scikit-learn's conventions."""

from __future__ import annotations

import contextlib
import inspect
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from numbers import Integral, Real
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fldb_flower.bandit.features import Features, mean_squares
from fldb_flower.bandit.newton import Loss, minimise
from fldb_flower.bandit.preference import PREFERENCES, duel_key, logistic, residuals
from fldb_flower.bandit.selection.informative import PURPOSES, most_informative
from fldb_flower.bandit.selection.selector import best_challenger, find_rule
from fldb_flower.bandit.streams import AgentStreams
from fldb_flower.catalogue import SELECTIONS
from fldb_flower.errors import ConvergenceError, one_line, shown
from fldb_flower.linalg.arrays import FloatArray, IntArray, has_masked

_EPS = np.finfo(float).eps
_LEAST = 1e-290  # smallest scaled ridge; with a smaller one, probabilities underflow
_WORST = 1e6  # largest condition number of a root of the Hessian
_ACCURACY = 1e-8  # required accuracy of a logit, relative if it is above 1
_LARGEST = 1e100  # largest argument: sums of squares are finite
_WIDTH, _WIDTH_OF_CHANGING = 0.75, 2.5  # default widths of the confidence interval
_FORGOTTEN = 100  # half-lives after which the weight of a duel decreases no further
_ANSWERS = "1 (first arm preferred), 0 (second), 0.5 (tie), or between 0 and 1"
_WORDS = "or 'first', 'second' or 'tie'"

_Names: TypeAlias = Sequence[str] | None
_Mean: TypeAlias = tuple[FloatArray, float]  # (d,), and the weight, which is K - 1 of an offer


class NotFittedError(ValueError, AttributeError):
    """There is no estimate yet; scikit-learn's exception has the same bases."""


def _not_fitted() -> Exception:
    """Return the error of a method that needs an estimate; scikit-learn's too if imported."""
    line = "this DuelingBandit has no estimate yet: call fit or record first"
    if sys.modules.get("sklearn"):
        from sklearn.exceptions import NotFittedError as SklearnsError  # noqa: PLC0415

        error: Exception = type("NotFittedError", (NotFittedError, SklearnsError), {})(line)
        return error
    return NotFittedError(line)


class DuelingBandit:
    r"""A linear dueling bandit of one person, from logged duels or online.

    The probability that the first arm of a duel is preferred is
    :math:`\mu(\theta \cdot (x_1 - x_2))` with the logistic function :math:`\mu`. The estimate of
    :math:`\theta` minimises the log loss of the duels plus ``ridge / 2`` times the squared length
    of ``scale_`` times theta. With ``scale=None``, this is logistic regression on differences
    without intercept, with ``C = 1 / ridge``.

    The methods are those of a classifier of scikit-learn, which need not be installed. Cross
    validation and grid search accept preferences of 0 and 1.

    Columns of a DataFrame are matched by name. Of a DataFrame of arms, :meth:`rank` and
    :meth:`propose` return labels of the index. Arrays are matched by position.

    Parameters
    ----------
    dimension : int, optional
        Number of features d of an arm; by default that of the first data.
    ridge : float
        Precision of the prior of ``scale_ * theta``, N(0, I / ridge). A larger ridge shrinks the
        estimate.
    width : float, optional
        Width of the confidence interval in :meth:`propose`, in posterior standard deviations. 0
        disables exploration. The default is 0.75, or 2.5 with ``half_life``, because a change is
        detected only in directions in which shown pairs differ.
    selection : str
        Selection rule of :meth:`propose`: ``"ucb"``, ``"maxinp"``, ``"colstim"``,
        ``"maxpairucb"``, ``"thompson"``, or one registered with :func:`register_selection`.
    random_state : int, optional
        Seed of the rules that draw random numbers.
    scale : {"auto"}, None or array_like of shape (d,)
        Units of the features for the prior. With ``"auto"``, results do not depend on units: the
        scales are typical deviations of the features, from the duels and from the arms that
        :meth:`propose` got. A feature that is N(0, 1) has scale 1, as has a feature that never
        differed. None: all scales are 1.
    half_life : float, optional
        Number of later duels after which the loss of a duel has half its weight, for a taste that
        changes. Rows are in the order of the answers. By default, all duels have the same weight.

    Attributes
    ----------
    coef_ : ndarray of shape (1, d)
        The estimate of theta, in units of the features as they were given.
    covariance_ : ndarray of shape (d, d)
        Inverse of the Hessian of the objective at the estimate: the covariance of the normal
        approximation to the posterior of theta.
    standard_errors_ : ndarray of shape (d,)
        Square roots of the diagonal of ``covariance_``.
    intercept_ : ndarray of shape (1,)
        Zero: exchanging the arms of a duel exchanges the probabilities.
    classes_ : ndarray
        ``[0, 1]``: the second arm is preferred, the first arm is preferred.
    scale_ : ndarray of shape (d,)
        The scales of the last estimate.
    n_features_in_ : int
        Number of features d.
    feature_names_in_ : ndarray of shape (d,)
        Names of the features. Defined only if all column names of the data are strings.

    See Also
    --------
    clients.preference_agent.PreferenceAgent : Keeps its duels in a file and joins a federation.

    Examples
    --------
    From logged duels: feature 0 decides, feature 1 does not matter.

    >>> import numpy as np
    >>> import fldb_flower as fldb
    >>> differences = np.array([[1, 0], [1, 1], [-1, 1], [-1, -1], [1, -1], [-1, 0]])
    >>> learner = fldb.DuelingBandit().fit(differences, [1, 1, 0, 0, 1, 0])
    >>> learner.coef_.round(2)
    array([[1.76, 0.  ]])
    >>> learner.rank([[0.0, 5.0], [2.0, 0.0], [1.0, 0.0]])
    array([1, 2, 0])

    Online:

    >>> arms = np.array([[0.0, 1.0], [1.0, 0.0], [0.5, 0.5]])
    >>> learner = fldb.DuelingBandit(dimension=2)
    >>> for _ in range(10):
    ...     i, j = learner.propose(arms)
    ...     preferred = float(arms[i, 0] > arms[j, 0])  # the answer of a person
    ...     learner = learner.record(arms[i], arms[j], preferred)
    >>> int(learner.rank(arms)[0])
    1

    A table, in any units:

    >>> import pandas as pd
    >>> cafes = pd.DataFrame({"price": [3, 4, 6], "metres": [900, 200, 300]}, ["A", "B", "C"])
    >>> learner = fldb.DuelingBandit().record(cafes.loc["B"], cafes.loc["A"], 1.0)
    >>> learner.rank(cafes)
    array(['C', 'B', 'A'], dtype=object)
    """

    _estimator_type = "classifier"  # for scikit-learn before 1.6

    coef_: FloatArray
    covariance_: FloatArray
    standard_errors_: FloatArray
    intercept_: FloatArray
    classes_: IntArray
    scale_: FloatArray
    n_features_in_: int
    feature_names_in_: NDArray[np.object_]

    _offers: _Mean = np.zeros(1), 0.0  # squared differences of arms that were offered
    _labelled: dict[Any, FloatArray] | None = None  # arms of the last DataFrame, by label

    def __init__(
        self,
        dimension: int | None = None,
        *,
        ridge: float = 1.0,
        width: float | None = None,
        selection: str = "ucb",
        random_state: int | None = None,
        scale: str | ArrayLike | None = "auto",
        half_life: float | None = None,
    ) -> None:
        self.dimension = dimension
        self.ridge = ridge
        self.width = width
        self.selection = selection
        self.random_state = random_state
        self.scale = scale
        self.half_life = half_life

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Learn from logged duels, and forget earlier ones.

        Parameters
        ----------
        X : array_like of shape (n, d)
            Differences: the features of the first arm of each duel, minus those of the second.
        y : array_like of shape (n,)
            Preferences: 1 if the first arm was preferred, 0 if the second was, 0.5 for a tie; or
            the share of several answers for the first arm.
        sample_weight : array_like of shape (n,), optional
            Weights of the losses of the duels, such as numbers of answers.

        Returns
        -------
        DuelingBandit
            The learner itself.

        Raises
        ------
        ValueError
            An argument or a parameter is invalid.
        ConvergenceError
            The estimate would be inaccurate: ``ridge`` is too far from the squared features.

        Examples
        --------
        >>> import fldb_flower as fldb
        >>> fldb.DuelingBandit().fit([[1.0], [2.0], [-1.0]], [1, 1, 0.5]).coef_.round(3)
        array([[0.633]])
        """
        values, names = _matched(X, None, "X")
        duels = _duels(_arms(values, self.dimension, "X"), y, sample_weight)
        self._learn(duels, np.zeros(duels.differences.shape[1]), DuelingBandit._offers)
        self.__dict__.pop("feature_names_in_", None)
        return self._adopt(names)

    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Learn from additional duels. The estimate is that of :meth:`fit` with all duels.

        Parameters
        ----------
        X, y, sample_weight
            See :meth:`fit`.
        classes : ignored
            Exists for compatibility with scikit-learn.

        Returns
        -------
        DuelingBandit
            The learner itself.

        Examples
        --------
        >>> import numpy as np
        >>> import fldb_flower as fldb
        >>> x, y = np.array([[1.0], [2.0], [-1.0]]), [1, 1, 0]
        >>> learner = fldb.DuelingBandit().partial_fit(x[:2], y[:2]).partial_fit(x[2:], y[2:])
        >>> np.allclose(learner.coef_, fldb.DuelingBandit().fit(x, y).coef_)
        True
        """
        rows, names = self._read(X, "X")
        duels, start = _duels(rows, y, sample_weight), np.zeros(rows.shape[1])
        if self.__sklearn_is_fitted__():
            duels = _Duels(*map(np.concatenate, zip(self._duels, duels, strict=True)))
            start = self.coef_[0]
        return self._learn(duels, start, self._offers)._adopt(names)

    def record(self, first: ArrayLike, second: ArrayLike, preferred: float | str) -> Self:
        """Learn from the answer to one duel.

        Parameters
        ----------
        first, second : array_like of shape (d,), or label
            Features of the two arms, such as rows of a DataFrame; or labels of the DataFrame that
            :meth:`propose` got last.
        preferred : float or {"first", "second", "tie"}
            1 if the first arm was preferred, 0 if the second was, 0.5 for a tie.

        Returns
        -------
        DuelingBandit
            The learner itself.

        Examples
        --------
        >>> import fldb_flower as fldb
        >>> learner = fldb.DuelingBandit(dimension=2).record([1.0, 0.0], [0.0, 1.0], 1.0)
        >>> learner.rank([[0.0, 1.0], [1.0, 0.0]])
        array([1, 0])
        """
        one, names = self._arm(first, "first", None)
        other, others = self._arm(second, "second", names)
        if len(one) != len(other):
            raise ValueError(f"second has {len(other)} features: must be {len(one)}, as first")
        if isinstance(preferred, str):
            preferred = PREFERENCES.get(preferred, preferred)
        if not isinstance(preferred, Real | np.bool) or not 0.0 <= preferred <= 1.0:
            raise _invalid("preferred", preferred, f"{_ANSWERS}, {_WORDS}")
        self.partial_fit([one - other], [float(preferred)])
        return self._adopt(names or others)

    def propose(self, arms: ArrayLike, purpose: str = "suggest") -> tuple[Any, Any]:
        """Select two different arms for the next duel.

        Parameters
        ----------
        arms : array_like of shape (K, d)
            Features of the arms; K may differ each time.
        purpose : {"suggest", "rank"}
            With ``"suggest"``, the rule ``selection`` looks for the best arm and may repeat a pair.
            If it selects the same arm twice, the second arm is the one with the largest upper
            confidence bound among the others. ``"rank"`` selects the pair that teaches most about
            all arms: pairs without an answer come first, then those with few answers. It is the
            same pair until an answer is recorded.

        Returns
        -------
        first, second : int or label
            Indices of the two arms, or labels of the index if ``arms`` is a DataFrame.

        Raises
        ------
        ValueError
            ``arms`` or a parameter is invalid.

        Examples
        --------
        >>> import fldb_flower as fldb
        >>> fldb.DuelingBandit(selection="thompson", random_state=0).propose([[1.0], [2.0], [3.0]])
        (0, 2)
        """
        if purpose not in PURPOSES:
            raise _invalid("purpose", purpose, f"one of {', '.join(PURPOSES)}")
        features, names = self._read(arms, "arms")
        if len(features) < 2:
            raise ValueError("arms has fewer than two rows: a duel needs two arms")
        if (index := _index(arms)) is not None and index.has_duplicates:
            twice = shown(index[index.duplicated()][0])
            raise ValueError(f"arms has the label {twice} twice: each arm needs its own")
        offer = mean_squares(features), float(len(features) - 1)
        first, second = self._select(features, _pooled(self._offers, offer), purpose)
        self._adopt(names)._labelled = None
        if index is None:
            return first, second
        labels = index.tolist()
        self._labelled = dict(zip(labels, features, strict=True))
        return labels[first], labels[second]

    def _select(self, arms: FloatArray, offers: _Mean, purpose: str) -> tuple[int, int]:
        """Return the indices of the next duel, and store the offers, which include this one."""
        default = _WIDTH if self.half_life is None else _WIDTH_OF_CHANGING
        width = _number("width", default if self.width is None else self.width)
        self._check_selection()
        theta, whitener, scale = self._estimate(offers)
        features, theta, whitener = arms / scale, theta * scale, whitener * scale[:, None]
        try:
            if purpose == "rank":
                first, second = most_informative(features, theta, whitener, self._known(arms))
            else:
                rule = find_rule(self.selection)
                first, second = rule.pair(features, theta, whitener, width, self._streams())
        except FloatingPointError as error:
            raise ValueError(
                f"arms up to {np.abs(features).max():g}, width={width:g}, ridge={self.ridge:g}:"
                f" {error}; use numbers of about 1"
            ) from None
        if first == second:
            others = np.arange(len(features)) != first
            second = best_challenger(features, first, theta, whitener, width, allowed=others)
        self._offers = offers
        return first, second

    def _known(self, arms: FloatArray) -> Callable[[int, int], tuple[bool, float]]:
        """Return a function that says whether, and how often, a pair of arms was answered."""
        counts = Counter[bytes]()
        if self.__sklearn_is_fitted__():
            for difference, weight in zip(*self._duels[::2], strict=True):
                counts[duel_key(difference)] += weight

        def known(one: int, other: int) -> tuple[bool, float]:
            key = duel_key(arms[one] - arms[other])
            return key in counts, counts[key]

        return known

    def rank(self, arms: ArrayLike) -> NDArray[Any]:
        """Return the indices of arms, best first. Equal arms keep their order.

        If ``arms`` is a DataFrame, they are labels of its index.

        Parameters
        ----------
        arms : array_like of shape (K, d)
            Features of the arms.

        Raises
        ------
        ValueError
            ``arms`` is invalid, or there is no estimate yet.

        Examples
        --------
        >>> import fldb_flower as fldb
        >>> fldb.DuelingBandit().fit([[1.0]], [1]).rank([[0.0], [2.0], [0.0], [1.0]])
        array([1, 3, 0, 2])
        """
        theta = self._fitted()
        rewards = self._read(arms, "arms")[0] @ theta
        order, index = np.argsort(-rewards, kind="stable"), _index(arms)
        return order if index is None else np.asarray(index)[order]

    def predict_utility(
        self, X: ArrayLike, return_std: bool = False
    ) -> FloatArray | tuple[FloatArray, FloatArray]:
        """Return the utilities of arms, theta . x, and optionally their standard deviations.

        Utilities are known up to a constant. For uncertainties relative to an average arm, subtract
        the mean of the rows of ``X`` first.

        Parameters
        ----------
        X : array_like of shape (n, d)
            Features of arms, or differences.
        return_std : bool
            Whether to return the posterior standard deviations too.

        Returns
        -------
        utility : ndarray of shape (n,)
            Posterior means.
        std : ndarray of shape (n,)
            Posterior standard deviations. Only returned if ``return_std`` is True.

        Examples
        --------
        >>> import fldb_flower as fldb
        >>> learner = fldb.DuelingBandit(scale=None).fit([[1.0]], [1])
        >>> utility, std = learner.predict_utility([[0.0], [2.0]], return_std=True)
        >>> utility.round(2), std.round(2)
        (array([0. , 0.8]), array([0. , 1.8]))
        """
        rows = self._rows(X)
        utility: FloatArray = rows @ self.coef_[0]
        return (utility, np.linalg.norm(rows @ self._whitener, axis=1)) if return_std else utility

    def sample_coef(self, n_samples: int = 1, random_state: int | None = None) -> FloatArray:
        """Draw samples of theta from the normal approximation to its posterior.

        Parameters
        ----------
        n_samples : int
            Number of samples n.
        random_state : int, optional
            Seed.

        Returns
        -------
        ndarray of shape (n, d)
            Samples, in the units of ``coef_``.

        Examples
        --------
        The probability that the second feature is worth more than the first:

        >>> import fldb_flower as fldb
        >>> learner = fldb.DuelingBandit().fit([[1.0, 0.0], [-1.0, 1.0]], [1, 1])
        >>> samples = learner.sample_coef(1000, random_state=0)
        >>> round(float((samples[:, 1] > samples[:, 0]).mean()), 1)
        0.7
        """
        theta = self._fitted()
        if not isinstance(n_samples, Integral) or isinstance(n_samples, bool) or n_samples < 1:
            raise _invalid("n_samples", n_samples, "a whole number, at least 1")
        draws = np.random.default_rng(_seed(random_state)).standard_normal((n_samples, len(theta)))
        samples: FloatArray = theta + draws @ self._whitener.T
        return samples

    def decision_function(self, X: ArrayLike) -> FloatArray:
        """Return the logit of the probability that the first arm is preferred, (n,).

        Examples
        --------
        >>> import fldb_flower as fldb
        >>> fldb.DuelingBandit().fit([[1.0]], [1]).decision_function([[0.0], [2.0]]).round(3)
        array([0.  , 1.35])
        """
        logits: FloatArray = self._rows(X) @ self.coef_[0]
        return logits

    def predict_proba(self, X: ArrayLike) -> FloatArray:
        """Return the probabilities that the second and the first arm are preferred, (n, 2).

        Examples
        --------
        >>> import fldb_flower as fldb
        >>> fldb.DuelingBandit().fit([[1.0]], [1]).predict_proba([[0.0], [2.0]]).round(3)
        array([[0.5  , 0.5  ],
               [0.206, 0.794]])
        """
        logits = self.decision_function(X)
        return np.stack([logistic(-logits), logistic(logits)], axis=1)

    def predict(self, X: ArrayLike) -> IntArray:
        """Return 1 where the first arm is predicted to be preferred, else 0, (n,).

        Examples
        --------
        >>> import fldb_flower as fldb
        >>> fldb.DuelingBandit().fit([[1.0]], [1]).predict([[-1.0], [2.0]])
        array([0, 1])
        """
        logits = self.decision_function(X)
        return self.classes_[(logits > 0).astype(np.int64)]

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return the fraction of duels whose preferred arm is predicted; ties are ignored.

        The parameters are those of :meth:`fit`. The score is NaN if all duels are ties.

        Examples
        --------
        >>> import fldb_flower as fldb
        >>> learner = fldb.DuelingBandit().fit([[1.0]], [1])
        >>> learner.score([[1.0], [2.0], [3.0], [4.0]], [1, 1, 0, 0.5])
        0.6666666666666666
        """
        duels = _duels(self._rows(X), y, sample_weight)
        weights = np.where(duels.preferences == 0.5, 0.0, duels.weights)
        correct = self.predict(duels.differences) == (duels.preferences > 0.5)
        total = float(weights.sum())
        return float(weights @ correct) / total if total else float("nan")

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters of the constructor by name.

        Examples
        --------
        >>> import fldb_flower as fldb
        >>> fldb.DuelingBandit(dimension=3).get_params()["dimension"]
        3
        """
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> Self:
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
        known = inspect.signature(type(self)).parameters
        for name, value in params.items():
            if name not in known:
                raise ValueError(
                    f"{name!r} is not a parameter of {type(self).__name__}: must be one of"
                    f" {', '.join(known)}"
                )
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self)).parameters
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

    def _check_selection(self) -> None:
        if not isinstance(self.selection, str) or self.selection not in SELECTIONS:
            raise _invalid("selection", self.selection, f"one of {', '.join(SELECTIONS)}")

    def _known_dimension(self) -> int | None:
        """Return d, or None before it is known."""
        known: int | None = getattr(self, "n_features_in_", self.dimension)
        return known

    def _read(
        self, values: Any, name: str, ndim: int = 2, known: _Names = None
    ) -> tuple[FloatArray, _Names]:
        """Return features (n, d) in the order of the known names, and their names."""
        values, names = _matched(values, getattr(self, "feature_names_in_", known), name)
        return _arms(values, self._known_dimension(), name, ndim), names

    def _rows(self, values: ArrayLike) -> FloatArray:
        """Return the rows of an argument X that an estimate is for."""
        self._fitted()
        return self._read(values, "X")[0]

    def _arm(self, arm: Any, name: str, names: _Names) -> tuple[FloatArray, _Names]:
        """Return the features (d,) of an arm that is given by features or by label."""
        labelled = self._labelled or {}
        if isinstance(arm, Hashable):
            with contextlib.suppress(TypeError):  # a tuple with a list in it
                if arm in labelled:
                    return labelled[arm], None
        if isinstance(arm, str):
            offered = one_line(", ".join(map(str, labelled)))[:200] or "there is none"
            valid = f"features, or a label of the DataFrame that propose got last ({offered})"
            raise _invalid(name, arm, valid)
        if hasattr(arm, "iloc") and np.shape(arm)[:-1] == (1,):
            arm = arm.iloc[0]
        features, names = self._read(arm, name, 1, names)
        return features[0], names

    def _adopt(self, names: _Names) -> Self:
        """Store the names of features, if there are any."""
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)
        return self

    def _scales(self, squares: FloatArray) -> FloatArray:
        """Return the scales (d,), with the mean squared differences (d,)."""
        if self.scale is None:
            return np.ones(len(squares))
        if isinstance(self.scale, str) and self.scale == "auto":
            return Features.of_squares(squares).scales
        valid = f"'auto', None, or {len(squares)} numbers from {1 / _LARGEST:g} to {_LARGEST:g}"
        array = np.zeros(0) if isinstance(self.scale, str) else _numbers(self.scale, "scale")
        if array.shape != squares.shape or not (array >= 1.0 / _LARGEST).all():
            raise _invalid("scale", self.scale, valid)
        return array

    def _learn(self, duels: _Duels, start: FloatArray, offers: _Mean) -> Self:
        """Set the estimate to the minimiser for these duels."""
        self._check_selection()
        ridge = _number("ridge", self.ridge, positive=True)
        scale = self._scales(_pooled(_squares(duels), offers)[0])
        weights = duels.weights
        if self.half_life is not None:
            half_life = _number("half_life", self.half_life, positive=True)
            later = np.arange(len(weights))[::-1]
            weights = weights * np.exp2(-np.minimum(later, _FORGOTTEN * half_life) / half_life)
        scaled = _Duels(duels.differences / scale, duels.preferences, weights)
        theta, whitener = _minimiser(scaled, ridge, start * scale)
        coef, whitener = theta / scale, whitener / scale[:, None]
        with np.errstate(over="ignore"):
            covariance = whitener @ whitener.T
        variances = np.diag(covariance)
        is_in_range = np.isfinite(covariance).all() and (variances > np.finfo(float).tiny).all()
        if not (is_in_range and np.allclose(coef * scale, theta, rtol=1e-9, atol=0.0)):
            raise _inaccurate(scaled, ridge)
        self._duels, self._offers, self._whitener, self.scale_ = duels, offers, whitener, scale
        self.coef_, self.intercept_ = coef[None], np.zeros(1)
        self.covariance_, self.standard_errors_ = covariance, np.sqrt(variances)
        self.classes_, self.n_features_in_ = np.array([0, 1]), len(theta)
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled learner; one of release 0.3.0 has no scales and no half-life."""
        self.__dict__.update({"scale": None, "half_life": None, **state})
        if self.__sklearn_is_fitted__():
            self.__dict__.setdefault("scale_", np.ones(self.n_features_in_))

    def _fitted(self) -> FloatArray:
        """Return theta, (d,)."""
        if not self.__sklearn_is_fitted__():
            raise _not_fitted()
        theta: FloatArray = self.coef_[0]
        return theta

    def _estimate(self, offers: _Mean) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return theta, the whitener and the scales; those of the prior before the first duel.

        A feature that varies for the first time in these offers gets a scale.
        """
        if not self.__sklearn_is_fitted__():
            scale = self._scales(offers[0])
            ridge = _number("ridge", self.ridge, positive=True)
            return np.zeros(len(scale)), np.diag(1.0 / (scale * np.sqrt(ridge))), scale
        known = _pooled(_squares(self._duels), self._offers)[0]
        if ((known == 0.0) & (offers[0] > 0.0)).any():
            self._learn(self._duels, self.coef_[0], offers)
        return self._fitted(), self._whitener, self.scale_

    def _streams(self) -> AgentStreams:
        """Return the random numbers, which continue from one proposal to the next."""
        state = self.random_state
        seeded: tuple[Any, AgentStreams] | None = getattr(self, "_seeded", None)
        if seeded is None or seeded[0] is not state:
            seeded = self._seeded = state, AgentStreams(_seed(state), range(1))
        return seeded[1]


class _Duels(NamedTuple):
    """Answered duels."""

    differences: FloatArray  # (n, d)
    preferences: FloatArray  # (n,)
    weights: FloatArray  # (n,)


def _pooled(one: _Mean, other: _Mean) -> _Mean:
    weight = one[1] + other[1]
    return one[0] * (one[1] / weight) + other[0] * (other[1] / weight), weight


def _squares(duels: _Duels) -> _Mean:
    """Return mean squared differences. A duel counts as an offer of two arms."""
    weights = duels.weights
    return np.average(duels.differences**2, axis=0, weights=weights), float(weights.sum())


def _duels(rows: FloatArray, y: ArrayLike, weights: ArrayLike | None) -> _Duels:
    """Return duels as arrays of float64; a ValueError names an argument that is invalid."""
    answers = _column(y, "y", len(rows))
    if wrong := [value for value in answers.tolist() if not 0.0 <= value <= 1.0]:
        raise ValueError(f"y contains {wrong[0]:g}: must be {_ANSWERS}")
    if weights is None:
        return _Duels(rows, answers, np.ones(len(rows)))
    factors = _column(weights, "sample_weight", len(rows))
    if (factors < 0).any():
        raise ValueError(f"sample_weight contains {factors.min():g}: must be at least 0")
    if not factors.any():
        raise ValueError("sample_weight is zero for every duel: at least one must be above 0")
    return _Duels(rows, answers, factors)


def _matched(values: Any, known: Sequence[str] | None, name: str) -> tuple[Any, _Names]:
    """Return features with columns in the order of known names, and the names if there are any.

    As in scikit-learn, columns have names only if these are strings.
    """
    columns = getattr(values, "columns", values.index if hasattr(values, "iloc") else ())
    names = [*columns]
    if not any(isinstance(each, str) for each in names):
        return values, None
    if not all(isinstance(each, str) for each in names) or len({*names}) < len(names):
        raise ValueError(
            f"{name} has the columns {shown(names)}: must be distinct strings, or no strings"
        )
    if known is None or names == [*known]:
        return values, names
    unseen, missing = {*names} - {*known}, {*known} - {*names}
    wrong = {"unseen at fit time": unseen, "seen at fit time, yet now missing": missing}
    lists = [f"Feature names {k}: {', '.join(sorted(v))}"[:200] for k, v in wrong.items() if v]
    if lists:
        line = "The feature names should match those that were passed during fit."
        raise ValueError(one_line(f"{name}: {line} {'. '.join(lists)}"))
    return values[[*known]], [*known]


def _index(arms: Any) -> Any:
    """Return the labels of the rows of a DataFrame, or None for arrays."""
    return arms.index if hasattr(arms, "iloc") else None


def _arms(arms: ArrayLike, dimension: int | None, name: str, ndim: int = 2) -> FloatArray:
    """Return features (n, d) as float64, from (n, d) or, with ``ndim=1``, from (d,)."""
    array = _numbers(arms, name)
    if array.ndim != ndim:
        valid = "(d,), the features of one arm"
        if ndim == 2:
            valid = "(n, d), a row per arm or duel. Reshape your data, such as with reshape(1, -1)"
        raise ValueError(f"{name} has shape {array.shape}: must be {valid}")
    array = np.atleast_2d(array)
    for size, what in zip(array.shape, ("sample", "feature"), strict=True):
        if size == 0:  # in the words that scikit-learn requires
            raise ValueError(
                f"{name} has 0 {what}(s) (shape={array.shape}) while a minimum of 1 is required."
            )
    if dimension is None:
        return array
    if not isinstance(dimension, Integral) or isinstance(dimension, bool) or dimension < 1:
        raise _invalid("dimension", dimension, "a whole number, at least 1")
    if array.shape[1] != dimension:
        raise ValueError(
            f"{name} has {array.shape[1]} features, but DuelingBandit is expecting"
            f" {shown(dimension)} features as input"
        )
    return array


def _column(values: ArrayLike, name: str, length: int) -> FloatArray:
    if values is None:
        raise ValueError(f"requires {name} to be passed, but the target {name} is None")
    array = _numbers(values, name)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.shape != (length,):
        raise ValueError(f"{name} has shape {array.shape}: must be ({length},), one for each duel")
    return array


def _numbers(values: Any, name: str) -> FloatArray:
    """Return an array of finite float64."""
    if values is None:
        raise ValueError(f"{name} is None: must be an array of numbers")
    if hasattr(values, "toarray") and not isinstance(values, np.ndarray):
        raise ValueError(f"{name} is a sparse matrix, which is not supported: use .toarray()")
    if has_masked(values):
        raise ValueError(f"{name} has masked entries: leave these out, or fill them with numbers")
    try:
        array = np.asarray(values)
        if array.dtype.kind in "OSU" and any(isinstance(each, str | bytes) for each in array.flat):
            dummies = "; see pandas.get_dummies(..., drop_first=True)" * hasattr(values, "iloc")
            raise TypeError(f"it contains strings{dummies}")
        if array.dtype.kind in "mM":
            raise TypeError(f"its type is {array.dtype}; convert dates and durations to numbers")
        if np.iscomplexobj(array):
            raise TypeError("Complex data not supported")
        array = array.astype(np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        place = _place_of_first_wrong(values)
        raise ValueError(f"{name} must contain numbers: {one_line(error)}{place}") from None
    if (wrong := array[~(np.abs(array) <= _LARGEST)]).size:
        valid = f"numbers of at most {_LARGEST:g} in absolute value, not NaN or infinity"
        place = _place_of_first_wrong(values)
        raise ValueError(f"{name} contains {wrong[0]:g}: must contain {valid}{place}")
    return array


def _place_of_first_wrong(values: Any) -> str:
    """Return `` (row R, column C)`` of the first entry that is not a valid number, or nothing."""
    with contextlib.suppress(ValueError):  # lists of different lengths
        for position, value in np.ndenumerate(np.asarray(values, dtype=object)):
            with contextlib.suppress(TypeError, ValueError, OverflowError):
                if not isinstance(value, str | bytes) and abs(float(value)) <= _LARGEST:
                    continue
            labels: list[Any] = [*position]
            if hasattr(values, "iloc"):
                labels = [axis[i] for axis, i in zip(values.axes, position, strict=True)]
            words = ("row", "column") if len(labels) == 2 else ["entry"] * len(labels)
            places = [f"{word} {one_line(each)}" for word, each in zip(words, labels, strict=True)]
            return f" ({', '.join(places)})" if places else ""
    return ""


def _number(name: str, value: Any, *, positive: bool = False) -> float:
    """Return a parameter that is a number of at least 0, or above 0."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not 0.0 <= value <= _LARGEST or (positive and not float(value)):
        limit = "above 0" if positive else "at least 0"
        raise _invalid(name, value, f"a number, {limit} and at most {_LARGEST:g}")
    return float(value)


def _seed(state: Any) -> int:
    """Return the seed of a ``random_state``: an integer, None, or a generator of NumPy."""
    if state is None:
        return int.from_bytes(os.urandom(8), "little")
    if isinstance(state, np.random.Generator):
        return int(state.integers(2**63))
    if isinstance(state, np.random.RandomState):
        return int(state.randint(2**31))
    if isinstance(state, Integral) and not isinstance(state, bool) and int(state) >= 0:
        return int(state)
    valid = "a whole number, at least 0, a generator of NumPy or None"
    raise _invalid("random_state", state, valid)


def _invalid(name: str, value: Any, valid: str) -> ValueError:
    return ValueError(f"{name}={shown(value)}: must be {valid}")


def _minimiser(duels: _Duels, ridge: float, start: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the minimiser (d,) of loss and ridge, and C (d, d) with inverse Hessian ``C C^T``.

    Units of features and weights are powers of 2, which scale without rounding errors, such that
    the largest feature, the largest weight and the ridge are at most 1. C is from the QR
    decomposition of a root of the Hessian, which has the root of the Hessian's condition number.
    Raises ConvergenceError if the result is not accurate to about 1e-8, or not in float64's range.
    """
    used = duels.weights > 0.0
    rows, answers, weights = (each[used] for each in duels)
    root = (_exponent(weights.max()) + 1) // 2  # of the unit of weights, 4^root
    unit = max(_exponent(np.abs(rows).max()), (_exponent(ridge) + 1) // 2 - root)
    rows, weights = np.ldexp(rows, -unit), np.ldexp(weights, -2 * root)
    scaled = math.ldexp(ridge, -2 * (root + unit))
    if scaled < _LEAST:
        raise _inaccurate(duels, ridge)
    with np.errstate(over="ignore"):
        start = np.ldexp(start, unit)
    start = np.where(np.isfinite(start), start, 0.0)
    try:
        prior = scaled * np.eye(len(start)), np.zeros(len(start))
        loss = Loss(rows.T[None], answers[None], weights[None])
        point = minimise(start[None], loss, *prior).point[0]
        for is_last in (False, True):
            slopes, curvatures = residuals(rows @ point, answers)
            factor = _inverse_root(rows, weights * curvatures, scaled)
            if not is_last:
                gradient = (weights * slopes) @ rows + scaled * point
                point -= factor @ (gradient @ factor)
    except np.linalg.LinAlgError:
        raise _inaccurate(duels, ridge) from None
    sizes = np.abs(rows), np.abs(point), np.abs(factor)
    terms = np.abs(slopes) + curvatures * (sizes[0] @ sizes[1])
    noise = _EPS * ((weights * terms) @ sizes[0] + scaled * sizes[1])  # of the gradient
    changes = sizes[0] @ (sizes[2] @ (noise @ sizes[2]))
    if (changes > _ACCURACY * (1.0 + np.abs(rows @ point))).any():
        raise _inaccurate(duels, ridge)
    theta, whitener = np.ldexp(point, -unit), np.ldexp(factor, -(root + unit))
    variances = (whitener * whitener).sum(axis=1)
    is_in_range = (np.ldexp(theta, unit) == point).all() and np.isfinite(variances).all()
    if not (is_in_range and variances.min() > np.finfo(float).tiny):
        raise _inaccurate(duels, ridge)
    return theta, whitener


def _inverse_root(rows: FloatArray, curvatures: FloatArray, ridge: float) -> FloatArray:
    """Return upper triangular C with ``(sum_i curvature_i x_i x_i^T + ridge I)^-1 = C C^T``."""
    d = rows.shape[1]
    parts = np.sqrt(curvatures)[:, None] * rows, math.sqrt(ridge) * np.eye(d)
    upper = np.linalg.qr(np.concatenate(parts), mode="r")
    lengths = np.linalg.norm(upper, axis=0)
    inverse = np.linalg.inv(upper / lengths)
    if not np.linalg.norm(inverse) * math.sqrt(d) <= _WORST:
        raise np.linalg.LinAlgError("the Hessian is almost singular")
    factor: FloatArray = inverse * np.sign(np.diagonal(upper)) / lengths[:, None]
    return factor


def _exponent(number: float) -> int:
    """Return the least k with ``number < 2^k``; a very small one for 0."""
    return math.frexp(number)[1] if number else -2000


def _inaccurate(duels: _Duels, ridge: float) -> ConvergenceError:
    longest, heaviest = float(np.abs(duels.differences).max()), float(duels.weights.max())
    return ConvergenceError(
        f"ridge={ridge:g} gives no accurate estimate with differences of features up to"
        f" {longest:.1e} and weights up to {heaviest:.1e}: scale the features to about 1, or use a"
        f" ridge nearer to {heaviest * longest * longest:.0e}"
    )
