"""No topic matches more of one session's subscriptions than the bound, however a client chooses them."""

from __future__ import annotations

import itertools
from random import Random

import pytest
from tests.harness import FakeClient, World
from tests.nats.talk import NatsPeer

import starlingmq.core.topics.filter_tree as filter_tree
from starlingmq.core.session.overlaps import OVERLAPPING, OVERLAPS_MAX, Overlaps
from starlingmq.core.topics.filter_tree import SEARCH_MAX, FilterTree
from starlingmq.core.topics.topics import matches
from starlingmq.wire.mqtt import PUBREL, Ack, Publish, Suback, Subscribe, SubscribeRequest, Unsubscribe, encode
from starlingmq.wire.properties import SUBSCRIPTION_IDENTIFIER, Properties
from starlingmq.wire.reasons import Reason


def every_pattern(levels: int) -> list[bytes]:
    """2**levels filters that all match ``a/a/.../a``."""
    return [b"/".join(parts) + b"/#" for parts in itertools.product((b"a", b"+"), repeat=levels)]


def subscribe(client: FakeClient, filters: list[bytes], identifier: int = 0) -> list[int]:
    properties: Properties = {SUBSCRIPTION_IDENTIFIER: [identifier]} if identifier else {}
    client.send(Subscribe(1, [SubscribeRequest(filter) for filter in filters], properties))
    return client.expect(Suback).reasons


def test_a_client_cannot_make_a_message_match_thousands_of_its_filters() -> None:
    world = World()
    client = world.connect()
    reasons = subscribe(client, every_pattern(11), 268_435_455)
    assert reasons.count(0) == OVERLAPS_MAX and reasons.count(Reason.QUOTA_EXCEEDED) == 2**11 - OVERLAPS_MAX
    assert len(world.state.router.tree.match(b"a/" * 11 + b"a")) == OVERLAPS_MAX
    told = [notice for notice in world.notices if notice.detail == OVERLAPPING]
    assert 0 < len(told) < 2**11 // 100, "once for each piece of the SUBSCRIBE"
    assert world.state.ctx.counters.noted["overlapping_subscriptions"] == len(told)


def test_a_refusal_is_told_beside_the_notice_about_another_client() -> None:
    world = World()
    greedy, other = world.connect("greedy"), world.connect("other")
    filters = every_pattern(10)
    subscribe(greedy, filters[:OVERLAPS_MAX])
    for client, filter in ((greedy, filters[OVERLAPS_MAX]), (other, b"a/" * 300)):
        packet = encode(Subscribe(2, [SubscribeRequest(filter)], {}), 5)
        world.state.receive(client.client, packet, world.now)  # in one turn
    world.run()
    told = [(notice.client_id, notice.reason) for notice in world.notices]
    assert told == [("greedy", "overlapping_subscriptions"), ("other", "subscribe_refused")]


def test_any_number_of_filters_with_few_patterns_is_granted() -> None:
    client = World().connect()
    filters = [b"devices/%d/%b" % (number, end) for number in range(2000) for end in (b"state", b"+/set", b"#")]
    assert set(subscribe(client, filters)) == {0}


def test_a_filter_that_is_removed_makes_room() -> None:
    client = World().connect()
    filters = every_pattern(10)
    subscribe(client, filters[: OVERLAPS_MAX + 1])
    assert subscribe(client, [filters[OVERLAPS_MAX]]) == [Reason.QUOTA_EXCEEDED]
    assert subscribe(client, [filters[0]]) == [0], "it is there already"
    client.send(Unsubscribe(2, [filters[0]]))
    client.receive()
    assert subscribe(client, filters[OVERLAPS_MAX : OVERLAPS_MAX + 2]) == [0, Reason.QUOTA_EXCEEDED]


def test_a_client_is_not_in_thousands_of_groups_of_one_topic() -> None:
    client = World().connect()
    reasons = subscribe(client, [b"$share/g%d/t" % number for number in range(OVERLAPS_MAX + 10)])
    assert reasons.count(Reason.QUOTA_EXCEEDED) == 10
    others = [b"$share/g%d/u%d" % (number, number) for number in range(1000)]
    assert set(subscribe(client, others)) == {0}, "of many topics it may"


def test_a_nats_client_has_no_thousands_of_subscriptions_to_one_subject() -> None:
    world = World()
    peer = NatsPeer(world)
    peer.said('CONNECT {"verbose":false}')
    said = peer.said(*[f"SUB x {number}" for number in range(OVERLAPS_MAX + 3)])
    assert said == ["-ERR 'Maximum Subscriptions Exceeded'"] * 3
    assert peer.said("SUB y a", "UNSUB 1", "SUB x b") == []
    assert len(world.state.router.tree.match(b"x")) == OVERLAPS_MAX


@pytest.mark.parametrize("seed", range(20))
def test_no_topic_matches_more_filters_than_there_are_shapes(seed: int) -> None:
    rng = Random(seed)
    overlaps, known = Overlaps(), list[tuple[bytes, bool]]()
    for _ in range(300):
        if known and rng.random() < 0.3:
            overlaps.remove(*known.pop(rng.randrange(len(known))))
            continue
        levels = [rng.choice((b"a", b"b", b"", b"+")) for _ in range(rng.randrange(1, 5))]
        filter = b"/".join([*levels, b"#"] if rng.random() < 0.3 else levels) or b"#"
        repeatable = rng.random() < 0.4
        if repeatable or (filter, False) not in known:
            known.append((filter, repeatable))
            overlaps.add(*known[-1])
    topics = [b"/".join(parts) for depth in range(1, 5) for parts in itertools.product((b"a", b"b", b""), repeat=depth)]
    most = max(sum(matches(filter, topic) for filter, _ in known) for topic in topics if topic)
    assert 0 < most <= len(overlaps._shapes)
    for entry in known:
        overlaps.remove(*entry)
    assert not overlaps._shapes and not overlaps._times


def test_a_search_ends_however_many_sessions_made_patterns_for_it() -> None:
    """Each session stays within its bound, and all together would make one PUBLISH of 67 bytes take seconds."""
    tree, chance = FilterTree(), Random(1)
    for number in range(20_000):
        levels = [chance.choice((b"a", b"+")) for _ in range(30)]
        tree.add(b"/".join(levels) + b"/z%d" % number, number, number)
    assert tree.match(b"a/" * 30 + b"x") == []
    assert tree.gave_up and tree.visits < 4 * SEARCH_MAX
    assert tree.match(b"a/" * 12 + b"a") == [] and not tree.gave_up


@pytest.mark.interpreted_only("a constant is replaced")
def test_each_message_whose_search_is_given_up_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filter_tree, "SEARCH_MAX", 100)
    world = World()
    client = world.connect()
    subscribe(client, every_pattern(8))
    for _ in range(2):
        client.send(Publish(b"a/" * 8 + b"a", b""))
    assert world.state.ctx.counters.dropped["search_limit"] == 2
    client.send(Publish(b"a/" * 8 + b"a", b"", qos=1, packet_id=1))
    assert client.expect(Ack).reason == Reason.NO_MATCHING_SUBSCRIBERS
    client.send(Publish(b"a/" * 8 + b"b", b"", qos=2, packet_id=2))
    client.send(Ack(PUBREL, 2))
    assert world.state.ctx.counters.dropped["search_limit"] == 4
    peer = NatsPeer(world)
    peer.said('CONNECT {"verbose":false,"headers":true,"no_responders":true}')
    peer.send(b"PUB %b 0\r\n\r\n" % b".".join([b"a"] * 9))
    assert world.state.ctx.counters.dropped["search_limit"] == 5
