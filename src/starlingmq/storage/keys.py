"""The keys of the key-value store: every layout there is, and the only file that knows them.

A change that an older program would misread raises the layout of the data directory (see ``data_dir``), which every
program checks before it opens anything. Numbers in keys are big-endian, so that the order of keys
is that of numbers. A session has a number, given once and never again, in place of its client id: its keys are short,
and a session that ends and begins anew can not find what is left of the old one.

| key | value |
|---|---|
| ``m`` name | one fact about the whole store |
| ``s`` session (u64) | the session: client id, expiry, will ... |
| ``u`` session (u64) filter | a subscription |
| ``h`` session (u64) | what it holds: queue (references into the journal), window, inbound handshakes |
| ``r`` topic | a retained message |
| ``f`` key | a fact that the cluster's state machines want kept: theirs to understand |

Filters and topics are their UTF-8 bytes as on the wire. Values are encoded in session_values.py and, for messages,
records.py.
"""

from __future__ import annotations

from typing import Final

from starlingmq.storage.kv import prefix_end

META_CHECKPOINT: Final = b"mcheckpoint"
"""The journal offset from which on the journal has to be replayed over what the store says."""

META_AS_OF: Final = b"masof"
"""The highest journal offset that anything in the store was true as of: the journal must go on from there at least."""

META_NEXT_SESSION: Final = b"msession"
"""The least session number that was never given."""

META_HIGHEST: Final = b"mhighest"
"""The sequence of the last message from each other node of the cluster (MessagePack: number of the node, sequence)."""

META_STREAMS: Final = b"mstreams"
"""The next offset of each stream as of the checkpoint (MessagePack: number of the stream, offset)."""

SESSION: Final = b"s"
SUBSCRIPTION: Final = b"u"
HOLDINGS: Final = b"h"
RETAINED: Final = b"r"
FACT: Final = b"f"

_HEAD: Final = 9  # a letter and a session number


class UnknownKey(ValueError):
    """A key of none of the layouts: the store is damaged, or of a layout that we do not know."""


def session_key(session: int) -> bytes:
    return SESSION + session.to_bytes(8, "big")


def subscription_key(session: int, filter: bytes) -> bytes:
    return SUBSCRIPTION + session.to_bytes(8, "big") + filter


def holdings_key(session: int) -> bytes:
    return HOLDINGS + session.to_bytes(8, "big")


def retained_key(topic: bytes) -> bytes:
    return RETAINED + topic


def fact_key(key: bytes) -> bytes:
    return FACT + key


def session_of(key: bytes) -> int:
    """The session that a key of sessions, subscriptions, queues, windows or handshakes belongs to."""
    if len(key) < _HEAD:
        raise UnknownKey(f"key {key!r} does not name a session")
    return int.from_bytes(key[1:_HEAD], "big")


def filter_of(key: bytes) -> bytes:
    """The filter in a subscription's key."""
    return key[_HEAD:]


def topic_of(key: bytes) -> bytes:
    """The topic in a retained message's key."""
    return key[1:]


def all_of(kind: bytes) -> tuple[bytes, bytes | None]:
    """Start and end of a scan over everything of a kind, in order of sessions or topics."""
    return kind, prefix_end(kind)


def all_of_session(kind: bytes, session: int) -> tuple[bytes, bytes | None]:
    """Start and end of a scan over the subscriptions or the queue of one session.

    A queue whose head moves on should be scanned from its head's key instead: the keys deleted before it cost as much
    as keys that are there.
    """
    prefix = kind + session.to_bytes(8, "big")
    return prefix, prefix_end(prefix)
