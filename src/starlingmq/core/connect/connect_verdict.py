"""The decision whether a client is admitted, made here once for MQTT and NATS, which encode it in their protocols.

Before that, the client has been authenticated. The limit of all connections is enforced where they are accepted.
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.context.context import ISOLATED, Context
from starlingmq.core.publish.producers import Producers
from starlingmq.core.session.connection import TURN_OVER
from starlingmq.core.session.session import BRIDGE_LISTENER, Client, Session
from starlingmq.core.session.session_user import KEPT_FOR_ANOTHER, REFUSE, is_anothers
from starlingmq.wire.mqtt import Will as WillPacket
from starlingmq.wire.properties import Properties
from starlingmq.wire.reasons import Reason

NO_ANONYMOUS: Final = "anonymous connections are not allowed"
NO_METHOD: Final = "user names cannot be checked, because no authentication method is set up (auth.methods)"

SERVES_NO_CLIENTS: Final = "this node does not accept clients at the moment"
DRAINING: Final = "draining"  # the word for it in counters and the log

ADMITTED: Final = 0
AFTER_EARLIER: Final = 1  # held until the bytes that an earlier connection of its client id has sent are handled
UNCLAIMED: Final = 2  # held until this node owns its client id
RULES_CHANGED: Final = 3  # values from here on are refusals; ``reason`` has the reason code
CUT_OFF: Final = 4
SERVES_NOBODY: Final = 5
NOT_STORED: Final = 6
ANOTHERS: Final = 7
NO_ROOM: Final = 8


def why_refused(named: bool) -> str:
    """The reason for a refusal where clients without a login are refused, and no authentication method is set up."""
    return NO_METHOD if named else NO_ANONYMOUS


class ConnectVerdict:
    kind: int
    reason: int  # reason code of MQTT 5 for a refusal
    detail: str
    word: str  # counted and logged; "": the name of the reason code

    def __init__(self, kind: int, reason: int = 0, detail: str = "", word: str = "") -> None:
        self.kind = kind
        self.reason = reason
        self.detail = detail
        self.word = word


class ConnectRequest:
    client: Client
    session: Session | None  # the present session of its client id
    will: WillPacket | None
    properties: Properties
    stores: bool  # a reply to it depends on storage
    transient: bool  # its session ends with its connection, and the broker chose its client id (NATS)
    owned: bool  # it was held, and this node owns its client id now

    def __init__(
        self, client: Client, session: Session | None, will: WillPacket | None, properties: Properties
    ) -> None:
        self.client = client
        self.session = session
        self.will = will
        self.properties = properties
        self.stores = False
        self.transient = False
        self.owned = False


class ConnectDecisions:
    ctx: Context
    producers: Producers

    def __init__(self, ctx: Context, producers: Producers) -> None:
        self.ctx = ctx
        self.producers = producers

    def decide(self, request: ConnectRequest) -> ConnectVerdict:
        """A client that is admitted, or held for its client id, counts among the connections of its user from now
        on."""
        ctx = self.ctx
        session = request.session
        reason = self._by_rules(request)
        if reason != 0:
            return ConnectVerdict(RULES_CHANGED, reason, "the rules changed while it connected")
        earlier = None if session is None or request.owned else session.client
        if earlier is not None and earlier.gone and earlier.halted == TURN_OVER:
            return ConnectVerdict(AFTER_EARLIER)
        if ctx.isolated:
            return ConnectVerdict(CUT_OFF, Reason.SERVER_UNAVAILABLE, ISOLATED, "isolated")
        if ctx.connect_admission.shut and not request.transient:
            return ConnectVerdict(SERVES_NOBODY, ctx.connect_admission.reason(), SERVES_NO_CLIENTS, DRAINING)
        if ctx.refusing and (request.stores or (session is not None and session.kept)):
            return ConnectVerdict(
                NOT_STORED, Reason.QUOTA_EXCEEDED, "nothing can be stored at the moment", "not_stored"
            )
        if self.kept_for_another(request.client, session):
            return ConnectVerdict(ANOTHERS, Reason.CLIENT_IDENTIFIER_NOT_VALID, KEPT_FOR_ANOTHER, "session_owner")
        if request.owned:
            return ConnectVerdict(ADMITTED)
        word, no_room = self._no_room(request)
        if no_room:
            return ConnectVerdict(NO_ROOM, Reason.QUOTA_EXCEEDED, no_room, word)
        held = ctx.cluster.claims is not None and not request.transient
        return ConnectVerdict(UNCLAIMED if held else ADMITTED)

    def _by_rules(self, request: ConnectRequest) -> int:
        """The reason code if rules that changed since its request refuse the client; 0: they do not."""
        client = request.client
        if client.rules == self.ctx.rules:
            return 0
        reason = self.readmit(client)
        return Reason.NOT_AUTHORIZED if reason == 0 and not may_leave(client, request.will) else reason

    def readmit(self, client: Client) -> int:
        """The reason code if the client must be refused after all, because the rules changed since its request; 0:
        admitted."""
        ctx = self.ctx
        if client.rules == ctx.rules:
            return 0
        reason = ctx.standing(client)
        if reason == 0:
            client.rules = ctx.rules
            ctx.give_rights(client, ctx.granted(client))
        return reason

    def kept_for_another(self, client: Client, session: Session | None) -> bool:
        """Whether ``auth.session_owner: refuse`` refuses this client, because the session belongs to another user."""
        ctx = self.ctx
        if session is None or ctx.session_owner != REFUSE:
            return False
        over = session.client is None and session.expires_at != 0.0 and session.expires_at <= ctx.now
        return not over and is_anothers(REFUSE, session.owner, client.username)

    def _no_room(self, request: ConnectRequest) -> tuple[str, str]:
        """The limit that refuses the client, as a word and as a text; "" if none does."""
        ctx = self.ctx
        client = request.client
        session = request.session
        if client.listener == BRIDGE_LISTENER:
            return "", ""
        bound = 0 if session is not None or request.transient else ctx.limits.sessions
        if ctx.quotas.short_of_memory:
            return "memory", "memory is short (limits.memory)"
        if bound != 0 and len(ctx.sessions) >= bound:
            return "sessions", "session limit reached (limits.sessions)"
        no_producer = self.producers.refusal(client, request.properties)
        if no_producer:
            return "producers", no_producer
        if not ctx.quotas.sign_in(client, None if session is None else session.client):
            return "connections_per_user", "connection limit of this user reached (limits.connections_per_user)"
        return "", ""


def may_leave(client: Client, will: WillPacket | None) -> bool:
    """Whether a client may publish its will."""
    rights = client.rights
    return will is None or rights is None or rights.may_publish(will.topic, will.qos, will.retain)
