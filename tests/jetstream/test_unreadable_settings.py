"""A stream whose stored settings this version cannot read, as those of a later one, does not stop the start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from nats.js.client import JetStreamContext
from nats.js.errors import Error as JetStreamError
from tests.cli.test_storage_commands import Serving
from tests.jetstream.test_kills import content

import nats


async def publish(js: JetStreamContext, *subjects: str) -> None:
    for subject in subjects:
        await js.publish(subject, subject.encode())


def edit(data: Path, name: str, **more: int) -> tuple[Path, bytes]:
    """Returns the file, and what it was before."""
    for path in sorted((data / "streams").glob("*/STREAM")):
        definition = json.loads(before := path.read_bytes())
        if definition["name"] == name:
            settings = json.loads(definition["jetstream"]) | more
            path.write_text(json.dumps(definition | {"jetstream": json.dumps(settings)}) + "\n")
            return path, before
    raise AssertionError(f"there is no stream {name}")


async def test_a_stream_whose_settings_cannot_be_read_is_left_aside_and_keeps_its_messages(tmp_path: Path) -> None:
    broker = Serving(tmp_path, listen="nats://127.0.0.1:0")
    try:
        client = await nats.connect(broker.url, allow_reconnect=False)
        js = client.jetstream()
        for name in ("LATER", "OTHER"):
            await js.add_stream(name=name, subjects=[f"{name}.*"])
            await publish(js, f"{name}.1", f"{name}.2")
        await client.close()
    finally:
        broker.stop()
    file, before = edit(tmp_path, "LATER", made_by_a_later_version=1)
    broker = Serving(tmp_path, listen="nats://127.0.0.1:0")
    try:
        client = await nats.connect(broker.url, allow_reconnect=False)
        js = client.jetstream(timeout=2.0)
        await publish(js, "OTHER.3")
        assert await content(js, "OTHER") == {n: b"OTHER.%d" % n for n in (1, 2, 3)}
        with pytest.raises((JetStreamError, nats.errors.Error)):
            await publish(js, "LATER.lost")
        await client.close()
    finally:
        broker.process.terminate()
        _, errors = broker.process.communicate(timeout=20)
    assert "stream LATER takes no messages: its settings cannot be read" in errors
    (file,) = [
        each for each in (tmp_path / "streams").glob("*/STREAM") if b"made_by_a_later_version" in each.read_bytes()
    ]
    file.write_bytes(before)
    broker = Serving(tmp_path, listen="nats://127.0.0.1:0")
    try:
        client = await nats.connect(broker.url, allow_reconnect=False)
        js = client.jetstream()
        await publish(js, "LATER.3")
        assert await content(js, "LATER") == {n: b"LATER.%d" % n for n in (1, 2, 3)}
        await client.close()
    finally:
        broker.stop()
