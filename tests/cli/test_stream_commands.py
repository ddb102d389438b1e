"""``ctl stream``, and streams of a broker in a process of its own: killed, backed up, checked."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from starlingmq import Broker
from starlingmq.cli.control import ask_broker
from starlingmq.cli.declare import CommandError
from starlingmq.client import Client
from starlingmq.client.options import QOS
from starlingmq.config.settings import load_config
from starlingmq.storage.records import decode_message
from starlingmq.storage.segment.segment_journal import SegmentJournal
from tests.cli.test_storage_commands import Serving, serving

from .commands import run


def ask(data: Path, action: str, **arguments: str) -> dict[str, Any]:
    """The request of the command to the broker, without a process for it."""
    return ask_broker(data, f"stream.{action}", arguments, lambda *report: None)


async def publish(url: str, *messages: tuple[str, bytes]) -> None:
    async with Client(url) as client:
        for topic, payload in messages:
            await client.publish(topic, payload, qos=1)


def ends(data: Path) -> dict[str, tuple[int, int]]:
    return {one["name"]: (one["first"], one["next"]) for one in ask(data, "list")["streams"]}


def payloads(data: Path, name: str) -> list[bytes]:
    """The payloads in a stream's log; no broker may serve the directory."""
    journal = SegmentJournal(str(data / "streams" / name / "log"))
    found = [decode_message(record).payload for _, record in journal.read(0, 1_000_000, 1 << 30)]
    journal.close()
    return found


@pytest.mark.slow
def test_a_stream_from_its_making_to_its_end(tmp_path: Path) -> None:
    data, target, restored = tmp_path / "data", tmp_path / "backup", tmp_path / "restored"
    here = ("--data-dir", str(data))
    with serving(data, streams={"define": [{"name": "all", "topics": ["#"], "retention_size": "1MiB"}]}) as url:
        code, output, _ = run("ctl", "stream", "create", "some", "-t", "a/#", "--retention-time", "1h", *here, "--json")
        assert code == 0 and json.loads(output)["retention_time"] == 3600
        asyncio.run(publish(url, *(("a/b" if number % 2 else "c", b"%d" % number) for number in range(20))))
        assert ends(data) == {"all": (0, 20), "some": (0, 10)}
        assert run("backup", str(target), *here)[0] == 0
        assert ask(data, "trim", name="all", before="20")["first"] == 20
        assert ask(data, "commit", name="some", consumer="me", next="4")["lag"] == 6
        code, output, _ = run("ctl", "stream", "show", "some", *here)
        assert code == 0 and b"10 messages, offsets 0 to 10" in output and b"me: at 4, 6 behind" in output
        code, output, _ = run("ctl", "storage", "stats", *here)
        assert code == 0 and b"stream         some: 10 messages" in output
        ask(data, "delete", name="some")
        assert not (data / "streams" / "some").exists()
        asyncio.run(publish(url, ("a/b", b"later")))
        assert ends(data) == {"all": (20, 21)}
    assert run("ctl", "storage", "check", *here)[0] == 0
    assert run("restore", str(target), "--data-dir", str(restored))[0] == 0
    with serving(restored):
        assert ends(restored) == {"all": (0, 20), "some": (0, 10)}
    assert payloads(restored, "some") == [b"%d" % number for number in range(1, 20, 2)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "all", "topics": "a"}, "exists already"),
        ({"name": "other", "topics": "a/#/b"}, "not a topic filter"),
        ({"name": "a/b", "topics": "a"}, "not a valid name"),
        ({"name": "other", "topics": ""}, "topics"),
        ({"name": "other", "topics": "a", "retention_size": "much"}, "a size such as"),
        ({"name": "other", "topics": "a", "when_full": "wait"}, "not one of drop_oldest, refuse"),
    ],
)
async def test_invalid_streams_are_refused(arguments: dict[str, str], words: str, tmp_path: Path) -> None:
    config = load_config(None, [f"node.data_dir={tmp_path}", "streams.define=[{name: all, topics: ['#']}]"])
    async with Broker(config, listeners=["mqtt://127.0.0.1:0"]):
        with pytest.raises(CommandError, match=words):
            await asyncio.to_thread(ask, tmp_path, "create", **arguments)
        with pytest.raises(CommandError, match="existing: all"):
            await asyncio.to_thread(ask, tmp_path, "show", name="none")


async def test_acknowledged_messages_survive_a_kill(tmp_path: Path) -> None:
    broker = Serving(tmp_path, "--set", "streams.define=[{name: all, topics: ['#']}]")
    async with Client(broker.url, clean_start=True) as client:
        for number in range(50):
            await client.publish("a", b"%d" % number, qos=QOS[1 + number % 2])
        broker.kill()
    with serving(tmp_path):
        assert ends(tmp_path) == {"all": (0, 50)}, "a stream stays though the settings do not name it any more"
    assert payloads(tmp_path, "all") == [b"%d" % number for number in range(50)]
