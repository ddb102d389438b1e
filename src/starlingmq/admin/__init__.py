"""Operator actions of a broker: plain functions for the HTTP API, the control socket, and other nodes."""
