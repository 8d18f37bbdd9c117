"""Links in the documents lead to tracked files and existing headings."""

import itertools
import re
import subprocess
from collections.abc import Iterator
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

import pytest
from conftest import ROOT

markdown_it = pytest.importorskip("markdown_it")


def git(*arguments):
    command = ["git", "-C", str(ROOT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.split("\0")[:-1]


TRACKED = set(git("ls-files", "-z"))
PAGES = sorted(name for name in TRACKED if name.endswith(".md"))


def tokens(text: str) -> Iterator:
    """Yield every token of a Markdown text, including inline tokens."""
    for token in markdown_it.MarkdownIt("gfm-like", {"linkify": False}).parse(text):
        yield token
        yield from token.children or ()


def links_of(text: str) -> list[str]:
    """Return the targets of links and images, including HTML."""
    found = []
    for token in tokens(text):
        if token.type in ("link_open", "image"):
            found.append(token.attrs.get("href") or token.attrs.get("src"))
        elif token.type in ("html_inline", "html_block"):
            found += re.findall(r"""(?:href|src)=["']([^"']+)""", token.content)
    return found


def anchors_of(text: str) -> set[str]:
    """Return the anchors of the headings: lower case, hyphens, no punctuation."""
    found: set[str] = set()
    parsed = list(tokens(text))
    for token, content in itertools.pairwise(parsed):
        if token.type == "heading_open":
            plain = "".join(child.content for child in content.children)
            base = re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")
            name, count = base, 0
            while name in found:
                count += 1
                name = f"{base}-{count}"
            found.add(name)
    return found


def broken(page: str, text: str) -> list[str]:
    """Return the relative links of a page whose file is not tracked or whose heading is missing."""
    found = []
    for link in links_of(text):
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = page
        if parts.path:
            joined = (ROOT / PurePosixPath(page).parent / unquote(parts.path)).resolve()
            target = joined.relative_to(ROOT).as_posix() if joined.is_relative_to(ROOT) else ".."
        is_file = target in TRACKED
        if not is_file and not any(name.startswith(f"{target}/") for name in TRACKED):
            found.append(link)
        elif parts.fragment and target.endswith(".md"):
            there = text if target == page else (ROOT / target).read_text(encoding="utf-8")
            if parts.fragment not in anchors_of(there):
                found.append(link)
    return found


def test_every_relative_link_has_a_target():
    assert {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/deployment.md"} <= set(PAGES)
    for page in PAGES:
        assert broken(page, (ROOT / page).read_text(encoding="utf-8")) == [], page


def test_broken_links_are_detected():
    text = """# A page: with `code`
[good](docs/deployment.md) [folder](docs/deployment) [here](#a-page-with-code) [web](https://x.org/no)
[no file](docs/none.md) ![no picture](docs/none.png) [no heading](#none) [outside](../x.md)
[no heading there](docs/deployment.md#none) <img src="none.png">

```
[in code](none.md)
```
"""
    assert broken("README.md", text) == [
        "docs/none.md", "docs/none.png", "#none", "../x.md", "docs/deployment.md#none", "none.png"
    ]  # fmt: skip


def test_no_file_of_the_repository_is_ignored():
    """Only folders at the root are."""
    assert git("ls-files", "-z", "--cached", "--ignored", "--exclude-standard") == []
    command = ["git", "-C", str(ROOT), "check-ignore", "--quiet"]
    for folder in ("figures", "outputs", "build", "dist"):
        for name, status in ((f"conf/{folder}/a.py", 1), (f"{folder}/a.py", 0)):
            assert subprocess.run([*command, name], check=False).returncode == status, name
