"""Sessions and messages of a real mosquitto are at StarlingMQ after ``starlingmq migrate mosquitto``: each message
once, with its packet id where the client had seen it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from starlingmq.migrate.mosquitto_db import NEVER
from starlingmq.wire.mqtt import Ack, Connack, Connect, Disconnect, Publish, Suback, Subscribe, SubscribeRequest
from starlingmq.wire.packets import PUBACK, PUBCOMP, PUBREC, PUBREL
from starlingmq.wire.properties import (
    CONTENT_TYPE,
    CORRELATION_DATA,
    SESSION_EXPIRY_INTERVAL,
    SUBSCRIPTION_IDENTIFIER,
    USER_PROPERTY,
    Properties,
    encode_property_bytes,
)
from tests.peer import Peer

from .brokers import migrate, mosquitto, needs_mosquitto, settings_of, starlingmq
from .database import client, for_client, header, message, subscription

pytestmark = [pytest.mark.slow, needs_mosquitto]

SETTINGS = """\
listener {0} 127.0.0.1
allow_anonymous true
persistence true
persistence_location {directory}
queue_qos0_messages true
"""
HOUR = 3600
PROPERTIES = encode_property_bytes(
    {CONTENT_TYPE: "text/plain", CORRELATION_DATA: b"\x00\x01", USER_PROPERTY: [("a", "b"), ("a", "c")]}
)


class Migrated(NamedTuple):
    address: str
    report: dict[str, Any]


async def session(address: str, client_id: str, version: int = 4, present: bool | None = None) -> Peer:
    """A connection to a session that stays. It gives a user name, which is not checked."""
    peer = await Peer.open(address, version)
    properties: Properties = {SESSION_EXPIRY_INTERVAL: HOUR} if version == 5 else {}
    peer.send(Connect(version, client_id, False, username="dev", password=b"x", properties=properties))
    connack = await peer.expect(Connack)
    assert connack.reason == 0 and present in (None, connack.session_present)
    return peer


async def subscribe(peer: Peer, *requests: SubscribeRequest, identifier: int = 0) -> None:
    properties: Properties = {SUBSCRIPTION_IDENTIFIER: [identifier]} if identifier else {}
    peer.send(Subscribe(1, list(requests), properties))
    assert all(reason < 0x80 for reason in (await peer.expect(Suback)).reasons)


async def leave(peer: Peer) -> None:
    """The broker has seen that the client is gone when it closes the connection."""
    peer.send(Disconnect())
    assert await peer.ended()
    await peer.close()


@asynccontextmanager
async def publisher(address: str, version: int = 4) -> AsyncIterator[Peer]:
    peer = await Peer.connect(address, "publisher", version)
    yield peer
    await leave(peer)


async def left_at_mosquitto(address: str) -> None:
    """Half handshakes in both directions, queued messages, retained ones."""
    flying = await session(address, "flying", present=False)
    await subscribe(flying, SubscribeRequest(b"fly/#", 2))
    async with publisher(address) as peer:
        for qos, name in ((1, "first"), (2, "second"), (2, "third")):
            await peer.publish(f"fly/{name}", name.encode(), qos)
        sent = [await flying.expect(Publish) for _ in range(3)]
        assert [each.packet_id for each in sent] == [1, 2, 3]
        flying.send(Ack(PUBREC, 3))  # PUBACK 1 and PUBREC 2 are missing; PUBCOMP 3 will be
        assert (await flying.expect(Ack)).type == PUBREL
        await leave(flying)
        for number, qos in enumerate((0, 1, 2), 1):
            await peer.publish(f"fly/later/{number}", b"%d" % number, qos)
        await peer.publish("kept/plain", b"plain", 1, retain=True)
        await peer.publish("kept/gone", b"gone", 1, retain=True)
        await peer.publish("kept/gone", b"", 1, retain=True)
    releasing = await session(address, "releasing", present=False)
    for packet_id, text in ((7, b"released"), (8, b"repeated")):
        releasing.send(Publish(b"fly/" + text, text, 2, packet_id=packet_id))
        assert (await releasing.expect(Ack)).type == PUBREC
    await leave(releasing)
    five = await session(address, "five", 5)
    await subscribe(five, SubscribeRequest(b"five/+/x", 1, retain_as_published=True), identifier=77)
    await subscribe(five, SubscribeRequest(b"/own", 1, no_local=True))
    await leave(five)
    async with publisher(address, 5) as peer:
        await peer.publish("five/1/x", b"with properties", 1, retain=True, properties=PROPERTIES, expiry=HOUR)
        await peer.publish("/own", b"of another", 1)
    brief = await Peer.connect(address, "brief")
    await subscribe(brief, SubscribeRequest(b"brief", 1))
    await leave(brief)


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Migrated]:
    directory = tmp_path_factory.mktemp("mosquitto")
    settings, ports = settings_of(directory, SETTINGS)
    with mosquitto(settings):
        asyncio.run(left_at_mosquitto(f"mqtt://127.0.0.1:{ports[0]}"))
    report = migrate("mosquitto", settings, out=directory / "out")
    with starlingmq(directory / "out" / "starlingmq.yaml") as addresses:
        assert addresses == [f"mqtt://127.0.0.1:{ports[0]}"]
        yield Migrated(addresses[0], report)


def test_the_report_counts_what_was_carried_over(migrated: Migrated) -> None:
    assert migrated.report["carried"] == {
        "settings": 1,
        "listeners": 1,
        "retained messages": 2,
        "sessions": 3,
        "subscriptions": 3,
        "queued messages": 5,
        "messages in flight": 3,
        "QoS 2 messages received and not released": 2,
    }
    assert migrated.report["attention"] == []


async def test_handshakes_continue_in_both_directions_and_queued_messages_follow(migrated: Migrated) -> None:
    flying = await session(migrated.address, "flying", present=True)
    again = [await flying.expect(Publish) for _ in range(2)]
    assert [(each.packet_id, each.dup, each.payload) for each in again] == [(1, True, b"first"), (2, True, b"second")]
    released = await flying.expect(Ack)
    assert (released.type, released.packet_id) == (PUBREL, 3)
    later = [await flying.expect(Publish) for _ in range(3)]
    assert [(each.payload, each.qos, each.dup) for each in later] == [
        (b"1", 0, False),
        (b"2", 1, False),
        (b"3", 2, False),
    ]
    assert len({1, 2, 3, later[1].packet_id, later[2].packet_id}) == 5
    flying.send(Ack(PUBACK, 1), Ack(PUBREC, 2), Ack(PUBCOMP, 3))
    flying.send(Ack(PUBACK, later[1].packet_id), Ack(PUBREC, later[2].packet_id))
    assert [(await flying.expect(Ack)).packet_id for _ in range(2)] == [2, later[2].packet_id]
    flying.send(Ack(PUBCOMP, 2), Ack(PUBCOMP, later[2].packet_id))

    releasing = await session(migrated.address, "releasing", present=True)
    releasing.send(Ack(PUBREL, 7), Ack(PUBREL, 7))
    assert [(await releasing.expect(Ack)).type for _ in range(2)] == [PUBCOMP, PUBCOMP]
    releasing.send(Publish(b"fly/repeated", b"repeated", 2, dup=True, packet_id=8))
    assert (await releasing.expect(Ack)).type == PUBREC
    releasing.send(Ack(PUBREL, 8))
    assert (await releasing.expect(Ack)).type == PUBCOMP
    assert [(await flying.message()).payload for _ in range(2)] == [b"released", b"repeated"]
    async with publisher(migrated.address) as peer:
        await peer.publish("fly/end", b"end", 0)
    assert (await flying.message()).payload == b"end"  # nothing came twice
    await flying.close()
    await releasing.close()


async def test_version_5_keeps_identifiers_options_properties_and_expiry(migrated: Migrated) -> None:
    five = await session(migrated.address, "five", 5, present=True)
    queued = await five.message()
    assert (queued.topic, queued.payload, queued.retain) == (b"five/1/x", b"with properties", True)
    assert queued.subscription_ids == [77]
    assert HOUR - 300 < queued.expiry <= HOUR
    assert queued.properties == PROPERTIES
    assert (await five.message()).payload == b"of another"
    five.send(Publish(b"/own", b"own", 1, packet_id=1))
    assert (await five.expect(Ack)).type == PUBACK
    async with publisher(migrated.address, 5) as other:
        await other.publish("/own", b"end", 1)
    assert (await five.message()).payload == b"end"  # No Local: its own message did not come
    await five.close()


async def test_retained_messages_are_the_same_and_deleted_ones_are_gone(migrated: Migrated) -> None:
    peer = await Peer.connect(migrated.address, "reader")
    await subscribe(peer, SubscribeRequest(b"kept/#", 1), SubscribeRequest(b"five/#", 1))
    found = [await peer.message() for _ in range(2)]
    assert {(each.topic, each.payload, each.retain) for each in found} == {
        (b"kept/plain", b"plain", True),
        (b"five/1/x", b"with properties", True),
    }
    async with publisher(migrated.address) as other:
        await other.publish("kept/end", b"end", 1)
    assert (await peer.message()).payload == b"end"
    await peer.close()


async def test_a_session_that_ended_with_its_connection_is_not_there(migrated: Migrated) -> None:
    peer = await session(migrated.address, "brief", present=False)
    await peer.close()


QUEUED = 1500  # more than mqtt.max_mqueue_len, and than one turn of the writer


def test_a_long_queue_and_a_shared_subscription_of_a_later_version_are_kept(tmp_path: Path) -> None:
    settings, _ = settings_of(tmp_path, "listener {0} 127.0.0.1\nallow_anonymous true\n")
    database = tmp_path / "mosquitto.db"
    messages = [message(number, b"q/%d" % number, b"%d" % number) for number in range(1, QUEUED + 1)]
    database.write_bytes(
        b"".join(
            [
                header(6),
                *messages,
                client(6, b"reader", NEVER, user=b"dev"),
                *(for_client(number, b"reader", number, 1, 11) for number in range(1, QUEUED + 1)),
                client(6, b"member", NEVER, user=b"dev"),
                subscription(b"member", b"$share/g/jobs/#", 1, identifier=5),
            ]
        )
    )
    migrate("mosquitto", settings, database, out=tmp_path / "out")

    async def ask(address: str) -> None:
        reader = await session(address, "reader", present=True)
        assert [int((await reader.message()).payload) for _ in range(QUEUED)] == list(range(1, QUEUED + 1))
        await leave(reader)
        member = await session(address, "member", 5, present=True)
        async with publisher(address) as peer:
            await peer.publish("jobs/1", b"job", 1)
        assert (job := await member.message()).payload == b"job" and job.subscription_ids == [5]
        await leave(member)

    with starlingmq(tmp_path / "out" / "starlingmq.yaml") as addresses:
        asyncio.run(ask(addresses[0]))


def test_the_session_of_a_bridge_is_left_out_and_its_messages_are_named(tmp_path: Path) -> None:
    bridge = "connection hub\naddress a\ntopic x out\n"
    settings, _ = settings_of(tmp_path, f"listener {{0}} 127.0.0.1\n{bridge}")
    database = tmp_path / "mosquitto.db"
    sessions = [client(6, name, NEVER) for name in (b"local.host.hub", b"local.other")]
    queued = for_client(1, b"local.host.hub", 1, 1, 11)
    database.write_bytes(b"".join([header(6), message(1, b"x", b"x"), *sessions, queued]))
    report = migrate("mosquitto", settings, database, out=tmp_path / "out", code=3)
    (line,) = [line for line in report["attention"] if line["option"].startswith("session")]
    assert line["option"] == "session local.host.hub" and "with 1 messages" in line["remedy"]
    assert report["carried"]["sessions"] == 1


def test_a_bridge_carries_messages_to_the_same_broker_as_before(tmp_path: Path) -> None:
    remote, (there, here) = settings_of(tmp_path, "listener {0} 127.0.0.1\nallow_anonymous true\n")
    local = tmp_path / "local.conf"
    bridge = f"connection hub\naddress 127.0.0.1:{there}\nremote_clientid site\ntopic x/# out 1 here/ there/\n"
    local.write_text(f"listener {here} 127.0.0.1\nallow_anonymous true\n{bridge}", encoding="utf-8")
    migrate("mosquitto", local, out=tmp_path / "out")

    async def ask() -> None:
        reader = await Peer.connect(f"mqtt://127.0.0.1:{there}", "reader")
        await subscribe(reader, SubscribeRequest(b"there/x/#", 1))
        async with publisher(f"mqtt://127.0.0.1:{here}") as peer:
            await peer.publish("here/x/1", b"over the bridge", 1)
        message = await reader.message()
        assert (message.topic, message.payload) == (b"there/x/1", b"over the bridge")
        await reader.close()

    with mosquitto(remote), starlingmq(tmp_path / "out" / "starlingmq.yaml"):
        asyncio.run(ask())
