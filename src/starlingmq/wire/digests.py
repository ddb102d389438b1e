"""BLAKE2b, from the module where ``hashlib`` finds it.

``hashlib`` itself loads OpenSSL, which takes a tenth of the memory of a broker without TLS.
"""

from __future__ import annotations

from _blake2 import blake2b as blake2b
