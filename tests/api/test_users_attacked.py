"""Users and rules that operators make, and those who want more than they have: each door stays closed."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from scramp import ScramClient  # type: ignore[import-untyped]

from starlingmq.admin.access_table import FILE, AccessTable
from starlingmq.api.asgi import Scope
from starlingmq.api.guard import Guard
from starlingmq.auth.acl import AclRule
from starlingmq.auth.stored_access import StoredAccess, StoredRule
from starlingmq.cli import workers
from starlingmq.config.settings import ConfigError, from_tree
from starlingmq.wire.mqtt import Auth, Connack, Connect, Disconnect
from starlingmq.wire.properties import AUTHENTICATION_DATA, AUTHENTICATION_METHOD, Properties
from starlingmq.wire.reasons import Reason
from tests.auth.logins import SECRET, knock, scram, token
from tests.auth.test_nats_login import say
from tests.patience import within
from tests.peer import Peer

from .conftest import BEARER, Ask, Join, Serve
from .test_users import OPEN, SECONDS, change

ANN: dict[str, Any] = {"name": "ann", "password": "right", "api": "operator"}
ALL_DENIED = StoredRule("quiet", AclRule(deny="all"))


async def test_a_rule_does_not_widen_what_a_token_grants(
    serve: Serve, ask: Ask, join: Join, token_file: str, tmp_path: Path
) -> None:
    """Without an ACL file, a client with granted rules may do nothing else, whatever rules operators make."""
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    auth = {"jwt": {"secret_file": str(secret)}, "api": {"token_file": token_file}, **OPEN}
    broker = await serve(auth=auth, node={"data_dir": str(tmp_path / "data")})
    peer = await join(broker, "c", password=token(acl=[{"allow": "publish", "topics": ["mine"]}]))
    assert await peer.publish("others", qos=1) == Reason.NOT_AUTHORIZED
    await change(ask, broker, "PUT", "/rules", name="r", rule={"deny": "publish", "topics": ["x"]})
    assert await peer.publish("others", qos=1) == Reason.NOT_AUTHORIZED
    assert await peer.publish("mine", qos=1) == Reason.NO_MATCHING_SUBSCRIBERS
    asked = {"client_id": "c", "topic": "others"}
    told = (await ask(broker, "GET", "/api/v1/rules/test", headers=BEARER, params=asked)).json()
    assert not told["allowed"]


async def test_all_doors_have_the_same_users(serve: Serve, ask: Ask, token_file: str, tmp_path: Path) -> None:
    auth = {"methods": ["scram", "password"], "api": {"token_file": token_file}, **OPEN}
    listeners = ["mqtt://127.0.0.1:0", "nats://127.0.0.1:0", "http://127.0.0.1:0"]
    broker = await serve(listeners=listeners, auth=auth, node={"data_dir": str(tmp_path / "data")})

    async def doors() -> list[bool]:
        """MQTT with a password, MQTT with SCRAM, NATS, HTTP."""
        nats = await say(broker, '{"verbose":false,"user":"ann","pass":"right"}')
        http = await ask(broker, "GET", "/api/v1/users", auth=("ann", "right"), timeout=SECONDS)
        mqtt = await knock(broker.address(), "ann", b"right"), await scram(broker.address(), "ann", "right")
        return [mqtt[0] == 0, mqtt[1] == 0, nats == ["PONG"], http.status_code == 200]

    assert not any(await doors())
    await change(ask, broker, "POST", "/users", **ANN)
    assert all(await doors())
    await change(ask, broker, "DELETE", "/users", name="ann")
    assert not any(await doors())


@pytest.mark.parametrize(("changed", "reason"), [("bob", 0), ("ann", Reason.BAD_USER_NAME_OR_PASSWORD)])
async def test_a_change_of_another_user_does_not_refuse_an_exchange_that_has_begun(
    serve: Serve, ask: Ask, token_file: str, tmp_path: Path, changed: str, reason: int
) -> None:
    """Refusals count against the address, from which a whole fleet may come."""
    auth = {"methods": ["scram"], "api": {"token_file": token_file}, **OPEN}
    broker = await serve(auth=auth, node={"data_dir": str(tmp_path / "data")})
    for name in ("ann", "bob"):
        await change(ask, broker, "POST", "/users", name=name, password="right")
    client = ScramClient(["SCRAM-SHA-256"], "ann", "right")
    peer = await Peer.open(broker.address())
    properties: Properties = {AUTHENTICATION_METHOD: "SCRAM-SHA-256"}
    properties[AUTHENTICATION_DATA] = client.get_client_first().encode()
    peer.send(Connect(5, "s", properties=properties))
    data = (await peer.expect(Auth)).properties[AUTHENTICATION_DATA]
    assert isinstance(data, bytes)
    client.set_server_first(data.decode())
    await change(ask, broker, "PUT", "/users", name=changed, password="other")
    properties[AUTHENTICATION_DATA] = client.get_client_final().encode()
    peer.send(Auth(Reason.CONTINUE_AUTHENTICATION, properties))
    assert (await peer.expect(Connack)).reason == reason
    await peer.close()


async def test_the_last_user_is_not_deleted_by_accident_where_anonymous_clients_are_admitted(
    serve: Serve, ask: Ask, join: Join, tmp_path: Path
) -> None:
    """The HTTP API would need no login any more. Nor does a name that was never proved outlive the first user."""
    broker = await serve(auth={"allow_anonymous": True, **OPEN}, node={"data_dir": str(tmp_path / "data")})
    named, unnamed = await join(broker, "a", username="ann"), await join(broker, "b")
    await change(ask, broker, "POST", "/users", **ANN, force=True)
    assert (await named.expect(Disconnect)).reason == Reason.NOT_AUTHORIZED
    assert await unnamed.publish("t", qos=1) == Reason.NO_MATCHING_SUBSCRIBERS
    login: dict[str, Any] = {"auth": ("ann", "right"), "timeout": SECONDS, "params": {"name": "ann"}}
    assert (await ask(broker, "DELETE", "/api/v1/users", **login)).status_code == 409
    assert (await ask(broker, "GET", "/api/v1/users")).status_code == 401


async def test_the_first_user_of_a_cluster_needs_force_since_other_nodes_may_have_clients(
    serve: Serve, ask: Ask, tmp_path: Path
) -> None:
    broker = await serve(auth=OPEN, node={"data_dir": str(tmp_path / "data")})
    assert broker._admin is not None
    broker._admin.local_node.cluster = cast("Any", object())
    try:
        assert "other nodes" in (await change(ask, broker, "POST", "/users", 409, **ANN))["error"]
    finally:
        broker._admin.local_node.cluster = None


async def test_an_operator_does_nothing_after_its_end_with_a_request_that_had_begun(
    serve: Serve, ask: Ask, token_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    admitted = asyncio.Event()
    admit = Guard._admit

    async def admit_and_tell(guard: Guard, scope: Scope) -> None:
        await admit(guard, scope)
        admitted.set()

    monkeypatch.setattr(Guard, "_admit", admit_and_tell)
    auth = {"methods": ["password"], "api": {"token_file": token_file}, **OPEN}
    broker = await serve(auth=auth, node={"data_dir": str(tmp_path / "data")})
    await change(ask, broker, "POST", "/users", **ANN)
    host, _, port = broker.address("http").partition("://")[2].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = b'{"name": "eve", "password": "wrong", "api": "operator"}'
    head = [
        "POST /api/v1/users HTTP/1.1",
        f"Host: {host}:{port}",
        f"Authorization: Basic {b64encode(b'ann:right').decode()}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    admitted.clear()
    try:
        writer.write("\r\n".join([*head, "", ""]).encode() + body[:5])
        async with within(20.0):
            await admitted.wait()
        await change(ask, broker, "DELETE", "/users", name="ann")
        writer.write(body[5:])
        async with within(20.0):
            assert b" 401 " in await reader.readline()
    finally:
        writer.close()
    listed = (await ask(broker, "GET", "/api/v1/users", headers=BEARER)).json()
    assert listed["users"] == []


async def test_a_stream_that_began_without_a_login_ends_when_logins_are_switched_on(
    serve: Serve, ask: Ask, tmp_path: Path
) -> None:
    broker = await serve(auth=OPEN, node={"data_dir": str(tmp_path / "data")})
    async with (
        httpx.AsyncClient(base_url=broker.address("http"), trust_env=False, timeout=20.0) as client,
        client.stream("GET", "/api/v1/tail", params={"filter": "#"}) as answer,
    ):
        lines = answer.aiter_lines()
        assert await anext(lines) == "event: ready"
        await change(ask, broker, "POST", "/users", **ANN)
        async with within(20.0):
            assert [line async for line in lines if line.startswith("event: ")] == []


async def test_an_empty_file_stops_the_start(serve: Serve, tmp_path: Path) -> None:
    """It is what a damaged disk may leave, and would open the broker."""
    data = {"data_dir": str(tmp_path / "data")}
    await (await serve(node=data)).stop()
    (tmp_path / "data" / FILE).touch()
    with pytest.raises(ConfigError, match="is empty"):
        await serve(node=data)


async def test_users_of_a_broker_alone_are_not_forgotten_in_a_cluster(serve: Serve, ask: Ask, tmp_path: Path) -> None:
    data = {"data_dir": str(tmp_path / "data")}
    alone = await serve(auth=OPEN, node=data)
    await change(ask, alone, "POST", "/users", **ANN)
    await alone.stop()
    with pytest.raises(ConfigError, match="create them again"):
        await serve(node=data, cluster={"enabled": True, "etcd": {"endpoints": ["127.0.0.1:1"]}})
    tree = {"node": data, "listeners": ["mqtt://127.0.0.1:0"]}
    with pytest.raises(ConfigError, match="create them again"):
        await workers.serve(from_tree(tree), [], [], 2)


def quiet(table: StoredAccess) -> StoredAccess:
    return table.with_rule(ALL_DENIED, "")


async def test_a_table_that_vanishes_stays_in_force_and_is_stored_with_the_next_change() -> None:
    """As where its key in etcd was deleted by hand."""
    used: list[StoredAccess] = []
    table = AccessTable(used.append)
    stored: list[bytes] = []

    async def write(document: bytes) -> str:
        stored.append(document)
        table.adopt(document)
        return ""

    table.write = write
    await table.change(None, quiet)
    table.adopt(b'{"users":')
    assert table.problem
    table.adopt(b"")
    assert [len(one.rules) for one in used] == [1] and not table.problem
    assert (await table.change(1, quiet)).revision == 2 and b"quiet" in stored[-1]


async def test_a_change_is_completed_though_its_operator_hangs_up() -> None:
    used: list[StoredAccess] = []
    table = AccessTable(used.append)
    written, done = asyncio.Event(), asyncio.Event()

    async def write(document: bytes) -> str:
        written.set()
        await done.wait()
        table.adopt(document)
        return ""

    table.write = write
    asked = asyncio.ensure_future(table.change(None, quiet))
    await written.wait()
    asked.cancel()
    await asyncio.wait([asked])
    done.set()
    async with within(5.0):
        while not used:
            await asyncio.sleep(0)
    assert asked.cancelled() and table.known == used[0] and used[0].revision == 1
