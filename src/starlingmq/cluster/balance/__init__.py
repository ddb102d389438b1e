"""Draining a node and spreading clients evenly."""
