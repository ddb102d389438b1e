"""Operator actions on one broker: bans that stay, settings, streams, the log; and lists of several nodes."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec import Struct

from starlingmq.admin.declared_actions import bound
from starlingmq.admin.log_tail import LogTail
from starlingmq.admin.node_rpc import ListPart, ListRequest, Missing, NodeRpc, Page
from starlingmq.admin.operator_problem import AdminError, UnansweredError
from starlingmq.admin.state_files import EntriesFile
from starlingmq.admin.typed_actions import Limit, NoArguments
from starlingmq.config.restart_settings import in_force, needs_restart
from starlingmq.config.settings import Config, load_config
from starlingmq.net.control_socket import Report
from starlingmq.net.peers.cluster_shell import Cluster
from starlingmq.wire.reasons import Reason
from tests.patience import within

from .conftest import Ask, Join, Serve
from .test_api import refusal


async def test_bans_of_operators_outlive_the_broker(
    serve: Serve, join: Join, ask: Ask, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "starlingmq.admin")
    node = {"data_dir": str(tmp_path / "data")}
    broker = await serve(node=node)
    for name in ("evil", "good"):
        told = await ask(broker, "POST", "/api/v1/bans", json={"kind": "client", "name": name, "seconds": 600})
        assert told.status_code == 201 and told.json()["missing"] == []
    lifted = await ask(broker, "DELETE", "/api/v1/bans", params={"kind": "client", "name": "good"})
    assert lifted.json()["done"] == "lifted"
    again = await ask(broker, "DELETE", "/api/v1/bans", params={"kind": "client", "name": "good"})
    assert again.status_code == 404
    assert caplog.text.count("lifted the ban of the client 'good'") == 1, "once, by the request that has lifted it"
    await broker.stop()
    broker = await serve(node=node)
    bans = (await ask(broker, "GET", "/api/v1/bans")).json()["bans"]
    assert [(one["name"], one["everywhere"]) for one in bans] == [("evil", True)]
    await join(broker, "good")
    assert await refusal(broker, "evil") == Reason.BANNED


async def test_a_reload_says_what_counts_later(serve: Serve, ask: Ask, tmp_path: Path) -> None:
    broker = await serve()
    before = (await ask(broker, "GET", "/api/v1/config")).json()
    refused = await ask(broker, "POST", "/api/v1/reload")
    assert refused.status_code == 409 and "embedded in a program" in refused.json()["error"]
    other = load_config(None, ["limits.topic_levels=3", "node.name=another", "limits.write_buffer=100000"], {})
    broker.load = lambda: other
    told = (await ask(broker, "POST", "/api/v1/reload")).json()["nodes"]
    (found,) = told.values()
    assert "limits.write_buffer" in found["restart"] and "node.name" in found["restart"]
    assert "limits.topic_levels" not in found["restart"]
    names = [json.loads(found[when]["node.name"]) for when in ("before", "after")]
    assert names == [before["node"]["name"], "another"]
    (again,) = (await ask(broker, "POST", "/api/v1/reload")).json()["nodes"].values()
    same: dict[str, Any] = {"before": {}, "after": {}}
    assert again == found | same, "the settings in force are the same as before"
    before["limits"]["topic_levels"], before["node"]["shutdown_timeout"] = 3, other.node.shutdown_timeout
    assert (await ask(broker, "GET", "/api/v1/config")).json() == before
    broker.load = lambda: broker._started_with
    back = {"restart": [], "before": found["after"], "after": found["before"]}
    assert (await ask(broker, "POST", "/api/v1/reload")).json()["nodes"] == {broker.config.node.name: found | back}
    broken = tmp_path / "none"
    broker.load = lambda: load_config(str(broken), (), {})
    refused = await ask(broker, "POST", "/api/v1/reload")
    assert refused.status_code == 409 and "the settings were not changed" in refused.json()["error"]


def test_settings_that_need_a_restart_are_named_by_their_paths() -> None:
    before = Config()
    assert needs_restart(before, before) == []
    after = load_config(None, ["storage.segment_size=8MiB", "mqtt.max_qos=1", "node.event_loop=asyncio"], {})
    assert needs_restart(before, after) == ["node.event_loop", "storage.segment_size"]
    served = in_force(before, after)
    assert needs_restart(before, served) == [] and served.mqtt.max_qos == 1
    other = load_config(None, ["listeners=[nats://127.0.0.1:4333]", "nats.max_payload=2000"], {})
    assert needs_restart(before, other) == ["listeners"]
    assert in_force(before, other).listeners == before.listeners and in_force(before, other).nats.max_payload == 2000


async def test_traffic_of_each_listener_and_latencies_are_counted(serve: Serve, join: Join, ask: Ask) -> None:
    broker = await serve()
    reader, author = await join(broker, "reader"), await join(broker, "author")
    await reader.subscribe("a", qos=1)
    for _ in range(32):
        await author.publish("a", b"x", 1)
    rates = (await ask(broker, "GET", "/api/v1/activity")).json()
    assert {one["client_id"] for one in rates["clients"]} == {"reader", "author"} and rates["missing"] == []
    received = f'starlingmq_listener_messages_received_total{{listener="{broker.address()}"}} 32.0'
    async with within(30.0):  # the history of the dashboard may have counted just before
        while received not in (text := (await ask(broker, "GET", "/metrics")).text):
            await asyncio.sleep(0.1)
    assert "starlingmq_delivery_delay_seconds_count 2.0" in text
    latency = (await ask(broker, "GET", "/api/v1/overview")).json()["latency"]
    assert latency["delivery"]["count"] == 2


async def test_streams_are_made_trimmed_and_ended(serve: Serve, ask: Ask, tmp_path: Path) -> None:
    broker = await serve(node={"data_dir": str(tmp_path / "data")})
    made = await ask(broker, "POST", "/api/v1/streams", json={"name": "s", "topics": ["a/#", "b"]})
    assert made.status_code == 201, made.text
    (found,) = (await ask(broker, "GET", "/api/v1/streams")).json()["streams"]
    assert (found["name"], found["topics"]) == ("s", ["a/#", "b"])
    await ask(broker, "POST", "/api/v1/publish", json={"topic": "b", "payload": "x", "qos": 1})
    trimmed = await ask(broker, "POST", "/api/v1/streams/trim", params={"name": "s"})
    assert next(iter(trimmed.json()["nodes"].values()))["name"] == "s"
    bad = await ask(broker, "POST", "/api/v1/streams", json={"name": "t", "topics": ["a/#/b"]})
    assert bad.status_code == 409
    assert (await ask(broker, "DELETE", "/api/v1/streams", params={"name": "s"})).status_code == 200
    assert (await ask(broker, "DELETE", "/api/v1/streams", params={"name": "s"})).status_code == 409


async def test_the_log_continues_from_a_position_and_contains_no_terminal_controls() -> None:
    tail = LogTail()
    log = logging.getLogger("starlingmq.of_this_test")
    tail.start()
    try:
        log.error("closed client %r", "\x1b[2J\nroot: all is well")
        log.error("plainly \x1b[2J\nroot")
        read = bound(tail)["log"]
        found = await read(nobody, {"level": "error"})
        assert [line["message"] for line in found["lines"]] == [
            "closed client '\\x1b[2J\\nroot: all is well'",
            "plainly \\x1b[2J\\nroot",
        ]
        log.error("more")
        after = await read(nobody, {"level": "error", "after": str(found["next"])})
        assert [line["message"] for line in after["lines"]] == ["more"] and after["lost"] == 0
    finally:
        tail.stop()


async def test_the_log_is_searched_by_client_text_level_and_time() -> None:
    tail = LogTail()
    log = logging.getLogger("starlingmq.of_this_test")
    log.setLevel(logging.DEBUG)
    tail.start()
    try:
        log.info("closed 10.0.0.1", extra={"client_id": "door-1"})
        log.warning("somebody kicked 'door-1'")
        log.debug("closed 10.0.0.2", extra={"client_id": "door-10"})
        search = bound(tail)["lines"]

        async def found(**asked: str) -> list[str]:
            return [line["message"] for line in (await search(nobody, asked))["lines"]]

        assert await found() == ["closed 10.0.0.2", "somebody kicked 'door-1'", "closed 10.0.0.1"]
        assert await found(client="door-1") == ["somebody kicked 'door-1'", "closed 10.0.0.1"]
        assert await found(text="CLOSED", limit="1") == ["closed 10.0.0.2"]
        assert await found(text="closed", level="info") == ["closed 10.0.0.1"]
        assert await found(since="1h", level="warning") == ["somebody kicked 'door-1'"]
        assert await found(until="1h") == []
        assert (await search(nobody, {"level": "debug"}))["lines"][0]["client_id"] == "door-10"
        with pytest.raises(AdminError, match="since"):
            await found(since="yesterday")
    finally:
        tail.stop()


def nobody(what: str, done: int, total: int, unit: str) -> None:
    """A progress callback that ignores its arguments."""


class Wire:
    """Nodes that are in one process: what ``net.peers.cluster_shell.Cluster`` has for a ``NodeRpc``. ``away`` do not
    answer."""

    def __init__(self, names: Sequence[str]) -> None:
        self.order = dict(enumerate(names, 1))
        self.state = self
        self.away: set[str] = set()
        self.answers: dict[str, Callable[[bytes], Awaitable[bytes]]] = {}
        self._name = ""

    def at(self, name: str) -> Wire:
        self._name = name
        return self

    def names(self) -> dict[int, str]:
        return self.order

    @property
    def on_question(self) -> Callable[[bytes], Awaitable[bytes]]:
        return self.answers[self._name]

    @on_question.setter
    def on_question(self, answer: Callable[[bytes], Awaitable[bytes]]) -> None:
        self.answers[self._name] = answer

    async def ask(self, number: int, question: bytes, seconds: float) -> tuple[bytes, str]:
        name = self.order[number]
        if name in self.away:
            return b"", "it did not answer within 3.0 s"
        return await self.answers[name](question), ""


class Thing(Struct, frozen=True):
    id: str
    node: str = ""


class ThingsPart(ListPart, frozen=True):
    things: list[Thing]


async def listed(rpc: NodeRpc, limit: int, cursor: str = "") -> Page[Thing]:
    wanted = ListRequest(cursor, Limit(limit))
    return await rpc.page("things", NoArguments(), ThingsPart, lambda part: part.things, wanted)


def services(wire: Wire, count: int) -> dict[str, NodeRpc]:
    """Each has ``count`` entries, by number, of which a page is some."""

    def part(name: str) -> Any:
        async def entries(report: Report, arguments: dict[str, str]) -> dict[str, Any]:
            after, limit = int(arguments["cursor"] or "0"), int(arguments["limit"])
            found = [{"id": f"{name}{number}"} for number in range(after + 1, min(count, after + limit) + 1)]
            return {"things": found, "next": str(after + limit) if after + limit < count else None}

        return entries

    return {name: NodeRpc(name, {"things": part(name)}, cast(Cluster, wire.at(name))) for name in wire.order.values()}


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 15, 100])
async def test_a_list_of_several_nodes_has_each_entry_once_in_order(limit: int) -> None:
    wire = Wire("cab")
    rpc = services(wire, 5)["a"]
    for away in ("", "c", "a", "b"):
        wire.away = {away} - {"", "a"}
        found: list[str] = []
        missing: list[Missing] = []
        cursor: str | None = ""
        while cursor is not None:
            page = await listed(rpc, limit, cursor)
            assert len(page.entries) <= limit
            found += [entry.id for entry in page.entries]
            missing += page.missing
            cursor = page.next
        assert found == [f"{name}{number}" for name in "cab" if name not in wire.away for number in range(1, 6)]
        assert {one.node for one in missing} == wire.away


async def test_a_node_that_stops_in_the_middle_of_a_list_is_missing_and_the_others_are_listed() -> None:
    wire = Wire("abc")
    rpc = services(wire, 5)["a"]
    page = await listed(rpc, 7)
    assert page.entries[-1] == Thing("b2", "b")
    wire.away = {"b"}
    assert page.next is not None
    page = await listed(rpc, 7, page.next)
    assert [entry.id for entry in page.entries] == [f"c{number}" for number in range(1, 6)]
    assert (page.missing, page.next) == ([Missing("b", "it did not answer within 3.0 s")], None)


async def test_a_refusal_of_another_node_is_told_apart_from_no_answer() -> None:
    wire = Wire("ab")
    rpc = services(wire, 5)["a"]
    with pytest.raises(AdminError, match="b: this node does not accept requests for nothing") as refused:
        await rpc.at("b", "nothing", {})
    assert refused.value.status == 409
    with pytest.raises(AdminError, match="there is no node z; the members are a, b"):
        await rpc.at("z", "things", {})
    for garbage in (b"", b"[]", b"\xff", b'{"result": 1}'):
        wire.answers["b"] = says(garbage)
        with pytest.raises(UnansweredError):
            await rpc.at("b", "things", {})
    for cursor in ("x", "1", "-1.", "1" * 21 + ".", "é."):
        with pytest.raises(AdminError, match="cursor"):
            await listed(rpc, 1, cursor)


class Asked(Struct, frozen=True):
    limit: int = 1
    cursor: str = ""


class Things(Struct, frozen=True):
    things: list[dict[str, str]]


async def test_a_request_to_all_nodes_lists_those_that_refuse_or_do_not_answer_as_missing() -> None:
    wire = Wire("abc")
    every = services(wire, 5)
    del every["b"].actions["things"]
    wire.away = {"c"}
    answers = await every["a"].everywhere("things", Asked(), Things)
    assert list(answers.results) == ["a"]
    assert answers.missing == [
        Missing("b", "this node does not accept requests for things from other nodes"),
        Missing("c", "it did not answer within 3.0 s"),
    ]
    page = await listed(every["a"], 100)
    assert len(page.entries) == 5 and page.missing == answers.missing
    with pytest.raises(AdminError, match="does not accept requests for nothing"):
        await every["a"].everywhere("nothing", Asked(), Things)


def says(answer: bytes) -> Callable[[bytes], Awaitable[bytes]]:
    async def say(question: bytes) -> bytes:
        return answer

    return say


def test_a_file_of_entries_that_is_out_of_reach_is_logged_and_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert EntriesFile("bans", tmp_path / "missing", int).read() == []
    assert caplog.text == ""
    assert EntriesFile("bans", tmp_path / ("x" * 300), int).read() == []
    assert "stored bans cannot be read and are ignored" in caplog.text
