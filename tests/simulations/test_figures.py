"""Figures for papers: sizes, fonts, styles, labels, standard errors, and reproducible files."""

from __future__ import annotations

import io
import itertools
import json
import re
import zipfile
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from conftest import ROOT
from flwr.cli.build import build_fab_from_disk
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image
from scipy.optimize import minimize

from fldb_flower.catalogue import ALGORITHMS
from fldb_flower.runs import plots, styles
from fldb_flower.runs.plots import Curve, regret, setting_text, spread, wrap
from simulations import figures
from simulations.saved_runs import Run
from simulations.sweeps.tables import mean_curves, statistics

WHITE, DARK = "#ffffff", "#191f26"


# ---- Styles


def linear(color):
    """Return a color of sRGB in linear light."""
    values = np.array([int(color[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def contrast(first, second):
    """Return the contrast ratio of WCAG 2."""
    low, high = sorted(linear(each) @ [0.2126, 0.7152, 0.0722] + 0.05 for each in (first, second))
    return high / low


def lab(light):
    """Return the coordinates in CIELAB (D65) of a color in linear light."""
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    x, y, z = np.array(to_xyz) @ np.clip(light, 0, 1) / [0.9505, 1, 1.089]
    f = [np.cbrt(t) if t > (6 / 29) ** 3 else t / 3 / (6 / 29) ** 2 + 4 / 29 for t in (x, y, z)]
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


# Machado, Oliveira and Fernandes (2009), table 1, severity 1.0.
VISION = {
    "normal": np.eye(3),
    "protanopia": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                            [-0.003882, -0.048116, 1.051998]]),
    "deuteranopia": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                              [-0.011820, 0.042940, 0.968881]]),
    "tritanopia": np.array([[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
                            [0.004733, 0.691367, 0.303900]]),
}  # fmt: skip


def closest(colors, vision):
    """Return the distance of the closest two of some colors."""
    places = [lab(VISION[vision] @ linear(color)) for color in colors]
    return min(np.linalg.norm(a - b) for a, b in itertools.combinations(places, 2))


def test_the_formulas_of_colors_give_known_values():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)
    assert lab(linear("#ff0000")) == pytest.approx([53.24, 80.09, 67.20], abs=0.1)
    red, green = (VISION["deuteranopia"] @ linear(each) for each in ("#b00000", "#5c5c00"))
    assert np.linalg.norm(lab(red) - lab(green)) < 20  # they look alike to a deuteranope


def test_colors_differ_in_every_vision_and_from_the_background():
    """A distance of 2.3 is just noticeable. Ordered colors ascend in lightness."""
    for key, sequence, background in (
        ("color", styles.SEQUENCE, WHITE),
        ("dark", styles.DARK_SEQUENCE, DARK),
    ):
        colors = [style[key] for style in styles.ALGORITHM_STYLES.values()]
        assert min(contrast(color, background) for color in [*colors, *sequence]) >= 3
        assert all(closest(colors, vision) >= 20 for vision in VISION)
        assert all(closest(sequence, vision) >= 6 for vision in VISION)
        lightness = [lab(linear(color))[0] for color in sequence]
        assert lightness == sorted(lightness)


def test_shades_of_an_algorithm_keep_its_hue_and_differ():
    """Lightness ascends by 7; a shade with the lightness of the color is the color."""
    for name, style in styles.ALGORITHM_STYLES.items():
        for key, background in (("color", WHITE), ("dark", DARK)):
            shades = [each[key] for each in styles.shades_of(name, 8)]
            lightness = [lab(linear(color))[0] for color in shades]
            np.testing.assert_allclose(np.diff(lightness), 7, atol=0.5)
            assert min(contrast(color, background) for color in shades) >= 3
            assert all(closest(shades, vision) >= 5 for vision in VISION)
            own = lab(linear(style[key]))
            same = lab(linear(styles.shade(style[key], own[0])))
            assert np.linalg.norm(same - own) < (1 if own[0] > 8 else 3)  # black has no shade below
            angle = np.arctan2(own[2], own[1])
            for color in shades if np.hypot(*own[1:]) > 20 else []:
                _, a, b = lab(linear(color))
                turned = np.angle(np.exp(1j * (np.arctan2(b, a) - angle)))
                assert np.hypot(a, b) < 5 or abs(turned) < 0.6, (name, color)


