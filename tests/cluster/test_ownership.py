"""The etcd cost of claims and releases: those that arrive during a request are sent together in the next one."""

from __future__ import annotations

from tests.cluster.lone_ownership import lone_ownership

from starlingmq.cluster.etcd.etcd_requests import Put, Txn, TxnAnswer
from starlingmq.cluster.takeover.ownership import (
    CLAIMS_PER_TXN,
    IN_SHARES_UNDER_WAY,
    SMALL_UNDER_WAY,
    TXNS_UNDER_WAY,
    Ownership,
)


def entered() -> Ownership:
    ownership = lone_ownership()
    ownership.enter(1, 1)
    return ownership


def claimed(requests: list[Txn]) -> list[int]:
    """How many client ids each of them claims."""
    return [sum(isinstance(operation, Put) for operation in request.success) for request in requests]


def test_claims_during_outstanding_requests_share_the_next_request() -> None:
    ownership = entered()
    asked: list[Txn] = []
    for number in range(30):
        ownership.claim(f"c{number}")
        asked += ownership.take_requests(1.0)
    assert claimed(asked) == [1] * SMALL_UNDER_WAY
    ownership.answered(TxnAnswer(asked[0].tag, True, 7, ((),)), 1.0)
    assert claimed(ownership.take_requests(1.0)) == [30 - SMALL_UNDER_WAY]


def test_full_requests_do_not_wait() -> None:
    ownership = entered()
    for number in range(2 * TXNS_UNDER_WAY * CLAIMS_PER_TXN):
        ownership.claim(f"c{number}")
    assert claimed(ownership.take_requests(1.0)) == [CLAIMS_PER_TXN] * TXNS_UNDER_WAY


def test_a_storm_of_claims_in_shares_is_taken_in_parts_that_leave_room_for_heartbeats() -> None:
    """20,000 clients that came back at once took each other's nodes for gone: one turn executed up to 4,096 claims at
    each of three nodes, and copied them to deputies."""
    ownership = lone_ownership()
    ownership.divide()
    ownership.enter(1, 1)
    for number in range(2000):
        ownership.claim(f"c{number}")
    asked = ownership.take_requests(1.0)
    assert claimed(asked) == [1] * IN_SHARES_UNDER_WAY and IN_SHARES_UNDER_WAY <= 512
    for request in asked[:100]:
        ownership.answered(TxnAnswer(request.tag, True, 7, ((),)), 1.0)
    assert claimed(ownership.take_requests(1.0)) == [1] * 100, "the others follow the answers"
