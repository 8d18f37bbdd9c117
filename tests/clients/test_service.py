"""The local service of a device: replies, access, limits, and durability of answers."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import itertools
import json
import logging
import math
import os
import re
import resource
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from starlette.testclient import TestClient

from clients.preference_agent import PreferenceAgent
from clients.service import models
from clients.service.__main__ import main
from clients.service.app import create_app
from clients.service.catalogue import read_arms
from clients.service.http import Limiter, read_token
from clients.store import DuelStore, Synchronization
from fldb_flower.errors import DataError, FldbError

ROOT = Path(__file__).parents[2]
TOKEN = "a-token-of-the-tests"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
LINE = [[0.0, 0.0], [1.0, 0.0], [3.0, 0.0]]  # an untrained agent selects 0 and 2
TEXTS = [{"text": "near"}, {"text": "middle"}, {"text": "far"}]


@contextlib.contextmanager
def running(path: Path, **options: Any):
    app = create_app(path, TOKEN, **{"body_seconds": 900.0, **options})
    with TestClient(
        app, base_url="http://127.0.0.1:8377", headers=BEARER, raise_server_exceptions=False
    ) as client:
        yield client


@pytest.fixture
def client(path):
    with running(path) as client:
        yield client


@pytest.fixture(scope="module")
def idle(tmp_path_factory):
    """A service for tests that do not change it."""
    with running(tmp_path_factory.mktemp("idle") / "duels.db") as client:
        propose(client)  # duels have two features
        client.delete("/answers")
        yield client


@pytest.fixture(scope="module")
def idle_agent(tmp_path_factory):
    with PreferenceAgent(tmp_path_factory.mktemp("agent") / "duels.db") as agent:
        agent.propose(LINE)
        yield agent


def propose(client, features=LINE, **more: Any) -> dict[str, Any]:
    reply = client.post("/duels", json={"features": features, **more})
    assert reply.status_code == 200, reply.text
    return reply.json()


def arm_of(key: str | None, text: str | None = None, **more: Any) -> dict[str, Any]:
    """Return an arm as a page shows it."""
    return {"key": key, "text": text, "image": None, "features": None, **more}


def answer(client, duel: str, preferred: str) -> httpx.Response:
    return client.post(f"/duels/{duel}/answer", json={"preferred": preferred})


def recorded(path: Path) -> dict[str, tuple[int, float]]:
    """Read number and preference of each answer with SQLite directly."""
    with contextlib.closing(sqlite3.connect(path)) as rows:
        assert rows.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        found = rows.execute("SELECT id, sequence, evidence FROM answers").fetchall()
    return {row[0]: (row[1], float(np.frombuffer(row[2])[-2])) for row in found}


def problem(reply: httpx.Response, status: int, *parts: str) -> str:
    """Check that a reply is one line of JSON with the given words, and no stack trace."""
    assert reply.status_code == status, reply.text
    assert list(reply.json()) == ["detail"]
    detail = reply.json()["detail"]
    assert detail.isprintable()
    assert "Traceback" not in detail
    for part in parts:
        assert part in detail
    return detail


# ---- Duels and answers


def test_a_duel_is_proposed_answered_and_stored(client, path):
    duel = propose(client, keys=["tea", "coffee", "cocoa"])
    assert (duel["first"], duel["second"]) == (0, 2)
    assert (duel["first_key"], duel["second_key"]) == ("tea", "cocoa")
    assert duel["predicted"] is None
    assert duel["expires"] == pytest.approx(time.time() + 7 * 24 * 3600, abs=60)
    duels = [duel["id"], propose(client)["id"], propose(client)["id"]]
    numbers = [
        answer(client, each, preferred).json()["number"]
        for each, preferred in zip(duels, ("second", "first", "tie"), strict=True)
    ]
    assert numbers == [1, 2, 3]
    assert list(recorded(path).values()) == [(1, 0.0), (2, 1.0), (3, 0.5)]
    with contextlib.closing(sqlite3.connect(path)) as rows:
        ((evidence,),) = rows.execute("SELECT evidence FROM answers WHERE sequence = 1")
    assert np.frombuffer(evidence).tolist() == pytest.approx([-3, 0, 0, np.nan], nan_ok=True)
    assert answer(client, duels[0], "second").json() == {"number": 1}  # repeated
    problem(answer(client, duels[0], "first"), 409, duels[0], "the first answer stays")
    for unknown in ("none", "%00%ff%0aA"):
        problem(answer(client, unknown, "first"), 404)
    assert len(recorded(path)) == 3
    with running(path, expire_after=0.05) as hasty:
        duel = propose(hasty)["id"]
        time.sleep(0.1)
        problem(answer(hasty, duel, "first"), 410, "expired")


def test_several_answers_have_separate_results(client, path):
    one, other = propose(client)["id"], propose(client)["id"]
    sent = [(one, "first"), ("none", "tie"), (other, "second"), (one, "second"), (one, "first")]
    reply = client.post("/answers", json=[{"id": i, "preferred": p} for i, p in sent])
    results = reply.json()
    assert [result["status"] for result in results] == [200, 404, 200, 409, 200]
    assert [result["number"] for result in results] == [1, None, 2, None, 1]
    assert [result["detail"] is None for result in results] == [True, False, True, False, True]
    assert recorded(path) == {one: (1, 1.0), other: (2, 0.0)}
    assert client.post("/answers", json=[]).json() == []


def test_status_rankings_and_predictions_follow_the_last_broadcast(client, path, tmp_path):
    """Theta = (2, -1): rewards 0, 2 and 6; the standard deviations are 2 / sqrt(50)."""
    state: dict[str, Any] = {
        "open": 0, "answered": 0, "counted": 0, "sent": 0, "needed": None,
        "undoable": None, "dimension": None, "theta": None, "round": None, "duels": None,
        "received": None, "secure": False, "privacy": None,
    }  # fmt: skip
    assert client.get("/status").json() == state
    answer(client, propose(client)["id"], "first")
    with PreferenceAgent(path) as agent:
        theta, information = np.array([2.0, -1.0]), np.array([50.0, 0.0, 50.0])
        agent.store.synchronize(Synchronization(123.5, 4, 1, 77, theta, information, {}))
    duel = propose(client)
    difference = LINE[duel["first"]][0] - LINE[duel["second"]][0]
    assert duel["predicted"] == pytest.approx(1 / (1 + np.exp(-2.0 * difference)))
    assert client.get("/status").json() == {
        **state, "open": 1, "answered": 1, "counted": 1, "sent": 1,
        "dimension": 2, "theta": [2.0, -1.0], "round": 4, "duels": 77, "received": 123.5,
    }  # fmt: skip
    named = {"features": LINE, "keys": ["a", "b", "c"]}
    for body, keys in (({"features": LINE}, None), (named, ["c", "b", "a"])):
        assert client.post("/rank", json=body).json() == {"order": [2, 1, 0], "keys": keys}
    two = {"first": LINE[1], "second": LINE[0]}
    probability = client.post("/predict", json=two).json()["probability"]
    assert probability == pytest.approx(1 / (1 + math.exp(-2)))
    assert client.get("/weights").json() == {
        "names": None, "weights": [2.0, -1.0],
        "deviations": pytest.approx([2 / math.sqrt(50)] * 2), "own": False, "scales": [1.0, 1.0],
        "directions": [],
    }  # fmt: skip
    problem(client.get("/rank"), 404, "--arms")
    catalogue = read_arms(write_arms(tmp_path / "arms.json"))
    with running(tmp_path / "other.db", catalogue=catalogue) as other:
        assert other.get("/weights").json() == {
            "names": None, "weights": [], "deviations": [], "own": True, "scales": [],
            "directions": [],
        }  # fmt: skip
        keys = [f"k{i}" for i in range(6)]
        assert other.get("/rank").json() == {"order": list(range(6)), "keys": keys}


@pytest.mark.parametrize("purpose", ["suggest", "rank"])
def test_the_purpose_reaches_the_selection(path, purpose):
    """Arm 3 always wins. Only duels for a ranking leave it out."""
    with running(path, purpose=purpose) as client:
        pairs = set()
        for _ in range(6):
            duel = propose(client, features=[[0.0], [1.0], [3.0], [7.0]])
            pairs.add(frozenset((duel["first"], duel["second"])))
            answer(client, duel["id"], "first" if duel["first"] > duel["second"] else "second")
    assert all(3 in pair for pair in pairs) == (purpose == "suggest")


@pytest.mark.parametrize("half_life", [None, 0.5])
def test_the_half_life_reaches_the_estimate(path, half_life):
    """The larger arm wins four times, then the smaller one twice."""
    with running(path, half_life=half_life) as client:
        for larger_wins in (True,) * 4 + (False,) * 2:
            duel = propose(client, features=[[0.0], [1.0]])
            first_wins = (duel["first"] == 1) == larger_wins
            answer(client, duel["id"], "first" if first_wins else "second")
        assert (client.get("/weights").json()["weights"][0] > 0) == (half_life is None)


def test_the_next_duel_is_the_oldest_that_a_page_can_show(client, path):
    problem(client.get("/duels/next"), 404, "no open duel has contents")
    propose(client)  # without contents: not shown in a page
    with PreferenceAgent(path) as other:
        duel = other.propose(LINE, ["a", "b", "c"], TEXTS)
    propose(client, contents=[{"image": "https://a.example/x.png"}] * 3)
    shown = client.get("/duels/next").json()
    assert shown == {
        "id": duel.id,
        "expires": duel.expires,
        "first": arm_of("a", "near"),
        "second": arm_of("c", "far"),
    }
    answer(client, duel.id, "tie")
    shown = client.get("/duels/next").json()
    assert shown["first"] == arm_of(None, image="https://a.example/x.png")


# ---- Undo and skip


def test_an_answer_is_undone_and_given_again(client, path):
    one, other = propose(client)["id"], propose(client)["id"]
    answer(client, one, "first")
    answer(client, other, "first")
    again = client.delete(f"/duels/{other}/answer").json()["id"]
    assert again != other
    assert recorded(path).keys() == {one}
    assert client.delete(f"/duels/{other}/answer").json() == {"id": again}  # a repeated request
    problem(answer(client, other, "first"), 404, other, "undone")  # a late one
    assert answer(client, again, "second").json() == {"number": 2}
    assert recorded(path) == {one: (1, 1.0), again: (2, 0.0)}
    problem(client.delete(f"/duels/{one}/answer"), 409, one, "only the last one can be undone")
    problem(client.delete("/duels/none/answer"), 404, "'none'")
    with DuelStore(path) as store:
        assert store.cut(0, 1) == 2
    problem(client.delete(f"/duels/{again}/answer"), 409, "part of an upload", "no longer")
    assert client.get("/status").json()["sent"] == 2
    assert recorded(path) == {one: (1, 1.0), again: (2, 0.0)}


def test_a_duel_that_was_shown_is_shown_again_first_after_undo(client, path):
    """As long as the service runs: no file has its texts after the answer."""

    def undoable() -> str | None:
        return client.get("/status").json()["undoable"]

    texts = [[{"text": f"{name} {arm}"} for arm in range(3)] for name in ("one", "other")]
    one, other = (propose(client, keys=["a", "b", "c"], contents=each)["id"] for each in texts)
    shown = client.get("/duels/next").json()
    assert (shown["id"], undoable()) == (one, None)
    answer(client, one, "first")
    assert undoable() == one
    assert client.get("/duels/next").json()["id"] == other
    files = b"".join(file.read_bytes() for file in path.parent.glob(f"{path.name}*"))
    assert (b"one 0" in files, b"other 0" in files) == (False, True)
    again = client.delete(f"/duels/{one}/answer").json()["id"]
    assert undoable() is None
    reply = client.get("/duels/next").json()
    assert [reply["id"], reply["first"], reply["second"]] == [
        again,
        shown["first"],
        shown["second"],
    ]
    answer(client, again, "second")
    with DuelStore(path) as store:
        assert store.cut(0, 1) == 1
    assert undoable() is None
    client.get("/duels/next")
    answer(client, other, "tie")
    assert undoable() == other
    client.delete("/answers")
    assert undoable() is None
    assert client.app.state.device.shown == {}


def test_a_skipped_duel_is_no_answer_and_another_follows(client, path):
    duel = propose(client)
    reply = client.delete(f"/duels/{duel['id']}")
    assert (reply.status_code, reply.content) == (204, b"")
    assert (client.get("/status").json()["open"], recorded(path)) == (0, {})
    problem(client.delete(f"/duels/{duel['id']}"), 404, duel["id"], "skipped")
    other = propose(client)
    assert {other["first"], other["second"]} != {duel["first"], duel["second"]}
    answer(client, other["id"], "tie")
    problem(client.delete(f"/duels/{other['id']}"), 409, "was answered")
    assert recorded(path) == {other["id"]: (1, 0.5)}


# ---- Names of features, favourites

TRAINS = """arm,price,time,text
slow,20,5.5,
fast,90,2,
"night, with bed",60,9,Sleep in a bed
"""


@pytest.fixture
def trains(path, tmp_path):
    (tmp_path / "trains.csv").write_text(TRAINS)
    with running(path, catalogue=read_arms(tmp_path / "trains.csv")) as client:
        yield client


def test_a_csv_file_has_the_names_of_the_features(trains, path):
    assert trains.get("/weights").json()["names"] == ["price", "time"]
    slow = arm_of("slow", "slow", features=named(price=20, time=5.5))
    fast = arm_of("fast", "fast", features=named(price=90, time=2))
    night = arm_of("night, with bed", "Sleep in a bed")  # has a text of its own
    seen = set()
    for _ in range(3):
        shown = trains.get("/duels/next").json()
        for arm in (shown["first"], shown["second"]):
            assert arm in (slow, fast, night)
            seen.add(arm["key"])
        trains.delete(f"/duels/{shown['id']}")
    assert seen == {"slow", "fast", "night, with bed"}
    with PreferenceAgent(path) as other:
        assert other.explain().names == ["price", "time"]


def test_predictions_are_those_of_the_last_answers(client, path):
    nothing = {"answers": 0, "predicted": 0, "right": 0, "expected": 0.0}
    assert client.get("/predictions").json() == nothing
    chances = [np.nan, 0.8, 0.3, 0.6, 0.9, *[0.75] * 47]
    answers = [1.0, 1.0, 1.0, 0.5, 0.0, *[1.0] * 47]
    with PreferenceAgent(path) as agent:
        for chance, preference in zip(chances, answers, strict=True):
            duel = agent.store.propose(np.array([1.0, 0.0]), chance, expire_after=60.0)
            agent.store.record([(duel.id, preference)])
    # The first two are no longer counted, and the fourth is a tie.
    expected = {"answers": 50, "predicted": 49, "right": 47, "expected": 0.7 + 0.9 + 47 * 0.75}
    assert client.get("/predictions").json() == pytest.approx(expected)


def named(**features: float) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in features.items()]


def test_favourites_are_the_best_arms_and_none_at_first(trains, path, idle):
    assert trains.get("/favourites").json() == idle.get("/favourites").json() == []
    with PreferenceAgent(path) as agent:
        duel = agent.propose([[0.0, 0.0], [1.0, 1.0]]).id
        agent.record(duel, "tie")
        assert trains.get("/favourites").json() == []  # nothing is preferred to anything
        theta, information = np.array([-0.01, -0.1]), np.array([1e4, 0.0, 1e4])
        agent.store.synchronize(Synchronization(123.5, 4, 1, 77, theta, information, {}))
    best = trains.get("/favourites").json()  # rewards -0.75, -1.1 and -1.5
    assert [arm["key"] for arm in best] == ["slow", "fast", "night, with bed"]
    # The average arm has price 170 / 3 and time 5.5. The deviation of a reward is twice the length
    # of the difference, divided by the square root of 1e4.
    logit, length = -1.1 + 17 / 30 + 0.55, math.hypot(90 - 170 / 3, 2 - 5.5)
    ends = [logit + sign * 1.96 * 2 * length / 100 for sign in (0, -1, 1)]
    shares = [best[1].pop(name) for name in ("preferred", "low", "high")]
    assert shares == pytest.approx([1 / (1 + math.exp(-z)) for z in ends])
    assert best.pop(1) == arm_of("fast", "fast", features=named(price=90, time=2))
    best = trains.get("/favourites").json()
    assert trains.get("/favourites?most=1").json() == best[:1]
    problem(trains.get("/favourites?most=0"), 422, "most")
    problem(trains.get("/favourites?most=101"), 422, "most")


def test_an_application_names_the_features(client):
    names = {"names": ["sweetness", "bitterness"]}
    assert client.put("/features", json=names).json() == names
    assert client.get("/weights").json()["names"] == names["names"]
    propose(client)
    problem(client.put("/features", json={"names": ["a"]}), 422, "1 names for 2 features")
    problem(client.put("/features", json={"names": ["a", "a"]}), 422, "'a'", "another feature")
    problem(client.put("/features", json={}), 422, "names", "required")
    assert client.get("/weights").json()["names"] == names["names"]
    assert client.put("/features", json={"names": None}).json() == {"names": None}
    assert client.get("/weights").json()["names"] is None


def test_features_that_only_tell_arms_apart_are_not_shown(path, tmp_path):
    (tmp_path / "names.csv").write_text("arm,Tim,Lucas\nTim,1,0\nLucas,0,1\n")
    with running(path, catalogue=read_arms(tmp_path / "names.csv")) as client:
        shown = client.get("/duels/next").json()
        assert shown["first"] == arm_of(shown["first"]["key"], shown["first"]["key"])


# ---- --arms


def write_arms(path: Path, count: int = 6, **changes: Any) -> Path:
    arms = [{"key": f"k{i}", "features": [i / 10, 1.0], "text": f"arm {i}"} for i in range(count)]
    arms[1:2] = [arms[1] | changes] if count > 1 else []
    path.write_text(json.dumps(arms))
    return path


def test_arms_are_proposed_if_no_duel_is_open(path, tmp_path):
    catalogue = read_arms(write_arms(tmp_path / "arms.json"))
    met = set()
    with running(path, catalogue=catalogue, choices=2) as client:
        for _ in range(60):
            shown = client.get("/duels/next").json()
            assert client.get("/duels/next").json() == shown  # the same duel until it is answered
            for arm in (shown["first"], shown["second"]):
                assert arm == arm_of(arm["key"], f"arm {arm['key'][1:]}")
            met.add(frozenset((shown["first"]["key"], shown["second"]["key"])))
            assert answer(client, shown["id"], "first").status_code == 200
    assert all(len(pair) == 2 for pair in met)
    assert len(met) > 8  # of 15 pairs: fewer with probability below 1e-6
    assert len(recorded(path)) == 60


BAD_CSV = {
    "": "is empty; it must be UTF-8 text with the header arm,FEATURE,...",
    "price\n1\n2\n": "line 1: the first column is 'price'; it must be 'arm'",
    "arm,key,price\na,a,1\n": "line 1: the header is 'arm,key,price'; it must be",
    "arm,price,price\na,1,2\nb,1,2\n": "line 1: the header is 'arm,price,price'; it must be",
    "arm,price,\na,1,2\nb,1,2\n": "line 1: the header is 'arm,price,'; it must be",
    "arm,price\na,1\n": "has 1 arms; a duel needs two",
    "arm,price\na,1\nb\n": "line 3: 1 instead of 2 fields: 'b'",
    "arm,price\na,1\n\nb,cheap\n": "line 4: price of 'b' is 'cheap'; must be a number within",
    'arm,price\na,1\nb,"59,9"\n': "line 3: price of 'b' is '59,9'; write numbers with a decimal",
    'arm,price\na,x\nb,"1,000"\n': "line 3: price of 'b' is '1,000'; write numbers with a dec",
    "arm,price\na,1\nb,nan\n": "line 3: price of 'b' is 'nan'; must be a number within",
    "arm,price\na,1\nb,1_0\n": "line 3: price of 'b' is '1_0'; must be a number within",
    "arm,price\na,1\nb,1e999\n": "line 3: price of 'b' is '1e999'; must be a number within",
    "arm,price\na,1\nb,2e100\n": "line 3: price of 'b' is '2e100'; must be a number within",
    "arm,price\na,1\na,2\n": "line 3: arm is 'a'; must be a name of its own",
    "arm,price\na,1\n,2\n": "line 3: arm is ''; must be a name of its own",
    "arm,price\na,1\n" + "b" * 1001 + ",2\n": "line 3: key: String should have at most 1000 char",
    "arm,c,c=a\na,a,1\nb,b,2\n": "has 3 features; at most 4096, each with its name",
    "arm,price,image\na,1,\nb,2,/etc/passwd\n": "line 3: image",
    'arm,price\n"a,1\nb,2\n': "line 3: unexpected end of data",
    "arm,price\na,1\nb,\xe9\n": "line 3: it is not in UTF-8",
}


def test_invalid_csv_files_give_a_one_line_error(tmp_path):
    file = tmp_path / "arms.csv"
    for text, reason in BAD_CSV.items():
        file.write_bytes(text.encode("latin-1"))
        with pytest.raises(DataError) as error:
            read_arms(file)
        assert str(error.value).startswith(f"{file}: {reason}")
        assert str(error.value).isprintable()


def test_csv_files_of_other_programs_are_read(tmp_path):
    """A byte order mark, CRLF, quoted line breaks, and `key` as the name of the column."""
    text = '\ufefftext,key,"a ""quoted"" name"\r\n"two\r\nlines",one,1e3\r\n,two,-.5\r\n'
    (tmp_path / "arms.csv").write_bytes(text.encode())
    catalogue = read_arms(tmp_path / "arms.csv")
    assert catalogue.names == ['a "quoted" name']
    one, two = catalogue.arms
    assert (one.key, one.text, one.features) == ("one", "two\r\nlines", [1000.0])
    assert (two.key, two.text, two.image, two.features) == ("two", None, None, [-0.5])


def test_texts_and_names_of_arms_are_indicators(tmp_path):
    (tmp_path / "arms.csv").write_text("colour,arm,price\nred,a,1\nblue,b,2\nred,c,3\n")
    catalogue = read_arms(tmp_path / "arms.csv")
    assert catalogue.names == ["colour=red", "colour=blue", "price"]
    assert catalogue.features.tolist() == [[1, 0, 1], [0, 1, 2], [1, 0, 3]]
    (tmp_path / "arms.csv").write_text("arm,text\na,tea\nb,\n")
    catalogue = read_arms(tmp_path / "arms.csv")
    assert catalogue.names == ["a", "b"]
    assert catalogue.features.tolist() == [[1, 0], [0, 1]]
    assert [arm.text for arm in catalogue.arms] == ["tea", None]
    (tmp_path / "arms.csv").write_text("arm,item,option\na,1,2\nb,3,4\n")
    assert read_arms(tmp_path / "arms.csv").names == ["item", "option"]
    (tmp_path / "arms.csv").write_text("item,option\na,1\nb,2\n")
    with pytest.raises(DataError, match="the header is 'item,option'"):
        read_arms(tmp_path / "arms.csv")


def test_a_note_states_that_the_page_shows_no_features(path, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("clients.service.http.serve", lambda *_, **__: None)
    arms = tmp_path / "arms.csv"
    for text, is_noted in (
        ("item,price,text\na,1,Pink villa\nb,2,\n", True),
        ("option,price,image\na,1,\nb,2,https://a.org/b.png\n", True),
        ("arm,price,text\na,1,a\nb,2,\n", False),  # the page shows keys and prices
        ("arm,text\na,Pink villa\nb,Barn\n", False),  # no features
    ):
        arms.write_text(text)
        main(["--store", str(path), "--arms", str(arms), "--port", "0"])
        notes = capsys.readouterr().err.splitlines()
        assert len(notes) == is_noted
        assert all(note.startswith(f"note: {arms}: an arm with a text or an") for note in notes)


def test_a_warning_names_columns_with_a_text_for_each_arm(path, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("clients.service.http.serve", lambda *_, **__: None)
    arms = tmp_path / "arms.csv"
    for text, columns in (
        ("arm,price_eur,kg,size\na,59 EUR,1,S\nb,60 EUR,2,L\nc,61 EUR,3,S\n", "price_eur"),
        ("arm,price,size\na,59 EUR,S\nb,60 EUR,L\nc,61 EUR,M\n", "price, size"),
        ("arm,price\na,59 EUR\nb,60 EUR\nc,60 EUR\n", ""),
        ("arm,wifi\na,yes\nb,no\n", ""),  # two rows
    ):
        arms.write_text(text)
        main(["--store", str(path), "--arms", str(arms), "--port", "0"])
        warning = f"warning: {arms}: each arm has a different text in {columns}; if these are num"
        lines = capsys.readouterr().err.splitlines()
        assert [line.startswith(warning) for line in lines] == [True] * bool(columns)


def test_an_arm_without_text_and_image_shows_its_key(path, tmp_path):
    image = "data:image/png;base64,AAAA"
    text = [{"key": "only", "features": [0]}, {"key": "seen", "features": [1], "image": image}]
    (tmp_path / "arms.json").write_text(json.dumps(text))
    with running(path, catalogue=read_arms(tmp_path / "arms.json")) as client:
        shown = client.get("/duels/next").json()
    assert {shown[side]["key"]: shown[side] for side in ("first", "second")} == {
        "only": arm_of("only", "only"),
        "seen": arm_of("seen", image=image),
    }


# ---- Access control


def test_everything_but_page_health_and_description_needs_the_token(path):
    with running(path) as client:
        paths = client.get("/openapi.json").json()["paths"]
        guarded = {(m, p) for p, methods in paths.items() for m in methods} - {("get", "/health")}
        assert len(guarded) == 15
        for method, place in [*guarded, ("get", "/none"), ("get", "/static-offline-docsx")]:
            for header in ("", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x"):
                reply = client.request(method, place, headers={"Authorization": header})
                assert reply.headers["www-authenticate"] == "Bearer"
                problem(reply, 401, "token", "Authorization: Bearer")
        del client.headers["Authorization"]
        problem(client.get("/status"), 401)
        for place in ("/", "/health", "/docs", "/openapi.json"):
            assert client.get(place).status_code == 200
        assert client.get("/status", headers={"Authorization": f"bearer {TOKEN}"}).is_success


def test_names_of_other_machines_are_refused_on_every_path(path, idle):
    for host in ("127.0.0.1", "localhost:1", "LOCALHOST", "[::1]", "[::1]:8377"):
        assert idle.get("/health", headers={"Host": host}).status_code == 200
    others = ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:8377", "", "[::1]x")
    for host, place in itertools.product(others, ("/", "/health", "/docs", "/status", "/none")):
        problem(idle.get(place, headers={"Host": host}), 400, "localhost")
    with running(path, any_host=True) as client:
        assert client.get("/health", headers={"Host": "device.lan"}).status_code == 200


def test_every_reply_has_the_security_headers(idle):
    for place in ("/", "/docs", "/health", "/status", "/none"):
        headers = idle.get(place).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"
        assert headers["content-security-policy"].startswith("default-src 'none';")
        assert "frame-ancestors 'none'" in headers["content-security-policy"]


def test_the_policy_of_the_page_allows_only_its_own_code(idle):
    reply = idle.get("/")
    rules = dict(
        rule.split(" ", 1) for rule in reply.headers["content-security-policy"].split("; ")
    )
    for tag, rule in (("script", "script-src"), ("style", "style-src")):
        (inside,) = re.findall(f"<{tag}>(.*?)</{tag}>", reply.text, re.S)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    assert rules["connect-src"] == "'self'"
    assert rules["img-src"] == "data: https:"
    assert TOKEN not in reply.text


def test_the_api_documentation_is_complete_and_uses_no_other_host(idle):
    description = idle.get("/openapi.json").json()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert description["info"]["version"] == project["version"]
    for methods in description["paths"].values():
        assert all(operation["description"] for operation in methods.values())
    for name, model in description["components"]["schemas"].items():
        if "Validation" not in name:
            assert model["description"], name
            for field, schema in model["properties"].items():
                in_words = re.search(rf"^.*\b{field}\b.* : ", model["description"], re.M)
                assert schema.get("examples") or in_words, f"{name}.{field}"
    docs = idle.get("/docs").text
    sources = re.findall(r"(?:src|href)=\"([^\"]*)\"", docs)
    assert len(sources) == 3
    assert all(re.match(r"/static-offline-docs/|data:", source) for source in sources)
    for source in sources[:1] + sources[2:]:
        assert httpx.Response.is_success.fget(idle.get(source))


def test_the_examples_of_the_description_are_valid():
    kinds = [value for value in vars(models).values() if isinstance(value, type)]
    kinds = [kind for kind in kinds if issubclass(kind, BaseModel) and kind is not BaseModel]
    assert len(kinds) > 12
    for kind in kinds:
        fields = kind.model_json_schema().get("properties", {}).items()
        kind.model_validate({name: schema["examples"][0] for name, schema in fields})


# ---- Limits and errors


def many(count: int) -> list[list[float]]:
    return [[float(i), 0.0] for i in range(count)]


def test_limits(idle):
    good = [
        {"features": many(10_000)},
        {"features": LINE, "keys": ["k" * 1000] * 3},
        {"features": LINE, "contents": [{"text": "t" * 10_000}] * 3},
    ]
    bad = [
        {"features": many(10_001)},
        {"features": [[0.0] * 4097] * 2},
        {"features": LINE, "keys": ["k" * 1001] * 3},
        {"features": LINE, "contents": [{"text": "t" * 10_001}] * 3},
    ]
    for body in good:
        assert idle.post("/duels", json=body).status_code == 200
    for body in bad:
        assert len(problem(idle.post("/duels", json=body), 422, "at most")) < 300
    idle.delete("/answers")


def test_a_body_may_be_32_mebibytes_and_no_more_with_and_without_its_length(client):
    limit = 32 * 2**20
    body = b'{"features": [[0, 0], [1, 1]]}'
    sent = {"Content-Type": "application/json"}

    def chunks(size: int):
        yield body
        for start in range(len(body), size, 2**20):
            yield b" " * min(2**20, size - start)

    assert client.post("/duels", content=b"".join(chunks(limit)), headers=sent).is_success
    assert client.post("/duels", content=chunks(limit), headers=sent).is_success
    large = b"".join(chunks(limit + 1))
    problem(client.post("/duels", content=large, headers=sent), 413, "32 MiB")
    problem(client.post("/duels", content=chunks(limit + 1), headers=sent), 413, "32 MiB")


BAD_DUELS = {
    '{"features": [[1, NaN], [1, 2]]}': (422, "features.0.1", "nan"),
    '{"features": [[1, 2], [-Infinity, 2]]}': (422, "features.1.0", "inf"),
    '{"features": [[1, 2], [1e999, 2]]}': (422, "features.1.0", "inf"),
    '{"features": [[1], [1e200]]}': (
        422,
        "features.1.0",
        "less than or equal to 1e+100, not 1e+200",
    ),
    '{"features": [[-1e101], [2]]}': (422, "features.0.0", "or equal to -1e+100, not -1e+101"),
    f'{{"features": [[1, 2], [1{"0" * 400}, 2]]}}': (422, "features.1.0", "number"),
    '{"features": [[1, 2], ["1", 2]]}': (422, "features.1.0", "'1'"),
    '{"features": [[1, 2], [true, 2]]}': (422, "features.1.0", "True"),
    '{"features": [[1, 2], [1]]}': (422, "same length"),
    '{"features": [[1, 2]]}': (422, "features", "at least 2"),
    '{"features": [[], []]}': (422, "features.0", "at least 1"),
    '{"features": 7}': (422, "features", "7"),
    '{"feature": [[1, 2], [3, 4]]}': (422, "features", "required"),
    '{"features": [[1, 2], [3, 4]], "key": []}': (422, "key", "not permitted"),
    '{"features": [[1, 2], [3, 4]], "keys": ["a"]}': (422, "1 keys for 2 arms"),
    '{"features": [[1, 2], [3, 4]], "keys": ["a", 5]}': (422, "keys.1", "5"),
    r'{"features": [[1, 2], [3, 4]], "keys": ["a", "\ud800"]}': (422, "keys.1"),
    '{"features": [[1, 2], [3, 4]], "contents": [{}, {}]}': (422, "contents.0", "text or an image"),
    '{"features": [[1], [2]], "contents": [{"image": "js:x"}, {}]}': (
        422,
        "contents.0.image",
        "js:x",
    ),
    '{"features": [[1, 2], [3, 4]]': (422, "not JSON", "29"),
    '{"features":\n [[1, 2]': (422, "not JSON", "line 2 column 9"),
    "{'features': 1}": (422, "not JSON", "line 1 column 2"),
    "[" * 10**6: (400, "the body cannot be read", "recursion"),
    f"[1{'0' * 5000}]": (400, "the body cannot be read", "4300 digits"),
    "\xff": (400, "the body cannot be read", "0xff in position 0"),
    '{"features": "caf\xe9"}': (400, "0xe9 in position 17"),
    "": (422, "the body", "required"),
    "[]": (422, "the body"),
}


def test_invalid_bodies_give_a_one_line_error(idle):
    sent = {"Content-Type": "application/json"}
    for body, (status, *parts) in BAD_DUELS.items():
        reply = idle.post("/duels", content=body.encode("latin-1"), headers=sent)
        assert len(problem(reply, status, *parts)) < 300
    body = b'{"features": [[1, 2], [3, 4]]}'
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        reply = idle.post("/duels", content=body, headers={"Content-Type": kind})
        problem(reply, 422, f"Content-Type: {kind}", "send JSON, as Content-Type: application/json")
    problem(idle.post("/duels", content=body), 422, "no Content-Type", "application/json")
    problem(idle.post("/duels", json={"features": [[1.0], [2.0]]}), 422, "1 numbers", "have 2")
    assert idle.get("/status").json()["open"] == 0


def test_invalid_answers_give_a_one_line_error(client, path):
    duel = propose(client)["id"]
    problem(answer(client, duel, "me"), 422, "preferred", "'me'")
    problem(client.post("/answers", json=[{"id": duel}]), 422, "0.preferred")
    problem(client.post("/answers", json=[{"id": "x", "preferred": "tie"}] * 10_001), 422, "10000")
    plain = client.post(f"/duels/{duel}/answer", content='{"preferred": "tie"}')
    problem(plain, 422, "Content-Type: application/json")
    assert recorded(path) == {}


def test_wrong_methods_and_paths_give_a_one_line_error(idle):
    reply = idle.put("/duels")
    problem(reply, 405, "PUT is not allowed at /duels: use POST")
    assert reply.headers["allow"] == "POST"
    problem(idle.get("/none"), 404, "nothing at /none", "/docs")
    problem(idle.get("/static-offline-docs/none.js"), 404, "nothing at /static-offline-docs/none")


def test_erasure_over_http(client, path):
    for marker in ("first", "open"):
        contents = [{"text": f"text-{marker}"}] * 3
        duel = propose(client, keys=["key-a", "key-b", "key-c"], contents=contents)["id"]
        if marker == "first":
            answer(client, duel, "second")
    expected = {"proposals": 1, "forgotten": 1, "may_be_counted": 0, "counted": 0}
    assert client.delete("/answers").json() == expected
    data = b"".join(file.read_bytes() for file in path.parent.glob("duels.db*"))
    assert b"text-" not in data
    assert b"key-" not in data
    problem(client.get("/duels/next"), 404)
    problem(answer(client, duel, "first"), 404, "forgotten")
    assert recorded(path) == {}
    assert client.delete("/answers").json() == dict.fromkeys(expected, 0)


# ---- The service and the Python API


broken = st.sampled_from(["\ud800", "x" * 10_001, "", "ok", 5, None, True, [], {}, [[[[]]]], 1e999])
images = st.sampled_from(["https://a/b", "data:image/png,x", "javascript:x", "http://a", "/a.png"])
shown_arms = st.one_of(
    broken,
    st.fixed_dictionaries({}, optional={"text": broken, "image": images | broken, "txet": broken}),
    st.just({"text": "tea"}),
)
numbers = st.one_of(
    st.floats(-5, 5), st.sampled_from([math.nan, math.inf, 1e101, 10**400, 7]), broken
)
offers = st.fixed_dictionaries(
    {
        "features": st.one_of(
            st.lists(st.lists(numbers, max_size=3), max_size=3), st.just(LINE), broken
        )
    },
    optional={
        "keys": st.one_of(st.lists(broken, max_size=3), st.just(["a", "b", "c"]), broken),
        "contents": st.one_of(st.lists(shown_arms, min_size=2, max_size=3), broken),
    },
)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(offer=offers)
def test_service_and_agent_refuse_the_same_values_with_the_same_message(idle, idle_agent, offer):
    sent = {"Content-Type": "application/json"}
    reply = idle.post("/duels", content=json.dumps(offer).encode(), headers=sent)
    with contextlib.suppress(FldbError):
        idle_agent.propose(**offer)
        assert reply.status_code == 200, reply.text
        assert idle.delete("/answers").json()["proposals"] == 1
        return
    with pytest.raises(FldbError) as error:
        idle_agent.propose(**offer)
    assert problem(reply, 422) == str(error.value)


def test_service_and_agent_refuse_the_same_answers(idle, idle_agent):
    for preferred in ("me", 5, None, [], {}, True, "\ud800"):
        one, fine = {"preferred": preferred}, {"id": "y", "preferred": "tie"}
        with pytest.raises(FldbError) as error:
            idle_agent.record("x", preferred)
        assert refusal(idle, "/duels/x/answer", one) == str(error.value)
        for bad in ({"id": "x", **one}, {"id": preferred, "preferred": "x"}):
            with pytest.raises(FldbError) as error:
                idle_agent.record_many([("y", "tie"), tuple(bad.values())])
            assert refusal(idle, "/answers", [fine, bad]) == str(error.value)


def refusal(client, path: str, body: object) -> str:
    sent = {"Content-Type": "application/json"}
    return problem(client.post(path, content=json.dumps(body).encode(), headers=sent), 422)


@contextlib.contextmanager
def locked(path: Path):
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            other.execute("ROLLBACK")


def test_requests_wait_for_a_lock_together(path, monkeypatch):
    """One deadline per request, not one after the other."""
    monkeypatch.setattr("clients.store.database.BUSY_SECONDS", 1.0)
    with running(path) as client, ThreadPoolExecutor(6) as pool:
        duel = propose(client)["id"]
        began = time.monotonic()
        with locked(path):
            for reply in [pool.submit(answer, client, duel, "first") for _ in range(6)]:
                problem(reply.result(), 503, "locked")
        assert 1.0 <= time.monotonic() - began < 3.0
        assert recorded(path) == {}
        assert answer(client, duel, "first").json() == {"number": 1}


def test_health_reports_a_store_without_its_path(path):
    with running(path) as client:
        assert client.get("/health").json() == {"status": "ok"}
        with contextlib.closing(sqlite3.connect(path)) as rows:
            rows.execute("ALTER TABLE proposals RENAME TO other")
            assert problem(client.get("/health"), 503) == "the store cannot be read"
            rows.execute("ALTER TABLE other RENAME TO proposals")
        assert client.get("/health").json() == {"status": "ok"}
        path.unlink()
        assert problem(client.get("/health"), 503) == "the store cannot be read"


def test_an_internal_error_shows_no_stack_trace(client, monkeypatch):
    def fail(_agent):
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(PreferenceAgent, "status", fail)
    assert "secret" not in problem(client.get("/status"), 500)


# ---- The process


class Process:
    """A service in a subprocess, on a free port."""

    def __init__(self, path: Path, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "clients.service", "--store", path, "--port", "0", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self.process.stdout is not None
        self.printed = self.process.stdout.readline().strip()
        found = re.fullmatch(r"http://([\w.\[\]:]+):(\d+)/#token=([\w-]{40,})", self.printed)
        assert found, self.printed + self.stop()[1]
        self.port, self.token = int(found[2]), found[3]

    def client(self) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.token}"}
        return httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}", headers=headers, trust_env=False, timeout=60
        )

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Stop the service; return its exit status and stderr."""
        self.process.send_signal(number)
        _, stderr = self.process.communicate(timeout=300)
        return self.process.returncode, stderr


