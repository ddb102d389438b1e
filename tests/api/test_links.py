"""Links to other brokers as operators see them: real brokers on both sides, asked over HTTP."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from starlingmq import Broker
from starlingmq.admin.link_actions import LinksHere, joined
from starlingmq.admin.link_conditions import STEADY_SECONDS, LinkConditions
from starlingmq.admin.node_rpc import Answers, NodeRpc
from starlingmq.admin.remedies import Severity
from starlingmq.admin.typed_actions import NoArguments
from starlingmq.bridges.link_view import LinkView
from starlingmq.cli.local_cluster import free_port
from starlingmq.config.settings import from_tree
from tests.patience import within

from .browser import BROWSER, Chromium
from .conftest import BEARER, Ask, Join, Serve

LINKS = "/api/v1/links"
A_LINK = LinkView("hub", "bridge", "connected", "mqtt://hub", 1.0, "", [], 1, 10, 1, 5, 6, 50, 60, 0, 0, 0, 0)


def bridge(server: str, **more: Any) -> dict[str, Any]:
    return {"name": "hub", "servers": [server], "topics": [{"filter": "out/#"}], **more}


async def one_link(ask: Ask, broker: Broker) -> dict[str, Any]:
    answer = await ask(broker, "GET", LINKS)
    assert answer.status_code == 200, answer.text
    (found,) = answer.json()["links"]
    assert isinstance(found, dict)
    return found


async def until(ask: Ask, broker: Broker, met: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The link, as soon as it is so."""
    async with within(20):
        while not met(found := await one_link(ask, broker)):
            await asyncio.sleep(0.05)
    return found


async def until_named(ask: Ask, broker: Broker, name: str, state: str) -> None:
    """One of several links, as soon as it has this state."""
    async with within(20):
        while (name, state) not in {
            (one["name"], one["state"]) for one in (await ask(broker, "GET", LINKS)).json()["links"]
        }:
            await asyncio.sleep(0.05)


async def test_a_link_is_listed_paused_resumed_and_drained(serve: Serve, ask: Ask, join: Join, tmp_path: Path) -> None:
    far = await serve(node={"name": "far"})
    settings = {"node": {"name": "near", "data_dir": str(tmp_path / "data")}, "bridges": [bridge(far.address())]}
    near = await serve(**settings)
    found = await until(ask, near, lambda one: one["state"] == "connected")
    assert (found["name"], found["kind"], found["node"], found["server"]) == ("hub", "bridge", "near", far.address())
    reader, writer = await join(far, "reader"), await join(near, "writer")
    await reader.subscribe("out/#", qos=2)
    await writer.publish("out/a", b"1", qos=2)
    assert (await reader.message()).payload == b"1"
    found = await until(ask, near, lambda one: one["messages_out"] == 1 and one["in_flight"] == 0)
    assert (found["waiting"], found["dropped"], found["problem"]) == (0, 0, "")

    answer = await ask(near, "POST", LINKS + "/pause", json={"name": "hub"})
    assert answer.json() == {"name": "hub", "paused": True, "nodes": ["near"], "missing": []}
    await until(ask, near, lambda one: one["state"] == "paused")
    await writer.publish("out/a", b"2", qos=2)
    found = await until(ask, near, lambda one: one["waiting"] == 1)
    assert found["waiting_bytes"] > 0
    answer = await ask(near, "POST", LINKS + "/drain", json={"name": "hub", "seconds": 0})
    assert answer.status_code == 409 and "resume it first" in answer.text
    near.reload(from_tree({**settings, "bridges": [bridge(far.address(), keep_alive=77)]}))
    await until(ask, near, lambda one: one["state"] == "paused")  # also with other settings

    await ask(near, "POST", LINKS + "/resume", json={"name": "hub"})
    assert (await reader.message()).payload == b"2"
    answer = await ask(near, "POST", LINKS + "/drain", json={"name": "hub"})
    assert answer.json() == {"name": "hub", "paused": True, "nodes": ["near"], "missing": []}
    found = await until(ask, near, lambda one: one["state"] == "paused")
    assert (found["waiting"], found["in_flight"], found["messages_out"]) == (0, 0, 2)
    actions = (await ask(near, "GET", "/api/v1/actions")).json()["actions"]
    assert [one["what"] for one in actions] == [f"{done} the link 'hub'" for done in ("paused", "resumed", "paused")]

    await near.stop()
    near = await serve(**settings)
    found = await until(ask, near, lambda one: one["state"] == "paused")  # over a restart
    await ask(near, "POST", LINKS + "/resume", json={"name": "hub"})
    await until(ask, near, lambda one: one["state"] == "connected")


