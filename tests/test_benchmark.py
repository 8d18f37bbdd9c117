"""The command line of the benchmark: tables on the screen and in result files."""

import json

import pandas as pd
import pytest

from simulations.benchmark import __main__ as benchmark


@pytest.fixture
def table(monkeypatch):
    """Replace all sections by one quick section."""
    rows = [{"what": "propose, ms", "measured": 0.25}, {"what": "regret", "measured": [1.5, 2.0]}]
    monkeypatch.setattr(benchmark, "SECTIONS", {"scale": lambda _asked: pd.DataFrame(rows)})
    return rows


def run(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["benchmark", *map(str, arguments)])
    benchmark.main()


def test_a_result_file_contains_command_date_and_machine(monkeypatch, tmp_path, table, capsys):
    path = tmp_path / "new folder" / "scale.json"
    run(monkeypatch, "scale", "--output", path)
    content = json.loads(path.read_text())
    assert content["rows"] == table
    assert content["command"] == f"python -m simulations.benchmark scale --output '{path}'"
    assert pd.Timestamp(content["date"]) <= pd.Timestamp.now(tz="UTC").tz_localize(None)
    assert "Python 3." in content["machine"]
    assert "propose, ms" in capsys.readouterr().out


@pytest.mark.parametrize("sections", [[], ["scale", "scale"]])
def test_an_output_file_contains_one_section(monkeypatch, tmp_path, table, sections):
    with pytest.raises(SystemExit, match=r"^error: --output holds one section: name it$"):
        run(monkeypatch, *sections, "--output", tmp_path / "all.json")
    assert not list(tmp_path.iterdir())
