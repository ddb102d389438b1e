"""The actions that the core requests after a turn.

A Ready has two lanes. The frames of ``dirty`` clients before ``Client.stored_from`` may be sent at once; later ones
only after ``writes`` are stored. The core chooses the lane of each frame; the shell chooses nothing: it commits the
writes as one group, sends the first lane, and sends the second when they are stored.
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.limits.access import Rights
from starlingmq.core.messages.message import Message
from starlingmq.core.messages.outgoing import Outgoing
from starlingmq.core.session.session import Client, Session, Subscription
from starlingmq.wire.packets import Connect, SubscribeRequest

# Kinds of Writes. ``session`` is the session of the write; the comments name the other fields in use.
DELIVERIES: Final = 0  # it is a Deliveries, of QUEUE_PUT, QUEUE_DELETE, WINDOW_PUT and STREAM_PUT
SESSION_PUT: Final = 1  # the session as it is now (expiry, deadlines, will)
SESSION_DELETE: Final = 2  # with its subscriptions and holdings
SUBSCRIPTION_PUT: Final = 3  # subscription
SUBSCRIPTION_DELETE: Final = 4  # topic = the filter as subscribed
QUEUE_PUT: Final = 5  # in Deliveries: appended at the end
QUEUE_DELETE: Final = 6  # in Deliveries: taken from the queue
WINDOW_PUT: Final = 7  # in Deliveries: sent, or its stage changed
WINDOW_DELETE: Final = 8  # packet_ids
INBOUND_PUT: Final = 9  # packet_id, message: a QoS 2 handshake is held
INBOUND_COMPLETED: Final = 10  # packet_id
INBOUND_DELETE: Final = 11  # packet_id: dropped
RETAINED_PUT: Final = 12  # message
RETAINED_DELETE: Final = 13  # topic
FACT_PUT: Final = 14  # topic = a key of the cluster's, value: opaque to a store
FACT_DELETE: Final = 15  # topic = the key
STREAM_PUT: Final = 16  # in Deliveries: the session is a stream, which is to store the message
PRODUCER_PUT: Final = 17  # message, topic = the key of a producer, value: its state as of this message

FACT_WITH: Final = 18  # message, topic = a key, value: a fact that is stored in the record of the message


class Write:
    """One change of stored state; ``kind`` is one of the constants above."""

    kind: int
    session: Session | None
    packet_id: int
    packet_ids: list[int] | None
    topic: bytes
    message: Message | None
    subscription: Subscription | None
    value: bytes

    def __init__(
        self,
        kind: int,
        session: Session | None = None,
        packet_id: int = 0,
        topic: bytes = b"",
        message: Message | None = None,
        subscription: Subscription | None = None,
        value: bytes = b"",
    ) -> None:
        self.kind = kind
        self.session = session
        self.packet_id = packet_id
        self.packet_ids = None
        self.topic = topic
        self.message = message
        self.subscription = subscription
        self.value = value


class Deliveries(Write):
    """The most frequent writes, many in one: additions to and removals from the queues and windows of sessions, in
    order.

    Three lists, because an object per delivery would cost a sixth of what storing it does.
    """

    kinds: list[int]  # QUEUE_PUT, QUEUE_DELETE, WINDOW_PUT or STREAM_PUT
    sessions: list[Session]
    outgoings: list[Outgoing]

    def __init__(self) -> None:
        super().__init__(DELIVERIES)
        self.kinds = []
        self.sessions = []
        self.outgoings = []


# Kinds of a HookQuestion.
AUTHENTICATE: Final = 1  # may this CONNECT (or AUTH packet) have a session?
PUBLISH: Final = 2  # may this message be published, and as what?
SUBSCRIBE: Final = 3  # which of these filters may be subscribed to?


class HookQuestion:
    """A decision that a hook makes; ``BrokerState.answer`` takes the answer and continues.

    The connection is not read until then, so a slow answer does not change any order.
    """

    kind: int
    client: Client
    connect: Connect | None
    method: str
    data: bytes | None
    message: Message | None
    requests: list[SubscribeRequest]
    nkey: str  # the key with which a NATS client has signed; "" if it has not
    listed: bool  # the key is one of ``nats.nkeys``

    def __init__(self, kind: int, client: Client) -> None:
        self.kind = kind
        self.client = client
        self.connect = None
        self.method = ""
        self.data = None
        self.message = None
        self.requests = []
        self.nkey = ""
        self.listed = False


class HookAnswer:
    """The answer of a hook.

    To AUTHENTICATE: ``reason`` SUCCESS, CONTINUE_AUTHENTICATION (0x18) or a refusal; ``data`` for the client's AUTH or
    CONNACK; ``username`` the new user name (None: unchanged); ``rights`` its rights (None: unrestricted), ``valid`` for
    how many seconds (0: as long as it is connected), ``standing`` the proof that it has shown; ``detail`` explains a
    refusal to the log and to MQTT 5 clients ("": no explanation). To PUBLISH: ``reason`` and ``message`` (None with
    SUCCESS: accepted and dropped). To SUBSCRIBE: ``reasons``, one per filter: SUCCESS or a refusal.
    """

    reason: int
    data: bytes | None
    username: str | None
    message: Message | None
    reasons: list[int]
    rights: Rights | None
    valid: float
    standing: object
    detail: str

    def __init__(
        self,
        reason: int = 0,
        data: bytes | None = None,
        username: str | None = None,
        message: Message | None = None,
        reasons: list[int] | None = None,
    ) -> None:
        self.reason = reason
        self.data = data
        self.username = username
        self.message = message
        self.reasons = [] if reasons is None else reasons
        self.rights = None
        self.valid = 0.0
        self.standing = None
        self.detail = ""


class SystemRequest:
    """A request of a NATS client to the broker (core.nats.system_requests). ``kind`` is one of the names there, or
    USER; ``server`` is the id of the requested server, "" for all. Or one to JetStream: ``server`` is its subject."""

    client: Client
    kind: str
    server: str
    reply: bytes  # a topic
    options: bytes
    headers: bytes
    answered: bool

    def __init__(self, client: Client, kind: str, server: str, reply: bytes, options: bytes) -> None:
        self.client = client
        self.kind = kind
        self.server = server
        self.reply = reply
        self.options = options
        self.headers = b""
        self.answered = False


class Event:
    """An event for ``on_event`` hooks. ``kind`` is one of: connected, disconnected, subscribed, unsubscribed,
    session_discarded, dropped, held. ``detail`` has more (a filter, a reason)."""

    kind: str
    client_id: str
    detail: str

    def __init__(self, kind: str, client_id: str, detail: str) -> None:
        self.kind = kind
        self.client_id = client_id
        self.detail = detail


class Notice:
    """A log entry: a connection was ended for ``reason`` (a key of ``Counters.errors``), or, without ``closing``,
    continues. ``username`` is the name that the client gave, "" for none."""

    reason: str
    client_id: str
    peer: str
    detail: str
    closing: bool
    username: str

    def __init__(
        self, reason: str, client_id: str, peer: str, detail: str, closing: bool = True, username: str = ""
    ) -> None:
        self.reason = reason
        self.client_id = client_id
        self.peer = peer
        self.detail = detail
        self.closing = closing
        self.username = username


PUBLISH_REFUSED: Final = "publish_refused"
SUBSCRIBE_REFUSED: Final = "subscribe_refused"
NAME_SHOWN: Final = 256  # bytes of a topic or group in the log
BY_HOOK: Final = "a hook or auth.http refused it"
BROKER_ONLY: Final = "only the broker publishes to this topic"


class Refusal(Notice):
    """A PUBLISH or SUBSCRIBE that was refused; its connection continues. ``detail`` "": the rules decided, as of
    ``rights``. It is made a text only if it is logged."""

    topic: bytes
    qos: int
    retain: bool
    group: bytes
    rights: Rights | None
    listener: str

    def __init__(
        self, reason: str, client: Client, topic: bytes, qos: int, retain: bool, group: bytes, detail: str
    ) -> None:
        super().__init__(reason, client.client_id, client.peer, detail, False, client.username)
        self.topic = topic
        self.qos = qos
        self.retain = retain
        self.group = group
        self.rights = client.rights
        self.listener = client.listener

    def text(self) -> str:
        topic = _shown(self.topic)
        if self.reason == PUBLISH_REFUSED:
            return f"PUBLISH to {topic} at QoS {self.qos}{', retained,' if self.retain else ''} refused"
        group = f" of the group {_shown(self.group)}" if self.group else ""
        return f"SUBSCRIBE to {topic}{group} refused"


def _shown(name: bytes) -> str:
    return repr(name[:NAME_SHOWN].decode(errors="replace")) + ("…" if len(name) > NAME_SHOWN else "")


class Ready:
    dirty: list[Client]  # clients with frames to be written, or to be closed
    pause: list[Client]  # clients whose ``halted`` changed: start or stop reading
    writes: list[Write]
    deliveries: Deliveries | None  # the last one of ``writes``, if it is one
    acknowledged: list[Session]  # sessions with packet ids for a WINDOW_DELETE, which ``finish`` makes
    spills: list[Session]  # sessions with messages that may be released once ``writes`` are stored
    reads: list[Session]  # sessions that need messages from the store: see ``BrokerState.wanted``
    questions: list[HookQuestion]
    requests: list[SystemRequest]  # requests of NATS clients to the broker
    events: list[Event]
    notices: list[Notice]

    def __init__(self) -> None:
        self.dirty = []
        self.pause = []
        self.writes = []
        self.deliveries = None
        self.acknowledged = []
        self.spills = []
        self.reads = []
        self.questions = []
        self.requests = []
        self.events = []
        self.notices = []

    def renew(self) -> None:
        """Become empty again. Lists with entries are left to their present users."""
        if self.dirty:
            self.dirty = []
        if self.pause:
            self.pause = []
        if self.writes:
            self.writes = []
            self.deliveries = None
        if self.acknowledged:
            self.acknowledged = []
        if self.spills:
            self.spills = []
        if self.reads:
            self.reads = []
        if self.questions:
            self.questions = []
        if self.requests:
            self.requests = []
        if self.events:
            self.events = []
        if self.notices:
            self.notices = []

    def write(self, write: Write) -> None:
        self.deliveries = None
        self.writes.append(write)

    def deliver(self, kind: int, session: Session, outgoing: Outgoing) -> None:
        deliveries = self.deliveries
        if deliveries is None:
            deliveries = self.deliveries = Deliveries()
            self.writes.append(deliveries)
        deliveries.kinds.append(kind)
        deliveries.sessions.append(session)
        deliveries.outgoings.append(outgoing)

    def empty(self) -> bool:
        """Whether there is nothing at all."""
        reports = len(self.questions) + len(self.requests) + len(self.events) + len(self.notices)
        return reports + len(self.spills) == 0 and not self.urgent()

    def urgent(self) -> bool:
        """Whether there are actions to perform, rather than only reports."""
        return len(self.dirty) + len(self.writes) + len(self.acknowledged) + len(self.reads) + len(self.pause) != 0

    def finish(self) -> None:
        """Write down what was collected. This comes last: a packet id is not reused in the turn that freed it."""
        if not self.acknowledged:
            return
        for session in self.acknowledged:
            if not session.ended:
                write = Write(WINDOW_DELETE, session)
                write.packet_ids = session.acknowledged
                self.write(write)
            session.acknowledged = None
        self.acknowledged.clear()