def test_a_tuned_curve_has_the_color_of_its_algorithm_in_every_figure():
    """Its dash pattern does not depend on the other curves; curves of a figure differ."""
    for panel in (*figures.PANELS, *figures.OVERVIEWS):
        curves = figures.curves_of(panel)
        if "LDB" not in curves:
            continue
        found = styles.styles_of(
            [label if label.endswith("tuned") else curves[label]["algorithm"] for label in curves]
        )
        for (label, curve), style in zip(curves.items(), found, strict=True):
            algorithm = styles.ALGORITHM_STYLES[curve["algorithm"]]
            assert (style["color"], style["dark"]) == (algorithm["color"], algorithm["dark"])
            assert style["label"] == label
            assert style == (styles.TUNED_STYLES.get(label) or algorithm)
        looks = {(style["color"], tuple(style["dash"])) for style in found}
        assert len(looks) == len(curves)


def test_every_algorithm_has_its_own_dash_pattern_and_marker():
    assert set(styles.ALGORITHM_STYLES) == set(ALGORITHMS)
    own = list(styles.ALGORITHM_STYLES.values())
    for key in ("label", "color", "dark", "marker"):
        assert len({style[key] for style in own}) == len(own)
    assert len({tuple(style["dash"]) for style in own}) == len(own)
    assert json.loads(json.dumps(styles.ALGORITHM_STYLES)) == styles.ALGORITHM_STYLES


def test_curves_of_a_figure_differ_in_color_or_dash():
    for algorithms in (
        ["ldb", "fldb_ogd", "fldb_gd", "ldb", "fldb_ons"],
        ["fldb_ons"] * 3,
        ["fldb_ons"] * 64,
        ["fldb_ogd", "fldb_ons"] * 8,
        ["fldb_ons", "mine", "yours", "mine"],
    ):
        found = styles.styles_of(algorithms)
        pairs = {(style["color"], tuple(style["dash"])) for style in found}
        assert len(found) == len(pairs) == len(algorithms)
        assert found[-1]["label"] == styles.style_of(algorithms[-1])["label"]


def test_the_style_of_an_algorithm_does_not_depend_on_the_other_curves():
    for algorithms in itertools.permutations(["fldb_ons", "ldb", "fldb_gd"]):
        for name, style in zip(algorithms, styles.styles_of(algorithms), strict=True):
            assert style == styles.ALGORITHM_STYLES[name]
    assert styles.styles_of(["ldb", "fldb_ons", "ldb"])[2]["color"] == "#000000"


# ---- Files


def paint(figure):
    curves = [Curve(name, [[0.0, 3, 4], [1, 3, 6]]) for name in ("ldb", "fldb_ons")]
    regret(figure.add_subplot(), curves)


def test_files_have_the_width_asked_for_and_embed_their_fonts_and_no_date(tmp_path):
    wanted = ("pdf", "svg", "png")
    for width, inches in (("column", 3.25), ("page", 6.75)):
        twice = []
        for name in ("a.png", "b.png"):
            paths = plots.save_figure(tmp_path / name, paint, height=2, width=width, formats=wanted)
            assert [path.suffix for path in paths] == [".pdf", ".svg", ".png"]
            twice.append([path.read_bytes() for path in paths])
        assert twice[0] == twice[1]
        assert not any(re.search(rb"Date|dc:date|20\d\d-\d\d", each) for each in twice[0])
        pdf, svg, png = twice[0]
        box = [float(number) for number in re.search(rb"/MediaBox \[([^\]]+)\]", pdf)[1].split()]
        assert box == pytest.approx([0, 0, inches * 72, 2 * 72])
        assert b"/CIDFontType2" in pdf  # TrueType, "Type 42"
        assert b"/FontFile2" in pdf
        assert b"/Type3" not in pdf
        points = dict(re.findall(r'(width|height)="([\d.]+)pt"', svg.decode()))
        assert {"width": inches * 72, "height": 2 * 72} == pytest.approx(
            {name: float(value) for name, value in points.items()}
        )
        assert b"<text" not in svg  # outlines: the same with any fonts
        assert [int.from_bytes(png[place : place + 4]) for place in (16, 20)] == [
            round(inches * plots.DPI), 2 * plots.DPI
        ]  # fmt: skip
    assert plots.DPI >= 200


