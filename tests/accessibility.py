"""Accessibility of a page in a browser, checked by axe-core."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

import pytest

_RUN = """
const done = arguments[arguments.length - 1];
const finished = [...document.getAnimations()].map((each) => each.finished.catch(() => {}));
Promise.all(finished)
  .then(() => axe.run(document, { resultTypes: ["violations"] }))
  .then(({ violations }) => done(violations.flatMap(({ id, help, nodes }) =>
    nodes.map((node) => `${id}: ${help}: ${node.target.join(" ")}: ${node.html.slice(0, 200)}`))))
  .catch((error) => done([`axe-core failed: ${error}`]));
"""


@cache
def _axe() -> str:
    pytest.importorskip("axe_playwright_python", reason="needs axe-playwright-python (dev extra)")
    return (files("axe_playwright_python") / "axe.min.js").read_text("utf-8")


def violations(browser: Any) -> list[str]:
    """Return the violations of all rules of axe-core, best practices included, one line each.

    The page is tested as it is displayed, once its animations have finished: in the current color
    scheme, at the current size, and without its hidden parts.
    """
    browser.execute_script(_axe())
    found: list[str] = browser.execute_async_script(_RUN)
    return found
