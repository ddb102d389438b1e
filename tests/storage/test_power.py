"""With ``power``: what a process that died left unsynced is worth nothing until it is synced."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import TypeVar

import pytest
from tests.storage.crash_engines import NEVER
from tests.storage.crash_world import CrashWorld
from tests.storage.simfs import SimFiles

from starlingmq.cli.command_errors import USER_ERROR, explain
from starlingmq.config.settings import load_config
from starlingmq.core.broker import BrokerState
from starlingmq.core.delivery.forward_batch import ForwardReader, encode_forward
from starlingmq.core.messages.message import Message
from starlingmq.storage import file_calls
from starlingmq.storage.directory_store import make_safe
from starlingmq.storage.durable_store import DurableStore
from starlingmq.storage.opening import open_store
from starlingmq.storage.records import OPERATIONS
from starlingmq.storage.segment.segment_journal import SegmentJournal
from starlingmq.storage.store import Store
from starlingmq.wire.mqtt import Ack, Connect, Disconnect, Publish, Suback, Subscribe, SubscribeRequest, encode
from starlingmq.wire.packets import PUBACK
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL

MARK = 7  # number of the frame
HOUR = {SESSION_EXPIRY_INTERVAL: 3600}
T = TypeVar("T")


class Worst(Random):
    """The storage thread does nothing until one waits for it, and a power failure takes all that it can."""

    def random(self) -> float:
        return 0.99

    def choice(self, seq: Sequence[T]) -> T:  # type: ignore[override]
        return seq[0]


class Fate(Random):
    power = False

    def random(self) -> float:
        return 0.0 if self.power else 1.0


class Link:
    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data


def from_another_node(world: CrashWorld) -> Link:
    """Node 2 is connected and sends one message, always the same; where it is told that it was taken."""
    acks = Link()
    world.state.peers.join(1, 1)
    peer = world.state.peers.add(2, Link(), acks)
    world.settle()
    message = Message(b"t/x", b"once", 1, False, b"", 0.0, "", world.now)
    message.sequence = 1
    assert world.state.peers.receive(
        peer, ForwardReader(encode_forward(message, b"", True, world.now), 2, world.now), MARK
    )
    world.open()  # a turn
    return acks


def test_messages_of_a_dead_process_are_not_acknowledged_to_other_nodes_before_a_sync() -> None:
    fate = Fate()
    world = CrashWorld(Worst(), fate=fate, power=True, span=0, piece=1)
    sub = world.open(5, "sub")
    sub.send_all([Connect(5, "sub", True, properties=dict(HOUR)), Subscribe(1, [SubscribeRequest(b"t/#", 1)])])
    world.settle()
    sub.drop()
    world.settle()
    assert from_another_node(world).written == b"", "it is not synced"
    world.crash(NEVER)
    assert from_another_node(world).written == MARK.to_bytes(8, "big"), "it is known from the life before"
    fate.power = True
    world.crash(NEVER)
    sub = world.open(5, "sub")
    sub.send(Connect(5, "sub", False, properties=dict(HOUR)))
    world.settle()
    assert [packet.payload for packet in sub.receive() if isinstance(packet, Publish)] == [b"once"]


def test_a_start_on_a_disk_that_does_not_sync_is_refused_in_one_line() -> None:
    disk = SimFiles()
    SegmentJournal("journal", disk).append([b"record"])
    disk.process_death()
    disk.fail("sync")
    journal = SegmentJournal("journal", disk)
    with pytest.raises(OSError) as refused:
        make_safe(journal, Path("journal"))
    assert explain(refused.value) == (
        "journal: fsync fails, but storage.durability: power needs it: Input/output error; "
        "use another disk or another durability",
        USER_ERROR,
    )
    make_safe(journal, Path("journal"))
    disk.power_failure(Random(0))
    assert SegmentJournal("journal", disk).next == 1


def test_a_power_failure_does_not_bring_back_the_want_of_what_was_given_back() -> None:
    """Whenever while a checkpoint is written the receiver acknowledges it: the storage thread is slow to sync that."""
    for moment in range(40):
        fate = Fate()
        world = CrashWorld(Worst(), fate=fate, power=True, span=1, piece=1, checkpoint_bytes=0)
        sub = world.open(5, "sub")
        sub.send_all([Connect(5, "sub", True, properties=dict(HOUR)), Subscribe(1, [SubscribeRequest(b"t/#", 1)])])
        world.settle()
        world.open().send_all([Connect(5, "pub", True), Publish(b"t/x", b"message", 1, packet_id=1)])
        world.settle()
        for _ in range(moment):
            world.work()
        sub.send(Ack(PUBACK, 1))
        world.work()  # the storage thread's results are reported; the acknowledgement is not synced
        for _ in range(10):
            world.open()  # a turn, and a piece of the checkpoint
        fate.power = True
        world.crash(NEVER)
        sub = world.open(5, "sub")
        sub.send(Connect(5, "sub", False, properties=dict(HOUR)))
        world.settle()
        assert "lost_in_storage" not in world.all_dropped(), f"acknowledged after {moment} moments"


@pytest.mark.parametrize("durability", ["process", "power"])
def test_a_broker_asks_for_that_with_power_only(
    durability: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def opened(durability: str) -> Store:
        config = load_config(None, [f"node.data_dir={tmp_path}", f"storage.durability={durability}"])
        state = BrokerState(config.mqtt, config.limits, 0.0, b"s" * 32, "test")
        return open_store(config, state, lambda: 0.0)

    async def life(durability: str, *records: bytes) -> None:
        store = opened(durability)
        assert isinstance(store, DurableStore)
        store.journal.append(records)
        await store.close()

    monkeypatch.setattr(file_calls, "SYNC", broken)
    asyncio.run(life("process", bytes([OPERATIONS])))
    if durability == "process":
        asyncio.run(life("process"))
    else:
        with pytest.raises(OSError, match="fsync fails"):
            opened("power")
        monkeypatch.undo()
        asyncio.run(life("power"))


def test_records_that_are_lost_by_then_do_not_keep_a_broker_from_starting() -> None:
    """The disk failed to write them and told the process that died: they were acknowledged to no client."""
    disk = SimFiles()
    disk.forgets = True
    journal = SegmentJournal("journal", disk)
    journal.append([b"safe"])
    journal.sync()
    journal.append([b"lost"])
    disk.fail("sync")
    with pytest.raises(OSError):
        journal.sync()
    disk.process_death()
    journal = SegmentJournal("journal", disk)
    make_safe(journal, Path("journal"))
    assert journal.read(0, 10, 1000) == [(0, b"safe")]
    assert journal.synced == journal.next


def test_the_turn_after_a_refused_one_is_refused_with_it() -> None:
    """A SUBACK waits for other nodes while the sync of what it stands for is under way. Its own turn stores nothing."""
    world = CrashWorld(Worst(), fate=Fate(), power=True, span=0, piece=1)
    sub, pub = world.open(5, "sub"), world.open(5, "pub")
    sub.send_all([Connect(5, "sub", True, properties=dict(HOUR)), Subscribe(1, [SubscribeRequest(b"t/#", 1)])])
    pub.send(Connect(5, "pub"))
    world.settle()
    sub.receive()
    pub.send(Publish(b"t/x", b"", 1, packet_id=1))  # is to be stored for the subscriber
    world.state.ctx.send_stored(sub.client, encode(Suback(9, [1]), 5))
    world.open()  # a turn
    world.machine.sick = ("sync",)
    world.settle()
    assert [packet for packet in sub.receive() if not isinstance(packet, Publish)] == [Disconnect(0x97)]
