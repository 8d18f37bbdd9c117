"""The endpoint for the SuperNode of a device that takes part in secure sums.

The SuperNode's token opens this endpoint only, and no other token opens it.
"""

from __future__ import annotations

from typing import NamedTuple

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import Response

from clients.preference_agent import PreferenceAgent
from clients.service.guard import BINARY, binary_body
from clients.service.routes import OfDevice
from clients.vault import VaultConfig


class Node(NamedTuple):
    """What a device in secure sums needs, and the token of its SuperNode."""

    config: VaultConfig
    token: str


of_node = APIRouter()


@of_node.post("/node", include_in_schema=False)
async def answer(request: Request, device: OfDevice) -> Response:
    """Return the vault's reply to a request of a secure sum, both as bytes."""
    vault = device.vault
    if vault is None:
        raise HTTPException(
            404, "this device takes no part in secure sums: start its service with --vault FILE"
        )
    content = await binary_body(request)

    def reply(_agent: PreferenceAgent) -> bytes:
        return vault.answer(content)

    return Response(await device.writer.run(reply), media_type=BINARY)
