"""Compiles the hot modules. Only setup.py, the Makefile and the tests use this package; it is not installed."""
