"""Links between StarlingMQs: each message once at any QoS, learned filters, lanes, priority."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from typing import Any

import pytest
from tests.bridges.real import HAS_MOSQUITTO, LOOK, PATIENCE, Line, Near, Serve, lines_with, publish, reading
from tests.client.brokers import Broker as Mosquitto
from tests.patience import within

from starlingmq.bridges.bridge_set import carrier
from starlingmq.cli.local_cluster import free_ports
from starlingmq.client import Client
from starlingmq.client.options import QOS
from starlingmq.config.section_types import ConfigError
from starlingmq.config.settings import from_tree
from starlingmq.core.connect import connecting
from starlingmq.core.session.session import Session

BOTH = {"filter": "t/#", "direction": "both"}


def link(url: str, *topics: dict[str, Any], name: str = "b", **more: Any) -> dict[str, Any]:
    return {"name": name, "servers": [url], "topics": list(topics) or [BOTH], **more}


async def site(serve: Serve, name: str, *links: dict[str, Any]) -> Near:
    return await serve(node={"name": name}, links=list(links))


def of_links(near: Near) -> dict[str, set[str]]:
    """The filters of each session of a link at this broker, own and others'."""
    sessions: dict[str, Session] = near.broker.state.ctx.sessions
    return {
        client_id: {filter.decode() for filter, _ in session.subscriptions() if not filter.startswith(b"$")}
        for client_id, session in sessions.items()
        if "link" in client_id
    }


async def until_learned(near: Near, client_id: str, *filters: str) -> None:
    async with within(PATIENCE):
        while of_links(near).get(client_id) != set(filters):
            await asyncio.sleep(LOOK)


async def test_each_qos_arrives_once_and_is_kept(serve: Serve) -> None:
    far = await site(serve, "far")
    near = await site(serve, "near", link(far.url, filters="fixed"))
    await near.connected()
    for here, there in ((near, far), (far, near)):
        async with reading(there.url, "t/#") as reader, Client(here.url) as client:
            for qos in QOS:
                await client.publish("t/a", f"{qos}", qos=qos)
            await client.publish("t/end", b"end", qos=2)
            got = [(message.payload, message.qos) for message in await reader.until(b"end")]
            assert got == [(b"0", 0), (b"1", 1), (b"2", 2)]


async def test_the_qos_of_an_entry_bounds_that_of_messages(serve: Serve) -> None:
    far = await site(serve, "far")
    near = await site(serve, "near", link(far.url, {"filter": "t/#", "qos": 1}, filters="fixed"))
    await near.connected()
    async with reading(far.url, "t/#") as reader:
        await publish(near.url, "t/a", b"x", qos=2)
        (message,) = await reader.take()
        assert message.qos == 1


async def test_qos_0_waits_while_the_line_is_cut(serve: Serve) -> None:
    far = await site(serve, "far")
    async with Line(far.url) as line:
        near = await site(serve, "near", link(line.url, filters="fixed"))
        await near.connected()
        async with reading(far.url, "t/#") as reader, Client(near.url) as client:
            line.broken = True
            line.cut()
            await near.until(lambda view: view.state != "connected")
            for number in range(50):
                await client.publish("t/a", str(number), qos=0)
            await near.until(lambda view: view.waiting + view.in_flight == 50)
            line.mend()
            got = [message.payload.decode() for message in await reader.take(50)]
            assert got == [str(number) for number in range(50)]


async def test_only_messages_with_subscribers_travel(serve: Serve) -> None:
    far = await site(serve, "far")
    near = await site(serve, "near", link(far.url))
    await near.connected()
    await until_learned(near, "$bridge/link:b")
    await publish(near.url, "t/a/b", b"no one", qos=2)
    async with reading(far.url, "t/a/+", "#", "other/x") as reader:
        await until_learned(near, "$bridge/link:b", "t/a/+", "t/#")
        await publish(near.url, "t/a/b", b"one", qos=2)
        assert await reader.one() == ("t/a/b", b"one")
        assert near.view().messages_out == 1
        await reader.client.unsubscribe("#")
        await until_learned(near, "$bridge/link:b", "t/a/+")
    await until_learned(near, "$bridge/link:b")
    async with reading(near.url, "t/in") as reader:
        await until_learned(far, next(name for name in of_links(far) if name.startswith("$link/b-")), "t/in")
        await publish(far.url, "t/in", b"in")
        assert await reader.one() == ("t/in", b"in")


