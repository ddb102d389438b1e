"""A publisher whose messages are numbered, as pure state: bytes in, bytes out; see ``core.publish.producers`` for the
protocol.

    connection_made()        -> CONNECT is in ``take()``
    receive(data)            CONNACK contains how many messages the broker has: those are not sent again
    offer(topic, ...)        the next message of the epoch; the same messages in the same order at each attempt
    finish()                 no message follows; ``done`` when everything is acknowledged

What the broker has, and this attempt does not publish, is an error, since it would be left out silently: messages after
the last one, and a later epoch.

Invariant: message n is sent only after all earlier messages were sent on this connection or are known to be at the
broker; it is forgotten when it is acknowledged. Unacknowledged messages are sent again on the next connection. An
attempt can therefore be interrupted anywhere and repeated, by this or another process, as long as it offers the same
messages to the same broker.

All messages have one QoS: a QoS 2 message is counted later than a QoS 1 message that was sent after it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from starlingmq.client.client_frames import Frames
from starlingmq.client.errors import explain
from starlingmq.wire.mqtt import ack_frame, decode, encode, publish_frame
from starlingmq.wire.packets import CONNACK, DISCONNECT, PINGRESP, Connack, Connect, Disconnect, Pingreq
from starlingmq.wire.producer_properties import ALSO, DIGEST, EPOCH, NEXT, NODE, PRODUCER, digest_of
from starlingmq.wire.properties import MAXIMUM_PACKET_SIZE, RECEIVE_MAXIMUM, USER_PROPERTY, Properties
from starlingmq.wire.reasons import Reason

WINDOW: Final = 10_000  # messages in flight
DONE: Final = "done"  # instead of a number: the broker is at a later epoch


class ProducerError(Exception):
    """The messages cannot be published, and a retry does not help. One line."""


class LaterEpoch(ProducerError):
    """The broker has messages of a later epoch."""


class NotAccepted(Exception):
    """The broker does not accept messages at present; another connection may help. One line."""


Row = tuple[bytes, bytes, bool, bytes, int]  # topic, payload, retain, properties, digest up to here


class ProducerState:
    def __init__(
        self,
        name: str,
        epoch: int,
        qos: int,
        username: str | None = None,
        password: bytes | None = None,
        window: int = WINDOW,
        node: str = "",
        also: Sequence[str] = (),
    ) -> None:
        """``node``: the node to publish to; "": the first one that answers, and only that one afterwards. ``also``:
        producers of the same user and epoch; ``others`` are those of them of which the broker has messages.
        """
        self.name = name
        self.node = node
        self.epoch = epoch
        self.qos = qos
        self.connected = False
        self.skipped = 0  # messages that the broker already had
        self.published = 0
        self.others: set[str] = set()
        self._also = tuple(also)
        self._credentials = (username, password)
        self._window_max = self._window = window
        self._packet_max = 0
        self._sent: deque[Row] = deque()  # sent on this connection and not acknowledged
        self._waiting: deque[Row] = deque()
        self._first = 0  # number of the first message in ``_sent``
        self._known = 0  # messages that the broker has, as it last reported ...
        self._known_digest = 0  # ... and the digest over them
        self._digest = 0  # over all offered messages
        self._finished = False
        self._flushed = False  # QoS 0 has no acknowledgement: a later answer replaces it
        self._out: list[bytes] = []
        self._frames = Frames()

    @property
    def known(self) -> int:
        """Messages of this epoch that the broker has, as it last reported."""
        return self._known

    @property
    def offered(self) -> int:
        return self._first + len(self._sent) + len(self._waiting)

    @property
    def done(self) -> bool:
        """Whether the broker has everything that was offered."""
        return self._finished and not self._sent and not self._waiting and (self.qos != 0 or self._flushed)

    @property
    def room(self) -> bool:
        """Whether more may be offered: memory is bounded by twice the window."""
        return len(self._waiting) < self._window_max

    # The connection

    def connection_made(self) -> None:
        username, password = self._credentials
        also = [(ALSO, name) for name in self._also]
        properties: Properties = {USER_PROPERTY: [(PRODUCER, self.name), (EPOCH, str(self.epoch)), *also]}
        self._frames = Frames()
        self._out = [encode(Connect(5, "", True, 0, username, password, None, properties), 5)]
        self._flushed = False

    def connection_lost(self) -> None:
        """Unacknowledged messages wait again, before all others."""
        self.connected = False
        self._out = []
        self._waiting.extendleft(reversed(self._sent))
        self._sent.clear()

    def take(self) -> bytes:
        """Return the bytes to write now."""
        data = b"".join(self._out)
        self._out = []
        return data

    def receive(self, data: bytes) -> None:
        """Raises ProducerError, NotAccepted; MqttError for invalid bytes."""
        for first, whole, start, end in self._frames.feed(data):
            kind = first >> 4
            if not self.connected and kind not in (CONNACK, DISCONNECT):
                raise NotAccepted("no MQTT broker answers there; name the port of a listener for MQTT clients")
            if kind in (4, 5, 7):
                packet_id = whole[start] << 8 | whole[start + 1]
                self._acknowledged(kind, packet_id, whole[start + 2] if end - start > 2 else 0)
            elif kind == CONNACK:
                connack = decode(first, whole, start, end, 5)
                assert isinstance(connack, Connack)
                self._accepted(connack)
            elif kind == PINGRESP:
                self._flushed = True
            elif kind == DISCONNECT:
                packet = decode(first, whole, start, end, 5)
                assert isinstance(packet, Disconnect)
                raise NotAccepted(f"the broker closed the connection: {explain(packet.reason, packet.properties)}")
        self._pump()

    def _accepted(self, connack: Connack) -> None:
        if connack.reason:
            text = f"the broker refused the connection: {explain(connack.reason, connack.properties)}"
            if connack.reason in (Reason.BAD_USER_NAME_OR_PASSWORD, Reason.NOT_AUTHORIZED, Reason.BANNED):
                raise ProducerError(text)
            raise NotAccepted(text)
        found = connack.properties.get(USER_PROPERTY)
        pairs = [pair for pair in found if isinstance(pair, tuple)] if isinstance(found, list) else []
        said = dict(pairs)
        if NEXT not in said or DIGEST not in said:
            raise ProducerError(
                "the broker does not support producers, so duplicates cannot be detected; use a StarlingMQ broker"
            )
        node = said.get(NODE, "")
        if self.node and node != self.node:
            raise NotAccepted(
                f"this is node {node or '(unnamed)'}, but {self.node} stores the sequence numbers of "
                f"{self.name}; connect to that node"
            )
        self.node = node
        window = connack.properties.get(RECEIVE_MAXIMUM, 65_535)
        self._window = min(self._window_max, window if isinstance(window, int) else 65_535)
        packet_max = connack.properties.get(MAXIMUM_PACKET_SIZE, 0)
        self._packet_max = packet_max if isinstance(packet_max, int) else 0
        if said[NEXT] == DONE:
            raise LaterEpoch(
                f"{self.name}: the broker has messages of a later batch than {self.epoch}, so those of this one that "
                "are missing cannot be determined"
            )
        others = [value.partition(" ") for name, value in pairs if name == ALSO]
        self.others = {name for number, _, name in others if number != "0"}
        self._known = int(said[NEXT])
        self._known_digest = int(said[DIGEST], 16)
        if self._known < self._first:
            raise ProducerError(
                f"the broker has {self._known} messages of {self.name}, but had acknowledged "
                f"{self._first}; its data has been lost or replaced"
            )
        while self._waiting and self._first < self._known:
            row = self._waiting.popleft()
            self._first += 1
            self._check(self._first, row[4])
        self.connected = True

    def _check(self, count: int, digest: int) -> None:
        """Check that the first ``count`` messages, with this digest, are those that the broker has."""
        if count == self._known and digest != self._known_digest:
            raise ProducerError(
                f"the first {count} messages of {self.name} differ from those published at an earlier "
                "attempt, so the missing ones cannot be determined; a retry must publish the same "
                "messages in the same order"
            )

    # Messages

    def offer(self, topic: bytes, payload: bytes, retain: bool, properties: bytes) -> None:
        """Raises ProducerError."""
        self._digest = digest_of(self._digest, topic, payload, retain)
        if self._first < self._known:
            self._first += 1
            self.skipped += 1
            self._check(self._first, self._digest)
            return
        self._waiting.append((topic, payload, retain, properties, self._digest))

    def pump(self) -> None:
        """Encode the messages that may be sent now, for ``take``."""
        if self.connected:
            self._pump()

    def finish(self) -> None:
        """Raises ProducerError."""
        self._finished = True
        if self._known > self.offered:
            raise ProducerError(
                f"{self.name}: an earlier attempt published {self._known} messages, this one has {self.offered}; a "
                "retry must publish the same messages in the same order"
            )
        self.pump()

    def _pump(self) -> None:
        waiting, sent, out = self._waiting, self._sent, self._out
        number = self._first + len(sent)
        for _ in range(min(len(waiting), self._window - len(sent)) if self.qos else len(waiting)):
            row = waiting.popleft()
            topic, payload, retain, properties, _ = row
            packet_id = number % 65_535 + 1 if self.qos else 0
            frame = publish_frame(topic, payload, self.qos, retain, False, packet_id, 5, properties)
            if self._packet_max and len(frame) > self._packet_max:
                raise ProducerError(
                    f"a message to {topic.decode()} needs a packet of {len(frame)} bytes, but the broker "
                    f"accepts at most {self._packet_max} (limits.max_packet_size)"
                )
            out.append(frame)
            number += 1
            if self.qos:
                sent.append(row)
            else:
                self._first += 1
                self.published += 1
        if self._finished and self.qos == 0 and not self._flushed:
            out.append(encode(Pingreq(), 5))

    def _acknowledged(self, kind: int, packet_id: int, reason: int) -> None:
        index = (packet_id - 1 - self._first) % 65_535
        if index >= len(self._sent):
            raise NotAccepted(f"the broker acknowledged packet {packet_id}, which is not in flight")
        if reason >= 0x80:
            self._refused(index, reason)
        if kind == 5:
            self._out.append(ack_frame(0x62, packet_id))
            return
        if index:
            raise NotAccepted(f"the broker acknowledged packet {packet_id} before earlier ones")
        self._sent.popleft()
        self._first += 1
        self.published += 1

    def _refused(self, index: int, reason: int) -> None:
        topic = self._sent[index][0].decode()
        text = f"message {self._first + index} of {self.name}, to {topic}, was refused: {explain(reason)}"
        if reason == Reason.PAYLOAD_FORMAT_INVALID:
            raise ProducerError(f"{text}: another message was published with this number, or a later batch has begun")
        if reason in (Reason.NOT_AUTHORIZED, Reason.TOPIC_NAME_INVALID, Reason.RETAIN_NOT_SUPPORTED):
            raise ProducerError(text)
        raise NotAccepted(text)
