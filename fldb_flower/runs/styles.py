"""Colors, line styles and markers of curves, as plain data for every kind of chart.

An algorithm has the same color, dash pattern and marker in all figures and in the report. The
colors have a contrast of at least 3:1 with their background, and differ for each kind of color
vision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict


class Style(TypedDict):
    """The style of a curve.

    ``color`` is for white, and ``dark`` for a dark background such as ``#191f26``. ``dash`` has the
    lengths of dashes and gaps in line widths; it is empty for a solid line. ``marker`` has its name
    in Plotly.
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

CHANNELS = {"color": "algorithm", "dash": "tau", "marker": "num_agents"}
"""The parts of a style that encode settings, and the settings that they encode by preference."""

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
    "coldb": _style("COLDB", "#6000cc", "#9c24fc", 7),
}
"""Styles by the name of the algorithm."""


def _tuned(algorithm: str, place: int, kind: str = "") -> Style:
    style = ALGORITHM_STYLES[algorithm]
    return _style(f"{style['label']}{kind}, tuned", style["color"], style["dark"], place)


TUNED_STYLES: dict[str, Style] = {
    style["label"]: style
    for style in (
        _tuned("ldb", 4), _tuned("fldb_ogd", 5), _tuned("fldb_gd", 6), _tuned("fldb_ons", 0),
        _tuned("fldb_ogd", 3, ", geometric"), _tuned("fldb_gd", 4, ", geometric"),
        _tuned("fldb_ons", 7, ", geometric"),
    )
}  # fmt: skip
"""Styles of the curves in ``conf/tuned.yaml`` by their label."""

SEQUENCE = [
    *("#02020c", "#1c0c43", "#450a69", "#6c186e"),
    *("#932667", "#b93556", "#d94d3d", "#f06f20"),
]
"""Ordered colors on white for curves of no single algorithm, from Matplotlib's ``inferno``."""

DARK_SEQUENCE = [
    *("#bc3754", "#d44842", "#e8602d", "#f67e14"),
    *("#fc9f07", "#fac228", "#f3e55d", "#fcffa4"),
]
"""The same on a dark background."""

_REGISTERED = [("#8a6a00", "#c9a227"), ("#4a4fc4", "#a9adff"), ("#a01a58", "#ff9ac1")]


def style_of(name: str, place: int = 0) -> Style:
    """Return the style of an algorithm, or of a tuned curve by its label.

    ``place`` selects that of one of the user's algorithms.

    Examples
    --------
    >>> from fldb_flower.runs.styles import style_of
    >>> style_of("fldb_ons")["label"]
    'FLDB-ONS'
    """
    if known := ALGORITHM_STYLES.get(name) or TUNED_STYLES.get(name):
        return known
    color, dark = _REGISTERED[place % len(_REGISTERED)]
    return _style(name, color, dark, len(ALGORITHM_STYLES) + place)


def shade(color: str, lightness: float) -> str:
    """Return a color with another lightness (CIE 1976 L*), mixed with black or white."""
    wanted = ((lightness + 16) / 116) ** 3
    parts = [((int(color[i : i + 2], 16) / 255 + 0.055) / 1.055) ** 2.4 for i in (1, 3, 5)]
    own = 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]
    white = max(0.0, (wanted - own) / (1 - own))
    mixed = [white + (1 - white) * part * min(1.0, wanted / own) for part in parts]
    coded = [255 * max(0.0, 1.055 * part ** (1 / 2.4) - 0.055) for part in mixed]
    return "#" + "".join(f"{round(each):02x}" for each in coded)


def shades_of(algorithm: str, count: int) -> list[Style]:
    """Return the styles of ordered curves of one algorithm: shades of its color, dark to light.

    Without an algorithm, their colors are from :data:`SEQUENCE`.
    """
    base, most = style_of(algorithm), len(SEQUENCE)
    ends = (most - 1, max(count - 1, 1)) if count <= most else (most, count)
    styles = []
    for place in range(count):
        step = place * ends[0] // ends[1]
        color, dark = SEQUENCE[step], DARK_SEQUENCE[step]
        if algorithm:
            color, dark = shade(base["color"], 12 + 7 * step), shade(base["dark"], 46 + 7 * step)
        styles.append(_style(base["label"], color, dark, place))
    return styles


def styles_of(names: Sequence[str]) -> list[Style]:
    """Return the style of each curve of a figure, given the algorithm or label of each curve.

    The first curve of an algorithm has the style of the algorithm. Further curves have the same
    color, and another dash pattern and marker. If all curves have the same algorithm, they have
    :func:`shades_of` its color in their order.
    """
    if len(names) > 1 and len(set(names)) == 1:
        return shades_of(names[0], len(names))
    return dashed(names)


def dashed(names: Sequence[str]) -> list[Style]:
    """Return the styles of curves as :func:`styles_of`, without shades."""
    own = [name for name in dict.fromkeys(names) if name not in ALGORITHM_STYLES | TUNED_STYLES]
    first = {name: style_of(name, own.index(name) if name in own else 0) for name in names}
    used = {name: Counter([DASHES.index(first[name]["dash"])]) for name in first}
    styles, seen = [], set()
    for name in names:
        style = first[name]
        if name in seen:  # the dash pattern that it uses least, and then all algorithms
            of_all = sum(used.values(), Counter[int]())
            place = min(range(len(DASHES)), key=lambda at: (used[name][at], of_all[at]))
            used[name][place] += 1
            style = _style(style["label"], style["color"], style["dark"], place)
        seen.add(name)
        styles.append(style)
    return styles


def order_of(text: str) -> tuple[bool, float, str]:
    """Return a sort key of the text of a setting: numbers by value, other texts, a missing one."""
    try:
        return (False, float(text), "")
    except ValueError:
        return (True, float(not text), text)


def encode(rows: Sequence[Mapping[str, str]], algorithms: Sequence[str]) -> dict[str, Any]:
    """Return how styles encode settings, given the settings of each curve as text.

    ``scales`` has the styles of each setting's values, which ascend, ``levels`` the places of each
    curve's values among them, and ``encoding`` the setting of each of :data:`CHANNELS`.
    """
    keys = dict.fromkeys(key for row in rows for key in row)
    found = {key: {row.get(key, "") for row in rows} for key in keys}
    values = {key: sorted(own, key=order_of) for key, own in found.items() if len(own) > 1}
    shared = algorithms[0] if len(algorithms) == 1 else ""
    styles = {
        key: styles_of(own if key == "algorithm" else [shared] * len(own))
        for key, own in values.items()
    } or {"algorithm": styles_of(algorithms)}
    by_size = sorted(styles, key=lambda key: -len(styles[key]))
    kept = [key for key in CHANNELS.values() if len(styles.get(key, ())) <= len(DASHES)]
    free = [key for key in by_size if key not in kept]
    chosen = {
        channel: key if key in styles else free.pop(0) if free else by_size[0]
        for channel, key in CHANNELS.items()
    }
    levels = [{key: own.index(row.get(key, "")) for key, own in values.items()} for row in rows]
    return {"scales": styles, "levels": levels, "encoding": chosen}
