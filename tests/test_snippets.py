"""The examples in the documents run.

Python blocks run in README.md and in all pages of the site that are not notebooks (those run when
the site is built). Shell blocks (``bash``) run in the tutorials and how-to guides. The blocks of a
page run in order, in an empty folder. A comment before a block skips it:
``<!-- skip: next "needs a device" -->``.
"""

import os
import signal
import subprocess
import unittest

import pytest
from test_run import ROOT

from fldb_flower.catalogue import ALGORITHMS, ENVIRONMENTS, SELECTIONS

sybil = pytest.importorskip("sybil", reason="needs sybil (the dev extra)")
markdown = pytest.importorskip("sybil.parsers.markdown")

PAGES = [
    ROOT / "README.md",
    *(
        path
        for path in sorted((ROOT / "docs").rglob("*.md"))
        if "_build" not in path.parts and "file_format: mystnb" not in path.read_text()
    ),
]
GUIDES = [page for page in PAGES if page.parent.name in ("tutorials", "howto")]


class Shell:
    """Run the shell blocks of a page as if they were pasted into one shell."""

    def __init__(self, folder):
        self.folder, self.groups = folder, []
        self.state = folder / "shell-state"
        (folder / "home").mkdir()
        (folder / "work").mkdir()

    def __call__(self, example):
        lines = [
            "set -eo pipefail",
            f"[ ! -f {self.state} ] || . {self.state}",
            str(example.parsed),
            f'{{ export -p; declare -f; printf "cd %q\\n" "$PWD"; }} > {self.state}',
        ]
        environment = {**os.environ, "HOME": str(self.folder / "home"), "PYTHONPATH": str(ROOT)}
        with (self.folder / "output").open("w+") as output:
            process = subprocess.Popen(
                ["bash", "-c", "\n".join(lines)],
                cwd=self.folder / "work",
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self.groups.append(process.pid)
            status = process.wait()
            output.seek(0)
            assert status == 0, f"line {example.line}: status {status}\n{output.read()[-4000:]}"

    def close(self):
        """End what the blocks left running."""
        for group in self.groups:
            try:
                os.killpg(group, signal.SIGKILL)
            except ProcessLookupError:
                continue


@pytest.fixture
def shell(tmp_path):
    shell = Shell(tmp_path)
    yield shell
    shell.close()


@pytest.fixture(autouse=True)
def registered():
    """Remove what an example registers."""
    before = [(each, set(each)) for each in (ALGORITHMS, SELECTIONS, ENVIRONMENTS)]
    yield
    for catalogue, names in before:
        for name in set(catalogue) - names:
            catalogue.remove(name)


def evaluate(page, *parsers):
    """Run the blocks of a page in order; return how many ran."""
    ran = 0
    for example in sybil.Sybil([*parsers, markdown.SkipParser()]).parse(page).examples():
        try:
            example.evaluate()
            ran += "skip" not in type(example.region.evaluator).__name__.lower()
        except unittest.SkipTest:
            continue
    return ran


def name_of(page):
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", [p for p in PAGES if p not in GUIDES], ids=name_of)
def test_python_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    evaluate(page, markdown.PythonCodeBlockParser())


@pytest.mark.slow
@pytest.mark.parametrize("page", GUIDES, ids=name_of)
def test_guides_run(page, shell, monkeypatch):
    monkeypatch.chdir(shell.folder / "work")
    evaluate(page, markdown.PythonCodeBlockParser(), markdown.CodeBlockParser("bash", shell))


def test_blocks_run_in_order_and_can_be_skipped(shell, monkeypatch):
    monkeypatch.chdir(shell.folder / "work")
    page = shell.folder / "page.md"
    page.write_text(
        "```bash\nmkdir sub && cd sub\nexport NUMBER=6\nsleep 60 &\n```\n"
        "```bash\necho $((NUMBER * 7)) > answer\n```\n"
        '```python\nanswer = int(open("sub/answer").read())\n```\n'
        '<!-- skip: next "needs a device" -->\n\n```bash\nexit 1\n```\n'
        '```python\nopen("seen", "w").write(str(answer))\n```\n'
    )
    parsers = markdown.PythonCodeBlockParser(), markdown.CodeBlockParser("bash", shell)
    assert evaluate(page, *parsers) == 4
    assert (shell.folder / "work" / "seen").read_text() == "42"


@pytest.mark.parametrize("block", ["bash\nfalse | true", "python\n1 / 0"])
def test_a_block_that_fails_is_an_error(block, shell, monkeypatch):
    monkeypatch.chdir(shell.folder / "work")
    page = shell.folder / "page.md"
    page.write_text(f"```{block}\n```\n")
    parsers = markdown.PythonCodeBlockParser(), markdown.CodeBlockParser("bash", shell)
    with pytest.raises((AssertionError, ZeroDivisionError)):
        evaluate(page, *parsers)
