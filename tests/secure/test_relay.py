"""Secure sums through the service: the endpoint /node, its token, and the SuperNode's relay."""

from __future__ import annotations

import contextlib
import socket
import stat
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import uvicorn
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from starlette.testclient import TestClient
from test_service import Process
from vaults import Phone, configure

from clients import relay
from clients.service import http
from clients.service.__main__ import main as service_main
from clients.service.app import BODIES, Node, create_app, guarded
from clients.service.catalogue import read_arms
from clients.service.http import read_token
from clients.vault import read_config
from fldb_flower.deployment.processes import free_port
from fldb_flower.errors import DataError, FederationError, SettingsError
from fldb_flower.secure.protocol import HELLO, REFUSED, Reply, Request
from simulations.engines.inprocess import InProcessGrid

ROOT = Path(__file__).parents[2]
TOKEN, NODE_TOKEN = "a-token-of-the-page", "a-token-of-the-node"
BINARY = {"Content-Type": "application/octet-stream"}
ASKED = Request(HELLO).to_bytes()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}", **BINARY}


@pytest.fixture(scope="module")
def phone(tmp_path_factory):
    return Phone(tmp_path_factory.mktemp("device"), time.time)


@pytest.fixture(scope="module")
def client(phone):
    app = create_app(phone.path, TOKEN, node=Node(phone.config, NODE_TOKEN))
    with TestClient(app, base_url="http://127.0.0.1:8377") as client:
        yield client


# --- the endpoint ----------------------------------------------------------------------------


REFUSED_REQUESTS = (
    ("POST", "/node", BINARY, 401), ("POST", "/node", bearer(TOKEN), 401),
    ("GET", "/node", bearer(NODE_TOKEN), 405),
    ("POST", "/node", {**bearer(NODE_TOKEN), "Host": "example.org"}, 400),
    ("POST", "/node", {**bearer(NODE_TOKEN), "Content-Type": "text/plain"}, 415),
    *((method, path, bearer(NODE_TOKEN), 401) for method, path in (
        ("GET", "/node/"), ("GET", "/Node"), ("POST", "/duels"),
        *((method, route.path) for route in guarded.routes for method in route.methods),
    )),
)  # fmt: skip


def test_each_token_opens_its_own_endpoints_only(client, phone):
    reply = client.post("/node", content=ASKED, headers=bearer(NODE_TOKEN))
    assert (reply.status_code, reply.headers["content-type"]) == (200, "application/octet-stream")
    assert Reply.from_bytes(reply.content) == Reply(HELLO, phone.store.device_id)
    status = client.get("/status", headers=bearer(TOKEN)).json()
    assert status["secure"] is True
    assert status["privacy"] == {
        "epsilon": 0.0, "delta": 1e-6, "max_epsilon": 3.0, "days": None, "refused": False,
    }  # fmt: skip
    for method, path, headers, code in REFUSED_REQUESTS:
        reply = client.request(method, path, headers=headers, follow_redirects=False)
        assert reply.status_code == code, (method, path)


def test_requests_may_be_larger_than_those_of_the_page(client, monkeypatch):
    monkeypatch.setattr(http, "MAX_BODY", 100)
    monkeypatch.setitem(BODIES, "/node", 1000)
    large, larger = b"x" * 1000, b"x" * 1001
    reply = client.post("/node", content=large, headers=bearer(NODE_TOKEN))
    assert Reply.from_bytes(reply.content).kind == REFUSED
    assert client.post("/node", content=larger, headers=bearer(NODE_TOKEN)).status_code == 413
    reply = client.post("/node", content=iter([larger]), headers=bearer(NODE_TOKEN))  # no length
    assert reply.status_code == 413
    assert client.post("/rank", content=b"x" * 101, headers=bearer(TOKEN)).status_code == 413


def test_without_a_vault_nothing_is_at_node(tmp_path):
    app = create_app(tmp_path / "duels.db", TOKEN)
    with TestClient(app, base_url="http://127.0.0.1:8377") as client:
        for headers in (BINARY, bearer(TOKEN), bearer(NODE_TOKEN)):
            reply = client.post("/node", content=ASKED, headers=headers)
            assert reply.status_code == 404
            assert "--vault FILE" in reply.json()["detail"]


