"""The sessions of a Sparkplug B edge node: names of aliases, gaps in ``seq``, and who is online.

An edge node has one MQTT connection, so all messages of one of its sessions are in the stream of one cluster node, in
the order of their offsets:

    NBIRTH (seq 0, bdSeq n)   begins the session: the aliases of the node and of its devices are those of its births
    DBIRTH, NDATA, DDATA, DDEATH   each has the next seq, 0 after 255
    NDEATH (bdSeq n, no seq)  ends the session with the same bdSeq; any other NDEATH is of an earlier session

Names, datatypes and gaps depend on the rows of one cluster node only, so they are the same however its rows are divided
into batches, and whenever rows of other cluster nodes arrive. Which session is the current one depends on the clocks of
the cluster nodes: the one whose NBIRTH is latest. Only its messages, and its NDEATH by whichever cluster node, change
who is online. An NDEATH that arrives before its NBIRTH is remembered.

Commands (NCMD, DCMD) are published by hosts, in no order with the births, and change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol, TypeVar

import msgspec

SEQUENCE: Final = 256
BD_SEQ: Final = "bdSeq"
NODE: Final = ""  # in place of a device
BIRTHS: Final = ("NBIRTH", "DBIRTH")
DATA: Final = ("NDATA", "DDATA")
UNKNOWN_NODE: Final = "alias {alias} is unknown: no birth of {whose} was read before it on this node of the cluster"
UNKNOWN_ALIAS: Final = "alias {alias} is unknown: it is not in the last birth of {whose}"
NAMELESS: Final = "the metric has no name and no alias"


class MetricKey(msgspec.Struct, frozen=True):
    """``name`` "" and ``datatype`` 0: not in the message."""

    name: str = ""
    alias: int | None = None
    datatype: int = 0


class NamedMetric(msgspec.Struct, frozen=True):
    """``reason``: why a metric has no name; "" if it has one, or is of a command."""

    name: str
    datatype: int
    reason: str = ""


class EdgeMessage(msgspec.Struct, frozen=True):
    """``at``: microseconds since 1970, by the clock of the cluster node ``node`` that has stored it."""

    kind: str
    device: str
    node: str
    at: int
    seq: int | None = None
    bd_seq: int | None = None
    metrics: tuple[MetricKey, ...] = ()


class Applied(msgspec.Struct, frozen=True):
    """``gap``: messages missing before this one, modulo 256; None if unknown, or if the message has no ``seq``."""

    gap: int | None
    metrics: list[NamedMetric]
    changed: frozenset[str] = frozenset()  # devices, NODE for the edge node itself


class BirthNames(msgspec.Struct):
    """Of the last birth of a node or device; ``datatypes`` by name."""

    names: dict[int, str]
    datatypes: dict[str, int]


class EdgeSession(msgspec.Struct):
    """The session that one cluster node's stream describes. ``born``: time of the last NBIRTH, -1 before it."""

    born: int = -1
    bd_seq: int | None = None
    next_seq: int | None = None
    births: dict[str, BirthNames] = msgspec.field(default_factory=dict)

    def gap(self, message: EdgeMessage) -> int | None:
        """Count the messages missing before this one, and expect the next."""
        if message.seq is None or message.kind == "NDEATH":
            return None
        expected = None if message.kind == "NBIRTH" else self.next_seq
        self.next_seq = (message.seq + 1) % SEQUENCE
        return None if expected is None else (message.seq - expected) % SEQUENCE

    def learn(self, message: EdgeMessage) -> None:
        if message.kind == "NBIRTH":
            self.born, self.bd_seq = message.at, message.bd_seq
            self.births = {}
        self.births[message.device] = BirthNames(
            {metric.alias: metric.name for metric in message.metrics if metric.alias is not None and metric.name},
            {metric.name: metric.datatype for metric in message.metrics if metric.name and metric.datatype},
        )

    def named(self, metric: MetricKey, device: str) -> NamedMetric:
        known = self.births.get(device)
        name = metric.name
        if not name:
            if metric.alias is None:
                return NamedMetric("", metric.datatype, NAMELESS)
            name = "" if known is None else known.names.get(metric.alias, "")
        if not name:
            whose = "the device" if device else "the edge node"
            reason = (UNKNOWN_NODE if known is None else UNKNOWN_ALIAS).format(alias=metric.alias, whose=whose)
            return NamedMetric("", metric.datatype, reason)
        return NamedMetric(name, metric.datatype or (0 if known is None else known.datatypes.get(name, 0)))


