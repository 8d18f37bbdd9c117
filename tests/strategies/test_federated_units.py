"""Units and names of features in a federation of devices."""

from __future__ import annotations

import json

import numpy as np
import pytest
from secure_federation import CLIP, SecureFederation
from test_devices import PRIOR, D, Federation, a_device, message_of

from clients.store import DuelStore
from fldb_flower.bandit.features import Features
from fldb_flower.errors import CheckpointError, DataError, SettingsError
from strategies import device_rounds
from strategies.devices import Tally

NAMES = ["height", "width", "price"]
UNITS = np.array([1.0, 100.0, 1e-3])


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(device_rounds, "RETRY_SECONDS", 0.0)


def features_file(folder, scales, names=NAMES):
    """Write the scales of features; return the setting that names the file."""
    file = folder / "features.csv"
    lines = [f"{name},{scale!r}\n" for name, scale in zip(names, scales, strict=True)]
    file.write_text("feature,scale\n" + "".join(lines))
    return {"devices-features": str(file)}


class Scaled(Federation):
    """Devices whose features are in some units; people answer as by metres."""

    def __init__(self, folder, units, **changes):
        folder.mkdir()
        self.units = np.array(units)
        scales = (self.units * [1.0, 0.5, 2.0]).tolist()
        super().__init__(folder, **features_file(folder, scales), **changes)
        for agent in self.agents:
            propose = agent.propose
            agent.propose = lambda arms, propose=propose: propose(arms * self.units)


def run(folder, units, algorithm):
    """Return the last estimate per unit, and what the devices predict, after three rounds."""
    federation = Scaled(folder, units, algorithm=algorithm)
    for _ in range(3):
        federation.answer_each(6, 6, 6)
        server = federation.serve()
    arms = np.random.default_rng(3).normal(size=(4, D)) * units
    model = json.loads((folder / "server" / "model.json").read_text())
    known = federation.agents[0].explain()
    predicted = [agent.predict(arms[0], arms[1]) for agent in federation.agents]
    ranks = [agent.rank(arms) for agent in federation.agents]
    theta = server.strategy.algorithm.theta_sync / [1.0, 0.5, 2.0] / units
    np.testing.assert_allclose(model["theta_sync"], theta, rtol=1e-12)
    assert known.names == NAMES
    status = np.array(federation.agents[0].status()["theta"])
    np.testing.assert_allclose(status, theta, rtol=1e-9, atol=1e-12)
    return np.array([*theta * units, *known.weights * np.array(units), *predicted]), ranks


@pytest.mark.parametrize("algorithm", ["fldb_ons", "fldb_personal"])
def test_a_federation_learns_the_same_in_any_unit(tmp_path, algorithm):
    metres, order = run(tmp_path / "m", [1.0, 1.0, 1.0], algorithm)
    other, same_order = run(tmp_path / "cm", UNITS, algorithm)
    np.testing.assert_allclose(other, metres, rtol=1e-9, atol=1e-12)
    binary, _ = run(tmp_path / "binary", [1.0, 128.0, 2.0**-10], algorithm)
    # Sums are in the order of the devices' random names.
    np.testing.assert_allclose(binary, metres, rtol=1e-13, atol=1e-15)
    assert order == same_order


def central(federation, scales):
    """Compute FLDB-ONS from the stores, of features divided by their scales."""
    answers = {
        name: np.column_stack([table[:, :D] / scales, table[:, D]])
        for name, table in Federation.answers(federation).items()
    }
    federation.answers = lambda _ends=None: answers
    return Federation.central(federation)


def test_the_sums_are_of_scaled_features(tmp_path):
    federation = Scaled(tmp_path / "server", UNITS)
    federation.answer_each(9, 9, 9)
    server = federation.serve()
    theta, information, _ = central(federation, UNITS * [1.0, 0.5, 2.0])
    np.testing.assert_allclose(server.strategy.algorithm.theta_sync, theta, rtol=1e-9)
    np.testing.assert_allclose(server.strategy.algorithm.information, information, rtol=1e-9)


@pytest.mark.parametrize("algorithm", ["fldb_ons", "fldb_personal"])
def test_another_federation_may_declare_scales(tmp_path, algorithm):
    """Devices that took part without scales join one with them: all their answers are rescaled."""
    federation = Scaled(tmp_path / "all", [1.0] * D, algorithm=algorithm)
    federation.config["devices-features"] = ""
    federation.answer_each(9, 9, 9)
    federation.serve()
    changes = features_file(tmp_path, [1.0, 0.5, 2.0])
    with pytest.raises(CheckpointError, match="devices-features"):
        federation.serve(**changes)
    (federation.folder / "server").rename(tmp_path / "old")
    one = federation.serve(**changes)
    with DuelStore(federation.stores[0]) as store:
        np.testing.assert_array_equal(store.features(D).scales, [1.0, 0.5, 2.0])
    fresh = Scaled(tmp_path / "fresh", [1.0] * D, algorithm=algorithm)
    for agent, path in zip(fresh.agents, federation.stores, strict=True):
        with DuelStore(path) as store:
            duels = store.answers()
        for difference, preference in zip(duels.differences, duels.preferences, strict=True):
            duel = agent.store.propose(difference, np.nan, expire_after=60.0)
            agent.store.record([(duel.id, preference)])
    two = fresh.serve()
    for name in ("theta_sync", "information"):
        np.testing.assert_allclose(
            getattr(one.strategy.algorithm, name), getattr(two.strategy.algorithm, name), rtol=1e-9
        )


