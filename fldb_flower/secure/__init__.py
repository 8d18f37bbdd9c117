"""Secure sums: the server obtains sums of many vectors, with noise, and no single vector.

- :mod:`fldb_flower.secure.statistics`: what a device is asked, and its answer as a vector
- :mod:`fldb_flower.secure.report`: a vector as integers, split into shares for two servers
- :mod:`fldb_flower.secure.messages`: what server, devices and helper send each other
- :mod:`fldb_flower.secure.canonical`: values as canonical bytes
"""

KEY = "secure"
"""Name of the entry of a Flower message with the bytes of a request or of a reply."""
