"""Rows of a rule in a table of PostgreSQL: each once with a key, over kills of the database and of the broker."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from starlingmq.client import Client
from tests.bridges.real import Running, starlingmq
from tests.patience import within

if TYPE_CHECKING:
    from tests.lake.services import Postgresql

SECONDS: Final = 60.0
EACH: Final = 40
TABLE: Final = """
    CREATE TABLE readings (n int PRIMARY KEY, v float8 CHECK (v < 1000), topic text, tags text[], place jsonb,
    at timestamptz)
"""
SQL: Final = (
    "select n, v, topic, tags, struct(n as row, 'A' as hall) as place, timestamp_millis(n) as at from rows "
    "where n is not null"
)


async def publish(near: Running, bodies: list[dict[str, Any]]) -> None:
    async with Client(near.url, client_id="writer") as client:
        await asyncio.gather(*[client.publish_soon("in/a", json.dumps(body), qos=1) for body in bodies])


async def until(postgresql: Postgresql, sql: str, wanted: list[str]) -> None:
    async with within(SECONDS):
        while (found := await asyncio.to_thread(postgresql.ask, sql)) != wanted:  # noqa: F841
            await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_each_row_is_in_the_table_once_over_kills_of_both(tmp_path: Path, postgresql: Postgresql) -> None:
    postgresql.ask("DROP TABLE IF EXISTS readings")
    directory = tmp_path / "n1"
    directory.mkdir()
    sink = {
        "format": "postgresql",
        "url": f"postgresql://127.0.0.1:{postgresql.port}/postgres",
        "user": "postgres",
        "table": "public.readings",
        "key": ["n"],
    }
    rule = {
        "name": "r",
        "source": {"topics": ["in/#"]},
        "decode": {"format": "json", "schema": "n int, v double, tags array<string>"},
        "steps": [{"sql": SQL}],
        "sink": sink,
        "dead_letter": {"topic": "dead"},
    }
    async with starlingmq(directory, {"rules": [rule]}) as near, Client(near.url, client_id="reader") as reader:
        await reader.subscribe("dead", qos=1)
        async with within(SECONDS):
            while "readings" not in near.log.read_text():  # it says that the table is missing
                await asyncio.sleep(0.02)
        postgresql.ask(TABLE)
        strange: list[dict[str, Any]] = [{"n": 1000, "v": 5000.0}, {"n": None}]
        await publish(near, [*strange, {"n": 1001, "v": 1, "tags": ["a", None]}])
        await until(
            postgresql,
            "SELECT n, v, tags, place, at FROM readings WHERE n >= 1000",
            ['1001|1|{a,NULL}|{"row": 1001, "hall": "A"}|1970-01-01 00:00:01.001+00'],
        )
        async with within(SECONDS):
            letter = await anext(reader.messages())
        assert json.loads(letter.payload)["n"] == 1000
        for number in range(4):
            bodies = [{"n": n, "v": n / 2, "tags": []} for n in range(number * EACH, (number + 1) * EACH)]
            writing = asyncio.ensure_future(publish(near, bodies))
            if number % 2:
                postgresql.kill()
                await writing
                await asyncio.to_thread(postgresql.start)
            else:
                await writing
                await near.kill()
                await near.start()
            await until(
                postgresql,
                "SELECT count(*), count(distinct n) FROM readings WHERE n < 1000",
                [f"{(number + 1) * EACH}|{(number + 1) * EACH}"],
            )
    postgresql.ask("DROP TABLE readings")
