"""The text of an NKey: its kind, the key itself, and a checksum, in base32 without padding."""

from __future__ import annotations

import binascii
from base64 import b32decode, b32encode
from typing import Final

SERVER: Final = 13 << 3  # the first byte of a server's id; the text begins with N
USER: Final = 20 << 3  # the first byte of a user's public key; the text begins with U
USER_SEED: Final = bytes((18 << 3 | USER >> 5, 0))  # the first two bytes of a user's seed; the text begins with SU
SEED_LENGTH: Final = 58
LENGTH: Final = 56  # of the text: a byte, 32 of the key, two of CRC-16, lowest first


def user_key(text: str) -> bytes:
    """The 32 bytes of a user's public key (Ed25519). Raises ValueError if ``text`` is not one."""
    if len(text) != LENGTH:
        raise ValueError(f"{text!r} is not a public NKey of a user: expected U and 55 more letters and digits")
    try:
        raw = b32decode(text)
    except ValueError:  # includes binascii.Error
        raise ValueError(
            f"{text!r} is not a public NKey of a user: it contains characters that are not base32"
        ) from None
    if raw[0] != USER:
        raise ValueError(f"{text!r} is not a public NKey of a user: it must start with U")
    if binascii.crc_hqx(raw[:33], 0) != raw[33] | raw[34] << 8:
        raise ValueError(f"{text!r} is not a public NKey of a user: its checksum is wrong")
    return raw[1:33]


def server_id(raw: bytes) -> str:
    """32 bytes as the id of a server: NATS tools tell an id from a name by this form."""
    return _text(SERVER, raw)


def user_key_text(raw: bytes) -> str:
    return _text(USER, raw)


def user_seed(text: str) -> bytes:
    """The 32 bytes of a user's seed, which is a private key. Raises ValueError, which does not show it."""
    try:
        raw = b32decode(text + "======") if len(text) == SEED_LENGTH else b""
    except ValueError:
        raw = b""
    if raw[:2] != USER_SEED or binascii.crc_hqx(raw[:34], 0) != raw[34] | raw[35] << 8:
        raise ValueError("not the NKey seed of a user: expected SU and 56 more letters and digits")
    return raw[2:34]


def _text(kind: int, raw: bytes) -> str:
    body = bytes((kind,)) + raw
    return b32encode(body + binascii.crc_hqx(body, 0).to_bytes(2, "little")).decode()
