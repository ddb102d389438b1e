"""A session: what the broker knows of one client id, connected or not.

Everything a quiet client does not need (queue, window, inbound handshakes, subscriptions) is None until it does:
an idle subscriber must cost little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlingmq.core.connection import Client
from starlingmq.core.job import Job
from starlingmq.core.routing.filter_tree import Subscriber
from starlingmq.core.session.migration_state import MigrationState
from starlingmq.core.session.qos import Inbound, Parking, SendWindow
from starlingmq.core.session.queue import MessageQueue
from starlingmq.core.session.will import Will

if TYPE_CHECKING:
    from starlingmq.core.groups.group import Group

NODE_PREFIX: Final = "$node/"  # client ids of sessions that stand for other nodes; no client may have one
NATS_PREFIX: Final = "$nats/"  # and of NATS clients, which have none of their own
MOVED_PREFIX: Final = "$moved/"  # and of those that are on their way to another node
GROUP_PREFIX: Final = "$group/"  # and of what waits for a shared group (core.groups.group_engine)
NEVER: Final = 0xFFFFFFFF  # Session Expiry Interval: the session does not expire [MQTT-3.1.2.11.2]


class Backlog:
    """What a connection waits for while other nodes are asked about its handshakes: everything goes on in its order."""

    repeated: dict[int, None]  # packet ids of PUBLISHes that came again and are not held yet
    deferred: dict[int, bool]  # those whose PUBREC waits, in order; whether it may go as far as it is concerned
    asked: dict[int, None]  # those whose PUBREL others were asked about
    behind: list[int]  # PUBRELs that came after one of those

    def __init__(self) -> None:
        self.repeated = {}
        self.deferred = {}
        self.asked = {}
        self.behind = []


class Trail:
    """Where QoS 2 handshakes of a session are besides here: the hint, one for each client."""

    node: int  # has the newest ones; 0: who has them is not known
    epoch: int  # its last one as the owner; no other node has any that are newer; 0: not known
    sure: bool  # that it is so; else all are asked
    backlog: Backlog | None  # of the connection that there is

    def __init__(self, node: int, epoch: int, sure: bool) -> None:
        self.node = node
        self.epoch = epoch
        self.sure = sure
        self.backlog = None

    def waits(self) -> Backlog:
        if self.backlog is None:
            self.backlog = Backlog()
        return self.backlog


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
    shares: list[Group] | None  # shared groups that it is a member of ...
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
