"""A broker with streams is killed (kill -9) between requests: what it has acknowledged is there afterwards."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from nats.js.api import ConsumerConfig, RetentionPolicy
from nats.js.client import JetStreamContext
from nats.js.errors import NotFoundError
from tests.cli.test_storage_commands import Serving

import nats

PATIENCE = 20.0


class Lives:
    """A broker on one data directory, and a client of it."""

    def __init__(self, data: Path, *settings: str) -> None:
        self.data = data
        self.settings = settings
        self.broker = self._start()

    def _start(self) -> Serving:
        return Serving(self.data, *self.settings, listen="nats://127.0.0.1:0")

    def next(self) -> None:
        self.broker.kill()
        self.broker = self._start()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[JetStreamContext]:
        client = await nats.connect(self.broker.url, allow_reconnect=False)
        try:
            yield client.jetstream(timeout=PATIENCE)
        finally:
            await client.close()


@asynccontextmanager
async def lives(data: Path, *settings: str) -> AsyncIterator[Lives]:
    found = Lives(data, *settings)
    try:
        yield found
    finally:
        found.broker.stop()


async def content(js: JetStreamContext, stream: str) -> dict[int, bytes]:
    info = await js.stream_info(stream)
    found = {}
    for seq in range(max(info.state.first_seq, 1), info.state.last_seq + 1):
        try:
            found[seq] = (await js.get_msg(stream, seq)).data or b""
        except NotFoundError:
            continue
    return found


@pytest.mark.parametrize("durability", ["process", "power"])
async def test_what_was_acknowledged_is_there_in_each_life(tmp_path: Path, durability: str) -> None:
    rng = random.Random(1)
    there: dict[int, bytes] = {}
    last = 0
    async with lives(tmp_path / "data", "--set", f"storage.durability={durability}") as broker:
        async with broker.client() as js:
            await js.add_stream(name="S", subjects=["s.>"], max_msgs=40, max_msgs_per_subject=8)
        for life in range(4):
            async with broker.client() as js:
                assert await content(js, "S") == there
                for number in range(30):
                    last += 1
                    data = b"%d-%d" % (life, number)
                    ack = await js.publish(f"s.{rng.randrange(5)}", data, headers={"Nats-Msg-Id": f"{last}"})
                    assert ack.seq == last, "each sequence is given once"
                    there[last] = data
                doubled = await js.publish("s.0", b"again", headers={"Nats-Msg-Id": f"{last}"})
                assert (doubled.seq, doubled.duplicate) == (last, True)
                assert await js.delete_msg("S", last)
                there = await content(js, "S")
                assert last not in there and 0 < len(there) <= 40
            broker.next()
            async with broker.client() as js:
                doubled = await js.publish("s.0", b"again", headers={"Nats-Msg-Id": f"{last}"})
                assert (doubled.seq, doubled.duplicate) == (last, True), "the ids are known over a restart"


async def test_consumers_go_on_where_their_acknowledgements_were_answered(tmp_path: Path) -> None:
    async with lives(tmp_path / "data") as broker:
        async with broker.client() as js:
            await js.add_stream(name="S", subjects=["s"])
            for number in range(20):
                await js.publish("s", b"%d" % number)
            await js.add_consumer("S", ConsumerConfig(durable_name="c", ack_wait=1.0))
        done: list[bytes] = []
        for _ in range(4):
            async with broker.client() as js:
                pull = await js.pull_subscribe_bind("c", "S")
                for message in await pull.fetch(5, timeout=PATIENCE):
                    await message.ack_sync(timeout=PATIENCE)
                    done.append(message.data)
            broker.next()
        assert done == [b"%d" % number for number in range(20)]
        async with broker.client() as js:
            info = await js.consumer_info("S", "c")
            assert (info.num_pending, info.num_ack_pending, info.ack_floor) == (0, 0, sequences(info, 20, 20))


def sequences(info: Any, consumer: int, stream: int) -> Any:
    found = info.ack_floor
    assert (found.consumer_seq, found.stream_seq) == (consumer, stream)
    return found


async def test_a_message_of_a_work_queue_that_was_done_does_not_come_back(tmp_path: Path) -> None:
    async with lives(tmp_path / "data") as broker:
        async with broker.client() as js:
            await js.add_stream(name="W", subjects=["w"], retention=RetentionPolicy.WORK_QUEUE)
            await js.add_consumer("W", ConsumerConfig(durable_name="c", ack_wait=1.0))
            for number in range(10):
                await js.publish("w", b"%d" % number)
            pull = await js.pull_subscribe_bind("c", "W")
            for message in await pull.fetch(10, timeout=PATIENCE):
                if int(message.data) % 2 == 0:
                    await message.ack_sync(timeout=PATIENCE)
        broker.next()
        async with broker.client() as js:
            assert sorted((await content(js, "W")).values()) == [b"1", b"3", b"5", b"7", b"9"]
            pull = await js.pull_subscribe_bind("c", "W")
            again = await pull.fetch(5, timeout=PATIENCE)
            assert sorted(message.data for message in again) == [b"1", b"3", b"5", b"7", b"9"]


async def test_a_deleted_stream_stays_deleted_and_its_name_is_free_at_once(tmp_path: Path) -> None:
    async with lives(tmp_path / "data") as broker:
        async with broker.client() as js:
            for number in range(3):
                await js.add_stream(name="S", subjects=["s"])
                ack = await js.publish("s", b"%d" % number)
                assert ack.seq == 1
                await js.delete_stream("S")
            await js.add_stream(name="T", subjects=["t"])
        broker.next()
        async with broker.client() as js:
            assert [each.config.name for each in await js.streams_info()] == ["T"]


async def test_a_purge_beyond_the_end_skips_sequences_that_stay_skipped(tmp_path: Path) -> None:
    async with lives(tmp_path / "data") as broker:
        async with broker.client() as js:
            await js.add_stream(name="S", subjects=["s"])
            await js.publish("s", b"gone")
            await js.purge_stream("S", seq=10**12)
            assert (await js.publish("s", b"stays")).seq == 10**12
        for seq in (10**12 + 1, 10**12 + 2):
            broker.next()
            async with broker.client() as js:
                state = (await js.stream_info("S")).state
                assert (state.first_seq, state.last_seq) == (10**12, seq - 1)
                assert (await js.get_msg("S", 10**12)).data == b"stays"
                assert (await js.publish("s", b"next")).seq == seq


async def test_a_key_value_bucket_survives(tmp_path: Path) -> None:
    async with lives(tmp_path / "data") as broker:
        async with broker.client() as js:
            bucket = await js.create_key_value(bucket="B", history=2)
            for number in range(5):
                await bucket.put("a", b"%d" % number)
            revision = await bucket.put("b", b"once")
            await bucket.delete("a")
        broker.next()
        async with broker.client() as js:
            bucket = await js.key_value("B")
            assert [each.value for each in await bucket.history("a")] == [b"4", b""]
            assert (await bucket.get("b")).revision == revision
            await bucket.update("b", b"twice", last=revision)
            assert (await bucket.get("b")).value == b"twice"
