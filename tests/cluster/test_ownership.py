"""Claims of one node."""

from __future__ import annotations

from tests.cluster.lone_ownership import lone_ownership

from starlingmq.cluster.etcd.etcd_requests import TxnAnswer
from starlingmq.cluster.takeover.ownership import UNDER_WAY_MAX


def test_a_storm_of_claims_is_taken_in_parts_that_leave_room_for_heartbeats() -> None:
    """20,000 clients that came back at once took each other's nodes for gone: one turn executed up to 4,096 claims at
    each of three nodes, and copied them to deputies."""
    ownership = lone_ownership()
    ownership.enter(1, 1)
    for number in range(2000):
        ownership.claim(f"c{number}")
    asked = ownership.take_requests(1.0)
    assert len(asked) == UNDER_WAY_MAX and UNDER_WAY_MAX <= 512
    for request in asked[:100]:
        ownership.answered(TxnAnswer(request.tag, True, 7, ((),)), 1.0)
    assert len(ownership.take_requests(1.0)) == 100, "the others follow the answers"
