"""Units and names of features on devices: choices and predictions do not depend on them."""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st

from clients.preference_agent import PreferenceAgent
from clients.store import DuelStore
from fldb_flower.bandit.features import Features
from fldb_flower.errors import DataError

D = 3


def live(path, units, *, purpose="suggest", duels=12, seed=0):
    """Let a person answer duels; return choices, and what is predicted of new arms, per unit."""
    rng, theta, seen = np.random.default_rng(seed), np.array([1.0, -1.0, 0.5]), []
    with PreferenceAgent(path, purpose=purpose) as agent:
        for _ in range(duels):
            arms = rng.normal(size=(5, D))
            duel = agent.propose(arms * units)
            reward = arms @ theta
            wins = rng.random() < 1 / (1 + np.exp(reward[duel.second] - reward[duel.first]))
            agent.record(duel.id, "first" if wins else "second")
            seen.append((duel.first, duel.second, 2 * reward.max() - reward.sum()))
        arms = rng.normal(size=(6, D))
        known = agent.explain()
        numbers = [agent.predict(arm * units, arms[0] * units) for arm in arms]
        numbers += [*(np.array(known.weights) * units), *(np.array(known.deviations) * units)]
        numbers += [*(np.array(known.weights) * known.scales)]
        numbers += agent.against_average(arms * units).ravel().tolist()
        return seen, agent.rank(arms * units), np.array(numbers)


@pytest.mark.slow
@given(
    powers=st.lists(st.integers(-19, 19), min_size=D, max_size=D),
    factors=st.lists(st.floats(1e-6, 1e6), min_size=D, max_size=D),
    purpose=st.sampled_from(["suggest", "rank"]),
    seed=st.integers(0, 99),
)
@examples(8)
def test_a_device_alone_chooses_and_predicts_the_same_in_any_unit(powers, factors, purpose, seed):
    with tempfile.TemporaryDirectory() as folder:
        plain, binary, other = (
            live(Path(folder) / f"{number}.db", np.array(units), purpose=purpose, seed=seed)
            for number, units in enumerate(([1.0] * D, np.exp2(powers), factors))
        )
    assert plain[:2] == binary[:2] == other[:2]
    np.testing.assert_array_equal(plain[2], binary[2])
    np.testing.assert_allclose(plain[2], other[2], rtol=1e-9, atol=1e-12)


def test_centimetres_change_nothing(tmp_path):
    """One of three features in cm instead of m: the same duels, so the same regret."""
    metres = live(tmp_path / "m.db", np.ones(D), duels=30)
    centimetres = live(tmp_path / "cm.db", np.array([1.0, 100.0, 1.0]), duels=30)
    assert metres[:2] == centimetres[:2]
    np.testing.assert_allclose(metres[2], centimetres[2], rtol=1e-9, atol=1e-12)


def stored(path, name):
    with sqlite3.connect(path) as connection:
        row = connection.execute("SELECT content FROM secure WHERE name = ?", (name,)).fetchone()
    return row and row[0]


def test_scales_are_those_of_the_offers(tmp_path):
    """Root of the mean variance within offers, after 1, 2, 4, ... offers."""
    rng, path = np.random.default_rng(1), tmp_path / "duels.db"
    offers = [rng.normal(size=(k, 2)) * [1.0, 50.0] + [0.1, 9.0] for k in (2, 5, 3, 4, 9)]
    with DuelStore(path) as store:
        for number, arms in enumerate(offers, 1):
            store.offer(arms)
            count = 2 ** int(np.log2(number))
            squares = [arms.var(axis=0, ddof=1) for arms in offers[:count]]
            np.testing.assert_allclose(store.features(2).scales, np.mean(squares, axis=0) ** 0.5)
        store.forget()
        np.testing.assert_array_equal(store.features(2).scales, [1.0, 1.0])
    assert stored(path, "offers") is stored(path, "features") is None


