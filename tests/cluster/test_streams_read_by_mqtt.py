"""MQTT sessions that read streams of other nodes: each message once and in order, whatever is lost on the way."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cluster.fleet import Fleet
from tests.cluster.stream_disk import DiskFleet
from tests.cluster.stream_fleet import JetStreamPeer, StreamFleet
from tests.cluster.test_streams_across_nodes import seen_by_all
from tests.core.streams.stream_world import PUBACK, offset_of, users
from tests.core.streams.test_stream_readers import rights
from tests.harness import FakeClient

from starlingmq.core.jetstream.far_readers import AGAIN_SECONDS
from starlingmq.wire.mqtt import Ack, Publish, Suback, Subscribe, SubscribeRequest, Unsubscribe
from starlingmq.wire.properties import (
    REASON_STRING,
    RECEIVE_MAXIMUM,
    SESSION_EXPIRY_INTERVAL,
    USER_PROPERTY,
    Properties,
)


class Reader:
    """An MQTT client that acknowledges what it gets, unless it is told not to."""

    def __init__(self, fleet: Fleet, place: int, client_id: str = "r", window: int = 1000) -> None:
        properties: Properties = {SESSION_EXPIRY_INTERVAL: 1000, RECEIVE_MAXIMUM: window}
        self.fleet = fleet
        self.fake: FakeClient = fleet.connect(place, client_id, clean_start=False, properties=properties)
        self.got: list[Publish] = []
        self.acknowledges = True
        self.suback: Suback | None = None

    def subscribe(self, filter: str, qos: int = 1, **start: str) -> Suback:
        properties: Properties = {USER_PROPERTY: list(start.items())} if start else {}
        self.suback = None
        self.fake.send(Subscribe(1, [SubscribeRequest(filter.encode(), qos)], properties))
        for _ in range(100):
            self.look()
            if self.suback is not None:
                return self.suback
            self.fleet.advance(0.02)
        raise AssertionError("no SUBACK")

    def look(self) -> None:
        for packet in self.fake.receive():
            if isinstance(packet, Suback):
                self.suback = packet
            elif isinstance(packet, Publish):
                self.got.append(packet)
                if packet.qos != 0 and self.acknowledges:
                    self.fake.send(Ack(PUBACK, packet.packet_id))

    def acknowledge(self) -> None:
        """All that it has got, and all that comes."""
        self.acknowledges = True
        for each in self.got:
            self.fake.send(Ack(PUBACK, each.packet_id))

    def read(self, seconds: float = 1.0) -> list[int]:
        """The offsets of all that it has got."""
        end = self.fleet.now + seconds
        while self.fleet.now < end:
            self.look()
            self.fleet.advance(0.02)
        self.look()
        return [offset_of(each) for each in self.got]


def world(fleet: StreamFleet, count: int = 5, **config: Any) -> JetStreamPeer:
    """A stream S at the first node, with messages of ``s/a`` and ``s/b`` in turns."""
    home = JetStreamPeer(fleet, 0)
    assert "error" not in home.make("S", "s.>", **config)
    seen_by_all(fleet, "S")
    fill(home, count)
    return home


def fill(peer: JetStreamPeer, count: int) -> None:
    for number in range(count):
        assert peer.ask("s.a" if number % 2 == 0 else "s.b", b"%d" % number) is not None


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ({"earliest": ""}, [1, 2, 3, 4, 5, 6, 7]),
        ({"latest": ""}, [5, 6, 7]),
        ({"offset": "3"}, [3, 4, 5, 6, 7]),
        ({}, [6, 7]),
    ],
)
def test_a_client_reads_a_stream_of_another_node(qos: int, start: dict[str, str], expected: list[int]) -> None:
    fleet = StreamFleet(3)
    home = world(fleet)
    reader = Reader(fleet, 1)
    assert reader.subscribe("$stream/S", qos, **start).reasons == [qos]
    reader.read()
    fill(home, 2)
    assert reader.read() == expected
    assert {each.topic for each in reader.got} <= {b"s/a", b"s/b"}


def test_clients_of_the_home_and_of_others_read_by_a_filter_within_the_stream() -> None:
    fleet = StreamFleet(3)
    world(fleet)
    readers = [Reader(fleet, place, f"r{place}") for place in range(3)]
    for reader in readers:
        assert reader.subscribe("$stream/S@earliest/s/b").reasons == [1]
    assert [reader.read() for reader in readers] == [[2, 4]] * 3


def test_what_does_not_exist_is_refused() -> None:
    fleet = StreamFleet(2)
    world(fleet)
    reader = Reader(fleet, 1)
    assert reader.subscribe("$stream/other").reasons == [0x8F]
    answer = reader.subscribe("$share/g/$queue/S")
    assert answer.reasons == [0x8F] and "without $share" in str(answer.properties[REASON_STRING])


def test_receive_maximum_is_the_flow_control() -> None:
    fleet = StreamFleet(2)
    world(fleet, 30)
    reader = Reader(fleet, 1, window=4)
    reader.acknowledges = False
    reader.subscribe("$stream/S@earliest")
    assert reader.read() == [1, 2, 3, 4]
    reader.acknowledge()
    assert reader.read(3.0) == list(range(1, 31))


def test_the_position_moves_with_the_session() -> None:
    fleet = StreamFleet(3)
    home = world(fleet)
    reader = Reader(fleet, 1)
    reader.subscribe("$stream/S@earliest")
    assert reader.read() == [1, 2, 3, 4, 5]
    reader.fake.drop()
    fill(home, 2)
    for place, expected in ((2, [6, 7]), (0, [8, 9]), (1, [10, 11])):  # another node, the home, and back
        reader = Reader(fleet, place)
        assert reader.read(3.0) == expected
        if place != 1:
            reader.fake.drop()
        fill(home, 2)
    assert reader.read() == [10, 11, 12, 13]
    reader.fake.send(Unsubscribe(2, [b"$stream/S@earliest"]))
    fleet.advance(0.2)
    fill(home, 2)
    assert reader.read() == [10, 11, 12, 13]
    assert fleet[0].cluster.streams.reads.nodes() == set()


def test_a_link_that_is_cut_costs_time_only() -> None:
    fleet = StreamFleet(3)
    home = world(fleet)
    reader = Reader(fleet, 1)
    reader.subscribe("$stream/S@earliest")
    assert reader.read() == [1, 2, 3, 4, 5]
    fleet.cut(1, 2)
    fill(home, 3)
    reader.read()
    fleet.heal()
    assert reader.read(5.0) == list(range(1, 9))


@pytest.mark.interpreted_only("what is compiled cannot be patched")
@pytest.mark.parametrize("lost", ["ReadAsked", "ReadShown"])
def test_a_frame_that_is_lost_is_asked_for_again(lost: str) -> None:
    fleet = StreamFleet(2)
    home = world(fleet)
    outbox = fleet[0 if lost == "ReadShown" else 1].cluster.streams.outbox
    add = outbox.add
    lose = [False, True, False, False, True, True]

    def lossy(node: int, frame: Any, stored: bool = False) -> None:
        if type(frame).__name__ != lost or not lose or not lose.pop(0):
            add(node, frame, stored)

    vars(outbox)["add"] = lossy
    reader = Reader(fleet, 1)
    reader.subscribe("$stream/S@earliest")
    reader.read(AGAIN_SECONDS * 3 + 1)
    fill(home, 2)
    assert reader.read(AGAIN_SECONDS * 6 + 1) == list(range(1, 8))
    assert True not in lose


def test_a_home_that_is_killed_and_served_again_goes_on() -> None:
    fleet = DiskFleet(3)
    world(fleet, storage="file")
    reader = Reader(fleet, 1)
    reader.subscribe("$stream/S@earliest")
    queue = Reader(fleet, 2, "q")
    assert queue.subscribe("$queue/S").reasons == [1]
    assert reader.read() == [1, 2, 3, 4, 5] == queue.read()
    fleet.kill("n1")
    fleet.advance(10.0)
    fleet.serve("n1")
    fleet.advance(10.0)
    fill(JetStreamPeer(fleet, 1), 3)
    assert reader.read(15.0) == list(range(1, 9))
    assert sorted(set(queue.read(40.0))) == list(range(1, 9))


def test_a_deleted_stream_ends_the_subscriptions_everywhere() -> None:
    fleet = StreamFleet(3)
    home = world(fleet)
    readers = [Reader(fleet, place, f"r{place}") for place in range(3)]
    for reader in readers:
        reader.subscribe("$stream/S@earliest")
        reader.read()
    assert home.api("STREAM.DELETE.S")["success"]
    fleet.advance(2.0)
    for place, reader in enumerate(readers):
        assert list(fleet[place].state.ctx.sessions[reader.fake.client_id].subscriptions()) == []
    assert fleet[0].cluster.streams.reads.nodes() == set()


def test_messages_that_were_removed_are_counted() -> None:
    fleet = StreamFleet(2)
    home = world(fleet)
    reader = Reader(fleet, 1, window=1)
    reader.acknowledges = False
    reader.subscribe("$stream/S@earliest")
    assert reader.read() == [1]
    assert home.api("STREAM.PURGE.S", {"seq": 5})["purged"] == 4
    reader.acknowledge()
    assert reader.read(3.0) == [1, 5]
    assert fleet[1].state.ctx.sessions["r"].dropped == 3


def test_members_of_a_queue_at_all_nodes_compete_and_acknowledge() -> None:
    fleet = StreamFleet(3)
    home = world(fleet, 0)
    members = [Reader(fleet, place, f"m{place}") for place in range(3)]
    for member in members:
        assert member.subscribe("$queue/S").reasons == [1]
    fleet.advance(1.0)
    fill(home, 30)
    found = [member.read() for member in members]
    assert sorted([*found[0], *found[1], *found[2]]) == list(range(1, 31)), "each message went to one member"
    info = home.api("CONSUMER.INFO.S.mqtt-queue")
    assert (info["num_ack_pending"], info["ack_floor"]["stream_seq"]) == (0, 30)


def test_members_at_the_home_take_turns_with_those_elsewhere() -> None:
    fleet = StreamFleet(3)
    home = world(fleet, 0)
    members = [Reader(fleet, place, f"m{place}") for place in range(3)]
    for member in members:
        member.subscribe("$queue/S")
    fleet.advance(1.0)
    for _ in range(12):  # one by one, while requests of the other nodes are open
        fill(home, 1)
    assert [len(member.read()) for member in members] == [4, 4, 4]


def test_a_member_that_is_away_or_refuses_leaves_its_messages_to_others() -> None:
    fleet = StreamFleet(3)
    home = world(fleet, 0)
    away = Reader(fleet, 1, "away")
    away.acknowledges = False
    away.subscribe("$queue/S")
    fill(home, 3)
    assert away.read() == [1, 2, 3]
    away.fake.drop()
    other = Reader(fleet, 2, "other")
    other.subscribe("$queue/S")
    assert other.read(5.0) == []
    assert sorted(other.read(40.0)) == [1, 2, 3], "ack_wait was over"
    assert users(other.got[0])["deliveries"] == "2"
    assert home.api("CONSUMER.INFO.S.mqtt-queue")["num_ack_pending"] == 0
    other.fake.drop()
    refusing = Reader(fleet, 1, "refusing")
    refusing.acknowledges = False
    refusing.subscribe("$queue/S")
    fill(home, 1)
    refusing.read()
    refusing.fake.send(Ack(PUBACK, refusing.got[0].packet_id, 0x80))
    refusing.acknowledges = True
    assert refusing.read(5.0) == [4, 4]


def test_a_slow_session_of_a_queue_gets_no_more_than_it_can_take() -> None:
    fleet = StreamFleet(2)
    home = world(fleet, 0)
    slow = Reader(fleet, 1, window=2)
    slow.acknowledges = False
    slow.subscribe("$queue/S")
    fill(home, 6)
    assert slow.read() == [1, 2]
    assert home.api("CONSUMER.INFO.S.mqtt-queue")["num_ack_pending"] == 2
    slow.acknowledge()
    assert slow.read(3.0) == [1, 2, 3, 4, 5, 6]


def test_the_looks_at_all_readings_are_few() -> None:
    fleet = StreamFleet(2)
    world(fleet, 0)
    reader = Reader(fleet, 1)
    for number in range(20):
        reader.subscribe(f"$stream/S/s/{number}")
        fleet.advance(0.3)
    readers = fleet[1].state.jetstream.reads.far_readers
    planned: set[float] = set()
    end = fleet.now + AGAIN_SECONDS
    while fleet.now < end:
        planned.add(readers.due_at)
        fleet.advance(0.02)
    assert len(planned) <= AGAIN_SECONDS + 2


def asked_in(fleet: StreamFleet, seconds: float) -> int:
    """Number of the requests that the home, the first node, gets meanwhile."""
    reads = fleet[0].cluster.streams.reads
    asked, count = reads.asked, [0]

    def counted(node: int, frame: Any, now: float) -> None:
        count[0] += 1
        asked(node, frame, now)

    vars(reads)["asked"] = counted
    fleet.advance(seconds)
    del vars(reads)["asked"]
    return count[0]


@pytest.mark.interpreted_only("what is compiled cannot be patched")
@pytest.mark.parametrize("filter", ["$stream/S", "$queue/S"])
def test_a_reading_of_a_stream_without_news_asks_less_and_less_often(filter: str) -> None:
    fleet = StreamFleet(2)
    home = world(fleet, 0)
    reader = Reader(fleet, 1)
    reader.subscribe(filter)
    assert asked_in(fleet, AGAIN_SECONDS * 15) <= 6
    fill(home, 1)
    assert reader.read() == [1]
    assert asked_in(fleet, AGAIN_SECONDS * 2.5) == 2, "after news it begins with ``AGAIN_SECONDS``"


@pytest.mark.interpreted_only("what is compiled cannot be patched")
@pytest.mark.parametrize("limit", ["max_batch", "max_waiting", "max_bytes"])
def test_limits_of_pull_requests_are_not_for_members_of_a_queue(limit: str) -> None:
    fleet = StreamFleet(2)
    home = world(fleet, 0)
    assert "error" not in home.consume("S", "mqtt-queue", **{limit: 1})
    readers = [Reader(fleet, 1, f"r{number}") for number in range(2)]
    for reader in readers:
        assert reader.subscribe("$queue/S").reasons == [1]
    assert asked_in(fleet, 5.0) < 10
    fill(home, 6)
    assert sorted([*readers[0].read(3.0), *readers[1].read()]) == [1, 2, 3, 4, 5, 6]


def test_messages_for_which_there_is_little_room_follow_each_other() -> None:
    fleet = StreamFleet(2)
    home = world(fleet, 0)
    fleet[1].state.ctx.write_buffer = 100
    reader = Reader(fleet, 1)
    reader.subscribe("$queue/S")
    for _ in range(4):
        home.ask("s.a", b"x" * 300)
    assert reader.read(3.0) == [1, 2, 3, 4]


@pytest.mark.parametrize("position", [b"0", b"0 x", b"0 0 1 2", b"0 0 a b c", b"x", b"0 -4", b"0 0 4 0 nan", b"\xff"])
@pytest.mark.parametrize("place", [0, 1])
def test_a_position_that_cannot_be_read_is_the_end(position: bytes, place: int) -> None:
    fleet = StreamFleet(2)
    home = world(fleet)
    reader = Reader(fleet, place)
    reader.subscribe("$stream/S")
    session = fleet[place].state.ctx.sessions["r"]
    fleet[place].state.jetstream.reads.set_position(session, b"$stream/S", position)
    fleet.advance(1.0)
    fill(home, 2)
    assert reader.read() == [6, 7]


@pytest.mark.parametrize("place", [0, 1])
def test_a_position_beyond_the_end_is_the_end(place: int) -> None:
    fleet = StreamFleet(2)
    home = world(fleet)
    reader = Reader(fleet, place)
    reader.subscribe("$stream/S")
    session = fleet[place].state.ctx.sessions["r"]
    fleet[place].state.jetstream.reads.set_position(session, b"$stream/S", b"0 500")
    fleet.advance(1.0)
    fill(home, 2)
    assert reader.read() == [6, 7]


def test_what_waits_too_long_for_room_goes_to_other_members() -> None:
    fleet = StreamFleet(2)
    home = world(fleet, 0)
    slow = Reader(fleet, 1, window=2)
    slow.acknowledges = False
    for filter in ("$queue/S", "$queue/S/#"):  # each of them asks for as much as the window takes
        slow.subscribe(filter)
    fleet.advance(1.0)
    fill(home, 4)
    assert slow.read() == [1, 2]
    other = Reader(fleet, 0, "other")
    other.subscribe("$queue/S")
    assert sorted(other.read(15.0)) == [3, 4]
    slow.acknowledge()
    assert slow.read(40.0) == [1, 2], "what another member has acknowledged does not come"
    assert home.api("CONSUMER.INFO.S.mqtt-queue")["num_ack_pending"] == 0


def test_messages_that_cross_a_request_or_the_end_of_a_membership() -> None:
    fleet = StreamFleet(2)
    home = world(fleet, 0)
    reader = Reader(fleet, 1)
    reader.subscribe("$queue/S")
    fleet.advance(1.0)
    far = fleet[1].state.jetstream.reads.far_readers
    reading = next(iter(far._readings.values()))
    reading.asked += 1  # as if it had asked again just now
    fill(home, 1)
    assert reader.read(0.5) == [1]
    assert "deliveries" not in users(reader.got[0])
    del far._readings[reading.number]  # as if it had unsubscribed just now
    other = Reader(fleet, 0, "other")
    fill(home, 1)
    fleet.advance(0.1)
    other.subscribe("$queue/S")
    assert other.read(3.0) == [2]


def test_members_elsewhere_lose_a_queue_whose_topics_they_may_not_have() -> None:
    fleet = StreamFleet(2)
    home = world(fleet, 0)
    readers = [Reader(fleet, place, f"r{place}") for place in range(2)]
    for place, reader in enumerate(readers):
        fleet[place].state.ctx.give_rights(reader.fake.client, rights("s/#", "$stream/#", "$queue/#"))
        assert reader.subscribe("$queue/S").reasons == [1]
    config = {"name": "S", "subjects": ["s.>", "secret"], "storage": "memory"}
    assert "error" not in home.api("STREAM.UPDATE.S", config)
    for _ in range(6):
        home.ask("secret", b"x")
    assert readers[1].read() == readers[0].read() == []
    for place in range(2):
        assert list(fleet[place].state.ctx.sessions[f"r{place}"].subscriptions()) == []


@pytest.mark.interpreted_only("what is compiled cannot be patched")
@pytest.mark.parametrize("doubled", ["ReadAsked", "ReadShown"])
def test_frames_that_come_twice_or_late(doubled: str) -> None:
    fleet = StreamFleet(2)
    home = world(fleet)
    outbox = fleet[0 if doubled == "ReadShown" else 1].cluster.streams.outbox
    add = outbox.add
    earlier: list[Any] = []

    def repeating(node: int, frame: Any, stored: bool = False) -> None:
        add(node, frame, stored)
        if type(frame).__name__ == doubled:
            earlier.append(frame)
            for each in earlier[-4:]:
                add(node, each, stored)

    vars(outbox)["add"] = repeating
    reader = Reader(fleet, 1)
    reader.subscribe("$stream/S@earliest")
    reader.read(3.0)
    fill(home, 4)
    assert reader.read(AGAIN_SECONDS + 1) == list(range(1, 10))


def test_a_search_in_vain_is_not_repeated() -> None:
    fleet = StreamFleet(2)
    home = world(fleet, 0)
    stream = fleet[0].state.jetstream.streams["S"]
    for number in range(3000):
        home.peer.pub(f"s.{number}.x", b"")
        if number % 500 == 0:
            fleet.advance(0.02)
    fleet.advance(0.5)
    assert stream.index.last == 3000
    reader = Reader(fleet, 1)
    reader.subscribe("$stream/S@earliest/s/+/y")
    fleet.advance(2.0)
    session = fleet[1].state.ctx.sessions["r"]
    position = fleet[1].state.jetstream.reads.position_of(session, b"$stream/S@earliest/s/+/y")
    assert int(position.split(b" ")[1]) > 1500
    home.ask("s.1.y", b"")
    assert reader.read() == [3001]


@pytest.mark.parametrize("place", [0, 1])
def test_a_subscription_that_arrives_twice_is_one(place: int) -> None:
    fleet = StreamFleet(2)
    home = world(fleet)
    reader = Reader(fleet, place)
    reader.subscribe("$stream/S")
    session = fleet[place].state.ctx.sessions["r"]
    subscription = session.subscription(b"$stream/S")
    assert subscription is not None
    reads = fleet[place].state.jetstream.reads
    reads.restore(session, b"$stream/S", subscription)
    reads.set_position(session, b"$stream/S", b"0 4")
    assert reader.read() == [4, 5]
    fill(home, 2)
    assert reader.read() == [4, 5, 6, 7]


@pytest.mark.parametrize("place", [0, 1])
def test_what_a_session_acknowledges_after_it_has_moved_does_not_come_again(place: int) -> None:
    fleet = StreamFleet(3)
    home = world(fleet, 0)
    reader = Reader(fleet, place)
    reader.acknowledges = False
    reader.subscribe("$queue/S")
    fill(home, 2)
    assert reader.read() == [1, 2]
    reader.fake.drop()
    moved = Reader(fleet, 2)
    assert moved.read(40.0) == [1, 2]
    assert home.api("CONSUMER.INFO.S.mqtt-queue")["num_ack_pending"] == 0


@pytest.mark.parametrize("place", [0, 1])
def test_a_queue_that_is_deleted_is_not_made_again(place: int) -> None:
    fleet = StreamFleet(2)
    home = world(fleet, 0)
    reader = Reader(fleet, place)
    reader.subscribe("$queue/S")
    fill(home, 4)
    assert reader.read() == [1, 2, 3, 4]
    assert home.api("CONSUMER.DELETE.S.mqtt-queue")["success"]
    assert reader.read(15.0) == [1, 2, 3, 4]
    assert list(fleet[place].state.ctx.sessions["r"].subscriptions()) == []


def test_nothing_is_kept_of_a_stream_that_is_deleted() -> None:
    fleet = DiskFleet(2)
    home = world(fleet)
    reader = Reader(fleet, 1)
    reader.subscribe("$stream/S@earliest")
    reader.read()
    reads = fleet[0].state.jetstream.reads
    (feeder,) = reads._feeders[fleet[0].state.jetstream.streams["S"]]
    feeder.wake()
    reads._put_off(feeder)
    reads.stream_removed(feeder.stream)
    assert not reads._active and not reads._later
    session = fleet[1].state.ctx.sessions["r"]
    queues = fleet[1].state.jetstream.reads.queues
    queues.renumber(session)
    assert home.api("STREAM.DELETE.S")["success"]
    fleet.advance(2.0)
    assert session not in queues._restored


@pytest.mark.parametrize("place", [0, 1])
def test_a_position_in_an_earlier_stream_of_that_name_is_the_end(place: int) -> None:
    fleet = StreamFleet(2)
    home = world(fleet)
    reader = Reader(fleet, 1)
    reader.subscribe("$stream/S@earliest")
    assert reader.read() == [1, 2, 3, 4, 5]
    session = fleet[1].state.ctx.sessions["r"]
    position = fleet[1].state.jetstream.reads.position_of(session, b"$stream/S@earliest")
    assert home.api("STREAM.DELETE.S")["success"]
    fleet.advance(2.0)
    assert "error" not in home.make("S", "s.>")
    seen_by_all(fleet, "S")
    fill(home, 9)
    later = Reader(fleet, place, "later")
    later.subscribe("$stream/S")
    session = fleet[place].state.ctx.sessions["later"]
    fleet[place].state.jetstream.reads.set_position(session, b"$stream/S", position)
    fleet.advance(1.0)
    fill(home, 1)
    assert later.read() == [10]


@pytest.mark.parametrize("place", [0, 1])
def test_a_queue_that_is_deleted_while_its_member_has_a_full_window_is_not_made_again(place: int) -> None:
    fleet = StreamFleet(2)
    home = world(fleet, 0)
    reader = Reader(fleet, place, window=2)
    reader.acknowledges = False
    reader.subscribe("$queue/S")
    fill(home, 4)
    assert reader.read() == [1, 2]
    assert home.api("CONSUMER.DELETE.S.mqtt-queue")["success"]
    fleet.advance(1.0)
    reader.acknowledge()
    assert reader.read(15.0) == [1, 2]
    assert home.api("CONSUMER.NAMES.S")["consumers"] == []
    assert list(fleet[place].state.ctx.sessions["r"].subscriptions()) == []


@pytest.mark.interpreted_only("what is compiled cannot be patched")
def test_a_member_of_a_queue_that_its_home_refuses_is_unsubscribed() -> None:
    fleet = StreamFleet(2)
    home = world(fleet, 0)
    assert "error" not in home.consume("S", "mqtt-queue", ack_policy="none")
    reader = Reader(fleet, 1)
    reader.subscribe("$queue/S")
    fleet.advance(1.0)
    assert list(fleet[1].state.ctx.sessions["r"].subscriptions()) == []
    assert asked_in(fleet, AGAIN_SECONDS * 2) == 0
