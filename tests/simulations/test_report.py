"""`python -m simulations.report`: reading runs, the page's content, and the page in a browser."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pandas as pd
import pytest
import yaml
from matplotlib.figure import Figure

from fldb_flower.runs.plots import regret
from fldb_flower.runs.styles import ALGORITHM_STYLES, shades_of
from simulations.report.__main__ import main, report
from simulations.report.page import MAX_POINTS, kept_iterations, payload
from simulations.saved_runs import Run, by_configuration, find_runs, varying
from simulations.sweeps.tables import mean_curves, statistics_text

ROOT = Path(__file__).parents[2]
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


# ---- Reading runs


def test_runs_are_found_below_folders_in_natural_order_and_once(tmp_path):
    for name in ("sweep/10", "sweep/9", "other/deep/er/1", "sweep/.hidden/1"):
        make_run(tmp_path / name)
    runs, unfinished = find_runs([tmp_path / "sweep", tmp_path / "other", tmp_path / "sweep" / "9"])
    names = [run.path.relative_to(tmp_path).as_posix() for run in runs]
    assert names == ["sweep/9", "sweep/10", "other/deep/er/1"]
    assert unfinished == []


def test_a_run_is_read_as_written(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "hidden")  # is not looked up
    world = {"name": "synthetic", "sigma": 0.3, "path": "${oc.env:SECRET}"}
    make_run(tmp_path / "run", [0.5, 0.1 + 0.2], environment=world)
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
        "environment.path": "${oc.env:SECRET}",
    }
    assert run.summary["uploaded_bytes"] == 1000
    assert run.curve["cumulative_regret"].tolist() == [0.5, 0.1 + 0.2]
    assert run.curve["iteration"].tolist() == [1, 2]


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


def test_an_incomplete_run_is_reported_with_the_reason(tmp_path):
    for case, (spoil, _) in SPOILED.items():
        spoil(make_run(tmp_path / case))
    make_run(tmp_path / "good")
    runs, unfinished = find_runs([tmp_path])
    assert [run.path.name for run in runs] == ["good"]
    reasons = {item.path.name: item.reason for item in unfinished}
    assert set(reasons) == set(SPOILED)
    for case, (_, reason) in SPOILED.items():
        assert reason in reasons[case], case
        assert "\n" not in reasons[case]


def a_run(**settings: Any) -> Run:
    return Run(Path(), settings, {}, pd.DataFrame())


def test_varying_settings_are_those_with_two_values():
    runs = [a_run(a=1, b=2, c="x"), a_run(a=1, b=3, c="x"), a_run(a=1, b=2, c="y")]
    assert varying(runs) == ["b", "c"]
    assert varying(runs[:1]) == []
    assert varying([a_run(a=1), a_run(a=1, b=0)]) == ["b"]
    assert varying([a_run(a=1), a_run(a=True)]) == ["a"]
    assert varying([a_run(a=math.nan), a_run(a=math.nan)]) == []


def test_settings_that_a_run_ignores_do_not_form_groups():
    geometric = {"schedule.name": "geometric", "schedule.ratio": 1.5}
    runs = [a_run(tau=1, seed=0, **geometric), a_run(tau=5, seed=1, **geometric)]
    assert runs[0].used == {**geometric, "seed": 0}
    assert varying(runs) == ["seed"]
    assert by_configuration(runs) == [runs]
    periodic = a_run(**{"tau": 5, "seed": 0, "schedule.name": "periodic", "schedule.ratio": 9})
    assert varying([*runs, periodic]) == ["seed", "schedule.name"]
    runs = [a_run(algorithm="ldb", tau=tau, seed=0) for tau in (1, 2)]
    other = a_run(algorithm="fldb_ons", tau=1, seed=0)
    assert varying(runs) == []
    assert varying([*runs, other]) == ["algorithm"]
    assert by_configuration([*runs, other]) == [runs[:1], [other]]  # each seed once
    runs = [a_run(seed=s, tau=t) for s in (0, 1) for t in (1, 2)]
    assert by_configuration(runs) == [[runs[0], runs[2]], [runs[1], runs[3]]]
    assert by_configuration([]) == []


# ---- Contents of the page


def made(folder: Path) -> dict[str, Any]:
    """Return the data of the page about the runs in a folder, as the page reads it."""
    page, *_ = report([folder])
    return json.loads(_Blocks(page.read_text()).data)


def table(content: dict[str, Any]) -> pd.DataFrame:
    titles = [column["title"] for column in content["columns"]]
    return pd.DataFrame(content["rows"], columns=titles)


def unpacked(values: dict[str, str]) -> list[float]:
    return np.frombuffer(base64.b64decode(values["bdata"]), dtype=values["dtype"]).tolist()


def test_groups_and_their_statistics(tmp_path):
    make_run(tmp_path / "0", [1.0, 4.0], seed=0)
    make_run(tmp_path / "1", [3.0, 10.0], seed=1)
    make_run(tmp_path / "again", [3.0, 10.0], seed=1)  # a repeated run counts once
    make_run(tmp_path / "longer", [2.0, 5.0, 1e-9], seed=10, tau=2)
    page = made(tmp_path)
    assert list(page["groupings"]) == ["configuration", "horizon", "tau", "seed"]
    groups = table(page["groupings"]["configuration"]["table"])
    assert groups.Group.tolist() == ["horizon=2, tau=1", "horizon=3, tau=2"]
    numbers = groups.loc[0, ["Runs", "Mean regret", "Std. error", "Median"]].tolist()
    assert numbers == pytest.approx([2, 7, 3, 7])
    assert groups["Std. error"].isna().tolist() == [False, True]
    assert groups["exchanges"].tolist() == [2, 3]
    seeds = table(page["groupings"]["seed"]["table"])
    assert seeds.Group.tolist() == ["seed=0", "seed=1", "seed=10"]  # by value
    band, line, single = page["groupings"]["configuration"]["charts"]["regret"]["data"]
    assert unpacked(line["y"]) == [2.0, 7.0]
    assert unpacked(line["customdata"]) == [1.0, 3.0]  # standard errors
    assert unpacked(band["y"]) == [3.0, 10.0, 4.0, 1.0]
    assert unpacked(single["y"]) == [2.0, 5.0, float(np.float32(1e-9))]
    runs = table(page["runs"])
    assert runs.folder.tolist() == ["0", "1", "again", "longer"]
    assert runs["Final regret"].tolist() == [4.0, 10.0, 10.0, 1e-9]


def test_predictions_are_columns_if_a_run_has_them(tmp_path):
    make_run(tmp_path / "a" / "run", algorithm="random")
    make_run(tmp_path / "b" / "run", summary={"log_loss": 0.5, "accuracy": 0.75})
    page = made(tmp_path / "a")
    assert list(page["groupings"]) == ["configuration"]
    assert table(page["groupings"]["configuration"]["table"]).Group.tolist() == ["all runs"]
    without, with_them = (table(made(tmp_path / name)["runs"]) for name in "ab")
    assert "log_loss" not in without
    assert with_them[["log_loss", "accuracy"]].values.tolist() == [[0.5, 0.75]]


def test_labels_name_settings_as_users_write_them(tmp_path):
    make_run(tmp_path / "a", environment={"sigma": 0.0})
    geometric = {"name": "geometric", "ratio": 1.5}
    make_run(tmp_path / "b", algorithm="fldb_ons", schedule=geometric, environment={"sigma": 0.3})
    page = made(tmp_path)
    assert table(page["groupings"]["configuration"]["table"]).Group.tolist() == [
        "fldb_ogd, periodic, environment.sigma=0",
        "fldb_ons, geometric, environment.sigma=0.3",
    ]
    assert "tau" not in page["common"] | dict.fromkeys(page["groupings"], 0) or (
        page["common"]["tau"] == "1"  # used by the periodic schedule only
    )
    assert page["common"]["num_agents"] == "10"


def test_curves_are_in_the_order_of_their_ends(tmp_path):
    for tau, end in ((1, 5.0), (2, 9.0), (3, 2.0), (4, 7.0)):
        for seed in (0, 1):
            make_run(tmp_path / f"{tau}{seed}", [9.0 - end, end + seed], tau=tau, seed=seed)
    for grouping in made(tmp_path)["groupings"].values():
        lines = [each for each in grouping["charts"]["regret"]["data"] if each["mode"] == "lines"]
        ends = [unpacked(line["y"])[-1] for line in lines]
        assert ends == sorted(ends, reverse=True)
        assert grouping["charts"]["regret"]["layout"]["hovermode"] == "x unified"


def test_short_names_say_what_differs_and_the_seed_and_count_repeated_runs(tmp_path):
    cases = {
        "two seeds": ([(1, 0), (1, 2), (10, 0)], ["tau=1, seed=0", "tau=1, seed=2", "tau=10"]),
        "repeated": (
            [(1, 0), (1, 2), (1, 2)], ["seed=0", "seed=2\N{NO-BREAK SPACE}#1",
                                       "seed=2\N{NO-BREAK SPACE}#2"],
        ),
        "the same": ([(1, 0)] * 2, ["run\N{NO-BREAK SPACE}#1", "run\N{NO-BREAK SPACE}#2"]),
        "one": ([(1, 0)], ["run"]),
    }  # fmt: skip
    for case, (runs, expected) in cases.items():
        for number, (tau, seed) in enumerate(runs):
            make_run(tmp_path / case / f"a_long_name_{number}", tau=tau, seed=seed, sigma=0.5)
        assert table(made(tmp_path / case)["runs"]).Run.tolist() == expected, case


def test_only_groups_of_one_configuration_have_standard_errors(tmp_path):
    """Two seeds of each of two tau, with ends 1 and 3, 11 and 13: all standard errors are 1."""
    for tau in (1, 2):
        for seed in (0, 1):
            end = 10.0 * tau - 9 + 2 * seed
            make_run(tmp_path / f"{tau}{seed}", [0.5, end], tau=tau, seed=seed)
    groupings = made(tmp_path)["groupings"]
    expected = {"configuration": ([2, 12], [1, 1]), "tau": ([2, 12], [1, 1]), "seed": ([6, 8], [])}
    for name, (means, errors) in expected.items():
        own = groupings[name]
        rows = table(own["table"])
        assert rows["Mean regret"].tolist() == means
        assert rows["Std. error"].dropna().tolist() == pytest.approx(errors)
        assert own["mixed"] == (name == "seed")
        lines = [each for each in own["charts"]["regret"]["data"] if each["mode"] == "lines"]
        ends = [unpacked(line["customdata"])[-1] for line in lines if "customdata" in line]
        assert ends == errors
        assert len(own["charts"]["regret"]["data"]) == 2 + len(errors)  # lines and bands
        for chart in ("exchanges", "bytes"):
            points = own["charts"][chart]["data"]
            bars = [point["error_y"].get("array", []) for point in points]
            assert bars == ([[1], [1]] if errors else [[], []])
            assert all(("±" in point["hovertemplate"]) == bool(errors) for point in points)


def test_the_page_has_the_note_of_the_table_of_a_sweep(tmp_path):
    make_run(tmp_path / "runs" / "a", algorithm="fldb_ogd", beta_scale="auto")
    assert made(tmp_path / "runs")["note"] == ""
    make_run(tmp_path / "runs" / "b", algorithm="fldb_ons", beta_scale="auto", ons_width=0.75)
    runs, _ = find_runs([tmp_path / "runs"])
    assert statistics_text(runs).splitlines()[-1] == f"note: {made(tmp_path / 'runs')['note']}"
    assert "ons_width explore less" in made(tmp_path / "runs")["note"]


def encodings(folder: Path, **settings: Any) -> dict[str, Any]:
    """Make a run for each place of lists of settings; return the page's configurations."""
    for number, values in enumerate(zip(*settings.values(), strict=True)):
        make_run(folder / str(number), **dict(zip(settings, values, strict=True)))
    return made(folder)["groupings"]["configuration"]


