"""Check of the built site: links have a target, and nothing is loaded from another host."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

_IN_CSS = re.compile(r"""(?:url\(|@import\s)\s*["']?([^"')\s;]+)""")


class Page(NamedTuple):
    """What an HTML page contains."""

    anchors: set[str]  # targets of links
    links: list[str]  # where a reader can go
    loads: list[str]  # what the browser fetches


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page = Page(set(), [], [])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value is not None}
        self.page.anchors.update(values[name] for name in ("id", "name") if name in values)
        address = values.get("href")
        if address is not None and tag in ("a", "area"):
            self.page.links.append(address)
        elif address is not None and values.get("rel") in ("stylesheet", "icon", "preload"):
            self.page.loads.append(address)
        if "src" in values:
            self.page.loads.append(values["src"])


def read(path: Path) -> Page:
    """Return what a page contains."""
    reader = _Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    return reader.page


def problems(site: Path) -> list[str]:
    """Return one line for each broken link, and for each file loaded from another host."""
    files = [path for path in sorted(site.rglob("*.html")) if "_static" not in path.parts]
    pages = {path: read(path) for path in files}
    found = [line for path in pages for line in _of_page(path, pages, site)]
    for sheet in sorted(site.rglob("*.css")):
        for address in _IN_CSS.findall(sheet.read_text(encoding="utf-8")):
            if urlsplit(address).netloc:
                found.append(f"{sheet.relative_to(site)}: loads {address}")
    return found


def _of_page(path: Path, pages: dict[Path, Page], site: Path) -> list[str]:
    found, name = [], path.relative_to(site)
    for address in dict.fromkeys(pages[path].loads + pages[path].links):
        parts = urlsplit(address)
        if parts.netloc and address in pages[path].loads:
            found.append(f"{name}: loads {address}")
        if parts.scheme or parts.netloc:
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        anchor = unquote(parts.fragment)
        if not target.exists():
            found.append(f"{name}: {address}: no such file")
        elif target in pages and anchor and anchor not in pages[target].anchors:
            found.append(f"{name}: {address}: no such anchor")
    return found
