"""Overrides of `python -m simulations.run`: quoting, user configurations, examples in help."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from conftest import examples
from hydra import compose, initialize
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import assume, example, given
from hypothesis import strategies as st
from test_run import ROOT, call

from fldb_flower.environments.movielens import MovieLens
from fldb_flower.errors import DataError, SettingsError
from fldb_flower.settings import Settings, from_nested
from simulations.overrides import check_overrides
from simulations.run import help_text


def read_by_hydra(override):
    """Return the path that Hydra reads from an override."""
    with initialize(None, version_base="1.3"):
        return compose(overrides=[f"+{override}"]).environment.path


def refusal(*overrides, **options):
    with pytest.raises(SettingsError) as caught:
        check_overrides(overrides, **options)
    return str(caught.value)


def suggested(message):
    """Return the argument that a POSIX shell reads from the suggestion in a message."""
    (argument,) = shlex.split(message.partition("; quoted it is ")[2])
    return argument


PATHS = st.text(
    st.sampled_from("abz019/._-~ ()[]{}=,:;'\"\\$%&!?*+@#<>|^`äéß中")
    | st.characters(blacklist_categories=("C", "Z")),
    min_size=1,
)


@examples(40)
@given(PATHS)
@example("~/u.data")
@example("/data/ratings (1).csv")
@example("/data/a=b,c  d.csv")
@example("/data/Bücher/ratings.csv")
@example('it\'s "so" \\ or \\" not\\')
@example("/data/${x} (1)/\\${y}")
@example("!important")
@example("2024")
@example("~nobody-of-that-name/x")
@example("[1,2]")
@example("{a:b}")
def test_a_refused_value_is_suggested_so_that_hydra_reads_it(path):
    """For every refused value; the expected result is Hydra's own composition."""
    try:
        check_overrides([f"environment.path={path}"])
    except SettingsError as error:
        message = str(error)
        assume("${" not in path or "; quoted" in message)  # some values cannot be written
        argument = suggested(message)
        check_overrides([argument])
        assert read_by_hydra(argument) == path


@examples(100)
@given(st.lists(PATHS.filter(lambda text: "," not in text and "${" not in text), min_size=2))
def test_commas_of_a_sweep_are_not_quoted(paths):
    text = f"environment.path={','.join(paths)}"
    try:
        check_overrides([text], sweep=True)
    except SettingsError as error:
        assume("; quoted" in str(error))
        argument = suggested(str(error))
        parsed = OverridesParser.create().parse_override(argument)
        values = [str(getattr(each, "text", each)) for each in parsed.value().list]
        assert values == [each.strip(" ") for each in paths] or values == paths


@pytest.mark.parametrize(
    ("text", "pasted"),
    [
        ("environment.path=~/u.data", """'environment.path="~/u.data"'"""),
        ("environment.path=a (1).zip", """'environment.path="a (1).zip"'"""),
        ("environment.path=a,b.zip", """'environment.path="a,b.zip"'"""),
        ("hydra.run.dir=~nobody-here/x", "'hydra.run.dir=\"~nobody-here/x\"'"),
        ("hydra.run.dir=~/runs", f"hydra.run.dir={Path.home()}/runs"),
        ("""hydra.run.dir="~/runs\"""", f"hydra.run.dir={Path.home()}/runs"),
    ],
)
def test_suggestions_are_short_and_accepted(text, pasted):
    message = refusal(text)
    assert message.endswith(f"; quoted it is {pasted}")
    check_overrides([suggested(message)])


def test_a_sweep_without_m_is_named_and_numbers_are_not_quoted():
    assert refusal("tau=1,2") == (
        "tau=1,2 (from the command line): several values are a sweep, which needs -m or"
        " `fldb sweep`"
    )
    assert "quoted" not in refusal("tau=[1")
    check_overrides(["tau=1,2"], sweep=True)


@pytest.mark.slow
def test_the_suggestion_works_when_pasted(tmp_path):
    """Paste the end of the message into a shell."""
    path = tmp_path / "it's  ü (1).data"
    path.write_text("")
    done = call("environment=movielens", f"environment.path={path}")
    pasted = done.stderr.strip().partition("; quoted it is ")[2]
    again = subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {pasted}"], capture_output=True, text=True, check=True
    )
    done = call("environment=movielens", again.stdout.rstrip("\n"))
    assert done.stderr.startswith(f"error: {path}: ")  # the file was found, and is empty


def test_a_tilde_at_the_beginning_of_a_path_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    values = {"environment": {"name": "movielens", "path": "~/none.data"}}
    with pytest.raises(DataError, match=re.escape(str(tmp_path / "none.data"))):
        MovieLens(from_nested(values, "a test"), range(1))


# --- configurations of the user -------------------------------------------------------------