def styles(grouping: dict[str, Any], key: str, part: str) -> list[Any]:
    """Return what the groups of a page have on one channel if it encodes the given setting."""
    return [grouping["scales"][key][levels[key]][part] for levels in grouping["levels"]]


def test_color_dash_and_marker_encode_one_setting_each_in_the_order_of_its_values(tmp_path):
    grid = [(a, n, t) for t in (10, 2, 1) for n in (100, 20) for a in ("ldb", "fldb_ons")]
    names, sizes, periods = zip(*grid, strict=True)
    page = encodings(tmp_path, algorithm=names, num_agents=sizes, tau=periods)
    assert page["encoding"] == {"color": "algorithm", "dash": "tau", "marker": "num_agents"}
    rows = table(page["table"])
    # LDB has no period: its dash is the last.
    for key, part, own in (
        ("algorithm", "color", {n: ALGORITHM_STYLES[n]["color"] for n in ("ldb", "fldb_ons")}),
        ("tau", "dash", {"1": [], "2": [5, 2], "10": [7, 2, 1.5, 2], "": [1.5, 1.5]}),
        ("num_agents", "marker", {"20": "circle", "100": "square"}),
    ):
        assert styles(page, key, part) == [own[value] for value in rows[key]]


def test_what_differs_determines_what_is_encoded(tmp_path):
    """A preferred setting that does not vary gives its channel to another one."""
    cases: dict[str, tuple[dict[str, Any], tuple[str, str, str]]] = {
        "sigma": (
            {"algorithm": ("ldb", "fldb_ons"), "sigma": (0.0, 1.0)},
            ("algorithm", "sigma", "algorithm"),
        ),
        "no algorithm": (
            {"tau": (1, 2, 4), "num_agents": (10, 20, 20)}, ("tau", "tau", "num_agents"),
        ),
        "only tau": ({"tau": (1, 2)}, ("tau", "tau", "tau")),
        "three others": (
            {"a": (1, 2), "b": (1, 2), "c": (1, 2), "d": (1, 2)}, ("a", "b", "c"),
        ),
        "too many for dashes": (
            {"tau": range(1, 10), "a": [1, *[2] * 8]}, ("tau", "tau", "a"),
        ),
        "nothing": ({"seed": (1, 2)}, ("algorithm", "algorithm", "algorithm")),
    }  # fmt: skip
    for name, (settings, expected) in cases.items():
        page = encodings(tmp_path / name, **settings)
        assert tuple(page["encoding"].values()) == expected, name
        colors = [style["color"] for style in page["scales"][expected[0]]]
        if expected[0] == "algorithm":
            assert (
                ALGORITHM_STYLES["fldb_ons" if len(colors) > 1 else "fldb_ogd"]["color"] in colors
            )
        else:  # shades of the color of FLDB-OGD, the one algorithm, from dark to light
            assert colors == [each["color"] for each in shades_of("fldb_ogd", len(colors))]
    made_of = made(tmp_path / "sigma")
    assert [run["color"] for run in made_of["details"]] == [
        ALGORITHM_STYLES[name]["color"] for name in ("ldb", "fldb_ons")
    ]


