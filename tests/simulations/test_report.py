"""`python -m simulations.report`: reading runs, the page's content, and the page in a browser."""

from __future__ import annotations

import base64
import functools
import hashlib
import http.server
import json
import math
import os
import re
import shutil
import struct
import subprocess
import sys
import threading
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlencode, urlsplit
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import yaml
from accessibility import violations

from fldb_flower.deployment.processes import free_port
from fldb_flower.errors import DataError, OutputError
from fldb_flower.runs.styles import ALGORITHM_STYLES
from simulations.report.__main__ import main
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

ROOT = Path(__file__).parents[2]
SCRIPTS = 5  # the theme, the two libraries, the data and the page's own
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
        self.data = ""
        self._inside = False
        self.feed(text)
        kinds = [attributes.get("type") for tag, attributes in self.tags if tag == "script"]
        self.data = self.scripts[kinds.index("application/json")]

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
    return json.loads(_Blocks(page.read_text()).data)


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


DAMAGED = "damaged, or another program's"
SPOILED = {
    "no summary": (lambda p: (p / "summary.json").unlink(), "no summary.json"),
    "no curve": (lambda p: (p / "regret.csv").unlink(), "no regret.csv"),
    "no settings": (lambda p: (p / "config.yaml").unlink(), "no config.yaml"),
    "cut JSON": (lambda p: cut(p / "summary.json", 20), f"summary.json is {DAMAGED}"),
    "other JSON": (lambda p: put(p / "summary.json", "[]"), f"summary.json is {DAMAGED}"),
    "not a number": (
        lambda p: patch(p / "summary.json", "3.0", "NaN"), f"summary.json is {DAMAGED}",
    ),
    "not complete": (
        lambda p: patch(p / "summary.json", "true", "false"), f"summary.json is {DAMAGED}",
    ),
    "empty CSV": (lambda p: put(p / "regret.csv", ""), f"regret.csv is {DAMAGED}"),
    "rows missing": (lambda p: cut(p / "regret.csv", 8), f"regret.csv is {DAMAGED}"),
    "text in CSV": (lambda p: patch(p / "regret.csv", "2.0", "two"), f"regret.csv is {DAMAGED}"),
    "infinite": (lambda p: patch(p / "regret.csv", "2.0", "inf"), "not finite"),
    "cut in the last row": (lambda p: patch(p / "regret.csv", "3.0,3\n", "3\n"), "not finite"),
    "other columns": (
        lambda p: patch(p / "regret.csv", "exchanges", "rounds"), f"regret.csv is {DAMAGED}",
    ),
    "binary": (
        lambda p: (p / "regret.csv").write_bytes(b"\xff\xfe\x00"), f"regret.csv is {DAMAGED}",
    ),
    "cut YAML": (lambda p: put(p / "config.yaml", "a: [1,"), f"config.yaml is {DAMAGED}"),
    "no mapping": (lambda p: put(p / "config.yaml", "just text"), f"config.yaml is {DAMAGED}"),
    "no horizon": (lambda p: put(p / "config.yaml", "tau: 1"), f"config.yaml is {DAMAGED}"),
    "python object": (
        lambda p: put(p / "config.yaml", "a: !!python/object/apply:os.getcwd []"),
        f"config.yaml is {DAMAGED}",
    ),
    "folder": (
        lambda p: ((p / "regret.csv").unlink(), (p / "regret.csv").mkdir()),
        "regret.csv cannot be read: Is a directory",
    ),
}  # fmt: skip


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
    runs = [a_run(a=1, b=2, c="x"), a_run(a=1, b=3, c="x"), a_run(a=1, b=2, c="y")]
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


def values_of(made: dict[str, Any], path: str) -> dict[str, str]:
    """Return the settings of a run by name, as the page shows them."""
    (run,) = [run for run in made["runs"] if run["path"] == path]
    pairs = zip(made["settings"], run["settings"], strict=True)
    return {setting["name"]: setting["values"][place] for setting, place in pairs}


def varying_in(made: dict[str, Any]) -> list[str]:
    return [setting["name"] for setting in made["settings"] if setting["varies"]]


def labels_in(made: dict[str, Any], title: str = "configuration") -> list[str]:
    (found,) = [grouping for grouping in made["groupings"] if grouping["title"] == title]
    return [group["label"] for group in found["groups"]]


def decoded(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype="<f4")


def test_the_payload_has_settings_groups_and_curves(tmp_path):
    make_run(tmp_path / "0", [1.0, 4.0], seed=0)
    make_run(tmp_path / "1", [3.0, 10.0], seed=1)
    make_run(tmp_path / "longer", [2.0, 5.0, 1e-9], seed=10, tau=2)
    made = payload(*find_runs([tmp_path]), tmp_path)
    assert made["iterations"] == [1, 2, 3]
    assert varying_in(made) == ["horizon", "tau", "seed"]
    assert values_of(made, "longer")["seed"] == "10"
    assert values_of(made, "longer")["algorithm"] == "fldb_ogd"
    assert labels_in(made) == ["horizon=2, tau=1", "horizon=3, tau=2"]
    assert labels_in(made, "seed") == ["seed=0", "seed=1", "seed=10"]  # by value
    assert labels_in(made, "run") == [
        "horizon=2, tau=1, seed=0",
        "horizon=2, tau=1, seed=1",
        "horizon=3, tau=2, seed=10",
    ]
    assert made["groupings"][0]["of"] == [0, 0, 1]
    assert decoded(made["runs"][1]["curve"]).tolist() == [3.0, 10.0]
    assert decoded(made["runs"][2]["curve"])[2] == np.float32(1e-9)
    assert [run["regret"] for run in made["runs"]] == [4.0, 10.0, 1e-9]


