"""The server's side of the connection to the helper."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fldb_flower.errors import DataError, FederationError, SecureError, one_line
from fldb_flower.secure.messages import SumAnswer, SumRequest
from fldb_flower.secure.report import HelperKey

_RETRY_SECONDS = 1.0
_SECONDS = 600.0  # for one reply: the noise of the largest answer takes minutes
_CHUNK, _MOST_OF_KEY = 2**20, 2**16
_BINARY = "application/octet-stream"


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: it would take the token to another host."""

    def http_error_302(self, *_arguments: object, **_options: object) -> None:
        """Leave the reply to the handler of errors."""

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


_OPENER = urllib.request.build_opener(_NoRedirects, urllib.request.ProxyHandler({}))


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

    def key(self) -> HelperKey:
        """Return the HPKE key that is valid now, after a check of its signature."""
        content = self._ask("/keys", None, _MOST_OF_KEY)
        try:
            fields = json.loads(content)
            key = HelperKey.from_fields(fields["key"])
            key.verified(self._signer, time.time())
        except (ValueError, KeyError, TypeError, RecursionError, DataError, SecureError) as reason:
            raise self._error(f": {reason}") from None
        return key

    def sums(self, request: SumRequest) -> SumAnswer:
        """Return the answer to a request."""
        values = len(request.sizes) * request.header.numbers
        most = 8 * values + 8 * len(request.sealed) + _MOST_OF_KEY  # a place has up to 8 digits
        content = self._ask("/sums", request.to_bytes(), most)
        try:
            return SumAnswer.from_bytes(content, request)
        except DataError as reason:
            raise self._error(f": {reason}") from None

    def _error(self, reason: str) -> FederationError:
        return FederationError(one_line(f"the helper at {self._address}{reason}"))

    def _ask(self, path: str, body: bytes | None, most: int) -> bytes:
        request = urllib.request.Request(self._address + path, data=body)
        if body is not None:
            request.add_header("Authorization", f"Bearer {self._read_token()}")
            request.add_header("Content-Type", _BINARY)
        deadline = time.monotonic() + self._patience
        while True:
            try:
                with _OPENER.open(request, timeout=_SECONDS) as response:
                    return _read(response, most)
            except urllib.error.HTTPError as error:
                reason = f" replied {error.code}: {_detail(error)}"
                if error.code < http.client.INTERNAL_SERVER_ERROR:
                    raise self._error(reason) from None
            except (OSError, http.client.HTTPException) as error:
                reason = f" does not reply: {getattr(error, 'reason', error)}"
            if time.monotonic() > deadline:
                raise self._error(reason)
            time.sleep(_RETRY_SECONDS)

    def _read_token(self) -> str:
        try:
            return self._token.read_text("ascii").strip()
        except (OSError, ValueError) as reason:
            why = getattr(reason, "strerror", None) or "it is not text"
            raise FederationError(
                f"cannot read devices-helper-token={self._token}: {why}"
            ) from None


def _read(response: http.client.HTTPResponse, most: int) -> bytes:
    """Return the body of a reply, of limited size and within a limited time."""
    deadline, content, size = time.monotonic() + _SECONDS, bytearray(), response.length
    while part := response.read1(_CHUNK):
        content += part
        if len(content) > most:
            raise FederationError(f"the helper's reply has more than {most} bytes")
        if time.monotonic() > deadline:
            raise TimeoutError(f"its reply takes more than {_SECONDS:.0f} s")
    if size is not None and len(content) < size:
        raise http.client.IncompleteRead(bytes(content), size - len(content))
    return bytes(content)


def _detail(error: urllib.error.HTTPError) -> str:
    """Return the line of an error of the helper."""
    try:
        return one_line(json.loads(error.read(_MOST_OF_KEY))["detail"])
    except (ValueError, TypeError, KeyError, RecursionError, OSError, http.client.HTTPException):
        return str(error.reason)
