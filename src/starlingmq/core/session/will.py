"""A will: the message a client leaves behind, and how long to wait before it is published."""

from __future__ import annotations

from starlingmq.core.connection import Client
from starlingmq.core.message import Message


class Will:
    """``message.expires_at`` is unset until it is published: the expiry interval counts from then [MQTT-3.1.3.2.4].

    ``delay`` is the Will Delay Interval and ``expiry`` the Message Expiry Interval, both in seconds (-1: none);
    ``client`` is the connection that left it, under whose rights it is published. ``id`` tells this will apart from all
    others of this node, in a cluster; 0: there was none. ``granted``: its client had rules of its own, which
    are not kept. ``epoch`` is that of the connection, in which this node owned the client id.
    """

    message: Message
    delay: int
    expiry: int
    client: Client
    id: int
    granted: bool
    epoch: int

    def __init__(
        self,
        message: Message,
        delay: int,
        expiry: int,
        client: Client,
        id: int = 0,
        granted: bool = False,
        epoch: int = 0,
    ) -> None:
        self.message = message
        self.delay = delay
        self.expiry = expiry
        self.client = client
        self.id = id
        self.granted = granted
        self.epoch = epoch
