"""The broker as pure state: bytes, messages and ``now`` go in, a Ready comes out. No I/O, clock or randomness."""
