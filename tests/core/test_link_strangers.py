"""Any client may have a client id like those of links, and send what links send: others notice nothing."""

from __future__ import annotations

import pytest
from tests.conformance.kit import acknowledge, deliver, messages, payloads, persistent, publish, subscribe, subscriber
from tests.harness import FakeClient, World
from tests.storage.world import StoredWorld

from starlingmq.core.context import context
from starlingmq.core.context.context import DONE
from starlingmq.core.messages.link_marks import carries, put_on, unmark
from starlingmq.core.messages.message import Message
from starlingmq.core.messages.outgoing import Outgoing
from starlingmq.core.publish.bridges import SITE
from starlingmq.core.retained import deletions
from starlingmq.core.retained.stamps import STAMP
from starlingmq.core.subscribe.wanted_filters import KNOWN_SECONDS, PATH_CHARS_MAX, PATHS, PATHS_MAX, some_of
from starlingmq.wire.mqtt import Ack, Publish, Suback, Subscribe, SubscribeRequest
from starlingmq.wire.packets import PUBREL
from starlingmq.wire.properties import (
    CORRELATION_DATA,
    PROPERTIES_MAX,
    SESSION_EXPIRY_INTERVAL,
    USER_PROPERTY,
    decode_property_bytes,
    encode_property_bytes,
)

MARK = encode_property_bytes({USER_PROPERTY: [("starlingmq-qos", "0")]})


@pytest.mark.parametrize(
    "client_id",
    ["$link/a//1", "$link/a/1/", "$link/a/0/0", "$link/a/5/2", "$link/a/1/" + "9" * 5000, "$link/\u0663/\u0663/\u0663"],
)
def test_a_client_id_that_names_no_lane_gets_all_messages(client_id: str) -> None:
    world = World()
    stranger = world.connect(client_id)
    subscribe(stranger, "#", no_local=True)
    publisher = world.connect("p")
    deliver(publisher, "t/a", b"x", qos=1)
    assert not publisher.closed
    got = carries(client_id, b"t/a")
    assert payloads(stranger) == ([b"x"] if got else [])
    assert got or client_id.endswith("5/2")


def through_a_link(properties: bytes, qos: int) -> Message:
    sent = Message(b"t", b"x", qos, False, properties, 0.0, "p", 0.0)
    outgoing = Outgoing(sent, qos, False, b"", None)
    assert put_on("$link/a", outgoing)
    got = Message(b"t", b"x", 2, False, properties + outgoing.ids, 0.0, "b", 0.0)
    unmark(got)
    return got


@pytest.mark.parametrize("qos", [0, 1])
def test_the_bytes_of_a_mark_in_another_property_stay(qos: int) -> None:
    properties = encode_property_bytes({CORRELATION_DATA: b"a" + MARK + b"b", USER_PROPERTY: [("k", "v")]})
    got = through_a_link(properties, qos)
    assert (got.qos, decode_property_bytes(got.properties)) == (qos, decode_property_bytes(properties))
    assert got.octets == len(b"tx") + len(got.properties)


def test_a_mark_of_the_publisher_does_not_count_beside_that_of_the_link() -> None:
    assert through_a_link(MARK, 1).qos == 1
    assert b"starlingmq-qos" not in through_a_link(MARK, 1).properties


# Filters


def ask(c: FakeClient, *filters: str, paths: str = "") -> list[bytes]:
    """The answers that come."""
    requests = [SubscribeRequest(filter.encode(), 0, True, False, 2) for filter in filters]
    c.send(Subscribe(1, requests, {USER_PROPERTY: [(PATHS, paths)]} if paths else {}))
    packets = c.receive()
    assert sum(isinstance(packet, Suback) for packet in packets) == 1
    return [packet.payload for packet in packets if isinstance(packet, Publish)]


def test_all_filters_are_told_once_for_a_connection() -> None:
    world = World()
    world.state.ctx.bridge("here", {})
    subscriber(world, "t/a", client_id="s")
    stranger = world.connect("$link/a")
    assert ask(stranger, *["$link/wanted"] * 50) == [b"+t/a\0here\0.\0\0"]
    assert len(world.state.ctx.jobs) == 0
    assert ask(world.connect("$link/b"), "$link/wanted") == [b"+t/a\0here\0.\0\0"]


