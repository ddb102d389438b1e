"""Ends the lease of a node that all others agree is gone, so that nobody waits until it expires.

The keys with that lease are deleted with it: the node's ``online`` key, its leadership, and the queue groups that it is
the primary of. The lease is read from the ``online`` key, which holds the incarnation of the node, so the lease of a
later incarnation is never ended. A node that lives after all gets another lease, as after every lease that expires.

Pure: requests out, answers in.
"""

from __future__ import annotations

from typing import Final

from starlingmq.cluster.etcd.etcd_requests import Compare, Get, Request, Revoke, Txn, TxnAnswer
from starlingmq.cluster.links.peer_frames import MemberInfo
from starlingmq.cluster.membership.registry import Keys

RETRY_SECONDS: Final = 0.5
TAG: Final = "end lease "


class LeaseFence:
    ended: int  # leases

    def __init__(self, cluster: str) -> None:
        self.ended = 0
        self._keys = Keys(cluster)
        self._asked: dict[int, int] = {}  # number -> incarnation of which the lease is, or was, requested
        self._retry_at = 0.0
        self._requests: list[Request] = []

    def end(self, member: MemberInfo, now: float) -> None:
        """End the lease of that incarnation. May be called again."""
        if self._asked.get(member.number) == member.incarnation or now < self._retry_at:
            return
        self._asked[member.number] = member.incarnation
        key = self._keys.online(member.name)
        same = Compare(key, "value", "=", b"%d" % member.incarnation)
        self._requests.append(Txn(f"{TAG}{member.number}", (same,), (Get(key),)))

    def lives(self, number: int) -> None:
        """The node is connected: if it is lost again, its lease is ended again."""
        self._asked.pop(number, None)

    def answered(self, answer: TxnAnswer, now: float) -> None:
        """Answers to others are not looked at."""
        if not answer.tag.startswith(TAG):
            return
        if answer.error:
            self._asked.pop(int(answer.tag.removeprefix(TAG)), None)
            self._retry_at = now + RETRY_SECONDS
        elif answer.succeeded and answer.found[0] and answer.found[0][0].lease:
            self.ended += 1
            self._requests.append(Revoke(answer.found[0][0].lease))

    def take_requests(self) -> list[Request]:
        requests, self._requests = self._requests, []
        return requests
