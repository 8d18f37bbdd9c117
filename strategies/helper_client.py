"""The server's side of the connection to the helper."""

from __future__ import annotations

import json
import ssl
import time
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fldb_flower.errors import DataError, FederationError, SecureError, one_line
from fldb_flower.secure.protocol import (
    HelperKey,
    SumAnswer,
    SumRequest,
)

_RETRY_SECONDS = 1.0
_SECONDS = 600.0  # time limit of a reply: the noise of the largest answer takes minutes
_MOST_OF_KEY = 2**16
_UNUSABLE = (ValueError, KeyError, TypeError, RecursionError, DataError, SecureError)


class HelperClient:
    """Requests to the helper over HTTP; errors are FederationErrors of one line.

    ``address`` is like ``https://helper.example.org``, ``token`` the file of the token, ``signer``
    the helper's pinned key. A helper that does not reply is asked again for ``patience`` seconds.
    """

    def __init__(
        self, address: str, token: Path, signer: Ed25519PublicKey, patience: float
    ) -> None:
        self._address, self._token, self._signer = address.rstrip("/"), token, signer
        self._patience = patience
        # The token is sent to this address only: redirects and proxies are not followed.
        self._client = httpx.Client(
            headers={"Accept-Encoding": "identity"},
            trust_env=False,
            timeout=_SECONDS,
            verify=ssl.create_default_context(),
        )

    def key(self) -> HelperKey:
        """Return the HPKE key that is valid now, after a check of its signature."""
        content = self._ask("GET", "/keys", None, _MOST_OF_KEY)
        try:
            key = HelperKey.from_fields(json.loads(content)["key"])
            key.verified(self._signer, time.time())
        except _UNUSABLE as reason:
            raise self._error(f": {reason}") from None
        return key

    def sums(self, request: SumRequest) -> SumAnswer:
        """Return the answer to a request."""
        values = len(request.sizes) * request.header.numbers
        most = 8 * values + 8 * len(request.sealed) + _MOST_OF_KEY  # a place has up to 8 digits
        content = self._ask("POST", "/sums", request.to_bytes(), most)
        try:
            return SumAnswer.from_bytes(content, request)
        except DataError as reason:
            raise self._error(f": {reason}") from None

    def _error(self, reason: str) -> FederationError:
        return FederationError(one_line(f"the helper at {self._address}{reason}"))

    def _ask(self, method: str, path: str, body: bytes | None, most: int) -> bytes:
        headers = {}
        if body is not None:
            token = self._read_token()
            kind = "application/octet-stream"
            headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
        deadline = time.monotonic() + self._patience
        while True:
            try:
                url = self._address + path
                with self._client.stream(method, url, content=body, headers=headers) as reply:
                    content = self._read(reply, most)
                if reply.is_success:
                    return content
                reason = f" replied {reply.status_code}: {_detail(content) or reply.reason_phrase}"
                if not reply.is_server_error:
                    raise self._error(reason)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                reason = f" does not reply: {error}"
            if time.monotonic() > deadline:
                raise self._error(reason)
            time.sleep(_RETRY_SECONDS)

    def _read(self, reply: httpx.Response, most: int) -> bytes:
        """Return the body of a reply, of limited size and within a limited time."""
        deadline, content = time.monotonic() + _SECONDS, bytearray()
        for part in reply.iter_raw():
            content += part
            if len(content) > most:
                raise self._error(f": its reply has more than {most} bytes")
            if time.monotonic() > deadline:
                raise httpx.ReadTimeout(f"its reply takes more than {_SECONDS:.0f} s")
        return bytes(content)

    def _read_token(self) -> str:
        try:
            return self._token.read_text("ascii").strip()
        except (OSError, ValueError) as reason:
            why = getattr(reason, "strerror", None) or "it is not text"
            raise FederationError(
                f"cannot read devices-helper-token={self._token}: {why}"
            ) from None


def _detail(content: bytes) -> str:
    """Return the line of an error of the helper; empty if it has none."""
    try:
        return str(json.loads(content)["detail"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return ""
