"""CONNECT to CONNACK, takeover on this node, and AUTH. How connections and sessions end is in ``core.session.ending``.

::

    NEW --CONNECT--> AUTHENTICATING --accepted--> OPEN --DISCONNECT, error, takeover, silence--> CLOSED
                     |      ^
                     +-AUTH-+  (0x18, as often as the authenticator wants)

The law: one client id, one session, at most one connection. ``session present`` is 1 only if state of that client id
was found and kept.
"""

from __future__ import annotations

import hashlib
from typing import Final

from starlingmq.core.connection import ASKING, AUTHENTICATING, CLOSED, OPEN, TURN_OVER, WORKING
from starlingmq.core.context import ISOLATED, Context
from starlingmq.core.job import Job
from starlingmq.core.mqtt.bridges import tells_state
from starlingmq.core.mqtt.connect_negotiation import agree, number, will_of
from starlingmq.core.mqtt.publishing import Publishing
from starlingmq.core.mqtt.subscribing import Subscribing
from starlingmq.core.ready import AUTHENTICATE, SESSION_PUT, HookAnswer, HookQuestion, Write
from starlingmq.core.routing.delivery import Delivery
from starlingmq.core.routing.router import Router
from starlingmq.core.session.deadlines import Deadlines
from starlingmq.core.session.ending import Ending
from starlingmq.core.session.owner_claims import OwnerClaim
from starlingmq.core.session.producers import named_by
from starlingmq.core.session.session import GROUP_PREFIX, MOVED_PREFIX, NATS_PREFIX, NODE_PREFIX, Client, Session
from starlingmq.core.session.session_reset import is_told, renumber
from starlingmq.core.session.session_user import ANOTHER_USER, BY_CLIENT_ID, KEPT_FOR_ANOTHER, REFUSE, is_anothers
from starlingmq.wire import properties as prop
from starlingmq.wire.mqtt import Auth, Connack, Connect, encode
from starlingmq.wire.properties import Properties
from starlingmq.wire.reasons import ProtocolError, Reason