def test_an_algorithm_has_one_color_in_figures_and_in_the_report(tmp_path):
    for folder, algorithms, periods in (
        ("three", ("fldb_ons", "fldb_ogd", "ldb"), (1, 1, 1)),
        ("periods", ("fldb_ons",) * 3, (1, 2, 5)),
        ("one", ("fldb_personal",), (1,)),
    ):
        page = encodings(tmp_path / folder, algorithm=algorithms, tau=periods)
        runs, _ = find_runs([tmp_path / folder])
        axes = Figure().add_subplot()
        regret(axes, mean_curves(runs))
        drawn = {line.get_color() for line in axes.lines}
        colors = set(styles(page, page["encoding"]["color"], "color") if len(runs) > 1 else [])
        if len(set(algorithms)) == len(algorithms):
            assert drawn == {ALGORITHM_STYLES[name]["color"] for name in algorithms}
            assert made(tmp_path / folder)["details"][0]["color"] in drawn
        assert colors in (drawn, set())
        dark = made(tmp_path / folder)["dark"]
        assert drawn <= set(dark)  # has a color on a dark page


def drawn_curves(folder: Path) -> dict[str, tuple[Any, ...]]:
    """Return color, line style and marker of the labelled curves in the picture of a sweep."""
    curves = mean_curves(find_runs([folder])[0])
    axes = Figure().add_subplot()
    regret(axes, curves)
    names = {curve.label: curve.look.get("linestyle") for curve in curves}
    markers = [line.get_marker() for line in axes.lines if line.get_label() in names]
    samples = [line.get_marker() for line in axes.lines if line.get_markevery() == [0]]
    assert [marker or "None" for marker in samples] == markers  # a label has the marker, if any
    return {
        str(line.get_label()): (line.get_color(), names[line.get_label()], line.get_marker())
        for line in axes.lines
        if line.get_label() in names
    }


