"""The page of the report in a browser: one page, which tests leave as they found it."""

from __future__ import annotations

import json
import math
import re
import time
from datetime import datetime
from pathlib import Path
from xml.etree import ElementTree
from zoneinfo import ZoneInfo

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

CHANNELS = ("color", "dash", "marker")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("report")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Write 20 configurations of 3 seeds, and a run with hostile settings; make the page."""
    folder, rng = tmp_path_factory.mktemp("runs"), np.random.default_rng(7)
    for number in range(60):
        tau, seed = 1 + number // 3, number % 3
        curve = np.cumsum(rng.exponential(1.0, 200) * np.arange(1, 201) ** (-0.02 * (4 * tau % 15)))
        cost = {"exchanges": 2 * tau % 15, "uploaded_bytes": 880 * (2 * tau % 15)}
        make_run(folder / str(number), curve, summary=cost, tau=tau, seed=seed)
    (make_run(folder / "broken") / "summary.json").unlink()
    odd = {"note": HOSTILE, "tau": 99, "k" * 300: "v" * 300}
    hostile = folder / "<b onclick=x>&amp;"
    learned = [{"share": 0.7, "weights": {HOSTILE: 0.9, "price": -0.4}}]
    summary = {"exchanges": 0, "log_loss": 0.25, "directions": learned}
    make_run(hostile, [1.0] * 200, summary=summary, **odd)
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
        error: customdata && [...customdata], color: line?.color, dash: line?.dash,
        symbol: marker?.symbol}))"""
    return {each["name"]: each for each in browser.execute_script(script, chart)}


def search(browser, table, text):
    field = find(browser, f"#{table}_wrapper .dt-search input")
    field.clear()
    field.send_keys(text + " \ue003")  # a space and Backspace: an event also if it is empty


def without_the_hostile_run(browser):
    browser.execute_script("groups.search((text) => !text.includes('vvv')).draw()")


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
    assert len(shown) == 20  # of 21
    assert len(curves(page)) == len(curves(page, "exchanges")) == len(curves(page, "bytes")) == 20
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
    wait(page, "return document.querySelectorAll('#groups tbody tr').length === 20")
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
    wait(page, "return document.querySelectorAll('#groups tbody tr').length === 20")


def test_a_filter_without_a_match_can_be_cleared(page):
    """Also one of a column; the charts come back, and the focus is in the search field."""
    for table, total in (("groups", 21), ("runs", 61)):
        info = f"#{table}_wrapper [role=status]"
        place = texts(page, f"#{table} thead th .dt-column-title").index("tau")
        head = page.find_elements("css selector", f"#{table} thead th:has(.dt-column-title)")[place]
        head.find_elements("css selector", "button.dtcc-button")[1].click()
        page.find_elements("css selector", ".dtcc-dropdown .dtcc-list-buttons button")[1].click()
        find(page, "h1").click()
        assert re.match(rf"[13] of {total} {table} match", texts(page, info)[0])
        search(page, table, "no such name")
        wait(page, f"return document.querySelector('#{table} .dt-empty')")
        assert find(page, info).text.split("\n")[0].startswith(f"0 of {total} {table} match")
        assert find(page, "#regret .plot").is_displayed() == (table != "groups")
        find(page, f"{info} button").click()
        assert page.switch_to.active_element.get_attribute("type") == "search"
        assert texts(page, info)[0].endswith(f" of {total} {table}")
        assert find(page, "#regret .plot").is_displayed()
    assert len(curves(page)) == 20


