r"""The Bradley-Terry model: a ranking of items from comparisons, of one person or many.

Each item has a utility. The probability that item i is preferred to item j is
:math:`\mu(u_i - u_j)` with the logistic function :math:`\mu`. This is the linear model of the
other modules with one indicator feature per item. A person's utilities are
:math:`u + \mathcal{N}(0, v I)`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from fldb_flower.bandit import preference
from fldb_flower.bandit.preference import link, residuals
from fldb_flower.bandit.selection.informative import most_informative
from fldb_flower.errors import ConvergenceError, DataError
from fldb_flower.linalg.arrays import Array
from simulations.api.comparisons import Comparisons, parse_comparisons, read_comparisons
from simulations.api.ranking_text import ENOUGH, text_of

VARIANCES = (0.0, *(10.0 ** np.linspace(-2.0, 2.0, 9)).tolist())
"""Values of v that are tried; 0: people do not differ."""

_DRAWS, _ROUNDS, _STEPS, _CHECKED = 20_000, 100, 200, 20
_NORMAL = 1.959964  # the quantile of a 95% interval


class Fit(NamedTuple):
    """Common utilities (items,), each person's own, covariances and predictions."""

    utilities: Array
    own: Array  # (people, items)
    covariance: Array  # of the common utilities, relative to their mean; (items, items)
    left_out: Array  # logits of the comparisons, each predicted from all others; (n,)


