"""Frames between two nodes, as plain values. ``net`` encodes them.

An envelope names its source and its target, so that any node can relay it. Every frame except ``Data`` may be lost,
duplicated or late: the next heartbeat repairs that. Nodes are identified by their numbers.

``Envelope``, ``Data`` and ``DataAck`` are created for each message that crosses, route records and ``ShareFrame`` for
each client that connects. They are not dataclasses, because mypyc does not compile the constructor of a dataclass. They
are not changed after their creation either.
"""

from __future__ import annotations

from dataclasses import dataclass, field


class RouteRecord:
    """A node's own route for one filter or shared group.

    ``key`` is a topic filter, ``$share/name/filter`` for a group, or belongs to a summary of filters
    (core.router.filter_summary; only there values have more than 32 bits). ``value`` 0: not wanted any more. For a
    filter 1: wanted, 2: wanted durably (by a persistent session at QoS 1 or 2). For a group: its members on that node.
    """

    __slots__ = ("key", "value")

    def __init__(self, key: bytes, value: int) -> None:
        self.key = key
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RouteRecord) and self.key == other.key and self.value == other.value

    def __repr__(self) -> str:
        return f"RouteRecord(key={self.key!r}, value={self.value})"


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """A registered member, or a joining one."""

    name: str
    number: int
    incarnation: int
    address: str  # host:port of its peer listener
    version: str = ""  # of the software
    registered: bool = True  # False: joining, not counted yet
    first: int = 0  # the first number that its data directory was used with; 0: ``number``
    since: int = 0  # the incarnation in which it joined under ``number``, if ``first`` differs


@dataclass(frozen=True, slots=True)
class Membership:
    """All registered members as of an etcd revision; a higher revision replaces a lower one."""

    revision: int
    members: tuple[MemberInfo, ...]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    epoch: int  # of the sender's routes ...
    version: int
    vector: dict[int, tuple[int, int]]  # node -> (epoch, version) of its routes that the sender has applied
    heard: dict[int, int]  # node -> incarnation, heard directly within the timeout
    connected: frozenset[int]  # nodes that the sender hears and that hear the sender, directly or relayed
    serving: bool
    membership: Membership
    relayed: dict[int, int]  # node -> incarnation, heard within the timeout, but only through a relay
    number: int  # counts the sender's heartbeats in this incarnation; one that arrives after a newer one is ignored
    taken: dict[int, int]  # node -> number of its newest heartbeat that the sender has received, directly or relayed
    listeners: tuple[str, ...] = ()  # URLs at which clients reach the sender from outside
    draining: bool = False  # the sender serves no clients, and accepts none
    clients: int = 0  # connected to the sender
    retained: int = 0  # sequence of the last retained message that the sender has accepted
    # node -> incarnation whose process has ended, as the sender observed
    gone: dict[int, int] = field(default_factory=dict)
    # not 0: only what has changed since that heartbeat, which the target has confirmed (links.heartbeat_changes): the
    # present values of the nodes in ``changed``, the members and listeners if they have changed
    since: int = 0
    changed: tuple[int, ...] = ()


class RouteRecords:
    """``first``: version of the first of ``records``; the others follow. ``history``: the sender's pairs of epoch and
    first version, where the records span several epochs. ``quiet``: nothing at the sender waits for RouteApplied, so
    the receiver's heartbeats say it soon enough."""

    __slots__ = ("epoch", "first", "history", "quiet", "records")

    def __init__(
        self,
        epoch: int,
        first: int,
        records: tuple[RouteRecord, ...],
        history: tuple[tuple[int, int], ...] = (),
        quiet: bool = False,
    ) -> None:
        self.epoch = epoch
        self.first = first
        self.records = records
        self.history = history
        self.quiet = quiet

    def _all(self) -> tuple[object, ...]:
        return self.epoch, self.first, self.records, self.history, self.quiet

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RouteRecords) and self._all() == other._all()

    def __repr__(self) -> str:
        return f"RouteRecords(epoch={self.epoch}, first={self.first}, records={self.records})"


