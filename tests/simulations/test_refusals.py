"""Wrong commands: each ends with one line that names the value, its origin and what is valid."""

import json
import shlex
import tomllib
from pathlib import Path

import pytest

from fldb_flower.errors import SettingsError
from fldb_flower.settings import from_flat
from simulations import command
from simulations.hydra_config import CONF

REFUSALS = Path(__file__).parents[1] / "data" / "refusals.json"


def refusal(text, folder, in_process):
    """Return the line of a wrong command, which prints nothing else."""
    program, *words = shlex.split(text.replace("DIR", str(folder)))
    if program == "flwr":  # the run config of `flwr run`
        with pytest.raises(SettingsError) as error:
            from_flat(tomllib.loads(text.partition(" ")[2].replace(" ", "\n")), "the run config")
        return f"error: {error.value}"
    status, out, err = in_process(command.main, "fldb", *words)
    assert (out, err) == ("", ""), text
    return str(status).replace(str(folder), "DIR").replace(str(CONF), "CONF")


def test_every_wrong_command_is_refused_in_one_line(in_process, tmp_path, monkeypatch):
    monkeypatch.setenv("FLDB_WORD", "many")
    monkeypatch.setenv("HOME", "/home/user")
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "lost").symlink_to("nowhere")
    texts = tmp_path / "texts" / "experiment"
    texts.mkdir(parents=True)
    (texts / "latin.yaml").write_bytes("# a \xe9".encode("latin-1"))
    (texts / "utf16.yaml").write_bytes("tau: 3".encode("utf-16"))
    (texts / "bytes.yaml").write_bytes("tau: 3".encode("utf-16-le"))
    (texts / "broken.yaml").write_text("# @package _global_\ntau: [\n")
    (texts / "mine.yaml").write_text("# @package _global_\ntau: 3\n")
    (texts / "unknown.yaml").write_text("# @package _global_\ntua: 3\n")
    expected = json.loads(REFUSALS.read_text())
    found = {text: refusal(text, tmp_path, in_process) for text in expected}
    assert found == expected
    for text, line in found.items():
        assert line.startswith("error: "), text
        assert len(line.splitlines()) == 1, text
    assert not list(tmp_path.rglob("summary.json"))
