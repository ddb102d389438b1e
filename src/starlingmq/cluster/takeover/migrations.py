"""The state that both sides of takeovers share: migrations under way, frames to send, and facts to store.

No module of ``cluster.takeover`` looks at all migrations in a turn: each event touches the ones that it concerns, and
only these are processed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from heapq import heappop, heappush
from math import inf
from typing import Final

from starlingmq.cluster.takeover.inbound import InboundSession
from starlingmq.cluster.takeover.inbound_states import SourceAction, SourceEvent
from starlingmq.cluster.takeover.lost_sessions import LostSessions
from starlingmq.cluster.takeover.outbound import OutboundSession
from starlingmq.cluster.takeover.ownership import Owned, Ownership
from starlingmq.cluster.takeover.queue_pace import QueuePace
from starlingmq.cluster.takeover.short_names import InboundNames, OutboundNames
from starlingmq.cluster.takeover.takeover_ports import TakeoverPorts
from starlingmq.cluster.takeover.transfer_frames import (
    BATCH_BYTES,
    Takeover,
    TransferFrame,
    encode,
    encode_inbound,
    encode_kept,
    encode_marks,
    pack,
)
from starlingmq.core.broker import BrokerState
from starlingmq.core.context.context import Context
from starlingmq.core.context.ready import FACT_DELETE, FACT_PUT, Write
from starlingmq.core.session.session import Session

FACTS: Final = b"m"  # prefix of the keys of all facts of this package
INBOUND: Final = FACTS + b"a"
OUTBOUND: Final = FACTS + b"d"
EARLY: Final = FACTS + b"e"
KEPT: Final = FACTS + b"k"  # messages of sources that have not described the session
NUMBERS: Final = FACTS + b"n"  # the highest epoch of orphaned sessions, and the node numbers since then
FIRST: Final = FACTS + b"f"  # the first node number that this data directory was used with

Turned = tuple[str, int]  # client id, epoch of its new owner


class Migrations:
    broker: BrokerState
    ctx: Context
    ownership: Ownership
    ports: TakeoverPorts
    limit: float  # seconds to wait for nodes that are heard
    me: int
    members: dict[int, None]  # the numbers of all nodes, including this one
    inbound_sessions: dict[str, dict[int, InboundSession]]  # client id -> epoch -> session
    outbound_sessions: dict[Turned, OutboundSession]
    outbound_of: dict[str, list[OutboundSession]]  # the same by client id
    touched: dict[InboundSession, None]  # to be processed in this turn
    settling: dict[InboundSession, None]  # those in state SETTLING: processed in each turn
    with_output: dict[OutboundSession, None]  # may have something to send
    queue_pace: QueuePace  # those whose queues wait until the link takes them
    deferred: dict[str, tuple[int, Takeover]]  # client id -> (node, its request), while the session still moves here
    postponed: dict[str, Owned]  # client id -> etcd's answer that cannot be used yet
    early: dict[Turned, list[int]]  # nodes whose markers arrived while the request was deferred
    overtaken: dict[str, int]  # client id -> higher epoch of another node, while this node's claim is outstanding
    notices: list[str]
    # nodes that are waited for though they are not connected, because connected nodes hear them
    relay_awaited: dict[int, None]
    lost: LostSessions
    inbound_names: InboundNames
    outbound_names: OutboundNames
    completed: int  # takeovers to this node
    refused: int  # because of their epoch

    def __init__(
        self,
        broker: BrokerState,
        ownership: Ownership,
        limit: float,
        ports: TakeoverPorts,
    ) -> None:
        self.broker = broker
        self.ctx = broker.ctx
        self.ownership = ownership
        self.limit = limit
        self.ports = ports
        self.me = 0
        self.members = {}
        self.inbound_sessions = {}
        self.outbound_sessions = {}
        self.outbound_of = {}
        self.touched = {}
        self.settling = {}
        self.with_output = {}
        self.queue_pace = QueuePace(broker, ports.link_window)
        self.deferred = {}
        self.postponed = {}
        self.early = {}
        self.overtaken = {}
        self.notices = []
        self.completed = self.refused = 0
        self.relay_awaited = {}
        self.lost = LostSessions(broker.ctx, ports.name_of)
        self.inbound_names = InboundNames()
        self.outbound_names = OutboundNames()
        self._by_source: dict[int, dict[InboundSession, None]] = {}
        self._resetting: dict[InboundSession, None] = {}  # those with a PENDING reset
        self._deadlines: list[tuple[float, int, InboundSession]] = []
        self._serial = 0
        self._changed: dict[InboundSession, None] = {}
        self._changed_outbound: dict[OutboundSession, None] = {}
        self._outbox: dict[int, list[bytes]] = {}
        self._sizes: dict[int, int] = {}
        self._own: deque[TransferFrame] = deque()

    # Nodes

    def connected(self, node: int) -> bool:
        return node == self.me or self.ports.connected(node)

    def is_unreachable(self, node: int) -> bool:
        """Whether nothing waits for that node: it is not connected to this node, nor to any node that is. If other
        nodes hear it, its path to this node is broken, and its frames will arrive through a relay."""
        if self.connected(node):
            return False
        if not self.ports.heard_elsewhere(node):
            return True
        self.relay_awaited[node] = None
        return False

    def connected_members(self) -> list[int]:
        return [node for node in self.members if self.connected(node)]

    def former_members(self) -> list[int]:
        """Nodes that sessions come from or go to and that are no longer members."""
        targets = [outbound.target for outbound in self.outbound_sessions.values()]
        sources = [node for node, inbound_sessions in self._by_source.items() if inbound_sessions]
        named = dict.fromkeys([*sources, *targets])
        return [node for node in named if node not in self.members]

    # Inbound sessions

    def all_inbound(self) -> list[InboundSession]:
        return [inbound for epochs in self.inbound_sessions.values() for inbound in epochs.values()]

    def of(self, client_id: str) -> list[InboundSession]:
        """All inbound sessions of a client id."""
        epochs = self.inbound_sessions.get(client_id)
        return [] if epochs is None else list(epochs.values())

    def add(self, inbound: InboundSession) -> None:
        self.inbound_sessions.setdefault(inbound.client_id, {})[inbound.epoch] = inbound
        self.inbound_names.add(inbound.client_id, inbound.epoch)
        for node in inbound.sources:
            self._by_source.setdefault(node, {})[inbound] = None
        self.touch(inbound)

    def remove(self, inbound: InboundSession) -> None:
        epochs = self.inbound_sessions[inbound.client_id]
        del epochs[inbound.epoch]
        self.inbound_names.remove(inbound.client_id, inbound.epoch)
        if not epochs:
            del self.inbound_sessions[inbound.client_id]
        self.settling.pop(inbound, None)
        self._resetting.pop(inbound, None)
        self._changed.pop(inbound, None)
        self.fact(key(INBOUND, inbound.client_id, inbound.epoch), None)

    def touch(self, inbound: InboundSession) -> None:
        """Schedules it for processing in this turn."""
        self.touched[inbound] = None

    def changed(self, inbound: InboundSession) -> None:
        """Schedules it for processing and storing in this turn."""
        self.touched[inbound] = None
        self._changed[inbound] = None

    def step_source(self, inbound: InboundSession, node: int, event: SourceEvent) -> tuple[SourceAction, ...]:
        actions = inbound.step_source(node, event)
        if node not in inbound.sources and node in self._by_source:
            self._by_source[node].pop(inbound, None)
        return actions

    def from_node(self, node: int) -> list[InboundSession]:
        """Inbound sessions that have this node as a source."""
        return list(self._by_source.get(node, {}))

    def watch_reset(self, inbound: InboundSession, until: float) -> None:
        """Its session reset is PENDING: cut markers and changes of connected nodes can complete it."""
        inbound.reset_until = until
        self._resetting[inbound] = None
        self.wake(inbound, until)
        self.touch(inbound)

    def unwatch_reset(self, inbound: InboundSession) -> None:
        self._resetting.pop(inbound, None)

    def resetting(self) -> list[InboundSession]:
        return list(self._resetting)

    def former_filters(self, client_id: str, session: Session) -> tuple[dict[bytes, None], bool]:
        """Filters of former owners that still owe messages to a session that is here or is leaving, without shared
        groups; and whether a former owner may have more filters."""
        former: dict[bytes, None] = {}
        unknown = False
        for inbound in self.of(client_id):
            if inbound.session is session:
                former.update(inbound.former_filters)
                unknown = unknown or inbound.unknown()
        return former, unknown

    def holders(self, client_id: str) -> dict[int, None] | None:
        """Other nodes that may have state of the client's sessions, as this node knows; None: there may be more."""
        found: dict[int, None] = {}
        for inbound in self.of(client_id):
            if inbound.unheard:
                return None
            found.update(inbound.holders)
        for outbound in self.outbound_of.get(client_id, ()):
            found[outbound.target] = None
        if client_id in self.deferred:
            found[self.deferred[client_id][0]] = None
        found.pop(self.me, None)
        return None if client_id in self.postponed else found

    # Outbound sessions

    def add_outbound(self, outbound: OutboundSession) -> None:
        self.outbound_sessions[outbound.client_id, outbound.epoch] = outbound
        self.outbound_of.setdefault(outbound.client_id, []).append(outbound)
        self.outbound_names.add(outbound.client_id, outbound.target, outbound.epoch)
        self.with_output[outbound] = None

    def remove_outbound(self, outbound: OutboundSession) -> None:
        """No state of it is left here."""
        del self.outbound_sessions[outbound.client_id, outbound.epoch]
        self.outbound_names.remove(outbound.client_id, outbound.target, outbound.epoch)
        left = self.outbound_of[outbound.client_id]
        left.remove(outbound)
        if not left:
            del self.outbound_of[outbound.client_id]
        self.with_output.pop(outbound, None)
        self.queue_pace.drop(outbound)
        self._changed_outbound.pop(outbound, None)
        self.fact(key(OUTBOUND, outbound.client_id, outbound.epoch), None)

    def mark(self, outbound: OutboundSession, node: int, later: bool) -> None:
        outbound.mark(node, later)
        self.with_output[outbound] = None
        if outbound.changed:
            self._changed_outbound[outbound] = None

    def note(self, outbound: OutboundSession) -> None:
        """Schedules its markers for storing, including those that arrived before it left."""
        if outbound.marks():
            outbound.changed = True
            self._changed_outbound[outbound] = None

    def mark_early(self, turned: Turned, node: int) -> None:
        """Notes a node's marker for a session that is asked for and cannot be handed over yet; the handover takes it
        from here."""
        nodes = self.early.setdefault(turned, [])
        if node not in nodes:
            nodes.append(node)
            self.fact(key(EARLY, *turned), encode_marks(nodes))

    def take_early(self, turned: Turned) -> list[int]:
        nodes = self.early.pop(turned, [])
        if nodes:
            self.fact(key(EARLY, *turned), None)
        return nodes

    # Time

    def wake(self, inbound: InboundSession, when: float) -> None:
        """Schedules processing at that time."""
        self._serial += 1
        heappush(self._deadlines, (when, self._serial, inbound))

    def due(self, now: float) -> list[InboundSession]:
        """Inbound sessions whose deadline has passed."""
        found: list[InboundSession] = []
        while self._deadlines and (self._deadlines[0][0] <= now or self._deadlines[0][2].finished):
            inbound = heappop(self._deadlines)[2]
            if not inbound.finished:
                found.append(inbound)
        return found

    def wake_at(self) -> float:
        while self._deadlines and self._deadlines[0][2].finished:
            heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else inf

    def busy(self) -> bool:
        """Whether any migration is under way, or any frame or notice is pending."""
        if self.inbound_sessions or self.outbound_sessions or self.touched:
            return True
        return bool(self._outbox or self._own or self.notices)

    # Sending

    def send(self, node: int, frame: TransferFrame) -> None:
        """Sends a frame to a node in this turn. The node may be this one."""
        if node == self.me:
            self._own.append(frame)
            return
        self._add(node, encode(frame))

    def send_to_all(self, nodes: Iterable[int], frame: TransferFrame) -> None:
        """Sends a frame to other nodes in this turn."""
        encoded = encode(frame)
        for node in nodes:
            self._add(node, encoded)

    def _add(self, node: int, encoded: bytes) -> None:
        self._outbox.setdefault(node, []).append(encoded)
        size = self._sizes.get(node, 0) + len(encoded)
        self._sizes[node] = size
        if size > BATCH_BYTES:
            self.flush(node)

    def flush(self, node: int) -> None:
        batch = self._outbox.pop(node, None)
        self._sizes.pop(node, None)
        if batch is not None:
            self.broker.peers.send(node, pack(batch))

    def flush_all(self) -> None:
        for node in list(self._outbox):
            self.flush(node)

    def take_own(self) -> TransferFrame | None:
        """The next frame that this node has sent to itself."""
        return self._own.popleft() if self._own else None

    # Storing

    def store(self) -> None:
        for inbound in self._changed:
            if not inbound.finished:
                self.fact(key(INBOUND, inbound.client_id, inbound.epoch), encode_inbound(inbound.value()))
        self._changed.clear()
        for outbound in self._changed_outbound:
            outbound.changed = False
            marks = encode_marks(outbound.stored())
            self.fact(key(OUTBOUND, outbound.client_id, outbound.epoch), marks)
        self._changed_outbound.clear()

    def store_kept(self, inbound: InboundSession) -> None:
        value = encode_kept(inbound.kept) if inbound.kept else None
        self.fact(key(KEPT, inbound.client_id, inbound.epoch), value)

    def fact(self, name: bytes, value: bytes | None) -> None:
        if self.ctx.recording:
            self.ctx.write(Write(FACT_DELETE if value is None else FACT_PUT, topic=name, value=value or b""))


def key(kind: bytes, client_id: str, epoch: int) -> bytes:
    return kind + epoch.to_bytes(8, "big") + client_id.encode()
