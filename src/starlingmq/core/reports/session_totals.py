"""Sums over all sessions, which are not counted continuously: ``count`` processes some sessions at a time.

It is called for observers, so it must be cheap for tens of thousands of idle sessions.
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.nats.nats_client import NatsClient
from starlingmq.core.observe.counters import OfListener
from starlingmq.core.session.qos import MAX_PACKET_ID, SendWindow
from starlingmq.core.session.session import MOVED_PREFIX, Client, Session

SLOW_MAX: Final = 10  # sessions with the longest queues, listed by name
SILENT_MESSAGES: Final = 10  # in flight at least: with fewer, a client may take long for each


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


class InFlight:
    """The window of a connected client at the time ``since``, in numbers that an acknowledgement changes."""

    connected_at: float  # of this connection
    first: int  # packet id
    stage: int
    count: int
    last_id: int
    since: float

    def __init__(self, client: Client, window: SendWindow, since: float) -> None:
        self.connected_at = client.connected_at
        self.first = next(iter(window.entries))
        self.stage = window.entries[self.first].stage
        self.count = len(window.entries)
        self.last_id = window.last_id
        self.since = since

    def holds(self, session: Session) -> bool:
        """Whether the client is still connected, and has acknowledged nothing: the window has grown by as many messages
        as were sent."""
        client, window = session.client, session.window
        if client is None or window is None or len(window.entries) < self.count:
            return False
        first = next(iter(window.entries))
        if first != self.first or window.entries[first].stage != self.stage or client.connected_at != self.connected_at:
            return False
        return (window.last_id - self.last_id) % MAX_PACKET_ID == len(window.entries) - self.count


class SessionTotals:
    """The sums. ``slow`` has (queued messages, client id), the longest queues first.

    ``silent`` has, by client id, the window of each connected session that has acknowledged nothing of it since the
    last survey, which is ``before``, or that has not been looked at before.
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
    _now: float
    _silent_before: dict[str, InFlight]
    by_listener: dict[str, OfListener]  # open connections, and those before them
    slow: list[tuple[int, str]]
    silent: dict[str, InFlight]

    def __init__(self, now: float = 0.0, before: SessionTotals | None = None) -> None:
        self._now = now
        self._silent_before = {} if before is None else before.silent
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
        self.silent = {}

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
                if client is not None and len(session.window.entries) >= SILENT_MESSAGES:
                    known = self._silent_before.get(session.client_id)
                    if known is None or not known.holds(session):
                        known = InFlight(client, session.window, self._now)
                    self.silent[session.client_id] = known
            if session.inbound is not None:
                self.awaiting_rel += session.inbound.held
            if session.queue is not None:
                waiting = len(session.queue)
                self.queued += waiting
                self.queued_bytes += session.queue.bytes
                self.beyond_limits += session.queue.beyond()
                if waiting != 0 and client is not None:
                    self._lags(waiting, session.client_id)

    def finished(self) -> None:
        """All sessions are counted: what the survey before found is not needed any more."""
        self._silent_before = {}

    def _lags(self, waiting: int, client_id: str) -> None:
        slow = self.slow
        if len(slow) == SLOW_MAX:
            if waiting <= slow[-1][0]:
                return
            slow.pop()
        slow.append((waiting, client_id))
        slow.sort(reverse=True)
