"""Selection of a member of a shared group: strategies by name, and the conditions for giving a member a message now."""

from __future__ import annotations

from typing import Final

from starlingmq.core.messages.message import Message
from starlingmq.core.session.connection import WORKING
from starlingmq.core.session.session import Client, Session, Subscription

STRATEGIES: Final = (
    "random",
    "round_robin",
    "sticky",
    "hash_topic",
    "hash_client",
    "least_inflight",
    "local_first",
)
# their indexes in STRATEGIES; each one Final, so that it is a constant in compiled code
RANDOM: Final = 0
ROUND_ROBIN: Final = 1
STICKY: Final = 2
HASH_TOPIC: Final = 3
HASH_CLIENT: Final = 4
LEAST_INFLIGHT: Final = 5
LOCAL_FIRST: Final = 6

LOOKS_MAX: Final = 64  # members that are compared to find the least busy one
ROOM_MAX: Final = 1024  # messages that a member without a window may be promised at once
ID_SIZE: Final = 5  # bytes of a Subscription Identifier in a PUBLISH, at most
ANY_SIZE: Final = 1 << 32  # in place of a Maximum Packet Size: there is none
ENOUGH: Final = 32  # more bytes than a PUBLISH adds to a message, without Subscription Identifiers

ROOM_LOOKS: Final = 256  # members that are asked for room; the others are assumed to be alike


class Room:
    """The capacity of the members on another node, as far as this node knows."""

    subscription: Subscription  # of that node
    online: int
    given: int
    left: int
    limit: int  # the largest Maximum Packet Size of those that are online, or ANY_SIZE; 0: unknown
    growth: int  # by how much their windows may grow

    def __init__(self, subscription: Subscription, online: int, left: int, limit: int = 0, growth: int = 0) -> None:
        self.subscription = subscription
        self.online = online
        self.given = left
        self.left = left
        self.limit = limit
        self.growth = growth

    def accepts(self, message: Message) -> bool:
        """Whether one of the members there accepts a message of this size, whatever its Subscription Identifier. If
        that is not known (that node or the primary is of an earlier version), only messages that entered here may go
        there: others would travel in circles."""
        if self.limit == 0:
            return message.origin == 0
        return self.limit == ANY_SIZE or publish_size(message, len(message.topic), ID_SIZE, 1) <= self.limit


def takes(member: Subscription, session: Session, client: Client, message: Message, write_buffer: int) -> bool:
    """Whether a connected member can take a message now."""
    if client.blocked or client.size > write_buffer:
        return False
    if client.max_packet != 0 and not accepts(client, member, message):
        return False
    if client.protocol_handler is not None:
        if client.halted & WORKING:  # it waits for other nodes, and its acknowledgements are not read
            return False
        return client.protocol_handler.echoes() or message.publisher != client.client_id
    queue = session.queue
    if queue is not None and len(queue) != 0:
        return False
    if message.qos != 0 and member.qos != 0:
        window = session.window
        return window is None or not window.full()
    return True


def accepts(client: Client, member: Subscription, message: Message) -> bool:
    """Whether the PUBLISH by which ``Delivery.frame`` sends a message now is within the Maximum Packet Size of a
    connected member [MQTT-3.1.2-24]."""
    limit = client.max_packet
    more = len(member.ids)
    if limit == 0 or message.octets + more + ENOUGH <= limit:
        return True
    topic = len(message.topic)
    aliases = client.aliases_out
    if aliases is not None and message.topic in aliases:
        topic = 0
        more += 3
    return publish_size(message, topic, more, message.qos if message.qos < member.qos else member.qos) <= limit


def publish_size(message: Message, topic: int, more: int, qos: int) -> int:
    """Bytes of a message as PUBLISH of MQTT 5. ``topic``: bytes of the topic in it; ``more``: bytes of properties that
    are added for the receiver."""
    properties = len(message.properties) + more
    if message.expires_at != 0.0:
        properties += 5
    size = 2 + topic + _varint_size(properties) + properties + len(message.payload)
    if qos != 0:
        size += 2
    return 1 + _varint_size(size) + size


def _varint_size(number: int) -> int:
    if number < 128:
        return 1
    if number < 16384:
        return 2
    return 3 if number < 2097152 else 4


def in_flight(session: Session) -> int:
    """Unacknowledged messages of a member; for one that does not acknowledge, KiB that it has not read."""
    window = session.window
    if window is not None:
        return len(window.entries)
    client = session.client
    return 0 if client is None else client.size >> 10
