"""Requests with replies, messages by filter, and what the client refuses by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import starlingmq
from starlingmq.client import Client, ConnectionLost, Message, PublishFailed
from starlingmq.client.client_topics import check_filter, levels_of, matches
from starlingmq.core.topics.topics import matches as matches_at_the_broker
from starlingmq.core.topics.topics import valid_filter
from starlingmq.wire.properties import CORRELATION_DATA, RESPONSE_TOPIC, USER_PROPERTY
from tests.embedding.conftest import Serve, serve
from tests.patience import within

__all__ = ["serve"]


@asynccontextmanager
async def answering(url: str, *answers: str, topic: str = "ask") -> AsyncIterator[list[Message]]:
    """A client that answers each request with these payloads, or with that of the request."""
    asked: list[Message] = []

    async def answer(client: Client) -> None:
        async for message in client.messages():
            asked.append(message)
            back, mark = message.properties[RESPONSE_TOPIC], message.properties[CORRELATION_DATA]
            assert isinstance(back, str)
            for payload in answers or (message.payload.decode(),):
                await client.publish(back, payload, qos=1, properties={CORRELATION_DATA: mark})

    async with Client(url) as client:
        await client.subscribe(topic, qos=1)
        task = asyncio.create_task(answer(client))
        try:
            yield asked
        finally:
            task.cancel()


async def test_a_request_gets_its_own_reply(serve: Serve) -> None:
    broker = await serve()
    async with answering(broker.address()) as asked, Client(broker.address()) as client, within(10):
        await client.subscribe("other")
        replies = await asyncio.gather(*(client.request("ask", f"{number}") for number in range(50)))
        assert [reply.payload for reply in replies] == [b"%d" % number for number in range(50)]
        assert len({message.properties[RESPONSE_TOPIC] for message in asked}) == 1
        kept = await client.request("ask", "x", properties={USER_PROPERTY: [("a", "b")]})
        assert kept.payload == b"x" and asked[-1].properties[USER_PROPERTY] == [("a", "b")]
        await client.publish("other", "not a reply")
        assert (await anext(client.messages())).payload == b"not a reply"
        assert client.unread == 0


async def test_a_second_reply_and_a_late_one_are_dropped(serve: Serve) -> None:
    broker = await serve()
    async with Client(broker.address()) as client, within(10):
        async with answering(broker.address(), "first", "second"):
            assert (await client.request("ask")).payload == b"first"
            assert (await client.request("ask")).payload == b"first"
        async with Client(broker.address()) as silent:
            await silent.subscribe("ask", qos=1)
            with pytest.raises(TimeoutError):
                await client.request("ask", timeout=0.2)
            late = await anext(silent.messages())
            topic, mark = late.properties[RESPONSE_TOPIC], late.properties[CORRELATION_DATA]
            assert isinstance(topic, str)
            await silent.publish(topic, "late", qos=1, properties={CORRELATION_DATA: mark})
        async with answering(broker.address(), "in time"):
            assert (await client.request("ask")).payload == b"in time"
        assert client.unread == 0


async def test_a_request_that_no_client_gets_fails_at_once(serve: Serve) -> None:
    broker = await serve()
    async with Client(broker.address()) as client, within(10):
        with pytest.raises(PublishFailed, match="no subscriber of nobody/there"):
            await client.request("nobody/there", timeout=60)


async def test_a_request_ends_with_its_connection(serve: Serve) -> None:
    broker = await serve()
    async with Client(broker.address()) as silent, Client(broker.address()) as client, within(10):
        await silent.subscribe("ask", qos=1)
        request = asyncio.create_task(client.request("ask", timeout=60))
        await anext(silent.messages())
        await broker.stop()
        with pytest.raises(ConnectionLost):
            await request


async def test_a_request_comes_through_though_messages_are_not_read(serve: Serve) -> None:
    """The client has stopped reading its socket, and the reply arrives through it."""
    broker = await serve()
    url = broker.address()
    async with answering(url), Client(url, receive_maximum=5000) as client, Client(url) as other, within(10):
        await client.subscribe("flood", qos=1)
        for _ in range(1200):
            await other.publish("flood", "x", qos=1)
        assert (await client.request("ask", "y")).payload == b"y"
        assert client.unread >= 1000


async def test_a_request_needs_mqtt_5(serve: Serve) -> None:
    broker = await serve()
    async with Client(broker.address(), version=4) as client:
        with pytest.raises(ValueError, match="MQTT 5"):
            await client.request("ask")


async def test_messages_go_to_the_first_generator_whose_filter_matches(serve: Serve) -> None:
    broker = await serve()
    async with Client(broker.address()) as client, within(10):
        ones, all_of_a = client.messages("a/1"), client.messages("a/#")
        await client.subscribe("#", qos=1)
        for topic in ("a/1", "a/2", "b", "a"):
            await client.publish(topic, topic, qos=1)
        assert (await anext(ones)).topic == "a/1"
        assert [(await anext(all_of_a)).topic for _ in range(2)] == ["a/2", "a"]
        assert (await anext(client.messages())).topic == "b"
        for topic in ("a/1", "a/2"):
            await client.publish(topic, topic, qos=1)
        assert (await anext(ones)).topic == "a/1"
        await all_of_a.aclose()
        assert (await anext(client.messages())).topic == "a/2", "what it had not yielded is not lost"
        await client.publish("a/3", "", qos=1)
        assert (await anext(client.messages())).topic == "a/3"
        assert client.unread == 0


async def test_a_generator_that_never_began_keeps_no_message(serve: Serve) -> None:
    broker = await serve()
    async with Client(broker.address()) as client, within(10):
        await client.subscribe("a", qos=1)
        forgotten: Any = client.messages("a")
        await client.publish("a", "1", qos=1)
        del forgotten
        await client.publish("a", "2", qos=1)
        messages = client.messages()
        assert [(await anext(messages)).payload for _ in range(2)] == [b"1", b"2"]


BAD = ["", "a#", "a/#/b", "+a", "a/b+/c", "\0", "$share//a", "$share/g+/a", "$share/g", "$share/g/", "x" * 65_536]


@pytest.mark.parametrize("bad", BAD, ids=repr)
async def test_a_bad_filter_is_refused_here_and_ends_nothing(serve: Serve, bad: str) -> None:
    broker = await serve()
    async with Client(broker.address()) as client, within(10):
        for call in (client.subscribe(bad), client.subscribe(["good", bad]), client.unsubscribe(bad)):
            with pytest.raises(ValueError, match=r"filter|group"):
                await call
        if bad:
            with pytest.raises(ValueError, match=r"filter|group"):
                client.messages(bad)
        with pytest.raises(ValueError, match="QoS"):
            await client.subscribe("good", qos=3)  # type: ignore[arg-type]
        assert await client.subscribe("good") == [0]


@pytest.mark.parametrize(
    "text", ["a", "a/b", "+", "#", "a/+/b", "a/#", "/", "+/+", "$SYS/#", "$share/g/a/#", "a//b", "ä/+"]
)
def test_filters_are_as_the_broker_has_them(text: str) -> None:
    check_filter(text)
    plain = "/".join(levels_of(text))
    assert valid_filter(plain.encode())
    for topic in ("a", "a/b", "/", "a//b", "a/x/b", "$SYS/a", "ä/b", "b", "a/b/c"):
        assert matches(levels_of(text), topic) == matches_at_the_broker(plain.encode(), topic.encode()), topic


async def test_a_host_and_a_port_are_an_address(serve: Serve) -> None:
    broker = await serve()
    host, _, port = broker.address().removeprefix("mqtt://").rpartition(":")
    async with Client(host, int(port)) as client:
        assert client.connected
    for wrong in (-1, 65_536):
        with pytest.raises(ValueError, match="between 1 and 65535"):
            Client("localhost", wrong)


def test_the_package_shows_what_it_exports() -> None:
    names: Any = dir(starlingmq)
    assert names == sorted(starlingmq.__all__) and "Broker" in names
