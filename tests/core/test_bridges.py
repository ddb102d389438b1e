"""The requests of mosquitto bridges, which no other client can make."""

from __future__ import annotations

import pytest
from tests.conformance.kit import deliver, frame, messages, payloads, publish, sole, subscribe, subscriber, utf8
from tests.harness import FakeClient, World

from starlingmq.wire.mqtt import Ack, Connack, Connect, Will
from starlingmq.wire.packets import PUBACK
from starlingmq.wire.reasons import Reason

STATE = "$SYS/broker/connection/vm.hub/state"


def bridge(world: World, version: int = 4, client_id: str = "vm.hub", will: Will | None = None) -> FakeClient:
    """Connect as mosquitto does: marked in 3.1 and 3.1.1, in MQTT 5 recognizable by its will only."""
    client = world.open(version, client_id)
    will = will or Will(STATE.encode(), b"0", 1, True)
    client.send(Connect(version, client_id, False, 60, will=will, bridge=version != 5))
    if not client.closed:
        client.connack = client.expect(Connack)
    return client


@pytest.mark.parametrize("version", [3, 4, 5])
def test_the_state_of_a_bridge_is_retained(version: int) -> None:
    world = World()
    watcher = subscriber(world, "$SYS/broker/connection/#", "#")
    one = bridge(world, version)
    publish(one, STATE, b"1", qos=1, retain=True)
    assert sole(one, Ack).reason < 0x80
    assert payloads(watcher) == [b"1"]
    late = world.connect("late")
    assert subscribe(late, STATE) == [0]
    assert [(m.payload, m.retain) for m in messages(late)] == [(b"1", True)]
    one.drop()
    assert payloads(watcher) == [b"0"]
    later = world.connect("later")
    subscribe(later, STATE)
    assert payloads(later) == [b"0"]


@pytest.mark.parametrize(
    ("topic", "payload", "qos"),
    [
        (STATE, b"2", 1),
        (STATE, b"", 1),
        (STATE, b"1", 2),
        ("$SYS/broker/connection/other/state", b"1", 1),
        ("$SYS/broker/connection/vm.hub/other", b"1", 1),
        ("$SYS/broker/uptime", b"1", 1),
    ],
)
@pytest.mark.parametrize("version", [4, 5])
def test_a_bridge_tells_nothing_else_there(version: int, topic: str, payload: bytes, qos: int) -> None:
    world = World()
    watcher = subscriber(world, "$SYS/#")
    one = bridge(world, version)
    publish(one, topic, payload, qos=qos, retain=True)
    ack = sole(one, Ack)
    assert ack.reason == (Reason.NOT_AUTHORIZED if version == 5 else 0)
    assert watcher.receive() == []
    assert world.state.ctx.counters.dropped == {"not_authorized": 1}


@pytest.mark.parametrize("version", [4, 5])
def test_a_client_that_is_no_bridge_can_not_publish_its_state(version: int) -> None:
    world = World()
    watcher = subscriber(world, "$SYS/#")
    client = world.connect("vm.hub", version=version)
    publish(client, STATE, b"1", qos=1, retain=True)
    assert sole(client, Ack).type == PUBACK
    assert watcher.receive() == []


@pytest.mark.parametrize(
    "will",
    [
        Will(STATE.encode(), b"x", 1, True),
        Will(STATE.encode(), b"0", 2, True),
        Will(b"$SYS/broker/connection/other/state", b"0", 1, True),
        Will(b"$SYS/broker/uptime", b"0", 1, True),
    ],
    ids=lambda will: f"{will.topic!r} {will.payload!r}",
)
@pytest.mark.parametrize("version", [4, 5])
def test_another_will_below_sys_is_refused(version: int, will: Will) -> None:
    world = World()
    client = bridge(world, version, will=will)
    assert client.closed
    assert [notice.reason for notice in world.notices] == ["topic_name_invalid"]


def test_subscriptions_of_a_bridge_are_no_local_and_retain_as_published() -> None:
    world = World()
    one = bridge(world)
    assert subscribe(one, "t", qos=1) == [1]
    other = world.connect("other")
    deliver(other, "t", b"retained", retain=True)
    deliver(one, "t", b"its own")
    deliver(other, "t", b"plain")
    assert [(m.payload, m.retain) for m in messages(one)] == [(b"retained", True), (b"plain", False)]


def test_a_bridge_may_be_a_member_of_a_shared_group() -> None:
    world = World()
    one = bridge(world)
    assert subscribe(one, "$share/g/t", qos=1) == [1]
    deliver(world.connect("other"), "t", b"shared", retain=True)
    assert [(m.payload, m.retain) for m in messages(one)] == [(b"shared", True)]


def test_a_marked_connection_of_mqtt_5_has_the_options_that_it_asks_for() -> None:
    world = World()
    one = world.open(5, "vm.hub")
    one.send(frame(0x10, utf8("MQTT") + b"\x85\x02\0\0\0" + utf8("vm.hub")))
    assert one.expect(Connack).reason == 0
    assert subscribe(one, "t") == [0]
    deliver(one, "t", b"its own")
    assert payloads(one) == [b"its own"]
