"""Claims of one node."""

from __future__ import annotations

from tests.cluster.lone_ownership import LoneStore, lone_ownership

from starlingmq.cluster.takeover.owner_store import Claimed
from starlingmq.cluster.takeover.ownership import UNDER_WAY_MAX


def test_a_storm_of_claims_is_taken_in_parts_that_leave_room_for_heartbeats() -> None:
    """20,000 clients that came back at once took each other's nodes for gone: one turn executed up to 4,096 claims at
    each of three nodes, and copied them to deputies."""
    store = LoneStore()
    ownership = lone_ownership(store)
    ownership.enter(1)
    for number in range(2000):
        ownership.claim(f"c{number}")
    ownership.ask()
    assert len(store.claims) == UNDER_WAY_MAX and UNDER_WAY_MAX <= 512
    for client_id, answered in store.claims[:100]:
        answered(client_id, Claimed(7, {}, 0))
    ownership.ask()
    assert len(store.claims) == UNDER_WAY_MAX + 100, "the others follow the answers"