def test_the_legend_has_the_order_of_the_ends_and_is_complete_on_a_phone(page):
    script = """const {left, right} = arguments[0].getBoundingClientRect(); return [left, right]"""
    try:
        for width in (0, 390):
            show(page, "light", width)
            ends = sorted(curves(page).items(), key=lambda item: -item[1]["y"][-1])
            legend = page.find_elements("css selector", "#regret .infolayer .legendtext")
            first = [re.match(r"tau=\d+", text.text)[0] for text in legend]
            assert first == [re.match(r"tau=\d+", name)[0] for name, _ in ends]
            places = [text.rect["y"] for text in legend]
            assert places == sorted(places)
            bottom = find(page, "#regret .plot").rect
            assert places[-1] < bottom["y"] + bottom["height"]
            (title,) = page.find_elements("css selector", "#regret .infolayer .xtitle")
            assert width == 0 or places[0] > title.rect["y"] + title.rect["height"]
            for text in legend:
                left, right = page.execute_script(script, text)
                assert 0 <= left < right <= (width or 1280)
    finally:
        show(page, "light")


def test_each_channel_encodes_the_setting_that_is_chosen(page):
    def distinct(part):
        return {each[part] for each in curves(page).values()}

    assert [Select(find(page, f"#{name}")).first_selected_option.text for name in CHANNELS] == [
        "tau", "tau", "note",
    ]  # fmt: skip
    assert min(len(distinct("color")), len(distinct("dash"))) >= 6  # of 20, which repeat
    Select(find(page, "#color")).select_by_visible_text("note")
    Select(find(page, "#marker")).select_by_visible_text("tau")
    assert len(distinct("color")) == 2  # of runs with and without a note
    assert len({each["symbol"].split("-open")[0] for each in curves(page, "bytes").values()}) >= 6
    assert texts(page, "#unstyled")[0].startswith("In the names only: kkk")
    by_value = [curves(page)[f"tau={tau}"]["dash"] for tau in (1, 2, 5, 6, 9)]
    assert by_value[0] == by_value[4] != by_value[1]  # eight patterns, in the order of the values
    select = Select(find(page, "#grouping"))
    select.select_by_visible_text("seed")
    assert texts(page, "#color option") == ["seed"]
    assert len(distinct("color")) == len(distinct("dash")) == 3
    select.select_by_visible_text("configuration")


def test_groups_by_any_setting(page, folder):
    select = Select(find(page, "#grouping"))
    select.select_by_visible_text("seed")
    assert set(curves(page)) == {"seed=0", "seed=1", "seed=2"}
    assert find(page, "#mixed").is_displayed()
    assert {row["Std. error"] for row in rows(page, "groups")} == {"\N{EN DASH}"}
    place = texts(page, "#groups thead th .dt-column-title").index("Std. error") + 1
    cell = find(page, f"#groups tbody td:nth-child({place})")
    assert cell.value_of_css_property("text-align") == "right"
    assert not any(each["error"] for each in curves(page).values())
    expected = np.array([csv_curves(folder, tau)[1] for tau in range(1, 21)])
    assert curves(page)["seed=1"]["y"] == pytest.approx(expected.mean(axis=0), rel=1e-6)
    select.select_by_visible_text("configuration")
    assert len(curves(page)) == 20
    assert not find(page, "#mixed").is_displayed()


def test_unequal_widths_are_noted_below_the_table_of_groups(page, tmp_path):
    assert not find(page, "#widths").is_displayed()
    make_run(tmp_path / "a", algorithm="ldb", beta_scale="auto")
    make_run(tmp_path / "b", algorithm="alone", personal_width=0.5)
    before = page.current_url
    try:
        page.get(report([tmp_path])[0].as_uri())
        wait(page, "return performance.getEntriesByName('report-ready').length")
        assert find(page, "#widths").text == (
            "Note: algorithms with personal_width explore less than those with the width of the"
            " theory (beta_scale); to compare algorithms, tune the width of each"
            " (docs/howto/sweeps.md)."
        )
        table, note = find(page, "#groups").rect, find(page, "#widths").rect
        assert note["y"] > table["y"] + table["height"]
    finally:
        page.get(before)
        wait(page, "return performance.getEntriesByName('report-ready').length")


