"""Attacks on secure sums by a server, the relay's user, a device, and bad luck.

Each test is about real vaults or the real server, and fails without the protection that it is
about.
"""

from __future__ import annotations

import base64
import json
import os

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from secure_grid import SecureFederation
from vaults import D, Fleet, Phone, common, decoded

from fldb_flower.bandit.estimate import Estimate
from fldb_flower.errors import DataError, SecureError
from fldb_flower.federation.exchange import Broadcast, PlayRequest
from fldb_flower.secure import roster as rosters
from fldb_flower.wire import secure_messages as messages

MAGIC = b"fldb-flower node 1\n"


def message(index: bytes) -> bytes:
    """Return the bytes of a message with any JSON."""
    return MAGIC + len(index).to_bytes(4, "big") + index


NO_NUMBERS = [b"NaN", b"Infinity", b"1e999", b"[" * 900 + b"]" * 900]


@pytest.mark.parametrize("value", NO_NUMBERS, ids=["NaN", "Infinity", "1e999", "nested"])
def test_json_without_canonical_form_is_one_error_on_both_sides(value):
    reply = message(b'{"kind":"refused","lengths":{},"values":{"reason":' + value + b"}}")
    request = message(b'{"kind":"hello","lengths":{"roster":' + value + b'},"values":{}}')
    with pytest.raises(DataError):
        messages.decode_reply(reply)
    with pytest.raises(DataError):
        messages.decode_request(request)


def test_an_unsigned_roster_costs_no_check_of_its_keys(monkeypatch):
    checked = []
    read_key = X25519PublicKey.from_public_bytes
    monkeypatch.setattr(
        X25519PublicKey, "from_public_bytes", lambda key: checked.append(key) or read_key(key)
    )
    keys = {f"d{n}": base64.b64encode(os.urandom(31) + b"\0").decode() for n in range(100)}
    fields = {"devices": keys, "format": 1, "not_after": None, "not_before": None, "version": 2}
    signature = base64.b64encode(bytes(64)).decode()
    content = json.dumps({"roster": fields, "signature": signature}).encode()
    with pytest.raises(SecureError, match="signature of the roster, version 2, is not by"):
        rosters.read_signed(content, Ed25519PrivateKey.generate().public_key())
    assert not checked


# Bounds that the server chooses.


def test_a_server_cannot_search_for_the_bounds_of_the_answers_of_one_device(tmp_path):
    """Whether numbers fit into the bounds is one bit about a device: once for each cut."""
    fleet = Fleet(tmp_path, 6)
    phone = fleet.phones["d00"]
    phone.answer(([1.9, 0.3], 1.0), ([0.5, 0.2], 0.0))
    replies = []
    for longest in (0.1, 0.5, 1.0, 2.0, 4.0, 8.0):  # W_new[0, 0] is 3.86, at most 5 L^2 fits
        header = fleet.header(settings=fleet.settings(max_difference=longest), max_duels=5)
        replies.append(phone.ask(fleet.request(header, "d00")))
    assert isinstance(replies[0], messages.Refused)
    assert [type(each) for each in replies[1:]] == [messages.Declined] * 5


def test_a_refusal_for_the_bounds_is_repeated_after_a_restart_and_loses_nothing(tmp_path):
    fleet = Fleet(tmp_path, 6)
    for phone in fleet.phones.values():
        phone.answer(([1.9, 0.3], 1.0), ([0.5, 0.2], 0.0))
    header = fleet.header(settings=fleet.settings(max_difference=0.1), max_duels=5)
    for name, phone in fleet.phones.items():
        first = phone.ask(fleet.request(header, name))
        assert isinstance(first, messages.Refused)
        phone.restart()
        assert phone.ask(fleet.request(header, name)) == first
        phone.answer(([0.25, 1.0], 1.0))
    upload, _ = fleet.exchange()
    assert upload.num_duels == 6 * 3
    assert upload.gradient == pytest.approx([-4.95, -3.3])  # (1/2 - answer) phi of each duel


def test_a_repetition_after_a_contribution_of_other_numbers_is_unaffected(tmp_path):
    """The numbers of an earlier contribution are never sent for a later cut."""
    fleet = Fleet(tmp_path, 6)
    for phone in fleet.phones.values():
        phone.answer(([0.1, 0.3], 1.0))
    fleet.exchange()
    phone = fleet.phones["d01"]
    phone.answer(([1.9, 0.3], 1.0))
    header = fleet.header(settings=fleet.settings(max_difference=0.1), max_duels=5)
    for _ in range(2):
        reply = phone.ask(fleet.request(header, "d01"))
        assert isinstance(reply, messages.Refused)
