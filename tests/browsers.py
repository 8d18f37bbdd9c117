"""Headless Chromium for tests of pages, as fixtures, and what they do with it; axe-core."""

from __future__ import annotations

import json
import re
import shutil
from functools import cache
from importlib.resources import files

import numpy as np
import pytest

from fldb_flower.deployment.processes import free_port


@pytest.fixture(scope="module")
def chrome(tmp_path_factory):
    """Start headless Chromium with its home and its downloads in a temporary folder."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("needs chromium and chromedriver (Debian: chromium, chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    profile = tmp_path_factory.mktemp("chromium")
    for argument in (
        "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--no-first-run", "--window-size=1280,1000", f"--user-data-dir={profile}",
    ):  # fmt: skip
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    # By default, Selenium chooses a port that an outgoing connection may take before the driver.
    service = webdriver.ChromeService(driver, port=free_port())
    session = webdriver.Chrome(options=options, service=service)
    session.set_script_timeout(100)
    yield session
    session.quit()


@pytest.fixture
def browser(chrome):
    """Return the browser with default emulation and empty logs."""
    chrome.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    emulate(chrome, "prefers-color-scheme", "light")
    chrome.get("about:blank")
    chrome.get_log("browser")
    chrome.get_log("performance")
    return chrome


def emulate(browser, feature, value):
    features = [{"name": feature, "value": value}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def find(browser, selector):
    return browser.find_element("css selector", selector)


def texts(browser, selector):
    """Return the text of every match in one call."""
    script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)"
    return browser.execute_script(script, selector)


def count(browser, selector):
    return len(texts(browser, selector))


def keys(browser, *pressed):
    from selenium.webdriver import ActionChains

    ActionChains(browser).send_keys(*pressed).perform()


def messages(browser):
    entries = browser.get_log("performance")
    return [json.loads(entry["message"])["message"] for entry in entries]


def wait(browser, script, *arguments):
    """Wait until a script returns a true value, and return it."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, 100, 0.05).until(
        lambda driver: driver.execute_script(script, *arguments)
    )


def luminance(colour):
    channels = np.array([int(part) for part in re.findall(r"\d+", colour)[:3]]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(one, other):
    """Return the contrast ratio of WCAG 2."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


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


def violations(browser) -> list[str]:
    """Return the violations of all rules of axe-core, best practices included, one line each.

    The page is tested as it is displayed, once its animations have finished: in the current color
    scheme, at the current size, and without its hidden parts.
    """
    browser.execute_script(_axe())
    found: list[str] = browser.execute_async_script(_RUN)
    return found
