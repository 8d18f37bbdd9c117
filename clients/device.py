"""The Flower client of a device: replies to broadcasts from the device's store.

Flower starts a new process for each message, so this module imports little more than NumPy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client import NumPyClient

from clients.store import DuelStore
from clients.uploads import UploadMaker
from fldb_flower.errors import DataError, SettingsError, one_line
from fldb_flower.federation.exchange import Broadcast
from fldb_flower.linalg.arrays import FloatArray
from fldb_flower.settings import Settings, from_flat
from fldb_flower.system.process import one_blas_thread
from fldb_flower.wire import (
    DeviceRequest,
    DeviceUploadHeader,
    decode_broadcast,
    encode_upload,
    pack_vector,
    unpack_vector,
)

MAX_QUESTIONS = 60
"""Default limit of different estimates at which a server may ask about the same answers.

A first round needs about six, and six more each time it is repeated.
"""


class Limits(NamedTuple):
    """Limits on uploads, set by the device's owner."""

    min_duels: int | None = None  # distinct new duels in an upload; None: default_minimum
    max_questions: int = MAX_QUESTIONS  # estimates at which gradients of one answer are uploaded


def default_minimum(size: int, dimension: int) -> int:
    """Return how many distinct duels an upload of ``size`` numbers covers, by default.

    From an upload with a Hessian, up to d duels can be computed. Therefore at least 3 d are
    required, and so many that the duels have more coordinates than the upload has numbers. See
    ``docs/security.md``.

    >>> default_minimum(15, 3), default_minimum(72, 3)  # FLDB-ONS, FLDB-Personal with a learned V
    (9, 25)
    """
    return max(3 * dimension, size // dimension + 1)


class DeviceAgent(NumPyClient):
    """One agent of the federation: a device and its store."""

    def __init__(self, store: DuelStore, settings: Settings, limits: Limits) -> None:
        self._uploads = UploadMaker(store, settings)
        self.store, self._limits, self._most = store, limits, settings.devices.max_duels

    def fit(
        self, parameters: list[FloatArray], config: dict[str, Any]
    ) -> tuple[list[FloatArray], int, dict[str, Any]]:
        """Store the estimate, and return statistics of the answers that are not acknowledged.

        The vectors and the ConfigRecords, as dictionaries, are those of
        :mod:`fldb_flower.wire`. Nothing is stored of a broadcast that is invalid or that the
        device cannot use.
        """
        request = DeviceRequest.from_config(config)
        self._uploads.use(request.features)
        try:
            broadcast = decode_broadcast(parameters[0], request.header, self._uploads.form)
        except ValueError as reason:
            raise DataError(f"the server sent {reason}; nothing was sent") from None
        self._uploads.check(broadcast)
        counted = request.counted
        if request.device != self.store.device_id:
            # The server knows neither this device nor how many of its answers it has counted.
            broadcast, counted = broadcast._replace(theta_hat=None, shares=False), 0
        end, held = request.upto if broadcast.learns else counted, (0, 0)
        if end < 0:
            end = self.store.cut(counted, self._min_duels(broadcast), self._most)
            held = self.store.held_back()
        if broadcast.theta_hat is not None:
            self.store.admit(counted, end, broadcast.theta_hat, self._limits.max_questions)
        upload, duels = self._uploads.upload(broadcast, counted, end)
        self.store.expect_cut(counted)
        if broadcast.play is not None and request.header.estimate:
            self._uploads.synchronize(broadcast.play, counted, request.duels)
        decided = np.isfinite(duels.predicted) & (duels.preferences != 0.5)
        agreed = decided & ((duels.predicted > 0.5) == (duels.preferences > 0.5))
        counts = int(decided.sum()), int(agreed.sum())
        header = DeviceUploadHeader(upload.num_duels, counted, end, *counts, *held)
        reply = {"header": list(header), "device": self.store.device_id}
        return [encode_upload(upload, broadcast)], upload.num_duels, reply

    def _min_duels(self, broadcast: Broadcast) -> int:
        """Return how many distinct new duels the requested upload must cover."""
        given, form = self._limits.min_duels, self._uploads.form
        least = given or default_minimum(broadcast.sizes(form)[0], form.dimension)
        if least > self._most:
            source = "--node-config" if given else "the default"
            raise SettingsError(
                f"min-duels-per-upload={least} (from {source}): must be at most {self._most},"
                " the server's devices-max-duels"
            )
        return least


def train(message: Message, context: Context) -> Message:
    """Reply to one broadcast: the body of the ClientApp's ``@app.train()`` function."""
    settings = from_flat(context.run_config, "Flower's run config")
    content: Any = message.content
    limits = Limits(
        _count(context, "min-duels-per-upload"), _count(context, "max-questions") or MAX_QUESTIONS
    )
    with DuelStore(_store_path(context)) as store:
        agent = DeviceAgent(store, settings, limits)
        try:
            vector = unpack_vector(content["arrays"], settings.max_message_mb)
            config = dict(content["config"])
        except (KeyError, ValueError) as reason:
            raise DataError(f"the server's broadcast: {one_line(reason)}") from None
        with one_blas_thread():
            (vector,), _, config = agent.fit([vector], config)
    reply = RecordDict({"arrays": pack_vector(vector), "config": ConfigRecord(config)})
    return Message(reply, reply_to=message)


def _store_path(context: Context) -> Path:
    if "service-url" in context.node_config:
        raise SettingsError(
            f"node {context.node_id} has a service-url, so it takes part in secure sums only, and"
            " this run has secure=false: set secure=true"
        )
    path = context.node_config.get("store-path")
    if not isinstance(path, str) or not path:
        raise SettingsError(
            f"node {context.node_id} has no store-path: start its flower-supernode with"
            " --node-config 'store-path=\"/absolute/path/duels.db\"'"
        )
    if not Path(path).is_absolute():
        raise SettingsError(f"store-path={path!r} (from --node-config): must be absolute")
    return Path(path)


def _count(context: Context, name: str) -> int | None:
    number = context.node_config.get(name)
    if number is None:
        return None
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise SettingsError(
            f"{name}={number!r} (from --node-config): must be an integer, at least 1"
        )
    return number
