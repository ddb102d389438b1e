"""Clients and sessions in an order that the operator chooses: at one node, and merged from several."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, cast

import pytest
from msgspec import Struct

from starlingmq.admin import paging
from starlingmq.admin.node_rpc import Answers, Missing, NodeRpc
from starlingmq.admin.operator_problem import AdminError
from starlingmq.admin.sessions import session_info
from starlingmq.admin.sorted_lists import (
    SESSION_KEYS,
    Search,
    SearchAt,
    SessionsFound,
    SortedLists,
    first_behind,
)
from starlingmq.admin.typed_actions import Limit
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

    async def everywhere(self, action: str, request: Struct, reply: type[Struct], node: str) -> Answers[Any]:
        assert isinstance(request, Search)
        found = {}
        for name, sessions in self.sessions.items():
            rows, total = await first_behind(sessions, name, SESSION_KEYS, request)
            found[name] = SessionsFound([session_info(one) for _, one in rows], [place for place, _ in rows], total)
        return Answers(found, self.missing)


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
    lists = SortedLists(cast(NodeRpc, nodes))
    every = [one for sessions in nodes.sessions.values() for one in sessions.values() if "7" in one.client_id]
    for limit in (1, 4, 1000):
        found: list[Any] = []
        cursor = ""
        while True:
            request = SearchAt(q="7", sort="dropped", descending=descending, cursor=cursor, limit=Limit(limit))
            page = await lists.sessions(lambda *_: None, request)
            assert page.total == len(every)
            found += page.sessions
            if page.next is None:
                break
            cursor = page.next
        assert sorted(one.client_id for one in found) == sorted(one.client_id for one in every), "each exactly once"
        values = [one.dropped for one in found]
        assert values == sorted(values, reverse=descending)


def names_of(node: str, chance: random.Random) -> Sequence[str]:
    return [f"{node}-{number}" for number in chance.sample(range(1000), 60)]


@pytest.mark.parametrize("cursor", ["x", "e30=", "WyJhIiwgIm4xIiwgMV0="])
async def test_a_cursor_of_another_list_is_refused(cursor: str) -> None:
    lists = SortedLists(cast(NodeRpc, Nodes({"n1": {}})))
    with pytest.raises(AdminError, match="cursor"):
        await lists.sessions(lambda *_: None, SearchAt(sort="dropped", cursor=cursor))


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
