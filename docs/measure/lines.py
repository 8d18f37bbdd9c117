"""Count lines, lines of code, docstrings and modules by room: `python docs/measure/lines.py`."""

import ast
import io
import subprocess
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("fldb_flower", "strategies", "clients", "simulations", "conf")
LAYOUT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER,
}  # fmt: skip
COLUMNS = ("modules", "lines", "code", "docstrings")


def counts(source: str) -> Counter[str]:
    """Count the lines of a module; a line of code has a token outside comments and docstrings."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            match node.body:
                case [ast.Expr(ast.Constant(str())) as text, *_]:
                    docstrings.update(range(text.lineno, (text.end_lineno or 0) + 1))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT:
            code.update(range(token.start[0], token.end[0] + 1))
    return Counter(
        modules=1, lines=source.count("\n"), code=len(code - docstrings), docstrings=len(docstrings)
    )


def main() -> None:
    """Print a table of the rooms, and the sums of product, scripts, tests and measurement."""
    listed = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True)
    rooms: dict[str, Counter[str]] = {}
    sums: dict[str, Counter[str]] = {}
    for name in listed.split():
        path = ROOT / name
        top = name.split("/")[0]
        if path.suffix in {".js", ".py"} and path.exists():
            source = path.read_text(encoding="utf-8")
            if path.suffix == ".js":
                sums.setdefault("scripts of pages", Counter()).update(lines=source.count("\n"))
            elif top in PACKAGES:
                rooms.setdefault(str(Path(name).parent), Counter()).update(counts(source))
                sums.setdefault("product", Counter()).update(counts(source))
            elif top == "tests" or name.startswith("docs/measure/"):
                sums.setdefault(top if top == "tests" else "measurement", Counter()).update(
                    counts(source)
                )
    print(f"{'':34}" + "".join(f"{column:>12}" for column in COLUMNS))
    for room, found in [*sorted(rooms.items()), *sums.items()]:
        print(f"{room:34}" + "".join(f"{found[column]:>12,}" for column in COLUMNS))


if __name__ == "__main__":
    main()
