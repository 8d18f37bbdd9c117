"""Secure sums: the server obtains the sum of many vectors and no single vector.

- :mod:`fldb_flower.secure.field`: arithmetic modulo ``2^61 - 1`` on arrays
- :mod:`fldb_flower.secure.sharing`: packed secret sharing
- :mod:`fldb_flower.secure.encoding`: floats and counts as elements of the field
"""