def test_other_names_are_refused_before_anything_is_sent(tmp_path):
    agent, device = a_device(tmp_path / "duels.db", "fldb_personal", np.eye(D))
    agent.name_features(["width", "height", "price"])
    features = Features(np.ones(D), tuple(NAMES))
    vector, config = message_of(agent.store, PRIOR, features=features.to_json())
    with pytest.raises(DataError) as error:
        device.fit([vector], config)
    assert str(error.value) == (
        "this device has the features width, height, price; the federation has height, width,"
        " price: names and order must be the same"
    )
    assert (agent.status()["sent"], agent.store.synchronized()) == (0, None)
    agent.name_features(None)
    device.fit([vector], config)
    assert agent.explain().names == NAMES  # adopted
    with pytest.raises(DataError, match="the features width, height, price; the federation has"):
        agent.name_features(["width", "height", "price"])
    vector, config = message_of(agent.store, PRIOR, features=Features(np.ones(2)).to_json())
    with pytest.raises(DataError, match="scales of 2 features: must be of 3"):
        device.fit([vector], config)


def test_without_scales_the_broadcast_is_as_before(tmp_path):
    federation = Federation(tmp_path)
    federation.answer_each(9, 9, 9)
    server = federation.server()
    server.try_round()
    (content, *_) = server.devices.contents(server.devices.asked)
    assert {*content["config"]} == {"header", "counted", "device", "upto", "duels"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("feature,scale\nprice,200\nsize,0\n", "the scale of '?size'? is '0'; it must have"),
        ("feature,scale\nprice,200\n", "has 1 features: must have dimension=3 of them"),
        ("arm,price\na,1\n", "has 1 arms; a duel needs two; or the header must be feature,scale"),
        ("price,size\n1,2\n3,4\n", "the first column is 'price'; .*; or the header must be feat"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path, text, words):
    (tmp_path / "features.csv").write_text(text)
    federation = Federation(tmp_path, **{"devices-features": str(tmp_path / "features.csv")})
    with pytest.raises((DataError, SettingsError), match=words) as error:
        federation.server()
    assert "\n" not in str(error.value)


def test_the_file_of_the_server_may_have_arms(tmp_path):
    for name, words in (("arms.csv", "must be the absolute path"), ("/no/file", "cannot read")):
        with pytest.raises((DataError, SettingsError), match=words):
            Federation(tmp_path, **{"devices-features": name}).server()
    file = tmp_path / "arms.csv"
    file.write_text("arm,price,colour\na,100,red\nb,300,blue\nc,200,red\n")
    found = Federation(tmp_path, **{"devices-features": str(file)}).server().devices.features
    assert found.names == ("price", "colour=red", "colour=blue")
    np.testing.assert_allclose(found.scales, [np.std([100, 300, 200]), *[2**0.5 / 3] * 2])


# --- secure sums -----------------------------------------------------------------------------


def test_secure_sums_are_of_scaled_features(tmp_path):
    """W in the units of the file; the header that devices check has the scales."""
    scales = np.array([0.5, 100.0])
    changes = features_file(tmp_path, scales.tolist(), NAMES[:2])
    with SecureFederation(tmp_path, devices=2, **changes) as federation:
        federation.answer(count=3)
        with federation.serving() as server:
            assert federation.round(server), federation.lines
        (_, upload), phones = federation.sums[-1], federation.phones
        x = np.array([difference for phone in phones for difference, _ in phone.given]) / scales
        assert (np.linalg.norm(x, axis=1) < CLIP).all()
        np.testing.assert_allclose(upload.information, x.T @ x, rtol=1e-4, atol=1e-4)
        assert [phone.store.feature_names for phone in phones] == [NAMES[:2]] * 2


def test_a_vault_refuses_other_names(tmp_path, caplog):
    changes = features_file(tmp_path, [1.0, 1.0], NAMES[:2])
    with SecureFederation(tmp_path, devices=2, **changes) as federation:
        federation.answer(count=3)
        federation.phones[0].store.name_features(["width", "height"])
        with federation.serving() as server:
            assert federation.round(server), federation.lines
        assert len(server.devices.counted) == 1
        assert federation.phones[0].vault.spent().epsilon == 0.0
    assert "has the features width, height; the federation has height, width" in caplog.text
    assert "width" not in "".join(federation.lines)


# --- what the server says --------------------------------------------------------------------


@pytest.mark.parametrize("declared", [False, True])
def test_the_server_warns_of_units_once(tmp_path, declared):
    federation = Scaled(tmp_path / "all", [1.0, 200.0, 1.0])
    if not declared:
        federation.config["devices-features"] = ""
    federation.answer_each(20, 20, 20)
    federation.serve(**{"devices-rounds": 1})
    lines = [line for line in federation.lines if "devices-features" in line]
    assert len(lines) == (not declared)
    assert not lines or "differ by a factor of" in lines[0]


@pytest.mark.parametrize(
    ("agreed", "warns"),
    [
        ([80, 70, 60, 50], True),
        ([80, 79, 78, 77], False),  # within noise
        ([80, 60, 61, 50], False),
        ([70, 60, 50], False),
        ([50, 80, 70, 60, 50], True),
        ([80, 70, 60, 50, 40, 30], True),  # once for these
    ],
)
def test_the_server_says_that_predictions_get_worse(tmp_path, agreed, warns):
    federation = Federation(tmp_path)
    server = federation.server()
    for count in agreed:
        server.advise(Tally(predicted=100, agreed=count))
    lines = [line for line in federation.lines if "half-life" in line]
    assert len(lines) == warns