async def test_a_link_whose_other_broker_is_gone_says_why_and_is_not_drained(
    serve: Serve, ask: Ask, join: Join
) -> None:
    far = await serve(node={"name": "far"})
    near = await serve(node={"name": "near"}, bridges=[bridge(far.address())])
    await until(ask, near, lambda one: one["state"] == "connected")
    await far.stop()
    found = await until(ask, near, lambda one: "no broker listens" in one["problem"])
    assert found["state"] in ("connecting", "waiting")
    writer = await join(near, "writer")
    await writer.publish("out/a", b"1", qos=1)
    answer = await ask(near, "POST", LINKS + "/drain", json={"name": "hub", "seconds": 0})
    assert answer.status_code == 409 and "hub is not drained after 0 s: 1 message(s) wait" in answer.text, answer.text
    assert "no broker listens" in answer.text and (await one_link(ask, near))["state"] != "paused"


async def test_a_link_of_another_name_is_not_there(serve: Serve, ask: Ask, token_file: str) -> None:
    ask = partial(ask, headers=BEARER)
    broker = await serve(auth={"api": {"token_file": token_file}})
    assert (await ask(broker, "GET", LINKS)).json()["links"] == []
    for action in ("pause", "resume", "drain"):
        answer = await ask(broker, "POST", f"{LINKS}/{action}", json={"name": "hub"})
        assert answer.status_code == 404 and "there is no link 'hub'" in answer.text


@pytest.mark.parametrize(
    ("states", "shown"),
    [
        (("elsewhere", "connected", "elsewhere"), ("connected", "n2")),
        (("elsewhere", "paused"), ("paused", "n2")),
        (("waiting", "connected"), ("connected", "n2")),
        (("elsewhere", "elsewhere"), ("elsewhere", "")),
    ],
)
def test_the_list_of_a_cluster_has_one_entry_for_each_link(states: tuple[Any, ...], shown: tuple[str, str]) -> None:
    """That of the node that carries it, with the counts of all."""
    replies = {f"n{at + 1}": LinksHere([replace(A_LINK, state=state)]) for at, state in enumerate(states)}
    rpc = NodeRpc("n1", {}, None, False)
    found = joined(rpc, Answers(replies, []), NoArguments())
    (one,) = found.links
    assert (one.state, one.node) == shown
    assert (one.messages_out, one.waiting) == (5 * len(states), len(states))


def looks(*views: LinkView, every: float = 5.0, **bounds: Any) -> list[list[tuple[str, Severity]]]:
    """Kind and severity of what holds at each look at a link with these bounds."""
    settings = from_tree({"bridges": [bridge("mqtt://hub", **bounds)]}).bridges
    conditions = LinkConditions()
    found = []
    for at, view in enumerate(views):
        held = list(conditions.look([view], settings, at * every))
        assert all(one.subject == "hub" and one.text.startswith("hub") and one.next for one in held)
        found.append([(one.kind, one.severity) for one in held])
    return found


def test_a_link_that_is_not_connected_for_a_minute_is_an_alarm() -> None:
    waiting = [replace(A_LINK, state="waiting", seconds=at * 5.0, problem="gone") for at in range(15)]
    found = looks(*waiting)
    assert found[:13] == 13 * [[]] and found[13:] == 2 * [[("link", "warning")]]
    connected = replace(A_LINK, state="connected", seconds=STEADY_SECONDS)
    assert looks(*waiting, connected, waiting[0])[-2:] == [[], []]


def test_a_link_whose_connections_end_at_once_is_an_alarm() -> None:
    waiting, brief = replace(A_LINK, state="waiting", seconds=2.0), replace(A_LINK, seconds=1.0)
    assert looks(*(10 * [waiting, brief]))[-1] == [("link", "warning")]


@pytest.mark.parametrize("state", ["idle", "paused", "done", "elsewhere"])
def test_a_link_that_is_as_it_shall_be_is_no_alarm(state: Any) -> None:
    assert looks(*(30 * [replace(A_LINK, state=state, seconds=900.0)]))[-1] == []


