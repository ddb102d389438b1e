"""The frames by which nodes agree, as values: this module is their reference. On the wire each is that array in
MessagePack, with its tag in front.

A tag is never used again for another frame. A later version adds fields at the end, with a default: a node that does
not know them ignores them, and one that does not get them takes the default.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Struct

from starlingmq.cluster.links.record_bytes import PackedRecords

Number = Annotated[int, msgspec.Meta(ge=0)]
State = tuple[Number, Number]  # (epoch, version) of routes


# Members and heartbeats


class MemberInfo(Struct, array_like=True, frozen=True):
    """A registered member, or a joining one."""

    name: str
    number: Number
    incarnation: Number
    address: str  # host:port of its peer listener
    version: str = ""  # of the software
    registered: bool = True  # False: joining, not counted yet
    first: Number = 0  # the first number that its data directory was used with; 0: ``number``
    since: Number = 0  # the incarnation in which it joined under ``number``, if ``first`` differs


class Membership(Struct, array_like=True, frozen=True):
    """All registered members as of an etcd revision; a higher revision replaces a lower one."""

    revision: Number
    members: tuple[MemberInfo, ...]


class Heartbeat(Struct, array_like=True, frozen=True, tag=1):
    epoch: Number  # of the sender's routes ...
    version: Number
    vector: dict[Number, State]  # node -> state of its routes that the sender has applied
    heard: dict[Number, Number]  # node -> incarnation, heard directly within the timeout
    connected: frozenset[Number]  # nodes that the sender hears and that hear the sender, directly or relayed
    serving: bool
    membership: Membership
    relayed: dict[Number, Number]  # node -> incarnation, heard within the timeout, but only through a relay
    number: Number  # counts the sender's heartbeats in this incarnation; one that comes after a newer one is ignored
    taken: dict[Number, Number]  # node -> number of its newest heartbeat that the sender has received, also relayed
    listeners: tuple[str, ...] = ()  # URLs at which clients reach the sender from outside
    draining: bool = False  # the sender serves no clients, and accepts none
    clients: Number = 0  # connected to the sender
    retained: Number = 0  # sequence of the last retained message that the sender has accepted
    # node -> incarnation whose process has ended, as the sender observed
    gone: dict[Number, Number] = {}
    # not 0: only what has changed since that heartbeat, which the target has confirmed (links.heartbeat_changes): the
    # present values of the nodes in ``changed``, the members and listeners if they have changed
    since: Number = 0
    changed: tuple[Number, ...] = ()


# Routes


class SyncRequest(Struct, array_like=True, frozen=True, tag=2):
    """The version of routes that the sender has: those of the target, or of node ``of``; (0, 0): none."""

    epoch: Number
    version: Number
    of: Number = 0  # a node that the sender cannot reach; 0: the target itself


class RouteSnapshot(Struct, array_like=True, frozen=True, tag=3):
    """A chunk of all routes of the sender, or of node ``of``, as of (epoch, version). Applied when all chunks are
    here."""

    epoch: Number
    version: Number
    chunk: Number  # from 0
    last: bool
    records: PackedRecords
    of: Number = 0  # a node that the receiver cannot reach; 0: the sender


# QoS 2 handshakes


# client id, packet id, epoch, floor, bound (cluster.qos2.qos2_lookup)
HandshakeQuestion = tuple[str, int, int, int, int]
HandshakeAnswer = tuple[int, int, int]  # kind, epoch, epoch of the newest handshake of that client at the sender


class HandshakeCall(Struct, array_like=True, frozen=True, tag=4):
    """Questions about QoS 2 handshakes: all that one node has for another one in a time window."""

    number: Number  # of this call; a repetition has a new number
    questions: tuple[HandshakeQuestion, ...]
    users: tuple[str | None, ...] = ()  # user of each question's session, in order; missing at the end: not given


class HandshakeReply(Struct, array_like=True, frozen=True, tag=5):
    """The answers to the questions of a call, in their order. They are durable."""

    number: Number  # of the call
    since: Number  # the sender has no information about handshakes of lower epochs
    answers: tuple[HandshakeAnswer, ...]


# Queue groups


class Allotment(Struct, array_like=True, frozen=True):
    """The number of messages of a group that may be delivered to the members at a node, and the number of these
    members."""

    node: Number
    online: Number
    room: Number  # for messages that wait now
    standing: Number = 0  # for messages that enter later
    limit: Number = 0  # the largest Maximum Packet Size of these members, or ANY_SIZE; 0: unknown


class Pull(Struct, array_like=True, frozen=True):
    """The primary's request for messages that wait for its group. Without allotments: only a report is requested."""

    key: bytes  # $share/name/filter
    epoch: Number
    allotments: tuple[Allotment, ...]
    stands: bool = False  # the node may assign messages that enter there itself, until the next pull or another primary


class GroupPull(Struct, array_like=True, frozen=True, tag=6):
    """Numbered by the primary; one at a time per node, repeated until it is answered."""

    number: Number
    pulls: tuple[Pull, ...]


class GroupState(Struct, array_like=True, frozen=True):
    """A group at the sender: messages that wait there, and the capacity of its members there."""

    key: bytes
    epoch: Number  # the highest that the sender knows
    waiting: Number
    online: Number
    room: Number
    taken: tuple[tuple[Number, Number], ...] = ()  # node -> how much of its allotment was used
    wants: bool = False  # messages enter there, and little or nothing of them is allotted in advance
    limit: Number = 0  # the largest Maximum Packet Size of the members there, or ANY_SIZE; 0: unknown, or no members
    growth: Number = 0  # by how much the windows of members that have room may grow


class GroupReport(Struct, array_like=True, frozen=True, tag=7):
    """The answer to the pull of that number; 0: sent without a pull, because the state has changed."""

    number: Number
    states: tuple[GroupState, ...]


# Operators


class OperatorCall(Struct, array_like=True, frozen=True, gc=False, tag=8):
    """An operator's request to the target (``cluster.view.operator_rpc``), by the numbers of the sender's incarnation:
    JSON, see admin.node_rpc. An empty question measures the round trip."""

    number: Number
    question: bytes


class OperatorReply(Struct, array_like=True, frozen=True, gc=False, tag=9):
    """The answer to the call of that number."""

    number: Number
    answer: bytes


Control = (
    Heartbeat
    | SyncRequest
    | RouteSnapshot
    | HandshakeCall
    | HandshakeReply
    | GroupPull
    | GroupReport
    | OperatorCall
    | OperatorReply
)
