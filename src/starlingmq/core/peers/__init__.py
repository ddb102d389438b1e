"""Other nodes of a cluster: as receivers of messages, and as sources and targets of sessions that move."""
