"""The shell commands of the deployment guide, run below another root folder."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE, SECURE = ROOT / "docs" / "deployment.md", ROOT / "docs" / "deployment" / "secure-sums.md"
NEEDS_ROOT = ("systemctl", "chown", "sudo")  # recorded, but not executed
INSTALL = """#!/bin/sh
# `install` without the option -o, which needs root.
for word; do
  shift
  if [ "$word" = -o ]; then drop=1; elif [ "$drop" = 1 ]; then drop=; else set -- "$@" "$word"; fi
done
exec /usr/bin/install "$@"
"""


def blocks(page: Path, heading: str) -> str:
    """Return the commands of a section."""
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## )", page.read_text(), re.S | re.M)
    return re.sub("^ +(?=[a-zA-Z])", "", "".join(re.findall(r"```sh\n(.*?)```", section, re.S)))


@pytest.fixture
def run(tmp_path):
    """Return a function that runs commands below a folder, and returns those that need root."""
    binaries = tmp_path / "bin"
    binaries.mkdir()
    for name in NEEDS_ROOT:
        (binaries / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/calls\n')
    (binaries / "install").write_text(INSTALL)
    fldb = f'#!/bin/sh\nexec {sys.executable} -m simulations.command "$@"\n'
    (binaries / "fldb").write_text(fldb)
    for path in binaries.iterdir():
        path.chmod(0o755)
    for folder in ("etc/systemd/system", "etc/nginx/conf.d", "opt/fldb"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "opt" / "fldb" / "source").symlink_to(ROOT)

    def run(commands: str, host: str) -> list[str]:
        commands = re.sub(r"NAME=\S+", f"NAME={host}", commands)
        commands = re.sub(r"(?<![\w.])/(opt|etc|var)/", rf"{tmp_path}/\1/", commands)
        path = f"{binaries}{os.pathsep}{os.environ['PATH']}"
        environment = os.environ | {"PATH": path, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
        subprocess.run(["sh", "-euc", commands], check=True, env=environment)
        return (tmp_path / "calls").read_text().splitlines()

    return run


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")
def test_the_commands_install_all_files_under_the_given_host_name(tmp_path, run):
    headings = "Set up the server", "Set up a device", "Register the devices, and start the rounds"
    calls = run("".join(blocks(GUIDE, heading) for heading in headings), "x.test")
    calls += run("fldb keys helper ~/helper/signing\n", "y.test")
    calls += run(blocks(SECURE, "Set up the helper"), "y.test")
    installed = {path.name for path in (tmp_path / "etc").rglob("*") if path.is_file()}
    units = {path.name for path in (ROOT / "docs" / "deployment").glob("fldb-*")}
    assert installed >= units | {"rounds.toml", "ca.crt", "server.pem", "server.key", "device"}
    texts = {
        name: (tmp_path / "etc" / name).read_text()
        for name in (
            "nginx/conf.d/fldb.conf", "systemd/system/fldb-supernode.service",
            "nginx/conf.d/fldb-helper.conf",
        )
    }  # fmt: skip
    assert not [name for name, text in texts.items() if re.search("server.example", text)]
    assert ["x.test" in text for text in texts.values()] == [True, True, False]
    assert texts["nginx/conf.d/fldb-helper.conf"].count("y.test") == 3
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "etc/fldb").iterdir()}
    for secret in ("ca.key", "server.key", "device", "helper"):
        assert modes[secret] == 0o600
    enabled = [call.split()[-1] for call in calls if "enable --now" in call]
    assert {"fldb-superlink", "fldb-rounds.timer", "fldb-helper"} <= set(enabled)
    assert "fldb-rounds" not in enabled
    assert any("supernode register" in call for call in calls)