@dataclass(frozen=True)
class Ranking:
    """A ranking of items.

    Attributes
    ----------
    table : DataFrame
        A row per item, best first: ``rank``, ``item``, ``utility`` (in logits, with mean 0),
        ``low`` and ``high`` (95% interval of the utility), ``best`` (probability that the item has
        the largest utility), ``wins``, ``losses`` and ``ties``.
    people : DataFrame or None
        The utilities of each person, a row per person and a column per item, best first. Items that
        the person did not compare have the common utility. None with one person.
    count : float
        Number of comparisons.
    variance : float or None
        v, the variance of people's utilities around the common ones: that of :data:`VARIANCES` with
        the smallest log loss. None with one person.
    log_loss : tuple of float
        Mean log loss of left-out comparisons, predicted by the common utilities and, with more than
        one person, by the person's own. That of a coin is log 2, 0.693.
    gain : tuple of float or None
        How much lower the log loss by people's own utilities is, and the standard error of this
        difference over people; None with one person.
    accuracy : tuple of float
        Fraction of them whose winner is predicted; ties are ignored.
    notes : tuple of str
        Facts that limit what the ranking means: groups of items that were never compared, items
        that never lost or never won, cycles, few answers, columns that are not used, no column of
        people, and names that differ in case only.
    similar : dict of str to str
        Items that were compared once and may be misspelt, each with the item of a similar name.

    See Also
    --------
    rank_items : Returns a ranking.

    Examples
    --------
    >>> import pandas as pd
    >>> import fldb_flower as fldb
    >>> answers = pd.DataFrame({"winner": ["tea", "mate"], "loser": ["mate", "tea"]})
    >>> fldb.rank_items(answers).table["best"].round(1).to_list()
    [0.5, 0.5]
    """

    table: pd.DataFrame
    people: pd.DataFrame | None
    count: float
    variance: float | None
    log_loss: tuple[float, ...]
    gain: tuple[float, float] | None
    accuracy: tuple[float, ...]
    notes: tuple[str, ...]
    similar: dict[str, str]
    _fit: Fit = field(repr=False)
    _data: Comparisons = field(repr=False)

    def __str__(self) -> str:
        """Return the text that ``fldb rank`` prints."""
        return text_of(self)

    def next_pairs(self, count: int = 20) -> pd.DataFrame:
        """Return the pairs to compare next, the most informative one first.

        An answer about the first pair is expected to reduce the uncertainty of the utilities most
        (D-optimality), and so on, as if the pairs before had been answered. A pair that was
        compared before can be among them: another person may answer. Which item of a pair is first
        is random. Of more than 300 items, 300 random ones are compared for each pair.

        Parameters
        ----------
        count : int
            Number of pairs; at most all pairs of items.

        Returns
        -------
        DataFrame
            The columns ``first`` and ``second``, each pair once.

        Examples
        --------
        >>> import pandas as pd
        >>> import fldb_flower as fldb
        >>> answers = pd.DataFrame({"winner": ["tea", "tea"], "loser": ["mate", "milk"]})
        >>> sorted(fldb.rank_items(answers).next_pairs(1).iloc[0])
        ['mate', 'milk']
        """
        fit, items, random = self._fit, self._data.items, np.random.default_rng(0)
        arms = np.eye(len(items))
        root, chosen, pairs = _root(fit.covariance), set[frozenset[int]](), list[list[str]]()

        def known(*pair: int) -> tuple[bool, float]:
            return frozenset(pair) in chosen, 0.0

        for _ in range(min(count, len(items) * (len(items) - 1) // 2)):
            one, other = most_informative(arms, fit.utilities, root, known)
            chosen.add(frozenset((one, other)))
            pairs.append([items[each] for each in random.permutation([one, other])])
            spread = root[one] - root[other]
            square, curvature = spread @ spread, link(fit.utilities[one] - fit.utilities[other])[1]
            shrunk = (1.0 - 1.0 / np.sqrt(1.0 + curvature * square)) / square
            root = root - shrunk * np.outer(root @ spread, spread)  # covariance with this answer
        return pd.DataFrame(pairs, columns=["first", "second"])


def rank_items(comparisons: pd.DataFrame | str | Path, ridge: float = 1.0) -> Ranking:
    """Rank items from comparisons, as ``fldb rank FILE`` does.

    Parameters
    ----------
    comparisons : DataFrame, str or Path
        A table with a row per comparison, or a file: CSV, TSV, with semicolons, or Excel. The
        columns are ``winner`` and ``loser``; or ``first``, ``second`` and ``preference``, which is
        1 or ``first`` (the first item was preferred), 0 or ``second``, 0.5 or ``tie``, a number
        between, or the name of the preferred item. Optional columns are ``person``, ``tie`` (yes or
        no: winner and loser are equal) and ``count``. The case of the header and other columns are
        ignored.
    ridge : float
        Precision of the prior of each utility, N(0, 1 / ridge), above 0. With one person, the
        utilities are those of logistic regression on indicators of the items with
        ``C = 1 / ridge``.

    Returns
    -------
    Ranking
        The intervals are from the normal approximation to the posterior.

    Raises
    ------
    DataError
        A column is missing or a value is invalid. The message names the row of the DataFrame, or
        the line of the file, whose line 1 is the header.

    Examples
    --------
    >>> import pandas as pd
    >>> import fldb_flower as fldb
    >>> won, lost = ["tea", "tea", "milk"], ["milk", "mate", "mate"]
    >>> answers = pd.DataFrame({"winner": won, "loser": lost})
    >>> fldb.rank_items(answers).table[["rank", "item", "utility", "wins", "losses"]].round(2)
       rank  item  utility  wins  losses
    0     1   tea     0.59   2.0     0.0
    1     2  milk     0.00   1.0     1.0
    2     3  mate    -0.59   0.0     2.0
    """
    if isinstance(comparisons, pd.DataFrame):
        return _ranking(parse_comparisons(comparisons), ridge)
    if not isinstance(comparisons, str | Path):
        kind = type(comparisons).__name__
        raise DataError(f"the comparisons must be a DataFrame or the path of a file, not {kind}")
    return _ranking(read_comparisons(Path(comparisons)), ridge)


def _ranking(data: Comparisons, ridge: float) -> Ranking:
    """Return the ranking with the v that best predicts left-out comparisons."""
    is_one, total = len(data.people) == 1, float(data.times.sum())
    fits = [fit(data, ridge, v) for v in ((0.0,) if is_one else VARIANCES)]
    losses = [preference.losses(each.left_out, data.preference) * data.times for each in fits]
    place = int(np.argmin([each.sum() for each in losses]))
    used, table = [0] if is_one else [0, place], _table(fits[place], data)
    decided = data.times * (data.preference != 0.5)
    right = [(fits[each].left_out > 0) == (data.preference > 0.5) for each in used]
    people = pd.DataFrame(fits[place].own, pd.Index(data.people, name="person"), data.items)
    return Ranking(
        table,
        None if is_one else people[table["item"]],
        total,
        None if is_one else VARIANCES[place],
        tuple(float(losses[each].sum() / total) for each in used),
        None if is_one else _gain(data, losses[0] - losses[place]),
        tuple(float(decided @ each / decided.sum()) if decided.any() else np.nan for each in right),
        tuple(_notes(data)),
        _similar(data),
        fits[place],
        data,
    )


def _gain(data: Comparisons, saved: Array) -> tuple[float, float]:
    """Return the mean of what comparisons save, and its standard error over people."""
    total, people = data.times.sum(), len(data.people)
    mean = float(saved.sum() / total)
    sums = np.bincount(data.person, saved - mean * data.times, people)
    return mean, float(np.linalg.norm(sums) * np.sqrt(people / (people - 1)) / total)


def _table(common: Fit, data: Comparisons) -> pd.DataFrame:
    """Return the table of a ranking, best first."""
    utilities, deviations = common.utilities, np.sqrt(np.diagonal(common.covariance))
    order = np.argsort(-utilities, kind="stable")
    wins, lost, ties = _counts(data)
    margin = _NORMAL * deviations
    columns = {
        "item": np.array(data.items, dtype=object),
        "utility": utilities,
        "low": utilities - margin,
        "high": utilities + margin,
        "best": _best(common),
        "wins": wins,
        "losses": lost,
        "ties": ties,
    }
    table = pd.DataFrame({name: column[order] for name, column in columns.items()})
    table.insert(0, "rank", np.arange(1, len(table) + 1))
    return table


def fit(data: Comparisons, ridge: float, variance: float) -> Fit:
    """Return the maximum of the joint posterior of the common utilities and each person's own.

    Each round solves each person's problem, and then the quadratic problem of the common utilities
    that it implies, as the exchanges of FLDB-Personal do with shares M_i and m_i.
    """
    size = len(data.items)
    if variance == 0.0:
        point, hessian = _posterior(data, ridge, np.zeros(size), np.zeros(size))
        inverse = np.linalg.inv(hessian)
        same = np.tile(point, (len(data.people), 1))
        return Fit(point, same, _centred(inverse), _left_out(data, point, inverse))
    order = np.argsort(data.person, kind="stable")
    rows = np.split(order, np.cumsum(np.bincount(data.person, minlength=len(data.people)))[:-1])
    own = [_renumbered(data.of(each)) for each in rows]
    utilities, points = np.zeros(size), [np.zeros(len(items)) for items, _ in own]
    for _ in range(_ROUNDS):
        precision, shift, fits = ridge * np.eye(size), np.zeros(size), []
        for place, (items, duels) in enumerate(own):
            mean, unit = utilities[items], np.eye(len(items))
            point, hessian = _posterior(duels, 1.0 / variance, mean, points[place])
            data_part = hessian - unit / variance
            gain = np.linalg.inv(unit + variance * data_part)  # of the mean in the point
            precision[np.ix_(items, items)] += gain @ data_part
            shift[items] += gain @ (data_part @ point - (mean - point) / variance)
            points[place] = point
            fits.append((gain, hessian))
        before = utilities
        utilities = np.asarray(np.linalg.solve(precision, shift), dtype=np.float64)
        if np.abs(utilities - before).max() < 1e-9 * (1.0 + np.abs(utilities).max()):
            break
    else:
        raise ConvergenceError(
            f"ridge={ridge:g}: the ranking did not converge in {_ROUNDS} rounds; increase the ridge"
        )
    covariance, left_out = np.linalg.inv(precision), np.empty(len(data.first))
    persons = np.tile(utilities, (len(own), 1))
    for number, (items, duels) in enumerate(own):
        each, point, (gain, hessian) = rows[number], points[number], fits[number]
        persons[number, items] = point
        common = gain @ covariance[np.ix_(items, items)] @ gain
        left_out[each] = _left_out(duels, point, np.linalg.inv(hessian) + common)
    return Fit(utilities, persons, _centred(covariance), left_out)


def _centred(covariance: Array) -> Array:
    """Return the covariance of the differences from the mean."""
    left = covariance - covariance.mean(axis=0)
    return left - left.mean(axis=1, keepdims=True)


def _renumbered(data: Comparisons) -> tuple[Array, Comparisons]:
    """Return the numbers of the items that occur, and the comparisons with these only."""
    items, places = np.unique(np.stack([data.first, data.second]), return_inverse=True)
    first, second = places.reshape(2, -1)
    return items, data._replace(items=tuple(map(str, items)), first=first, second=second)


def _posterior(
    data: Comparisons, precision: float, mean: Array, start: Array
) -> tuple[Array, Array]:
    """Return the mode of utilities with prior N(mean, I / precision), and the Hessian there."""
    size, point = len(mean), start

    def derivatives(at: Array) -> tuple[Array, Array]:
        slopes, curvatures = residuals(at[data.first] - at[data.second], data.preference)
        slopes, curvatures = data.times * slopes, data.times * curvatures
        gradient = np.bincount(data.first, slopes, size) - np.bincount(data.second, slopes, size)
        pairs = np.bincount(data.first * size + data.second, curvatures, size * size)
        off = pairs.reshape(size, size) + pairs.reshape(size, size).T
        hessian = np.diag(off.sum(axis=1) + precision) - off
        return gradient + precision * (at - mean), hessian

    gradient, hessian = derivatives(point)
    for _ in range(_STEPS):
        step = -np.linalg.solve(hessian, gradient)
        slope, length = gradient @ step, 1.0
        if -slope <= 1e-22 * max(1.0, data.times.sum()):
            return point, hessian
        while True:
            trial = point + length * step
            new, curvature = derivatives(trial)
            if new @ step <= 0.5 * -slope:  # convex: the step does not end steeply uphill
                break
            length *= 0.5
        moved = np.abs(trial - point).max() > 1e-14 * (1.0 + np.abs(trial).max())
        point, gradient, hessian = trial, new, curvature
        if not moved:
            return point, hessian
    raise ConvergenceError(f"the ranking did not converge in {_STEPS} steps; increase the ridge")


def _left_out(data: Comparisons, point: Array, covariance: Array) -> Array:
    """Return the logits of comparisons, each approximately predicted without its own answers.

    One Newton step removes a comparison (approximate leave-one-out), and the logit is shrunk for
    its variance, as the mean probability under a normal posterior requires.
    """
    one, other = data.first, data.second
    logits = point[one] - point[other]
    spread = np.diagonal(covariance)
    variances = spread[one] + spread[other] - 2.0 * covariance[one, other]
    slopes, curvatures = residuals(logits, data.preference)
    without = variances / np.maximum(1.0 - data.times * curvatures * variances, 1e-9)
    predicted = logits + data.times * slopes * without
    return predicted / np.sqrt(1.0 + np.pi / 8.0 * without)


def _root(covariance: Array) -> Array:
    """Return R with ``R R'`` = covariance."""
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))


