"""Every name of the API reference has a valid docstring, and its example runs."""

import doctest
import importlib
import inspect
import pkgutil
import re

import pytest
from conftest import ROOT

validate = pytest.importorskip("numpydoc.validate", reason="needs numpydoc (the docs extra)")

pytestmark = pytest.mark.usefixtures("registered")
PAGES = sorted((ROOT / "docs" / "api").glob("*.md"))
PUBLIC = (  # every name of their `__all__` is in the reference
    "fldb_flower",
    "fldb_flower.algorithms",
    "fldb_flower.bandit.selection",
    "fldb_flower.environments",
    "fldb_flower.federation.exchange",
    "clients.preference_agent",
    "strategies",
)
CODES = {  # https://numpydoc.readthedocs.io/en/latest/validation.html
    *("GL05", "GL06", "GL07", "GL08", "SS01", "SS02", "SS03", "SS04", "SS06"),
    *("PR02", "PR03", "PR05", "PR06", "PR07", "PR08", "PR09", "PR10"),
    *("RT02", "YD01", "SA02", "SA03", "SA04", "EX01"),
}


def listed() -> list[str]:
    """Return the names in the tables of the reference, ``module.name``."""
    names, module = [], ""
    for page in PAGES:
        for block in re.findall(r"```\{eval-rst\}\n(.*?)```", page.read_text(), re.DOTALL):
            for line in block.splitlines():
                if found := re.match(r"\.\. currentmodule:: (\S+)", line):
                    module = found[1]
                elif found := re.fullmatch(r"   (\w+)", line):
                    names.append(f"{module}.{found[1]}")
    return names


NAMES = listed()


def test_every_public_name_is_listed_once():
    assert {"fldb_flower.algorithms.Algorithm", "fldb_flower.bandit.selection.whiten"} <= {*NAMES}
    assert len(set(NAMES)) == len(NAMES)
    parts = [name.rpartition(".") for name in NAMES]
    errors = re.findall(r"`(\w+Error)`", (ROOT / "docs" / "api" / "results.md").read_text())
    for module in PUBLIC:
        exported = {name for name in importlib.import_module(module).__all__ if not name.isupper()}
        here = {name for owner, _, name in parts if owner == module}
        others = {name for _, _, name in parts} | {*errors} if module == "fldb_flower" else set()
        assert here <= exported <= here | others


@pytest.mark.parametrize("name", NAMES)
def test_docstring_is_valid_and_its_example_runs(name, tmp_path, monkeypatch):
    found = [f"{code}: {text}" for code, text in validate.validate(name)["errors"] if code in CODES]
    assert found == []
    monkeypatch.chdir(tmp_path)
    text = inspect.getdoc(pkgutil.resolve_name(name)) or ""
    example = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    assert example.examples, "no example"
    report: list[str] = []
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    doctest.DocTestRunner(optionflags=options).run(example, out=report.append)
    assert not report, "".join(report)
