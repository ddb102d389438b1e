"""Wills of the whole cluster: each is published at most once, by its own node or by another one if that node is gone.

::

    own node     nothing <--> REGISTERED --due--> FIRING --confirmed by etcd--> published, stored, deleted
                                   |
    others                         '--> SETTLED: taken by the leader, because its node is gone and it is due;
                                        or taken or cancelled by the node where its client is back (will_settlement)

Every step is a change of one key, and succeeds only if the key is unchanged: of two nodes that want the same will, one
gets it. That node writes so before it publishes, and stores in the same turn that it has published.

The laws:

- A will is published at most once, and within ``takeover_timeout`` of the time at which its node requested the change
  that allows it. After that the node has to request it again: a client that is back at another node may have had the
  will settled.
- When another node has published the will of a client that is connected here, its connection is closed.
- A will is never published after messages that its client publishes over a newer connection. A CONNECT waits for
  earlier wills at this node, and settles those at other nodes. So other nodes must find the key of this node
  (``OwnershipPorts.needed``) as long as it has a will, and a FIRING key is deleted only once the will's retained
  message is in etcd.

Pure: the core's wills and answers of etcd in; requests, and calls of ``core.session.ending``, out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice
from math import inf
from typing import Final

from starlingmq.cluster.durable_tokens import DurableTokens
from starlingmq.cluster.etcd.etcd_cas import CasUpdate, EtcdCas
from starlingmq.cluster.etcd.etcd_requests import (
    Answer,
    Get,
    KeyValue,
    Request,
    Txn,
    TxnAnswer,
    Watch,
    WatchEvent,
    WatchLost,
)
from starlingmq.cluster.subsystem import NodeLife, Subsystem
from starlingmq.cluster.takeover.ownership import Ownership
from starlingmq.cluster.takeover.transfer_frames import CANCELLED
from starlingmq.cluster.wills.leader_wills import LeaderWills
from starlingmq.cluster.wills.will_entry import WillEntry
from starlingmq.cluster.wills.will_records import (
    FIRING,
    REGISTERED,
    SETTLED,
    TAKEN,
    RegisteredWill,
    WillValueError,
    client_of,
    decode_will,
    encode_will,
    registered,
    will_from,
    wills_of,
)
from starlingmq.cluster.wills.will_settlement import WillSettlements
from starlingmq.config.settings import ClusterConfig
from starlingmq.core.broker import BrokerState
from starlingmq.core.ready import FACT_DELETE, FACT_PUT, SESSION_PUT, Write
from starlingmq.core.session.session import Session, Will
from starlingmq.wire.reasons import Reason

FACTS: Final = b"w"  # prefix of the keys of all facts of this module
DUE: Final = FACTS + b"d"  # id, client id: a will that is due
PUBLISHED: Final = FACTS + b"p"  # a name: a will taken from another node and published
PAGE: Final = 500  # keys read at once
CHECKS_PER_TXN: Final = 60
NAMES_PER_TURN: Final = 200  # handled for each of the possible reasons
RETRY_SECONDS: Final = 0.5
WILL_TAKEN: Final = "the other nodes took this node for gone and published the will of the client"


class ClusterWills(Subsystem):
    fired: int  # wills of this node that it has published
    taken: int  # wills of other nodes that this node has published
    lost: int  # not published, because their clients were back before it was known whether they had been published
    fact_prefix = FACTS

    def __init__(
        self,
        broker: BrokerState,
        config: ClusterConfig,
        ownership: Ownership,
        gone: Callable[[int], bool],
        connected: Callable[[int], bool],
        leading: Callable[[], bool],
        written: Callable[[], int],
    ) -> None:
        """``gone``: whether a node's clients count as gone. ``written``: the sequence up to which this node's retained
        messages are in etcd."""
        self.fired = self.taken = self.lost = 0
        self._written = written
        self._connected = connected
        self._ownership = ownership
        self._seconds = config.takeover_timeout
        self._broker = broker
        self._ctx = broker.ctx
        self._cluster = config.name
        self._wills = self._ctx.cluster.share_wills()
        self._stored = DurableTokens(broker)
        self._amendments = EtcdCas("wills amend")
        self.foreign = LeaderWills(config.name, gone, leading, config.member_timeout)
        self.settling = WillSettlements(config.name, config.takeover_timeout, connected, self._is_unpublished)
        self._keys = b""
        self._me = 0
        self._entries: dict[str, WillEntry] = {}
        self._due: dict[str, None] = {}  # those that have something due
        self._ready: dict[str, None] = {}  # those of ``_due`` with news
        self._unchecked: deque[str] = deque()  # names that may be missing in etcd, to be checked
        self._steps: deque[tuple[int, str]] = deque()  # (token, name): to be processed once the token is stored
        self._count = 0
        self._read = False  # everything that etcd has of this node was read
        self._page = ""
        self._pages = 0
        self._after = b""
        self._retry_at = 0.0
        self._seen: dict[str, None] = {}  # names that were read
        self._unwritten: dict[str, None] = {}  # names whose ``sequence`` is not in etcd yet
        self._held: dict[str, None] = {}  # names with ``held_until`` set
        self._taken_of: dict[str, int] = {}  # client id -> number of wills taken from other nodes
        self._to_check: list[str] = []
        self._checking: dict[str, list[str]] = {}  # by tag
        self._checks = 0
        self._requests: list[Request] = []
        self._notices: list[str] = []

    # Start

    def enter(self, life: NodeLife, now: float) -> None:
        me, facts = life.me.number, life.facts(FACTS)
        if life.renumbered:
            self.give_up(facts)
            facts = {}
        self._me = me
        self._keys = wills_of(self._cluster, me)
        self.foreign.enter(me)
        self.settling.enter(me)
        for session in self._ctx.sessions.values():
            if session.will is not None:
                if session.will.id == 0:  # from before this node was part of a cluster
                    session.will.id = self._ctx.next_sequence()
                    self._write_session(session)
                self._wills.change(session.client_id)
        for key, fact in facts.items():
            if key.startswith(DUE):
                self._entry(key[len(DUE) + 8 :].decode()).due.append(will_from(decode_will(fact)))
            elif key.startswith(PUBLISHED):
                self._entry(key[len(PUBLISHED) :].decode()).published = decode_will(fact).id
        for name, entry in self._entries.items():
            entry.due.sort(key=lambda will: will.id)
            if entry.due and not name.startswith(TAKEN):
                self._hold(name, entry, 0)  # their clients may be at other nodes already, which wait for this node
            self._have_due(name)
            self._wills.change(name)

    def _have_due(self, name: str) -> None:
        self._due[name] = self._ready[name] = None

    def set_members(self, numbers: dict[int, None]) -> None:
        self.foreign.set_members(numbers)

    def give_up(self, facts: dict[bytes, bytes]) -> None:
        """This node was removed from the cluster: the leader has published its wills."""
        for key in facts:
            self._fact(key, None)
        for name, entry in self._entries.items():
            for will in entry.due:
                self._fact(_due_key(name, will), None)
        for name in list(self._entries):
            self._forget(name)
        self._due.clear()
        self._ready.clear()

    def _forget(self, name: str) -> None:
        """Nothing of the name is left, here or in etcd."""
        del self._entries[name]
        self._held.pop(name, None)
        client_id = name
        if name.startswith(TAKEN):
            client_id = client_of(name)
            self._taken_of[client_id] -= 1
            if not self._taken_of[client_id]:
                del self._taken_of[client_id]
        if not self.is_known(client_id):
            self._ownership.release_needed(client_id)

    def is_known(self, client_id: str) -> bool:
        """Whether this node has, or has taken, a will of the client id."""
        return client_id in self._entries or client_id in self._taken_of

    def _entry(self, name: str) -> WillEntry:
        entry = self._entries.get(name)
        if entry is None:
            entry = self._entries[name] = WillEntry()
            if name.startswith(TAKEN):
                client_id = client_of(name)
                self._taken_of[client_id] = self._taken_of.get(client_id, 0) + 1
        return entry

    def registered(self, now: float) -> None:
        if not self._read and not self._page and not self._unchecked and now >= self._retry_at:
            self._pages += 1
            self._page = f"wills page {self._pages}"
            self._requests.append(Txn(self._page, (), (Get(self._keys, prefix=True, limit=PAGE, after=self._after),)))

    # Answers of etcd

    def answered(self, answer: Answer, now: float) -> None:
        if isinstance(answer, TxnAnswer):
            if self._page and answer.tag == self._page:
                self._page = ""
                self._took_page(answer, now)
                return
            if self._checked(answer):
                return
            settled = self.settling.answered(answer, now)
            if settled is not None:
                for done in settled.done:
                    self._took_copies(done, settled.revision)
                return
            amended = self._amendments.answered(answer, now)
            if amended is None:
                self.foreign.answered(answer, now)
                return
            for done in amended.done:
                if done.key.startswith(self._keys):
                    self._know(done.key, done.value, amended.revision if done.value is not None else 0, done.sent_at)
                elif done.value is not None:
                    self.foreign.settled(done.key, amended.revision)
                    self._took_copies(done, amended.revision)
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
        """A name that was not read is not in etcd. Once all names are checked, the state is complete."""
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

    def _know(self, key: bytes, data: bytes | None, revision: int, sent_at: float = 0.0) -> None:
        """Takes the record that etcd has. ``sent_at``: when this node requested the change; 0.0: not known to be its
        own."""
        name = key[len(self._keys) :].decode()
        entry = self._entry(name)
        entry.revision = revision
        entry.allowed_until = sent_at + self._seconds if sent_at else 0.0
        entry.known = None
        if data is not None:
            try:
                entry.known = decode_will(data)
            except WillValueError as error:
                self._notices.append(f"{name!r}: {error}")
        known = entry.known
        if known is not None and known.state == SETTLED:
            self._settled(name, entry, known)
        if name in self._due:
            self._ready[name] = None
        self._look_later(name)

    def _settled(self, name: str, entry: WillEntry, settled: RegisteredWill) -> None:
        """Another node has taken this will, or cancelled it."""
        self._remember(self._ctx.now)  # the will may have become due in this turn
        for will in [will for will in entry.due if _is_settled(will, settled)]:
            entry.due.remove(will)
            self._fact(_due_key(name, will), None)
        session = self._ctx.sessions.get(name)
        if session is not None and session.will is not None and _is_settled(session.will, settled):
            session.will = None
            session.will_at = 0.0
            self._write_session(session)
            if settled.taker and session.client is not None:
                # Other nodes considered this node gone. The client's next CONNECT determines its owner.
                self._broker.ending.fail(session.client, Reason.USE_ANOTHER_SERVER, WILL_TAKEN)

    def _write_session(self, session: Session) -> None:
        if session.kept and self._ctx.recording:
            self._ctx.write(Write(SESSION_PUT, session))

    def _fact(self, key: bytes, value: RegisteredWill | None) -> None:
        if self._ctx.recording:
            data = b"" if value is None else encode_will(value)
            self._ctx.write(Write(FACT_DELETE if value is None else FACT_PUT, topic=key, value=data))

    # The core's wills

    def begin_turn(self, now: float) -> None:
        self._remember(now)

    def _remember(self, now: float) -> None:
        """A due will is stored in the turn in which its session forgets it, whether or not this node's number is
        known."""
        due, self._wills.due = self._wills.due, []
        for each in due:
            self._entry(each.client_id).due.append(each.will)
            self._have_due(each.client_id)
            self._fact(_due_key(each.client_id, each.will), registered(each.will, 0, now))

    def unpublished(self, client_id: str) -> bool:
        """Whether a will of an earlier connection is still to be published here, or its settlement to be confirmed."""
        self._remember(self._ctx.now)
        entry = self._entries.get(client_id)
        if entry is None or not entry.due:
            return False
        if client_id in self._held:
            del self._held[client_id]
            entry.held_until, entry.held_by = 0.0, 0
            self._look_later(client_id)
        return True

    def leave(self, client_id: str, node: int) -> int:
        """The client is at that node now, which settles the due wills: they are left to it.

        Returns the id of the last one, which is not published before that node has settled it, or is lost; CANCELLED:
        one is published, and its key is deleted soon; 0: none is due."""
        pending = self.pending_of(client_id)
        if not pending:
            return 0
        entry = self._entry(client_id)
        if not entry.due:
            return CANCELLED
        self._hold(client_id, entry, node)
        self._wills.change(client_id)
        return pending

    def _hold(self, client_id: str, entry: WillEntry, node: int) -> None:
        entry.hold(self._ctx.now, self._seconds, node)
        self._held[client_id] = None

    def reborn(self, node: int) -> None:
        """That node was restarted: what it had to settle before, it settles no more."""
        for name in self._held:
            entry = self._entry(name)
            if entry.held_by == node:
                entry.held_by = 0

    def pending_of(self, client_id: str) -> int:
        """The id of the last due will, or of the one that this node is publishing according to etcd; 0: none."""
        self._remember(self._ctx.now)
        entry = self._entries.get(client_id)
        if entry is None:
            return 0
        if entry.due:
            return entry.due[-1].id
        return entry.known.id if entry.known is not None and entry.known.state == FIRING else 0

    def turn(self, now: float) -> None:
        wills = self._wills
        self._remember(now)
        if self._unchecked:
            self._check()
        for name in list(islice(wills.changed, NAMES_PER_TURN)):
            del wills.changed[name]
            self._look_later(name)
        for name in list(islice(self._ready, NAMES_PER_TURN)):
            del self._ready[name]
            entry = self._entries.get(name)
            if entry is not None and entry.due and self._may_publish(name, entry, now):
                if now < entry.allowed_until:
                    self._publish(name, entry)
                else:
                    self._look_later(name)
            if entry is None or not entry.due:
                self._due.pop(name, None)
        for name in [name for name in self._held if not self._entry(name).is_held(now, self._connected)]:
            del self._held[name]
            self._look_later(name)
        if self._unwritten:
            self._look_at_written()
        self.settling.turn(now)
        self.foreign.turn(now)
        for amendment in self.foreign.take_amendments():
            self._amendments.add(amendment)

    def _look_later(self, name: str) -> None:
        """Processes the name once the writes of this turn are stored."""
        self._count += 1
        if not self._steps:
            self._stored.mark(self._count)
        elif self._steps[-1][1] == name:
            return
        else:
            self._stored.mark(self._count)
        self._steps.append((self._count, name))

    def _look_at_written(self) -> None:
        written = self._written()
        for name in [name for name in self._unwritten if not self._is_unwritten(name, written)]:
            del self._unwritten[name]
            self._look_later(name)

    def _is_unwritten(self, name: str, written: int) -> bool:
        entry = self._entries.get(name)
        return entry is not None and entry.sequence > written

    def _may_publish(self, name: str, entry: WillEntry, now: float) -> bool:
        known = entry.known
        if not self._read or known is None or self._under_way(name):
            return False
        if name.startswith(TAKEN):
            return entry.published != known.id
        return known.state == FIRING and known.id == entry.due[0].id and not entry.is_held(now, self._connected)

    def _publish(self, name: str, entry: WillEntry) -> None:
        """Publishes the will, which etcd has assigned to this node. The facts stored in the same turn say that it is
        done."""
        will = entry.due.pop(0)
        if name.startswith(TAKEN):
            entry.published = will.id
            self.taken += 1
            self._fact(_published_key(name), registered(will, 0, 0.0))
        else:
            self.fired += 1
            self._fact(_due_key(name, will), None)
        self._broker.ending.publish_will(will)
        if will.message.retain and self._ctx.cluster.retained is not None:
            entry.sequence = self._ctx.cluster.retained.last
        self._look_later(name)

    # Steps

    def _under_way(self, name: str) -> bool:
        return self._keys + name.encode() in self._amendments

    def _step(self, name: str) -> None:
        """Brings etcd from its current record to the intended one, by one change."""
        entry = self._entries.get(name)
        session = self._ctx.sessions.get(name)
        will = None if session is None else session.will
        if entry is None:
            if will is None:
                return
            entry = self._entry(name)
        if not self._read or self._under_way(name):
            return  # its answer leads back here
        known, now = entry.known, self._ctx.now
        if entry.sequence > self._written():
            self._unwritten[name] = None
        elif name.startswith(TAKEN):
            self._step_taken(name, entry)
        elif entry.due and entry.is_held(now, self._connected):
            last = entry.due[-1]
            if known is None or known.state != REGISTERED or known.id != last.id:
                self._amend(name, entry, registered(last, 0, now))
        elif entry.due:
            first = entry.due[0]
            if known is None or known.state != FIRING or known.id != first.id or now >= entry.allowed_until:
                self._amend(name, entry, RegisteredWill(FIRING, first.id, epoch=first.epoch))
        elif will is not None and session is not None:
            due_at = session.will_at if session.client is None else 0.0
            value = registered(will, session.expiry, due_at)
            if known != value:
                self._amend(name, entry, value)
        elif entry.revision:
            self._amend(name, entry, None)
        else:
            self._forget(name)

    def _step_taken(self, name: str, entry: WillEntry) -> None:
        known = entry.known
        if known is None:
            if entry.published:
                self._fact(_published_key(name), None)
            self._forget(name)
        elif entry.published == known.id:
            self._amend(name, entry, None)
        elif self._ctx.now < entry.allowed_until:
            if not entry.due:
                entry.due.append(will_from(known))
                self._have_due(name)
        elif entry.checked:
            entry.checked = False
            self._amend(name, entry, known)
        elif name not in self._to_check:
            self._to_check.append(name)

    def _next_checks(self) -> list[Txn]:
        """Wills that were taken, perhaps by an earlier incarnation, and not published in time: checks whether their
        clients have been back since."""
        names, self._to_check = self._to_check[:CHECKS_PER_TXN], self._to_check[CHECKS_PER_TXN:]
        self._checks += 1
        tag = f"wills check {self._checks}"
        self._checking[tag] = names
        keys = [self._ownership.key(client_of(name)) for name in names]
        return [Txn(tag, (), tuple([Get(key, prefix=True) for key in keys]))]

    def _checked(self, answer: TxnAnswer) -> bool:
        names = self._checking.pop(answer.tag, None)
        if names is None:
            return False
        if answer.error:
            self._to_check += names
            return True
        for name, found in zip(names, answer.found, strict=True):
            entry = self._entries.get(name)
            if entry is None or entry.known is None:
                continue
            entry.checked = True
            if self._has_been_back(client_of(name), entry.known.epoch, found):
                self.lost += 1
                entry.due.clear()
                entry.published = entry.known.id
            self._look_later(name)
        return True

    def _has_been_back(self, client_id: str, epoch: int, owners: tuple[KeyValue, ...]) -> bool:
        """Whether the client may have had a CONNACK at another node since ``epoch``. A claim that found the owner key
        of this node gets none as long as the copy in etcd is unchanged."""
        own = self._ownership.key(client_id, self._me)
        since = next((kv.create_revision for kv in owners if kv.key == own), inf)
        return any(kv.key != own and epoch < kv.mod_revision < since for kv in owners)

    def _amend(self, name: str, entry: WillEntry, value: RegisteredWill | None) -> None:
        data = None if value is None else encode_will(value)
        self._amendments.add(CasUpdate(self._keys + name.encode(), entry.revision, data))

    # Wills of other nodes

    def _took_copies(self, done: CasUpdate, revision: int) -> None:
        """Another node's will is settled now. If it has to be published, this node does that."""
        for put in done.also:
            entry = self._entry(put.key[len(self._keys) :].decode())
            entry.due.clear()  # an earlier one, if there is any
            self._know(put.key, put.value, revision, done.sent_at)

    def _is_unpublished(self, name: str) -> bool:
        """Whether this node has taken the will of that name and not published it yet."""
        entry = self._entries.get(name)
        return entry is not None and entry.known is not None and entry.published != entry.known.id

    def _took_not(self, void: CasUpdate, revision: int, value: bytes) -> None:
        self.foreign.know(void.key, value or None, revision)

    # Output

    def take_requests(self, now: float) -> list[Request]:
        if self._me == 0:
            return []
        for _ in range(NAMES_PER_TURN):
            if not self._has_steps():
                break
            self._step(self._steps.popleft()[1])
        requests, self._requests = self._requests, []
        if self._to_check and now >= self._retry_at:
            requests += self._next_checks()
        requests += self._amendments.take_requests(now)
        return [*requests, *self.settling.take_requests(now), *self.foreign.take_requests(now)]

    def has_input(self) -> bool:
        return bool(self._wills.changed or self._wills.due)

    def is_busy(self) -> bool:
        """Whether a will waits to be stored or published."""
        return bool(self._steps or self._due)

    def take_notices(self) -> list[str]:
        notices, self._notices = self._notices, []
        return [*notices, *self.settling.take_notices(), *self.foreign.take_notices()]

    def _has_steps(self) -> bool:
        return len(self._steps) != 0 and self._steps[0][0] <= self._stored.reached

    def is_pending(self) -> bool:
        if self._me == 0:
            return False
        return bool(self._ready or self._unchecked or self._wills.changed) or self._has_steps()

    def wake_at(self, now: float) -> float:
        soonest = [self._amendments.wake_at(), self.foreign.wake_at(), self.settling.wake_at()]
        for name in self._held:
            soonest.append(self._entry(name).held_at_most(now))
        if not self._read and not self._page:
            soonest.append(self._retry_at)
        return min([when for when in soonest if when], default=inf)


def _is_settled(will: Will, settled: RegisteredWill) -> bool:
    return (settled.id != 0 and will.id == settled.id) or will.epoch < settled.epoch


def _due_key(name: str, will: Will) -> bytes:
    return DUE + will.id.to_bytes(8, "big") + name.encode()


def _published_key(name: str) -> bytes:
    return PUBLISHED + name.encode()
