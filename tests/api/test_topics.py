"""The last value of a topic, and its history, over HTTP and as commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import nats
from starlingmq import Broker
from tests.api.conftest import Ask, Join, Serve

LISTENERS = ["mqtt://127.0.0.1:0", "nats://127.0.0.1:0", "http://127.0.0.1:0"]


@pytest.fixture(params=[True, False], ids=["stored", "in memory"])
async def broker(request: pytest.FixtureRequest, serve: Serve, tmp_path: Path) -> Broker:
    """Has a stream S of ``t/#``, and before that A of ``a/#``."""
    more: dict[str, Any] = {"node": {"data_dir": str(tmp_path / "data")}} if request.param else {}
    broker = await serve(listeners=LISTENERS, **more)
    client = await nats.connect(broker.address("nats"), allow_reconnect=False)
    js = client.jetstream(timeout=20.0)
    for name, subjects in (("A", ["a.>"]), ("S", ["t.>"])):
        await js.add_stream(name=name, subjects=subjects, storage=None if request.param else "memory")
    await client.close()
    return broker


async def get(ask: Ask, broker: Broker, path: str, **params: Any) -> Any:
    answer = await ask(broker, "GET", f"/api/v1/topics/{path}", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_the_last_value_is_what_is_retained_or_else_the_last_in_a_stream(
    broker: Broker, ask: Ask, join: Join
) -> None:
    client = await join(broker)
    for number in range(5):
        await client.publish("t/1", f"{number}".encode(), 1)
        await client.publish("t/2", b"\xff", 1)
    found = await get(ask, broker, "last", topic="t/1")
    assert (found["payload"], found["stream"], found["offset"]) == ("4", "S", 9)
    found = await get(ask, broker, "last", topic="t/2")
    assert (found["payload"], found["payload_base64"], found["offset"]) == (None, "/w==", 10)
    await client.publish("t/1", b"kept", 1, retain=True)
    await client.publish("t/1", b"later", 1)
    found = await get(ask, broker, "last", topic="t/1")
    assert (found["payload"], found["stream"], found["offset"]) == ("kept", None, None)
    for topic in ("t", "t/3", "a/1", "x"):
        assert (await ask(broker, "GET", "/api/v1/topics/last", params={"topic": topic})).status_code == 404


async def test_the_history_comes_in_pages_newest_first(broker: Broker, ask: Ask, join: Join) -> None:
    client = await join(broker)
    for number in range(1, 21):
        await client.publish(f"t/{number % 2}", f"{number}".encode(), 1)
    found: list[dict[str, Any]] = []
    before = 0
    while before is not None:
        page = await get(ask, broker, "history", topic="t/0", limit=4, before=before)
        found += page["messages"]
        before = page["next"]
    assert [(one["payload"], one["offset"]) for one in found] == [(f"{n}", n) for n in range(20, 0, -2)]
    middle = found[4]["published_at"]
    since = await get(ask, broker, "history", topic="t/0", since=middle)
    assert since["messages"] == [one for one in found if one["published_at"] >= middle]
    assert (await get(ask, broker, "history", topic="t/0", since="4102444800"))["messages"] == []
    for wrong, status in (
        ({"topic": "t/0", "stream": "none"}, 404),
        ({"topic": "t/0", "stream": "A"}, 404),
        ({"topic": "t/5"}, 404),
        ({"topic": "t/0", "since": "yesterday"}, 400),
        ({"topic": "t/0", "limit": 0}, 400),
        ({"topic": "t/0", "limit": 100_000}, 400),
        ({"topic": "t/0", "before": -1}, 400),
        ({}, 400),
    ):
        assert (await ask(broker, "GET", "/api/v1/topics/history", params=wrong)).status_code == status, wrong


async def test_the_dashboard_has_no_view_of_a_list_that_needs_a_topic(broker: Broker, ask: Ask) -> None:
    answer = await ask(broker, "GET", "/api/v1/lists")
    paths = [each["path"] for each in answer.json()["lists"]]
    assert "/clients" in paths and "/topics/history" not in paths
