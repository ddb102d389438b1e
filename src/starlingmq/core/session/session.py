"""A connection, and a session: the state of one client id, connected or not. Both refer to each other, to wills and to
protocol handlers, which is why they are in one module.

Everything that an idle client does not need (queue, window, inbound handshakes, subscriptions) is None until it is
needed: an idle subscriber must cost little.

Invariant of writing: frames leave in the order in which they were added to ``Client.frames``. Once a frame waits for
storage, all later frames of the same connection wait behind it (``stored_from``).
"""

from __future__ import annotations

from typing import Any, Final

from starlingmq.core.limits.access import Rights
from starlingmq.core.limits.meter import Meter
from starlingmq.core.messages.link_marks import is_link
from starlingmq.core.messages.message import Message
from starlingmq.core.session.connection import NEW
from starlingmq.core.session.migration_state import MigrationState
from starlingmq.core.session.overlaps import OVERLAPS_MAX, Overlaps
from starlingmq.core.session.production import Production
from starlingmq.core.session.qos import Inbound, Parking, SendWindow
from starlingmq.core.session.queue import MessageQueue
from starlingmq.core.session.trail import Trail
from starlingmq.core.topics.filter_tree import Subscriber
from starlingmq.core.turn.job import Job

NODE_PREFIX: Final = "$node/"  # client ids of sessions that represent other nodes; clients must not use them
NATS_PREFIX: Final = "$nats/"  # of NATS clients, which have no client id of their own
MOVED_PREFIX: Final = "$moved/"  # of sessions that migrate to another node
MOVING_PREFIX: Final = "$moving/"  # of sessions that come from another broker (starlingmq.migrate), while they do
SEEN_PREFIX: Final = "$seen/"  # likewise
GROUP_PREFIX: Final = "$group/"  # of group queues (core.delivery.group_engine)
BRIDGE_PREFIX: Final = "$bridge/"  # of this broker's own bridges (starlingmq.bridges) ...
RESERVED: Final = (
    NODE_PREFIX, NATS_PREFIX, MOVED_PREFIX, MOVING_PREFIX, SEEN_PREFIX, GROUP_PREFIX, BRIDGE_PREFIX
)  # fmt: skip
BRIDGE_LISTENER: Final = "bridge"  # ... and the name of a listener that only these come from
NEVER: Final = 0xFFFFFFFF  # Session Expiry Interval: the session does not expire [MQTT-3.1.2.11.2]


