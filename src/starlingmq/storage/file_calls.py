"""The file system calls of the journal, gathered so that tests can put a faulty disk in their place.

Every method raises OSError as the call it stands for does. Paths are strings, descriptors are the system's.
"""

from __future__ import annotations

import errno
import os
import secrets
import threading
import time
from contextlib import suppress

PIECE = 4096  # what is given up at a time where a disk can not read
LARGE = 1 << 20  # a file whose last descriptor is closed beside who closes it


class FileCalls:
    """The real file system, clock and source of chance."""

    def make_directory(self, path: str) -> None:
        """Make it and what leads to it, if it is not there."""
        os.makedirs(path, exist_ok=True)

    def names(self, directory: str) -> list[str]:
        return os.listdir(directory)

    def open(self, path: str, create: bool = False) -> int:
        """Open for reading and writing; ``create``: made if it is not there, emptied if it is."""
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_TRUNC if create else 0), 0o600)

    def close(self, fd: int) -> None:
        os.close(fd)

    def let_go(self, fd: int, size: int) -> None:
        """Close a file that has no name any more. The system takes back its pages then, half a millisecond for each
        megabyte; nobody has to wait for those of a large one."""
        if size < LARGE:
            self.close(fd)
        else:
            threading.Thread(target=self.close, args=(fd,), daemon=True).start()

    def write(self, fd: int, data: bytes | memoryview, at: int) -> int:
        """Bytes written, which may be fewer than given."""
        return os.pwrite(fd, data, at)

    def read(self, fd: int, size: int, at: int) -> bytes:
        return os.pread(fd, size, at)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def modified(self, fd: int) -> float:
        """When it was last written, in seconds of the wall clock."""
        return os.fstat(fd).st_mtime

    def cut(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def sync(self, fd: int) -> None:
        """Make content and size survive a power failure; the name does by ``sync_directory``."""
        SYNC(fd)

    def sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def rename(self, path: str, to: str) -> None:
        """Takes the place of what is called ``to``."""
        os.rename(path, to)

    def now(self) -> float:
        """Seconds of the wall clock."""
        return time.time()

    def salt(self) -> int:
        """A number nobody can guess, 1..2**32-1."""
        return secrets.randbelow(0xFFFFFFFF) + 1


SYNC = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync


def write_all(files: FileCalls, fd: int, data: bytes, at: int) -> None:
    """Write every byte, or raise; then some may have been written."""
    done = files.write(fd, data, at)
    while done < len(data):
        more = files.write(fd, memoryview(data)[done:], at + done)
        if more == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done += more


def read_what_can_be(files: FileCalls, fd: int, size: int, at: int) -> tuple[bytes, int]:
    """Content with zeros where the disk can not read it, and how many bytes those are. Raises OSError if it can
    read nothing: then the disk is gone rather than damaged."""
    try:
        return files.read(fd, size, at), 0
    except OSError as error:
        failure = error
    pieces: list[bytes] = []
    bad = 0
    for start in range(0, size, PIECE):
        length = min(PIECE, size - start)
        try:
            pieces.append(files.read(fd, length, at + start))
        except OSError:
            pieces.append(bytes(length))
            bad += length
    if bad >= size:
        raise failure
    return b"".join(pieces), bad


def remove_if_there(files: FileCalls, path: str) -> None:
    with suppress(FileNotFoundError):
        files.remove(path)


def write_whole(files: FileCalls, path: str, data: bytes, sync: bool) -> int:
    """Make or replace a file in one step: whoever opens ``path`` sees all of ``data`` or what was there before.
    The open descriptor. With ``sync`` the content survives a power failure, the name not yet."""
    draft = path + ".tmp"
    fd = files.open(draft, create=True)
    try:
        write_all(files, fd, data, 0)
        if sync:
            files.sync(fd)
        files.rename(draft, path)
    except OSError:
        files.close(fd)
        with suppress(OSError):  # opening the journal clears drafts away
            files.remove(draft)
        raise
    return fd
