"""Queue groups across nodes: the primary of each group, pulls and supplies."""
