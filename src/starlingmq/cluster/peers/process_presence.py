"""Which processes are there, for ``CopyRoles``: from the clusters of the brokers that are open in this process.

A process is known by the members that it serves: its own one, and those that it took over. While it serves none, the
lease of its key ``copies/nodes/<name>`` tells that it is there; unless it was seen to have ended while it served some,
before others took them over. A process that was only silent may be back soon, with everything that it had.

The law: a process counts as gone when all its members are gone. A member that this process has been connected to in
its present incarnation is gone as ``LostNodes.is_gone`` says. Any other, such as one that starts at the moment, gets
``patience`` seconds. A process that stops on purpose is not gone before its lease has expired, since it usually
returns. Nor is one that has returned, before its records have its new incarnation.

The cluster's leader is one of the open brokers. A process that has had none for ``patience`` seconds acts as leader:
perhaps no broker is open anywhere, because each node waits for its data from another one that is gone. For such a
process a node is gone when its lease has expired.

A successor needs a moment until it has joined as the member that it serves. The loss of that member before says nothing
about the successor: a member counts once it has joined since the generation began.
"""

from __future__ import annotations

from collections.abc import Callable

from starlingmq.cluster.copies.copy_registry import CopyRegistry, StoringNode
from starlingmq.cluster.copies.copy_roles import Presence
from starlingmq.cluster.links.control_frames import MemberInfo
from starlingmq.cluster.peers.lost_nodes import LostNodes
from starlingmq.cluster.view.cluster_view import ClusterView


class MemberPresence:
    """As one open broker sees it."""

    def __init__(self, view: ClusterView, lost_nodes: LostNodes, is_leading: Callable[[], bool]) -> None:
        self.view = view
        self.lost_nodes = lost_nodes
        self.is_leading = is_leading


class ProcessPresence(Presence):
    """``me``: name of this process. ``brokers``: those that are open here and have joined."""

    def __init__(self, me: str, registry: CopyRegistry, patience: float) -> None:
        super().__init__()
        self.brokers: list[MemberPresence] = []
        self._me = me
        self._registry = registry
        self._patience = patience
        self._missing_since: dict[tuple[str, int], float] = {}  # by name and incarnation of a member
        self._met: dict[int, int] = {}  # number of a member -> its incarnation when it was connected last
        self._waiting_since: float | None = None  # no broker is open here since then
        self._former: dict[str, tuple[int, int]] = {}  # origin -> generation, the incarnation of the member before it
        self._last: dict[str, tuple[int, list[MemberInfo]]] = {}  # process -> its incarnation, what it served last
        self._ended: dict[str, int] = {}  # process -> the incarnation that has ended
        self.is_gone = self._is_gone
        self.is_heard = self._is_heard
        self.is_leading = self._is_leading

    def begin_turn(self, now: float) -> None:
        super().begin_turn(now)
        if self.brokers:
            self._waiting_since = None
        elif self._waiting_since is None:
            self._waiting_since = now
        witness = self._witness()
        if witness is None:
            self._former.clear()
            self._met.clear()
            return
        view = witness.view
        incarnations = {member.name: member.incarnation for member in view.members.membership.members}
        for member in view.members.membership.members:
            if view.is_connected(member.number):
                self._met[member.number] = member.incarnation
                self._missing_since.pop((member.name, member.incarnation), None)
        for origin, record in self._registry.records.items():
            known = self._former.get(origin)
            if known is None:
                self._former[origin] = record.generation, 0
            elif known[0] != record.generation:
                self._former[origin] = record.generation, incarnations.get(origin, 0)
        self._look_for_ends(view)

    def _look_for_ends(self, view: ClusterView) -> None:
        quorum, present = view.quorum, view.members.membership.members
        for name, node in self._registry.nodes.items():
            if members := self._served_by(name, view):
                self._last[name] = node.incarnation, members
            incarnation, members = self._last.get(name, (0, []))
            if quorum is None or not members or incarnation != node.incarnation:
                continue
            if all(member in present and quorum.is_dead(member.number) for member in members):
                self._ended[name] = incarnation

    def _is_leading(self) -> bool:
        if self._waiting_since is not None:
            return self.now >= self._waiting_since + self._patience
        return any(each.is_leading() for each in self.brokers)

    def _witness(self) -> MemberPresence | None:
        """The broker that is asked: the leader if it is here."""
        return next((each for each in self.brokers if each.is_leading()), next(iter(self.brokers), None))

    def is_copied(self, view: ClusterView, number: int) -> bool:
        """Whether a process that is there has a copy of the data of that member in step, and serves it or will. One
        that has restarted, and has not confirmed its disk yet, counts until it says that its disk is another one."""
        origin, nodes = view.name_of(number), self._registry.nodes
        record = self._registry.records.get(origin)
        if record is None:
            return False
        able = [name for name in record.in_step if name in nodes and origin not in nodes[name].waiting]
        return any(self._is_heard(name) for name in able)

    def _is_gone(self, name: str) -> bool:
        node = self._registry.nodes.get(name)
        if name == self._me or (node is not None and (node.stopping or self._is_starting(node))):
            return False
        witness = self._witness()
        members = [] if witness is None else self._served_by(name, witness.view)
        if witness is None or not members:
            return node is None or self._has_ended(node)
        return all(self._is_member_gone(witness, member) for member in members)

    def _is_starting(self, node: StoringNode) -> bool:
        """Whether a record has an earlier process of it as server: the members that are gone were those of that one."""
        records = self._registry.records.values()
        return any(each.server == node.name and each.incarnation < node.incarnation for each in records)

    def _is_member_gone(self, witness: MemberPresence, member: MemberInfo) -> bool:
        if not witness.lost_nodes.is_gone(member.number):
            return False
        if self._met.get(member.number) == member.incarnation:
            return True
        since = self._missing_since.setdefault((member.name, member.incarnation), self.now)
        return self.now >= since + self._patience

    def _is_heard(self, name: str) -> bool:
        if name == self._me:
            return True
        witness = self._witness()
        members = [] if witness is None else self._served_by(name, witness.view)
        if witness is None or not members:
            return name in self._registry.nodes and not self._is_gone(name)
        return any(witness.view.is_connected(member.number) for member in members)

    def _has_ended(self, node: StoringNode) -> bool:
        """Whether it is known to have ended. One that a record names as server has not joined yet."""
        serves = any(record.server == node.name for record in self._registry.records.values())
        return not serves and self._ended.get(node.name) == node.incarnation

    def _served_by(self, name: str, view: ClusterView) -> list[MemberInfo]:
        """The members that the process of that name serves, and that have joined since it does."""
        served = {origin for origin, record in self._registry.records.items() if record.server == name}
        return [
            member
            for member in view.members.membership.members
            if member.name in served and member.incarnation > self._former.get(member.name, (0, 0))[1]
        ]
