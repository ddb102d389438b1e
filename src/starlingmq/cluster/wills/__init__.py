"""Wills of the whole cluster: each is published at most once."""
