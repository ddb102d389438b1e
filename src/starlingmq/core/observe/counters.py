"""Counters of the broker: plain integers, read by ``$SYS``, metrics and tests."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

BUCKETS: Final = 24
"""Buckets of a Histogram: up to 1, 2, 4, ... microseconds; the last one for more than 4 seconds."""


class Histogram:
    """Durations, counted by powers of two. Adding one costs a few nanoseconds: fine once per turn."""

    counts: list[int]  # per bucket, not cumulative
    total: float  # seconds

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.total = 0.0

    def add(self, seconds: float) -> None:
        if seconds < 0.0:  # a difference of the clocks of two machines
            seconds = 0.0
        bucket: i64 = 0
        bound = 0.000001
        while seconds > bound and bucket < BUCKETS - 1:
            bound += bound
            bucket += 1
        self.counts[bucket] += 1
        self.total += seconds


DROPPERS_MAX: Final = 2000  # clients and reasons that are counted between two takes
NAME_CHARS_MAX: Final = 256  # of a client id or topic there: a client may choose 65,535 bytes, and go
DELAYS_MASK: Final = 15  # one of sixteen deliveries is measured


class OfListener:
    """Traffic of the closed connections of one listener."""

    published: int
    bytes_in: int
    bytes_out: int

    def __init__(self) -> None:
        self.published = 0
        self.bytes_in = 0
        self.bytes_out = 0

    def add(self, published: int, bytes_in: int, bytes_out: int) -> None:
        self.published += published
        self.bytes_in += bytes_in
        self.bytes_out += bytes_out

    def at_least(self, other: OfListener) -> None:
        self.published = max(self.published, other.published)
        self.bytes_in = max(self.bytes_in, other.bytes_in)
        self.bytes_out = max(self.bytes_out, other.bytes_out)


class Counters:
    """Totals since the start.

    ``dropped`` counts messages that were given up, by reason; ``errors`` connections that the broker ended, by reason;
    ``noted`` events after which a connection continues: ``another_user``, ``pubrel_unknown`` (a PUBREL of a handshake
    that no node knows), ``suback_timeout``, ``session_lost``, ``subscription_revoked``, ``publish_refused``,
    ``subscribe_refused``, ``nats`` (a NATS client was sent an error).
    """

    connections_opened: int
    connections_open: int
    clients_connected: int
    bytes_received: int
    bytes_sent: int
    publish_received: int
    publish_sent: int
    received_qos1: int  # of those
    received_qos2: int
    sent_qos1: int
    sent_qos2: int
    messages_queued: int
    retransmitted: int
    held_publishers: int
    forwards_sent: int  # messages forwarded to other nodes ...
    forwards_received: int  # ... and received from them
    forwards_doubled: int  # duplicates, which were ignored
    forwards_kept: int  # of those received: they had waited there while that node was not connected to this one
    forwards_unwanted: int  # sent because of a summary of filters, without a subscriber here
    stall_max_ms: float
    # from the first bytes of a turn to the last write: the time that its messages take through the broker
    turns: Histogram
    delays: Histogram  # from a message's arrival at this node until it is sent to a client, for some deliveries
    commits: Histogram  # from the end of a turn until its writes were stored, where the turn waited for that
    by_listener: dict[str, OfListener]  # of closed connections
    dropped: dict[str, int]
    droppers: dict[tuple[str, str], int]  # client id and reason -> dropped since the last take; "": further clients
    dropped_topics: dict[str, bytes]  # of the last ones of each of these clients, where the topic is known
    errors: dict[str, int]
    noted: dict[str, int]

    def __init__(self) -> None:
        self.connections_opened = 0
        self.connections_open = 0
        self.clients_connected = 0
        self.bytes_received = 0
        self.bytes_sent = 0
        self.publish_received = 0
        self.publish_sent = 0
        self.received_qos1 = 0
        self.received_qos2 = 0
        self.sent_qos1 = 0
        self.sent_qos2 = 0
        self.messages_queued = 0
        self.retransmitted = 0
        self.held_publishers = 0
        self.forwards_sent = 0
        self.forwards_received = 0
        self.forwards_doubled = 0
        self.forwards_kept = 0
        self.forwards_unwanted = 0
        self.stall_max_ms = 0.0
        self.turns = Histogram()
        self.delays = Histogram()
        self.commits = Histogram()
        self.by_listener = {}
        self.dropped = {}
        self.droppers = {}
        self.dropped_topics = {}
        self.errors = {}
        self.noted = {}

    def took_turn(self, seconds: float) -> None:
        self.turns.add(seconds)
        if seconds * 1000.0 > self.stall_max_ms:
            self.stall_max_ms = seconds * 1000.0

    def closed(self, listener: str, published: int, bytes_in: int, bytes_out: int) -> None:
        """A connection has ended."""
        found = self.by_listener.get(listener)
        if found is None:
            found = self.by_listener[listener] = OfListener()
        found.add(published, bytes_in, bytes_out)

    def drop(self, reason: str, count: int = 1) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + count

    def drop_of(self, client_id: str, reason: str, count: int, topic: bytes = b"") -> None:
        """As ``drop``, with the client that would have received the messages, or that published them. ``topic``: of the
        last one; empty: unknown."""
        self.dropped[reason] = self.dropped.get(reason, 0) + count
        droppers = self.droppers
        key = (client_id[:NAME_CHARS_MAX], reason)
        if key not in droppers and len(droppers) >= DROPPERS_MAX:
            key = ("", reason)
        droppers[key] = droppers.get(key, 0) + count
        if topic:
            self.dropped_about(key[0], topic)

    def dropped_about(self, name: str, topic: bytes) -> None:
        """The topic of the last message that was dropped for a client of ``droppers``."""
        if name in self.dropped_topics or len(self.dropped_topics) < DROPPERS_MAX:
            self.dropped_topics[name] = topic[:NAME_CHARS_MAX]

    def take_droppers(self) -> dict[tuple[str, str], int]:
        found = self.droppers
        self.droppers = {}
        self.dropped_topics = {}
        return found

    def note(self, reason: str) -> None:
        self.noted[reason] = self.noted.get(reason, 0) + 1

    def error(self, reason: str) -> None:
        self.errors[reason] = self.errors.get(reason, 0) + 1
