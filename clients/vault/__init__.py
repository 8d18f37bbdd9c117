"""Secure sums on a device: the vault holds the answers and the ledger, and replies to the server.

A server sends each device the program that its SuperNode runs, so nothing in that program can
protect the device from the server. The vault therefore runs in the process of the preference
service, which belongs to the device's owner: the SuperNode only passes opaque bytes on
(:mod:`clients.relay`).
"""

from clients.vault.vault import WITHHELD, Vault, VaultConfig, read_config

__all__ = ["WITHHELD", "Vault", "VaultConfig", "read_config"]
