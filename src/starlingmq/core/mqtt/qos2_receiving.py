"""QoS 2 messages of clients: held at PUBLISH, routed at PUBREL (see core.session.qos, Inbound). So a handshake that is
abandoned and begun again elsewhere cannot deliver twice."""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, write_i32_be

from starlingmq.core.connection import CLOSED, WORKING
from starlingmq.core.context import ISOLATED, Context
from starlingmq.core.groups.group_engine import GroupEngine
from starlingmq.core.message import Message
from starlingmq.core.mqtt.message_entry import MessageEntry
from starlingmq.core.mqtt.unknown_pubrel import CLIENT_MAX, UnknownPubrels
from starlingmq.core.ready import (
    INBOUND_COMPLETED,
    INBOUND_PUT,
    Write,
)
from starlingmq.core.routing.delivery import Delivery
from starlingmq.core.routing.retained_store import RetainedTree
from starlingmq.core.routing.router import Router
from starlingmq.core.session.producers import Producers
from starlingmq.core.session.production import AGAIN, NEW, Production
from starlingmq.core.session.qos import Inbound, Parking
from starlingmq.core.session.remote_qos2 import CANCELLED, COMPLETED, TIMED_OUT
from starlingmq.core.session.session import Client, Session
from starlingmq.core.session.trail import Backlog
from starlingmq.wire.mqtt import ack_frame, ack_run, packet_id_bytes
from starlingmq.wire.reasons import MqttError, ProtocolError, Reason

NOTICE_WORK: Final = 16  # for a line of the log


