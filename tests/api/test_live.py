"""Events that a server sends as they happen: a tail of topics, and the trace of messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from starlingmq import Broker
from starlingmq.api.served import OPEN_PER_ADDRESS
from starlingmq.config.settings import from_tree
from starlingmq.core.observe.message_watch import PAYLOAD_MAX
from tests.patience import within

from .conftest import Ask, Join, Passwd, Serve

Events = AsyncIterator[tuple[str, Any]]


@asynccontextmanager
async def listening(broker: Broker, path: str, **params: str) -> AsyncIterator[Events]:
    """The events of a stream as they come; comment lines are skipped."""
    async with (
        httpx.AsyncClient(base_url=broker.address("http"), trust_env=False, timeout=20.0) as client,
        client.stream("GET", f"/api/v1{path}", params=params) as answer,
    ):
        assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
        yield events_of(answer)


async def events_of(answer: httpx.Response) -> Events:
    name = ""
    async for line in answer.aiter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


async def until_off(broker: Broker) -> None:
    async with within(10.0):
        while broker.state.ctx.audit is not None:
            await asyncio.sleep(0.01)


async def test_a_tail_shows_messages_as_they_are_published(serve: Serve, join: Join) -> None:
    broker = await serve()
    author = await join(broker, "author")
    async with listening(broker, "/tail", filter="a/#") as events:
        name, told = await anext(events)
        assert (name, told["filter"]) == ("ready", "a/#")
        await author.publish("b", b"no", 1)
        await author.publish("a/ü\n", "grüß".encode(), 1)
        name, told = await anext(events)
        assert name == "message" and (told["topic"], told["payload"], told["size"], told["truncated"]) == (
            "a/ü\n",
            "grüß",
            6,
            False,
        )
        await author.publish("a/b", b"\xff", 1)
        assert (await anext(events))[1]["payload"] is None
        await author.publish("a/b", "ü".encode() * PAYLOAD_MAX, 1)
        told = (await anext(events))[1]
        assert told["truncated"] and told["payload"] == "ü" * (PAYLOAD_MAX // 2) and told["client"] == "author"
    await until_off(broker)


async def test_the_way_of_a_message_is_told_step_by_step(serve: Serve, join: Join) -> None:
    broker = await serve()
    author, reader = await join(broker, "author"), await join(broker, "reader")
    await reader.subscribe("a", qos=1)
    async with listening(broker, "/trace", client_id="reader") as events:
        assert (await anext(events))[0] == "ready"
        await author.publish("a", b"x", 1)
        steps = [(await anext(events))[1] for _ in range(2)]
        assert [(step["kind"], step["client"]) for step in steps] == [("matched", "reader"), ("delivered", "reader")]
    await until_off(broker)


async def test_invalid_filters_and_too_many_streams_are_refused(serve: Serve, ask: Ask) -> None:
    broker = await serve()
    for path, status in (
        ("/tail?filter=a/%23/b", 400),
        ("/tail?filter=", 400),
        ("/tail", 400),
        ("/tail?filter=a&rate=0", 400),
        ("/trace", 400),
    ):
        async with within(10.0):  # a stream would never end
            answer = await ask(broker, "GET", f"/api/v1{path}")
        assert answer.status_code == status, (path, answer.text)
    async with AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(listening(broker, "/tail", filter="#")) for _ in range(OPEN_PER_ADDRESS)
        ]
        for events in streams:
            assert (await anext(events))[0] == "ready"
        async with within(10.0):
            assert (await ask(broker, "GET", "/api/v1/tail?filter=a")).status_code == 429
    await until_off(broker)


@pytest.mark.parametrize("kind", ["token", "password"])
async def test_a_tail_ends_when_its_client_is_not_let_in_any_more(
    serve: Serve, join: Join, passwd: Passwd, tmp_path: Path, kind: str
) -> None:
    """And what is published after the reload is not shown."""
    tokens = tmp_path / "tokens"
    tokens.write_text("a-token-of-this-test\nanother-token-of-it\n")
    passwords = passwd(ann="right", bob="other")

    def auth(*users: str) -> dict[str, Any]:
        return {"password": {"file": passwords}, "api": {"token_file": str(tokens), "users": users}}

    broker = await serve(auth=auth("ann", "bob"))
    author = await join(broker, "author", username="bob", password=b"other")
    token = kind == "token"
    async with httpx.AsyncClient(base_url=broker.address("http"), trust_env=False, timeout=20.0) as client:
        shown: dict[str, Any] = (
            {"headers": {"authorization": "Bearer a-token-of-this-test"}} if token else {"auth": ("ann", "right")}
        )
        async with client.stream("GET", "/api/v1/tail", params={"filter": "a/#"}, **shown) as answer:
            events = events_of(answer)
            assert (await anext(events))[0] == "ready"
            broker.reload(broker.config)
            await author.publish("a/1", b"", 1)
            assert (await anext(events))[1]["topic"] == "a/1", "nothing has changed for it"
            tokens.write_text("another-token-of-it\n")
            listeners = [each.url for each in broker.config.listeners]
            broker.reload(from_tree({"listeners": listeners, "auth": auth("bob")}))
            await author.publish("a/2", b"", 1)
            assert [told async for told in events] == []
