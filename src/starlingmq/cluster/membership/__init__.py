"""Which nodes are registered, online and connected; quorum and isolation."""
