"""Wills with owners in shares, while etcd, which has the wills, is away."""

from __future__ import annotations

from tests.cluster.test_shares import ShareFleet, share_fleet
from tests.cluster.test_wills import leave_will, published, watch

from starlingmq.cluster.etcd.etcd_requests import KeyValue, TxnAnswer
from starlingmq.cluster.takeover.transfer_frames import UNREPORTED
from starlingmq.cluster.wills.will_records import SETTLED, RegisteredWill, all_wills, encode_will
from starlingmq.cluster.wills.will_settlement import AGAIN_SECONDS, WillSettlements
from starlingmq.wire.mqtt import Connect
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL

AWAY_SECONDS = 20.0


def keys_of(fleet: ShareFleet, client_id: str) -> list[int]:
    """The nodes with an owner key."""
    numbers = {node.cluster.number: node for node in fleet.nodes}
    shares = fleet[0].cluster.shares
    assert shares is not None
    leading = numbers[shares.table.of(client_id).leader].cluster.shares
    assert leading is not None
    return [key.node for book in leading.books.books.values() for key in book.read(client_id)]


def test_the_next_connect_finds_the_node_of_a_will_that_is_not_settled() -> None:
    fleet = share_fleet(3)
    watcher = watch(fleet, 0)
    client = leave_will(fleet, 0, "c", expiry=3600)
    fleet.etcd.lose_leader(fleet.now, AWAY_SECONDS)
    client.drop()
    fleet.advance(0.5, 0.05)
    second = fleet[1].open()
    second.send(Connect(5, "c", False, 0, properties={SESSION_EXPIRY_INTERVAL: 3600}))
    fleet.advance(1.0, 0.05)
    assert not second.output, "the client would publish before its will"
    assert fleet[0].cluster.number in keys_of(fleet, "c")
    second.drop()
    third = fleet[2].open()
    third.send(Connect(5, "c", False, 0, properties={SESSION_EXPIRY_INTERVAL: 3600}))
    fleet.advance(3.0, 0.05)
    assert not third.output, "the client would publish before its will"
    fleet.advance(AWAY_SECONDS, 0.05)
    assert published(watcher) == [b"will/c"]


def test_an_earlier_settlement_does_not_count_for_a_will_that_its_node_has_not_written_yet() -> None:
    """The node was granted the client id again without etcd, which still has the settlement of an earlier will."""
    earlier = KeyValue(all_wills("test") + b"2/c", encode_will(RegisteredWill(SETTLED, 7, epoch=3)), 1, 10)
    for will in (8, UNREPORTED):
        found = WillSettlements("test", 3.0, lambda node: True, lambda name: False)
        found.enter(1)
        assert not found.settle("c", 2, 5, None, False, will)
        (request,) = found.take_requests(1.0)
        found.answered(TxnAnswer(request.tag, True, 20, ((earlier,), ())), 1.0)
        assert not found.settle("c", 2, 5, None, False, will), "will 8 would be published after the CONNACK"
        found.turn(1.0 + 2 * AGAIN_SECONDS)
        assert found.take_requests(1.0 + 2 * AGAIN_SECONDS), "it looks again"
    done = WillSettlements("test", 3.0, lambda node: True, lambda name: False)
    done.enter(1)
    assert not done.settle("c", 2, 5, None, False, 7)
    (request,) = done.take_requests(1.0)
    done.answered(TxnAnswer(request.tag, True, 20, ((earlier,), ())), 1.0)
    assert done.settle("c", 2, 5, None, False, 7), "that will is settled"