class RouteApplied:
    """``retained``: sequence of the last retained message that the sender had accepted before."""

    __slots__ = ("epoch", "retained", "version")

    def __init__(self, epoch: int, version: int, retained: int = 0) -> None:
        self.epoch = epoch
        self.version = version
        self.retained = retained

    def _all(self) -> tuple[int, int, int]:
        return self.epoch, self.version, self.retained

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RouteApplied) and self._all() == other._all()

    def __repr__(self) -> str:
        return f"RouteApplied(epoch={self.epoch}, version={self.version}, retained={self.retained})"


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """The version of routes that the sender has: those of the target, or of node ``of``; (0, 0): none."""

    epoch: int
    version: int
    of: int = 0  # a node that the sender cannot reach; 0: the target itself


@dataclass(frozen=True, slots=True)
class RouteSnapshot:
    """A chunk of all routes of the sender, or of node ``of``, as of (epoch, version). Applied when all chunks are
    here."""

    epoch: int
    version: int
    chunk: int  # from 0
    last: bool
    records: tuple[RouteRecord, ...]
    of: int = 0  # a node that the receiver cannot reach; 0: the sender


class Data:
    """Messages for the target. ``sequence`` counts the data frames of this pair of incarnations from 1; ``waited``:
    seconds between the creation of the blob and its sending. ``kept``: messages in it waited for the target while that
    was not connected."""

    __slots__ = ("blob", "count", "kept", "sequence", "waited")

    def __init__(self, sequence: int, count: int, blob: bytes, waited: float = 0.0, kept: bool = False) -> None:
        self.sequence = sequence
        self.count = count
        self.blob = blob
        self.waited = waited
        self.kept = kept

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Data):
            return False
        counts = self.sequence == other.sequence and self.count == other.count and self.kept == other.kept
        return counts and self.blob == other.blob and self.waited == other.waited

    def __repr__(self) -> str:
        return f"Data(sequence={self.sequence}, count={self.count}, waited={self.waited}, kept={self.kept})"


class DataAck:
    """All data frames up to ``sequence`` are stored, with the receiver's durability. ``room``: bytes of data that the
    receiver accepts beyond what it has acknowledged."""

    __slots__ = ("room", "sequence")

    def __init__(self, sequence: int, room: int) -> None:
        self.sequence = sequence
        self.room = room

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DataAck):
            return False
        return self.sequence == other.sequence and self.room == other.room

    def __repr__(self) -> str:
        return f"DataAck(sequence={self.sequence}, room={self.room})"


HandshakeQuestion = tuple[
    str, int, int, int, int
]  # client id, packet id, epoch, floor, bound (cluster.qos2.qos2_lookup)
HandshakeAnswer = tuple[int, int, int]  # kind, epoch, epoch of the newest handshake of that client at the sender


@dataclass(frozen=True, slots=True)
class HandshakeCall:
    """Questions about QoS 2 handshakes: all that one node has for another one in a time window."""

    number: int  # of this call; a repetition has a new number
    questions: tuple[HandshakeQuestion, ...] = field(repr=False)
    users: tuple[str | None, ...] = ()  # user of each question's session, in order; missing at the end: not given