def _best(fit: Fit) -> Array:
    """Return the probability that each item has the largest utility, from seeded draws."""
    size, random = len(fit.utilities), np.random.default_rng(0)
    root, first = _root(fit.covariance), np.zeros(size)
    for _ in range(_DRAWS // 1000):
        draws = fit.utilities + random.standard_normal((1000, size)) @ root.T
        first += np.bincount(draws.argmax(axis=1), minlength=size)
    return first / _DRAWS


def _counts(data: Comparisons) -> tuple[Array, Array, Array]:
    """Return the numbers of wins, losses and ties of each item, (items,) each.

    A preference that is a degree counts as that share of a win.
    """
    size, is_tie = len(data.items), data.preference == 0.5
    won, lost = data.times * data.preference, data.times * (1.0 - data.preference)
    won, lost = np.where(is_tie, 0.0, won), np.where(is_tie, 0.0, lost)
    tied = data.times * is_tie

    def total(of_first: Array, of_second: Array) -> Array:
        of_each = np.bincount(data.first, of_first, size)
        return of_each + np.bincount(data.second, of_second, size)

    return total(won, lost), total(lost, won), total(tied, tied)


def _notes(data: Comparisons) -> Iterator[str]:
    """Yield the facts of :attr:`Ranking.notes`."""
    size, (wins, lost, _) = len(data.items), _counts(data)
    linked, won = np.eye(size), np.zeros((size, size))
    linked[data.first, data.second] = linked[data.second, data.first] = 1.0
    np.add.at(won, (data.first, data.second), data.times * data.preference)
    np.add.at(won, (data.second, data.first), data.times * (1.0 - data.preference))
    groups = _groups(linked)
    if len(groups) > 1:
        sizes = ", ".join(_names(data, group) for group in groups[:3])
        more = f" and {len(groups) - 3} more" if len(groups) > 3 else ""
        yield (
            f"{len(groups)} groups of items were never compared with each other: {sizes}{more}."
            " Utilities of different groups are comparable only through the prior"
        )
    never_lost = np.flatnonzero((lost == 0) & (wins > 0))
    never_won = np.flatnonzero((wins == 0) & (lost > 0))
    for never, word, bound in ((never_lost, "lost", "large"), (never_won, "won", "small")):
        if never.size:
            yield (
                f"never {word}: {_names(data, never)}. How {bound} the utility is depends on the"
                " prior"
            )
    clear = 2.0 * np.sqrt(won + won.T)  # two standard errors of the lead, if both are equal
    beats = (won - won.T > clear).astype(float)
    cyclic = (beats @ beats) * beats.T  # from the first to the third item of a cycle of three
    if cyclic.any():
        first, third = np.argwhere(cyclic)[0]
        second = int(np.argmax(beats[first] * beats[:, third]))
        cycle = " > ".join(data.items[item] for item in (first, second, third, first))
        yield (
            f"cycles: {cyclic.any(axis=1).sum()} items are in cycles of three clear majorities,"
            f" such as {cycle}. One utility per item cannot express a cycle"
        )
    if len(data.people) > 1 and (each := data.times.sum() / len(data.people)) < ENOUGH:
        yield (
            f"people have {each:.1f} answers on average. With fewer than about {ENOUGH}, how much"
            " they differ cannot be estimated"
        )
    if data.ignored:
        yield f"ignored columns: {_listed(data.ignored, 10)}"
    if data.people == ("",):
        yield "there is no column person: all answers count as one person's"
    for kind, names in (("items", data.items), ("people", data.people)):
        spelt: dict[str, list[str]] = {}
        for name in names:
            spelt.setdefault(" ".join(name.casefold().split()), []).append(name)
        if same := [name for each in spelt.values() if len(each) > 1 for name in each]:
            yield f"{kind} differ in case only: {_listed(same)}"


def _similar(data: Comparisons) -> dict[str, str]:
    """Return items that were compared once, each with the item of a similar name."""
    size, similar = len(data.items), dict[str, str]()
    count = np.bincount(data.first, data.times, size) + np.bincount(data.second, data.times, size)
    digits = ["".join(filter(str.isdigit, item)) for item in data.items]
    for rare in np.flatnonzero(count == 1.0)[:_CHECKED]:
        others = [
            item for number, item in enumerate(data.items)
            if number != rare and digits[number] == digits[rare]
        ]  # fmt: skip
        name = data.items[rare]
        swaps = {name[:k] + name[k : k + 2][::-1] + name[k + 2 :] for k in range(len(name) - 1)}
        close = difflib.get_close_matches(name, others, 1, 0.8)
        if close := close or [item for item in others if item in swaps]:
            similar[name] = close[0]
    return similar


def _names(data: Comparisons, items: Array) -> str:
    return _listed([data.items[item] for item in items])


def _listed(names: Sequence[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _groups(links: Array) -> list[Array]:
    """Return the groups of items that links connect, (items, items), the largest first."""
    while ((longer := ((links @ links) > 0).astype(float)) != links).any():
        links = longer
    groups = [np.flatnonzero(row) for row in np.unique(links, axis=0)]
    return sorted(groups, key=lambda group: (-len(group), group[0]))
