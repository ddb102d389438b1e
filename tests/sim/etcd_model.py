"""etcd as the simulated world has it: one store, a session for each node, faults, and virtual time.

What a real client sees is what a session says: answers in any order, each once; an error for what is not known;
changes in order, from the revision that was asked for, cut and resumed; leases that run out. Everything that could
come one way or the other is drawn from the random source it is given, so a seed replays it.

- A request takes a drawn time to get there, the answer a drawn time back. What is under way when a node crashes still
  arrives.
- Without a leader nothing is done. A request that comes then is refused, or lies there and is done when there is one
  again, be it after its sender gave it up. Answers that were under way when the leader went may be lost, though what
  they tell of is done.
- Without a leader no lease runs out; a new one gives each its whole time again.
- A cut node reaches nothing. Its lease runs on.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial
from itertools import count
from random import Random
from typing import Final

from tests.sim.etcd_store import LeaseNotFound, Store

from starlingmq.cluster.etcd.etcd_requests import (
    Answer,
    EtcdState,
    KeyChange,
    LeaseLost,
    Request,
    Revoke,
    Txn,
    TxnAnswer,
    Watch,
    WatchEvent,
    WatchLost,
)

DELAY_MAX: Final = 0.005  # seconds, one way
NO_LEADER: Final = "no leader"


class Stream:
    """One watch of a session. ``told``: from where a client resumes; ``sent``: what etcd has ready, None when cut."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.told = watch.revision
        self.sent: int | None = None


class Session:
    """One start of one node. A new session of the node ends the one before, but not what that has under way."""

    def __init__(self, model: EtcdModel, node: str) -> None:
        self.node = node
        self.lease = 0  # 0: none was granted yet
        self.open = True
        self.streams: dict[bytes, Stream] = {}
        self.unanswered: dict[int, str] = {}  # serial -> tag
        self.available: bool | None = None  # as it was told last
        self._model = model

    def request(self, request: Request, now: float) -> None:
        """Takes it; answers come out of ``EtcdModel.advance``."""
        if isinstance(request, Watch):
            self._model.watch(self, request, now)
        elif isinstance(request, Revoke):
            self._model.revoke(self, request, now)
        else:
            self._model.submit(self, request, now)

    def keep_alive(self, now: float) -> None:
        """To be called each third of ``lease_ttl`` while the node runs; the first call has the lease granted."""
        self._model.keep_alive(self, now)

    def close(self, now: float, revoke: bool = True) -> None:
        """The node ends, in peace (its lease is given back, if etcd can be reached) or not."""
        self._model.close(self, now, revoke)


