"""Authentication by NKey: INFO has a nonce; CONNECT has the public key and a signature of the nonce.

The nonce is derived from the broker's secret and the number of the connection, so it is unpredictable, and different
for each connection.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from typing import Final

from starlingmq.config.nkeys import user_key
from starlingmq.wire.digests import blake2b

Verify = Callable[[bytes, bytes, bytes], bool]  # public key, message, signature

NKEY: Final = "nkey"  # beginning of ``Client.standing`` after authentication by such a key
SIGNATURE: Final = 88  # maximum number of base64 characters


class NkeyAuth:
    verify: Verify | None  # None: no keys are configured
    known: dict[str, bytes]  # the allowed keys, by their text
    _secret: bytes

    def __init__(self, secret: bytes) -> None:
        self.verify = None
        self.known = {}
        self._secret = secret[:64]

    def configure(self, keys: tuple[str, ...]) -> None:
        self.known = {text: user_key(text) for text in keys}

    def nonce(self, number: int) -> str:
        """The nonce for the client of this connection; "" if no keys are configured."""
        if self.verify is None:
            return ""
        return urlsafe_b64encode(blake2b(b"nonce %d" % number, key=self._secret, digest_size=12).digest()).decode()

    def signed(self, number: int, text: str, signature: str) -> bool:
        """Whether the client of this connection has proved to hold the key ``text``."""
        verify = self.verify
        if verify is None or len(signature) > SIGNATURE:
            return False
        try:
            key = user_key(text)
            # Some clients use the URL alphabet without padding, some the standard one with padding.
            raw = urlsafe_b64decode(signature.replace("+", "-").replace("/", "_").rstrip("=") + "==")
        except ValueError:
            return False
        return verify(key, self.nonce(number).encode(), raw)
