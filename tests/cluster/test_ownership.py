"""Requests of one node about owners of client ids."""

from __future__ import annotations

from starlingmq.cluster.shares.owner_requests import OwnerRequests
from starlingmq.cluster.shares.share_messages import OwnerAnswer
from starlingmq.cluster.shares.share_table import SHARES, Pair, ShareTable, share_of
from starlingmq.cluster.takeover.owner_store import Claimed


def led_by(node: int, version: int) -> ShareTable:
    return ShareTable(version, {1: 1, 2: 1}, (Pair(node, 0, version, 0),) * SHARES)


def test_of_each_share_one_request_is_under_way_and_the_others_follow_in_order() -> None:
    """Else requests that wait for a lost node keep those of other shares waiting, and 20,000 clients that come back at
    once make turns in which no heartbeat is sent."""
    requests = OwnerRequests()
    requests.enter(1, 1, 0)
    requests.lines.set_table(led_by(2, 1), True)
    granted: list[tuple[str, int]] = []

    def answered(client_id: str, claimed: Claimed) -> None:
        granted.append((client_id, claimed.epoch))

    first, second, third = [f"c{n}" for n in range(100_000) if share_of(f"c{n}") == share_of("c0")][:3]
    for client_id in (first, second, "c1", third):
        requests.claim(client_id, 0, b"", answered)
    (one, other) = requests.lines.take_messages()
    assert [each.client_id for _, each in (one, other)] == [first, "c1"]
    requests.lines.answered(OwnerAnswer(one[1].ticket, 7, ()))
    ((node, following),) = requests.lines.take_messages()
    assert (node, following.client_id) == (2, second)
    requests.lines.set_table(led_by(1, 2), True)
    assert [(node, each.client_id) for node, each in requests.lines.take_messages()] == [(1, second), (1, "c1")]
    for ticket in (other[1].ticket, following.ticket):
        requests.lines.answered(OwnerAnswer(ticket, 8, ()))
    ((_, last),) = requests.lines.take_messages()
    requests.lines.answered(OwnerAnswer(last.ticket, 9, ()))
    requests.lines.answered(OwnerAnswer(last.ticket, 10, ()))
    assert requests.lines.idle() and not requests.lines.take_messages() and requests.lines.leaders() == {}
    requests.give_answers(1.0)
    assert granted == [(first, 7), ("c1", 8), (second, 8), (third, 9)]
