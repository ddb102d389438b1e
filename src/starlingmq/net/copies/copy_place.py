"""The copies that this process stores for other nodes: one directory for each origin, and the connections to them.

The law: one connection at a time changes a copy, the newest one. A copy that is opened as a broker's data directory, or
is about to be, takes no connection.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote, unquote

from starlingmq.cluster.copies.copy_roles import CopyRoles
from starlingmq.net.peers.copy_link import UNSTORED, CopyRefused, served
from starlingmq.net.peers.peer_handshake import Proved
from starlingmq.net.peers.pipe import Pipe
from starlingmq.storage.copies.copy_directory import CopyDirectory
from starlingmq.storage.copies.copy_facts import CopyFacts, newest, read_facts
from starlingmq.storage.copies.copy_files import CopyFiles
from starlingmq.storage.copies.copy_frames import ASKS, CopyPosition, Hello
from starlingmq.storage.copies.copy_receiver import CopyReceiver
from starlingmq.storage.data_dir import DataDirError, set_aside
from starlingmq.storage.journal_writer import Durability

log = logging.getLogger("starlingmq.copies")

T = TypeVar("T")

COPIES: Final = "copies"  # below the data directory


class CopyPlace:
    """The copy of one origin. ``taken``: it is a broker's data directory, or is about to become one."""

    def __init__(self, path: Path, origin: str) -> None:
        self.path = path
        self.origin = origin
        self.taken = False
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="copy")
        self._lock = asyncio.Lock()
        self._copy: CopyDirectory | None = None
        self._task: asyncio.Task[str] | None = None  # the newest connection
        self._told = ""

    async def open(self, hello: Hello, durability: Durability, may_store: Callable[[], bool]) -> CopyReceiver:
        """For the current task, which becomes the newest connection. Raises CopyRefused, OSError."""
        async with self._lock:
            await self._end_task()
            if self.taken:
                raise CopyRefused(f"the copy of {self.origin} is in use as its data; try again later")
            await self._run(lambda: None)  # the thread may still work for a connection that was cut
            if self._copy is None:
                await self._open(hello, durability)
            assert self._copy is not None
            self._task = asyncio.current_task()
            return CopyReceiver(self._copy, hello, durability, self._threads, may_store)

    async def look(self, hello: Hello) -> CopyPosition | None:
        """How much it has; None: it is not whole, or there is none. Raises CopyRefused, OSError."""
        async with self._lock:
            if self.taken:
                raise CopyRefused(f"the copy of {self.origin} is in use as its data")
            was_open = self._copy is not None
            if read_facts(self.path) is None:
                return None
            if self._copy is None:
                await self._open(hello, "process")
            assert self._copy is not None
            position = self._copy.position if self._copy.is_whole else None
            if not was_open:
                await self._close()
            return position

    async def _open(self, hello: Hello, durability: Durability) -> None:
        """A thread cannot be cancelled: if the task is, the copy is open all the same."""
        opening = asyncio.ensure_future(self._run(lambda: self._opened(hello, durability)))
        try:
            self._copy = await asyncio.shield(opening)
        except asyncio.CancelledError:
            await asyncio.wait((opening,))
            if opening.exception() is None:
                self._copy = opening.result()
            raise

    def _opened(self, hello: Hello, durability: Durability) -> CopyDirectory:
        try:
            files = CopyFiles(self.path, self.origin, hello.engine, hello.segment_size)
            if hello.generation != ASKS and newest(files.facts) > hello.generation:
                files.close()
                log.warning(
                    "etcd has an older state of the copies of the data of %s than this disk: it is a new one, or was "
                    "restored from a backup. The copy here is kept in %s; another one begins",
                    self.origin,
                    set_aside(self.path),
                )
                files = CopyFiles(self.path, self.origin, hello.engine, hello.segment_size)
        except DataDirError as error:
            raise CopyRefused(str(error)) from None
        return CopyDirectory(files, careful=durability == "power")

    def tell(self, reason: str) -> None:
        """Log once why this node cannot store the copy: the other node only logs that it is told so."""
        reason = reason if reason.startswith(UNSTORED) else ""
        if reason and reason != self._told:
            log.warning("the data of %s is not copied to this node: %s", self.origin, reason)
        self._told = reason

    async def release(self) -> None:
        """End the connection, and close the copy. Raises OSError."""
        async with self._lock:
            await self._end_task()
            await self._close()

    async def ended(self, task: asyncio.Task[str], failed: bool) -> None:
        """A connection has ended. After a failure the files are opened again, since they may lack a part of a group."""
        async with self._lock:
            if self._task is task:
                self._task = None
                if failed:
                    with suppress(OSError):  # the failure of before, once more
                        await self._close()

    async def _end_task(self) -> None:
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            await asyncio.wait([task])

    async def _close(self) -> None:
        copy, self._copy = self._copy, None
        if copy is not None:
            await self._run(copy.close)

    async def _run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def delete(self) -> bool:
        """Delete the copy, unless it is in use as data. Whether it is gone. Raises OSError."""
        async with self._lock:
            if self.taken:
                return False
            await self._end_task()
            await self._close()
            if self.path.exists():
                await self._run(lambda: shutil.rmtree(self.path))
            return True

    async def close(self) -> None:
        await self.release()
        self._threads.shutdown(wait=False)


