"""Which nodes are registered, online and heard; quorum and isolation."""
