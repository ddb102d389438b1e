"""An application message inside the broker, independent of the packet that brought it.

All receivers, queues and windows share one Message. It does not change after its creation, except for cached encodings
for the next receiver of the same kind.
"""

from __future__ import annotations

from mypy_extensions import mypyc_attr


@mypyc_attr(acyclic=True)
class Message:
    """One published application message.

    ``topic`` is UTF-8 encoded and valid; ``properties`` are the encoded MQTT 5 properties that a server forwards
    unaltered, in order, without the length prefix; ``expires_at`` is broker time in seconds, 0.0 means never;
    ``publisher`` is the client id it came from ("" for the broker itself), ``published_at`` broker time in seconds.
    """

    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    properties: bytes
    expires_at: float
    publisher: str
    published_at: float
    head: bytes  # frame parts around the packet id, as last sent ...
    tail: bytes
    offset: int  # offset in the store; -1: not stored yet
    loaded: bool  # False: only ``offset`` is known, and the rest must be read first
    shape: int  # ... and to what kind of receiver: see core.delivery.delivery; -1: to none yet
    octets: int  # see ``size``
    origin: int  # in a cluster: number of the node where it entered; 0: here; -1: see core.context.retained_outbox
    sequence: int  # ... and its number among the messages that entered there (rising, also over restarts)
    number: int  # the last part of ``id`` if it was given by this process and has no mark; else 0
    id: bytes  # the id that events use on all nodes (core.observe.audit); b"": none

    def __init__(
        self,
        topic: bytes,
        payload: bytes,
        qos: int,
        retain: bool,
        properties: bytes,
        expires_at: float,
        publisher: str,
        published_at: float,
    ) -> None:
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.properties = properties
        self.expires_at = expires_at
        self.publisher = publisher
        self.published_at = published_at
        self.octets = len(topic) + len(payload) + len(properties)
        self.head = b""
        self.tail = b""
        self.offset = -1
        self.loaded = True
        self.shape = -1
        self.origin = 0
        self.sequence = 0
        self.number = 0
        self.id = b""

    @staticmethod
    def at(offset: int) -> Message:
        """A message of which only the offset in the store is known."""
        message = Message(b"", b"", 0, False, b"", 0.0, "", 0.0)
        message.offset = offset
        message.loaded = False
        return message

    def copy(self) -> Message:
        """The same message, not stored yet."""
        message = Message(
            self.topic,
            self.payload,
            self.qos,
            self.retain,
            self.properties,
            self.expires_at,
            self.publisher,
            self.published_at,
        )
        message.origin = self.origin
        message.sequence = self.sequence
        message.number = self.number
        message.id = self.id
        return message

    def expired(self, now: float) -> bool:
        return self.expires_at != 0.0 and self.expires_at <= now

    def expiry_property(self, now: float) -> bytes:
        """Message Expiry Interval with the remaining time, in whole seconds [MQTT-3.3.2-6]."""
        left = max(0, int(self.expires_at - now + 0.999))
        return bytes((2, left >> 24 & 255, left >> 16 & 255, left >> 8 & 255, left & 255))

    def size(self) -> int:
        """Bytes of topic, payload and properties, as limits and ``total_bytes`` count them."""
        return self.octets
