"""`python -m simulations.report`: reading runs, the page's content, and the page in a browser."""

from __future__ import annotations

import functools
import http.server
import json
import math
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pandas as pd
import pytest
import yaml

from fldb_flower.errors import DataError, OutputError
from simulations.report.data import MAX_POINTS, kept_iterations, payload
from simulations.report.page import write
from simulations.saved_runs import (
    Run,
    find_runs,
    group_by_seed,
    one_per_seed,
    relevant,
    varying,
)

ROOT = Path(__file__).parent.parent
LEFT, RIGHT = 70, 14  # pixels between a chart's frame and the edges of its drawing
HOSTILE = "</script><img src=x onerror=\"document.title='owned'\"></script ><!--"


def make_run(path: Path, regrets: Any = (1.0, 2.0, 3.0), /, summary: Any = None, **settings: Any):
    """Write the directory of a run by hand, without the code under test."""
    path.mkdir(parents=True)
    config = {"algorithm": "fldb_ogd", "num_agents": 10, "horizon": len(regrets), "tau": 1}
    config |= {"seed": 0, "schedule": {"name": "periodic", "ratio": 1.5}} | settings
    (path / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    rows = [f"{t},{value!r},{t}\n" for t, value in enumerate(map(float, regrets), 1)]
    (path / "regret.csv").write_text("iteration,cumulative_regret,exchanges\n" + "".join(rows))
    figures = {"final_regret": float(regrets[-1]), "exchanges": len(regrets)}
    figures |= {"uploaded_bytes": 1000, "downloaded_bytes": 2000, "runtime_seconds": 0.5}
    text = json.dumps(figures | {"complete": True} | (summary or {}))
    (path / "summary.json").write_text(text)
    return path


def call(*arguments: Any, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "simulations.report", *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=300,
    )


class _Blocks(HTMLParser):
    """Collect tags, and the text of each script, as a browser's parser splits them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = tag == "script"
        if self._inside:
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._inside = False

    def handle_data(self, data):
        if self._inside:
            self.scripts[-1] += data


def data_of(page: Path) -> dict[str, Any]:
    return json.loads(_Blocks(page.read_text()).scripts[0])


# ---- Reading runs


def test_runs_are_found_below_folders_in_natural_order_and_once(tmp_path):
    for name in ("sweep/10", "sweep/9", "other/deep/er/1", "sweep/.hidden/1"):
        make_run(tmp_path / name)
    runs, unfinished = find_runs([tmp_path / "sweep", tmp_path / "other", tmp_path / "sweep" / "9"])
    names = [run.path.relative_to(tmp_path).as_posix() for run in runs]
    assert names == ["sweep/9", "sweep/10", "other/deep/er/1"]
    assert unfinished == []


def test_a_run_is_read_as_written(tmp_path):
    make_run(tmp_path / "run", [0.5, 0.1 + 0.2], environment={"name": "synthetic", "sigma": 0.3})
    (run,), _ = find_runs([tmp_path / "run"])
    assert run.settings == {
        "algorithm": "fldb_ogd",
        "num_agents": 10,
        "horizon": 2,
        "tau": 1,
        "seed": 0,
        "schedule.name": "periodic",
        "schedule.ratio": 1.5,
        "environment.name": "synthetic",
        "environment.sigma": 0.3,
    }
    assert run.summary["uploaded_bytes"] == 1000
    assert run.curve["cumulative_regret"].tolist() == [0.5, 0.1 + 0.2]
    assert run.curve["iteration"].tolist() == [1, 2]


@pytest.mark.slow
def test_a_real_run_is_read(tmp_path):
    subprocess.run(
        [
            *(sys.executable, "-m", "simulations.run", "num_agents=5", "horizon=12"),
            *(f"hydra.run.dir={tmp_path / 'run'}", "environment.sigma=0.25"),
        ],
        check=True,
        capture_output=True,
        cwd=ROOT,
        timeout=300,
    )
    (run,), unfinished = find_runs([tmp_path])
    assert unfinished == []
    assert run.settings["environment.sigma"] == 0.25
    assert run.settings["lambda"] == "auto"
    assert run.curve["cumulative_regret"].iloc[-1] == pytest.approx(run.summary["final_regret"])


SPOILED = {
    "no summary": (lambda p: (p / "summary.json").unlink(), "no summary.json"),
    "no curve": (lambda p: (p / "regret.csv").unlink(), "no regret.csv"),
    "no settings": (lambda p: (p / "config.yaml").unlink(), "no config.yaml"),
    "cut JSON": (lambda p: cut(p / "summary.json", 20), "summary.json is not valid JSON"),
    "deep JSON": (lambda p: put(p / "summary.json", "[" * 10**6), "summary.json is not valid JSON"),
    "other JSON": (
        lambda p: put(p / "summary.json", "[]"),
        "does not mark the run as complete",
    ),
    "not a number": (
        lambda p: patch(p / "summary.json", "3.0", "NaN"),
        "no finite number as final_regret",
    ),
    "log loss": (
        lambda p: patch(p / "summary.json", "{", '{"log_loss": null, '),
        "no finite number as log_loss",
    ),
    "not complete": (
        lambda p: patch(p / "summary.json", "true", "false"),
        "does not mark the run as complete",
    ),
    "empty CSV": (lambda p: put(p / "regret.csv", ""), "regret.csv is not a table"),
    "rows missing": (lambda p: cut(p / "regret.csv", 8), "regret.csv has 2 rows, complete or not"),
    "cut in the last number": (
        lambda p: cut(p / "regret.csv", 1),
        "regret.csv has 3 rows, complete or not",
    ),
    "cut in the last row": (
        lambda p: patch(p / "regret.csv", "3,3.0,3\n", "3,3\n"),
        "missing or not finite",
    ),
    "text in CSV": (lambda p: patch(p / "regret.csv", "2.0", "two"), "not numbers"),
    "infinite": (lambda p: patch(p / "regret.csv", "2.0", "inf"), "missing or not finite"),
    "repeated row": (
        lambda p: patch(p / "regret.csv", "\n2,", "\n1,"),
        "does not count iterations",
    ),
    "other columns": (lambda p: patch(p / "regret.csv", "exchanges", "rounds"), "other columns"),
    "binary": (lambda p: (p / "regret.csv").write_bytes(b"\xff\xfe\x00"), "not UTF-8"),
    "cut YAML": (lambda p: put(p / "config.yaml", "a: [1,"), "config.yaml is not valid YAML"),
    "no mapping": (lambda p: put(p / "config.yaml", "just text"), "config.yaml holds no settings"),
    "no horizon": (lambda p: put(p / "config.yaml", "tau: 1"), "no integer as horizon"),
    "list": (lambda p: patch(p / "config.yaml", "tau: 1", "tau: [1]"), "tau is neither a number"),
    "aliases": (lambda p: put(p / "config.yaml", "a: &x 1\nb: *x"), "YAML aliases"),
    "python object": (
        lambda p: put(p / "config.yaml", "a: !!python/object/apply:os.getcwd []"),
        "config.yaml is not valid YAML",
    ),
    "pipe": (
        lambda p: ((p / "summary.json").unlink(), os.mkfifo(p / "summary.json")),
        "summary.json is not a file",
    ),
    "folder": (
        lambda p: ((p / "regret.csv").unlink(), (p / "regret.csv").mkdir()),
        "regret.csv is not a file",
    ),
}


def put(path: Path, text: str) -> None:
    path.write_text(text)


def cut(path: Path, count: int) -> None:
    path.write_bytes(path.read_bytes()[:-count])


def patch(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize("case", SPOILED)
def test_an_incomplete_run_is_reported_with_the_reason(case, tmp_path):
    spoil, reason = SPOILED[case]
    make_run(tmp_path / "good")
    spoil(make_run(tmp_path / "spoiled"))
    runs, unfinished = find_runs([tmp_path])
    assert [run.path.name for run in runs] == ["good"]
    (left_out,) = unfinished
    assert left_out.path.name == "spoiled"
    assert reason in left_out.reason
    assert "\n" not in left_out.reason


def test_environment_variables_of_the_reader_are_not_looked_up(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "hidden")
    make_run(tmp_path / "run", note="${oc.env:SECRET}")
    (run,), _ = find_runs([tmp_path])
    assert run.settings["note"] == "${oc.env:SECRET}"


def a_run(**settings: Any) -> Run:
    return Run(Path(), settings, {}, pd.DataFrame())


def test_varying_settings_are_those_with_two_values():
    runs = [a_run(a=1, b=2, c="x"), a_run(a=1.0, b=3, c="x"), a_run(a=1, b=2, c="y")]
    assert varying(runs) == ["b", "c"]
    assert varying(runs[:1]) == []
    assert varying([a_run(a=1), a_run(a=1, b=0)]) == ["b"]
    assert varying([a_run(a=1), a_run(a=True)]) == ["a"]
    assert varying([a_run(a=math.nan), a_run(a=math.nan)]) == []


def test_settings_ignored_by_the_schedule_do_not_form_groups():
    geometric = {"schedule.name": "geometric", "schedule.ratio": 1.5}
    runs = [a_run(tau=1, seed=0, **geometric), a_run(tau=5, seed=1, **geometric)]
    assert relevant(runs[0].settings) == {**geometric, "seed": 0}
    assert varying(runs) == ["seed"]
    assert group_by_seed(runs) == [runs]
    periodic = a_run(**{"tau": 5, "seed": 0, "schedule.name": "periodic", "schedule.ratio": 9})
    assert varying([*runs, periodic]) == ["seed", "schedule.name"]


def test_tau_and_schedule_do_not_form_groups_of_algorithms_that_ignore_them():
    runs = [a_run(algorithm="ldb", tau=tau, seed=0) for tau in (1, 2)]
    other = a_run(algorithm="fldb_ons", tau=1, seed=0)
    assert varying(runs) == []
    assert varying([*runs, other]) == ["algorithm"]
    assert group_by_seed([*runs, other]) == [runs, [other]]
    assert one_per_seed(runs) == runs[:1]
    assert one_per_seed([runs[0], runs[1], a_run(seed=1)])[0] is runs[0]
    assert len(one_per_seed([runs[0], runs[1], a_run(seed=1)])) == 2


def test_groups_differ_by_more_than_the_seed():
    runs = [a_run(seed=s, tau=t) for s in (0, 1) for t in (1, 2)]
    assert group_by_seed(runs) == [[runs[0], runs[2]], [runs[1], runs[3]]]
    assert group_by_seed([]) == []


# ---- Contents of the page


def test_means_and_standard_errors_are_those_worked_by_hand(tmp_path):
    make_run(tmp_path / "0", [1.0, 4.0], seed=0)
    make_run(tmp_path / "1", [3.0, 10.0], seed=1)
    make_run(tmp_path / "again", [3.0, 10.0], seed=1)  # not an independent run: counted once
    make_run(tmp_path / "alone", [2.0, 5.0], seed=0, tau=2)
    runs, unfinished = find_runs([tmp_path])
    made = payload(runs, unfinished, tmp_path)
    first, second = made["groups"]
    assert first["label"] == ["tau=1"]
    assert first["seeds"] == 2
    assert first["mean"] == [2.0, 7.0]
    assert first["error"] == [1.0, 3.0]  # |a - b| / 2 for two numbers
    assert first["figures"]["regret"] == 7.0
    assert second["mean"] == [2.0, 5.0]
    assert second["error"] is None
    assert made["varying"] == ["tau", "seed"]
    assert ["algorithm", "fldb_ogd"] in made["common"]
    assert len(made["runs"]) == 4


def test_predictions_are_columns_if_a_run_has_them(tmp_path):
    make_run(tmp_path / "a", algorithm="random")
    make_run(tmp_path / "b", summary={"log_loss": 0.5, "accuracy": 0.75})
    random, other = (payload(*find_runs([tmp_path / name]), tmp_path) for name in ("a", "b"))
    assert random["predictions"] == []
    assert other["predictions"] == ["log_loss", "accuracy"]
    assert (other["runs"][0]["log_loss"], other["runs"][0]["accuracy"]) == (0.5, 0.75)
    assert "log_loss" not in random["runs"][0]


def test_labels_name_settings_as_users_write_them(tmp_path):
    make_run(tmp_path / "a", environment={"sigma": 0.0})
    geometric = {"name": "geometric", "ratio": 1.5}
    make_run(tmp_path / "b", algorithm="fldb_ons", schedule=geometric, environment={"sigma": 0.3})
    made = payload(*find_runs([tmp_path]), tmp_path)
    assert made["varying"] == ["algorithm", "schedule", "environment.sigma"]
    assert made["groups"][0]["label"] == ["fldb_ogd", "periodic", "environment.sigma=0"]
    assert made["groups"][1]["label"] == ["fldb_ons", "geometric", "environment.sigma=0.3"]
    assert ["tau", "1"] in made["common"]  # of the runs that use it


@pytest.mark.parametrize("horizon", [1, 2, 199, 200, 201, 500, 10_000])
def test_kept_iterations_are_few_and_include_both_ends(horizon):
    kept = kept_iterations(horizon)
    assert len(kept) <= MAX_POINTS
    assert (kept[0], kept[-1]) == (1, horizon)
    assert (np.diff(kept) > 0).all()
    assert horizon > MAX_POINTS or len(kept) == horizon


@pytest.mark.slow
def test_large_seeds_and_odd_values_survive(tmp_path):
    make_run(tmp_path / "a", seed=2**63, lr=1e-7, on=True, none=None, ratio=math.inf)
    make_run(tmp_path / "b", seed=1, lr=0.1, on=False, none="", ratio=2.0)
    assert call(tmp_path).returncode == 0
    row = {run["path"]: run["settings"] for run in data_of(tmp_path / "report.html")["runs"]}
    assert row["a"] == [str(2**63), "1e-07", "true", "null", "inf"]
    assert row["b"] == ["1", "0.1", "false", "", "2"]


@pytest.mark.slow
def test_untrusted_text_cannot_leave_its_block(tmp_path):
    make_run(tmp_path / "run", note=HOSTILE, **{HOSTILE: 1})
    make_run(tmp_path / "{{script}}", note="{{style}}&amp;", **{HOSTILE: 2})
    assert call(tmp_path).returncode == 0
    text = (tmp_path / "report.html").read_text()
    blocks = _Blocks(text)
    assert len(blocks.scripts) == 2
    assert all(tag != "img" for tag, _ in blocks.tags)
    assert HOSTILE not in text
    assert not set("<>&") & set(blocks.scripts[0])
    data = json.loads(blocks.scripts[0])
    assert data["varying"] == ["note", HOSTILE]
    assert sorted(run["settings"][0] for run in data["runs"]) == [HOSTILE, "{{style}}&amp;"]


def test_links_are_relative_paths_whatever_a_directory_is_called(tmp_path):
    for name in ("javascript:alert(1)", "a b#?%20", "é"):
        make_run(tmp_path / "runs" / name)
    (tmp_path / "pages").mkdir()
    done = call(tmp_path / "runs", "--output", tmp_path / "pages" / "x.html")
    assert done.returncode == 0, done.stderr
    for run in data_of(tmp_path / "pages" / "x.html")["runs"]:
        assert re.fullmatch(r"\./\.\./runs/[\w.%-]+/", run["href"])
        assert (tmp_path / "pages" / unquote(run["href"]) / "summary.json").is_file()


def test_the_policy_allows_only_the_page_s_own_code(tmp_path):
    make_run(tmp_path / "run")
    assert call(tmp_path).returncode == 0
    text = (tmp_path / "report.html").read_text()
    policy = next(
        attributes["content"]
        for tag, attributes in _Blocks(text).tags
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert not re.search(r"(?:src|href)=[\"']?(?:https?:)?//", text)


# ---- The command


def test_default_and_named_output(tmp_path):
    make_run(tmp_path / "a" / "run")
    make_run(tmp_path / "b" / "run", tau=2)
    done = call(tmp_path / "a", tmp_path / "b")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"report: {tmp_path / 'a' / 'report.html'} (2 runs)\n"
    assert call("a", "--output", "named.html", cwd=tmp_path).returncode == 0
    assert [run["href"] for run in data_of(tmp_path / "named.html")["runs"]] == ["./a/run/"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "named.html"]


def test_unfinished_runs_are_named_on_stderr_and_in_the_page(tmp_path):
    make_run(tmp_path / "whole")
    (make_run(tmp_path / "half\nway") / "summary.json").unlink()
    done = call(tmp_path)
    assert done.returncode == 0
    assert done.stderr == f"skipped {tmp_path}/half\\nway: no summary.json\n"
    page = data_of(tmp_path / "report.html")
    assert page["unfinished"] == [{"path": "half\nway", "reason": "no summary.json"}]


BAD = {
    "{0}/none": "does not exist",
    "{0}/good {0}/none": "does not exist",
    "{0}/good/run/config.yaml": "is not a folder",
    "{0}/empty": "there are no runs below",
    "{0}/half": "none of the 1 runs below",
    "{0}/good --output {0}/empty": "cannot write",
    "{0}/good --output {0}/no/x.html": "cannot write",
    "{0}/good --output /proc/x.html": "cannot write",
    "": "required: DIR",
    "{0}/good --outptu x": "--outptu",
}


@pytest.mark.parametrize("arguments", BAD)
def test_bad_input_ends_in_one_line(arguments, tmp_path):
    make_run(tmp_path / "good" / "run")
    (tmp_path / "empty").mkdir()
    (make_run(tmp_path / "half" / "run") / "summary.json").unlink()
    before = sorted(tmp_path.rglob("*"))
    done = call(*arguments.format(tmp_path).split())
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("error: ")
    assert BAD[arguments] in done.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_a_failure_while_writing_leaves_the_old_page(tmp_path, monkeypatch):
    page = tmp_path / "report.html"
    page.write_text("old")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="No space left on device"):
        write(page, "new")
    assert page.read_text() == "old"
    assert list(tmp_path.iterdir()) == [page]


def test_a_missing_folder_is_an_error_of_the_reader_too(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        find_runs([tmp_path / "none"])


# ---- In a browser


def make_sweep(folder: Path, runs: int, seeds: int, horizon: int) -> None:
    """Write runs whose curves are of different shapes and cross."""
    rng = np.random.default_rng(7)
    for number in range(runs):
        tau = 1 + number // seeds
        steps = rng.exponential(1.0, horizon) * np.arange(1, horizon + 1) ** (-0.02 * tau)
        exchanges = max(1, horizon // tau)
        summary = {"exchanges": exchanges, "uploaded_bytes": 880 * exchanges}
        make_run(
            folder / str(number), np.cumsum(steps), summary=summary, tau=tau, seed=number % seeds
        )


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    folder = tmp_path_factory.mktemp("large")
    make_sweep(folder, runs=200, seeds=5, horizon=500)
    done = call(folder)
    assert done.returncode == 0, done.stderr
    return folder / "report.html"


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    make_sweep(folder, runs=12, seeds=3, horizon=200)
    (make_run(folder / "broken") / "summary.json").unlink()
    odd = {"note": HOSTILE, "tau": 9, "k" * 300: "v" * 300}
    make_run(folder / "hostile", [1.0] * 200, summary={"exchanges": 0, "log_loss": 0.25}, **odd)
    done = call(folder)
    assert done.returncode == 0, done.stderr
    return folder / "report.html"


def test_200_runs_fit_in_five_megabytes(large):
    assert large.stat().st_size < 5e6
    data = data_of(large)
    assert (len(data["runs"]), len(data["groups"]), data["thinned"]) == (200, 40, True)


@pytest.fixture(scope="module")
def chrome(tmp_path_factory):
    """Start headless Chromium with its home in a temporary folder."""
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
    session = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
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


def numbers(browser, selector):
    return [float(text.replace(",", "")) for text in texts(browser, selector)]


def hover(browser, plot, x, y):
    """Move the mouse to a relative position in the plot, without a click."""
    from selenium.webdriver import ActionChains

    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", plot)
    size = plot.size
    across, down = round((x - 0.5) * size["width"]), round((y - 0.5) * size["height"])
    ActionChains(browser).move_to_element_with_offset(plot, across, down).perform()


def keys(browser, *pressed):
    from selenium.webdriver import ActionChains

    ActionChains(browser).send_keys(*pressed).perform()


def messages(browser):
    entries = browser.get_log("performance")
    return [json.loads(entry["message"])["message"] for entry in entries]


def test_the_page_sends_no_request_and_has_no_error(browser, small):
    browser.get(small.as_uri())
    find(browser, "#seeds").click()
    asked = [
        message["params"]["request"]["url"]
        for message in messages(browser)
        if message["method"] == "Network.requestWillBeSent"
    ]
    assert asked, "the log is not recording"
    assert {url for url in asked if not url.startswith("data:")} == {small.as_uri()}
    assert browser.get_log("browser") == []


def test_the_page_over_http_requests_only_itself(browser, small):
    handler = functools.partial(_Quiet, directory=str(small.parent))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    _Quiet.asked.clear()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        browser.get(f"http://127.0.0.1:{server.server_port}/report.html")
        assert count(browser, "#runs tbody tr") == 13
        assert _Quiet.asked == ["/report.html"]
        assert browser.get_log("browser") == []
    finally:
        server.shutdown()
        server.server_close()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    asked: list[str] = []  # noqa: RUF012 - one server at a time

    def log_message(self, *_):
        self.asked.append(self.path)


def test_200_runs_open_within_two_seconds_of_cpu_time(browser, large):
    browser.get("about:blank")
    browser.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    browser.get(large.as_uri())  # returns after the load event
    assert count(browser, "#runs tbody tr") == 200
    assert count(browser, "#curves .line") == 40
    metrics = browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    browser.execute_cdp_cmd("Performance.disable", {})
    seconds = {metric["name"]: metric["value"] for metric in metrics}
    assert 0 < seconds["TaskDuration"] < 2
    find(browser, "#seeds").click()
    assert count(browser, "#curves .line.seed") == 200
    assert "thinned" in find(browser, "#curves-note").text


def test_hostile_settings_stay_text(browser, small):
    browser.get(small.as_uri())
    assert browser.title == "Regret report"
    assert count(browser, "img") == 0
    assert HOSTILE in texts(browser, "#runs td")
    assert "broken: no summary.json" in texts(browser, "#unfinished li")


def test_table_sorts_by_click_and_by_key(browser, small):
    from selenium.webdriver import Keys

    browser.get(small.as_uri())
    heads = texts(browser, "#runs thead th")
    regrets = [row[heads.index("Final regret")] for row in rows(browser)]
    assert [float(r) for r in regrets] == sorted(map(float, regrets))
    head = browser.find_elements("css selector", "#runs thead th")[heads.index("tau")]
    button = head.find_element("css selector", "button")
    button.click()
    taus = [int(row[heads.index("tau")]) for row in rows(browser)]
    assert taus == sorted(taus)
    assert head.get_attribute("aria-sort") == "ascending"
    button.send_keys(Keys.ENTER)
    assert [int(row[heads.index("tau")]) for row in rows(browser)] == taus[::-1]
    assert head.get_attribute("aria-sort") == "descending"
    browser.find_elements("css selector", "#runs thead button")[0].send_keys(Keys.SPACE)
    names = [row[0] for row in rows(browser)]
    assert names == [*map(str, range(12)), "hostile"]  # by value, not 0, 1, 10, 11, 2


def test_the_table_shows_the_log_loss_of_runs_that_have_one(browser, small):
    browser.get(small.as_uri())
    heads = texts(browser, "#runs thead th")
    assert "Accuracy" not in heads
    shown = [row[heads.index("Log loss")] for row in rows(browser)]
    assert sorted(shown) == ["0.25", *["\N{EN DASH}"] * 12]


def test_values_sort_as_numbers_then_as_texts(browser, small):
    browser.get(small.as_uri())
    values = ["b10", "auto", "0.5", "", "10", "1e-7", "-3", "b9", "0.25", "9"]
    ordered = browser.execute_script("return arguments[0].sort(compareValues)", values)
    assert ordered == ["-3", "1e-7", "0.25", "0.5", "9", "10", "", "auto", "b9", "b10"]


def rows(browser):
    script = """return [...document.querySelectorAll("#runs tbody tr")]
      .map((row) => [...row.cells].map((cell) => cell.textContent))"""
    return browser.execute_script(script)


def test_legend_hides_and_shows_a_configuration(browser, small):
    from selenium.webdriver import Keys

    browser.get(small.as_uri())
    assert count(browser, "#curves .line") == 5
    entry = find(browser, "#legend button")
    entry.click()
    assert entry.get_attribute("aria-pressed") == "false"
    assert count(browser, "#curves .line") == 4
    assert count(browser, "#by-bytes .mark") == 4
    entry.send_keys(Keys.SPACE)
    assert entry.get_attribute("aria-pressed") == "true"
    assert count(browser, "#curves .line") == 5
    find(browser, "#show-none").click()
    assert count(browser, "#curves .line") == 0
    assert "Nothing selected" in texts(browser, "#curves .empty")
    find(browser, "#show-all").click()
    assert count(browser, "#curves .line") == 5


def test_single_seeds_replace_the_bands(browser, small):
    browser.get(small.as_uri())
    assert count(browser, "#curves .band") == 4  # the hostile run is a single run: no error band
    find(browser, "#seeds").click()
    assert count(browser, "#curves .band") == 0
    assert count(browser, "#curves .line.seed") == 12
    find(browser, "#seeds").click()
    assert count(browser, "#curves .line.seed") == 0


@pytest.mark.parametrize("axis", ["x", "y"])
def test_logarithmic_axis_spaces_equal_ratios_equally(axis, browser, small):
    browser.get(small.as_uri())
    button = find(browser, f"#curves .log-{axis}")
    before = numbers(browser, f"#curves .tick-{axis}")
    assert np.allclose(np.diff(before), before[1] - before[0])
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    values = np.log(numbers(browser, f"#curves .tick-{axis}"))
    script = """return [...document.querySelectorAll(arguments[0])]
      .map((tick) => Number(tick.getAttribute(arguments[1])))"""
    pixels = np.array(browser.execute_script(script, f"#curves .tick-{axis}", axis))
    slopes = np.diff(pixels) / np.diff(values)
    assert len(values) >= 3
    assert np.allclose(slopes, slopes[0], rtol=1e-3)
    button.click()
    assert numbers(browser, f"#curves .tick-{axis}") == before


def ticks(browser, chart="#curves"):
    return numbers(browser, f"{chart} .tick-x"), numbers(browser, f"{chart} .tick-y")


def test_drag_zooms_into_the_selection_and_reset_undoes_it(browser, small):
    from selenium.webdriver import ActionChains

    browser.get(small.as_uri())
    before = ticks(browser)
    plot = find(browser, "#curves .plot")
    hover(browser, plot, 0.4, 0.3)
    box = plot.size
    ActionChains(browser).click_and_hold().move_by_offset(
        round(0.2 * box["width"]), round(0.3 * box["height"])
    ).release().perform()
    xs, ys = ticks(browser)
    # Iterations go from 0 to 200.
    edges = [
        (share * box["width"] - LEFT) / (box["width"] - LEFT - RIGHT) * 200 for share in (0.4, 0.6)
    ]
    assert all(edges[0] - 1 <= value <= edges[1] + 1 for value in xs)
    assert max(xs) - min(xs) > 0.5 * (edges[1] - edges[0])
    assert max(ys) - min(ys) < 0.6 * (max(before[1]) - min(before[1]))
    find(browser, "#curves .reset").click()
    assert ticks(browser) == before
    assert find(browser, "#curves .reset").get_attribute("disabled") is not None


def test_wheel_and_keys_zoom(browser, small):
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.actions.wheel_input import ScrollOrigin

    browser.get(small.as_uri())
    plot = find(browser, "#curves .plot")
    hover(browser, plot, 0.5, 0.5)
    before = ticks(browser)
    time.sleep(0.4)  # scrolling of the page must end first
    ActionChains(browser).scroll_from_origin(ScrollOrigin.from_element(plot), 0, -300).perform()
    xs, _ = ticks(browser)
    assert max(xs) - min(xs) < max(before[0]) - min(before[0])
    keys(browser, "x")  # no shortcut
    plot.send_keys("0")
    assert ticks(browser) == before
    plot.send_keys("+")
    assert ticks(browser) != before
    plot.send_keys("-")
    assert ticks(browser) == before


def csv_regret(page: Path, tau: int, iteration: int) -> list[float]:
    """Read the regret of each seed at an iteration directly from the files."""
    found = []
    for summary in sorted(page.parent.glob("[0-9]*/summary.json")):
        if f"\ntau: {tau}\n" in (summary.parent / "config.yaml").read_text():
            line = (summary.parent / "regret.csv").read_text().splitlines()[iteration]
            number, regret, _ = line.split(",")
            assert int(number) == iteration
            found.append(float(regret))
    return found


def check_readout(page, head, name, value):
    iteration = int(re.fullmatch(r"iteration (\d+)", head)[1])
    regrets = csv_regret(page, int(re.search(r"tau=(\d+)", name)[1]), iteration)
    mean, error = map(float, re.fullmatch(r"regret ([\d.]+) ± ([\d.]+)", value).groups())
    assert len(regrets) == 3
    assert mean == pytest.approx(np.mean(regrets), rel=1e-5, abs=0.00501)
    assert error == pytest.approx(np.std(regrets, ddof=1) / math.sqrt(3), rel=1e-5, abs=0.00501)
    return iteration


def test_hover_shows_what_the_csv_files_hold(browser, small):
    browser.get(small.as_uri())
    plot = find(browser, "#curves .plot")
    tip = find(browser, "#curves .tip")
    assert not tip.is_displayed()
    for x, y in ((0.3, 0.7), (0.55, 0.4), (0.9, 0.2)):
        hover(browser, plot, x, y)
        iteration = check_readout(small, *tip.text.split("\n"))
        expected = (x * plot.size["width"] - LEFT) / (plot.size["width"] - LEFT - RIGHT) * 200
        assert abs(iteration - expected) < 1
        assert f"Regret at iteration {iteration}" in find(browser, "#legend-note").text
    hover(browser, find(browser, "h1"), 0.5, 0.5)
    assert not tip.is_displayed()
    assert "Final regret" in find(browser, "#legend-note").text


def test_arrow_keys_move_along_a_curve_and_between_curves(browser, small):
    from selenium.webdriver import Keys

    browser.get(small.as_uri())
    plot = find(browser, "#curves .plot")
    tip = find(browser, "#curves .tip")
    plot.send_keys(Keys.ARROW_RIGHT)
    first = check_readout(small, *tip.text.split("\n"))
    plot.send_keys(Keys.ARROW_RIGHT)
    assert check_readout(small, *tip.text.split("\n")) == first + 1
    plot.send_keys(Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert check_readout(small, *tip.text.split("\n")) == first - 1
    spoken = find(browser, "#curves [aria-live]").get_attribute("textContent")
    assert spoken == ", ".join(tip.text.split("\n"))
    plot.send_keys(Keys.HOME)
    assert check_readout(small, *tip.text.split("\n")) == 1
    plot.send_keys(Keys.END)
    assert check_readout(small, *tip.text.split("\n")) == 200
    name = tip.text.split("\n")[1]
    plot.send_keys(Keys.ARROW_DOWN)
    plot.send_keys(Keys.ARROW_DOWN)
    assert tip.text.split("\n")[1] != name


def test_pareto_marks_are_the_nondominated_points(browser, small):
    browser.get(small.as_uri())
    groups = [group["figures"] for group in data_of(small)["groups"]]
    best = [
        not any(
            other["exchanges"] <= one["exchanges"]
            and other["regret"] <= one["regret"]
            and (other["exchanges"], other["regret"]) != (one["exchanges"], one["regret"])
            for other in groups
        )
        for one in groups
    ]
    script = """return [...document.querySelectorAll("#by-exchanges .mark")]
      .map((mark) => mark.getAttribute("fill") !== "var(--card)")"""
    assert browser.execute_script(script) == best
    assert 0 < sum(best) < len(best)


def test_the_pareto_frontier_keeps_equal_points_and_drops_dominated_ones(browser, small):
    browser.get(small.as_uri())
    points = [(0, 9), (0, 9), (0, 10), (3, 9), (3, 5), (4, 5), (5, 1), (5, 1), (6, 7)]
    script = "return paretoFrontier(arguments[0].map(([x, y]) => ({x, y}))).map(({x, y}) => [x, y])"
    kept = browser.execute_script(script, points)
    assert kept == [[0, 9], [0, 9], [3, 5], [5, 1], [5, 1]]


def colours(browser):
    script = """return ["body", ".card"].map((name) => {
      const style = getComputedStyle(document.querySelector(name));
      return [style.backgroundColor, style.color]; })"""
    return browser.execute_script(script)


def luminance(colour):
    channels = np.array([int(part) for part in re.findall(r"\d+", colour)[:3]]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(one, other):
    """Return the contrast ratio of WCAG 2."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_dark_scheme_follows_the_system_and_the_button(browser, small):
    browser.get(small.as_uri())
    light = colours(browser)
    emulate(browser, "prefers-color-scheme", "dark")
    dark = colours(browser)
    assert luminance(light[1][0]) > 0.9
    assert luminance(dark[1][0]) < 0.1
    theme = find(browser, "#theme")
    theme.click()
    assert theme.text == "Theme: light"
    assert colours(browser) == light
    theme.click()
    emulate(browser, "prefers-color-scheme", "light")
    assert theme.text == "Theme: dark"
    assert colours(browser) == dark


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_is_sufficient_for_text_and_lines(scheme, browser, small):
    emulate(browser, "prefers-color-scheme", scheme)
    browser.get(small.as_uri())
    script = """const probe = document.createElement("i"); document.body.append(probe);
      return arguments[0].map((name) => {
        probe.style.color = `var(--${name})`; return getComputedStyle(probe).color; })"""
    texts_and_grounds = ["text", "muted", "accent", "card", "page", "hover"]
    *inks, card, page, hovered = browser.execute_script(script, texts_and_grounds)
    for ink in inks:
        for ground in (card, page, hovered):
            assert contrast(ink, ground) >= 4.5
    lines = browser.execute_script(script, [f"s{i}" for i in range(8)] + ["control"])
    assert all(contrast(line, card) >= 3 for line in lines)
    assert len(set(lines)) == 9


def test_phone_has_no_horizontal_scroll_and_large_targets(browser, small):
    metrics = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get(small.as_uri())
    script = "return [document.documentElement.scrollWidth, window.innerWidth]"
    width, viewport = browser.execute_script(script)
    assert width <= viewport == 360
    script = """return [...document.querySelectorAll("button")]
      .map((button) => Math.min(button.offsetHeight, button.offsetWidth))"""
    assert min(browser.execute_script(script)) >= 24  # WCAG 2.2, target size
    browser.execute_script("document.querySelector('details').open = true")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 360


def test_touch_shows_the_readout_and_zooms_with_buttons(browser, small):
    metrics = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get(small.as_uri())
    plot, tip = find(browser, "#curves .plot"), find(browser, "#curves .tip")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", plot)
    corner = browser.execute_script("return arguments[0].getBoundingClientRect().toJSON()", plot)
    point = {"x": corner["x"] + 0.7 * corner["width"], "y": corner["y"] + 0.4 * corner["height"]}
    touch = "Input.dispatchTouchEvent"
    browser.execute_cdp_cmd(touch, {"type": "touchStart", "touchPoints": [point]})
    browser.execute_cdp_cmd(touch, {"type": "touchEnd", "touchPoints": []})
    iteration = check_readout(small, *tip.text.split("\n"))
    assert (
        abs(iteration - (0.7 * corner["width"] - LEFT) / (corner["width"] - LEFT - RIGHT) * 200)
        < 1.5
    )
    for _ in range(3):
        find(browser, "#curves [aria-label='Zoom in']").click()
    xs, _ = ticks(browser)
    assert min(xs) < iteration < max(xs)
    assert max(xs) - min(xs) < 50


def test_a_cost_of_zero_is_shown_or_reported_as_missing(browser, small):
    browser.get(small.as_uri())
    chart = "#by-exchanges"
    assert find(browser, f"{chart} .log-x").get_attribute("aria-pressed") == "false"
    assert count(browser, f"{chart} .mark") == 5
    find(browser, f"{chart} .log-x").click()
    assert count(browser, f"{chart} .mark") == 4
    assert "at 0, not on a log axis: tau=9" in texts(browser, f"{chart} .lost")[0]
    path = find(browser, f"{chart} .frontier").get_attribute("d")
    assert "NaN" not in path
    assert "Infinity" not in path


def test_everything_can_be_reached_by_tab_with_a_visible_focus(browser, small):
    from selenium.webdriver import Keys

    browser.get(small.as_uri())
    reached = []
    script = """const e = document.activeElement; const style = getComputedStyle(e);
      return [e.id || e.className || e.tagName, style.outlineStyle, style.outlineWidth]"""
    for _ in range(60):
        keys(browser, Keys.TAB)
        name, style, width = browser.execute_script(script)
        reached.append(name)
        assert name == "BODY" or (style == "solid" and float(width[:-2]) >= 2), name
    assert {"theme", "seeds", "show-all", "show-none"} <= set(reached)
    assert reached.count("plot") >= 3


def test_reduced_motion_has_no_transition(browser, small):
    browser.get(small.as_uri())
    script = "return getComputedStyle(document.querySelector('#theme')).transitionDuration"
    emulate(browser, "prefers-reduced-motion", "no-preference")
    assert browser.execute_script(script) != "0s"
    emulate(browser, "prefers-reduced-motion", "reduce")
    assert browser.execute_script(script) == "0s"


def test_a_single_run_and_a_zero_regret_draw_without_error(browser, tmp_path):
    make_run(tmp_path / "run", [0.0])
    assert call(tmp_path).returncode == 0
    browser.get((tmp_path / "report.html").as_uri())
    for button in browser.find_elements("css selector", ".chart-head button:not(:disabled)"):
        button.click()
    assert browser.get_log("browser") == []
    assert "NaN" not in browser.page_source.split("<script")[0]
