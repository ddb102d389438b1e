"""Checks that all stored data is whole: each record, each value, and the references between them.

The check reads as a start does: the key-value store, then the journal from the checkpoint on. All references that
remain must point to present records. Meanwhile the store may change by appends only.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from starlingmq.storage.journal import Journal
from starlingmq.storage.keys import (
    FACT,
    HOLDINGS,
    META_CHECKPOINT,
    RETAINED,
    SESSION,
    SUBSCRIPTION,
    UnknownKey,
    session_of,
)
from starlingmq.storage.kv import Kv, after
from starlingmq.storage.maintenance.damage_report import Damage
from starlingmq.storage.records import MESSAGE, OPERATIONS, RecordError, decode_message, open_message, split_receivers
from starlingmq.storage.segment.segment_journal import SegmentJournal
from starlingmq.storage.session_values import decode_holdings, decode_session, decode_subscription
from starlingmq.storage.store_image import PUBLISHED, SessionImage, StoreImage
from starlingmq.storage.turn_operations import split

BATCH: Final = 500
READ_BYTES: Final = 1 << 20
SENTENCES_MAX: Final = 1000  # a dying disk must not produce millions of sentences

Report = Callable[[str, int, int, str], None]
"""Receives the current work, how much of it is done, the total, and the unit. If it raises, the work ends. May be
called from any thread."""

_WRONG: Final = (RecordError, UnknownKey, msgspec.MsgspecError, struct.error, UnicodeDecodeError, IndexError)


class Found(msgspec.Struct):
    """The result of a check. ``damage``: one sentence each. ``notes``: oddities without consequences."""

    records: int = 0
    bytes: int = 0
    values: int = 0
    sessions: int = 0
    references: int = 0
    damage: list[str] = []
    notes: list[str] = []
    omitted: int = 0
    """The number of sentences beyond the limit."""

    def add(self, sentence: str) -> None:
        if sentence in self.damage:
            return
        if len(self.damage) < SENTENCES_MAX:
            self.damage.append(sentence)
        else:
            self.omitted += 1


class Runs:
    """The present offsets, as ranges."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []

    def add(self, offset: int) -> None:
        """Offsets must rise."""
        if self._ends and self._ends[-1] == offset:
            self._ends[-1] = offset + 1
        else:
            self._begins.append(offset)
            self._ends.append(offset + 1)

    def __contains__(self, offset: int) -> bool:
        index = bisect_right(self._begins, offset) - 1
        return index >= 0 and offset < self._ends[index]


def check(kv: Kv, journal: Journal, report: Report, streams: Sequence[Journal] = ()) -> Found:
    """Read everything; ``streams`` are the logs of streams. Blocks for a long time, so do not call it in the event
    loop. Raises what ``report`` raises."""
    return _Check(kv, journal, report, streams).run()


