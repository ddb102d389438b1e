"""All ways in which a connection or a session ends, and the publication of wills.

A will is published once, unless DISCONNECT or a reconnection before the end of its delay cancels it.
"""

from __future__ import annotations

from starlingmq.core.connect.connect_verdict import DRAINING, SERVES_NO_CLIENTS
from starlingmq.core.connect.session_reset import knows
from starlingmq.core.connect.turned_away import DETAILS, REASONS, WORDS
from starlingmq.core.context.context import Context
from starlingmq.core.context.ready import SESSION_DELETE, SESSION_PUT, Write
from starlingmq.core.delivery.delivery import Delivery
from starlingmq.core.messages.message import Message
from starlingmq.core.publish.publishing import Publishing
from starlingmq.core.session.connection import AUTHENTICATING, CLOSED, NEW, OPEN, UNPROVED
from starlingmq.core.session.session import NEVER, Client, Session, Will
from starlingmq.core.session.will_rule import due_after
from starlingmq.core.subscribe.subscribing import Subscribing
from starlingmq.wire import properties as prop
from starlingmq.wire.mqtt import Connack, Connect, Disconnect, encode
from starlingmq.wire.properties import Properties
from starlingmq.wire.reasons import ProtocolError, Reason, connack_return_code


class Ending:
    ctx: Context
    delivery: Delivery
    publishing: Publishing
    subscribing: Subscribing
    waiting: dict[Client, Connect]  # CONNECTs that are being authenticated, or whose client id is being claimed

    def __init__(self, ctx: Context, delivery: Delivery, publishing: Publishing, subscribing: Subscribing) -> None:
        self.ctx = ctx
        self.delivery = delivery
        self.publishing = publishing
        self.subscribing = subscribing
        self.waiting = {}

    # Ending a connection

    def refuse(self, client: Client, reason: int, detail: str, elsewhere: str = "", word: str = "") -> None:
        """Send CONNACK with a refusal, then close. 3.x clients get the nearest return code, or no CONNACK at all.
        ``elsewhere``: the server for a client that is to use another one; "": any. ``word`` as in ``fail``."""
        self.waiting.pop(client, None)
        self.ctx.notice(word or Reason(reason).name.lower(), client, detail)
        if client.version == 5:
            properties = self._why(client, detail)
            self._refer(client, reason, properties, elsewhere)
            self._send_last(client, encode(Connack(False, reason, properties), 5), encode(Connack(False, reason), 5))
        else:
            code = connack_return_code(reason)
            if code > 0:
                self.ctx.send(client, encode(Connack(False, code), client.version))
        self.shut(client)

    def on_disconnect(self, client: Client, session: Session, packet: Disconnect) -> None:
        expiry = packet.properties.get(prop.SESSION_EXPIRY_INTERVAL)
        if isinstance(expiry, int):
            if session.expiry == 0 and expiry != 0:
                raise ProtocolError("DISCONNECT must not set a session expiry interval after CONNECT set 0")
            before = session.expiry
            session.expiry = min(expiry, self.ctx.mqtt.max_session_expiry)
            if self.ctx.cluster.interest is not None:
                self.ctx.cluster.interest.reconsider(session, before)
        if packet.reason == 0:
            session.will = None  # [MQTT-3.14.4-3]
            self.will_changed(session)
        self.close(client, "disconnect")

    def turn_away(self, client: Client) -> None:
        """Refuse a client because of the limit ``Client.full``."""
        full = client.full
        self.fail(client, REASONS[full], DETAILS[full], WORDS[full])

    def fail(self, client: Client, reason: int, detail: str, word: str = "") -> None:
        """End a connection for ``reason``: send it if the protocol version can express it, count it, log it. ``word``
        is counted and logged, where several causes have one reason code; "": the name of the code. docs/PLAYBOOK.md
        explains each word."""
        if client.state == CLOSED:
            return
        word = word or Reason(reason).name.lower()
        if client.protocol_handler is not None:
            self.ctx.notice(word, client, detail)
            client.protocol_handler.last_words(client, reason)
            self.close(client, word)
            return
        if client.state == AUTHENTICATING or (client.state == NEW and (client.version == 5 or client.full != 0)):
            self.refuse(client, reason, detail, "", word)
            return
        self.ctx.notice(word, client, detail)
        if client.state == OPEN and client.version == 5:
            properties = self._why(client, detail)
            self._refer(client, reason, properties)
            self._send_last(client, encode(Disconnect(reason, properties), 5), encode(Disconnect(reason), 5))
        self.close(client, word)

    def _refer(self, client: Client, reason: int, properties: Properties, elsewhere: str = "") -> None:
        """Name another server to a client that is told to use one."""
        if reason == Reason.USE_ANOTHER_SERVER or reason == Reason.SERVER_MOVED:
            admission = self.ctx.connect_admission
            reference = elsewhere or self.ctx.mqtt.server_reference or admission.reference(client.listener)
            if reference:
                properties[prop.SERVER_REFERENCE] = reference

    def send_away(self, client: Client, reference: str) -> None:
        """End a connection whose client shall go to another node. MQTT 5 can express that, and name the node."""
        if client.state == OPEN and client.version == 5 and reference:
            reason = self.ctx.connect_admission.reason()
            whole = encode(Disconnect(reason, {prop.SERVER_REFERENCE: reference}), 5)
            self._send_last(client, whole, encode(Disconnect(reason), 5))
            self.close(client, DRAINING)
        else:
            self.fail(client, self.ctx.connect_admission.reason(), SERVES_NO_CLIENTS, DRAINING)

    def _why(self, client: Client, detail: str) -> Properties:
        return {prop.REASON_STRING: detail} if client.problem_information and detail else {}

    def _send_last(self, client: Client, frame: bytes, short: bytes) -> None:
        """Send a last frame: the whole, the short form, or none, as the client's Maximum Packet Size allows
        [MQTT-3.14.2-3]."""
        limit = client.max_packet
        if limit == 0 or len(frame) <= limit:
            self.ctx.send(client, frame)
        elif len(short) <= limit:
            self.ctx.send(client, short)

    def close(self, client: Client, why: str) -> None:
        """End a connection. Its session lives on according to its expiry. May be called twice."""
        if client.state == CLOSED:
            return
        session = client.session
        self.shut(client)
        if session is None or session.client is not client:
            return
        ctx = self.ctx
        if session.needs_reset and session.connack_sent_to is client and client.published != 0 and knows(client):
            self.subscribing.confirm_reset(session)  # CONNACK may not have been sent yet when it published
        session.connack_sent_to = None
        ctx.counters.clients_connected -= 1
        session.client = None
        self.delivery.postponed.pop(session, None)
        session.stalled = False
        self.delivery.let_go(session)
        session.replay = None
        session.parked = None
        ctx.event("disconnected", session.client_id, why)
        self._leave_will(session)
        if session.expiry == 0:
            self.end(session)
            return
        if session.reads is not None:
            self.subscribing.reads.session_gone(session)
        self.delivery.pass_on(session, False)
        if session.expiry != NEVER:
            session.expires_at = ctx.now + session.expiry
            ctx.arm(session, session.expires_at)
        if ctx.recording:
            session.kept = True
            ctx.write(Write(SESSION_PUT, session))
            ctx.spill(session)

    def shut(self, client: Client) -> None:
        """Nothing more is read; the transport closes after its output has been written."""
        client.state = CLOSED
        if client.protocol_handler is not None:
            client.protocol_handler.shut(client)
        self.forget(client)
        self.ctx.quotas.sign_out(client)
        self.waiting.pop(client, None)
        claims, wills = self.ctx.cluster.claims, self.ctx.cluster.wills
        if claims is not None and wills is not None and claims.holds(client):
            wills.change(client.client_id)  # its claim may have registered the will
        client.rest = b""
        client.chunks = None
        client.aliases = None
        client.aliases_out = None
        client.closing = True
        client.last_words = len(client.frames) != 0 or client.waiting != 0
        if not client.dirty:
            client.dirty = True
            self.ctx.ready.dirty.append(client)

    def forget(self, client: Client) -> None:
        """Remove a connection from the timer wheel, which has it at most once."""
        if client.check_at != 0.0:
            self.ctx.client_wheel.remove(client, client.check_at)
            client.check_at = 0.0

    # Ending a session

    def end(self, session: Session, why: str = "session_ended") -> None:
        """Discard a session with its content, which is counted as dropped by ``why``. A pending will is due now."""
        ctx = self.ctx
        session.ended = True
        ctx.disarm(session)
        if session.will is not None:
            self.publish_pending(session)
        if ctx.sessions.get(session.client_id) is session:
            del ctx.sessions[session.client_id]
        if session.node != 0:
            ctx.cluster.links.pop(session.node, None)
        if ctx.cluster.claims is not None and session.epoch != 0:
            ctx.cluster.claims.released.append((session.client_id, session.epoch))
        if session.kept:
            ctx.write(Write(SESSION_DELETE, session))
        self.delivery.let_go(session)
        self.delivery.pass_on(session, True)
        self.subscribing.discard(session)
        lost = 0 if session.queue is None else len(session.queue)
        if session.window is not None:
            lost += session.window.unanswered()
        if session.inbound is not None:
            lost += session.inbound.held
        if lost != 0:
            ctx.drop(why, session.client_id, lost)
            if ctx.audit is not None:
                ctx.audit.dropped_all(session, why)
        session.queue = None
        session.window = None
        session.inbound = None
        ctx.event("session_discarded", session.client_id)

    # Wills

    def _leave_will(self, session: Session) -> None:
        will = session.will
        if will is None:
            return
        seconds = due_after(will.delay, session.expiry)
        if seconds == 0:
            self.publish_pending(session)
            return
        session.will_at = self.ctx.now + seconds
        self.ctx.arm(session, session.will_at)
        self.will_changed(session)

    def will_changed(self, session: Session) -> None:
        """The other nodes must know the change."""
        if self.ctx.cluster.wills is not None:
            self.ctx.cluster.wills.change(session.client_id)

    def publish_pending(self, session: Session) -> None:
        will = session.will
        session.will = None
        session.will_at = 0.0
        if will is None:
            return
        if session.kept and not session.ended:
            # in the same turn as the message, so that it is not published twice
            self.ctx.write(Write(SESSION_PUT, session))
        if self.ctx.cluster.wills is not None and will.id != 0:
            self.ctx.cluster.wills.fire(session.client_id, will)
        else:
            self.publish_will(will)

    def publish_will(self, will: Will) -> None:
        """Publish a will that is due and that this node has to publish, unless the present rules forbid its client
        to."""
        message = will.message
        if self._is_revoked(will):
            self.ctx.drop("revoked", message.publisher)
            if self.ctx.audit is not None:
                self.ctx.audit.refused(message.publisher, message.topic, message.id, message.qos, "revoked")
            return
        now = self.ctx.now
        message = Message(
            message.topic,
            message.payload,
            message.qos,
            message.retain,
            message.properties,
            0.0 if will.expiry < 0 else now + will.expiry,
            message.publisher,
            now,
        )
        if self.ctx.ask_publish:
            self.publishing.ask_for_will(will.client, message)
        else:
            self.publishing.route(message, None)

    def _is_revoked(self, will: Will) -> bool:
        client = will.client
        rights = client.rights
        if client.rules != self.ctx.rules:
            if self.ctx.standing(client) != 0:
                return True
            if will.granted and client.standing is UNPROVED:
                return False  # the rules that the client had of its own are not known any more
            rights = self.ctx.granted(client)
        # The rules may have changed after the will was left (ReauthorizeJob), even if the client knows them.
        message = will.message
        return rights is not None and not rights.may_publish(message.topic, message.qos, message.retain)
