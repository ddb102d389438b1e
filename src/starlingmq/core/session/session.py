"""A connection, and a session: what the broker knows of one client id, connected or not. Both know each other, and so
do wills and other protocols than MQTT, which is why they are in one module.

Everything a quiet client does not need (queue, window, inbound handshakes, subscriptions) is None until it does:
an idle subscriber must cost little.

The law of writing: frames leave in the order in which they were put into ``Client.frames``. Once a frame waits for
storage, every later frame of the same connection waits behind it (``stored_from``).
"""

from __future__ import annotations

from typing import Any, Final

from starlingmq.core.connection import NEW
from starlingmq.core.job import Job
from starlingmq.core.limits.access import Rights
from starlingmq.core.limits.meter import Meter
from starlingmq.core.message import Message
from starlingmq.core.routing.filter_tree import Subscriber
from starlingmq.core.session.migration_state import MigrationState
from starlingmq.core.session.production import Production
from starlingmq.core.session.qos import Inbound, Parking, SendWindow
from starlingmq.core.session.queue import MessageQueue
from starlingmq.core.session.trail import Trail

NODE_PREFIX: Final = "$node/"  # client ids of sessions that stand for other nodes; no client may have one
NATS_PREFIX: Final = "$nats/"  # and of NATS clients, which have none of their own
MOVED_PREFIX: Final = "$moved/"  # and of those that are on their way to another node
GROUP_PREFIX: Final = "$group/"  # and of what waits for a shared group (core.groups.group_engine)
NEVER: Final = 0xFFFFFFFF  # Session Expiry Interval: the session does not expire [MQTT-3.1.2.11.2]


class Client:
    transport: Any  # the shell's handle, never touched here
    listener: str
    peer: str
    certificate_name: str  # by a verified client certificate (net.listeners.client_certificate), "" without
    identity: bool  # that name is its user name, whatever CONNECT says
    state: int
    version: int  # 3, 4 or 5; 0: it speaks ...
    dialect: ProtocolHandler | None  # ... another protocol than MQTT
    client_id: str
    username: str
    rights: Rights | None  # what it may do; None: whatever hooks do not forbid
    rules: int  # the rules (``Context.rules``) by which it was let in
    standing: object  # what it has shown to be let in: a note of whoever decided; UNPROVED: it is not known
    assigned: bool  # its client id is the broker's choice
    counted_as: str  # the user whose connection this is, for core.limits.quotas
    production: Production | None  # it numbers what it publishes (see core.session.producers)
    meter: Meter | None  # how fast it may publish; None: as fast as it can
    valid_until: float  # when it has to be gone, or to have proved anew who it is; 0.0: never
    session: Session | None
    connected_at: float
    last_packet: float
    keep_alive: float  # seconds without a packet after which the connection is closed; 0.0: never
    check_at: float  # when the timer wheel looks at this connection next; 0.0: it does not
    # reading
    rest: bytes  # read, not yet handled
    chunks: list[bytes] | None  # more of the same while a large frame comes in
    missing: int  # bytes until that frame is complete
    halted: int
    # writing
    frames: list[bytes]
    size: int  # bytes in ``frames``, and ``unstored`` ones
    stored_from: int  # frames from this index on wait for this turn's writes; -1: none does
    unstored: int  # bytes of frames that wait for storage and are no longer in ``frames``
    waiting: int  # turns whose writes are not yet stored and that hold frames of this connection
    dirty: bool
    blocked: bool  # the transport holds more than it should
    heard: int  # bytes read from it while it was blocked
    published: int  # messages that came from it
    bytes_in: int
    greeted: int  # how many of them had come when CONNACK was sent: by the others it may show that it has read that
    bytes_out: int
    closing: bool  # to be closed after ``frames`` are written
    # agreed at CONNECT
    window_limit: int
    max_packet: int  # the client's Maximum Packet Size, 0: no limit
    aliases: dict[int, bytes] | None  # topic aliases the client set
    alias_limit: int  # highest alias the client may set
    aliases_out: dict[bytes, int] | None  # topic aliases we set
    alias_out_limit: int
    bridge: bool  # it may tell its state below $SYS/ (see core.mqtt.bridges)
    mirrors: bool  # 3.x, bit 7 of its level was set: its subscriptions are No Local and Retain As Published
    plain: bool  # neither of the last two: it takes the frames that are shared between receivers
    problem_information: bool
    auth_method: str
    challenged: bool  # its next AUTH is awaited
    full: int  # the reason with which its CONNECT is refused, for there were connections enough; 0: it is not
    mute: bool  # the shell's note that nothing more may be written: something before it could not be stored
    last_words: bool  # it is closed with something left for the client to read
    paused: bool  # the shell's note whether it reads the transport
    link: bool  # not a client but the way to another node of the cluster (see core.routing.peer_receivers)
    gone: bool  # the transport is closed; what it sent before is still being handled

    def __init__(self, listener: str, peer: str, now: float) -> None:
        self.transport = None
        self.listener = listener
        self.peer = peer
        self.certificate_name = ""
        self.identity = False
        self.state = NEW
        self.version = 4
        self.dialect = None
        self.client_id = ""
        self.username = ""
        self.rights = None
        self.rules = 0
        self.standing = None
        self.assigned = False
        self.counted_as = ""
        self.production = None
        self.meter = None
        self.valid_until = 0.0
        self.session = None
        self.connected_at = now
        self.last_packet = now
        self.keep_alive = 0.0
        self.check_at = 0.0
        self.rest = b""
        self.chunks = None
        self.missing = 0
        self.halted = 0
        self.frames = []
        self.size = 0
        self.stored_from = -1
        self.unstored = 0
        self.waiting = 0
        self.dirty = False
        self.blocked = False
        self.heard = 0
        self.published = 0
        self.bytes_in = 0
        self.greeted = 0
        self.bytes_out = 0
        self.closing = False
        self.window_limit = 65535
        self.max_packet = 0
        self.aliases = None
        self.alias_limit = 0
        self.aliases_out = None
        self.alias_out_limit = 0
        self.bridge = False
        self.mirrors = False
        self.plain = True
        self.problem_information = True
        self.auth_method = ""
        self.challenged = False
        self.full = 0
        self.link = False
        self.mute = False
        self.last_words = False
        self.paused = False
        self.gone = False


