"""A ranking as text, as `fldb rank` prints it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from fldb_flower.errors import one_line

if TYPE_CHECKING:
    from simulations.api.ranking import Ranking

ENOUGH = 10
"""Answers per person, on average, from which the standard deviation of people is stated."""

_SHOWN = 20  # rows
_FURTHEST = 3  # people who differ most


def names_of(ranking: Ranking, most: int, width: int) -> list[str]:
    """Return the names of the best items, with a star if they may be misspelt."""
    return [
        one_line(item)[:width] + " *" * (item in ranking.similar)
        for item in ranking.table["item"].head(most)
    ]


def counts_of(ranking: Ranking) -> str:
    """Return the numbers of comparisons, items and people."""
    people = "" if ranking.people is None else f" by {len(ranking.people):,} people"
    return f"{ranking.count:,.10g} comparisons of {len(ranking.table):,} items{people}"


def tells_people_apart(ranking: Ranking) -> bool:
    """Return whether there are enough answers to state how much people differ."""
    return ranking.people is not None and ranking.count >= ENOUGH * len(ranking.people)


def _differences(ranking: Ranking, own: str) -> list[str]:
    """Return the lines about people who differ."""
    people, variance, gain = ranking.people, ranking.variance, ranking.gain
    assert people is not None
    assert gain is not None
    if not variance:
        return ["No difference between people was found."]
    found = "clearly better" if gain[0] > 2.0 * gain[1] else "not clearly better"
    apart = (people - ranking.table["utility"].to_numpy()).to_numpy()
    far = []
    for row in np.argsort(-(apart**2).sum(axis=1), kind="stable")[:_FURTHEST]:
        item = int(np.abs(apart[row]).argmax())
        name, what = (one_line(each)[:30] for each in (people.index[row], people.columns[item]))
        far.append(f"{name} ({what} {apart[row, item]:+.1f})")
    return [
        f"A ranking for each person predicts {own}.",
        f"This is {found}: the log loss is lower by {gain[0]:.3f} +- {gain[1]:.3f}.",
        f"Utilities of people differ with a standard deviation of about {math.sqrt(variance):.1g}.",
        f"Furthest from the common ranking: {', '.join(far)}.",
    ]


def text_of(ranking: Ranking) -> str:
    """Return the ranking as lines for a terminal."""
    table = ranking.table
    shown = table.head(_SHOWN).copy()
    shown["item"] = names_of(ranking, _SHOWN, 40)
    for column in ("utility", "low", "high"):
        shown[column] = shown[column].map("{:+.2f}".format)
    shown["best"] = shown["best"].map("{:.0%}".format)
    for column in ("wins", "losses", "ties"):
        shown[column] = shown[column].map("{:g}".format)
    lines = [counts_of(ranking), "", shown.to_string(index=False)]
    if len(table) > _SHOWN:
        lines.append(f"... and {len(table) - _SHOWN} more")
    for item, other in ranking.similar.items():
        lines.append(one_line(f"* {item} was compared once; is it {other}?"))
    common, *own = (
        f"{right:.0%} of winners (log loss {loss:.3f})"
        for right, loss in zip(ranking.accuracy, ranking.log_loss, strict=True)
    )
    lines += ["", f"For comparisons that it has not seen, the ranking predicts {common}."]
    lines += ["A coin predicts 50% (log loss 0.693)."]
    if tells_people_apart(ranking):
        lines += _differences(ranking, own[0])
    return "\n".join([*lines, *(f"Note: {one_line(note)}." for note in ranking.notes)])
