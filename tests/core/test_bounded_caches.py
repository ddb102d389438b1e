"""Caches by names that clients choose: bounded in bytes, without long names, emptied when memory is short or unused."""

from __future__ import annotations

from tests.core.test_overlaps import subscribe
from tests.harness import World
from tests.nats.talk import NatsPeer

from starlingmq.core.limits.access import REMEMBERED_BYTES, Rights
from starlingmq.core.nats.subject_cache import GENERATION_BYTES, SubjectCache
from starlingmq.core.router.filter_summary import TOPIC_BYTES_MAX, TOPICS_MAX, LookedUp
from starlingmq.core.router.router import CACHED_BYTES, LET_GO_AT_ONCE, Router
from starlingmq.core.session.session import Session
from starlingmq.core.topics.filter_tree import REST_BYTES_MAX, FilterTree
from starlingmq.core.topics.topics import LONG
from starlingmq.wire.mqtt import Publish


def topic(number: int, size: int) -> bytes:
    return b"%08d/" % number + b"x" * (size - 9)


def router() -> Router:
    return Router(1, 65535, 256)


def test_routes_of_long_topics_are_not_cached() -> None:
    routes = router()
    routes.resolve(topic(1, LONG + 1))
    assert routes.cached() == 0
    routes.resolve(topic(1, LONG))
    assert routes.cached() == 1


def test_routes_are_bounded_by_the_bytes_of_their_topics() -> None:
    routes = router()
    for number in range(3 * CACHED_BYTES // LONG):
        routes.resolve(topic(number, LONG))
    assert routes.cached() == CACHED_BYTES // LONG
    assert sum(map(len, routes._order)) == routes._bytes <= CACHED_BYTES


def test_topics_that_are_removed_and_come_again_count_each_time() -> None:
    world = World()
    client = world.connect()
    routes = world.state.router
    name = topic(1, LONG)
    for _ in range(3):
        subscribe(client, [name])
        routes.resolve(name)
    assert sum(map(len, routes._order)) == routes._bytes


def test_a_route_that_is_not_used_is_let_go_within_two_periods() -> None:
    routes = router()
    many = LET_GO_AT_ONCE + 10
    for number in range(many):
        routes.resolve(topic(number, 20))
    routes.age()
    routes.let_old_go()
    routes.resolve(b"new")
    assert routes.cached() == many + 1, "a period is not over yet"
    routes.age()
    routes.let_old_go()
    assert routes.cached() == 11, "some at a time"
    routes.let_old_go()
    assert routes.cached() == 1
    routes.age()
    routes.let_old_go()
    assert routes.cached() == 0 and routes._bytes == 0
    assert routes.resolve(b"new") is routes.resolve(b"new")


def test_when_memory_is_short_caches_are_empty() -> None:
    world = World()
    peer = NatsPeer(world)
    peer.said('CONNECT {"verbose":false}', "SUB > 1", "PUB a.b 1", "x")
    assert world.state.router.cached() != 0
    world.state.caches.forget()
    spellings = world.state.nats.spellings
    assert world.state.router.cached() == 0
    assert not (spellings._topics or spellings._older_topics or spellings._heads or spellings._older_heads)
    assert len(peer.said("PUB a.b 1", "x", "PING")) == 2


def test_spellings_are_bounded_in_bytes() -> None:
    spellings = SubjectCache()
    for number in range(4000):
        subject = topic(number, LONG).replace(b"/", b".")
        assert spellings.head_of(spellings.topic_of(subject)) == b"MSG " + subject + b" "
        spellings.topic_of(topic(number, 4000).replace(b"/", b"."))
    kept = (spellings._topics, spellings._older_topics, spellings._heads, spellings._older_heads)
    assert all(sum(map(len, generation)) <= GENERATION_BYTES for generation in kept)
    assert all(len(key) <= LONG for generation in kept for key in generation)


def test_decisions_are_bounded_in_bytes() -> None:
    rights = Rights([], False)
    for number in range(1000):
        assert not rights.may_publish(topic(number, 900), 0, False)
        assert not rights.may_receive(topic(number, 900))
        assert not rights.may_publish(topic(number, 65000), 0, False)
    kept = [*rights._publishes, *rights._receives]
    assert kept and sum(map(len, kept)) <= REMEMBERED_BYTES


def test_topics_that_were_looked_up_in_summaries_are_bounded_in_bytes() -> None:
    looked_up = LookedUp()
    looked_up.note(topic(0, LONG + 1))
    assert looked_up.take() == [], "its route is not cached"
    looked_up.note(b"a")
    assert looked_up.take() == [b"a"]
    for number in range(TOPIC_BYTES_MAX // LONG + 2):
        looked_up.note(topic(number, LONG))
    assert looked_up._topics == {}
    assert looked_up.take() is None, "too many to list"
    for number in range(TOPICS_MAX):
        looked_up.note(b"%d" % number)
    assert looked_up.take() is None
    assert looked_up.take() == []


def test_long_ends_of_filters_are_not_shared() -> None:
    tree = FilterTree()
    for number in range(10):
        tree.add(b"+/%d/" % number + b"x" * REST_BYTES_MAX, number, number)
        tree.add(b"+/%d" % number + b"/+/state", number, number)
    assert all(len(rest) <= REST_BYTES_MAX for rest in tree._rests)


def test_a_nats_subscription_keeps_no_long_head() -> None:
    world = World()
    peer = NatsPeer(world)
    peer.said('CONNECT {"verbose":false}', "SUB > 1")
    publisher = world.connect()
    for _ in range(3):
        publisher.send(Publish(b"x" * 60_000, b"1"))
        subject = peer.said("PING")[0].subject  # type: ignore[union-attr]
        assert len(subject) == 60_000
    nats = world.state.nats.clients[1].protocol_handler
    assert nats.subscriptions[b"1"].head_sid == b""  # type: ignore[union-attr]
    for _ in range(3):
        publisher.send(Publish(b"short", b"1"))
        assert len(peer.said("PING")) == 2
    assert nats.subscriptions[b"1"].head_sid == b"MSG short 1"  # type: ignore[union-attr]


def test_many_topics_that_match_nothing_leave_nothing() -> None:
    """Messages to topics of 65 KB without a receiver."""
    world = World()
    client = world.connect()
    for number in range(100):
        client.send(Publish(topic(number, 65_000)))
    assert world.state.router.cached() == 0
    assert Session("x").overlaps is None
