"""A file system for tests that keeps exactly what it promised to keep, and nothing else.

Programs see the cache: what was written last. The disk has what was synced; of everything later, each sector and each
name may be there in any of its states since, whatever the order. ``power_failure`` draws one of those worlds.

Faults: ``fail`` makes a chosen call raise, ``capacity`` fills the disk up. A failed sync behaves as ext4 does: the
cache goes on showing what it will never write any more, and the next sync succeeds (``forgets``: as XFS may, the cache
shows the old content instead).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from random import Random

from starlingmq.storage.file_calls import FileCalls

SECTOR = 64  # small, so that small tests tear


class Inode:
    def __init__(self) -> None:
        self.cache = bytearray()
        self.disk = bytearray()
        self.waiting: list[tuple[int, bytes] | int] = []  # since the last sync: (position, written) or a new size
        self.failed: list[tuple[int, bytes] | int] = []  # writes that a sync lost: some may be on the disk
        self.modified = 0.0

    def sync(self) -> None:
        for change in self.waiting:
            apply(self.disk, change)
        self.waiting.clear()
        self.failed.clear()

    def power_failure(self, random: Random) -> None:
        """Each sector in one of the states it had since the last sync, the size one of those the file had."""
        states = [bytearray(self.disk)]
        for change in self.failed:
            states.append(bytearray(states[-1]))
            apply(states[-1], change)
        states.append(bytearray(self.disk))
        for change in self.waiting:
            states.append(bytearray(states[-1]))
            apply(states[-1], change)
        size = len(random.choice(states))
        world = bytearray(size)
        for start in range(0, size, SECTOR):
            sector = random.choice(states)[start : min(start + SECTOR, size)]
            world[start : start + len(sector)] = sector
        self.disk = world
        self.cache = bytearray(world)
        self.waiting.clear()
        self.failed.clear()


def apply(content: bytearray, change: tuple[int, bytes] | int) -> None:
    if isinstance(change, int):
        content[:] = content[:change] + bytes(max(0, change - len(content)))
        return
    at, data = change
    if len(content) < at:
        content.extend(bytes(at - len(content)))
    content[at : at + len(data)] = data


class SimFiles(FileCalls):
    """One directory is enough: paths are only names."""

    def __init__(self) -> None:
        self.cache: dict[str, Inode] = {}
        self.disk: dict[str, Inode] = {}
        self.waiting: list[tuple[str, Inode | None]] = []  # names made and removed since the last directory sync
        self.descriptors: dict[int, Inode] = {}
        self.most_open = 0
        self.capacity: int | None = None  # bytes
        self.fault: Callable[[str, str], int | None] = lambda call, path: None
        self.forgets = False
        self.forgot = False  # something since the last look
        self.calls = 0
        self.clock = 1_000_000.0
        self.salts = 0x5EED0000
        self._next_fd = 100
        self._paths: dict[int, str] = {}

    # faults

    def fail(self, call: str, number: int = 1, error: int = errno.EIO, times: int = 1) -> None:
        """Let the ``number``-th next ``call`` (a method name, or "any") fail, and ``times - 1`` after it."""
        left = [number - 1, times]

        def fault(name: str, path: str) -> int | None:
            if name != call and call != "any":
                return None
            if left[0]:
                left[0] -= 1
                return None
            left[1] -= 1
            return error if left[1] >= 0 else None

        self.fault = fault

    def heal(self) -> None:
        self.fault = lambda call, path: None
        self.capacity = None

    def _meet(self, call: str, path: str) -> None:
        self.calls += 1
        # The marker of a failed sync is as good as the disk is; the promise holds as long as it takes that.
        error = None if path.endswith(".doubt") else self.fault(call, path)
        if error is not None:
            raise OSError(error, os.strerror(error), path)

    def used(self) -> int:
        return sum(len(inode.cache) for inode in self.cache.values())

    # Machine failures

    def process_death(self) -> None:
        self.descriptors.clear()
        self._paths.clear()

    def power_failure(self, random: Random) -> None:
        self.process_death()
        states: dict[str, list[Inode | None]] = {}
        for name in [*self.disk, *(name for name, _ in self.waiting)]:
            states.setdefault(name, [self.disk.get(name)])
        for name, inode in self.waiting:
            states[name].append(inode)
        drawn = {name: random.choice(choices) for name, choices in states.items()}
        self.disk = {name: inode for name, inode in drawn.items() if inode is not None}
        self.cache = dict(self.disk)
        self.waiting.clear()
        seen: list[Inode] = []
        for inode in self.disk.values():
            if inode not in seen:
                seen.append(inode)
                inode.power_failure(random)

    # Files

    def make_directory(self, path: str) -> None:
        pass

    def names(self, directory: str) -> list[str]:
        return [os.path.basename(path) for path in self.cache]

    def open(self, path: str, create: bool = False) -> int:
        self._meet("create" if create else "open", path)
        if path not in self.cache:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            self._name(path, Inode())
        self._next_fd += 1
        self.descriptors[self._next_fd] = self.cache[path]
        self._paths[self._next_fd] = path
        self.most_open = max(self.most_open, len(self.descriptors))
        if create:
            self._change(self.cache[path], 0)
        return self._next_fd

    def _name(self, path: str, inode: Inode | None) -> None:
        self.waiting.append((path, inode))
        if inode is None:
            del self.cache[path]
        else:
            self.cache[path] = inode

    def _change(self, inode: Inode, change: tuple[int, bytes] | int) -> None:
        inode.waiting.append(change)
        apply(inode.cache, change)
        inode.modified = self.clock

    def close(self, fd: int) -> None:
        del self.descriptors[fd], self._paths[fd]

    def let_go(self, fd: int, size: int) -> None:
        self.close(fd)

    def write(self, fd: int, data: bytes | memoryview, at: int) -> int:
        self._meet("write", self._paths[fd])
        inode = self.descriptors[fd]
        wanted = bytes(data)
        if self.capacity is not None:
            grows = max(0, at + len(wanted) - len(inode.cache))
            room = max(0, self.capacity - self.used())
            if grows > room:
                wanted = wanted[: len(wanted) - (grows - room)]
                if not wanted:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._change(inode, (at, wanted))
        return len(wanted)

    def read(self, fd: int, size: int, at: int) -> bytes:
        self._meet("read", self._paths[fd])
        return bytes(self.descriptors[fd].cache[at : at + size])

    def size(self, fd: int) -> int:
        return len(self.descriptors[fd].cache)

    def modified(self, fd: int) -> float:
        return self.descriptors[fd].modified

    def cut(self, fd: int, size: int) -> None:
        self._meet("cut", self._paths[fd])
        self._change(self.descriptors[fd], size)

    def sync(self, fd: int) -> None:
        inode = self.descriptors[fd]
        try:
            self._meet("sync", self._paths[fd])
        except OSError:
            inode.failed += [] if self.forgets else inode.waiting  # forgotten or half there, not both
            inode.waiting.clear()
            if self.forgets:
                self.forgot = True
                inode.cache = bytearray(inode.disk) + bytes(max(0, len(inode.cache) - len(inode.disk)))
            raise
        inode.sync()

    def sync_directory(self, path: str) -> None:
        try:
            self._meet("sync_directory", path)
        except OSError:
            self.waiting.clear()
            raise
        for name, inode in self.waiting:
            if inode is None:
                self.disk.pop(name, None)
            else:
                self.disk[name] = inode
        self.waiting.clear()

    def remove(self, path: str) -> None:
        self._meet("remove", path)
        if path not in self.cache:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self._name(path, None)

    def rename(self, path: str, to: str) -> None:
        self._meet("rename", path)
        inode = self.cache[path]
        self._name(to, inode)
        self._name(path, None)

    def now(self) -> float:
        self.clock += 1.0
        return self.clock

    def salt(self) -> int:
        self.salts += 1
        return self.salts
