"""Wills of the whole cluster: each is published once at most."""
