"""Where what must outlive a turn is kept: interfaces and engines."""
