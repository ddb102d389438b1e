"""Secrets stay secret: a node with every kind of secret, and all of its processes, show none of them."""

from __future__ import annotations

import asyncio
import base64
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml

from starlingmq.auth.password_file import PasswordFile
from starlingmq.cli.local_cluster import free_ports
from starlingmq.wire.mqtt import Connack, Connect
from tests.cli.commands import start
from tests.peer import Peer

from .conftest import TOKEN

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed")]

PATIENCE = 30.0
PASSWORD = "the-password-of-ann-4711"
WRONG = "a-wrong-password-0815"
SECRETS = {
    "cluster": "the-secret-of-the-cluster-0123456789",
    "streams": "the-token-of-the-streams-0123456789",
    "service": "the-key-of-the-service-0123456789",
    "collector": "the-key-of-the-collector-0123456789",
}


def settings(directory: Path) -> dict[str, Any]:
    users = PasswordFile()
    users.set("ann", PASSWORD)
    users.write(directory / "passwords")
    (directory / "tokens").write_text(f"{TOKEN}\n")
    (directory / "headers").write_text(f"x-key: {SECRETS['collector']}\n")
    client_port, peer_port, nobody = free_ports(3)
    return {
        "node": {"name": "n1", "data_dir": str(directory / "data")},
        "listeners": ["mqtt://127.0.0.1:0", "http://127.0.0.1:0"],
        "auth": {
            "password": {"file": str(directory / "passwords")},
            "api": {"token_file": str(directory / "tokens"), "users": ["ann"]},
            "http": {
                "url": f"http://user:{SECRETS['service']}@127.0.0.1:9/?key={SECRETS['service']}",
                "headers": [f"x-key: {SECRETS['service']}"],
            },
            "failures": {"delay": 0},
        },
        "cluster": {
            "enabled": True,
            "listen": "127.0.0.1:0",
            "secret": SECRETS["cluster"],
            "etcd": {"client_port": client_port, "peer_port": peer_port},
        },
        "streams": {"listen": "127.0.0.1:0", "token": SECRETS["streams"]},
        "tracing": {
            "endpoint": f"http://127.0.0.1:{nobody}/?key={SECRETS['collector']}",
            "ratio": 1.0,
            "headers_file": str(directory / "headers"),
        },
        "log": {"level": "debug"},
    }


def family(pid: int) -> str:
    """The part of these processes that every user of the machine may read."""
    told = []
    process = psutil.Process(pid)
    for one in [process, *process.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            told.append(" ".join([one.name(), *one.cmdline()]))
    return "\n".join(told)


async def log_in(address: str, password: str, name: str = "ann") -> int:
    peer = await Peer.open(address)
    peer.send(Connect(5, "c", True, username=name, password=password.encode()))
    reason = (await peer.expect(Connack)).reason
    if reason == 0:
        await peer.publish("t")
    await peer.close()
    return reason


async def test_no_secret_is_in_the_log_the_api_or_the_list_of_processes(tmp_path: Path) -> None:
    path = tmp_path / "starlingmq.yaml"
    path.write_text(yaml.safe_dump(settings(tmp_path)))
    command = start("serve", "-c", str(path))
    answers = []
    try:
        assert command.process.stdout is not None
        ready = (await asyncio.to_thread(command.process.stdout.readline)).decode().split()
        mqtt, url = (next(word for word in ready if word.startswith(scheme)) for scheme in ("mqtt://", "http://"))
        assert await log_in(mqtt, PASSWORD) == 0
        await asyncio.to_thread(command.wait_for, b"does not accept spans")  # of its events: no collector listens
        assert await log_in(mqtt, WRONG) >= 0x80
        assert await log_in(mqtt, WRONG, "nobody") >= 0x80  # the service is asked, and is not there
        basic = base64.b64encode(f"ann:{PASSWORD}".encode()).decode()
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=PATIENCE) as client:
            wrong = await client.get("/api/v1/clients", headers={"authorization": f"Bearer {WRONG}"})
            assert wrong.status_code == 401
            client.headers["authorization"] = f"Basic {basic}"
            document = (await client.get("/api/v1/openapi.json")).json()
            for where in [path for path, operations in document["paths"].items() if "get" in operations]:
                answers.append((await client.get(where)).text)
        answers.append(wrong.text)
        processes = family(command.process.pid)
        assert "etcd" in processes and "starlingmq.auth.hashing" in processes
    finally:
        command.process.terminate()
        _, output, errors = await asyncio.to_thread(command.finish)
    assert "a client is refused" in errors
    secrets = [*SECRETS.values(), TOKEN, PASSWORD, WRONG, basic, "$argon2"]
    for secret in secrets:
        assert secret not in processes
        assert secret not in errors and secret not in output.decode()
        assert not [answer for answer in answers if secret in answer]
    assert any("***" in answer for answer in answers), "settings are shown, without them"