async def test_prefixes_narrow_what_is_learned(serve: Serve) -> None:
    far = await site(serve, "far")
    topic = {"filter": "+/t", "local_prefix": "here/", "remote_prefix": "there/"}
    near = await site(serve, "near", link(far.url, topic))
    await near.connected()
    async with reading(far.url, "there/1/#", "there/2/x", "here/3/t") as reader:
        await until_learned(near, "$bridge/link:b", "here/1/t")
        await publish(near.url, "here/1/t", b"x")
        assert await reader.one() == ("there/1/t", b"x")


async def test_a_hub_tells_each_site_what_the_others_want(serve: Serve) -> None:
    hub = await site(serve, "hub")
    one = await site(serve, "one", link(hub.url, name="one"))
    two = await site(serve, "two", link(hub.url, name="two"))
    await one.connected("one")
    await two.connected("two")
    async with reading(two.url, "t/2") as reader:
        await until_learned(one, "$bridge/link:one", "t/2")
        await publish(one.url, "t/2", b"x", qos=2)
        assert await reader.one() == ("t/2", b"x")
    await until_learned(one, "$bridge/link:one")


async def test_a_filter_leaves_a_ring_with_its_last_subscriber(serve: Serve) -> None:
    names = ("one", "two", "three")
    sites = [await site(serve, name) for name in names]
    for at, near in enumerate(sites):
        to = sites[(at + 1) % 3]
        near.broker.reload(
            from_tree(
                {
                    "listeners": ["mqtt://127.0.0.1:0"],
                    "node": {"name": names[at], "shutdown_timeout": 0.1},
                    "links": [link(to.url)],
                }
            )
        )
    for near in sites:
        await near.connected()
    async with reading(sites[0].url, "t/x") as reader:
        for near in sites[1:]:
            async with within(PATIENCE):
                while not any("t/x" in filters for filters in of_links(near).values()):
                    await asyncio.sleep(LOOK)
        assert not any("t/x" in filters for filters in of_links(sites[0]).values())
        await publish(sites[1].url, "t/x", b"x", qos=2)
        assert await reader.one() == ("t/x", b"x")
    async with within(PATIENCE):
        while any(filters for near in sites for filters in of_links(near).values()):
            await asyncio.sleep(LOOK)


async def test_lanes_divide_the_topics(serve: Serve) -> None:
    far = await site(serve, "far")
    near = await site(serve, "near", link(far.url, lanes=3, filters="fixed"))
    for lane in ("b.1", "b.2", "b.3"):
        await near.connected(lane)
    async with reading(far.url, "t/#") as reader, Client(near.url) as client:
        for number in range(60):
            await client.publish(f"t/{number % 12}", str(number), qos=QOS[number % 3])
        messages = await reader.take(60)
        await client.publish("t/end", b"end", qos=2)
        assert not await reader.until(b"end"), "none comes twice"
    by_topic: dict[str, list[int]] = {}
    for message in messages:
        by_topic.setdefault(message.topic, []).append(int(message.payload))
    assert all(numbers == sorted(numbers) for numbers in by_topic.values())
    carried = Counter({lane: near.view(lane).messages_out for lane in ("b.1", "b.2", "b.3")})
    assert carried.total() == 61 and min(carried.values()) > 0


async def test_a_priority_is_the_class_of_its_packets(serve: Serve) -> None:
    far = await site(serve, "far")
    near = await site(serve, "near", link(far.url, priority=5))
    await near.connected()
    assert near.broker._bridges is not None
    transport = near.broker._bridges._bridges["b"]._link._transport  # type: ignore[attr-defined]
    assert transport.get_extra_info("socket").getsockopt(socket.IPPROTO_IP, socket.IP_TOS) == 5 << 5


