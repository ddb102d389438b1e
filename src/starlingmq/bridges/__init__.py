"""Bridges to other brokers."""
