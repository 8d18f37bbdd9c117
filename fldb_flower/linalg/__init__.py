"""Backends of arrays, forms of symmetric matrices, and whiteners."""
