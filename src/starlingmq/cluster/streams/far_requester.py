"""A client of another node, as the home of a stream knows it."""

from __future__ import annotations

from starlingmq.cluster.streams.frame_outbox import FrameOutbox
from starlingmq.cluster.streams.stream_frames import Shown
from starlingmq.core.jetstream.nats_replies import NatsReplies
from starlingmq.core.jetstream.requesters import Requester
from starlingmq.core.messages.message import Message
from starlingmq.wire.nats_frames import message_head, message_tail
from starlingmq.wire.nats_subjects import subject_of


class FarRequester(Requester):
    """Whether it is subscribed is not known here, but nothing is sent while its node is not reached."""

    def __init__(self, node: int, client_id: str, outbox: FrameOutbox, replies: NatsReplies) -> None:
        super().__init__(client_id)
        self.node = node
        self.ended = False
        self._outbox = outbox
        self._replies = replies

    def is_gone(self) -> bool:
        return self.ended

    def listens(self, topic: bytes) -> bool:
        return not self.ended and self._outbox.reaches(self.node)

    def answer(self, topic: bytes, payload: bytes, stored: bool) -> None:
        self._show(topic, b"", payload, stored)

    def send(self, topic: bytes, headers: bytes, payload: bytes) -> None:
        if topic:
            self._show(topic, headers, payload, False)

    def _show(self, topic: bytes, headers: bytes, payload: bytes, stored: bool) -> None:
        head = message_head(subject_of(topic))
        shown = Shown(self.client_id, topic, head, message_tail(b"", headers, payload), len(payload))
        if headers:
            shown.head = b"H" + head
        self._outbox.add(self.node, shown, stored)

    def give(self, topic: bytes, message: Message, reply: bytes) -> None:
        self._pass_on(self._replies.shaped(topic, message, reply))

    def tell(self, topic: bytes, block: bytes, reply: bytes) -> None:
        self._pass_on(self._replies.shaped_status(topic, block, reply))

    def _pass_on(self, message: Message) -> None:
        self._outbox.add(self.node, shown_of(message, self.client_id))

    def has_no_responders(self, topic: bytes) -> None:
        self._outbox.add(self.node, Shown(self.client_id, topic, b"", b"", 0))

    def leave(self) -> None:
        self.ended = True
        super().leave()


def shown_of(message: Message, client_id: str, group: bytes = b"") -> Shown:
    """A message in the shape of NATS clients. ``client_id`` "": for all subscribers, also those of MQTT."""
    properties = b"" if client_id else message.properties
    return Shown(client_id, message.topic, message.head, message.tail, len(message.payload), group, properties)
