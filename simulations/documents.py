"""`python -m simulations.documents`: the documents, rendered from their templates.

A page's template is ``docs/templates/PAGE.md.j2``, in Jinja's language. The numbers in it come
from the result files ``docs/results/NAME.json``: in a template, ``NAME`` is the file's content.
``--check`` writes nothing and fails if a page is not what its template gives, or if a sample of
the runs in the result files has other results today. ``--recompute`` repeats all runs first.
"""

from __future__ import annotations

if __name__ == "__main__":  # before what takes long to import
    from simulations import start

    start.begin()

import argparse
import difflib
import itertools
import math
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fldb_flower.errors import DataError, FldbError, SettingsError, extra_missing, one_line
from fldb_flower.system.commands import Parser
from fldb_flower.system.signals import interruptible
from simulations import figures, measured

if TYPE_CHECKING:
    from jinja2 import Environment

ROOT = Path(__file__).parent.parent
TEMPLATES = ROOT / "docs" / "templates"
SEEDS = 10  # of each curve in the documents' figures
_NOTE = "<!-- Rendered from {} by `python -m simulations.documents`. Edit the template. -->\n"


def mean(values: Sequence[float]) -> float:
    """Return the mean."""
    return statistics.fmean(values)


def sem(values: Sequence[float]) -> float:
    """Return the standard error of the mean; at least two values are needed."""
    return statistics.stdev(values) / math.sqrt(len(values))


def fixed(value: float, digits: int = 0) -> str:
    """Return a number with that many decimals, and commas between thousands."""
    return f"{float(value):,.{digits}f}"


def signed(value: float, digits: int = 0) -> str:
    """Return a number with its sign, that many decimals, and commas between thousands."""
    return f"{float(value):+,.{digits}f}"


def mean_sem(values: Sequence[float], digits: int = 0) -> str:
    """Return ``mean ± standard error`` with that many decimals."""
    return f"{fixed(mean(values), digits)} ± {fixed(sem(values), digits)}"


def paired(less: Sequence[float], more: Sequence[float]) -> list[float]:
    """Return the differences ``more - less``, seed by seed."""
    return [b - a for a, b in zip(less, more, strict=True)]


def holds(*ascending: Sequence[float]) -> str:
    """Return whether the means of some measures are in ascending order, as was claimed.

    Each measure is compared with the next, seed by seed. A difference counts if it is larger
    than two of its standard errors.

    Parameters
    ----------
    *ascending : sequence of float
        The values of each measure, by seed, in the order in which their means should ascend.

    Returns
    -------
    str
        ``yes`` if all differences count and are positive, ``no`` if one counts and is negative,
        else ``within noise``.
    """
    differences = [paired(a, b) for a, b in itertools.pairwise(ascending)]
    if any(mean(each) < -2 * sem(each) for each in differences):
        return "no"
    if all(mean(each) > 2 * sem(each) for each in differences):
        return "yes"
    return "within noise"


FILTERS = {
    "mean": mean,
    "median": statistics.median,
    "sem": sem,
    "fixed": fixed,
    "signed": signed,
    "mean_sem": mean_sem,
}
GLOBALS = {"paired": paired, "holds": holds}


def page_of(template: Path) -> Path:
    """Return the path of a template's page: ``README.md`` is at the root, others in ``docs``."""
    name = template.name.removesuffix(".j2")
    return ROOT / name if name == "README.md" else ROOT / "docs" / name


def render(environment: Environment, template: Path, results: dict[str, Any]) -> str:
    """Return the page of a template.

    Raises
    ------
    DataError
        The template is wrong, or names a result that there is not.
    """
    from jinja2 import TemplateError  # noqa: PLC0415 - of the dev extra

    place = template.relative_to(ROOT).as_posix()
    try:
        text = environment.from_string(template.read_text(encoding="utf-8")).render(results)
    except (TemplateError, TypeError, ValueError) as error:  # the latter from filters
        line = getattr(error, "lineno", None) or _line_of(error)
        raise DataError(f"{place}, line {line}: {one_line(error)}") from None
    return _NOTE.format(place) + text


def _line_of(error: Exception) -> int:
    """Return the line of the template in which an error was raised."""
    trace, line = error.__traceback__, 0
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def load_results() -> dict[str, Any]:
    """Return the content of each result file by its name."""
    return {path.stem: measured.read(path) for path in sorted(measured.FOLDER.glob("*.json"))}


def pages(results: dict[str, Any]) -> dict[Path, str]:
    """Return the text of every page by its path."""
    try:
        from jinja2 import Environment, StrictUndefined  # noqa: PLC0415 - of the dev extra
    except ImportError:
        raise extra_missing("python -m simulations.documents", "dev") from None
    environment = Environment(
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown, not HTML
    )
    environment.filters.update(FILTERS)
    environment.globals.update(GLOBALS)
    templates = sorted(TEMPLATES.glob("*.md.j2"))
    if not templates:
        raise SettingsError(f"no templates in {TEMPLATES}: documents are made in a checkout")
    return {page_of(template): render(environment, template, results) for template in templates}


def differing(rendered: dict[Path, str]) -> list[str]:
    """Return a line for each page that differs from what its template gives."""
    lines = []
    for path, text in rendered.items():
        old = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        changes = list(difflib.unified_diff(old, text.splitlines(), n=0, lineterm=""))
        if changes:
            first = " ".join(line.strip() for line in changes[3:5])
            lines.append(f"{path.relative_to(ROOT)} differs from its template: {first:.200}")
    return lines


def stale(results: dict[str, Any], movielens: str) -> list[str]:
    """Repeat a sample of the runs; return a line for each result that differs today."""
    return [
        f"docs/results: {line}"
        for name, content in results.items()
        for where, run in measured.sample(content, name, movielens)
        for line in measured.stale(where, run, movielens)
    ]


def recompute(names: Sequence[str], results: dict[str, Any], movielens: str) -> None:
    """Repeat all runs of some result files and write the files; draw the pictures again, too."""
    for name in names:  # what is wrong or missing is found before the first run
        for where, run in measured.runs_in(results[name], name):
            measured.settings_of(run, 0, where, movielens)
    for name in names:
        if name == "figures":
            results[name] = make_figures(movielens)
        else:
            measured.repeat(results[name], name, movielens)
        measured.write(measured.FOLDER / f"{name}.json", results[name])


def make_figures(movielens: str) -> dict[str, Any]:
    """Draw the documents' figures; return their runs, and the processor time that these took."""
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
    """Entry point."""
    assert __doc__ is not None
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail on a difference")
    parser.add_argument(
        "--recompute", nargs="*", metavar="NAME", help="repeat the runs of these result files (all)"
    )
    parser.add_argument(
        "--movielens",
        default=os.environ.get("FLDB_ML100K", ""),
        metavar="PATH",
        help="MovieLens 100K's ratings (default: FLDB_ML100K)",
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
    """Do what was asked; return what a check found."""
    results = load_results()
    if asked.check:
        return differing(pages(results)) + stale(results, asked.movielens)
    if asked.recompute is not None:
        unknown = [name for name in asked.recompute if name not in results]
        if unknown:
            known = ", ".join(results)
            raise SettingsError(f"no result file {unknown[0]!r} in docs/results: there are {known}")
        recompute(asked.recompute or list(results), results, asked.movielens)
    for path, text in pages(results).items():
        path.write_text(text, encoding="utf-8")
    return []


if __name__ == "__main__":
    main()