def test_the_picture_of_a_sweep_encodes_settings_as_the_report(tmp_path):
    """By hand: blue and red, dashes by tau and markers by N, each in the order of the values."""
    grid = [(a, t, n) for a in ("fldb_ogd", "fldb_ons") for t in (8, 1, 2) for n in (100, 50)]
    for number, (algorithm, tau, size) in enumerate(grid):
        make_run(tmp_path / str(number), algorithm=algorithm, tau=tau, num_agents=size)
    assert drawn_curves(tmp_path) == {
        f"{name}, $N={size}$, $\\tau={tau}$": (color, dash, marker)
        for name, color in (("FLDB-OGD", "#d1410c"), ("FLDB-ONS", "#0072b2"))
        for tau, dash in ((1, "-"), (2, (0, [5, 2])), (8, (0, [7, 2, 1.5, 2])))
        for size, marker in ((50, "o"), (100, "s"))
    }
    page = made(tmp_path)["groupings"]["configuration"]
    assert set(styles(page, "num_agents", "marker")) == {"circle", "square"}
    assert all(dash in ([], [5, 2], [7, 2, 1.5, 2]) for dash in styles(page, "tau", "dash"))


def test_a_picture_without_markers_and_one_of_settings_that_styles_cannot_encode(tmp_path):
    for tau in (1, 2):
        for number in range(4):
            make_run(tmp_path / "periods" / f"{tau}{number}", tau=tau, seed=number)
            more = {"a": number % 2, "b": number // 2, "num_agents": 10 * tau}
            make_run(tmp_path / "four" / f"{tau}{number}", tau=tau, **more)
    assert {marker for *_, marker in drawn_curves(tmp_path / "periods").values()} == {"None"}
    runs, _ = find_runs([tmp_path / "four"])  # tau and N together, and neither of a and b
    curves = mean_curves(runs)
    assert len(curves) == 8
    assert not any(curve.look for curve in curves)
    axes = Figure().add_subplot()
    regret(axes, curves)
    assert len({line.get_color() for line in axes.lines}) == 8


def test_learned_directions_are_a_table(tmp_path):
    both = [
        {"share": 0.712, "weights": {"price": 0.8, "quality": -0.6}},
        {"share": 0.2, "weights": {"feature 3": 1.0}},
    ]
    make_run(tmp_path / "a", algorithm="fldb_personal", tau=1)
    make_run(tmp_path / "b", summary={"directions": both}, algorithm="fldb_personal", tau=2)
    shown = made(tmp_path)["directions"]
    assert table(shown).values.tolist() == [
        ["tau=2", 71, "price\N{NO-BREAK SPACE}+0.80, quality\N{NO-BREAK SPACE}\N{MINUS SIGN}0.60"],
        ["tau=2", 20, "feature 3 +1.00".replace(" ", "\N{NO-BREAK SPACE}")],
    ]
    assert [column["title"] for column in shown["columns"]] == ["Run", "Share (%)", "Features"]
    assert made(tmp_path / "a")["directions"] is None
    for number, damaged in enumerate(([{}], [1], {"share": 1}, [{"share": 1, "weights": [1]}],
                                      [{"share": math.nan, "weights": {}}])):  # fmt: skip
        make_run(tmp_path / f"{number}", summary={"directions": damaged})
        _, (unusable,) = find_runs([tmp_path / f"{number}"])
        assert unusable.reason == f"summary.json is {DAMAGED}"


def test_kept_iterations_are_few_and_include_both_ends():
    for horizon in (1, 2, 199, 200, 201, 500, 10_000):
        kept = kept_iterations([horizon])
        assert len(kept) <= MAX_POINTS
        assert (kept[0], kept[-1]) == (1, horizon)
        assert (np.diff(kept) > 0).all()
        assert horizon > MAX_POINTS or len(kept) == horizon
    assert {7, 123} <= set(kept_iterations([7, 123, 10_000]).tolist())  # ends of shorter runs


def test_replies_of_nodes_are_counted_and_summed_over_intervals(tmp_path):
    path = make_run(tmp_path / "run")
    replied = np.random.default_rng(3).integers(0, 5, 1001)
    rows = [
        f"{t},4,{n},{'a; b' if t <= 3 else 'b' if n < 4 else ''},\n"
        for t, n in enumerate(replied, 1)
    ]
    (path / "participation.csv").write_text(
        "iteration,asked,replied,absent,rejected\n" + "".join(rows)
    )
    (run,) = made(tmp_path)["details"]
    late = sum(n < 4 for n in replied[3:])
    expected = {"Replies": f"{replied.sum():,} of 4,004", "Absent nodes": f"b ({late + 3}), a (3)"}
    assert run["notes"] == expected
    ends, shares = (unpacked(run["curves"]["share of replies"][axis]) for axis in "xy")
    assert len(ends) <= MAX_POINTS
    assert ends[-1] == 1001
    start = 0
    for end, share in zip(map(int, ends), shares, strict=True):
        assert share == pytest.approx(replied[start:end].mean() / 4, rel=1e-6)
        start = end


def test_an_unusable_additional_file_is_reported_in_the_page(tmp_path):
    counts = "iteration,asked,replied,absent,rejected\n1,x,1,,\n"
    short, damaged = "prediction.csv has 1 rows, not 3", f"prediction.csv is {DAMAGED}"
    cases = {
        "0": ("prediction.csv", "iteration,log_loss\n1,2\n", damaged),
        "1": ("prediction.csv", "iteration,log_loss,accuracy\n1,2,3\n", short),
        "2": ("participation.csv", counts, f"participation.csv is {DAMAGED}"),
    }
    for name, (file, text, _) in cases.items():
        (make_run(tmp_path / name) / file).write_text(text)
    notes = [run["notes"]["Problem"] for run in made(tmp_path)["details"]]
    assert notes == [reason for *_, reason in cases.values()]


def test_large_seeds_and_odd_values_survive(tmp_path):
    make_run(tmp_path / "a", seed=2**63, lr=1e-7, on=True, none=None, ratio=math.inf)
    make_run(tmp_path / "b", seed=1, lr=0.1, on=False, none="", ratio=2.0)
    runs = table(made(tmp_path)["runs"])[["seed", "lr", "on", "none", "ratio"]]
    assert runs.values.tolist() == [
        [str(2**63), "1e-07", "true", "null", "inf"],
        ["1", "0.1", "false", "", "2"],
    ]


def test_untrusted_text_cannot_leave_its_block(tmp_path):
    make_run(tmp_path / "run", note=HOSTILE, **{HOSTILE: 1})
    make_run(tmp_path / "{{script}}", note="{{style}}&amp;", **{HOSTILE: 2})
    page, *_ = report([tmp_path])
    blocks = _Blocks(page.read_text())
    assert len(blocks.scripts) == 4  # the two libraries, the data and the page's own
    assert all(tag != "img" for tag, _ in blocks.tags)
    assert HOSTILE not in page.read_text()
    assert not set("<>&") & set(blocks.data)
    assert set(table(json.loads(blocks.data)["runs"])["note"]) == {HOSTILE, "{{style}}&amp;"}


def test_links_are_relative_paths_whatever_a_directory_is_called(tmp_path):
    for name in ("javascript:alert(1)", "a b#?%20", "é"):
        make_run(tmp_path / "runs" / name)
    (tmp_path / "pages").mkdir()
    links = payload(*find_runs([tmp_path / "runs"]), tmp_path / "pages")["links"]
    assert len(links) == 3
    for link in links:
        assert re.fullmatch(r"\./\.\./runs/[\w.%-]+/", link)
        assert (tmp_path / "pages" / unquote(link) / "summary.json").is_file()


def test_the_policy_allows_only_the_page_s_own_scripts(tmp_path):
    make_run(tmp_path / "run")
    blocks = _Blocks(report([tmp_path])[0].read_text())
    policy = next(
        attributes["content"] or ""
        for tag, attributes in blocks.tags
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    code = [script for script in blocks.scripts if script != blocks.data]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in code]
    assert rules["script-src"].split() == [f"'sha256-{each}'" for each in hashes]
    assert "http" not in policy
    for tag, attributes in blocks.tags:
        assert not {"src", "action"} & set(attributes), tag
        assert tag != "link" or attributes["href"] == "data:,"


# ---- The command


def test_default_and_named_output(tmp_path, capsys, monkeypatch):
    make_run(tmp_path / "a" / "run")
    make_run(tmp_path / "b" / "run", tau=2)
    main([str(tmp_path / "a"), str(tmp_path / "b")])
    assert capsys.readouterr() == (f"report: {tmp_path / 'a' / 'report.html'} (2 runs)\n", "")
    monkeypatch.chdir(tmp_path)
    main(["a", "--output", "named.html"])
    assert json.loads(_Blocks(Path("named.html").read_text()).data)["links"] == ["./a/run/"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "named.html"]


def test_unfinished_runs_are_named_on_stderr_and_in_the_page(tmp_path, capsys):
    make_run(tmp_path / "whole")
    (make_run(tmp_path / "half\nway") / "summary.json").unlink()
    main([str(tmp_path)])
    assert capsys.readouterr().err == f"skipped {tmp_path}/half\\nway: no summary.json\n"
    assert made(tmp_path)["unfinished"] == [["half\nway", "no summary.json"]]


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


def test_bad_input_ends_in_one_line(tmp_path, capsys):
    make_run(tmp_path / "good" / "run")
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (make_run(tmp_path / "half" / "run") / "summary.json").unlink()
    before = sorted(tmp_path.rglob("*"))
    for arguments, reason in BAD.items():
        with pytest.raises(SystemExit) as ended:
            main(arguments.format(tmp_path).split())
        line = str(ended.value)
        assert line.startswith("error: ")
        assert reason in line
        assert "\n" not in line
        assert capsys.readouterr() == ("", "")
        assert sorted(tmp_path.rglob("*")) == before
