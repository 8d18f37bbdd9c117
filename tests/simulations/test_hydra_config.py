"""Hydra's configuration: quoting of texts, files of the user, examples in the help."""

import re
import shlex
from pathlib import Path

import pytest
import yaml
from conftest import examples
from hydra import compose, initialize, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, OverrideParseException
from hypothesis import assume, example, given
from hypothesis import strategies as st

from simulations import hydra_config, run
from simulations.hydra_config import (
    CONF,
    HEADINGS,
    check_words,
    explained,
    help_text,
    store_settings,
)


def read_by_hydra(override):
    """Return the path that Hydra reads from an override."""
    with initialize(None, version_base="1.3"):
        return compose(overrides=[f"+{override}"]).environment.path


def suggested(message):
    """Return the argument that a POSIX shell reads from the suggestion in a message."""
    (argument,) = shlex.split(message.partition("; write it as ")[2])
    return argument


@examples(40)
@given(
    st.text(
        st.sampled_from("abz019/._-~ ()[]{}=,:;'\"\\$%&!?*+@#<>|^`äéß中")
        | st.characters(blacklist_categories=("C", "Z")),
        min_size=1,
    )
)
@example("~/u.data")
@example("/data/ratings (1).csv")
@example("/data/a=b,c  d.csv")
@example('it\'s "so" \\ or \\" not\\')
@example("/data/${x} (1)/\\${y}")
@example("!important")
@example("[1,2")
@example("{a:b")
def test_a_refused_text_is_suggested_so_that_hydra_reads_it(path):
    """For every refused text; the expected result is Hydra's own composition."""
    try:
        OverridesParser.create().parse_overrides([f"environment.path={path}"])
    except OverrideParseException as error:
        message = explained(error)
        assert len(message.splitlines()) == 1
        assume("${" not in path or "; quoted" in message)  # some texts cannot be written
        assert read_by_hydra(suggested(message)) == path


def test_suggestions_are_short():
    for text, pasted in (
        ("environment.path=~/u.data", """'environment.path="~/u.data"'"""),
        ("environment.path=a (1).zip", """'environment.path="a (1).zip"'"""),
        ("environment.path=a,b.zip", """'environment.path="a,b.zip"'"""),
        ("hydra.run.dir=~nobody-here/x", "'hydra.run.dir=\"~nobody-here/x\"'"),
        ("hydra.run.dir=~/runs", f"hydra.run.dir={Path.home()}/runs"),
        ("tau=[1", ""),
    ):
        assert hydra_config.quoting(text).removeprefix("; write it as ") == pasted


# --- configurations of the user -------------------------------------------------------------


@pytest.fixture
def mine(tmp_path):
    for file in ("experiment/mine", "experiment/more/deep", "algorithm/fast", "algorithm/fldb_ons"):
        path = tmp_path / "conf" / f"{file}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("# @package _global_\nalgorithm: fldb_ons\ntau: 3\n")
    return tmp_path / "conf"


def test_choices_of_the_user_are_accepted_and_replace_ours(mine, in_process):
    for override in (
        "experiment=mine", "experiment=more/deep", "experiment=[mine,fig1a]", "algorithm=fast",
        "algorithm=fldb_ons",
    ):  # fmt: skip
        for where in (
            [f"-cd={mine}"],
            ["--config-dir", str(mine)],
            [f"hydra.searchpath=[{mine.as_uri()}]"],
        ):
            status, out, error = in_process(run.main, "run", override, *where, "--cfg", "job")
            assert (status, error) == (0, "")
            found = yaml.safe_load(out)
            assert (found["algorithm"], found["tau"]) == (
                "fldb_ons",
                1 if "fig1a" in override else 3,
            )


def test_help_lists_the_choices_of_the_user(mine, in_process):
    _, out, _ = in_process(run.main, "run", "--help", f"-cd={mine}")
    assert re.search(r"^  experiment=.*\|mine\b", out, re.MULTILINE)
    assert re.search(r"^  algorithm=alone\|coldb\|fast\|fldb_gd", out, re.MULTILINE)


def test_a_launcher_without_its_extra_is_named(monkeypatch):
    monkeypatch.setattr(hydra_config, "find_spec", lambda _name: None)
    launchers = {"joblib": "joblib", **dict.fromkeys(("submitit_local", "submitit_slurm"), "slurm")}
    for name, extra in launchers.items():
        error = HydraException(f"In 'x': Could not find 'hydra/launcher/{name}'\n\nAvailable ...")
        expected = f"hydra/launcher={name} needs the {extra} extra: pip install -e '.[{extra}]'"
        assert explained(error).startswith(expected)


# --- examples -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fldb run", "fldb sweep"])
def test_the_examples_of_help_are_accepted_by_hydra(name, mine, monkeypatch):
    """Words as split by bash."""
    monkeypatch.setattr("sys.argv", [name])
    shown = re.findall(r"^  (fldb .*)$", help_text(), re.MULTILINE)
    assert len(shown) == 4
    store_settings()
    for command in shown:
        _, verb, *words = shlex.split(command.replace("DIR", str(mine)))
        overrides = [word for word in words if "=" in word]
        check_words(overrides)
        assert overrides
        search = f"hydra.searchpath=['{mine.as_uri()}']"
        with initialize_config_dir(str(CONF), version_base="1.3"):
            if verb == "run":
                compose("config", [*overrides, search])
            parsed = OverridesParser.create().parse_overrides(overrides)
            assert any(each.is_sweep_override() for each in parsed) == (verb == "sweep")


def test_each_heading_of_the_help_precedes_a_setting():
    text = help_text()
    for heading in HEADINGS.values():
        assert re.search(rf"^{heading}:\n  \S+=", text, re.MULTILINE)