@pytest.mark.parametrize("filter", ["$link/#", "$link/+", "$link/wanted/#"])
def test_a_link_gets_no_answer_that_a_client_has_published(filter: str) -> None:
    world = World()
    link = world.connect("$link/a")
    ask(link, "$link/wanted", "$link/more")
    ask(link, filter)
    deliver(world.connect("forger"), "$link/wanted", b"+t/a\0here\0", qos=0)
    assert payloads(link) == []
    subscribe(link, "t/#")
    deliver(world.connect("p"), "t/a", b"x", qos=0)
    assert payloads(link) == [b"x"]


def test_filters_that_come_and_go_are_not_remembered_for_a_link_that_does_not_ask() -> None:
    world = World()
    stranger = world.connect("$link/a")
    ask(stranger, "$link/wanted")
    client = world.connect("c")
    for number in range(50):
        subscribe(client, f"reply/{number}")
        client.drop()
        client = world.connect("c")
    feed = world.state.subscribing.wanted.feeds["$link/a"]
    assert (feed.asked, feed.pending, feed.told) == (False, {}, {})


def test_filters_of_a_link_that_is_away_are_wanted_until_it_says_otherwise() -> None:
    world = World()
    world.state.ctx.bridge("here", {})

    def connect(client_id: str) -> FakeClient:
        return world.connect(client_id, clean_start=False, properties={SESSION_EXPIRY_INTERVAL: 1000})

    two = connect("$link/two")
    ask(two, "$link/wanted")
    ask(two, "t/1", "t/2", paths="two")
    one = connect("$link/one")
    assert ask(one, "$link/wanted") == [b"+t/1\0two here\0+t/2\0two here\0.\0\0"]
    for client in (one, two):
        client.drop()
    subscriber(world, "$SYS/x")
    one = connect("$link/one")
    assert ask(one, "$link/wanted") == [b"+t/1\0here\0+t/2\0here\0.\0\0"]
    ask(one, "$link/more")
    two = connect("$link/two")
    ask(two, "$link/wanted")
    assert payloads(one) == []
    ask(two, "t/2", paths="two")
    assert payloads(one) == [b"+t/2\0two here\0"]
    ask(one, "$link/more")
    ask(two, "$link/complete")
    assert payloads(one) == [b"-t/1\0\0"]


def test_the_end_of_an_earlier_session_takes_nothing_from_the_new_one() -> None:
    world = World()
    filters = [f"t/{number}" for number in range(1000)]

    def connect() -> FakeClient:
        link = world.connect("$link/a", properties={SESSION_EXPIRY_INTERVAL: 1000})
        ask(link, "$link/wanted")
        link.send(Subscribe(1, [SubscribeRequest(name.encode(), 2, True, True, 2) for name in filters], {}))
        link.expect(Suback)
        return link

    connect().drop()
    state = world.state
    earlier = state.ctx.sessions["$link/a"]
    link = connect()
    session = state.ctx.sessions["$link/a"]
    assert session is not earlier
    state.subscribing.wanted.dropped(earlier, b"t/0")  # as the job does that takes it apart
    ask(link, "$link/complete")
    assert session.subscription_count() == len(filters)


def test_the_filters_that_there_are_need_not_be_searched_again_soon() -> None:
    world = World()
    world.state.ctx.bridge("here", {})
    wanted = world.state.subscribing.wanted
    subscriber(world, "t/a", client_id="s")
    for number in range(3):
        stranger = world.connect("$link/a")
        assert ask(stranger, "$link/wanted") == [b"+t/%d\0here\0.\0\0" % number if number else b"+t/a\0here\0.\0\0"]
        known = wanted.known
        stranger.drop()
        subscriber(world, f"t/{number + 1}", client_id="s")
        assert wanted.known is known and set(known) == {f"t/{number + 1}".encode()}
    world.advance(KNOWN_SECONDS + 1)
    subscriber(world, "t/b", client_id="s")
    assert wanted.known == {} and world.state.router.watcher is None


