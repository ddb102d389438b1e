"""Topic names and topic filters: well-formedness, shared subscriptions, matching.

Both are the encoded bytes of the wire, compared byte by byte: no normalization, no case folding [MQTT-4.7.3-4]. Clause
tags are those of MQTT 5.0; the rules are the same in 3.1.1, where some have other numbers.
"""

from __future__ import annotations

from typing import Final

from starlingmq.wire.characters import HASH, NUL, PLUS
from starlingmq.wire.reasons import ProtocolError

MAX_LENGTH: Final = 65535  # bytes: the length prefix of an MQTT string has two [MQTT-4.7.3-3]
DOLLAR: Final = 0x24
LONG: Final = 1024  # bytes; longer topics are in no cache, so that clients cannot fill it with few of them
SHARE: Final = b"$share"
STREAM: Final = b"$stream/"  # filters by which clients read a stream, and a work queue (core.streams.stream_filters)
QUEUE: Final = b"$queue/"
OF_STREAMS: Final = (STREAM, QUEUE)
DEAD: Final = b"$dead/"


def valid_topic(topic: bytes) -> bool:
    """Whether a message may be published to ``topic``: an MQTT string, not empty, without wildcards [MQTT-3.3.2-2]."""
    return PLUS not in topic and HASH not in topic and _valid_name(topic)


def valid_filter(filter: bytes) -> bool:
    """Whether ``filter`` may be subscribed to, as far as its characters and wildcards go.

    A shared subscription passes as the ordinary filter that it also is; ``parse_share`` checks its further rules.
    """
    if not _valid_name(filter):
        return False
    if PLUS not in filter and HASH not in filter:
        return True
    # '#' is a whole level and the last one [MQTT-4.7.1-1]; '+' is a whole level, anywhere [MQTT-4.7.1-2].
    parts = filter.split(b"/")
    if parts[-1] == b"#":
        parts.pop()
    return all(part == b"+" or (PLUS not in part and HASH not in part) for part in parts)


def meet(one: bytes, other: bytes) -> bytes:
    """The filter that matches the topics which both of these filters match; b"" if there is no such topic."""
    if DOLLAR in (one[0], other[0]) and (one[0] in (HASH, PLUS) or other[0] in (HASH, PLUS)):
        return b""  # [MQTT-4.7.2-1]
    ones, others = one.split(b"/"), other.split(b"/")
    found: list[bytes] = []
    for depth in range(max(len(ones), len(others)) + 1):
        a = ones[depth] if depth < len(ones) else b""
        b = others[depth] if depth < len(others) else b""
        if depth == len(ones) or depth == len(others):
            both_end = len(ones) == len(others) or (a or b) == b"#"  # '#' includes the parent level
            return b"/".join(found) if both_end else b""
        if a == b"#":
            return b"/".join([*found, *others[depth:]])
        if b == b"#":
            return b"/".join([*found, *ones[depth:]])
        if a != b and b"+" not in (a, b):
            return b""
        found.append(b if a == b"+" else a)
    return b""


def check_filter(filter: bytes, version: int) -> None:
    """Raises ProtocolError for an invalid topic filter in SUBSCRIBE and UNSUBSCRIBE of protocol ``version``.

    It violates the protocol [MQTT-4.7.1-1] [MQTT-4.7.1-2] [MQTT-4.7.3-1], so the connection is closed [MQTT-4.13.1-1]
    (3.1.1: [MQTT-4.8.0-1]). 0x8F is for filters that are correctly formed (MQTT 5, 3.9.3). Only MQTT 5 has shared
    subscriptions; a 3.x client that names one incorrectly gets 0x80 in its SUBACK.
    """
    if not valid_filter(filter):
        raise ProtocolError("the topic filter is empty, or a wildcard is not a whole level")
    if version == 5 and filter.startswith(b"$share/"):
        try:
            parse_share(filter)
        except ValueError as error:
            raise ProtocolError(str(error)) from None  # [MQTT-4.8.2-1] [MQTT-4.8.2-2]


def valid_text(name: bytes) -> bool:
    """Whether a topic or filter is an MQTT string: UTF-8 [MQTT-1.5.4-1] without U+0000 [MQTT-1.5.4-2]."""
    if NUL in name:
        return False
    if name.isascii():
        return True
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def of_the_node(filter: bytes) -> bool:
    """Whether the filter matches topics that each node has for itself, and does not get from others."""
    return filter.startswith((b"$SYS/", b"$events/"))


def of_streams(topic: bytes) -> bool:
    """Whether clients read streams by filters like this topic."""
    return topic.startswith(OF_STREAMS)


def of_the_broker(topic: bytes) -> bool:
    """Whether no client publishes to it: it reads a stream, or has dead letters."""
    return topic.startswith((STREAM, QUEUE, DEAD))


def levels(topic: bytes) -> int:
    """Number of levels of a topic or filter; empty ones count, so ``b"/"`` has two."""
    return topic.count(b"/") + 1


def parse_share(filter: bytes) -> tuple[bytes, bytes] | None:
    """The group and the inner filter of ``$share/group/filter``; None for an ordinary filter.

    A filter whose first level is ``$share`` must be a shared subscription: ValueError says what is missing.
    ``valid_filter`` of the whole ensures the wildcards of the inner filter.
    """
    parts = filter.split(b"/", 2)
    if parts[0] != SHARE:
        return None
    if len(parts) < 2 or not parts[1]:
        raise ValueError("a shared subscription needs a group name after $share/ [MQTT-4.8.2-1]")
    if PLUS in parts[1] or HASH in parts[1]:
        raise ValueError("the group name of a shared subscription must not contain wildcards [MQTT-4.8.2-2]")
    if len(parts) < 3 or not parts[2]:
        raise ValueError("a shared subscription needs a topic filter after $share/group/ [MQTT-4.8.2-2]")
    return parts[1], parts[2]


def matches(filter: bytes, topic: bytes) -> bool:
    """The definition of matching, level by level; FilterTree and RetainedTree must agree with it.

    Both arguments are valid. Linear in their length: for one pair at a time, not for a scan over many filters.
    """
    wanted = filter.split(b"/")
    given = topic.split(b"/")
    if given[0].startswith(b"$") and (wanted[0] == b"+" or wanted[0] == b"#"):
        return False  # [MQTT-4.7.2-1]
    for depth, level in enumerate(wanted):
        if level == b"#":
            return True  # '#' includes the parent level, with which ``given`` may end
        if depth == len(given) or (level != b"+" and level != given[depth]):
            return False
    return len(given) == len(wanted)


def _valid_name(name: bytes) -> bool:
    """The common rules of topics and filters: at least one character [MQTT-4.7.3-1], no NUL [MQTT-4.7.3-2], not too
    long, and UTF-8 as Unicode defines it, hence without surrogates [MQTT-1.5.4-1]."""
    return 0 < len(name) <= MAX_LENGTH and valid_text(name)
