"""Copies in a running process: what it stores for other nodes, what others store for it, and takeovers."""
