"""Translation between NATS subjects and MQTT topics, which share one name space. docs/NATS.md has examples.

The rule: ``.`` and ``/`` are swapped, ``*`` and ``+`` are, and ``>`` and ``#`` are. The separator of one protocol is an
ordinary character in the other, and a wildcard stays a wildcard. Nearly every name therefore has exactly one
translation, and translating back restores it. Exceptions:

- A token is never empty, so an empty level is written ``/``. The level ``.``, which the rule would make ``/``, is
  written ``//``, and so on: a level that consists of n dots is a token of n + 1 slashes.
- Blanks and line ends (U+0009 to U+000D, U+0020) are written as their symbols (U+2409 to U+240D, U+2420).
- ``a.>`` does not match ``a``, but ``a/#`` does: it becomes ``a/+/#``. A lone ``>`` is ``#``.

Names without a translation: topics with one of those symbols, subjects that are not UTF-8 or have a NUL, and subjects
with ``*`` or ``>`` inside a longer token. The functions return b"" for these and for invalid subjects.
"""

from __future__ import annotations

from typing import Final

from starlingmq.wire.characters import DOT, GREATER, NUL, STAR

_CREATE: Final = b".API.CONSUMER.CREATE."
DIRECT_GET: Final = b"$JS.API.DIRECT.GET."
_SWAP: Final = bytes.maketrans(b"./*+>#", b"/.+*#>")
_BLANK_CODES: Final = (0x09, 0x0A, 0x0B, 0x0C, 0x0D, 0x20)
_SYMBOL_HEADS: Final = b"\xe2\x90"  # U+2400 to U+243F in UTF-8 begin with these
_SYMBOLS: Final = [(bytes((code,)), chr(0x2400 + code).encode()) for code in _BLANK_CODES]
_BLANKS: Final = bytes(_BLANK_CODES)


def topic_of(subject: bytes) -> bytes:
    """Return the topic that a message to ``subject`` is published to; b"" if there is none."""
    if not _whole_tokens(subject) or STAR in subject or GREATER in subject:
        return b""
    return _unspelled(subject)


def filter_of(subject: bytes) -> bytes:
    """Return the topic filter of a subscription to ``subject``; b"" if there is none."""
    if STAR not in subject and GREATER not in subject:
        return topic_of(subject)
    if not _whole_tokens(subject):
        return b""
    levels: list[bytes] = []
    tokens = subject.split(b".")
    last = len(tokens) - 1
    for at, token in enumerate(tokens):
        if token == b"*":
            levels.append(b"+")
        elif token == b">":
            if at != last:
                return b""
            levels.append(b"#" if at == 0 else b"+/#")
        elif STAR in token or GREATER in token:
            return b""
        else:
            level = _unspelled(token)
            if not level and token != b"/":
                return b""
            levels.append(level)
    return b"/".join(levels)


def without_filter(subject: bytes) -> bytes:
    """Two requests of JetStream end with a filter, whose wildcards no topic has: the one that makes a consumer, since
    nats-server 2.9, with the filter also in its payload; and the one for the last message of a subject. Return the
    subject without it; b"" for any other subject."""
    if subject.startswith(DIRECT_GET):
        return subject[: subject.find(b".", len(DIRECT_GET))] if filter_of(subject) else b""
    at = subject.find(_CREATE)
    if at < 0 or not subject.startswith(b"$JS.") or subject.count(b".", 0, at) > 1:  # $JS or $JS.domain before it
        return b""
    at += len(_CREATE)
    tokens = subject[at:].split(b".")
    return subject[:at] + b".".join(tokens[:2]) if len(tokens) > 2 else b""


def subject_of(topic: bytes) -> bytes:
    """Return the subject of a message to ``topic``, which must be valid; b"" if there is none."""
    if not topic.isascii() and _SYMBOL_HEADS in topic:
        for _, symbol in _SYMBOLS:
            if symbol in topic:
                return b""
    if DOT in topic or topic.find(b"//") >= 0 or topic[0] == 0x2F or topic[len(topic) - 1] == 0x2F:
        levels = topic.split(b"/")
        topic = b"/".join([level + b"." if len(level.strip(b".")) == 0 else level for level in levels])
    subject = topic.translate(_SWAP)
    if len(subject.translate(None, _BLANKS)) != len(subject):
        for blank, symbol in _SYMBOLS:
            subject = subject.replace(blank, symbol)
    return subject


def _whole_tokens(subject: bytes) -> bool:
    return (
        len(subject) != 0
        and subject[0] != 0x2E
        and subject[len(subject) - 1] != 0x2E
        and subject.find(b"..") < 0
        and len(subject.translate(None, _BLANKS)) == len(subject)
    )


def _unspelled(subject: bytes) -> bytes:
    """Translate tokens without wildcards to levels; b"" if there is no translation. A single empty level is b"" as
    well.
    """
    if NUL in subject:
        return b""
    topic = subject.translate(_SWAP)
    if not topic.isascii():
        try:
            topic.decode()
        except UnicodeDecodeError:
            return b""
        if _SYMBOL_HEADS in topic:
            for blank, symbol in _SYMBOLS:
                topic = topic.replace(symbol, blank)
    if DOT in topic:
        levels = topic.split(b"/")
        topic = b"/".join([level[1:] if len(level.strip(b".")) == 0 else level for level in levels])
    return topic