REASONS: Final = frozenset(int(reason) for reason in Reason)


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
    ending: Ending
    deadlines: Deadlines
    _secret: bytes
    _assigned: int

    def __init__(
        self,
        ctx: Context,
        router: Router,
        delivery: Delivery,
        publishing: Publishing,
        subscribing: Subscribing,
        ending: Ending,
        deadlines: Deadlines,
        secret: bytes,
    ) -> None:
        self.ctx = ctx
        self.router = router
        self.delivery = delivery
        self.publishing = publishing
        self.subscribing = subscribing
        self.ending = ending
        self.deadlines = deadlines
        self._secret = secret
        self._assigned = 0

    # Asking for a connection

    def on_connect(self, client: Client, connect: Connect) -> None:
        client.version = connect.version
        client.client_id = connect.client_id
        client.bridge = connect.bridge
        client.mirrors = connect.bridge and connect.version != 5
        client.problem_information = number(connect.properties, prop.REQUEST_PROBLEM_INFORMATION, 1) == 1
        client.username = client.certificate_name if client.identity else connect.username or ""
        client.state = AUTHENTICATING
        client.rules = self.ctx.rules
        client.max_packet = number(connect.properties, prop.MAXIMUM_PACKET_SIZE, 0)
        self._check(client, connect)
        method = connect.properties.get(prop.AUTHENTICATION_METHOD)
        self.ending.waiting[client] = connect
        if not self.ctx.quotas.may_connect(self.ctx.now):
            self.ending.refuse(client, Reason.CONNECTION_RATE_EXCEEDED, "more CONNECTs a second than the server takes")
            return
        if self.ctx.ask_authenticate:
            client.auth_method = method if isinstance(method, str) else ""
            self._ask(client, connect, connect.properties.get(prop.AUTHENTICATION_DATA))
        elif method is not None:
            self.ending.refuse(client, Reason.BAD_AUTHENTICATION_METHOD, "no such authentication method")
        elif not self.ctx.allow_anonymous:
            self.ending.refuse(client, Reason.NOT_AUTHORIZED, "anonymous connections are not allowed")
        else:
            self.accept(client, None)

    def _check(self, client: Client, connect: Connect) -> None:
        limits = self.ctx.limits
        if not connect.client_id:
            if connect.version == 3 or (connect.version == 4 and not connect.clean_start):
                # [MQTT-3.1.3-8]: 3.1.1 has an empty client id only with clean session, 3.1 not at all
                raise ProtocolError("an empty client id", Reason.CLIENT_IDENTIFIER_NOT_VALID)
            if not self.ctx.mqtt.empty_client_id:
                text = "an empty client id, which mqtt.empty_client_id does not allow"
                raise ProtocolError(text, Reason.CLIENT_IDENTIFIER_NOT_VALID)  # [MQTT-3.1.3-8]
        elif connect.client_id.startswith((NODE_PREFIX, NATS_PREFIX, MOVED_PREFIX, GROUP_PREFIX)):
            raise ProtocolError("a client id that is the broker's own", Reason.CLIENT_IDENTIFIER_NOT_VALID)
        elif len(connect.client_id.encode()) > limits.client_id_length:
            raise ProtocolError("the client id is too long", Reason.CLIENT_IDENTIFIER_NOT_VALID)
        elif self.ctx.mqtt.strict_client_id and not (
            len(connect.client_id) <= 23 and connect.client_id.isascii() and connect.client_id.isalnum()
        ):
            raise ProtocolError("the client id is not 1 to 23 letters and digits", Reason.CLIENT_IDENTIFIER_NOT_VALID)
        lasting = not connect.clean_start or number(connect.properties, prop.SESSION_EXPIRY_INTERVAL, 0) != 0
        if connect.version == 5 and named_by(connect.properties) is not None and lasting:
            raise ProtocolError("a producer begins anew each time: with a clean start and no session expiry interval")
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
                client.bridge = True  # by this will
                if not tells_state(client, will.topic, will.payload, will.qos):
                    raise ProtocolError("the topic of the will is the broker's", Reason.TOPIC_NAME_INVALID)

    def _ask(self, client: Client, connect: Connect | None, data: object) -> None:
        client.rules = self.ctx.rules
        question = HookQuestion(AUTHENTICATE, client)
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
        self._ask(client, self.ending.waiting.get(client), packet.properties.get(prop.AUTHENTICATION_DATA))

    def answered(self, question: HookQuestion, answer: HookAnswer) -> None:
        client = question.client
        self.ctx.unhalt(client, ASKING)
        if client.state != AUTHENTICATING and client.state != OPEN:
            return
        name = client.username if answer.username is None else answer.username
        if client.state == OPEN and name != client.username and self.ctx.session_owner != BY_CLIENT_ID:
            self.ending.fail(client, Reason.NOT_AUTHORIZED, "re-authentication under another user name")
            return
        client.username = name
        self.entitle(client, answer)
        reason = answer.reason
        if reason == Reason.SUCCESS and client.state == OPEN:
            reason = self.readmit(client)
        if (reason >= 0x80 and reason not in REASONS) or (
            reason == Reason.CONTINUE_AUTHENTICATION and not client.auth_method
        ):
            reason = Reason.UNSPECIFIED_ERROR  # the hook's mistake: no such reason, or nothing to go on with
        if reason >= 0x80:
            if client.state == OPEN:
                self.ending.fail(client, reason, "re-authentication failed")
            else:
                self.ending.refuse(client, reason, "authentication refused")
        elif answer.reason == Reason.CONTINUE_AUTHENTICATION or client.state == OPEN:
            client.challenged = answer.reason == Reason.CONTINUE_AUTHENTICATION
            properties: Properties = {prop.AUTHENTICATION_METHOD: client.auth_method}
            if answer.data is not None:
                properties[prop.AUTHENTICATION_DATA] = answer.data
            self.ctx.send(client, encode(Auth(answer.reason, properties), 5))
            self.deadlines.watch(client)
        elif not self._may_leave_will(client):
            self.ending.refuse(client, Reason.NOT_AUTHORIZED, "it may not publish its will")
        else:
            self.accept(client, answer.data)

    def entitle(self, client: Client, answer: HookAnswer) -> None:
        """Give the client the rights that come with the answer to who it is."""
        if answer.reason == Reason.SUCCESS:
            client.rights = answer.rights
            client.standing = answer.standing
            client.valid_until = self.ctx.now + answer.valid if answer.valid != 0.0 else 0.0

    def readmit(self, client: Client) -> int:
        """Why a client is not let in after all (0: it is), if the rules have changed since it asked."""
        ctx = self.ctx
        if client.rules == ctx.rules:
            return 0
        reason = ctx.standing_of(client)
        if reason == 0:
            client.rules = ctx.rules
            client.rights = ctx.rights_of(client)
        return reason

    def _is_out(self, client: Client) -> bool:
        """Whether it is refused by rules that have changed since it asked."""
        if client.rules == self.ctx.rules:
            return False
        reason = self.readmit(client)
        if reason == 0 and not self._may_leave_will(client):
            reason = Reason.NOT_AUTHORIZED
        if reason != 0:
            self.ending.refuse(client, reason, "the rules have changed while it connected")
        return reason != 0

    def _may_leave_will(self, client: Client) -> bool:
        will = self.ending.waiting[client].will
        rights = client.rights
        return will is None or rights is None or rights.may_publish(will.topic, will.qos, will.retain)

    # A connection is accepted

    def accept(self, client: Client, auth_data: bytes | None) -> None:
        ctx = self.ctx
        if self._is_out(client):
            return
        session = ctx.sessions.get(self.ending.waiting[client].client_id)
        earlier = None if session is None else session.client
        if earlier is not None and earlier.gone and earlier.halted == TURN_OVER:
            ctx.halt(client, WORKING)
            ctx.jobs.append(SuccessionJob(self, client, earlier, auth_data))
            return
        connect = self.ending.waiting[client]
        if ctx.isolated:
            self.ending.refuse(client, Reason.SERVER_UNAVAILABLE, ISOLATED)
            return
        if ctx.doors.shut:
            self.ending.refuse(client, self.ending.elsewhere(), "this node serves no clients now")
            return
        if ctx.refusing and self._needs_storage(connect, session):
            self.ending.refuse(client, Reason.QUOTA_EXCEEDED, "nothing can be stored at the moment")
            return
        if self._is_kept_for_another(client, session):
            self.ending.refuse(client, Reason.CLIENT_IDENTIFIER_NOT_VALID, KEPT_FOR_ANOTHER)
            return
        refusal = self._no_room(client, session, connect.properties)
        if refusal:
            self.ending.refuse(client, Reason.QUOTA_EXCEEDED, refusal)
            return
        claims = ctx.cluster.claims
        if claims is None:
            self._begin(client, connect, session, auth_data, 0)
            return
        if not client.client_id:
            self._assign(client)
        ctx.halt(client, WORKING)
        claim = OwnerClaim(client, auth_data, connect.clean_start, ctx.now)
        earlier_claim = claims.hold(client.client_id, claim)
        if earlier_claim is not None:
            self.ending.fail(earlier_claim.client, Reason.SERVER_BUSY, "another connection with this client id")

    def _is_kept_for_another(self, client: Client, session: Session | None) -> bool:
        """Whether ``auth.session_owner: refuse`` keeps this client out, because another user's session is alive."""
        ctx = self.ctx
        if session is None or ctx.session_owner != REFUSE:
            return False
        over = session.client is None and session.expires_at != 0.0 and session.expires_at <= ctx.now
        return not over and is_anothers(REFUSE, session.owner, client.username)

    def _no_room(self, client: Client, session: Session | None, properties: Properties) -> str:
        """Why a limit keeps the client out; "" if none does."""
        ctx = self.ctx
        if ctx.quotas.short_of_memory:
            return "the server has less memory than it wants to keep free"
        if session is None and ctx.limits.sessions != 0 and len(ctx.sessions) >= ctx.limits.sessions:
            return "the server has all the sessions it takes"
        no_producer = self.publishing.producers.refusal(client, properties)
        if no_producer:
            return no_producer
        if not ctx.quotas.sign_in(client, None if session is None else session.client):
            return "this user has all the connections it may have"
        return ""

    def claimed(self, client_id: str, epoch: int) -> bool:
        """This node owns a client id since ``epoch``, and what other nodes had of its session is here: whoever waited
        for that may go on. Whether somebody did."""
        ctx = self.ctx
        claims = ctx.cluster.claims
        claim = None if claims is None else claims.drop(client_id)
        if claims is None or claim is None or claim.client.state != AUTHENTICATING:
            return False
        client = claim.client
        ctx.unhalt(client, WORKING)
        if self._is_out(client):
            return False
        if ctx.isolated:
            self.ending.refuse(client, Reason.SERVER_UNAVAILABLE, ISOLATED)
            return False
        if ctx.doors.shut:
            self.ending.refuse(client, self.ending.elsewhere(), "this node serves no clients now")
            return False
        session = ctx.sessions.get(client_id)
        connect = self.ending.waiting[client]
        if self._is_kept_for_another(client, session):
            self.ending.refuse(client, Reason.CLIENT_IDENTIFIER_NOT_VALID, KEPT_FOR_ANOTHER)
            return False
        if ctx.refusing and self._needs_storage(connect, session):
            self.ending.refuse(client, Reason.QUOTA_EXCEEDED, "nothing can be stored at the moment")
            return False
        self._begin(client, connect, session, claim.auth_data, epoch)
        return True

    def make_way(self, client_id: str) -> None:
        """A CONNECT waits that is going to have its session: what its client left here as a will is due now, or
        cancelled, and not only when the CONNECT is answered."""
        ctx = self.ctx
        claim = None if ctx.cluster.claims is None else ctx.cluster.claims.waiting.get(client_id)
        session = ctx.sessions.get(client_id)
        if claim is None or session is None or session.will is None or ctx.isolated:
            return
        if self._is_kept_for_another(claim.client, session):
            return
        anothers = is_anothers(ctx.session_owner, session.owner, claim.client.username)
        if anothers:
            ctx.notice(ANOTHER_USER, claim.client, f"the session of user {session.owner!r} has ended")
        self.taken_over(session, claim.clean_start or anothers, ANOTHER_USER if anothers else "session_ended")

    def not_claimed(self, client_id: str, reason: int, detail: str) -> None:
        """Whoever waited for this client id can not have it."""
        claims = self.ctx.cluster.claims
        claim = None if claims is None else claims.drop(client_id)
        if claim is not None:
            self.ctx.unhalt(claim.client, WORKING)
            self.ending.fail(claim.client, reason, detail)

    def overtaken(self, client_id: str, epoch: int) -> None:
        """Another node owns this client id in that epoch, and serves its client. Who waits here gives way, unless it
        came later or may have come later."""
        claims = self.ctx.cluster.claims
        claim = None if claims is None else claims.waiting.get(client_id)
        if claim is not None and 0 < claim.epoch < epoch:
            self.not_claimed(client_id, Reason.SERVER_BUSY, "another node has this client id now")

    def _begin(
        self, client: Client, connect: Connect, session: Session | None, auth_data: bytes | None, epoch: int
    ) -> None:
        ctx = self.ctx
        del self.ending.waiting[client]
        agreed: Properties = {}
        if client.auth_method:
            agreed[prop.AUTHENTICATION_METHOD] = client.auth_method
            if auth_data is not None:
                agreed[prop.AUTHENTICATION_DATA] = auth_data
        if not connect.client_id:
            if not client.client_id:
                self._assign(client)
            agreed[prop.ASSIGNED_CLIENT_IDENTIFIER] = client.client_id
        unknown = session is None
        session, present = self._session(client, connect.clean_start)
        if session.anew and not session.aware:
            renumber(ctx, session, 0)
        if epoch != 0:
            session.epoch = epoch
        session.hollow = False
        if not present:
            session.floor = session.epoch  # of whatever was before nothing counts any more
        elif session.trail is not None:
            session.trail.backlog = None
        before = session.expiry
        agree(ctx, client, connect, session, agreed)
        self.publishing.producers.begin(client, connect.properties, agreed)
        if ctx.cluster.interest is not None:
            ctx.cluster.interest.reconsider(session, before)
        session.client = client
        client.session = session
        client.state = OPEN
        client.meter = ctx.quotas.meter(ctx.now)
        self.deadlines.watch(client)
        session.will = will_of(ctx, client, connect.will)
        if session.will is not None:
            session.will.epoch = session.epoch
            self.ending.will_changed(session)
        ctx.counters.clients_connected += 1
        if ctx.recording and (session.expiry != 0 or session.kept or session.will is not None):
            session.kept = True
            ctx.write(Write(SESSION_PUT, session))
        session.told = client
        found = present and not is_told(session) and client.version != 3  # 3.1 has no such flag
        frame = encode(Connack(found, 0, agreed if client.version == 5 else {}), client.version)
        if client.max_packet != 0 and len(frame) > client.max_packet:
            ctx.notice("packet_too_large", client, "CONNACK is larger than this client takes")
            session.will = None
            self.ending.will_changed(session)
            self.ending.close(client, "packet_too_large")
            return
        if unknown and not session.kept and client.production is None:
            ctx.send(client, frame)  # nothing of it is stored, so it waits for nothing
        else:
            ctx.send_stored(client, frame)
        ctx.event("connected", client.client_id, client.peer)
        if not present:
            session.rules = ctx.rules
        else:
            if client.rights is not None and client.rights.source is not None:
                session.rules = 0  # it brought rules of its own: perhaps others than last time
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

    def _assign(self, client: Client) -> None:
        client.client_id = self._assign_id()
        client.assigned = True

    def _assign_id(self) -> str:
        """A client id nobody can guess, and nobody has."""
        while True:
            self._assigned += 1
            digest = hashlib.blake2b(self._assigned.to_bytes(8, "big"), key=self._secret, digest_size=11).hexdigest()
            client_id = "s" + digest  # 23 letters and digits: every server takes that [MQTT-3.1.3-5]
            if client_id not in self.ctx.sessions:
                return client_id

    def taken_over(self, session: Session, clean_start: bool, why: str = "session_ended") -> bool:
        """Its client is on another connection now, here or elsewhere: whether it has a session to go on with. With a
        clean start it has none, and what was in it is counted as dropped by ``why``."""
        earlier = session.client
        if earlier is not None:
            self._take_over(session, earlier, clean_start)
        elif session.expires_at != 0.0 and session.expires_at <= self.ctx.now:
            self.ending.end(session)  # its time was over while the broker was away itself, and nobody has looked yet
        elif not clean_start:
            if session.will_at != 0.0 and session.will_at <= self.ctx.now:
                self.ending.publish_pending(session)  # likewise
            session.will = None  # came back in time [MQTT-3.1.3-9]
            session.will_at = 0.0
            self.ending.will_changed(session)
        if clean_start and not session.ended:
            self.ending.end(session, why)
        return not session.ended

    def _session(self, client: Client, clean_start: bool) -> tuple[Session, bool]:
        """The session of this client id, after any earlier connection was ended; whether it was there before."""
        ctx = self.ctx
        session = ctx.sessions.get(client.client_id)
        epoch = 0
        if session is not None:
            epoch = session.epoch
            if is_anothers(ctx.session_owner, session.owner, client.username):
                ctx.notice(ANOTHER_USER, client, f"the session of user {session.owner!r} has ended")
                self.taken_over(session, True, ANOTHER_USER)
            else:
                self.taken_over(session, clean_start)
        if session is None or session.ended:
            session = ctx.new_session(client.client_id)
            session.epoch = epoch
            session.owner = client.username
            return session, False
        session.owner = client.username
        session.expires_at = 0.0
        return session, True

    def _take_over(self, session: Session, earlier: Client, clean_start: bool) -> None:
        """Another connection has the client id now [MQTT-3.1.4-3]. The earlier one's will is published at once unless
        its delay lets the session's return cancel it."""
        will = session.will
        if will is not None and will.delay != 0 and not clean_start and session.expiry != 0:
            session.will = None
            self.ending.will_changed(session)
        self.ending.fail(earlier, Reason.SESSION_TAKEN_OVER, "another connection with this client id")
