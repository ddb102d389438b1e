"""``on_publish``: accepting, changing and dropping messages on their way in."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Callable

import pytest

from starlingmq.hooks import Publication
from starlingmq.wire.mqtt import Disconnect, Publish, Will
from starlingmq.wire.properties import CONTENT_TYPE, USER_PROPERTY, WILL_DELAY_INTERVAL, decode_property_bytes
from starlingmq.wire.reasons import Reason

from .conftest import Join, Serve

Hook = Callable[[Publication], object]


def late(hook: Hook) -> Hook:
    """The same as a coroutine that waits."""

    async def hook_later(message: Publication) -> object:
        await asyncio.sleep(0)
        return hook(message)

    return hook_later


@pytest.fixture(params=["at once", "later"])
def either(request: pytest.FixtureRequest) -> Callable[[Hook], Hook]:
    """A hook as a function, and as a coroutine."""
    return late if request.param == "later" else lambda hook: hook


async def test_everything_of_a_message_may_be_changed(serve: Serve, join: Join, either: Callable[[Hook], Hook]) -> None:
    def change(message: Publication) -> None:
        assert (message.topic, message.payload, message.qos, message.retain) == ("in", b"x", 1, False)
        assert (message.client_id, message.username) == ("ann", "Ann")
        assert message.properties == {CONTENT_TYPE: "text/plain", USER_PROPERTY: [("a", "1")]}
        message.topic = "out/ümlaut"
        message.payload = b"changed"
        message.retain = True
        message.properties[USER_PROPERTY] = [("a", "1"), ("by", "hook" * 100)]
        del message.properties[CONTENT_TYPE]

    broker = await serve(on_publish=either(change))
    ann = await join(broker, "ann", username="Ann")
    await ann.subscribe("#")
    ann.send(Publish(b"in", b"x", 1, packet_id=1, properties=b"\3\0\x0atext/plain\x26\0\1a\0\0011"))
    message = await ann.message()
    assert (message.topic, message.payload) == ("out/ümlaut".encode(), b"changed")
    assert decode_property_bytes(message.properties) == {USER_PROPERTY: [("a", "1"), ("by", "hook" * 100)]}
    later = await join(broker, "later")
    await later.subscribe("out/#")
    assert (await later.message()).retain


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_dropped_message_is_acknowledged(
    serve: Serve, join: Join, either: Callable[[Hook], Hook], version: int, qos: int
) -> None:
    broker = await serve(on_publish=either(lambda message: message.payload != b"drop"))
    ann = await join(broker, "ann", version)
    await ann.subscribe("t")
    assert await ann.publish("t", b"drop", qos) == 0
    assert await ann.publish("t", b"keep", qos) == 0
    assert (await ann.message()).payload == b"keep"
    assert broker.state.ctx.counters.dropped == {"hook": 1}


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_hook_that_raises_refuses(
    serve: Serve, join: Join, either: Callable[[Hook], Hook], qos: int, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(message: Publication) -> None:
        if message.payload == b"bad":
            raise KeyError("the hook's own bug")

    broker = await serve(on_publish=either(fail))
    ann = await join(broker, "ann")
    await ann.subscribe("t")
    assert await ann.publish("t", b"bad", qos) == (Reason.IMPLEMENTATION_SPECIFIC_ERROR if qos else 0)
    await ann.publish("t", b"good", qos)
    assert (await ann.message()).payload == b"good"
    assert "the hook's own bug" in caplog.text
    assert broker.state.ctx.counters.errors == {}


def to_no_topic(message: Publication) -> None:
    message.topic = "out/#"


def to_text(message: Publication) -> None:
    message.payload = "text"  # type: ignore[assignment]


def to_no_properties(message: Publication) -> None:
    message.properties[USER_PROPERTY] = "not pairs"


@pytest.mark.parametrize("change", [to_no_topic, to_text, to_no_properties])
async def test_a_message_changed_by_a_hook_is_checked(
    serve: Serve, join: Join, either: Callable[[Hook], Hook], change: Hook
) -> None:
    broker = await serve(on_publish=either(change))
    ann = await join(broker, "ann")
    for qos in (1, 2):
        assert await ann.publish("t", qos=qos) == Reason.IMPLEMENTATION_SPECIFIC_ERROR
    await ann.publish("t", qos=0)
    assert await ann.subscribe("still/there") == [0]  # it is not the client's fault


async def test_the_topics_of_the_broker_are_no_way_out(
    serve: Serve, join: Join, either: Callable[[Hook], Hook]
) -> None:
    def redirect(message: Publication) -> None:
        message.topic = "$SYS/broker/version"

    broker = await serve(on_publish=either(redirect))
    ann = await join(broker, "ann")
    assert await ann.publish("t", qos=1) == Reason.NOT_AUTHORIZED


async def test_waiting_hooks_keep_the_order(serve: Serve, join: Join) -> None:
    luck = random.Random(1)

    async def dawdle(message: Publication) -> None:
        for _ in range(luck.randrange(4)):
            await asyncio.sleep(0)

    broker = await serve(on_publish=dawdle)
    ann, bob = await join(broker, "ann"), await join(broker, "bob")
    await bob.subscribe("t")
    numbers = [b"%d" % number for number in range(300)]
    ann.send(*(Publish(b"t", number) for number in numbers))
    assert [(await bob.message()).payload for _ in numbers] == numbers


async def test_messages_before_the_end_of_a_connection_still_count(serve: Serve, join: Join) -> None:
    asked = asyncio.Event()
    go_on = asyncio.Event()

    async def wait(message: Publication) -> None:
        asked.set()
        await go_on.wait()

    gone = asyncio.Event()
    broker = await serve(on_publish=wait, on_event=lambda event: gone.set() if event.kind == "disconnected" else None)
    bob = await join(broker, "bob")
    await bob.subscribe("#")
    for last in ([Publish(b"t", b"2"), Disconnect()], []):
        gone.clear()
        asked.clear()
        go_on.clear()
        ann = await join(broker, "ann", will=Will(b"will", b""))
        ann.send(Publish(b"t", b"1"), *last)
        await asked.wait()
        await ann.close()
        await bob.subscribe("of/no/interest")  # a turn in which the broker hears of the end
        go_on.set()
        await gone.wait()
        assert (await bob.message()).payload == b"1"
        assert (await bob.message()).topic == (b"t" if last else b"will")


@pytest.mark.parametrize("delay", [False, True])
async def test_a_will_goes_through_the_hook(
    serve: Serve, join: Join, either: Callable[[Hook], Hook], delay: bool
) -> None:
    def redirect(message: Publication) -> bool:
        message.topic = f"lost/{message.client_id}/{message.username}"
        return message.payload != b"drop"

    broker = await serve(on_publish=either(redirect))
    bob = await join(broker, "bob")
    await bob.subscribe("lost/#")
    for payload in (b"drop", b"keep"):
        # The delay ends with the session, that is with the connection: then only the will is left.
        will = Will(b"will", payload, properties={WILL_DELAY_INTERVAL: 60} if delay else {})
        ann = await join(broker, "ann", username="Ann", will=will)
        ann.abort()
    message = await bob.message()
    assert (message.topic, message.payload) == (b"lost/ann/Ann", b"keep")


async def test_expiry_and_order_of_properties_pass_through(serve: Serve, join: Join) -> None:
    hook: Hook = lambda message: None  # noqa: E731
    assert not inspect.iscoroutinefunction(hook)
    broker = await serve(on_publish=hook)
    ann = await join(broker, "ann")
    await ann.subscribe("t")
    pairs = b"".join(b"\x26\0\1%c\0\1%c" % (97 + n % 3, 48 + n) for n in range(9))
    ann.send(Publish(b"t", b"x", properties=pairs, expiry=60))
    message = await ann.message()
    assert message.properties == pairs
    assert 59 <= message.expiry <= 60
