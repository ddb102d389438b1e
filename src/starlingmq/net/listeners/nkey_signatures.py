"""Ed25519 signatures of NATS clients, checked with PyNaCl: an optional part of the installation."""

from __future__ import annotations

from starlingmq.config.settings import ConfigError
from starlingmq.core.nats.nkey_auth import Verify


def verifier(needed: bool) -> Verify | None:
    """The function that verifies signatures; None without PyNaCl. Raises ConfigError if it is ``needed``."""
    try:
        from nacl.exceptions import CryptoError
        from nacl.signing import VerifyKey
    except ImportError:
        if needed:
            raise ConfigError(
                "nats.nkeys: verifying signatures needs PyNaCl; run pip install '.[nkeys]' in the sources"
            ) from None
        return None

    def verify(key: bytes, message: bytes, signature: bytes) -> bool:
        try:
            VerifyKey(key).verify(message, signature)
        except (CryptoError, ValueError):  # ValueError: not 64 bytes, or a key that is not a point of the curve
            return False
        return True

    return verify
