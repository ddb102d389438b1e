"""The streams of JetStream in a cluster, by name: home, subjects and settings. One document in etcd, so a name and a
subject belong to one stream, and a stream to one home, whatever nodes do at the same time.

A stream is made once its entry is written, so the registry says which names and subjects are free; the settings
of a stream that has been made are those that its home has. A change is decided when its turn comes, against the entries
of then, and again if another node was faster. It is refused while etcd is away, and existing streams go on.

A document that is older than the one before, because etcd was rebuilt or restored from a backup, counts as empty: homes
register their streams again, and until all have done so no other stream takes a name or a subject.

::

    ask --decide--> nothing to change
                --> new entries --etcd--> done | failed: the outcome is not known, and the entries follow if it was done
                                     `--> another node was faster: decide

Pure: requests out, answers in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import msgspec

from starlingmq.cluster.etcd.etcd_requests import Answer, Request
from starlingmq.cluster.etcd.shared_value import AWAY, DONE, OVERTAKEN, SharedValue

BYTES_MAX: Final = 512 << 10  # of the document
WAITING_MAX: Final = 1000  # changes
TRIES_MAX: Final = 50  # of a change that other nodes overtake
FULL: Final = "the registry of streams is full"
OLDER: Final = "etcd has lost changes of the registry of streams: each node registers its own again"
BUSY: Final = "too many changes of streams wait for etcd"


class Keeping(msgspec.Struct):
    """The settings by which a stream keeps messages of other topics than its subjects."""

    subject_transform: object = None
    mirror: object = None
    sources: list[object] = []


class StreamEntry(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """``home``: the name of a node. ``subjects`` are topic filters, ``config`` is the JSON of the API. ``ending``: the
    stream that was made at this time is being deleted: its home removes its data, and then the entry; 0.0: none is."""

    home: str
    subjects: tuple[str, ...]
    config: str
    ending: float = 0.0

    def filters(self) -> list[bytes]:
        return [each.encode() for each in self.subjects]

    def kept_filters(self) -> list[bytes]:
        """The filters of all topics that it may have, as far as is known at other nodes than its home."""
        try:
            found = msgspec.json.decode(self.config, type=Keeping)
        except msgspec.MsgspecError:
            return [b"#"]
        return self.filters() if found == Keeping() else [b"#"]


Entries = Mapping[str, StreamEntry]


class RegistryChange:
    """A change that a request asks for. One of the other methods ends it, unless ``decide`` returns None."""

    def decide(self, entries: Entries) -> Entries | None:
        """The entries to be written in place of ``entries``; None: there is nothing to write."""
        raise NotImplementedError

    def nodes(self, nodes: dict[str, int]) -> dict[str, int]:
        """The ``nodes`` to be written with them."""
        return nodes

    def done(self) -> None:
        """They are written."""
        raise NotImplementedError

    def failed(self, why: str) -> None:
        """They are not, or this node cannot know."""
        raise NotImplementedError


class RegisteringNode(Protocol):
    """The node, as ``ClusterStreams`` knows it."""

    name: str

    def incarnation(self) -> int: ...
    def is_registered(self) -> bool: ...
    def follow_later(self) -> None: ...


class Registration(RegistryChange):
    """This node has no streams but those that the registry has."""

    def __init__(self, streams: RegisteringNode) -> None:
        self.streams = streams

    def decide(self, entries: Entries) -> Entries | None:
        return None if self.streams.is_registered() else entries

    def nodes(self, nodes: dict[str, int]) -> dict[str, int]:
        return {**nodes, self.streams.name: self.streams.incarnation()}

    def done(self) -> None:
        pass

    def failed(self, why: str) -> None:
        self.streams.follow_later()


class StreamRegistry:
    entries: dict[str, StreamEntry]
    filters: dict[str, list[bytes]]  # of the entries
    nodes: dict[str, int]  # incarnations of those that have registered the streams that they have
    known: bool  # they have been read
    changes: int  # counts the changes of ``entries``

    def __init__(self, cluster: str) -> None:
        self.entries = {}
        self.filters = {}
        self.nodes = {}
        self.known = False
        self.changes = 0
        self.started = False
        self.problem = ""  # with the document, until it is taken
        self._value = SharedValue(f"/starlingmq/{cluster}/jetstream".encode())
        self._seen: bytes | None = None  # the document that ``entries`` were read from
        self._number = 0  # its number; each change has a higher one
        self._waiting: deque[RegistryChange] = deque()
        self._looking: deque[tuple[int, Callable[[], None]]] = deque()  # with the read that they wait for
        self._current: RegistryChange | None = None
        self._tries = 0

    def start(self, now: float) -> None:
        self.started = True
        self._value.start(now)

    def ask(self, change: RegistryChange) -> None:
        if len(self._waiting) >= WAITING_MAX:
            change.failed(BUSY)
            return
        self._waiting.append(change)
        self._go_on()

    def look_again(self, now: float, then: Callable[[], None]) -> None:
        """Call ``then`` when all that was written before is known here, or cannot be: another node may have changed the
        registry just now, and told a client."""
        number = self._value.read(now) if self.started and len(self._looking) < WAITING_MAX else 0
        if number:
            self._looking.append((number, then))
        else:
            then()

    def answered(self, answer: Answer, now: float) -> None:
        """Ignores the answers to others."""
        if self.started:
            self._value.answered(answer, now)
            self._look()

    def tick(self, now: float) -> None:
        """To be called at ``wake_at``."""
        if self.started:
            self._value.tick(now)

    def wake_at(self) -> float:
        """0.0: nothing waits for a time."""
        return self._value.wake_at() if self.started else 0.0

    def take_requests(self) -> list[Request]:
        return self._value.take_requests()

    def is_read(self) -> bool:
        """Whether etcd has answered, perhaps with a document that this node cannot read."""
        return self._seen is not None

    def is_idle(self) -> bool:
        """No change is under way, or waits."""
        return self._current is None and not self._waiting

    def _look(self) -> None:
        value = self._value
        if value.known and value.value != self._seen:
            self._seen = value.value
            self._read(value.value)
        while self._looking and self._looking[0][0] <= value.reads:
            self._looking.popleft()[1]()
        outcome = value.take_outcome()
        if outcome is None:
            return
        change, self._current = self._current, None
        assert change is not None
        if outcome == OVERTAKEN and self._tries < TRIES_MAX:
            self._waiting.appendleft(change)
        else:
            self._tries = 0
            if outcome == DONE:
                change.done()
            else:
                change.failed(outcome)
        self._go_on()

    def _read(self, document: bytes) -> None:
        try:
            found = decode_document(document)
        except ValueError as error:  # of a later version: what is known stays, and nothing is changed
            self.known = False
            self.problem = str(error)
            return
        if found.number < self._number:
            found, self.problem = RegistryDocument(), OLDER
        self.entries, self.nodes = found.streams, found.nodes
        self.filters = {name: entry.filters() for name, entry in found.streams.items()}
        self._number = max(found.number, self._number)
        self.known = True
        self.changes += 1

    def _go_on(self) -> None:
        while self._current is None and self._waiting:
            change = self._waiting.popleft()
            if not self.known:
                change.failed(AWAY)
                continue
            wanted = change.decide(self.entries)
            if wanted is None:
                continue
            document = encode_document(wanted, change.nodes(self.nodes), self._number + 1)
            refusal = FULL if len(document) > BYTES_MAX else self._value.propose(document)
            if refusal:
                change.failed(refusal)
                continue
            self._current = change
            self._tries += 1


class RegistryDocument(msgspec.Struct, forbid_unknown_fields=True):
    streams: dict[str, StreamEntry] = {}
    nodes: dict[str, int] = {}
    number: int = 0


def encode_document(entries: Entries, nodes: dict[str, int], number: int) -> bytes:
    return msgspec.json.encode({"streams": dict(sorted(entries.items())), "nodes": nodes, "number": number})


def decode_document(document: bytes) -> RegistryDocument:
    """b"": there are no entries. Raises ValueError."""
    try:
        return msgspec.json.decode(document, type=RegistryDocument) if document else RegistryDocument()
    except msgspec.MsgspecError as error:
        raise ValueError(f"the registry of streams in etcd cannot be read: {error}") from error
