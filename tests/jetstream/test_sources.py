"""Mirrors and sources at a real broker that is killed (kill -9): each message is copied once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from nats.js.api import StreamConfig, StreamSource, SubjectTransform
from nats.js.client import JetStreamContext
from tests.jetstream.test_kills import content, lives
from tests.patience import within

from starlingmq.bulk.arrow import batch_of
from starlingmq.bulk.columns import TopicFilter
from starlingmq.bulk.reader import StreamReader
from starlingmq.core.streams.sequenced_stream import GAP_MAX

pytestmark = pytest.mark.slow

SECONDS = 30.0
EACH = 40  # messages between two kills


async def caught_up(js: JetStreamContext, name: str, messages: int) -> None:
    async with within(SECONDS):
        while (await js.stream_info(name)).state.messages < messages:
            await asyncio.sleep(0.02)


def rows(data: Path, stream: str) -> dict[int, bytes]:
    """The payloads that Spark and Arrow Flight read, by sequence."""
    found: dict[int, bytes] = {}
    reader = StreamReader(data / "streams" / stream)
    for columns in reader.read(reader.first, reader.next, TopicFilter([])):
        assert columns.lost == 0
        for row in batch_of(columns, "n").to_pylist():
            found[row["offset"] + 1] = row["payload"]
    return found


async def test_a_gap_of_a_mirror_is_no_file(tmp_path: Path) -> None:
    """Nor a wait: each file of those that a wide gap begins waits for the disk twice."""
    data = tmp_path / "data"
    half = {seq: b"%d" % seq for seq in range(2, 401, 2)}
    async with lives(data) as life, life.client() as js:
        await js.add_stream(StreamConfig(name="A", subjects=["a.*"]))
        for seq in range(1, 401):
            await js.publish(f"a.{seq % 2}", b"%d" % seq)
        await js.add_stream(StreamConfig(name="HALF", mirror=StreamSource(name="A", filter_subject="a.0")))
        await caught_up(js, "HALF", 200)
        assert await content(js, "HALF") == rows(data, "HALF") == half
        assert len(list((data / "streams" / "HALF" / "log").glob("*.log"))) == 1
        far = 400 + 2 * GAP_MAX
        await js.purge_stream("A", seq=far)
        await js.publish("a.0", b"far")
        await caught_up(js, "HALF", 201)
        assert (await js.get_msg("HALF", far)).data == b"far"
        assert rows(data, "HALF") == {**half, far: b"far"}
        assert len(list((data / "streams" / "HALF" / "log").glob("*.log"))) == 2


async def test_each_message_is_copied_once_over_kills(tmp_path: Path) -> None:
    total = 0
    async with lives(tmp_path) as life:
        for round in range(4):
            async with life.client() as js:
                if round == 0:
                    await js.add_stream(StreamConfig(name="A", subjects=["a.*"]))
                    await js.add_stream(StreamConfig(name="M", mirror=StreamSource(name="A")))
                    await js.add_stream(StreamConfig(name="HALF", mirror=StreamSource(name="A", filter_subject="a.1")))
                    renaming = [SubjectTransform(src="a.*", dest="s.$1")]
                    sources = [StreamSource(name="A", subject_transforms=renaming), StreamSource(name="B")]
                    await js.add_stream(StreamConfig(name="S", sources=sources))
                    await js.add_stream(StreamConfig(name="B", subjects=["b"]))
                for number in range(total, total + EACH):
                    await js.publish(f"a.{number % 2}", b"%d" % number)
                await js.publish("b", b"b")
                total += EACH
                if round % 2:  # else it is killed while it copies
                    await caught_up(js, "M", total)
            life.next()
        async with life.client() as js:
            await caught_up(js, "M", total)
            await caught_up(js, "S", total + 4)
            expected = {seq: b"%d" % (seq - 1) for seq in range(1, total + 1)}
            assert await content(js, "M") == expected
            await caught_up(js, "HALF", total // 2)
            half = {seq: data for seq, data in expected.items() if seq % 2 == 0}
            assert await content(js, "HALF") == half
            assert rows(tmp_path, "HALF") == half
            copies = list((await content(js, "S")).values())
            assert [each for each in copies if each != b"b"] == list(expected.values())
            assert copies.count(b"b") == 4
            assert (await js.get_msg("S", 1)).subject == "s.0"
            info = await js.stream_info("S")
            assert info.sources is not None and sorted((each.name, each.lag) for each in info.sources) == [
                ("A", 0),
                ("B", 0),
            ]
            mirror = (await js.stream_info("M")).mirror
            assert mirror is not None and mirror.lag == 0 and mirror.active
