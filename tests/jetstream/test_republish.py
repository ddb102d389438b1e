"""Streams that republish and transform, over a kill -9, and in a ring."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from nats.js.api import RePublish, StreamConfig, SubjectTransform
from tests.jetstream.test_kills import content, lives

import nats

PATIENCE = 20.0

pytestmark = pytest.mark.slow


def stream(name: str, source: str, destination: str) -> StreamConfig:
    republish = RePublish(src=f"{source}.>", dest=f"{destination}.>")
    return StreamConfig(name=name, subjects=[f"{source}.>"], republish=republish)


async def heard(subscription: Any) -> tuple[str, bytes, str, str]:
    message = await subscription.next_msg(timeout=PATIENCE)
    headers = message.headers
    return message.subject, message.data, headers["Nats-Sequence"], headers["Nats-Last-Sequence"]


async def test_a_killed_broker_goes_on_with_both(tmp_path: Path) -> None:
    async with lives(tmp_path) as life:
        config = stream("S", "in", "out")
        config.subject_transform = SubjectTransform(src="in.*.*", dest="in.{{wildcard(2)}}.$1")
        async with life.client() as js:
            await js.add_stream(config)
            await js.publish("in.a.b", b"1")
        life.next()
        async with life.client() as js:
            assert await content(js, "S") == {1: b"1"}
            assert (await js.get_msg("S", 1)).subject == "in.b.a"
            subscription = await js._nc.subscribe("out.>")
            await js.publish("in.a.b", b"2")
            assert await heard(subscription) == ("out.b.a", b"2", "2", "1")


async def test_two_streams_that_republish_to_each_other_end(tmp_path: Path) -> None:
    async with lives(tmp_path) as life, life.client() as js:
        await js.add_stream(stream("A", "a", "b"))
        await js.add_stream(stream("B", "b", "a"))
        client = await nats.connect(life.broker.url, allow_reconnect=False)
        subscription = await client.subscribe("*.x")
        await client.flush()
        for start in ("a.x", "b.x"):
            await js.publish(start, start.encode())
            subjects = [(await subscription.next_msg(timeout=PATIENCE)).subject for _ in range(3)]
            assert subjects == [start, "b.x" if start == "a.x" else "a.x", start]
        await js.publish("a.end", b"end")  # a message that is still on its way would be before it
        assert list((await content(js, "A")).values())[:4] == [b"a.x", b"a.x", b"b.x", b"end"]
        assert list((await content(js, "B")).values())[:3] == [b"a.x", b"b.x", b"b.x"]
        await client.close()
