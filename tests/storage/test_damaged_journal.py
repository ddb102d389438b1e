"""The middle of a journal is damaged while a broker serves from it: what can be read arrives, and the rest is told."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.patience import slowness
from tests.storage.killing import Server

from starlingmq.client import Client

MESSAGES = 300
BODY = bytes(1000)
LOST = "$SYS/broker/publish/messages/dropped/lost_in_storage"


async def scenario(server: Server) -> None:
    url = f"mqtt://127.0.0.1:{server.port}"
    async with Client(url, client_id="away", session_expiry=3600) as away:
        await away.subscribe("t", 1)
    async with Client(url) as publisher:
        for number in range(MESSAGES):
            await publisher.publish("t", b"%d " % number + BODY, 1)
    damage(next(Path(server.directory, "journal").glob("*.log")))
    got: list[int] = []
    async with Client(url, client_id="away", session_expiry=3600, clean_start=False) as away, Client(url) as watch:
        assert away.session_present
        async for message in away.messages():
            got.append(int(message.payload.split(b" ", 1)[0]))
            if got[-1] == MESSAGES - 1:
                break
        await watch.subscribe(LOST)
        async for message in watch.messages():
            if got == sorted(got) and int(message.payload) == MESSAGES - len(got):
                break
    assert 0 < MESSAGES - len(got) < 20


def damage(file: Path) -> None:
    """Some bytes in its middle are not what was written."""
    with file.open("r+b") as log:
        log.seek(file.stat().st_size // 2)
        log.write(b"\xff" * 100)


def test_a_journal_damaged_under_a_broker(tmp_path: Path) -> None:
    server = Server(str(tmp_path / "data"), "segment", "process", ("mqtt.sys_interval=0.2",))
    try:
        asyncio.run(asyncio.wait_for(scenario(server), 30.0 * slowness()))
    finally:
        server.kill()
    logged = server.logged()
    server.log.close()
    assert "are lost, because records " in logged and "ctl storage check" in logged, logged
    assert "Traceback" not in logged, logged