def test_a_vault_that_cannot_begin_is_refused(tmp_path):
    arms = tmp_path / "arms.json"
    arms.write_text('[{"key": "a", "features": [1, 2, 3]}, {"key": "b", "features": [3, 2, 1]}]')
    node = Node(read_config(configure(tmp_path)), NODE_TOKEN)
    with pytest.raises(DataError, match=r"vault\.toml: dimension=2, but the arms have 3"):
        create_app(tmp_path / "duels.db", TOKEN, node=node, catalogue=read_arms(arms))
    (tmp_path / "vault.ledger").write_bytes(b"[]")
    with pytest.raises(DataError, match=r"vault\.ledger"):
        create_app(tmp_path / "duels.db", TOKEN, node=node)


def test_the_nodes_token_may_be_readable_by_a_group(tmp_path, capsys):
    file = tmp_path / "node-token"
    token = read_token(file, 0o640)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.chmod(0o640)
    assert read_token(file, 0o640) == token
    assert not capsys.readouterr().err
    file.chmod(0o644)
    read_token(file, 0o640)
    assert "other users can read" in capsys.readouterr().err
    file.chmod(0o640)
    read_token(file)
    assert "chmod 600" in capsys.readouterr().err


# --- the relay -------------------------------------------------------------------------------


@contextlib.contextmanager
def running(app):
    """Serve an application on a free port; yield its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(30)


@pytest.fixture(scope="module")
def service(phone):
    """The URL of a service with the vault, and the token's file."""
    file = phone.folder / "node-token"
    file.write_text(f"{NODE_TOKEN}\n")
    with running(create_app(phone.path, TOKEN, node=Node(phone.config, NODE_TOKEN))) as url:
        yield SimpleNamespace(url=url, token=file)


@pytest.fixture
def node_config(service):
    return {"service-url": service.url, "node-token-file": str(service.token)}


WRONG = (
    ({"service-url": None}, "node 7 has no service-url.*--node-config"),
    ({"store-path": "/d.db"}, "node 7 has a store-path.*secure=true.*out of the SuperNode's"),
    ({"service-url": "http://example.org:80"}, "service-url='http://example.org:80'.*on this"),
    ({"service-url": "http://10.0.0.1:80"}, "service-url='http://10.0.0.1:80'"),
    ({"service-url": "https://127.0.0.1:80"}, "must be like http://127.0.0.1:8377"),
    ({"service-url": "http://127.0.0.1"}, "must be like http://127.0.0.1:8377"),
    ({"service-url": "http://127.0.0.1:80/x"}, "must be like http://127.0.0.1:8377"),
    ({"service-url": "http://127.0.0.1:99999"}, "must be like http://127.0.0.1:8377"),
    ({"service-url": 8377}, "service-url=8377"),
    ({"node-token-file": None}, "node-token-file=None of node 7.*absolute path"),
    ({"node-token-file": "token"}, "node-token-file='token'.*absolute path"),
    ({"node-token-file": "/none"}, "cannot read node-token-file=/none.*No such file"),
)


def test_a_wrong_node_config_is_one_line(node_config):
    for changes, words in WRONG:
        merged = {**node_config, **changes}
        config = {name: value for name, value in merged.items() if value is not None}
        with pytest.raises(SettingsError, match=words) as error:
            relay.ask_vault(ASKED, config, 7)
        assert "\n" not in str(error.value)


