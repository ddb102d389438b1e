"""Storage of state that outlives a turn: interfaces and engines."""
