"""Owners of client ids in the memory of the nodes: shares of client ids, each with a leader and a deputy."""