@pytest.fixture
def start_service(path):
    """Start services; stop all of them at the end."""
    begun: list[Process] = []

    def begin(*options: str) -> Process:
        begun.append(Process(path, *options))
        return begun[-1]

    yield begin
    for process in begun:
        if process.process.poll() is None:
            process.process.kill()
            process.process.communicate(timeout=300)


def proposed(path: Path, count: int) -> list[str]:
    with PreferenceAgent(path) as agent:
        return [agent.propose(LINE).id for _ in range(count)]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_every_confirmed_answer_is_in_the_store(number, path, start_service):
    duels = proposed(path, 1000)
    service, numbers = start_service(), {}

    def answer_all(duels: list[str]) -> None:
        with service.client() as client, contextlib.suppress(httpx.TransportError):
            for duel in duels:
                reply = answer(client, duel, "first")
                assert reply.status_code == 200, reply.text
                numbers[duel] = reply.json()["number"]

    with ThreadPoolExecutor(16) as pool:
        threads = [pool.submit(answer_all, duels[i::16]) for i in range(16)]
        while len(numbers) < 30:
            assert service.process.poll() is None
            time.sleep(0.001)
        status, stderr = service.stop(number)
        for thread in threads:
            thread.result()
    killed = number == signal.SIGKILL
    assert status == (-signal.SIGKILL if killed else 128 + signal.SIGTERM)
    assert stderr == ("" if killed else "stopped\n")
    assert 30 <= len(numbers) < 1000  # it was stopped in the middle
    kept = recorded(path)
    assert numbers.items() <= {duel: sequence for duel, (sequence, _) in kept.items()}.items()
    assert sorted(sequence for sequence, _ in kept.values()) == list(range(1, len(kept) + 1))
    again = start_service()
    assert again.token == service.token
    with again.client() as client:
        assert client.get("/status").json()["answered"] == len(kept)


