"""The clients with most dropped messages in the last hour."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from starlingmq.admin import droppers
from starlingmq.admin.droppers import KEPT_MAX, MINUTES, Droppers, DropperSearch
from starlingmq.core.observe.counters import Counters
from starlingmq.wire.reasons import Reason
from tests.cli.commands import run

from .conftest import Ask, Join, Serve

BEGAN = 1_800_000_000.0  # a whole minute


class Hour:
    """Droppers with a clock of their own."""

    def __init__(self) -> None:
        self.now = BEGAN
        self.counters = Counters()
        self.droppers = Droppers(
            self.counters, lambda: self.now, lambda client_id: {"a": "ann"}.get(client_id, ""), lambda _: ""
        )

    def drop(self, client_id: str, reason: str, count: int = 1) -> None:
        self.counters.drop_of(client_id, reason, count)

    async def list(self, q: str = "", limit: int = 20) -> dict[str, dict[str, int]]:
        found = await self.droppers.droppers(DropperSearch(q, limit))
        return {one.client_id: one.reasons for one in found}


async def test_a_client_is_listed_with_its_reasons_after_it_has_gone(
    serve: Serve, join: Join, ask: Ask, tmp_path: Path
) -> None:
    broker = await serve(mqtt={"max_mqueue_len": 2}, node={"data_dir": str(tmp_path / "data"), "name": "n1"})
    reader = await join(broker, "reader", clean_start=False, properties={17: 600})
    await reader.subscribe("a", qos=1)
    await reader.close()
    for _ in range(5):
        answer = await ask(broker, "POST", "/api/v1/publish", json={"topic": "a", "qos": 1})
        assert answer.status_code == 200
    for _ in range(2):
        (found,) = (await ask(broker, "GET", "/api/v1/droppers")).json()["droppers"]
        assert (found["client_id"], found["node"], found["reasons"]["queue_full"]) == ("reader", "n1", 3)
        await ask(broker, "DELETE", "/api/v1/session", params={"client_id": "reader"})
    assert found["messages"] == sum(found["reasons"].values()) == 5, "two waited, and went with the session"
    assert (found["user"], found["topic"], found["rule"]) == ("", "a", "")
    code, output, _ = await asyncio.to_thread(run, "ctl", "droppers", "--data-dir", str(tmp_path / "data"))
    assert code == 0 and output.split(b"\n")[1].split()[:4] == [b"reader", b"-", b"n1", b"5"], output


async def test_a_refused_publisher_is_listed_with_its_user_its_topic_and_the_rule(
    serve: Serve, join: Join, ask: Ask, tmp_path: Path
) -> None:
    rules = tmp_path / "acl.yaml"
    rules.write_text("default: allow\nrules:\n- {deny: publish, topics: [door/#]}\n")
    broker = await serve(auth={"acl": {"file": str(rules)}})
    async with AsyncExitStack() as stack:
        for name, user in (("meter", "ann"), ("nameless", None)):
            peer = await join(broker, name, username=user)
            stack.push_async_callback(peer.close)
            assert await peer.publish("door/1") == await peer.publish("door/2") == Reason.NOT_AUTHORIZED
        found = []
        for name in ("meter", "nameless"):
            broker._access._paid_until = 0.0  # a busy machine takes the time that searches of rules may take
            found += (await ask(broker, "GET", "/api/v1/droppers", params={"q": name})).json()["droppers"]
    told = f"rule 1 in {rules} decides"
    assert [(one["client_id"], one["user"], one["topic"], one["rule"]) for one in found] == [
        ("meter", "ann", "door/2", told),
        ("nameless", "", "door/2", told),
    ]


async def test_names_that_are_not_needed_any_more_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(droppers, "NAMES_MAX", 1)
    hour = Hour()
    for client_id in ("a", "b"):
        hour.counters.drop_of(client_id, "expired", 1, b"t" * 1000)
    (one, other) = await hour.droppers.droppers(DropperSearch())
    assert (one.user, one.topic, other.user, other.topic) == ("ann", "t" * 256, "", "t" * 256)
    hour.now += 3600
    hour.drop("c", "expired")
    assert await hour.list() == {"c": {"expired": 1}}
    assert hour.droppers._users == {} and hour.droppers._topics == {}


async def test_the_hour_ends_minute_by_minute() -> None:
    hour = Hour()
    hour.drop("a", "expired", 5)
    hour.droppers.take()
    hour.now += 60 * (MINUTES - 1)
    hour.drop("a", "queue_full")
    hour.drop("b", "expired", 2)
    assert await hour.list() == {"a": {"expired": 5, "queue_full": 1}, "b": {"expired": 2}}
    assert list(await hour.list(limit=1)) == ["a"] and list(await hour.list(q="b")) == ["b"]
    hour.now += 60
    assert await hour.list() == {"b": {"expired": 2}, "a": {"queue_full": 1}}
    hour.now += 3600
    assert await hour.list() == {}


async def test_a_minute_keeps_the_clients_with_most_and_counts_the_others_together() -> None:
    hour = Hour()
    for number in range(KEPT_MAX + 50):
        hour.drop(f"c{number}", "expired", 1 + (number >= 50))
    found = await hour.list(limit=1000)
    assert len(found) == KEPT_MAX + 1 and found[""] == {"expired": 50}
    assert all(f"c{number}" in found for number in range(50, KEPT_MAX + 50))


async def test_a_clock_that_is_set_back_does_not_keep_minutes_for_ever() -> None:
    hour = Hour()
    hour.drop("a", "expired")
    hour.droppers.take()
    hour.now -= 7200
    hour.drop("b", "expired")
    assert await hour.list() == {"b": {"expired": 1}}