def test_the_style_sheet_is_used_and_is_part_of_flowers_app():
    with plots.style():
        assert (mpl.rcParams["pdf.fonttype"], mpl.rcParams["axes.labelsize"]) == (42, 8)
    assert mpl.rcParams["pdf.fonttype"] == 3  # Matplotlib's default
    names = zipfile.ZipFile(io.BytesIO(build_fab_from_disk(ROOT))).namelist()
    assert "fldb_flower/runs/figure_style.yaml" in names


def test_a_png_keeps_the_colors_of_lines_bands_and_grid(tmp_path):
    curves = {name: [[0.0, 30, end], [0, 60, end + 9]] for name, end in (("ldb", 50), ("alone", 9))}
    (path,) = plots.save_figure(
        tmp_path / "a.png",
        lambda figure: regret(figure.add_subplot(), [Curve(*each) for each in curves.items()]),
        height=2.5,
    )
    image = Image.open(path).convert("RGB")
    found = np.array([color for _, color in image.getcolors(10**6)])
    line = np.array([0x5A, 0x43, 0x20])  # of "alone"
    for color in ([255] * 3, [0xE3] * 3, [0] * 3, line, 255 - 0.15 * (255 - line)):
        assert np.abs(found - color).max(axis=1).min() <= 1  # Matplotlib rounds the band's


def test_pgf_has_texts_for_latex_and_is_drawn_without_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))  # no LaTeX

    def draw(figure):
        paint(figure)
        figure.axes[0].set_title(r"$N=5$, $\tau=2$" + "\nmean ± standard error")

    twice = [
        plots.save_figure(tmp_path / name, draw, height=2, width="page", formats=["pgf"])[0]
        for name in ("a.png", "b.png")
    ]
    text = twice[0].read_text(encoding="utf-8")
    assert twice[1].read_text(encoding="utf-8") == text
    assert r"\pgfqpoint{6.750000in}{2.000000in}" in text
    written = re.findall(r"\\pgftext\[[^\]]*\]\{.*\\%\}(.*)\}\}%", text)
    labels = {"LDB", "FLDB-ONS", r"$N=5$, $\tau=2$", "mean ± standard error", "iteration $t$"}
    assert labels <= set(written)
    assert "fontfamily{\\familydefault}" in text  # that of the document
    opened, closed = (re.findall(rf"\\{word}{{(\w+)}}", text) for word in ("begin", "end"))
    assert sorted(opened) == sorted(closed)


def test_a_font_is_that_of_all_texts(tmp_path):
    """Also of formulas; the font is one of Matplotlib's own."""
    (path,) = plots.save_figure(
        tmp_path / "a.png", paint, height=2, formats=["pdf"], font="STIXGeneral"
    )
    names = set(re.findall(rb"/BaseFont /(?:\w+\+)?([\w-]+)", path.read_bytes()))
    assert names
    assert all(name.startswith(b"STIX") for name in names), names
    assert "STIXGeneral" in plots.fonts()


# ---- Curves


def drawn(curves, size=(3.25, 2.4)):
    """Draw curves as a figure is; return its axes."""
    with plots.style():
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.add_subplot()
        regret(axes, curves)
        figure.draw_without_rendering()
    return axes


def test_only_curves_that_end_far_apart_have_a_logarithmic_axis():
    """MovieLens (Fig. 1d) ends from 356 to 490, and Fig. 1b from 11 to 262."""
    assert figures.scale_of(pd.Series([490.0, 356.0, 370.0])) == "linear"
    assert figures.scale_of(pd.Series([262.0, 11.0, 14.0])) == "log"


def test_bands_show_the_standard_error_worked_by_hand():
    axes = drawn([Curve("ldb", [[1, 3], [3, 9]])])  # means 2 and 6, |a - b| / 2 = 1 and 3
    assert axes.lines[0].get_ydata().tolist() == [2, 6]
    (band,) = axes.collections
    heights = {round(y, 9) for _, y in band.get_paths()[0].vertices.tolist()}
    assert heights == {1, 3, 9}
    assert not axes.texts  # one curve needs no label


def test_eight_curves_have_error_bars_at_a_few_points_each():
    rows = np.arange(1, 101) * np.array([[1.0], [3.0]])  # mean 2 t, standard error t
    axes = drawn([Curve("fldb_ons", rows + place, f"{place}") for place in range(8)])
    bars = [each.get_segments() for each in axes.collections]
    assert [len(segments) for segments in bars] == [5] * 8
    places = [segment[0][0] for segments in bars for segment in segments]
    assert len(set(places)) == 40  # no two bars at one iteration
    for place, segments in enumerate(bars):
        for (t, low), (_, high) in segments:
            assert (low, high) == pytest.approx((t + place, 3 * t + place))
    assert [text.get_text() for text in axes.texts] == [f"{place}" for place in range(8)]