def test_sigterm_waits_for_a_commit_in_progress(path, start_service):
    (duel,) = proposed(path, 1)
    service = start_service()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")  # the commit waits for this
        body = b'{"preferred": "tie"}'
        with begun(service, f"/duels/{duel}/answer", len(body)) as late:
            late.sendall(body)
            time.sleep(1.0)
            service.process.terminate()
            time.sleep(0.5)
            assert service.process.poll() is None
            other.execute("ROLLBACK")
            assert ended(late).endswith(b'{"number":1}')
    assert service.process.wait(60) == 128 + signal.SIGTERM
    assert recorded(path) == {duel: (1, 0.5)}


# ---- Connections


def connect(service: Process, sent: bytes = b"") -> socket.socket:
    opened = socket.create_connection(("127.0.0.1", service.port), timeout=60)
    opened.sendall(sent)
    return opened


def ended(opened: socket.socket) -> bytes:
    """Return the data received before the service closed the connection."""
    received = b""
    with opened, contextlib.suppress(ConnectionResetError):
        while part := opened.recv(2**16):
            received += part
    return received


def received(opened: socket.socket, end: bytes) -> bool:
    """Receive data until the given end."""
    data = b""
    while not data.endswith(end) and (part := opened.recv(2**16)):
        data += part
    return data.endswith(end)