@dataclass(frozen=True, slots=True)
class HandshakeReply:
    """The answers to the questions of a call, in their order. They are durable."""

    number: int  # of the call
    since: int  # the sender has no information about handshakes of lower epochs
    answers: tuple[HandshakeAnswer, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Allotment:
    """The number of messages of a group that may be delivered to the members at a node, and the number of these
    members."""

    node: int
    online: int
    room: int  # for messages that wait now
    standing: int = 0  # for messages that enter later
    limit: int = 0  # the largest Maximum Packet Size of these members, or ANY_SIZE; 0: unknown


@dataclass(frozen=True, slots=True)
class Pull:
    """The primary's request for messages that wait for its group. Without allotments: only a report is requested."""

    key: bytes  # $share/name/filter
    epoch: int
    allotments: tuple[Allotment, ...]
    stands: bool = False  # the node may assign messages that enter there itself, until the next pull or another primary


@dataclass(frozen=True, slots=True)
class GroupPull:
    """Numbered by the primary; one at a time per node, repeated until it is answered."""

    number: int
    pulls: tuple[Pull, ...]


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group at the sender: messages that wait there, and the capacity of its members there."""

    key: bytes
    epoch: int  # the highest that the sender knows
    waiting: int
    online: int
    room: int
    taken: tuple[tuple[int, int], ...] = ()  # node -> how much of its allotment was used
    wants: bool = False  # messages enter there, and little or nothing of them is allotted in advance
    limit: int = 0  # the largest Maximum Packet Size of the members there, or ANY_SIZE; 0: unknown, or there are none


@dataclass(frozen=True, slots=True)
class GroupReport:
    """The answer to the pull of that number; 0: sent without a pull, because the state has changed."""

    number: int
    states: tuple[GroupState, ...]


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """An operator's request to the target (``cluster.view.operator_rpc``), by the numbers of the sender's
    incarnation."""

    number: int
    question: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class OperatorReply:
    """The answer to the call of that number."""

    number: int
    answer: bytes = field(repr=False)


class ShareFrame:
    """Messages about the owners of client ids (cluster.shares). Each side numbers its frames in each version of the
    table of shares.

    ``version``: of the table, at the sender. ``sequence`` 0: without messages. ``taken``: the last frame of the
    receiver that the sender has taken. ``table``: the table itself, for a node with an earlier one."""

    __slots__ = ("messages", "sequence", "table", "taken", "version")

    def __init__(self, version: int, sequence: int, taken: int, messages: bytes, table: bytes = b"") -> None:
        self.version = version
        self.sequence = sequence
        self.taken = taken
        self.messages = messages
        self.table = table

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ShareFrame):
            return False
        numbers = self.version == other.version and self.sequence == other.sequence and self.taken == other.taken
        return numbers and self.messages == other.messages and self.table == other.table

    def __repr__(self) -> str:
        return f"ShareFrame(version={self.version}, sequence={self.sequence}, taken={self.taken})"


Body = (
    Heartbeat
    | RouteRecords
    | RouteApplied
    | SyncRequest
    | RouteSnapshot
    | Data
    | DataAck
    | HandshakeCall
    | HandshakeReply
    | GroupPull
    | GroupReport
    | OperatorCall
    | OperatorReply
    | ShareFrame
)


class Envelope:
    """``target_incarnation`` 0: unknown to the source. ``relayed``: by a third node; it is not relayed again, and does
    not prove a direct path."""

    __slots__ = ("body", "incarnation", "relayed", "source", "target", "target_incarnation")

    def __init__(
        self, source: int, incarnation: int, target: int, target_incarnation: int, body: Body, relayed: bool = False
    ) -> None:
        self.source = source
        self.incarnation = incarnation  # of the source
        self.target = target
        self.target_incarnation = target_incarnation
        self.body = body
        self.relayed = relayed

    def passed_on(self) -> Envelope:
        """The same, from the node that relays it."""
        return Envelope(self.source, self.incarnation, self.target, self.target_incarnation, self.body, True)

    def with_body(self, body: Body) -> Envelope:
        return Envelope(self.source, self.incarnation, self.target, self.target_incarnation, body, self.relayed)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Envelope):
            return False
        ends = self.source == other.source and self.target == other.target
        lives = self.incarnation == other.incarnation and self.target_incarnation == other.target_incarnation
        return ends and lives and self.body == other.body and self.relayed == other.relayed

    def __repr__(self) -> str:
        way = f"{self.source}.{self.incarnation} to {self.target}.{self.target_incarnation}"
        return f"Envelope({way}, {self.body!r}{', relayed' if self.relayed else ''})"
