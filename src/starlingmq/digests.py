"""BLAKE2b without ``hashlib``, which loads OpenSSL: a tenth of the memory of a broker without TLS."""

from __future__ import annotations

try:
    from _blake2 import blake2b  # where hashlib has it from, too
except ImportError:  # another implementation of Python
    from hashlib import blake2b

__all__ = ["blake2b"]
