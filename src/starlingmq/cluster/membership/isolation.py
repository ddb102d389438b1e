"""Disconnects the clients of an isolated node after a while, because another node may serve them.

::

    SERVING --quorum lost--> WAITING --``seconds``--> SENDING --all are gone--> WAITING
       ^------------------------'-------- a quorum --------------'

Invariant: a node that has not served for ``seconds`` keeps no MQTT connection open. An MQTT 5 client gets DISCONNECT
with 0x9C; a 3.x connection is closed. Their sessions stay here, and the node that a client connects to next takes its
session over later.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Final

from starlingmq.core.broker import BrokerState
from starlingmq.core.context.context import ISOLATED
from starlingmq.core.session.connection import CLOSED
from starlingmq.core.session.session import Client
from starlingmq.wire.reasons import Reason

TICK: Final = 0.1  # seconds between two batches


class Isolation:
    """``seconds``: how long clients stay connected, 0.0: without limit. ``rate``: disconnected clients per second."""

    sent_away: int  # clients disconnected so far

    def __init__(self, broker: BrokerState, seconds: float, rate: int) -> None:
        self.sent_away = 0
        self._broker = broker
        self._ctx = broker.ctx
        self._seconds = seconds
        self._rate = rate
        self._due_at = inf  # when the next clients are disconnected
        self._clients: deque[Client] = deque()

    def turn(self, serving: bool, now: float) -> None:
        if serving or self._seconds == 0.0:
            self._due_at = inf
            self._clients.clear()
            return
        if self._due_at == inf:
            self._due_at = now + self._seconds
        if now < self._due_at:
            return
        if not self._clients:
            sessions = self._ctx.sessions.values()
            clients = [session.client for session in sessions if session.client is not None]
            self._clients.extend([client for client in clients if client.protocol_handler is None and not client.link])
        for _ in range(max(1, int(self._rate * TICK))):
            if not self._clients:
                break
            client = self._clients.popleft()
            if client.state != CLOSED:
                self.sent_away += 1
                self._broker.ending.fail(client, Reason.USE_ANOTHER_SERVER, ISOLATED, "isolated")
        self._due_at = now + (TICK if self._clients else self._seconds)

    def wake_at(self) -> float:
        """When ``turn`` has to be called without an event; ``inf``: never."""
        return self._due_at
