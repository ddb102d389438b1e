"""Numbered publications: whatever is cut off or crashes, a batch that is tried again is published once, and in order.

A run is a sink that tries its batches until all are acknowledged, beside a broker whose journal is cut within a turn.
At its end a session that was away all the time is asked which messages arrived.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from tests.harness import FakeClient
from tests.storage.memory_engine import MemoryJournal
from tests.storage.world import StoredWorld

from starlingmq.client.producer import LaterEpoch, NotAccepted, ProducerError, ProducerState
from starlingmq.wire.mqtt import Ack, Connack, Connect, Publish, Subscribe, SubscribeRequest, encode
from starlingmq.wire.packets import PUBREL
from starlingmq.wire.producer_properties import ALSO, ALSO_MAX, DIGEST, EPOCH, NEXT, NODE, PRODUCER, digest_of
from starlingmq.wire.properties import RECEIVE_MAXIMUM, SESSION_EXPIRY_INTERVAL, USER_PROPERTY, Properties
from starlingmq.wire.reasons import Reason

SEEDS = 150
TOPIC = b"t/a"


class Torn(Exception):
    """The broker dies here."""


class TornJournal(MemoryJournal):
    """``tear``: how many records of the next append are there when the process dies in the middle of it; -1: all."""

    tear = -1

    def append(self, records: Sequence[bytes]) -> int:
        if self.tear < 0:
            return super().append(records)
        super().append(records[: self.tear])
        raise Torn


class TornWorld(StoredWorld):
    """A broker that dies within a turn, and is there again for the next call."""

    def __init__(self, **settings: Any) -> None:
        self.torn = TornJournal()
        super().__init__(journal=self.torn, **settings)

    def die(self) -> None:
        self.torn.tear = -1
        self.restart()


def join(world: StoredWorld, epoch: int, name: str = "sink/0", username: str | None = None) -> tuple[FakeClient, str]:
    """A connection of a producer, and how many of its messages the broker has."""
    properties: Properties = {USER_PROPERTY: [(PRODUCER, name), (EPOCH, str(epoch))]}
    client = world.connect("", username=username, properties=properties)
    assert client.connack.reason == 0, client.connack.reason
    said = client.connack.properties[USER_PROPERTY]
    assert isinstance(said, list) and isinstance(said[0], tuple) and said[0][0] == NEXT
    return client, said[0][1]


def publish(client: FakeClient, numbers: Sequence[int], epoch: int, qos: int = 1, text: bytes = b"") -> list[int]:
    """Publish these rows at once; the reason codes of what was acknowledged, PUBREC or PUBACK."""
    packets = [Publish(TOPIC, b"%d %d %b" % (epoch, n, text), qos, False, False, n + 1 if qos else 0) for n in numbers]
    client.send_all(packets)
    return [packet.reason for packet in client.receive() if isinstance(packet, Ack)]


def reader(world: StoredWorld, filter: bytes = b"t/#") -> FakeClient:
    lasting: Properties = {SESSION_EXPIRY_INTERVAL: 0xFFFFFFFF, RECEIVE_MAXIMUM: 65_535}
    client = world.connect("reader", clean_start=False, properties=lasting)
    if not client.connack.session_present:
        client.send(Subscribe(1, [SubscribeRequest(filter, 2)]))
        client.receive()
    return client


def came(world: StoredWorld) -> list[bytes]:
    """The messages that the absent session finds."""
    return [packet.payload for packet in reader(world).receive() if isinstance(packet, Publish)]


FINE = (0, Reason.NO_MATCHING_SUBSCRIBERS)


def test_a_repeated_publication_is_acknowledged_and_delivered_once() -> None:
    world = StoredWorld()
    reader(world).drop()
    client, here = join(world, 7)
    assert here == "0" and publish(client, range(5), 7) == [0] * 5
    again, here = join(world, 7)
    assert here == "5", "whoever comes back is told"
    assert publish(again, range(5, 8), 7) == [0] * 3
    assert publish(client, range(5, 9), 7) == [0] * 4, "one that was slow says it as well: only the last is new"
    assert world.dropped["published_again"] == 3
    late, here = join(world, 6)
    assert here == "done" and publish(late, range(2), 6) == [Reason.PAYLOAD_FORMAT_INVALID] * 2
    later, here = join(world, 8)
    assert here == "0" and publish(later, range(2), 8) == [0, 0]
    assert came(world) == [b"7 %d " % n for n in range(9)] + [b"8 0 ", b"8 1 "]


def test_nothing_is_left_out() -> None:
    world = StoredWorld(max_packet_size=1000)
    reader(world).drop()
    client, _ = join(world, 0)
    world.state.ctx.refusing = True
    refused = publish(client, range(2), 0)
    world.state.ctx.refusing = False
    assert refused == [Reason.QUOTA_EXCEEDED] * 2
    assert publish(client, range(2, 4), 0) == [Reason.IMPLEMENTATION_SPECIFIC_ERROR] * 2
    client, here = join(world, 0)
    assert here == "0" and publish(client, range(4), 0) == [0] * 4
    assert came(world) == [b"0 %d " % n for n in range(4)]


def test_other_messages_under_the_same_numbers_are_found_out() -> None:
    world = StoredWorld()
    first, _ = join(world, 0)
    second, _ = join(world, 0)
    assert publish(first, range(3), 0)[2] in FINE
    assert publish(second, range(3), 0, text=b"other")[2] == Reason.PAYLOAD_FORMAT_INVALID
    digest = 0
    for number in range(3):
        digest = digest_of(digest, TOPIC, b"0 %d " % number, False)
    third = world.connect("", properties={USER_PROPERTY: [(PRODUCER, "sink/0"), (EPOCH, "0")]})
    told = third.connack.properties[USER_PROPERTY]
    assert isinstance(told, list) and told[:2] == [(NEXT, "3"), (DIGEST, f"{digest:08x}")]


def attempt(
    world: StoredWorld, epoch: int, rows: Sequence[int], qos: int = 1, retain: bool = False, also: Sequence[str] = ()
) -> ProducerState:
    """Publish these rows as a sink does. Raises what the sink raises."""
    sink = ProducerState("sink/0", epoch, qos, also=also)
    client = world.open()
    sink.connection_made()
    for number in rows:
        sink.offer(TOPIC, b"%d %d " % (epoch, number), retain, b"")
    exchange(client, sink)
    sink.finish()
    exchange(client, sink)
    assert sink.done
    return sink


def exchange(client: FakeClient, sink: ProducerState) -> None:
    """Exchange packets until neither side has more to send."""
    heard = len(client.output)
    while data := sink.take():
        client.send(data)
        sink.receive(client.output[heard:])
        heard = len(client.output)


def test_what_the_broker_has_and_an_attempt_does_not_publish_is_an_error() -> None:
    world = StoredWorld()
    assert attempt(world, 3, range(5)).published == 5
    assert attempt(world, 3, range(7)).published == 2
    with pytest.raises(ProducerError, match="published 7 messages, this one has 4"):
        attempt(world, 3, range(4))
    with pytest.raises(LaterEpoch, match="sink/0: the broker has messages of a later batch than 2"):
        attempt(world, 2, range(9))
    with pytest.raises(ProducerError, match="the first 7 messages of sink/0 differ"):
        attempt(world, 3, range(9), retain=True)
    assert attempt(world, 4, range(2)).published == 2


def test_an_attempt_that_is_overtaken_learns_of_it() -> None:
    for qos in (1, 2):
        world = StoredWorld()
        slow = ProducerState("sink/0", 1, qos, window=2)
        client = world.open()
        slow.connection_made()
        for number in range(5):
            slow.offer(TOPIC, b"1 %d " % number, False, b"")
        exchange_once(client, slow)
        attempt(world, 2, range(3), qos)
        with pytest.raises((ProducerError, NotAccepted)):
            exchange(client, slow)
        client = world.open()
        slow.connection_lost()
        slow.connection_made()
        with pytest.raises(LaterEpoch):
            exchange(client, slow)


def exchange_once(client: FakeClient, sink: ProducerState) -> None:
    """CONNECT and CONNACK only."""
    heard = len(client.output)
    client.send(sink.take())
    sink.receive(client.output[heard:])


def test_a_producer_is_told_of_others() -> None:
    world = StoredWorld()
    attempt(world, 3, range(5))
    client = world.connect(
        "", properties={USER_PROPERTY: [(PRODUCER, "sink/1"), (EPOCH, "3"), (ALSO, "sink/0"), (ALSO, "sink/2")]}
    )
    told = client.connack.properties[USER_PROPERTY]
    assert isinstance(told, list) and told[3:] == [(ALSO, "5 sink/0"), (ALSO, "0 sink/2")]
    for epoch, number in ((2, "done"), (4, "0")):
        pairs = [(PRODUCER, "sink/1"), (EPOCH, str(epoch)), (ALSO, "sink/0")]
        told = world.connect("", properties={USER_PROPERTY: pairs}).connack.properties[USER_PROPERTY]
        assert isinstance(told, list) and told[3:] == [(ALSO, f"{number} sink/0")]
    other = world.connect("", username="other", properties={USER_PROPERTY: [*pairs[:1], (EPOCH, "3"), *pairs[2:]]})
    told = other.connack.properties[USER_PROPERTY]
    assert isinstance(told, list) and told[3:] == [(ALSO, "0 sink/0")], "a name belongs to a user"


def test_another_node_is_not_published_to() -> None:
    world = StoredWorld()
    world.state.publishing.producers.node = "n2"
    client, _ = join(world, 0)
    told = client.connack.properties[USER_PROPERTY]
    assert isinstance(told, list) and told[2] == (NODE, "n2")
    connack = encode(Connack(False, 0, client.connack.properties), 5)
    for wanted in ("", "n2"):
        state = ProducerState("sink/0", 0, 1, node=wanted)
        state.connection_made()
        state.receive(connack)
        assert state.connected and state.node == "n2", "the first that answers, from then on"
    state = ProducerState("sink/0", 0, 1, node="n1")
    state.connection_made()
    with pytest.raises(NotAccepted, match="this is node n2, but n1 stores the sequence numbers of sink/0"):
        state.receive(connack)


def test_qos_2_counts_when_it_goes_its_way() -> None:
    world = StoredWorld()
    reader(world).drop()
    first, _ = join(world, 0)
    publish(first, range(3), 0, qos=2)
    first.send_all([Ack(PUBREL, 1), Ack(PUBREL, 2)])
    first.drop()
    second, here = join(world, 0)
    assert here == "2" and publish(second, range(2, 4), 0, qos=2) == [0, 0]
    second.send(Ack(PUBREL, 4))
    (refused,) = second.receive()
    assert isinstance(refused, Ack) and refused.reason == Reason.PACKET_IDENTIFIER_NOT_FOUND, "3 goes before 4"
    second.send(Ack(PUBREL, 3))
    assert came(world) == [b"0 0 ", b"0 1 ", b"0 2 "]


def test_qos_0_goes_on_after_what_was_lost() -> None:
    world = StoredWorld()
    reader(world).drop()
    client, _ = join(world, 0)
    world.state.ctx.quotas.short_of_memory = True
    publish(client, [0], 0, qos=0)
    world.state.ctx.quotas.short_of_memory = False
    publish(client, [1, 2], 0, qos=0)
    assert join(world, 0)[1] == "3" and came(world) == [b"0 1 ", b"0 2 "]


def test_a_name_is_one_users_and_forgotten_in_time() -> None:
    world = StoredWorld(producers=2, producer_expiry=100.0)
    publish(join(world, 0, username="ann")[0], range(2), 0)
    assert join(world, 0, username="bob")[1] == "0"
    third = world.open()
    third.send(Connect(5, "c", properties={USER_PROPERTY: [(PRODUCER, "third"), (EPOCH, "0")]}))
    assert third.expect(Connack).reason == Reason.QUOTA_EXCEEDED and third.closed
    world.restart()
    assert join(world, 0, username="ann")[1] == "2"
    world.advance(90.0)
    world.checkpoint()
    world.restart()
    assert join(world, 0, username="ann")[1] == "2"
    world.advance(200.0)
    world.run()
    world.restart()
    assert not world.state.publishing.producers.by_key
    assert join(world, 0, username="ann")[1] == "0"


def test_a_client_that_may_reach_another_node_is_refused_as_producer() -> None:
    world = StoredWorld()
    world.state.publishing.producers.shared = True
    client = world.open()
    client.send(Connect(5, "", properties={USER_PROPERTY: [(PRODUCER, "sink/0"), (EPOCH, "0")]}))
    assert client.expect(Connack).reason == Reason.QUOTA_EXCEEDED and client.closed


def test_a_producer_has_no_session_that_lasts() -> None:
    world = StoredWorld()
    said: Properties = {USER_PROPERTY: [(PRODUCER, "sink/0"), (EPOCH, "0")]}
    for clean_start, more in ((False, said), (True, said | {SESSION_EXPIRY_INTERVAL: 10})):
        client = world.open()
        client.send(Connect(5, "c", clean_start, properties=more))
        assert client.expect(Connack).reason == Reason.PROTOCOL_ERROR and client.closed


MANY_OTHERS = [(PRODUCER, "a"), (EPOCH, "1"), *[(ALSO, "b")] * (ALSO_MAX + 1)]


@pytest.mark.parametrize(
    "said", [[(PRODUCER, "a")], [(PRODUCER, "a"), (EPOCH, "-1")], [(PRODUCER, "a" * 257)], MANY_OTHERS]
)
def test_a_producer_that_makes_no_sense_is_refused(said: list[tuple[str, str]]) -> None:
    client = StoredWorld().open()
    client.send(Connect(5, "c", properties={USER_PROPERTY: said}))
    assert client.expect(Connack).reason == Reason.PROTOCOL_ERROR and client.closed


class Life:
    """``qos``: of all that the sink publishes; in a life they are not mixed, as in a sink."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.qos = self.random.choice((1, 1, 2))
        self.world = TornWorld(checkpoint_bytes=self.random.choice((500, 1 << 30)))
        self.deaths = 0
        reader(self.world).drop()

    def batch(self, epoch: int, rows: int) -> None:
        """Try until the broker has the whole batch: from the start, or on a new connection."""
        chance = self.random
        sink = ProducerState("sink/0", epoch, self.qos, window=5)
        offered = 0
        for _ in range(500):
            if self.attempt(sink, offered, rows):
                return
            sink.connection_lost()
            offered = sink.offered
            if chance.random() < 0.5:
                sink, offered = ProducerState("sink/0", epoch, self.qos, window=5), 0
        raise AssertionError("a batch is never done")

    def attempt(self, sink: ProducerState, offered: int, rows: int) -> bool:
        chance = self.random
        client = self.world.open()
        sink.connection_made()
        try:
            exchange(client, sink)
            while not sink.done:
                for number in range(offered, min(rows, offered + chance.randint(1, 8))):
                    sink.offer(TOPIC, b"%d %d " % (sink.epoch, number), False, b"")
                    offered = number + 1
                if offered == rows:
                    sink.finish()
                if chance.random() < 0.3:
                    self.world.torn.tear = chance.randint(0, 5)
                sink.pump()
                exchange(client, sink)
                if chance.random() < 0.1:
                    client.drop()
                    return False
                if chance.random() < 0.1:
                    self.world.checkpoint()
                    self.world.restart()
                    return False
        except Torn:
            self.deaths += 1
            self.world.die()
            return False
        finally:
            self.world.torn.tear = -1
        return chance.random() < 0.8  # or the sink dies before it has said so, and all is tried again


def live(seed: int) -> int:
    life = Life(seed)
    wanted: list[bytes] = []
    for epoch in range(3):
        rows = life.random.randint(0, 40)
        life.batch(epoch, rows)
        wanted += [b"%d %d " % (epoch, number) for number in range(rows)]
    if life.random.random() < 0.5:
        life.world.restart()
    assert came(life.world) == wanted, f"seed {seed}"
    return life.deaths


def test_lives() -> None:
    deaths = sum(live(seed) for seed in range(SEEDS))
    assert deaths > SEEDS, "they die in them"
