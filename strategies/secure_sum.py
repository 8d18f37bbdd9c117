"""The sum of a secure exchange as an upload, and whether honest devices may have sent it."""

from __future__ import annotations

from fldb_flower.errors import SecureError
from fldb_flower.federation.exchange import Upload
from fldb_flower.linalg.forms import make_form
from fldb_flower.secure.field import Elements
from fldb_flower.secure.header import Header
from fldb_flower.secure.roster import LARGEST_NUMBER
from fldb_flower.wire.codec import UploadError
from fldb_flower.wire.secure_upload import implausible_sum, upload_of
from fldb_flower.wire.shared_broadcast import SharedBroadcast


def upload_of_sum(
    numbers: Elements, header: Header, shared: SharedBroadcast, devices: int
) -> Upload:
    """Return the upload of a sum.

    With noise, only the number of duels and the range of the encoding are checked: the other bounds
    hold without noise.

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
    if shared.privacy is not None:
        return upload
    longest = shared.settings.max_difference
    assert isinstance(longest, float)
    reason = implausible_sum(
        upload,
        shared.broadcast,
        encoding,
        devices,
        agents=devices,
        answers=LARGEST_NUMBER,  # in total: not known, so bounds by it do not apply
        longest=longest,
        ridge=shared.settings.personal_ridge,
    )
    if reason:
        raise SecureError(f"the sum is not plausible: {reason}")
    return upload