def head(service: Process, path: str = "/duels", length: int = 100, more: str = "") -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {service.token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {length}\r\n{more}\r\n"
    ).encode()


def begun(service: Process, path: str = "/duels", length: int = 100) -> socket.socket:
    """Send the head of a request; return when the service waits for the body."""
    opened = connect(service, head(service, path, length, "Expect: 100-continue\r\n"))
    assert opened.recv(2**16) == b"HTTP/1.1 100 Continue\r\n\r\n"
    return opened


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="Linux alone")
def test_hundreds_of_idle_connections_do_not_block_others(start_service):
    """Also with a limit of 256 open files per process, as on macOS."""
    service = start_service()
    resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE, (256, 256))
    with contextlib.ExitStack() as idle:
        client = idle.enter_context(service.client())
        for number in range(300):
            idle.enter_context(connect(service, b"GET / HT" if number % 2 else b""))
            if number % 50 == 49:  # leaves time to close connections before more arrive
                assert client.get("/health").status_code == 200
            assert client.get("/status").json()["answered"] == 0
    _, stderr = service.stop()
    *lines, counted, stopped = stderr.splitlines()
    assert stopped == "stopped"
    assert len(lines) == 3
    assert "more than 100 connections: those that wait are closed" in lines[0]
    assert re.search(r" \(and \d+ more in the last minute\)$", counted)


