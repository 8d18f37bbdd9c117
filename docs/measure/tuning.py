"""The rule by which every method of a comparison is tuned.

The width of a method is a factor from :data:`WIDTHS`: ``beta_scale`` times the width of the theory,
or ``ons_width`` or ``personal_width`` posterior standard deviations. The methods of the paper have
the ridge ``lambda=1`` then, as the others do. The step size of FLDB-OGD is tuned with the width,
``alpha`` from :data:`ALPHAS`. The chosen values have the least mean of the first measure (the final
regret) over :data:`SEEDS`, on the same problem. These seeds are not among the reported ones.

A run of a result file is tuned by ``documents.py --recompute`` if it has an object ``tried``. The
object gets the measure by seed for each of the values, and ``tuned`` the chosen values, which the
reported seeds use. The tuned curves of the figures are in ``tuned.json`` and ``conf/tuned.yaml``.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from measured import Run, measure, measures_of, runs_in, settings_of
from simulations import figures

WIDTHS = (0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5)
ALPHAS = (1.0, 3.0, 10.0, 30.0, 100.0, 1000.0)
SEEDS = range(1000, 1005)
PARAMETERS = {"fldb_ons": "ons_width", "fldb_personal": "personal_width", "alone": "personal_width"}
"""Names of the width; of other algorithms, it is ``beta_scale``."""
CURVES = Path(__file__).parents[2] / "conf" / "tuned.yaml"
METHODS: dict[str, dict[str, Any]] = {
    "LDB": {"algorithm": "ldb"},
    "FLDB-OGD": {"algorithm": "fldb_ogd"},
    "FLDB-GD": {"algorithm": "fldb_gd"},
    "FLDB-ONS": {"algorithm": "fldb_ons"},
}
GEOMETRIC: dict[str, dict[str, Any]] = {
    f"{name}, geometric": {**METHODS[name], "schedule": {"name": "geometric"}}
    for name in ("FLDB-OGD", "FLDB-GD", "FLDB-ONS")
}
THEORY = {  # beta_scale=auto is the width of the theory except for FLDB-ONS
    label: own | ({"beta_scale": 1} if own["algorithm"] == "fldb_ons" else {})
    for label, own in (METHODS | GEOMETRIC).items()
}
VARIANTS = ("ldb", "alone", "fldb_gd", "fldb_ons", "common", "personal")
"""Runs of docs/personal.md that are tuned."""
OTHERS: dict[str, dict[str, Any]] = {"n10": {"tau": 1, "num_agents": 10}}
"""Problems of docs/selection.md that are in no figure."""


def candidates(settings: Mapping[str, Any]) -> list[dict[str, float]]:
    """Return the values that are tried for a method."""
    algorithm = settings["algorithm"]
    if algorithm in PARAMETERS:
        return [{PARAMETERS[algorithm]: width} for width in WIDTHS]
    tried = [{"beta_scale": width, "lambda": 1.0} for width in WIDTHS]
    if algorithm != "fldb_ogd":
        return tried
    return [{**values, "alpha": alpha} for values, alpha in itertools.product(tried, ALPHAS)]


def choose(tried: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the values with the least mean; keys of ``tried`` are values as JSON."""
    chosen: dict[str, float] = json.loads(min(tried, key=lambda each: fmean(tried[each])))
    return chosen


def at_width(tried: Mapping[str, Sequence[float]], width: float) -> float:
    """Return the least mean with a width, of all step sizes."""
    return min(fmean(own) for key, own in tried.items() if width in _widths(key))


def _widths(key: str) -> list[float]:
    return [value for name, value in json.loads(key).items() if name not in ("lambda", "alpha")]


def shown(values: Mapping[str, float]) -> str:
    """Return chosen values as Markdown, without the ridge."""
    return ", ".join(f"`{name}={value:g}`" for name, value in values.items() if name != "lambda")


def tune(content: Any) -> None:
    """Tune all runs with ``tried`` in the content of a result file."""
    runs = [run for _, run in runs_in(content) if "tried" in run]
    wanted = [
        {
            json.dumps(values): [settings_of({**run, "tuned": values}, seed) for seed in SEEDS]
            for values in candidates(run["settings"])
        }
        for run in runs
    ]
    results = figures.each_once(one for own in wanted for group in own.values() for one in group)
    for run, own in zip(runs, wanted, strict=True):
        name = measures_of(run)[0]
        run["tried"] = {
            key: [measure(name, results[one]) for one in group] for key, group in own.items()
        }
        run["tuned"] = choose(run["tried"])


def extend(content: Any) -> None:
    """Add a tuned run, ``NAME_tuned``, for each of :data:`VARIANTS` beside a run of LDB."""
    if isinstance(content, dict) and "settings" not in content:
        for name in VARIANTS if "ldb" in content else ():
            if "regret" in (run := content.get(name, {})):
                empty: Run = {key: [] for key in measures_of(run)}
                own = {"settings": run["settings"], "tried": {}, "tuned": {}, "seeds": run["seeds"]}
                content[f"{name}_tuned"] = own | empty
        for value in content.values():
            extend(value)


def problems() -> dict[str, dict[str, Run]]:
    """Return the runs of ``tuned.json`` without values, by problem and curve.

    The problems of docs/selection.md also have runs with the width of the theory.
    """
    found: dict[str, dict[str, Run]] = {}
    for name in (*figures.PANELS, *figures.OVERVIEWS):
        curves = figures.curves_of(name, ours=False)
        if "LDB" in curves:
            found[name] = _runs(curves["LDB"], METHODS, tried={}, tuned={})
    for name, world in {figures.OVERVIEW: {"tau": 1, "num_agents": 100}, **OTHERS}.items():
        methods = METHODS | GEOMETRIC
        found[name] = _runs(world, methods, tried={}, tuned={})
        found[name] |= _runs(world, THEORY, "theory")
    return found


def _runs(
    world: Mapping[str, Any], methods: Mapping[str, Any], kind: str = "tuned", **more: Any
) -> dict[str, Run]:
    lists: Run = {"regret": [], "exchanges": []}
    return {
        f"{label}, {kind}": {"settings": {**world, **own}, **more, "seeds": 10, **lists}
        for label, own in methods.items()
    }


def write_curves(content: Mapping[str, Mapping[str, Run]]) -> None:
    """Write the tuned curves of the figures to ``conf/tuned.yaml``."""
    lines = ["# Further curves of the figures, written by `documents.py --recompute tuned`."]
    for name in [each for each in content if each not in OTHERS]:
        lines.append(f"{name}:")
        for label, run in content[name].items():
            if "tried" in run:
                own = {**(METHODS | GEOMETRIC)[label.removesuffix(", tuned")], **run["tuned"]}
                lines.append(f"  {json.dumps(label)}: {json.dumps(own)}")
    CURVES.write_text("\n".join(lines) + "\n", encoding="utf-8")
