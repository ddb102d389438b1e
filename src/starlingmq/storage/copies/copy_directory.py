"""A follower's copy of another node's data directory: stores what the owner sends, and says what it has.

Methods block for as long as a write into the page cache takes; ``sync``, and ``apply`` of what ``is_slow``, may wait
for the disk and may be called from another thread. Raises OSError when the disk fails; CopyFrameError for bytes that do
not continue what is there.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from starlingmq.storage.copies.copy_facts import CopyFacts, Fenced, NotWhole, ends_after
from starlingmq.storage.copies.copy_files import CopyJournal
from starlingmq.storage.copies.copy_frames import (
    APPEND,
    BOUNDARY,
    CONSUMERS,
    DEFINE,
    KEEP,
    KV,
    KV_BEGIN,
    KV_END,
    NO_KV,
    STREAM,
    CopyPosition,
    Defined,
    Hello,
    Kept,
    appended,
    changed,
    decode,
    operations,
    streamed,
)
from starlingmq.storage.copies.copy_records import CopyFrameError
from starlingmq.storage.keys import META_AS_OF, META_COPY
from starlingmq.storage.kv import Batch, Kv
from starlingmq.storage.streams.stream_logs import StreamLog

SLOW: Final = frozenset((KEEP, KV_BEGIN, KV_END, DEFINE, BOUNDARY))


class Files(Protocol):
    """See ``CopyFiles``."""

    @property
    def facts(self) -> CopyFacts: ...
    @property
    def kv(self) -> Kv: ...
    @property
    def next_kv(self) -> Kv | None: ...
    @property
    def journal(self) -> CopyJournal: ...
    @property
    def streams(self) -> dict[int, StreamLog]: ...

    def write_facts(self, facts: CopyFacts) -> None: ...
    def begin_kv(self) -> None: ...
    def drop_kv(self) -> None: ...
    def end_kv(self) -> None: ...
    def define(self, wanted: Defined) -> None: ...
    def write_consumers(self, number: int, content: bytes) -> None: ...
    def clear(self) -> None: ...
    def close(self) -> None: ...


class CopyDirectory:
    """With ``careful`` (durability ``power``), the key-value store is never ahead of the journal after a power
    failure."""

    def __init__(self, files: Files, careful: bool = False) -> None:
        self.files = files
        self._careful = careful

    @property
    def facts(self) -> CopyFacts:
        return self.files.facts

    @property
    def position(self) -> CopyPosition:
        files = self.files
        mark = files.kv.get(META_COPY) if self.is_whole else None
        kv = msgspec.msgpack.decode(mark, type=tuple[int, int]) if mark else NO_KV
        streams = {number: log.journal.next for number, log in files.streams.items()}
        return CopyPosition(files.facts.generation, files.journal.next, kv, streams)

    @property
    def is_whole(self) -> bool:
        """Whether it can be opened with all that its owner had when it was written."""
        boundary = self.facts.boundary
        end = self.files.journal.next if boundary is None else min(boundary, self.files.journal.next)
        at_least = int.from_bytes(self.files.kv.get(META_AS_OF) or b"\0", "big")
        return self.facts.whole and end >= at_least  # the records that the checkpoint rests on are there

    def begin(self, hello: Hello) -> None:
        """A life of the owner begins to bring this copy up to date. What the owner does not have is cut off. Raises
        Fenced."""
        facts = self.facts
        if hello.generation < max(facts.fenced, facts.generation):
            raise Fenced(f"{hello.owner}: generation {hello.generation} is over")
        ends = ends_after(facts.lives, hello.lives)
        if ends is None:
            self._clear()
            facts = self.facts
        else:
            self._cut(ends.journal_end, ends.stream_ends)
        self.files.drop_kv()
        end = self.files.journal.next
        boundary = end if facts.boundary is None else min(facts.boundary, end)
        self.files.write_facts(
            msgspec.structs.replace(
                facts,
                generation=hello.generation,
                lives=hello.lives,
                whole=self.is_whole,
                boundary=boundary,
                copied=True,
            )
        )

    def excess(self, hello: Hello) -> int:
        """Number of records of the journal that ``begin`` would remove: this copy has more than that owner."""
        ends = ends_after(self.facts.lives, hello.lives)
        end = self.files.journal.next
        if self.facts.boundary is not None:
            end = min(end, self.facts.boundary)
        return max(0, end - (0 if ends is None else ends.journal_end))

    def fence(self, generation: int) -> None:
        """From now on, durably, nothing of an earlier generation is stored."""
        if generation > self.facts.fenced:
            self.files.write_facts(msgspec.structs.replace(self.facts, fenced=generation))

    def prepare(self) -> None:
        """Make it ready to be opened as a data directory, as it is after ``close``. Raises NotWhole."""
        if not self.is_whole:
            raise NotWhole(f"the copy of {self.facts.owner} is not whole")
        boundary = self.facts.boundary
        if boundary is not None:
            self._cut(boundary, {})
            self.files.write_facts(msgspec.structs.replace(self.facts, boundary=None))

    def is_slow(self, group: memoryview) -> bool:
        """Whether ``apply`` may wait for the disk."""
        return any(kind in SLOW or (self._careful and kind == KV) for kind, _ in operations(group))

    def apply(self, group: memoryview, live: bool = True) -> None:
        """Store what a group says. ``live``: it brings what has happened in one turn, and the copy is up to date
        afterwards."""
        for kind, payload in operations(group):
            if kind == APPEND:
                offset, records = appended(payload)
                self._append(offset, records, live)
            elif kind == STREAM:
                number, offset, records = streamed(payload)
                self._append_stream(number, offset, records)
            elif kind == KV:
                self._write(changed(payload))
            elif kind == KEEP:
                self._keep(decode(payload, Kept))
            elif kind == DEFINE:
                self.files.define(decode(payload, Defined))
            elif kind == CONSUMERS:
                number, content = decode(payload, tuple[int, bytes])
                self.files.write_consumers(number, content)
            elif kind == KV_BEGIN:
                self.files.begin_kv()
            elif kind == KV_END:
                self._end_kv()
            elif kind == BOUNDARY:
                self.files.write_facts(msgspec.structs.replace(self.facts, boundary=self.files.journal.next))
            else:
                raise CopyFrameError(f"operation of unknown kind {kind}")

    def caught_up(self) -> None:
        """From here on, each record comes with the whole turn that it belongs to."""
        if self.facts.boundary is not None:
            self.files.write_facts(msgspec.structs.replace(self.facts, boundary=None))

    def sync(self) -> None:
        """Make everything that was applied survive a power failure. Changes of the key-value store may be lost: the
        records that they rest on are not deleted before they are synced."""
        self.files.journal.sync()
        for log in list(self.files.streams.values()):
            log.journal.sync()

    def close(self) -> None:
        """Let go of everything; the directory may be opened as a data directory then. May be called again."""
        self.files.close()

    # Operations

    def _append(self, offset: int, records: list[bytes], live: bool) -> None:
        journal = self.files.journal
        if offset < journal.next:
            raise CopyFrameError(f"record {offset} of the journal is here already, up to {journal.next - 1}")
        if offset > journal.next:
            if live:
                raise CopyFrameError(f"records {journal.next} to {offset - 1} of the journal are missing")
            if self.facts.whole:  # the checkpoint that is here may need what the owner has given back
                self.files.write_facts(msgspec.structs.replace(self.facts, whole=False))
            journal.go_on_at(offset)
        journal.append(records)

    def _append_stream(self, number: int, offset: int, records: list[bytes]) -> None:
        log = self.files.streams.get(number)
        if log is None:
            raise CopyFrameError(f"records of a stream with number {number}, which was not defined")
        journal = log.journal
        if offset < journal.next:
            raise CopyFrameError(f"record {offset} of stream {log.stream.name} is here already")
        if offset > journal.next:
            journal.go_on_at(offset)
        journal.append(records)

    def _write(self, changes: dict[bytes, bytes | None]) -> None:
        batch = Batch()
        batch.changes.update(changes)
        if self.files.next_kv is not None:
            self.files.next_kv.write(batch)
            return
        if self._careful:
            self.sync()
        self.files.kv.write(batch)

    def _keep(self, kept: Kept) -> None:
        """The checkpoint that allowed the owner to delete the rest is durable here before the rest is deleted."""
        self.files.kv.sync()
        journal = self.files.journal
        ranges = kept.journal
        journal.trim(ranges[0][0] if ranges else journal.next)
        for segment in journal.segments()[:-1]:
            if not any(first < segment.next and segment.first < next for first, next in ranges):
                journal.drop(segment.first)
        for number, first in kept.streams.items():
            if (log := self.files.streams.get(number)) is not None:
                log.give_up(first)

    def _end_kv(self) -> None:
        """Replace the store. It rests on the journal up to the last boundary, which is synced before."""
        if self.files.next_kv is None:
            raise CopyFrameError("the end of a key-value store that was not begun")
        self.sync()
        self.files.end_kv()
        self.files.write_facts(msgspec.structs.replace(self.facts, whole=True))

    # Cutting

    def _cut(self, journal_end: int, stream_ends: dict[int, int]) -> None:
        if self.files.journal.next > journal_end:
            self.files.journal.cut_to(journal_end)
            self.files.journal.sync()
        for number, log in self.files.streams.items():
            end = stream_ends.get(number, log.journal.next)
            if log.journal.next > end:
                log.cut_to(end)
                log.journal.sync()

    def _clear(self) -> None:
        """Begin with nothing."""
        self.files.write_facts(CopyFacts(owner=self.facts.owner, fenced=self.facts.fenced))
        self.files.clear()