@pytest.fixture
def mine(tmp_path):
    for file in ("experiment/mine.yaml", "experiment/more/deep.yaml", "algorithm/fast.yaml"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("# @package _global_\ntau: 3\n")
    return tmp_path


@pytest.mark.parametrize(
    "override",
    [
        "experiment=mine", "experiment=more/deep", "experiment=fig1a", "algorithm=fast",
        "experiment=[mine,fig1a]", "+model=unknown_to_us",
    ],
)  # fmt: skip
def test_choices_of_a_config_dir_are_accepted(override, mine):
    check_overrides([override], config_dir=str(mine))
    check_overrides([override, f"hydra.searchpath=[file://{mine}]"])


def test_a_file_of_the_user_replaces_a_choice(tmp_path):
    (tmp_path / "algorithm").mkdir()
    text = "# @package _global_\nalgorithm: fldb_ons\nons_ridge: 2.0\n"
    (tmp_path / "algorithm" / "fldb_ons.yaml").write_text(text)
    done = call("--config-dir", str(tmp_path), "algorithm=fldb_ons", "--cfg", "job")
    assert "ons_ridge: 2.0" in done.stdout
    assert not done.stderr


def test_a_misspelled_choice_of_the_user_has_a_suggestion(mine):
    message = refusal("experiment=mnie", config_dir=str(mine))
    assert message.endswith("heterogeneity, mine; did you mean mine?")
    assert "mine" not in refusal("experiment=fig9").partition("must be")[2]


@pytest.mark.slow
def test_the_option_config_dir_is_accepted_in_any_position(mine, tmp_path):
    for number, words in enumerate(
        (["--config-dir", str(mine), "experiment=mine"], ["experiment=mine", f"-cd={mine}"])
    ):
        where = tmp_path / f"run{number}"
        done = call("num_agents=5", "horizon=5", *words, f"hydra.run.dir={where}")
        assert done.returncode == 0, done.stderr
        assert "tau: 3" in (where / "config.yaml").read_text()
    assert re.search(r"^  experiment=.*\|mine$", call("--help", f"-cd={mine}").stdout, re.MULTILINE)


# --- examples -------------------------------------------------------------------------------


def commands():
    """Yield the commands in help texts and docstrings of `simulations`."""
    texts = [path.read_text() for path in sorted((ROOT / "simulations").glob("**/*.py"))]
    for text in (*texts, help_text()):
        quoted = re.findall(r"`((?:fldb|python -m) [^`]*)`", text)
        yield from (*quoted, *re.findall(r"^ +((?:fldb|python -m) .*)$", text, re.MULTILINE))


@pytest.mark.slow
def test_every_example_is_accepted_by_bash():
    found = {re.sub(r"\[.*?\]", "", command) for command in commands()}  # [OPTIONAL ...]
    assert len(found) > 4
    for command in found:
        done = subprocess.run(
            ["bash", "-n", "-c", command], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (command, done.stderr)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fldb run", "fldb sweep"])
def test_the_examples_of_help_are_accepted(name, mine, monkeypatch):
    """Words as split by bash, accepted by Hydra."""
    monkeypatch.setattr("sys.argv", [name])
    shown = re.findall(r"^  (fldb .*)$", help_text(), re.MULTILINE)
    assert len(shown) == 4
    for command in shown:
        printed = subprocess.run(
            ["bash", "-c", f"printf '%s\\n' {command.replace('DIR', str(mine))}"],
            capture_output=True, text=True, check=True,
        ).stdout.splitlines()  # fmt: skip
        overrides = [word for word in printed[2:] if "=" in word]
        assert overrides
        check_overrides(overrides, config_dir=str(mine), sweep=printed[1] == "sweep")


@pytest.mark.slow
def test_an_invalid_yaml_file_of_the_user_gives_a_one_line_error(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "broken.yaml").write_text("# @package _global_\ntau: [\n")
    done = call("--config-dir", str(tmp_path), "experiment=broken")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "broken.yaml" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_long_value_is_truncated_in_a_message():
    with pytest.raises(SettingsError) as error:
        Settings(tau="a" * 100_000)
    assert len(str(error.value)) < 700


def test_a_folder_without_effect_is_refused():
    assert refusal("hydra.sweep.dir=zz").endswith("a run's is hydra.run.dir")
    assert refusal("hydra.run.dir=zz", sweep=True).endswith("a sweep's is hydra.sweep.dir")


def test_a_config_dir_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda _path, _mode: False)  # root may read any folder
    expected = f"--config-dir {tmp_path}: cannot be read (Permission denied)"
    assert refusal("experiment=mine", config_dir=str(tmp_path)) == expected


def test_a_missing_config_dir_is_named_before_its_choices(tmp_path):
    missing = str(tmp_path / "nope")
    expected = f"--config-dir {missing}: there is no such folder"
    assert refusal("experiment=mine", config_dir=missing) == expected
