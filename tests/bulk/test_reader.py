"""Reading a stream's files beside the one that writes them, against a list of what was written."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from threading import Event, Thread

import pytest

from starlingmq.bulk import reader
from starlingmq.bulk.columns import Columns, Texts, TopicFilter
from starlingmq.bulk.reader import StreamMissing, StreamReader, Trimmed
from starlingmq.core.messages.message import Message
from starlingmq.core.topics.topics import matches
from starlingmq.storage.records import encode_message
from starlingmq.storage.streams.stream_definition import Definition
from starlingmq.storage.streams.stream_files import StreamDirectory
from starlingmq.storage.streams.stream_logs import StreamLog
from starlingmq.wire.properties import CONTENT_TYPE, CORRELATION_DATA, USER_PROPERTY, encode_property_bytes

ALL = TopicFilter([])


def texts(column: Texts) -> list[bytes]:
    ends, data = array("i", column.ends.getvalue()), column.data.getvalue()
    return [data[begin:end] for begin, end in pairwise(ends)]


def rows(columns: Columns) -> list[tuple[int, bytes, bytes]]:
    offsets = array("q", columns.offsets.getvalue())
    return list(zip(offsets, texts(columns.topics), texts(columns.payloads), strict=True))


class Written:
    """A stream that is written to as a broker does, and what is in it."""

    def __init__(self, path: Path, segment_bytes: int = 1 << 20) -> None:
        self.directory = StreamDirectory(path / "streams", segment_bytes)
        self.definition = Definition(name="s", number=1, topics=("#",))
        self.directory.write(self.definition)
        self.log: StreamLog = self.directory.open(self.definition)
        self.path = path / "streams" / "s"
        self.twin: list[tuple[int, bytes, bytes]] = []

    def write(self, *messages: Message) -> None:
        for message in messages:
            self.twin.append((self.log.stream.next, message.topic, message.payload))
            self.log.stream.pending.append(encode_message(message))
            self.log.stream.next += 1
        self.log.append()
        self.log.show(self.log.stream.next)


def test_a_file_that_is_opened_while_another_thread_lists_them(tmp_path: Path) -> None:
    written = Written(tmp_path, 500)
    for _ in range(20):
        written.write(message(b"a", bytes(200)))
    found = StreamReader(written.path)
    firsts = found._list()
    for first in firsts[:3]:
        found._view(first)
    opened = Event()

    def open_another() -> None:
        found._view(firsts[-1])
        opened.set()

    other = Thread(target=open_another)

    class Views(dict[int, reader.View]):
        def __iter__(self) -> Iterator[int]:
            """Interrupt each iteration after the first item, as another thread's turn would."""
            for place, first in enumerate(super().__iter__()):
                if place == 1:
                    other.start()
                    opened.wait(0.2)  # or it waits for us, which is right too
                yield first

    found._views = Views(found._views)
    found._firsts = []  # files have come or gone
    assert found._list() == firsts
    other.join(10)
    assert set(firsts[:3]) | {firsts[-1]} == set(found._views.keys())


def message(topic: bytes, payload: bytes, properties: bytes = b"", at: float = 1000.0) -> Message:
    return Message(topic, payload, 1, False, properties, 0.0, "author", at)