class Qos2Receiving(MessageEntry):
    producers: Producers
    unknown_pubrels: UnknownPubrels
    _answers: BytesWriter  # PUBACKs and PUBRECs for ...
    _answered: Client | None  # ... the client whose packets are being handled
    postponed: list[tuple[Client, Message | None, int]]  # until all routes are here: at most one of each connection

    def __init__(
        self, ctx: Context, router: Router, delivery: Delivery, groups: GroupEngine, retained: RetainedTree
    ) -> None:
        super().__init__(ctx, router, delivery, groups, retained)
        self.producers = Producers(ctx)
        self.unknown_pubrels = UnknownPubrels()
        self.postponed = []
        self._answers = BytesWriter()
        self._answered = None

    def on_pubrel(self, client: Client, session: Session, packet_id: int) -> None:
        ctx = self.ctx
        inbound = session.inbound
        trail = session.trail
        asking = trail is not None and trail.backlog is not None and len(trail.backlog.asked) != 0
        if asking and trail is not None and inbound is not None and inbound.holds(packet_id):
            trail.waits().behind.append(packet_id)  # an earlier message, held on another node, is routed first
            return
        if ctx.isolated and inbound is not None and inbound.holds(packet_id):
            raise MqttError(ISOLATED, Reason.USE_ANOTHER_SERVER)  # it stays held: nothing is answered, nothing is lost
        if ctx.catching_up and inbound is not None and inbound.holds(packet_id):
            self._postpone(client, None, packet_id)
            return
        message = None if inbound is None else inbound.release(packet_id, ctx.now)
        if message is None:
            if inbound is not None and inbound.completed(packet_id):
                ctx.send_stored(client, ack_frame(0x70, packet_id))
            elif ctx.cluster.qos2 is not None and trail is not None:
                if ctx.isolated:
                    # the handshake may be on a node that cannot be asked
                    raise MqttError(ISOLATED, Reason.USE_ANOTHER_SERVER)
                ctx.cluster.qos2.ask(client, session, trail, packet_id)
            else:
                self._unknown_handshake(client, session, packet_id)
            return
        if client.production is None:
            self.route(message, session)
        elif not self._release_numbered(client, client.production, message, packet_id):
            self._unknown_handshake(client, session, packet_id)
            return
        if ctx.recording and session.expiry != 0:
            ctx.write(Write(INBOUND_COMPLETED, session, packet_id))
        ctx.send_stored(client, ack_frame(0x70, packet_id))
        if session.parked is not None:
            self.unpark(session)

    def resolved(self, client: Client, session: Session, packet_id: int, outcome: int) -> None:
        """The result of the lookup of a handshake on other nodes. Raises MqttError to end the connection."""
        if session.client is not client or session.ended:
            return  # the client will repeat its PUBREL, wherever it connects
        inbound = self.inbound(session)
        backlog = Backlog() if session.trail is None else session.trail.waits()
        if outcome == CANCELLED:
            backlog.deferred[packet_id] = True
            for deferred in list(backlog.deferred):
                if not backlog.deferred[deferred]:
                    break
                del backlog.deferred[deferred]
                if inbound.holds(deferred):
                    self._acknowledge(client, 0x50, deferred, 0)
            return
        backlog.asked.pop(packet_id, None)
        self._answer_pubrel(client, session, inbound, packet_id, outcome)
        if backlog.asked:
            return
        behind = backlog.behind
        backlog.behind = []
        for waiting in behind:
            self.on_pubrel(client, session, waiting)

    def _answer_pubrel(self, client: Client, session: Session, inbound: Inbound, packet_id: int, outcome: int) -> None:
        ctx = self.ctx
        if inbound.holds(packet_id):
            return  # the packet id was used again before the result came
        if outcome == COMPLETED:
            self._complete(client, session, packet_id)
        elif ctx.isolated:
            raise MqttError(ISOLATED, Reason.USE_ANOTHER_SERVER)
        elif outcome == TIMED_OUT and client.version != 5:
            # PUBCOMP would acknowledge a message that is held there; the client repeats its PUBREL until the result is
            # known.
            text = f"PUBREL {packet_id}: a node that may have its message could not be reached in time"
            raise MqttError(text, Reason.SERVER_UNAVAILABLE)
        else:
            self._unknown_handshake(client, session, packet_id)

    def _unknown_handshake(self, client: Client, session: Session, packet_id: int) -> None:
        """A PUBREL that no node knows. MQTT 5 has 0x92 for it. 3.x has no code: the connection is closed once, and the
        same PUBREL again is answered by PUBCOMP [MQTT-4.3.3-2], counted and logged (see core.mqtt.unknown_pubrel)."""
        ctx = self.ctx
        if client.version == 5:
            ctx.counters.note("pubrel_unknown")
            self.delivery.unknown_packet_id(client, 0x70, packet_id)
            return
        again = self.unknown_pubrels.take(client.client_id, packet_id)
        if not again and ctx.mqtt.unknown_pubrel != "complete":
            self.unknown_pubrels.note(client.client_id, packet_id)
            waits = None if session.trail is None else session.trail.backlog
            if waits is not None:
                self.unknown_pubrels.note_too(client.client_id, [*waits.asked, *waits.behind])
            text = f"PUBREL {packet_id} has an unknown packet identifier; repeating this PUBREL gets PUBCOMP"
            raise ProtocolError(text, Reason.PACKET_IDENTIFIER_NOT_FOUND)
        text = (
            f"PUBREL {packet_id} has an unknown packet identifier and was answered with PUBCOMP; the message "
            "may be lost"
        )
        ctx.notice("pubrel_unknown", client, text, closing=False)
        ctx.work -= NOTICE_WORK
        self._complete(client, session, packet_id)

    def closed_for(self, client: Client, data: bytes, pos: int) -> None:
        """The connection is closed for a PUBREL. The PUBRELs that follow at ``pos`` will not close another one."""
        others: list[int] = []
        while len(data) - pos >= 4 and data[pos] == 0x62 and data[pos + 1] == 2 and len(others) < CLIENT_MAX:
            others.append(data[pos + 2] << 8 | data[pos + 3])
            pos += 4
        self.unknown_pubrels.note_too(client.client_id, others)

    def _complete(self, client: Client, session: Session, packet_id: int) -> None:
        """A handshake that is not held here is complete: send PUBCOMP, now and for each repetition."""
        ctx = self.ctx
        self.inbound(session).answered(packet_id, ctx.now)
        ctx.arm(session, ctx.now + ctx.await_rel_timeout)
        if ctx.recording and session.expiry != 0:
            ctx.write(Write(INBOUND_COMPLETED, session, packet_id))
        ctx.send_stored(client, ack_frame(0x70, packet_id))

    def _hold(self, client: Client, session: Session, packet_id: int, message: Message) -> None:
        ctx = self.ctx
        inbound = self.inbound(session)
        limit = ctx.max_awaiting_rel
        if limit != 0 and inbound.held >= limit:
            if client.version == 5:
                raise ProtocolError("more QoS 2 messages than Receive Maximum", Reason.RECEIVE_MAXIMUM_EXCEEDED)
            self._park(session, packet_id, message)
            return
        if inbound.held == 0:
            ctx.arm(session, ctx.now + ctx.await_rel_timeout)
        if ctx.max_queue_bytes != 0 and inbound.bytes + message.size() > ctx.max_queue_bytes:
            raise ProtocolError("too many QoS 2 messages wait for their PUBREL", Reason.QUOTA_EXCEEDED)
        if ctx.audit is not None:
            ctx.audit.identify(message)  # before it is stored
        if self.unknown_pubrels.total != 0:
            self.unknown_pubrels.take(session.client_id, packet_id)  # the packet id stands for a new message
        inbound.hold(packet_id, message, ctx.now)
        if ctx.recording and session.expiry != 0:
            ctx.write(Write(INBOUND_PUT, session, packet_id, message=message))
        trail = session.trail
        if (
            trail is not None
            and ctx.cluster.qos2 is not None
            and ctx.cluster.qos2.defer(client, session, trail, packet_id)
        ):
            return  # PUBREC follows when no other node holds it, in the order of the PUBLISHes [MQTT-4.6.0-3]
        self._acknowledge(client, 0x50, packet_id, 0)

    def _park(self, session: Session, packet_id: int, message: Message) -> None:
        """A 3.x client has exceeded ``max_awaiting_rel``, which it cannot know. Its PUBREC waits for a free place, and
        so, before long, does the client. The client must be read all the same:

        1. With a limit of 2 it sends PUBLISH 1 to 5 in one go; 1 and 2 get PUBREC.
        2. It sends PUBREL 1 and 2. They come after PUBLISH 5.
        3. A broker that does not read before a place is free does not read the PUBRELs that free it.

        Parked messages count against ``limits.queue_bytes``; a client that exceeds it is disconnected.
        """
        parked = session.parked
        if parked is None:
            parked = session.parked = Parking()
        parked.add(packet_id, message)
        if self.ctx.max_queue_bytes != 0 and parked.bytes > self.ctx.max_queue_bytes:
            raise ProtocolError("too many messages wait behind unfinished QoS 2 messages", Reason.QUOTA_EXCEEDED)

    def unpark(self, session: Session) -> None:
        """A place is free: the PUBLISH that has waited longest is held and answered."""
        parked = session.parked
        client = session.client
        if parked is None or client is None:
            return
        inbound = self.inbound(session)
        while parked.entries and (self.ctx.max_awaiting_rel == 0 or inbound.held < self.ctx.max_awaiting_rel):
            packet_id, message = parked.take()
            self._hold(client, session, packet_id, message)
        if not parked.entries:
            session.parked = None

    def inbound(self, session: Session) -> Inbound:
        inbound = session.inbound
        if inbound is None:
            inbound = session.inbound = Inbound()
        return inbound

    def _release_numbered(self, client: Client, production: Production, message: Message, packet_id: int) -> bool:
        """Whether a QoS 2 message of a producer may be routed. False if it must not be acknowledged: an earlier number
        is missing, or another message had its number."""
        number, digest = production.held.pop(packet_id, (-1, 0))
        verdict = production.judge(number, digest, 2)
        if verdict == NEW:
            if message.offset >= 0:
                message = message.copy()  # the state of the producer is stored in its record
            self.producers.publish(production, number, digest, message)
            self.route(message, client.session)
            return True
        self.ctx.drop("published_again" if verdict == AGAIN else "numbered_wrong", client.client_id)
        return verdict == AGAIN

    def _postpone(self, client: Client, message: Message | None, packet_id: int) -> None:
        """``message`` None: a PUBREL. ``resume`` handles it, and the connection is read again."""
        self.postponed.append((client, message, packet_id))
        self.ctx.halt(client, WORKING)

    def on_pubrels(self, client: Client, session: Session, data: bytes, pos: int, end: int) -> int:
        """Handle a run of PUBRELs that begins at ``pos`` and may go on up to ``end``; the position after it. One with
        anything unusual about it ends the run, and ``on_pubrel`` is to handle it. The PUBCOMPs are one frame."""
        ctx = self.ctx
        inbound = session.inbound
        if (
            inbound is None
            or session.trail is not None
            or session.parked is not None
            or client.production is not None
            or client.max_packet != 0
            or ctx.isolated
            or ctx.catching_up
        ):
            return pos
        recorded = ctx.recording and session.expiry != 0
        begin = pos
        try:
            while pos + 4 <= end and data[pos] == 0x62 and data[pos + 1] == 2:
                if ctx.work <= 0 or client.halted != 0 or client.state == CLOSED:
                    break
                packet_id = data[pos + 2] << 8 | data[pos + 3]
                message = inbound.release(packet_id, ctx.now)
                if message is None:
                    break
                self.route(message, session)
                if recorded:
                    ctx.write(Write(INBOUND_COMPLETED, session, packet_id))
                ctx.work -= 1
                pos += 4
        finally:
            if pos != begin:
                ctx.send_stored(client, ack_run(0x70, data, begin, pos))
        return pos

    # Answers

    def answer_together(self, client: Client) -> None:
        """From now on the PUBACKs and PUBRECs for this client go into one frame, which ``answer_now`` sends."""
        self._answered = client

    def answered_together(self, client: Client) -> None:
        """All that it has sent is handled."""
        self.answer_now(client)
        self._answered = None

    def answer_now(self, client: Client) -> None:
        """Send the answers so far: another packet of this client is handled next."""
        if len(self._answers) != 0:
            frames = self._answers.getvalue()
            self._answers.truncate(0)
            if client.state != CLOSED:
                self.ctx.send_stored(client, frames)

    def _acknowledge(self, client: Client, first: int, packet_id: int, reason: int) -> None:
        if client is self._answered and client.max_packet == 0:
            answers = self._answers
            if reason != 0 and client.version == 5:
                write_i32_be(answers, first << 24 | 3 << 16 | packet_id)
                answers.append(reason)
            else:
                write_i32_be(answers, first << 24 | 2 << 16 | packet_id)
            return
        if reason != 0 and client.version == 5:
            self.ctx.send_stored(client, bytes((first, 3)) + packet_id_bytes(packet_id) + bytes((reason,)))
        else:
            self.ctx.send_stored(client, ack_frame(first, packet_id))
