"""$SYS topics, event topics, and totals of sessions."""
