"""Limits of topics and of the route cache, and group members that have ended."""

from __future__ import annotations

import msgspec
from tests.conformance.kit import subscribe
from tests.harness import World

import starlingmq.core.router.router as router_module
from starlingmq.config.settings import LimitsConfig, MqttConfig
from starlingmq.core.router.router import Router
from starlingmq.core.session.session import Session, Subscription
from starlingmq.wire.mqtt import (
    Ack,
    Publish,
    Subscribe,
    SubscribeRequest,
    encode,
)


def test_the_route_cache_is_bounded_in_topics_and_in_receivers() -> None:
    router = Router(1, 65535, 128)
    for number in range(64):
        router.subscribe(Subscription(Session(f"s{number}"), b"#", 0, False, False, b""))
    for number in range(router_module.CACHED_TOPICS + 10):
        router.resolve(b"t/%d" % number)
        assert router._receivers <= router_module.CACHED_RECEIVERS
    assert 1 < len(router._cache) <= router_module.CACHED_RECEIVERS // 64
    assert router._receivers == sum(len(route.subscriptions) for route in router._cache.values())
    for number in range(200):
        session = Session(f"x{number}")
        router.subscribe(Subscription(session, b"x", 0, False, False, b""))
        router.resolve(b"x")
        router.unsubscribe(b"x", session)
    assert router._receivers == sum(len(route.subscriptions) for route in router._cache.values())
    assert len(router._order) <= router_module.CACHED_TOPICS


def test_topic_limits_do_not_apply_to_sys_topics_of_the_broker() -> None:
    w = World(topic_levels=2, max_topic_length=8, sys_interval=1.0)
    w.advance(5)
    c = w.connect("c")
    c.send(Publish(b"a/b/c", b""))
    assert c.closed


def test_new_topic_limits_and_sys_topics_need_no_restart() -> None:
    w = World()
    sub, pub = w.connect("sub"), w.connect("pub")
    subscribe(sub, "#")
    subscribe(sub, "$SYS/#")
    pub.send(Publish(b"a/b/c", b"1"))
    w.state.configure(
        msgspec.convert({"sys_interval": 1.0}, MqttConfig), msgspec.convert({"topic_levels": 2}, LimitsConfig)
    )
    pub.send(Publish(b"a/b/c", b"2"))
    assert pub.closed
    w.advance(1)
    got = [packet for packet in sub.receive() if isinstance(packet, Publish)]
    assert got[0].payload == b"1" and len(got) > 1
    assert all(packet.topic.startswith(b"$SYS/") for packet in got[1:])


def test_a_group_member_that_has_ended_gets_no_messages() -> None:
    w = World()
    sub = w.connect("sub")
    many = [SubscribeRequest(b"a/%d" % number, 0, False, False, 0) for number in range(3000)]
    sub.send(Subscribe(1, [SubscribeRequest(b"$share/g/t", 1, False, False, 0), *many]))
    pub = w.connect("pub")
    w.state.ending.fail(sub.client, 0x98, "")
    w.state.receive(pub.client, encode(Publish(b"t", b"", qos=1, packet_id=1), 5), w.now)
    w.run()
    assert pub.expect(Ack).reason == 0x10
