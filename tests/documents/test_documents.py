"""The documents contain the numbers of the result files, which match the current code."""

import json
import re
import statistics
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

import documents
import measured
import pictures
from fldb_flower.federation.exchange import Broadcast
from fldb_flower.linalg.linear import make_form
from fldb_flower.secure.protocol import SCALE, Header, make_report
from fldb_flower.secure.statistics import size_of
from fldb_flower.settings import Settings
from simulations import figures
from simulations.benchmark import ALGORITHMS

pytest.importorskip("jinja2")


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Create a checkout with one page and one result file."""
    (tmp_path / "docs" / "templates").mkdir(parents=True)
    (tmp_path / "docs" / "results").mkdir()
    monkeypatch.setattr(documents, "ROOT", tmp_path)
    monkeypatch.setattr(documents, "TEMPLATES", tmp_path / "docs" / "templates")
    monkeypatch.setattr(measured, "FOLDER", tmp_path / "docs" / "results")
    monkeypatch.delenv("FLDB_ML100K", raising=False)
    monkeypatch.delenv("FLDB_DUELS", raising=False)
    run = {"settings": {"num_agents": 3, "horizon": 12, "tau": 2}, "seeds": 3, "regret": []}
    measured.write(measured.FOLDER / "small.json", {"ogd": run, "seconds": 0.25})
    template = "{{ small.ogd.regret | mean | fixed(2) }} in {{ small.seconds }} s\n"
    (documents.TEMPLATES / "README.md.j2").write_text(template)
    return tmp_path


def run_tool(monkeypatch, *arguments):
    """Call the command; return its error message, empty on success."""
    monkeypatch.setattr(sys, "argv", ["documents", *arguments])
    try:
        documents.main()
    except SystemExit as error:
        return str(error.code)
    return ""


def test_pages_agree_with_the_result_files():
    assert documents.differing(documents.pages(measured.load())) == []


def test_the_tests_that_pages_name_exist():
    source = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for page in ("security", "secure-sums", "privacy-guarantee"):
        text = (ROOT / "docs" / f"{page}.md").read_text()
        names = set(re.findall(r"`(test_\w+)`", text))
        assert names or page == "security"
        assert [name for name in sorted(names) if f"def {name}(" not in source] == []
        files = re.findall(r"`(tests/[\w/]+\.py)`", text)
        assert [name for name in files if not (ROOT / name).exists()] == []


def test_the_path_of_a_study_is_relative_to_the_folder_of_studies(tmp_path, monkeypatch):
    (tmp_path / "Two").mkdir()
    (tmp_path / "Two" / "arms.csv").write_text("arm,size\na,1\nb,2\n")
    rows = "person,first,second,preference\np,a,b,1\nq,a,b,0\n"
    (tmp_path / "Two" / "duels.csv").write_text(rows)
    world = {"name": "duels", "path": "Two"}
    run = {"settings": {"horizon": 1, "num_arms": 2, "environment": world}, "seeds": 1}
    monkeypatch.delenv("FLDB_DUELS", raising=False)
    assert list(measured.sample(run, "here")) == []
    monkeypatch.setenv("FLDB_DUELS", str(tmp_path))
    assert [name for name, _ in measured.sample(run, "here")] == ["here"]
    settings = measured.settings_of(run, 0)
    assert settings.environment.path == str(tmp_path / "Two")
    assert settings.num_agents == 2


def test_measures_are_numbers_of_a_run():
    """A first prediction is 1/2, with log loss log 2; a v that is set is not estimated."""
    small = {"num_agents": 3, "horizon": 1, "algorithm": "fldb_personal", "personal_variance": 0.25}
    runs = [{"settings": small, "seeds": 1, "log_loss": [], "heterogeneity": []}]
    measured.repeat(runs)
    assert (runs[0]["log_loss"], runs[0]["heterogeneity"]) == ([0.693147], [0.25])
    result = figures.Result([1.0, 2.5, 4.0], {"exchanges": 7})
    names = ("regret", "regret_2", "exchanges")
    assert [measured.measure(name, result) for name in names] == [4, 2.5, 7]


def test_the_results_of_personal_have_the_settings_of_their_names():
    content = measured.load()["personal"]
    for size, by_sigma in content["synthetic"].items():
        for sigma, runs in by_sigma.items():
            for key, run in runs.items():
                name, settings = key.removesuffix("_tuned"), run["settings"]
                assert f"n{settings['num_agents']}" == size
                assert settings["environment"] == {"sigma": float(sigma)}
                if name == "known":
                    assert settings["personal_variance"] == pytest.approx(float(sigma) ** 2)
                elif name == "theory":
                    assert settings["beta_scale"] == 1
                elif name == "isotropic":
                    assert settings["personal_structure"] == name
                elif name not in ("personal", "common"):
                    assert settings["algorithm"] == name
    for study, runs in content["studies"].items():
        assert {run["settings"]["environment"]["path"] for run in runs.values()} == {study}


def test_the_headline_compares_tuned_widths():
    """The differences and means are computed again here, with NumPy."""
    runs = measured.load()["tuned"]["regret"]

    def shown(values):
        return f"{np.mean(values):.1f} ± {np.std(values, ddof=1) / len(values) ** 0.5:.1f}"

    reference, readme, speed = runs["FLDB-GD, tuned"], "README.md", "docs/speed.md"
    for label, names in (("FLDB-ONS", (readme, speed)), ("FLDB-ONS, geometric", (speed,))):
        own = np.subtract(runs[f"{label}, tuned"]["regret"], reference["regret"])
        for page in [" ".join((ROOT / name).read_text().split()) for name in names]:
            assert ("+" if own.mean() > 0 else "") + shown(own) in page
            assert f"{np.mean(reference['exchanges']):,.0f}" in page
    page = (ROOT / readme).read_text()
    for label in ("FLDB-GD", "FLDB-GD, geometric", "FLDB-ONS, geometric"):
        run = runs[f"{label}, tuned"]
        assert shown(run["regret"]) in page
        assert f"{np.mean(run['exchanges']):,.0f}" in page


def test_studies_are_compared_with_the_better_way_of_learning_alone():
    """In the first study that is LDB, in the second ``alone``; the third is not tuned."""
    close, far, own = [10.0, 11, 12], [20.0, 21, 23], [15.0, 16, 17.5]
    runs = {"ldb": [close, far], "alone": [far, close], "personal": [own, [5.0, 6, 6.5]]}
    studies = {
        study: {f"{name}_tuned": {"regret": each[place]} for name, each in runs.items()}
        for place, study in enumerate(["first", "second"])
    }
    found = documents.against_alone({**studies, "third": {"personal": {"log_loss": close}}})
    assert found == {"larger": ["first"], "smaller": ["second"]}


def test_the_readme_compares_with_the_better_way_of_learning_alone():
    study = measured.load()["personal"]["studies"]["GermanParties2009"]
    alone = min(np.mean(study[f"{name}_tuned"]["regret"]) for name in ("ldb", "alone"))
    own = np.mean(study["personal_tuned"]["regret"])
    page = " ".join((ROOT / "README.md").read_text().split())
    assert f"learning alone (LDB) {alone:.2f} ±" in page
    assert f"FLDB-Personal has a regret of {own:.2f} ±" in page


def test_the_bytes_of_an_exchange():
    """d = 5: vectors have 5 numbers of 8 bytes, symmetric matrices 15.

    FLDB-ONS uploads the gradient, W and the Hessian, and receives two vectors and W. Its first
    round needs 8 exchanges; 7 of them play nothing, and their broadcast is one vector.
    """
    up, down = 8 * (5 + 15 + 15), 8 * (500 * (5 + 5 + 15) + 7 * 5) / 507
    page = (ROOT / "docs" / "personal.md").read_text()
    assert f"(FLDB-ONS: {up} and {down:.0f})" in page


def test_the_bytes_of_a_report():
    """A sealed seed of 64 bytes, and 8 for each number."""
    page = (ROOT / "docs" / "capacity.md").read_text()
    for name in ("FLDB-ONS", "FLDB-Personal"):
        is_shares = name == "FLDB-Personal"
        (row,) = re.findall(rf"^\| {name}: .*? \| ([\d,]+) \| ([\d,]+) \|$", page, re.MULTILINE)
        for d, cell in zip((5, 64), row, strict=True):
            settings = Settings(algorithm=name.lower().replace("-", "_"), dimension=d)
            broadcast = Broadcast(None, None if is_shares else np.zeros(d), hessian=not is_shares)
            numbers = size_of(broadcast._replace(shares=is_shares), make_form(settings))
            header = Header(bytes(32), 1, numbers, SCALE, 0, bytes(32))
            key = X25519PrivateKey.generate().public_key()
            report = make_report(header, np.zeros(numbers, dtype=np.int64), key).to_bytes()
            assert f"{len(report):,}" == cell


def test_pictures_are_drawn_from_the_results(tmp_path):
    """They are the tracked ones, byte for byte."""
    for name, content in measured.load().items():
        pictures.draw(name, content, tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["heterogeneity.png", "privacy.png", "scaling.png", "studies.png"]
    assert all((tmp_path / n).read_bytes() == (pictures.FOLDER / n).read_bytes() for n in names)


def test_the_results_match_the_current_figures():
    """Each curve of each panel with its settings; no results of other figures."""
    content = measured.load()["figures"]
    names = [*figures.PANELS, *figures.OVERVIEWS]
    assert sorted(content) == sorted([*names, "processor_seconds"])
    for name in names:
        runs = documents.figures_runs(name)
        assert list(content[name]) == list(runs), name
        for label, run in runs.items():
            found = content[name][label]
            assert found["settings"] == run["settings"], (name, label)
            assert list(found) == list(run), (name, label)
            assert all(len(found[key]) == found["seeds"] >= 10 for key in measured.measures_of(run))


def test_the_speed_table_lists_the_algorithms_of_the_benchmark():
    results = measured.load()
    runs = results["readme"]["algorithms"]
    assert (
        list(runs)
        == list(ALGORITHMS)
        == [row["algorithm"] for row in results["algorithms"]["rows"]]
    )
    for name, run in runs.items():
        assert run["settings"] == {"tau": 1, **ALGORITHMS[name]}


def test_results_are_finite_and_of_at_least_ten_seeds():
    for name, content in measured.load().items():
        for where, run in measured.runs_in(content, name):
            assert run["seeds"] >= 10, where
            for key in measured.measures_of(run):
                assert len(run[key]) == run["seeds"], where
                assert np.isfinite(run[key]).all(), where


@pytest.mark.slow
def test_recompute_then_check(tree, monkeypatch):
    assert run_tool(monkeypatch, "--recompute") == ""
    (content,) = (json.loads(path.read_text()) for path in measured.FOLDER.iterdir())
    # The same three runs through the documented command.
    regrets = []
    for seed in range(3):
        out = tree / f"run{seed}"
        words = ["num_agents=3", "horizon=12", "tau=2", "plot=false", f"seed={seed}"]
        words.append(f"hydra.run.dir={out}")
        command = [sys.executable, "-m", "simulations.run", *words]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        regrets.append(json.loads((out / "summary.json").read_text())["final_regret"])
    np.testing.assert_allclose(content["ogd"]["regret"], regrets, atol=1e-4)
    assert content["seconds"] == 0.25
    page = (tree / "README.md").read_text()
    assert "docs/templates/README.md.j2" in page.splitlines()[0]
    assert page.splitlines()[1] == f"{statistics.fmean(regrets):.2f} in 0.25 s"
    assert run_tool(monkeypatch, "--check") == ""


def test_check_reports_what_differs_in_one_line(tree, monkeypatch):
    """A run without values, an edited page, a stale result."""
    run_tool(monkeypatch, "--recompute")
    page, path = tree / "README.md", measured.FOLDER / "small.json"
    rendered, content = page.read_text(), json.loads(path.read_text())
    page.write_text(rendered.replace("0.25 s", "0.26 s"))
    assert "README.md differs from its template" in run_tool(monkeypatch, "--check")
    assert "0.26 s" in page.read_text()
    content["ogd"]["regret"][0] += 0.01
    measured.write(path, content)
    run_tool(monkeypatch)
    assert re.fullmatch(r".*small.ogd.regret of seed 0 is.*", run_tool(monkeypatch, "--check"))
    content["ogd"]["regret"] = []
    measured.write(path, content)
    (documents.TEMPLATES / "README.md.j2").write_text("empty\n")
    run_tool(monkeypatch)
    message = run_tool(monkeypatch, "--check")
    assert message == "error: docs/results: small.ogd.regret has 0 values of 3: recompute it"


def test_an_invalid_template_gives_a_one_line_error(tree, monkeypatch):
    for template, reason in (
        ("one\n{{ small.missing | fixed }}\n", "line 2: 'dict object' has no attribute 'missing'"),
        ("{{ large }}\n", "line 1: 'large' is undefined"),
        ("one\ntwo {{ small. }}\n", "line 2: "),
        ("{{ [] | mean }}\n", "line 1: "),
        ("{{ [1] | sem }}\n", "line 1: "),
    ):
        (documents.TEMPLATES / "README.md.j2").write_text(template)
        message = run_tool(monkeypatch)
        assert message.startswith("error: docs/templates/README.md.j2, ")
        assert reason in message
        assert len(message.splitlines()) == 1


def test_result_files_are_read_as_they_were_written(tmp_path):
    run = {"settings": {"x": {"y": 1}}, "seeds": 2, "r": [0.1, 2]}
    content = {"a": run, "t": [{"s": "±"}], "n": 1}
    measured.write(tmp_path / "a.json", content)
    assert json.loads((tmp_path / "a.json").read_text("utf-8")) == content


def test_holds_compares_means_by_paired_standard_errors():
    """Differences of 1, 2 and 3: mean 2, standard error 1/sqrt(3) = 0.577, so 2 > 1.155."""
    base, larger = [10.0, 50.0, 90.0], [11.0, 52.0, 93.0]
    assert documents.holds(base, larger) == "yes"
    assert documents.holds(larger, base) == "no"
    # Differences of -1, 1 and 2: mean 0.667, standard error 0.882.
    assert documents.holds(base, [9.0, 51.0, 92.0]) == "within noise"
    assert documents.holds(base, larger, larger) == "within noise"
    assert documents.holds(base, larger, base) == "no"


def test_filters():
    values = [1.0, 2.0, 6.0]
    assert documents.mean(values) == 3
    np.testing.assert_allclose(documents.sem(values), np.std(values, ddof=1) / 3**0.5)
    assert documents.fixed(1271.6) == "1,272"
    assert documents.mean_sem(values, 2) == "3.00 ± 1.53"
    assert documents.mean_sem(values) == "3.0 ± 1.5"  # two digits of the error
    assert documents.mean_sem([1100.0, 1110.0]) == "1,105 ± 5"
    assert documents.mean_sem([40.0, 42.0, 46.8]) == "42.9 ± 2.0"  # three digits of the mean
    assert documents.mean_sem([10.11, 10.13]) == "10.12 ± 0.01"  # one digit of the error
    assert documents.mean_sem([10.123, 10.123]) == "10 ± 0"
    assert documents.signed_sem([-2.0, 1.0]) == "-0.5 ± 1.5"
    assert documents.signed_sem([0.0, 0.0]) == "+0 ± 0"
