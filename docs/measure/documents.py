"""`python docs/measure/documents.py`: render the documents from their templates.

The template of a page is ``docs/templates/PAGE.md.j2``, in Jinja's language. Its numbers come
from the result files ``docs/results/NAME.json``: in a template, ``NAME`` is the content of the
file. ``--check`` writes nothing. It fails if a page differs from its template, or if repeating a
sample of the runs in the result files gives other results. ``--recompute`` repeats all runs first.
Runs on MovieLens and on studies of real people need the environment variables FLDB_ML100K and
FLDB_DUELS.
"""

from __future__ import annotations

import argparse
import difflib
import itertools
import math
import os
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean as mean
from statistics import median
from typing import Any

from jinja2 import Environment, StrictUndefined, TemplateError
from scipy.stats import t

import capacity
import measured
import pictures
import tuning
from pictures import sem
from simulations import figures

ROOT = Path(__file__).parents[2]
TEMPLATES = ROOT / "docs" / "templates"
_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SEEDS = 10  # of each curve in the figures of the documents
_NOTE = "<!-- Rendered from {} by `python docs/measure/documents.py`. Edit the template. -->\n"


def fixed(value: float, digits: int = 0) -> str:
    """Format a number with thousands separators and the given decimals."""
    return f"{float(value):,.{digits}f}"


def signed(value: float, digits: int = 0) -> str:
    """Format a number with its sign, thousands separators and the given decimals."""
    return f"{float(value):+,.{digits}f}"


def decimals(middle: float, error: float) -> int:
    """Return decimals: three digits of a mean, but at least one and at most two of its error."""
    least, most = (digits - math.floor(math.log10(error)) if error > 0 else 0 for digits in (0, 1))
    three = 2 - math.floor(math.log10(abs(middle))) if middle else most
    return min(max(0, least, min(three, most)), 3)


def mean_sem(
    values: Sequence[float], digits: int | None = None, number: Callable[[float, int], str] = fixed
) -> str:
    """Format ``mean ± standard error``, by default with :func:`decimals`."""
    middle, error = mean(values), sem(values)
    digits = decimals(middle, error) if digits is None else digits
    return f"{number(middle, digits)} ± {fixed(error, digits)}"


def signed_sem(values: Sequence[float], digits: int | None = None) -> str:
    """Format ``mean ± standard error`` of differences, with a sign."""
    return mean_sem(values, digits, signed)


def paired(less: Sequence[float], more: Sequence[float]) -> list[float]:
    """Return the differences ``more - less``, seed by seed."""
    return [b - a for a, b in zip(less, more, strict=True)]


def holds(*ascending: Sequence[float]) -> str:
    """Return whether the means of measures are in ascending order.

    Each measure, a list of values by seed, is compared with the next, seed by seed. A difference
    counts if it is larger than two of its standard errors. The answer is ``yes`` if all differences
    count and are positive, ``no`` if one counts and is negative, else ``within noise``.
    """
    differences = [paired(a, b) for a, b in itertools.pairwise(ascending)]
    if any(mean(each) < -2 * sem(each) for each in differences):
        return "no"
    if all(mean(each) > 2 * sem(each) for each in differences):
        return "yes"
    return "within noise"


def best_alone(row: dict[str, measured.Run]) -> measured.Run:
    """Return the tuned run with less mean regret of those that learn alone, LDB and ``alone``."""
    return min((row["ldb_tuned"], row["alone_tuned"]), key=lambda run: mean(run["regret"]))


def verdict(reference: Sequence[float], values: Sequence[float], margin: float = 0.1) -> str:
    """Compare the means of a measure, a list of values by seed, with those of a reference.

    ``equal``: two one-sided 5% t-tests reject differences of ``margin`` times the reference's mean
    or more: the 90% interval of the paired difference lies within them. Otherwise ``larger`` or
    ``smaller`` if the difference is larger than two of its standard errors, else ``undecided``.
    """
    difference = paired(reference, values)
    middle, error = mean(difference), sem(difference)
    half = float(t.ppf(0.95, len(difference) - 1)) * error
    if abs(middle) + half < margin * abs(mean(reference)):
        return "equal"
    if abs(middle) <= 2 * error:
        return "undecided"
    return "larger" if middle > 0 else "smaller"


def against_alone(studies: dict[str, Any]) -> dict[str, list[str]]:
    """Return the tuned studies by the verdict on FLDB-Personal, against :func:`best_alone`."""
    found: dict[str, list[str]] = {}
    for study, row in studies.items():
        if "personal_tuned" in row:
            word = verdict(best_alone(row)["regret"], row["personal_tuned"]["regret"])
            found.setdefault(word, []).append(study)
    return found


def difference(reference: Sequence[float], values: Sequence[float], digits: int = 1) -> str:
    """Format the difference ``values - reference``, paired by seed, with its :func:`verdict`."""
    own, word = paired(reference, values), verdict(reference, values)
    shown = "equal within 10%" if word == "equal" else word
    return f"{signed_sem(own, digits)} ({shown})"