def test_a_request_that_does_not_arrive_times_out(start_service):
    """On a new connection, and on one that already had a reply."""
    whole = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    for sent in (b"", b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "):
        service = start_service("--request-seconds", "1")
        for begin in (b"", whole):
            opened = connect(service, begin)
            if begin:
                assert opened.recv(2**16).startswith(b"HTTP/1.1 200")
            opened.sendall(sent)
            assert ended(opened) in {b"", b'{"status":"ok"}'}
        _, stderr = service.stop()
        assert stderr.count("head did not arrive within 1 s") == (2 if sent else 0)


@pytest.mark.parametrize("trickle", [False, True])
def test_a_body_that_does_not_arrive_is_refused(start_service, trickle):
    service = start_service("--request-seconds", "1")
    opened = connect(service, head(service) + b"{")
    if trickle:
        with contextlib.suppress(OSError):
            for _ in range(60):
                opened.sendall(b" ")
                time.sleep(0.05)
        opened.close()
    else:
        top, _, body = ended(opened).partition(b"\r\n\r\n")
        assert top.startswith(b"HTTP/1.1 408")
        assert b"connection: close" in top.lower()
        assert json.loads(body) == {"detail": "the body did not arrive within 1 s"}
    with service.client() as client:
        assert client.get("/health").status_code == 200
    _, stderr = service.stop()
    assert stderr.count("POST /duels: the body did not arrive within 1 s") == 1
    assert "Traceback" not in stderr


BUNDLE = b"GET /static-offline-docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def holding(service: Process, kind: str) -> socket.socket:
    """Open a connection that keeps the service waiting."""
    if kind == "does not read":  # 42 MB, without a token
        return connect(service, 30 * BUNDLE)
    return connect(service, head(service) + b"{")


@pytest.mark.parametrize("kind", ["does not read", "slow body"])
def test_clients_that_hold_on_do_not_block_others(kind, start_service):
    """The first 150 stay; 20 more come again and again, between the requests of an honest client.

    Limits of time do not help here: all that follows takes less than 20 seconds.
    """
    service = start_service()
    with contextlib.ExitStack() as held, service.client() as client:
        for _ in range(150):
            held.enter_context(holding(service, kind))
        for number in range(5):
            began = time.monotonic()
            with service.client() as other:
                statuses = [each.get("/status").status_code for each in (client, other)]
            assert statuses == [200, 200]
            assert time.monotonic() - began < 2
            for _ in range(20 if number else 0):
                held.enter_context(holding(service, kind))
    assert service.stop()[0] == 128 + signal.SIGTERM


def test_replies_that_are_not_read_are_dropped(start_service):
    """Wherever they stop: in buffers of the operating system, or of the service."""
    service = start_service("--request-seconds", "1")
    process = psutil.Process(service.process.pid)
    last = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    with contextlib.ExitStack() as held:
        for number in range(1, 13):
            for end in (b"", last):
                held.enter_context(connect(service, number * BUNDLE + end))
        deadline = time.monotonic() + 20
        while len(process.net_connections()) < 12:
            time.sleep(0.01)
        while len(process.net_connections()) > 1:  # it listens on one
            assert time.monotonic() < deadline
            time.sleep(0.1)
    assert "replies were not read within 1 s: closed" in service.stop()[1]


def test_a_new_connection_is_refused_if_all_are_busy(path, start_service):
    (duel,) = proposed(path, 1)
    service = start_service("--max-connections", "1")
    body = b'{"preferred": "tie"}'
    with begun(service, f"/duels/{duel}/answer", len(body)) as busy:
        with locked(path):
            busy.sendall(body)
            time.sleep(0.5)
            with service.client() as client:
                assert client.get("/health").status_code == 503
        assert received(busy, b'{"number":1}')
    with service.client() as client:
        assert client.get("/health").status_code == 200
    assert "all 1 connections are busy: a new one is refused" in service.stop()[1]


def test_requests_that_wait_for_a_lock_do_not_block_others(path, start_service):
    duels = proposed(path, 120)
    service = start_service()
    body = b'{"preferred": "tie"}'
    with contextlib.ExitStack() as held, service.client() as client:
        with locked(path):
            first = held.enter_context(begun(service, f"/duels/{duels[0]}/answer", len(body)))
            first.sendall(body)
            time.sleep(0.5)
            for duel in duels[1:]:
                sent = head(service, f"/duels/{duel}/answer", len(body)) + body
                held.enter_context(connect(service, sent))
            began = time.monotonic()
            assert client.get("/status").json()["answered"] == 0
            problem(client.delete(f"/duels/{duels[0]}"), 503, "50 requests already wait")
            assert time.monotonic() - began < 2
        assert received(first, b'{"number":1}')


def test_a_refusal_does_not_wait_for_the_body(start_service):
    """A request without a token gets an immediate reply, and its body is not read."""
    service = start_service("--max-connections", "1", "--request-seconds", "30")
    service.token, token = "wrong" * 10, service.token
    opened = connect(service, head(service))
    assert opened.recv(2**16).startswith(b"HTTP/1.1 401")
    service.token = token
    with service.client() as client:
        assert client.get("/status").status_code == 200
    ended(opened)
    with service.client() as client:  # with a token, a body without a length is read up to a limit
        chunks = (b" " * 2**20 for _ in range(33))
        sent = {"Content-Type": "application/json"}
        problem(client.post("/duels", content=chunks, headers=sent), 413, "32 MiB")


def test_the_log_has_few_records_of_each_kind(caplog):
    """A kind is a text, or a place where an exception was raised; nothing is lost unseen."""
    log, limiter = logging.getLogger("uvicorn.error"), Limiter("secret-token")
    caplog.set_level(logging.WARNING, log.name)

    def fail(error: BaseException, line: int) -> None:
        try:
            exec(compile("\n" * line + "raise error", "code", "exec"), {"error": error})
        except BaseException:
            log.exception("failed")

    with limiter.installed():
        for number in range(9):
            log.warning("%d: %s", number, "a secret-token")
            fail(ValueError("x"), line=1)
            fail(ValueError("x"), line=2)
            fail(asyncio.CancelledError(), line=3)
        log.error("another")
        messages = [record.getMessage() for record in caplog.records]
        logged = [[f"{number}: a TOKEN", "failed", "failed"] for number in range(3)]
        assert messages == [*itertools.chain(*logged), "another"]
        caplog.clear()
        limiter.report()
        failed = "failed (and 5 more in the last minute)"
        messages = [record.getMessage() for record in caplog.records]
        assert messages == ["8: a TOKEN (and 5 more in the last minute)", failed, failed]
        caplog.clear()
        log.error("another")
        assert len(caplog.records) == 1
    assert len(caplog.records) == 1


BAD_REQUESTS = {
    "Invalid HTTP request received.": "{token}\r\n\r\n",
    "Unsupported upgrade request.": "GET /{token}?t={token} HTTP/1.1\r\nHost: x\r\n"
    "Connection: upgrade, close\r\nUpgrade: websocket\r\n\r\n",
    "POST /duels/TOKEN/answer: the body did not arrive within 1 s": "POST /duels/{token}/answer"
    " HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\nContent-Length: 9\r\n\r\n",
}


def test_bad_requests_do_not_fill_the_log(start_service):
    """Three lines of each kind and the number of the others in a minute; none has the token."""
    service = start_service("--request-seconds", "1")
    for text in BAD_REQUESTS.values():
        sent = text.format(token=service.token).encode()
        connections = [connect(service, sent) for _ in range(90)]
        assert all(map(ended, connections))
    _, stderr = service.stop()
    for line in BAD_REQUESTS:
        assert stderr.count(line) == 4
        assert f"{line} (and 86 more in the last minute)\n" in stderr
    assert len(stderr) < 6000
    assert service.token not in stderr


def test_a_second_signal_ends_the_service_at_once(path, start_service):
    (duel,) = proposed(path, 1)
    service = start_service()
    body = b'{"preferred": "tie"}'
    with locked(path), begun(service, f"/duels/{duel}/answer", len(body)) as busy:
        busy.sendall(body)
        time.sleep(0.5)
        service.process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert service.process.poll() is None  # it waits for the answer
        began = time.monotonic()
        assert service.stop(signal.SIGINT) == (
            128 + signal.SIGINT, "stopped without waiting for open requests\n",
        )  # fmt: skip
        assert time.monotonic() - began < 5
    assert recorded(path) == {}


def test_a_remote_service_warns_and_options_reach_the_service(tmp_path, start_service):
    arms = str(write_arms(tmp_path / "arms.json"))
    remote = ("--host", "0.0.0.0", "--allow-remote")
    service = start_service(*remote, "--arms", arms, "--choices", "3", "--expire-after", "60")
    with service.client() as client:
        assert client.get("/health", headers={"Host": "device.lan"}).status_code == 200
        shown = client.get("/duels/next").json()
    assert shown["expires"] == pytest.approx(time.time() + 60, abs=10)
    status, stderr = service.stop(signal.SIGINT)
    assert status == 128 + signal.SIGINT
    assert re.fullmatch(r"warning: .*0\.0\.0\.0.*encrypted.*\nnote: .*\nstopped\n", stderr)


# ---- Starting


BAD_STARTS = {
    "--store {0}/none/duels.db": "does not exist",
    "--store {0}": "cannot use the duel store",
    "--store /proc/duels.db": "/proc/duels.db",
    "--store {0}/text": "not a duel store",
    "--store {0}/d.db --port {1}": "port {1}: Address already in use",
    "--store {0}/d.db --port 70000": "--port: '70000' must be a whole number, from 0 to 65535",
    "--store {0}/d.db --port x": "--port: 'x' must be a whole number",
    "--store {0}/d.db --host 0.0.0.0": "--allow-remote",
    "--store {0}/d.db --host ::": "--allow-remote",
    "--store {0}/d.db --host 192.0.2.1": "--allow-remote",
    "--store {0}/d.db --host 192.0.2.1 --allow-remote": "cannot listen on 192.0.2.1",
    "--store {0}/d.db --token-file {0}/text": "does not contain a token",
    "--store {0}/d.db --token-file {0}/empty": "does not contain a token",
    "--store {0}/d.db --token-file {0}": "token file",
    "--store {0}/d.db --token-file {0}/none/t": "token file",
    "--store {0}/d.db --token-file {0}/pipe": "token file {0}/pipe: it is not a file",
    "--store {0}/d.db --token-file {0}/huge": "huge: it has more than 4,096 bytes",
    "--store {0}/pipe": "cannot use the duel store",
    "--store /dev/zero": "cannot use the duel store",
    "--store {0}/d.db --arms {0}/none.json": "No such file",
    "--store {0}/d.db --arms {0}": "{0}: it is not a file; --arms must be a JSON or CSV file",
    "--store {0}/d.db --arms {0}/pipe": "{0}/pipe: it is not a file; --arms",
    "--store {0}/d.db --arms /dev/zero": "/dev/zero: it is not a file; --arms",
    "--store {0}/d.db --arms {0}/huge": "huge: it has more than 268,435,456 bytes; --arms",
    "--store {0}/old.db --arms {0}/arms.json": "old.db: dimension=3, but the arms have 2 features",
    "--store {0}/d.db --choices 1": "--choices",
    "--store {0}/d.db --expire-after nan": "--expire-after",
    "--store {0}/d.db --expire-after 0": "--expire-after",
    "--store {0}/d.db --purpose learn": "--purpose",
    "--store {0}/d.db --half-life 0": "--half-life",
    "--store {0}/d.db --stroe x": "--stroe",
    "": "--store",
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "text").write_text("no\ndatabase, no token\n" * 99)
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(2**28 + 1)
    write_arms(tmp_path / "arms.json")
    with PreferenceAgent(tmp_path / "old.db") as agent:
        agent.propose(np.eye(3))
    return tmp_path


def test_invalid_arguments_give_a_one_line_error(folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        names = (folder, taken.getsockname()[1])
        for arguments, reason in BAD_STARTS.items():
            with pytest.raises(SystemExit) as ended:
                main(["--port", "0", *arguments.format(*names).split()])
            message = str(ended.value.code)  # sys.exit prints it, with status 1
            assert message.startswith("error: ")
            assert message.isprintable()
            assert reason.format(*names) in message, arguments


BAD_ARMS = [
    (b"[{", "JSON"),
    (b"{}", "the file: Input should be a valid array"),
    (b"\xff\xfe", "JSON"),  # not UTF-8
    (b"[]", "0 arms"),
    ({"count": 1}, "1 arms"),
    ({"key": None}, "1.key"),
    ({"key": ""}, "1.key"),
    ({"key": "k0"}, "'k0' is also the key of another arm"),
    ({"features": [1.0, float("nan")]}, "1.features.1"),
    ({"features": [1.0, "2"]}, "1.features.1"),
    ({"features": [1.0]}, "1.features: 1 numbers"),
    ({"text": "t" * 10_001}, "1.text"),
    ({"image": "file:///etc/passwd"}, "1.image"),
    ({"txet": "x"}, "1.txet"),
]


def test_invalid_arms_give_a_one_line_error(tmp_path, path):
    file = tmp_path / "arms.json"
    for content, reason in BAD_ARMS:
        if isinstance(content, dict):
            write_arms(file, **content)
        else:
            file.write_bytes(content)
        with pytest.raises(SystemExit) as ended:
            main(["--store", str(path), "--arms", str(file)])
        message = str(ended.value.code)
        assert message.startswith(f"error: {file}: ")
        assert message.isprintable()
        assert len(message) < len(str(file)) + 200
        assert reason in message
        assert not path.exists()


def test_the_token_is_created_once_and_readable_only_by_its_owner(tmp_path, capsys):
    file = tmp_path / "duels.db.token"
    before = os.umask(0)
    try:
        with ThreadPoolExecutor(8) as pool:
            made = set(pool.map(read_token, [file] * 8))
    finally:
        os.umask(before)
    assert made == {read_token(file)} == {file.read_text().strip()}
    assert re.fullmatch(r"[\w-]{43}", made.pop())  # 32 bytes
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [file]
    assert capsys.readouterr().err == ""
    assert read_token(tmp_path / "another") != read_token(file)
    file.chmod(0o644)
    read_token(file)
    assert re.fullmatch(r"warning: .*chmod 600\n", capsys.readouterr().err)
