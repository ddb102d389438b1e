"""Mistakes made on purpose in copies: see ``planted``. A life with followers finds every one of them."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import Any
from unittest.mock import patch

import msgspec
from tests.planting import Plant, around, during, nothing
from tests.storage import copy_lives
from tests.storage.planted import Mistake, Sound

from starlingmq.storage.copies import copy_directory
from starlingmq.storage.copies.catch_up import CatchUp
from starlingmq.storage.copies.copy_directory import CopyDirectory
from starlingmq.storage.copies.copy_frames import groups
from starlingmq.storage.copies.copy_receiver import CopyReceiver
from starlingmq.storage.copies.copy_source import CopySource
from starlingmq.storage.journal_writer import JournalWriter


def copied(source: CopySource, lsn: int) -> bool:
    """In place of ``is_copied``."""
    return True


def without_the_tail(finish: Sound, self: Any) -> Any:
    self._at = max(self._at, self.source.journal.next)
    return finish(self)


def again(append: Sound, self: Any, offset: int, *rest: Any) -> None:
    append(self, max(offset, self.files.journal.next), *rest)


def from_the_middle(run: Sound, self: Any, position: Any) -> Awaitable[Any]:
    middle = max(position.journal, self.source.journal.next - 2)
    return run(self, msgspec.structs.replace(position, journal=middle))  # type: ignore[no-any-return]


def after_the_last(ends_after: Sound, own: Any, lives: Any) -> Any:
    known = {life.generation for life in own}
    common = tuple([life for life in lives if life.generation in known])
    return ends_after(common, (*common, *lives[-1:]))


async def store_first(run: Sound, self: Any, position: Any) -> Any:
    await self.store.hold()
    try:
        if position.kv != self.source.kv_state:
            await self._send_store()
        return await run(self, msgspec.structs.replace(position, kv=self.source.kv_state))
    finally:
        self.store.release()


def whatever_is_missing(receive: Sound, self: Any, data: bytes) -> Any:
    if self.stored and data:
        self.stored = next(groups(data))[0] - 1
    return receive(self, data)


def unsynced(receive: Sound, self: Any, data: bytes) -> Any:
    self._syncs = False
    return receive(self, data)


def with_the_same_mark(wrote: Sound, self: Any, batch: Any) -> None:
    state = self.kv_state
    wrote(self, batch)
    self.kv_state = state


def by_lives(plant: Plant, **fixed: Any) -> Mistake:
    return Mistake(plant, partial(copy_lives.run, **fixed))


MISTAKES = {
    "acknowledged before the copy": by_lives(during(CopySource, "copied", CopySource, "is_copied", copied)),
    "the tail is not sent": by_lives(around(CatchUp, "_finish", without_the_tail)),
    "the tail is sent twice": by_lives(around(CopyDirectory, "_append", again)),
    "a copy begins in the middle": by_lives(around(CatchUp, "run", from_the_middle)),
    "offsets are given twice": by_lives(during(CopyDirectory, "begin", CopyDirectory, "_cut", nothing)),
    "a copy that missed a life is cut to the last one only": by_lives(
        around(copy_directory, "ends_after", after_the_last)
    ),
    "the key-value store is replaced before the journal is there": by_lives(around(CatchUp, "run", store_first)),
    "a turn that is cut in the middle is taken over": by_lives(
        during(CopyDirectory, "prepare", CopyDirectory, "_cut", nothing)
    ),
    "a group that is missing is not noticed": by_lives(around(CopyReceiver, "receive", whatever_is_missing)),
    "acknowledged before the sync": by_lives(around(CopyReceiver, "receive", unsynced), power=True),
    "two states of the key-value store have one mark": by_lives(around(CopySource, "wrote", with_the_same_mark)),
    "streams are not sent": by_lives(patch.object(CopySource, "streamed", nothing)),
    "a stream may be read before it is copied": by_lives(during(CopySource, "show", CopySource, "is_copied", copied)),
    "an append that failed is never sent": by_lives(
        during(JournalWriter, "_try_again", CopySource, "commit", nothing), frail=True
    ),
    "a checkpoint is not sent": by_lives(patch.object(CopySource, "wrote", nothing)),
}
