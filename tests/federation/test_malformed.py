"""Settings, overrides and HTTP bodies of every kind.

Each example either succeeds or ends with a one-line error of this package, never with another
exception or with a summary of a run that did not take place. Messages are tested in
`test_security.py`, ratings in `test_movielens.py`, and checkpoints in `test_checkpoints.py`.
"""

import contextlib
import io
import json
import logging
import sys
import tempfile
from pathlib import Path
from unittest import mock

import pytest
from conftest import examples
from flwr.app import Context, RecordDict
from hydra.core.global_hydra import GlobalHydra
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from clients.service.app import create_app
from fldb_flower import server_app
from fldb_flower.errors import FldbError
from fldb_flower.settings import flower_entries, hydra_entries
from simulations import run as command
from simulations.engines.inprocess import InProcessGrid

SMALL = {"num_agents": 2, "horizon": 2, "num_arms": 3, "dimension": 2}
ODD = "[]{}()=,:;'\"$~!@#%&*?\\/|<>. _-+\n\t\0éaefinorux0"  # no digit but 0: numbers stay small
words = st.text(ODD, max_size=12)
values = st.one_of(
    words,
    st.booleans(),
    st.floats(allow_nan=True, allow_infinity=True).filter(lambda x: not 1 < x < 1e300),
    st.integers(max_value=2),
    st.sampled_from(["null", "${seed}", "${oc.env:HOME}", "???", "1e400", "-0", "0x0", "inf"]),
)


def one_line(text):
    assert text
    assert text.isprintable(), text
    assert "Traceback" not in text
    return True


def expect_complete_or_absent(path, complete):
    """A summary exists if and only if the run took place."""
    found = list(path.rglob("summary.json"))
    assert len(found) == complete, found
    for each in found:
        assert json.loads(each.read_text())["final_regret"] >= 0


# --- Flower's run configs ------------------------------------------------------------------

FLOWER_KEYS = [entry.kebab for entry in flower_entries() if entry.kebab != "output-dir"]
LARGE = {"node-wait", "reply-timeout", "checkpoint-seconds", "gd-steps"}  # valid but slow


@examples(200)
@given(
    st.dictionaries(
        st.one_of(st.sampled_from([k for k in FLOWER_KEYS if k not in LARGE]), words),
        values,
        min_size=1,
        max_size=2,
    )
)
def test_run_configs(changes):
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        base = {name.replace("_", "-"): value for name, value in SMALL.items()}
        config = {**base, "node-wait": 0.1, **changes, "output-dir": str(path / "run")}
        grid = InProcessGrid(2, config)
        context = Context(grid.run.run_id, 0, {}, RecordDict(), config)
        limit = getattr(sys, "tracebacklimit", 1000)
        lines, handler = [], logging.Handler(logging.ERROR)
        handler.emit = lambda record: lines.append(record.getMessage())
        with (
            mock.patch.object(logging.getLogger("flwr"), "handlers", [handler]),
            contextlib.suppress(FldbError),
        ):
            server_app.main(grid, context)
        sys.tracebacklimit = limit
        assert [one_line(line) for line in lines] in ([], [True])
        expect_complete_or_absent(path, complete=not lines)


# --- the command line of simulations.run ---------------------------------------------------

KEYS = [entry.dotted for entry in hydra_entries()] + ["algorithm", "environment", "engine"]
SLOW = {"node_wait", "reply_timeout", "checkpoint_seconds", "gd_steps"}


def call(arguments):
    """Call the command like a shell does; return its exit status, stdout and stderr."""
    out, error, status = io.StringIO(), io.StringIO(), 0
    GlobalHydra.instance().clear()
    before, sys.argv = sys.argv, ["simulations.run", *arguments]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            command.main()
    except SystemExit as leaving:
        status = leaving.code
        if isinstance(status, str):
            error.write(status)
            status = 1
    finally:
        sys.argv = before
        GlobalHydra.instance().clear()
        for handler in list(logging.getLogger().handlers):  # Hydra's
            if isinstance(handler, logging.FileHandler):
                logging.getLogger().removeHandler(handler)
                handler.close()
    return status or 0, out.getvalue(), error.getvalue()


@examples(100)
@given(
    st.one_of(
        st.tuples(st.sampled_from([k for k in KEYS if k not in SLOW]), st.just("="), values),
        st.tuples(words, st.just("="), words),
        st.tuples(st.sampled_from(["+", "~", "++", "hydra.", "hydra/"]), words, st.just("=0")),
        st.tuples(words.filter(lambda word: not word.startswith("-"))),
    )
)
def test_overrides(parts):
    override = "".join(map(str, parts))
    if "\0" in override:
        return  # not a valid process argument
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        where = f"hydra.run.dir={path / 'run'}"
        sizes = [f"{name}={value}" for name, value in SMALL.items()]
        status, out, error = call([*sizes, "engine=vectorized", override, where])
        if status:
            assert out == ""
            assert one_line(error.strip("\n")), error
            assert error.startswith("error: ")
        expect_complete_or_absent(path, not status)


# --- HTTP ----------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)
known = st.sampled_from(["features", "keys", "contents", "preferred", "id", "answers"])
bodies = st.one_of(
    st.binary(max_size=60),
    json_values.map(lambda value: json.dumps(value).encode()),
    st.dictionaries(known, json_values, max_size=3).map(lambda value: json.dumps(value).encode()),
    st.lists(st.lists(st.floats(width=16), max_size=3), max_size=4).map(
        lambda rows: json.dumps({"features": rows}).encode()
    ),
)
PATHS = ["/duels", "/answers", "/duels/x/answer", "/duels/%00/answer", "/duels/é/answer"]


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    app = create_app(tmp_path_factory.mktemp("service") / "duels.db", "t")
    headers = {"Authorization": "Bearer t"}
    with TestClient(app, base_url="http://127.0.0.1:8377", headers=headers) as client:
        yield client  # it raises exceptions that the service does not catch


@examples(300)
@given(path=st.sampled_from(PATHS), body=bodies, kind=st.sampled_from(["application/json", "x"]))
def test_http_bodies(client, path, body, kind):
    reply = client.post(path, content=body, headers={"Content-Type": kind})
    assert reply.status_code < 500
    if reply.status_code != 200:
        assert one_line(reply.json()["detail"])
