"""Bytes to packets and packets to bytes, nothing else: no I/O, no clock, no state between packets."""
