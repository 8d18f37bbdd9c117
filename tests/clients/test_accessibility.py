"""The check of accessibility itself: pages with known violations, and one without."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from accessibility import violations
from browsers import browser, chrome  # noqa: F401 - fixtures

GOOD = """<!doctype html><html lang="en"><title>A page</title>
<main><h1>A page</h1><p>Text</p><img alt="A dot" src="data:image/gif;base64,AAAA"></main></html>"""


@pytest.mark.parametrize(
    ("changed", "into", "rule"),
    [
        ("", "", None),
        (' lang="en"', "", "html-has-lang"),
        (' alt="A dot"', "", "image-alt"),
        ("<p>", '<p style="color: #ccc; background: #fff">', "color-contrast"),
        ("<p>Text</p>", "<button></button>", "button-name"),
    ],
)
def test_violations_are_found(browser, changed, into, rule):  # noqa: F811 - the fixture
    browser.get("data:text/html," + quote(GOOD.replace(changed, into)))
    found = violations(browser)
    assert {line.split(":")[0] for line in found} == ({rule} if rule else set())
