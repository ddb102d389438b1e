"""What travels between two nodes, as plain values; ``net`` makes bytes of them.

An envelope names its source and its target, so that any node can pass it on (see docs/CLUSTER.md, Frames). All of it
but ``Data`` may be lost, doubled or late. Nodes are named by their numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RouteRecord:
    """What a node tells about one filter or shared group of its own.

    ``key`` is a topic filter, or ``$share/name/filter`` for a group. ``value`` 0: not wanted any more. For a filter 1:
    wanted, 2: wanted durably (by a persistent session at QoS 1 or 2). For a group: its members on that node (a u32).
    """

    key: bytes
    value: int


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """A registered member, or one that is joining."""

    name: str
    number: int
    incarnation: int
    address: str  # host:port of its link listener
    version: str = ""  # of the software
    registered: bool = True  # False: joining, not counted yet
    first: int = 0  # the first number that its data directory was used under; 0: ``number``
    since: int = 0  # incarnation in which it joined under ``number``, if ``first`` is another one


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
    connected: frozenset[int]  # whom the sender hears and is heard by, directly or relayed
    serving: bool
    membership: Membership
    relayed: dict[int, int]  # node -> incarnation, heard within the timeout, but only through a third node
    number: int  # counts the sender's heartbeats in this incarnation; one that is overtaken says nothing
    taken: dict[int, int]  # node -> number of its newest heartbeat that has come here, directly or relayed
    listeners: tuple[str, ...] = ()  # URLs at which clients from elsewhere reach the sender
    draining: bool = False  # the sender serves no clients, and wants none
    clients: int = 0  # how many are connected to the sender
    retained: int = 0  # sequence of the last retained message that the sender had taken
    gone: dict[int, int] = field(default_factory=dict)  # node -> incarnation whose process ended, as the sender saw it


@dataclass(frozen=True, slots=True)
class RouteRecords:
    epoch: int
    first: int  # version of the first of ``records``; the others follow
    records: tuple[RouteRecord, ...]
    history: tuple[tuple[int, int], ...] = ()  # the sender's (epoch, first version), where the records cross epochs


@dataclass(frozen=True, slots=True)
class RouteApplied:
    epoch: int
    version: int
    retained: int = 0  # sequence of the last retained message that the sender had taken before


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """What the asker has of the target's routes, or of those of ``of``; (0, 0): nothing."""

    epoch: int
    version: int
    of: int = 0  # a node that the asker does not reach; 0: the target's own are meant


@dataclass(frozen=True, slots=True)
class RouteSnapshot:
    """A piece of all routes of the sender, or of ``of``, as of (epoch, version); applied when all pieces are there."""

    epoch: int
    version: int
    chunk: int  # from 0
    last: bool
    records: tuple[RouteRecord, ...]
    of: int = 0  # a node that the receiver does not reach; 0: the sender


@dataclass(frozen=True, slots=True)
class Data:
    """Messages for the target. ``sequence`` counts the data frames of this pair of incarnations from 1."""

    sequence: int
    count: int
    blob: bytes = field(repr=False)
    waited: float = 0.0  # seconds from when the blob was made until this was sent


@dataclass(frozen=True, slots=True)
class DataAck:
    """All data frames up to ``sequence`` are stored as durably as the receiver stores."""

    sequence: int
    room: int  # bytes of data the receiver takes beyond what it has acknowledged


HandshakeQuestion = tuple[
    str, int, int, int, int
]  # client id, packet id, epoch, floor, bound: see cluster.qos2.qos2_lookup
HandshakeAnswer = tuple[int, int, int]  # kind, epoch, epoch of the newest handshake of that client there


@dataclass(frozen=True, slots=True)
class HandshakeCall:
    """Questions about QoS 2 handshakes: all that one node has for another one in a window."""

    number: int  # of this call; who does not hear asks again under another one
    questions: tuple[HandshakeQuestion, ...] = field(repr=False)
    users: tuple[str | None, ...] = ()  # whose sessions they are about, in their order; fewer: the others are not told


@dataclass(frozen=True, slots=True)
class HandshakeReply:
    """To the questions of a call, in their order. What it says is stored."""

    number: int  # of the call
    since: int  # the sender knows nothing of handshakes of epochs before this one
    answers: tuple[HandshakeAnswer, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Allotment:
    """How much of a group's messages the members at a node may be given, and how many members are there."""

    node: int
    online: int
    room: int  # for what is in line now
    standing: int = 0  # for what enters later


@dataclass(frozen=True, slots=True)
class Pull:
    """What the primary of a group wants of what is in line for it; without allotments: only to be told how it is."""

    key: bytes  # $share/name/filter
    epoch: int
    allotments: tuple[Allotment, ...]
    stands: bool = False  # the node may choose for what enters there, until there is another pull or another primary


@dataclass(frozen=True, slots=True)
class GroupPull:
    """Numbered by the primary, one at a time for each node; it is repeated until it is answered."""

    number: int
    pulls: tuple[Pull, ...]


@dataclass(frozen=True, slots=True)
class GroupState:
    """How a group is at the sender: what is in line there, and what its members there can take."""

    key: bytes
    epoch: int  # the highest that the sender knows of
    waiting: int
    online: int
    room: int
    taken: tuple[tuple[int, int], ...] = ()  # node -> how much of its allotment was used
    wants: bool = False  # messages enter there, and little or nothing is allotted beforehand


@dataclass(frozen=True, slots=True)
class GroupReport:
    """The answer to the pull of that number; 0: to none, because something has changed."""

    number: int
    states: tuple[GroupState, ...]


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """Something that an operator asks of the target (cluster.operator_rpc). Numbered by the sender's incarnation."""

    number: int
    question: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class OperatorReply:
    """To the call of that number."""

    number: int
    answer: bytes = field(repr=False)


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
)


@dataclass(frozen=True, slots=True)
class Envelope:
    source: int
    incarnation: int  # of the source
    target: int
    target_incarnation: int  # 0: not known to the source
    body: Body
    relayed: bool = False  # by a third node: it is not passed on once more, and proves no direct way
