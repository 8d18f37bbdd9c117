"""The Flower client of a device: answers broadcasts from the device's store.

Flower starts a new process for each message: nothing here imports more than NumPy.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient

from clients.preference_agent import SELECTION_SETTINGS
from clients.store import DuelStore, Synchronization
from fldb_flower import preference
from fldb_flower.devices import DeviceAnswer
from fldb_flower.errors import DataError, SettingsError
from fldb_flower.federation import Broadcast, Play, Upload
from fldb_flower.messages import (
    Ask,
    Vector,
    decode_broadcast,
    encode_statistics,
    pack_symmetric,
)
from fldb_flower.records import pack_vector, unpack_vector
from fldb_flower.settings import Settings, from_flat

MIN_DUELS_PER_UPLOAD = 5
"""Answers that an upload covers at least, unless the device's owner says otherwise."""


class DeviceAgent(NumPyClient):
    """One agent of the federation: a device and its store.

    Parameters
    ----------
    store : DuelStore
        The device's duels.
    settings : Settings
        Settings of the run.
    min_duels : int
        ``min_duels_per_upload``: answers are held back until there are as many new ones.
    """

    def __init__(self, store: DuelStore, settings: Settings, *, min_duels: int) -> None:
        self._store = store
        self._settings = settings
        self._min_duels = min_duels

    def fit(
        self, parameters: list[Vector], config: dict[str, Any]
    ) -> tuple[list[Vector], int, dict[str, Any]]:
        """Keep the estimate, and return statistics of the answers not yet acknowledged.

        Parameters
        ----------
        parameters : list of one ndarray
            The broadcast's vector; see :mod:`fldb_flower.messages`.
        config : dict
            ``ask``, and ``device``, ``upto`` and ``duels``: see :mod:`fldb_flower.devices`.

        Returns
        -------
        tuple
            The upload's vector in a list, the number of duels, and ``answer``, the numbers of
            a :class:`~fldb_flower.devices.DeviceAnswer`.
        """
        ask = Ask(*config["ask"])
        broadcast = decode_broadcast(parameters[0], ask, self._settings.dimension)
        if config["device"] != self._store.device_id:
            # The server does not know who this is, so not what it has counted either.
            broadcast = broadcast._replace(theta_hat=None)
            ask = ask._replace(counted=0)
        answer, upload = self._statistics(broadcast, ask.counted, config["upto"])
        if broadcast.play is not None and ask.estimate:
            self._synchronize(broadcast.play, ask.counted, config["duels"])
        vector = encode_statistics(upload, broadcast)
        return [vector], upload.num_duels, {"answer": list(map(float, answer))}

    def _statistics(
        self, broadcast: Broadcast, start: int, upto: int
    ) -> tuple[DeviceAnswer, Upload]:
        theta = broadcast.theta_hat
        if theta is None:
            nothing = np.zeros(0)
            return DeviceAnswer(0, start, start, 0, 0), Upload(0, nothing, nothing, None, None, ())
        end = upto if upto >= 0 else self._store.cut(start, self._min_duels)
        duels = self._store.evidence(start, end)
        differences = duels.differences.reshape(-1, self._settings.dimension)
        gradient, hessian = preference.derivatives(theta, differences, duels.preferences)
        upload = Upload(
            num_duels=len(differences),
            gradient=gradient,
            information=preference.information(differences),
            hessian=hessian if broadcast.hessian else None,
            loss=None,
            regrets=(),
        )
        decided = np.isfinite(duels.predicted) & (duels.preferences != 0.5)
        agreed = (duels.predicted > 0.5) == (duels.preferences > 0.5)
        return DeviceAnswer(
            upload.num_duels, start, end, int(decided.sum()), int((decided & agreed).sum())
        ), upload

    def _synchronize(self, play: Play, counted: int, duels: int) -> None:
        assert play.theta_sync is not None
        assert play.information is not None
        try:
            np.linalg.cholesky(play.information)
        except np.linalg.LinAlgError:
            raise DataError("the broadcast's W_sync is not positive definite: not kept") from None
        chosen = {name: getattr(self._settings, name) for name in SELECTION_SETTINGS}
        self._store.synchronize(
            Synchronization(
                received=time.time(),
                round=play.last,
                counted=counted,
                duels=duels,
                theta=play.theta_sync,
                information=pack_symmetric(play.information),
                parameters={**chosen, "lambda_": self._settings.ridge},
            )
        )


def train(message: Message, context: Context) -> Message:
    """Answer one broadcast: the body of the ClientApp's ``@app.train()`` function."""
    settings = from_flat(context.run_config, "Flower's run config")
    content: Any = message.content
    min_duels = _min_duels(context)
    with DuelStore(_store_path(context)) as store:
        agent = DeviceAgent(store, settings, min_duels=min_duels)
        parameters = [unpack_vector(content["arrays"], settings.max_message_mb)]
        arrays, _, numbers = agent.fit(parameters, dict(content["config"]))
        reply = RecordDict(
            {
                "arrays": pack_vector(arrays[0]),
                "numbers": MetricRecord(numbers),
                "device": ConfigRecord({"id": store.device_id}),
            }
        )
    return Message(reply, reply_to=message)


def _store_path(context: Context) -> Path:
    path = context.node_config.get("store-path")
    if not isinstance(path, str) or not path:
        raise SettingsError(
            f"node {context.node_id} has no store-path: start its flower-supernode with"
            " --node-config 'store-path=\"/absolute/path/duels.db\"'"
        )
    if not Path(path).is_absolute():
        raise SettingsError(f"store-path={path!r} (from --node-config): must be absolute")
    return Path(path)


def _min_duels(context: Context) -> int:
    number = context.node_config.get("min-duels-per-upload", MIN_DUELS_PER_UPLOAD)
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise SettingsError(
            f"min-duels-per-upload={number!r} (from --node-config): must be a whole number, at"
            " least 1"
        )
    return number
