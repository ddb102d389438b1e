"""Clients that prove to hold an NKey: INFO has a nonce, CONNECT has the public key and a signature of that nonce.

The nonce is made from the broker's secret and the number of the connection, so nobody can know it before, and it is
another one for each connection.
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from typing import Final

from starlingmq.nkeys import user_key

Verify = Callable[[bytes, bytes, bytes], bool]  # public key, message, signature

NKEY: Final = "nkey"  # what ``Client.standing`` begins with where it has signed with such a key
SIGNATURE: Final = 88  # characters of one in base64 at most


class NkeyAuth:
    verify: Verify | None  # None: no keys are asked for
    known: dict[str, bytes]  # keys that may come in, by their text
    _secret: bytes

    def __init__(self, secret: bytes) -> None:
        self.verify = None
        self.known = {}
        self._secret = secret[:64]

    def configure(self, keys: tuple[str, ...]) -> None:
        self.known = {text: user_key(text) for text in keys}

    def nonce(self, number: int) -> str:
        """What the client of this connection has to sign; "" if no keys are asked for."""
        if self.verify is None:
            return ""
        return urlsafe_b64encode(
            hashlib.blake2b(b"nonce %d" % number, key=self._secret, digest_size=12).digest()
        ).decode()

    def signed(self, number: int, text: str, signature: str) -> bool:
        """Whether the client of this connection holds the key ``text``."""
        verify = self.verify
        if verify is None or len(signature) > SIGNATURE:
            return False
        try:
            key = user_key(text)
            # Some clients use the alphabet of URLs without padding, some the usual one with it.
            raw = urlsafe_b64decode(signature.replace("+", "-").replace("/", "_").rstrip("=") + "==")
        except ValueError:
            return False
        return verify(key, self.nonce(number).encode(), raw)
