"""The server's connection to a helper that replies wrongly."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from vaults import SIGNER, key_of

from fldb_flower.errors import FederationError
from fldb_flower.secure.protocol import to_json
from strategies.helper_client import HelperClient

STRANGER = Ed25519PrivateKey.generate()


@pytest.fixture
def replying(tmp_path, monkeypatch):
    """Return a function of raw replies that returns a client, and the requests that arrived."""
    monkeypatch.setattr("strategies.helper_client._RETRY_SECONDS", 0.0)
    (tmp_path / "token").write_text("secret-token")
    servers = []

    def start(*replies: bytes, patience: float = 0.0, signer=STRANGER):
        asked = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append(self.path)
                self.wfile.write(replies[min(len(asked), len(replies)) - 1])
                self.close_connection = True

            def log_message(self, *_arguments):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        address = f"http://127.0.0.1:{server.server_port}/"
        pinned = signer.public_key()
        return HelperClient(address, tmp_path / "token", pinned, patience), asked

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def reply(status: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


WRONG = (
    (reply("200 OK", b"[" * 60_000), "recursion"),
    (reply("200 OK", b"{}"), "'key'"),
    (reply("200 OK", b"x" * 70_000), "more than 65536 bytes"),
    (reply("400 Bad", b"[" * 60_000), "replied 400: Bad"),
    (reply("400 Bad", b'{"detail": "two\\nlines"}'), "replied 400: two\\nlines"),
    (reply("302 Found", b"", "Location: http://[::1/x"), "does not reply: Invalid URL"),
    (reply("302 Found", b"", "Location: http://127.0.0.1:9/"), "replied 302: Found"),
    (b"HTTP/1.1 400 Bad\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "does not reply"),
    (b"no http\r\n\r\n", "does not reply"),
)


def test_a_wrong_reply_is_one_line(replying):
    for answer, words in WRONG:
        client, _ = replying(answer)
        with pytest.raises(FederationError) as error:
            client.key()
        text = str(error.value)
        assert words in text
        assert text.isprintable()
        assert "secret-token" not in text


def test_a_reply_that_is_cut_off_is_asked_for_again(replying):
    client, asked = replying(reply("200 OK", b"{}")[:-1], reply("200 OK", b"{}"), patience=10.0)
    with pytest.raises(FederationError, match="'key'"):
        client.key()
    assert asked == ["/keys", "/keys"]


def test_a_key_that_the_pinned_key_has_not_signed_is_refused(replying):
    key = replace(key_of(), expires=int(time.time()) + 1000).sign(SIGNER)
    content = to_json({"key": key})
    client, _ = replying(reply("200 OK", content))
    with pytest.raises(FederationError, match="not signed by the pinned key"):
        client.key()
    client, _ = replying(reply("200 OK", content), signer=SIGNER)
    assert client.key() == key
