"""Reading streams in bulk, in a process beside the broker (docs/STREAMS.md)."""
