"""Secure sums in simulations: nodes send integers, and the server uses only their sum.

There is no cryptography here. The integers, their scale and the checks of the sum are those of a
federation of devices, so a simulation shows what the server of such a federation learns.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fldb_flower.environments import max_difference
from fldb_flower.errors import DataError, FederationError, SecureError, SettingsError
from fldb_flower.federation.exchange import Broadcast, Outcomes, Upload
from fldb_flower.linalg.forms import make_form
from fldb_flower.secure.encoding import Encoding
from fldb_flower.secure.field import IntArray
from fldb_flower.settings import Settings
from fldb_flower.wire.codec import UploadError, upload_size
from fldb_flower.wire.secure_upload import (
    blocks_of,
    implausible_sum,
    numbers_of,
    upload_of,
)

_encoding = functools.lru_cache(maxsize=4)(Encoding)  # nodes in one process share the last ones


class SecureSums:
    """The uploads of the nodes of a simulation as integers, and the upload that their sum gives.

    Server and nodes derive the scale from the broadcast and the settings.

    Parameters
    ----------
    settings : Settings
        Settings of the run, with ``secure``.

    Raises
    ------
    SettingsError
        The environment has no bound of the length of differences.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._form = make_form(settings)
        self._longest = max_difference(settings)
        if not math.isfinite(self._longest):
            raise SettingsError(
                "secure=true: the scale of the integers depends on the largest length of a"
                f" difference, and environment={settings.environment.name} has no bound; set"
                " max_difference"
            )

    def encoding(self, broadcast: Broadcast, nodes: int) -> Encoding:
        """Return the encoding of the uploads of ``nodes`` nodes.

        Raises
        ------
        SettingsError
            The broadcast asks for statistics of duels that a sum has covered before.
        """
        play, settings = broadcast.play, self._settings
        if play is None or broadcast.scope == "all":
            raise SettingsError(
                f"secure=true: algorithm={settings.algorithm} asks for sums over the same duels in"
                " several exchanges, which reveal more than one sum"
            )
        blocks = blocks_of(
            broadcast,
            self._form,
            answers=play.last,
            longest=self._longest,
            ridge=settings.personal_ridge,
            agents=-(-settings.num_agents // nodes),
        )
        return _encoding(blocks, nodes)

    def quantise(self, upload: Upload, broadcast: Broadcast, nodes: int) -> IntArray:
        """Return the upload of one of ``nodes`` nodes as integers, (n,).

        Raises
        ------
        DataError
            A number exceeds the bound that its scale allows.
        """
        encoding = self.encoding(broadcast, nodes)
        try:
            return encoding.quantise(numbers_of(upload, broadcast))
        except DataError as reason:
            raise DataError(f"secure=true: {self._explained(reason)}") from None

    def checked(self, vector: NDArray[Any], broadcast: Broadcast) -> IntArray:
        """Return the vector of a reply if it has the right type and length.

        Raises
        ------
        UploadError
            It has not.
        """
        size = upload_size(broadcast, self._form) + 1
        if vector.dtype != np.int64 or vector.shape != (size,):
            raise UploadError(f"{vector.dtype} of shape {vector.shape} instead of int64 {(size,)}")
        return vector

    def open(
        self,
        integers: Sequence[IntArray],
        broadcast: Broadcast,
        nodes: int,
        *,
        duels: int,
        outcomes: Sequence[Outcomes],
    ) -> Upload:
        """Add the integers of some nodes; return the upload of all of them.

        Parameters
        ----------
        integers : sequence of IntArray
            Results of :meth:`quantise`, in any order.
        broadcast : Broadcast
            The request that they answer.
        nodes : int
            The number of all nodes.
        duels : int
            The number of duels that these nodes have played.
        outcomes : sequence of Outcomes
            Those of these nodes.

        Raises
        ------
        FederationError
            The sum violates a bound of :mod:`fldb_flower.federation.plausibility`.
        """
        encoding, count = self.encoding(broadcast, nodes), len(integers)
        try:
            numbers = encoding.restore(functools.reduce(operator.add, integers), count)
            upload = upload_of(numbers, broadcast, self._form)._replace(outcomes=tuple(outcomes))
        except (SecureError, UploadError) as reason:
            raise FederationError(f"secure=true: {self._explained(reason)}") from None
        if upload.num_duels != duels:
            raise FederationError(f"a sum over {upload.num_duels} duels instead of {duels}")
        if violated := self._implausible(upload, broadcast, encoding, count):
            what = f"the sum over {count} nodes is not plausible"
            raise FederationError(f"{what}: {self._explained(violated)}")
        return upload

    def _implausible(
        self, upload: Upload, broadcast: Broadcast, encoding: Encoding, count: int
    ) -> str:
        """Return the first bound that a sum violates, or an empty string."""
        played = [each.agents * (each.first + len(each.sums) - 1) for each in upload.outcomes]
        settings = self._settings
        return implausible_sum(
            upload,
            broadcast,
            encoding,
            count,
            agents=sum(each.agents for each in upload.outcomes),
            answers=sum(played),
            longest=self._longest,
            ridge=settings.personal_ridge,
            weighted=settings.is_private and settings.privacy.unit == "person",
        )

    def _explained(self, reason: object) -> str:
        return (
            f"{reason}; with max_difference={self._longest:g}, no difference of two arms may be"
            " longer than that"
        )
