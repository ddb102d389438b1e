"""The monitoring pages of nats-server: what its tools read."""

from __future__ import annotations

import asyncio
import re
from typing import Any
from urllib.parse import urlsplit

import pytest

from starlingmq import Broker
from starlingmq.admin.nats_monitor import duration
from tests.patience import within

from .conftest import Ask, Join, Serve

RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


class NatsConnection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, broker: Broker, options: str) -> NatsConnection:
        url = urlsplit(broker.address("nats"))
        made = cls(*await asyncio.open_connection(url.hostname, url.port))
        await made.reader.readline()
        await made.flush(f"CONNECT {options}\r\n".encode())
        return made

    async def flush(self, commands: bytes) -> bytes:
        """The data until the PONG that answers this client's PING."""
        self.writer.write(commands + b"PING\r\n")
        async with within(10):
            return await self.reader.readuntil(b"PONG\r\n")


async def seen(ask: Ask, broker: Broker, path: str, **params: Any) -> Any:
    answer = await ask(broker, "GET", path, params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture
async def broker(serve: Serve) -> Broker:
    return await serve(listeners=["nats://127.0.0.1:0", "http://127.0.0.1:0"])


async def test_varz_names_the_server_and_counts(ask: Ask, broker: Broker) -> None:
    client = await NatsConnection.open(broker, '{"verbose":false}')
    await client.flush(b"SUB a 1\r\nPUB a 2\r\nhi\r\n")
    found = await seen(ask, broker, "/varz")
    assert found["in_msgs"] == found["out_msgs"] == 1 and found["connections"] >= 1 and found["subscriptions"] == 1
    assert found["version"].startswith("2.") and found["max_payload"] == 1 << 20 and found["mem"] > 1 << 20
    assert found["port"] == urlsplit(broker.address("nats")).port
    assert RFC_3339.fullmatch(found["start"]) and found["start"] < found["now"]
    client.writer.close()


async def test_connz_lists_nats_connections_by_number_or_the_largest_first(ask: Ask, broker: Broker) -> None:
    clients = [
        await NatsConnection.open(broker, f'{{"verbose":false,"name":"c{number}","lang":"test","version":"1.0"}}')
        for number in range(3)
    ]
    await clients[1].flush(b"SUB a 1\r\nSUB b.* 2\r\nPUB a 2\r\nhi\r\n")
    found = await seen(ask, broker, "/connz", subs=1)
    assert [one["name"] for one in found["connections"]] == ["c0", "c1", "c2"]
    assert (found["num_connections"], found["total"], found["limit"]) == (3, 3, 1024)
    most = (await seen(ask, broker, "/connz", sort="subs", limit=1))["connections"]
    assert [(one["name"], one["subscriptions"], one["in_msgs"], one["out_msgs"]) for one in most] == [("c1", 2, 1, 1)]
    assert found["connections"][1]["subscriptions_list"] == ["a", "b.*"] and "subscriptions_list" not in most[0]
    assert most[0]["ip"] == "127.0.0.1" and most[0]["lang"] == "test" and most[0]["uptime"].endswith("s")
    page = await seen(ask, broker, "/connz", offset=2, limit=5)
    assert [one["name"] for one in page["connections"]] == ["c2"]
    assert (await ask(broker, "GET", "/connz", params={"sort": "nothing"})).status_code == 400
    for client in clients:
        client.writer.close()


async def test_healthz_is_open_and_the_others_ask_for_a_login(ask: Ask, serve: Serve, token_file: str) -> None:
    listeners = ["nats://127.0.0.1:0", "http://127.0.0.1:0"]
    broker = await serve(listeners=listeners, auth={"api": {"token_file": token_file}, "allow_anonymous": True})
    client = await NatsConnection.open(broker, '{"verbose":false}')
    await client.flush(b"SUB a 1\r\nSUB b 2\r\n")
    assert (await seen(ask, broker, "/healthz")) == {"status": "ok"}
    for path in ("/varz", "/connz", "/subsz", "/jsz"):
        assert (await ask(broker, "GET", path)).status_code == 401
    client.writer.close()


async def test_subsz_counts_the_subscriptions_of_nats_clients(ask: Ask, broker: Broker) -> None:
    client = await NatsConnection.open(broker, '{"verbose":false}')
    await client.flush(b"SUB a 1\r\nSUB b 2\r\n")
    assert (await seen(ask, broker, "/subsz"))["num_subscriptions"] == 2
    client.writer.close()


async def test_jsz_counts_streams_and_lists_them_if_asked(ask: Ask, broker: Broker) -> None:
    client = await NatsConnection.open(broker, '{"verbose":false}')
    config = b'{"name":"s","subjects":["a"],"storage":"memory"}'
    await client.flush(b"SUB r 1\r\nPUB $JS.API.STREAM.CREATE.s r %d\r\n%b\r\n" % (len(config), config))
    await client.flush(b"PUB a 2\r\nhi\r\n")
    found = await seen(ask, broker, "/jsz")
    assert (found["streams"], found["messages"]) == (1, 1) and found["memory"] == found["bytes"] > 2
    assert "account_details" not in found and "disabled" not in found
    (account,) = (await seen(ask, broker, "/jsz", streams=1))["account_details"]
    assert [(each["name"], each["state"]["messages"]) for each in account["stream_detail"]] == [("s", 1)]
    assert (await seen(ask, broker, "/varz"))["jetstream"]["stats"]["memory"] == found["memory"]
    client.writer.close()


def test_durations_are_written_as_nats_server_writes_them() -> None:
    assert [duration(each) for each in (0, 59, 60, 3661, 90_061)] == ["0s", "59s", "1m0s", "1h1m1s", "1d1h1m1s"]


async def test_each_subscription_counts_in_the_overview_also_those_of_one_group(
    ask: Ask, serve: Serve, join: Join
) -> None:
    broker = await serve(listeners=["mqtt://127.0.0.1:0", "nats://127.0.0.1:0", "http://127.0.0.1:0"])
    nats = [await NatsConnection.open(broker, '{"verbose":false}') for _ in range(2)]
    for client in nats:
        await client.flush(b"SUB a workers 1\r\nSUB a workers 2\r\nSUB b 3\r\n")
    for number in range(3):
        await (await join(broker, f"worker-{number}")).subscribe("$share/workers/a", qos=1)
    assert len((await seen(ask, broker, "/api/v1/subscriptions"))["subscriptions"]) == 9
    assert broker._admin is not None
    broker._admin.session_totals_job._good_until = 0.0
    assert (await seen(ask, broker, "/api/v1/overview"))["holds"]["subscriptions"] == 9
    assert "\nstarlingmq_subscriptions 9.0\n" in (await ask(broker, "GET", "/metrics")).text
    for client in nats:
        client.writer.close()
