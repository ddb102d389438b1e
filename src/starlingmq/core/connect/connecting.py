"""From CONNECT to CONNACK, takeover on this node, and AUTH. ``core.connect.ending`` has the ends of connections and
sessions.

::

    NEW --CONNECT--> AUTHENTICATING --accepted--> OPEN --DISCONNECT, error, takeover, silence--> CLOSED
                     |      ^
                     +-AUTH-+  (0x18, as often as the authenticator wants)

Invariant: one client id, one session, at most one connection. ``session present`` is 1 only if state of that client id
was found and kept.
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.connect.connect_negotiation import (
    agree,
    asks_for_storage,
    check,
    has_own_rules,
    number,
    session_expiry,
    will_of,
)
from starlingmq.core.connect.connect_verdict import (
    ADMITTED,
    AFTER_EARLIER,
    UNCLAIMED,
    ConnectDecisions,
    ConnectRequest,
    ConnectVerdict,
    may_leave,
    why_refused,
)
from starlingmq.core.connect.deadlines import Deadlines
from starlingmq.core.connect.ending import Ending
from starlingmq.core.connect.session_reset import renumber, sends_session_lost
from starlingmq.core.connect.turned_away import CLIENT_PACKET_LIMIT
from starlingmq.core.context.context import Context
from starlingmq.core.context.owner_claims import OwnerClaim
from starlingmq.core.context.ready import AUTHENTICATE, SESSION_PUT, HookAnswer, HookQuestion, Write
from starlingmq.core.delivery.delivery import Delivery
from starlingmq.core.messages.link_marks import is_link
from starlingmq.core.publish.bridges import tell_site
from starlingmq.core.publish.publishing import Publishing
from starlingmq.core.router.router import Router
from starlingmq.core.session.connection import ASKING, AUTHENTICATING, CLOSED, OPEN, TURN_OVER, WORKING
from starlingmq.core.session.session import BRIDGE_LISTENER, Client, Session
from starlingmq.core.session.session_user import ANOTHER_USER, BY_CLIENT_ID, is_anothers
from starlingmq.core.session.will_rule import due_after, is_cancelled
from starlingmq.core.subscribe.subscribing import Subscribing
from starlingmq.core.turn.job import Job
from starlingmq.wire import properties as prop
from starlingmq.wire.digests import blake2b
from starlingmq.wire.mqtt import Auth, Connack, Connect, encode
from starlingmq.wire.properties import Properties
from starlingmq.wire.reasons import ProtocolError, Reason

REASONS: Final = frozenset(int(reason) for reason in Reason)


class SuccessionJob(Job):
    """A CONNECT with the client id of a closed connection whose input has not been handled completely; it may contain a
    DISCONNECT that cancels its will. After some turns it is handled, and the new connection continues."""

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


IN_DISCONNECT: Final[dict[int, int]] = {
    Reason.CLIENT_IDENTIFIER_NOT_VALID: Reason.NOT_AUTHORIZED,
    Reason.BAD_USER_NAME_OR_PASSWORD: Reason.NOT_AUTHORIZED,
    Reason.SERVER_UNAVAILABLE: Reason.SERVER_BUSY,
    Reason.BANNED: Reason.NOT_AUTHORIZED,
    Reason.BAD_AUTHENTICATION_METHOD: Reason.NOT_AUTHORIZED,
}
"""For a refusal that only CONNACK can have (table 2-6): the reason code of DISCONNECT in its place."""
CLIENT_ID_IN_USE: Final = "another connection uses this client id"
LOGIN_WORDS: Final[dict[int, str]] = {
    Reason.SERVER_BUSY: "logins_waiting",
    Reason.SERVER_UNAVAILABLE: "login_unavailable",
}
"""Reasons in counters and the log for refusals of an authentication whose codes have other causes, too."""


def login_word(reason: int) -> str:
    """ "": the name of the reason code."""
    return LOGIN_WORDS.get(reason, "")


RATE_EXCEEDED: Final = "the limit of CONNECT packets per second is exceeded (limits.connect_rate)"


class Connecting:
    ctx: Context
    router: Router
    delivery: Delivery
    publishing: Publishing
    subscribing: Subscribing
    ending: Ending
    deadlines: Deadlines
    decisions: ConnectDecisions
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
        self.decisions = ConnectDecisions(ctx, publishing.producers)
        self._secret = secret
        self._assigned = 0

    # Requesting a connection

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
        check(self.ctx, self.router, client, connect)
        method = connect.properties.get(prop.AUTHENTICATION_METHOD)
        self.ending.waiting[client] = connect
        if client.listener == BRIDGE_LISTENER:
            self.accept(client, None)
            return
        if not self.ctx.quotas.may_connect(self.ctx.now):
            elsewhere = self.ctx.connect_admission.with_room(client.listener) if client.version == 5 else ""
            reason = Reason.USE_ANOTHER_SERVER if elsewhere else Reason.CONNECTION_RATE_EXCEEDED
            self.ending.refuse(client, reason, RATE_EXCEEDED, elsewhere)
            return
        if self.ctx.ask_authenticate:
            client.auth_method = method if isinstance(method, str) else ""
            self._ask(client, connect, connect.properties.get(prop.AUTHENTICATION_DATA))
        elif method is not None:
            self.ending.refuse(client, Reason.BAD_AUTHENTICATION_METHOD, "the authentication method is not supported")
        elif not self.ctx.allow_anonymous:
            named = client.username != "" or connect.password is not None
            self.ending.refuse(client, Reason.NOT_AUTHORIZED, why_refused(named))
        else:
            self.accept(client, None)

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
            raise ProtocolError("AUTH with another authentication method than CONNECT")  # [MQTT-4.12.0-5]
        if packet.reason == Reason.RE_AUTHENTICATE and client.state != OPEN:
            raise ProtocolError("re-authentication before CONNACK")
        if packet.reason == Reason.CONTINUE_AUTHENTICATION and not client.challenged:
            raise ProtocolError("AUTH that continues an exchange that was not started")
        if packet.reason != Reason.RE_AUTHENTICATE and packet.reason != Reason.CONTINUE_AUTHENTICATION:
            raise ProtocolError("AUTH with a reason code that only a server may send")
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
        if client.state == AUTHENTICATING or answer.reason == Reason.SUCCESS:
            client.username = name  # also of a client that is refused: for the log
        self.entitle(client, answer)
        reason = answer.reason
        if reason == Reason.SUCCESS and client.state == OPEN:
            reason = self.decisions.readmit(client)
        if (reason >= 0x80 and reason not in REASONS) or (
            reason == Reason.CONTINUE_AUTHENTICATION and not client.auth_method
        ):
            reason = Reason.UNSPECIFIED_ERROR  # an error of the hook: no such reason, or nothing to continue with
        if reason >= 0x80:
            if client.state == OPEN:
                detail = answer.detail or "re-authentication failed"
                self.ending.fail(client, IN_DISCONNECT.get(reason, reason), detail, login_word(reason))
            else:
                detail = answer.detail or "authentication refused"
                self.ending.refuse(client, reason, detail, word=login_word(reason))
        elif answer.reason == Reason.CONTINUE_AUTHENTICATION or client.state == OPEN:
            client.challenged = answer.reason == Reason.CONTINUE_AUTHENTICATION
            properties: Properties = {prop.AUTHENTICATION_METHOD: client.auth_method}
            if answer.data is not None:
                properties[prop.AUTHENTICATION_DATA] = answer.data
            self.ctx.send(client, encode(Auth(answer.reason, properties), 5))
            self.deadlines.watch(client)
        elif not may_leave(client, self.ending.waiting[client].will):
            self.ending.refuse(client, Reason.NOT_AUTHORIZED, "it is not allowed to publish its will")
        else:
            self.accept(client, answer.data)

    def entitle(self, client: Client, answer: HookAnswer) -> None:
        """Give the client the rights of the authentication's answer."""
        if answer.reason == Reason.SUCCESS:
            self.ctx.give_rights(client, answer.rights)
            client.standing = answer.standing
            client.valid_until = self.ctx.now + answer.valid if answer.valid != 0.0 else 0.0

    # Accepting a connection

    def _decide(self, client: Client, connect: Connect, owned: bool) -> tuple[ConnectVerdict, Session | None]:
        """The verdict, and the session with its client id. A refusal is sent here."""
        client_id = client.client_id if owned else connect.client_id
        session = self.ctx.sessions.get(client_id)
        request = ConnectRequest(client, session, connect.will, connect.properties)
        request.stores = self.ctx.refusing and asks_for_storage(connect)
        request.owned = owned
        verdict = self.decisions.decide(request)
        if verdict.reason != 0:
            self.ending.refuse(client, verdict.reason, verdict.detail, word=verdict.word)
        return verdict, session

    def accept(self, client: Client, auth_data: bytes | None) -> None:
        ctx = self.ctx
        connect = self.ending.waiting[client]
        verdict, session = self._decide(client, connect, False)
        if verdict.kind == ADMITTED:
            self._begin(client, connect, session, auth_data, None, 0)
        elif verdict.kind == AFTER_EARLIER and session is not None and session.client is not None:
            ctx.halt(client, WORKING)
            ctx.jobs.append(SuccessionJob(self, client, session.client, auth_data))
        elif verdict.kind == UNCLAIMED and ctx.cluster.claims is not None:
            if not client.client_id:
                self._assign(client)
            ctx.halt(client, WORKING)
            will, expiry = will_of(ctx, client, connect.will), session_expiry(ctx, connect)
            claim = OwnerClaim(client, auth_data, connect.clean_start, ctx.now, will, expiry)
            earlier_claim = ctx.cluster.claims.hold(client.client_id, claim)
            if earlier_claim is not None:
                self.ending.fail(earlier_claim.client, Reason.SERVER_BUSY, CLIENT_ID_IN_USE, "client_id_in_use")

    def claimed(self, client_id: str, epoch: int) -> bool:
        """This node owns a client id since ``epoch``, and the content of its session on other nodes has arrived: a
        CONNECT that waits for it continues. Returns whether one did."""
        ctx = self.ctx
        claim = None if ctx.cluster.claims is None else ctx.cluster.claims.drop(client_id)
        if claim is None or claim.client.state != AUTHENTICATING:
            return False
        client = claim.client
        ctx.unhalt(client, WORKING)
        connect = self.ending.waiting[client]
        verdict, session = self._decide(client, connect, True)
        if verdict.kind != ADMITTED:
            return False
        self._begin(client, connect, session, claim.auth_data, claim, epoch)
        return True

    def settle_will_for_connect(self, client_id: str) -> None:
        """A waiting CONNECT will get this session: the will that the client left here is published or cancelled now,
        before the CONNECT is answered."""
        ctx = self.ctx
        claim = None if ctx.cluster.claims is None else ctx.cluster.claims.waiting.get(client_id)
        session = ctx.sessions.get(client_id)
        if claim is None or session is None or session.will is None or ctx.isolated:
            return
        if self.decisions.kept_for_another(claim.client, session):
            return
        anothers = is_anothers(ctx.session_owner, session.owner, claim.client.username)
        if anothers:
            self._tell_of_another(claim.client, session)
        self.taken_over(session, claim.clean_start or anothers, ANOTHER_USER if anothers else "session_ended")

    def not_claimed(self, client_id: str, reason: int, detail: str, word: str) -> None:
        """The CONNECT that waits for this client id cannot have it. ``word`` as in ``Ending.fail``."""
        claims = self.ctx.cluster.claims
        claim = None if claims is None else claims.drop(client_id)
        if claim is not None:
            self.ctx.unhalt(claim.client, WORKING)
            self.ending.fail(claim.client, reason, detail, word)

    def overtaken(self, client_id: str, epoch: int) -> None:
        """Another node owns this client id in that epoch, and serves its client. A CONNECT that waits here is refused,
        unless it came later or may have come later."""
        claims = self.ctx.cluster.claims
        claim = None if claims is None else claims.waiting.get(client_id)
        if claim is not None and 0 < claim.epoch < epoch:
            detail = "the client connected to another node with this client id"
            self.not_claimed(client_id, Reason.SERVER_BUSY, detail, "client_id_in_use")

    def _begin(
        self,
        client: Client,
        connect: Connect,
        session: Session | None,
        auth_data: bytes | None,
        claim: OwnerClaim | None,
        epoch: int,
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
        if session.needs_reset and not session.reset_confirmed:
            renumber(ctx, session, 0)
        if epoch != 0:
            session.epoch = epoch
        session.placeholder = False
        if not present:
            session.floor = session.epoch  # nothing earlier counts any more
        elif session.trail is not None:
            session.trail.backlog = None
        before = session.expiry
        agree(ctx, client, connect, session, agreed)
        self.publishing.producers.begin(client, connect.properties, agreed)
        linked = ctx.site != "" and prop.USER_PROPERTY in connect.properties
        linked = linked and tell_site(ctx.site, connect.properties, agreed, is_link(session.client_id))
        if ctx.cluster.interest is not None:
            ctx.cluster.interest.reconsider(session, before)
        session.client = client
        client.session = session
        client.state = OPEN
        client.meter = None if client.listener == BRIDGE_LISTENER else ctx.quotas.meter(ctx.now)
        self.deadlines.watch(client)
        session.will = will_of(ctx, client, connect.will) if claim is None else claim.will
        if session.will is not None:
            session.will.epoch = session.epoch
            session.will.granted = has_own_rules(client)  # the rules may have changed while it waited
            self.ending.will_changed(session)
        ctx.counters.clients_connected += 1
        if ctx.recording and (session.expiry != 0 or session.kept or session.will is not None):
            session.kept = True
            ctx.write(Write(SESSION_PUT, session))
        session.connack_sent_to = client
        client.greeted = client.bytes_in
        if self._welcome(client, session, present, not unknown or session.kept, agreed):
            self._go_on(client, session, present)
            if linked or len(ctx.linked) != 0:
                self.subscribing.replays.connected(session, linked, present)

    def _welcome(self, client: Client, session: Session, present: bool, stored: bool, agreed: Properties) -> bool:
        """Send CONNACK. Returns whether the client accepts one of this size. ``stored``: its content is true once it is
        stored."""
        ctx = self.ctx
        found = present and not sends_session_lost(session) and client.version != 3  # 3.1 has no such flag
        frame = encode(Connack(found, 0, agreed if client.version == 5 else {}), client.version)
        if client.max_packet != 0 and len(frame) > client.max_packet:
            detail = f"CONNACK has {len(frame)} bytes, and the client's Maximum Packet Size is {client.max_packet}"
            ctx.notice(CLIENT_PACKET_LIMIT, client, detail)
            session.will = None
            self.ending.will_changed(session)
            self.ending.close(client, CLIENT_PACKET_LIMIT)
            return False
        if stored or client.production is not None:
            ctx.send_stored(client, frame)
        else:
            ctx.send(client, frame)  # nothing in it has to be stored, so it does not wait
        ctx.event("connected", client.client_id, client.peer)
        return True

    def _go_on(self, client: Client, session: Session, present: bool) -> None:
        ctx = self.ctx
        if not present:
            session.rules = ctx.rules
        else:
            if client.rights is not None and client.rights.source is not None:
                session.rules = 0  # the client brought rules of its own, which may differ from those of last time
            if session.inbound is not None:
                ctx.arm(session, ctx.now + ctx.await_rel_timeout)
            self.subscribing.revoke(session)
            self.delivery.resume(session, client)

    def _assign(self, client: Client) -> None:
        client.client_id = self._assign_id()
        client.assigned = True

    def _assign_id(self) -> str:
        """An unpredictable client id that is not in use."""
        while True:
            self._assigned += 1
            digest = blake2b(self._assigned.to_bytes(8, "big"), key=self._secret, digest_size=11).hexdigest()
            client_id = "s" + digest  # 23 letters and digits, which all servers accept [MQTT-3.1.3-5]
            if client_id not in self.ctx.sessions:
                return client_id

    def taken_over(self, session: Session, clean_start: bool, why: str = "session_ended") -> bool:
        """The client is on another connection now, here or elsewhere. Returns whether it has a session to continue.
        With a clean start it has none, and the content is counted as dropped by ``why``."""
        earlier = session.client
        if earlier is None and session.expires_at != 0.0 and session.expires_at <= self.ctx.now:
            self.ending.end(session)  # it expired while the broker was down, and has not been checked yet
            return False
        will = session.will
        if will is not None:
            seconds = due_after(will.delay, session.expiry)
            if is_cancelled(seconds, session.will_at, not clean_start, self.ctx.now):
                session.will = None
                session.will_at = 0.0
                self.ending.will_changed(session)
        if earlier is not None:  # [MQTT-3.1.4-3]
            self.ending.fail(earlier, Reason.SESSION_TAKEN_OVER, CLIENT_ID_IN_USE)
        else:
            self.ending.publish_pending(session)
        if clean_start and not session.ended:
            self.ending.end(session, why)
        return not session.ended

    def _tell_of_another(self, client: Client, session: Session) -> None:
        """The client is served; the session that ends, with its connection if it has one, is another user's."""
        text = f"it begins a new session; the session of user {session.owner!r} with this client id has ended"
        self.ctx.notice(ANOTHER_USER, client, text, closing=False)

    def _session(self, client: Client, clean_start: bool) -> tuple[Session, bool]:
        """The session of this client id, after ending an earlier connection; and whether it existed before."""
        ctx = self.ctx
        session = ctx.sessions.get(client.client_id)
        epoch = 0
        if session is not None:
            epoch = session.epoch
            if is_anothers(ctx.session_owner, session.owner, client.username):
                self._tell_of_another(client, session)
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
