"""Secure sums: the server obtains noisy sums of many vectors, and no single vector.

- :mod:`fldb_flower.secure.protocol`: reports in shares for two servers, and all messages
- :mod:`fldb_flower.secure.statistics`: the request to a device, and its answer as a vector
"""

KEY = "secure"
"""Name of the entry of a Flower message with the bytes of a request or of a reply."""
