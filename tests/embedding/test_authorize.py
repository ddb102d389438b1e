"""``authorize``: who may publish and subscribe where."""

from __future__ import annotations

import asyncio

import pytest

from starlingmq.hooks import Access
from starlingmq.wire.mqtt import Ack, Publish, Will
from starlingmq.wire.packets import PUBACK, PUBREC
from starlingmq.wire.reasons import Reason

from .conftest import Join, Serve


def own_only(access: Access) -> bool:
    """Clients may use what is below their own name; "raise" is where the hook breaks."""
    if "raise" in access.topic:
        raise RuntimeError("no answer")
    return access.topic.startswith(access.client_id + "/")


async def own_only_later(access: Access) -> bool:
    await asyncio.sleep(0)
    return own_only(access)


HOOKS = pytest.mark.parametrize("hook", [own_only, own_only_later])


@HOOKS
@pytest.mark.parametrize("qos", [1, 2])
async def test_a_publish_that_is_not_allowed(serve: Serve, join: Join, hook: object, qos: int) -> None:
    broker = await serve(authorize=hook)
    ann = await join(broker, "ann")
    await ann.subscribe("ann/#")
    assert await ann.publish("bob/x", qos=qos) == Reason.NOT_AUTHORIZED
    assert await ann.publish("ann/raise", qos=qos) == Reason.IMPLEMENTATION_SPECIFIC_ERROR
    await ann.publish("bob/x", qos=0)
    await ann.publish("ann/x", b"allowed", qos=0)
    assert (await ann.message()).payload == b"allowed"
    assert broker.state.ctx.counters.dropped == {"not_authorized": 2, "refused": 1}


@HOOKS
@pytest.mark.parametrize("qos", [1, 2])
async def test_311_has_no_code_for_that(serve: Serve, join: Join, hook: object, qos: int) -> None:
    broker = await serve(authorize=hook)
    ann = await join(broker, "ann", 4)
    await ann.subscribe("ann/#")
    assert await ann.publish("bob/x", qos=qos) == 0
    assert await ann.publish("ann/x", b"allowed", qos=qos) == 0
    assert (await ann.message()).payload == b"allowed"


@HOOKS
async def test_a_refused_packet_identifier_is_free_again(serve: Serve, join: Join, hook: object) -> None:
    broker = await serve(authorize=hook)
    ann = await join(broker, "ann")
    for _ in range(2):
        ann.send(Publish(b"bob/x", b"", 2, packet_id=7))
        assert await ann.expect(Ack) == Ack(PUBREC, 7, Reason.NOT_AUTHORIZED)
    ann.send(Publish(b"ann/x", b"", 1, packet_id=7))
    assert await ann.expect(Ack) == Ack(PUBACK, 7, Reason.NO_MATCHING_SUBSCRIBERS)


@HOOKS
@pytest.mark.parametrize("version", [4, 5])
async def test_every_filter_of_a_subscribe_is_asked_about(serve: Serve, join: Join, hook: object, version: int) -> None:
    broker = await serve(authorize=hook)
    ann = await join(broker, "ann", version)
    refused = Reason.NOT_AUTHORIZED if version == 5 else 0x80
    assert await ann.subscribe("ann/a", "bob/+", "ann/#", "#", qos=1) == [1, refused, 1, refused]
    bob = await join(broker, "bob")
    assert await bob.publish("bob/x") == Reason.NO_MATCHING_SUBSCRIBERS
    # A hook that fails on one filter has not said which of the others it would have allowed.
    failed = Reason.IMPLEMENTATION_SPECIFIC_ERROR if version == 5 else 0x80
    assert await ann.subscribe("ann/b", "ann/raise") == [failed, failed]


async def test_the_hook_gets_client_action_and_topic(serve: Serve, join: Join) -> None:
    seen: list[Access] = []

    def remember(access: Access) -> bool:
        seen.append(access)
        return True

    broker = await serve(authorize=remember)
    ann = await join(broker, "ann", username="Ann")
    await ann.subscribe("$share/g/töpfe/+", qos=2)
    await ann.publish("töpfe/1", qos=1, retain=True)
    assert [(a.action, a.topic, a.qos, a.retain) for a in seen] == [
        ("subscribe", "$share/g/töpfe/+", 2, False),
        ("publish", "töpfe/1", 1, True),
    ]
    assert {(a.client_id, a.username, a.peer.partition(":")[0]) for a in seen} == {("ann", "Ann", "127.0.0.1")}


@HOOKS
async def test_a_will_needs_its_clients_rights(serve: Serve, join: Join, hook: object) -> None:
    broker = await serve(authorize=hook)
    watcher = await join(broker, "ann")
    assert await watcher.subscribe("ann/#") == [0]
    for client_id in ("bob", "ann/phone"):
        left = await join(broker, client_id, will=Will(f"{client_id}/gone".encode(), b""))
        left.abort()
    assert (await watcher.message()).topic == b"ann/phone/gone"


async def test_only_the_asking_client_waits(serve: Serve, join: Join) -> None:
    may: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def slow_for_ann(access: Access) -> object:
        return may if access.client_id == "ann" and access.action == "publish" else True

    broker = await serve(authorize=slow_for_ann)
    ann, bob = await join(broker, "ann"), await join(broker, "bob")
    await bob.subscribe("t")
    ann.send(Publish(b"t", b"ann's"), Publish(b"t", b"and more"))
    await bob.publish("t", b"bob's", qos=0)
    assert (await bob.message()).payload == b"bob's"
    may.set_result(True)
    assert [(await bob.message()).payload for _ in range(2)] == [b"ann's", b"and more"]
