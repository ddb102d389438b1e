"""Bridges between StarlingMQs, and beside the bridge of a mosquitto: rings, sites, old sessions."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.bridges.real import (
    FROM_BRIDGE,
    HAS_MOSQUITTO,
    PATIENCE,
    TO_BRIDGE,
    Line,
    Near,
    Serve,
    bridge,
    mosquitto,
    publish,
    reading,
)
from tests.client.brokers import certificate
from tests.few import few
from tests.patience import within

from starlingmq import Broker
from starlingmq.bridges.bridge import MqttBridge
from starlingmq.cli.local_cluster import free_ports
from starlingmq.client import Client, Will
from starlingmq.client.options import QOS
from starlingmq.config.settings import from_tree
from starlingmq.core.session.session import BRIDGE_PREFIX
from starlingmq.wire.mqtt import encode
from starlingmq.wire.packets import Pingreq
from starlingmq.wire.properties import USER_PROPERTY, Properties

BOTH = {"filter": "both/#", "direction": "both"}
OUT = {"filter": "out/#"}
IN = {"filter": "in/#", "direction": "in"}


def node(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, **more}


async def settled(*brokers: Near) -> None:
    """Wait until no bridge has anything on its way."""
    for near in brokers:
        await near.until(lambda view: view.state == "connected" and view.in_flight + view.waiting == 0)


async def payloads_of(url: str, brokers: list[Near], payloads: list[str]) -> list[list[str]]:
    """Publish these at ``url``. Returns the payloads that a reader of each broker gets until no message moves."""
    found: list[list[str]] = []
    for near in brokers:
        async with reading(near.url, "both/#") as reader:
            async with Client(url) as client:
                for payload in payloads:
                    await client.publish("both/a", payload, qos=2)
            await settled(*brokers)
            await reader.client.publish("both/end", f"end of {near.url}", qos=2)
            got = await reader.until(f"end of {near.url}".encode())
            found.append([each.payload.decode() for each in got if each.topic == "both/a"])
            await settled(*brokers)
    return found


async def test_two_brokers_with_a_bridge_each_both_ways(serve: Serve) -> None:
    """Each message goes by two bridges, and comes to the other broker by each; none goes on from there."""
    one = await serve(node=node("one"))
    two = await serve(node=node("two"))
    one.use([bridge(two.url, BOTH)], node=node("one"))
    two.use([bridge(one.url, BOTH)], node=node("two"))
    await one.connected()
    await two.connected()
    sent = [str(number) for number in range(5)]
    at_one, at_two = await payloads_of(one.url, [one, two], sent)
    assert sorted(at_one) == sorted(sent)
    assert sorted(at_two) == sorted(sent * 2)


async def test_a_ring_of_three(serve: Serve) -> None:
    brokers = [await serve(node=node(name)) for name in ("one", "two", "three")]
    for near, following, name in zip(brokers, brokers[1:] + brokers[:1], ("one", "two", "three"), strict=True):
        near.use([bridge(following.url, BOTH)], node=node(name))
    for near in brokers:
        await near.connected()
    sent = [str(number) for number in range(5)]
    found = await payloads_of(brokers[0].url, brokers, sent)
    assert sorted(found[0]) == sorted(sent), "back home nothing is published again"
    for got in found[1:]:
        assert set(got) == set(sent) and len(got) <= 3 * len(sent)


@HAS_MOSQUITTO
@pytest.mark.parametrize("qos", few([0, 1, 2], 1))
async def test_mosquitto_has_a_bridge_to_us_and_we_have_one_to_it(serve: Serve, tmp_path: Path, qos: int) -> None:
    """mosquitto's bridge does not mark what it carries, so a message from here comes back once, by the bridge here."""
    near = await serve(node=node("one"))
    address = near.url.removeprefix("mqtt://")
    lines = (
        f"connection us\naddress {address}\nbridge_protocol_version mqttv50\ntopic # both {qos} both/ both/\n"
        "restart_timeout 1\nbridge_attempt_unsubscribe false\n"
    )
    async with mosquitto(tmp_path, listener=f"allow_anonymous true\n{lines}") as other:
        async with reading(near.url, "$SYS/broker/connection/+/state") as states:
            near.use([bridge(other.url, {**BOTH, "qos": qos})], node=node("one"))
            await states.take(2)
        async with reading(near.url, "both/#") as here, reading(other.url, "both/#") as there:
            sent = [b"%d" % number for number in range(5)]
            for payload in sent:
                await publish(near.url, "both/a", payload)
            got_here, got_there = await here.take(2 * len(sent)), await there.take(3 * len(sent))
            dropped = near.broker.state.ctx.counters.dropped
            await near.until(lambda view: dropped.get("bridge_loop", 0) == 5 and view.in_flight + view.waiting == 0)
            for url, reader, got, times in ((near.url, here, got_here, 2), (other.url, there, got_there, 3)):
                assert sorted(each.payload for each in got) == sorted(sent * times)
                await publish(url, "both/end", "end")
                assert await reader.one() == ("both/end", b"end"), "there was no further one"


