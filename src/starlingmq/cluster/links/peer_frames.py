"""The frames between two nodes, as values. ``net.peers.peer_codec`` has their bytes.

An envelope names its source and its target, so that any node can relay it. Every frame except ``Data`` may be lost,
duplicated or late: the next heartbeat repairs that. Nodes are identified by their numbers.

These are created for each message that crosses, and for each client that connects, so they are compiled. All other
frames are in ``control_frames``. They are not dataclasses, because mypyc does not compile the constructor of a
dataclass. They are not changed after their creation either.
"""

from __future__ import annotations

from starlingmq.cluster.links.control_frames import Control
from starlingmq.cluster.links.record_bytes import PackedRecords


class RouteRecords:
    """``first``: version of the first of ``records``; the others follow. ``history``: the sender's pairs of epoch and
    first version, where the records span several epochs. ``quiet``: nothing at the sender waits for RouteApplied, so
    the receiver's heartbeats say it soon enough."""

    __slots__ = ("epoch", "first", "history", "quiet", "records")

    def __init__(
        self,
        epoch: int,
        first: int,
        records: PackedRecords,
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


class Data:
    """Messages for the target (core.delivery.forward_batch). ``sequence`` counts the data frames of this pair of
    incarnations from 1; ``waited``: seconds between the creation of the blob and its sending. ``kept``: messages in it
    waited for the target while that was not connected."""

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


class ShareFrame:
    """Messages about the owners of client ids (cluster.shares.share_messages). Each side numbers its frames in each
    version of the table of shares.

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


Body = Data | DataAck | ShareFrame | RouteRecords | RouteApplied | Control


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