class ProtocolHandler:
    """Another protocol than MQTT on a connection: what it does in its own way.

    A client with one is asked nothing of MQTT. Its sessions have no queue and no window: ``deliver`` sends or drops.

    Its subscriptions are marked ``no_local``, as are those that need a closer look, and then found to be its own.
    """

    def handle(self, client: Client, data: bytes) -> None:
        """What ``PacketIntake._handle`` does for MQTT: take commands from ``data``, keep the rest."""
        raise NotImplementedError

    def deliver(self, client: Client, message: Message, subscription: Subscription, publisher: Session | None) -> None:
        raise NotImplementedError

    def echoes(self) -> bool:
        """Whether its own messages come back to it."""
        raise NotImplementedError

    def settled(self, client: Client, known: bool) -> None:
        """All nodes know of its subscriptions now; or not ``known``: they could not be told in time."""
        raise NotImplementedError

    def drained(self, client: Client) -> None:
        """The transport takes more again."""
        raise NotImplementedError

    def silent(self, client: Client) -> bool:
        """Nothing came for ``Client.keep_alive``: whether that is the end."""
        raise NotImplementedError

    def last_words(self, client: Client, reason: int) -> None:
        """Say why the connection ends (a ``Reason``); it is closed right after."""
        raise NotImplementedError

    def revoke(self, client: Client) -> None:
        """Its rights have changed: end the subscriptions that go beyond them."""
        raise NotImplementedError

    def shut(self, client: Client) -> None:
        """The connection is over: let its subscriptions go."""
        raise NotImplementedError


class Will:
    """``message.expires_at`` is unset until it is published: the expiry interval counts from then [MQTT-3.1.3.2.4].

    ``delay`` is the Will Delay Interval and ``expiry`` the Message Expiry Interval, both in seconds (-1: none);
    ``client`` is the connection that left it, under whose rights it is published. ``id`` tells this will apart from all
    others of this node, in a cluster; 0: there was none. ``granted``: its client had rules of its own, which
    are not kept. ``epoch`` is that of the connection, in which this node owned the client id.
    """

    message: Message
    delay: int
    expiry: int
    client: Client
    id: int
    granted: bool
    epoch: int

    def __init__(
        self,
        message: Message,
        delay: int,
        expiry: int,
        client: Client,
        id: int = 0,
        granted: bool = False,
        epoch: int = 0,
    ) -> None:
        self.message = message
        self.delay = delay
        self.expiry = expiry
        self.client = client
        self.id = id
        self.granted = granted
        self.epoch = epoch


