"""A watch sees the selected messages, up to its bounds; without a watch, messages have no names."""

from __future__ import annotations

import pytest
from tests.cluster.fleet import Fleet
from tests.cluster.test_takeover import subscribe
from tests.harness import FakeClient, World

from starlingmq.core.observe import message_watch as module
from starlingmq.core.observe.event_lines import EventLine
from starlingmq.core.observe.message_watch import MessageWatch
from starlingmq.wire.mqtt import Ack, Publish
from starlingmq.wire.packets import PUBACK


def publish(client: FakeClient, topic: bytes, payload: bytes = b"x", qos: int = 0, packet_id: int = 0) -> None:
    client.send(Publish(topic, payload, qos, packet_id=packet_id))


def kinds(watch: MessageWatch) -> list[tuple[object, object]]:
    return [(event["kind"], event["client"]) for event in watch.seen()[0]]


@pytest.fixture
def world() -> World:
    return World()


def watching(
    world: World, client_id: str = "", filter: bytes = b"", tail: bool = False, rate: int = 100
) -> MessageWatch:
    watch = MessageWatch(client_id, filter, tail, rate)
    world.state.audit.watches.append(watch)
    world.state.audit.node = "n1"
    world.run()
    return watch


def test_a_topic_is_followed_from_who_publishes_to_who_acknowledges(world: World) -> None:
    reader = world.connect("reader")
    subscribe(reader, b"a/#", 1)
    author = world.connect("author")
    watch = watching(world, filter=b"a/+")
    assert world.state.ctx.audit is not None
    publish(author, b"a/b", qos=1, packet_id=1)
    publish(author, b"b", qos=1, packet_id=2)
    got = reader.expect(Publish)
    reader.send(Ack(PUBACK, got.packet_id))
    seen, lost = watch.seen()
    assert [(event["kind"], event["client"], event["topic"]) for event in seen] == [
        ("accepted", "author", "a/b"),
        ("due", "reader", "a/b"),
        ("delivered", "reader", "a/b"),
        ("acknowledged", "reader", "a/b"),
    ]
    assert len({event["id"] for event in seen}) == 1 and lost == 0
    world.state.audit.watches.remove(watch)
    world.run()
    assert world.state.ctx.audit is None
    publish(author, b"a/b")
    assert watch.seen() == ([], 0)


def test_a_drop_has_its_reason(world: World) -> None:
    reader = world.connect("reader")
    subscribe(reader, b"a", 0)
    author = world.connect("author")
    watch = watching(world, filter=b"#")
    world.state.ctx.store_qos0 = False
    reader.client.blocked = True
    publish(author, b"a")
    dropped = [event for event in watch.seen()[0] if event["kind"] == "dropped"]
    assert [(event["client"], event["reason"]) for event in dropped] == [("reader", "slow_receiver_qos0")]


def test_a_watch_of_a_client_shows_its_publications_and_deliveries(world: World) -> None:
    one, two = world.connect("one"), world.connect("two")
    for client in (one, two):
        subscribe(client, b"#", 0)
    watch = watching(world, client_id="one")
    publish(one, b"a")
    assert kinds(watch) == [
        ("accepted", "one"),
        ("due", "one"),
        ("due", "two"),
        ("delivered", "one"),
        ("delivered", "two"),
    ]
    publish(two, b"b")
    assert kinds(watch) == [("due", "one"), ("delivered", "one")]


def test_a_tail_has_messages_as_they_come_with_their_payload(world: World) -> None:
    author = world.connect("author")
    watch = watching(world, filter=b"a/#", tail=True)
    publish(author, b"a/b", b"p" * (module.PAYLOAD_MAX + 1))
    publish(author, b"c")
    (event,) = watch.seen()[0]
    assert (event["kind"], event["payload"], event["size"]) == (
        "accepted",
        b"p" * module.PAYLOAD_MAX,
        module.PAYLOAD_MAX + 1,
    )


def test_more_than_the_rate_and_more_than_is_looked_at_is_counted(world: World) -> None:
    author = world.connect("author")
    watch = watching(world, filter=b"#", tail=True, rate=3)
    for _ in range(10):
        publish(author, b"a")
    seen, lost = watch.seen()
    assert (len(seen), lost) == (3, 7)
    many = watching(world, filter=b"#", rate=1_000_000)
    for _ in range(module.EVENTS_MAX + 5):
        publish(author, b"a")
    seen, lost = many.seen()
    assert (len(seen), lost) == (module.EVENTS_MAX, 5)


def test_nobody_else_is_told_of_what_a_watch_sees(world: World) -> None:
    """Only the watch has enabled the events: nothing is published on $events."""
    spy = world.connect("spy")
    subscribe(spy, b"$events/#", 0)
    author = world.connect("author")
    watch = watching(world, filter=b"#")
    publish(author, b"a")
    assert kinds(watch) == [("accepted", "author")]
    assert not [packet for packet in spy.receive() if isinstance(packet, Publish)]


def test_the_way_leads_from_node_to_node() -> None:
    fleet = Fleet(2)
    reader = fleet.connect(1, "reader")
    subscribe(reader, b"a", 0)
    author = fleet.connect(0, "author")
    watches: list[MessageWatch] = []
    for node in fleet.nodes:
        watches.append(MessageWatch("author", b"", False, 100))
        node.state.audit.node = node.name
        node.state.audit.watches.append(watches[-1])
    fleet.run()
    publish(author, b"a")
    fleet.advance(0.1)
    here, there = ([(one["kind"], one["client"], one["id"]) for one in watch.seen()[0]] for watch in watches)
    name = here[0][2]
    assert here == [("accepted", "author", name), ("due", f"$node/{fleet[1].cluster.number}", name)]
    assert sorted(there, key=str) == [
        ("delivered", f"$node/{fleet[1].cluster.number}", name),
        ("delivered", "reader", name),
        ("due", "reader", name),
    ]


def test_a_watch_takes_what_is_told_of_stored_messages_by_their_topic() -> None:
    watch = MessageWatch("", b"a/#", False, 1)
    told = [EventLine(1, 0.0, b"n1:1", 1, "c", b"a/b", 0, b""), EventLine(2, 0.0, b"", 0, "c", b"", 0, b"")]
    watch.take("waiting", told)
    assert [event["topic"] for event in watch.seen()[0]] == ["a/b"]
