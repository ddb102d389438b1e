"""The keys of the key-value store: all layouts, in the only file that knows them.

A change that an older program would misread raises the layout number of the data directory (see ``data_dir``), which
each program checks before it opens anything. Numbers in keys are big-endian, so that the order of keys is that of
numbers. A session is identified by a number, never reused, in place of its client id: keys are short, and a session
that ends and begins again cannot find remains of the old one.

| key | value |
|---|---|
| ``m`` name | one fact about the whole store |
| ``s`` session (u64) | the session: client id, expiry, will ... |
| ``u`` session (u64) filter | a subscription |
| ``h`` session (u64) | its holdings: queue (references into the journal), window, inbound handshakes |
| ``r`` topic | a retained message |
| ``f`` key | a fact of the cluster's state machines, opaque to the store |

Filters and topics are their UTF-8 bytes as on the wire. Values are encoded in session_values.py and, for messages,
records.py.
"""

from __future__ import annotations

from typing import Final

from starlingmq.storage.kv import prefix_end

META_CHECKPOINT: Final = b"mcheckpoint"
"""The journal offset from which a start replays the journal on top of the checkpoint."""

META_AS_OF: Final = b"masof"
"""The highest journal offset as of which anything in the store was true. The journal must continue at this offset at
least."""

META_NEXT_SESSION: Final = b"msession"
"""The lowest session number that was never used."""

META_HIGHEST: Final = b"mhighest"
"""The sequence of the last message from each other node of the cluster (MessagePack: number of the node, sequence)."""

META_STREAMS: Final = b"mstreams"
"""The next offset of each stream as of the checkpoint (MessagePack: number of the stream, offset)."""

SESSION: Final = b"s"
SUBSCRIPTION: Final = b"u"
HOLDINGS: Final = b"h"
RETAINED: Final = b"r"
FACT: Final = b"f"

META_COPY: Final = b"mcopy"
"""With copies on other nodes: the state of this store (MessagePack: generation, number of the batch in it). Two stores
with the same mark have the same content."""

_HEAD: Final = 9  # a letter and a session number


class UnknownKey(ValueError):
    """A key of no known layout: the store is damaged, or was written by a newer program."""


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
    """The session to which a key of a session, a subscription or holdings belongs."""
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

    A queue whose head moves on should be scanned from the key of its head: deleted keys before it cost as much as
    present ones.
    """
    prefix = kind + session.to_bytes(8, "big")
    return prefix, prefix_end(prefix)
