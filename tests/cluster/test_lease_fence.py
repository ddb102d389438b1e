"""The lease of a node that is gone, and of no other, is ended."""

from __future__ import annotations

from starlingmq.cluster.etcd.etcd_requests import Compare, KeyValue, Request, Revoke, Txn, TxnAnswer
from starlingmq.cluster.links.peer_frames import MemberInfo
from starlingmq.cluster.membership.lease_fence import RETRY_SECONDS, LeaseFence

KEY = b"/starlingmq/c/members/online/n2"


def gone(incarnation: int = 3) -> MemberInfo:
    return MemberInfo("n2", 2, incarnation, "n2:1")


def asked(requests: list[Request]) -> Txn:
    (request,) = requests
    assert isinstance(request, Txn)
    return request


def test_the_lease_of_the_online_key_is_ended_once() -> None:
    fence = LeaseFence("c")
    fence.end(gone(), 1.0)
    request = asked(fence.take_requests())
    assert request.compares == (Compare(KEY, "value", "=", b"3"),), "of that incarnation"
    fence.end(gone(), 1.1)
    fence.answered(TxnAnswer(request.tag, True, 9, ((KeyValue(KEY, b"3", 5, 5, 77),),)), 1.2)
    assert fence.take_requests() == [Revoke(77)]
    fence.end(gone(), 1.3)
    assert fence.take_requests() == [], "it may have another one by now"
    fence.lives(2)
    fence.end(gone(), 9.0)
    assert asked(fence.take_requests()).compares == request.compares, "it was lost another time"


def test_the_lease_of_a_later_incarnation_is_left_alone() -> None:
    fence = LeaseFence("c")
    fence.end(gone(), 1.0)
    fence.answered(TxnAnswer(asked(fence.take_requests()).tag, False, 9, ()), 1.1)
    assert fence.take_requests() == []


def test_what_etcd_does_not_answer_is_asked_again() -> None:
    fence = LeaseFence("c")
    fence.end(gone(), 1.0)
    fence.answered(TxnAnswer(asked(fence.take_requests()).tag, False, 0, error="no leader"), 1.1)
    fence.end(gone(), 1.2)
    assert fence.take_requests() == []
    fence.end(gone(), 1.1 + RETRY_SECONDS)
    assert asked(fence.take_requests())
