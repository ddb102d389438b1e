"""Operators who ask a broker about itself over NATS, as nats-server's tools do, and users who may not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats.errors
import pytest
from nats.aio.client import Client

import nats
from starlingmq import Broker
from tests.auth.conftest import Passwd, Serve
from tests.auth.test_rights import rules
from tests.patience import slowness, within

RULES = """
rules:
  - {allow: publish, users: [ops], topics: ["$SYS/REQ/#"]}
  - {allow: all, users: [ops, free]}
  - {allow: [publish, subscribe], users: [ann], topics: ["a/#", "_INBOX/#"]}
  - {allow: reply, users: [ann], max_replies: 0, reply_expires: 1s}
"""
SUBJECT = "$SYS.REQ.SERVER.PING"
OF_JSZ = {
    *("memory", "storage", "reserved_memory", "reserved_storage", "accounts", "ha_assets", "api", "server_id", "now"),
    *("config", "streams", "consumers", "messages", "bytes", "total"),
}
"""The fields that nats-server 2.15 answers without options; without JetStream, ``disabled`` is there too."""


class User:
    """A connection, and what the server has refused it."""

    def __init__(self, client: Client, refused: asyncio.Queue[str]) -> None:
        self.client = client
        self.refused = refused

    async def ask(self, subject: str, **options: Any) -> Any:
        async with within(10):
            answer = await self.client.request(
                subject, json.dumps(options).encode() if options else b"", timeout=20 * slowness()
            )
        return json.loads(answer.data)

    async def is_refused(self, subject: str = SUBJECT) -> bool:
        await self.client.publish(subject, b"", reply=self.client.new_inbox())
        async with within(10):
            return subject.lower() in await self.refused.get()


@asynccontextmanager
async def user(broker: Broker, name: str | None, password: str = "right") -> AsyncIterator[User]:
    refused: asyncio.Queue[str] = asyncio.Queue()

    async def note(error: Exception) -> None:
        refused.put_nowait(str(error))

    said = {} if name is None else {"user": name, "password": password}
    client = await nats.connect(broker.address("nats"), error_cb=note, **said)
    try:
        yield User(client, refused)
    finally:
        await client.close()


@pytest.fixture
async def broker(serve: Serve, passwd: Passwd, tmp_path: Path) -> Broker:
    auth = {**rules(tmp_path / "acl", RULES), "password": {"file": passwd(ops="right", ann="right")}}
    return await serve(listeners=["nats://127.0.0.1:0"], node={"name": "n1"}, auth=auth)


async def test_an_operator_is_told_what_there_is_in_the_json_of_nats_server(broker: Broker) -> None:
    async with user(broker, "ops") as ops, user(broker, "ann") as ann:
        await ann.client.subscribe("a.>")
        await ann.client.flush()
        ping = await ops.ask(SUBJECT)
        assert set(ping) == {"server", "statsz"} and ping["statsz"]["active_servers"] == 1
        assert ping["statsz"]["connections"] == 2 and ping["statsz"]["subscriptions"] >= 2
        head = ping["server"]
        assert head["name"] == "n1" and len(head["id"]) == 56 and head["ver"].startswith("2.")
        assert ops.client._server_info["server_id"] == head["id"]
        for subject in ("VARZ", "CONNZ", "SUBSZ", "HEALTHZ", "ACCOUNTZ", "JSZ", "STATSZ"):
            one, all = await ops.ask(f"$SYS.REQ.SERVER.{head['id']}.{subject}"), await ops.ask(f"{SUBJECT}.{subject}")
            assert set(one) == set(all) == {"server", "statsz" if subject == "STATSZ" else "data"}
            assert one["server"]["id"] == head["id"] and one["server"]["seq"] < all["server"]["seq"]
        assert await ops.ask(f"{SUBJECT}.IDZ") == {"name": "n1", "host": head["host"], "id": head["id"]}
        varz = (await ops.ask(f"{SUBJECT}.VARZ"))["data"]
        assert varz["server_id"] == head["id"] and varz["auth_required"] and not varz["tls_required"]
        assert (await ops.ask(f"{SUBJECT}.HEALTHZ"))["data"] == {"status": "ok", "status_code": 200}
        for subject in (f"{SUBJECT}.CONNZ", "$SYS.REQ.ACCOUNT.$G.CONNZ", "$SYS.REQ.ACCOUNT.PING.CONNZ"):
            connz = (await ops.ask(subject, user="ann", subscriptions=True))["data"]
            assert connz["total"] == 1 and connz["connections"][0]["authorized_user"] == "ann"
            assert "a.>" in connz["connections"][0]["subscriptions_list"]
        assert (await ops.ask(f"{SUBJECT}.CONNZ", state=1))["data"]["total"] == 0, "closed ones"
        statz = (await ops.ask("$SYS.REQ.ACCOUNT.PING.STATZ"))["data"]["account_statz"]
        assert [one["acc"] for one in statz] == ["$G"] and statz[0]["conns"] == 2


async def test_an_operator_is_told_what_jetstream_has(serve: Serve, passwd: Passwd, tmp_path: Path) -> None:
    auth = {**rules(tmp_path / "acl", RULES), "password": {"file": passwd(ops="right", ann="right")}}
    data_dir = str(tmp_path / "data")
    broker = await serve(listeners=["nats://127.0.0.1:0"], node={"name": "n1", "data_dir": data_dir}, auth=auth)
    async with user(broker, "ops") as ops:
        assert ops.client._server_info["jetstream"] is True and ops.client._server_info["api_lvl"] == 1
        before = (await ops.ask(f"{SUBJECT}.JSZ"))["data"]
        assert (before["streams"], before["bytes"], before["api"]) == (0, 0, {"level": 1, "total": 0, "errors": 0})
        js = ops.client.jetstream()
        await js.add_stream(name="orders", subjects=["orders.>"], max_bytes=10_000)
        await js.add_stream(name="fast", subjects=["fast.>"], storage="memory")
        for subject in ("orders.new", "orders.new", "fast.a"):
            await js.publish(subject, b"12345")
        await js.pull_subscribe("orders.>", "reader")
        usage = (await js.account_info()).storage, (await js.account_info()).memory

        answer = await ops.ask(f"{SUBJECT}.JSZ")
        assert answer["server"]["jetstream"] is True and answer["server"]["flags"] == 1
        jsz = answer["data"]
        assert set(jsz) == OF_JSZ
        assert (jsz["streams"], jsz["consumers"], jsz["messages"]) == (2, 1, 3)
        assert (jsz["storage"], jsz["memory"]) == usage and jsz["bytes"] == sum(usage) > 0 < usage[0]
        assert jsz["reserved_storage"] == 10_000 and jsz["config"]["store_dir"].startswith(data_dir)
        assert jsz["api"]["total"] >= 3 and jsz["total"] == 1
        stats = {name: jsz[name] for name in ("memory", "storage", "reserved_memory", "reserved_storage", "api")}
        for kind, data in (("VARZ", "data"), ("STATSZ", "statsz")):
            told = (await ops.ask(f"{SUBJECT}.{kind}"))[data]["jetstream"]
            assert {name: told["stats"][name] for name in stats} == stats
            assert ("store_dir" in told["config"]) == (kind == "VARZ")

        (account,) = (await ops.ask(f"{SUBJECT}.JSZ", consumer=True, config=True))["data"]["account_details"]
        fast, orders = account["stream_detail"]
        assert account["name"] == "$G" and (fast["name"], orders["name"]) == ("fast", "orders")
        assert orders["state"]["messages"] == 2 and orders["config"]["max_bytes"] == 10_000
        (reader,) = orders["consumer_detail"]
        assert (reader["name"], reader["num_pending"]) == ("reader", 2) and fast["consumer_detail"] == []
        (account,) = (await ops.ask(f"{SUBJECT}.JSZ", streams=True))["data"]["account_details"]
        assert [set(each) & {"config", "consumer_detail"} for each in account["stream_detail"]] == [set(), set()]


async def test_a_broker_without_jetstream_says_so(broker: Broker) -> None:
    """As a member of a cluster does."""
    broker.state.jetstream.enabled = False
    async with user(broker, "ops") as ops:
        assert {"jetstream", "api_lvl"}.isdisjoint(ops.client._server_info)
        answer = await ops.ask(f"{SUBJECT}.JSZ", accounts=True)
        assert answer["server"]["jetstream"] is False and answer["server"]["flags"] == 0
        assert set(answer["data"]) == OF_JSZ | {"disabled"} and answer["data"]["config"]["max_storage"] == 0
        assert (await ops.ask(f"{SUBJECT}.VARZ"))["data"]["jetstream"] == {}
        assert "jetstream" not in (await ops.ask(SUBJECT))["statsz"]


async def test_a_server_that_is_not_meant_says_nothing(broker: Broker) -> None:
    async with user(broker, "ops") as ops:
        options: dict[str, Any]
        for options in ({"server_name": "n"}, {"server_name": "n1", "exact_match": True}, {"host": "127"}):
            assert (await ops.ask(f"{SUBJECT}.VARZ", **options))["data"]["server_name"] == "n1"
        for options in ({"server_name": "n", "exact_match": True}, {"cluster": "c"}, {"tags": ["x"]}, {"domain": "d"}):
            with pytest.raises(nats.errors.NoRespondersError):
                await ops.ask(f"{SUBJECT}.VARZ", **options)
        with pytest.raises(nats.errors.NoRespondersError):
            await ops.ask(f"$SYS.REQ.SERVER.N{'A' * 55}.VARZ")


async def test_options_that_can_not_be_read_are_an_error_in_the_answer(broker: Broker) -> None:
    async with user(broker, "ops") as ops:
        for options in ({"server_name": 1}, {"limit": "x"}, {"sort": "colour"}, {"offset": -1}, {"user": "x" * 5000}):
            answer = await ops.ask(f"{SUBJECT}.CONNZ", **options)
            assert answer["error"]["code"] == 400 and "data" not in answer


async def test_users_without_that_right_are_refused_and_told_about_themselves(broker: Broker) -> None:
    async with user(broker, "ann") as ann:
        for subject in (SUBJECT, f"{SUBJECT}.CONNZ", "$SYS.REQ.ACCOUNT.PING.STATZ"):
            assert await ann.is_refused(subject)
        info = (await ann.ask("$SYS.REQ.USER.INFO"))["data"]
        assert info["user"] == "ann" and info["account"] == "$G"
        assert info["permissions"] == {
            "publish": {"allow": ["a", "a.>", "_INBOX", "_INBOX.>"]},
            "subscribe": {"allow": ["a", "a.>", "_INBOX", "_INBOX.>"]},
            "responses": {"max": -1, "ttl": 1_000_000_000},
        }


async def test_an_operator_who_loses_the_right_is_refused_from_the_reload_on(broker: Broker, tmp_path: Path) -> None:
    async with user(broker, "ops") as ops:
        await ops.ask(SUBJECT)
        (tmp_path / "acl").write_text(RULES.replace("users: [ops], topics", "users: [nobody], topics"))
        broker.reload(broker.config)
        assert await ops.is_refused()


@pytest.mark.parametrize("name", ["ops", "free", None])
async def test_a_name_that_nobody_asks_a_password_for_makes_no_operator(
    serve: Serve, tmp_path: Path, name: str | None
) -> None:
    text = "rules: [{allow: publish, topics: ['$SYS/REQ/#']}, {allow: all}]"
    broker = await serve(
        listeners=["nats://127.0.0.1:0"],
        nats={"no_auth_user": "ops"} if name is None else {},
        auth={**rules(tmp_path / "acl", text), "allow_anonymous": True},
    )
    async with user(broker, name) as somebody:
        assert await somebody.is_refused()
        assert (await somebody.ask("$SYS.REQ.USER.INFO"))["data"]["user"] == (name or "ops")


async def test_an_answer_has_at_most_the_size_of_a_payload(serve: Serve, passwd: Passwd, tmp_path: Path) -> None:
    auth = {**rules(tmp_path / "acl", RULES), "password": {"file": passwd(ops="right", ann="right")}}
    limits = {"listeners": ["nats://127.0.0.1:0"], "auth": auth}
    broker = await serve(**limits, nats={"max_payload": 8000})
    async with user(broker, "ops") as ops:
        others = [await nats.connect(broker.address("nats"), user="ann", password="right") for _ in range(30)]
        for other in others:
            for number in range(20):
                await other.subscribe(f"a.a-rather-long-subject.{number}")
            await other.flush()
        shown: set[int] = set()
        while len(shown) < 31:
            answer = await ops.client.request(
                f"{SUBJECT}.CONNZ",
                json.dumps({"subscriptions": True, "offset": len(shown)}).encode(),
                timeout=20 * slowness(),
            )
            assert len(answer.data) <= 8000
            page = json.loads(answer.data)["data"]
            assert page["total"] == 31 and page["num_connections"] == min(page["limit"], 31 - len(shown)) < 31
            shown |= {one["cid"] for one in page["connections"]}
        for other in others:
            await other.close()
    broker = await serve(**limits, nats={"max_payload": 500})
    async with user(broker, "ops") as ops:
        assert (await ops.ask(f"{SUBJECT}.VARZ"))["error"]["code"] == 413
