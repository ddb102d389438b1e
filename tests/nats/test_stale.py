"""Messages of NATS clients are delivered to NATS clients within ``queue_groups.nats_wait``, or never."""

from __future__ import annotations

import pytest
from tests.cluster.fleet import Fleet, NodeWorld
from tests.harness import FakeClient, World
from tests.nats.talk import Msg, NatsPeer, connect
from tests.storage.world import StoredWorld

from starlingmq.config.settings import QueueGroupsConfig
from starlingmq.wire.mqtt import Ack, Publish, Suback, Subscribe, SubscribeRequest
from starlingmq.wire.packets import PUBACK
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL


@pytest.fixture(params=[World, StoredWorld])
def world(request: pytest.FixtureRequest) -> World:
    made: World = request.param()
    return made


def heard(peer: NatsPeer) -> list[bytes]:
    return [frame.payload for frame in peer.heard() if isinstance(frame, Msg)]


def lasting(world: World, filter: bytes) -> FakeClient:
    client = world.connect("lasting", 5, False, properties={SESSION_EXPIRY_INTERVAL: 1000})
    assert client is not None
    client.send(Subscribe(1, [SubscribeRequest(filter, 1)]))
    client.expect(Suback)
    return client


def got(client: FakeClient) -> list[bytes]:
    messages = [packet for packet in client.receive() if isinstance(packet, Publish)]
    client.send_all([Ack(PUBACK, message.packet_id) for message in messages if message.qos])
    return [message.payload for message in messages]


def dropped(world: World) -> int:
    return world.state.ctx.counters.dropped.get("nats_wait", 0)


def slow_member(world: World) -> NatsPeer:
    """A member of a queue group that does not read."""
    worker = connect(world)
    worker.said("SUB svc g 1", "PING")
    world.state.blocked(worker.client)
    return worker


def read_on(world: World, worker: NatsPeer) -> list[bytes]:
    world.state.drained(worker.client, world.now)
    world.run()
    return heard(worker)


def test_a_request_that_waits_for_less_is_given(world: World) -> None:
    worker = slow_member(world)
    connect(world).pub("svc", b"?")
    world.advance(4.5)
    assert read_on(world, worker) == [b"?"]
    assert dropped(world) == 0


def test_a_request_that_waits_for_longer_is_dropped_and_counted(world: World) -> None:
    worker = slow_member(world)
    asking = connect(world)
    asking.pub("svc", b"1")
    asking.pub("svc", b"2")
    world.advance(3.0)
    asking.pub("svc", b"3")
    world.advance(3.5)
    assert dropped(world) == 2, "although nobody has asked for them since"
    assert read_on(world, worker) == [b"3"]


def test_many_requests_are_dropped_some_in_a_turn(world: World) -> None:
    slow_member(world)
    asking = connect(world)
    for _ in range(2500):
        asking.pub("svc", b"?")
    world.advance(7.0)
    assert dropped(world) == 2500
    group = world.state.router.group(b"$share/g/svc")
    assert group is not None and group.waiting() == 0


def test_messages_of_mqtt_clients_wait_for_nats_members(world: World) -> None:
    worker = slow_member(world)
    publisher = world.connect("p", 5)
    assert publisher is not None
    publisher.send(Publish(b"svc", b"kept", 1, packet_id=1))
    world.advance(60.0)
    assert read_on(world, worker) == [b"kept"]


def test_a_group_with_an_mqtt_member_at_qos_1_keeps_requests(world: World) -> None:
    worker = slow_member(world)
    away = lasting(world, b"$share/g/svc")
    away.drop()
    connect(world).pub("svc", b"kept")
    worker.send("UNSUB 1")
    world.advance(60.0)
    back = world.connect("lasting", 5, False, properties={SESSION_EXPIRY_INTERVAL: 1000})
    assert back is not None and got(back) == [b"kept"]
    assert dropped(world) == 0


def test_without_a_bound_requests_wait(world: World) -> None:
    world.state.groups.configure(QueueGroupsConfig(nats_wait=0.0))
    worker = slow_member(world)
    connect(world).pub("svc", b"?")
    world.advance(60.0)
    assert read_on(world, worker) == [b"?"]


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_restart_does_not_make_requests_younger(checkpointed: bool) -> None:
    world = StoredWorld()
    slow_member(world)
    connect(world).pub("svc", b"?")
    if checkpointed:
        world.checkpoint()
    world.restart()
    world.advance(20.0)  # of 30 s of grace
    worker = connect(world)
    worker.send("SUB svc g 1")
    world.run()
    assert heard(worker) == []
    assert dropped(world) == 1


def on_both(fleet: Fleet) -> tuple[NatsPeer, NatsPeer]:
    asking, worker = connect(fleet[0]), connect(fleet[1])
    assert worker.said("SUB svc g 1", "SUB plain 2", "PING") == ["PONG"]
    fleet.advance(1.5)
    asking.pub("svc", b"first")
    fleet.advance(1.5)
    assert heard(worker) == [b"first"]
    return asking, worker


def test_a_request_that_waits_at_the_link_to_a_slow_node_is_dropped_there() -> None:
    fleet = Fleet(2)
    asking, worker = on_both(fleet)
    fleet.mute = {(1, 2)}
    asking.pub("svc", b"late")
    fleet.advance(6.0)
    asking.pub("svc", b"in time")
    fleet.advance(1.0)
    fleet.speak()
    fleet.advance(2.0)
    assert heard(worker) == [b"in time"]
    assert dropped(fleet[1]) == 1


def test_a_late_message_reaches_only_the_mqtt_session() -> None:
    fleet = Fleet(2)
    asking, worker = on_both(fleet)
    session = lasting(fleet[1], b"plain")
    fleet.mute = {(1, 2)}
    asking.pub("plain", b"kept")
    fleet.advance(6.0)
    fleet.speak()
    fleet.advance(1.0)
    assert got(session) == [b"kept"]
    assert heard(worker) == []
    assert dropped(fleet[1]) == 1


def test_the_age_of_a_message_counts_its_wait_before_sending() -> None:
    """The message waits in the session of the other node, not in frames that were made already."""
    fleet = Fleet(3)
    asking, worker = on_both(fleet)
    session = lasting(fleet[1], b"plain")
    fleet.cut(1, 2)
    fleet.cut(3, 2)
    fleet.advance(3.0)
    asking.pub("plain", b"kept")
    fleet.advance(6.0)
    fleet.heal()
    fleet.advance(3.0)
    assert got(session) == [b"kept"]
    assert heard(worker) == []


def test_all_nodes_know_whether_a_group_keeps_requests() -> None:
    fleet = Fleet(2)

    def keeps(node: NodeWorld) -> bool:
        group = node.state.router.group(b"$share/g/svc")
        assert group is not None
        return group.keeps()

    worker = connect(fleet[0])
    worker.said("SUB svc g 1", "PING")
    assert [keeps(node) for node in fleet.nodes] == [False, False]
    session = lasting(fleet[0], b"$share/g/svc")
    fleet.advance(0.5)
    assert [keeps(node) for node in fleet.nodes] == [True, True]
    session.send(Subscribe(2, [SubscribeRequest(b"$share/g/svc", 0)]))
    fleet.advance(0.5)
    assert [keeps(node) for node in fleet.nodes] == [False, False]