@HAS_MOSQUITTO
async def test_another_kind_of_broker_is_refused(
    far: Mosquitto, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    near = await site(serve, "near", link(far.urls.get("mqtt", far.url)))
    view = await near.until(
        lambda view: "no StarlingMQ" in view.problem
    )  # before, it has closed a compressed connection
    assert view.problem == "the other broker is no StarlingMQ with links; use bridges for it" and view.kind == "link"
    assert lines_with(caplog.text, "link b: the other broker is no StarlingMQ")


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"version": "3.1.1"}, "links[0].version: links speak MQTT 5.0; leave it out, or use bridges"),
        ({"servers": ["nats://h"]}, "links[0].servers: links speak MQTT; use bridges for NATS servers and Kafka"),
        ({"client_id": "a/1/2"}, "links[0].client_id: a slash is not allowed: the number of the lane follows one"),
        ({"lanes": 17}, "links[0].lanes: expected int <= 16"),
    ],
)
def test_settings_that_no_link_has_are_refused(more: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_tree({"links": [link("mqtt://h") | more]})
    assert problem in str(caught.value)


@pytest.mark.interpreted_only("what is compiled cannot be patched")
async def test_a_starlingmq_without_links_is_refused(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "is_link", lambda client_id: False)  # it names its site, as earlier versions do
    far = await site(serve, "far")
    near = await site(serve, "near", link(far.url))
    view = await near.until(lambda view: bool(view.problem))
    assert view.problem == "the other broker is no StarlingMQ with links; use bridges for it"


async def test_a_broker_that_takes_no_more_filters_sends_everything(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    far = await serve(node={"name": "far"}, limits={"subscriptions_per_client": 3})
    near = await site(serve, "near", link(far.url))
    session = f"$link/b-{near.broker.state.ctx.site}"
    await near.connected()
    async with reading(near.url, "t/0", "t/1", "t/2") as reader:
        await until_learned(far, session, "t/0", "t/1", "t/2")
        await reader.client.subscribe("t/3")
        await until_learned(far, session, "t/#")
        (complaint,) = near.view().complaints
        assert complaint.startswith("the other broker refuses the filter t/3: ")
        assert complaint.endswith("everything that the topics of the link match travels, wanted or not")
        assert complaint in caplog.text
        for number in range(5):
            await publish(far.url, f"t/{number}", str(number), qos=2)
        assert [message.payload for message in await reader.take(4)] == [b"0", b"1", b"2", b"3"]
        view = near.view()
        assert (view.state, view.problem, view.messages_in) == ("connected", "", 5)


async def test_a_bound_for_clients_is_none_for_own_links(serve: Serve) -> None:
    far = await site(serve, "far")
    near = await serve(node={"name": "near"}, limits={"subscriptions_per_client": 1}, links=[link(far.url)])
    await near.connected()
    async with reading(far.url, "t/0", "t/1", "t/2"):
        await until_learned(near, "$bridge/link:b", "t/0", "t/1", "t/2")
        assert near.view().complaints == []


async def test_what_a_client_publishes_is_no_answer_about_filters(serve: Serve) -> None:
    far = await site(serve, "far")
    near = await site(serve, "near", link(far.url))
    await near.connected()
    await publish(far.url, "$link/wanted", b"+t/forged\0far\0")
    async with reading(far.url, "t/real"):
        await until_learned(near, "$bridge/link:b", "t/real")


def test_links_need_qos_2() -> None:
    tree = {"listeners": ["mqtt://127.0.0.1:0"], "mqtt": {"max_qos": 1}, "links": [link("mqtt://h")]}
    with pytest.raises(ConfigError, match=r"mqtt\.max_qos: links need QoS 2"):
        from_tree(tree)


def test_names_of_links_bridges_and_lanes_differ() -> None:
    with pytest.raises(ConfigError, match=r"links\[0\]\.name: b\.2 is the name of another link or bridge"):
        from_tree({"links": [link("mqtt://h", lanes=2)], "bridges": [link("mqtt://h") | {"name": "b.2"}]})


def test_each_lane_has_a_node_of_its_own_where_there_are_so_many() -> None:
    for nodes in ([7], [1, 2, 3], [4, 9, 2, 8, 5]):
        carriers = [carrier("paris", nodes, lane) for lane in range(1, 4)]
        assert len(set(carriers)) == min(3, len(nodes)) and set(carriers) <= set(nodes)
    assert carrier("paris", [], 2) == 0


@pytest.mark.parametrize("asked", [False, True])
async def test_publishers_are_held_by_a_dead_line_only_if_asked_for(serve: Serve, asked: bool) -> None:
    settings = {"node": {"name": "near"}, "mqtt": {"max_mqueue_len": 20}, "limits": {"publisher_hold": "1h"}}
    (port,) = free_ports(1)
    dead = link(f"mqtt://127.0.0.1:{port}", hold_publishers=asked, filters="fixed")
    near = await serve(links=[dead], **settings)
    counters = near.broker.state.ctx.counters
    async with Client(near.url) as client:
        sent = [client.publish_soon("t/a", str(number), qos=1) for number in range(40)]
        if asked:
            async with within(PATIENCE):
                while not counters.held_publishers:
                    await asyncio.sleep(LOOK)
            near.broker.reload(from_tree({"listeners": ["mqtt://127.0.0.1:0"], **settings}))
        await asyncio.gather(*sent)
        assert counters.held_publishers == asked
        assert asked or near.view().waiting == 40
