"""The ordered, acknowledged link between two nodes, and the frames on it."""