def test_a_service_that_is_down_or_refuses_is_one_line(node_config, tmp_path):
    free = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(FederationError, match=rf"{free} .*does not reply.*fldb serve --vault"):
        relay.ask_vault(ASKED, {**node_config, "service-url": free}, 7)
    wrong = tmp_path / "wrong"
    wrong.write_text(TOKEN)  # that of the page
    with pytest.raises(FederationError, match=rf"refuses the token in {wrong}"):
        relay.ask_vault(ASKED, {**node_config, "node-token-file": str(wrong)}, 7)
    wrong.write_text("two\nlines")
    with pytest.raises(SettingsError, match="contains no token"):
        relay.ask_vault(ASKED, {**node_config, "node-token-file": str(wrong)}, 7)
    plain = create_app(tmp_path / "plain.db", TOKEN)
    with running(plain) as url, pytest.raises(FederationError, match=r"replied 404: .* --vault"):
        relay.ask_vault(ASKED, {**node_config, "service-url": url}, 7)


# --- the ClientApp ----------------------------------------------------------------------------


def ask(node_config, content: RecordDict, **run_config: Any):
    """Send a message to one device, by Flower's ClientApp; return its reply, or its error."""
    grid = InProcessGrid(1, {"mode": "devices", "dimension": 2, **run_config})
    (node,) = grid.get_node_ids()
    grid.contexts[node].node_config.clear()
    grid.contexts[node].node_config.update(node_config)
    message = grid.create_message(content, "train", node, "1")
    (reply,) = grid.send_and_receive([message], timeout=30)
    return reply


def secure(content: bytes) -> RecordDict:
    return RecordDict({"config": ConfigRecord({relay.KEY: content})})


def test_the_client_app_is_a_relay(node_config, phone):
    reply = ask(node_config, secure(ASKED), secure=True)
    assert [(key, list(record)) for key, record in reply.content.items()] == [
        ("config", [relay.KEY])
    ]
    expected = Reply(HELLO, phone.store.device_id)
    assert Reply.from_bytes(reply.content["config"][relay.KEY]) == expected


def test_no_run_gets_an_upload_from_a_device_in_secure_sums(node_config, phone):
    """Whatever the run says: secure or not, with a plain broadcast or a secure request."""
    phone.answer(([1.0, 2.0], 1.0), ([3.0, 1.0], 1.0))
    plain = RecordDict({"arrays": ArrayRecord([np.zeros(2)]), "config": ConfigRecord({"first": 1})})
    store = str(phone.path)
    for config, content, run, words in (
        (node_config, plain, {"secure": True}, "no other is accepted"),
        (node_config, plain, {"secure": False}, "set secure=true"),
        (node_config, secure(ASKED), {"secure": False}, "set secure=true"),
        ({**node_config, "store-path": store}, plain, {"secure": True}, "no other is accepted"),
        ({**node_config, "store-path": store}, secure(ASKED), {"secure": True}, "store-path"),
        ({**node_config, "store-path": store}, plain, {"secure": False}, "secure sums only"),
    ):
        with pytest.raises((DataError, SettingsError), match=words):
            ask(config, content, **run)
    assert phone.store.sent == 0


# --- the command ------------------------------------------------------------------------------


def test_the_command_reports_a_wrong_vault(tmp_path):
    file = configure(tmp_path / "device", max_epsilon=0)
    for option, path, words in (
        ("--vault", file, "vault.toml: max_epsilon=0: must be"),
        ("--vault", tmp_path / "none.toml", "cannot read .*none.toml: No such file"),
        ("--node-token-file", tmp_path / "token", "--node-token-file needs --vault"),
    ):
        with pytest.raises(SystemExit, match=f"^error: .*{words}") as ended:
            service_main(["--store", str(tmp_path / "duels.db"), "--port", "0", option, str(path)])
        assert str(ended.value).isprintable()


@pytest.mark.slow
def test_the_command_serves_the_vault_and_prints_no_token_of_the_node(tmp_path):
    process = Process(tmp_path / "duels.db", "--vault", str(configure(tmp_path / "device")))
    try:
        token = tmp_path / "duels.db.node-token"
        assert stat.S_IMODE(token.stat().st_mode) == 0o600
        assert token.read_text().strip() not in process.printed
        url = f"http://127.0.0.1:{process.port}"
        config = {"service-url": url, "node-token-file": str(token)}
        assert Reply.from_bytes(relay.ask_vault(ASKED, config, 7)).kind == HELLO
    finally:
        assert process.stop() == (143, "stopped\n")