def test_long_paths_of_one_link_do_not_reach_another() -> None:
    world = World()
    world.state.ctx.bridge("here", {})
    link = world.connect("$link/b")
    ask(link, "$link/wanted")
    ask(link, "$link/more")
    stranger = world.connect("$link/a")
    ask(stranger, "$link/wanted")
    ask(stranger, "t/1", paths="x" * 65_000)
    ask(stranger, "t/2", paths=";".join(f"x{number}" for number in range(5000)))
    assert payloads(link) == [b"+t/1\0here\0"]
    (told,) = ask(link, "$link/more")
    assert told.startswith(b"+t/2\0x0 here") and len(told) < 200


def test_paths_are_bounded() -> None:
    paths = [*(f"s{number}" for number in range(2 * PATHS_MAX)), "x" * (PATH_CHARS_MAX + 1), ""]
    assert some_of(paths) == ";".join(f"s{number}" for number in range(PATHS_MAX))
    assert some_of(["long/path", "b", "a", "a"]) == "a;b;long/path"


# Retained messages


def linked(world: World, client_id: str, **more: int) -> FakeClient:
    lasting = {SESSION_EXPIRY_INTERVAL: more["expiry"]} if more else {}
    return world.connect(client_id, properties={USER_PROPERTY: [(SITE, "x")], **lasting})


@pytest.mark.interpreted_only("what is compiled cannot be patched")
def test_clients_that_say_they_are_bridges_do_not_drive_out_those_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "LINKED_MAX", 3)
    world = World()
    world.state.ctx.bridge("here", {})
    linked(world, "hub", expiry=1000).drop()
    for number in range(10):
        linked(world, f"s{number}").drop()
    assert world.state.ctx.linked["hub"] == DONE and len(world.state.ctx.linked) == 3
    for number in range(10):
        linked(world, f"t{number}", expiry=1000)
    assert world.state.ctx.linked["hub"] == DONE and len(world.state.ctx.linked) == 3


@pytest.mark.interpreted_only("what is compiled cannot be patched")
def test_deletions_of_long_topics_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletions, "DELETION_BYTES", 10_000)
    world = StoredWorld()
    world.state.ctx.bridge("here", {})
    linked(world, "hub")
    client = world.connect("c")
    for number in range(20):
        deliver(client, f"{number}/" + "x" * 2000, b"", qos=1, retain=True)
    kept = world.state.publishing.retained.deletions
    assert len(kept) == 4 and kept.tree.total_bytes < 10_000


def test_a_retained_message_with_all_properties_can_be_replaced() -> None:
    world = World()
    world.state.ctx.bridge("here", {})
    linked(world, "hub")
    most = encode_property_bytes({USER_PROPERTY: [("", "")] * PROPERTIES_MAX})
    deliver(world.connect("stranger"), "t", b"old", qos=1, retain=True, properties=most)
    client = world.connect("c")
    deliver(client, "t", b"new", qos=1, retain=True)
    message = world.state.retained.get(b"t")
    assert not client.closed and message is not None and message.payload == b"new"
    assert STAMP.encode() in message.properties


def test_a_message_of_a_link_is_delivered_once_acknowledged() -> None:
    world = World()
    stranger = world.connect("$link/a")
    subscribe(stranger, "#", no_local=True)
    deliver(world.connect("p"), "t", b"x")
    (message,) = messages(stranger)
    assert message.qos == 2
    acknowledge(stranger, message)


@pytest.mark.parametrize("filter", ["t", "$share/g/t"])
@pytest.mark.interpreted_only("what is compiled cannot be patched")
def test_a_released_message_leaves_after_it_is_stored(filter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = StoredWorld()
    receiver = subscriber(world, filter, client_id="r")
    publisher = persistent(world, "p", 5)
    publish(publisher, "t", b"x", qos=2)
    receiver.receive()
    held: list[int] = []
    turn = world.state.turn

    def look(now: float) -> None:
        held.append(receiver.client.stored_from)
        turn(now)

    monkeypatch.setattr(world.state, "turn", look)
    publisher.send(Ack(PUBREL, 1))
    assert held[0] == 0 and payloads(receiver) == [b"x"]
