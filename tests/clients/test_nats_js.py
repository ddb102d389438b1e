"""nats.js in node against a broker."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import nkeys  # type: ignore[import-untyped]
import pytest
from tests.patience import within

from starlingmq import Broker
from starlingmq.client import Client
from starlingmq.config.settings import Config, from_tree
from starlingmq.core.context.ready import Event

from .conftest import ServedBroker

JS = Path(__file__).parents[1] / "js"
SCENARIO_SECONDS = 50
STEPS = ["headers and max", "large payload", "requests to a queue", "many answers", "no responders", "drain"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed"),
    pytest.mark.skipif(not (JS / "node_modules/nats").exists(), reason="nats.js is not installed: npm ci in tests/js"),
]


@pytest.mark.parametrize("scheme", ["nats", "tls"])
def test_natsjs_finds_what_it_expects(broker: ServedBroker, scheme: str) -> None:
    command = ["node", "nats.js", f"localhost:{broker.port(scheme)}"]
    if scheme == "tls":
        command.append(str(broker.ca))
    done = subprocess.run(command, cwd=JS, capture_output=True, text=True, timeout=SCENARIO_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == STEPS


async def test_natsjs_finds_its_way_where_servers_leave_and_come_back() -> None:
    """Two brokers without a cluster, of which the first tells of the second; in the end only the first is back."""
    seed = nkeys.encode_seed(b"j" * 32, nkeys.PREFIX_BYTE_USER).decode()
    key = nkeys.from_seed(bytearray(seed.encode())).public_key.decode()
    settings = {"nkeys": [key], "max_payload": 1000}
    told: list[list[Any]] = []

    async def until(*what: str) -> None:
        while not told or told[-1][0] not in what:
            assert process.stdout is not None
            line = await process.stdout.readline()
            assert line, f"it ended after {told}"
            told.append(json.loads(line))

    first, second = Broker(served(nats=settings)), Broker(served(nats=settings))
    async with second:
        await first.start()
        names = [broker.address("nats").removeprefix("nats://") for broker in (first, second)]
        arguments = ["node", "nats_trouble.js", names[0], seed]
        process = await asyncio.create_subprocess_exec(*arguments, cwd=JS, stdout=subprocess.PIPE)
        try:
            async with within(SCENARIO_SECONDS):
                await until("ready")
                first.reload(served(nats={**settings, "connect_urls": names}))
                await until("update")
                await first.stop()
                await until("message")
                async with Broker(served([f"nats://{names[0]}"], nats=settings)):
                    await second.stop()
                    await until("reconnect")
                    await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert process.returncode == 0
    assert told[:2] == [["too large", "MAX_PAYLOAD_EXCEEDED"], ["ready", names[0]]]
    assert ["error", "PERMISSIONS_VIOLATION"] in told
    assert ["update", [names[1]]] in told
    assert ["ldm", None] in told
    assert [name for what, name in told if what == "reconnect"] == [names[1], names[0]]


@pytest.mark.parametrize("why", ["slow consumer", "keep_alive_timeout"])
async def test_natsjs_comes_back_after_it_was_frozen(why: str) -> None:
    """Twice: it does not read while a lot is sent to it, or while it is asked whether it is there. A server of NATS has
    no word for the first either: who does not read would not read that."""
    seed = nkeys.encode_seed(b"f" * 32, nkeys.PREFIX_BYTE_USER).decode()
    key = nkeys.from_seed(bytearray(seed.encode())).public_key.decode()
    settings: dict[str, Any] = {"nats": {"nkeys": [key]}, "limits": {"publisher_hold": 0.0, "queue_bytes": 1_000_000}}
    if why != "slow consumer":
        settings["nats"] |= {"ping_interval": 0.5, "max_pings_out": 1}
    ended: asyncio.Queue[str] = asyncio.Queue()
    told: list[list[Any]] = []

    def note(event: Event) -> None:
        if event.kind == "disconnected":
            ended.put_nowait(event.detail)

    async def until(what: str) -> None:
        assert process.stdout is not None
        while not told or told[-1][0] != what:
            line = await process.stdout.readline()
            assert line, f"it ended after {told}"
            told.append(json.loads(line))

    listeners = ["nats://127.0.0.1:0", "mqtt://127.0.0.1:0"]
    async with Broker(served(listeners, **settings), on_event=note) as broker, Client(broker.address("mqtt")) as author:
        name = broker.address("nats").removeprefix("nats://")
        arguments = ["node", "nats_trouble.js", name, seed]
        process = await asyncio.create_subprocess_exec(*arguments, cwd=JS, stdout=subprocess.PIPE, limit=1 << 20)
        try:
            async with within(SCENARIO_SECONDS):
                await until("ready")
                for _ in range(2):
                    process.send_signal(signal.SIGSTOP)
                    while ended.empty() and why == "slow consumer":
                        await author.publish("js/trouble/much", bytes(100_000), 1)
                    assert await ended.get() == why
                    process.send_signal(signal.SIGCONT)
                    await until("reconnect")
                await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert process.returncode == 0
    errors = [data for what, data in told if what == "error"]
    assert (errors.count("NATS_PROTOCOL_ERR") != 0) == (why != "slow consumer")


def served(listeners: list[str] | None = None, **sections: Any) -> Config:
    return from_tree({"listeners": listeners or ["nats://127.0.0.1:0"], **sections})
