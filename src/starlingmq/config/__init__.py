"""Settings: one tree of sections, checked once when it is built."""