def test_tables_sort_by_value_with_the_keyboard(page):
    place = texts(page, "#runs thead th .dt-column-title").index("seed")
    head = page.find_elements("css selector", "#runs thead th")[place]
    for key, direction in (("\ue007", "ascending"), (" ", "descending")):
        head.find_element("css selector", "button.dtcc-button").send_keys(key)
        wait(page, "return arguments[0].ariaSort === arguments[1]", head, direction)
        seeds = [int(row["seed"]) for row in rows(page, "runs")]
        assert seeds == sorted(seeds, reverse=direction == "descending")


def test_filled_marks_are_the_nondominated_points(page, folder):
    """By exchanges, and by the bytes of each of the ten agents."""
    points = {
        tau: (
            (880 * (2 * tau % 15) + 2000) / 10,
            2 * tau % 15,
            csv_curves(folder, tau)[:, -1].mean(),
        )
        for tau in range(1, 21)
    }
    without_the_hostile_run(page)  # which dominates all others
    for chart, cost in (("bytes", 0), ("exchanges", 1)):
        own = {tau: np.array([each[cost], each[2]]) for tau, each in points.items()}
        for name, shown in curves(page, chart).items():
            tau = int(re.search(r"tau=(\d+)", name)[1])
            assert [shown["x"][0], shown["y"][0]] == pytest.approx(own[tau].tolist(), rel=1e-9)
            is_best = not any(
                (other <= own[tau]).all() and (other < own[tau]).any() for other in own.values()
            )
            assert shown["symbol"].endswith("-open") == (not is_best)
    search(page, "groups", "")


def test_the_frontier_starts_at_the_point_of_the_least_cost(page):
    script = """return document.querySelector(`#${arguments[0]} .plot`)._fullData
      .filter(({line, hovertemplate}) => !hovertemplate && line)
      .map(({x, y, line}) => [line.shape, [...x].map((each, place) => [each, y[place]])])"""
    without_the_hostile_run(page)  # which dominates all others
    for chart in ("exchanges", "bytes"):
        ((shape, line),) = page.execute_script(script, chart)
        shown = curves(page, chart).values()
        filled = [[p["x"][0], p["y"][0]] for p in shown if not p["symbol"].endswith("-open")]
        assert shape == "hv"
        assert line == sorted(filled)
        assert line[0][0] == min(point["x"][0] for point in shown)
        assert len(line) > 2
    search(page, "groups", "")


