"""Queue groups over nodes, one thing at a time: who is primary, what is pulled when, who is refused."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from tests.cluster.fleet import Fleet, NodeWorld
from tests.harness import FakeClient
from tests.nats.talk import Msg, NatsPeer, connect

from starlingmq.cluster.frames import Allotment, Data, GroupPull, GroupReport, Pull
from starlingmq.cluster.group_pull import GroupPulls
from starlingmq.config import QueueGroupsConfig
from starlingmq.core.groups import Group
from starlingmq.wire.mqtt import Ack, Publish, Suback, Subscribe, SubscribeRequest, Unsubscribe
from starlingmq.wire.packets import PUBACK
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL

SHARE = b"$share/g/t"


def member(fleet: Fleet, place: int, name: str) -> FakeClient:
    client = fleet.connect(place, name)
    client.send(Subscribe(1, [SubscribeRequest(SHARE, 1)]))
    client.expect(Suback)
    fleet.advance(0.3)
    return client


def got(client: FakeClient) -> list[bytes]:
    messages = [packet for packet in client.receive() if isinstance(packet, Publish)]
    client.send_all([Ack(PUBACK, message.packet_id) for message in messages if message.qos])
    return [message.payload for message in messages]


def heard(peer: NatsPeer) -> list[bytes]:
    return [frame.payload for frame in peer.heard() if isinstance(frame, Msg)]


def group(node: NodeWorld) -> Group:
    found = node.state.router.group(SHARE)
    assert found is not None
    return found


def primary(fleet: Fleet) -> int:
    """Which node all of them take for it, from 0."""
    choosers = {group(node).chooser for node in fleet.nodes}
    assert len(choosers) == 1 and [node for node in fleet.nodes if group(node).primary]
    return choosers.pop() - 1


def quiet(fleet: Fleet) -> None:
    """Nobody says by itself that there is something."""
    for node in fleet.nodes:
        node.state.groups.configure(QueueGroupsConfig(notify=False))


def test_the_first_member_brings_the_primary_and_it_moves_on_when_it_goes() -> None:
    fleet = Fleet(3)
    one = member(fleet, 1, "one")
    two = member(fleet, 2, "two")
    assert primary(fleet) == 1
    epoch = group(fleet[0]).epoch
    one.send(Unsubscribe(2, [SHARE]))
    fleet.advance(0.3)
    assert primary(fleet) == 2 and group(fleet[0]).epoch > epoch
    two.send(Unsubscribe(2, [SHARE]))
    fleet.advance(0.3)
    assert not [node for node in fleet.nodes if node.state.router.group(SHARE)], "the last has left"


def test_between_clients_of_one_node_nothing_goes_to_another() -> None:
    fleet = Fleet(2)
    one = member(fleet, 0, "one")
    fleet.advance(2.0)
    publisher = fleet.connect(0, "p")
    fleet.advance(2.0)
    before = len(fleet.carried)
    for number in range(100):
        publisher.send(Publish(b"t", b"%d" % number, 1, packet_id=number + 1))
    assert len(got(one)) == 100
    bodies = [envelope.body for envelope in fleet.carried[before:]]
    assert not [body for body in bodies if isinstance(body, Data | GroupPull | GroupReport)]


@pytest.mark.parametrize("notified", [True, False])
def test_members_of_both_protocols_and_publishers_of_both_on_all_nodes(notified: bool) -> None:
    fleet = Fleet(3)
    if not notified:
        quiet(fleet)
    mqtt = [member(fleet, place, f"m{place}") for place in (0, 1)]
    nats = [connect(fleet[place]) for place in (1, 2)]
    for peer in nats:
        peer.send("SUB t g 1", "PING")
    fleet.advance(1.5)
    for place in range(3):
        devices, services = fleet.connect(place, f"p{place}"), connect(fleet[place])
        for number in range(30):
            devices.send(Publish(b"t", b"mqtt %d %d" % (place, number), 1, packet_id=number + 1))
            services.pub("t", b"nats %d %d" % (place, number))
    fleet.advance(1.0)
    taken = [got(client) for client in mqtt] + [heard(peer) for peer in nats]
    wanted = [b"%b %d %d" % (kind, place, n) for kind in (b"mqtt", b"nats") for place in range(3) for n in range(30)]
    assert sorted(payload for each in taken for payload in each) == sorted(wanted)
    assert all(len(each) >= 10 for each in taken)


def waited(fleet: Fleet, publisher: FakeClient, worker: FakeClient, number: int) -> float:
    """Seconds until a message has come."""
    begin = fleet.now
    publisher.send(Publish(b"t", b"x", 1, packet_id=number))
    while not got(worker):
        assert fleet.now < begin + 5.0
        fleet.advance(0.01)
    return fleet.now - begin


def test_without_notifications_a_message_waits_for_the_next_pull() -> None:
    fleet = Fleet(2)
    quiet(fleet)
    worker, publisher = member(fleet, 0, "w"), fleet.connect(1, "p")
    fleet.advance(2.0)
    times = [waited(fleet, publisher, worker, number) for number in range(1, 20)]
    assert max(times) <= 0.06 and max(times) > 0.0


def test_a_notification_wakes_the_primary_and_carries_no_message() -> None:
    fleet = Fleet(2)
    worker, publisher = member(fleet, 0, "w"), fleet.connect(1, "p")
    fleet.advance(2.0)
    before = len(fleet.carried)
    for number in range(1, 4):
        assert waited(fleet, publisher, worker, number) == 0.0
    bodies = [envelope.body for envelope in fleet.carried[before:]]
    told = [body for body in bodies if isinstance(body, GroupReport) and body.number == 0]
    assert [[state.key for state in body.states] for body in told] == [[SHARE]] * 3


def test_who_waits_for_the_primary_waits_until_it_can_be_reached() -> None:
    fleet = Fleet(3)
    worker, publisher = member(fleet, 0, "w"), fleet.connect(1, "p")
    fleet.cut(1, 2)
    fleet.cut(1, 3)
    fleet.advance(1.0)
    publisher.send(Publish(b"t", b"x", 1, packet_id=1))
    fleet.advance(0.5)
    assert got(worker) == [] and group(fleet[1]).waiting() == 1
    fleet.heal()
    fleet.advance(20.0)
    assert got(worker) == [b"x"] and group(fleet[1]).waiting() == 0


def test_a_primary_that_was_replaced_is_refused() -> None:
    fleet = Fleet(3)
    workers = [member(fleet, 0, "w0"), member(fleet, 1, "w1")]
    publisher = fleet.connect(2, "p")
    for worker in workers:
        worker.block()
    fleet.advance(1.5)
    writer = fleet[2].cluster.groups.pulls
    stale = Pull(SHARE, group(fleet[2]).epoch, (Allotment(1, 1, 10),))
    fleet.etcd.cut("n1")
    fleet.etcd.expire_lease("n1", fleet.now)
    fleet.advance(0.5)
    assert group(fleet[1]).primary
    publisher.send(Publish(b"t", b"x", 1, packet_id=1))
    fleet.advance(0.5)
    writer.received(1, 99, GroupPull(1, (stale,)), fleet.now)
    assert group(fleet[2]).waiting() == 1 and writer.refused == 1
    workers[1].unblock()
    fleet.advance(2.0)
    assert [got(worker) for worker in workers] == [[], [b"x"]]
    assert not group(fleet[0]).primary, "it was told"


def test_a_fence_that_is_open_is_found() -> None:
    """A mistake made on purpose: epochs are not looked at."""
    pulled = GroupPulls._pulled

    def obeys(self: GroupPulls, pull: Pull, source: int) -> object:
        found = self._broker.router.group(pull.key)
        return pulled(self, Pull(pull.key, found.epoch + 1 if found else 0, pull.allotments), source)

    with patch.object(GroupPulls, "_pulled", obeys), pytest.raises(AssertionError):
        test_a_primary_that_was_replaced_is_refused()


def test_a_group_whose_last_member_was_lost_waits_on_all_nodes() -> None:
    fleet = Fleet(2)
    member(fleet, 0, "one").drop()
    fleet.advance(0.5)
    publisher = fleet.connect(1, "p")
    publisher.send(Publish(b"t", b"x", 1, packet_id=1))
    fleet.advance(0.5)
    assert group(fleet[1]).waiting() == 1
    assert got(member(fleet, 1, "two")) == [b"x"]


def test_when_the_grace_is_over_the_group_is_on_all_nodes() -> None:
    fleet = Fleet(2)
    member(fleet, 0, "one").drop()
    publisher = fleet.connect(1, "p")
    fleet.advance(1.0)
    publisher.send(Publish(b"t", b"x", 1, packet_id=1))
    fleet.advance(31.0)
    assert not [node for node in fleet.nodes if node.state.router.group(SHARE)]
    assert fleet[1].state.ctx.counters.dropped["group_gone"] == 1


def test_lasting_members_that_are_away_on_all_nodes_keep_the_group() -> None:
    fleet = Fleet(2)
    client = fleet.connect(0, "away", properties={SESSION_EXPIRY_INTERVAL: 1000})
    client.send(Subscribe(1, [SubscribeRequest(SHARE, 1)]))
    client.expect(Suback)
    client.drop()
    fleet.advance(60.0)
    publisher = fleet.connect(1, "p")
    publisher.send(Publish(b"t", b"x", 1, packet_id=1))
    fleet.advance(1.0)
    back = fleet.connect(0, "away", clean_start=False, properties={SESSION_EXPIRY_INTERVAL: 1000})
    fleet.advance(1.5)
    assert got(back) == [b"x"]
