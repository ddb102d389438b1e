"""Revokes the lease of a node that all other nodes agree is gone, so that nothing has to wait until it expires.

The keys with that lease are deleted with it: the node's ``online`` key, its leadership, and the queue groups of which
it is the primary. The lease id is read from the ``online`` key, which holds the node's incarnation, so the lease of a
later incarnation is never revoked. A node that is alive after all gets a new lease, as after every expired lease.

Pure: requests out, answers in.
"""

from __future__ import annotations

from math import inf
from typing import Final

from starlingmq.cluster.etcd.etcd_requests import Compare, Get, Request, Revoke, Txn, TxnAnswer
from starlingmq.cluster.links.control_frames import MemberInfo
from starlingmq.cluster.membership.members import Members
from starlingmq.cluster.membership.quorum import Quorum
from starlingmq.cluster.membership.registry import Keys

RETRY_SECONDS: Final = 0.5
TAG: Final = "end lease "


class LeaseFence:
    ended: int  # leases revoked so far

    def __init__(self, cluster: str, silence: float) -> None:
        """``silence``: seconds after its loss until the lease of a node is revoked that is only known to be silent."""
        self.ended = 0
        self._silence = silence
        self._lost_at: dict[int, float] = {}  # nodes that were connected and are not any more -> since when
        self._keys = Keys(cluster)
        self._asked: dict[int, int] = {}  # node -> incarnation whose lease revocation was requested
        self._retry_at = 0.0
        self._requests: list[Request] = []

    def lost(self, number: int, now: float) -> None:
        self._lost_at[number] = now

    def is_gone(self, number: int, quorum: Quorum | None) -> bool:
        """Whether no node has heard it since this one lost it. Such a node does not serve."""
        lost_at = self._lost_at.get(number)
        return lost_at is not None and quorum is not None and quorum.is_heard_by_nobody(number, lost_at)

    def _end(self, member: MemberInfo, now: float) -> None:
        """Revokes the lease of that incarnation, once."""
        if self._asked.get(member.number) == member.incarnation or now < self._retry_at:
            return
        self._asked[member.number] = member.incarnation
        key = self._keys.online(member.name)
        same = Compare(key, "value", "=", b"%d" % member.incarnation)
        self._requests.append(Txn(f"{TAG}{member.number}", (same,), (Get(key),)))

    def recovered(self, number: int) -> None:
        """The node is connected. If it is lost again, its lease is revoked again."""
        self._lost_at.pop(number, None)
        self._asked.pop(number, None)

    def answered(self, answer: TxnAnswer, now: float) -> None:
        """Takes the answer to one of this module's requests; ignores others."""
        if not answer.tag.startswith(TAG):
            return
        if answer.error:
            self._asked.pop(int(answer.tag.removeprefix(TAG)), None)
            self._retry_at = now + RETRY_SECONDS
        elif answer.succeeded and answer.found[0] and answer.found[0][0].lease:
            self.ended += 1
            self._requests.append(Revoke(answer.found[0][0].lease))

    def wake_at(self, now: float) -> float:
        """When ``take_requests`` has to be called without an event; ``inf``: never."""
        soonest = self._retry_at if self._retry_at > now else inf
        for lost_at in self._lost_at.values():
            when = lost_at + self._silence
            if now < when < soonest:
                soonest = when
        return soonest

    def take_requests(self, members: Members, quorum: Quorum, now: float) -> list[Request]:
        for member in members.membership.members if self._lost_at else ():
            lost_at = self._lost_at.get(member.number)
            if lost_at is None or member.number not in members.online:
                continue
            silent = now >= lost_at + self._silence and self.is_gone(member.number, quorum)
            if silent or quorum.is_dead(member.number):
                self._end(member, now)
        requests, self._requests = self._requests, []
        return requests
