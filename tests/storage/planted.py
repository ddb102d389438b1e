"""Mistakes made on purpose in core and storage, each a patch of what the code does: a life by seed, or a test, finds
every one of them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock, patch

import pytest
from tests.planting import Plant, PlantDoesNotApply, around, during, nothing
from tests.storage import (
    crash_world,
    seeds,
    stream_lives,
    test_failing_disk,
    test_given_back,
    test_power,
    test_producers,
    test_recovery,
    test_streams,
)

from starlingmq.core.conditions.storage_failure import ReleaseJob, StorageFailure
from starlingmq.core.connect.connecting import Connecting
from starlingmq.core.connect.ending import Ending
from starlingmq.core.connect.restoring import Restoring
from starlingmq.core.context.context import Context
from starlingmq.core.context.ready import (
    INBOUND_COMPLETED,
    INBOUND_PUT,
    PRODUCER_PUT,
    RETAINED_DELETE,
    SESSION_DELETE,
    SESSION_PUT,
    Ready,
)
from starlingmq.core.delivery.delivery import Delivery
from starlingmq.core.messages.message import Message
from starlingmq.core.publish import publish_admission
from starlingmq.core.publish.publishing import Publishing
from starlingmq.core.router.router import Router
from starlingmq.core.session.production import AHEAD, NEW, Production
from starlingmq.storage import directory_store
from starlingmq.storage.checkpointer import Checkpointer
from starlingmq.storage.journal_faults import SyncState
from starlingmq.storage.journal_gc import JournalGc
from starlingmq.storage.journal_writer import JournalWriter
from starlingmq.storage.keys import META_CHECKPOINT
from starlingmq.storage.store import NotYetStored
from starlingmq.storage.store_image import SessionImage, StoreImage
from starlingmq.storage.streams.stream_logs import StreamLogs
from starlingmq.storage.turn_operations import TurnEncoder
from starlingmq.storage.unsaved_changes import UnsavedChanges

Sound = Callable[..., Any]


class Mistake(NamedTuple):
    """``find``: what a seed tries, or a test, whatever the seed."""

    plant: Plant
    find: Callable[[int], object] = seeds.run


def unchanged(message: Message) -> Message:
    """In place of ``Message.copy``."""
    return message


def all_but(kind: int, note: Sound) -> Sound:
    """A function that takes writes, and leaves this kind out."""
    return lambda self, write: None if write.kind == kind else note(self, write)


def unwritten(kind: int) -> Plant:
    return patch.object(Context, "write", all_but(kind, Context.write))


def unnoted(kind: int) -> Plant:
    return patch.object(UnsavedChanges, "note", all_but(kind, UnsavedChanges.note))


def first_alone(done: Sound, ctx: Any, session: Any, packet_id: int) -> None:
    if session.acknowledged is None:
        done(ctx, session, packet_id)


def as_of_its_end(write: Sound, self: Any, batch: Any) -> Any:
    if META_CHECKPOINT in batch.changes:
        batch.put(META_CHECKPOINT, self.writer.next.to_bytes(8, "big"))
    return write(self, batch)


def values_alone(replayed: Sound, self: Any, changes: Any, sessions: Any) -> None:
    replayed(self, changes, sessions)
    self.changes.dirty.clear()


def with_ended_sessions(write: Sound, self: Any, unsaved: Any) -> Any:
    changes = UnsavedChanges()
    changes.values = unsaved.values
    return write(self, changes)


def as_of_nothing(hold: Sound, self: Any, value: Any) -> None:
    hold(self, value)
    self.as_of = 0


def unordered(begin: Sound, self: Any, message: Any) -> Any:
    self._ordered = False
    return begin(self, message)


def without_growth(give_back: Sound, self: Any, *arguments: Any) -> Iterator[None]:
    journal = self.journal
    self.journal = Mock(wraps=journal, next=journal.next)
    yield from give_back(self, *arguments)
    self.journal = journal


def at_the_same_oldest(keep: Sound, self: Any, offset: int) -> Any:
    oldest = self._oldest
    kept = keep(self, offset)
    self._oldest = oldest
    return kept


def careless(method: Sound, self: Any, *arguments: Any) -> Any:
    self.careful = False
    return method(self, *arguments)


def without_window(mark: Sound, self: Any, session: Any) -> Any:
    window, session.window = session.window, None
    oldest = mark(self, session)
    session.window = window
    return oldest


def will_from_now(
    away: Sound, self: Any, session: Any, connected: bool, expires_at: float, will: Any, at: float
) -> None:
    away(self, session, connected, expires_at, will, at if will is None else self.ctx.now + will.delay)


def expiry_from_now(away: Sound, self: Any, session: Any, connected: bool, expires_at: float, *will: Any) -> None:
    away(self, session, connected, expires_at and self.ctx.now + session.expiry, *will)


def whatever_expired(taken_over: Sound, self: Any, session: Any, *arguments: Any) -> Any:
    session.expires_at = 0.0
    return taken_over(self, session, *arguments)


def forgotten(write: Sound, self: Any, records: Any, to_streams: bool) -> Any:
    stuck = self.stuck
    try:
        return write(self, records, to_streams)
    except NotYetStored:
        if self.stuck and not stuck:
            self._backlog = []
            self.next -= len(records)
        raise


def taken_as_done(write: Sound, self: Any, *arguments: Any) -> Any:
    stuck = self.stuck
    try:
        return write(self, *arguments)
    except NotYetStored:
        if stuck or not self.stuck:
            raise


def with_the_running_one(begin: Sound, self: Any) -> None:
    if self._sync_state is SyncState.RUNNING:
        self._syncing_for += self._unsynced
        self._unsynced = []
    begin(self)


def the_last_alone(withdraw: Sound, self: Any, first: int, next: int) -> None:
    self._given = [0, next]


def shown_at_once(follow: Sound, self: Any) -> Any:
    followed = follow(self)
    self.streams.show(self.streams.mark())
    return followed


def at_the_next_offset(replay: Sound, self: Any, puts: Any, ends: Any) -> None:
    logs = self.by_number
    replay(self, (put._replace(offset=max(put.offset, logs[put.number].stream.next)) for put in puts), ends)


def in_a_record_of_its_own(add: Sound, self: Any, write: Any) -> None:
    add(self, write)
    if write.kind == PRODUCER_PUT:
        self._close()


def synced_or_not(make_safe: Sound, journal: Any, path: Path) -> None:
    with patch.object(journal, "sync", nothing):
        make_safe(journal, path)


def on_a_broken_disk() -> None:
    with pytest.MonkeyPatch.context() as monkeypatch, tempfile.TemporaryDirectory() as directory:
        test_power.test_a_broker_asks_for_that_with_power_only("power", monkeypatch, Path(directory))


def on_a_failing_disk() -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        test_failing_disk.test_a_message_that_may_be_on_disk_is_not_refused(monkeypatch)


def given_back() -> None:
    """A piece of ``test_given_back``, which would look for the shortest example of a mistake for seconds."""
    test: Any = test_given_back.test_exactly_the_freed_offsets_are_known_as_freed
    test.hypothesis.inner_test([(3, 1), (9, 1)])


def by(test: Callable[[], object]) -> Callable[[int], object]:
    def find(seed: int) -> None:
        if seed != 0:
            raise PlantDoesNotApply("the test that has to find it does not")
        test()

    return find


MISTAKES = {
    "an acknowledgement is not written": Mistake(around(Context, "done", first_alone)),
    "a completed handshake is not written": Mistake(unwritten(INBOUND_COMPLETED)),
    "PUBACK before it is stored": Mistake(during(Publishing, "answer_now", Context, "send_stored", Context.send)),
    "a checkpoint counts what came while it was written": Mistake(around(Checkpointer, "_write", as_of_its_end)),
    "what was replayed is not in the next checkpoint": Mistake(around(Checkpointer, "replayed", values_alone)),
    "what a checkpoint knows is replayed": Mistake(around(SessionImage, "hold", as_of_nothing)),
    "operations out of order": Mistake(around(TurnEncoder, "_begin", unordered)),
    "a segment is given back while it grows": Mistake(around(JournalGc, "give_back", without_growth)),
    "a new reference does not move the oldest one": Mistake(
        around(JournalGc, "keep", at_the_same_oldest), partial(seeds.run, span=0, checkpoint_bytes=0, piece=1)
    ),
    "a checkpoint ahead of the journal": Mistake(
        around(Checkpointer, "_write_holdings", careless), partial(seeds.run, power=True, checkpoint_bytes=0)
    ),
    "what is in a window is given back": Mistake(around(JournalGc, "_mark_session", without_window)),
    "a retained message that was taken back is in the checkpoint": Mistake(unnoted(RETAINED_DELETE)),
    "a retained message is not written again": Mistake(during(TurnEncoder, "_add", Message, "copy", unchanged)),
    "a will that was published is not written": Mistake(
        during(Ending, "publish_pending", Context, "write", all_but(SESSION_PUT, Context.write))
    ),
    "the end of a session is not written": Mistake(unwritten(SESSION_DELETE)),
    "the delay of a will begins again at each start": Mistake(around(Restoring, "away", will_from_now)),
    "the expiry of a session begins again at each start": Mistake(around(Restoring, "away", expiry_from_now)),
    "a session that expired while nobody served is present": Mistake(
        around(Connecting, "taken_over", whatever_expired)
    ),
    "an append that failed is forgotten": Mistake(
        around(JournalWriter, "write", forgotten), partial(seeds.run, frail=True)
    ),
    "an append that failed is acknowledged": Mistake(
        around(JournalWriter, "write", taken_as_done), partial(seeds.run, frail=True)
    ),
    "a refused QoS 2 message stays held": Mistake(
        patch.object(StorageFailure, "_let_go", nothing), partial(seeds.run, frail=True)
    ),
    "a QoS 2 message that may be on the disk is refused": Mistake(
        around(Context, "storage_failed", lambda failed, ctx, stored, written: failed(ctx, stored, stored)),
        by(on_a_failing_disk),
    ),
    "a checkpoint that failed counts": Mistake(patch.object(UnsavedChanges, "put_back", nothing)),
    "a session that ended is in the checkpoint": Mistake(
        around(Checkpointer, "_write_values", with_ended_sessions),
        by(test_recovery.test_an_ended_session_is_not_in_the_store_again_whatever_of_a_checkpoint_fails),
    ),
    "it refuses for ever": Mistake(patch.object(Context, "storage_works", nothing)),
    "what was put off is never said": Mistake(
        patch.object(ReleaseJob, "step", lambda job: True), partial(seeds.run, frail=True)
    ),
    "a handshake that begins is not written": Mistake(unwritten(INBOUND_PUT)),
    "a shared subscription is not restored": Mistake(during(Restoring, "subscription", Router, "join", nothing)),
    "PUBREL before it is stored": Mistake(during(Delivery, "_released", Context, "send_stored", Context.send)),
    "PUBREC is not written": Mistake(during(Delivery, "_released", Ready, "deliver", nothing)),
    "a sync that began before the append counts": Mistake(
        around(JournalWriter, "_begin_sync", with_the_running_one), partial(seeds.run, power=True)
    ),
    "with power a start does not sync": Mistake(
        patch.object(directory_store, "make_safe", nothing),
        by(on_a_broken_disk),
    ),
    "what a process that died left counts before it is synced": Mistake(
        around(crash_world, "make_safe", synced_or_not),
        by(test_power.test_messages_of_a_dead_process_are_not_acknowledged_to_other_nodes_before_a_sync),
    ),
    "what was given back is forgotten": Mistake(
        around(JournalGc, "_withdraw_offsets", the_last_alone),
        by(given_back),
    ),
    "what was given back is wanted again after a power failure": Mistake(
        around(JournalGc, "give_back", careless),
        by(test_power.test_a_power_failure_does_not_bring_back_the_want_of_what_was_given_back),
    ),
    "a checkpoint does not wait for streams": Mistake(patch.object(StreamLogs, "sync", nothing), stream_lives.run),
    "a stream may be read before it is safe": Mistake(
        around(JournalWriter, "_follow", shown_at_once), partial(stream_lives.run, power=True)
    ),
    "a stream is longer than what the journal knows of it": Mistake(
        around(StreamLogs, "recovered", lambda recovered, logs, ends, careful: recovered(logs, ends, False)),
        partial(stream_lives.run, power=True),
    ),
    "a stream lacks what the journal has": Mistake(patch.object(StreamLogs, "replay", nothing), stream_lives.run),
    "a stream gets again what it has": Mistake(around(StreamLogs, "replay", at_the_next_offset), stream_lives.run),
    "what waits for a full disk is not put into streams": Mistake(
        during(JournalWriter, "_try_again", JournalWriter, "_follow", lambda writer: True),
        partial(stream_lives.run, frail=True),
    ),
    "a stream's message is kept for as long as its handshake": Mistake(
        during(TurnEncoder, "_keep", Message, "copy", unchanged), stream_lives.run
    ),
    "what is known of a producer is kept without its message": Mistake(
        around(TurnEncoder, "_add", in_a_record_of_its_own), test_producers.live
    ),
    "what is known of a producer is not kept": Mistake(
        patch.object(StoreImage, "_produced", nothing), test_producers.live
    ),
    "a checkpoint does not know producers": Mistake(unnoted(PRODUCER_PUT), test_producers.live),
    "a producer leaves out what was refused": Mistake(
        around(Production, "judge", lambda judge, *of: NEW if judge(*of) == AHEAD else judge(*of)),
        by(test_producers.test_nothing_is_left_out),
    ),
    "a stream refuses nobody": Mistake(
        patch.object(publish_admission, "stream_is_full", lambda route: False),
        by(test_streams.test_a_full_stream_refuses),
    ),
}