async def test_a_message_that_loops_is_acknowledged_and_not_published(serve: Serve) -> None:
    """Also at QoS 2, whose handshake goes on; a client that is no bridge may publish what it likes."""
    near = await serve(node=node("one"))
    site = near.broker.state.ctx.site
    will = Will(b"$SYS/broker/connection/other/state", b"0", 1, True)
    async with reading(near.url, "a/#") as here:
        for mark in (f"else {site}", "else"):
            async with (
                Client(near.url, client_id="other", will=will) as client,
                Client(near.url, client_id="any") as any_client,
            ):
                properties: Properties = {USER_PROPERTY: [("starlingmq-sites", mark)]}
                for qos in QOS:
                    await client.publish("a/bridge", f"{mark} {qos}", qos=qos, properties=properties)
                    await any_client.publish("a/any", str(qos), qos=qos, properties=properties)
        await publish(near.url, "a/end", "end")
        found = [(each.topic, each.payload.decode()) for each in await here.until(b"end")]
    assert [payload for topic, payload in found if topic == "a/bridge"] == ["else 0", "else 1", "else 2"]
    assert len(found) == 9


async def test_a_broker_that_comes_back_after_another_was_used_has_an_old_session(serve: Serve) -> None:
    """1. A message waits at A for its PUBREL, which the line loses. 2. B, which knows no session, is used meanwhile.
    3. Back at A, the packet id stands for another message, which A would take for that of 1."""
    a, b = await serve(node=node("a")), await serve(node=node("b"))

    def watch(direction: str, data: bytes) -> bool:
        return direction == TO_BRIDGE or data[0] != 0x62

    async with Line(a.url, watch) as to_a, Line(b.url) as to_b:
        near = await serve(bridge([to_a.url, to_b.url], OUT), node=node("c"))
        assert (await near.connected()).server == to_a.url
        await publish(near.url, "out/a", "held", qos=2)
        async with within(PATIENCE):
            await to_a.breaks.wait()
        async with reading(b.url, "out/#") as there:
            await near.until(lambda view: view.state == "connected" and view.server == to_b.url)
            to_a.watch = lambda direction, data: True
            to_a.mend()
            await publish(near.url, "out/b", "x", qos=2)
            assert await there.one() == ("out/b", b"x")
            await near.until(lambda view: view.in_flight == 0)
        to_b.broken = True
        to_b.cut()
        async with reading(a.url, "out/#") as there:
            await near.until(lambda view: view.state == "connected" and view.server == to_a.url)
            window = near.broker.state.ctx.sessions[BRIDGE_PREFIX + "b"].window
            if window is not None:
                window.last_id = 0  # as after 65,535 messages
            for number in range(3):
                await publish(near.url, "out/c", str(number), qos=2)
            assert [each.payload for each in await there.take(3)] == [b"0", b"1", b"2"]


async def test_the_nodes_of_one_cluster_share_a_session(serve: Serve) -> None:
    """Two ways to one broker: what waits there is not thrown away when the bridge takes the other one."""
    far = await serve(node=node("far"))
    async with Line(far.url) as first, Line(far.url) as second:
        near = await serve(bridge([first.url, second.url], IN), node=node("near"))
        await near.connected()
        async with reading(near.url, "in/#") as here:
            for line, other in ((first, second), (second, first)):
                line.broken = True
                line.cut()
                await publish(far.url, "in/a", line.url, qos=2)
                assert await here.one() == ("in/a", line.url.encode())
                await near.until(lambda view, other=other: view.server == other.url)  # type: ignore[misc]
                line.mend()


async def test_wss(serve: Serve, tmp_path: Path) -> None:
    ca = certificate(tmp_path)
    (port,) = free_ports(1)
    tls = {"cert": f"{tmp_path}/server.pem", "key": f"{tmp_path}/server.key"}
    tree = {"listeners": ["mqtt://127.0.0.1:0", {"url": f"wss://127.0.0.1:{port}/mqtt", "tls": tls}]}
    async with Broker(from_tree({**tree, "node": {"name": "far", "shutdown_timeout": 0.1}})) as far:
        near = await serve(bridge(f"wss://127.0.0.1:{port}/mqtt", OUT, tls={"ca": str(ca)}))
        await near.connected()
        async with reading(far.address(), "out/#") as there:
            await publish(near.url, "out/a", bytes(100_000))
            assert (await there.one())[1] == bytes(100_000)


async def test_messages_come_at_the_qos_that_this_broker_takes(serve: Serve) -> None:
    far = await serve()
    near = await serve(bridge(far.url, IN | {"qos": 2}), node=node("near"), mqtt={"max_qos": 1})
    await near.connected()
    async with reading(near.url, "in/#", qos=1) as reader:
        await publish(far.url, "in/a", "exactly once", qos=2)
        (found,) = await reader.take()
    assert (found.qos, found.payload) == (1, b"exactly once")


async def test_a_connection_that_is_not_read_for_long_is_not_taken_for_dead(serve: Serve) -> None:
    """This broker holds the bridge back while a queue without a limit is long."""
    pings = asyncio.Semaphore(0)

    def watch(direction: str, data: bytes) -> bool:
        if direction == FROM_BRIDGE and data == encode(Pingreq(), 5):
            pings.release()
        return True

    far = await serve(mqtt={"max_keep_alive": 1})
    async with Line(far.url, watch) as line:
        near = await serve(bridge(line.url, IN), node=node("near"))
        await near.connected()
        found = near.broker._bridges._bridges["b"]  # type: ignore[union-attr]
        assert isinstance(found, MqttBridge)
        connection, here = found._link, found._near
        assert connection is not None and here is not None
        here.pause_reading()
        async with within(PATIENCE):
            for _ in range(4):
                await pings.acquire()
        assert found._link is connection
        here.resume_reading()
        async with reading(near.url, "in/#") as reader:
            await publish(far.url, "in/a", "on")
            assert await reader.one() == ("in/a", b"on")
