"""Putting a federation of devices together: keys and certificates, and all of it on one machine."""
