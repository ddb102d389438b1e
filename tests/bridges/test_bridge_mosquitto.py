"""Bridges to a real mosquitto: messages each way, their properties, retained ones, and the state of the bridge."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from tests.bridges.real import HAS_MOSQUITTO, Serve, bridge, publish, reading
from tests.client.brokers import Broker
from tests.few import few

from starlingmq.client import Client
from starlingmq.core.publish.bridges import MARK
from starlingmq.wire.properties import (
    CONTENT_TYPE,
    CORRELATION_DATA,
    MESSAGE_EXPIRY_INTERVAL,
    RESPONSE_TOPIC,
    USER_PROPERTY,
    Properties,
)

pytestmark = HAS_MOSQUITTO

VERSIONS = ["3.1.1", "5.0"]
_numbers = itertools.count(1)

Make = Callable[..., dict[str, Any]]


@pytest.fixture
def at() -> str:
    """Start of the topics of a test."""
    return f"t{next(_numbers)}"


@pytest.fixture
def to_far(far: Broker, at: str) -> Make:
    """Settings of a bridge to mosquitto, with a client id of its own."""

    def make(*topics: dict[str, Any], **more: Any) -> dict[str, Any]:
        return bridge(more.pop("servers", far.url), *topics, client_id=f"client-{at}", **more)

    return make


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", few([0, 1, 2], 1, 2))
async def test_messages_pass_each_way_once(
    far: Broker, serve: Serve, to_far: Make, at: str, version: str, qos: int
) -> None:
    near = await serve(
        to_far(
            {"filter": f"{at}/out/#", "direction": "out", "qos": qos},
            {"filter": f"{at}/in/#", "direction": "in", "qos": qos},
            {"filter": f"{at}/both/#", "direction": "both", "qos": qos},
            version=version,
        )
    )
    await near.connected()
    async with reading(near.url, f"{at}/#") as here, reading(far.url, f"{at}/#") as there:
        for url, name in ((near.url, "here"), (far.url, "there")):
            async with Client(url) as client:
                for way in ("out", "in", "both"):
                    for number in range(3):
                        await client.publish(f"{at}/{way}/{number}", f"{name} {number}", qos=2)
        await publish(near.url, f"{at}/both/end", "from here")  # the last one, by the way of the others
        await publish(far.url, f"{at}/both/end", "from there")
        got_here = await here.until(b"from here", b"from there")
        got_there = await there.until(b"from here", b"from there")
    ways = {"here": ["out", "both"], "there": ["in", "both"]}
    for got, own, other in ((got_here, "here", "there"), (got_there, "there", "here")):
        found = [(each.topic, each.payload.decode(), each.qos) for each in got]
        wanted = [(f"{at}/{way}/{n}", f"{own} {n}", 2) for way in ("out", "in", "both") for n in range(3)]
        wanted += [(f"{at}/{way}/{n}", f"{other} {n}", qos) for way in ways[other] for n in range(3)]
        assert sorted(found) == sorted(wanted), own


async def test_topics_get_other_names(far: Broker, serve: Serve, to_far: Make, at: str) -> None:
    near = await serve(
        to_far(
            {"filter": "up/#", "local_prefix": f"{at}/site/", "remote_prefix": f"{at}/all/7/"},
            {"filter": "down/#", "direction": "in", "local_prefix": f"{at}/site/", "remote_prefix": f"{at}/all/7/"},
            {"filter": f"{at}/raw/+/state/#", "rename": f"{at}/named/{{2}}/of/{{1}}"},
            {"filter": f"{at}/cmd/+", "direction": "in", "rename": f"{at}/do/{{1}}"},
            {"filter": "", "local_prefix": f"{at}/one", "remote_prefix": f"{at}/other"},
        )
    )
    await near.connected()
    async with reading(near.url, f"{at}/#") as here, reading(far.url, f"{at}/#") as there:
        await publish(near.url, f"{at}/site/up/a/b")
        assert await there.one() == (f"{at}/all/7/up/a/b", b"")
        await publish(near.url, f"{at}/raw/pump/state/x/y")
        assert await there.one() == (f"{at}/named/x/y/of/pump", b"")
        await publish(near.url, f"{at}/one")
        assert await there.one() == (f"{at}/other", b"")
        assert [each.topic for each in await here.take(3)] == [
            f"{at}/site/up/a/b", f"{at}/raw/pump/state/x/y", f"{at}/one"
        ]  # fmt: skip
        await publish(far.url, f"{at}/all/7/down/c")
        assert await here.one() == (f"{at}/site/down/c", b"")
        await publish(far.url, f"{at}/cmd/go")
        assert await here.one() == (f"{at}/do/go", b"")


@pytest.mark.parametrize("version", VERSIONS)
async def test_retained_messages_are_kept_and_deleted_and_not_doubled(
    far: Broker, serve: Serve, to_far: Make, at: str, version: str
) -> None:
    await publish(far.url, f"{at}/in/early", "e", qos=2, retain=True)
    near = await serve()
    await publish(near.url, f"{at}/out/early", "e", qos=2, retain=True)
    async with reading(near.url, f"{at}/in/#") as here, reading(far.url, f"{at}/out/#") as there:
        topics = [{"filter": f"{at}/out/#"}, {"filter": f"{at}/in/#", "direction": "in"}]
        near.use([to_far(*topics, version=version)])
        assert await here.one() == (f"{at}/in/early", b"e")
        assert await there.one() == (f"{at}/out/early", b"e")
        await near.connected()
        near.broker._bridges.pause("b", True)  # type: ignore[union-attr]
        await near.until(lambda view: view.state == "paused")
        near.broker._bridges.pause("b", False)  # type: ignore[union-attr]
        await near.connected()
        await publish(near.url, f"{at}/out/next", "n", qos=2, retain=True)
        await publish(far.url, f"{at}/in/next", "n", qos=2, retain=True)
        assert await here.one() == (f"{at}/in/next", b"n")  # and not the first one again
        assert await there.one() == (f"{at}/out/next", b"n")
    for url, name in ((near.url, "in"), (far.url, "out")):
        async with reading(url, f"{at}/{name}/#") as late:
            assert sorted((each.topic, each.retain) for each in await late.take(2)) == [
                (f"{at}/{name}/early", True), (f"{at}/{name}/next", True)
            ]  # fmt: skip
    async with reading(near.url, f"{at}/in/#") as here, reading(far.url, f"{at}/out/#") as there:
        await here.take(2)
        await there.take(2)
        for name in ("early", "next"):
            await publish(near.url, f"{at}/out/{name}", qos=2, retain=True)
            await publish(far.url, f"{at}/in/{name}", qos=2, retain=True)
        await here.take(2)
        await there.take(2)
    for url, name in ((near.url, "in"), (far.url, "out")):
        async with reading(url, f"{at}/{name}/#") as late:
            await late.client.publish(f"{at}/{name}/x", "only this", qos=1)
            assert await late.one() == (f"{at}/{name}/x", b"only this")


async def test_retained_messages_are_not_carried_with_retain_off(
    far: Broker, serve: Serve, to_far: Make, at: str
) -> None:
    await publish(far.url, f"{at}/in/early", "e", retain=True)
    near = await serve()
    await publish(near.url, f"{at}/out/early", "e", retain=True)
    async with reading(near.url, f"{at}/in/#") as here, reading(far.url, f"{at}/out/#") as there:
        topics = [{"filter": f"{at}/out/#"}, {"filter": f"{at}/in/#", "direction": "in"}]
        near.use([to_far(*topics, retain=False)])
        await near.connected()
        await publish(near.url, f"{at}/out/next", "n", retain=True)
        await publish(far.url, f"{at}/in/next", "n", retain=True)
        assert await here.one() == (f"{at}/in/next", b"n")
        assert await there.one() == (f"{at}/out/next", b"n")
    async with reading(far.url, f"{at}/out/#") as late:
        await late.client.publish(f"{at}/out/x", "only this", qos=1)
        assert await late.one() == (f"{at}/out/x", b"only this")


async def test_properties_pass_and_the_expiry_counts_down(far: Broker, serve: Serve, to_far: Make, at: str) -> None:
    near = await serve(to_far({"filter": f"{at}/o/#"}, {"filter": f"{at}/i/#", "direction": "in"}))
    await near.connected()
    users = [("a", "1"), ("b", "2"), ("a", "3")]
    properties: Properties = {
        CONTENT_TYPE: "text/plain",
        CORRELATION_DATA: b"\0\xff",
        RESPONSE_TOPIC: "answer/here",
        MESSAGE_EXPIRY_INTERVAL: 100,
        USER_PROPERTY: users,
    }
    async with reading(near.url, f"{at}/i/#") as here, reading(far.url, f"{at}/o/#") as there:
        for url, name, reader in ((near.url, "o", there), (far.url, "i", here)):
            async with Client(url) as client:
                await client.publish(f"{at}/{name}/a", "x", qos=1, properties=properties)
            (message,) = await reader.take()
            found = dict(message.properties)
            left = found.pop(MESSAGE_EXPIRY_INTERVAL)
            assert isinstance(left, int) and 90 <= left <= 100
            pairs = found.pop(USER_PROPERTY)
            assert isinstance(pairs, list) and len(pairs) == 4
            assert [pair for pair in pairs if isinstance(pair, tuple) and pair[0] != MARK] == users
            assert found == {
                CONTENT_TYPE: "text/plain",
                CORRELATION_DATA: b"\0\xff",
                RESPONSE_TOPIC: "answer/here",
            }


async def test_an_expired_message_is_not_carried(far: Broker, serve: Serve, to_far: Make, at: str) -> None:
    near = await serve(to_far({"filter": f"{at}/#"}))
    await near.connected()
    near.broker._bridges.pause("b", True)  # type: ignore[union-attr]
    await near.until(lambda view: view.state == "paused")
    async with reading(far.url, f"{at}/#") as there, Client(near.url) as client:
        await client.publish(f"{at}/a", "short", qos=1, properties={MESSAGE_EXPIRY_INTERVAL: 1})
        await client.publish(f"{at}/a", "long", qos=1)
        clock = near.broker._driver.clock  # type: ignore[union-attr]
        published = clock()
        await near.until(lambda view: clock() > published + 1.05)
        near.broker._bridges.pause("b", False)  # type: ignore[union-attr]
        assert await there.one() == (f"{at}/a", b"long")


@pytest.mark.parametrize("version", few(VERSIONS, "5.0"))
@pytest.mark.parametrize("notifications", few(["local", "both", "off"], "both"))
async def test_the_state_is_told(
    far: Broker, serve: Serve, to_far: Make, at: str, version: str, notifications: str
) -> None:
    near = await serve()
    async with (
        reading(near.url, "$SYS/broker/connection/b/state", f"{at}/#") as here,
        reading(far.url, f"$SYS/broker/connection/client-{at}/state", f"{at}/#") as there,
    ):
        topics = [{"filter": f"{at}/#", "direction": "both"}]
        near.use([to_far(*topics, version=version, notifications=notifications)])
        await near.connected()
        if notifications != "off":
            assert await here.one() == ("$SYS/broker/connection/b/state", b"1")
        if notifications == "both":
            assert await there.one() == (f"$SYS/broker/connection/client-{at}/state", b"1")
        near.use([])
        if notifications != "off":
            assert await here.one() == ("$SYS/broker/connection/b/state", b"0")
        if notifications == "both":
            assert await there.one() == (f"$SYS/broker/connection/client-{at}/state", b"0")
        for url, reader in ((near.url, here), (far.url, there)):
            await publish(url, f"{at}/end", "end")
            assert await reader.one() == (f"{at}/end", b"end"), "no other state was told"
