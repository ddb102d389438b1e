"""A session leaves for another node, or arrives from one, as ``cluster.takeover.takeover`` demands.

A leaving session gets another name (``$moved/<epoch>/<node>/<client id>``), so that the client id is free. It stays
among the sessions until nothing more arrives for it: it is subscribed, stored and restored like any other.
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.connect.connecting import Connecting
from starlingmq.core.connect.ending import Ending
from starlingmq.core.connect.restoring import Restoring
from starlingmq.core.connect.session_reset import renumber
from starlingmq.core.context.context import Context
from starlingmq.core.context.ready import INBOUND_DELETE, QUEUE_DELETE, SESSION_PUT, SUBSCRIPTION_PUT, WINDOW_PUT, Write
from starlingmq.core.delivery.delivery import Delivery
from starlingmq.core.messages.outgoing import Outgoing
from starlingmq.core.observe.audit import name_of
from starlingmq.core.router.router import Router
from starlingmq.core.session.migration_state import MigrationState
from starlingmq.core.session.qos import MAX_PACKET_ID, SendWindow
from starlingmq.core.session.session import MOVED_PREFIX, NEVER, Session
from starlingmq.core.session.trail import Trail
from starlingmq.core.subscribe.subscribing import Subscribing
from starlingmq.core.topics.topics import parse_share

BATCH_MESSAGES: Final = 256
BATCH_BYTES: Final = 256 * 1024


class Granted:
    """A subscription as the client sent it, $share prefix included. ``position``: in a stream, as
    ``MqttReaders`` stores it; b"": none."""

    def __init__(
        self, whole: bytes, qos: int, no_local: bool, retain_as_published: bool, ids: bytes, position: bytes = b""
    ) -> None:
        self.whole = whole
        self.qos = qos
        self.no_local = no_local
        self.retain_as_published = retain_as_published
        self.ids = ids
        self.position = position


class SessionTransfer:
    ctx: Context
    router: Router
    delivery: Delivery
    connecting: Connecting
    ending: Ending
    subscribing: Subscribing
    restoring: Restoring

    def __init__(
        self,
        ctx: Context,
        router: Router,
        delivery: Delivery,
        connecting: Connecting,
        ending: Ending,
        subscribing: Subscribing,
        restoring: Restoring,
    ) -> None:
        self.ctx = ctx
        self.router = router
        self.delivery = delivery
        self.connecting = connecting
        self.ending = ending
        self.subscribing = subscribing
        self.restoring = restoring

    # Leaving

    def leave(self, client_id: str, node: int, epoch: int, clean: bool, why: str = "session_ended") -> Session | None:
        """The client is at ``node`` now: end its connection here. The rest of the session, if any, gets another name
        and migrates there. ``clean``: nothing is left, and its content is dropped by ``why``."""
        ctx = self.ctx
        session = ctx.sessions.get(client_id)
        if session is None:
            return None
        if not self.connecting.taken_over(session, clean, why):
            return None
        moving = session.moving
        if moving is None:
            moving = session.moving = MigrationState(client_id)
        moving.target, moving.epoch = node, epoch
        self._leave_handshakes(session)
        ctx.cluster.leave(session)
        self._rename(session, f"{MOVED_PREFIX}{epoch}/{node}/{client_id}")
        ctx.disarm(session)
        session.will_at = session.expires_at = 0.0
        session.expiry = session.expiry or NEVER
        self.subscribing.reads.session_leaves(session)
        if session.window is not None:
            session.window.owe_all()
        if ctx.recording:
            session.kept = True
            ctx.write(Write(SESSION_PUT, session))
        return session

    def go_on_leaving(self, session: Session) -> None:
        """A session that was leaving when this node ended: its window has to be read back before it is handed over."""
        if session.window is not None:
            session.window.owe_all()

    def _leave_handshakes(self, session: Session) -> None:
        """The handshakes stay here under the client id, which may not be the name of the session any more."""
        ctx = self.ctx
        if ctx.cluster.qos2 is None:
            return
        inbound = session.inbound
        if inbound is not None and inbound.held and ctx.recording and session.expiry != 0:
            for packet_id, entry in inbound.entries.items():
                if entry.message is not None:
                    ctx.write(Write(INBOUND_DELETE, session, packet_id))
        ctx.cluster.qos2.leave(session, session.client_id, ctx.node)

    def nobody(self, client_id: str, node: int, epoch: int) -> Session:
        """A placeholder for a session that is not here: what still arrives for it from other nodes goes to ``node``."""
        ctx = self.ctx
        session = ctx.new_session(f"{MOVED_PREFIX}{epoch}/{node}/{client_id}")
        session.expiry = NEVER
        session.needs_reset = session.placeholder = True
        moving = session.moving = MigrationState(client_id)
        moving.target, moving.epoch = node, epoch
        if ctx.recording:
            session.kept = True
            ctx.write(Write(SESSION_PUT, session))
        return session

    def _rename(self, session: Session, name: str) -> None:
        """Groups know their members by name."""
        shares: list[tuple[bytes, bytes]] = []
        for whole, subscription in session.subscriptions():
            share = parse_share(whole)
            if share is not None:
                shares.append((whole, share[0]))
                self.router.leave(share[0], subscription.filter, session, True)
        self.ctx.sessions.pop(session.client_id, None)
        session.client_id = name
        self.ctx.sessions[name] = session
        for whole, group in shares:
            again = session.subscription(whole)
            assert again is not None
            self.router.join(group, again)

    def granted(self, session: Session) -> list[Granted]:
        found: list[Granted] = []
        for whole, entry in session.subscriptions():
            position = b"" if session.reads is None else self.subscribing.reads.position_of(session, whole)
            found.append(Granted(whole, entry.qos, entry.no_local, entry.retain_as_published, entry.ids, position))
        return found

    def take_window(self, session: Session) -> list[Outgoing]:
        """The next sent and unacknowledged messages, in their first order; they are removed here. [] also while
        messages have to be read back: then the window is not empty."""
        window = session.window
        if window is None:
            return []
        if session.moving is not None:
            session.moving.parted = True
        if window.wanted(1):
            self.ctx.load(session)
            return []
        taken: list[Outgoing] = []
        size = 0
        for outgoing in window.entries.values():
            if len(taken) >= BATCH_MESSAGES or size >= BATCH_BYTES:
                break
            taken.append(outgoing)
            size += outgoing.message.size()
        for outgoing in taken:
            window.discard(outgoing.packet_id)
            if self.ctx.recording:
                self.ctx.done(session, outgoing.packet_id)
        if not window.entries:
            session.window = None
        return taken

    def take_queue(self, session: Session, bytes_max: int) -> list[Outgoing]:
        """The next messages of its queue, likewise: no more once they have ``bytes_max``."""
        queue = session.queue
        taken: list[Outgoing] = []
        size = 0
        while queue is not None and queue.items and len(taken) < BATCH_MESSAGES and size < bytes_max:
            outgoing = queue.pop()
            self.ctx.note(QUEUE_DELETE, session, outgoing)
            if outgoing.message.expired(self.ctx.now):
                self.ctx.drop("expired", session.client_id)
                if self.ctx.audit is not None:
                    self.ctx.audit.dropped(name_of(session), outgoing.message, outgoing.qos, "expired")
                continue
            taken.append(outgoing)
            size += outgoing.message.size()
        if queue is not None and len(queue) == 0:
            session.queue = None
        elif queue is not None and not queue.items:
            self.ctx.load(session)
        return taken

    def keep_here(self, session: Session, later: dict[int, None]) -> None:
        """Its new owner is no member any more, and its client id is free: the session continues here. If some of its
        window was handed over, its client cannot continue it. ``later``: nodes whose messages belong to a still later
        owner."""
        moving = session.moving
        if moving is None:
            return
        target, moving.target = moving.target, 0
        if moving.parted:
            session.require_reset()
        moving.marked = later
        if not moving.sources and not later:
            session.moving = None
        self._rename(session, moving.client_id)
        session.inbound = None
        session.trail = Trail(target, moving.epoch, False)  # the handshakes of that node are lost
        if self.ctx.recording:
            self.ctx.write(Write(SESSION_PUT, session))

    def redirect(self, session: Session, node: int) -> None:
        """The session migrates to that node instead."""
        moving = session.moving
        if moving is None:
            return
        moving.target = node
        self._rename(session, f"{MOVED_PREFIX}{moving.epoch}/{node}/{moving.client_id}")
        if self.ctx.recording:
            self.ctx.write(Write(SESSION_PUT, session))

    def left(self, session: Session) -> None:
        """All of the session has been handed over."""
        session.epoch = 0
        self.ending.end(session)

    # Arriving

    def arrive(
        self,
        client_id: str,
        epoch: int,
        expiry: int,
        left: float,
        granted: list[Granted],
        last_id: int,
        needs_reset: bool,
        reset_confirmed: bool,
        owner: str | None,
    ) -> Session:
        """A session arrives from another node, in place of an earlier one that may have arrived. If its client does not
        know it (``needs_reset``), the subscriptions of the earlier one hold until it does (core.connect.session_reset).
        """
        ctx = self.ctx
        session = ctx.sessions.get(client_id)
        if session is not None:
            if not needs_reset:
                self.subscribing.forget(session)
            renumber(ctx, session, last_id)
        else:
            session = ctx.new_session(client_id)
            session.expiry = expiry
            session.expires_at = 0.0 if expiry == NEVER else ctx.now + left
            if session.expires_at != 0.0:
                ctx.arm(session, session.expires_at)
        session.epoch = epoch
        if needs_reset:
            session.require_reset()
        session.needs_reset, session.reset_confirmed = needs_reset, reset_confirmed
        if owner is not None:
            session.owner = owner
        if ctx.recording:
            session.kept = True
            ctx.write(Write(SESSION_PUT, session))
        for entry in granted:
            before = session.subscription(entry.whole)
            self.restoring.subscription(
                session, entry.whole, entry.qos, entry.no_local, entry.retain_as_published, entry.ids
            )
            if entry.position:
                self.subscribing.reads.set_position(session, entry.whole, entry.position)
            subscription = session.subscription(entry.whole)
            assert subscription is not None
            self.subscribing.count(entry.whole, session, before, subscription, arrives=True)
            if ctx.recording:
                ctx.write(Write(SUBSCRIPTION_PUT, session, topic=entry.whole, subscription=subscription))
        if last_id != 0:
            window = self._window(session)
            window.last_id = last_id
        return session

    def _window(self, session: Session) -> SendWindow:
        if session.window is None:
            session.window = SendWindow(MAX_PACKET_ID, self.ctx.max_queue_bytes)
            if session.client is not None:
                session.window.begin(session.client.window_limit, session.client.window_grows)
        return session.window

    def put_window(self, session: Session, packet_id: int, stage: int, outgoing: Outgoing) -> None:
        """A message that was sent to the client before, with that packet id."""
        window = self._window(session)
        last_id = window.last_id
        outgoing.stage = stage
        outgoing.sent_at = self.ctx.now
        window.restore(packet_id, outgoing)
        window.last_id = last_id
        session.rules = 0  # the rules of another node admitted it, perhaps long ago
        self.ctx.note(WINDOW_PUT, session, outgoing)
        if session.client is not None:  # it would not wait any longer
            window.owed = {packet_id: None, **window.owed}
            self.delivery.go_on(session)

    def put(self, session: Session, outgoing: Outgoing) -> None:
        """The next message of the session. The rules of another node admitted it, perhaps long ago."""
        if self.delivery.barred(session, outgoing):
            self.delivery.give_up(session, outgoing, "revoked")
            return
        session.rules = 0  # messages that were queued here are checked when they are sent, too
        self.delivery.offer(session, outgoing, None, promised=True)
        if session.moving is not None and session.moving.target != 0:
            self.ctx.cluster.leave(session)

    def settle(self, session: Session) -> None:
        """No other node has anything of the session any more."""
        moving = session.moving
        if moving is None:
            return
        opened = moving.end()
        if moving.target != 0:
            self.ctx.cluster.leave(session)
        else:
            session.moving = None
            client = session.client
            if client is not None:
                client.plain = client.max_packet == 0 and client.alias_out_limit == 0
        self.delivery.let_in(session, opened)
        if session.reads is not None:
            self.subscribing.reads.session_connected(session)