class EtcdModel:
    def __init__(self, random: Random, lease_ttl: float = 10.0, request_timeout: float = 3.0) -> None:
        self.store = Store()
        self.lease_ttl = lease_ttl
        self.request_timeout = request_timeout
        self._random = random
        self.late = 0.0  # seconds that answers take longer than watch events
        self._serials = count(1)
        self._agenda: list[tuple[float, int, Callable[[float], None]]] = []
        self._sessions: dict[str, Session] = {}
        self._cut: set[str] = set()
        self._leader = True
        self._term = 1
        self._parked: list[Callable[[float], None]] = []  # requests without a leader; the next leader does them
        self._expiry: dict[int, float] = {}  # lease -> when
        self._answers: list[tuple[str, Answer]] = []

    # The interface of the nodes.

    def session(self, node: str) -> Session:
        """A start of ``node``: its former session ends without a word."""
        if node in self._sessions:
            self._sessions[node].open = False
        session = self._sessions[node] = Session(self, node)
        return session

    def submit(self, session: Session, txn: Txn, now: float) -> None:
        serial = next(self._serials)
        session.unanswered[serial] = txn.tag
        self._later(now, partial(self._arrive, session, serial, txn))
        self._at(now + self.request_timeout, partial(self._give_up, session, serial))

    def watch(self, session: Session, watch: Watch, now: float) -> None:
        stream = session.streams[watch.prefix] = Stream(watch)
        self._later(now, partial(self._tell, session, stream))

    def revoke(self, session: Session, revoke: Revoke, now: float) -> None:
        self._later(now, partial(self._arrive_to_revoke, session, revoke.lease))

    def keep_alive(self, session: Session, now: float) -> None:
        if not self._reachable(session):
            self._state(session, False, "keep-alive: no answer")
        elif session.open:
            self._state(session, True)
            self._extend(session, now)

    def close(self, session: Session, now: float, revoke: bool) -> None:
        session.open = False
        if revoke and self._reachable(session):
            self._end_lease(session.lease, now)

    # The interface of the world.

    def advance(self, now: float) -> list[tuple[str, Answer]]:
        """Do everything due until ``now``, in order; returns the answers since the last call."""
        while self._agenda and self._agenda[0][0] <= now:
            at, _, act = heapq.heappop(self._agenda)
            act(at)
        answers, self._answers = self._answers, []
        return answers

    def next_due(self) -> float | None:
        """When ``advance`` has something to do, if nothing is asked meanwhile."""
        return 0.0 if self._answers else self._agenda[0][0] if self._agenda else None

    def lose_leader(self, now: float, seconds: float) -> None:
        """No leader for so long, or no etcd at all: a client cannot tell the two apart."""
        self._leader = False
        self._term += 1
        term = self._term
        for session in self._sessions.values():
            self._break(session)
        self._at(now + seconds, partial(self._elect, term))

    def compact(self, revision: int | None = None) -> None:
        self.store.compact(self.store.revision if revision is None else revision)

    def expire_lease(self, node: str, now: float) -> None:
        """As if its keep-alives had not come for too long."""
        self._end_lease(self._sessions[node].lease, now)

    def cut(self, node: str) -> None:
        self._cut.add(node)
        if node in self._sessions:
            self._break(self._sessions[node])

    def heal(self, node: str, now: float) -> None:
        self._cut.discard(node)
        if node in self._sessions:
            self._resume(self._sessions[node], now)

    # Requests.

    def _arrive(self, session: Session, serial: int, txn: Txn, now: float) -> None:
        if session.node in self._cut:
            return  # it is given up in time
        if self._leader:
            self._execute(session, serial, txn, now)
        elif self._random.random() < 0.5:
            self._parked.append(partial(self._execute, session, serial, txn))
        else:
            refused = TxnAnswer(txn.tag, False, 0, error=NO_LEADER)
            self._later(now, partial(self._answer, session, serial, refused, self._term))

    def _arrive_to_revoke(self, session: Session, lease: int, now: float) -> None:
        if self._reachable(session) and lease in self.store.leases:
            self._end_lease(lease, now)

    def _execute(self, session: Session, serial: int, txn: Txn, now: float) -> None:
        if not session.lease and session.open:
            self._extend(session, now)
        before = self.store.revision
        try:
            answer = self.store.transact(txn, session.lease)
        except LeaseNotFound:
            answer = TxnAnswer(txn.tag, False, 0, error="the lease has run out")
            if session.open and self._reachable(session):
                self._extend(session, now)
        term = self._term
        self._later(now, partial(self._answer, session, serial, answer, term), self.late)
        self._changed(before, now)

    def _answer(self, session: Session, serial: int, answer: TxnAnswer, term: int, now: float) -> None:
        lost = session.node in self._cut or (term != self._term and self._random.random() < 0.5)
        if lost or session.unanswered.pop(serial, None) is None:
            return
        self._say(session, answer)
        self._state(session, answer.error != NO_LEADER, answer.error)

    def _give_up(self, session: Session, serial: int, now: float) -> None:
        tag = session.unanswered.pop(serial, None)
        if tag is not None:
            reason = f"no answer within {self.request_timeout:g} s"
            self._say(session, TxnAnswer(tag, False, 0, error=reason))
            self._state(session, False, reason)

    # Watches.

    def _changed(self, before: int, now: float) -> None:
        if self.store.revision == before:
            return
        for session in self._sessions.values():
            self._resume(session, now)

    def _tell(self, session: Session, stream: Stream, now: float) -> None:
        prefix = stream.watch.prefix
        if not session.open or session.streams.get(prefix) is not stream:
            return
        if not self._reachable(session):
            return  # told when it is healed, or when there is a leader again
        start = stream.told if stream.sent is None else stream.sent
        if start < self.store.compacted:
            del session.streams[prefix]
            self._say(session, WatchLost(prefix, self.store.compacted))
            return
        entries = self.store.changes_since(prefix, start)
        if len(entries) > 1 and self._random.random() < 0.5:  # etcd may tell it in several pieces
            entries = entries[: self._random.randint(1, len(entries) - 1)]
            stream.sent = entries[-1][0] + 1
            self._later(now, partial(self._tell, session, stream))
        else:
            stream.sent = max(start, self.store.revision + 1)
        if entries:
            stream.told = entries[-1][0] + 1
            changes: tuple[KeyChange, ...] = sum((changes for _, changes in entries), ())
            self._say(session, WatchEvent(prefix, entries[-1][0], changes))
        elif self._random.random() < 0.1:  # a progress notification: the client learns that it has missed nothing
            stream.told = stream.sent

    def _resume(self, session: Session, now: float) -> None:
        for stream in session.streams.values():
            self._later(now, partial(self._tell, session, stream))

    def _break(self, session: Session) -> None:
        for stream in session.streams.values():
            stream.sent = None

    # Leases.

    def _extend(self, session: Session, now: float) -> None:
        first = session.lease == 0
        if session.lease not in self.store.leases:
            session.lease = next(self._serials)
            self.store.leases[session.lease] = set()
            if not first:
                self._say(session, LeaseLost(session.lease))
        self._prolong(session.lease, now)

    def _prolong(self, lease: int, now: float) -> None:
        self._expiry[lease] = now + self.lease_ttl
        self._at(now + self.lease_ttl, partial(self._expire, lease))

    def _expire(self, lease: int, now: float) -> None:
        if self._leader and self._expiry.get(lease, now + 1) <= now:
            self._end_lease(lease, now)

    def _end_lease(self, lease: int, now: float) -> None:
        before = self.store.revision
        self._expiry.pop(lease, None)
        self.store.end_lease(lease)
        self._changed(before, now)

    # The rest.

    def _elect(self, term: int, now: float) -> None:
        if term != self._term:
            return  # it was lost again meanwhile
        self._leader = True
        for lease in list(self._expiry):
            self._prolong(lease, now)
        parked, self._parked = self._parked, []
        self._random.shuffle(parked)
        for act in parked:
            act(now)
        for session in self._sessions.values():
            self._resume(session, now)

    def _reachable(self, session: Session) -> bool:
        return self._leader and session.node not in self._cut

    def _say(self, session: Session, answer: Answer) -> None:
        if session.open:
            self._answers.append((session.node, answer))

    def _state(self, session: Session, available: bool, reason: str = "") -> None:
        if session.available is not available:
            session.available = available
            self._say(session, EtcdState(available, "" if available else reason))

    def _later(self, now: float, act: Callable[[float], None], late: float = 0.0) -> None:
        self._at(now + late + self._random.uniform(0, DELAY_MAX), act)

    def _at(self, when: float, act: Callable[[float], None]) -> None:
        heapq.heappush(self._agenda, (when, next(self._serials), act))
