"""How bridges reach the other broker: carriers, TLS, logins, failover, ``start``, reload, restarts at either end."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trustme
from tests.bridges.real import (
    HAS_MOSQUITTO,
    Serve,
    bridge,
    kept,
    lines_with,
    mosquitto,
    publish,
    reading,
)
from tests.client.brokers import Broker
from tests.few import few

from starlingmq.cli.local_cluster import free_ports
from starlingmq.client import Client
from starlingmq.wire.properties import USER_PROPERTY

pytestmark = HAS_MOSQUITTO

OUT = {"filter": "out/#"}
IN = {"filter": "in/#", "direction": "in"}


def in_order(numbers: list[int]) -> bool:
    """Whether those of each QoS are: the even ones were published with 1, the odd ones with 2."""
    return all(some == sorted(some) for some in ([n for n in numbers if n % 2 == odd] for odd in (0, 1)))


async def pass_one(near_url: str, far_url: str, payload: bytes = b"x") -> None:
    """A message each way."""
    async with reading(near_url, "in/#") as here, reading(far_url, "out/#") as there:
        await publish(near_url, "out/a", payload)
        assert await there.one() == ("out/a", payload)
        await publish(far_url, "in/a", payload)
        assert await here.one() == ("in/a", payload)


@pytest.mark.parametrize("scheme", ["ws", "unix", "mqtts"])
async def test_every_carrier(far: Broker, serve: Serve, scheme: str) -> None:
    tls = {"ca": str(far.ca)} if scheme == "mqtts" else {}
    near = await serve(bridge(far.urls[scheme], OUT, IN, client_id=f"by-{scheme}", tls=tls))
    await near.connected()
    await pass_one(near.url, far.url)


async def test_a_certificate_that_is_not_trusted_is_named(far: Broker, serve: Serve) -> None:
    near = await serve(bridge(far.urls["mqtts"], OUT))
    view = await near.until(lambda view: bool(view.problem))
    assert "is not trusted" in view.problem and view.state in ("waiting", "connecting")


@asynccontextmanager
async def tls_server(directory: Path, target: str) -> AsyncIterator[tuple[str, list[tuple[Any, str | None]]]]:
    """Ends TLS before a broker, as a cloud does: asks for a certificate of its own authority, and offers ALPN. Its URL,
    and for each connection the subject of the client and the protocol that was agreed on."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    client = authority.issue_cert("thing-7@example.org", common_name="thing-7")
    authority.cert_pem.write_to_path(directory / "ca.pem")
    client.private_key_pem.write_to_path(directory / "client.key")
    client.cert_chain_pems[0].write_to_path(directory / "client.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    issued.configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["x-amzn-mqtt-ca"])
    seen: list[tuple[Any, str | None]] = []
    writers: list[asyncio.StreamWriter] = []

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, ssl.SSLError):
            while data := await reader.read(65_536):
                writer.write(data)
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        shown = writer.get_extra_info("ssl_object")
        seen.append((dict(field for (field,) in shown.getpeercert()["subject"]), shown.selected_alpn_protocol()))
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", int(target.rpartition(":")[2]))
        writers.extend((writer, far_writer))
        await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer))

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
    try:
        yield f"mqtts://127.0.0.1:{server.sockets[0].getsockname()[1]}", seen
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()


async def test_a_client_certificate_and_an_application_protocol(far: Broker, serve: Serve, tmp_path: Path) -> None:
    async with tls_server(tmp_path, far.url) as (url, seen):
        files = {"ca": f"{tmp_path}/ca.pem", "cert": f"{tmp_path}/client.pem", "key": f"{tmp_path}/client.key"}
        tls = {**files, "alpn": ["x-amzn-mqtt-ca"]}
        near = await serve(bridge(url, OUT, IN, client_id="by-certificate", tls=tls))
        await near.connected()
        await pass_one(near.url, far.url)
        near.use([])
    assert [(subject["commonName"], protocol) for subject, protocol in seen] == [("thing-7", "x-amzn-mqtt-ca")]


async def test_the_next_server_is_tried_when_one_fails(serve: Serve, tmp_path: Path) -> None:
    (closed,) = free_ports(1)
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    async with mosquitto(tmp_path / "one") as one, mosquitto(tmp_path / "two") as two:
        near = await serve(bridge([f"mqtt://127.0.0.1:{closed}", one.url, two.url], OUT, IN))
        assert (await near.connected()).server == one.url
        await pass_one(near.url, one.url)
        await one.kill()
        await near.until(lambda view: view.state == "connected" and view.server == two.url)
        await pass_one(near.url, two.url, b"y")
        await two.kill()
        await one.start()
        await near.until(lambda view: view.state == "connected" and view.server == one.url)


