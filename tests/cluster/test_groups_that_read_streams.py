"""Shared groups that read streams in a cluster: a consumer at the home, members at all nodes."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cluster.fleet import Fleet
from tests.cluster.stream_disk import DiskFleet
from tests.cluster.stream_fleet import JetStreamPeer, StreamFleet
from tests.cluster.test_streams_across_nodes import seen_by_all
from tests.cluster.test_streams_read_by_mqtt import Reader, fill, world
from tests.core.streams.stream_world import PUBACK, users

from starlingmq.jetstream import jetstream_service
from starlingmq.wire.mqtt import PUBCOMP, PUBREC, Ack, Unsubscribe

GROUP = "$share/g/$stream/S"
ACK_WAIT = 30.0
DAYS = 1100.0


def members(fleet: Fleet, *places: int, **start: str) -> list[Reader]:
    found = [Reader(fleet, place, f"m{number}") for number, place in enumerate(places)]
    for member in found:
        assert member.subscribe(GROUP, 1, **start).reasons == [1]
    fleet.advance(1.0)
    return found


def consumers(home: Any) -> Any:
    return home.api("CONSUMER.NAMES.S")["consumers"]


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ({"earliest": ""}, [1, 2, 3, 4, 5, 6, 7]),
        ({"latest": ""}, [5, 6, 7]),
        ({"offset": "3"}, [3, 4, 5, 6, 7]),
        ({"timestamp": "0"}, [1, 2, 3, 4, 5, 6, 7]),
        ({}, [6, 7]),
    ],
)
@pytest.mark.parametrize("places", [(0,), (1, 2), (0, 1, 2)])
def test_each_message_goes_to_one_member(places: tuple[int, ...], start: dict[str, str], expected: list[int]) -> None:
    fleet = StreamFleet(3)
    home = world(fleet)
    found = members(fleet, *places, **start)
    fill(home, 2)
    assert sorted(offset for member in found for offset in member.read()) == expected
    info = home.api("CONSUMER.INFO.S.mqtt-group-g")
    assert (info["num_ack_pending"], info["ack_floor"]["stream_seq"]) == (0, 7)


def test_members_divide_the_messages_by_their_receive_maximum() -> None:
    fleet = StreamFleet(3)
    home = world(fleet, 0)
    found = [Reader(fleet, place, f"m{place}", window=2) for place in range(3)]
    for member in found:
        member.acknowledges = False
        member.subscribe(GROUP)
    fleet.advance(1.0)
    fill(home, 9)
    got = [member.read() for member in found]
    assert [len(each) for each in got] == [2, 2, 2]
    assert sorted(got[0] + got[1] + got[2]) == [1, 2, 3, 4, 5, 6]
    assert [member.read(60.0) for member in found] == got, "connected members keep what they have"
    found[1].acknowledge()
    assert set(found[1].read()) == {*got[1], 7, 8, 9}


def test_groups_and_filters_are_apart() -> None:
    fleet = StreamFleet(2)
    home = world(fleet)
    reader = Reader(fleet, 1)
    for filter in ("$share/g/$stream/S@earliest", "$share/g-1/$stream/S@earliest", "$share/g/$stream/S@earliest/s/b"):
        reader.subscribe(filter)
    assert sorted(reader.read()) == sorted([*range(1, 6), *range(1, 6), 2, 4])
    assert len(consumers(home)) == 3


@pytest.mark.parametrize("place", [0, 1])
def test_a_member_that_is_lost_gives_its_messages_back(place: int) -> None:
    fleet = StreamFleet(3)
    home = world(fleet, 0)
    away, other = members(fleet, place, 2)
    away.acknowledges = other.acknowledges = False
    fill(home, 6)
    had = away.read()
    rest = other.read()
    assert had and rest and sorted(had + rest) == [1, 2, 3, 4, 5, 6]
    away.fake.drop()
    other.acknowledge()
    assert sorted(other.read(5.0)) == [1, 2, 3, 4, 5, 6]
    assert {users(each).get("deliveries") for each in other.got[len(rest) :]} == {"2"}
    back = Reader(fleet, place, f"m{0}")
    assert back.read(40.0) == []


@pytest.mark.parametrize("place", [0, 1])
def test_a_message_that_is_refused_goes_to_no_other_member(place: int) -> None:
    fleet = StreamFleet(2)
    home = world(fleet, 0)
    (refusing,) = members(fleet, place)
    refusing.acknowledges = False
    fill(home, 1)
    refusing.read()
    refusing.fake.send(Ack(PUBACK, refusing.got[0].packet_id, 0x80))
    assert refusing.read(40.0) == [1]
    assert home.api("CONSUMER.INFO.S.mqtt-group-g")["num_ack_pending"] == 0


@pytest.mark.parametrize("places", [(0,), (1,), (0, 1), (1, 2), (2, 0)])
def test_the_group_ends_when_the_last_member_unsubscribes(places: tuple[int, ...]) -> None:
    fleet = StreamFleet(3)
    home = world(fleet, 3)
    found = members(fleet, *places, earliest="")
    for member in found:
        member.read()
    for member in found:
        assert consumers(home) == ["mqtt-group-g"]
        member.fake.send(Unsubscribe(2, [GROUP.encode()]))
        fleet.advance(1.0)
    assert consumers(home) == []
    (later,) = members(fleet, places[0])
    fill(home, 1)
    assert later.read() == [4], "it begins where its first member says"


@pytest.mark.interpreted_only("what is compiled cannot be patched")
@pytest.mark.parametrize("place", [0, 1])
def test_a_group_whose_members_are_lost_is_kept_for_some_days(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jetstream_service, "KEPT_SECONDS", DAYS)
    fleet = StreamFleet(2)
    home = world(fleet, 3)
    (member,) = members(fleet, place, earliest="")
    member.read()
    member.fake.drop()  # its session lasts for 1000 seconds
    fill(home, 2)
    fleet.advance(DAYS + 100.0)
    kept: Any = fleet[0].state.jetstream.streams["S"].consumers
    assert list(kept) == ["mqtt-group-g"]
    (later,) = members(fleet, 1 - place, earliest="")
    assert later.read() == [4, 5]
    later.fake.drop()
    fleet.advance(DAYS)
    assert list(kept) == ["mqtt-group-g"], "it had members up to now"
    fleet.advance(DAYS)
    assert list(kept) == []


def test_members_that_are_away_keep_the_group_from_ending() -> None:
    fleet = StreamFleet(3)
    home = world(fleet, 0)
    away, other = members(fleet, 1, 2)
    away.fake.drop()
    other.fake.send(Unsubscribe(2, [GROUP.encode()]))
    fleet.advance(1.0)
    fill(home, 2)
    assert Reader(fleet, 1, "m0").read() == [1, 2]


@pytest.mark.parametrize("retention", ["interest", "workqueue"])
def test_a_group_has_no_say_in_what_the_stream_keeps(retention: str) -> None:
    fleet = StreamFleet(2)
    home = world(fleet, 0, retention=retention)
    (member,) = members(fleet, 1)
    assert "error" not in home.consume("S", "c"), "a group is no other consumer of a work queue"
    fill(home, 2)
    assert member.read() == [1, 2]
    assert home.api("STREAM.INFO.S")["state"]["messages"] == 2


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("place", [0, 1])
def test_a_message_at_qos_2_waits_for_its_member_and_goes_to_no_other_one(place: int, ends: bool) -> None:
    fleet = StreamFleet(3)
    home = world(fleet, 0)
    away = Reader(fleet, place, "away", window=1)
    away.acknowledges = False
    away.subscribe(GROUP, 2)
    fleet.advance(1.0)
    fill(home, 1)
    assert away.read() == [1]
    (other,) = members(fleet, 2)
    away.fake.drop()
    assert other.read(3 * ACK_WAIT) == []
    if ends:
        fleet.connect(place, "away").drop()  # with a clean start
    else:
        back = Reader(fleet, place, "away", window=1)
        back.acknowledges = False
        assert back.read() == [1]
        back.fake.send(Ack(PUBREC, back.got[0].packet_id))
        back.read()
        back.fake.send(Ack(PUBCOMP, back.got[0].packet_id))
    assert other.read(3 * ACK_WAIT) == []
    assert home.api("CONSUMER.INFO.S.mqtt-group-g")["num_ack_pending"] == 0


def test_a_broker_that_joins_a_cluster_keeps_the_positions_of_its_groups() -> None:
    fleet = StreamFleet(1)
    home = world(fleet, 5)
    state = fleet[0].state
    reads, cluster = state.jetstream.reads, state.ctx.cluster
    far, interest = reads.far, cluster.interest
    assert far is not None
    reads.far = cluster.interest = None  # as if it were alone
    (member,) = members(fleet, 0, offset="4")
    assert member.read() == [4, 5]
    assert consumers(home) == [] and len(state.router.groups()) == 1
    cluster.interest = interest
    reads.join_cluster(far)
    reads.queues.begin(state.jetstream.streams)
    fill(home, 2)
    assert member.read() == [4, 5, 6, 7]
    assert consumers(home) == ["mqtt-group-g"] and state.router.groups() == []


@pytest.mark.interpreted_only("what is compiled cannot be patched")
@pytest.mark.parametrize("kind", ["ReadAsked", "ReadShown", "AckPassed", "ReadEnded"])
@pytest.mark.parametrize("fault", ["lost", "doubled", "late"])
def test_frames_that_are_lost_doubled_or_late(kind: str, fault: str) -> None:
    fleet = StreamFleet(3)
    home = world(fleet, 0)
    outbox = fleet[0 if kind == "ReadShown" else 1].cluster.streams.outbox
    add = outbox.add
    late: list[tuple[int, Any]] = []
    seen = [0]

    def adding(node: int, frame: Any, stored: bool = False) -> None:
        faulty = type(frame).__name__ == kind
        seen[0] += faulty
        if faulty and fault == "late" and seen[0] % 3 == 1:
            late.append((node, frame))
            return
        if not (faulty and fault == "lost" and seen[0] % 3 == 1):
            add(node, frame, stored)
        if faulty and fault == "doubled":
            add(node, frame, stored)
        while late and faulty:
            add(*late.pop())

    vars(outbox)["add"] = adding
    first, second = members(fleet, 1, 2)
    for _ in range(4):
        fill(home, 5)
        first.read(0.5)
        second.read(0.5)
    first.fake.drop()
    fleet.advance(0.1)
    back = Reader(fleet, 1, "m0")
    for _ in range(3):
        back.read(ACK_WAIT / 2)
        second.read(ACK_WAIT / 2)
    offsets = [*first.read(0.0), *second.read(0.0), *back.read(0.0)]
    assert set(offsets) == set(range(1, 21))
    if fault == "doubled":
        assert len(offsets) == 20
    assert seen[0] != 0
    assert home.api("CONSUMER.INFO.S.mqtt-group-g")["num_ack_pending"] == 0


def test_the_position_survives_the_home() -> None:
    fleet = DiskFleet(3)
    home = world(fleet, 0, storage="file")
    found = members(fleet, 1, 2)
    fill(home, 5)
    got = sorted(offset for member in found for offset in member.read(3.0))
    assert got == [1, 2, 3, 4, 5]
    name = fleet[0].name
    fleet.kill(name)
    fleet.advance(5.0)
    fleet.serve(name)
    fleet.advance(20.0)
    again = JetStreamPeer(fleet, 0)
    fill(again, 3)
    got = sorted(offset for member in found for offset in member.read(3.0))
    assert got == [1, 2, 3, 4, 5, 6, 7, 8]
    for member in found:
        member.fake.send(Unsubscribe(2, [GROUP.encode()]))
        fleet.advance(1.0)
    assert consumers(again) == ["mqtt-group-g"], "not all nodes may have said yet what members they have"


def known_members(fleet: Fleet, name: str) -> dict[tuple[int, int], None]:
    """Those at other nodes, as the home of that name knows them."""
    (home,) = [node for node in fleet.nodes if node.name == name]
    (queue,) = home.state.jetstream.reads.queues._queues.values()
    return queue.elsewhere


@pytest.mark.interpreted_only("what is compiled cannot be patched")
@pytest.mark.parametrize("filter", [GROUP, "$queue/S"])
@pytest.mark.parametrize("hears", [False, True])
def test_an_acknowledgement_of_an_earlier_stream_is_none_of_the_one_made_under_its_name(
    filter: str, hears: bool
) -> None:
    """``hears``: the node of the earlier member learns at once that the stream was deleted."""
    fleet = StreamFleet(3)
    home = world(fleet, 3)
    first = Reader(fleet, 1, "first", window=3)
    first.acknowledges = False
    first.subscribe(filter, earliest="")
    assert first.read() == [1, 2, 3]
    if not hears:
        vars(fleet[1].cluster.streams.registry)["answered"] = lambda answer, now: None
    assert home.api("STREAM.DELETE.S")["success"]
    assert "error" not in home.make("S", "s.>")
    seen_by_all(fleet, "S")
    second = Reader(fleet, 2, "second", window=3)
    second.acknowledges = False
    second.subscribe(filter, earliest="")
    fleet.advance(1.0)
    fill(home, 3)
    assert second.read() == [1, 2, 3]
    first.acknowledge()
    first.read()
    consumer = "mqtt-group-g" if filter == GROUP else "mqtt-queue"
    assert home.api(f"CONSUMER.INFO.S.{consumer}")["num_ack_pending"] == 3
    second.acknowledge()
    second.read()
    assert home.api(f"CONSUMER.INFO.S.{consumer}")["num_ack_pending"] == 0


@pytest.mark.interpreted_only("what is compiled cannot be patched")
def test_a_message_is_not_taken_for_that_of_an_earlier_stream_that_its_member_still_has() -> None:
    fleet = StreamFleet(2)
    home = world(fleet, 3)
    member = Reader(fleet, 1, "m", window=4)
    member.acknowledges = False
    member.subscribe(GROUP, earliest="")
    assert member.read() == [1, 2, 3]
    vars(fleet[1].cluster.streams.registry)["answered"] = lambda answer, now: None
    reads = fleet[1].cluster.streams.reads
    shown = reads.shown
    vars(reads)["shown"] = lambda node, frame, now: None if frame.left < 0 else shown(node, frame, now)  # lost
    assert home.api("STREAM.DELETE.S")["success"]
    assert "error" not in home.make("S", "s.>")
    other = Reader(fleet, 0, "other", window=1)
    other.acknowledges = False
    other.subscribe(GROUP, earliest="")
    fill(home, 2)
    fleet.advance(11.0)  # the request is repeated
    other.acknowledge()
    other.read()
    member.read()
    assert sorted(each.payload for each in member.got[3:] + other.got) == [b"0", b"1"]


@pytest.mark.parametrize("places", [(0, 0), (0, 1), (1, 0), (1, 2), (1, 1)])
def test_the_refusal_of_an_earlier_delivery_of_a_queue_does_not_count(places: tuple[int, int]) -> None:
    fleet = StreamFleet(3)
    home = world(fleet, 0)
    first, second = (Reader(fleet, place, f"m{number}", window=1) for number, place in enumerate(places))
    first.acknowledges = second.acknowledges = False
    first.subscribe("$queue/S")
    fleet.advance(1.0)
    fill(home, 1)
    assert first.read() == [1]
    second.subscribe("$queue/S")
    assert second.read(ACK_WAIT + 5.0) == [1]
    first.fake.send(Ack(PUBACK, first.got[0].packet_id, 0x80))
    assert first.read(5.0) == [1], "the second member has it"
    second.acknowledge()
    second.read()
    assert home.api("CONSUMER.INFO.S.mqtt-queue")["num_ack_pending"] == 0


@pytest.mark.parametrize("place", [0, 1])
def test_a_member_that_has_unsubscribed_keeps_what_it_has_for_ack_wait(place: int) -> None:
    fleet = StreamFleet(3)
    home = world(fleet, 0)
    first, second = members(fleet, place, 2)
    first.acknowledges = False
    fill(home, 4)
    had = first.read()
    assert had and sorted(had + second.read()) == [1, 2, 3, 4]
    first.fake.send(Unsubscribe(2, [GROUP.encode()]))
    assert sorted(had + second.read(ACK_WAIT / 2)) == [1, 2, 3, 4]
    assert sorted(second.read(ACK_WAIT)) == [1, 2, 3, 4]


@pytest.mark.parametrize("unread", [0.0, 3.0])
def test_a_home_that_restarts_is_told_of_members_that_are_away(unread: float) -> None:
    """``unread``: for how long it cannot read which streams are its own."""
    fleet = DiskFleet(3)
    world(fleet, 0, storage="file")
    away, _ = members(fleet, 1, 2)
    away.fake.drop()
    fleet.advance(1.0)
    name = fleet[0].name
    numbers = {node.cluster.number for node in fleet.nodes if node.name != name}
    fleet.kill(name)
    fleet.advance(5.0)
    if unread:
        fleet.etcd.lose_leader(fleet.now, unread)
    fleet.serve(name)
    fleet._connect_all()
    fleet.advance(30.0)
    assert {node for node, _ in known_members(fleet, name)} == numbers


def test_the_group_is_kept_if_a_node_that_has_restarted_may_still_name_members() -> None:
    fleet = StreamFleet(3)
    home = world(fleet, 0)
    away, last = members(fleet, 1, 2)
    away.fake.drop()
    fleet.advance(70.0)
    fleet.restart(1)
    for _ in range(200):
        fleet.advance(0.02)
        if fleet[0].cluster.streams.reaches_all() and len(known_members(fleet, fleet[0].name)) == 1:
            break
    else:
        raise AssertionError("the home does not notice")
    last.fake.send(Unsubscribe(2, [GROUP.encode()]))
    fleet.advance(1.0)
    assert consumers(home) == ["mqtt-group-g"]


@pytest.mark.interpreted_only("what is compiled cannot be patched")
def test_a_member_whose_leaving_was_lost_with_the_connection_is_none_any_more() -> None:
    fleet = StreamFleet(3)
    home = world(fleet, 0)
    first, last = members(fleet, 1, 2)
    outbox = fleet[1].cluster.streams.outbox
    add = outbox.add
    vars(outbox)["add"] = lambda node, frame, stored=False: None
    first.fake.send(Unsubscribe(2, [GROUP.encode()]))
    fleet.advance(1.0)
    vars(outbox)["add"] = add
    assert len(known_members(fleet, fleet[0].name)) == 2
    fleet._connect_all()
    fleet.advance(1.0)
    assert len(known_members(fleet, fleet[0].name)) == 1
    last.fake.send(Unsubscribe(2, [GROUP.encode()]))
    fleet.advance(1.0)
    assert consumers(home) == ["mqtt-group-g"], "frames of other members may be lost, too"
    (later,) = members(fleet, 1)
    fleet.advance(70.0)
    later.fake.send(Unsubscribe(2, [GROUP.encode()]))
    fleet.advance(1.0)
    assert consumers(home) == []
