"""The structure of the code: layers, sizes of files and functions, private names, prose."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from fldb_flower.deployment.processes import tool

ROOT = Path(__file__).parents[2]
PRODUCT = [
    path
    for package in ("fldb_flower", "strategies", "clients", "simulations", "conf")
    for path in sorted((ROOT / package).rglob("*.py"))
]
TESTS = sorted((ROOT / "tests").rglob("*.py"))
LAYERS_BELOW_RUNS = (
    *("privacy", "wire", "algorithms", "federation", "environments", "bandit", "secure", "linalg"),
    *("settings", "catalogue", "system", "errors"),
)
HEAVY = {"matplotlib", "pandas", "torch"}
MOST_LINES_OF_A_FUNCTION = 50
MOST_COLUMNS_OF_PROSE = 100
# Names with an underscore that are public: named tuple methods and one function of `os`.
DOCUMENTED = {"_replace", "_fields", "_make", "_asdict", "_exit"}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def position(path: Path, node: ast.stmt | ast.expr) -> str:
    return f"{path.relative_to(ROOT)}:{node.lineno}"


def is_private(name: str) -> bool:
    is_special = name.endswith("_")  # __init__, and keys of Hydra such as _target_
    return name.startswith("_") and not is_special and name not in DOCUMENTED


def test_layers_import_only_downwards():
    """The contracts of [tool.importlinter] in pyproject.toml."""
    pytest.importorskip("importlinter", reason="needs import-linter (the dev extra)")
    command = [tool("lint-imports"), "--no-cache", "pyproject.toml"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def module_level_imports(tree: ast.Module) -> Iterator[tuple[ast.stmt, str]]:
    """Yield the packages imported at run time when the module is imported."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from ((node, alias.name.split(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node, (node.module or "").split(".")[0]
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            waiting += node.orelse
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)


def test_layers_below_runs_import_no_heavy_module():
    package = ROOT / "fldb_flower"
    low = [
        path
        for path in PRODUCT
        if path.is_relative_to(package)
        and path.relative_to(package).with_suffix("").parts[0] in LAYERS_BELOW_RUNS
    ]
    assert len(low) > len(LAYERS_BELOW_RUNS)
    found = [
        f"{position(path, node)} imports {name}"
        for path in low
        for node, name in module_level_imports(parsed(path))
        if name in HEAVY
    ]
    assert not found, "\n" + "\n".join(found)


def test_no_function_is_too_long():
    found = [
        f"{position(path, node)} {node.name} has {length} lines"
        for path in PRODUCT
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or 0) - node.lineno + 1) > MOST_LINES_OF_A_FUNCTION
    ]
    assert not found, "\n" + "\n".join(found)


def test_no_private_name_is_imported():
    def names(node: ast.AST) -> list[str]:
        if isinstance(node, ast.ImportFrom):
            return [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        if isinstance(node, ast.Import):
            return [part for alias in node.names for part in alias.name.split(".")]
        return []

    found = [
        f"{position(path, node)} {ast.unparse(node)}"
        for path in (*PRODUCT, *TESTS)
        for node in ast.walk(parsed(path))
        if any(is_private(name) for name in names(node))
    ]
    assert not found, "\n" + "\n".join(found)


def test_no_test_uses_a_private_attribute_of_another_object():
    def is_own(owner: ast.expr) -> bool:
        return ast.unparse(owner) in {"self", "cls", "super()"}

    found = [
        f"{position(path, node)} {ast.unparse(node)}"
        for path in TESTS
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Attribute) and is_private(node.attr) and not is_own(node.value)
    ]
    assert not found, "\n" + "\n".join(found)


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of a Markdown text, without code, tables and lines of one link."""
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not (is_code or line.lstrip().startswith(("|", "!["))):
            yield number, line


def test_lines_of_prose_are_short():
    patterns = "*.md", "docs/*.md", "docs/[!_]*/**/*.md"  # not of docs/_build
    pages = sorted(path for pattern in patterns for path in ROOT.glob(pattern))
    found = [
        f"{path.relative_to(ROOT)}:{number} has {len(line)} columns"
        for path in pages
        for number, line in prose(path.read_text())
        if len(line) > MOST_COLUMNS_OF_PROSE and not line.startswith("<!--")
    ]
    assert not found, "\n" + "\n".join(found)
