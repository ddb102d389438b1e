"""Registered, joining and online nodes; how this node joins and leaves, and removes other nodes (forget).

Invariant: at most one transaction is outstanding. Each transaction reads everything again at its end, and the next step
follows from what was read, not from what was attempted. A transaction with an unknown outcome therefore needs no
special case: the state is read again, and each transaction compares the keys that it depends on, so that a late one has
no effect.

        starting ----> joining ----> registered ----> left           leave
            |                            |
            +---- is registered ---------+----------> forgotten      an operator at another node removed this one
                                         +----------> replaced       another process has started under this name

Every transaction that changes the set of registered nodes compares ``members/changed`` and writes it; its revision is
the revision of the membership. A node is added or forgotten only once a majority has known the membership that this
replaces for a ``member_timeout``, or all know it. Why no two separate majorities serve: those of memberships that are
one change apart share a node. A node that serves by the older one relies on a node that knows the newer one, and has by
then heard of the newer one from it, or lost the connection to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from msgspec import structs

from starlingmq.cluster.copies.copy_marks import CopyMarks
from starlingmq.cluster.etcd.etcd_requests import (
    Answer,
    EtcdState,
    LeaseLost,
    Request,
    Txn,
    TxnAnswer,
    Watch,
    WatchEvent,
    WatchLost,
)
from starlingmq.cluster.etcd.etcd_retry import EtcdRetry
from starlingmq.cluster.links.control_frames import MemberInfo, Membership
from starlingmq.cluster.membership.member_changes import MemberChange, Seen, differences
from starlingmq.cluster.membership.member_transactions import READ, MemberTransaction, MemberTransactions
from starlingmq.cluster.membership.registry import Keys, Registry

RETRY_SECONDS: Final = 0.25  # after an error of etcd
RETRY_SECONDS_MAX: Final = 4.0
SETTLE_SECONDS: Final = 10.0

LATER: Final = "; try again in a moment"  # the end of a temporary refusal
ENDED: Final = ("left", "forgotten", "replaced")
State = Literal["new", "starting", "joining", "registered", "left", "forgotten", "replaced"]


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The result of a ``forget``; ``error`` "": it is done."""

    name: str
    error: str