class OnlineState(msgspec.Struct):
    """Of an edge node or a device; ``since`` and ``born`` (its last birth, -1 if none was read) in microseconds.
    ``metrics`` of its last birth; ``unresolved``: metrics without a name since the state began.
    """

    online: bool = False
    since: int = -1
    born: int = -1
    metrics: int = 0
    unresolved: int = 0

    def switch(self, online: bool, at: int) -> None:
        if online != self.online or self.since < 0:
            self.online, self.since = online, at


class Death(msgspec.Struct, frozen=True):
    bd_seq: int
    at: int


class EdgeNode(msgspec.Struct):
    """``seen``: latest time of its messages. ``gaps`` in ``seq``, with ``missing`` messages in all."""

    sessions: dict[str, EdgeSession] = msgspec.field(default_factory=dict)  # by cluster node
    states: dict[str, OnlineState] = msgspec.field(default_factory=dict)  # by device
    early: Death | None = None
    messages: int = 0
    seen: int = -1
    gaps: int = 0
    missing: int = 0

    def apply(self, message: EdgeMessage) -> Applied:
        """Take the next message of a cluster node's stream."""
        if message.kind not in (*BIRTHS, *DATA, "NDEATH", "DDEATH"):
            return Applied(None, [NamedMetric(metric.name, metric.datatype) for metric in message.metrics])
        self.messages += 1
        self.seen = max(self.seen, message.at)
        session = self.sessions.setdefault(message.node, EdgeSession())
        gap = session.gap(message)
        if gap:
            self.gaps += 1
            self.missing += gap
        if message.kind in BIRTHS:
            session.learn(message)
        named = [session.named(metric, message.device) for metric in message.metrics]
        changed = self._online(message, session)
        unresolved = sum(bool(metric.reason) for metric in named)
        if unresolved:
            self._state(message.device).unresolved += unresolved
        return Applied(gap, named, frozenset(changed | {NODE, message.device}))

    @property
    def current(self) -> EdgeSession | None:
        return max(self.sessions.values(), key=lambda session: session.born, default=None)

    def _online(self, message: EdgeMessage, session: EdgeSession) -> set[str]:
        """Return whose state may have changed."""
        if message.kind == "NDEATH":
            return self._died(message, session)
        if session is not self.current:
            return set()
        match message.kind:
            case "NBIRTH":
                for device in self.states.keys() - {NODE}:
                    self._state(device).switch(False, message.at)
                self._born(message)
                early = self.early
                if early is not None and early.bd_seq == message.bd_seq and early.at >= message.at:
                    self._all_offline(early.at)
                self.early = None
                return set(self.states)
            case "DBIRTH":
                self._born(message)
            case "DDEATH":
                self._state(message.device).switch(False, message.at)
            case _:
                for device in {NODE, message.device}:  # its birth was not read
                    if self._state(device).since < 0:
                        self._state(device).switch(True, message.at)
        return set()

    def _died(self, message: EdgeMessage, session: EdgeSession) -> set[str]:
        current = self.current
        assert current is not None
        if message.bd_seq is None:  # against the specification
            return self._all_offline(message.at) if session is current else set()
        ours = current.born < 0 or current.bd_seq == message.bd_seq
        changed = self._all_offline(message.at) if ours else set()
        if current.bd_seq != message.bd_seq:
            self.early = Death(message.bd_seq, message.at)
        return changed

    def _born(self, message: EdgeMessage) -> None:
        state = self._state(message.device)
        state.switch(True, message.at)
        state.born, state.metrics = message.at, len(message.metrics)

    def _all_offline(self, at: int) -> set[str]:
        self._state(NODE)
        for state in self.states.values():
            state.switch(False, at)
        return set(self.states)

    def _state(self, device: str) -> OnlineState:
        return self.states.setdefault(device, OnlineState())


class StoredRow(Protocol):
    @property
    def node(self) -> str: ...

    @property
    def offset(self) -> int: ...

    @property
    def at(self) -> int: ...


R = TypeVar("R", bound=StoredRow)


def in_order(rows: Iterable[R]) -> list[R]:
    """Return rows in the order in which they are applied: those of a cluster node by offset, and those of several by
    time, where a clock that has been set back does not change the order of its node.
    """
    latest: dict[str, int] = {}
    timed: list[tuple[int, str, int, R]] = []
    for row in sorted(rows, key=lambda row: (row.node, row.offset)):
        latest[row.node] = max(row.at, latest.get(row.node, row.at))
        timed.append((latest[row.node], row.node, row.offset, row))
    return [entry[3] for entry in sorted(timed, key=lambda entry: entry[:3])]