class Client:
    transport: Any  # the shell's handle, not used here
    listener: str
    peer: str
    certificate_name: str  # from a verified client certificate (net.listeners.client_certificate), "" without
    identity: bool  # that name is the user name, whatever CONNECT says
    state: int
    version: int  # 3, 4 or 5; 0: another protocol ...
    protocol_handler: ProtocolHandler | None  # ... with this handler
    client_id: str
    username: str
    rights: Rights | None  # None: whatever hooks do not forbid
    rules: int  # version of the rules (``Context.rules``) that admitted it
    standing: object  # its proof of identity, as the authentication method noted it; UNPROVED: unknown
    assigned: bool  # the broker chose its client id
    counted_as: str  # the user that it counts for in core.context.quotas
    production: Production | None  # set if it numbers its publications (see core.publish.producers)
    meter: Meter | None  # its publish rate; None: unlimited
    valid_until: float  # the time when it must have disconnected or re-authenticated; 0.0: never
    session: Session | None
    connected_at: float
    last_packet: float
    keep_alive: float  # seconds without a packet after which the connection is closed; 0.0: never
    check_at: float  # next check by the timer wheel; 0.0: none
    # reading
    rest: bytes  # bytes read and not handled yet
    chunks: list[bytes] | None  # more of them while a large frame arrives
    missing: int  # bytes until that frame is complete
    halted: int
    heavy: bool  # the bytes that it sent last cost a large part of a turn (``core.context.context.HEAVY``)
    # writing
    frames: list[bytes]
    size: int  # bytes in ``frames`` and of ``unstored`` ones
    stored_from: int  # frames from this index on wait for this turn's writes; -1: none
    unstored: int  # bytes of frames that wait for storage and are not in ``frames`` any more
    waiting: int  # turns with unstored writes that hold frames of this connection
    dirty: bool
    blocked: bool  # the buffer of the transport is over its limit
    bytes_while_blocked: int  # bytes read from it while it was blocked
    published: int  # messages that it published
    bytes_in: int
    greeted: int  # number of them when CONNACK was sent: later ones may show that it has read CONNACK
    bytes_out: int
    closing: bool  # to be closed after ``frames`` are written
    # agreed at CONNECT
    window_limit: int
    window_grows: bool  # it is where a window begins that may grow
    max_packet: int  # the client's Maximum Packet Size; 0: no limit
    aliases: dict[int, bytes] | None  # topic aliases of the client
    alias_limit: int  # highest alias that the client may set
    aliases_out: dict[bytes, int] | None  # topic aliases of the broker
    alias_out_limit: int
    bridge: bool  # it may publish its state below $SYS/ (see core.publish.bridges)
    mirrors: bool  # 3.x, bit 7 of its level was set: its subscriptions are No Local and Retain As Published
    plain: bool  # neither of the last two: it gets frames that receivers share
    problem_information: bool
    auth_method: str
    challenged: bool  # its next AUTH is awaited
    full: int  # the limit of connections for which its CONNECT is refused (limits.turned_away); 0: none
    output_stopped: bool  # set by the shell: nothing more may be written, because earlier output could not be stored
    last_words: bool  # it is closed with output left for the client to read
    paused: bool  # set by the shell: whether it reads the transport
    link: bool  # not a client but the link to another node (see core.peers.peer_receivers)
    gone: bool  # the transport is closed; earlier input is still being handled

    def __init__(self, listener: str, peer: str, now: float) -> None:
        self.transport = None
        self.listener = listener
        self.peer = peer
        self.certificate_name = ""
        self.identity = False
        self.state = NEW
        self.version = 4
        self.protocol_handler = None
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
        self.heavy = False
        self.frames = []
        self.size = 0
        self.stored_from = -1
        self.unstored = 0
        self.waiting = 0
        self.dirty = False
        self.blocked = False
        self.bytes_while_blocked = 0
        self.published = 0
        self.bytes_in = 0
        self.greeted = 0
        self.bytes_out = 0
        self.closing = False
        self.window_limit = 65535
        self.window_grows = False
        self.max_packet = 0
        self.aliases = None
        self.alias_limit = self.alias_out_limit = 0
        self.aliases_out = None
        self.bridge = False
        self.mirrors = False
        self.plain = True
        self.problem_information = True
        self.auth_method = ""
        self.challenged = False
        self.full = 0
        self.link = False
        self.output_stopped = False
        self.last_words = False
        self.paused = False
        self.gone = False


class ProtocolHandler:
    """The handler of another protocol than MQTT on a connection.

    A client with a handler does not use MQTT code. Its sessions have neither queue nor window: ``deliver`` sends or
    drops. Its subscriptions are marked ``no_local``, like others that need a closer look, and are then recognised as
    its own.
    """

    def handle(self, client: Client, data: bytes) -> None:
        """Like ``PacketIntake._handle`` for MQTT: handle the commands in ``data``, and keep the rest."""
        raise NotImplementedError

    def deliver(self, client: Client, message: Message, subscription: Subscription, publisher: Session | None) -> None:
        raise NotImplementedError

    def echoes(self) -> bool:
        """Whether its own messages are delivered to it."""
        raise NotImplementedError

    def settled(self, client: Client, known: bool) -> None:
        """All nodes know its subscriptions now; or, not ``known``: they could not be told in time."""
        raise NotImplementedError

    def drained(self, client: Client) -> None:
        """The transport accepts output again."""
        raise NotImplementedError

    def silent(self, client: Client) -> bool:
        """There was no input for ``Client.keep_alive``. Returns whether to close the connection."""
        raise NotImplementedError

    def last_words(self, client: Client, reason: int) -> None:
        """Tell the client why the connection ends (a ``Reason``); it is closed right after."""
        raise NotImplementedError

    def revoke(self, client: Client) -> None:
        """Its rights have changed: end the subscriptions that exceed them."""
        raise NotImplementedError

    def shut(self, client: Client) -> None:
        """The connection has ended: remove its subscriptions."""
        raise NotImplementedError


