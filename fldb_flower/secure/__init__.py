"""Secure sums: the server obtains sums of many vectors, with noise, and no single vector.

- :mod:`fldb_flower.secure.report`: a device's numbers, split into shares for two servers
- :mod:`fldb_flower.secure.keys`: the keys of the helper, the second server
- :mod:`fldb_flower.secure.helper`: the helper
- :mod:`fldb_flower.secure.canonical`: values as canonical bytes
"""
