"""Retained messages that are too large for etcd: the nodes that hold them, and fetching them on demand.

The node where a large message was published holds it, and sends copies to other nodes (``Keep``) on the peer links, so
each copy arrives once and is stored, even if its node was away. etcd stores the holders. A node that needs the payload
for a subscribing client asks the connected holders one after the other (``Fetch``), and caches the result while there
is room.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final

from starlingmq.cluster.retained.retained_records import (
    Fetch,
    Fetched,
    Keep,
    RetainedError,
    RetainedFrame,
    RetainedValue,
    decode_value,
    encode_value,
    message_of,
    value_of,
)
from starlingmq.core.broker import BrokerState
from starlingmq.core.context.ready import FACT_DELETE, FACT_PUT, Write
from starlingmq.core.context.retained_outbox import WantedPayload
from starlingmq.core.messages.message import Message

COPY_FACT: Final = b"rk"
"""Then the number of a node, a slash, a topic: the fact of a copy that is kept for that node."""

FETCH_SECONDS: Final = 2.0  # until the next holder is asked

CopyKey = tuple[bytes, int]  # topic, node where it was published


class Fetching:
    def __init__(self, pointer: RetainedValue, holders: list[int]) -> None:
        self.pointer = pointer
        self.left = holders  # to be asked next
        self.asked = 0
        self.deadline = inf
        self.waiting: list[WantedPayload] = []


class LargeRetained:
    """``connected``: whether a node is connected. ``covered``: whether a topic shows a message published here, so that
    newer records of etcd are not visible yet. ``send``: sends to a node. ``reached``: that of ``RetainedOutbox``."""

    fetched: int  # payloads received from other nodes
    fetches: int  # payloads requested from other nodes
    read: bool  # all earlier records of etcd were read: copies without a pointer are not needed

    def __init__(
        self,
        broker: BrokerState,
        connected: Callable[[int], bool],
        covered: Callable[[bytes], bool],
        send: Callable[[int, RetainedFrame], None],
        reached: dict[int, int],
        room: int,
    ) -> None:
        self.fetched = self.fetches = 0
        self.read = False
        self.pointers: dict[bytes, tuple[RetainedValue, int]] = {}  # topic -> value in etcd, its revision
        self._broker = broker
        self._ctx = broker.ctx
        self._connected = connected
        self._covered = covered
        self._send = send
        self._reached = reached
        self._room = room
        self._me = 0
        self._copies: dict[bytes, dict[int, RetainedValue]] = {}  # topic -> node where it was published -> copy
        self._doubtful: dict[CopyKey, None] = {}  # copies that differ from the record in etcd
        self._fetching: dict[bytes, Fetching] = {}
        self._cached: dict[bytes, int] = {}  # topic -> bytes; oldest first
        self._cached_bytes = 0

    def enter(self, me: int, facts: dict[bytes, bytes]) -> None:
        """This node's number is known. ``facts``: those whose keys begin with COPY_FACT."""
        self._me = me
        for key, fact in facts.items():
            origin, _, topic = key[len(COPY_FACT) :].partition(b"/")
            try:
                self._copies.setdefault(topic, {})[int(origin)] = decode_value(fact)
            except RetainedError:
                self._fact((topic, int(origin)), None)
                continue
            self._doubtful[topic, int(origin)] = None

    # Answers of etcd

    def point(self, topic: bytes, value: RetainedValue, revision: int) -> None:
        """The topic's message is at ``value.holders``. Shows the copy that is here, or a message without its
        payload."""
        self.pointers[topic] = (value, revision)
        self._uncache(topic)
        copy = self._copy((topic, value.origin))
        if copy is not None and copy.sequence == value.sequence:
            self._doubtful.pop((topic, value.origin), None)
            self._broker.publishing.retained.show(message_of(topic, copy))
        else:
            self._broker.publishing.retained.show(message_of(topic, value))
        self._look_at_copies(topic)

    def own(self, topic: bytes, value: RetainedValue, revision: int) -> None:
        """Like ``point``, for a message that was published here and is shown already."""
        self.pointers[topic] = (value, revision)
        self._uncache(topic)
        self._look_at_copies(topic)

    def forget(self, topic: bytes) -> None:
        """The topic has no message, or a small one."""
        self.pointers.pop(topic, None)
        self._uncache(topic)
        self._look_at_copies(topic)

    def _look_at_copies(self, topic: bytes) -> None:
        for origin in list(self._copies.get(topic, ())):
            self._look_at_copy((topic, origin))

    def _copy(self, key: CopyKey) -> RetainedValue | None:
        return self._copies.get(key[0], {}).get(key[1])

    def _look_at_copy(self, key: CopyKey) -> None:
        """Keeps a copy that etcd points to, or may point to: later, or already without this node's knowledge. Marks are
        read before topics. So while this node is reading, a node's mark does not imply that its pointers are known
        here."""
        copy = self._copy(key)
        pointer = self.pointers.get(key[0])
        if copy is None or (pointer is not None and _id(pointer[0]) == _id(copy)):
            self._doubtful.pop(key, None)
        elif self.read and copy.sequence <= self._reached.get(key[1], 0) and not self._covered(key[0]):
            self._doubtful.pop(key, None)
            del self._copies[key[0]][key[1]]
            if not self._copies[key[0]]:
                del self._copies[key[0]]
            self._fact(key, None)
        else:
            self._doubtful[key] = None

    def all_is_read(self) -> None:
        self.read = True
        self.marked()

    def marked(self) -> None:
        """Marks have advanced: more messages of other nodes are known here."""
        for key in list(self._doubtful):
            self._look_at_copy(key)

    def large_bytes(self) -> int:
        """The size of payloads that are here and not in etcd."""
        tree = self._broker.retained
        total = 0
        for topic in self.pointers:
            message = tree.get(topic)
            if message is not None and message.loaded:
                total += len(message.payload)
        return total

    def held_only_with(self, node: int) -> list[tuple[bytes, RetainedValue, int]]:
        """Messages that ``node`` holds, where this node is the first of the other holders."""
        found: list[tuple[bytes, RetainedValue, int]] = []
        for topic, (value, revision) in self.pointers.items():
            others = [holder for holder in value.holders if holder != node]
            if len(others) < len(value.holders) and others and others[0] == self._me:
                found.append((topic, value, revision))
        return found

    def whole(self, topic: bytes, value: RetainedValue) -> RetainedValue | None:
        """The message that ``value`` points to, or a later one of the same node, if it is here."""
        message = self._broker.retained.get(topic)
        own = message is not None and message.origin == value.origin == self._me
        if own and message is not None and message.sequence >= value.sequence:
            return value_of(message, ())
        copy = self._copy((topic, value.origin))
        if copy is not None and copy.sequence >= value.sequence:
            return copy
        pointer = self.pointers.get(topic)
        if message is None or not message.loaded or pointer is None or _id(pointer[0]) != _id(value):
            return None
        found = value_of(message, ())
        found.origin, found.sequence = value.origin, value.sequence
        return found

    # Messages between nodes

    def take(self, node: int, frame: RetainedFrame) -> None:
        if isinstance(frame, Keep):
            self._keep(frame.topic, frame.value)
        elif isinstance(frame, Fetch):
            wanted = RetainedValue(frame.origin, frame.sequence, 0, b"", "", 0.0, 0.0, b"")
            self._send(node, Fetched(frame.topic, frame.origin, frame.sequence, self.whole(frame.topic, wanted)))
        else:
            self._fetched_received(node, frame)

    def _keep(self, topic: bytes, value: RetainedValue) -> None:
        key = (topic, value.origin)
        earlier = self._copy(key)
        if value.origin == self._me or (earlier is not None and earlier.sequence >= value.sequence):
            return
        self._copies.setdefault(topic, {})[value.origin] = value
        self._fact(key, value)
        pointer = self.pointers.get(topic)
        if pointer is not None and _id(pointer[0]) == _id(value) and not self._covered(topic):
            self._uncache(topic)
            self._broker.publishing.retained.show(message_of(topic, value))
        else:
            self._look_at_copy(key)

    def _fact(self, key: CopyKey, value: RetainedValue | None) -> None:
        if self._ctx.recording:
            topic = b"%b%d/%b" % (COPY_FACT, key[1], key[0])
            if value is None:
                self._ctx.write(Write(FACT_DELETE, topic=topic))
            else:
                self._ctx.write(Write(FACT_PUT, topic=topic, value=encode_value(value)))

    # Fetching

    def want(self, wanted: WantedPayload, now: float) -> None:
        topic = wanted.topic
        pointer = self.pointers.get(topic)
        message = self._broker.retained.get(topic)
        if message is None or message.loaded or pointer is None:
            self._broker.subscribing.replays.came(wanted, message)
            return
        fetching = self._fetching.get(topic)
        if fetching is None or _id(fetching.pointer) != _id(pointer[0]):
            waiting = [] if fetching is None else fetching.waiting
            holders = [holder for holder in pointer[0].holders if holder != self._me]
            fetching = self._fetching[topic] = Fetching(pointer[0], holders)
            fetching.waiting = waiting
            self._ask_next(topic, fetching, now)
        fetching.waiting.append(wanted)

    def _ask_next(self, topic: bytes, fetching: Fetching, now: float) -> None:
        fetching.deadline = now + FETCH_SECONDS
        while fetching.left:
            fetching.asked = fetching.left.pop(0)
            if self._connected(fetching.asked):
                self.fetches += 1
                self._send(fetching.asked, Fetch(topic, fetching.pointer.origin, fetching.pointer.sequence))
                return
        fetching.asked = 0

    def _fetched_received(self, node: int, frame: Fetched) -> None:
        topic, value = frame.topic, frame.value
        fetching = self._fetching.get(topic)
        if fetching is None or (frame.origin, frame.sequence) != _id(fetching.pointer):
            return
        if value is None:
            if fetching.asked == node:
                self._ask_next(topic, fetching, self._ctx.now)
            return
        self.fetched += 1
        message = message_of(topic, value)
        pointer = self.pointers.get(topic)
        present = self._broker.retained.get(topic)
        if pointer is not None and _id(pointer[0]) == _id(value) and present is not None and not present.loaded:
            self._broker.publishing.retained.show(message)
            self._cache(topic, len(value.payload))
        self._finish(topic, fetching, message)

    def _finish(self, topic: bytes, fetching: Fetching, came: Message | None) -> None:
        """Waiting clients get the message that the topic retains now, or ``came``."""
        del self._fetching[topic]
        for wanted in fetching.waiting:
            message = self._broker.retained.get(topic)
            pointer = self.pointers.get(topic)
            if message is not None and not message.loaded:
                if came is None and pointer is not None and _id(pointer[0]) != _id(fetching.pointer):
                    self.want(wanted, self._ctx.now)
                    continue
                message = came
            self._broker.subscribing.replays.came(wanted, message)

    def look(self, now: float) -> None:
        """Asks the next holder if one does not answer; gives up if none is left."""
        for topic, fetching in list(self._fetching.items()):
            if fetching.asked and (now >= fetching.deadline or not self._connected(fetching.asked)):
                self._ask_next(topic, fetching, now)
            if not fetching.asked:
                self._finish(topic, fetching, None)

    def _cache(self, topic: bytes, size: int) -> None:
        self._cached[topic] = size
        self._cached_bytes += size
        for oldest in list(self._cached):
            if self._cached_bytes <= self._room or oldest == topic:
                break
            self._uncache(oldest)
            pointer = self.pointers.get(oldest)
            if pointer is not None and not self._covered(oldest):
                self._broker.publishing.retained.show(message_of(oldest, pointer[0]))

    def _uncache(self, topic: bytes) -> None:
        self._cached_bytes -= self._cached.pop(topic, 0)

    def wake_at(self) -> float:
        """When ``look`` has to be called without an event; ``inf``: never."""
        if not self._fetching:
            return inf
        return min([fetching.deadline for fetching in self._fetching.values()])


def _id(value: RetainedValue) -> tuple[int, int]:
    return value.origin, value.sequence
