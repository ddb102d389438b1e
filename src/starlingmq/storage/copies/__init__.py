"""Copies of a node's data directory at other nodes: what its owner sends, and what a follower keeps of it."""
