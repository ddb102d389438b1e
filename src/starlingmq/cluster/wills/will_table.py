"""The wills of which this node has to take care, each under its name, and the queues of names that have work.

A name is a client id, for the will of a client of this node; or that of a will taken from another node
(``will_records.taken_name``).

Invariants:

- A name has an entry from its first event until nothing of it is left, here or at the leader. As long as a client id
  has an entry, other nodes find the owner key of this node (``Ownership.release_needed``).
- A due will, and the publication of a taken one, is a stored fact: written in the turn in which it happens.
- A name is processed (``next_step``) only once everything is stored that was written before ``look_later``. So others
  never hear of anything that a crash could undo.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Final

from starlingmq.cluster.takeover.ownership import Ownership
from starlingmq.cluster.view.durable_tokens import DurableTokens
from starlingmq.cluster.wills.will_entry import WillEntry
from starlingmq.cluster.wills.will_records import (
    TAKEN,
    RegisteredWill,
    client_of,
    decode_will,
    encode_will,
    registered,
    will_from,
)
from starlingmq.core.broker import BrokerState
from starlingmq.core.context.ready import FACT_DELETE, FACT_PUT, Write
from starlingmq.core.session.session import Will

FACTS: Final = b"w"  # prefix of the keys of all facts of this package
DUE: Final = FACTS + b"d"  # id, client id: a will that is due
PUBLISHED: Final = FACTS + b"p"  # a name: a will taken from another node and published


class WillTable:
    entries: dict[str, WillEntry]
    due: dict[str, None]  # names that have something due
    held: dict[str, None]  # names whose due wills are left to another node

    def __init__(self, broker: BrokerState, ownership: Ownership) -> None:
        self._ctx = broker.ctx
        self._ownership = ownership
        self.stored = DurableTokens(broker)
        self.entries = {}
        self.due = {}
        self.held = {}
        self._ready: dict[str, None] = {}  # those of ``due`` with news
        self._steps: deque[tuple[int, str]] = deque()  # (token, name): to be processed once the token is stored
        self._count = 0
        self._taken_of: dict[str, dict[str, None]] = {}  # client id -> names of its wills taken from other nodes

    # Entries

    def get(self, name: str) -> WillEntry | None:
        return self.entries.get(name)

    def entry(self, name: str) -> WillEntry:
        entry = self.entries.get(name)
        if entry is None:
            entry = self.entries[name] = WillEntry()
            if name.startswith(TAKEN):
                self._taken_of.setdefault(client_of(name), {})[name] = None
        return entry

    def client_ids(self) -> list[str]:
        """The client ids for which ``is_known`` holds."""
        return [*[name for name in self.entries if not name.startswith(TAKEN)], *self._taken_of]

    def names_of(self, client_id: str) -> list[str]:
        """The names of the client id's wills."""
        own = [client_id] if client_id in self.entries else []
        return [*own, *self._taken_of.get(client_id, ())]

    def is_known(self, client_id: str) -> bool:
        """Whether this node has, or has taken, a will of the client id."""
        return client_id in self.entries or client_id in self._taken_of

    def forget(self, name: str) -> None:
        """Nothing of the name is left, here or at the leader."""
        del self.entries[name]
        self.held.pop(name, None)
        client_id = name
        if name.startswith(TAKEN):
            client_id = client_of(name)
            del self._taken_of[client_id][name]
            if not self._taken_of[client_id]:
                del self._taken_of[client_id]
        if not self.is_known(client_id):
            self._ownership.release_needed(client_id)

    def hold(self, name: str, seconds: float, node: int) -> None:
        """Leaves the due wills of the name to that node (0: it is not known which one)."""
        self.entry(name).hold(self._ctx.now, seconds, node)
        self.held[name] = None

    def end_hold(self, name: str) -> None:
        """This node publishes the due wills of the name itself, even if the other node is connected again."""
        self.entry(name).end_hold()
        del self.held[name]
        self.look_later(name)

    # Facts

    def is_stored(self) -> bool:
        """Whether facts survive this incarnation."""
        return self._ctx.recording

    def restore(self, facts: dict[bytes, bytes]) -> None:
        """Takes the facts that an earlier incarnation has stored."""
        for key, fact in facts.items():
            if key.startswith(DUE):
                self.entry(key[len(DUE) + 8 :].decode()).due.append(will_from(decode_will(fact)))
            elif key.startswith(PUBLISHED):
                self.entry(key[len(PUBLISHED) :].decode()).published = decode_will(fact).id
        for entry in self.entries.values():
            entry.due.sort(key=lambda will: will.id)

    def give_up(self, facts: dict[bytes, bytes]) -> None:
        """Deletes these facts, everything that is due, and all entries."""
        for key in facts:
            self.fact(key, None)
        for name, entry in self.entries.items():
            for will in entry.due:
                self.drop_due(name, will)
        for name in list(self.entries):
            self.forget(name)
        self.due.clear()
        self._ready.clear()

    def add_due(self, name: str, will: Will, now: float) -> None:
        self.entry(name).due.append(will)
        self.have_due(name)
        self.fact(_due_key(name, will), registered(will, 0, now))

    def drop_due(self, name: str, will: Will) -> None:
        """Forgets in the store that the will is due."""
        self.fact(_due_key(name, will), None)

    def note_published(self, name: str, will: Will) -> None:
        """Remembers in the store that the taken will was published."""
        self.fact(PUBLISHED + name.encode(), registered(will, 0, 0.0))

    def drop_published(self, name: str) -> None:
        self.fact(PUBLISHED + name.encode(), None)

    def fact(self, key: bytes, value: RegisteredWill | None) -> None:
        if self._ctx.recording:
            data = b"" if value is None else encode_will(value)
            self._ctx.write(Write(FACT_DELETE if value is None else FACT_PUT, topic=key, value=data))

    # Names with work

    def have_due(self, name: str) -> None:
        self.due[name] = self._ready[name] = None

    def has_news(self, name: str) -> None:
        """There is something new about the name: if it has a due will, see whether it may be published."""
        if name in self.due:
            self._ready[name] = None

    def all_have_news(self) -> None:
        self._ready.update(self.due)

    def is_ready(self) -> bool:
        return len(self._ready) != 0

    def take_ready(self, names_max: int) -> list[str]:
        """The next names with a due will and news."""
        names = list(islice(self._ready, names_max))
        for name in names:
            del self._ready[name]
        return names

    def look_later(self, name: str) -> None:
        """Processes the name once the writes of this turn are stored."""
        self._count += 1
        if self._steps and self._steps[-1][1] == name:
            return
        self.stored.mark(self._count)
        self._steps.append((self._count, name))

    def is_busy(self) -> bool:
        """Whether a will waits to be stored or published."""
        return bool(self._steps or self.due)

    def has_steps(self) -> bool:
        return len(self._steps) != 0 and self._steps[0][0] <= self.stored.reached

    def next_step(self) -> str:
        """The next name to be processed; to be called if ``has_steps``."""
        return self._steps.popleft()[1]


def _due_key(name: str, will: Will) -> bytes:
    return DUE + will.id.to_bytes(8, "big") + name.encode()
