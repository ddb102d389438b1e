"""Wills of the whole cluster: each is published at most once, by its own node or by another one if that node is gone.

``will_states`` has the states of the record that the leader of the share and its deputy have of each will, and their
laws. If the client's earlier will still has its record at this node, a claim registers nothing: the record is changed
once that will is published or cancelled, and CONNACK waits for it.

Invariants:

- The leader and the deputy of the share have the record of a will before its client gets CONNACK, unless this node has
  published an earlier will whose retained message is not in etcd: then soon after that is. If others settle it before
  CONNACK, the CONNECT is refused. The record of a CONNECT that is refused or given up is deleted.
- A will is published at most once, and within ``takeover_timeout`` of the time at which its node requested the change
  that allows it. After that the node has to request it again: a client that is back at another node may have had the
  will settled.
- When another node has published the will of a client that is connected here, its connection is closed.
- A will is never published after messages that its client publishes over a newer connection. A CONNECT waits for
  earlier wills at this node, and for all that nodes have taken, and settles those at other nodes. So other nodes must
  find the key of this node (``OwnershipPorts.needed``) as long as it has a will, and a FIRING key or a taken will is
  deleted only once the will's retained message is in etcd.

The parts, each of which reports to this module:

- ``will_table``: the wills, by name, and the names that have work.
- ``will_registration``: the records of this node's wills.
- ``taken_wills``: wills of other nodes that this node has taken.
- ``will_settlement``: wills that a client which is back has left at other nodes.
- ``taken_away``: clients whose wills other nodes have taken.
- ``lost_wills``: wills of nodes that are gone.

Pure: the core's wills and answers of a ``WillStore`` in; requests to it, and calls of ``core.connect.ending``, out.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from math import inf
from typing import Final

from starlingmq.cluster.etcd.etcd_requests import Request
from starlingmq.cluster.takeover.owner_store import Claimed, OwnerStore
from starlingmq.cluster.takeover.ownership import Ownership
from starlingmq.cluster.takeover.transfer_frames import CANCELLED
from starlingmq.cluster.view.subsystem import NodeLife, Subsystem, sooner
from starlingmq.cluster.wills.lost_wills import LostWills
from starlingmq.cluster.wills.taken_away import TakenAway
from starlingmq.cluster.wills.taken_wills import TakenWills
from starlingmq.cluster.wills.will_entry import WillEntry
from starlingmq.cluster.wills.will_records import (
    ARMED,
    FIRING,
    TAKEN,
    RegisteredWill,
    encode_will,
    is_taken,
    registered,
)
from starlingmq.cluster.wills.will_registration import WillRegistration
from starlingmq.cluster.wills.will_settlement import WillSettlements
from starlingmq.cluster.wills.will_states import WillEvent, WillState, state_of
from starlingmq.cluster.wills.will_store import WillStore
from starlingmq.cluster.wills.will_table import FACTS, WillTable
from starlingmq.config.settings import ClusterConfig
from starlingmq.core.broker import BrokerState
from starlingmq.core.context.ready import SESSION_PUT, Write
from starlingmq.core.session.connection import CLOSED
from starlingmq.core.session.session import Session, Will
from starlingmq.wire.reasons import Reason

NAMES_PER_TURN: Final = 200  # handled for each of the possible reasons
WILL_TAKEN: Final = "the other nodes took this node for gone and published the will of the client"


class ClusterWills(Subsystem):
    fired: int  # wills of this node that it has published
    fact_prefix = FACTS

    def __init__(
        self,
        broker: BrokerState,
        config: ClusterConfig,
        ownership: Ownership,
        owners: OwnerStore,
        store: WillStore,
        gone: Callable[[int], bool],
        connected: Callable[[int], bool],
        written: Callable[[], int],
    ) -> None:
        """``gone``: whether a node's clients count as gone. ``written``: the sequence up to which this node's retained
        messages are in etcd."""
        self.fired = 0
        self._written = written
        self._owners = owners
        self._connected = connected
        self._seconds = seconds = config.takeover_timeout
        self._store = store
        self._broker = broker
        self._ctx = broker.ctx
        self._wills = self._ctx.cluster.share_wills()
        self.table = WillTable(broker, ownership)
        self.registration = WillRegistration(self.table, self._wills, seconds, self._settled, store)
        self.taken = TakenWills(self.table, self.registration)
        self.lost = LostWills(store, gone, connected, config.member_timeout, self.taken.take)
        self.settling = WillSettlements(
            store, seconds, connected, self.taken.is_unpublished, self.taken.is_published, self.taken.take
        )
        self._taken_away = TakenAway(self.settling, config.takeover_limit)
        self._me = 0
        # client ids that another node asked for while the records of this node were not read -> its epoch
        self._doubtful: dict[str, int] = {}
        self._unwritten: dict[str, None] = {}  # names whose ``sequence`` is not in etcd yet

    # Start

    def enter(self, life: NodeLife, now: float) -> None:
        me, facts = life.me.number, life.facts(FACTS)
        if life.renumbered:
            self.give_up(facts)
            facts = {}
        self._me = me
        self.registration.enter(me)
        self.lost.enter(me)
        self.settling.enter(me)
        for session in self._ctx.sessions.values():
            if session.will is not None:
                if session.will.id == 0:  # from before this node was part of a cluster
                    session.will.id = self._ctx.next_sequence()
                    self._write_session(session)
                self._wills.change(session.client_id)
        self.table.restore(facts)
        for name, entry in self.table.entries.items():
            if entry.due and not name.startswith(TAKEN):
                # Their clients may be at other nodes already, which wait for this node.
                self.table.hold(name, self._seconds, 0)
            self.table.have_due(name)
            self._wills.change(name)

    def set_members(self, numbers: dict[int, None]) -> None:
        self.lost.set_members(numbers)

    def give_up(self, facts: dict[bytes, bytes]) -> None:
        """This node was removed from the cluster: the leader has published its wills."""
        self.table.give_up(facts)

    def held_wills(self, client_id: str) -> list[tuple[bytes, int, bytes]]:
        """Key, revision and value of each record of the client id's wills that this node has."""
        found: list[tuple[bytes, int, bytes]] = []
        for name in self.table.names_of(client_id):
            entry = self.table.entry(name)
            if entry.known is not None and entry.revision:
                found.append((b"%d/%b" % (self._me, name.encode()), entry.revision, encode_will(entry.known)))
        return found

    def newest_epoch(self, client_id: str) -> int:
        """The newest epoch in which the client has left a will here; 0: none."""
        session, entry = self._ctx.sessions.get(client_id), self.table.get(client_id)
        wills = [will for name, will in self._wills.due if name == client_id]
        wills += [] if entry is None else entry.due
        if session is not None and session.will is not None:
            wills.append(session.will)
        return max([will.epoch for will in wills], default=0)

    # Records

    def _settled(self, name: str, entry: WillEntry, settled: RegisteredWill) -> None:
        """Another node has taken this will, or cancelled it."""
        self._remember(self._ctx.now)  # the will may have become due in this turn
        if settled.taker not in (0, self._me) and not name.startswith(TAKEN):
            self._taken_away.note(name, self._ctx.now)
        for will in [will for will in entry.due if _is_settled(will, settled)]:
            entry.due.remove(will)
            self.table.drop_due(name, will)
        brought = self._brought(name)
        if brought is not None and (brought.id == settled.id or 0 < brought.epoch < settled.epoch):
            self._broker.connecting.not_claimed(name, Reason.SERVER_BUSY, WILL_TAKEN, "will_taken")
        session = self._ctx.sessions.get(name)
        if session is not None and session.will is not None and _is_settled(session.will, settled):
            session.will = None
            session.will_at = 0.0
            self._write_session(session)
            if settled.taker and session.client is not None:
                # Other nodes considered this node gone. The client's next CONNECT determines its owner.
                self._broker.ending.fail(session.client, Reason.USE_ANOTHER_SERVER, WILL_TAKEN, "will_taken")

    def _write_session(self, session: Session) -> None:
        if session.kept and self._ctx.recording:
            self._ctx.write(Write(SESSION_PUT, session))

    # The core's wills

    def begin_turn(self, now: float) -> None:
        self.settling.now = now
        self._remember(now)

    def _remember(self, now: float) -> None:
        """A due will is stored in the turn in which its session forgets it, whether or not this node's number is
        known."""
        due, self._wills.due = self._wills.due, []
        for client_id, will in due:
            self.table.add_due(client_id, will, now)

    def unpublished(self, client_id: str) -> bool:
        """Whether a will of an earlier connection is still to be published here, or its settlement to be confirmed, or
        a copy of one: here, by this incarnation or an earlier one, or by another node, which has taken it. Or the will
        of the CONNECT that waits is not registered yet."""
        self._remember(self._ctx.now)
        entry = self.table.get(client_id)
        if entry is None or not entry.due:
            if self._taken_away.is_unpublished(client_id, self._ctx.now):
                return True
            return self._has_unpublished_copy(client_id) or not self._is_armed(client_id)
        if client_id in self.table.held:
            self.table.end_hold(client_id)
        return True

    def claimed(self, client_id: str, claimed: Claimed) -> None:
        """The claim of a CONNECT is answered."""
        records = self._store.decoded(claimed.wills)
        copies = [each for each in records if is_taken(each.key)]
        if any(state_of(each.value) is WillState.ARMED for each in copies):
            self._taken_away.note(client_id, self._ctx.now)
        elif not copies:
            self.settling.told(claimed.epoch, records)
        self.registration.armed(client_id, claimed.epoch if claimed.armed else 0)

    # The will of a CONNECT that waits

    def _brought(self, client_id: str) -> RegisteredWill | None:
        """The record of the will that a CONNECT brings which waits; its epoch is 0 until that is known."""
        claims = self._ctx.cluster.claims
        claim = None if claims is None else claims.waiting.get(client_id)
        if claim is None or claim.will is None or claim.client.state == CLOSED:
            return None
        return registered(claim.will, claim.expiry, 0.0)

    def arm(self, client_id: str) -> bytes:
        """The record that the claim of the CONNECT registers; empty: it brings no will, or one that has to wait until
        the record of an earlier will is gone."""
        self._remember(self._ctx.now)
        value, session, entry = self._brought(client_id), self._ctx.sessions.get(client_id), self.table.get(client_id)
        if value is None or (session is not None and session.will is not None):
            return b""
        if entry is not None and (entry.due or entry.known is None or entry.known.id != value.id):
            return b""
        if self.registration.is_under_way(client_id):
            return b""
        self.registration.arm(client_id, value)
        return encode_will(value)

    def _look_at_claim(self, client_id: str) -> None:
        """Takes back the will that an outstanding claim brings, if its CONNECT does not wait any more."""
        value = self.registration.under_way(client_id)
        if value is None:
            return
        brought, session = self._brought(client_id), self._ctx.sessions.get(client_id)
        served = session is not None and session.will is not None and session.will.id == value.id
        if not served and (brought is None or brought.id != value.id):
            self._owners.leave_out_will(client_id)
            self.registration.give_up(client_id)

    def _is_armed(self, client_id: str) -> bool:
        """Whether the will of the CONNECT that waits is registered, or is not waited for: such a CONNECT is refused, or
        the record is still that of an earlier will whose retained message is not in etcd."""
        value, session, entry = self._brought(client_id), self._ctx.sessions.get(client_id), self.table.get(client_id)
        if value is None or (session is not None and session.will is not None):
            return True
        return entry is not None and (entry.known == value or entry.sequence > self._written())

    def leave(self, client_id: str, node: int, epoch: int) -> tuple[bool, int]:
        """The client is at that node now, since ``epoch``, which settles the due wills: they are left to it.

        Returns whether that node has to look at this node's records, and the id of the last will that is due, which is
        not published before that node has settled it, or is lost; CANCELLED: none is due, or one is published, and its
        key is deleted soon; 0: only the records tell."""
        pending, entry = self.pending_of(client_id), self.table.get(client_id)
        if not pending and not self.registration.is_complete():
            self._doubtful[client_id] = max(epoch, self._doubtful.get(client_id, 0))
            return True, CANCELLED if entry is not None and entry.lived else 0
        if not pending:
            is_left = self.registration.is_under_way(client_id) or (entry is not None and entry.revision != 0)
            return is_left or client_id in self._taken_away, CANCELLED
        if not self.table.entry(client_id).due:
            return True, CANCELLED
        self.table.hold(client_id, self._seconds, node)
        self._wills.change(client_id)
        return True, pending

    def _has_unpublished_copy(self, client_id: str) -> bool:
        names = self.table.names_of(client_id)
        return any(name.startswith(TAKEN) and self.taken.is_unpublished(name) for name in names)

    def take_cleared(self, has: Callable[[str], bool]) -> list[tuple[str, int]]:
        """Client ids, with epochs of other nodes, of which this node, having read its records, has no will after all.
        ``has``: whether it has anything else; if not, its owner key is not needed."""
        if not self._doubtful or not self.registration.is_complete():
            return []
        cleared = [(name, epoch) for name, epoch in self._doubtful.items() if not has(name)]
        for client_id, _ in cleared:
            del self._doubtful[client_id]
        return cleared

    def settle(
        self, client_id: str, node: int, epoch: int, user: str | None, clean: bool, will: int, since: float
    ) -> bool:
        """As ``WillSettlements.settle``."""
        return self.settling.settle(client_id, node, epoch, user, clean, will, since)

    def node_restarted(self, node: int) -> None:
        """That node was restarted: the wills that it had to settle before the restart are no longer left to it."""
        for name in self.table.held:
            entry = self.table.entry(name)
            if entry.held_by == node:
                entry.held_by = 0

    def pending_of(self, client_id: str) -> int:
        """The id of the last due will, or of the one that this node is publishing according to its record; 0: none."""
        self._remember(self._ctx.now)
        entry = self.table.get(client_id)
        if entry is None:
            return 0
        if entry.due:
            return entry.due[-1].id
        return entry.known.id if entry.known is not None and entry.known.state == FIRING else 0

    # A turn

    def turn(self, now: float) -> None:
        wills, table = self._wills, self.table
        self._remember(now)
        self.registration.turn()
        for name in list(islice(wills.changed, NAMES_PER_TURN)):
            del wills.changed[name]
            self._look_at_claim(name)
            table.look_later(name)
        for name in table.take_ready(NAMES_PER_TURN):
            self._look_at_due(name, now)
        for name in [name for name in table.held if not table.entry(name).is_held(now, self._connected)]:
            table.end_hold(name)
        if self._unwritten:
            self._look_at_written()
        self._taken_away.turn(now)
        self.settling.turn(now)
        self.lost.turn(now)

    def _look_at_due(self, name: str, now: float) -> None:
        entry = self.table.get(name)
        if entry is not None and entry.due and self._may_publish(name, entry, now):
            if now < entry.allowed_until:
                self._publish(name, entry)
            else:
                self.table.look_later(name)
        if entry is None or not entry.due:
            self.table.due.pop(name, None)

    def _look_at_written(self) -> None:
        written = self._written()
        for name in [name for name in self._unwritten if not self._is_unwritten(name, written)]:
            del self._unwritten[name]
            self.table.look_later(name)

    def _is_unwritten(self, name: str, written: int) -> bool:
        entry = self.table.get(name)
        return entry is not None and entry.sequence > written

    def _may_publish(self, name: str, entry: WillEntry, now: float) -> bool:
        known = entry.known
        if not self.registration.is_complete() or known is None or self.registration.is_under_way(name):
            return False
        if name.startswith(TAKEN):
            return entry.published != known.id
        return known.state == FIRING and known.id == entry.due[0].id and not entry.is_held(now, self._connected)

    def _publish(self, name: str, entry: WillEntry) -> None:
        """Publishes the will, which its record assigns to this node. The facts stored in the same turn say that it is
        done."""
        will = entry.due.pop(0)
        if name.startswith(TAKEN):
            entry.published = will.id
            self.taken.published += 1
            self.table.note_published(name, will)
        else:
            self.fired += 1
            self.table.drop_due(name, will)
        self._broker.ending.publish_will(will)
        if will.message.retain and self._ctx.cluster.retained is not None:
            entry.sequence = self._ctx.cluster.retained.last
        self.table.look_later(name)

    # Steps

    def _step(self, name: str) -> None:
        """Brings the record to what it should be, by one change."""
        entry = self.table.get(name)
        session = self._ctx.sessions.get(name)
        if entry is None:
            if self._wanted(name, session) is None:
                return
            entry = self.table.entry(name)
        if session is not None and session.will is not None:
            entry.lived = True
        if not self.registration.is_read(name) or self.registration.is_under_way(name):
            return  # its answer leads back here
        if entry.sequence > self._written():
            self._unwritten[name] = None
            if name.startswith(TAKEN):
                self.taken.tell_published(name, entry)
        elif not self.registration.is_complete() and (entry.due or name.startswith(TAKEN)):
            return  # the end of the reading leads back here
        elif name.startswith(TAKEN):
            self.taken.step(name, entry, self._ctx.now)
        elif entry.due:
            self._step_due(name, entry, self._ctx.now)
        else:
            self._step_of_session(name, entry, session)

    def _step_due(self, name: str, entry: WillEntry, now: float) -> None:
        known = entry.known
        if entry.is_held(now, self._connected):
            last = entry.due[-1]
            if known is None or known.state != ARMED or known.id != last.id:
                self.registration.step(name, entry, WillEvent.WANTED, registered(last, 0, now))
            return
        first = entry.due[0]
        if known is None or known.state != FIRING or known.id != first.id or now >= entry.allowed_until:
            self.registration.step(name, entry, WillEvent.FIRES, RegisteredWill(FIRING, first.id, epoch=first.epoch))

    def _step_of_session(self, name: str, entry: WillEntry, session: Session | None) -> None:
        value = self._wanted(name, session)
        if value is None:
            self.registration.step(name, entry, WillEvent.OVER)
        elif entry.known != value:
            self.registration.step(name, entry, WillEvent.WANTED, value)

    def _wanted(self, client_id: str, session: Session | None) -> RegisteredWill | None:
        """The record of the will that the client has here: of its session, or of its CONNECT that waits."""
        if session is not None and session.will is not None:
            due_at = session.will_at if session.client is None else 0.0
            return registered(session.will, session.expiry, due_at)
        value, entry = self._brought(client_id), self.table.get(client_id)
        if value is None or value.epoch:
            return value
        known = None if entry is None else entry.known
        return known if known is not None and known.id == value.id else None

    # Output

    def take_requests(self, now: float) -> list[Request]:
        if self._me == 0:
            return []
        for _ in range(NAMES_PER_TURN):
            if not self.table.has_steps():
                break
            self._step(self.table.next_step())
        self.taken.take_again(now)
        return []

    def has_input(self) -> bool:
        return bool(self._wills.changed or self._wills.due)

    def is_busy(self) -> bool:
        """Whether a will waits to be stored or published."""
        return self.table.is_busy()

    def is_pending(self) -> bool:
        if self._me == 0:
            return False
        if self.table.is_ready() or self.registration.is_pending() or self.lost.is_pending() or self._wills.changed:
            return True
        return self.table.has_steps()

    def wake_at(self, now: float) -> float:
        soonest = sooner(self.lost.wake_at(), self.settling.wake_at())
        for name in self.table.held:
            soonest = sooner(soonest, self.table.entry(name).held_at_most(now))
        return soonest or inf


def _is_settled(will: Will, settled: RegisteredWill) -> bool:
    return (settled.id != 0 and will.id == settled.id) or will.epoch < settled.epoch
