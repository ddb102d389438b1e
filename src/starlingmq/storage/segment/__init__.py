"""The `segment` journal engine: append-only files, rolled by size."""
