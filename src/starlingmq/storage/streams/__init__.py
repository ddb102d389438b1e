"""The logs of streams: files, administration, consumers."""
