"""Simple reference models for the data structures of core/: the same results by linear scans."""

from __future__ import annotations

import itertools

from hypothesis import strategies as st

from starlingmq.core.messages.message import Message
from starlingmq.core.topics.topics import matches

# Few levels, so that filters match topics; some differ from others by bytes before and after the slash.
LEVELS = [b"", b"a", b"b", b"a-", b"a0", b" ", "é".encode(), b"$SYS"]

topics = st.lists(st.sampled_from(LEVELS), min_size=1, max_size=5).map(b"/".join).filter(bool)
filters = (
    st.tuples(st.lists(st.sampled_from([*LEVELS, b"+", b"+"]), max_size=4), st.sampled_from([*LEVELS, b"+", b"#"]))
    .map(lambda parts: b"/".join([*parts[0], parts[1]]))
    .filter(bool)
)

# Small enough to try every filter on every topic: up to three levels, with what sorts and matches in special ways.
SMALL_TOPICS = [
    b"/".join(parts) for depth in (1, 2, 3) for parts in itertools.product([b"", b"a", b"a-", b"$a"], repeat=depth)
][1:]
SMALL_FILTERS = [
    b"/".join([*parts, last])
    for depth in (0, 1, 2)
    for parts in itertools.product([b"", b"a", b"$a", b"+"], repeat=depth)
    for last in (b"", b"a", b"$a", b"+", b"#")
][1:]


class LinearFilters:
    """FilterTree as a scan over all filters."""

    def __init__(self) -> None:
        self.values: dict[tuple[bytes, object], object] = {}

    def add(self, filter: bytes, key: object, value: object) -> object | None:
        previous = self.values.get((filter, key))
        self.values[filter, key] = value
        return previous

    def remove(self, filter: bytes, key: object) -> object | None:
        return self.values.pop((filter, key), None)

    def match(self, topic: bytes) -> list[object]:
        return [value for (filter, _), value in self.values.items() if matches(filter, topic)]

    def filters(self) -> list[bytes]:
        return sorted({filter for filter, _ in self.values})


class LinearRetained:
    """RetainedTree as a dict."""

    def __init__(self) -> None:
        self.messages: dict[bytes, Message] = {}

    def put(self, message: Message) -> Message | None:
        previous = self.messages.get(message.topic)
        self.messages[message.topic] = message
        return previous

    def remove(self, topic: bytes) -> Message | None:
        return self.messages.pop(topic, None)

    def matching(self, filter: bytes) -> list[Message]:
        return [self.messages[topic] for topic in sorted(self.messages) if matches(filter, topic)]

    def total_bytes(self) -> int:
        return sum(message.size() for message in self.messages.values())


def retained(topic: bytes, payload: bytes = b"on") -> Message:
    """A retained message, of which only topic and payload matter."""
    return Message(topic, payload, 0, True, b"", 0.0, "", 0.0)
