"""The page of the report in a browser: one page, which tests leave as they found it."""

from __future__ import annotations

import json
import math
import re
import time
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from browsers import (  # noqa: F401 - one is a fixture
    chrome,
    emulate,
    find,
    keys,
    messages,
    texts,
    violations,
    wait,
)
from selenium.webdriver.support.ui import Select
from test_report import HOSTILE, make_run

from simulations.report.__main__ import report

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("report")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Write 14 configurations of 3 seeds, and a run with hostile settings; make the page."""
    folder, rng = tmp_path_factory.mktemp("runs"), np.random.default_rng(7)
    for number in range(42):
        tau, seed = 1 + number // 3, number % 3
        curve = np.cumsum(rng.exponential(1.0, 200) * np.arange(1, 201) ** (-0.02 * tau))
        bytes_up = {"exchanges": 200 // tau, "uploaded_bytes": 880 * (200 // tau)}
        make_run(folder / str(number), curve, summary=bytes_up, tau=tau, seed=seed)
    (make_run(folder / "broken") / "summary.json").unlink()
    odd = {"note": HOSTILE, "tau": 99, "k" * 300: "v" * 300}
    hostile = folder / "<b onclick=x>&amp;"
    make_run(hostile, [1.0] * 200, summary={"exchanges": 0, "log_loss": 0.25}, **odd)
    (hostile / "participation.csv").write_text(
        "iteration,asked,replied,absent,rejected\n1,2,2,,\n2,2,1,<i>node</i>,\n"
    )
    rows = [f"{t},0.5,0.25\n" for t in range(1, 201)]
    (hostile / "prediction.csv").write_text("iteration,log_loss,accuracy\n" + "".join(rows))
    report([folder])
    return folder


@pytest.fixture(scope="module")
def page(folder, chrome):  # noqa: F811 - the fixture
    """Open the page."""
    chrome.get((folder / "report.html").as_uri())
    wait(chrome, "return performance.getEntriesByName('report-ready').length")
    return chrome


def show(browser, theme, width=0):
    emulate(browser, "prefers-color-scheme", theme)
    metrics = {"width": width, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    if width:
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def rows(browser, name):
    """Return the rows on the page of a table, by the title of the column."""
    script = """const texts = (row) => [...row.cells].map((cell) => cell.innerText.trim());
      const {tHead, tBodies} = document.getElementById(arguments[0]);
      return [texts(tHead.rows[0]), ...[...tBodies[0].rows].map(texts)]"""
    head, *body = browser.execute_script(script, name)
    return [dict(zip([" ".join(t.split()) for t in head], row, strict=True)) for row in body]


def curves(browser, chart="regret"):
    """Return the curves or points that a chart shows, by name."""
    script = """return document.querySelector(`#${arguments[0]} .plot`)._fullData
      .filter(({hovertemplate, visible}) => hovertemplate && visible === true)
      .map(({name, x, y, customdata, line, marker}) => ({name, x: [...x], y: [...y],
        error: customdata && [...customdata], color: line?.color, symbol: marker?.symbol}))"""
    return {each["name"]: each for each in browser.execute_script(script, chart)}


def search(browser, table, text):
    field = find(browser, f"#{table}_wrapper .dt-search input")
    field.clear()
    field.send_keys(text + " \ue003")  # a space and Backspace: an event also if it is empty


def csv_curves(folder: Path, tau: int) -> np.ndarray:
    """Read the curves of a configuration directly from the files."""
    numbers = range(3 * (tau - 1), 3 * tau)
    tables = [pd.read_csv(folder / str(number) / "regret.csv") for number in numbers]
    return np.array([each["cumulative_regret"] for each in tables])


def standard_error(values: np.ndarray) -> np.ndarray:
    return values.std(axis=0, ddof=1) / math.sqrt(len(values))


def test_the_page_sends_no_request_and_has_no_error(page, folder):
    asked = [
        message["params"]["request"]["url"]
        for message in messages(page)
        if message["method"] == "Network.requestWillBeSent"
    ]
    own = (folder / "report.html").as_uri()
    assert own in asked, "the log is not recording"
    assert {url for url in asked if not url.startswith(("data:", "chrome:"))} == {own}
    assert page.get_log("browser") == []


def test_the_best_groups_are_shown_with_means_and_errors_of_the_files(page, folder):
    shown = rows(page, "groups")
    means = [float(row["Mean regret"]) for row in shown]
    assert means == sorted(means)
    assert len(shown) == 12  # of 15
    assert len(curves(page)) == len(curves(page, "exchanges")) == len(curves(page, "bytes")) == 12
    for row in shown[1:]:
        tau = int(row["tau"])
        expected = csv_curves(folder, tau)
        assert row["Runs"] == "3"
        for title, value in (
            ("Mean regret", expected[:, -1].mean()),
            ("Median", np.median(expected[:, -1])),
            ("Std. error", standard_error(expected[:, -1])),
        ):
            assert float(row[title]) == pytest.approx(value, abs=0.00501)
        line = curves(page)[f"tau={tau}"]
        assert line["x"] == list(range(1, 201))
        assert line["y"] == pytest.approx(expected.mean(axis=0), rel=1e-6)
        assert line["error"] == pytest.approx(standard_error(expected), rel=1e-4, abs=1e-6)
    assert (shown[0]["tau"], shown[0]["Std. error"]) == ("99", "\N{EN DASH}")


def test_search_and_column_filters_apply_to_the_charts(page, folder):
    search(page, "groups", "no such group")
    wait(page, "return document.querySelector('#groups .dt-empty')")
    assert curves(page) == {}
    search(page, "groups", "")
    wait(page, "return document.querySelectorAll('#groups tbody tr').length === 12")
    place = texts(page, "#groups thead th .dt-column-title").index("tau")
    head = page.find_elements("css selector", "#groups thead th")[place]
    head.find_elements("css selector", "button.dtcc-button")[1].click()
    for button in page.find_elements("css selector", ".dtcc-dropdown button"):
        if button.text in ("2", "14"):
            button.click()
    wait(page, "return document.querySelectorAll('#groups tbody tr').length === 2")
    assert set(curves(page)) == set(curves(page, "bytes")) == {"tau=2", "tau=14"}
    page.find_element("css selector", ".dtcc-dropdown .dtcc-list-buttons, .dtcc-dropdown")
    for button in page.find_elements("css selector", ".dtcc-dropdown button"):
        if button.text in ("2", "14"):
            button.click()
    find(page, "h1").click()
    wait(page, "return document.querySelectorAll('#groups tbody tr').length === 12")


def test_groups_by_any_setting(page, folder):
    select = Select(find(page, "#grouping"))
    select.select_by_visible_text("seed")
    assert set(curves(page)) == {"seed=0", "seed=1", "seed=2"}
    expected = np.array([csv_curves(folder, tau)[1] for tau in range(1, 15)])
    assert curves(page)["seed=1"]["y"] == pytest.approx(expected.mean(axis=0), rel=1e-6)
    select.select_by_visible_text("configuration")
    assert len(curves(page)) == 12


def test_tables_sort_by_value_with_the_keyboard(page):
    place = texts(page, "#runs thead th .dt-column-title").index("seed")
    head = page.find_elements("css selector", "#runs thead th")[place]
    for key, direction in (("\ue007", "ascending"), (" ", "descending")):
        head.find_element("css selector", "button.dtcc-button").send_keys(key)
        wait(page, "return arguments[0].ariaSort === arguments[1]", head, direction)
        seeds = [int(row["seed"]) for row in rows(page, "runs")]
        assert seeds == sorted(seeds, reverse=direction == "descending")


def test_filled_marks_are_the_nondominated_points(page, folder):
    points = {99: (3000.0, 0.0, 1.0)}
    for tau in range(1, 15):
        exchanges = 200 // tau
        points[tau] = (880 * exchanges + 2000, exchanges, csv_curves(folder, tau)[:, -1].mean())
    for chart, cost in (("bytes", 0), ("exchanges", 1)):
        own = {tau: np.array([each[cost], each[2]]) for tau, each in points.items()}
        for name, shown in curves(page, chart).items():
            tau = int(re.search(r"tau=(\d+)", name)[1])
            assert [shown["x"][0], shown["y"][0]] == pytest.approx(own[tau].tolist(), rel=1e-9)
            is_best = not any(
                (other <= own[tau]).all() and (other < own[tau]).any() for other in own.values()
            )
            assert shown["symbol"].endswith("-open") == (not is_best)


def test_scales_are_logarithmic_on_request(page):
    script = (
        "return document.querySelector(`#${arguments[0]} .plot`)._fullLayout[arguments[1]].type"
    )
    for axis in ("x", "y"):
        button = find(page, f"#exchanges .log-{axis}")
        for pressed, kind in (("true", "log"), ("false", "linear")):
            button.click()
            assert button.get_attribute("aria-pressed") == pressed
            assert page.execute_script(script, "exchanges", f"{axis}axis") == kind
    assert page.get_log("browser") == []


def test_arrow_keys_read_the_curves_and_zoom(page, folder):
    plot = find(page, "#regret .plot")
    right, home, end, up = "\ue014", "\ue011", "\ue010", "\ue013"

    def reading():
        text = texts(page, "#regret [aria-live]")[0]
        tau, iteration, mean = re.match(r".*tau=(\d+).*: ([\d.]+), ([\d.]+)", text, re.S).groups()
        if int(tau) != 99:
            values = csv_curves(folder, int(tau))[:, int(float(iteration)) - 1]
            assert float(mean) == pytest.approx(values.mean(), abs=0.00501)
            assert float(text.rsplit("±")[1]) == pytest.approx(standard_error(values), abs=0.00501)
        return int(tau), int(float(iteration))

    plot.send_keys(right)
    tau, iteration = reading()
    plot.send_keys(right)
    assert reading() == (tau, iteration + 1)
    plot.send_keys(home)
    assert reading() == (tau, 1)
    plot.send_keys(end)
    assert reading() == (tau, 200)
    plot.send_keys(up)
    assert reading()[0] != tau
    assert len(texts(page, "#regret .hoverlayer .hovertext")) == 1
    width = """const [a, b] = document.querySelector('#regret .plot').layout.xaxis.range;
      return b - a"""
    before = page.execute_script(width)
    plot.send_keys("+")
    wait(page, f"const w = (() => {{ {width} }})(); return w < arguments[0]", 0.9 * before)
    plot.send_keys("0")
    wait(page, f"const w = (() => {{ {width} }})(); return w > arguments[0]", 0.99 * before)


def downloaded(browser, folder, selector, suffix):
    """Press a button and return the file that it saves."""
    behaviour = {"behavior": "allow", "downloadPath": str(folder)}
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", behaviour)
    find(browser, selector).click()
    deadline = time.monotonic() + 60
    while not (found := list(folder.glob(f"*{suffix}"))):
        assert time.monotonic() < deadline, list(folder.iterdir())
        time.sleep(0.05)
    return found[0]


def test_tables_and_charts_are_exported(page, folder, tmp_path):
    """All rows in full precision, and a picture with a legend."""
    groups = pd.read_csv(downloaded(page, tmp_path, "#groups_wrapper .buttons-csv", "groups.csv"))
    assert len(groups) == 15
    (row,) = groups[groups["tau"] == 3].to_dict("records")
    final = csv_curves(folder, 3)[:, -1]
    assert row["Mean regret"] == pytest.approx(final.mean(), rel=1e-12)
    assert row["Std. error"] == pytest.approx(standard_error(final), rel=1e-9)
    runs = pd.read_csv(downloaded(page, tmp_path, "#runs_wrapper .buttons-csv", "runs.csv"))
    summary = json.loads((folder / "7" / "summary.json").read_text())
    assert len(runs) == 43
    assert runs.set_index("Run").loc["7", "Final regret"] == summary["final_regret"]
    svg = ElementTree.parse(downloaded(page, tmp_path, "#regret .save-svg", ".svg")).getroot()
    shown = " ".join(svg.itertext())
    assert "cumulative regret per agent" in shown
    assert "tau=14" in shown
    picture = downloaded(page, tmp_path, "#regret .save-png", ".png")
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_selected_runs_are_compared_and_hostile_text_stays_text(page, folder):
    name = "<b onclick=x>&amp;"
    assert not find(page, "#comparison").is_displayed()
    search(page, "runs", "onclick")
    find(page, "#runs td.dt-select input").click()
    search(page, "runs", "")
    other = rows(page, "runs")[1]["Run"]  # the first is the hostile one
    page.find_elements("css selector", "#runs td.dt-select input")[1].send_keys(" ")
    wait(page, "return document.querySelectorAll('#differences tr:first-child td').length === 2")
    table = page.execute_script(
        """return [...document.querySelectorAll("#differences tr")]
          .map((row) => [row.className, ...[...row.cells].map((cell) => cell.textContent)])"""
    )
    by_title = {title: (kind, *values) for kind, title, *values in table}
    tau, seed = divmod(int(other), 3)
    expected = csv_curves(folder, tau + 1)[seed]
    kind, *names = by_title.pop("Run")
    assert (kind, set(names)) == ("differs", {name, other})
    by_run = {
        title: dict(zip(names, values, strict=True)) for title, (_, *values) in by_title.items()
    }
    assert by_run["tau"] == {name: "99", other: str(tau + 1)}
    assert by_run["note"] == {name: HOSTILE, other: ""}
    assert by_run["Replies"][name] == "3 of 4"
    assert by_run["Absent nodes"][name] == "<i>node</i> (1)"
    assert by_run["Final regret"] == {name: "1.00", other: f"{expected[-1]:.2f}"}
    assert curves(page, "selected")[other]["y"] == pytest.approx(expected, rel=1e-6)
    options = texts(page, "#measure option")
    assert set(options[1:]) == {"log loss", "accuracy", "share of replies"}
    Select(find(page, "#measure")).select_by_visible_text("log loss")
    (line,) = curves(page, "selected").values()
    assert set(line["y"]) == {0.5}
    assert texts(page, "#unfinished li") == ["broken: no summary.json"]
    assert texts(page, "img, b[onclick], i") == []
    assert "owned" not in page.title
    assert find(page, f"#runs a[href='./{other}/']").text == other
    page.execute_script("runs.rows({selected: true}).deselect()")
    assert not find(page, "#comparison").is_displayed()
    assert page.get_log("browser") == []


def test_axe_finds_no_violation_and_a_phone_does_not_scroll_sideways(page):
    """In both color schemes, with runs selected and everything unfolded."""
    page.execute_script("document.querySelector('details').open = true")
    find(page, "#runs td.dt-select input").click()
    light = curves(page)["tau=14"]["color"]
    try:
        for theme, width in (("light", 0), ("dark", 0), ("dark", 390), ("light", 390)):
            show(page, theme, width)
            dark = theme == "dark"
            script = "return document.documentElement.classList.contains('dark') === arguments[0]"
            wait(page, script, dark)
            assert (curves(page)["tau=14"]["color"] == light) == (not dark)
            assert violations(page) == []
            script = "return [document.documentElement.scrollWidth, innerWidth]"
            if width:
                assert page.execute_script(script) == [390, 390]
    finally:
        show(page, "light")


def test_everything_can_be_reached_by_tab_with_a_visible_focus(page):
    page.execute_script("document.activeElement.blur(); scrollTo(0, 0)")
    reached = set()
    script = """const e = document.activeElement; const style = getComputedStyle(e);
      return [e.id || e.className || e.tagName, style.outlineStyle, style.outlineWidth]"""
    for _ in range(120):
        keys(page, "\ue004")  # Tab
        name, style, width = page.execute_script(script)
        reached.add(name)
        assert name == "BODY" or (style == "solid" and float(width[:-2]) >= 2), name
    assert {"grouping", "log-x", "save-png", "dt-select-checkbox"} <= reached
    assert any(name.startswith("plot") for name in reached)
