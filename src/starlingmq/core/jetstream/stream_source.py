"""A stream as its consumers see it."""

from __future__ import annotations

from typing import Final

from starlingmq.core.jetstream.requesters import Requester
from starlingmq.core.messages.message import Message
from starlingmq.core.router.router import Router
from starlingmq.core.streams.consumer_source import ConsumerSource
from starlingmq.core.streams.message_index import TopicSelection
from starlingmq.core.streams.sequenced_stream import SequencedStream
from starlingmq.wire.reasons import MqttError

SELECTIONS_MAX: Final = 1024  # that are remembered, by their filters


class StreamSource(ConsumerSource):
    """``first`` and ``last`` are set before a consumer is asked to do something. Messages that are not stored yet are
    not there."""

    def __init__(self, stream: SequencedStream, router: Router) -> None:
        self.stream = stream
        self.router = router
        self._selections: dict[bytes, TopicSelection] = {}
        self.look()

    def look(self) -> None:
        """Set the bounds as they are now."""
        stream = self.stream
        self.first = stream.index.first
        self.last = stream.index.last if stream.log is None else min(stream.index.last, stream.log.stored() - 1)

    def selection(self, filters: list[bytes]) -> TopicSelection:
        key = b"\0".join(filters)
        found = self._selections.get(key)
        if found is None:
            if len(self._selections) >= SELECTIONS_MAX:
                self._selections = {}
            found = self._selections[key] = TopicSelection(filters)
        return found

    def message(self, sequence: int) -> Message | None:
        """Raises OSError."""
        return self.stream.message(sequence)

    def next_from(self, sequence: int, filters: list[bytes]) -> int:
        found = self.stream.index.next_of(sequence, self.selection(filters))
        return found if found <= self.last else 0

    def waiting(self, sequence: int, filters: list[bytes]) -> int:
        index = self.stream.index
        selection = self.selection(filters)
        beyond = index.waiting(self.last + 1, selection) if self.last < index.last else 0
        return index.waiting(sequence, selection) - beyond

    def last_matching(self, filters: list[bytes]) -> int:
        return max([each.last for each in self.stream.index.matching(self.selection(filters))], default=0)

    def last_of_each(self, filters: list[bytes]) -> list[int]:
        return sorted([each.last for each in self.stream.index.matching(self.selection(filters))])

    def first_since(self, time: float) -> int:
        return self.stream.index.since(time)

    def listens(self, reply: bytes, requester: object) -> bool:
        if not reply:
            return True  # a work queue of MQTT asks for its members
        if isinstance(requester, Requester):
            return requester.listens(reply)
        try:
            route = self.router.resolve(reply)
        except MqttError:
            return False
        for subscription in route.subscriptions:
            node = subscription.session.node
            if node == 0 or node not in self.router.unreached:
                return True
        return len(route.groups) != 0
