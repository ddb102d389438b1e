"""BLAKE2b from where ``hashlib`` has it, too: ``hashlib`` itself loads OpenSSL, a tenth of the memory of a broker without
TLS."""

from __future__ import annotations

from _blake2 import blake2b as blake2b
