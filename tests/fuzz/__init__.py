"""Mutated packets into the decoder, the core and a broker process: ``python -m tests.fuzz --help``."""
