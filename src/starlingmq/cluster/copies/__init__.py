"""Copies of each node's data on other nodes: who has them, who may serve them, and what must be copied before it is
acknowledged."""
