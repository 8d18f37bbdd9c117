"""Secure sums: the server obtains the sum of many vectors and no single vector.

- :mod:`fldb_flower.secure.field`: arithmetic modulo ``2^61 - 1`` on arrays
- :mod:`fldb_flower.secure.sharing`: packed secret sharing
- :mod:`fldb_flower.secure.encoding`: floats and counts as elements of the field
- :mod:`fldb_flower.secure.roster`: signed public keys of the devices, and the committee
- :mod:`fldb_flower.secure.header`: what the devices of an exchange agree on, and the owner's limits
- :mod:`fldb_flower.secure.sealing`: encryption of a piece for one member
- :mod:`fldb_flower.secure.journal`, :mod:`fldb_flower.secure.entries`: what a device stores, and
  which answers it may send
- :mod:`fldb_flower.secure.device`, :mod:`fldb_flower.secure.server`: the two trips of an exchange
- :mod:`fldb_flower.secure.suspects`: whom the server asks after a sum that some device spoilt
"""