def test_a_single_run_is_one_group(tmp_path):
    make_run(tmp_path / "run")
    made = payload(*find_runs([tmp_path]), tmp_path)
    assert [grouping["title"] for grouping in made["groupings"]] == ["configuration", "run"]
    assert labels_in(made) == ["all runs"]


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
    assert varying_in(made) == ["algorithm", "schedule", "environment.sigma"]
    assert labels_in(made) == [
        "fldb_ogd, periodic, environment.sigma=0",
        "fldb_ons, geometric, environment.sigma=0.3",
    ]
    assert values_of(made, "a")["tau"] == "1"
    assert values_of(made, "b")["tau"] == "not used"  # the schedule is geometric


def test_groups_have_the_styles_of_their_algorithms(tmp_path):
    for name in ("ldb", "fldb_ons"):
        for seed in (0, 1):
            make_run(tmp_path / f"{name}{seed}", algorithm=name, seed=seed)
    make_run(tmp_path / "tau", algorithm="fldb_ons", tau=2)
    made = payload(*find_runs([tmp_path]), tmp_path)
    assert labels_in(made) == ["fldb_ons, tau=1", "fldb_ons, tau=2", "ldb"]
    one, two, ldb = (group["style"] for group in made["groupings"][0]["groups"])
    for style, name in ((one, "fldb_ons"), (ldb, "ldb")):
        own = ALGORITHM_STYLES[name]
        assert style["colors"] == [own["color"], own["dark"]]
        assert (style["dash"], style["marker"]) == (own["dash"], own["marker"])
    assert (one["colors"], one["dash"]) != (two["colors"], two["dash"])
    # By seed, each group has both algorithms: the groups have different styles of their own.
    (by_seed,) = [each for each in made["groupings"] if each["title"] == "seed"]
    assert by_seed["groups"][0]["style"]["colors"] != by_seed["groups"][1]["style"]["colors"]


@pytest.mark.parametrize("horizon", [1, 2, 199, 200, 201, 500, 10_000])
def test_kept_iterations_are_few_and_include_both_ends(horizon):
    kept = kept_iterations([horizon])
    assert len(kept) <= MAX_POINTS
    assert (kept[0], kept[-1]) == (1, horizon)
    assert (np.diff(kept) > 0).all()
    assert horizon > MAX_POINTS or len(kept) == horizon
    assert {7, 123} <= set(kept_iterations([7, 123, 10_000]).tolist())  # ends of shorter runs


def test_participation_is_summed_over_intervals(tmp_path):
    path = make_run(tmp_path / "run")
    rng = np.random.default_rng(3)
    replied = rng.integers(0, 5, 1001)
    rows = [
        f"{t},4,{n},{'a; b' if t <= 3 else 'b' if n < 4 else ''},\n"
        for t, n in enumerate(replied, 1)
    ]
    (path / "participation.csv").write_text(
        "iteration,asked,replied,absent,rejected\n" + "".join(rows)
    )
    (run,) = payload(*find_runs([tmp_path]), tmp_path)["runs"]
    shown = run["participation"]
    assert (shown["asked"], shown["replied"]) == (4004, replied.sum())
    assert len(shown["iterations"]) <= MAX_POINTS
    assert shown["iterations"][-1] == 1001
    shares = decoded(shown["share"])
    start = 0
    for end, share in zip(shown["iterations"], shares, strict=True):
        assert share == pytest.approx(replied[start:end].mean() / 4, rel=1e-6)
        start = end
    late = sum(n < 4 for n in replied[3:])
    assert shown["absent"] == [["b", late + 3], ["a", 3]]
    assert shown["rejected"] == []


@pytest.mark.parametrize(
    ("name", "text", "key"),
    [
        ("prediction.csv", "iteration,log_loss\n1,2\n", "predicted"),
        ("prediction.csv", "iteration,log_loss,accuracy\n1,2,3\n", "predicted"),
        ("participation.csv", "iteration,asked,replied,absent,rejected\n1,x,1,,\n",
         "participation"),
    ],
)  # fmt: skip
def test_an_unusable_additional_file_is_reported_in_the_page(name, text, key, tmp_path):
    (make_run(tmp_path / "run") / name).write_text(text)
    (run,) = payload(*find_runs([tmp_path]), tmp_path)["runs"]
    assert run[key]["problem"] == f"{name} is {DAMAGED}"
    assert run["regret"] == 3.0


@pytest.mark.slow
def test_large_seeds_and_odd_values_survive(tmp_path):
    make_run(tmp_path / "a", seed=2**63, lr=1e-7, on=True, none=None, ratio=math.inf)
    make_run(tmp_path / "b", seed=1, lr=0.1, on=False, none="", ratio=2.0)
    assert call(tmp_path).returncode == 0
    made = data_of(tmp_path / "report.html")
    names = ["seed", "lr", "on", "none", "ratio"]
    a, b = ([values_of(made, path)[name] for name in names] for path in "ab")
    assert a == [str(2**63), "1e-07", "true", "null", "inf"]
    assert b == ["1", "0.1", "false", "", "2"]


@pytest.mark.slow
def test_untrusted_text_cannot_leave_its_block(tmp_path):
    make_run(tmp_path / "run", note=HOSTILE, **{HOSTILE: 1})
    make_run(tmp_path / "{{script}}", note="{{style}}&amp;", **{HOSTILE: 2})
    assert call(tmp_path).returncode == 0
    text = (tmp_path / "report.html").read_text()
    blocks = _Blocks(text)
    assert len(blocks.scripts) == SCRIPTS
    assert all(tag != "img" for tag, _ in blocks.tags)
    assert HOSTILE not in text
    assert not set("<>&") & set(blocks.data)
    data = json.loads(blocks.data)
    assert varying_in(data) == ["note", HOSTILE]
    notes = {values_of(data, run["path"])["note"] for run in data["runs"]}
    assert notes == {HOSTILE, "{{style}}&amp;"}


