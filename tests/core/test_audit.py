"""The broker's own events: off unless asked for, each message from end to end, and no loss where there is none."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from tests.auditing import events_of, judge
from tests.harness import FakeClient, World
from tests.nats.talk import connect as nats_connect
from tests.storage.test_streams import StreamWorld, defined

from starlingmq.core.context.ready import Ready
from starlingmq.core.delivery.delivery import Delivery
from starlingmq.core.messages.message import Message
from starlingmq.core.messages.outgoing import Outgoing
from starlingmq.core.observe.message_watch import MessageWatch
from starlingmq.core.reports.event_topics import CENSUS_SECONDS
from starlingmq.core.session.session import Session
from starlingmq.wire.mqtt import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    Ack,
    Publish,
    Suback,
    Subscribe,
    SubscribeRequest,
    Unsubscribe,
)
from starlingmq.wire.properties import RECEIVE_MAXIMUM, SESSION_EXPIRY_INTERVAL
from starlingmq.wire.reasons import Reason

Event = dict[str, Any]


class AuditWorld(StreamWorld):
    """A stream of its own keeps the events, over restarts."""

    def __init__(self, **settings: Any) -> None:
        self.begun = False
        super().__init__(defined("events", ("$events/#",), 7), **settings)
        self.begun = True
        self.run()

    def _open_store(self) -> None:
        super()._open_store()
        self.state.audit.node = "n1"
        if self.begun:
            self.add_streams()

    def carry_out(self, ready: Ready) -> None:
        super().carry_out(ready)
        audit = self.state.ctx.audit
        if audit is not None and (offsets := audit.unnamed()):
            audit.named(self.store.load(offsets))

    def told(self) -> list[Event]:
        self.run()
        return events_of((message.topic.decode(), message.payload) for message in self.kept("events"))

    def census(self) -> list[Event]:
        """All events, and a census after them."""
        self.advance(2 * CENSUS_SECONDS + 0.1)
        return self.told()


def subscribe(client: FakeClient, filter: bytes, qos: int = 0) -> None:
    client.send(Subscribe(1, [SubscribeRequest(filter, qos)]))
    client.expect(Suback)


def lasting(world: World, client_id: str, clean: bool = False, **more: int) -> FakeClient:
    properties: Any = {SESSION_EXPIRY_INTERVAL: 1000}
    if more:
        properties[RECEIVE_MAXIMUM] = more["receive"]
    return world.connect(client_id, clean_start=clean, properties=properties)


def kinds(events: list[Event], client: str | None = None) -> list[str]:
    return [event["kind"] for event in events if client is None or event["client"] == client]


def take_all(client: FakeClient) -> None:
    """Acknowledge all messages until none arrives."""
    while packets := client.receive():
        for packet in packets:
            if isinstance(packet, Publish) and packet.qos:
                client.send(Ack(PUBACK if packet.qos == 1 else PUBREC, packet.packet_id))
            elif isinstance(packet, Ack) and packet.type == PUBREL:
                client.send(Ack(PUBCOMP, packet.packet_id))


def test_nobody_asks_and_nothing_is_told() -> None:
    world = World()
    client = world.connect()
    subscribe(client, b"$events/#")
    subscribe(client, b"a")
    client.send(Publish(b"a", b"x", 1, packet_id=1))
    assert [packet.topic for packet in client.receive() if isinstance(packet, Publish)] == [b"a"]
    assert world.state.ctx.audit is None and world.state.events.due_at == 0.0
    world.state.audit.asked = True
    world.run()
    client.send(Publish(b"a", b"x", 1, packet_id=1))
    topics = [packet.topic for packet in client.receive() if isinstance(packet, Publish)]
    assert topics.count(b"a") == 1 and b"$events/accepted" in topics and b"$events/delivered" in topics
    before = len(client.output)
    world.run()
    assert len(client.output) == before, "events tell of events"
    world.state.audit.asked = False
    world.run()
    assert world.state.ctx.audit is None


def test_a_message_from_end_to_end_at_each_qos() -> None:
    world = AuditWorld()
    reader = lasting(world, "reader")
    subscribe(reader, b"a/#", 2)
    author = world.connect("author")
    for qos in (0, 1, 2):
        author.send(Publish(b"a/%d" % qos, b"x", qos, packet_id=qos))
    author.send(Ack(PUBREL, 2))
    take_all(reader)
    events = world.census()
    names = {event["id"] for event in events if event["id"]}
    assert len(names) == 3 and all(name.startswith("n1:") for name in names)
    for name in names:
        mine = [event for event in events if event["id"] == name]
        assert kinds(mine)[:3] == ["accepted", "due", "delivered"] and mine[0]["client"] == "author"
        assert [event["client"] for event in mine[1:]] == ["reader"] * (2 if mine[0]["qos"] == 0 else 3)
        assert mine[1]["kept"] and len({event["topic"] for event in mine}) == 1
    assert judge(events).clean and kinds(events).count("acknowledged") == 2
    first = events[0]
    assert (first["kind"], first["reason"]) == ("began", "started")


def test_wildcards_do_not_see_events_and_clients_do_not_publish_them() -> None:
    world = AuditWorld()
    reader = world.connect("reader")
    subscribe(reader, b"#")
    author = world.connect("author")
    author.send(Publish(b"$events/accepted", b"lies", 1, packet_id=1))
    assert author.expect(Ack).reason == Reason.NOT_AUTHORIZED
    peer = nats_connect(world)
    peer.send("SUB > 1", "PING")
    assert peer.said("PUB $events.accepted 4", "lies")[-1:] == [
        "-ERR 'Permissions Violation for Publish to \"$events.accepted\"'"
    ]
    assert reader.receive() == []
    refused = [event for event in world.told() if event["kind"] == "refused"]
    assert [(event["client"], event["reason"]) for event in refused] == [
        ("author", "not_authorized"),
        ("$nats/1", "not_authorized"),
    ]


def test_nats_clients_tell_and_are_told_of() -> None:
    world = AuditWorld()
    peer, other = nats_connect(world), nats_connect(world)
    peer.send("SUB $events.delivered 1", "SUB a.b 2", "SUB a.* 3", "PING")
    other.pub("a.b", b"x")
    world.run()
    heard = [message.subject for message in peer.heard() if not isinstance(message, str)]
    assert heard == ["a.b", "a.b", "$events.delivered"]
    events = world.census()
    assert kinds(events, "$nats/1") == ["due", "delivered"] * 2 and judge(events).clean


def test_drops_are_reported_with_their_reason_also_from_the_store() -> None:
    world = AuditWorld(max_mqueue_len=600)
    lasting(world, "away").drop()
    away = lasting(world, "away")
    subscribe(away, b"a", 1)
    away.drop()
    author = world.connect("author")
    for number in range(700):
        author.send(Publish(b"a", b"%d" % number, 1, packet_id=number % 100 + 1))
    events = world.census()
    dropped = [event for event in events if event["kind"] == "dropped"]
    assert len(dropped) == 100 and {event["reason"] for event in dropped} == {"queue_full"}
    accepted = [event["id"] for event in events if event["kind"] == "accepted"]
    assert [event["id"] for event in dropped] == accepted[:100] and judge(events).clean
    world.connect("away")  # a clean start
    events = world.census()
    verdict = judge(events)
    assert verdict.clean and verdict.reasons == {"queue_full": 100, "session_ended": 600}


def test_the_census_knows_what_waits() -> None:
    world = AuditWorld()
    away = lasting(world, "away")
    subscribe(away, b"a", 1)
    away.drop()
    world.connect("author").send(Publish(b"a", b"x", 1, packet_id=1))
    events = world.census()
    assert [event["count"] for event in events if event["kind"] == "waiting" and event["client"] == "away"][-1] == 1
    assert judge(events).clean
    missing = [event for event in events if not (event["kind"] == "waiting" and event["client"])]
    assert judge(missing).lost == {"away": 1}


def test_groups_members_and_those_that_leave() -> None:
    world = AuditWorld()
    members = [lasting(world, f"m{number}") for number in range(2)]
    for member in members:
        subscribe(member, b"$share/g/a", 1)
    peer = nats_connect(world)
    peer.send("SUB a g 1", "PING")
    author = world.connect("author")
    for number in range(30):
        author.send(Publish(b"a", b"x", number % 2, packet_id=number))
    members[0].send(Unsubscribe(2, [b"$share/g/a"]))
    members[0].disconnect()
    world.connect("m0")
    for number in range(30):
        author.send(Publish(b"a", b"x", 1, packet_id=number + 1))
    for member in members:
        member.drop()
    for number in range(30):
        author.send(Publish(b"a", b"x", 1, packet_id=number + 1))
    assert judge(world.census()).clean
    take_all(lasting(world, "m1"))
    events = world.census()
    assert judge(events).clean and kinds(events, "$group/g/a").count("due") >= 90


def life(world: AuditWorld, chance: random.Random) -> None:
    """Run clients that connect, disconnect, publish at every QoS and do not acknowledge, and a broker that crashes."""
    names = ["a", "b", "c"]
    clients: dict[str, FakeClient] = {}
    for step in range(150):
        name = chance.choice(names)
        client = clients.get(name)
        deed = chance.random()
        if deed < 0.02:
            world.advance(1.0)  # a start takes longer than a number for each event
            world.restart()
            clients.clear()
        elif client is None or client.closed:
            clean = chance.random() < 0.2
            clients[name] = client = (
                world.connect(name, clean_start=clean)
                if chance.random() < 0.3
                else lasting(world, name, clean, receive=chance.randint(1, 5))
            )
            if clean or not client.connack.session_present:
                for number, filter in enumerate((b"x/#", b"$share/g/y", b"+/1"), 1):
                    if chance.random() < 0.7:
                        client.send(Subscribe(number, [SubscribeRequest(filter, chance.randint(0, 2))]))
        elif deed < 0.15:
            client.drop()
            del clients[name]
        elif deed < 0.3:
            for _ in range(3):
                take_all(client)
        elif deed < 0.33:
            world.advance(chance.random() * 3)
        else:
            qos = chance.randint(0, 2)
            topic = chance.choice([b"x/1", b"x/2", b"y", b"z"])
            retain = chance.random() < 0.1
            client.send(Publish(topic, b"%d" % step, qos, retain=retain, packet_id=step + 1 if qos else 0))
            if qos == 2 and chance.random() < 0.9:
                client.send(Ack(PUBREL, step + 1))


@pytest.mark.parametrize("seed", range(12))
def test_nothing_wrong_is_said_of_a_broker_that_does_no_wrong(seed: int) -> None:
    world = AuditWorld(max_mqueue_len=8)
    life(world, random.Random(seed))
    verdict = judge(world.census())
    assert verdict.clean, (verdict.lost, verdict.doubled)


@pytest.mark.interpreted_only("compiled classes can not be patched")
@pytest.mark.parametrize("mistake", ["lost", "doubled", "lost in the queue"])
def test_planted_mistakes_are_found(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    offer, pump = Delivery.offer, Delivery.pump

    def offer_wrongly(self: Delivery, session: Session, outgoing: Outgoing, publisher: Session | None) -> None:
        for _ in range({b"7": 0 if mistake == "lost" else 2}.get(outgoing.message.payload, 1)):
            offer(self, session, outgoing, publisher)

    def pump_wrongly(self: Delivery, session: Session) -> None:
        queue = session.queue
        if queue is not None and queue.items and queue.items[0].message.payload == b"7":
            queue.pop()
        pump(self, session)

    if mistake == "lost in the queue":
        monkeypatch.setattr(Delivery, "pump", pump_wrongly)
    else:
        monkeypatch.setattr(Delivery, "offer", offer_wrongly)
    world = AuditWorld()
    reader = lasting(world, "reader", receive=1)
    subscribe(reader, b"a", 2)
    author = world.connect("author")
    for number in range(10):
        author.send(Publish(b"a", b"%d" % number, 2, packet_id=number + 1))
        author.send(Ack(PUBREL, number + 1))
    take_all(reader)
    verdict = judge(world.census())
    if mistake == "doubled":
        assert not verdict.lost and [client for client, _ in verdict.doubled] == ["reader"]
    else:
        assert verdict.lost == {"reader": 1} and not verdict.doubled


def told_by(joining: bool, seed: int) -> tuple[list[Event], int]:
    """The events of bursts, several of them in one turn, and the number of lines that tell them."""
    world = AuditWorld()
    if not joining:
        world.state.audit.watches.append(MessageWatch("", b"none", False, 1))  # a watch has each event by itself
    chance = random.Random(seed)
    readers = [lasting(world, name, receive=20) for name in ("one", "two", 'a "third"')]
    for number, reader in enumerate(readers):
        subscribe(reader, b"a/#", number)
        subscribe(reader, b"$share/g/b", 1)
    author = world.connect("author")
    identifier = 0
    for _ in range(12):
        packets: list[Publish | Ack] = []
        for _ in range(chance.randint(1, 4)):
            topic, qos = chance.choice([b"a/1", b"a/\xc3\xa4", b"b"]), chance.choice([0, 0, 1, 2])
            payload = b"x" * chance.randint(1, 2)
            for _ in range(chance.randint(1, 8)):
                identifier += 1
                packets.append(Publish(topic, payload, qos, packet_id=identifier if qos else 0))
                if qos == 2:
                    packets.append(Ack(PUBREL, identifier))
        author.send_all(packets)
        if chance.random() < 0.5:
            take_all(chance.choice(readers))
        if chance.random() < 0.2:
            world.advance(CENSUS_SECONDS)
        if chance.random() < 0.2:
            readers[0].drop()
            readers[0] = lasting(world, "one", receive=20)
    events = world.census()
    lines = sum(len(msgspec.json.decode(message.payload)["events"]) for message in world.kept("events"))
    assert judge(events).clean
    return events, lines


@pytest.mark.parametrize("seed", range(6))
def test_runs_tell_the_same_as_single_events(seed: int) -> None:
    joined, few = told_by(True, seed)
    single, many = told_by(False, seed)
    assert few < many == len(single) == len(joined)

    def by_message(events: list[Event]) -> dict[str, list[Event]]:
        found: dict[str, list[Event]] = {}
        for event in events:
            if event["kind"] not in ("began", "waiting"):
                found.setdefault(event["id"], []).append({key: event[key] for key in event if key != "n"})
        return found

    assert by_message(joined) == by_message(single)


def test_a_burst_is_one_line_of_each_kind_and_a_census_ends_it() -> None:
    world = AuditWorld()
    reader = lasting(world, "reader")
    subscribe(reader, b"a", 1)
    before = len(world.kept("events"))
    world.connect("author").send_all([Publish(b"a", b"x", 1, packet_id=number) for number in range(1, 41)])
    payloads = [msgspec.json.decode(message.payload) for message in world.kept("events")[before:]]
    (accepted,), (due,), (delivered,) = [batch["events"] for batch in payloads]
    assert [line["run"] for line in (accepted, due, delivered)] == [40, 40, 40]
    assert accepted["n"] < due["n"] < delivered["n"] and accepted["id"] == due["id"] == delivered["id"]
    audit = world.state.audit
    message = Message(b"a", b"x", 0, False, b"", 0.0, "author", world.now)
    audit.identify(message)
    later = message.copy()
    audit.identify(later)
    audit.delivered("reader", message, 0, False)
    census = audit.next_number()
    audit.delivered("reader", later, 0, False)
    world.run()
    first, last = msgspec.json.decode(world.kept("events")[-1].payload)["events"]
    assert first["n"] < census < last["n"] and "run" not in first and "run" not in last