def test_charts_are_drawn_before_they_are_scrolled_to_and_nothing_is_clipped(page, folder):
    """On a new page, 1400 pixels wide, in another time zone."""
    zone = {"timezoneId": "Asia/Tokyo"}
    try:
        show(page, "light", 1400)
        page.execute_cdp_cmd("Emulation.setTimezoneOverride", zone)
        page.execute_script("scrollTo(0, 0)")
        page.refresh()
        wait(page, "return performance.getEntriesByName('report-ready').length")
        script = """const plot = document.querySelector(`#${arguments[0]} .plot`);
          return [plot.getBoundingClientRect().top - innerHeight,
            plot.querySelectorAll('.scatterlayer .trace').length]"""
        for chart in ("exchanges", "bytes"):
            below, traces = page.execute_script(script, chart)
            assert below > 0
            assert traces == 21  # the points and the frontier
        for table in ("groups", "runs"):
            script = "const t = document.getElementById(arguments[0]); return [t.offsetWidth, t"
            width, room = page.execute_script(f"{script}.parentElement.clientWidth]", table)
            assert width <= room
        script = """return [...document.querySelectorAll('#groups tr > *')]
          .filter((cell) => cell.cellIndex && !cell.closest('table').tHead.rows[0]
            .cells[cell.cellIndex].matches('.text:not(.dt-type-numeric)'))
          .map((cell) => getComputedStyle(cell).textAlign)"""
        assert set(page.execute_script(script)) == {"right"}
        made = datetime.fromisoformat(page.execute_script("return DATA.created"))
        local = made.astimezone(ZoneInfo("Asia/Tokyo"))
        assert f"{local.day} {local:%B %Y} at {local:%H:%M}" in texts(page, "#counts")[0]
    finally:
        page.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": ""})
        show(page, "light")


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
    # One tooltip has all curves at this iteration, from the greatest to the least.
    (tooltip,) = page.find_elements("css selector", "#regret .hoverlayer g.legend")
    title, *lines = texts(page, "#regret .hoverlayer g.legend text")
    assert (tooltip.is_displayed(), title) == (True, "iteration 200")
    values = [float(line.split(" : ")[1].split(" ± ")[0]) for line in lines]
    ends = [each["y"][-1] for each in curves(page).values()]
    assert values == pytest.approx(sorted(ends, reverse=True), abs=0.00501)
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
    assert len(groups) == 21
    (row,) = groups[groups["tau"] == 3].to_dict("records")
    final = csv_curves(folder, 3)[:, -1]
    assert row["Mean regret"] == pytest.approx(final.mean(), rel=1e-12)
    assert row["Std. error"] == pytest.approx(standard_error(final), rel=1e-9)
    runs = pd.read_csv(downloaded(page, tmp_path, "#runs_wrapper .buttons-csv", "runs.csv"))
    summary = json.loads((folder / "7" / "summary.json").read_text())
    assert len(runs) == 61
    assert (
        runs.astype({"folder": str}).set_index("folder").loc["7", "Final regret"]
        == summary["final_regret"]
    )
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
    other = find(page, "#runs tbody tr:nth-child(2) a").get_attribute("href").split("/")[-2]
    page.find_elements("css selector", "#runs td.dt-select input")[1].send_keys(" ")
    wait(page, "return document.querySelectorAll('#differences tr:first-child td').length === 2")
    table = page.execute_script(
        """return [...document.querySelectorAll("#differences tr")]
          .map((row) => [row.className, ...[...row.cells].map((cell) => cell.textContent)])"""
    )
    by_title = {title: (kind, *values) for kind, title, *values in table}
    tau, seed = divmod(int(other), 3)
    expected = csv_curves(folder, tau + 1)[seed]
    kind, *folders = by_title["folder"]
    assert (kind, set(folders)) == ("differs", {name, other})
    by_run = {
        title: dict(zip(folders, values, strict=True)) for title, (_, *values) in by_title.items()
    }
    label = f"tau={tau + 1}, seed={seed}"
    assert by_run["Run"] == {name: f"tau=99, note={HOSTILE}, {'k' * 300}={'v' * 300}", other: label}
    assert by_run["tau"] == {name: "99", other: str(tau + 1)}
    assert by_run["note"] == {name: HOSTILE, other: ""}
    assert by_run["Replies"][name] == "3 of 4"
    assert by_run["Absent nodes"][name] == "<i>node</i> (1)"
    assert by_run["Final regret"] == {name: "1.00", other: f"{expected[-1]:.2f}"}
    assert curves(page, "selected")[label]["y"] == pytest.approx(expected, rel=1e-6)
    options = texts(page, "#measure option")
    assert set(options[1:]) == {"log loss", "accuracy", "share of replies"}
    Select(find(page, "#measure")).select_by_visible_text("log loss")
    (line,) = curves(page, "selected").values()
    assert set(line["y"]) == {0.5}
    assert texts(page, "#unfinished li") == ["broken: no summary.json"]
    assert texts(page, "img, b[onclick], i") == []
    assert "owned" not in page.title
    assert find(page, f"#runs a[href='./{other}/']").text == label
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


def test_learned_directions_are_shown(page):
    (row,) = rows(page, "directions")
    shown = (row["Share (%)"], row["Features"])
    assert shown == ("70", f"{HOSTILE} +0.90, price\N{NO-BREAK SPACE}\N{MINUS SIGN}0.40")
    script = (
        "return getComputedStyle(document.querySelector('#directions td.number')).backgroundImage"
    )
    assert "70%" in page.execute_script(script)  # the bar


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
