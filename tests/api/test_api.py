"""The HTTP API: what it shows of a broker, and the actions that it offers."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from pathlib import Path
from typing import Any, Final

import pytest

from starlingmq import Broker
from starlingmq.admin import session_totals_job
from starlingmq.core.context.ready import Write
from starlingmq.net.driver import Driver
from starlingmq.storage.store import NotYetStored
from starlingmq.wire.mqtt import Connack, Connect, Disconnect, Publish
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL
from tests.patience import within
from tests.peer import Peer

from .conftest import Ask, Join, Passwd, Serve


async def get(ask: Ask, broker: Broker, path: str, **params: Any) -> Any:
    answer = await ask(broker, "GET", f"/api/v1{path}", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def refusal(broker: Broker, client_id: str) -> int:
    peer = await Peer.open(broker.address())
    try:
        peer.send(Connect(5, client_id, True, username="u", password=b"p"))
        return (await peer.expect(Connack)).reason
    finally:
        await peer.close()


async def every(ask: Ask, broker: Broker, path: str, what: str, **params: Any) -> list[Any]:
    """All pages of a list."""
    found: list[Any] = []
    cursor: str | None = ""
    while cursor is not None:
        page = await get(ask, broker, path, **params, **({"cursor": cursor} if cursor else {}))
        found += page[what]
        cursor = page["next"]
    return found


async def test_clients_come_in_pages_and_each_once(serve: Serve, join: Join, ask: Ask) -> None:
    broker = await serve()
    names = [f"c{number}" for number in range(7)] + ["ü/../x", 'a"b<script>']
    for name in names:
        await join(broker, name, clean_start=True)
    assert [one["client_id"] for one in await every(ask, broker, "/clients", "clients", limit=2)] == names
    assert [one["client_id"] for one in await every(ask, broker, "/clients", "clients", q="c", limit=3)] == [
        *names[:7],
        names[8],
    ]
    first = (await get(ask, broker, "/clients", limit=1))["clients"][0]
    assert first["protocol"] == "MQTT 5.0" and first["listener"] == broker.address() and first["peer"]


async def test_sessions_and_one_of_them(serve: Serve, join: Join, ask: Ask) -> None:
    broker = await serve()
    away = await join(broker, "away", properties={SESSION_EXPIRY_INTERVAL: 100})
    await away.subscribe("a/#", qos=2)
    await away.close()
    there = await join(broker, "there")
    await there.subscribe("$share/g/b", qos=1)
    for _ in range(3):
        await there.publish("a/b", b"x", 1)
    found = {one["client_id"]: one for one in await every(ask, broker, "/sessions", "sessions")}
    assert (found["away"]["connected"], found["there"]["connected"]) == (False, True)
    assert (found["away"]["queued"], found["away"]["expiry"], found["there"]["expiry"]) == (3, 100, 0)
    assert [one["client_id"] for one in await every(ask, broker, "/sessions", "sessions", connected=False)] == ["away"]
    one = await get(ask, broker, "/session", client_id="away")
    assert [waiting["topic"] for waiting in one["queue"]] == ["a/b"] * 3 and one["client"] is None
    assert [sub["filter"] for sub in one["subscriptions"]] == ["a/#"]
    subs = await every(ask, broker, "/subscriptions", "subscriptions", limit=1)
    assert {(sub["client_id"], sub["filter"]) for sub in subs} == {("away", "a/#"), ("there", "$share/g/b")}
    groups = (await get(ask, broker, "/groups"))["groups"]
    assert [(group["name"], group["filter"], group["members"]) for group in groups] == [("g", "b", 1)]
    assert (groups[0]["primary"], groups[0]["lag"], groups[0]["online_here"]) == ("this node", 0, 1)
    assert (await ask(broker, "GET", "/api/v1/session", params={"client_id": "nobody"})).status_code == 404


async def test_a_client_is_kicked_and_a_session_ended(serve: Serve, join: Join, ask: Ask) -> None:
    broker = await serve()
    peer = await join(broker, "a/b", properties={SESSION_EXPIRY_INTERVAL: 100})
    told = await ask(broker, "DELETE", "/api/v1/client", params={"client_id": "a/b"})
    assert told.status_code == 200 and told.json()["done"] == "disconnected"
    assert (await peer.expect(Disconnect)).reason == 0x98
    assert (await ask(broker, "DELETE", "/api/v1/client", params={"client_id": "a/b"})).status_code == 404
    assert "a/b" in broker.state.ctx.sessions
    assert (await ask(broker, "DELETE", "/api/v1/session", params={"client_id": "a/b"})).status_code == 200
    assert "a/b" not in broker.state.ctx.sessions


async def test_a_published_message_arrives(serve: Serve, join: Join, ask: Ask) -> None:
    broker = await serve()
    peer = await join(broker)
    await peer.subscribe("t", qos=1)
    body = {"topic": "t", "payload": "grüße", "qos": 1}
    answer = await ask(broker, "POST", "/api/v1/publish", json=body)
    assert (answer.status_code, answer.json()) == (200, {"node": broker.config.node.name, "receivers": 1})
    assert (await peer.expect(Publish)).payload == "grüße".encode()
    body = {"topic": "t", "payload_base64": b64encode(b"\0\xff").decode()}
    await ask(broker, "POST", "/api/v1/publish", json=body)
    assert (await peer.expect(Publish)).payload == b"\0\xff"


REFUSED: Final[list[tuple[Any, int]]] = [
    ({"topic": "a/#"}, 400),
    ({"topic": "\0"}, 400),
    ({"topic": ""}, 400),
    ({"topic": "\ud800"}, 400),
    ({"topic": "$SYS/broker/version"}, 403),
    ({"topic": "a", "qos": 3}, 400),
    ({"topic": "a", "payload_base64": "?"}, 400),
    ({"topic": "a", "expiry": -1}, 400),
    ({"topic": "a", "unknown": 1}, 400),
    ({"topic": 1}, 400),
    ({}, 400),
    ([], 400),
    ({"topic": "a", "payload": "x" * 1_100_000}, 413),
]


async def test_an_invalid_publication_is_refused_in_one_line(serve: Serve, ask: Ask) -> None:
    broker = await serve()
    for body, status in REFUSED:
        headers = {"content-type": "application/json"}
        answer = await ask(broker, "POST", "/api/v1/publish", content=json.dumps(body), headers=headers)
        assert answer.status_code == status, answer.text
        assert list(answer.json()) == ["error"] and "\n" not in answer.json()["error"]


@pytest.mark.security
@pytest.mark.parametrize("nested", ["[" * 100_000, '{"a":' * 100_000], ids=["lists", "objects"])
async def test_a_body_that_is_nested_too_deeply_is_a_mistake_of_the_client(
    serve: Serve, ask: Ask, nested: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker = await serve()
    headers = {"content-type": "application/json"}
    answer = await ask(broker, "POST", "/api/v1/publish", content=nested, headers=headers)
    assert answer.status_code == 400
    assert not caplog.records


async def test_publishing_waits_for_storage(
    serve: Serve, ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await serve(node={"data_dir": str(tmp_path / "data"), "shutdown_timeout": 0.1})
    body = {"topic": "kept", "payload": "x", "qos": 1, "retain": True}
    stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def slow(writes: list[Write]) -> asyncio.Future[None]:
        return stored

    driver: Driver = broker._driver  # type: ignore[assignment]
    with monkeypatch.context() as patch:
        patch.setattr(driver.store, "commit", slow)
        asked = asyncio.ensure_future(ask(broker, "POST", "/api/v1/publish", json=body))
        await asyncio.wait([asked], timeout=0.3)
        assert not asked.done()
        stored.set_exception(NotYetStored(28, "full"))
        assert (await asked).status_code == 507
    assert (await ask(broker, "POST", "/api/v1/publish", json=body)).status_code == 200


async def test_retained_messages_in_pages_one_and_none(serve: Serve, ask: Ask) -> None:
    broker = await serve()
    topics = sorted([f"r/{number}/ä" for number in range(5)] + ["r//x", "/r"])
    for topic in topics:
        body = {"topic": topic, "payload": topic, "retain": True, "expiry": 100}
        assert (await ask(broker, "POST", "/api/v1/publish", json=body)).status_code == 200
    assert [one["topic"] for one in await every(ask, broker, "/retained", "retained", limit=2)] == topics
    below = await every(ask, broker, "/retained", "retained", limit=2, filter="r/+/ä")
    assert [one["topic"] for one in below] == [topic for topic in topics if topic.endswith("ä")]
    one = await get(ask, broker, "/retained/message", topic="r//x")
    assert (one["payload"], one["payload_base64"]) == ("r//x", b64encode(b"r//x").decode())
    assert (await ask(broker, "DELETE", "/api/v1/retained/message", params={"topic": "r//x"})).status_code == 200
    assert (await ask(broker, "GET", "/api/v1/retained/message", params={"topic": "r//x"})).status_code == 404
    for wrong in ({"filter": "a/#/b"}, {"cursor": "?"}, {"limit": 0}, {"limit": 100_000}):
        assert (await ask(broker, "GET", "/api/v1/retained", params=wrong)).status_code == 400


@pytest.mark.parametrize(
    ("kind", "said", "name"),
    [
        ("client", "c", "c"),
        ("user", "u", "u"),
        ("address", "127.0.0.1", "127.0.0.1"),
        ("address", " ::ffff:127.0.0.1 ", "127.0.0.1"),
        ("address", "127.0.0.0/8", "127.0.0.0/8"),
    ],
)
async def test_a_banned_client_is_disconnected_and_refused(
    serve: Serve, join: Join, ask: Ask, kind: str, said: str, name: str
) -> None:
    broker = await serve()
    peer = await join(broker, "c", username="u", password=b"p")
    # The test has the same address: where a token is needed, a ban of it would prevent lifting it; here none is needed.
    answer = await ask(broker, "POST", "/api/v1/bans", json={"kind": kind, "name": said, "seconds": 60})
    assert answer.status_code == 201 and answer.json()["name"] == name
    assert (await peer.expect(Disconnect)).reason == 0x98
    assert await refusal(broker, "c") == 0x8A
    broker.reload(broker.config)
    (ban,) = (await get(ask, broker, "/bans"))["bans"]
    assert (ban["kind"], ban["name"]) == (kind, name) and 50 < ban["seconds"] <= 60
    answer = await ask(broker, "DELETE", "/api/v1/bans", params={"kind": kind, "name": said})
    assert answer.status_code == 200
    await join(broker, "c", username="u", password=b"p")


@pytest.mark.parametrize("name", ["notanip", "10.0.0.300", "fe80::zz", "10.0.0.1/8", "0.0.0.0/0"])
async def test_what_is_no_address_is_not_banned_as_one(serve: Serve, ask: Ask, name: str) -> None:
    broker = await serve()
    answer = await ask(broker, "POST", "/api/v1/bans", json={"kind": "address", "name": name})
    assert answer.status_code == 400 and name in answer.json()["error"]
    assert (await get(ask, broker, "/bans"))["bans"] == []


async def test_nothing_secret_is_shown(serve: Serve, ask: Ask, passwd: Passwd, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("token-token-token-1\n", encoding="utf-8")
    auth = {
        "api": {"token_file": str(tmp_path / "tokens")},
        "http": {"url": "http://user:hidden1@127.0.0.1:1/", "headers": ["Authorization: hidden2"]},
    }
    broker = await serve(auth=auth)
    answer = await ask(broker, "GET", "/api/v1/config", headers={"authorization": "Bearer token-token-token-1"})
    assert answer.status_code == 200
    for secret in ("hidden1", "hidden2", "token-token"):
        assert secret not in answer.text


async def test_metrics_say_what_went_on(
    serve: Serve, join: Join, ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_totals_job, "FRESH", 0.0)
    broker = await serve(node={"data_dir": str(tmp_path / "data"), "shutdown_timeout": 0.1})
    peer = await join(broker, "p", properties={SESSION_EXPIRY_INTERVAL: 100})
    await peer.subscribe("m", qos=2)
    for qos in (0, 1, 1, 2):
        await peer.publish("m", b"x", qos)
    answer = await ask(broker, "GET", "/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8", "one charset"
    lines = dict(line.rsplit(" ", 1) for line in answer.text.splitlines() if not line.startswith("#"))
    received = [float(lines[f'starlingmq_messages_received_total{{qos="{qos}"}}']) for qos in (0, 1, 2)]
    assert received == [1, 2, 1]
    assert float(lines["starlingmq_clients_connected"]) == 1
    assert float(lines[f'starlingmq_connections{{listener="{broker.address()}"}}']) == 1
    assert float(lines["starlingmq_turn_seconds_count"]) > 0
    assert float(lines['starlingmq_turn_seconds_bucket{le="+Inf"}']) == float(lines["starlingmq_turn_seconds_count"])
    assert float(lines["starlingmq_journal_bytes"]) > 0
    assert float(lines["starlingmq_ready"]) == 1
    samples = (await get(ask, broker, "/metrics"))["samples"]
    assert {"name": "starlingmq_ready", "labels": {}, "value": 1.0} in samples
    seen = await get(ask, broker, "/overview")
    assert (seen["totals"]["messages_received"], seen["holds"]["sessions"]) == (4, 1)


async def test_health_tells_a_full_disk(serve: Serve, ask: Ask, tmp_path: Path) -> None:
    broker = await serve(node={"data_dir": str(tmp_path / "data"), "shutdown_timeout": 0.1})
    ready = await ask(broker, "GET", "/health/ready")
    assert (ready.status_code, ready.json()["storage"], ready.json()["cluster"]) == (200, "ok", "none")
    ctx = broker.state.ctx
    ctx.refusing, ctx.storage.state = True, "full since long"
    ready = await ask(broker, "GET", "/health/ready")
    assert (ready.status_code, ready.json()["storage"]) == (503, "full")
    assert (await ask(broker, "POST", "/api/v1/publish", json={"topic": "a", "qos": 1})).status_code == 507
    ctx.refusing, ctx.storage.state = False, "ok"
    assert (await ask(broker, "GET", "/health/live")).status_code == 200


async def test_storage_and_streams_where_there_are_any(serve: Serve, ask: Ask, tmp_path: Path) -> None:
    broker = await serve()
    assert (await ask(broker, "GET", "/api/v1/storage")).status_code == 409
    assert (await get(ask, broker, "/streams"))["streams"] == []
    kept = await serve(
        node={"data_dir": str(tmp_path / "data"), "shutdown_timeout": 0.1},
        streams={"define": [{"name": "s", "topics": ["x"]}]},
    )
    assert [one["name"] for one in (await get(ask, kept, "/streams"))["streams"]] == ["s"]
    assert (await get(ask, kept, "/storage"))["state"] == "ok"
    assert (await get(ask, kept, "/nodes"))["members"][0]["this"] is True
    for path in ("/routes", "/drain"):
        assert (await ask(kept, "GET", f"/api/v1{path}")).status_code == 409
    assert (await get(ask, kept, "/listeners"))["listeners"][0]["address"] == kept.address()


async def test_clients_of_nats_are_seen_by_the_same_names(serve: Serve, ask: Ask) -> None:
    broker = await serve(listeners=["nats://127.0.0.1:0", "http://127.0.0.1:0"])
    host, _, port = broker.address("nats").partition("://")[2].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b'CONNECT {"verbose": false}\r\nSUB a.* 1\r\nSUB b workers 2\r\nPING\r\n')
    async with within(10):
        await reader.readuntil(b"PONG\r\n")
    (client,) = (await get(ask, broker, "/clients"))["clients"]
    assert (client["protocol"], client["subscriptions"]) == ("NATS", 2)
    one = await get(ask, broker, "/session", client_id=client["client_id"])
    assert [sub["filter"] for sub in one["subscriptions"]] == ["a/+", "$share/workers/b"]
    assert len((await get(ask, broker, "/subscriptions"))["subscriptions"]) == 2
    params = {"client_id": client["client_id"]}
    assert (await ask(broker, "DELETE", "/api/v1/client", params=params)).status_code == 200
    async with within(10):
        await reader.read()
    writer.close()
