"""Bridges over compressed connections: to a StarlingMQ, over a line that breaks, and to a broker without zstd."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from tests.bridges.real import FROM_BRIDGE, HAS_MOSQUITTO, TO_BRIDGE, Line, Serve, bridge, mosquitto, reading

from starlingmq.bridges.bridge import MqttBridge
from starlingmq.client import Client
from starlingmq.client.compression import Compression

MAGIC = b"\x28\xb5\x2f\xfd"
PAYLOAD = b"a text that zstd does not leave as it is, is it? " * 20
OUT = {"filter": "out/#"}
IN = {"filter": "in/#", "direction": "in"}


@pytest.fixture(autouse=True)
def compressed(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = MqttBridge.__init__

    def begin_compressed(self: MqttBridge, *args: Any) -> None:
        begin(self, *args)
        self.compression = Compression()

    monkeypatch.setattr(MqttBridge, "__init__", begin_compressed)


async def test_both_directions_are_compressed_again_after_a_cut(serve: Serve) -> None:
    seen = {FROM_BRIDGE: b"", TO_BRIDGE: b""}

    def watch(direction: str, data: bytes) -> bool:
        seen[direction] += data
        return True

    far = await serve(node={"name": "far"})
    async with Line(far.url, watch) as line:
        near = await serve(bridge(line.url, OUT, IN), node={"name": "near"})
        await near.connected()
        for _ in range(2):
            async with reading(far.url, "out/#") as out, reading(near.url, "in/#") as back:
                async with Client(near.url) as client:
                    await client.publish("out/a", PAYLOAD, qos=2)
                assert await out.one() == ("out/a", PAYLOAD)
                async with Client(far.url) as client:
                    await client.publish("in/b", PAYLOAD, qos=2)
                assert await back.one() == ("in/b", PAYLOAD)
            for data in seen.values():
                assert data.startswith(MAGIC) and PAYLOAD[:60] not in data
            seen.update({FROM_BRIDGE: b"", TO_BRIDGE: b""})
            line.cut()
            await near.until(lambda view: view.state != "connected")
            await near.connected()
            assert all(data.startswith(MAGIC) for data in seen.values())


@HAS_MOSQUITTO
async def test_a_broker_without_zstd_gets_plain_bytes(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "starlingmq")
    async with mosquitto(tmp_path) as far, Line(far.url) as line:
        near = await serve(bridge(line.url, OUT), node={"name": "near"})
        for _ in range(2):
            await near.connected()
            async with reading(far.url, "out/#") as out, Client(near.url) as client:
                await client.publish("out/a", PAYLOAD, qos=2)
                assert await out.one() == ("out/a", PAYLOAD)
            line.cut()
            await near.until(lambda view: view.state != "connected")
        assert sum("does not take zstd" in each.getMessage() for each in caplog.records) == 1
