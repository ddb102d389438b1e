"""CONNECT to CONNACK, takeover on this node, AUTH, and every way in which a connection or a session ends.

::

    NEW --CONNECT--> AUTHENTICATING --accepted--> OPEN --DISCONNECT, error, takeover, silence--> CLOSED
                     |      ^
                     +-AUTH-+  (0x18, as often as the authenticator wants)

The law: one client id, one session, at most one connection. ``session present`` is 1 only if state of that client id
was found and kept. A will is published once, unless DISCONNECT or a reconnection before its delay cancels it.
"""

from __future__ import annotations

import hashlib
from typing import Final, cast

from starlingmq.core.anew import renumber
from starlingmq.core.claims import Claim
from starlingmq.core.client import ASKING, AUTHENTICATING, CLOSED, DEAF, NEW, OPEN, TURN_OVER, WORKING, Client
from starlingmq.core.context import ISOLATED, Context
from starlingmq.core.delivery import Delivery
from starlingmq.core.job import Job
from starlingmq.core.message import Message
from starlingmq.core.producers import named_by
from starlingmq.core.publishing import Publishing
from starlingmq.core.qos import MAX_PACKET_ID, WINDOW_MAX
from starlingmq.core.ready import AUTHENTICATE, INBOUND_DELETE, SESSION_DELETE, SESSION_PUT, Answer, Question, Write
from starlingmq.core.router import Router
from starlingmq.core.session import GROUP_PREFIX, MOVED_PREFIX, NATS_PREFIX, NEVER, NODE_PREFIX, Session
from starlingmq.core.subscribing import Subscribing
from starlingmq.core.will import Will
from starlingmq.wire import properties as prop
from starlingmq.wire.mqtt import Auth, Connack, Connect, Disconnect, encode
from starlingmq.wire.mqtt import Will as WillPacket
from starlingmq.wire.properties import Properties, encode_property_bytes
from starlingmq.wire.reasons import ProtocolError, Reason, connack_return_code

LOOK_AGAIN: Final = 30.0  # seconds until the timer wheel looks at a connection again at the latest
LOOK_SOONEST: Final = 0.5  # and at the earliest: less than the shortest keep alive allows
REASONS: Final = frozenset(int(reason) for reason in Reason)


def number(properties: Properties, name: int, default: int) -> int:
    value = properties.get(name)
    return value if isinstance(value, int) else default


class SuccessionJob(Job):
    """A CONNECT with the client id of a connection that is gone, but of which not everything is handled that it sent,
    perhaps a DISCONNECT that takes its will back. That is a matter of some turns, then the new one has its place."""

    owner: Connecting
    client: Client
    earlier: Client
    auth_data: bytes | None

    def __init__(self, owner: Connecting, client: Client, earlier: Client, auth_data: bytes | None) -> None:
        self.owner = owner
        self.client = client
        self.earlier = earlier
        self.auth_data = auth_data

    def step(self) -> bool:
        if self.client.state != AUTHENTICATING:
            return True
        if self.earlier.state != CLOSED and self.earlier.halted == TURN_OVER:
            return False
        self.owner.ctx.unhalt(self.client, WORKING)
        self.owner.accept(self.client, self.auth_data)
        return True


