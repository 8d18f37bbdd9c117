"""Seeded faults in the code of a room, and how many of them its tests notice.

`python docs/measure/mutants.py ROOM [COUNT] [TREE]`; the rooms are those of :data:`ROOMS`. TREE is
another checkout, so that two versions are compared with the same seeds. The tests run in a copy.
"""

import ast
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOMS = {
    "bandit": (("fldb_flower/bandit", "fldb_flower/algorithms"), ("bandit", "algorithms")),
    "secure": (
        ("fldb_flower/secure", "clients/vault", "clients/helper", "strategies/secure*.py"),
        ("secure",),
    ),
    "store": (("clients/store*",), ("clients/test_store.py", "clients/test_erasure.py")),
    "environments": (("fldb_flower/environments",), ("environments",)),
    "privacy": (("fldb_flower/privacy",), ("privacy",)),
}
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.And: ast.Or,
    ast.Or: ast.And,
}  # fmt: skip
Change = tuple[int, str, Callable[[], None]]


def changes(tree: ast.AST) -> list[Change]:
    """Return the line, the name and the function of each possible change of a module."""
    found: list[Change] = []

    def swap(owner: Any, key: str | int, value: Any, line: int, name: str) -> None:
        def change() -> None:
            if isinstance(key, int):
                owner[key] = value
            else:
                setattr(owner, key, value)

        found.append((line, name, change))

    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
            swap(node.ops, 0, SWAPS[type(node.ops[0])](), node.lineno, "comparison")
        elif isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPS:
            swap(node, "op", SWAPS[type(node.op)](), node.lineno, "operator")
        elif isinstance(node, ast.Constant) and type(node.value) in {int, float}:
            number: Any = node.value
            swap(node, "value", number + 1, node.lineno, "number")
        elif isinstance(node, ast.If | ast.IfExp):
            swap(node, "test", ast.UnaryOp(ast.Not(), node.test), node.lineno, "condition")
        if isinstance(node, ast.FunctionDef):
            for place, line in enumerate(node.body):
                if isinstance(line, ast.Expr) and isinstance(line.value, ast.Call):
                    swap(node.body, place, ast.Pass(), line.lineno, "call removed")
    return found


def main() -> None:
    """Print each change that no test notices, and the share of those noticed."""
    room, count = sys.argv[1], int((sys.argv[2:] or ["150"])[0])
    tree = Path(sys.argv[3]) if sys.argv[3:] else Path(__file__).parents[2]
    patterns, tests = ROOMS[room]
    scratch = Path(tempfile.mkdtemp(prefix="mutants"))
    copy = scratch / "copy"
    shutil.copytree(tree, copy, ignore=shutil.ignore_patterns(".git", "*cache*", "_build"))
    files = []
    for pattern in patterns:
        for path in sorted(copy.glob(pattern)):
            files += [path] if path.is_file() else sorted(path.rglob("*.py"))
    sites = []
    for path in files:
        sites += [(path, index) for index in range(len(changes(ast.parse(path.read_text()))))]
    missed = 0
    chosen = random.Random(0).sample(sites, min(count, len(sites)))
    command = [
        sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--timeout=120",
        *(f"tests/{name}" for name in tests),
    ]  # fmt: skip
    for path, index in chosen:
        source = path.read_text()
        parsed = ast.parse(source)
        line, name, change = changes(parsed)[index]
        change()
        path.write_text(ast.unparse(parsed))
        done = subprocess.run(command, cwd=copy, check=False, capture_output=True)
        path.write_text(source)
        if done.returncode == 0:
            missed += 1
            shown = source.splitlines()[line - 1].strip()
            print(f"not noticed: {path.relative_to(copy)}:{line} {name}: {shown}", flush=True)
    print(f"{room}: {len(chosen) - missed} of {len(chosen)} noticed")
    shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
