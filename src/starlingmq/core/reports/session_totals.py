"""Sums over all sessions, which are not counted continuously: ``count`` processes some sessions at a time.

It is called for observers, so it must be cheap for tens of thousands of idle sessions.
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.messages.outgoing import Outgoing
from starlingmq.core.nats.nats_client import NatsClient
from starlingmq.core.observe.counters import OfListener
from starlingmq.core.session.session import MOVED_PREFIX, Session

SLOW_MAX: Final = 10  # sessions with the longest queues, listed by name
LATE_SECONDS: Final = 2.0  # a message in flight for longer is remembered until the next survey


def of_clients(session: Session) -> bool:
    """Whether a session belongs to a client: not to another node or a group queue, and not migrating away."""
    return session.node == 0 and not session.is_group_queue and not session.client_id.startswith(MOVED_PREFIX)


def subscription_count(session: Session) -> int:
    """As its client counts them: each member of a shared group has one, and NATS may have several with one filter."""
    client = session.client
    if client is not None and client.protocol_handler is not None:
        handler = client.protocol_handler
        return len(handler.subscriptions) if isinstance(handler, NatsClient) else 0
    return session.subscription_count()


class SessionTotals:
    """The sums. ``slow`` has (queued messages, client id), the longest queues first.

    ``late`` has, by client id, the connected sessions whose first message in flight is older than ``LATE_SECONDS``:
    the message, its stage, and when it was sent for the first time, also if ``retry_interval`` sent it again since.
    ``before`` is what the last survey found.
    """

    connected: int
    away: int
    queued: int
    queued_bytes: int
    beyond_limits: int  # of those queued (core.session.queue)
    inflight: int
    awaiting_rel: int
    stalled: int
    subscriptions: int
    _late_until: float
    _late_before: dict[str, tuple[Outgoing, int, float]]
    by_listener: dict[str, OfListener]  # open connections, and those before them
    slow: list[tuple[int, str]]
    late: dict[str, tuple[Outgoing, int, float]]

    def __init__(self, now: float = 0.0, before: SessionTotals | None = None) -> None:
        self._late_until = now - LATE_SECONDS
        self._late_before = {} if before is None else before.late
        self.connected = 0
        self.away = 0
        self.queued = 0
        self.queued_bytes = 0
        self.beyond_limits = 0
        self.inflight = 0
        self.awaiting_rel = 0
        self.stalled = 0
        self.subscriptions = 0
        self.by_listener = {}
        self.slow = []
        self.late = {}

    def of(self, listener: str) -> OfListener:
        found = self.by_listener.get(listener)
        if found is None:
            found = self.by_listener[listener] = OfListener()
        return found

    def count(self, sessions: list[Session]) -> None:
        """Add these sessions."""
        name = ""
        sums = OfListener()  # of the listener with that name
        for session in sessions:
            if not of_clients(session):
                continue
            client = session.client
            self.subscriptions += subscription_count(session)
            if client is None:
                self.away += 1
            else:
                self.connected += 1
                if client.listener != name:
                    name = client.listener
                    sums = self.of(name)
                sums.published += client.published
                sums.bytes_in += client.bytes_in
                sums.bytes_out += client.bytes_out
            if session.stalled:
                self.stalled += 1
            if session.window is not None:
                self.inflight += len(session.window.entries)
                if client is not None and len(session.window.entries) != 0:
                    self._look_at_first(session.client_id, next(iter(session.window.entries.values())))
            if session.inbound is not None:
                self.awaiting_rel += session.inbound.held
            if session.queue is not None:
                waiting = len(session.queue)
                self.queued += waiting
                self.queued_bytes += session.queue.bytes
                self.beyond_limits += session.queue.beyond()
                if waiting != 0 and client is not None:
                    self._lags(waiting, session.client_id)

    def _look_at_first(self, client_id: str, first: Outgoing) -> None:
        known = self._late_before.get(client_id)
        if known is not None and known[0] is first and known[1] == first.stage:
            self.late[client_id] = known
        elif first.sent_at < self._late_until:
            self.late[client_id] = (first, first.stage, first.sent_at)

    def _lags(self, waiting: int, client_id: str) -> None:
        slow = self.slow
        if len(slow) == SLOW_MAX:
            if waiting <= slow[-1][0]:
                return
            slow.pop()
        slow.append((waiting, client_id))
        slow.sort(reverse=True)
