"""Streams: what is put into them, what survives, what may be read, and what is refused when they are full."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nats.talk import Msg, NatsPeer
from tests.storage import stream_lives
from tests.storage.memory_engine import MemoryJournal
from tests.storage.simfs import SimFiles
from tests.storage.world import StoredWorld

from starlingmq.core.messages.message import Message
from starlingmq.core.topics.topics import matches
from starlingmq.storage.records import decode_message, encode_message
from starlingmq.storage.segment.segment_journal import SegmentJournal
from starlingmq.storage.streams.stream_consumers import Consumer, read_consumers
from starlingmq.storage.streams.stream_definition import Definition
from starlingmq.storage.streams.stream_logs import StreamLog
from starlingmq.wire.mqtt import PUBREL, Ack, Disconnect, Publish
from starlingmq.wire.reasons import Reason


class MemoryLog(MemoryJournal):
    def skip_to(self, offset: int) -> None:
        raise NotImplementedError

    def cut_to(self, offset: int) -> None:
        raise NotImplementedError

    def go_on_at(self, offset: int) -> None:
        raise NotImplementedError

    def thin(self, first: int, keeps: Callable[[int], bool]) -> bool:
        raise NotImplementedError

    def roll(self) -> None:
        pass


class StreamWorld(StoredWorld):
    """Has streams, which outlive its restarts."""

    def __init__(self, *definitions: Definition, **settings: Any) -> None:
        self.definitions = definitions
        self.logs = {definition.name: MemoryLog() for definition in definitions}
        super().__init__(**settings)
        self.add_streams()

    def add_streams(self) -> None:
        for definition in self.definitions:
            log = StreamLog(definition, self.logs[definition.name])
            self.store.streams.add(log)
            self.state.router.add_stream(log.stream)

    def kept(self, name: str = "s") -> list[Message]:
        journal = self.logs[name]
        return [decode_message(record) for _, record in journal.read(0, 1 << 20, 1 << 30)]

    def payloads(self, name: str = "s") -> list[bytes]:
        return [message.payload for message in self.kept(name)]


def defined(name: str = "s", topics: tuple[str, ...] = ("#",), number: int = 1, **settings: Any) -> Definition:
    return Definition(name=name, number=number, topics=topics, **settings)


@pytest.mark.parametrize("seed", range(2_000_000, 2_000_025))
def test_lives(seed: int) -> None:
    stream_lives.run(seed)


def test_a_stream_keeps_what_it_wants_with_all_that_is_known_of_it() -> None:
    world = StreamWorld(defined(topics=("a/+", "b")))
    client = world.connect("author")
    client.send(Publish(b"a/1", b"one", 1, retain=True, packet_id=1, properties=b"\x26\x00\x01k\x00\x01v"))
    client.send(Publish(b"c", b"no", 1, packet_id=2))
    client.send(Publish(b"b", b"two", 0))
    first, second = world.kept()
    assert (first.topic, first.payload, first.qos, first.retain, first.publisher) == (b"a/1", b"one", 1, True, "author")
    assert first.properties and first.published_at == world.now
    assert (second.topic, second.payload, second.qos) == (b"b", b"two", 0)


def test_a_puback_of_a_message_that_only_a_stream_has_is_plain_success() -> None:
    client = StreamWorld(defined()).connect()
    client.send(Publish(b"a", b"", 1, packet_id=1))
    assert client.expect(Ack).reason == 0


def test_overlapping_filters_keep_a_message_once_and_two_streams_each_keep_it() -> None:
    world = StreamWorld(defined(topics=("a/#", "a/b", "+/b")), defined("t", ("a/b",), 2))
    world.connect().send(Publish(b"a/b", b"x", 1, packet_id=1))
    assert world.payloads() == world.payloads("t") == [b"x"]


def test_qos_2_is_kept_at_pubrel_once() -> None:
    world = StreamWorld(defined())
    client = world.connect("author", properties={0x11: 100})
    client.send(Publish(b"a", b"x", 2, packet_id=1))
    client.send(Publish(b"a", b"x", 2, packet_id=1, dup=True))
    assert world.payloads() == []
    client.send(Ack(PUBREL, 1))
    client.send(Ack(PUBREL, 1))
    assert world.payloads() == [b"x"]


@given(
    st.lists(st.sampled_from(["a", "a/b", "+", "a/#", "#", "$x/#", "b/+"]), min_size=1, max_size=4),
    st.lists(st.tuples(st.sampled_from([b"a", b"a/b", b"b/c", b"$x/y"]), st.integers(0, 2)), max_size=20),
)
@settings(max_examples=40, deadline=None)
def test_like_a_list_of_what_matches(filters: list[str], messages: list[tuple[bytes, int]]) -> None:
    world = StreamWorld(defined(topics=tuple(filters)))
    client = world.connect()
    wanted = []
    for number, (topic, qos) in enumerate(messages, 1):
        client.send(Publish(topic, b"%d" % number, qos, packet_id=number if qos else 0))
        if qos == 2:
            client.send(Ack(PUBREL, number))
        if any(matches(filter.encode(), topic) for filter in filters):
            wanted.append(b"%d" % number)
    assert world.payloads() == wanted
    assert world.store.streams.find("s") is not None


def test_a_full_stream_refuses() -> None:
    world = StreamWorld(defined(topics=("a/#",), retention_size=300, when_full="refuse"))
    client, old = world.connect(), world.connect("old", 4)
    number = 1
    while world.logs["s"].size < 300:
        client.send(Publish(b"a/1", bytes(50), 1, packet_id=number))
        assert client.expect(Ack).reason == 0
        number += 1
    kept = len(world.kept())
    client.send(Publish(b"a/1", b"x", 1, packet_id=50))
    assert client.expect(Ack).reason == Reason.QUOTA_EXCEEDED
    client.send(Publish(b"a/1", b"x", 2, packet_id=51))
    assert client.expect(Ack).reason == Reason.QUOTA_EXCEEDED
    client.send(Publish(b"a/1", b"x", 0))
    client.send(Publish(b"b", b"x", 1, packet_id=52))
    assert client.expect(Ack).reason == 0x10
    old.send(Publish(b"a/1", b"x", 1, packet_id=1))
    assert old.closed and not [packet for packet in old.receive() if not isinstance(packet, Disconnect)]
    assert len(world.kept()) == kept
    assert world.dropped["stream_full"] == 3
    world.logs["s"].trim(kept)
    world.store.streams.weigh()
    client.send(Publish(b"a/1", b"x", 1, packet_id=53))
    assert client.expect(Ack).reason == 0
    assert world.state.ctx.full_streams == 0


def test_a_deleted_stream_stores_nothing_more() -> None:
    world = StreamWorld(defined())
    log = world.store.streams.find("s")
    assert log is not None
    client = world.connect()
    world.state.router.remove_stream(log.stream)
    world.store.streams.remove(log)
    client.send(Publish(b"a", b"x", 1, packet_id=1))
    assert client.expect(Ack).reason == 0x10
    assert world.payloads() == []


@pytest.mark.parametrize("seed", range(30))
def test_a_log_is_cut_to_an_offset_and_goes_on_there(seed: int) -> None:
    random = Random(seed)
    files = SimFiles()
    journal = SegmentJournal("/log", files, segment_bytes=300)
    twin: list[bytes] = []
    for _ in range(random.randint(1, 12)):
        records = [b"%d" % random.randrange(10**9) * random.randint(1, 9) for _ in range(random.randint(1, 4))]
        journal.append(records)
        twin += records
    for _ in range(3):
        offset = random.randint(0, len(twin))
        journal.cut_to(offset)
        del twin[offset:]
        assert journal.next == offset
        more = [b"more %d" % random.randrange(100)]
        journal.append(more)
        twin += more
        if random.random() < 0.5:
            journal.close()
            journal = SegmentJournal("/log", files, segment_bytes=300)
        assert [record for _, record in journal.read(0, 1000, 1 << 20)] == twin
        assert not [damage for damage in journal.damage if damage.lost]


def test_retention_by_age_waits_for_who_pins_and_retention_by_size_does_not() -> None:
    record = encode_message(Message(b"a", bytes(100), 1, False, b"", 0.0, "", 0.0))

    def log(**settings: Any) -> StreamLog:
        files = SimFiles()
        journal = SegmentJournal("/log", files, segment_bytes=500)
        for _ in range(40):
            journal.append([record])
        return StreamLog(defined(**settings), journal)

    by_age, by_size = log(retention_time=10.0), log(retention_size=2000)
    both = log(retention_time=9.0, retention_size=2000)
    now = 1_000_100.0
    assert by_age.cutoff(now) > 30
    by_age.consumers.heard(Consumer("slow", 7, now, True, now + 1))
    assert by_age.cutoff(now) == 7
    assert by_age.cutoff(now + 2) > 30, "it was not heard of for too long"
    for one in (by_size, both):
        one.consumers.heard(Consumer("slow", 7, now, True, now + 1))
        assert one.cutoff(now) > 20


def test_consumers_are_known_again(tmp_path: Path) -> None:
    consumers = read_consumers(tmp_path / "CONSUMERS")
    consumers.heard(Consumer("one", 5, 1.0, True, 9.0))
    assert read_consumers(tmp_path / "CONSUMERS").by_name == {"one": Consumer("one", 5, 1.0, True, 9.0)}
    (tmp_path / "CONSUMERS").write_bytes(b"{")
    assert read_consumers(tmp_path / "CONSUMERS").by_name == {}


def test_messages_of_nats_clients_are_stored_and_refused_alike() -> None:
    world = StreamWorld(defined(topics=("a/#",), retention_size=120, when_full="refuse"))
    peer = NatsPeer(world)
    assert peer.said('CONNECT {"verbose":true,"headers":true,"no_responders":true}') == ["+OK"]
    assert peer.said("PUB a.b 2", "hi") == ["+OK"]
    (kept,) = world.kept()
    assert (kept.topic, kept.payload, kept.qos) == (b"a/b", b"hi", 1)
    answer = peer.said("SUB r 1", "PUB a.b r 1", "x")[-1]
    assert isinstance(answer, Msg) and answer.headers, "a stream is no responder"
    peer.said("PUB a.b 80", "y" * 80)
    assert peer.said("PUB a.b 1", "z") == ["-ERR 'Permissions Violation for Publish to \"a.b\": Stream Is Full'"]
    assert len(world.kept()) == 3
