"""The shell around the core: it passes bytes and time to the core and executes the resulting ``Ready``.

One turn of the event loop is one turn of the core. Each read is passed to the core immediately; at the end of the turn
all writes are committed as one group, then every connection gets its frames in one write. Frames of the stored lane
wait here, in the order of their commits.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from starlingmq.core.broker import BrokerState
from starlingmq.core.conditions.storage_failure import StorageFailure
from starlingmq.core.context.ready import Event, Notice, Ready, SystemRequest
from starlingmq.core.session.session import Client
from starlingmq.net.broker_clock import BrokerClock, broker_clock
from starlingmq.net.broker_loop import client_sockets
from starlingmq.net.client_output import ClientOutput
from starlingmq.net.client_owner import ClientOwner
from starlingmq.net.client_socket import READ
from starlingmq.net.hook_calls import HookCalls, HookPort
from starlingmq.net.listeners.client_certificate import certificate_name
from starlingmq.net.listeners.socket_connection import Handle
from starlingmq.net.message_loading import MessageLoader
from starlingmq.storage.store import NotYetStored, Store

if TYPE_CHECKING:
    from starlingmq.cluster.cluster_state import ClusterReady, ClusterState  # not loaded into a single broker

log = logging.getLogger("starlingmq")

CLIENTS_PER_TURN: Final = 2000  # written to per turn, so that a turn takes a few milliseconds
LINGER: Final = 2.0  # seconds for a client to read the last frames after the broker has closed
CUT_SECONDS: Final = 1.0  # for aborted connections to end: a turn or two of the event loop


class CommitTicket:
    """Frames that wait for one commit, and for all commits before it."""

    __slots__ = ("awaited", "began", "done", "failed", "frames", "refused")

    def __init__(self, done: bool, began: float) -> None:
        self.done = done
        self.began = began
        self.refused = False  # nothing was stored: other frames are sent instead
        self.failed = False
        self.frames: list[tuple[Client, bytes]] = []
        self.awaited: list[asyncio.Future[bool]] = []

    def refuse(self, refusal: StorageFailure) -> None:
        if not self.refused:
            self.refused = True
            refusal.refused_turns += 1


BUG: Final = "internal error in a turn of the event loop; please report it"


class Driver(ClientOwner):
    """``hooks`` may be None if there are none; ``on_event`` and ``on_notice`` receive the core's events and notices.
    In a cluster, ``cluster`` takes its turns with the core, and ``carry`` executes its ``ClusterReady``."""

    def __init__(
        self,
        state: BrokerState,
        store: Store,
        hooks: HookPort | None = None,
        on_event: Callable[[Event], None] | None = None,
        on_notice: Callable[[Notice], None] | None = None,
        clock: Callable[[], float] | None = None,
        cluster: ClusterState | None = None,
        carry: Callable[[ClusterReady], None] | None = None,
    ) -> None:
        self.state = state
        self.store = store
        self.on_event = on_event
        self.on_notice = on_notice
        self.loop = asyncio.get_running_loop()
        self._sockets = client_sockets(self.loop)
        self.clock = clock or broker_clock()
        self._steady = self.clock if isinstance(self.clock, BrokerClock) else None
        self.cluster = cluster
        self.carry = carry
        self.clients: dict[Client, None] = {}
        self._keeps = store.keeps
        state.ctx.record(store.keeps)
        self._scheduled = False
        self._raised = False  # the last turn raised an exception
        self._output = ClientOutput(state)
        self._began = 0.0  # when the work of this turn began
        self._tickets: deque[CommitTicket] = deque()
        self.on_request: Callable[[SystemRequest], None] | None = None  # receives the system requests of NATS clients
        self._awaited: list[asyncio.Future[bool]] = []  # futures of callers that wait for this turn's writes
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._hook_calls = HookCalls(hooks, state, self.loop, self.clock, self._schedule)
        self._loader = MessageLoader(state, store, self.loop, self.clock, self._schedule)
        self._deserted = asyncio.Event()  # no connection is left
        self._deserted.set()
        self._stopping = False
        store.attach(state, self._schedule)
        self._schedule()

    # Events of connections

    def opened(self, transport: Handle, listener: str, peer: str, full: int = 0) -> Client:
        client = self.state.open(listener, peer, self.clock(), full)
        client.transport = transport
        client.certificate_name = certificate_name(transport)
        self.clients[client] = None
        self._deserted.clear()
        self._schedule()
        if self._stopping:
            transport.abort()  # its listener closed during the TLS handshake
        return client

    def readdressed(self, client: Client, peer: str, full: int) -> None:
        self.state.readdress(client, peer, full, self.clock())
        self._schedule()

    def identified(self, client: Client) -> None:
        client.identity = True

    def secured(self, client: Client) -> None:
        client.certificate_name = certificate_name(client.transport)

    def received(self, client: Client, data: bytes) -> None:
        if not self._scheduled:
            self._schedule()
        dirty = self.state.ctx.ready.dirty
        waiting = len(dirty)
        # All reads of a turn have the same time, except in a cluster, where a node must notice that it was suspended.
        self.state.receive(client, data, self._began if self.cluster is None else self._now())
        if self._sockets is not None and self._sockets.few and len(data) <= READ and not self._tickets:
            self._output.write_early(waiting)
        if self.state.ctx.ready.questions:
            self._hook_calls.ask()
        if client.halted and not client.paused:
            self._pause(client)  # now: the event loop reads on, up to megabytes per turn

    def lost(self, client: Client) -> None:
        self.clients.pop(client, None)
        self.state.closed(client, self.clock())
        client.transport = None
        if not self.clients:
            self._deserted.set()
        self._schedule()

    def shed(self, excess: int) -> None:
        """Free the memory that incomplete packets occupy, ``excess`` bytes at least if they have so many: memory is
        short."""
        self.state.shed(list(self.clients), excess, self.clock())
        self._schedule()

    def blocked(self, client: Client) -> None:
        self.state.blocked(client)

    def drained(self, client: Client) -> None:
        self.state.drained(client, self.clock())
        self._schedule()

    def may_wait(self, client: Client) -> bool:
        session = client.session
        return (
            session is not None
            and session.queue is None  # an acknowledgement may make room for its first message
            and session.shares is None  # or for one of a group
            and client.protocol_handler is None
            and client.missing == 0
            and client.halted == 0
        )

    # Turns

    def stored(self) -> asyncio.Future[bool]:
        """Return a future: True once this turn's writes are durable, False if they are not stored (yet)."""
        future: asyncio.Future[bool] = self.loop.create_future()
        self._awaited.append(future)
        self._schedule()
        return future

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._began = self._now()
            if self._sockets is None:
                self.loop.call_soon(self.turn)
            else:
                self._sockets.want(self)  # called at the end of this round of reads, not by asyncio

    def _now(self) -> float:
        """Return the time of ``clock``, by a direct call if possible."""
        return self.clock() if self._steady is None else self._steady.now()

    def skip_turn(self) -> bool:
        """Acknowledgements mostly have no effect outside the core."""
        if self._keeps or self.cluster is not None or self._tickets or self._awaited or not self.state.idle():
            return False
        self._scheduled = False
        return True

    def turn(self) -> None:
        self._scheduled = False
        state = self.state
        try:
            state.turn(self._began)
            if state.ctx.ready.questions:
                self._hook_calls.ask()
            if self.cluster is not None:
                self.cluster.turn(self._began)
        except Exception:
            log.exception(BUG)  # in serving one client; it must not stop the others
            if self.cluster is not None and not self._raised and not self._stopping:
                # The effects of frames are stored last: a commit now could keep the frames and lose their effects.
                self._raised = True
                self._schedule()
                return
        else:
            self._raised = False
        ready = state.take_ready()
        self._carry_out(ready)
        ready.renew()  # releases its references
        now = self._now()
        state.ctx.counters.took_turn(now - self._began)
        if self._sockets is not None:
            self._sockets.note_queued(state.ctx.counters.messages_queued)
        if (self._keeps and self.store.maintain()) or state.pending() or state.ctx.ready.urgent():
            self._schedule()
        self._arm(state.wake_at(), now)
        if self.cluster is not None:
            self._carry(self.cluster, now)

    def _carry(self, cluster: ClusterState, now: float) -> None:
        """Send the turn's frames for other nodes."""
        assert self.carry is not None
        self.carry(cluster.take_ready())
        if cluster.pending():
            self._schedule()
        self._arm(cluster.wake_at(), now)

    def request_turn(self) -> None:
        """Request a turn, after an event in the cluster or a change of settings."""
        self._schedule()

    def _carry_out(self, ready: Ready) -> None:
        ticket: CommitTicket | None = None
        if ready.writes or self._tickets or self.state.ctx.refusing:
            ticket = self._commit(ready)
        if self._awaited:
            self._await(ticket)
        early = self._output.begin_turn()
        for index, client in enumerate(ready.dirty):
            if index >= CLIENTS_PER_TURN and client.stored_from < 0 and not client.closing:
                self.state.ctx.ready.dirty.append(client)  # in the next turn, together with its later frames
                continue
            client.dirty = False
            frames = client.frames
            if client.stored_from >= 0:
                if ticket is not None:
                    held = b"".join(frames[client.stored_from :])
                    del frames[client.stored_from :]
                    client.waiting += 1
                    client.unstored += len(held)
                    ticket.frames.append((client, held))
                client.stored_from = -1
            if frames:
                if index < early:
                    self._output.write_together()
                self._output.write_frames(client)
                frames.clear()
            if not client.closing:
                self.state.sent(client)
            elif client.waiting == 0 and not client.output_stopped:
                self._close(client)
        if ticket is not None and ticket.refused:
            self._settle()
        for client in ready.pause:
            self._pause(client)
        if ready.spills or ready.reads:
            self._loader.read_back(ready)
        if self.state.ctx.audit is not None:
            self._loader.name(self.state.ctx.audit)
        if ready.events and self.on_event is not None:
            for event in ready.events:
                self._notify(self.on_event, event)
        if ready.requests and self.on_request is not None:
            for request in ready.requests:
                self._notify(self.on_request, request)
        if ready.notices and self.on_notice is not None:
            for notice in ready.notices:
                self._notify(self.on_notice, notice)

    def _await(self, ticket: CommitTicket | None) -> None:
        awaited, self._awaited = self._awaited, []
        if ticket is None:
            _settle_all(awaited, True)
        else:
            ticket.awaited = awaited

    def _pause(self, client: Client) -> None:
        if client.gone or client.closing:
            return
        paused = client.halted != 0
        if paused != client.paused:
            client.paused = paused
            if paused:
                client.transport.pause_reading()
            else:
                client.transport.resume_reading()

    def _notify(self, listener: Callable[[Any], None], what: object) -> None:
        try:
            listener(what)
        except Exception:
            log.exception("an event listener raised an exception; fix it")

    # Storage

    def _commit(self, ready: Ready) -> CommitTicket | None:
        """Commit a turn's writes. Returns a ticket for the frames that must wait; None if none must."""
        pending: Awaitable[None] | None = None
        refused = self.state.ctx.refusing
        if ready.writes:
            try:
                pending = self.store.commit(ready.writes)
            except NotYetStored:
                refused = True
            except OSError as error:
                failed: asyncio.Future[None] = self.loop.create_future()
                failed.set_exception(error)
                pending = failed
        if pending is None and not self._tickets and not refused:
            return None
        ticket = CommitTicket(pending is None, self.clock())
        if refused and pending is None:
            ticket.refuse(self.state.refusal)
        self._tickets.append(ticket)
        if pending is not None:
            future = asyncio.ensure_future(pending)
            future.add_done_callback(lambda done: self._stored(ticket, done))
        return ticket

    def _stored(self, ticket: CommitTicket, done: asyncio.Future[None]) -> None:
        error = done.exception()
        if isinstance(error, NotYetStored):
            for later in (ticket, *self._tickets):  # they may depend on it, as a SUBACK that waited for other nodes
                later.refuse(self.state.refusal)
        elif error is not None:
            log.error("storage failed: %s", error)
            ticket.failed = True
            for client, _ in ticket.frames:
                self._silence(client)
        ticket.done = True
        self.state.ctx.counters.commits.add(self.clock() - ticket.began)
        self._settle()
        self._schedule()

    def _settle(self) -> None:
        """Release the frames of completed commits whose predecessors are all complete."""
        while self._tickets and self._tickets[0].done:
            ticket = self._tickets.popleft()
            for client, data in ticket.frames:
                self._release(client, data, ticket.refused)
            if ticket.awaited:
                _settle_all(ticket.awaited, not (ticket.refused or ticket.failed))
            if ticket.refused and self.state.refusal.turn_answered():
                self._schedule()

    def _release(self, client: Client, data: bytes, refused: bool) -> None:
        """Send frames whose commit is complete; refusals instead if nothing was stored."""
        client.waiting -= 1
        client.unstored -= len(data)
        if client.gone or client.output_stopped:
            return
        if refused:
            data = self.state.refuse(client, data, self.clock())
        elif client.link:
            data = self.state.refusal.released(client, data)
            if not data:
                self._schedule()
        if data:
            self.state.ctx.counters.bytes_sent += len(data)
            client.bytes_out += len(data)
            self._output.write(client, data)
        if client.output_stopped or (client.closing and client.waiting == 0):
            self._close(client)
        else:
            self.state.sent(client)

    def _silence(self, client: Client) -> None:
        """Send nothing more to a client whose writes were not stored, and close its connection: its messages are
        unacknowledged, and frames stored later would arrive without the earlier ones."""
        if not client.output_stopped and not client.link:
            client.output_stopped = True
            self.state.not_stored(client, self.clock())
            self._close(client)

    # Closing

    def _close(self, client: Client) -> None:
        """Close after the client has read all written data, at most ``LINGER`` seconds later."""
        if client.gone:
            return
        transport: Any = client.transport
        if client.last_words and transport.can_write_eof():
            # Closing with unread bytes makes TCP send a reset, which can overtake the last frames. So only the sending
            # # half is closed; the client's close or the time limit closes the rest.
            if client.paused:
                transport.resume_reading()
            try:
                transport.write_eof()
            except OSError:  # the client closed it while reading was paused
                transport.abort()
        else:
            transport.close()
        self.loop.call_later(LINGER, self._cut, client)

    def _cut(self, client: Client) -> None:
        if not client.gone:
            client.transport.abort()

    # Time

    def _arm(self, when: float, now: float) -> None:
        """Keep one timer for all work that is due without input."""
        if self._stopping or when == 0.0 or (self._timer_at != 0.0 and self._timer_at <= when and self._timer_at > now):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = max(when, now)
        self._timer = self.loop.call_later(max(0.0, when - now), self._timer_due)

    def _timer_due(self) -> None:
        self._timer = None
        self._timer_at = 0.0
        self._schedule()

    # The end

    async def stop(self, timeout: float) -> None:
        """Send every client its last frames, wait ``timeout`` seconds for them to be read, then abort. Afterwards there
        is no connection, no timer and no hook call."""
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
        self.state.shut_down(self.clock())
        self._schedule()
        await _turn_and(self._deserted, timeout)
        for client in list(self.clients):
            if client.transport is not None:
                client.transport.abort()
        self._hook_calls.cancel()
        _settle_all(self._awaited, False)
        await _turn_and(self._deserted, CUT_SECONDS)
        await self._hook_calls.wait()

    def end(self) -> None:
        self._scheduled = True  # no turn follows: the store is closed


async def _turn_and(deserted: asyncio.Event, timeout: float) -> None:
    """Wait for the turn that is scheduled, then until no connection is left."""
    await asyncio.sleep(0)
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout):
            await deserted.wait()


def _settle_all(awaited: list[asyncio.Future[bool]], stored: bool) -> None:
    for future in awaited:
        if not future.done():
            future.set_result(stored)