class Session:
    client_id: str
    client: Client | None  # the connection, while there is one
    number: int  # never given to another session
    kept: bool  # a store knows of it
    acknowledged: list[int] | None  # packet ids that are free again, not yet noted by the store
    spilling: bool  # its queue is to be looked at once this turn's writes are stored
    ended: bool  # discarded: whatever still refers to it must leave it alone
    expiry: int  # Session Expiry Interval in seconds, NEVER = none; 0: ends with the connection
    subscriptions: dict[bytes, Subscription] | None  # by filter as subscribed ($share prefix included)
    queue: MessageQueue | None
    window: SendWindow | None
    inbound: Inbound | None
    parked: Parking | None  # QoS 2 PUBLISHes past max_awaiting_rel (3.x), not yet answered
    replay: Job | None  # retained messages on their way to its new subscriptions
    will: Will | None
    will_at: float  # when the will is due after a disconnection; 0.0: not pending
    expires_at: float  # when a disconnected session ends; 0.0: it is connected, or never ends
    armed_at: float  # when the timer wheel looks at this session next; 0.0: it does not
    stalled: bool  # it had its time to drain its queue and did not: publishers are no longer held for it
    waiters: list[Client] | None  # publishers that are not read until the queue drains
    held_until: float  # when ``waiters`` are let go in any case
    dropped: int  # messages given up for this session, whatever the reason
    node: int  # it stands for another node of the cluster: its number; 0: for a client
    epoch: int  # in a cluster: the revision by which this node owns the client id; 0: it did not ask yet
    anew: bool  # its client has to be told that it is not the one it had (core.session.session_reset) ...
    told: Client | None  # ... by the CONNACK of this connection, which has gone out since
    aware: bool  # and has sent something since: only its old subscriptions are still to be taken back
    hollow: bool  # its client never had it: it is here for what others owe (cluster.takeover.takeover_target)
    moving: MigrationState | None  # it comes from another node, or goes to one
    trail: Trail | None  # other nodes may have QoS 2 handshakes of it; None: they have none
    owner: str | None  # whose it is; None: not known (core.session.session_user)
    floor: int  # the epoch of its clean start: what is older is of a session that was thrown away; 0: there was none
    rules: int  # the rules (``Context.rules``) by which all that waits for it was let in; 0: of some it is not known
    shares: list[Subscriber] | None  # shared groups (core.groups.group) that it is a member of ...
    is_line: bool  # ... or the only one, of which it is the line

    def __init__(self, client_id: str, number: int = 0) -> None:
        self.client_id = client_id
        self.number = number
        self.kept = False
        self.acknowledged = None
        self.spilling = False
        self.client = None
        self.ended = False
        self.expiry = 0
        self.subscriptions = None
        self.queue = None
        self.window = None
        self.inbound = None
        self.parked = None
        self.replay = None
        self.will = None
        self.will_at = 0.0
        self.expires_at = 0.0
        self.armed_at = 0.0
        self.stalled = False
        self.waiters = None
        self.held_until = 0.0
        self.dropped = 0
        self.node = 0
        self.epoch = 0
        self.anew = False
        self.told = None
        self.aware = False
        self.hollow = False
        self.moving = None
        self.trail = None
        self.owner = None
        self.floor = 0
        self.rules = 0
        self.shares = None
        self.is_line = False

    def lose(self) -> None:
        """Its client has to be told that it is not the one it had."""
        self.anew = True
        self.aware = False
        self.told = None
        if self.moving is not None:
            self.moving.aware = False


class Subscription(Subscriber):
    """What a session asked for with one filter; also several of one session merged into what a message gets.

    ``ids`` are encoded Subscription Identifier properties. Where one of the merged subscriptions has No Local and
    another has not, ``when_own`` is what the session gets of its own messages.
    """

    session: Session
    filter: bytes
    qos: int
    no_local: bool
    retain_as_published: bool
    ids: bytes
    when_own: Subscription | None
    plain: bool  # neither No Local, nor Retain As Published, nor an identifier
    durable: bool  # of another node: some session there outlives its connection and wants QoS 1 or 2
    present: bool  # in a shared group: among those that are looked at for a message

    def __init__(
        self, session: Session, filter: bytes, qos: int, no_local: bool, retain_as_published: bool, ids: bytes
    ) -> None:
        self.session = session
        self.filter = filter
        self.qos = qos
        self.no_local = no_local
        self.retain_as_published = retain_as_published
        self.ids = ids
        self.when_own = None
        self.plain = not no_local and not retain_as_published and not ids
        self.durable = False
        self.present = False

    def key(self) -> object:
        return self.session


def merge(subscriptions: list[Subscription]) -> Subscription:
    """Overlapping subscriptions of one session as one delivery: the highest QoS, every identifier [MQTT-3.3.4-3]."""
    first = subscriptions[0]
    whole = Subscription(first.session, first.filter, 0, False, False, b"")
    others: list[Subscription] = []
    for subscription in subscriptions:
        if subscription.qos > whole.qos:
            whole.qos = subscription.qos
        whole.retain_as_published = whole.retain_as_published or subscription.retain_as_published
        whole.ids += subscription.ids
        whole.durable = whole.durable or subscription.durable
        if subscription.no_local:
            whole.no_local = True
        else:
            others.append(subscription)
    if whole.no_local and others:
        whole.when_own = others[0] if len(others) == 1 else merge(others)
    whole.plain = not whole.no_local and not whole.retain_as_published and not whole.ids
    return whole
