"""The service of one device as an ASGI application."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline

from clients.preference_agent import EXPIRE_AFTER
from clients.service.catalogue import Catalogue
from clients.service.connections import LIMITS
from clients.service.errors import add_handlers
from clients.service.files import DOCS, load_page
from clients.service.guard import Guard
from clients.service.node import Node, of_node
from clients.service.routes import Device, guarded, public
from clients.service.worker import Worker
from clients.vault import Vault
from fldb_flower.errors import DataError, FldbError
from fldb_flower.system.commands import installed_version


def create_app(
    store: str | Path,
    token: str,
    *,
    catalogue: Catalogue | None = None,
    node: Node | None = None,
    choices: int = 10,
    expire_after: float = EXPIRE_AFTER,
    purpose: str = "suggest",
    any_host: bool = False,
    body_seconds: float = LIMITS.seconds,
    connections: int = LIMITS.connections,
) -> FastAPI:
    """Return the service of one device.

    Parameters
    ----------
    store : str or Path
        The device's store; created if it does not exist.
    token : str
        Token that requests must send as ``Authorization: Bearer``.
    catalogue : Catalogue, optional
        Arms to rank, and to propose duels between if no duel is open.
    node : Node, optional
        What the device needs to take part in secure sums.
    choices : int
        Number of arms, drawn at random, that each such duel is selected from.
    expire_after : float
        Seconds within which a duel can be answered.
    purpose : {"suggest", "rank"}
        What duels are for; see :class:`~clients.preference_agent.PreferenceAgent`.
    any_host, body_seconds, connections : bool, float, int
        Accept other host names; time limit for a body; connections, half of them waiting for locks.

    Raises
    ------
    FldbError
        The store cannot be used, the arms do not fit it, or the vault cannot begin.
    """
    page, policy = load_page()
    catalogue = catalogue or Catalogue()
    reader, writer = _open(Path(store), catalogue, expire_after, purpose, connections)
    app = _application(reader, writer)
    vault = _vault(node, catalogue, reader, writer)
    app.state.device = Device(reader, writer, page, catalogue, choices, vault)
    app.add_middleware(
        Guard, token=token, node_token=None if node is None else node.token, any_host=any_host,
        body_seconds=body_seconds, policies={"/": policy, "/docs": DOCS},
    )  # fmt: skip
    return app


def _application(*workers: Worker) -> FastAPI:
    """Return an application that closes the workers when it stops."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        for worker in workers:
            worker.close()

    app: FastAPI = FastAPIOffline(
        title="Duels of this device",
        version=installed_version(),
        summary="Propose a duel, record which arm won.",
        description="Send the token in `Authorization: Bearer`. Every error is"
        ' `{"detail": "one line"}`.',
        redoc_url=None,
        favicon_url="data:,",
        swagger_ui_parameters={"validatorUrl": None},  # an external service
        lifespan=lifespan,
    )
    add_handlers(app)
    for router in (public, guarded, of_node):
        app.include_router(router)
    return app


def _open(
    path: Path, catalogue: Catalogue, expire_after: float, purpose: str, connections: int
) -> tuple[Worker, Worker]:
    """Open the store for reading and for writing; check that it can be written."""
    path, most = path.expanduser(), max(1, connections // 2)
    reader, writer = (Worker(path, expire_after, purpose, most) for _ in range(2))
    with _closing_on_error(reader, writer):
        writer.agent.record_many([])
        known = reader.agent.store.dimension
        if catalogue.arms and known not in {None, len(catalogue.arms[0].features)}:
            raise DataError(
                f"arms of {len(catalogue.arms[0].features)} features: the duels in {path} have"
                f" {known}"
            )
        if catalogue.names is not None:
            writer.agent.name_features(catalogue.names)
    return reader, writer


def _vault(node: Node | None, catalogue: Catalogue, reader: Worker, writer: Worker) -> Vault | None:
    """Return the vault, whose requests the writer answers."""
    if node is None:
        return None
    config, arms = node.config, catalogue.arms
    with _closing_on_error(reader, writer):
        if arms and len(arms[0].features) != config.dimension:
            raise DataError(
                f"{config.path}: dimension={config.dimension}, but the arms have"
                f" {len(arms[0].features)} features"
            )
        return Vault(writer.agent.store, config)


@contextmanager
def _closing_on_error(*workers: Worker) -> Iterator[None]:
    try:
        yield
    except FldbError:
        for worker in workers:
            worker.close()
        raise
