"""Topics and filters: their syntax, their matching, and the tree of all filters."""
