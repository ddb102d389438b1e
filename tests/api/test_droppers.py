"""The clients with most dropped messages in the last hour."""

from __future__ import annotations

import asyncio
from pathlib import Path

from starlingmq.admin.droppers import KEPT_MAX, MINUTES, Droppers, DropperSearch, DroppersReply
from starlingmq.admin.node_rpc import nothing_to_report
from starlingmq.core.observe.counters import Counters
from tests.cli.commands import run

from .conftest import Ask, Join, Serve

BEGAN = 1_800_000_000.0  # a whole minute


class Hour:
    """Droppers with a clock of their own."""

    def __init__(self) -> None:
        self.now = BEGAN
        self.counters = Counters()
        self.droppers = Droppers(self.counters, lambda: self.now)

    def drop(self, client_id: str, reason: str, count: int = 1) -> None:
        self.counters.drop_of(client_id, reason, count)

    async def list(self, q: str = "", limit: int = 20) -> dict[str, dict[str, int]]:
        found: DroppersReply = await self.droppers.droppers(nothing_to_report, DropperSearch(q, limit))
        return {one.client_id: one.reasons for one in found.droppers}


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
    code, output, _ = await asyncio.to_thread(run, "ctl", "droppers", "--data-dir", str(tmp_path / "data"))
    assert code == 0 and output.split(b"\n")[1].split()[:3] == [b"reader", b"n1", b"5"], output


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
