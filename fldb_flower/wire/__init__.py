"""Encoding of broadcasts and uploads as bytes and as Flower's records."""
