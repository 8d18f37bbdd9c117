"""Names of earlier versions: valid for one release, with a warning that names the successor."""

import importlib
import importlib.util
import re
import subprocess
import sys
import warnings

import pytest
from test_run import call

import strategies
from fldb_flower.errors import REMOVAL, SettingsError
from fldb_flower.former_modules import MODULES
from fldb_flower.settings import Settings, from_flat, from_nested
from simulations.overrides import check_overrides, with_current_name

# The value and the current spelling of each former name, by the kind of configuration.
FORMER = {
    "information": ("diagonal", {"dotted": "matrix_form", "kebab": "matrix-form"}),
    "device": ("cpu", {"dotted": "backend", "kebab": "backend"}),
}
BUILD = {"dotted": from_nested, "kebab": from_flat}


def renamed(current):
    """Expect a warning with the successor and the version in which the former name ends."""
    return pytest.warns(FutureWarning, match=rf"now called {re.escape(current)}.* {REMOVAL}$")


@pytest.mark.parametrize("spelling", BUILD)
@pytest.mark.parametrize("former", FORMER)
def test_a_setting_with_a_former_name_is_that_with_the_current_name(former, spelling):
    value, current = FORMER[former]
    with renamed(current["dotted"]):
        settings = BUILD[spelling]({former: value}, "x")
    assert settings == BUILD[spelling]({current[spelling]: value}, "x")
    assert settings != Settings()


@pytest.mark.parametrize("spelling", BUILD)
def test_the_default_of_the_current_name_may_be_there(spelling):
    """Complete configurations contain every setting with its default."""
    current = FORMER["information"][1][spelling]
    with renamed("matrix_form"):
        settings = BUILD[spelling]({current: "full", "information": "diagonal"}, "x")
    assert settings.matrix_form == "diagonal"


@pytest.mark.parametrize("spelling", BUILD)
def test_two_names_with_values_of_one_setting_are_refused(spelling):
    current = FORMER["information"][1][spelling]
    with (
        pytest.raises(SettingsError, match=f"^information and {current} \\(from x\\): two names"),
        warnings.catch_warnings(action="ignore"),
    ):
        BUILD[spelling]({"information": "full", current: "diagonal"}, "x")


@pytest.mark.parametrize("former", FORMER)
def test_an_override_with_a_former_name_gets_the_current_one(former):
    value, current = FORMER[former]
    with renamed(current["dotted"]):
        override = with_current_name(f"{former}={value}")
    assert override == f"{current['dotted']}={value}"
    check_overrides([override])


@pytest.mark.parametrize("text", ["tau=1", "+model=x", "~experiment", "environment=device"])
def test_other_overrides_stay(text):
    assert with_current_name(text) == text


@pytest.mark.slow
def test_a_sweep_with_a_former_name_warns_in_one_line(tmp_path):
    sizes = ["num_agents=5", "horizon=5", f"hydra.sweep.dir={tmp_path}"]
    done = call("-m", "information=full,diagonal", *sizes)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    (line,) = lines
    assert line.startswith("warning: the setting information (from the command line) is now called")
    assert "Warning:" not in done.stderr
    found = {path.read_text() for path in tmp_path.glob("*/config.yaml")}
    assert {"matrix_form: full" in text for text in found} == {True, False}


@pytest.mark.slow
def test_an_experiment_file_with_a_former_name_runs(tmp_path):
    (tmp_path / "experiment").mkdir()
    file = tmp_path / "experiment" / "old.yaml"
    file.write_text("# @package _global_\ninformation: diagonal\n")
    where = f"hydra.run.dir={tmp_path / 'run'}"
    sizes = ["num_agents=5", "horizon=5", "plot=false"]
    done = call("--config-dir", str(tmp_path), "experiment=old", *sizes, where)
    assert done.returncode == 0, done.stderr
    assert "matrix_form: diagonal" in (tmp_path / "run" / "config.yaml").read_text()
    assert done.stderr.startswith("warning: the setting information")


@pytest.mark.parametrize(
    ("former", "current"),
    [
        ("FLDBOGD", "FLDBOGDStrategy"),
        ("FLDBGD", "FLDBGDStrategy"),
        ("FLDBONS", "FLDBONSStrategy"),
        ("Alone", "DuelingStrategy"),
    ],
)
def test_a_strategy_with_a_former_name_is_the_current_one(former, current):
    with renamed(f"strategies.{current}"):
        found = getattr(strategies, former)
    assert found is getattr(strategies, current)


def test_other_names_are_errors():
    with pytest.raises(AttributeError, match="no attribute 'FLDBXYZ'"):
        strategies.FLDBXYZ  # noqa: B018


@pytest.mark.parametrize("former", MODULES)
def test_a_module_with_a_former_name_is_the_current_one(former):
    current = MODULES[former]
    spec = importlib.util.find_spec(current)
    for name in MODULES:
        sys.modules.pop(name, None)
    with pytest.warns(FutureWarning, match=f"the module {former} is now called {current}; "):
        module = importlib.import_module(former)
    assert module is sys.modules[current]
    assert module.__spec__.origin == spec.origin


def test_a_name_is_imported_from_a_former_module():
    code = "from fldb_flower.preference import logistic; from fldb_flower import streams"
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning", "-c", code],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    places = re.findall(r"^<string>:1: FutureWarning: the module (\S+)", done.stderr, re.MULTILINE)
    assert places == ["fldb_flower.preference", "fldb_flower.streams"]