def test_the_queue_of_a_link_is_an_alarm_before_it_is_full_and_a_critical_one_then() -> None:
    views = [replace(A_LINK, waiting=count, waiting_bytes=count) for count in (80, 81, 100)]
    assert looks(*views, max_mqueue_len=100) == [[], [("link_queue", "warning")], [("link_queue", "critical")]]
    assert looks(*views, queue_bytes=100, max_mqueue_len=0)[1:] == [
        [("link_queue", "warning")],
        [("link_queue", "critical")],
    ]
    drops = [replace(A_LINK, waiting=90, dropped=dropped) for dropped in (7, 8, 8)]
    severities = [severity for ((_, severity),) in looks(*drops, every=40.0, max_mqueue_len=100)]
    assert severities == ["warning", "critical", "critical"]
    expired = [replace(A_LINK, waiting=9, dropped=dropped) for dropped in (7, 8)]
    assert looks(*expired, max_mqueue_len=100) == [[], []]


def test_a_queue_that_grows_for_five_minutes_is_an_alarm_and_steady_traffic_is_none() -> None:
    growing = [replace(A_LINK, waiting=at) for at in range(61)]
    found = looks(*growing)
    assert found[:60] == 60 * [[]] and found[60] == [("link_queue", "warning")]
    steady = [replace(A_LINK, waiting=at % 7) for at in range(100)]
    assert looks(*steady) == 100 * [[]]


def test_filters_that_a_broker_refuses_are_an_alarm() -> None:
    assert looks(replace(A_LINK, complaints=["hub refuses to subscribe to a/#"])) == [[("link_refused", "warning")]]


async def test_metrics_tell_of_links_where_there_are_some(serve: Serve, ask: Ask) -> None:
    far = await serve(node={"name": "far"})
    near = await serve(node={"name": "near"}, bridges=[bridge(far.address())])
    await until(ask, near, lambda one: one["state"] == "connected")
    text = (await ask(near, "GET", "/metrics")).text
    assert 'starlingmq_link_connected{link="hub"} 1.0' in text
    assert 'starlingmq_link_messages_out_total{link="hub"} 0.0' in text
    assert {f"link_{name}" for name in ("waiting", "dropped_total", "inflight")} <= set(re.findall(r"link_\w+", text))
    assert "starlingmq_link_" not in (await ask(far, "GET", "/metrics")).text


async def test_an_alarm_of_a_link_is_listed_with_what_to_do(serve: Serve, ask: Ask) -> None:
    far = await serve(node={"name": "far"})
    near = await serve(node={"name": "near"}, bridges=[bridge(far.address(), max_mqueue_len=1)])
    await until(ask, near, lambda one: one["state"] == "connected")
    await ask(near, "POST", LINKS + "/pause", json={"name": "hub"})
    for _ in range(2):
        body = {"topic": "out/a", "payload": "x", "qos": 1}
        assert (await ask(near, "POST", "/api/v1/publish", json=body)).status_code == 200
    assert near._admin is not None
    await near._admin.alarms.look()
    (one,) = [each for each in (await ask(near, "GET", "/api/v1/alarms")).json()["alarms"] if each["subject"] == "hub"]
    assert (one["kind"], one["severity"], one["page"]) == (
        "link_queue",
        "critical",
        "BRIDGES.html#when-something-is-wrong",
    )


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")
async def test_the_view_of_links_is_hidden_without_any_and_pauses_and_resumes(
    serve: Serve, ask: Ask, join: Join, chromium: Chromium, pictures: Path
) -> None:
    far = await serve(node={"name": "far"})
    topics = [{"filter": "out/#"}, {"filter": "in/#", "direction": "in"}]
    gone = {**bridge(f"mqtt://127.0.0.1:{free_port()}"), "name": "warehouse"}
    near = await serve(node={"name": "near"}, bridges=[bridge(far.address(), topics=topics), gone])
    await until_named(ask, near, "hub", "connected")
    writer = await join(near, "writer")
    for _ in range(3):
        await writer.publish("out/a", b"1", qos=1)
    async with chromium.page() as page:
        await page.go(far.address("http") + "/#streams")
        await page.until("document.body && document.body.dataset.shown === 'streams'")
        assert await page.run("document.getElementById('tab-links').hidden")
        await page.go(near.address("http") + "/#links")
        for width in (1280, 390):
            await page.look_like(width, 844, dark=width == 390)
            await page.until("document.getElementById('view').textContent.includes('warehouse')")
            await page.screenshot(pictures / f"links-{width}.png")
        await page.run("document.querySelector('button[aria-label=\"Pause hub\"]').click()")
        await page.until("document.querySelector('button[aria-label=\"Resume hub\"]') !== null")
        await until_named(ask, near, "hub", "paused")
        await page.run("document.querySelector('button[aria-label=\"Resume hub\"]').click()")
        await until_named(ask, near, "hub", "connected")
