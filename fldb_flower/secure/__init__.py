"""Secure sums: the server obtains the sum of many vectors and no single vector.

- :mod:`fldb_flower.secure.field`: arithmetic modulo ``2^61 - 1`` on arrays
- :mod:`fldb_flower.secure.sharing`: packed secret sharing
- :mod:`fldb_flower.secure.encoding`: floats and counts as elements of the field
- :mod:`fldb_flower.secure.roster`: signed public keys of the devices, and the committee
- :mod:`fldb_flower.secure.header`: what the devices of an exchange agree on, and the owner's limits
- :mod:`fldb_flower.secure.sealing`: encryption of a piece for one member
- :mod:`fldb_flower.secure.journal`: what a device stores, and which answers it may send
- :mod:`fldb_flower.secure.device`, :mod:`fldb_flower.secure.server`: the two trips of an exchange

**Not ready for use.** No run uses this package yet. Known gaps: an opening is bound to the names of
the senders, not to their sealed bytes, so a device whose store was restored can be singled out; and
``min_devices`` does not grow with the number of tolerated colluders.
"""
