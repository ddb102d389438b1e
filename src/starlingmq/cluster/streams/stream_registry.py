"""The streams of JetStream in a cluster, by name: home, subjects and settings. One document in etcd, so a name and a
subject belong to one stream, and a stream to one home, whatever nodes do at the same time.

The registry is the truth, and homes follow it: a stream exists once its entry does. A change is decided when its turn
comes, against the entries of then, and again if another node was faster. It is refused while etcd is away, and existing
streams go on.

::

    ask --decide--> nothing to change
                --> new entries --etcd--> done | failed: the outcome is not known, and the entries follow if it was done
                                     `--> another node was faster: decide

Pure: requests out, answers in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from starlingmq.cluster.etcd.etcd_requests import Answer, Request
from starlingmq.cluster.etcd.shared_value import AWAY, DONE, OVERTAKEN, SharedValue

BYTES_MAX: Final = 512 << 10  # of the document
WAITING_MAX: Final = 1000  # changes
TRIES_MAX: Final = 50  # of a change that other nodes overtake
FULL: Final = "the registry of streams is full"
BUSY: Final = "too many changes of streams wait for etcd"


class StreamEntry(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """``home``: the name of a node. ``subjects`` are topic filters, ``config`` is the JSON of the API. ``ending``: it
    is being deleted: its home removes its data, and then the entry."""

    home: str
    subjects: tuple[str, ...]
    config: str
    ending: bool = False

    def filters(self) -> list[bytes]:
        return [each.encode() for each in self.subjects]


Entries = Mapping[str, StreamEntry]


class RegistryChange:
    """A change that a request asks for. One of the other methods ends it, unless ``decide`` returns None."""

    def decide(self, entries: Entries) -> Entries | None:
        """The entries to be written in place of ``entries``; None: there is nothing to write."""
        raise NotImplementedError

    def done(self) -> None:
        """They are written."""
        raise NotImplementedError

    def failed(self, why: str) -> None:
        """They are not, or this node cannot know."""
        raise NotImplementedError


class StreamRegistry:
    entries: dict[str, StreamEntry]
    known: bool  # they have been read
    changes: int  # counts the changes of ``entries``

    def __init__(self, cluster: str) -> None:
        self.entries = {}
        self.known = False
        self.changes = 0
        self.started = False
        self.problem = ""  # with the document, until it is taken
        self._value = SharedValue(f"/starlingmq/{cluster}/jetstream".encode())
        self._seen: bytes | None = None  # the document that ``entries`` were read from
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
            self.entries = decode_entries(document)
        except ValueError as error:  # of a later version: what is known stays, and nothing is changed
            self.known = False
            self.problem = str(error)
            return
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
            document = encode_entries(wanted)
            refusal = FULL if len(document) > BYTES_MAX else self._value.propose(document)
            if refusal:
                change.failed(refusal)
                continue
            self._current = change
            self._tries += 1


def encode_entries(entries: Entries) -> bytes:
    return msgspec.json.encode({"streams": dict(sorted(entries.items()))})


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    streams: dict[str, StreamEntry] = {}


def decode_entries(document: bytes) -> dict[str, StreamEntry]:
    """b"": there are none. Raises ValueError."""
    try:
        return msgspec.json.decode(document, type=_Document).streams if document else {}
    except msgspec.MsgspecError as error:
        raise ValueError(f"the registry of streams in etcd cannot be read: {error}") from error
