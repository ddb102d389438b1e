"""The lease of a node that is gone, and of no other, is ended."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from starlingmq.cluster.etcd.etcd_requests import Compare, KeyValue, Request, Revoke, Txn, TxnAnswer
from starlingmq.cluster.links.control_frames import MemberInfo, Membership
from starlingmq.cluster.membership.lease_fence import RETRY_SECONDS, LeaseFence

pytestmark = pytest.mark.interpreted_only("compiled code takes no stand-ins")
KEY = b"/starlingmq/c/members/online/n2"
SILENCE = 5.0
MEMBERS: Any = SimpleNamespace(membership=Membership(1, (MemberInfo("n2", 2, 3, "n2:1"),)), online={2: 3})
DEAD: Any = SimpleNamespace(is_dead=lambda number: True, is_heard_by_nobody=lambda number, since: True)
SILENT: Any = SimpleNamespace(is_dead=lambda number: False, is_heard_by_nobody=lambda number, since: True)
HEARD: Any = SimpleNamespace(is_dead=lambda number: False, is_heard_by_nobody=lambda number, since: False)


def fence_that_lost_it() -> LeaseFence:
    fence = LeaseFence("c", SILENCE)
    fence.lost(2, 0.0)
    return fence


def asked(requests: list[Request]) -> Txn:
    (request,) = requests
    assert isinstance(request, Txn)
    return request


def test_the_lease_of_the_online_key_is_ended_once() -> None:
    fence = fence_that_lost_it()
    request = asked(fence.take_requests(MEMBERS, DEAD, 1.0))
    assert request.compares == (Compare(KEY, "value", "=", b"3"),), "of that incarnation"
    assert fence.take_requests(MEMBERS, DEAD, 1.1) == []
    fence.answered(TxnAnswer(request.tag, True, 9, ((KeyValue(KEY, b"3", 5, 5, 77),),)), 1.2)
    assert fence.take_requests(MEMBERS, DEAD, 1.3) == [Revoke(77)]
    assert fence.take_requests(MEMBERS, DEAD, 9.0) == [], "it may have another one by now"
    fence.recovered(2)
    assert fence.take_requests(MEMBERS, DEAD, 9.1) == []
    fence.lost(2, 10.0)
    assert asked(fence.take_requests(MEMBERS, DEAD, 10.1)).compares == request.compares, "it was lost another time"


def test_a_node_that_is_silent_has_its_lease_for_a_while() -> None:
    fence = fence_that_lost_it()
    assert fence.is_gone(2, SILENT) and not fence.is_gone(2, HEARD) and not fence.is_gone(3, SILENT)
    assert fence.take_requests(MEMBERS, SILENT, 0.9 * SILENCE) == []
    assert fence.wake_at(0.9 * SILENCE) == SILENCE and fence.wake_at(SILENCE) == inf
    assert fence.take_requests(MEMBERS, HEARD, SILENCE) == []
    assert asked(fence.take_requests(MEMBERS, SILENT, SILENCE))


def test_the_lease_of_a_later_incarnation_is_left_alone() -> None:
    fence = fence_that_lost_it()
    fence.answered(TxnAnswer(asked(fence.take_requests(MEMBERS, DEAD, 1.0)).tag, False, 9, ()), 1.1)
    assert fence.take_requests(MEMBERS, DEAD, 1.2) == []


def test_an_unanswered_request_to_etcd_is_repeated() -> None:
    fence = fence_that_lost_it()
    fence.answered(TxnAnswer(asked(fence.take_requests(MEMBERS, DEAD, 1.0)).tag, False, 0, error="no leader"), 1.1)
    assert fence.take_requests(MEMBERS, DEAD, 1.2) == []
    assert asked(fence.take_requests(MEMBERS, DEAD, 1.1 + RETRY_SECONDS))