def test_a_feature_is_scaled_when_it_first_varies(tmp_path):
    arms = np.array([[1.0, 0.1], [2.0, 0.1], [4.0, 0.1]])
    with DuelStore(tmp_path / "duels.db") as store:
        for _ in range(2):
            store.offer(arms)
        assert store.features(2).scales[1] == 1.0
        store.offer(arms * [1.0, 0.0] + [[0.0, 0.0], [0.0, 6.0], [0.0, 0.0]])  # the third
        assert store.features(2).scales[1] == pytest.approx(2.0)  # 12 / 3


@pytest.mark.parametrize(
    ("name", "content"),
    [("offers", bytes(8)), ("features", b"\xff"), ("features", b'{"names":null,"scales":[1.0]}')],
)
def test_damaged_scales_are_one_line(tmp_path, name, content):
    with PreferenceAgent(tmp_path / "duels.db") as agent:
        agent.propose(np.eye(2))
    with sqlite3.connect(tmp_path / "duels.db") as connection:
        connection.execute("UPDATE secure SET content = ? WHERE name = ?", (content, name))
    connection.close()
    with pytest.raises(DataError, match="is damaged"):
        DuelStore(tmp_path / "duels.db")


# --- data frames -----------------------------------------------------------------------------

FLATS = pd.DataFrame(
    {"price": [900.0, 700.0, 1200.0], "size": [50, 40, 80]}, index=["kreuzberg", "mitte", "wedding"]
)


@pytest.fixture
def agent(tmp_path):
    with PreferenceAgent(tmp_path / "duels.db") as agent:
        for _ in range(4):
            duel = agent.propose(FLATS)
            larger = FLATS["size"][duel.first_key] > FLATS["size"][duel.second_key]
            agent.record(duel.id, "first" if larger else "second")
        yield agent


def test_a_data_frame_has_names_and_labels(agent):
    assert agent.explain().names == ["price", "size"]
    assert agent.rank(FLATS) == [FLATS.index[arm] for arm in agent.rank(FLATS.to_numpy())]
    assert agent.rank(FLATS)[0] == agent.favourites(FLATS, 1)[0] == "wedding"
    assert agent.rank(FLATS.reset_index(drop=True))[0] == 2
    large, small = FLATS.loc["wedding"], FLATS.loc["mitte"]
    assert agent.predict(large, small) == agent.predict(large.to_numpy(), small.to_numpy()) > 0.5


def test_columns_are_matched_by_name(agent):
    other = FLATS[["size", "price"]]
    assert agent.rank(other) == agent.rank(FLATS)
    assert agent.predict(other.loc["wedding"], FLATS.loc["mitte"]) == agent.predict(
        FLATS.loc["wedding"], other.loc["mitte"]
    )
    duel = agent.propose(other)
    difference = FLATS.loc[duel.first_key] - FLATS.loc[duel.second_key]
    agent.record(duel.id, "tie")
    np.testing.assert_array_equal(agent.store.answers().differences[-1], difference)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (FLATS.rename(columns={"size": "rooms"}), "size missing; rooms unknown or duplicated"),
        (FLATS.assign(rooms=1), "columns rooms unknown or duplicated; must be price, size"),
        (FLATS[["size", "size", "price"]], "columns size unknown or duplicated"),
        (FLATS.replace(700.0, np.nan), "column price of row mitte is nan: must be within"),
        (FLATS.assign(size=["s", "m", "l"]), "column size of row kreuzberg is 's': must be within"),
        (FLATS.assign(size=[50, None, 1]), "column size of row mitte is nan"),
        (FLATS.assign(price="900"), "column price of row kreuzberg is '900'"),
    ],
)
def test_what_a_table_lacks_is_named(agent, table, words):
    for call in (agent.propose, agent.rank, agent.favourites):
        with pytest.raises(DataError, match=words):
            call(table)
    assert agent.status()["open"] == 0


@pytest.mark.parametrize(
    "text", ["", "[]", '{"scales": 1}', '{"scales": [[1]], "names": null}', "[" * 10**5,
             '{"scales": [1e999], "names": null}', '{"scales": [1], "names": 5}',
             '{"scales": ["x"], "names": null}', f'{{"scales": [1{"0" * 400}], "names": null}}'],
)  # fmt: skip
def test_a_text_that_has_no_features_is_refused(text):
    with pytest.raises(ValueError, match=r"^features "):
        Features.from_json(text)
