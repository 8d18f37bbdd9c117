"""The server's side of the connection to the helper."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fldb_flower.errors import DataError, FederationError, SecureError, one_line
from fldb_flower.secure.keys import HelperKey
from fldb_flower.secure.report import SumAnswer, SumRequest

_RETRY_SECONDS = 1.0
_SECONDS = 300.0  # for one reply
_BINARY = "application/octet-stream"


class HelperClient:
    """Requests to the helper over HTTP.

    Parameters
    ----------
    address : str
        Like ``https://helper.example.org``.
    token : Path
        File of the token.
    signer : Ed25519PublicKey
        The helper's pinned key.
    patience : float
        Seconds for which a helper that does not reply is asked again.
    """

    def __init__(
        self, address: str, token: Path, signer: Ed25519PublicKey, patience: float
    ) -> None:
        self._address, self._token, self._signer = address.rstrip("/"), token, signer
        self._patience = patience

    def key(self) -> HelperKey:
        """Return the HPKE key that is valid now.

        Raises
        ------
        FederationError
            The helper does not reply, or its key is not signed by the pinned one.
        """
        content = self._ask("/keys", None)
        try:
            fields = json.loads(content)
            key = HelperKey.from_fields(fields["key"])
            key.verified(self._signer, time.time())
        except (ValueError, KeyError, TypeError, DataError, SecureError) as reason:
            raise FederationError(one_line(f"the helper at {self._address}: {reason}")) from None
        return key

    def sums(self, request: SumRequest) -> SumAnswer:
        """Return the answer to a request.

        Raises
        ------
        FederationError
            The helper does not reply, or refuses the request.
        """
        content = self._ask("/sums", request.to_bytes())
        try:
            return SumAnswer.from_bytes(content, request)
        except DataError as reason:
            raise FederationError(one_line(f"the helper at {self._address}: {reason}")) from None

    def _ask(self, path: str, body: bytes | None) -> bytes:
        request = urllib.request.Request(self._address + path, data=body)
        if body is not None:
            request.add_header("Authorization", f"Bearer {self._read_token()}")
            request.add_header("Content-Type", _BINARY)
        deadline = time.monotonic() + self._patience
        while True:
            try:
                with urllib.request.urlopen(request, timeout=_SECONDS) as response:
                    content: bytes = response.read()
                return content
            except urllib.error.HTTPError as error:
                reason = f"replied {error.code}: {_detail(error)}"
                if error.code < http.client.INTERNAL_SERVER_ERROR:
                    raise FederationError(f"the helper at {self._address} {reason}") from None
            except (OSError, http.client.HTTPException) as error:
                reason = f"does not reply: {getattr(error, 'reason', error)}"
            if time.monotonic() > deadline:
                raise FederationError(one_line(f"the helper at {self._address} {reason}"))
            time.sleep(_RETRY_SECONDS)

    def _read_token(self) -> str:
        try:
            return self._token.read_text("ascii").strip()
        except (OSError, ValueError) as reason:
            why = getattr(reason, "strerror", None) or "it is not text"
            raise FederationError(
                f"cannot read devices-helper-token={self._token}: {why}"
            ) from None


def _detail(error: urllib.error.HTTPError) -> str:
    """Return the line of an error of the helper."""
    detail: Callable[[], bytes] = error.read
    try:
        return one_line(json.loads(detail())["detail"])
    except (ValueError, TypeError, KeyError, OSError):
        return str(error.reason)
