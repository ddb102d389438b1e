"""Deadlines that the timer wheel watches: silent connections, and deadlines of sessions."""

from __future__ import annotations

from typing import Final

from starlingmq.core.connect.ending import Ending
from starlingmq.core.context.context import Context
from starlingmq.core.context.ready import INBOUND_DELETE, Write
from starlingmq.core.delivery.delivery import Delivery
from starlingmq.core.publish.publishing import Publishing
from starlingmq.core.session.connection import AUTHENTICATING, CLOSED, DEAF, NEW, OPEN
from starlingmq.core.session.session import Client, Session
from starlingmq.wire.reasons import Reason

LOOK_AGAIN: Final = 30.0  # maximum seconds until the timer wheel checks a connection again
LOOK_SOONEST: Final = 0.5  # and minimum: less than the shortest keep alive


class Deadlines:
    ctx: Context
    ending: Ending
    delivery: Delivery
    publishing: Publishing

    def __init__(self, ctx: Context, ending: Ending, delivery: Delivery, publishing: Publishing) -> None:
        self.ctx = ctx
        self.ending = ending
        self.delivery = delivery
        self.publishing = publishing

    def watch(self, client: Client) -> None:
        """Have the timer wheel check a connection when it may have been silent for too long."""
        ctx = self.ctx
        if client.state == NEW or client.state == AUTHENTICATING:
            when = client.connected_at + ctx.mqtt.connect_timeout
        elif client.keep_alive != 0.0:
            when = client.last_packet + client.keep_alive
        elif client.valid_until != 0.0:
            when = client.valid_until
        else:
            return
        if client.valid_until != 0.0:
            when = min(when, client.valid_until)
        # A halted connection may be past its deadline, and is checked again, but not in a busy loop.
        when = max(min(when, ctx.now + LOOK_AGAIN), ctx.now + LOOK_SOONEST)
        self.ending.forget(client)
        client.check_at = when
        ctx.client_wheel.add(client, when)

    def look_at_client(self, client: Client) -> None:
        now = self.ctx.now
        client.check_at = 0.0
        if client.state == CLOSED:
            return
        if client.state != OPEN:
            claims = self.ctx.cluster.claims
            # the client has sent everything, and waits for this node
            claiming = claims is not None and claims.holds(client)
            if now >= client.connected_at + self.ctx.mqtt.connect_timeout and not claiming:
                self.ctx.notice("connect_timeout", client, "CONNECT was not complete within mqtt.connect_timeout")
                if client.protocol_handler is not None:
                    client.protocol_handler.last_words(client, Reason.MAXIMUM_CONNECT_TIME)
                self.ending.shut(client)
                return
        elif client.valid_until != 0.0 and now >= client.valid_until:
            self.ending.fail(client, Reason.NOT_AUTHORIZED, "its credentials have expired", "credentials_expired")
            return
        elif client.keep_alive == 0.0:
            self.watch(client)
            return
        elif client.halted & ~DEAF == 0 and now >= client.last_packet + client.keep_alive:
            if client.protocol_handler is not None and not client.protocol_handler.silent(client):
                self.watch(client)
                return
            self.ending.fail(client, Reason.KEEP_ALIVE_TIMEOUT, "no packet for one and a half times the keep-alive")
            return
        self.watch(client)

    def look_at_session(self, session: Session) -> None:
        """Handle expired deadlines of a session, and arm it for the next one."""
        ctx = self.ctx
        if session.ended or session.armed_at == 0.0 or session.armed_at > ctx.now:
            return  # an earlier check has handled it
        session.armed_at = 0.0
        if session.waiters is not None:
            if ctx.now >= session.held_until:
                session.stalled = True
                self.delivery.let_go(session)
            else:
                ctx.arm(session, session.held_until)
        if session.will_at != 0.0 and session.client is None:
            if ctx.now >= session.will_at:
                self.ending.publish_pending(session)
            else:
                ctx.arm(session, session.will_at)
        if session.expires_at != 0.0:
            if ctx.now >= session.expires_at:
                self.ending.end(session)
                return
            ctx.arm(session, session.expires_at)
        self.delivery.retry(session)
        self._sweep_inbound(session)

    def _sweep_inbound(self, session: Session) -> None:
        inbound = session.inbound
        if inbound is None:
            return
        client = session.client
        if client is None:
            return  # while the client is away, its handshakes live as long as the session
        ctx = self.ctx
        timeout = ctx.await_rel_timeout
        since = client.connected_at + timeout  # after connecting, a client may repeat any PUBREL
        # A sweep checks up to 65,535 handshakes: not every second.
        soonest = ctx.now + max(1.0, timeout / 16)
        if ctx.now < since:
            ctx.arm(session, since)
            return
        forgotten, abandoned = inbound.sweep(ctx.now - timeout)
        if ctx.recording and session.expiry != 0:
            for packet_id in forgotten:
                ctx.write(Write(INBOUND_DELETE, session, packet_id))
        if abandoned != 0:
            ctx.drop("await_rel_timeout", session.client_id, abandoned)
            session.dropped += abandoned
            self.publishing.unpark(session)
        if inbound.entries:
            ctx.arm(session, max(inbound.oldest() + timeout, soonest))
        else:
            session.inbound = None
