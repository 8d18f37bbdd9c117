"""Arrays of any kind, matrices in three forms, and whiteners."""