class Connecting:
    ctx: Context
    router: Router
    delivery: Delivery
    publishing: Publishing
    subscribing: Subscribing
    _secret: bytes
    _assigned: int
    _waiting: dict[Client, Connect]  # CONNECTs that are being authenticated

    def __init__(
        self,
        ctx: Context,
        router: Router,
        delivery: Delivery,
        publishing: Publishing,
        subscribing: Subscribing,
        secret: bytes,
    ) -> None:
        self.ctx = ctx
        self.router = router
        self.delivery = delivery
        self.publishing = publishing
        self.subscribing = subscribing
        self._secret = secret
        self._assigned = 0
        self._waiting = {}

    # Asking for a connection

    def on_connect(self, client: Client, connect: Connect) -> None:
        client.version = connect.version
        client.client_id = connect.client_id
        client.problem_information = number(connect.properties, prop.REQUEST_PROBLEM_INFORMATION, 1) == 1
        client.username = client.certificate_name if client.identity else connect.username or ""
        client.state = AUTHENTICATING
        named_by(connect.properties)  # nothing else is looked at in one that makes no sense
        client.max_packet = number(connect.properties, prop.MAXIMUM_PACKET_SIZE, 0)
        self._check(client, connect)
        method = connect.properties.get(prop.AUTHENTICATION_METHOD)
        self._waiting[client] = connect
        if not self.ctx.quotas.may_connect(self.ctx.now):
            self._refuse(client, Reason.CONNECTION_RATE_EXCEEDED, "more CONNECTs a second than the server takes")
            return
        if self.ctx.ask_authenticate:
            client.auth_method = method if isinstance(method, str) else ""
            self._ask(client, connect, connect.properties.get(prop.AUTHENTICATION_DATA))
        elif method is not None:
            self._refuse(client, Reason.BAD_AUTHENTICATION_METHOD, "no such authentication method")
        elif not self.ctx.allow_anonymous:
            self._refuse(client, Reason.NOT_AUTHORIZED, "anonymous connections are not allowed")
        else:
            self.accept(client, None)

    def _check(self, client: Client, connect: Connect) -> None:
        limits = self.ctx.limits
        if not connect.client_id:
            if connect.version == 3 or (connect.version == 4 and not connect.clean_start):
                # [MQTT-3.1.3-8]: 3.1.1 has an empty client id only with clean session, 3.1 not at all
                raise ProtocolError("an empty client id", Reason.CLIENT_IDENTIFIER_NOT_VALID)
        elif connect.client_id.startswith((NODE_PREFIX, NATS_PREFIX, MOVED_PREFIX, GROUP_PREFIX)):
            raise ProtocolError("a client id that is the broker's own", Reason.CLIENT_IDENTIFIER_NOT_VALID)
        elif len(connect.client_id.encode()) > limits.client_id_length:
            raise ProtocolError("the client id is too long", Reason.CLIENT_IDENTIFIER_NOT_VALID)
        elif self.ctx.mqtt.strict_client_id and not (
            len(connect.client_id) <= 23 and connect.client_id.isascii() and connect.client_id.isalnum()
        ):
            raise ProtocolError("the client id is not 1 to 23 letters and digits", Reason.CLIENT_IDENTIFIER_NOT_VALID)
        bound = self.ctx.mqtt.max_keep_alive
        if bound != 0 and connect.version != 5 and not 0 < connect.keep_alive <= bound:
            raise ProtocolError(f"the keep alive is over {bound} s", Reason.UNSPECIFIED_ERROR)
        will = connect.will
        if will is not None:
            if will.qos > self.ctx.mqtt.max_qos:
                raise ProtocolError("the QoS of the will is too high", Reason.QOS_NOT_SUPPORTED)  # [MQTT-3.2.2-12]
            if will.retain and not self.ctx.mqtt.retain_available:
                raise ProtocolError("retained wills are not available", Reason.RETAIN_NOT_SUPPORTED)  # [MQTT-3.2.2-13]
            if self.router.resolve(will.topic).reserved:
                raise ProtocolError("the topic of the will is the broker's", Reason.TOPIC_NAME_INVALID)

    def _ask(self, client: Client, connect: Connect | None, data: object) -> None:
        question = Question(AUTHENTICATE, client)
        question.connect = connect
        question.method = client.auth_method
        question.data = data if isinstance(data, bytes) else None
        self.ctx.ready.questions.append(question)
        self.ctx.halt(client, ASKING)

    def on_auth(self, client: Client, packet: Auth) -> None:
        """The next step of an authentication, or the first of a new one on an open connection."""
        if not client.auth_method:
            raise ProtocolError("AUTH without an authentication method in CONNECT")  # [MQTT-4.12.0-6]
        if packet.properties.get(prop.AUTHENTICATION_METHOD) != client.auth_method:
            raise ProtocolError("AUTH with another method than CONNECT")  # [MQTT-4.12.0-5]
        if packet.reason == Reason.RE_AUTHENTICATE and client.state != OPEN:
            raise ProtocolError("re-authentication before CONNACK")
        if packet.reason == Reason.CONTINUE_AUTHENTICATION and not client.challenged:
            raise ProtocolError("AUTH that goes on with an exchange nobody began")
        if packet.reason != Reason.RE_AUTHENTICATE and packet.reason != Reason.CONTINUE_AUTHENTICATION:
            raise ProtocolError("AUTH with a reason only a server may send")
        client.challenged = False
        self._ask(client, self._waiting.get(client), packet.properties.get(prop.AUTHENTICATION_DATA))

    def answered(self, question: Question, answer: Answer) -> None:
        client = question.client
        self.ctx.unhalt(client, ASKING)
        if client.state != AUTHENTICATING and client.state != OPEN:
            return
        if answer.username is not None:
            client.username = answer.username
        self.entitle(client, answer)
        reason = answer.reason
        if (reason >= 0x80 and reason not in REASONS) or (
            reason == Reason.CONTINUE_AUTHENTICATION and not client.auth_method
        ):
            reason = Reason.UNSPECIFIED_ERROR  # the hook's mistake: no such reason, or nothing to go on with
        if reason >= 0x80:
            if client.state == OPEN:
                self.fail(client, reason, "re-authentication failed")
            else:
                self._refuse(client, reason, "authentication refused")
        elif answer.reason == Reason.CONTINUE_AUTHENTICATION or client.state == OPEN:
            client.challenged = answer.reason == Reason.CONTINUE_AUTHENTICATION
            properties: Properties = {prop.AUTHENTICATION_METHOD: client.auth_method}
            if answer.data is not None:
                properties[prop.AUTHENTICATION_DATA] = answer.data
            self.ctx.send(client, encode(Auth(answer.reason, properties), 5))
            self.watch(client)
        elif not self._may_leave_will(client):
            self._refuse(client, Reason.NOT_AUTHORIZED, "it may not publish its will")
        else:
            self.accept(client, answer.data)

    def entitle(self, client: Client, answer: Answer) -> None:
        """Give the client the rights that come with the answer to who it is."""
        if answer.reason == Reason.SUCCESS:
            client.rights = answer.rights
            client.valid_until = self.ctx.now + answer.valid if answer.valid != 0.0 else 0.0

    def _may_leave_will(self, client: Client) -> bool:
        will = self._waiting[client].will
        rights = client.rights
        return will is None or rights is None or rights.may_publish(will.topic, will.qos, will.retain)

    def _refuse(self, client: Client, reason: int, detail: str) -> None:
        """CONNACK with a refusal, then close. 3.x clients get their nearest return code, or just the close."""
        self._waiting.pop(client, None)
        self.ctx.notice(Reason(reason).name.lower(), client, detail)
        if client.version == 5:
            properties = self._why(client, detail)
            self._refer(client, reason, properties)
            self._say(client, encode(Connack(False, reason, properties), 5), encode(Connack(False, reason), 5))
        else:
            code = connack_return_code(reason)
            if code > 0:
                self.ctx.send(client, encode(Connack(False, code), client.version))
        self._shut(client)

    # A connection is accepted

    def accept(self, client: Client, auth_data: bytes | None) -> None:
        ctx = self.ctx
        session = ctx.sessions.get(self._waiting[client].client_id)
        earlier = None if session is None else session.client
        if earlier is not None and earlier.gone and earlier.halted == TURN_OVER:
            ctx.halt(client, WORKING)
            ctx.jobs.append(SuccessionJob(self, client, earlier, auth_data))
            return
        connect = self._waiting[client]
        if ctx.isolated:
            self._refuse(client, Reason.SERVER_UNAVAILABLE, ISOLATED)
            return
        if ctx.doors.shut:
            self._refuse(client, self._elsewhere(), "this node serves no clients now")
            return
        if ctx.refusing and self._needs_storage(connect, session):
            self._refuse(client, Reason.QUOTA_EXCEEDED, "nothing can be stored at the moment")
            return
        refusal = self._no_room(client, session, connect.properties)
        if refusal:
            self._refuse(client, Reason.QUOTA_EXCEEDED, refusal)
            return
        claims = ctx.claims
        if claims is None:
            self._begin(client, connect, session, auth_data, 0)
            return
        if not client.client_id:
            client.client_id = self._assign_id()
        ctx.halt(client, WORKING)
        claim = Claim(client, auth_data, connect.clean_start, ctx.now + claims.seconds)
        earlier_claim = claims.hold(client.client_id, claim)
        if earlier_claim is not None:
            self.fail(earlier_claim.client, Reason.SERVER_BUSY, "another connection with this client id")

    def _no_room(self, client: Client, session: Session | None, properties: Properties) -> str:
        """Why a limit keeps the client out; "" if none does."""
        ctx = self.ctx
        if ctx.quotas.short_of_memory:
            return "the server has less memory than it wants to keep free"
        if session is None and ctx.limits.sessions != 0 and len(ctx.sessions) >= ctx.limits.sessions:
            return "the server has all the sessions it takes"
        if self.publishing.producers.full(client, properties):
            return "the server has all the producers it knows (limits.producers)"
        if not ctx.quotas.sign_in(client, None if session is None else session.client):
            return "this user has all the connections it may have"
        return ""

    def claimed(self, client_id: str, epoch: int) -> bool:
        """This node owns a client id since ``epoch``, and what other nodes had of its session is here: whoever waited
        for that may go on. Whether somebody did."""
        ctx = self.ctx
        claims = ctx.claims
        claim = None if claims is None else claims.waiting.pop(client_id, None)
        if claims is None or claim is None or claim.client.state != AUTHENTICATING:
            return False
        client = claim.client
        ctx.unhalt(client, WORKING)
        if ctx.isolated:
            self._refuse(client, Reason.SERVER_UNAVAILABLE, ISOLATED)
            return False
        if ctx.doors.shut:
            self._refuse(client, self._elsewhere(), "this node serves no clients now")
            return False
        session = ctx.sessions.get(client_id)
        connect = self._waiting[client]
        if ctx.refusing and self._needs_storage(connect, session):
            self._refuse(client, Reason.QUOTA_EXCEEDED, "nothing can be stored at the moment")
            return False
        self._begin(client, connect, session, claim.auth_data, epoch)
        return True

    def not_claimed(self, client_id: str, reason: int, detail: str) -> None:
        """Whoever waited for this client id can not have it."""
        claims = self.ctx.claims
        claim = None if claims is None else claims.waiting.pop(client_id, None)
        if claim is not None:
            self.ctx.unhalt(claim.client, WORKING)
            self.fail(claim.client, reason, detail)

    def _begin(
        self, client: Client, connect: Connect, session: Session | None, auth_data: bytes | None, epoch: int
    ) -> None:
        ctx = self.ctx
        del self._waiting[client]
        agreed: Properties = {}
        if client.auth_method:
            agreed[prop.AUTHENTICATION_METHOD] = client.auth_method
            if auth_data is not None:
                agreed[prop.AUTHENTICATION_DATA] = auth_data
        if not connect.client_id:
            client.client_id = client.client_id or self._assign_id()
            agreed[prop.ASSIGNED_CLIENT_IDENTIFIER] = client.client_id
        unknown = session is None
        session, present = self._session(client, connect.clean_start)
        if session.anew:
            renumber(ctx, session, 0)
        if epoch != 0:
            session.epoch = epoch
        if not present:
            session.floor = session.epoch  # of whatever was before nothing counts any more
        elif session.trail is not None:
            session.trail.backlog = None
        before = session.expiry
        self._agree(client, connect, session, agreed)
        self.publishing.producers.begin(client, connect.properties, agreed)
        if ctx.interest is not None:
            ctx.interest.reconsider(session, before)
        session.client = client
        client.session = session
        client.state = OPEN
        client.meter = ctx.quotas.meter(ctx.now)
        self.watch(client)
        session.will = self._will(client, connect.will)
        if session.will is not None:
            self.will_changed(session)
        ctx.counters.clients_connected += 1
        if ctx.recording and (session.expiry != 0 or session.kept or session.will is not None):
            session.kept = True
            ctx.write(Write(SESSION_PUT, session))
        # Who publishes at QoS 2 goes by what this one knows of it, whatever became of its subscriptions.
        aware = not session.anew or (session.inbound is not None and not session.subscriptions)
        told = present and aware and client.version != 3  # 3.1 has no such flag
        frame = encode(Connack(told, 0, agreed if client.version == 5 else {}), client.version)
        if client.max_packet != 0 and len(frame) > client.max_packet:
            ctx.notice("packet_too_large", client, "CONNACK is larger than this client takes")
            session.will = None
            self.will_changed(session)
            self.close(client, "packet_too_large")
            return
        if unknown and not session.kept and client.production is None:
            ctx.send(client, frame)  # nothing of it is stored, so it waits for nothing
        else:
            ctx.send_stored(client, frame)
        ctx.event("connected", client.client_id, client.peer)
        if present:
            if session.inbound is not None:
                ctx.arm(session, ctx.now + ctx.await_rel_timeout)
            self.subscribing.revoke(session)
            self.delivery.resume(session, client)

    def _needs_storage(self, connect: Connect, session: Session | None) -> bool:
        """Whether CONNACK promises something that has to be stored: a session that outlives its connection, a will, or
        the end of a session that is kept."""
        if connect.will is not None or (session is not None and session.kept):
            return True
        if connect.version == 5 and named_by(connect.properties) is not None:
            return True  # what it is told of its messages may not be stored yet
        if connect.version == 5:
            return number(connect.properties, prop.SESSION_EXPIRY_INTERVAL, 0) != 0
        return not connect.clean_start

    def _assign_id(self) -> str:
        """A client id nobody can guess, and nobody has."""
        while True:
            self._assigned += 1
            digest = hashlib.blake2b(self._assigned.to_bytes(8, "big"), key=self._secret, digest_size=11).hexdigest()
            client_id = "s" + digest  # 23 letters and digits: every server takes that [MQTT-3.1.3-5]
            if client_id not in self.ctx.sessions:
                return client_id

    def taken_over(self, session: Session, clean_start: bool) -> bool:
        """Its client is on another connection now, here or elsewhere: whether it has a session to go on with."""
        earlier = session.client
        if earlier is not None:
            self._take_over(session, earlier, clean_start)
        elif session.expires_at != 0.0 and session.expires_at <= self.ctx.now:
            self.end(session)  # its time was over while the broker was away itself, and nobody has looked yet
        elif not clean_start:
            if session.will_at != 0.0 and session.will_at <= self.ctx.now:
                self._publish_will(session)  # likewise
            session.will = None  # came back in time [MQTT-3.1.3-9]
            session.will_at = 0.0
            self.will_changed(session)
        if clean_start and not session.ended:
            self.end(session)
        return not session.ended

    def _session(self, client: Client, clean_start: bool) -> tuple[Session, bool]:
        """The session of this client id, after any earlier connection was ended; whether it was there before."""
        session = self.ctx.sessions.get(client.client_id)
        epoch = 0
        if session is not None:
            epoch = session.epoch
            self.taken_over(session, clean_start)
        if session is None or session.ended:
            session = Session(client.client_id, self.ctx.next_number)
            self.ctx.next_number += 1
            self.ctx.sessions[client.client_id] = session
            session.epoch = epoch
            return session, False
        session.expires_at = 0.0
        return session, True

    def _take_over(self, session: Session, earlier: Client, clean_start: bool) -> None:
        """Another connection has the client id now [MQTT-3.1.4-3]. The earlier one's will is published at once unless
        its delay lets the session's return cancel it."""
        will = session.will
        if will is not None and will.delay != 0 and not clean_start and session.expiry != 0:
            session.will = None
            self.will_changed(session)
        self.fail(earlier, Reason.SESSION_TAKEN_OVER, "another connection with this client id")

    def _agree(self, client: Client, connect: Connect, session: Session, agreed: Properties) -> None:
        """Settle what both sides may do; ``agreed`` becomes the properties of CONNACK."""
        mqtt = self.ctx.mqtt
        limits = self.ctx.limits
        keep_alive = connect.keep_alive
        if client.version == 5:
            self._agree_5(client, connect, session, agreed)
            imposed = mqtt.server_keep_alive
            bound = mqtt.max_keep_alive
            if imposed == 0 and bound != 0 and not 0 < keep_alive <= bound:
                imposed = bound
            if imposed != 0:
                keep_alive = imposed
                agreed[prop.SERVER_KEEP_ALIVE] = imposed
        else:
            session.expiry = 0 if connect.clean_start else mqtt.session_expiry_v3
            client.window_limit = mqtt.max_inflight or MAX_PACKET_ID
        client.keep_alive = keep_alive * 1.5  # [MQTT-3.1.2-22]
        client.plain = client.max_packet == 0 and client.alias_out_limit == 0 and session.moving is None
        client.window_limit = min(client.window_limit, WINDOW_MAX)
        if session.window is not None:
            session.window.limit = client.window_limit
        agreed[prop.MAXIMUM_PACKET_SIZE] = limits.max_packet_size

    def _agree_5(self, client: Client, connect: Connect, session: Session, agreed: Properties) -> None:
        mqtt = self.ctx.mqtt
        wishes = connect.properties
        asked = number(wishes, prop.SESSION_EXPIRY_INTERVAL, 0)
        session.expiry = min(asked, mqtt.max_session_expiry)
        if session.expiry != asked:
            agreed[prop.SESSION_EXPIRY_INTERVAL] = session.expiry
        client.window_limit = number(wishes, prop.RECEIVE_MAXIMUM, 65535)
        if mqtt.max_inflight != 0:
            client.window_limit = min(client.window_limit, mqtt.max_inflight)
        client.alias_limit = mqtt.topic_alias_max
        client.alias_out_limit = min(number(wishes, prop.TOPIC_ALIAS_MAXIMUM, 0), mqtt.topic_alias_max)
        if mqtt.topic_alias_max != 0:
            agreed[prop.TOPIC_ALIAS_MAXIMUM] = mqtt.topic_alias_max
        if mqtt.max_awaiting_rel != 0:
            agreed[prop.RECEIVE_MAXIMUM] = mqtt.max_awaiting_rel
        if mqtt.max_qos != 2:
            agreed[prop.MAXIMUM_QOS] = mqtt.max_qos
        if not mqtt.retain_available:
            agreed[prop.RETAIN_AVAILABLE] = 0
        if not mqtt.wildcard_subscription:
            agreed[prop.WILDCARD_SUBSCRIPTION_AVAILABLE] = 0
        if not mqtt.shared_subscription:
            agreed[prop.SHARED_SUBSCRIPTION_AVAILABLE] = 0
        if not mqtt.subscription_identifier:
            agreed[prop.SUBSCRIPTION_IDENTIFIER_AVAILABLE] = 0
        if number(wishes, prop.REQUEST_RESPONSE_INFORMATION, 0) == 1 and mqtt.response_information:
            agreed[prop.RESPONSE_INFORMATION] = mqtt.response_information

    def _will(self, client: Client, packet: WillPacket | None) -> Will | None:
        if packet is None:
            return None
        properties = packet.properties.copy()
        delay = properties.pop(prop.WILL_DELAY_INTERVAL, 0)
        expiry = properties.pop(prop.MESSAGE_EXPIRY_INTERVAL, -1)
        raw = encode_property_bytes(properties)
        message = Message(packet.topic, packet.payload, packet.qos, packet.retain, raw, 0.0, client.client_id, 0.0)
        identity = 0
        if self.ctx.wills is not None:
            self.ctx.sequence += 1
            identity = self.ctx.sequence
        return Will(message, cast(int, delay), cast(int, expiry), client, identity)

    # A connection ends

    def on_disconnect(self, client: Client, session: Session, packet: Disconnect) -> None:
        expiry = packet.properties.get(prop.SESSION_EXPIRY_INTERVAL)
        if isinstance(expiry, int):
            if session.expiry == 0 and expiry != 0:
                raise ProtocolError("DISCONNECT may not give a session an expiry that CONNECT did not")
            before = session.expiry
            session.expiry = min(expiry, self.ctx.mqtt.max_session_expiry)
            if self.ctx.interest is not None:
                self.ctx.interest.reconsider(session, before)
        if packet.reason == 0:
            session.will = None  # [MQTT-3.14.4-3]
            self.will_changed(session)
        self.close(client, "disconnect")

    def fail(self, client: Client, reason: int, detail: str) -> None:
        """End a connection for ``reason``: told to the client where its version has words for it, counted, logged."""
        if client.state == CLOSED:
            return
        if client.dialect is not None:
            self.ctx.notice(Reason(reason).name.lower(), client, detail)
            client.dialect.last_words(client, reason)
            self.close(client, Reason(reason).name.lower())
            return
        if client.state == AUTHENTICATING or (client.state == NEW and (client.version == 5 or client.full != 0)):
            self._refuse(client, reason, detail)
            return
        self.ctx.notice(Reason(reason).name.lower(), client, detail)
        if client.state == OPEN and client.version == 5:
            properties = self._why(client, detail)
            self._refer(client, reason, properties)
            self._say(client, encode(Disconnect(reason, properties), 5), encode(Disconnect(reason), 5))
        self.close(client, Reason(reason).name.lower())

    def _elsewhere(self) -> int:
        return Reason.SERVER_MOVED if self.ctx.doors.for_good else Reason.USE_ANOTHER_SERVER

    def _refer(self, client: Client, reason: int, properties: Properties) -> None:
        """Name another server to who is told to use one."""
        if reason == Reason.USE_ANOTHER_SERVER or reason == Reason.SERVER_MOVED:
            reference = self.ctx.mqtt.server_reference or self.ctx.doors.reference(client.listener)
            if reference:
                properties[prop.SERVER_REFERENCE] = reference

    def send_away(self, client: Client, reference: str) -> None:
        """End a connection because its client is to go to another node; MQTT 5 has words for that, and for which."""
        if client.state == OPEN and client.version == 5 and reference:
            reason = self._elsewhere()
            whole = encode(Disconnect(reason, {prop.SERVER_REFERENCE: reference}), 5)
            self._say(client, whole, encode(Disconnect(reason), 5))
            self.close(client, Reason(reason).name.lower())
        else:
            self.fail(client, self._elsewhere(), "this node serves no clients now")

    def _why(self, client: Client, detail: str) -> Properties:
        return {prop.REASON_STRING: detail} if client.problem_information and detail else {}

    def _say(self, client: Client, frame: bytes, short: bytes) -> None:
        """Send last words: whole, or short, or none, as the client's Maximum Packet Size lets us [MQTT-3.14.2-3]."""
        limit = client.max_packet
        if limit == 0 or len(frame) <= limit:
            self.ctx.send(client, frame)
        elif len(short) <= limit:
            self.ctx.send(client, short)

    def close(self, client: Client, why: str) -> None:
        """End a connection; its session lives on as long as it was agreed. Safe to call twice."""
        if client.state == CLOSED:
            return
        session = client.session
        self._shut(client)
        if session is None or session.client is not client:
            return
        ctx = self.ctx
        ctx.counters.clients_connected -= 1
        session.client = None
        ctx.postponed.pop(session, None)
        session.stalled = False
        self.delivery.let_go(session)
        session.replay = None
        session.parked = None
        ctx.event("disconnected", session.client_id, why)
        self._leave_will(session)
        if session.expiry == 0:
            self.end(session)
            return
        self.delivery.pass_on(session, False)
        if session.expiry != NEVER:
            session.expires_at = ctx.now + session.expiry
            ctx.arm(session, session.expires_at)
        if ctx.recording:
            session.kept = True
            ctx.write(Write(SESSION_PUT, session))
            ctx.spill(session)

    def _shut(self, client: Client) -> None:
        """Nothing more is read; the transport closes once what is to be written has been."""
        client.state = CLOSED
        if client.dialect is not None:
            client.dialect.shut(client)
        self._forget(client)
        self.ctx.quotas.sign_out(client)
        self._waiting.pop(client, None)
        client.rest = b""
        client.chunks = None
        client.aliases = None
        client.aliases_out = None
        client.closing = True
        client.last_words = len(client.frames) != 0 or client.waiting != 0
        if not client.dirty:
            client.dirty = True
            self.ctx.ready.dirty.append(client)

    # A session ends

    def end(self, session: Session) -> None:
        """Discard a session and everything in it. Its will, if one is pending, is due now."""
        ctx = self.ctx
        session.ended = True
        ctx.disarm(session)
        if session.will is not None:
            self._publish_will(session)
        if ctx.sessions.get(session.client_id) is session:
            del ctx.sessions[session.client_id]
        if session.node != 0:
            ctx.links.pop(session.node, None)
        if ctx.claims is not None and session.epoch != 0:
            ctx.claims.released.append((session.client_id, session.epoch))
        if session.kept:
            ctx.write(Write(SESSION_DELETE, session))
        self.delivery.pass_on(session, True)
        self.subscribing.discard(session)
        lost = 0 if session.queue is None else len(session.queue)
        if session.window is not None:
            lost += session.window.unanswered()
        if session.inbound is not None:
            lost += session.inbound.held
        if lost != 0:
            ctx.drop("session_ended", session.client_id, lost)
        session.queue = None
        session.window = None
        session.inbound = None
        ctx.event("session_discarded", session.client_id)

    # Wills

    def _leave_will(self, session: Session) -> None:
        will = session.will
        if will is None:
            return
        if will.delay == 0 or session.expiry == 0:
            self._publish_will(session)
            return
        session.will_at = self.ctx.now + will.delay
        self.ctx.arm(session, session.will_at)
        self.will_changed(session)

    def will_changed(self, session: Session) -> None:
        """Have the other nodes know."""
        if self.ctx.wills is not None:
            self.ctx.wills.change(session.client_id)

    def _publish_will(self, session: Session) -> None:
        will = session.will
        session.will = None
        session.will_at = 0.0
        if will is None:
            return
        if session.kept and not session.ended:
            self.ctx.write(Write(SESSION_PUT, session))  # in the same turn as the message: it is not published twice
        if self.ctx.wills is not None and will.id != 0:
            self.ctx.wills.fire(session.client_id, will)
        else:
            self.publish_will(will)

    def publish_will(self, will: Will) -> None:
        """It is due, and it is ours to publish."""
        message = will.message
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

    # Time

    def watch(self, client: Client) -> None:
        """Have the timer wheel look at a connection when it may have been silent for too long."""
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
        # A halted connection may be past its time, and is looked at again: but not in a circle.
        when = max(min(when, ctx.now + LOOK_AGAIN), ctx.now + LOOK_SOONEST)
        self._forget(client)
        client.check_at = when
        ctx.client_wheel.add(client, when)

    def _forget(self, client: Client) -> None:
        """The timer wheel has a connection once at most."""
        if client.check_at != 0.0:
            self.ctx.client_wheel.remove(client, client.check_at)
            client.check_at = 0.0

    def look_at_client(self, client: Client) -> None:
        now = self.ctx.now
        client.check_at = 0.0
        if client.state == CLOSED:
            return
        if client.state != OPEN:
            if now >= client.connected_at + self.ctx.mqtt.connect_timeout:
                self.ctx.notice("connect_timeout", client, "no complete CONNECT in time")
                if client.dialect is not None:
                    client.dialect.last_words(client, Reason.MAXIMUM_CONNECT_TIME)
                self._shut(client)
                return
        elif client.valid_until != 0.0 and now >= client.valid_until:
            self.fail(client, Reason.NOT_AUTHORIZED, "what proved who it is has expired")
            return
        elif client.keep_alive == 0.0:
            self.watch(client)
            return
        elif client.halted & ~DEAF == 0 and now >= client.last_packet + client.keep_alive:
            if client.dialect is not None and not client.dialect.silent(client):
                self.watch(client)
                return
            self.fail(client, Reason.KEEP_ALIVE_TIMEOUT, "silent for more than one and a half keep alives")
            return
        self.watch(client)

    def look_at_session(self, session: Session) -> None:
        """Do what is due for a session and arm it for what is due next."""
        ctx = self.ctx
        if session.ended or session.armed_at == 0.0 or session.armed_at > ctx.now:
            return  # an earlier look took care of it
        session.armed_at = 0.0
        if session.waiters is not None:
            if ctx.now >= session.held_until:
                session.stalled = True
                self.delivery.let_go(session)
            else:
                ctx.arm(session, session.held_until)
        if session.will_at != 0.0 and session.client is None:
            if ctx.now >= session.will_at:
                self._publish_will(session)
            else:
                ctx.arm(session, session.will_at)
        if session.expires_at != 0.0:
            if ctx.now >= session.expires_at:
                self.end(session)
                return
            ctx.arm(session, session.expires_at)
        self.delivery.retry(session)
        self._sweep_inbound(session)

    def _sweep_inbound(self, session: Session) -> None:
        inbound = session.inbound
        if inbound is None:
            return
        timeout = self.ctx.await_rel_timeout
        client = session.client
        # Who is away, or has just come, may repeat any PUBREL that was answered.
        since = 0.0 if client is None else client.connected_at + timeout
        settled = client is not None and self.ctx.now >= since
        forgotten, abandoned = inbound.sweep(self.ctx.now - timeout, settled)
        if self.ctx.recording and session.expiry != 0:
            for packet_id in forgotten:
                self.ctx.write(Write(INBOUND_DELETE, session, packet_id))
        if abandoned != 0:
            self.ctx.drop("await_rel_timeout", session.client_id, abandoned)
            session.dropped += abandoned
            self.publishing.unpark(session)
        oldest = inbound.next_sweep(settled)
        # A sweep looks at up to 65,535 handshakes: not every second.
        soonest = self.ctx.now + max(1.0, timeout / 16)
        if oldest != 0.0:
            self.ctx.arm(session, max(oldest + timeout, soonest))
        elif not inbound.entries:
            session.inbound = None
        elif client is not None:
            self.ctx.arm(session, max(since, soonest))
