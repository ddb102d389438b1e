"""One session on its way to this node: who may have had it, what they said, and whose marks are here.

::

    source   WAITING --Head: none--> gone
                |    --Head-------> STREAMING --Passed, done--> gone
                '--- not connected, or too slow: LATE; the same goes on, but nobody waits for it any more

The client goes on when no source is waited for, and the window of the one whose session it is (``best``) is whole. If
all who may have it are late, or one that is late may have a later one than the best, it begins anew
(core.session.session_reset). Once it knows, all nodes put their marks, and what it subscribes to comes after those of
the connected ones. What the late ones get before the marks they owe.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from starlingmq.cluster.takeover.transfer_frames import Head, InboundSessionValue, Takeover
from starlingmq.core.session.migration_state import MARKED, OPEN, UNMARKED
from starlingmq.core.session.session import Session

UNVERSIONED: Final = -1


class InboundSession:
    client_id: str
    epoch: int
    owned: int  # the newest epoch in which this node has owned it since
    waiting: dict[int, int]  # node -> its epoch
    streaming: dict[int, int]  # node -> its epoch
    late: dict[int, None]
    willed: dict[int, int]  # those that had a will, with what ``Head.will`` said of it
    settled: dict[int, None]  # late and willed ones that etcd does not let publish it any more
    unreleased: dict[int, int]  # those that have nothing else, and whose keys of that epoch go once they are settled
    best: int  # node whose session it is
    best_held: int  # in which epoch
    whole: bool
    open: bool  # the client went on, or would have
    unsettled: bool  # open without a CONNECT: the wills of its sources were not settled
    version: int  # of our routes, that who marks must have; UNVERSIONED: it is to be told
    discarded: bool  # nothing of it is wanted
    marks: dict[int, None]
    later: dict[int, int]  # nodes whose mark for a later owner is here -> its epoch
    passed: dict[int, dict[int, None]]  # source -> nodes
    newest: tuple[int, int]  # the node that owned it last, and when
    former: dict[bytes, None]  # filters of those who have had it, shared groups left out
    vague: dict[int, None]  # sources that do not know all of these themselves
    user: str | None  # for whom it comes; None: nobody has connected, or sessions are not bound to users
    session: Session | None  # once there is one here
    beginning: bool  # its client begins anew when the marks are here ...
    beginning_until: float  # ... or so much later
    changed: bool  # since it was stored
    finished: bool  # nothing of it is anywhere else

    def __init__(self, client_id: str, epoch: int, others: dict[int, int]) -> None:
        self.client_id = client_id
        self.epoch = epoch
        self.owned = epoch
        self.waiting = dict(others)
        self.streaming = {}
        self.late = {}
        self.willed = {}
        self.settled = {}
        self.unreleased = {}
        self.best = 0
        self.best_held = 0
        self.whole = False
        self.open = False
        self.unsettled = False
        self.version = UNVERSIONED
        self.discarded = False
        self.marks = {}
        self.later = {}
        self.passed = {}
        self.newest = (0, 0)
        self.former = {}
        self.vague = {}
        self.user = None
        self.session = None
        self.beginning = False
        self.beginning_until = 0.0
        self.changed = True
        self.finished = False

    def asking(self) -> Takeover:
        """What former owners are asked once more."""
        return Takeover(self.client_id, self.epoch, self.discarded, False, self.user)

    def sources(self) -> dict[int, int]:
        return {**self.waiting, **self.streaming}

    def has_sources(self) -> bool:
        return len(self.waiting) != 0 or len(self.streaming) != 0

    def needs_marks(self) -> bool:
        """Whether it matters from where on our own messages count: somebody takes, or may take, what is before."""
        session = self.session
        if self.discarded or (session is not None and session.ended):
            return self.has_sources()
        if session is None:
            return False  # nobody here would take what comes after them
        if session.anew and (session.moving is None or not session.moving.aware):
            return False  # its client relies on what they take
        return len(self.streaming) != 0 or len(self.late) != 0 or len(self.former) != 0

    def learn(self, node: int, head: Head) -> None:
        """What that source had subscribed to, and those that it gets something from itself."""
        for granted in head.granted:
            if not granted.whole.startswith(b"$share/"):
                self.former[granted.whole] = None
        self.former.update(dict.fromkeys(head.former))
        if head.unknown:
            self.vague[node] = None
        else:
            self.vague.pop(node, None)
        self.changed = True

    def gone(self, node: int) -> None:
        """That node has nothing of it (any more)."""
        self.waiting.pop(node, None)
        self.streaming.pop(node, None)
        self.late.pop(node, None)
        self.vague.pop(node, None)
        if self.best == node:
            self.whole = True
        self.changed = True

    def unknown(self) -> bool:
        """Whether somebody may have subscribed to what is not in ``former``."""
        return len(self.waiting) != 0 or len(self.vague) != 0

    def awaited(self) -> bool:
        """Whether the client waits for somebody."""
        for node in self.waiting:
            if node not in self.late:
                return True
        return self.best in self.streaming and not self.whole and self.best not in self.late

    def marked_by(self, nodes: Iterable[int]) -> bool:
        return all(node in self.marks for node in nodes)

    def all_late(self) -> bool:
        return all(node in self.late for node in (*self.waiting, *self.streaming))

    def wanted(self) -> bool:
        """Whether who wants the session from here has to wait: it goes on when it could be served here."""
        return not self.discarded and self.awaited()

    def over(self, members: Iterable[int]) -> bool:
        """Nobody has anything of it, nor will what comes to both be mistaken for what comes to us alone."""
        if self.has_sources():
            return False
        return self.session is None or self.session.ended or len(self.former) == 0 or self.marked_by(members)

    def ordered(self, node: int) -> bool:
        """Whether all that came from ``node`` before its mark is here, as far as anybody waits for it."""
        for source in (*self.waiting, *self.streaming):
            if source not in self.late and node not in self.passed.get(source, {}):
                return False
        return True

    def stage(self, node: int) -> int:
        """Of what enters at ``node``, for the session."""
        if node in self.marks:
            return OPEN if self.ordered(node) else MARKED
        return UNMARKED if self.has_sources() or self.former else OPEN

    def value(self) -> InboundSessionValue:
        return InboundSessionValue(
            self.client_id,
            self.epoch,
            self.waiting,
            self.streaming,
            list(self.marks),
            self.best,
            self.best_held,
            self.owned,
            0 if self.session is None else self.session.number,
            self.open and not self.unsettled,
            list(self.former),
            list(self.vague),
            self.discarded,
            self.later,
            self.user,
            self.whole,
        )

    @staticmethod
    def restored(value: InboundSessionValue, sessions: dict[int, Session]) -> InboundSession:
        """After a start. ``sessions`` are all there are, by number."""
        arrival = InboundSession(value.client_id, value.epoch, value.waiting)
        arrival.streaming = value.streaming
        arrival.session = sessions.get(value.session)
        opened = value.open and arrival.session is not None  # else nobody has been told anything
        if opened:
            arrival.late = dict.fromkeys(arrival.sources())
        arrival.marks = dict.fromkeys(value.marks)
        arrival.best, arrival.best_held, arrival.owned = value.best, value.best_held, value.owned
        arrival.discarded = value.discarded
        arrival.later = value.later
        arrival.user = value.user
        arrival.open = opened or value.discarded
        arrival.whole = arrival.open or value.whole
        arrival.unsettled = value.discarded and not value.open
        arrival.willed = dict.fromkeys(arrival.sources(), 0)
        arrival.former = dict.fromkeys(value.former)
        arrival.vague = dict.fromkeys(value.vague)
        arrival.changed = False
        arrival.newest = (0, value.owned)  # who owned it in between was not stored
        return arrival
