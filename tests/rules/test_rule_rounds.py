"""Kill -9 of a broker while a rule works, round after round: each row of each acknowledged message comes once, in
order; a target is sent everything, over its own losses and those of the broker."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

import pytest

import nats
from starlingmq.cli.local_cluster import free_ports
from starlingmq.client import Client
from tests.bridges.real import starlingmq
from tests.bridges.test_bridge_rounds import connected
from tests.cli.commands import run
from tests.few import few
from tests.patience import within

SECONDS: Final = 40.0
EACH: Final = 40  # messages of a round
ROWS: Final = 3
LASTING: Final[dict[str, Any]] = {"session_expiry": 0xFFFFFFFF, "clean_start": False, "reconnect": True}
SQL: Final = (
    "select 'out' as topic, concat(n, '.', row) as payload, 2 as qos from rows lateral view explode(xs) t as row"
)
DECODE: Final = {"format": "json", "schema": "n int, xs array<int>"}


async def read(url: str, came: list[str], ready: asyncio.Event) -> None:
    client = Client(url, client_id="reader", **LASTING)
    await connected(client)
    await client.subscribe("out", qos=2)
    ready.set()
    async for message in client.messages():
        came.append(message.payload.decode())


async def publish(url: str, numbers: range) -> None:
    client = Client(url, client_id="writer", **LASTING)
    await connected(client)
    bodies = [json.dumps({"n": number, "xs": list(range(ROWS))}) for number in numbers]
    await asyncio.gather(*[client.publish_soon("in/a", body, qos=2) for body in bodies])
    await client.disconnect()


@pytest.mark.slow
@pytest.mark.parametrize("source", ["in/#", "$stream/s@earliest/in/#"])
@pytest.mark.parametrize("rounds", few([4, 50], 4))
async def test_each_row_comes_once_over_kills_of_the_broker(tmp_path: Path, rounds: int, source: str) -> None:
    directory = tmp_path / "n1"
    directory.mkdir()
    rule = {"name": "r", "source": {"topics": [source]}, "decode": DECODE, "steps": [{"sql": SQL}], "max_inflight": 20}
    chance = random.Random(rounds)
    came: list[str] = []
    ready = asyncio.Event()
    near = starlingmq(directory, {"rules": [rule], "mqtt": {"max_mqueue_len": 0}})
    (port,) = free_ports(1)
    settings = directory / "starlingmq.yaml"
    settings.write_text(settings.read_text().replace("listeners:\n", f"listeners:\n- nats://127.0.0.1:{port}\n"))
    async with near:
        async with await nats.connect(f"nats://127.0.0.1:{port}") as client:
            await client.jetstream().add_stream(name="s", subjects=["in.>"])
        reader = asyncio.ensure_future(read(near.url, came, ready))
        await ready.wait()
        for number in range(rounds):
            writer = asyncio.ensure_future(publish(near.url, range(number * EACH, (number + 1) * EACH)))
            before = len(came)
            wanted = chance.randrange(EACH * ROWS)
            async with within(SECONDS):
                while len(came) < before + wanted:
                    assert not reader.done()
                    await asyncio.sleep(0.001)
            await near.kill()
            await near.start()
            await writer
        async with within(SECONDS):
            while len(set(came)) < rounds * EACH * ROWS:
                assert not reader.done()
                await asyncio.sleep(0.01)
        reader.cancel()
    twice = {row: times for row, times in Counter(came).items() if times > 1}
    assert twice == {}
    assert came == sorted(came, key=lambda row: [int(each) for each in row.split(".")])


class Target:
    """A server that takes rows; ``broken`` answers 503, ``refuses`` says which are refused with 422."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.broken = Event()
        self.tokens: set[str] = set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                rows = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.tokens.add(self.headers.get("Authorization", ""))
                refused = any(row["n"] % 10 == 7 for row in rows)
                if not outer.broken.is_set() and not refused:
                    outer.rows += rows
                self.send_response(503 if outer.broken.is_set() else 422 if refused else 204)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/rows"
        self.thread = Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def target() -> Iterator[Target]:
    running = Target()
    yield running
    running.stop()


@pytest.mark.slow
async def test_a_target_gets_all_rows_over_its_own_losses_and_kills_of_the_broker(
    tmp_path: Path, target: Target
) -> None:
    directory = tmp_path / "n1"
    directory.mkdir()
    (directory / "token").write_text("secret\n")
    rule = {
        "name": "hook",
        "source": {"topics": ["in/#"]},
        "decode": {"format": "json", "schema": "n int"},
        "steps": [{"sql": "select n, topic from rows"}],
        "sink": {
            "format": "http",
            "url": f"{target.url}?key=canary",
            "batch": 8,
            "token_file": str(directory / "token"),
        },
        "dead_letter": {"topic": "out"},
    }
    letters: list[str] = []
    ready = asyncio.Event()
    async with starlingmq(directory, {"rules": [rule]}) as near:
        reader = asyncio.ensure_future(read(near.url, letters, ready))
        await ready.wait()
        for number in range(3):
            if number == 1:
                target.broken.set()
            await publish(near.url, range(number * EACH, (number + 1) * EACH))
            await near.kill()
            await near.start()
            target.broken.clear()
        wanted = {number for number in range(3 * EACH) if number % 10 != 7}
        async with within(SECONDS):
            while {row["n"] for row in target.rows} != wanted or len(set(letters)) < 3 * EACH - len(wanted):
                await asyncio.sleep(0.01)
        reader.cancel()
        address = ("--data-dir", str(directory / "data"))
        code, output, errors = await asyncio.to_thread(run, "rule", "list", *address, "--json")
        (shown,) = json.loads(output)["rules"]
        assert (code, errors, shown["name"], shown["state"]) == (0, "", "hook", "connected")
        assert "it answers 422" in shown["complaints"][0] and shown["server"].endswith("/rows?***")
        _, output, _ = await asyncio.to_thread(run, "rule", "list", *address)
        assert [line.split()[0] for line in output.decode().splitlines()] == ["NAME", "hook"]
    assert {json.loads(each)["n"] % 10 for each in letters} == {7}
    assert target.tokens == {"Bearer secret"}
    assert target.rows[0] == {"n": 0, "topic": "in/a"}
    log = near.log.read_text()
    assert "secret" not in log and "canary" not in log and "rows?***" in log