@pytest.mark.parametrize("seed", range(25))
def test_like_a_list(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(seed)
    monkeypatch.setattr(reader, "CHUNK_BYTES", random.choice([64, 1000, 1 << 20]))
    monkeypatch.setattr(reader, "BATCH_ROWS", random.choice([1, 7, 65536]))
    written = Written(tmp_path, random.choice([500, 3000, 1 << 20]))
    written.log.show(0)
    found = StreamReader(written.path)
    for _ in range(random.randint(1, 20)):
        batch = [
            message(random.choice([b"a", b"a/b", b"c"]), random.randbytes(random.choice([0, 5, 300])))
            for _ in range(random.randint(1, 9))
        ]
        written.write(*batch)
        if random.random() < 0.3:
            written.log.journal.sync()
        start = random.randint(0, len(written.twin))
        end = random.randint(start, len(written.twin) + 3)
        filters = random.choice([[], [b"a/#"], [b"c", b"+/b"]])
        got = [row for columns in found.read(start, end, TopicFilter(filters)) for row in rows(columns)]
        wanted = [row for row in written.twin[start:end] if not filters or any(matches(f, row[1]) for f in filters)]
        assert got == wanted
    assert (found.first, found.next) == (0, len(written.twin))


def test_records_beyond_the_shown_position_are_not_read(tmp_path: Path) -> None:
    written = Written(tmp_path)
    written.write(message(b"a", b"1"))
    written.log.journal.append([encode_message(message(b"a", b"2"))])
    found = StreamReader(written.path)
    assert [row for columns in found.read(0, 10, ALL) for row in rows(columns)] == written.twin


def test_trimmed_offsets_are_reported(tmp_path: Path) -> None:
    written = Written(tmp_path, 300)
    for number in range(20):
        written.write(message(b"a", b"%d" % number * 20))
    found = StreamReader(written.path)
    assert len(list(found.read(0, 20, ALL))) > 1
    written.log.give_up(15)
    assert 0 < found.first <= 15
    with pytest.raises(Trimmed) as told:
        list(found.read(0, 20, ALL))
    assert told.value.first == found.first
    assert [row[0] for columns in found.read(found.first, 20, ALL) for row in rows(columns)][-1] == 19


def test_damaged_records_are_passed_over_and_counted(tmp_path: Path) -> None:
    written = Written(tmp_path)
    for number in range(20):
        written.write(message(b"a", b"payload %d" % number))
    (file,) = (written.path / "log").glob("*.log")
    data = bytearray(file.read_bytes())
    at = data.index(b"payload 7")
    data[at] ^= 1
    with open(file, "r+b") as raw:
        os.pwrite(raw.fileno(), data, 0)
    batches = list(StreamReader(written.path).read(0, 20, ALL))
    assert [row[0] for columns in batches for row in rows(columns)] == [n for n in range(20) if n != 7]
    assert sum(columns.lost for columns in batches) == 1


def test_times_and_sizes_lead_to_offsets(tmp_path: Path) -> None:
    written = Written(tmp_path, 2000)
    for number in range(100):
        written.write(message(b"a", bytes(50), at=1000.0 + number))
    found = StreamReader(written.path)
    assert [found.offset_at(when) for when in (0.0, 1000.0, 1050.5, 1099.0, 2000.0)] == [0, 0, 51, 99, 100]
    assert found.limit(10, 1) == 11
    assert 10 < found.limit(10, 3000) < 100
    assert found.limit(0, 1 << 30) == found.limit(100, 5) == 100
    position = 0
    while position < 100:
        position = found.limit(position, 500)


def test_properties_are_told_by_name(tmp_path: Path) -> None:
    written = Written(tmp_path)
    properties = encode_property_bytes(
        {CONTENT_TYPE: "text/plain", CORRELATION_DATA: b"\x01\xff", USER_PROPERTY: [("a", "1"), ("a", "2")]}
    )
    written.write(message(b"a", b""), message(b"a", b"", properties), message(b"a", b""))
    (columns,) = StreamReader(written.path).read(0, 3, ALL)
    assert list(array("i", columns.property_ends.getvalue())) == [0, 0, 4, 4]
    pairs = list(zip(texts(columns.names), texts(columns.values), strict=True))
    assert sorted(pairs) == [
        (b"a", b"1"),
        (b"a", b"2"),
        (b"mqtt.content_type", b"text/plain"),
        (b"mqtt.correlation_data", b"01ff"),
    ]


def test_a_stream_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StreamMissing, match="no stream s"):
        StreamReader(tmp_path / "s")


def test_a_reader_knows_that_its_stream_is_gone(tmp_path: Path) -> None:
    written = Written(tmp_path)
    found = StreamReader(written.path)
    assert found.current()
    written.log.close()
    written.directory.delete("s", written.log.stream.next)
    assert not found.current()
