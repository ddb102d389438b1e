"""Wills of the whole cluster: each is published once at most, by its own node or in the place of one that is gone.

::

    own node     nothing <--> REGISTERED --due--> FIRING --it is ours--> published, stored, deleted
                                   |
    others                         '--> SETTLED: taken by who leads, because its node is gone and it is due;
                                        or cancelled, because its client is back elsewhere in time

Every step is a change of one key that holds only while the key is as it was: so of two that want the same will one gets
it. Whoever has it says so before it publishes, and remembers by what it stores in the same turn that it has. What it
had taken when it died it publishes when it is back: nobody else can know whether it had.

Pure: what the core has and answers of etcd in; requests, and calls of ``core.ending``, out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final

from starlingmq.cluster.amendments import Amendment, Amendments
from starlingmq.cluster.etcd import Answer, Get, KeyValue, Request, Txn, TxnAnswer, Watch, WatchEvent, WatchLost
from starlingmq.cluster.foreign_wills import ForeignWills
from starlingmq.cluster.stored import Stored
from starlingmq.cluster.will_values import (
    FIRING,
    SETTLED,
    TAKEN,
    RegisteredWill,
    WillValueError,
    decode_will,
    encode_will,
    registered,
    will_from,
    wills_of,
)
from starlingmq.config import ClusterConfig
from starlingmq.core.broker import BrokerState
from starlingmq.core.ready import FACT_DELETE, FACT_PUT, SESSION_PUT, Write
from starlingmq.core.session import Session
from starlingmq.core.will import Will
from starlingmq.core.wills import Wills

FACTS: Final = b"w"  # what the keys of our facts begin with
DUE: Final = FACTS + b"d"  # id, client id: a will that is due
PUBLISHED: Final = FACTS + b"p"  # a name: what was taken in the place of another node and is published
PAGE: Final = 500  # keys read at once
NAMES_PER_TURN: Final = 200  # looked at for each of the reasons that there are
RETRY_SECONDS: Final = 0.5


class Entry:
    """What is known of the will of one client id of this node, or of one that was taken from another."""

    __slots__ = ("due", "known", "published", "revision")

    def __init__(self) -> None:
        self.due: list[Will] = []  # to be published, the oldest first
        self.known: RegisteredWill | None = None  # what etcd has, as of ``revision`` (0: nothing)
        self.revision = 0
        self.published = False  # of what was taken


class ClusterWills:
    fired: int  # wills of this node that it has published
    taken: int  # of other nodes

    def __init__(
        self, broker: BrokerState, config: ClusterConfig, gone: Callable[[int], bool], leading: Callable[[], bool]
    ) -> None:
        """``gone`` tells whether a node's clients are to be taken for gone."""
        self.fired = self.taken = 0
        self._broker = broker
        self._ctx = broker.ctx
        self._cluster = config.name
        self._wills = self._ctx.wills = Wills()
        self._stored = Stored(broker)
        self._amendments = Amendments("wills amend")
        self.foreign = ForeignWills(config.name, gone, leading, config.member_timeout)
        self._keys = b""
        self._me = 0
        self._entries: dict[str, Entry] = {}
        self._due: dict[str, None] = {}  # those that have something due
        self._ready: dict[str, None] = {}  # of those the ones of which something is known that was not before
        self._unchecked: deque[str] = deque()  # names that may not have been read, all of which must be looked at
        self._steps: deque[tuple[int, str]] = deque()  # when so much is stored, look at that one
        self._count = 0
        self._read = False  # all that etcd has of us
        self._page = ""
        self._pages = 0
        self._after = b""
        self._retry_at = 0.0
        self._seen: dict[str, None] = {}  # names that were read
        self._requests: list[Request] = []
        self._notices: list[str] = []

    # A life begins

    def enter(self, me: int, facts: dict[bytes, bytes]) -> None:
        """Our number is known. ``facts`` are ours of an earlier life."""
        self._me = me
        self._keys = wills_of(self._cluster, me)
        self.foreign.enter(me)
        for session in self._ctx.sessions.values():
            if session.will is not None:
                if session.will.id == 0:  # of the time before there was a cluster
                    self._ctx.sequence += 1
                    session.will.id = self._ctx.sequence
                    self._write_session(session)
                self._wills.change(session.client_id)
        for key, fact in facts.items():
            if key.startswith(DUE):
                self._entry(key[len(DUE) + 8 :].decode()).due.append(will_from(decode_will(fact)))
            elif key.startswith(PUBLISHED):
                self._entry(key[len(PUBLISHED) :].decode()).published = True
        for name, entry in self._entries.items():
            entry.due.sort(key=lambda will: will.id)
            self._have_due(name)
            self._wills.change(name)

    def _have_due(self, name: str) -> None:
        self._due[name] = self._ready[name] = None

    def give_up(self, facts: dict[bytes, bytes]) -> None:
        """We have been taken out of the cluster since: who leads has published what we had. Before ``enter``."""
        for key in facts:
            self._fact(key, None)
        for name, entry in self._entries.items():
            for will in entry.due:
                self._fact(_due_key(name, will), None)
        self._entries.clear()
        self._due.clear()
        self._ready.clear()

    def _entry(self, name: str) -> Entry:
        entry = self._entries.get(name)
        if entry is None:
            entry = self._entries[name] = Entry()
        return entry

    def registered(self, now: float) -> None:
        """We are a member: read what etcd has of us. May be called again."""
        if not self._read and not self._page and not self._unchecked and now >= self._retry_at:
            self._pages += 1
            self._page = f"wills page {self._pages}"
            self._requests.append(Txn(self._page, (), (Get(self._keys, prefix=True, limit=PAGE, after=self._after),)))

    # What etcd says

    def answered(self, answer: Answer, now: float) -> None:
        """Answers to others are not looked at."""
        if isinstance(answer, TxnAnswer):
            if self._page and answer.tag == self._page:
                self._page = ""
                self._took_page(answer, now)
                return
            amended = self._amendments.answered(answer, now)
            if amended is None:
                self.foreign.answered(answer, now)
                return
            for done in amended.done:
                if done.key.startswith(self._keys):
                    self._know(done.key, done.value, amended.revision if done.value is not None else 0)
                elif done.value is not None:
                    self._took(done, amended.revision)
            for void, revision, value in amended.void:
                if void.key.startswith(self._keys):
                    self._know(void.key, value or None, revision)
                else:
                    self._took_not(void, revision, value)
        elif isinstance(answer, WatchEvent):
            if self._keys and answer.prefix == self._keys:
                for change in answer.changes:
                    entry = self._entries.get(change.key[len(self._keys) :].decode())
                    if entry is None or change.mod_revision > entry.revision:
                        self._know(change.key, change.value, change.mod_revision if change.value is not None else 0)
        elif isinstance(answer, WatchLost) and self._keys and answer.prefix == self._keys:
            self._read = False
            self._after = b""
            self._seen = {}
            self._unchecked.clear()

    def _took_page(self, answer: TxnAnswer, now: float) -> None:
        if answer.error:
            self._retry_at = now + RETRY_SECONDS
            return
        if not self._after:
            self._requests.append(Watch(self._keys, answer.revision + 1))
        found: tuple[KeyValue, ...] = answer.found[0]
        for kv in found:
            self._seen[kv.key[len(self._keys) :].decode()] = None
            self._know(kv.key, kv.value, kv.mod_revision)
        if len(found) == PAGE:
            self._after = found[-1].key
            self.registered(now)
            return
        self._unchecked = deque(self._entries)
        self._check()

    def _check(self) -> None:
        """What was not read is not there. When all is looked at that is known too."""
        for _ in range(min(NAMES_PER_TURN, len(self._unchecked))):
            name = self._unchecked.popleft()
            entry = self._entries.get(name)
            if entry is not None and name not in self._seen and not self._under_way(name):
                entry.known, entry.revision = None, 0
        if not self._unchecked:
            self._read = True
            self._seen = {}
            self._ready.update(self._due)
            self._wills.changed.update(dict.fromkeys(self._entries))

    def _know(self, key: bytes, data: bytes | None, revision: int) -> None:
        """That is what etcd has."""
        name = key[len(self._keys) :].decode()
        entry = self._entry(name)
        entry.revision = revision
        entry.known = None
        if data is not None:
            try:
                entry.known = decode_will(data)
            except WillValueError as error:
                self._notices.append(f"{name!r}: {error}")
        known = entry.known
        if known is not None and known.state == SETTLED:
            self._settled(name, entry, known.id)
        if name in self._due:
            self._ready[name] = None
        self._look_later(name)

    def _settled(self, name: str, entry: Entry, identity: int) -> None:
        """Another node has taken this will, or cancelled it."""
        for will in [will for will in entry.due if will.id == identity]:
            entry.due.remove(will)
            self._fact(_due_key(name, will), None)
        session = self._ctx.sessions.get(name)
        if session is not None and session.will is not None and session.will.id == identity:
            session.will = None
            session.will_at = 0.0
            self._write_session(session)

    def _write_session(self, session: Session) -> None:
        if session.kept and self._ctx.recording:
            self._ctx.write(Write(SESSION_PUT, session))

    def _fact(self, key: bytes, value: RegisteredWill | None) -> None:
        if self._ctx.recording:
            data = b"" if value is None else encode_will(value)
            self._ctx.write(Write(FACT_DELETE if value is None else FACT_PUT, topic=key, value=data))

    # What the core has

    def remember(self, now: float) -> None:
        """What is due is stored in the turn in which its session forgets it, whether our number is known or not."""
        due, self._wills.due = self._wills.due, []
        for each in due:
            self._entry(each.client_id).due.append(each.will)
            self._have_due(each.client_id)
            self._fact(_due_key(each.client_id, each.will), registered(each.will, 0, now))

    def turn(self, now: float) -> None:
        """Before the core's Ready is taken."""
        wills = self._wills
        self.remember(now)
        if self._unchecked:
            self._check()
        for name in list(islice(wills.changed, NAMES_PER_TURN)):
            del wills.changed[name]
            self._look_later(name)
        for name in list(islice(self._ready, NAMES_PER_TURN)):
            del self._ready[name]
            entry = self._entries.get(name)
            if entry is not None and entry.due and self._may_publish(name, entry):
                self._publish(name, entry)
            if entry is None or not entry.due:
                self._due.pop(name, None)
        self.foreign.turn(now)
        for amendment in self.foreign.take_amendments():
            self._amendments.add(amendment)

    def _look_later(self, name: str) -> None:
        """When what this turn writes is stored."""
        self._count += 1
        if not self._steps:
            self._stored.mark(self._count)
        elif self._steps[-1][1] == name:
            return
        else:
            self._stored.mark(self._count)
        self._steps.append((self._count, name))

    def _may_publish(self, name: str, entry: Entry) -> bool:
        known = entry.known
        if not self._read or known is None or self._under_way(name):
            return False
        if name.startswith(TAKEN):
            return not entry.published
        return known.state == FIRING and known.id == entry.due[0].id

    def _publish(self, name: str, entry: Entry) -> None:
        """It is ours: nobody else will. What is stored of it says in the same turn that it is done."""
        will = entry.due.pop(0)
        if name.startswith(TAKEN):
            entry.published = True
            self.taken += 1
            self._fact(_published_key(name), registered(will, 0, 0.0))
        else:
            self.fired += 1
            self._fact(_due_key(name, will), None)
        self._broker.ending.publish_will(will)
        self._look_later(name)

    # Steps

    def _under_way(self, name: str) -> bool:
        return self._keys + name.encode() in self._amendments

    def _step(self, name: str) -> None:
        """Bring etcd from what it has to what it is to have, by one change."""
        entry = self._entries.get(name)
        session = self._ctx.sessions.get(name)
        will = None if session is None else session.will
        if entry is None:
            if will is None:
                return
            entry = self._entry(name)
        if not self._read or self._under_way(name):
            return  # whose answer will have us look again
        known = entry.known
        if name.startswith(TAKEN):
            self._step_taken(name, entry)
        elif entry.due:
            first = entry.due[0]
            if known is None or known.state != FIRING or known.id != first.id:
                self._amend(name, entry, RegisteredWill(FIRING, first.id))
        elif will is not None and session is not None:
            due_at = session.will_at if session.client is None else 0.0
            value = registered(will, session.expiry, due_at, session.epoch)
            if known != value:
                self._amend(name, entry, value)
        elif entry.revision:
            self._amend(name, entry, None)
        else:
            del self._entries[name]

    def _step_taken(self, name: str, entry: Entry) -> None:
        if entry.published and entry.revision:
            self._amend(name, entry, None)
        elif entry.published:
            self._fact(_published_key(name), None)
            del self._entries[name]
        elif entry.known is not None and not entry.due:
            entry.due.append(will_from(entry.known))
            self._have_due(name)
        elif entry.known is None:
            del self._entries[name]

    def _amend(self, name: str, entry: Entry, value: RegisteredWill | None) -> None:
        data = None if value is None else encode_will(value)
        self._amendments.add(Amendment(self._keys + name.encode(), entry.revision, data))

    # In the place of other nodes

    def _took(self, done: Amendment, revision: int) -> None:
        """What is of another node is settled now; if it is to be published, that is ours to do."""
        self.foreign.settled(done.key, revision)
        for put in done.also:
            self._know(put.key, put.value, revision)

    def _took_not(self, void: Amendment, revision: int, value: bytes) -> None:
        self.foreign.know(void.key, value or None, revision)

    def cancelled(self, client_id: str, node: int, epoch: int, user: str | None) -> bool:
        """Whether what a client may have left at a node that can not be asked is settled, now that it is back here,
        since ``epoch``, as ``user``: to be asked until it is."""
        return self.foreign.cancelled(client_id, node, epoch, user)

    # What goes out

    def take_requests(self, now: float) -> list[Request]:
        """After the turn's frames were handed on: what is stored by then may be told."""
        if self._me == 0:
            return []
        for _ in range(NAMES_PER_TURN):
            if not self._has_steps():
                break
            self._step(self._steps.popleft()[1])
        requests, self._requests = self._requests, []
        return [*requests, *self._amendments.take_requests(now), *self.foreign.take_requests(now)]

    def busy(self) -> bool:
        """Whether something waits to be stored, or to be published."""
        return bool(self._steps or self._due)

    def take_notices(self) -> list[str]:
        notices, self._notices = self._notices, []
        return [*notices, *self.foreign.take_notices()]

    def _has_steps(self) -> bool:
        return len(self._steps) != 0 and self._steps[0][0] <= self._stored.reached

    def pending(self) -> bool:
        """Whether there is something to be done in a next turn, without waiting for anything."""
        if self._me == 0:
            return False
        return bool(self._ready or self._unchecked or self._wills.changed) or self._has_steps()

    def wake_at(self) -> float:
        """When ``turn`` is to be called though nothing happens; 0.0: never."""
        soonest = [self._amendments.wake_at(), self.foreign.wake_at()]
        if not self._read and not self._page:
            soonest.append(self._retry_at)
        return min([when for when in soonest if when], default=0.0)


def _due_key(name: str, will: Will) -> bytes:
    return DUE + will.id.to_bytes(8, "big") + name.encode()


def _published_key(name: str) -> bytes:
    return PUBLISHED + name.encode()