class Members:
    state: State
    problem: str  # "" or one line: why this node cannot join, or what is wrong with the content of etcd
    membership: Membership
    joining: tuple[MemberInfo, ...]  # by number, without registered ones
    online: dict[int, int]  # number -> incarnation

    def __init__(
        self,
        cluster: str,
        name: str,
        address: str,
        version: str,
        settle: float = SETTLE_SECONDS,
        last_incarnation: int = 0,
        first: int = 0,
        marks: CopyMarks | None = None,
    ) -> None:
        """``settle``: seconds after which no node relies any longer on earlier statements of others; above
        ``member_timeout``. ``last_incarnation``: the previous incarnation of this node, under whatever number, so that
        its message ids continue. ``first``: the first number that its data directory was used with; 0: the directory is
        new. ``marks``: None: this process stores no copies."""
        self.state = "new"
        self.problem = ""
        self.membership = Membership(0, ())
        self.joining = ()
        self.online = {}
        self._name = name
        self._address = address
        self._version = version
        self._settle = settle
        self._last = last_incarnation
        self._first = first
        self._keys = Keys(cluster)
        self._registry = Registry(self._keys)
        self._transactions = MemberTransactions(self._registry, name, marks or CopyMarks(cluster, False))
        self._adopted = Membership(0, ())
        self._me: MemberInfo | None = None
        self._was_registered = False
        self._trying: MemberInfo | None = None  # this node, if the outstanding transaction succeeds
        self._maybe: list[MemberInfo] = []  # this node, if a transaction of unknown outcome has succeeded
        self._leaving = False
        self._forgetting: MemberInfo | None = None
        self._forced = False
        self._available = True
        self._unavailable = ""
        self._watching = False
        self._stale = True  # etcd has to be read before anything else
        self._lease_lost = False
        self._tag = ""  # of the outstanding transaction
        self._tags = 0
        self._retry = EtcdRetry(RETRY_SECONDS, RETRY_SECONDS_MAX)  # ``at`` 0.0: nothing waits for a retry
        self._heard: frozenset[int] = frozenset()
        self._known_at = -1.0  # when a majority was first known to have the membership; -1: not yet
        self._requests: list[Request] = []
        self._changes: list[MemberChange] = []
        self._results: list[Forgotten] = []

    # Inputs

    def start(self, now: float) -> None:
        self.state = "starting"
        self._step(now)

    def answered(self, answer: Answer, now: float) -> None:
        if isinstance(answer, TxnAnswer):
            if answer.tag != self._tag:
                return  # the answer to another module's request
            self._tag = ""
            self._take(answer, now)
        elif isinstance(answer, WatchEvent):
            if answer.prefix != self._keys.members or not self._watching:
                return
            self._registry.apply(answer.changes)
        elif isinstance(answer, WatchLost):
            if answer.prefix != self._keys.members:
                return
            self._watching = False
            self._stale = True
        elif isinstance(answer, LeaseLost):
            self._lease_lost = True
        else:
            assert isinstance(answer, EtcdState)
            self._available = answer.available
            self._unavailable = answer.reason
            self._retry.at = 0.0
            self._retry.succeeded()
        self._look(now)

    def adopt(self, membership: Membership, now: float) -> None:
        """The membership of a peer. It counts if it is newer than the one from etcd."""
        if membership.revision > self._adopted.revision:
            self._adopted = membership
            self._look(now)

    def known_by(self, numbers: frozenset[int], now: float) -> None:
        """``numbers``: connected nodes that are known to have this ``membership``
        (``Quorum.nodes_with_membership`` of its revision)."""
        self._heard = numbers
        if self._known_at < 0 and self._knowing() > len(self.membership.members) // 2:
            self._known_at = now
        self._step(now)

    def leave(self, now: float) -> None:
        """Leaves the cluster, once nothing is owed to other nodes. Done when ``state`` is "left". While etcd is
        unavailable, leaving waits."""
        self._leaving = True
        if self.state == "new":
            self._end("left", "")
        self._step(now)

    def forget(self, name: str, majority: bool, force: bool, now: float) -> str:
        """Removes a node that will not return. Returns "" (``take_results`` then reports the result) or the reason for
        a refusal. ``majority``: this node has its quorum. ``force``: removes it even if the other nodes may not know;
        if they are alive, this can split the cluster in two."""
        member = self._registry.parsed.registered.get(name)
        if self.state != "registered":
            return f"this node cannot forget {name}, because it is not a member itself"
        if name == self._name:
            return "a node cannot forget itself; let it leave"
        if member is None:
            return f"there is no member {name}"
        if not self._available:
            return f"etcd cannot be reached ({self._unavailable}); try again when it is back"
        if self._forgetting is not None:
            return f"{self._forgetting.name} is being forgotten{LATER}"
        if not force:
            if name in self._registry.parsed.online:
                return f"{name} is online; let it leave, or stop it (after a crash: wait until its lease expires)"
            if not majority:
                return "no majority of the cluster is connected; use --force if the others will not return"
            if not self._is_known(now):
                return f"not all nodes know the last membership change yet{LATER}"
        self._forgetting = member
        self._forced = force
        self._step(now)
        return ""

    def tick(self, now: float) -> None:
        """To be called at ``wake_at``."""
        self._step(now)

    # Outputs

    @property
    def me(self) -> MemberInfo | None:
        """This node; None until its number is known."""
        return self._me

    @property
    def available(self) -> bool:
        """Whether etcd answers, as far as is known."""
        return self._available

    def take_requests(self) -> list[Request]:
        requests, self._requests = self._requests, []
        return requests

    def take_changes(self) -> list[MemberChange]:
        changes, self._changes = self._changes, []
        return changes

    def take_results(self) -> list[Forgotten]:
        results, self._results = self._results, []
        return results

    def wake_at(self) -> float:
        """When to call ``tick``; 0.0: nothing waits for a time."""
        if self._tag or not self._available or self.state in ENDED:
            return 0.0
        if self._retry.at:
            return self._retry.at
        if self.state == "joining" and self._known_at >= 0:
            current = self.membership.revision == self._registry.parsed.membership.revision
            if current and self._has_majority():
                return self._known_at + self._settle
        return 0.0

    # State

    def _take(self, answer: TxnAnswer, now: float) -> None:
        trying, self._trying = self._trying, None
        if answer.error:
            if trying is not None:
                self._maybe.append(trying)
            self._stale = True
            self._retry.failed(now)
            return
        members, number = answer.found[-2:]
        self._retry.succeeded()
        self._registry.load(members, number, answer.revision)
        self._stale = False
        if not self._watching:
            self._watching = True
            self._requests.append(Watch(self._keys.members, answer.revision + 1))
        if answer.succeeded and trying is not None:
            self._become(trying)
            self._lease_lost = False
        if not self._was_registered:
            self._recognize()
        if self._forgetting is not None and "forget" in answer.tag and not self._is_gone(self._forgetting):
            self._conclude(self._transactions.refused(self._forced))

    def _recognize(self) -> None:
        """Checks whether a transaction of unknown outcome has succeeded."""
        for member in self._maybe:
            known = self._registry.parsed.registered if member.registered else self._registry.parsed.joining
            if known.get(self._name) == member:
                self._become(member)

    def _become(self, me: MemberInfo) -> None:
        self._me = me
        self._was_registered = self._was_registered or me.registered

    def _is_gone(self, member: MemberInfo) -> bool:
        there = self._registry.parsed.registered.get(member.name)
        return there is None or there.number != member.number

    def _conclude(self, error: str) -> None:
        """Ends an outstanding ``forget``."""
        if self._forgetting is not None:
            name, self._forgetting = self._forgetting.name, None
            self._results.append(Forgotten(name, error and f"{name} was not forgotten: {error}"))

    def _look(self, now: float) -> None:
        """Records what has changed, and takes the next step."""
        parsed = self._registry.parsed
        newest = parsed.membership if parsed.membership.revision >= self._adopted.revision else self._adopted
        if newest.revision != self.membership.revision:
            self._heard = frozenset()
            self._known_at = -1.0
        online = {}
        for member in newest.members:
            incarnation = parsed.online.get(member.name, 0)
            if incarnation:
                online[member.number] = incarnation
        numbers = frozenset([member.number for member in newest.members])
        joining = sorted(parsed.joining.values(), key=lambda member: member.number)
        seen = Seen(newest, tuple([member for member in joining if member.number not in numbers]), online)
        self._changes += differences(Seen(self.membership, self.joining, self.online), seen)
        self.membership, self.joining, self.online = seen.membership, seen.joining, seen.online
        if self._registry.problem:
            self.problem = self._registry.problem
        elif self.problem and self._me is not None and self.state in ("joining", "registered"):
            self.problem = ""
        self._find_me()
        self._step(now)

    def _find_me(self) -> None:
        """Derives the state of this node from the keys in etcd."""
        me = self._me
        if me is None or self.state in ENDED:
            return
        found = [member for member in self.membership.members if member.name == self._name]
        if found and found[0].number == me.number:
            self._was_registered = True
            if found[0].incarnation == me.incarnation:
                self.state = "registered"
                self._me = structs.replace(me, registered=True)
            elif found[0].incarnation > me.incarnation:
                self._end("replaced", f"another process has started as {self._name}; this one leaves the cluster")
        elif self._was_registered:
            if self._leaving:
                self._end("left", "")
            else:
                self._end("forgotten", "this node was forgotten by the cluster; restart it to join as a new node")
        elif found:
            self._end("replaced", f"another node has joined as {self._name}; give this node another node.name")
        else:
            self.state = "joining"

    def _end(self, state: State, problem: str) -> None:
        self.state = state
        self.problem = problem
        self._conclude(problem or "this node is leaving")

    # Next step

    def _step(self, now: float) -> None:
        if self.state == "new" or self.state in ENDED or self._tag or not self._available:
            return
        if now < self._retry.at:
            return
        self._retry.at = 0.0
        if self._stale:
            self._send(READ)
        elif self._registry.problem:
            return  # the members cannot be determined
        elif self._me is None:
            self._enter()
        elif self.membership.revision > self._registry.parsed.membership.revision:
            return  # peers know a newer membership than was read: the watch will deliver it
        elif self._leaving:
            self._go(self._me)
        elif self.state == "joining":
            self._join(self._me, now)
        elif self._lease_lost or self.online.get(self._me.number) != self._me.incarnation:
            self._come_online(self._me)
        elif self._forgetting is not None:
            self._do_forget(self._forgetting, now)

    def _send(self, transaction: MemberTransaction) -> None:
        self._tags += 1
        self._tag = f"members {transaction.name} {self._tags}"
        read = self._keys.read
        self._requests.append(Txn(self._tag, transaction.compares, (*transaction.operations, *read), read))

    def _enter(self) -> None:
        """Takes a node number, or a new incarnation of the number that this node has."""
        parsed, name = self._registry.parsed, self._name
        if self._leaving and name not in parsed.registered:
            self._end("left", "")
            return
        registered = parsed.registered.get(name)
        there = registered or parsed.joining.get(name)
        if there is not None and there.address != self._address and (name in parsed.online or registered is None):
            self.problem = f"a node named {name} is online at {there.address}; give this node another node.name"
            return  # if that node is dead, its key will expire
        self.problem = ""
        incarnation = max(there.incarnation if there else 0, self._last) + 1
        if there is None:
            first, since = self._first, incarnation if self._first else 0
            number = self._registry.number
            me = MemberInfo(name, number, incarnation, self._address, self._version, False, first, since)
        else:
            me = structs.replace(there, incarnation=incarnation, address=self._address, version=self._version)
        self._trying = me
        self._send(self._transactions.enter(me, there is None))

    def _join(self, me: MemberInfo, now: float) -> None:
        there = self._registry.parsed.joining.get(self._name)
        if there is not None and (there.number, there.incarnation) != (me.number, me.incarnation):
            self._end("replaced", f"another process has started as {self._name}; this one leaves the cluster")
        elif (
            there is None or self._lease_lost
        ):  # nodes that saw the key missing have forgotten what this node told them
            self._trying = structs.replace(me, incarnation=me.incarnation + 1)
            self._send(self._transactions.join(self._trying))
        elif self._is_known(now):
            self._send(self._transactions.register(me))

    def _come_online(self, me: MemberInfo) -> None:
        self._trying = me
        self._send(self._transactions.come_online(me))

    def _go(self, me: MemberInfo) -> None:
        if self.state != "joining":
            self._send(self._transactions.leave(me))
        elif self._registry.parsed.joining.get(self._name) is None:
            self._end("left", "")
        else:
            self._send(self._transactions.stop_joining(me))

    def _do_forget(self, member: MemberInfo, now: float) -> None:
        if self._is_gone(member):
            self._conclude("")
        elif not self._forced and not self._is_known(now):
            self._conclude("the membership has changed meanwhile; try again")
        else:
            self._send(self._transactions.forget(member, self._forced))

    # Knowledge of the membership

    def _knowing(self) -> int:
        """The number of registered members that are known to have the current membership."""
        me = self._me.number if self._me is not None else 0
        return sum(1 for member in self.membership.members if member.number == me or member.number in self._heard)

    def _has_majority(self) -> bool:
        members = len(self.membership.members)
        return not members or self._knowing() > members // 2

    def _is_known(self, now: float) -> bool:
        """Whether the membership may be replaced: all members know it, or those that do not can no longer rely on the
        old one."""
        if self._knowing() == len(self.membership.members):
            return True
        return self._has_majority() and self._known_at >= 0 and now >= self._known_at + self._settle
