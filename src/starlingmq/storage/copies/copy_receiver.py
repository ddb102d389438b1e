"""A follower's side of one connection: stores what the owner sends, and says up to which group.

The law: groups are stored in the order of their numbers, each once; a group that comes twice, or without the one before
it, ends the connection. A group is acknowledged when it is as safe as ``storage.durability`` says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path

import msgspec

from starlingmq.storage.copies.copy_directory import CopyDirectory
from starlingmq.storage.copies.copy_facts import COPY, Fenced
from starlingmq.storage.copies.copy_files import CopyFiles
from starlingmq.storage.copies.copy_frames import CopyPosition, Hello, groups
from starlingmq.storage.copies.copy_records import CopyFrameError
from starlingmq.storage.journal_writer import Durability


class CopyReceiver:
    """Of one copy and one life of its owner. One call at a time, except for ``fence``. ``stored``: number of the last
    group that is stored; 0: the copy is not up to date yet. ``threads`` has a thread of its own for this copy.
    ``may_store`` is asked for each group: whether no successor of the owner is known."""

    def __init__(
        self,
        copy: CopyDirectory,
        hello: Hello,
        durability: Durability,
        threads: Executor,
        may_store: Callable[[], bool] = lambda: True,
    ) -> None:
        self.copy = copy
        self.hello = hello
        self.stored = 0
        self._syncs = durability == "power"
        self._threads = threads
        self._may_store = may_store

    def look(self) -> CopyPosition:
        """The position of the copy before it begins. Nothing is changed."""
        return msgspec.structs.replace(self.copy.position, excess=self.copy.excess(self.hello))

    async def begin(self) -> CopyPosition:
        """Cut off what the owner does not have. The position afterwards. Raises Fenced, OSError."""
        await self._run(lambda: self.copy.begin(self.hello))
        return self.copy.position

    async def receive(self, data: bytes) -> int:
        """Store the groups of a message. The number of the last group that is stored now; 0: none is to be
        acknowledged yet. Raises Fenced, CopyFrameError, OSError; nothing more may be received then."""
        copy = self.copy
        before = self.stored
        for lsn, group in groups(data):
            facts, generation = copy.facts, self.hello.generation
            if facts.fenced > generation or facts.generation != generation or not self._may_store():
                raise Fenced(f"{self.hello.owner}: generation {generation} is over")
            if lsn != self.stored + 1 and self.stored:
                raise CopyFrameError(f"group {lsn} came after group {self.stored}")
            live = self.stored != 0
            if copy.is_slow(group):
                await self._run(lambda group=group, live=live: copy.apply(group, live))  # type: ignore[misc]
            else:
                copy.apply(group, live)
            if lsn and not live:
                await self._run(copy.caught_up)
            self.stored = lsn
        if self._syncs and self.stored != before:
            await self._run(copy.sync)
        return self.stored

    async def _run(self, call: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._threads, call)


def prepare(path: Path, owner: str, engine: str, segment_size: int) -> None:
    """Make a copy ready to be opened as a data directory. Blocks. Raises NotWhole, OSError, DataDirError."""
    copy = CopyDirectory(CopyFiles(path, owner, engine, segment_size))
    try:
        copy.prepare()
    finally:
        copy.close()


def begin_empty(path: Path, owner: str, engine: str, segment_size: int) -> None:
    """Delete a copy that is not whole, so that the data directory is opened without data. Blocks. Raises OSError,
    DataDirError."""
    files = CopyFiles(path, owner, engine, segment_size)
    try:
        files.clear()
    finally:
        files.close()
    (path / COPY).unlink(missing_ok=True)
