"""Readiness as a load balancer sees it: of a node that waits for its cluster, and of a real process until it ends."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import httpx

from starlingmq import Broker
from starlingmq.config.settings import from_tree
from tests.cli.commands import run, start
from tests.patience import within

from .conftest import TOKEN

PATIENCE = 30.0


def taken_port() -> socket.socket:
    """A port where no process answers."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    return sock


def without_etcd(place: Path, taken: socket.socket, **api: str) -> Broker:
    """A node of a cluster whose etcd does not answer."""
    tree = {
        "listeners": ["mqtt://127.0.0.1:0", "http://127.0.0.1:0"],
        "node": {"data_dir": str(place / "data"), "shutdown_timeout": 0.1, "name": "one"},
        "cluster": {
            "enabled": True,
            "listen": "127.0.0.1:0",
            "etcd": {"endpoints": [f"127.0.0.1:{taken.getsockname()[1]}"]},
        },
        "auth": {"api": api},
    }
    return Broker(from_tree(tree))


async def test_a_node_that_waits_for_its_cluster_lives_and_is_not_ready(tmp_path: Path, token_file: str) -> None:
    """It does not know yet whether operators made users, so it serves those who have a login by its settings."""
    login = {"authorization": f"Bearer {TOKEN}"}
    with taken_port() as sock:
        broker = without_etcd(tmp_path, sock, token_file=token_file)
        starting = asyncio.ensure_future(broker.start())
        try:
            async with within(PATIENCE):
                while not any(address.startswith("http") for address in broker.addresses):
                    await asyncio.sleep(0)
            async with httpx.AsyncClient(base_url=broker.address("http"), trust_env=False) as client:
                assert (await client.get("/health/live")).status_code == 200
                ready = await client.get("/health/ready")
                assert (ready.status_code, ready.json()["cluster"]) == (503, "joining")
                assert (await client.get("/metrics")).status_code == 401
                assert (await client.get("/metrics", headers=login)).status_code == 200
                answer = await client.post("/api/v1/drain", headers=login)
                assert answer.status_code == 409 and "redirected" in answer.json()["error"]
        finally:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            await broker.stop()


async def test_a_start_is_cancelled_in_the_turn_in_which_something_changes(tmp_path: Path) -> None:
    with taken_port() as sock:
        broker = without_etcd(tmp_path, sock)
        starting = asyncio.ensure_future(broker.start())
        try:
            async with within(PATIENCE):
                while broker._cluster is None or broker._cluster.client is None:
                    await asyncio.sleep(0)
                await settle()
                broker._cluster._changed.set()
                await asyncio.sleep(0)
                starting.cancel()
                await asyncio.wait([starting])
            assert starting.cancelled()
        finally:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            await broker.stop()


async def settle() -> None:
    """Several turns of the event loop, so that every task waits for something from outside."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_real_process_is_asked_with_its_token_and_tells_no_secret(token_file: str) -> None:
    command = start(
        "serve",
        *("--listen", "mqtt://127.0.0.1:0", "--listen", "http://127.0.0.1:0"),
        *("--set", f"auth.api.token_file={token_file}"),
    )
    try:
        assert command.process.stdout is not None
        ready = (await asyncio.to_thread(command.process.stdout.readline)).decode().split()
        url = next(word for word in ready if word.startswith("http://"))
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=PATIENCE) as client:
            assert (await client.get("/health/ready")).json()["status"] == "ok"
            assert (await client.get("/api/v1/clients")).status_code == 401
            client.headers["authorization"] = f"Bearer {TOKEN}"
            assert (await client.get("/api/v1/clients")).json()["clients"] == []
            assert (await client.post("/api/v1/publish", json={"topic": "a"})).json()["receivers"] == 0
    finally:
        command.process.terminate()
        code, _, errors = await asyncio.to_thread(command.finish)
    assert code == 0
    assert TOKEN not in errors


def test_a_listener_that_is_open_to_a_network_is_one_line() -> None:
    code, _, errors = run("serve", "--listen", "http://0.0.0.0:0", "--set", "auth.allow_anonymous=true")
    assert code == 2
    assert errors.count("\n") == 1 and "administer this broker" in errors
