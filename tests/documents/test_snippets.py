"""The examples in the documents run.

Python blocks run in README.md and in all pages of the site that are not notebooks (those run when
the site is built). Shell blocks (``bash``) run in README.md, the tutorials and the how-to guides,
with the changes of :func:`shortened`. The blocks of a page run in order, in a folder with the
package's source, whose default horizon is short. A comment before a block skips it:
``<!-- skip: next "needs a device" -->``.

The blocks of the tutorial for engineers run in test_deployment, and those of
docs/deployment/secure-sums.md in :func:`test_the_setup_of_secure_sums_runs`. Blocks marked ``sh``
are commands that other tests start.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
import unittest
import zipfile

import numpy as np
import pytest
from conftest import ROOT

import fldb_flower as fldb
from clients.store import DuelStore
from clients.vault import Vault, VaultConfig, read_config
from clients.vault.vault import MOST_OF_LIMIT
from fldb_flower import settings as fldb_settings
from fldb_flower.errors import DataError
from fldb_flower.privacy.plan import ReleasePlan

sybil = pytest.importorskip("sybil", reason="needs sybil (the dev extra)")
markdown = pytest.importorskip("sybil.parsers.markdown")

pytestmark = pytest.mark.usefixtures("registered")
DOCS = sorted(ROOT.glob("docs/*.md")) + sorted(ROOT.glob("docs/[!_]*/**/*.md"))  # not of _build
PAGES = [
    ROOT / "README.md",
    *(path for path in DOCS if "file_format: mystnb" not in path.read_text()),
]
ELSEWHERE = [ROOT / "docs" / "tutorials" / "engineer.md"]
GUIDES = [
    page
    for page in PAGES
    if page.parent.name in ("tutorials", "howto") or page.name == "README.md"
    if page not in ELSEWHERE
]
HORIZON = 15
SOURCE = ("fldb_flower", "strategies", "clients", "simulations", "conf", "docs/tutorials/trips")
COMMANDS = [
    line
    for page in (*GUIDES, *(ROOT / "docs" / "tutorials").glob("*.md"))
    for block in re.findall(r"```bash\n(.*?)```", page.read_text(), re.DOTALL)
    for line in block.splitlines()
]


def shortened(text, folder, ratings):
    """Return a page whose commands need no network, and neither install nor stop anything."""
    command = f"{sys.executable} -m simulations.command"
    in_process = f"{sys.executable} {ROOT / 'tests' / 'flwr_in_process.py'}"
    for pattern, replacement in (
        (r"^.*pip install .*$", "true"),  # test_installed_extras_exist
        (r"^kill .*$", "true"),  # test_the_stop_command_uses_the_port_of_flower
        (r"tau=1,2,4,8", "tau=1,2"),
        (r"^fldb ", f"{command} "),
        (r"flwr run \.", f"{in_process} run ."),
        (r"fldb\.(run|sweep)\(", rf'fldb.\1({{"horizon": {HORIZON}}}, '),
        (r"/tmp/fldb", f"{folder}/fldb"),
        (r"/data/ml-100k\.zip", str(ratings)),
    ):
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return text


class Shell:
    """Run the shell blocks of a page as if they were pasted into one shell."""

    def __init__(self, folder):
        self.folder, self.groups = folder, []
        self.state = folder / "shell-state"
        (folder / "home").mkdir()
        ignore = shutil.ignore_patterns("__pycache__")
        for name in SOURCE:
            shutil.copytree(ROOT / name, folder / "work" / name, ignore=ignore)
        path, old = folder / "work" / "fldb_flower" / "settings" / "rules.py", '"horizon": 500'
        text = path.read_text()
        assert old in text, f"{old} is not in {path.name}: change it here too"
        path.write_text(text.replace(old, f'"horizon": {HORIZON}'))

    def __call__(self, example):
        lines = [
            "set -eo pipefail",
            f"[ ! -f {self.state} ] || . {self.state}",
            str(example.parsed),
            f'{{ export -p; declare -f; printf "cd %q\\n" "$PWD"; }} > {self.state}',
        ]
        work, home = str(self.folder / "work"), str(self.folder / "home")
        with (self.folder / "output").open("w+") as output:
            process = subprocess.Popen(
                ["bash", "-c", "\n".join(lines)], cwd=work, start_new_session=True,
                env={**os.environ, "HOME": home, "PYTHONPATH": work},
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
            self.groups.append(process.pid)
            status = process.wait()
            output.seek(0)
            assert status == 0, f"line {example.line}: status {status}\n{output.read()[-4000:]}"

    def close(self):
        """End what the blocks left running."""
        for group in self.groups:
            try:
                os.killpg(group, signal.SIGKILL)
            except ProcessLookupError:
                continue


@pytest.fixture
def shell(tmp_path):
    shell = Shell(tmp_path)
    yield shell
    shell.close()


def evaluate(page, *parsers):
    """Run the blocks of a page in order; return how many ran."""
    ran = 0
    for example in sybil.Sybil([*parsers, markdown.SkipParser()]).parse(page).examples():
        try:
            example.evaluate()
            ran += "skip" not in type(example.region.evaluator).__name__.lower()
        except unittest.SkipTest:
            continue
    return ran


def name_of(page):
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", [p for p in PAGES if p not in GUIDES], ids=name_of)
def test_python_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    evaluate(page, markdown.PythonCodeBlockParser())


FIRST = ("README.md", "docs/tutorials/researcher.md", "docs/howto/extend.md")


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[] if name_of(page) in FIRST else pytest.mark.exhaustive)
        for page in GUIDES
    ],
    ids=name_of,
)
def test_guides_run(page, shell, monkeypatch, ratings):
    monkeypatch.chdir(shell.folder / "work")
    monkeypatch.syspath_prepend(shell.folder / "work")  # files that a block writes
    path = ratings()
    with zipfile.ZipFile(shell.folder / "home" / "ml (1).zip", "w") as archive:
        archive.write(path, "u.data")
    short = shell.folder / page.name
    short.write_text(shortened(page.read_text(), shell.folder, path))
    evaluate(short, markdown.PythonCodeBlockParser(), markdown.CodeBlockParser("bash", shell))


@pytest.mark.slow
def test_the_setup_of_secure_sums_runs(shell):
    """The commands create what the file of the vault, and the settings of the run, refer to."""
    page, work = ROOT / "docs" / "deployment" / "secure-sums.md", shell.folder / "work"
    text = page.read_text()
    command = f"{sys.executable} -m simulations.command"
    short = shell.folder / page.name
    short.write_text(re.sub(r"^fldb ", f"{command} ", text, flags=re.MULTILINE))
    shown = []

    def recorded(example):
        shell(example)
        shown.append((shell.folder / "output").read_text().split())

    assert evaluate(short, markdown.CodeBlockParser("bash", recorded)) == 2
    assert shown[0][-3:-1] == ["public", "key"]
    assert shown[0][-1] == shown[1][-1]  # what owners compare
    vault, run = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (work / "vault.toml").write_text(vault)
    config = read_config(work / "vault.toml")
    with DuelStore(work / "duels.db") as store:
        spent = Vault(store, config).spent()
    settings = fldb_settings.from_flat(
        {**tomllib.loads(run), "mode": "devices", "dimension": 6}, "docs/deployment/secure-sums.md"
    )
    assert settings.secure
    assert settings.devices.federation == config.federation
    assert settings.dimension == config.dimension
    plan = ReleasePlan(settings)
    assert plan.spent(plan.planned) <= spent.max_epsilon  # of the limit by default
    assert 1.02 / plan.multiplier**2 < MOST_OF_LIMIT * config.most


def test_the_limits_of_a_vault_are_documented(tmp_path):
    (tmp_path / "vault.toml").write_text("unknown = 1")
    with pytest.raises(DataError) as refused:
        read_config(tmp_path / "vault.toml")
    known = str(refused.value).partition("must be one of ")[2].split(", ")
    page = ROOT / "docs" / "deployment" / "secure-sums.md"
    part = page.read_text().partition("## Set up a device")[2]
    part = part.partition("## Set up the run")[0]
    table = dict(re.findall(r"^\| `(\w+)` \| `?(.*?)`? \|", part, re.MULTILINE))
    assert set(table) == set(known) - {"federation", "helper", "dimension"}
    fields = VaultConfig.__dataclass_fields__
    for name in ("max_epsilon", "max_delta"):
        assert float(table[name]) == fields[name].default
    assert (table["privacy_days"], fields["privacy_days"].default) == ("for ever", None)


def test_installed_extras_exist():
    """Extras are named by the install commands, and explained in the guide."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    named = [each for line in COMMANDS for each in re.findall(r"-e '\.\[(.*?)\]'", line)]
    assert {name for names in named for name in names.split(",")} <= set(extras)
    assert named
    guide = (ROOT / "docs" / "howto" / "install.md").read_text().partition("## Versions")[0]
    table = re.findall(r"^\| `(\w+)` \|", guide, re.MULTILINE)
    assert sorted(table) == sorted(extras)