def test_links_are_relative_paths_whatever_a_directory_is_called(tmp_path):
    for name in ("javascript:alert(1)", "a b#?%20", "é"):
        make_run(tmp_path / "runs" / name)
    (tmp_path / "pages").mkdir()
    made = payload(*find_runs([tmp_path / "runs"]), tmp_path / "pages")
    assert len(made["runs"]) == 3
    for run in made["runs"]:
        assert re.fullmatch(r"\./\.\./runs/[\w.%-]+/", run["href"])
        assert (tmp_path / "pages" / unquote(run["href"]) / "summary.json").is_file()


def test_the_policy_allows_only_the_page_s_own_scripts(tmp_path):
    make_run(tmp_path / "run")
    assert call(tmp_path).returncode == 0
    blocks = _Blocks((tmp_path / "report.html").read_text())
    policy = next(
        attributes["content"] or ""
        for tag, attributes in blocks.tags
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    allowed = rules["script-src"].split()
    code = [script for script in blocks.scripts if script != blocks.data]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in code]
    assert allowed == [f"'sha256-{each}'" for each in hashes]
    assert "http" not in policy
    for tag, attributes in blocks.tags:
        assert not {"src", "action"} & set(attributes), tag
        assert tag != "link" or attributes["href"] == "data:,"


def test_a_missing_library_is_named_in_one_line(tmp_path, monkeypatch, capsys):
    make_run(tmp_path / "run")
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path)])
    assert "needs the report extra: pip install -e '.[report]'" in str(ended.value)
    assert "\n" not in str(ended.value)
    assert not (tmp_path / "report.html").exists()


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
    "{0}/good --output {0}/pipe": "pipe: it is not a file; name another file with --output",
    "{0}/good --output {0}/no/x.html": "cannot write",
    "{0}/good --output /proc/x.html": "cannot write",
    "": "required: DIR",
    "{0}/good --outptu x": "--outptu",
}


@pytest.mark.parametrize("arguments", BAD)
def test_bad_input_ends_in_one_line(arguments, tmp_path):
    make_run(tmp_path / "good" / "run")
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe")
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


