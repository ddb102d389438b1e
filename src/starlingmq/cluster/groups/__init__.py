"""Queue groups over several nodes: the primary of each group, pulls and supplies."""