def test_labels_are_beside_the_axes_and_do_not_overlap():
    for count, level in itertools.product([2, 8, 13], [0.0, 50.0, 100.0]):
        curves = [
            Curve("fldb_ons", [0, level + 0.01 * place, 100], f"N={place}")
            for place in range(count)
        ]
        axes = drawn([*curves[:-1], Curve("ldb", [0, 1, 0.1])])
        right, frame = axes.get_figure().bbox.x1, axes.get_window_extent()
        boxes = sorted((text.get_window_extent() for text in axes.texts), key=lambda box: box.y0)
        assert len(boxes) == count
        assert all(box.x0 > frame.x1 and box.x1 <= right for box in boxes)
        assert all(below.y1 <= above.y0 + 0.5 for below, above in itertools.pairwise(boxes))
        assert axes.get_legend() is None


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_lines_to_labels_start_at_the_ends_of_curves_and_end_at_their_labels(scale):
    ends = {"ldb": 900.0, "fldb_ogd": 3.0, "fldb_ons": 2.0}
    with plots.style():
        figure = Figure(figsize=(3.25, 2.4), layout="constrained")
        axes = figure.add_subplot()
        axes.set_yscale(scale)
        regret(axes, [Curve(name, [1.0, end]) for name, end in ends.items()])
        figure.draw_without_rendering()
    curves, samples = axes.lines[:3], axes.lines[3:]
    for curve, sample, leader, text in zip(curves, samples, axes.patches, axes.texts, strict=True):
        where = axes.transData.transform(curve.get_xydata()[-1])
        first, last = axes.transAxes.transform([leader.xy1, leader.xy2])
        assert first == pytest.approx(where, abs=0.1)
        red, green, blue, _ = leader.get_edgecolor()
        assert red == green == blue  # grey
        assert leader.get_linewidth() < curve.get_linewidth() / 2
        start, end = sample.get_transform().transform(sample.get_xydata())
        assert start == pytest.approx(last, abs=0.1)
        assert (start[1], sample.get_color()) == (end[1], curve.get_color())
        assert sample.is_dashed() == curve.is_dashed()
        box = text.get_window_extent()
        assert end[0] < box.x0 < end[0] + 10
        assert box.y0 < end[1] < box.y1
    assert axes.get_ylim()[1] < 2000  # the lines do not change the limits