class CopyPlaces:
    """``directory``: the data directory of this node, which is the copy of its own origin while another node serves
    it."""

    def __init__(self, directory: Path, me: str, durability: Durability) -> None:
        self.directory = directory
        self.me = me
        self.places: dict[str, CopyPlace] = {}
        self.stored: set[str] = set()  # other origins of which there may be a copy here
        self._durability = durability

    def find(self) -> list[str]:
        """The other origins of which there is a copy. Raises OSError."""
        directory = self.directory / COPIES
        if directory.is_dir():
            self.stored.update(unquote(path.name) for path in directory.iterdir())
        return sorted(self.stored)

    def place(self, origin: str) -> CopyPlace:
        if origin != self.me:
            self.stored.add(origin)
        if origin not in self.places:
            path = self.directory if origin == self.me else self.directory / COPIES / folder(origin)
            self.places[origin] = CopyPlace(path, origin)
        return self.places[origin]

    def facts(self, origins: list[str]) -> dict[str, CopyFacts]:
        """By origin, what its copy here says about itself. Raises OSError."""
        found = {origin: read_facts(self.place(origin).path) for origin in origins}
        return {origin: facts for origin, facts in found.items() if facts is not None}

    async def serve(self, roles: CopyRoles, proved: Proved, pipe: Pipe) -> str:
        """Stores what another node sends on this connection. Returns why it ended."""
        places: list[CopyPlace] = []

        async def receiver(hello: Hello) -> CopyReceiver:
            origin, generation = hello.owner, hello.generation
            if not roles.accepts(origin, proved.name, generation):
                raise CopyRefused(
                    f"{roles.me.name} stores nothing for {origin} from {proved.name} in generation {generation}"
                )
            roles.follows(origin, generation)
            place = self.place(origin)
            places.append(place)
            return await place.open(hello, self._durability, lambda: roles.accepts(origin, proved.name, generation))

        async def look(hello: Hello) -> CopyPosition | None:
            if hello.owner not in roles.registry.records:
                raise CopyRefused(f"{roles.me.name} knows no copies of the data of {hello.owner}")
            return await self.place(hello.owner).look(hello)

        task = asyncio.ensure_future(served(pipe, roles.me.incarnation, receiver, look))
        reason = ""
        try:
            await asyncio.wait([task])
            reason = "a newer connection has replaced this one" if task.cancelled() else task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            for place in places:
                await place.ended(task, bool(reason))
                place.tell(reason)
        return reason

    async def close(self) -> None:
        for place in self.places.values():
            await place.close()


def folder(origin: str) -> str:
    """The name of its directory."""
    name = quote(origin, safe="@")
    return f"%2E{name[1:]}" if name.startswith(".") else name
