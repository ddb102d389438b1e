"""Copies as a subsystem of ``ClusterState``: tells ``CopyRoles`` which processes are heard, and gives it its turns.

Absent with ``cluster.copies: 1``. The shell has ``CopyRoles`` before this node's own broker is open, because the record
decides whether it may be opened; it drives it itself until then, and again after the broker is closed.

A process is known by the members that it serves: its own one, and those that it took over. While it serves none, only
its lease tells that it is there.
"""

from __future__ import annotations

from collections.abc import Callable

from starlingmq.cluster.cluster_ready import ClusterReady
from starlingmq.cluster.cluster_view import ClusterView
from starlingmq.cluster.copies.copy_roles import CopyRoles
from starlingmq.cluster.etcd.etcd_requests import Answer, Request
from starlingmq.cluster.subsystem import Subsystem


class CopiesSubsystem(Subsystem):
    """``is_member_gone``: see ``LostNodes.is_gone``; by number."""

    def __init__(
        self,
        view: ClusterView,
        ready: ClusterReady,
        roles: CopyRoles,
        is_member_gone: Callable[[int], bool],
        is_leading: Callable[[], bool],
    ) -> None:
        self.roles = roles
        self._view = view
        self._ready = ready
        self._is_member_gone = is_member_gone
        roles.presence.is_gone = self._is_gone
        roles.presence.is_heard = self._is_heard
        roles.presence.is_leading = is_leading

    def _is_gone(self, name: str) -> bool:
        if name == self.roles.me.name:
            return False
        numbers = self._served_by(name)
        if not numbers:
            return name not in self.roles.registry.nodes
        return all(self._is_member_gone(number) for number in numbers)

    def _is_heard(self, name: str) -> bool:
        if name == self.roles.me.name:
            return True
        numbers = self._served_by(name)
        if not numbers:
            return name in self.roles.registry.nodes
        return any(self._view.is_connected(number) for number in numbers)

    def _served_by(self, name: str) -> list[int]:
        """The numbers of the members that the process of that name serves."""
        served = {origin for origin, record in self.roles.registry.records.items() if record.server == name}
        return [member.number for member in self._view.members.membership.members if member.name in served]

    def answered(self, answer: Answer, now: float) -> None:
        self.roles.answered(answer, now)

    def take_notices(self) -> list[str]:
        return self.roles.take_notices()

    def take_requests(self, now: float) -> list[Request]:
        self.roles.turn(now)
        self._ready.copies += self.roles.take_orders()
        return self.roles.take_requests(now)

    def has_input(self) -> bool:
        return self.roles.stirred

    def wake_at(self, now: float) -> float:
        return self.roles.wake_at(now)