def test_labels_of_the_figures_do_not_overlap_and_are_not_clipped(tmp_path, monkeypatch):
    """With ends of all curves at nearly one height."""
    found = []

    def each_once(settings):
        return {
            each: figures.Result(
                (np.arange(1, each.horizon + 1) * (1 + 0.001 * each.seed)).tolist(),
                {"rounds": each.horizon // each.tau, "exchanges": 12345},
            )
            for each in settings
        }

    monkeypatch.setattr(figures, "each_once", each_once)
    monkeypatch.setattr(plots, "_save_png", lambda figure, _: found.append(figure))
    names = ["fig1a", "fig1b", "fig2c", "people", "regret"]
    counts = {name: len(figures.curves_of(name)) for name in names} | {"fig5a": 3}
    figures.make(list(counts), tmp_path, ours=True)
    for figure, count in zip(found, counts.values(), strict=True):
        figure.draw_without_rendering()
        (axes,) = figure.axes
        boxes = [text.get_window_extent() for text in axes.texts]
        title = [text for text in axes.findobj(Text) if text.get_text() == axes.get_title("left")]
        for text in (*title, axes.xaxis.label, axes.yaxis.label):
            boxes.append(text.get_window_extent())
        assert len(boxes) == count + 3
        assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
        for box in boxes:
            frame = figure.bbox.padded(0.5)
            assert frame.x0 <= box.x0 < box.x1 <= frame.x1
            assert frame.y0 <= box.y0 < box.y1 <= frame.y1


def test_ticks_of_logarithmic_axes_are_plain_numbers():
    for limits, expected in (
        ((6, 300), ["10", "20", "50", "100", "200"]),
        ((0.9, 12), ["1", "2", "5", "10"]),
        ((0.04, 20), ["0.1", "1", "10"]),
        ((50, 2e4), ["100", "1,000", "10,000"]),
        ((53, 67), ["54", "56", "58", "60", "62", "64", "66"]),
        ((2e6, 2e9), ["$10^{7}$", "$10^{8}$", "$10^{9}$"]),
    ):
        figure = Figure()
        axes = figure.add_subplot()
        axes.set_yscale("log")
        axes.set_ylim(limits)
        plots.log_ticks(axes.yaxis)
        figure.draw_without_rendering()
        shown = [
            tick.label1.get_text()
            for tick in axes.yaxis.get_major_ticks()
            if limits[0] <= tick.get_loc() <= limits[1]
        ]
        assert [re.sub(r"\\mathdefault{(.*)}", r"\1", each) for each in shown] == expected
        assert not axes.yaxis.get_minorticklocs().size


def test_more_curves_than_labels_fit_have_a_legend_beside_the_axes():
    axes = drawn([Curve("fldb_ons", [0, place], f"N={place}") for place in range(40)])
    assert not axes.texts
    legend = axes.get_legend()
    assert len(legend.get_texts()) == 40
    assert legend.get_window_extent().x0 >= axes.get_window_extent().x1 - 1


def test_heights_of_labels_are_the_nearest_that_keep_their_distance():
    """Against a general solver."""
    random, count, gap = np.random.default_rng(0), 5, 0.15
    for _ in range(5):
        wanted = np.sort(random.random(count) ** 2)
        solved = minimize(
            lambda x, wanted=wanted: ((x - wanted) ** 2).sum(), np.linspace(0, 1, count),
            method="SLSQP", bounds=[(0, 1)] * count, tol=1e-12,
            constraints={"type": "ineq", "fun": lambda x: np.diff(x) - gap},
        )  # fmt: skip
        order = random.permutation(count)
        assert spread(wanted[order], gap) == pytest.approx(solved.x[order], abs=1e-4)


def test_a_long_run_is_drawn_with_few_points_and_its_last():
    axes = drawn([Curve("ldb", np.arange(1.0, 100_001.0))])
    x, y = axes.lines[0].get_data()
    assert len(x) <= 1000
    assert (x[0], x[-1], y[-1]) == (1, 100_000, 100_000)
    assert (x == y).all()


def test_settings_are_written_with_the_papers_symbols_and_wrapped_by_their_visible_length():
    for key, value, expected in (
        ("tau", 4, r"$\tau=4$"),
        ("environment.sigma", 0.1**0.5, r"$\sigma=0.3162$"),
        ("lambda", "auto", "lambda=auto"),
        ("schedule.name", "geometric", "schedule=geometric"),
        ("environment.path", "/a/$x$", r"environment.path=/a/\$x\$"),
        ("algorithm", "fldb_gd", "FLDB-GD"),
    ):
        assert setting_text(key, value) == expected
    assert wrap(r"$\tau=4$, $N=5$, a", 14) == "$\\tau=4$, $N=5$,\na"  # "τ = 4, N = 5,"
    assert wrap("a", 1) == "a"


# ---- Sweeps


def a_run(regrets, **settings):
    curve = pd.DataFrame({"cumulative_regret": regrets})
    return Run(Path(), settings, {"final_regret": regrets[-1], "exchanges": 1}, curve)


def test_curves_are_labelled_with_settings_that_differ_and_have_an_effect():
    runs = [
        a_run([1.0, final], algorithm=name, tau=tau, seed=seed, num_agents=5)
        for name, finals in {"ldb": (4.0, 4.0), "fldb_ons": (2.0, 3.0)}.items()
        for tau, final in zip((1, 2), finals, strict=True)
        for seed in (0, 1)
    ]
    found = mean_curves(runs)
    assert [curve.label for curve in found] == [
        "LDB", r"FLDB-ONS, $\tau=1$", r"FLDB-ONS, $\tau=2$"
    ]  # fmt: skip
    assert [np.shape(curve.values) for curve in found] == [(2, 2)] * 3  # each seed once
    table = statistics(runs)
    assert table["seeds"].tolist() == [2, 2, 2]
    assert table["mean"].tolist() == [4, 2, 3]
    assert pd.isna(table["tau"][0])
    runs = [a_run([1.0], algorithm="fldb_ons", tau=tau, num_agents=5, seed=0) for tau in (1, 2)]
    assert [curve.label for curve in mean_curves(runs)] == [r"$\tau=1$", r"$\tau=2$"]
    assert [curve.label for curve in mean_curves(runs[:1])] == [""]


# ---- Commands


def texts(svg):
    """Return the texts of an SVG file, which Matplotlib also writes as comments."""
    return re.findall(r"<!-- (.*?) -->", svg.read_text(encoding="utf-8"))


@pytest.fixture
def quick(monkeypatch):
    """Run `figures` with random curves instead of simulations; return the printed paths."""
    random = np.random.default_rng(0)

    def each_once(settings):
        return {
            each: figures.Result(
                random.random(each.horizon).cumsum().tolist(),
                dict.fromkeys(("rounds", "exchanges"), each.horizon // each.tau),
            )
            for each in settings
        }

    def command(*arguments):
        monkeypatch.setattr("sys.argv", ["command", *map(str, arguments)])
        figures.main()

    monkeypatch.setattr(figures, "each_once", each_once)
    return command


def test_a_figure_is_drawn_in_the_formats_and_the_width_asked_for(tmp_path, quick, capsys):
    quick("fig1b", "+ours", "--output", tmp_path, "--format", "svg,pdf", "--width", "page")
    names = ["fig1b.svg", "fig1b.pdf"]
    assert [Path(line).name for line in capsys.readouterr().out.split()] == names
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["fig1b.csv", *names])
    svg = tmp_path / "fig1b.svg"
    assert 'width="486pt"' in svg.read_text()
    shown = texts(svg)
    for text in ("LDB", "FLDB-OGD", "LDB, tuned", "FLDB-ONS, tuned", "iteration $t$"):
        assert shown.count(text) == 1, text
    assert "average cumulative regret" in shown
    rows = pd.read_csv(tmp_path / "fig1b.csv")
    assert rows.groupby(["curve", "seed"]).size().tolist() == [500] * 7 * 3
    assert set(rows.columns) == {
        *("iteration", "cumulative_regret", "curve", "tau", "num_arms", "rounds", "seed")
    }


def test_figures_have_formulas_and_the_terms_of_the_field(tmp_path, quick):
    for name, expected in {
        "fig2c": [r"$\sigma^2=0.1$", r"$\sigma^2=0.25$"],
        "fig2a": ["$N=20$", "$N=200$"],
        "fig5a": ["$K=5$", "$K=20$", r"communication period $\tau$"],
        "fig2d": ["communication rounds"],
    }.items():
        quick(name, "--seeds", "2", "--format", "svg", "--output", tmp_path)
        shown = texts(tmp_path / f"{name}.svg")
        assert set(expected) <= set(shown)
        assert ("$K=10$" in shown) == (name == "fig5a")  # the one curve of fig2d has no label


def test_bad_options_and_a_table_that_cannot_be_written_give_one_line(tmp_path, quick):
    (tmp_path / "fig1a.csv").mkdir()
    for arguments, reason in [
        (("--format", "pdf,jpg"), "'jpg' is not a format: there are png, svg, pdf, pgf"),
        (("--font", "No Font"), "no font 'No Font': fldb figures --fonts lists the fonts"),
        (("--width", "wide"), "'wide'"),
        (("fig9z",), "no figure 'fig9z': there are fig1a, fig1b"),
        (("fig1d",), "fig1d needs MovieLens ratings: name them with --movielens PATH"),
        (("fig1a", "--output", tmp_path), "fig1a.csv: Is a directory"),
    ]:
        with pytest.raises(SystemExit) as ended:
            quick(*arguments)
        assert reason in str(ended.value)
        assert "\n" not in str(ended.value)


@pytest.mark.exhaustive
def test_the_first_figure_shows_that_collaboration_helps(tmp_path):
    """The paper's claim for Fig. 1a: FLDB-OGD is better than LDB, and FLDB-GD better still."""
    found = figures.make(["fig1a"], tmp_path)["fig1a"]
    regrets = {label: np.mean([run.regret[-1] for run in group]) for label, group in found.items()}
    assert list(regrets) == ["LDB", "FLDB-OGD", "FLDB-GD"]
    assert regrets["FLDB-GD"] < regrets["FLDB-OGD"] < regrets["LDB"]
    assert (tmp_path / "fig1a.png").stat().st_size > 10_000
