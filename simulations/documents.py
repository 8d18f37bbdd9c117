"""`python -m simulations.documents`: render the documents from their templates.

The template of a page is ``docs/templates/PAGE.md.j2``, in Jinja's language. Its numbers come
from the result files ``docs/results/NAME.json``: in a template, ``NAME`` is the content of the
file. ``--check`` writes nothing. It fails if a page differs from its template, or if repeating a
sample of the runs in the result files gives other results. ``--recompute`` repeats all runs first.
"""

from __future__ import annotations

if __name__ == "__main__":  # before what takes long to import
    from simulations import start

    start.begin()

import argparse
import difflib
import itertools
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean as mean
from statistics import median
from typing import TYPE_CHECKING, Any

from fldb_flower.errors import DataError, FldbError, SettingsError, extra_missing, one_line
from fldb_flower.system.commands import Parser
from fldb_flower.system.progress import progress
from fldb_flower.system.signals import interruptible
from simulations import capacity, figures, heterogeneity, measured
from simulations.measured import sem

if TYPE_CHECKING:
    from jinja2 import Environment

ROOT = Path(__file__).parent.parent
TEMPLATES = ROOT / "docs" / "templates"
SEEDS = 10  # of each curve in the figures of the documents
_NOTE = "<!-- Rendered from {} by `python -m simulations.documents`. Edit the template. -->\n"


def fixed(value: float, digits: int = 0) -> str:
    """Format a number with thousands separators and the given decimals."""
    return f"{float(value):,.{digits}f}"


def signed(value: float, digits: int = 0) -> str:
    """Format a number with its sign, thousands separators and the given decimals."""
    return f"{float(value):+,.{digits}f}"


def mean_sem(values: Sequence[float], digits: int = 0) -> str:
    """Format ``mean ± standard error`` with the given decimals."""
    return f"{fixed(mean(values), digits)} ± {fixed(sem(values), digits)}"


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


def page_of(template: Path) -> Path:
    """Return the path of the page of a template: ``README.md`` in the root, others in ``docs``."""
    name = template.relative_to(TEMPLATES).as_posix().removesuffix(".j2")
    return ROOT / name if name == "README.md" else ROOT / "docs" / name


def render(environment: Environment, template: Path, results: dict[str, Any]) -> str:
    """Return the page of a template; raise a DataError if it, or a name in it, is not valid."""
    from jinja2 import TemplateError  # noqa: PLC0415 - dev extra

    place = template.relative_to(ROOT).as_posix()
    try:
        text = environment.from_string(template.read_text(encoding="utf-8")).render(results)
    except (TemplateError, TypeError, ValueError) as error:  # ValueError: from filters
        line = getattr(error, "lineno", None) or _line_of(error)
        raise DataError(f"{place}, line {line}: {one_line(error)}") from None
    return _NOTE.format(place) + text


def _line_of(error: Exception) -> int:
    """Return the line of the template that raised an error."""
    trace, line = error.__traceback__, 0
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def load_results() -> dict[str, Any]:
    """Return the content of each result file by name."""
    return {path.stem: measured.read(path) for path in sorted(measured.FOLDER.glob("*.json"))}


def pages(results: dict[str, Any]) -> dict[Path, str]:
    """Return the text of each page by path."""
    try:
        from jinja2 import Environment, StrictUndefined  # noqa: PLC0415 - dev extra
    except ImportError:
        raise extra_missing("python -m simulations.documents", "dev") from None
    environment = Environment(
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown, not HTML
    )
    environment.filters.update(
        mean=mean, median=median, sem=sem, mean_sem=mean_sem, fixed=fixed, signed=signed
    )
    environment.globals.update(paired=paired, holds=holds, capacity=capacity)
    templates = sorted(TEMPLATES.rglob("*.md.j2"))
    if not templates:
        raise SettingsError(f"no templates in {TEMPLATES}: documents are rendered in a checkout")
    return {page_of(template): render(environment, template, results) for template in templates}


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


def stale(results: dict[str, Any], paths: measured.Paths) -> list[str]:
    """Repeat a sample of the runs; return one line per result that differs."""
    runs = [
        each for name, content in results.items() for each in measured.sample(content, name, paths)
    ]
    lines = []
    with progress("check", len(runs), "run") as done:
        for where, run in runs:
            lines += [f"docs/results: {line}" for line in measured.stale(where, run, paths)]
            done()
    return lines


def recompute(names: Sequence[str], results: dict[str, Any], paths: measured.Paths) -> None:
    """Repeat all runs of result files and write the files; figures are drawn again."""
    for name in names:  # reports errors before the first run
        for where, run in measured.runs_in(results[name], name):
            measured.settings_of(run, 0, where, paths)
    for name in names:
        if name == "figures":
            results[name] = make_figures(paths["movielens"])
        else:
            measured.repeat(results[name], name, paths)
        if name == "personal":
            heterogeneity.draw(results[name], ROOT / "docs" / "figures")
        measured.write(measured.FOLDER / f"{name}.json", results[name])


def make_figures(movielens: str) -> dict[str, Any]:
    """Draw the figures of the documents; return their runs and the processor time."""
    names = [*figures.PANELS, figures.OVERVIEW]
    folder = ROOT / "docs" / "figures"
    folder.mkdir(exist_ok=True)
    begin = os.times().children_user
    with tempfile.TemporaryDirectory() as scratch:
        made = figures.make(
            names, Path(scratch), ours=True, bounds=False, movielens=movielens, seeds=SEEDS
        )
        for name in names:
            shutil.copyfile(Path(scratch) / f"{name}.png", folder / f"{name}.png")
    return {"processor_seconds": round(os.times().children_user - begin), **made}


def main() -> None:
    """Run the command."""
    assert __doc__ is not None
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if something differs"
    )
    parser.add_argument(
        "--recompute", nargs="*", metavar="NAME", help="repeat the runs of these result files (all)"
    )
    parser.add_argument(
        "--movielens",
        default=os.environ.get("FLDB_ML100K", ""),
        metavar="PATH",
        help="MovieLens 100K ratings (default: the environment variable FLDB_ML100K)",
    )
    parser.add_argument(
        "--duels",
        default=os.environ.get("FLDB_DUELS", ""),
        metavar="DIR",
        help="folder of the studies of real people (default: the environment variable FLDB_DUELS)",
    )
    asked = parser.parse_args()
    with interruptible():
        try:
            problems = _run(asked)
        except FldbError as error:
            sys.exit(f"error: {one_line(error)}")
        except OSError as error:
            sys.exit(f"error: cannot write to {error.filename}: {error.strerror}")
        if problems:
            sys.exit("\n".join(f"error: {line}" for line in problems))


def _run(asked: argparse.Namespace) -> list[str]:
    """Run the command; return the problems that a check found."""
    results = load_results()
    paths = {"movielens": asked.movielens, "duels": asked.duels}
    if asked.check:
        return differing(pages(results)) + stale(results, paths)
    if asked.recompute is not None:
        unknown = [name for name in asked.recompute if name not in results]
        if unknown:
            known = ", ".join(results)
            raise SettingsError(f"no result file {unknown[0]!r} in docs/results: there are {known}")
        recompute(asked.recompute or list(results), results, paths)
    for path, text in pages(results).items():
        path.write_text(text, encoding="utf-8")
    return []


if __name__ == "__main__":
    main()