class _Check:
    def __init__(self, kv: Kv, journal: Journal, report: Report, streams: Sequence[Journal]) -> None:
        self.kv = kv
        self.streams = streams
        self.journal = journal
        self.report = report
        self.found = Found()
        self.image = StoreImage()
        self.there = Runs()
        self.until = journal.next  # later records are not checked

    def run(self) -> Found:
        self._told_at_opening(self.kv)
        self._told_at_opening(self.journal)
        self._values()
        if isinstance(self.journal, SegmentJournal):
            self._segments(self.journal)
        for log in self.streams:
            self._told_at_opening(log)
            if isinstance(log, SegmentJournal):
                self._segments(log)
        self._records()
        self._references()
        return self.found

    def _told_at_opening(self, engine: object) -> None:
        damage = getattr(engine, "damage", "")
        if isinstance(damage, str):
            if damage:
                self.found.add(damage)
            return
        for one in damage:
            assert isinstance(one, Damage)
            if one.lost:
                self.found.add(str(one))
            else:
                self.found.notes.append(str(one))

    # The key-value store

    def _values(self) -> None:
        start = b""
        while True:
            try:
                items = self.kv.scan(start, None, BATCH)
            except OSError as error:
                self.found.add(f"The key-value store cannot be read after key {start!r}: {error.strerror}.")
                return
            for key, value in items:
                try:
                    self._value(key, value)
                except _WRONG as error:
                    self.found.add(f"The value of key {key!r} cannot be decoded: {error}.")
            self.found.values += len(items)
            self.report("reading values", self.found.values, 0, "values")
            if not items:
                return
            start = after(items[-1][0])

    def _value(self, key: bytes, value: bytes) -> None:
        kind = key[:1]
        if kind == SESSION:
            self.image.session(session_of(key)).value = decode_session(value)
        elif kind == SUBSCRIPTION:
            session_of(key)
            decode_subscription(value)
        elif kind == HOLDINGS:
            self.image.session(session_of(key)).hold(decode_holdings(value))
        elif kind == RETAINED:
            decode_message(value)
        elif kind not in (b"m", FACT):
            raise UnknownKey("unknown kind of key")

    # The journal

    def _segments(self, journal: SegmentJournal) -> None:
        segments = journal.segments()
        total = sum(segment.bytes for segment in segments)
        done = 0
        for segment in segments:
            self.report("reading segments", done, total, "bytes")
            try:
                for damage in journal.check(segment.first):
                    self.found.add(str(damage))
            except OSError as error:
                self.found.add(f"The segment starting at record {segment.first} cannot be read: {error.strerror}.")
            done += segment.bytes
        self.report("reading segments", total, total, "bytes")

    def _records(self) -> None:
        found = self.found
        checkpoint = int.from_bytes(self.kv.get(META_CHECKPOINT) or b"\0", "big")
        total = self.until - self.journal.first
        offset = self.journal.first
        while offset < self.until:
            try:
                records = self.journal.read(offset, BATCH, READ_BYTES)
            except OSError as error:
                found.add(f"The journal cannot be read from record {offset} on: {error.strerror}.")
                return
            if not records:
                break
            for at, record in records:
                if at < self.until:
                    self._record(at, record, at >= checkpoint)
            offset = records[-1][0] + 1
            self.report("decoding records", min(total, offset - self.journal.first), total, "records")

    def _record(self, at: int, record: bytes, apply: bool) -> None:
        self.found.records += 1
        self.found.bytes += len(record)
        self.there.add(at)
        try:
            if apply:
                self.image.apply(at, record)
                self.image.kept.clear()
            else:
                _decode(record)
        except _WRONG as error:
            self.found.add(f"Journal record {at} cannot be decoded: {error}.")

    # References between journal and values

    def _references(self) -> None:
        total = len(self.image.sessions)
        for done, image in enumerate(self.image.sessions.values()):
            value = image.value
            if value is not None:
                self.found.sessions += 1
                if value.expiry != 0:  # holdings of other sessions are not stored
                    self._of_session(image, value.client_id)
            if done % BATCH == 0:
                self.report("following references", done, total, "sessions")

    def _of_session(self, image: SessionImage, client_id: str) -> None:
        offsets = image.references().offsets()
        offsets += [sent.offset for sent in image.window.values() if sent.stage == PUBLISHED]
        offsets += [entry.offset for entry in image.inbound.values() if entry.offset >= 0]
        self.found.references += len(offsets)
        missing = [offset for offset in offsets if offset not in self.there]
        if missing:
            self.found.add(
                f"Session {client_id!r} refers to {len(missing)} messages that are missing in the "
                f"journal; the first is record {min(missing)}."
            )


def _decode(record: bytes) -> None:
    kind = record[:1]
    if kind == bytes((MESSAGE,)):
        _, receivers, _ = open_message(record)
        split_receivers(receivers)
    elif kind == bytes((OPERATIONS,)):
        split(record)
    else:
        raise RecordError(f"unknown type of record {kind!r}")
