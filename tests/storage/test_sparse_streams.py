"""A stream whose old messages are removed one by one, as those of a key-value bucket, gives their room back."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.bulk.test_reader import ALL, rows

from starlingmq.bulk.reader import StreamReader
from starlingmq.config.settings import LimitsConfig, MqttConfig
from starlingmq.core.context.context import Context
from starlingmq.core.context.ready import FACT_DELETE, FACT_PUT, Deliveries
from starlingmq.core.messages.message import Message
from starlingmq.core.streams.policies import StreamPolicy
from starlingmq.core.streams.source_settings import SourceSettings
from starlingmq.storage.records import encode_message
from starlingmq.storage.segment.segment_journal import SegmentJournal
from starlingmq.storage.streams.sequence_logs import read_all, sequenced
from starlingmq.storage.streams.stream_definition import Definition
from starlingmq.storage.streams.stream_files import StreamDirectory
from starlingmq.storage.streams.stream_logs import SPARSE_SECONDS
from starlingmq.wire.nats_headers import properties_of

NOW = 1_700_000_000.0
VALUE = bytes(100)
SEGMENT = 1 << 17


class Bucket:
    """One message for each key. ``facts``: what the store has."""

    def __init__(self, path: Path) -> None:
        self.path = path / "streams" / "KV"
        self.directory = StreamDirectory(path / "streams", SEGMENT)
        self.definition = Definition(name="KV", number=7, topics=("kv/#",), jetstream="{}")
        self.directory.write(self.definition)
        self.facts: dict[bytes, bytes] = {}
        self.now = NOW
        self._open()

    def _open(self) -> None:
        self.ctx = Context(MqttConfig(), LimitsConfig(), NOW)
        self.ctx.record(True)
        self.log = self.directory.open(self.definition)
        self.stream = sequenced(self.log, self.ctx)
        read_all(self.log, self.stream)
        facts = dict(self.facts)
        self.stream.restored(facts)
        assert facts == {}
        self.stream.apply(self.policy(), b"{}")
        self.log.show(self.log.stream.next)

    def policy(self) -> StreamPolicy:
        policy = StreamPolicy()
        policy.max_per_subject = 1
        return policy

    def restart(self) -> None:
        self.log.close()
        self._open()

    def turn(self) -> None:
        self.stream.flush()
        for write in self.ctx.ready.writes:
            if write.kind == FACT_PUT:
                self.facts[write.topic] = write.value
            elif write.kind == FACT_DELETE:
                del self.facts[write.topic]
            else:
                assert isinstance(write, Deliveries)
                for outgoing in write.outgoings:
                    self.log.stream.pending.append(encode_message(outgoing.message))
                    self.log.stream.next += 1
        self.ctx.ready.renew()
        self.log.append()
        self.log.show(self.log.stream.next)

    def put(self, key: str, times: int = 1) -> None:
        for number in range(times):
            self.stream.take(self.ctx, Message(f"kv/{key}".encode(), VALUE, 1, False, b"", 0.0, "c", NOW))
            if number % 64 == 63:
                self.turn()
        self.turn()

    def tidy(self) -> None:
        self.log.journal.sync()
        self.now += SPARSE_SECONDS
        work = self.log.tidy(self.now)
        if work is not None:
            work()

    def content(self) -> dict[int, bytes]:
        """By sequence, as consumers see it."""
        found = {}
        seq = self.stream.index.next(1)
        while seq:
            message = self.stream.message(seq)
            assert message is not None
            found[seq] = message.topic
            seq = self.stream.index.next(seq + 1)
        return found


def test_the_room_of_a_bucket_follows_its_keys_and_not_their_history(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path)
    bucket.put("cold")
    sizes, facts = [], []
    for number in range(12):
        bucket.put("hot", 2000)
        bucket.put(f"warm-{number}")
        bucket.tidy()
        sizes.append(bucket.log.journal.size)
        facts.append(len(bucket.facts))
    written = bucket.stream.index.last * len(VALUE)
    assert written > 15 * SEGMENT
    assert max(sizes[4:]) < 6 * SEGMENT and sizes[-1] < written / 4
    bucket.tidy()
    wanted = bucket.content()
    assert len(wanted) == 14 and wanted[1] == b"kv/cold"
    for _ in range(2):
        bucket.restart()
        assert bucket.content() == wanted
        assert isinstance(bucket.log.journal, SegmentJournal) and not bucket.log.journal.damage
        bucket.tidy()
    bucket.put("hot")
    assert bucket.content() == {
        **{seq: topic for seq, topic in wanted.items() if topic != b"kv/hot"},
        bucket.stream.index.last: b"kv/hot",
    }


def test_what_the_store_knows_of_removed_messages_goes_with_their_files(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path)
    bucket.put("cold")
    most = 0
    for _ in range(10):
        bucket.put("hot", 4000)
        most = max(most, len(bucket.facts))
        bucket.tidy()  # files without messages go
        bucket.tidy()  # and what is known of them
        bucket.turn()
    assert len(bucket.facts) <= 6 and most <= 12  # 40 blocks of sequences
    assert bucket.stream.index.last > 40 * 1000
    bucket.restart()
    assert sorted(bucket.content().values()) == [b"kv/cold", b"kv/hot"]


def test_a_reader_in_bulk_passes_over_removed_messages_and_misses_none(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path)
    bucket.put("cold")
    bucket.put("hot", 3000)
    reader = StreamReader(bucket.path)
    before = list(reader.read(0, 1 << 40, ALL))
    assert sum(columns.count for columns in before) == 3001
    bucket.put("hot", 2500)
    for _ in range(2):
        bucket.tidy()
    read = list(reader.read(0, 1 << 40, ALL))
    assert sum(columns.lost for columns in read) == 0
    assert read[-1].next == bucket.stream.index.last
    found = [row for columns in read for row in rows(columns)]
    assert found[0][:2] == (0, b"kv/cold") and found[-1][0] == bucket.stream.index.last - 1
    assert len(found) < 2500


def test_a_file_that_loses_its_first_messages_is_not_written_again(tmp_path: Path) -> None:
    """It goes as a whole soon: that of a stream with a limit of age, or of size."""
    bucket = Bucket(tmp_path)
    for number in range(3000):
        bucket.put(f"{number}")
    first = bucket.log.journal.segments()[0]
    for seq in range(1, first.next - 10):
        bucket.stream.remove(seq)
    bucket.turn()
    bucket.tidy()
    assert bucket.log.journal.segments()[0] == first
    for seq in range(first.next - 10, first.next + 1):
        bucket.stream.remove(seq)
    bucket.turn()
    bucket.tidy()
    assert bucket.log.journal.segments()[0].first == first.next


def test_a_file_whose_records_are_empty_already_is_not_written_again(tmp_path: Path) -> None:
    """Those of a mirror have been so from their beginning."""
    journal = SegmentJournal(str(tmp_path))
    journal.append([b"", b"", b"there"])
    journal.roll()
    journal.append([b"next"])
    journal.sync()
    (path, _) = sorted(tmp_path.glob("*.log"))
    file = path.stat().st_ino
    assert journal.thin(0, lambda offset: offset == 2) and path.stat().st_ino == file
    assert journal.thin(0, lambda offset: False) and path.stat().st_ino != file
    assert journal.read_at([0, 1, 2, 3]) == [b"", b"", b"", b"next"]
    journal.close()


class SourcedBucket(Bucket):
    """It copies A, and keeps ten messages."""

    def policy(self) -> StreamPolicy:
        policy = StreamPolicy()
        policy.sources = [SourceSettings("A", b"A > >", False)]
        policy.max_messages = 10
        return policy

    def copy(self, seq: int) -> None:
        properties = properties_of(b"NATS/1.0\r\nNats-Stream-Source: A %d > > a 0a\r\n\r\n" % seq, b"")
        assert self.stream.take_sourced(Message(b"a", VALUE, 0, False, properties, 0.0, "", NOW))
        self.turn()


@pytest.mark.parametrize("crash", [False, True])
def test_the_place_in_a_source_outlives_the_file_that_has_it(crash: bool, tmp_path: Path) -> None:
    """Also if a crash comes before the store has the place. Looks for sparse files are rare."""
    bucket = SourcedBucket(tmp_path)
    bucket.tidy()
    for seq in (1, 2):
        bucket.copy(seq)
        bucket.put("own", 3000)
        first = bucket.log.journal.first
        for _ in range(1 if crash else 2):
            work = bucket.log.tidy(bucket.now)
            if work is not None:
                work()
            if not crash:
                bucket.turn()
        assert crash or bucket.log.journal.first > first
        bucket.restart()
        assert bucket.stream.places[b"A > >"][1] == b"%d 0a" % seq
        bucket.tidy()
