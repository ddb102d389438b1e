"""The log of a broker as programs read it, and that nothing clients say can break out of a line."""

from __future__ import annotations

import json
import signal
from datetime import datetime
from pathlib import Path

import pytest

from starlingmq import __version__
from starlingmq.wire import properties as prop
from starlingmq.wire.mqtt import Ack, Connack, Connect, Disconnect, Publish
from tests.cli.commands import start
from tests.peer import Peer

EVIL = 'x\n{"level": "error", "message": "forged"}\r\x1b[2J\u2028"'


@pytest.mark.slow
async def test_lines_are_json_where_nobody_watches(tmp_path: Path) -> None:
    settings = tmp_path / "broker.yaml"
    settings.write_text("node: {name: n1}\nlisteners: [mqtt://127.0.0.1:0]\nlimits: {topic_levels: 2, log_rate: 2}\n")
    command = start("serve", "-c", str(settings))
    assert command.process.stdout is not None
    url = command.process.stdout.readline().split()[1].decode()
    for number in range(5):
        peer = await Peer.open(url, 4)
        peer.send(Connect(4, f"{number}{EVIL}", True))
        assert (await peer.expect(Connack)).reason == 0
        peer.send(Publish(b"a/b/c/d", b"", 1, packet_id=1))
        assert await peer.ended()
        await peer.close()
    settings.write_text("mqtt: [\n")
    command.process.send_signal(signal.SIGHUP)
    command.wait_for(b"the settings were not changed")
    command.process.terminate()
    code, _, errors = command.finish()
    assert code == 0
    assert "the settings were not changed" in errors
    lines = [json.loads(line) for line in errors.splitlines()]
    assert all({"time", "level", "node", "logger", "message"} <= set(line) and line["node"] == "n1" for line in lines)
    assert all(datetime.fromisoformat(line["time"]).tzinfo is not None for line in lines)
    assert all(value.isprintable() for line in lines for value in line.values()), "a terminal obeys none of it"
    closed = [line for line in lines if "client_id" in line]
    assert closed and closed[0]["client_id"].startswith("0x\\n") and closed[0]["peer"].startswith("127.0.0.1:")
    assert {line["reason"] for line in closed} == {"topic_name_invalid"}
    counted = [line for line in lines if "count" in line and line.get("reason") == "topic_name_invalid"]
    assert len(closed) + sum(int(line["count"]) for line in counted) == 5
    assert not any(line["message"] == "forged" for line in lines)


@pytest.mark.slow
async def test_a_broker_logs_its_settings_its_listeners_and_its_work(tmp_path: Path) -> None:
    settings = tmp_path / "broker.yaml"
    settings.write_text(
        f"node: {{name: n1, data_dir: {tmp_path / 'data'}}}\n"
        "listeners: [mqtt://127.0.0.1:0]\nstorage: {durability: power}\n"
    )
    command = start("serve", "-c", str(settings))
    assert command.process.stdout is not None
    url = command.process.stdout.readline().split()[1].decode()
    for number in range(3):
        peer = await Peer.connect(
            url, f"c{number}", properties={prop.SESSION_EXPIRY_INTERVAL: 60 if number == 0 else 0}
        )
        peer.send(Publish(b"a", b"", 1, packet_id=1))
        await peer.expect(Ack)
        peer.send(Disconnect(0))
        assert await peer.ended()
        await peer.close()
    command.process.terminate()
    code, _, errors = command.finish()
    assert code == 0
    said = [str(json.loads(line)["message"]) for line in errors.splitlines()]
    assert said[0] == (
        f"StarlingMQ {__version__} starts: node n1, settings file {settings}, "
        f"data directory {tmp_path / 'data'}, durability power"
    )
    assert f"serving {url}" in said and "stopping" in said
    assert said[-1].startswith("stopped after ")
    assert said[-1].endswith(": 3 connections accepted, 3 messages received, 0 sent, 1 sessions kept on disk")
    assert not any("connected" in line for line in said), "connections are logged only if asked for"


@pytest.mark.slow
async def test_connections_are_logged_if_that_is_set_and_counted_beyond_the_rate(tmp_path: Path) -> None:
    settings = tmp_path / "broker.yaml"
    settings.write_text("listeners: [mqtt://127.0.0.1:0]\n")
    command = start("serve", "-c", str(settings), "--set", "log.format=json")
    assert command.process.stdout is not None
    url = command.process.stdout.readline().split()[1].decode()
    settings.write_text("listeners: [mqtt://127.0.0.1:0]\nlog: {connections: true}\nlimits: {log_rate: 2}\n")
    command.process.send_signal(signal.SIGHUP)
    command.wait_for(b"settings reloaded")
    for number in range(9):
        peer = await Peer.connect(url, f"c{number}", 4)
        await peer.close()
    command.process.terminate()
    code, _, errors = command.finish()
    assert code == 0
    lines = [json.loads(line) for line in errors.splitlines() if '"reason": "connected"' in line]
    assert lines[0]["client_id"] == "c0" and lines[0]["level"] == "info"
    assert str(lines[0]["message"]).startswith("client 'c0' connected from 127.0.0.1:")
    assert sum(int(line.get("count", 1)) for line in lines) == 9
    assert "client 'c0' disconnected: connection lost" in errors


@pytest.mark.slow
async def test_lines_are_text_where_that_is_set(tmp_path: Path) -> None:
    command = start(
        "serve", "--listen", "mqtt://127.0.0.1:0", "--set", "log.format=text", "--set", "limits.topic_levels=2"
    )
    assert command.process.stdout is not None
    url = command.process.stdout.readline().split()[1].decode()
    peer = await Peer.connect(url, EVIL, 4)
    peer.send(Publish(b"a/b/c/d", b"", 1, packet_id=1))
    assert await peer.ended()
    await peer.close()
    command.process.terminate()
    code, _, errors = command.finish()
    assert code == 0
    (line,) = [line for line in errors.splitlines() if "topic_name_invalid" in line]
    assert line.isprintable() and " INFO " in line and "forged" in line
    assert not any(line.startswith("{") for line in errors.splitlines())