def page_of(template: Path) -> Path:
    """Return the path of the page of a template: ``README.md`` in the root, others in ``docs``."""
    name = template.relative_to(TEMPLATES).as_posix().removesuffix(".j2")
    return ROOT / name if name == "README.md" else ROOT / "docs" / name


def pages(results: dict[str, Any]) -> dict[Path, str]:
    """Return the text of each page by path."""
    environment = Environment(
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown, not HTML
    )
    environment.filters.update(
        mean=mean, median=median, sem=sem, mean_sem=mean_sem, signed_sem=signed_sem, fixed=fixed,
        signed=signed,
    )  # fmt: skip
    environment.globals.update(paired=paired, holds=holds, capacity=capacity)
    environment.globals.update(
        best_alone=best_alone, against_alone=against_alone, verdict=verdict, difference=difference,
        tuning=tuning,
    )  # fmt: skip
    environment.globals["repository"] = _PROJECT["urls"]["Repository"]
    rendered = {}
    for template in sorted(TEMPLATES.rglob("*.md.j2")):
        place = template.relative_to(ROOT).as_posix()
        try:
            text = environment.from_string(template.read_text(encoding="utf-8")).render(results)
        except (TemplateError, TypeError, ValueError) as error:  # ValueError: from filters
            sys.exit(f"error: {place}, line {_line_of(error)}: {error}")
        front, end, rest = text.partition("\n---\n") if text.startswith("---\n") else ("", "", text)
        rendered[page_of(template)] = front + end + _NOTE.format(place) + rest
    return rendered


def _line_of(error: Exception) -> int:
    """Return the line of the template that raised an error."""
    trace, line = error.__traceback__, getattr(error, "lineno", 0)
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def differing(rendered: dict[Path, str]) -> list[str]:
    """Return one line per page that differs from its rendered template."""
    lines = []
    for path, text in rendered.items():
        old = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        changes = list(difflib.unified_diff(old, text.splitlines(), n=0, lineterm=""))
        if changes:
            first = " ".join(line.strip() for line in changes[3:5])
            lines.append(f"{path.relative_to(ROOT)} differs from its template: {first:.200}")
    return lines


def stale(results: dict[str, Any]) -> list[str]:
    """Repeat a sample of the runs; return one line per result that differs."""
    return [
        f"docs/results: {line}"
        for name, content in results.items()
        for where, run in measured.sample(content, name)
        for line in measured.stale(where, run)
    ]


def recompute(name: str, content: Any) -> None:
    """Repeat all runs of a result file, write it, and draw its pictures again."""
    if name == "figures":
        content = make_figures()
    else:
        content = tuning.problems() if name == "tuned" else content
        if name == "personal":
            tuning.extend(content)
        tuning.tune(content)
        measured.repeat(content)
    measured.write(measured.FOLDER / f"{name}.json", content)
    pictures.draw(name, content)
    if name == "tuned":
        tuning.write_curves(content)


def make_figures() -> dict[str, Any]:
    """Draw the figures of the documents; return their runs and the processor time."""
    names = [*figures.PANELS, *figures.OVERVIEWS]
    begin = os.times().children_user
    with tempfile.TemporaryDirectory() as scratch:
        results = figures.make(
            names, Path(scratch), ours=True, movielens=os.environ["FLDB_ML100K"], seeds=SEEDS
        )
        for name in names:
            shutil.copyfile(Path(scratch) / f"{name}.png", pictures.FOLDER / f"{name}.png")
    content: dict[str, Any] = {"processor_seconds": round(os.times().children_user - begin)}
    for name, found in results.items():
        content[name] = figures_runs(name)
        for label, group in found.items():
            measured.fill(content[name][label], group)
    return content


def figures_runs(name: str) -> dict[str, measured.Run]:
    """Return the curves of a figure as runs of a result file, without values."""
    curves = figures.curves_of(name)
    last = min(curve.get("horizon", 500) for curve in curves.values())
    on_the_way = [f"regret_{each}" for each in (100, 200, 300, 400) if each < last]
    measures = [*(on_the_way if name not in figures.AGAINST else []), "regret", "rounds"]
    return {
        label: {
            "settings": curve,
            "seeds": SEEDS,
            **{key: [] for key in measures},
        }
        for label, curve in curves.items()
    }


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if something differs")
    parser.add_argument("--recompute", nargs="*", metavar="NAME", help="result files (all)")
    asked, results = parser.parse_args(), measured.load()
    if asked.check:
        if problems := differing(pages(results)) + stale(results):
            sys.exit("\n".join(f"error: {line}" for line in problems))
        return
    if asked.recompute is not None:
        for name in asked.recompute or results:
            recompute(name, results[name])
    for path, text in pages(measured.load()).items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
