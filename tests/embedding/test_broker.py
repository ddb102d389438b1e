"""A broker's life inside a program: events, several at once, starts that fail, stops."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import starlingmq
from starlingmq import Broker, ConfigError
from starlingmq.config.settings import Config, ListenerConfig, from_tree
from starlingmq.core.context.ready import Event
from starlingmq.net.listeners.urls import ListenerError
from starlingmq.node.assembly import Sections
from starlingmq.wire.mqtt import Connack, Connect, Disconnect, Will
from starlingmq.wire.reasons import Reason
from tests.descriptors import left_open, open_descriptors
from tests.peer import PATIENCE, Peer

from .conftest import Join, Serve

LOOPBACK = "mqtt://127.0.0.1:0"


def refuses(address: str) -> bool:
    url = urlsplit(address)
    with socket.socket() as probe:
        return probe.connect_ex((url.hostname, url.port)) != 0


async def test_events_in_order(serve: Serve, join: Join) -> None:
    seen: list[tuple[str, str, str]] = []
    over = asyncio.Event()

    def note(event: Event) -> None:
        seen.append((event.kind, event.client_id, event.detail.partition(":")[0]))
        if event.kind == "session_discarded":
            over.set()

    broker = await serve(on_event=note)
    ann = await join(broker, "ann")
    await ann.subscribe("a", "b/#")
    await ann.publish("$SYS/mine", qos=1)
    ann.send(Disconnect())
    await asyncio.wait_for(over.wait(), PATIENCE)
    assert seen[:6] == [
        ("connected", "ann", "127.0.0.1"),
        ("subscribed", "ann", "a"),
        ("subscribed", "ann", "b/#"),
        ("dropped", "ann", "not_authorized"),
        ("disconnected", "ann", "disconnect"),
        ("session_discarded", "ann", ""),
    ]


async def test_an_event_hook_that_raises_changes_nothing(
    serve: Serve, join: Join, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(event: Event) -> None:
        raise RuntimeError(f"no room for {event.kind}")

    broker = await serve(on_event=fail)
    ann = await join(broker, "ann")
    assert await ann.subscribe("t") == [0]
    assert await ann.publish("t") == 0
    assert "no room for connected" in caplog.text
    assert "no room for subscribed" in caplog.text


async def test_two_brokers_know_nothing_of_each_other(serve: Serve, join: Join) -> None:
    one, two = await serve(), await serve(mqtt={"max_qos": 1})
    peers = [await join(broker, "same id") for broker in (one, two)]
    for number, peer in enumerate(peers):
        await peer.subscribe("#")
        await peer.publish("t", b"%d" % number)
    assert [(await peer.message()).payload for peer in peers] == [b"0", b"1"]
    await one.stop()
    assert (await peers[0].expect(Disconnect)).reason == Reason.SERVER_SHUTTING_DOWN
    assert await peers[1].publish("t", b"still here") == 0
    assert (await peers[1].message()).payload == b"still here"


async def test_listeners_of_every_kind_at_once(tmp_path: Path) -> None:
    path = tmp_path / "broker.sock"
    async with Broker(listeners=[LOOPBACK, "ws://127.0.0.1:0/mqtt", f"unix://{path}", LOOPBACK]) as broker:
        assert [url.partition(":")[0] for url in broker.addresses] == ["mqtt", "ws", "unix", "mqtt"]
        assert broker.address() == broker.addresses[0]
        assert broker.address("ws") == broker.addresses[1]
        with pytest.raises(LookupError, match="no wss listener"):
            broker.address("wss")
        for address in (broker.addresses[0], broker.addresses[3]):
            await (await Peer.connect(address)).close()
        reader, writer = await asyncio.open_unix_connection(str(path))
        peer = Peer(reader, writer, 5)
        peer.send(Connect(client_id="c"))
        await peer.expect(Connack)
        await peer.close()
    assert not path.exists()


async def test_a_start_that_fails_leaves_nothing_open(tmp_path: Path) -> None:
    before = open_descriptors()
    tasks = len(asyncio.all_tasks())
    path = tmp_path / "broker.sock"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        broker = Broker(listeners=[LOOPBACK, f"unix://{path}", f"mqtt://127.0.0.1:{taken.getsockname()[1]}"])
        with pytest.raises(ListenerError, match="in use"):
            await broker.start()
    assert broker.addresses == []
    assert not path.exists()
    await broker.stop()
    assert left_open(before) == set()
    assert len(asyncio.all_tasks()) == tasks


async def test_settings_that_are_refused_open_nothing() -> None:
    with pytest.raises(ConfigError, match=r"would accept anyone"):
        await Broker(listeners=["mqtt://0.0.0.0:0"]).start()
    with pytest.raises(ListenerError, match="a listener URL must start with one of"):
        await Broker(listeners=["mqtt:1883"]).start()
    # A hook decides on each connection, so the listener is not open to all.
    async with Broker(listeners=["mqtt://0.0.0.0:0"], authenticate=lambda request: False) as broker:
        assert broker.address().startswith("mqtt://0.0.0.0:")


async def test_settings_are_given_as_sections() -> None:
    async with Broker(listeners=["mqtt://127.0.0.1:0"], mqtt={"max_qos": 1}) as broker:
        assert broker.config.mqtt.max_qos == 1 and broker.address().startswith("mqtt://127.0.0.1:")
    with pytest.raises(ConfigError, match=r"^mqtt\.max_qus: unknown key"):
        Broker(mqtt={"max_qus": 1})
    with pytest.raises(TypeError, match="a Config, or sections such as mqtt, not both"):
        Broker(Config(), mqtt={"max_qos": 1})
    for listener in ("mqtt://127.0.0.1:0", {"url": "mqtt://127.0.0.1:0"}):
        assert Broker(Config(), listeners=[listener]).config.listeners[0].url == "mqtt://127.0.0.1:0"
    with pytest.raises(TypeError, match=r"a list of URLs: write \['mqtt://127.0.0.1:0'\]"):
        Broker(listeners="mqtt://127.0.0.1:0")


def test_the_sections_of_a_broker_are_those_of_a_settings_file() -> None:
    """But for the listeners, which may be URLs."""
    assert set(Sections.__annotations__) | {"listeners"} == set(Config.__struct_fields__)


async def test_a_data_directory_is_given_as_a_path(tmp_path: Path) -> None:
    where = tmp_path / "data"
    async with Broker(listeners=[LOOPBACK], node={"data_dir": where}) as broker:
        assert broker.config.node.data_dir == str(where) and (where / "LAYOUT").exists()
    files = Broker(auth={"acl": {"file": where}, "api": {"token_file": where}}).config.auth
    assert (files.acl.file, files.api.token_file) == (str(where), str(where))


async def test_stopping_twice_and_at_the_same_time() -> None:
    broker = Broker(listeners=[LOOPBACK])
    await broker.start()
    address = broker.address()
    waiting = asyncio.create_task(broker.wait_closed())
    await asyncio.gather(broker.stop(), broker.stop())
    await asyncio.wait_for(waiting, PATIENCE)
    await broker.stop()
    assert refuses(address)
    with pytest.raises(RuntimeError, match="already been started once"):
        await broker.start()


async def test_a_broker_that_was_never_started_may_be_stopped() -> None:
    broker = Broker(listeners=[LOOPBACK])
    await broker.stop()
    await broker.wait_closed()


async def test_stopping_tells_everyone_and_leaves_nothing(serve: Serve) -> None:
    before = open_descriptors()
    tasks = asyncio.all_tasks()
    seen: list[str] = []
    never = asyncio.Event()

    async def authenticate(request: object) -> bool:
        if getattr(request, "client_id", "") == "undecided":
            await never.wait()
        return True

    config = from_tree({"listeners": LOOPBACK, "node": {"shutdown_timeout": 0.2}})
    async with Broker(config, authenticate=authenticate, on_event=lambda e: seen.append(e.kind)) as broker:
        address = broker.address()
        polite = await Peer.connect(address, "polite", 5, will=Will(b"t", b""))
        old = await Peer.connect(address, "old", 4)
        silent = await Peer.open(address)
        undecided = await Peer.open(address)
        undecided.send(Connect(client_id="undecided"))
        deaf = await Peer.connect(address, "deaf")
        while broker.state.ctx.counters.connections_open < 5:
            await asyncio.sleep(0)
    assert (await polite.expect(Disconnect)).reason == Reason.SERVER_SHUTTING_DOWN
    for peer in (polite, old, silent):
        await peer.ended()
    for peer in (polite, old, silent, undecided, deaf):
        await peer.close()
    assert seen.count("disconnected") == 3
    assert asyncio.all_tasks() == tasks
    assert left_open(before) == set()


async def test_a_stopped_broker_does_nothing_more() -> None:
    loop = asyncio.get_running_loop()
    broker = Broker(from_tree({"listeners": LOOPBACK, "mqtt": {"sys_interval": 0.001}}))
    await broker.start()
    await broker.stop()
    published = broker.state.ctx.counters.publish_sent, broker.state.ctx.now
    over = loop.create_future()
    loop.call_later(0.02, over.set_result, None)
    await over
    assert (broker.state.ctx.counters.publish_sent, broker.state.ctx.now) == published


async def test_connections_accepted_while_it_stops_are_not_forgotten() -> None:
    broker = Broker(listeners=[LOOPBACK])
    await broker.start()
    url = urlsplit(broker.address())
    with socket.socket() as late:
        late.connect((url.hostname, url.port))  # the kernel has accepted it, the broker has not
        await broker.stop()
        late.settimeout(PATIENCE)
        with suppress(ConnectionResetError):
            assert late.recv(1) == b""
    assert broker.state.ctx.counters.connections_open == 0


async def test_settings_change_while_serving(serve: Serve, join: Join) -> None:
    broker = await serve()
    before = await join(broker, "before")
    await before.subscribe("t")
    broker.reload(from_tree({"listeners": LOOPBACK, "limits": {"max_packet_size": 64}}))
    assert await before.publish("t", b"x" * 20) == 0
    assert (await before.message()).payload == b"x" * 20
    before.send(b"\x30\x7f" + bytes(127))
    assert (await before.expect(Disconnect)).reason == Reason.PACKET_TOO_LARGE


def test_it_is_made_without_an_event_loop() -> None:
    async def use() -> str:
        async with broker:
            return broker.address()

    broker = Broker(Config(listeners=(ListenerConfig(url=LOOPBACK),)))
    assert asyncio.run(use()).startswith("mqtt://127.0.0.1:")
    assert starlingmq.Broker is Broker