class Will:
    """``message.expires_at`` is set at publication, because the expiry interval counts from then [MQTT-3.1.3.2.4].

    ``delay`` is the Will Delay Interval and ``expiry`` the Message Expiry Interval, both in seconds (-1: none);
    ``client`` is the connection that left the will, whose rights apply to its publication. ``id`` identifies the will
    among all of this node, in a cluster; 0: none. ``granted``: its client had rules of its own, which are not stored.
    ``epoch`` is the ownership epoch of the connection.
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
    number: int  # never reused
    kept: bool  # a store knows it
    acknowledged: list[int] | None  # packet ids that are free again, which the store does not know yet
    spilling: bool  # its queue must be checked after this turn's writes are stored
    ended: bool  # discarded: remaining references must not use it
    expiry: int  # Session Expiry Interval in seconds, NEVER = none; 0: ends with the connection
    only_subscription: Subscription | None  # its only subscription, unless that is shared ...
    by_filter: dict[bytes, Subscription] | None  # ... or all, by filter as subscribed ($share prefix included)
    overlaps: Overlaps | None  # of its subscriptions, once they are many
    queue: MessageQueue | None
    window: SendWindow | None
    inbound: Inbound | None
    parked: Parking | None  # QoS 2 PUBLISHes beyond max_awaiting_rel (3.x), not answered yet
    replay: Job | None  # sends retained messages to new subscriptions
    will: Will | None
    will_at: float  # when the will is due after a disconnection; 0.0: not pending
    expires_at: float  # the time when a disconnected session ends; 0.0: it is connected, or never ends
    armed_at: float  # next check by the timer wheel; 0.0: none
    stalled: bool  # it did not drain its queue in time: publishers are no longer held for it
    waiters: list[Client] | None  # publishers that are not read until the queue drains
    held_until: float  # the time when ``waiters`` are released in any case
    dropped: int  # messages dropped for this session, for any reason
    node: int  # number of the node that it represents; 0: it belongs to a client
    epoch: int  # in a cluster: ownership epoch; 0: not claimed yet
    needs_reset: bool  # session reset: its client must be told session present 0 (core.connect.session_reset) ...
    connack_sent_to: Client | None  # ... by the CONNACK of this connection, which has been sent
    reset_confirmed: bool  # and its client has sent something since: only its old subscriptions have yet to be removed
    placeholder: bool  # its client never had it: it exists for what other nodes owe (cluster.takeover.takeover_target)
    moving: MigrationState | None  # it migrates from or to another node
    trail: Trail | None  # other nodes may have QoS 2 handshakes of it; None: they have none
    owner: str | None  # its user; None: unknown (core.session.session_user)
    floor: int  # epoch of its clean start: anything older belongs to a discarded session; 0: none
    rules: int  # version of the rules (``Context.rules``) for all queued messages; 0: unknown for some
    shares: dict[Subscriber, None] | None  # shared groups (core.groups.group) that it is a member of ...
    is_group_queue: bool  # ... or the only one, whose group queue it is
    reads: dict[bytes, object] | None  # of streams (core.streams.feeder.Reading), by filter as subscribed

    def __init__(self, client_id: str, number: int = 0) -> None:
        self.client_id = client_id
        self.number = number
        self.kept = False
        self.acknowledged = None
        self.spilling = False
        self.client = None
        self.ended = False
        self.expiry = 0
        self.only_subscription = None
        self.by_filter = None
        self.overlaps = None
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
        self.needs_reset = False
        self.connack_sent_to = None
        self.reset_confirmed = False
        self.placeholder = False
        self.moving = None
        self.trail = None
        self.owner = None
        self.floor = 0
        self.rules = 0
        self.shares = None
        self.is_group_queue = False
        self.reads = None

    def subscription(self, whole: bytes) -> Subscription | None:
        """The subscription with this filter, the $share prefix included."""
        lone = self.only_subscription
        if lone is not None:
            return lone if lone.filter == whole else None
        return None if self.by_filter is None else self.by_filter.get(whole)

    def add_subscription(self, whole: bytes, subscription: Subscription) -> Subscription | None:
        """Returns the one that it replaces, or None."""
        lone = self.only_subscription
        several = self.by_filter
        if several is None:
            if subscription.filter == whole and (lone is None or lone.filter == whole):
                self.only_subscription = subscription
                return lone
            several = self.by_filter = {}
            if lone is not None:
                several[lone.filter] = lone
                self.only_subscription = None
        earlier = several.get(whole)
        several[whole] = subscription
        if earlier is None and self.overlaps is not None:
            self.overlaps.add(subscription.filter, subscription.filter != whole)
        return earlier

    def remove_subscription(self, whole: bytes) -> Subscription | None:
        """Returns the one that had this filter, or None."""
        lone = self.only_subscription
        if lone is not None:
            if lone.filter != whole:
                return None
            self.only_subscription = None
            return lone
        several = self.by_filter
        if several is None:
            return None
        removed = several.pop(whole, None)
        if removed is not None and self.overlaps is not None:
            self.overlaps.remove(removed.filter, removed.filter != whole)
        if not several:
            self.by_filter = None
            self.overlaps = None
        return removed

    def overlaps_too_often(self, whole: bytes, filter: bytes) -> bool:
        """Whether a new subscription would be one too many that match one topic (``core.session.overlaps``)."""
        several = self.by_filter
        if several is None or len(several) < OVERLAPS_MAX or whole in several:
            return False
        if self.overlaps is None:
            self.overlaps = Overlaps()
            for known, subscription in several.items():
                self.overlaps.add(subscription.filter, subscription.filter != known)
        return self.overlaps.full_for(filter, filter != whole)

    def subscriptions(self) -> list[tuple[bytes, Subscription]]:
        """All of them, with the filters as subscribed; the list is the caller's."""
        if self.only_subscription is not None:
            return [(self.only_subscription.filter, self.only_subscription)]
        return [] if self.by_filter is None else list(self.by_filter.items())

    def subscription_count(self) -> int:
        if self.only_subscription is not None:
            return 1
        return 0 if self.by_filter is None else len(self.by_filter)

    def require_reset(self) -> None:
        """Session reset: its client must be told session present 0."""
        self.needs_reset = True
        self.reset_confirmed = False
        self.connack_sent_to = None
        if self.moving is not None:
            self.moving.reset_confirmed = False


