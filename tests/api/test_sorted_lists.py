"""Clients and sessions in an order that the operator chooses: at one node, and merged from several."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any, cast

import pytest
from msgspec import Struct

from starlingmq import Broker
from starlingmq.admin import paging, sorted_lists
from starlingmq.admin.declared_actions import FoundPart, for_operators
from starlingmq.admin.node_rpc import Answers, Missing, NodeRpc, nothing_to_report
from starlingmq.admin.operator_problem import AdminError
from starlingmq.admin.sessions import session_info
from starlingmq.admin.sorted_lists import SessionSearch, select_sessions
from starlingmq.core.session.session import Session

from .conftest import Ask, Join, Serve


def a_session(name: str, number: int, dropped: int) -> Session:
    session = Session(name, number)
    session.dropped = dropped
    return session


class Nodes:
    """Some nodes with sessions, as ``NodeRpc`` asks them."""

    name = "n1"

    def __init__(self, sessions: dict[str, dict[str, Session]]) -> None:
        self.sessions = sessions
        self.missing: list[Missing] = []

    async def everywhere(self, _: str, request: Struct, reply: type[Struct], *more: object) -> Answers[Any]:
        assert isinstance(request, SessionSearch)
        found = {}
        for name, sessions in self.sessions.items():
            chosen = await select_sessions(sessions, name, request)
            found[name] = FoundPart([session_info(one) for one in chosen.entries], chosen.places, chosen.total)
        return Answers(found, self.missing)

    async def page(self, **arguments: str) -> dict[str, Any]:
        """Of the action ``sessions.sorted``."""
        asked = for_operators(cast(NodeRpc, self), {"sessions.sorted": not_here})["sessions.sorted"]
        return await asked(nothing_to_report, arguments)


async def not_here(*_: object) -> dict[str, Any]:
    raise AssertionError


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("seed", range(4))
async def test_the_pages_of_all_nodes_are_one_sorted_list(
    seed: int, descending: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paging, "PIECE", 7)
    chance = random.Random(seed)
    nodes = Nodes({
        node: {name: a_session(name, number, chance.randrange(5)) for number, name in enumerate(names_of(node, chance))}
        for node in ("n1", "n2", "n3")
    })  # fmt: skip
    every = [one for sessions in nodes.sessions.values() for one in sessions.values() if "7" in one.client_id]
    for limit in (1, 4, 1000):
        found: list[Any] = []
        cursor = ""
        while True:
            direction = "yes" if descending else "no"
            page = await nodes.page(q="7", sort="dropped", descending=direction, cursor=cursor, limit=str(limit))
            assert page["total"] == len(every)
            found += page["sessions"]
            if page["next"] is None:
                break
            cursor = page["next"]
        assert sorted(one["client_id"] for one in found) == sorted(one.client_id for one in every), "each exactly once"
        values = [one["dropped"] for one in found]
        assert values == sorted(values, reverse=descending)


def names_of(node: str, chance: random.Random) -> Sequence[str]:
    return [f"{node}-{number}" for number in chance.sample(range(1000), 60)]


@pytest.mark.parametrize("cursor", ["x", "e30=", "WyJhIiwgIm4xIiwgMV0="])
async def test_a_cursor_of_another_list_is_refused(cursor: str) -> None:
    with pytest.raises(AdminError, match="cursor"):
        await Nodes({"n1": {}}).page(sort="dropped", cursor=cursor)


async def test_the_api_filters_by_user_and_address_and_counts(serve: Serve, join: Join, ask: Ask) -> None:
    broker = await serve()
    for name in ("b", "a", "c"):
        peer = await join(broker, name, username=f"user-{name}")
        if name == "c":
            await peer.subscribe("x/1", "x/2")

    async def found(**parameters: Any) -> tuple[list[str], int, bool]:
        told = (await ask(broker, "GET", "/api/v1/clients/search", params=parameters)).json()
        return [one["client_id"] for one in told["clients"]], told["total"], told["next"] is not None

    assert await found() == (["a", "b", "c"], 3, False)
    assert await found(sort="subscriptions", descending=True, limit=1) == (["c"], 3, True)
    assert await found(user="user-b") == (["b"], 1, False)
    assert await found(address="127.0.0.1:") == (["a", "b", "c"], 3, False)
    assert await found(address="10.") == ([], 0, False)
    assert (await ask(broker, "GET", "/api/v1/clients/search", params={"sort": "secret"})).status_code == 400
    told = (await ask(broker, "GET", "/api/v1/sessions/search", params={"connected": False})).json()
    assert (told["sessions"], told["total"]) == ([], 0)


async def test_subscriptions_are_found_by_their_filter_and_by_a_topic_that_they_receive(
    serve: Serve, join: Join, ask: Ask
) -> None:
    broker = await serve()
    reader = await join(broker, "reader")
    await reader.subscribe("plant/#", "plant/+/speed", "other/#", qos=1)
    worker = await join(broker, "worker")
    await worker.subscribe("$share/workers/plant/1/speed", "+/1/speed", "#")

    async def found(**chosen: str) -> set[str]:
        filters, cursor = set(), ""
        while cursor is not None:
            asked = {**chosen, "limit": "1", **({"cursor": cursor} if cursor else {})}
            page = (await ask(broker, "GET", "/api/v1/subscriptions", params=asked)).json()
            filters |= {one["filter"] for one in page["subscriptions"]}
            cursor = page["next"]
        return filters

    assert await found(filter="speed") == {"plant/+/speed", "$share/workers/plant/1/speed", "+/1/speed"}
    assert await found(filter="speed", q="reader") == {"plant/+/speed"}
    assert await found(topic="plant/2/speed") == {"plant/#", "plant/+/speed", "#"}
    assert await found(topic="plant/1/speed", q="work") == {"$share/workers/plant/1/speed", "+/1/speed", "#"}
    assert await found(topic="$events/x") == set()
    assert await found(filter="nowhere") == set()


async def walked(ask: Ask, broker: Broker, path: str, key: str, **parameters: Any) -> tuple[list[Any], int, bool]:
    """All entries of a list, two on a page; and the number and completeness that its first page tells."""
    entries: list[Any] = []
    pages: list[Any] = []
    cursor: str | None = ""
    while cursor is not None:
        asked = {**parameters, "limit": 2, **({"cursor": cursor} if cursor else {})}
        answer = await ask(broker, "GET", f"/api/v1/{path}", params=asked)
        assert answer.status_code == 200, answer.text
        pages.append(answer.json())
        entries += pages[-1][key]
        cursor = pages[-1]["next"]
    return entries, pages[0]["total"], pages[0]["complete"]


async def test_subscriptions_are_sorted_and_counted(serve: Serve, join: Join, ask: Ask) -> None:
    broker = await serve()
    for name, filters, qos in (("b", ("x/1", "$share/g/x/2"), 1), ("a", ("x/1", "y", "x/3"), 0), ("c", (), 0)):
        peer = await join(broker, name)
        if filters:
            await peer.subscribe(*filters, qos=qos)

    async def found(**chosen: Any) -> tuple[list[tuple[str, str]], int, bool]:
        entries, total, complete = await walked(ask, broker, "subscriptions/search", "subscriptions", **chosen)
        return [(one["filter"], one["client_id"]) for one in entries], total, complete

    by_filter = [("$share/g/x/2", "b"), ("x/1", "b"), ("x/1", "a"), ("x/3", "a"), ("y", "a")]
    assert await found() == (by_filter, 5, True)
    assert await found(descending=True) == (by_filter[::-1], 5, True)
    assert [client for _, client in (await found(sort="client_id"))[0]] == ["a", "a", "a", "b", "b"]
    assert [client for _, client in (await found(sort="qos", descending=True))[0]] == ["b", "b", "a", "a", "a"]
    assert await found(topic="x/2", q="b") == ([("$share/g/x/2", "b")], 1, True)


async def test_retained_messages_are_sorted_and_counted(serve: Serve, ask: Ask) -> None:
    broker = await serve()
    for topic, payload in (("b", "xxx"), ("a/1", "xx"), ("c", "x"), ("a/2", "xxxx"), ("a", "xxxx")):
        body = {"topic": topic, "payload": payload, "retain": True}
        assert (await ask(broker, "POST", "/api/v1/publish", json=body)).status_code == 200

    async def found(**chosen: Any) -> tuple[list[str], int, bool]:
        entries, total, complete = await walked(ask, broker, "retained/search", "retained", **chosen)
        return [one["topic"] for one in entries], total, complete

    assert await found() == (["a", "a/1", "a/2", "b", "c"], 5, True)
    assert await found(sort="size") == (["c", "a/1", "b", "a", "a/2"], 5, True)
    assert await found(sort="published_at", descending=True) == (["a", "a/2", "c", "a/1", "b"], 5, True)
    assert await found(filter="a/+", descending=True) == (["a/2", "a/1"], 2, True)
    assert (await ask(broker, "GET", "/api/v1/retained/search", params={"filter": "a#"})).status_code == 400
    while len(broker.state.retained) == 5:  # the broker's own messages are published a little later
        await asyncio.sleep(0.01)
    holds = (await ask(broker, "GET", "/api/v1/overview")).json()["holds"]
    assert holds["retained"] == 5, "without $SYS, as in the list"
    assert "\nstarlingmq_retained_messages 5.0\n" in (await ask(broker, "GET", "/metrics")).text


async def test_groups_are_sorted_and_counted(serve: Serve, join: Join, ask: Ask) -> None:
    broker = await serve()
    for name, groups in (("one", ("g1", "g2", "h")), ("two", ("g2",)), ("three", ("g2", "h"))):
        await (await join(broker, name)).subscribe(*(f"$share/{group}/t" for group in groups))

    async def found(**chosen: Any) -> tuple[list[tuple[str, int]], int, bool]:
        entries, total, complete = await walked(ask, broker, "groups/search", "groups", **chosen)
        return [(one["name"], one["members"]) for one in entries], total, complete

    assert await found() == ([("g1", 1), ("g2", 3), ("h", 2)], 3, True)
    assert await found(sort="members", descending=True) == ([("g2", 3), ("h", 2), ("g1", 1)], 3, True)
    assert await found(prefix="g") == ([("g1", 1), ("g2", 3)], 2, True)


@pytest.mark.parametrize("path", ["subscriptions/search", "groups/search", "retained/search"])
async def test_an_order_that_a_list_does_not_have_and_a_cursor_of_another_are_refused(
    serve: Serve, ask: Ask, path: str
) -> None:
    broker = await serve()
    assert (await ask(broker, "GET", f"/api/v1/{path}", params={"sort": "secret"})).status_code == 400
    for cursor in ("x", "e30=", "WzEsICJuMSIsIDEsIDBd"):  # no place, and one whose value is a number
        refused = await ask(broker, "GET", f"/api/v1/{path}", params={"cursor": cursor})
        assert refused.status_code == 400 and "cursor" in refused.json()["error"]


async def test_a_page_of_a_long_list_looks_at_a_bounded_number_of_entries(
    serve: Serve, join: Join, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sorted_lists, "EXAMINED_MAX", 10)
    monkeypatch.setattr(sorted_lists, "RETAINED_AT_ONCE", 3)
    monkeypatch.setattr(sorted_lists, "PAGE_MAX", 5)
    broker = await serve()
    reader = await join(broker, "reader")
    await reader.subscribe(*(f"$share/g{number}/t" for number in range(30)))
    for number in range(30):
        body = {"topic": f"t/{number}", "payload": "x", "retain": True}
        await ask(broker, "POST", "/api/v1/publish", json=body)
    for key in ("subscriptions", "groups", "retained"):
        page = (await ask(broker, "GET", f"/api/v1/{key}/search", params={"limit": 2})).json()
        assert len(page[key]) == 2 and not page["complete"], key
        assert 2 <= page["total"] <= 20, "it stops soon after the bound"
