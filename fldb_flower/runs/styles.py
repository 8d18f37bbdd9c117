"""Colors, line styles and markers of curves, as plain data for every kind of chart.

An algorithm has the same color, dash pattern and marker in all figures and in the report. The
colors have a contrast of at least 3:1 with their background, and differ for each kind of color
vision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypedDict


class Style(TypedDict):
    """The style of a curve.

    Attributes
    ----------
    label : str
        Name of the algorithm in figures.
    color, dark : str
        Colors on white, and on a dark background such as ``#191f26``, as ``#rrggbb``.
    dash : list of float
        Lengths of dashes and gaps in multiples of the line width; empty for a solid line.
    marker : str
        Shape of points, by its name in Plotly and Vega.
    """

    label: str
    color: str
    dark: str
    dash: list[float]
    marker: str


DASHES: list[list[float]] = [
    [],
    [5, 2],
    [7, 2, 1.5, 2],
    [1.5, 1.5],
    [10, 3],
    [5, 1.5, 1.5, 1.5, 1.5, 1.5],
    [1.5, 3.5],
    [9, 2, 3, 2],
]

MARKERS = [
    *("circle", "square", "diamond", "triangle-down"),
    *("triangle-up", "triangle-left", "triangle-right", "cross"),
]


def _style(label: str, color: str, dark: str, place: int) -> Style:
    dash, marker = DASHES[place % len(DASHES)], MARKERS[place % len(MARKERS)]
    return Style(label=label, color=color, dark=dark, dash=dash, marker=marker)


ALGORITHM_STYLES: dict[str, Style] = {
    "fldb_ons": _style("FLDB-ONS", "#0072b2", "#56b4e9", 0),
    "fldb_ogd": _style("FLDB-OGD", "#d1410c", "#fa6e14", 1),
    "fldb_gd": _style("FLDB-GD", "#0aa648", "#23834a", 2),
    "ldb": _style("LDB", "#000000", "#f2f5f8", 3),
    "fldb_personal": _style("FLDB-Personal", "#7f2a6f", "#c0509e", 4),
    "alone": _style("alone", "#5a4320", "#ebcb75", 5),
    "random": _style("random", "#8a8c8e", "#9baa9b", 6),
}
"""Styles by the name of the algorithm."""

SEQUENCE = [
    *("#02020c", "#1c0c43", "#450a69", "#6c186e"),
    *("#932667", "#b93556", "#d94d3d", "#f06f20"),
]
"""Ordered colors on white for curves of one algorithm, from Matplotlib's ``inferno``."""

DARK_SEQUENCE = [
    *("#bc3754", "#d44842", "#e8602d", "#f67e14"),
    *("#fc9f07", "#fac228", "#f3e55d", "#fcffa4"),
]
"""The same on a dark background."""

_REGISTERED = [("#8a6a00", "#c9a227"), ("#4a4fc4", "#a9adff"), ("#a01a58", "#ff9ac1")]


def style_of(algorithm: str, place: int = 0) -> Style:
    """Return the style of an algorithm.

    Parameters
    ----------
    algorithm : str
        Name as in the settings.
    place : int, optional
        Selects the style of an algorithm that is not in :data:`ALGORITHM_STYLES`.
    """
    if algorithm in ALGORITHM_STYLES:
        return ALGORITHM_STYLES[algorithm]
    color, dark = _REGISTERED[place % len(_REGISTERED)]
    return _style(algorithm, color, dark, len(ALGORITHM_STYLES) + place)


def styles_of(algorithms: Sequence[str]) -> list[Style]:
    """Return the style of each curve of a figure, given the algorithm of each curve.

    The first curve of an algorithm has the style of the algorithm. Further curves have the same
    color, and another dash pattern and marker. If all curves have the same algorithm, their colors
    are from :data:`SEQUENCE` in their order.

    Examples
    --------
    >>> first, second, third = styles_of(["ldb", "fldb_ons", "fldb_ons"])
    >>> first["label"], first["color"], first["dash"]
    ('LDB', '#000000', [1.5, 1.5])
    >>> second["color"] == third["color"], second["dash"] == third["dash"]
    (True, False)
    """
    if len(algorithms) > 1 and len(set(algorithms)) == 1:
        label = style_of(algorithms[0])["label"]
        return [_of_sequence(label, place, len(algorithms)) for place in range(len(algorithms))]
    unknown = [name for name in dict.fromkeys(algorithms) if name not in ALGORITHM_STYLES]
    places = {name: place for place, name in enumerate(unknown)}
    own = {name: style_of(name, places.get(name, 0)) for name in algorithms}
    dashes = {name: Counter({DASHES.index(own[name]["dash"]): 1}) for name in own}
    styles, seen = [], set()
    for name in algorithms:
        style = own[name]
        if name in seen:
            place = _least_used(dashes[name], sum(dashes.values(), Counter()))
            dashes[name][place] += 1
            style = _style(style["label"], style["color"], style["dark"], place)
        seen.add(name)
        styles.append(style)
    return styles


def _least_used(by_algorithm: Counter[int], by_all: Counter[int]) -> int:
    """Return the dash pattern that an algorithm uses least, and then all algorithms."""
    return min(range(len(DASHES)), key=lambda place: (by_algorithm[place], by_all[place]))


def _of_sequence(label: str, place: int, count: int) -> Style:
    """Return the style of one of several curves of one algorithm."""
    most = len(SEQUENCE)
    step = place * (most - 1) // (count - 1) if count <= most else place * most // count
    return _style(label, SEQUENCE[step], DARK_SEQUENCE[step], place)
