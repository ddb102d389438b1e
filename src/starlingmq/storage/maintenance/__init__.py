"""Check, backup, compaction and offline work on a data directory."""
