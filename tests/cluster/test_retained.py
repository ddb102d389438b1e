"""Retained messages of a cluster, one thing at a time: at every node the same, from wherever they came."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from tests.cluster.fleet import Fleet, NodeWorld
from tests.harness import FakeClient
from tests.sim import planted_retained
from tests.sim.clients import Publisher
from tests.sim.recording import formed
from tests.sim.retained import payload_of, retained_in
from tests.sim.world import World

from starlingmq.cluster.etcd.etcd_requests import Put, Request, Txn
from starlingmq.cluster.retained import retained_writer
from starlingmq.cluster.retained.retained_records import decode_value, prefix
from starlingmq.wire.mqtt import Ack, Publish, Suback, Subscribe, SubscribeRequest

KEYS = prefix("test")
LARGE = b"x" * 5000


def retain(client: FakeClient, topic: bytes, payload: bytes, qos: int = 1, **arguments: Any) -> None:
    client.send(Publish(topic, payload, qos, True, packet_id=1 if qos else 0, **arguments))
    if qos == 1:
        assert client.expect(Ack).reason < 0x80


def shown(node: NodeWorld) -> dict[bytes, bytes]:
    return {topic: message.payload for topic, message in node.state.retained.items()}


def subscribe(client: FakeClient, filter: bytes, retain_handling: int = 0) -> None:
    client.send(Subscribe(1, [SubscribeRequest(filter, 1, retain_handling=retain_handling)]))


def got(client: FakeClient) -> dict[bytes, bytes]:
    """Topics and payloads of what came as retained, after the SUBACK."""
    client.world.fleet.advance(0.2)  # type: ignore[attr-defined]
    packets = client.receive()
    assert isinstance(packets[0], Suback), packets
    assert all(isinstance(packet, Publish) and packet.retain for packet in packets[1:])
    return {packet.topic: packet.payload for packet in packets[1:] if isinstance(packet, Publish)}


def test_a_message_retained_at_one_node_is_retained_at_all() -> None:
    fleet = Fleet(3)
    publisher = fleet.connect(0, "p")
    retain(publisher, b"a/1", b"one")
    retain(publisher, b"a/2", b"two", qos=0)
    fleet.advance(0.2)
    assert [shown(node) for node in fleet.nodes] == [{b"a/1": b"one", b"a/2": b"two"}] * 3
    retain(publisher, b"a/1", b"")
    fleet.advance(0.2)
    assert [shown(node) for node in fleet.nodes] == [{b"a/2": b"two"}] * 3


def test_a_subscriber_at_another_node_gets_acknowledged_retained_messages() -> None:
    fleet = Fleet(2)
    publisher, subscriber = fleet.connect(0, "p"), fleet.connect(1, "s")
    for number in range(5):
        retain(publisher, b"a/%d" % number, b"first")
    subscribe(subscriber, b"a/+")
    assert got(subscriber) == {b"a/%d" % number: b"first" for number in range(5)}
    other = fleet.connect(1, "o")
    retain(publisher, b"a/0", b"second")  # which the node of both gets for the first
    subscribe(other, b"a/0")
    assert got(other) == {b"a/0": b"second"}


def test_the_last_one_by_revision_counts_everywhere() -> None:
    fleet = Fleet(3)
    publishers = [fleet.connect(place, f"p{place}") for place in range(3)]
    for number in range(20):
        for publisher in publishers:
            retain(publisher, b"a", b"%b %d" % (publisher.client_id.encode(), number))
        fleet.advance(0.005)
    fleet.advance(0.5)
    (entry,) = [entry for entry in fleet.etcd.store.get(KEYS, prefix=True) if entry.key == KEYS + b"a"]
    assert [shown(node)[b"a"] for node in fleet.nodes] == [decode_value(entry.value).payload] * 3
    assert entry.value and decode_value(entry.value).payload.endswith(b" 19")


def test_updates_of_one_topic_within_a_window_are_one_write() -> None:
    fleet = Fleet(2)
    publisher = fleet.connect(0, "p")
    for number in range(100):
        retain(publisher, b"a", b"%d" % number)
    fleet.advance(0.2)
    assert shown(fleet[1]) == {b"a": b"99"}
    assert fleet[0].cluster.retained.writer.written <= 2
    assert fleet[0].cluster.retained.writer.coalesced >= 98


def test_a_joining_node_has_all_retained_messages_before_it_serves() -> None:
    fleet = Fleet(1)
    publisher = fleet.connect(0, "p")
    for number in range(2500):  # three pages
        retain(publisher, b"t/%d" % number, b"v", qos=0)
    fleet.advance(1.0)
    joiner = fleet.add()
    subscriber = fleet.connect(1, "s", properties=None)
    subscribe(subscriber, b"#")
    fleet.advance(3.0)
    assert joiner.cluster.retained.state == "following"
    assert len(shown(joiner)) == 2500


def test_a_large_retained_message_is_fetched_when_it_is_needed() -> None:
    fleet = Fleet(3)
    publisher = fleet.connect(0, "p")
    retain(publisher, b"big", LARGE)
    fleet.advance(0.3)
    assert [len(entry.value) < 200 for entry in fleet.etcd.store.get(KEYS, prefix=True)] == [True] * 4
    whole = [place for place in range(3) if fleet[place].state.retained.get(b"big").loaded]  # type: ignore[union-attr]
    assert len(whole) == 2 and 0 in whole, "the publisher's node and one copy"
    for place in range(3):
        subscriber = fleet.connect(place, f"s{place}")
        subscribe(subscriber, b"#")
        assert got(subscriber) == {b"big": LARGE}
    last = next(place for place in range(3) if place not in whole)
    assert fleet[last].cluster.retained.copies.fetched == 1
    again = fleet.connect(last, "again")
    subscribe(again, b"big")
    assert got(again) == {b"big": LARGE}
    assert fleet[last].cluster.retained.copies.fetches == 1, "it was kept"


def test_a_large_one_comes_from_the_copy_when_the_publishers_node_is_away() -> None:
    fleet = Fleet(3)
    retain(fleet.connect(0, "p"), b"big", LARGE)
    fleet.advance(0.3)
    stubs = [place for place in (1, 2) if not fleet[place].state.retained.get(b"big").loaded]  # type: ignore[union-attr]
    fleet.cut(1, 2)
    fleet.cut(1, 3)
    fleet.advance(4.0)
    subscriber = fleet.connect(stubs[0], "s")
    subscribe(subscriber, b"big")
    assert got(subscriber) == {b"big": LARGE}


def test_expired_retained_messages_are_gone_at_all_nodes_and_in_etcd() -> None:
    fleet = Fleet(2)
    retain(fleet.connect(1, "p"), b"a", b"stays")
    client = fleet.connect(0, "q")
    client.send(Publish(b"b", b"short", 0, True, expiry=2))
    fleet.advance(0.5)
    assert shown(fleet[1]) == {b"a": b"stays", b"b": b"short"}
    fleet.advance(4.0)
    assert [shown(node) for node in fleet.nodes] == [{b"a": b"stays"}] * 2
    assert KEYS + b"b" not in [entry.key for entry in fleet.etcd.store.get(KEYS, prefix=True)]


def test_a_replay_waits_up_to_its_limit_while_etcd_is_away() -> None:
    fleet = Fleet(2)
    publisher, subscriber = fleet.connect(0, "p"), fleet.connect(1, "s")
    retain(publisher, b"a", b"before")
    fleet.advance(0.2)
    fleet.etcd.lose_leader(fleet.now, 30.0)
    retain(publisher, b"a", b"meanwhile")
    subscribe(subscriber, b"a")
    fleet.advance(0.9)
    assert [type(packet) for packet in subscriber.receive()] == [Suback]
    waits, notices = fleet[1].state.ctx.cluster.retained.waits, fleet[1].said  # type: ignore[union-attr]
    assert (waits.count, waits.missing) == (1, {1: 1})
    assert fleet[1].state.sys.figures()["cluster/retained/replays/waiting_for"] == "1"
    assert not [notice for notice in notices if "retained" in notice]
    fleet.advance(0.2)
    assert [
        notice
        for notice in notices
        if "wait for retained messages (1, the first for 1.0 s)" in notice and "by n1;" in notice
    ]
    fleet.advance(5.0)
    assert len([notice for notice in notices if "new subscriptions wait" in notice]) == 1
    assert (waits.count, waits.missing, waits.seconds(fleet.now)) == (0, {}, 0.0)
    assert fleet[1].state.sys.figures()["cluster/retained/replays/waiting_for"] == "none"
    assert [packet.payload for packet in subscriber.receive() if isinstance(packet, Publish)] == [b"before"]
    assert fleet[1].state.ctx.cluster.retained.waits.incomplete == 1  # type: ignore[union-attr]
    fleet.advance(30.0)
    assert shown(fleet[1]) == {b"a": b"meanwhile"}


def test_changes_that_the_watch_missed_are_read_again() -> None:
    fleet = Fleet(2)
    publisher = fleet.connect(0, "p")
    retain(publisher, b"a", b"1")
    retain(publisher, b"b", b"1")
    fleet.advance(0.2)
    fleet.etcd.cut("n2")
    retain(publisher, b"a", b"2")
    retain(publisher, b"b", b"")
    retain(publisher, b"c", b"2")
    fleet.advance(0.5)
    fleet.etcd.compact()
    fleet.etcd.heal("n2", fleet.now)
    fleet.advance(3.0)
    assert shown(fleet[1]) == {b"a": b"2", b"c": b"2"}
    assert fleet[1].state.ctx.cluster.retained.complete  # type: ignore[union-attr]


@pytest.mark.interpreted_only("what is compiled can not be patched")
def test_more_than_may_wait_for_etcd_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("starlingmq.cluster.retained.retained_sync.WAITING_MAX", 10)
    fleet = Fleet(2)
    publisher = fleet.connect(0, "p")
    fleet.etcd.lose_leader(fleet.now, 10.0)
    for number in range(12):
        publisher.send(Publish(b"a/%d" % number, b"v", 1, True, packet_id=1))
        reason = publisher.expect(Ack).reason
        assert (reason == 0x97) == (number >= 10), (number, reason)
    assert fleet[0].state.ctx.counters.dropped["retained_quota"] == 2
    fleet.advance(15.0)
    assert len(shown(fleet[1])) == 10


def test_the_next_one_is_asked_when_a_holder_does_not_answer() -> None:
    fleet = Fleet(3)
    retain(fleet.connect(0, "p"), b"big", LARGE)
    fleet.advance(0.3)
    (stub,) = [place for place in (1, 2) if not fleet[place].state.retained.get(b"big").loaded]  # type: ignore[union-attr]
    subscribe(fleet.connect(stub, "other"), b"big", retain_handling=2)
    subscriber = fleet.connect(stub, "s")
    fleet.advance(0.2)
    fleet.cut(1, stub + 1)  # which it does not know yet: n1 is asked first
    fleet.cut(1, 4 - stub)
    subscribe(subscriber, b"big")
    fleet.advance(0.1)
    fleet.advance(3.0)
    assert got(subscriber) == {b"big": LARGE}


def etcd_has(fleet: Fleet, topic: bytes, origin: int) -> bool:
    found = fleet.etcd.store.get(KEYS + topic)
    return bool(found) and decode_value(found[0].value).origin == origin


def test_a_late_copy_does_not_replace_a_later_message() -> None:
    fleet = Fleet(2)
    publisher, later = fleet.connect(0, "p"), fleet.connect(1, "q")
    fleet.mute.add((1, 2))
    retain(publisher, b"big", LARGE)
    fleet.advance(0.3)
    assert etcd_has(fleet, b"big", 1) and not fleet[1].state.retained.get(b"big").loaded  # type: ignore[union-attr]
    fleet.etcd.lose_leader(fleet.now, 2.0)
    retain(later, b"big", b"later" + LARGE)
    fleet.speak()
    assert shown(fleet[1]) == {b"big": b"later" + LARGE}
    fleet.advance(5.0)
    assert etcd_has(fleet, b"big", 2)
    assert [shown(node) for node in fleet.nodes] == [{b"big": b"later" + LARGE}] * 2


def test_a_fetched_message_that_is_published_again_is_not_evicted() -> None:
    """Where there is no room any more for what was fetched, it has given way to what was published here."""
    fleet = Fleet(3)
    publisher = fleet.connect(0, "p")
    retain(publisher, b"big", LARGE)
    fleet.advance(0.3)
    (stub,) = [place for place in (1, 2) if not fleet[place].state.retained.get(b"big").loaded]  # type: ignore[union-attr]
    copies = fleet[stub].cluster.retained.copies
    other = next(topic for topic in (b"b%d" % n for n in range(9)) if sum(topic) % 2 == sum(b"big") % 2)
    retain(publisher, other, LARGE)
    subscriber = fleet.connect(stub, "s")
    subscribe(subscriber, b"big")
    assert got(subscriber) == {b"big": LARGE} and copies.fetched == 1
    later, another = fleet.connect(stub, "q"), fleet.connect(stub, "t")
    fleet.etcd.lose_leader(fleet.now, 2.0)
    retain(later, b"big", b"later" + LARGE)
    copies._room = len(LARGE)
    subscribe(another, other)
    assert got(another) == {other: LARGE} and copies.fetched == 2
    assert shown(fleet[stub])[b"big"] == b"later" + LARGE
    fleet.advance(5.0)
    assert shown(fleet[stub])[b"big"] == b"later" + LARGE


def test_a_copy_is_kept_whose_event_precedes_the_result_of_our_own_write() -> None:
    """n2 has published to the topic, and does not know yet that this was done before n1 did."""
    fleet = Fleet(2)
    publisher, earlier = fleet.connect(0, "p"), fleet.connect(1, "q")
    retain(earlier, b"big", b"earlier" + LARGE)
    while not etcd_has(fleet, b"big", 2):
        fleet.advance(0.0002, 0.0002)
    fleet.etcd.cut("n2")
    retain(publisher, b"big", LARGE)
    fleet.advance(0.5)
    assert etcd_has(fleet, b"big", 1)
    fleet.etcd.heal("n2", fleet.now)
    fleet.advance(3.0)
    assert [shown(node) for node in fleet.nodes] == [{b"big": LARGE}] * 2


def test_a_copy_is_kept_while_all_is_read_again() -> None:
    """Marks are read before topics: what they say is there may not be read yet."""
    fleet = Fleet(2)
    fleet.etcd.cut("n2")
    retain(fleet.connect(0, "p"), b"big", LARGE)
    fleet.advance(0.5)
    assert etcd_has(fleet, b"big", 1)
    fleet.etcd.session("else").request(Txn("else", (), (Put(b"else", b""),)), fleet.now)
    fleet.advance(0.1)
    fleet.etcd.compact()  # n2 was cut off meanwhile: it has to read all again
    fleet.etcd.heal("n2", fleet.now)
    fleet.advance(3.0)
    assert [shown(node) for node in fleet.nodes] == [{b"big": LARGE}] * 2


def keeping_world(power: bool, **retained: int) -> World:
    """Two nodes that serve, and store; no client is connected."""
    settings = [f"cluster.{name} {value}" for name, value in retained.items()]
    return formed("nodes 2", 'kind "calm"', f"power {str(power).lower()}", *settings)


def a_deleted_retained_message_stays_deleted_after_a_crash() -> None:
    """n1 takes it away while it does not reach etcd, and crashes."""
    world = keeping_world(False)
    node = world.nodes[0]
    publisher = Publisher(world.books, world.random, node, "p", 5, True)
    publisher.come()
    publisher.retained = 1.0
    publisher.publish(b"a/1", 1)
    world.pass_time(2.0)
    assert b"a/1" in retained_in(world.etcd.model.store)
    world.etcd.cut("n1")
    publisher.deletes = 1.1
    publisher.publish(b"a/1", 1)
    world.pass_time(1.0)
    assert not publisher.sent, "it was acknowledged"
    node.crash(False)
    world.pass_time(0.5)
    world.start_if_wanted(node)
    world.etcd.heal("n1")
    world.pass_time(12.0)
    assert b"a/1" not in retained_in(world.etcd.model.store)
    assert not world.unretained()


def a_later_retained_message_is_not_replaced_after_a_crash() -> None:
    """n1 takes one while it does not reach etcd, n2 takes another one, n1 crashes and comes back."""
    world = keeping_world(False)
    first, second = world.nodes
    old, new = (
        Publisher(world.books, world.random, node, name, 5, True) for node, name in ((first, "p"), (second, "q"))
    )
    for publisher in (old, new):
        publisher.come()
        publisher.retained = 1.0
    world.pass_time(1.0)
    world.etcd.cut("n1")
    for publisher in (old, new):
        publisher.publish(b"a/1", 1)
        world.pass_time(1.0)
        assert not publisher.sent, "it was acknowledged"
    kept = retained_in(world.etcd.model.store)[b"a/1"]
    first.crash(False)
    world.pass_time(0.5)
    world.start_if_wanted(first)
    world.etcd.heal("n1")
    world.pass_time(12.0)
    assert retained_in(world.etcd.model.store)[b"a/1"] == kept
    assert not world.unretained()


def test_a_later_retained_message_is_not_replaced_after_a_crash() -> None:
    a_later_retained_message_is_not_replaced_after_a_crash()


@pytest.mark.interpreted_only("what is compiled can not be patched")
def test_a_write_of_an_earlier_incarnation_that_replaces_a_later_message_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retained_writer, "LATE_SECONDS", inf)
    with pytest.raises(AssertionError):
        a_later_retained_message_is_not_replaced_after_a_crash()


def test_a_deleted_retained_message_stays_deleted_after_a_crash() -> None:
    a_deleted_retained_message_stays_deleted_after_a_crash()


@pytest.mark.interpreted_only("what is compiled can not be patched")
def test_a_deleted_message_that_comes_back_after_a_crash_is_found() -> None:
    with planted_retained.deletions_are_forgotten_in_a_crash(), pytest.raises(AssertionError):
        a_deleted_retained_message_stays_deleted_after_a_crash()


def test_a_write_that_was_outstanding_at_a_restart_is_not_given_up() -> None:
    """n1 crashes while a large message of it is on its way into etcd. It is done there when the next life has read what
    there is: something that n2 published later, in whose favour it would be given up."""
    world = keeping_world(False, retained_inline=1, retained_copies=0)
    publishers = [Publisher(world.books, world.random, node, f"p{node.host}", 5, True) for node in world.nodes]
    for publisher in publishers:
        publisher.come()
        publisher.retained = 1.0
    node = world.nodes[0]
    assert node.process is not None
    former, lies = node.process.etcd, list[Request]()
    request = former.request

    def is_batch(asked: Request) -> bool:
        return isinstance(asked, Txn) and asked.tag.startswith("retained write")

    def hold(asked: Request) -> None:
        lies.append(asked) if is_batch(asked) else request(asked)

    former.request = hold  # type: ignore[method-assign, assignment]
    publishers[0].publish(b"a/1", 1)
    world.pass_time(0.5)
    assert lies and not publishers[0].sent, "it was acknowledged"
    publishers[1].publish(b"a/1", 1)
    world.pass_time(0.5)
    node.crash(False)
    world.pass_time(0.5)
    world.start_if_wanted(node)
    assert node.process is not None
    again = node.process.etcd.request

    def overtaken(asked: Request) -> None:
        if is_batch(asked) and lies:
            former.session.request(lies.pop(), world.schedule.now)
            world.schedule.after(0.1, again, asked)
        else:
            again(asked)

    node.process.etcd.request = overtaken  # type: ignore[method-assign, assignment]
    world.pass_time(5.0)
    assert not lies and not world.unretained()
    processes = [each.process for each in world.nodes if each.process is not None]
    for topic, value in retained_in(world.etcd.model.store).items():
        assert payload_of(processes, topic, value), f"nobody has what is retained for {topic!r}"


def test_a_copy_is_kept_over_a_restart() -> None:
    """n2 has the copy, crashes and comes back, and n1 is down: it is still had."""
    world = keeping_world(True, retained_inline=1, retained_copies=1)
    first, second = world.nodes
    publisher = Publisher(world.books, world.random, first, "p", 5, True)
    publisher.come()
    publisher.retained = 1.0
    publisher.publish(b"a/1", 1)
    world.pass_time(2.0)
    ((topic, value),) = retained_in(world.etcd.model.store).items()
    assert second.process is not None and payload_of([second.process], topic, value)
    second.crash(False)
    world.pass_time(0.5)
    world.start_if_wanted(second)
    world.pass_time(5.0)
    assert not world.unretained()
    assert second.process is not None and payload_of([second.process], topic, value)


LATE_COPY = test_a_late_copy_does_not_replace_a_later_message
FETCHED = test_a_fetched_message_that_is_published_again_is_not_evicted
TOLD_BEFORE = test_a_copy_is_kept_whose_event_precedes_the_result_of_our_own_write
BY_HAND = (
    (planted_retained.copies_ignore_messages_published_here, LATE_COPY),
    (planted_retained.copies_ignore_messages_published_here, FETCHED),
    (planted_retained.copies_ignore_messages_published_here, TOLD_BEFORE),
    (planted_retained.marks_count_before_all_is_read, test_a_copy_is_kept_while_all_is_read_again),
    (planted_retained.marks_count_before_all_is_read, test_a_copy_is_kept_over_a_restart),
    (planted_retained.what_was_not_read_again_stays, test_changes_that_the_watch_missed_are_read_again),
    (planted_retained.a_payload_is_asked_of_one_node_only, test_the_next_one_is_asked_when_a_holder_does_not_answer),
)


@pytest.mark.interpreted_only("what is compiled can not be patched")
@pytest.mark.parametrize(("mistake", "test"), BY_HAND, ids=lambda each: each.__name__)
def test_mistakes_are_found(mistake: Any, test: Any) -> None:
    with mistake(), pytest.raises((AssertionError, LookupError)):
        test()
