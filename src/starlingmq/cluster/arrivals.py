"""One session on its way to this node: who may have had it, what they said, and whose marks are here.

::

    source   WAITING --Head: none--> gone
                |    --Head-------> STREAMING --Passed, done--> gone
                '--- not connected, or too slow: LATE; the same goes on, but nobody waits for it any more

The client goes on when no source is waited for, and the window of the one whose session it is (``best``) is whole. If
all who may have it are late it begins anew, and is not read before every connected node has put its mark: so what it
subscribes to comes after the marks, and what the late ones got before them is what they owe.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from starlingmq.core.client import Client
from starlingmq.core.moving import MARKED, OPEN, UNMARKED
from starlingmq.core.session import Session


class ArrivalValue(msgspec.Struct, array_like=True):
    """As a fact for the store."""

    client_id: str
    epoch: int
    waiting: dict[int, int]
    streaming: dict[int, int]
    marks: list[int]
    best: int
    best_held: int
    owned: int
    session: int  # its number; 0: there is none here


class Arrival:
    session: Session | None  # once there is one here

    def __init__(self, client_id: str, epoch: int, others: dict[int, int], deadline: float) -> None:
        self.client_id = client_id
        self.epoch = epoch
        self.owned = epoch  # the newest one in which this node has owned it since
        self.waiting = dict(others)  # node -> its epoch
        self.streaming: dict[int, int] = {}  # node -> its epoch
        self.late: dict[int, None] = {}
        self.deadline = deadline
        self.best = 0  # node whose session it is
        self.best_held = 0
        self.whole = False
        self.open = False  # the client went on, or would have
        self.version = -1  # of our routes, that who marks must have; -1: to be told, -2: no marks are needed
        self.marks: dict[int, None] = {}
        self.asked: dict[int, float] = {}  # node -> when it was last asked for its mark
        self.passed: dict[int, dict[int, None]] = {}  # source -> nodes
        self.newest = (0, 0)  # the node that owned it last, and when
        self.session = None
        self.held: Client | None = None  # is not read before the marks are here ...
        self.held_until = 0.0  # ... or so long
        self.changed = True  # since it was stored

    def sources(self) -> dict[int, int]:
        return {**self.waiting, **self.streaming}

    def needs_marks(self) -> bool:
        """Whether it matters from where on our own messages count: somebody has, or may have, something of it."""
        return bool(self.streaming) or bool(self.late)

    def gone(self, node: int) -> None:
        """That node has nothing of it (any more)."""
        self.waiting.pop(node, None)
        self.streaming.pop(node, None)
        self.late.pop(node, None)
        if self.best == node:
            self.whole = True
        self.changed = True

    def awaited(self) -> list[int]:
        """Whom the client waits for."""
        found = [node for node in self.waiting if node not in self.late]
        if self.best and not self.whole and self.best not in self.late:
            found.append(self.best)
        return found

    def marked_by(self, nodes: Iterable[int]) -> bool:
        return all(node in self.marks for node in nodes)

    def all_late(self) -> bool:
        return all(node in self.late for node in self.sources())

    def ordered(self, node: int) -> bool:
        """Whether all that came from ``node`` before its mark is here, as far as anybody waits for it."""
        return all(node in self.passed.get(source, {}) for source in self.streaming if source not in self.late)

    def passed_by_all(self, node: int) -> bool:
        """Whether the mark of ``node`` is here, and with all who have something of it."""
        return node in self.marks and all(node in self.passed.get(source, {}) for source in self.streaming)

    def stage(self, node: int) -> int:
        """Of what enters at ``node``, for the session."""
        if not self.sources():
            return OPEN
        if node not in self.marks:
            return UNMARKED
        return OPEN if self.ordered(node) else MARKED

    def value(self) -> ArrivalValue:
        return ArrivalValue(
            self.client_id,
            self.epoch,
            self.waiting,
            self.streaming,
            list(self.marks),
            self.best,
            self.best_held,
            self.owned,
            0 if self.session is None else self.session.number,
        )

    @staticmethod
    def restored(value: ArrivalValue, sessions: dict[int, Session]) -> Arrival:
        """After a start: nobody waits. ``sessions`` are all there are, by number."""
        arrival = Arrival(value.client_id, value.epoch, value.waiting, 0.0)
        arrival.streaming = value.streaming
        arrival.late = dict.fromkeys(arrival.sources())
        arrival.marks = dict.fromkeys(value.marks)
        arrival.best, arrival.best_held, arrival.owned = value.best, value.best_held, value.owned
        arrival.open = arrival.whole = True
        arrival.changed = False
        arrival.newest = (0, value.owned)  # who owned it in between was not stored
        arrival.session = sessions.get(value.session)
        return arrival
