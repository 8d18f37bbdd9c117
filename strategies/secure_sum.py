"""The sum of a secure exchange as an upload, and whether honest devices may have sent it."""

from __future__ import annotations

import numpy as np

from fldb_flower.errors import SecureError
from fldb_flower.federation.exchange import Outcomes, Upload
from fldb_flower.federation.plausibility import implausible
from fldb_flower.federation.share_bounds import implausible_shares
from fldb_flower.linalg.forms import make_form
from fldb_flower.secure.field import Elements
from fldb_flower.secure.header import Header
from fldb_flower.secure.roster import LARGEST_NUMBER
from fldb_flower.wire.codec import UploadError
from fldb_flower.wire.secure_upload import upload_of
from fldb_flower.wire.shared_broadcast import SharedBroadcast


def upload_of_sum(
    numbers: Elements, header: Header, shared: SharedBroadcast, devices: int
) -> Upload:
    """Return the upload of a sum.

    Parameters
    ----------
    numbers : Elements
        The sum.
    header : Header
        Of the exchange.
    shared : SharedBroadcast
        Its broadcast.
    devices : int
        Number of devices in the sum.

    Raises
    ------
    SecureError
        No honest devices can have this sum: one of them, or a member, sent wrong numbers.
    """
    encoding = shared.encoding(len(header.asked), header.max_duels)
    values = encoding.decode(numbers, devices)
    duels, most = values[-1], devices * header.max_duels
    if not devices <= duels <= most:
        raise SecureError(f"a sum over {duels:g} duels: must be {devices} to {most}")
    try:
        upload = upload_of(values, shared.broadcast, make_form(shared.settings))
    except UploadError as error:
        raise SecureError(f"the sum is no upload: {error}") from None
    if reason := _implausible(upload, shared, devices):
        raise SecureError(f"the sum is implausible: {reason}")
    return upload


def _implausible(upload: Upload, shared: SharedBroadcast, devices: int) -> str:
    """Return the bound that the sum violates, or "" if there is none.

    How many answers these devices have in total is not known, so bounds by it do not apply.
    """
    settings, broadcast = shared.settings, shared.broadcast
    assert isinstance(settings.max_difference, float)
    if not broadcast.shares:
        return implausible([upload], broadcast, settings.max_difference)[0]
    block = Outcomes(first=1, agents=devices, sums=np.zeros((0, 0)))
    (reason,) = implausible_shares(
        [upload._replace(outcomes=(block,))],
        [LARGEST_NUMBER],
        broadcast,
        ridge=settings.personal_ridge,
        longest=settings.max_difference,
    )
    return reason
