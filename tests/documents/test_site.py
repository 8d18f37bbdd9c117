"""The documentation site: links to the repository, the check of links, and search offline.

`python docs/make.py`, a job of the gate, builds all of it. Here only the pages are built that take
no time: neither the API reference nor the notebooks.
"""

import importlib.util
import json
import re
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT

from fldb_flower.deployment.processes import free_port

pytest.importorskip("sphinx", reason="needs the docs extra")

pytestmark = pytest.mark.xdist_group("site")
REPOSITORY = "https://code.invalid/fldb-flower/blob/main"
LEFT_OUT = "_build,templates,results,api/**,examples/**,tutorials/**,howto/**"


specification = importlib.util.spec_from_file_location("check", ROOT / "docs" / "check.py")
check = importlib.util.module_from_spec(specification)
specification.loader.exec_module(check)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    options = ["-q", "-b", "html", "-D", f"repository={REPOSITORY}"]
    options += ["-D", f"exclude_patterns={LEFT_OUT}", "-d", str(folder / "doctrees")]
    command = [sys.executable, "-m", "sphinx", *options, str(ROOT / "docs"), str(folder / "html")]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "html"


@pytest.fixture(scope="module")
def browser():
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    service = webdriver.ChromeService(shutil.which("chromedriver"), port=free_port())
    with webdriver.Chrome(options, service) as driver:
        driver.implicitly_wait(100)
        yield driver


def requests(browser):
    """Return the addresses that the browser asked for since the last call."""
    messages = (json.loads(each["message"])["message"] for each in browser.get_log("performance"))
    return [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    ]


@pytest.mark.slow
def test_search_works_offline(site, browser):
    browser.get(f"{(site / 'search.html').as_uri()}?q=separable")
    browser.find_element("css selector", "#search-results li a")
    results = browser.find_elements("css selector", "#search-results li a")
    assert any("theory.html" in each.get_attribute("href") for each in results)
    browser.get((site / "theory.html").as_uri())
    seen = requests(browser)
    assert any(address.endswith("searchindex.js") for address in seen)
    assert [address for address in seen if not address.startswith(("file:", "data:"))] == []
    severe = [each["message"] for each in browser.get_log("browser") if each["level"] == "SEVERE"]
    assert severe == []


@pytest.mark.slow
def test_pages_fit_a_phone(site, browser):
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    for page in ("deployment", "personal", "plausibility", "reproduction", "security", "index"):
        browser.get((site / f"{page}.html").as_uri())
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.slow
def test_lines_do_not_break_within_errors_or_before_punctuation(site):
    pages = [(site / f"{name}.html").read_text() for name in ("theory", "personal", "selection")]
    assert re.search(r'<span class="formula"><math.*?</math>,</span>', pages[0], re.DOTALL)
    assert not any(re.search(r"</math>(?![,.;:)]+</span>)[,.;:)]", page) for page in pages)
    assert not any(re.search(r"\d ± \d", page) for page in pages)
    assert len(re.findall("\\d\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}\\d", pages[2])) > 50


@pytest.mark.slow
def test_links_to_files_lead_to_the_repository(site):
    links = {page: check.read(site / f"{page}.html").links for page in ("clusters", "contributing")}
    assert f"{REPOSITORY}/conf/hydra/launcher/slurm.yaml" in links["clusters"]
    changelog = check.read(site / "changelog.html").links
    assert {"personal.html", "selection.html#width"} <= set(changelog)
    deployment = check.read(site / "deployment.html").links
    assert "changelog.html" in deployment
    assert any(re.fullmatch(r"_downloads/\w+/nginx.conf", each) for each in deployment)


def test_the_check_finds_what_is_broken(tmp_path):
    (tmp_path / "a.css").write_text("@import 'https://x.invalid/b.css'; p { color: red }")
    (tmp_path / "index.html").write_text(
        '<h1 id="top">A</h1><a href="#top">up</a><a href="#no">no</a><a href="b.html">b</a>'
        '<a href="https://x.invalid">fine: a reader may go there</a>'
        '<script src="https://x.invalid/c.js"></script><img src="none.png">'
        '<a href="b%20c.html#d">space</a>'
    )
    (tmp_path / "b c.html").write_text('<p id="d">')
    assert check.problems(tmp_path) == [
        "index.html: loads https://x.invalid/c.js",
        "index.html: none.png: no such file",
        "index.html: #no: no such anchor",
        "index.html: b.html: no such file",
        "a.css: loads https://x.invalid/b.css",
    ]
