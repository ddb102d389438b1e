"""``starlingmq top`` looks at a broker that runs; what it shows, from answers as a broker gives them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from starlingmq.cli.top_data import TopData
from starlingmq.client import Client
from tests.cli.test_storage_commands import serving

from .commands import run


@pytest.mark.slow
async def test_who_publishes_most_is_first(tmp_path: Path) -> None:
    data = tmp_path / "data"
    here = ("--data-dir", str(data), "--once", "--json")
    with serving(data) as broker:
        async with Client(broker.url, client_id="busy") as busy, Client(broker.url, client_id="idle"):
            publishing = asyncio.create_task(_publish(busy))
            try:
                for view in ("clients", "nodes", "topics"):
                    code, output, errors = await asyncio.to_thread(run, "top", "--view", view, *here)
                    assert code == 0, errors
                    found = json.loads(output)
                    assert found["missing"] == [] and found["rows"], output
                    first = found["rows"][0]
                    if view == "clients":
                        assert first["client_id"] == "busy" and first["messages_in"] > 0 and len(found["rows"]) == 2
                    elif view == "nodes":
                        assert first["messages_in"] > 0 and first["clients"] == 2 and first["ready"] == "ok"
                    else:
                        assert first["topic"] == "a/b" and first["share"] == 1.0
            finally:
                publishing.cancel()
                await asyncio.wait([publishing])
        code, _, errors = await asyncio.to_thread(run, "top", "--sort", "nothing", *here)
        assert code == 2 and "--sort: of clients one of" in errors


async def _publish(client: Client) -> None:
    while True:
        await client.publish("a/b", b"x", qos=1)
        await asyncio.sleep(0.005)


def overview(now: float, received: int, name: str = "n1") -> dict[str, Any]:
    names = ("messages_received", "messages_sent", "bytes_received", "bytes_sent", "forwards_sent", "dropped")
    return {
        "node": name,
        "now": now,
        "ready": {"status": "ok"},
        "totals": dict.fromkeys(names, received),
        "holds": {"clients": 1, "sessions": 2, "queued": 0},
        "latency": {"turn": {"p99_ms": 0.1}},
    }


def test_rates_are_of_what_came_between_two_looks_and_a_new_life_has_none() -> None:
    answers = [(0.0, 100), (2.0, 500), (4.0, 10)]

    def ask(action: str, **arguments: str) -> dict[str, Any]:
        now, received = answers.pop(0)
        return {"nodes": [overview(now, received), overview(now, 2 * received, "n2")], "missing": []}

    data = TopData(ask, "")
    looks = [data.look("nodes", "messages_in")["rows"] for _ in range(3)]
    assert [sorted((row["node"], row["messages_in"]) for row in rows) for rows in looks] == [
        [("n1", 0.0), ("n2", 0.0)],
        [("n1", 200.0), ("n2", 400.0)],
        [("n1", 0.0), ("n2", 0.0)],
    ]
    assert [row["node"] for row in looks[1]] == ["n2", "n1"]
