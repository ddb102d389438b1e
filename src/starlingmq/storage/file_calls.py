"""The file system calls of the journal, in one class, so that tests can replace it by a faulty disk.

Each method raises OSError as the call it stands for. Paths are strings, descriptors are those of the system.
"""

from __future__ import annotations

import errno
import os
import secrets
import threading
import time
from contextlib import suppress

from mypy_extensions import mypyc_attr

PIECE = 4096  # an unreadable area of a disk is skipped in steps of this size
LARGE = 1 << 20  # from this size on, the last descriptor of a deleted file is closed in a thread


@mypyc_attr(allow_interpreted_subclasses=True)
class FileCalls:
    """The real file system, clock and random source."""

    def make_directory(self, path: str) -> None:
        """Create the directory and its parents, if they do not exist."""
        os.makedirs(path, exist_ok=True)

    def names(self, directory: str) -> list[str]:
        return os.listdir(directory)

    def open(self, path: str, create: bool = False) -> int:
        """Open for reading and writing. With ``create``, the file is created, or truncated if it exists."""
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_TRUNC if create else 0), 0o600)

    def close(self, fd: int) -> None:
        os.close(fd)

    def let_go(self, fd: int, size: int) -> None:
        """Close a file that has been unlinked. The system then frees its pages, which takes half a millisecond per
        megabyte; a thread does it for a large file."""
        if size < LARGE:
            self.close(fd)
        else:
            threading.Thread(target=self.close, args=(fd,), daemon=True).start()

    def write(self, fd: int, data: bytes | memoryview, at: int) -> int:
        """Returns the number of bytes written, which may be less than given."""
        return os.pwrite(fd, data, at)

    def read(self, fd: int, size: int, at: int) -> bytes:
        return os.pread(fd, size, at)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def modified(self, fd: int) -> float:
        """Time of the last write, in seconds of the wall clock."""
        return os.fstat(fd).st_mtime

    def cut(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def sync(self, fd: int) -> None:
        """Make content and size survive a power failure. ``sync_directory`` does this for the name."""
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
        """Replaces a file named ``to``."""
        os.rename(path, to)

    def now(self) -> float:
        """Wall clock time in seconds."""
        return time.time()

    def salt(self) -> int:
        """An unpredictable number, 1..2**32-1."""
        return secrets.randbelow(0xFFFFFFFF) + 1


SYNC = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync


def write_all(files: FileCalls, fd: int, data: bytes, at: int) -> None:
    """Write all bytes, or raise; then some of them may have been written."""
    done = files.write(fd, data, at)
    while done < len(data):
        more = files.write(fd, memoryview(data)[done:], at + done)
        if more == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done += more


def read_what_can_be(files: FileCalls, fd: int, size: int, at: int) -> tuple[bytes, int]:
    """The content, with zeros for unreadable areas, and the number of bytes in those. Raises OSError if nothing is
    readable: then the disk is gone rather than damaged."""
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
    """Create or replace a file atomically: a process that opens ``path`` sees either all of ``data`` or the previous
    content. Returns the open descriptor. With ``sync`` the content survives a power failure; the name does only after
    ``sync_directory``."""
    draft = path + ".tmp"
    fd = files.open(draft, create=True)
    try:
        write_all(files, fd, data, 0)
        if sync:
            files.sync(fd)
        files.rename(draft, path)
    except OSError:
        files.close(fd)
        with suppress(OSError):  # opening the journal removes leftover drafts
            files.remove(draft)
        raise
    return fd
