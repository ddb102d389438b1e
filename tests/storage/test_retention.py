"""Messages for absent clients can be bounded by time and size: the oldest go first, in whole files, and are counted."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.storage.memory_engine import MemoryKv
from tests.storage.world import StoredWorld

from starlingmq.config.settings import ConfigError, load_config
from starlingmq.storage.maintenance.storage_check import check
from starlingmq.storage.segment.retention import Retention
from starlingmq.storage.segment.segment_journal import SegmentInfo, SegmentJournal
from starlingmq.wire.mqtt import Publish, Subscribe, SubscribeRequest
from starlingmq.wire.properties import RECEIVE_MAXIMUM, SESSION_EXPIRY_INTERVAL

HOUR = {SESSION_EXPIRY_INTERVAL: 3600, RECEIVE_MAXIMUM: 65_535}
NOW = 1_000_000.0


def file(first: int, size: int, last_written: float, grows: bool = False) -> SegmentInfo:
    return SegmentInfo(first, first + 10, size, last_written - 1, last_written, grows)


FILES = [file(0, 100, NOW - 30), file(10, 100, NOW - 20), file(30, 100, NOW - 10), file(40, 50, NOW, True)]


@pytest.mark.parametrize(
    ("seconds", "size", "cutoff"),
    [
        (0.0, 0, 0),
        (100.0, 0, 0),
        (25.0, 0, 10),
        (15.0, 0, 20),
        (0.0, 350, 0),
        (0.0, 349, 10),
        (0.0, 150, 20),
        (0.0, 149, 40),
        (0.0, 1, 40),  # not what is appended to
        (25.0, 160, 20),
        (5.0, 340, 40),
    ],
)
def test_the_oldest_files_are_given_up_first(seconds: float, size: int, cutoff: int) -> None:
    assert Retention(seconds, size).cutoff(FILES, NOW) == cutoff


def test_even_what_is_appended_to_is_given_up_when_all_of_it_is_old() -> None:
    assert Retention(5.0, 0).cutoff(FILES, NOW + 100) == 50


def stored_world(directory: Path, retention: Retention) -> StoredWorld:
    """Its clock begins at the present: files know when they were written."""
    journal = SegmentJournal(str(directory), segment_bytes=4096)
    world = StoredWorld(MemoryKv(), journal, max_mqueue_len=0, start=time.time())
    world.store.sweep.retention = retention
    return world


def fill(world: StoredWorld, count: int) -> None:
    sub = world.connect("sub", 5, True, properties=dict(HOUR))
    sub.send(Subscribe(1, [SubscribeRequest(b"t", 1)]))
    sub.receive()
    sub.drop()
    pub = world.connect("pub", 5)
    for number in range(count):
        pub.send(Publish(b"t", b"%05d" % number + b"x" * 95, 1, packet_id=1))
    pub.receive()


def payloads(world: StoredWorld) -> list[int]:
    client = world.connect("sub", 5, False, properties=dict(HOUR))
    assert client.connack.session_present
    return [int(packet.payload[:5]) for packet in client.receive() if isinstance(packet, Publish)]


def test_excess_messages_are_dropped_oldest_first_and_their_files_deleted(tmp_path: Path) -> None:
    world = stored_world(tmp_path, Retention(0.0, 20_000))
    fill(world, 500)
    before = world.journal.size
    world.checkpoint()
    world.run()
    world.store.commit([])
    world.checkpoint()
    dropped = world.state.ctx.counters.dropped["retention"]
    assert before > 60_000 and world.journal.size <= 24_096
    assert not check(world.kv, world.journal, lambda what, done, total, unit: None).damage
    world.restart()
    assert payloads(world) == list(range(dropped, 500))
    assert 0 < dropped < 500


def test_old_messages_are_dropped_without_new_ones(tmp_path: Path) -> None:
    world = stored_world(tmp_path, Retention(60.0, 0))
    fill(world, 100)
    world.checkpoint()
    world.advance(59.0)
    assert world.state.ctx.counters.dropped.get("retention", 0) == 0
    last = world.journal.segments()[-1]
    assert isinstance(last, SegmentInfo)
    world.now = max(world.now, last.last_written) + 61.0
    while world.store.maintain():
        world.run()
    world.run()
    assert world.state.ctx.counters.dropped["retention"] == 100
    world.restart()
    assert payloads(world) == []


def test_without_bounds_everything_waits(tmp_path: Path) -> None:
    world = stored_world(tmp_path, Retention(0.0, 0))
    fill(world, 500)
    world.checkpoint()
    world.restart()
    assert payloads(world) == list(range(500))


def test_bounds_that_can_not_be_kept_are_refused() -> None:
    with pytest.raises(ConfigError, match="applies to segment files only"):
        load_config(None, ["storage.retention_time=1h"])
    with pytest.raises(ConfigError, match="applies to segment files only"):
        load_config(None, ["storage.retention_size=1GiB", "node.data_dir=x", "storage.journal=rocksdb"])
    with pytest.raises(ConfigError, match=r"twice storage\.segment_size"):
        load_config(None, ["storage.retention_size=64MiB", "node.data_dir=x"])
    config = load_config(None, ["storage.retention_size=1GiB", "storage.retention_time=7d", "node.data_dir=x"])
    assert (config.storage.retention_size, config.storage.retention_time) == (1 << 30, 7 * 86400.0)