class Subscription(Subscriber):
    """A session's subscription with one filter; also several of one session, merged for one message.

    ``ids`` are encoded Subscription Identifier properties. If some of the merged subscriptions have No Local and others
    do not, ``when_own`` is the delivery for the session's own messages.
    """

    session: Session
    filter: bytes
    qos: int
    no_local: bool
    retain_as_published: bool
    ids: bytes
    when_own: Subscription | None
    plain: bool  # neither No Local, nor Retain As Published, nor an identifier
    durable: bool  # of another node: a persistent session there wants QoS 1 or 2
    present: bool  # in a shared group: considered when a message is given to a member
    checked_by: Rights | None  # a part of what it matches is denied, and is not delivered

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
        self.checked_by = None

    def key(self) -> object:
        return self.session

    def plain_from(self, publisher: Session | None) -> bool:
        """Whether its options change nothing about a message of ``publisher`` that is not retained, as with bridges."""
        if self.session is publisher or len(self.ids) != 0 or is_link(self.session.client_id):
            return False
        return publisher is None or publisher.node == 0


def merge(subscriptions: list[Subscription]) -> Subscription:
    """Merge overlapping subscriptions of one session into one delivery: the highest QoS, all identifiers
    [MQTT-3.3.4-3]."""
    first = subscriptions[0]
    whole = Subscription(first.session, first.filter, 0, False, False, b"".join([each.ids for each in subscriptions]))
    for subscription in subscriptions:
        if subscription.qos > whole.qos:
            whole.qos = subscription.qos
        whole.retain_as_published = whole.retain_as_published or subscription.retain_as_published
        whole.durable = whole.durable or subscription.durable
        whole.no_local = whole.no_local or subscription.no_local
    if whole.no_local:
        others = [each for each in subscriptions if not each.no_local]
        if others:
            whole.when_own = others[0] if len(others) == 1 else merge(others)
    whole.plain = not whole.no_local and not whole.retain_as_published and not whole.ids
    return whole
