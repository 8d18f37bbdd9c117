"""Backends of arrays, and linear algebra of symmetric matrices."""
