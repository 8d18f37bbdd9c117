"""The Flower client of a device in secure sums: it passes bytes to the device's vault and back.

The vault is in the process of the preference service (:mod:`clients.vault`). This program, which
the server ships, neither opens the store nor reads the bytes. Flower starts a new process for each
message, so this module imports little.
"""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict

from fldb_flower.errors import DataError, FederationError, SettingsError, one_line, shown
from fldb_flower.secure import KEY

_URL = re.compile(r"http://(127\.0\.0\.1|localhost|\[::1\]):(\d{1,5})/?", re.ASCII)
_SECONDS = 300.0  # time limit of a reply; the vault waits 30 s for a locked store
_BINARY = "application/octet-stream"


def train(message: Message, context: Context) -> Message:
    """Reply to one request of a secure sum: the body of the ClientApp's ``@app.train()``."""
    config: Any = message.content.get("config")
    request = config.get(KEY) if isinstance(config, Mapping) else None
    if not isinstance(request, bytes):
        raise DataError("the message is not a request of a secure sum, and no other is accepted")
    reply = ask_vault(request, context.node_config, context.node_id)
    return Message(RecordDict({"config": ConfigRecord({KEY: reply})}), reply_to=message)


def ask_vault(request: bytes, node_config: Mapping[str, Any], node: int) -> bytes:
    """Return the reply of the vault that a node's ``service-url`` and ``node-token-file`` name."""
    host, port = _address(node_config, node)
    token = _token(node_config, node)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": _BINARY}
    connection = http.client.HTTPConnection(host, port, timeout=_SECONDS)
    where = f"the service at {node_config['service-url']} (service-url from --node-config)"
    try:
        connection.request("POST", "/node", request, headers)
        response = connection.getresponse()
        content = response.read()
    except (OSError, http.client.HTTPException) as reason:
        raise FederationError(
            f"{where} does not reply: {reason}; start it with `fldb serve --vault FILE`"
        ) from None
    finally:
        connection.close()
    if response.status == 401:
        raise FederationError(
            f"{where} refuses the token in {node_config['node-token-file']} (node-token-file from"
            " --node-config): use the file of its option --node-token-file"
        )
    if response.status != 200 or response.getheader("Content-Type") != _BINARY:
        try:
            detail = one_line(json.loads(content)["detail"])
        except (ValueError, TypeError, KeyError):
            detail = "it is not the service of fldb-flower"
        raise FederationError(f"{where} replied {response.status}: {detail}")
    return content


def _address(node_config: Mapping[str, Any], node: int) -> tuple[str, int]:
    url = node_config.get("service-url")
    if "store-path" in node_config:
        raise SettingsError(
            f"node {node} has a store-path, and this run has secure=true: keep the store out of the"
            " SuperNode's reach, and start it with service-url and node-token-file instead"
        )
    if url is None:
        raise SettingsError(
            f"node {node} has no service-url: start its flower-supernode with --node-config"
            ' \'service-url="http://127.0.0.1:8377" node-token-file="/absolute/path"\''
        )
    found = _URL.fullmatch(str(url))
    if found is None or int(found[2]) >= 2**16:
        raise SettingsError(
            f"service-url={shown(url)} (from --node-config): must be like http://127.0.0.1:8377, on"
            " this machine"
        )
    return found[1].strip("[]"), int(found[2])


def _token(node_config: Mapping[str, Any], node: int) -> str:
    path = node_config.get("node-token-file")
    if not isinstance(path, str) or not Path(path).is_absolute():
        raise SettingsError(
            f"node-token-file={shown(path)} of node {node} (from --node-config): must be the"
            " absolute path of the service's node token"
        )
    try:
        token = Path(path).read_text("ascii").strip()
    except (OSError, ValueError) as reason:
        detail = getattr(reason, "strerror", None) or "it is not text"
        raise SettingsError(
            f"cannot read node-token-file={path} (from --node-config): {detail}"
        ) from None
    if not token.isprintable():
        raise SettingsError(f"node-token-file={path} (from --node-config) contains no token")
    return token
