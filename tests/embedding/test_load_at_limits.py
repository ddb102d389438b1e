"""Far more clients than allowed, all at once, at each limit.

As many as allowed are served, the others get the right reason code, no other client waits, and nothing is left of the
load afterwards.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from starlingmq import Broker
from starlingmq.core.broker import TURNED_AWAY
from starlingmq.wire.mqtt import Ack, Connack, Connect, Disconnect, Publish, Suback, Subscribe, SubscribeRequest
from starlingmq.wire.reasons import Reason
from tests.embedding.conftest import Join, Serve
from tests.patience import within
from tests.peer import Peer

pytestmark = pytest.mark.slow

CROWD = 200
SOON = 2.0  # seconds: in which a bystander is answered, however many push


@asynccontextmanager
async def answered(bystander: Peer) -> AsyncIterator[None]:
    """A client within its limits is served all the while."""
    done = asyncio.Event()

    async def publish() -> None:
        while not done.is_set():
            async with within(SOON):
                assert await bystander.publish("bystander", b"x") == Reason.NO_MATCHING_SUBSCRIBERS
            await asyncio.sleep(0.005)

    publishing = asyncio.create_task(publish())
    try:
        yield
    finally:
        done.set()
        await publishing


async def knock(broker: Broker, number: int, version: int, **fields: Any) -> Peer | int | None:
    """A connection; or why there is none; or None: it was closed without a word."""
    peer = await Peer.open(broker.address(), version)
    try:
        peer.send(Connect(version, f"c{number}", fields.pop("clean_start", True), **fields))
        said = await peer.receive()
    except ConnectionError:
        said = None
    if isinstance(said, Connack) and said.reason == 0:
        return peer
    await peer.close()
    return said.reason if isinstance(said, Connack) else None


async def crowd(broker: Broker, count: int = CROWD, **fields: Any) -> tuple[list[Peer], Counter[int | None]]:
    """All connect at once, every second one with MQTT 3.1.1; returns the accepted ones, and the answers to
    the others.
    """
    found = await asyncio.gather(*(knock(broker, number, 5 - number % 2, **fields) for number in range(count)))
    inside = [one for one in found if isinstance(one, Peer)]
    return inside, Counter(one for one in found if not isinstance(one, Peer))


async def close(peers: list[Peer]) -> None:
    await asyncio.gather(*(peer.close() for peer in peers))


async def until_gone(broker: Broker, left: int) -> None:
    async with within(10):
        while broker.state.ctx.counters.connections_open > left:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("limit", "fields", "code"),
    [
        ("max_connections", {}, Reason.SERVER_BUSY),
        ("connections_per_address", {}, Reason.QUOTA_EXCEEDED),
        ("connections_per_user", {"username": "ann"}, Reason.QUOTA_EXCEEDED),
    ],
)
async def test_connections(serve: Serve, join: Join, limit: str, fields: dict[str, Any], code: int) -> None:
    room = 50
    broker = await serve(limits={limit: room})
    bystander = await join(broker, "bystander", **fields)
    async with answered(bystander):
        for _ in range(2):  # clients that leave make room for as many
            inside, told = await crowd(broker, **fields)
            assert len(inside) == room - 1, told
            hung_up = {None} if limit == "connections_per_address" else set[int | None]()  # on all but a few of them
            assert set(told) - hung_up <= {code, 3} and told[code] and told[3], told
            await close(inside)
            await until_gone(broker, 1)
    assert broker.state.ctx.counters.clients_connected == 1


async def test_far_more_than_are_told_so_are_closed_at_once(serve: Serve, join: Join) -> None:
    """Of those beyond the limit a bounded number is answered at once; numbers alone get no client in."""
    broker = await serve(limits={"max_connections": 10})
    bystander = await join(broker, "bystander")
    silent = [await Peer.open(broker.address()) for _ in range(TURNED_AWAY + 100)]
    async with answered(bystander):
        async with within(10):
            while broker.state.ctx.counters.connections_open > 10 + TURNED_AWAY:
                await asyncio.sleep(0.01)
        assert await knock(broker, 1, 5) in (Reason.SERVER_BUSY, None)
    await close(silent)
    await until_gone(broker, 1)
    inside, _ = await crowd(broker, 9)
    assert len(inside) == 9
    await close(inside)


async def test_sessions(serve: Serve, join: Join) -> None:
    broker = await serve(limits={"sessions": 50})
    bystander = await join(broker, "bystander")
    async with answered(bystander):
        inside, told = await crowd(broker, clean_start=False)
        assert len(inside) == 49 and set(told) == {Reason.QUOTA_EXCEEDED, 3}, told
        await close(inside)
        await until_gone(broker, 1)
        kept = sum(session.client is None for session in broker.state.ctx.sessions.values())
        assert kept == sum(peer.version == 4 for peer in inside), "those of 3.1.1 stay: they have room no more"
        again, _ = await crowd(broker, clean_start=True)
        assert len(again) == 49 and len(broker.state.ctx.sessions) == 50
        await close(again)


async def test_connects_a_second(serve: Serve) -> None:
    broker = await serve(limits={"connect_rate": 20})
    inside: list[Peer] = []
    told: Counter[int | None] = Counter()
    begin = asyncio.get_running_loop().time()
    for _ in range(3):
        more, refused = await crowd(broker, 60)
        inside += more
        told += refused
    seconds = int(asyncio.get_running_loop().time() - begin) + 2
    assert 20 <= len(inside) <= 20 * seconds
    assert set(told) <= {Reason.CONNECTION_RATE_EXCEEDED, 3} and told[Reason.CONNECTION_RATE_EXCEEDED]
    await close(inside)


@pytest.mark.parametrize("limits", [{"message_rate": 100}, {"byte_rate": 2000}])
async def test_rates(serve: Serve, join: Join, limits: dict[str, int]) -> None:
    """Twenty flood; each is read as fast as it may, and none of them loses anything."""
    broker = await serve(limits=limits)
    bystander, reader = await join(broker, "bystander"), await join(broker, "reader")
    await reader.subscribe("flood/#")
    floods = [await join(broker, f"f{number}") for number in range(20)]
    count = 130
    begin = asyncio.get_running_loop().time()
    for first, last in ((0, 100), (100, count)):  # packets of one read are handled in one turn
        for number, flood in enumerate(floods):
            topic = b"flood/%d" % number
            flood.send(*(Publish(topic, b"%d" % one + b"x" * 20, 1, packet_id=one + 1) for one in range(first, last)))
        for flood in floods:
            await flood.expect(Ack)
    got: dict[bytes, list[int]] = {}
    for _ in range(20 * count):
        message = await reader.message()
        got.setdefault(message.topic, []).append(int(message.payload.rstrip(b"x")))
    took = asyncio.get_running_loop().time() - begin
    assert len(got) == 20 and all(one == list(range(count)) for one in got.values())
    assert took > 0.2, "it was held back"
    async with within(SOON):
        assert await bystander.publish("bystander", b"x") == Reason.NO_MATCHING_SUBSCRIBERS
    assert broker.state.ctx.counters.dropped == {}


async def test_packets_topics_and_subscriptions(serve: Serve, join: Join) -> None:
    limits = {"max_packet_size": 1000, "topic_levels": 4, "subscriptions_per_client": 5}
    broker = await serve(limits=limits)
    bystander = await join(broker, "bystander")
    async with answered(bystander):
        inside, _ = await crowd(broker)
        fives, fours = ([peer for peer in inside if peer.version == version] for version in (5, 4))
        filters = [SubscribeRequest(b"own/%d" % number, 1) for number in range(8)]
        for peer in inside:
            peer.send(Subscribe(1, filters))
        for peer in inside:
            refusal = Reason.QUOTA_EXCEEDED if peer.version == 5 else 0x80
            assert (await peer.expect(Suback)).reasons == [1] * 5 + [refusal] * 3
        for peer in inside:
            peer.send(Publish(b"a/b/c/d/e", b"", 1, packet_id=7))
        for peer in fives[:50]:
            said = await peer.receive()
            assert isinstance(said, Ack | Disconnect) and said.reason == Reason.TOPIC_NAME_INVALID, said
        for peer in fours[:50]:
            assert not isinstance(await peer.receive(), Ack), "it can not be told, and is not acknowledged"
        await close(inside)
        await until_gone(broker, 1)
        inside, _ = await crowd(broker)
        for peer in inside:
            peer.send(Publish(b"a", b"x" * 2000, 1, packet_id=7))
        for peer in inside:
            said = await peer.receive()
            if peer.version == 5:
                assert isinstance(said, Disconnect) and said.reason == Reason.PACKET_TOO_LARGE
            else:
                assert said is None
        await close(inside)


async def test_retained_messages(serve: Serve, join: Join) -> None:
    broker = await serve(limits={"retained_messages": 100})
    bystander = await join(broker, "bystander")
    held = len(broker.state.retained)
    async with answered(bystander):
        inside, _ = await crowd(broker, 40)
        for number, peer in enumerate(inside):
            peer.send(
                *(Publish(b"r/%d/%d" % (number, one), b"x", 1, retain=True, packet_id=one + 1) for one in range(10))
            )
        told: Counter[int] = Counter()
        for peer in inside:
            for _ in range(10):
                told[(await peer.expect(Ack)).reason] += 1
        assert len(broker.state.retained) <= 100 and len(broker.state.retained) > held
        assert told[Reason.QUOTA_EXCEEDED] and set(told) <= {0, Reason.NO_MATCHING_SUBSCRIBERS, Reason.QUOTA_EXCEEDED}
        await close(inside)


@pytest.mark.parametrize("admitted", [True, False])
async def test_a_packet_that_is_too_large_is_told_with_its_size_the_limit_and_the_setting(
    serve: Serve, caplog: pytest.LogCaptureFixture, admitted: bool
) -> None:
    caplog.set_level("INFO", "starlingmq.clients")
    broker = await serve(limits={"max_packet_size": "100KiB", "connect_size": "10KiB"})
    peer = await Peer.connect(broker.address(), "camera") if admitted else await Peer.open(broker.address())
    peer.send(Publish(b"image", bytes(200_000)) if admitted else Connect(client_id="x" * 20_000))
    answer = await (peer.expect(Disconnect) if admitted else peer.expect(Connack))
    assert answer.reason == Reason.PACKET_TOO_LARGE
    await peer.ended()
    told = "its packet has 200012 bytes; 102400 are allowed (limits.max_packet_size) (packet_too_large)"
    early = "bytes; 10240 are allowed in CONNECT (limits.connect_size) (packet_too_large)"
    assert (told if admitted else early) in caplog.text
    await peer.close()
