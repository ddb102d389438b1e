"""Rules: SQL over messages as they arrive, done by the broker itself."""
