"""Selection of a member of a shared group: strategies by name, and the conditions for giving a member a message now."""

from __future__ import annotations

from typing import Final

from starlingmq.core.connection import WORKING
from starlingmq.core.message import Message
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
ROOM_LOOKS: Final = 256  # members that are asked for room; the others are assumed to be alike


class Room:
    """The capacity of the members on another node, as far as this node knows."""

    subscription: Subscription  # of that node
    online: int
    given: int
    left: int

    def __init__(self, subscription: Subscription, online: int, left: int) -> None:
        self.subscription = subscription
        self.online = online
        self.given = left
        self.left = left


def takes(member: Subscription, session: Session, client: Client, message: Message, write_buffer: int) -> bool:
    """Whether a connected member can take a message now."""
    if client.blocked or client.size > write_buffer:
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


def in_flight(session: Session) -> int:
    """Unacknowledged messages of a member; for one that does not acknowledge, KiB that it has not read."""
    window = session.window
    if window is not None:
        return len(window.entries)
    client = session.client
    return 0 if client is None else client.size >> 10