def make_sweep(folder: Path, runs: int, seeds: int, horizon: int, algorithms: Any = ("fldb_ogd",)):
    """Write runs whose curves are of different shapes and cross."""
    rng = np.random.default_rng(7)
    taus = -(-runs // seeds // len(algorithms))
    for number in range(runs):
        place, seed = divmod(number, seeds)
        which, tau = place // taus, 1 + place % taus
        steps = rng.exponential(1.0, horizon) * np.arange(1, horizon + 1) ** (-0.02 * tau)
        exchanges = max(1, horizon // tau)
        make_run(
            folder / str(number),
            np.cumsum(steps),
            summary={"exchanges": exchanges, "uploaded_bytes": 880 * exchanges},
            algorithm=algorithms[which],
            tau=tau,
            seed=seed,
        )


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Return the page about 4 configurations of 3 seeds, and a run with hostile settings."""
    folder = tmp_path_factory.mktemp("small")
    make_sweep(folder, runs=12, seeds=3, horizon=200)
    (make_run(folder / "broken") / "summary.json").unlink()
    odd = {"note": HOSTILE, "tau": 9, "k" * 300: "v" * 300}
    hostile = folder / "<b onclick=x>&amp;"
    make_run(hostile, [1.0] * 200, summary={"exchanges": 0, "log_loss": 0.25}, **odd)
    (hostile / "participation.csv").write_text(
        "iteration,asked,replied,absent,rejected\n1,2,2,,\n2,2,1,<i>node</i>,\n"
    )
    rows = [f"{t},0.5,0.25\n" for t in range(1, 201)]
    (hostile / "prediction.csv").write_text("iteration,log_loss,accuracy\n" + "".join(rows))
    done = call(folder)
    assert done.returncode == 0, done.stderr
    return folder / "report.html"


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


def phone(browser, width=390):
    metrics = {"width": width, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


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


def open_page(browser, page, fragment="", storage=False):
    """Open the page and wait until it is drawn."""
    browser.get("about:blank")  # another fragment alone would not load it
    browser.get(page.as_uri() + fragment)
    wait(browser, "return performance.getEntriesByName('report-ready').length")
    if not storage and browser.execute_script("return localStorage.length"):
        browser.execute_script("localStorage.clear()")
        open_page(browser, page, fragment)


def traces(browser, chart="#curves"):
    """Return the traces with a reading of a chart, by the label of the group."""
    script = """const place = document.querySelector(arguments[0]);
      place.scrollIntoView({block: "center"});
      const plot = place.querySelector(".plot");
      return plot.data && plot.data.filter(({meta}) => meta).map((trace) => ({
        label: trace.meta.label, best: trace.meta.best, x: [...trace.x], y: [...trace.y],
        error: trace.customdata && [...trace.customdata],
        line: trace.line, marker: trace.marker }))"""
    found = wait(browser, f"const found = (() => {{ {script} }})(); return found && [found]", chart)
    return {trace["label"]: trace for trace in found[0]}


def rows(browser, table):
    """Return the rows shown of a table, as dictionaries by the title of the column."""
    script = """const table = document.getElementById(arguments[0]);
      const texts = (row) => [...row.cells].map((cell) => cell.textContent);
      const [head, ...body] = [...table.rows].map(texts);
      return body.map((row) => Object.fromEntries(row.map((text, i) => [head[i], text])))"""
    return browser.execute_script(script, table)


def sort_by(browser, table, title, key=None):
    """Sort a table by a click on the head of a column, or by a key; return the head."""
    heads = browser.find_elements("css selector", f"#{table} th")
    (head,) = [each for each in heads if each.text.replace("\n", " ") == title]
    before = head.get_attribute("aria-sort")
    control = head.find_element("css selector", ".dt-column-order")
    if key is None:
        control.click()
    else:
        control.send_keys(key)
    wait(browser, "return ![null, arguments[1]].includes(arguments[0].ariaSort)", head, before)
    return head


def type_into(browser, selector, text):
    field = find(browser, selector)
    field.clear()
    field.send_keys(text)


def choose(browser, selector, text):
    from selenium.webdriver.support.ui import Select

    Select(find(browser, selector)).select_by_visible_text(text)


def tick(browser, setting, *values):
    """Choose values of a setting in its filter."""
    (place,) = [
        each
        for each in browser.find_elements("css selector", ".filter")
        if each.find_element("css selector", "summary").text.split(":")[0] == setting
    ]
    place.find_element("css selector", "summary").click()
    for label in place.find_elements("css selector", "label"):
        if label.text in values:
            label.click()
    keys(browser, "\ue00c")  # Escape
    assert place.get_attribute("open") is None


def csv_curves(page: Path, **wanted: Any) -> np.ndarray:
    """Read the curves of the sweep's runs with these settings directly from the files."""
    found = []
    for path in sorted(page.parent.glob("[0-9]*")):
        settings = yaml.safe_load((path / "config.yaml").read_text())
        if all(settings[key] == value for key, value in wanted.items()):
            found.append(pd.read_csv(path / "regret.csv")["cumulative_regret"])
    return np.array(found)


def standard_error(values: np.ndarray) -> np.ndarray:
    return values.std(axis=0, ddof=1) / math.sqrt(len(values))


def test_the_page_sends_no_request_and_has_no_error(browser, small):
    open_page(browser, small)
    for chart in ("#by-exchanges", "#by-bytes"):
        traces(browser, chart)
    asked = [
        message["params"]["request"]["url"]
        for message in messages(browser)
        if message["method"] == "Network.requestWillBeSent"
    ]
    assert asked, "the log is not recording"
    own = {small.as_uri(), "about:blank"}
    assert {url for url in asked if not url.startswith("data:")} <= own
    assert browser.get_log("browser") == []


def test_the_page_over_http_requests_only_itself(browser, small):
    handler = functools.partial(_Quiet, directory=str(small.parent))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    _Quiet.asked.clear()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        browser.get(f"http://127.0.0.1:{server.server_port}/report.html")
        assert len(rows(browser, "runs")) == 13
        assert _Quiet.asked == ["/report.html"]
        assert browser.get_log("browser") == []
    finally:
        server.shutdown()
        server.server_close()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    asked: list[str] = []  # noqa: RUF012 - one server at a time

    def log_message(self, *_):
        self.asked.append(self.path)


@pytest.fixture(scope="module")
def thousand(tmp_path_factory):
    folder = tmp_path_factory.mktemp("thousand")
    algorithms = ("fldb_ogd", "fldb_ons", "fldb_personal", "alone", "random")
    make_sweep(folder, runs=1000, seeds=20, horizon=500, algorithms=algorithms)
    done = call(folder)
    assert done.returncode == 0, done.stderr
    return folder / "report.html"


def processor_time(browser, page):
    """Open a page, and return the seconds that it took until it was drawn."""
    browser.get("about:blank")
    browser.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    browser.get(page.as_uri())
    wait(browser, "return performance.getEntriesByName('report-ready').length")
    metrics = browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    browser.execute_cdp_cmd("Performance.disable", {})
    (seconds,) = (metric["value"] for metric in metrics if metric["name"] == "TaskDuration")
    assert seconds > 0
    return seconds


@pytest.mark.exhaustive
def test_1000_runs_open_within_two_seconds(browser, thousand):
    """Seconds of processor time, since other processes delay the page."""
    assert thousand.stat().st_size < 8e6
    assert min(processor_time(browser, thousand) for _ in range(2)) < 2
    assert "1,000 of 1,000 runs in 32 groups" in find(browser, "#selected").text
    assert len(traces(browser)) == 12  # the best at first
    find(browser, "#show-all").click()
    wait(browser, "return document.querySelector('#curves .plot').data.length > 60")
    assert len(traces(browser)) == 32
    assert "thinned" in find(browser, "#curves-note").text


def test_hostile_text_stays_text_in_every_view(browser, small):
    name = "<b onclick=x>&amp;"
    fragment = "#" + urlencode({"run": name})
    for place in ("", fragment, "#" + urlencode([("diff", name), ("diff", "0")])):
        open_page(browser, small, place)
        assert "owned" not in browser.title
        assert count(browser, "img, b[onclick], i") == 0
        assert browser.get_log("browser") == []
        content = browser.execute_script("return document.body.textContent")
        assert name in content
        assert HOSTILE in content
    open_page(browser, small)
    assert "broken: no summary.json" in texts(browser, "#unfinished li")
    label = next(label for label in traces(browser) if "tau=9" in label)
    assert HOSTILE in label
    assert name in texts(browser, "#runs td:first-child a")


def test_lines_are_means_and_bands_standard_errors_of_the_files(browser, small):
    open_page(browser, small)
    lines = traces(browser)
    assert len(lines) == 5
    for tau in (1, 2, 3, 4):
        (line,) = [each for label, each in lines.items() if f"tau={tau}" in label]
        curves = csv_curves(small, tau=tau)
        assert curves.shape == (3, 200)
        assert line["x"] == list(range(1, 201))
        assert line["y"] == pytest.approx(curves.mean(axis=0), rel=1e-6)
        assert line["error"] == pytest.approx(standard_error(curves), rel=1e-4, abs=1e-6)
    script = """return document.querySelector("#curves .plot").data
      .filter(({fill}) => fill).map(({x, y}) => [[...x], [...y]])"""
    bands = browser.execute_script(script)
    assert len(bands) == 4  # the hostile run is alone: no error
    curves = csv_curves(small, tau=1)
    mean, error = curves.mean(axis=0), standard_error(curves)
    assert bands[0][1][:200] == pytest.approx(mean + error, rel=1e-5)
    assert bands[0][1][200:] == pytest.approx((mean - error)[::-1], rel=1e-5)


def test_the_table_has_mean_median_and_standard_error(browser, small):
    open_page(browser, small)
    shown = rows(browser, "groups")
    means = [float(row["Mean regret"]) for row in shown]
    assert means == sorted(means)
    for tau in (1, 2, 3, 4):
        (row,) = [row for row in shown if f"tau={tau}" in row["Group"]]
        final = csv_curves(small, tau=tau)[:, -1]
        assert row["Runs"] == "3"
        assert float(row["Mean regret"]) == pytest.approx(final.mean(), abs=0.00501)
        assert float(row["Median"]) == pytest.approx(np.median(final), abs=0.00501)
        assert float(row["Std. error"]) == pytest.approx(standard_error(final), abs=0.00501)
        assert float(row["Exchanges"]) == 200 // tau
    (row,) = [row for row in shown if "tau=9" in row["Group"]]
    assert (row["Std. error"], row["Log loss"]) == ("\N{EN DASH}", "0.2500")


def test_a_repeated_run_counts_once(browser, tmp_path):
    for name, seed, final in (("a", 0, 1.0), ("again", 0, 1.0), ("b", 1, 3.0)):
        make_run(tmp_path / name, [final], seed=seed)
    assert call(tmp_path).returncode == 0
    open_page(browser, tmp_path / "report.html")
    (row,) = rows(browser, "groups")
    assert (row["Runs"], row["Mean regret"], row["Std. error"]) == ("2", "2.00", "1.00")


def test_groups_by_any_setting(browser, small):
    open_page(browser, small)
    choose(browser, "#group", "seed")
    lines = wait_for_traces(browser, 3)
    assert set(lines) == {"seed=0", "seed=1", "seed=2"}
    curves = csv_curves(small, seed=1)
    assert len(curves) == 4
    assert lines["seed=1"]["y"] == pytest.approx(curves.mean(axis=0), rel=1e-6)
    assert lines["seed=1"]["error"] == pytest.approx(standard_error(curves), rel=1e-4, abs=1e-6)
    choose(browser, "#group", "run")
    assert len(rows(browser, "groups")) == 13
    assert find(browser, "#groups-title").text == "Single runs"


def wait_for_traces(browser, number, chart="#curves"):
    wait(
        browser,
        """const {data} = document.querySelector(`${arguments[0]} .plot`);
        return data && data.filter(({meta}) => meta).length === arguments[1]""",
        chart,
        number,
    )
    return traces(browser, chart)


def test_search_and_filters_apply_to_charts_and_tables(browser, small):
    open_page(browser, small)
    type_into(browser, "#search", "tau=2 SEED=1")
    assert [row["Run"] for row in rows(browser, "runs")] == ["4"]  # runs 3, 4, 5 have tau=2
    (line,) = wait_for_traces(browser, 1).values()
    assert line["y"] == pytest.approx(csv_curves(small, tau=2, seed=1)[0], rel=1e-6)
    assert "1 of 13 runs in 1 group" in find(browser, "#selected").text
    find(browser, "#clear").click()
    assert len(rows(browser, "runs")) == 13
    tick(browser, "tau", "1", "4")
    tick(browser, "seed", "0", "2")
    assert sorted(row["Run"] for row in rows(browser, "runs")) == ["0", "11", "2", "9"]
    lines = wait_for_traces(browser, 2)
    (line,) = [each for label, each in lines.items() if "tau=4" in label]
    curves = csv_curves(small, tau=4)[[0, 2]]
    assert {
        yaml.safe_load((small.parent / n / "config.yaml").read_text())["tau"] for n in ("9", "11")
    } == {4}
    expected = np.array(
        [pd.read_csv(small.parent / n / "regret.csv")["cumulative_regret"] for n in ("9", "11")]
    )
    assert line["y"] == pytest.approx(expected.mean(axis=0), rel=1e-6)
    assert len(curves) == 2
    find(browser, "#clear").click()
    assert len(wait_for_traces(browser, 5)) == 5
    type_into(browser, "#search", "no such run")
    assert "No run is selected." in texts(browser, "#runs td")
    assert find(browser, "#curves .note").text == "No group is shown."


def test_check_boxes_show_and_hide_groups(browser, small):
    open_page(browser, small)
    box = find(browser, "#groups tbody input")
    box.click()
    assert len(wait_for_traces(browser, 4)) == 4
    assert find(browser, "#shown").text == "4 of 5 are drawn."
    box.send_keys(" ")
    wait_for_traces(browser, 5)
    find(browser, "#show-none").click()
    wait_for_traces(browser, 0)
    find(browser, "#show-all").click()
    wait_for_traces(browser, 5)


def test_single_runs_replace_the_bands(browser, small):
    open_page(browser, small)
    find(browser, "#single").click()
    script = """return document.querySelector("#curves .plot").data
      .filter(({name}) => name === "single runs").map(({y}) => [...y])"""
    singles = wait(browser, f"const found = (() => {{ {script} }})(); return found.length && found")
    assert len(singles) == 4
    expected = [value for curve in csv_curves(small, tau=1) for value in (*curve, None)]
    for value, wanted in zip(singles[0], expected, strict=True):
        assert value == (None if wanted is None else pytest.approx(wanted, rel=1e-6))


def test_tables_sort_by_value(browser, small):
    open_page(browser, small)
    regrets = [float(row["Final regret"]) for row in rows(browser, "runs")]
    assert regrets == sorted(regrets)
    head = sort_by(browser, "runs", "tau")
    taus = [int(row["tau"]) for row in rows(browser, "runs")]
    assert taus == sorted(taus)
    assert head.get_attribute("aria-sort") == "ascending"
    sort_by(browser, "runs", "tau", key="\ue007")  # Enter
    assert [int(row["tau"]) for row in rows(browser, "runs")] == taus[::-1]
    sort_by(browser, "runs", "Run")
    names = [row["Run"] for row in rows(browser, "runs")]
    assert names == [*map(str, range(12)), "<b onclick=x>&amp;"]  # by value, not 0, 1, 10


def downloaded(browser, folder, button, suffix):
    """Press a button and return the file that it saves."""
    behaviour = {"behavior": "allow", "downloadPath": str(folder)}
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", behaviour)
    button.click()
    deadline = time.monotonic() + 100
    while not (found := list(folder.glob(f"*{suffix}"))):
        assert time.monotonic() < deadline, list(folder.iterdir())
        time.sleep(0.05)
    return found[0]


def test_the_csv_file_has_all_rows_in_full_precision(browser, thousand, tmp_path):
    open_page(browser, thousand)
    path = downloaded(browser, tmp_path, find(browser, "#groups_wrapper .buttons-csv"), ".csv")
    table = pd.read_csv(path)
    assert len(table) == 32
    assert {"algorithm", "tau"} <= set(table)
    (row,) = table[(table["algorithm"] == "fldb_ons") & (table["tau"] == "3")].to_dict("records")
    final = csv_curves(thousand, algorithm="fldb_ons", tau=3)[:, -1]
    assert len(final) == row["Runs"] == 20
    assert row["Mean regret"] == pytest.approx(final.mean(), rel=1e-12)
    assert row["Median"] == pytest.approx(np.median(final), rel=1e-12)
    assert row["Std. error"] == pytest.approx(standard_error(final), rel=1e-9)
    path.unlink()
    path = downloaded(browser, tmp_path, find(browser, "#runs_wrapper .buttons-csv"), ".csv")
    table = pd.read_csv(path).set_index("Run")
    assert len(table) == 1000
    run = thousand.parent / "7"
    assert (
        table.loc[7, "Final regret"]
        == json.loads((run / "summary.json").read_text())["final_regret"]
    )


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_charts_are_saved_as_pictures(kind, browser, small, tmp_path):
    open_page(browser, small)
    path = downloaded(browser, tmp_path, find(browser, f"#curves .save-{kind}"), f".{kind}")
    if kind == "png":
        content = path.read_bytes()
        assert content.startswith(b"\x89PNG\r\n\x1a\n")
        assert struct.unpack(">II", content[16:24]) == (2700, 1680)  # three times 900 by 560
        return
    root = ElementTree.parse(path).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    shown = " ".join(root.itertext())
    for tau in (1, 2, 3, 4):
        assert f"tau={tau}" in shown  # the legend
    assert "cumulative regret per agent" in shown


def test_the_link_of_a_run_opens_its_view(browser, small):
    name = "<b onclick=x>&amp;"
    open_page(browser, small)
    (link,) = [
        each for each in browser.find_elements("css selector", "#runs a") if each.text == name
    ]
    link.click()
    wait(browser, "return !document.getElementById('view').hidden")
    assert not find(browser, "#overview").is_displayed()
    assert find(browser, "#view h2").text == name
    assert browser.switch_to.active_element == find(browser, "#view h2")
    here = browser.current_url
    settings = dict(
        zip(texts(browser, "#settings dt"), texts(browser, "#settings dd"), strict=True)
    )
    assert (settings["tau"], settings["note"], settings["algorithm"]) == ("9", HOSTILE, "fldb_ogd")
    assert "schedule.ratio" not in settings  # not used by a periodic schedule
    titles = texts(browser, "#view h3")
    assert titles == [
        "Cumulative regret", "Log loss of predictions", "Accuracy of predictions",
        "Participation of nodes", "Settings",
    ]  # fmt: skip
    places = browser.find_elements("css selector", "#view .pair > div")
    script = """arguments[0].scrollIntoView({block: "center"});
      const {data} = arguments[0].querySelector(".plot"); return data && [...data[0].y]"""
    curves = [wait(browser, script, place) for place in places]
    assert curves[0] == [1.0] * 200
    assert (set(curves[1]), set(curves[2])) == ({0.5}, {0.25})
    assert curves[3] == [1.0, 0.5]
    assert texts(browser, "#replies dd") == ["3 of 4", "<i>node</i> (1)"]
    folder = find(browser, "#view a[href^='./']").get_attribute("href")
    assert Path(unquote(urlsplit(folder).path)) == small.parent / name
    find(browser, "#view a[href='#']").click()
    wait(browser, "return document.getElementById('view').hidden")
    assert find(browser, "#runs").is_displayed()
    browser.get("about:blank")
    browser.get(here)  # the link alone
    assert find(browser, "#view h2").text == name


def test_two_runs_are_compared(browser, small):
    open_page(browser, small)
    sort_by(browser, "runs", "Run")
    compare = find(browser, "#compare")
    boxes = browser.find_elements("css selector", "#runs tbody input")
    boxes[1].click()
    assert not compare.is_enabled()
    boxes[5].click()
    compare.click()
    wait(browser, "return !document.getElementById('view').hidden")
    script = """return [...document.querySelectorAll(`#${arguments[0]} tr`)]
      .map((row) => [...row.cells].map((cell) => cell.textContent))"""
    differing, equal = (browser.execute_script(script, table) for table in ("diff", "same"))
    one, two = (
        yaml.safe_load((small.parent / name / "config.yaml").read_text()) for name in ("1", "5")
    )
    expected = [[key, str(one[key]), str(two[key])] for key in one if one[key] != two[key]]
    assert differing == [["Setting", "1", "5"], *expected]
    assert ["num_agents", "10", "10"] in equal
    results = browser.execute_script(script, "diff-results")
    finals = [
        pd.read_csv(small.parent / n / "regret.csv")["cumulative_regret"].iloc[-1] for n in "15"
    ]
    assert results[1] == ["Final regret", *(f"{final:.2f}" for final in finals)]
    assert len(wait_for_traces(browser, 2, "#view")) == 2


def test_an_unknown_run_opens_the_overview(browser, small):
    open_page(browser, small, "#run=none")
    assert find(browser, "#runs").is_displayed()
    assert not find(browser, "#view").is_displayed()


@pytest.mark.parametrize(
    ("chart", "cost"), [("#by-exchanges", "exchanges"), ("#by-bytes", "bytes")]
)
def test_filled_marks_are_the_nondominated_points(chart, cost, browser, small):
    open_page(browser, small)
    points = {}
    for path in small.parent.glob("*/summary.json"):
        summary = json.loads(path.read_text())
        settings = yaml.safe_load((path.parent / "config.yaml").read_text())
        transferred = summary["uploaded_bytes"] + summary["downloaded_bytes"]
        x = {"exchanges": summary["exchanges"], "bytes": transferred}[cost]
        points.setdefault(settings["tau"], []).append((x, summary["final_regret"]))
    means = {tau: np.mean(each, axis=0) for tau, each in points.items()}
    best = {
        tau: not any((other <= own).all() and (other < own).any() for other in means.values())
        for tau, own in means.items()
    }
    shown = traces(browser, chart)
    assert len(shown) == 5
    for label, trace in shown.items():
        tau = int(re.search(r"tau=(\d+)", label)[1])
        assert (trace["x"][0], trace["y"][0]) == pytest.approx(tuple(means[tau]), rel=1e-9)
        assert trace["best"] == best[tau]
        assert trace["marker"]["symbol"].endswith("-open") == (not best[tau])
    assert 0 < sum(best.values()) < len(best)


def test_the_pareto_frontier_keeps_equal_points_and_drops_dominated_ones(browser, small):
    open_page(browser, small)
    points = [(0, 9), (0, 9), (0, 10), (3, 9), (3, 5), (4, 5), (5, 1), (5, 1), (6, 7)]
    script = "return paretoFrontier(arguments[0].map(([x, y]) => ({x, y}))).map(({x, y}) => [x, y])"
    kept = browser.execute_script(script, points)
    assert kept == [[0, 9], [0, 9], [3, 5], [5, 1], [5, 1]]


def test_scales_are_logarithmic_on_request_and_a_cost_of_zero_is_reported(browser, small):
    open_page(browser, small)
    chart = "#by-exchanges"
    traces(browser, chart)
    script = "return document.querySelector(`${arguments[0]} .plot`).layout[arguments[1]].type"
    for axis in ("x", "y"):
        button = find(browser, f"{chart} .log-{axis}")
        assert browser.execute_script(script, chart, f"{axis}axis") == "linear"
        button.click()
        assert button.get_attribute("aria-pressed") == "true"
        assert browser.execute_script(script, chart, f"{axis}axis") == "log"
    assert find(browser, f"{chart} .note").text == "1 group at 0 is not on a log axis."
    assert browser.get_log("browser") == []


def test_arrow_keys_read_the_curves(browser, small):
    open_page(browser, small)
    plot = find(browser, "#curves .plot")
    spoken = "#curves [aria-live]"
    right, home, end, up = "\ue014", "\ue011", "\ue010", "\ue013"

    def reading():
        text = texts(browser, spoken)[0]
        pattern = r".*tau=(\d+).*, iteration (\d+), regret ([\d.]+)(?: ± ([\d.]+))?"
        tau, iteration, mean, error = re.fullmatch(pattern, text, re.S).groups()
        if int(tau) != 9:
            values = csv_curves(small, tau=int(tau))[:, int(iteration) - 1]
            assert float(mean) == pytest.approx(values.mean(), rel=1e-5)
            assert float(error) == pytest.approx(standard_error(values), rel=1e-3)
        return int(tau), int(iteration), float(mean)

    plot.send_keys(right)
    tau, iteration, _ = reading()
    plot.send_keys(right)
    assert reading()[:2] == (tau, iteration + 1)
    plot.send_keys(home)
    assert reading()[:2] == (tau, 1)
    plot.send_keys(end)
    before = reading()
    assert before[1] == 200
    plot.send_keys("\ue015" if before[0] == 1 else up)
    after = reading()
    assert after[0] != before[0]
    assert count(browser, "#curves .hoverlayer .hovertext") == 1


def test_keys_zoom_the_chart(browser, small):
    open_page(browser, small)
    plot = find(browser, "#curves .plot")
    script = "return document.querySelector('#curves .plot').layout.xaxis.range.map(Number)"
    before = browser.execute_script(script)
    plot.send_keys("+")
    wait(
        browser,
        f"const [a, b] = (() => {{ {script} }})(); return b - a < arguments[0]",
        0.9 * (before[1] - before[0]),
    )
    plot.send_keys("0")
    wait(
        browser,
        f"const [a, b] = (() => {{ {script} }})(); return b - a > arguments[0]",
        0.99 * (before[1] - before[0]),
    )


def luminance(colour):
    channels = np.array([int(part) for part in re.findall(r"\d+", colour)[:3]]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(one, other):
    """Return the contrast ratio of WCAG 2."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def card(browser):
    script = "return getComputedStyle(document.querySelector('.card')).backgroundColor"
    return luminance(browser.execute_script(script))


def line_colours(browser):
    return [line["line"]["color"] for line in traces(browser).values()]


def test_the_theme_follows_the_system_and_the_choice_is_remembered(browser, small):
    open_page(browser, small)
    assert card(browser) > 0.9
    light = line_colours(browser)
    emulate(browser, "prefers-color-scheme", "dark")
    wait(browser, "return document.documentElement.dataset.theme === 'dark'")
    assert card(browser) < 0.1
    wait(
        browser, "return document.querySelector('#curves .plot').layout.paper_bgcolor === '#191f26'"
    )
    assert line_colours(browser) != light
    choose(browser, "#theme", "Light")
    assert card(browser) > 0.9
    open_page(browser, small, storage=True)
    assert card(browser) > 0.9
    assert find(browser, "#theme").get_attribute("value") == "light"
    choose(browser, "#theme", "System")
    assert card(browser) < 0.1


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_contrast_is_sufficient_for_text_and_lines(theme, browser, small):
    emulate(browser, "prefers-color-scheme", theme)
    open_page(browser, small)
    script = """const probe = document.createElement("i"); document.body.append(probe);
      const found = arguments[0].map((color) => {
        probe.style.color = color; return getComputedStyle(probe).color; });
      probe.remove(); return found"""
    names = ["text", "muted", "accent", "control", "card", "page", "hover"]
    *inks, control, ground, page, hovered = browser.execute_script(
        script, [f"var(--{name})" for name in names]
    )
    for ink in inks:
        for below in (ground, page, hovered):
            assert contrast(ink, below) >= 4.5
    lines = browser.execute_script(script, line_colours(browser))
    assert all(contrast(line, ground) >= 3 for line in (*lines, control))


@pytest.mark.parametrize(
    ("width", "theme"),
    [
        (1280, "light"),
        (390, "dark"),
        *(
            pytest.param(*each, marks=pytest.mark.exhaustive)
            for each in [(1280, "dark"), (390, "light")]
        ),
    ],
)
def test_axe_finds_no_violation_in_any_view(width, theme, browser, small):
    emulate(browser, "prefers-color-scheme", theme)
    if width < 600:
        phone(browser, width)
    for fragment in ("", "#run=0", "#diff=0&diff=4"):
        open_page(browser, small, fragment)
        assert violations(browser) == []
    open_page(browser, small)
    browser.execute_script(
        "for (const each of document.querySelectorAll('details')) each.open = true"
    )
    assert violations(browser) == []


@pytest.mark.parametrize(
    "fragment", ["", "#run=0", "#diff=0&diff=4", "#run=%3Cb+onclick%3Dx%3E%26amp%3B"]
)
def test_a_phone_shows_the_page_without_horizontal_or_nested_scrolling(fragment, browser, small):
    phone(browser)
    open_page(browser, small, fragment)
    script = """return [...document.querySelectorAll("*")].filter((node) => {
        const {overflowX, overflowY} = getComputedStyle(node);
        const scrolls = (value) => ["auto", "scroll"].includes(value);
        return scrolls(overflowX) && node.scrollWidth > node.clientWidth
          || scrolls(overflowY) && node.scrollHeight > node.clientHeight;
      }).map((node) => node.outerHTML.slice(0, 99))"""
    assert browser.execute_script(script) == []
    width, viewport = browser.execute_script(
        "return [document.documentElement.scrollWidth, window.innerWidth]"
    )
    assert width <= viewport == 390
    script = """return [...document.querySelectorAll("button, .wrap td, .wrap th")]
      .filter((node) => node.getBoundingClientRect().right > 390).length"""
    assert browser.execute_script(script) == 0


def test_a_phone_shows_the_main_columns_and_the_others_on_request(browser, small):
    phone(browser)
    open_page(browser, small)
    assert texts(browser, "#groups th") == ["Group", "Mean regret", "Std. error", "More"]
    assert texts(browser, "#runs th") == ["Run", "Final regret", "More"]
    button = find(browser, "#groups tbody tr td.more button")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
    button.click()
    assert button.get_attribute("aria-expanded") == "true"
    shown = dict(zip(texts(browser, "#groups dt"), texts(browser, "#groups dd"), strict=True))
    assert {"Median", "Exchanges", "Bytes up", "Seconds"} <= set(shown)
    button.click()
    assert count(browser, "#groups dt") == 0


def test_touch_scrolls_the_page_over_a_chart_and_reads_a_curve(browser, small):
    phone(browser)
    browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True})

    def touch(kind, *points):
        places = [{"x": x, "y": y} for x, y in points]
        browser.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": places})

    try:
        open_page(browser, small)
        script = """const box = document.querySelector("#curves .nsewdrag").getBoundingClientRect();
          return [box.x + box.width / 2, box.y + box.height / 2]"""
        x, y = browser.execute_script(script)
        touch("touchStart", (x, y))
        for step in range(1, 11):
            touch("touchMove", (x, y - 20 * step))
            time.sleep(0.02)
        touch("touchEnd")
        wait(browser, "return scrollY > 100")
        x, y = browser.execute_script(script)
        touch("touchStart", (x, y))
        touch("touchEnd")
        wait(browser, "return document.querySelector('#curves .hoverlayer .hovertext')")
    finally:
        browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})


def test_everything_can_be_reached_by_tab_with_a_visible_focus(browser, small):
    open_page(browser, small)
    reached = []
    script = """const e = document.activeElement; const style = getComputedStyle(e);
      return [e.id || e.className || e.tagName, style.outlineStyle, style.outlineWidth]"""
    for _ in range(90):
        keys(browser, "\ue004")  # Tab
        name, style, width = browser.execute_script(script)
        reached.append(name)
        assert name == "BODY" or (style == "solid" and float(width[:-2]) >= 2), name
    assert {"theme", "search", "group", "clear", "single", "show-all", "show-none"} <= set(reached)
    assert sum(name.startswith("plot") for name in reached) == 3


def test_a_single_run_and_a_zero_regret_draw_without_error(browser, tmp_path):
    make_run(tmp_path / "run", [0.0])
    assert call(tmp_path).returncode == 0
    open_page(browser, tmp_path / "report.html")
    for chart in ("#curves", "#by-exchanges", "#by-bytes"):
        traces(browser, chart)
        for button in browser.find_elements("css selector", f"{chart} [class*=log-]"):
            button.click()
    find(browser, "#single").click()
    assert browser.get_log("browser") == []
    assert "NaN" not in browser.execute_script("return document.querySelector('main').textContent")
