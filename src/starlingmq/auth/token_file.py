"""A file with one secret token per line. Only digests of them are kept."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Final

from starlingmq.auth.text_lines import read_lines
from starlingmq.config.section_types import ConfigError

TOKEN_SIGNS_MIN: Final = 16


def read_tokens(path: str, setting: str) -> list[bytes]:
    """The digests of the tokens in a file that ``setting`` names. Raises ConfigError with one line, without tokens."""
    try:
        lines = read_lines(path)
    except OSError as error:
        raise ConfigError(f"{setting}: {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ConfigError(f"{setting}: {path} cannot be read: it is not UTF-8 text") from None
    found = []
    for number, line in lines:
        token = line.strip()
        if len(token) < TOKEN_SIGNS_MIN or not token.isascii() or not token.isprintable() or " " in token:
            raise ConfigError(
                f"{setting}: {path}:{number}: a token must have at least {TOKEN_SIGNS_MIN} characters and no blanks"
            )
        found.append(digest_of(token.encode()))
    if not found:
        raise ConfigError(f"{setting}: {path} contains no token; add one token per line")
    return found


def is_known(token: bytes, digests: Sequence[bytes]) -> bool:
    """Whether the token is one of these. Takes the same time for all."""
    digest = digest_of(token)
    return any(hmac.compare_digest(digest, known) for known in digests)


def digest_of(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