async def test_a_wrong_login_is_told_once_and_right_after_a_reload(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    passwords = tmp_path / "passwords"
    passwords.write_text("ann:secret\n")
    process = await asyncio.create_subprocess_exec("mosquitto_passwd", "-U", str(passwords))
    assert await process.wait() == 0
    listener = f"allow_anonymous false\npassword_file {passwords}\n"
    (tmp_path / "word").write_text("secret\n")
    with_it = {"username": "ann", "password_file": str(tmp_path / "word")}
    running = mosquitto(tmp_path, listener=listener)
    async with running as other:
        near = await serve(bridge(other.url, OUT, credentials={"username": "ann", "password": "guess"}))
        async with reading(near.url, "$SYS/broker/connection/b/state") as here:
            refusals = 0

            async def refused() -> None:
                nonlocal refusals
                while refusals < 2:  # it has tried again
                    refusals = len(lines_with(other.log.read_text(), "as client-|disconnected, not authorised"))
                    await asyncio.sleep(0.01)

            await asyncio.wait_for(refused(), 20)
            view = near.view()
            assert "Not authorized" in view.problem or "not authorized" in view.problem.lower()
            told = [record.getMessage() for record in caplog.records if "bridge b" in record.getMessage()]
            assert len(told) == 1 and view.problem in told[0], told
            near.use([bridge(other.url, OUT, credentials=with_it)])
            await near.connected()
            assert await here.one() == ("$SYS/broker/connection/b/state", b"1")
            assert near.view().problem == ""


async def test_a_lazy_bridge_is_connected_while_messages_wait(
    far: Broker, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("starlingmq.bridges.bridge.LINGER_SECONDS", 0.2)
    monkeypatch.setattr("starlingmq.bridges.bridge_set.LOOK_SECONDS", 0.05)
    near = await serve(bridge(far.url, {"filter": "lazy/#"}, start="lazy", client_id="lazy"))
    await near.until(lambda view: view.state == "idle")
    async with reading(far.url, "lazy/#") as there:
        for payload in (b"1", b"2"):
            await publish(near.url, "lazy/a", payload)
            assert await there.one() == ("lazy/a", payload)
            await near.until(lambda view: view.state == "idle")


async def test_a_bridge_that_connects_once_ends_with_its_connection(serve: Serve, tmp_path: Path) -> None:
    async with mosquitto(tmp_path) as other:
        near = await serve(bridge(other.url, OUT, IN, start="once"))
        await near.connected()
        await pass_one(near.url, other.url)
        await other.kill()
        await near.until(lambda view: view.state == "done")
        await other.start()
        near.use([bridge(other.url, OUT, IN, start="once"), bridge(other.url, OUT, name="c")])
        await near.connected("c")
        assert near.view().state == "done"


async def test_a_reload_adds_changes_and_removes_a_bridge(far: Broker, serve: Serve) -> None:
    near = await serve()
    first = bridge(far.url, {"filter": "r/a/#", "direction": "both"}, client_id="reload")
    other = bridge(far.url, {"filter": "r/o/#"}, client_id="reload-other", name="o")
    near.use([first, other])
    await near.connected()
    began = (await near.connected("o")).seconds
    async with reading(near.url, "r/#") as here, reading(far.url, "r/#") as there:
        await publish(near.url, "r/a/1")
        assert await there.one() == ("r/a/1", b"")
        assert await here.one() == ("r/a/1", b"")
        near.use([{**first, "topics": [{"filter": "r/b/#", "direction": "both"}]}, other])
        await near.until(lambda view: view.state != "connected")
        await near.connected()
        assert near.view("o").seconds > began, "the other bridge went on"
        await publish(near.url, "r/a/2")
        await publish(near.url, "r/b/2")
        assert await there.one() == ("r/b/2", b"")
        await publish(far.url, "r/a/3")
        await publish(far.url, "r/b/3")
        assert [each.topic for each in await here.take(3)] == ["r/a/2", "r/b/2", "r/b/3"]
        near.use([other])
        await publish(near.url, "r/b/4")
        await publish(near.url, "r/o/4")
        assert [each.topic for each in await there.take(3)] == ["r/a/3", "r/b/3", "r/o/4"]
    assert "$bridge/b" not in near.broker.state.ctx.sessions


@pytest.mark.parametrize("version", few(["3.1.1", "5.0"], "3.1.1"))
async def test_messages_wait_while_our_broker_restarts(serve: Serve, tmp_path: Path, version: str) -> None:
    async with mosquitto(tmp_path, kept(tmp_path)) as other:
        node = {"node": {"data_dir": str(tmp_path / "data"), "name": "x"}}
        there = bridge(other.url, OUT, IN, version=version)
        near = await serve(there, **node)
        await near.connected()
        await other.stop()
        async with Client(near.url) as client:
            for number in range(200):
                await client.publish(f"out/{number}", str(number), qos=2 if number % 2 else 1)
        assert near.view().waiting + near.view().in_flight == 200
        await near.broker.stop()
        near = await serve(there, **node)
        assert near.view().waiting + near.view().in_flight == 200
        await near.broker.stop()
        await other.start()
        async with reading(other.url, "out/#") as reader:
            for number in range(200):
                await reader.client.publish(f"in/{number}", str(number), qos=2 if number % 2 else 1)
            near = await serve(there, **node)
            async with reading(near.url, "in/#") as here:
                found = [int(each.payload) for each in await reader.take(200)]
                assert sorted(found) == list(range(200))
                assert in_order(found)
                await near.connected()
                await publish(other.url, "in/end", "end", qos=1)
                await publish(other.url, "in/end", "END", qos=2)
                late = [int(each.payload) for each in await here.until(b"end", b"END")]
                assert in_order(late)


@pytest.mark.parametrize("start", ["automatic", "lazy"])
async def test_messages_wait_for_a_broker_that_has_never_answered(serve: Serve, tmp_path: Path, start: str) -> None:
    """From the first one on; a retained one comes again, as to each new subscription."""
    other = mosquitto(tmp_path)
    near = await serve(bridge(other.url, OUT, start=start))
    async with Client(near.url) as client:
        for number in range(20):
            await client.publish("out/a", str(number), qos=2, retain=number == 0)
    assert near.view().waiting == 20
    async with other, reading(other.url, "out/#") as there:
        found = sorted(int(each.payload) for each in await there.take(20))
        await near.until(lambda view: view.in_flight == 0)
        await publish(near.url, "out/a", "end", qos=2)
        found += [int(each.payload) for each in await there.until(b"end")]
    assert sorted(found) == [0, 0, *range(1, 20)]


@pytest.mark.parametrize("version", few(["3.1.1", "5.0"], "5.0"))
@pytest.mark.parametrize("keeps", few([True, False], True))
async def test_the_other_broker_restarts(serve: Serve, tmp_path: Path, version: str, keeps: bool) -> None:
    """Without its session, what waits for its acknowledgement is sent again, and marked with MQTT 5."""
    async with mosquitto(tmp_path, kept(tmp_path) if keeps else "") as other:
        near = await serve(bridge(other.url, OUT, IN, version=version))
        await near.connected()
        await pass_one(near.url, other.url)
        await other.stop()
        await near.until(lambda view: view.state != "connected")
        async with Client(near.url) as client:
            for number in range(100):
                await client.publish("out/a", str(number), qos=2)
        await other.start()
        async with reading(other.url, "out/#") as there:
            await near.connected()
            await publish(near.url, "out/a", "end")
            found = [int(each.payload) for each in await there.until(b"end")]
            assert found == list(range(100 - len(found), 100))
        await pass_one(near.url, other.url)
        assert near.view().again == 0, "nothing was in flight"


async def test_what_was_in_flight_to_a_broker_that_lost_its_session_is_sent_again_and_marked(
    serve: Serve, tmp_path: Path
) -> None:
    (tmp_path / "far").mkdir()
    async with mosquitto(tmp_path / "far", "max_inflight_messages 5\n") as other:
        near = await serve(bridge(other.url, OUT))
        await near.connected()
        async with reading(other.url, "out/#") as there, Client(near.url) as client:
            other.process.send_signal(19)  # type: ignore[union-attr]  # SIGSTOP: it acknowledges no more
            for number in range(10):
                await client.publish("out/a", str(number), qos=1)
            await near.until(lambda view: view.in_flight == 5 and view.waiting == 5)
            await other.kill()
        await other.start()
        async with reading(other.url, "out/#") as there:
            await near.until(lambda view: view.in_flight + view.waiting == 0)
            assert near.view().again == 5
            await publish(near.url, "out/a", "end")
            found = await there.until(b"end")
    assert [int(each.payload) for each in found] in (list(range(10)), list(range(5, 10)), [])
    marks = [("starlingmq-again", "1") in each.properties.get(USER_PROPERTY, []) for each in found]  # type: ignore[operator]
    assert all(marks[:-5]) and not any(marks[-5:])


async def test_our_broker_without_its_data_begins_with_clean_sessions(serve: Serve, tmp_path: Path) -> None:
    """The other one has a session, of which a handshake is open. In 3.1.1 a clean session must be followed by one that
    is kept."""
    async with mosquitto(tmp_path) as other, reading(other.url, "out/#") as there:
        for version in ("3.1.1", "5.0"):
            settings = bridge(other.url, OUT, IN, version=version, client_id=f"v{version}")
            near = await serve(settings)
            await near.connected()
            await near.broker.stop()
            async with Client(other.url) as client:
                await client.publish("in/old", "of the lost session", qos=2)
            near = await serve(settings)
            await near.connected()
            await pass_one(near.url, other.url, version.encode())
            near.broker._bridges.pause("b", True)  # type: ignore[union-attr]
            await near.until(lambda view: view.state == "paused")
            await publish(other.url, "in/late", "waits", qos=1)
            async with reading(near.url, "in/#") as here:
                near.broker._bridges.pause("b", False)  # type: ignore[union-attr]
                assert await here.one() == ("in/late", b"waits")
            near.use([])
            assert await there.one() == ("out/a", version.encode())