def test_the_stop_command_uses_the_port_of_flower():
    from flwr.cli.constant import LOCAL_SUPERLINK_HTTP_API_PORT

    (stop,) = {line for line in COMMANDS if line.startswith('kill "$(pgrep')}
    assert f"--port {LOCAL_SUPERLINK_HTTP_API_PORT}" in stop


def test_the_environment_of_the_guide_can_be_learned():
    text = (ROOT / "docs" / "howto" / "extend.md").read_text()
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(code[0], {})
    learned, drawn = (
        fldb.run(environment="sphere", algorithm=name, horizon=60, tau=1).summary["final_regret"]
        for name in ("fldb_ons", "random")
    )
    assert learned < 0.5 * drawn


@pytest.mark.exhaustive
def test_the_algorithm_of_the_tutorial_is_between_the_others():
    text = (ROOT / "docs" / "tutorials" / "researcher.md").read_text()
    (code,) = re.findall(r"<<'END'\n(\"\"\".*?)\nEND\n", text, re.DOTALL)
    exec(code, {"__name__": "momentum"})
    assert len(code.splitlines()) < 50
    table = fldb.sweep(
        algorithm=["fldb_ons", "momentum", "fldb_ogd"], tau=1, seed=range(3), progress=False
    )
    means = table.groupby("algorithm")["final_regret"].mean()
    assert np.all(np.diff(means.loc[["fldb_ons", "momentum", "fldb_ogd"]]) > 0)


def test_blocks_run_in_order_and_can_be_skipped_and_may_not_fail(shell, monkeypatch):
    monkeypatch.chdir(shell.folder / "work")
    page = shell.folder / "page.md"
    page.write_text(
        "```bash\nmkdir sub && cd sub\nexport NUMBER=6\nsleep 60 &\n```\n"
        "```bash\necho $((NUMBER * 7)) > answer\n```\n"
        '```python\nanswer = int(open("sub/answer").read())\n```\n'
        '<!-- skip: next "needs a device" -->\n\n```bash\nexit 1\n```\n'
        '```python\nopen("seen", "w").write(str(answer))\n```\n'
    )
    parsers = markdown.PythonCodeBlockParser(), markdown.CodeBlockParser("bash", shell)
    assert evaluate(page, *parsers) == 4
    assert (shell.folder / "work" / "seen").read_text() == "42"
    for block in ("bash\nfalse | true", "python\n1 / 0"):
        page.write_text(f"```{block}\n```\n")
        with pytest.raises((AssertionError, ZeroDivisionError)):
            evaluate(page, *parsers)
