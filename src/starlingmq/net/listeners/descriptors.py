"""File descriptors: clients get all but a reserve, so that storage, links to other nodes and HTTP always have some.

The kernel returns the lowest free descriptor (POSIX, 2.6). So the number of an accepted socket proves that at least as
many descriptors are in use, without counting. The connection that gets the last number for clients makes all listeners
pause; clients that connect meanwhile wait in the queue of the kernel. Every ``LOOK_AGAIN`` seconds one descriptor is
opened and closed, and accepting resumes when its number is low enough.

The reserve is calculated as follows: storage has up to 2 open files per 64 MiB that are read and some hundred of
RocksDB (128), each other node of a cluster has 4 connections and etcd some (64), HTTP has its own limit (64 and more).
Of a small limit the reserve is a quarter.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
from typing import Final, Protocol

log = logging.getLogger("starlingmq")

RESERVE: Final = 256
SHARE: Final = 4  # the reserve is at most this fraction of all descriptors
LOOK_AGAIN: Final = 0.2  # seconds
OVER_AFTER: Final = 10.0  # seconds without a shortage until the log says that it is over


def file_limit() -> int:
    """The number of descriptors that this process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class Accepting(Protocol):
    def pause(self) -> None: ...
    def resume(self) -> None: ...


class Descriptors:
    """``limit``: descriptors that the process may have; clients get those below ``for_clients``."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit = file_limit() if limit is None else limit
        self.for_clients = self.limit - min(RESERVE, self.limit // SHARE)
        self.short = False
        self.paused = False
        self._accepting: dict[Accepting, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._quiet = 0.0  # seconds since the last shortage

    def allow(self, descriptor: int) -> bool:
        """Whether a client may keep the descriptor of its connection."""
        return descriptor < self.for_clients

    def ran_out(self) -> None:
        self._quiet = 0.0
        if not self.short:
            self.short = True
            log.warning(
                "file descriptors are running out: %d of %d are reserved for storage and links, so new "
                "connections wait until others close; raise the limit (ulimit -n, LimitNOFILE=) or set "
                "limits.max_connections",
                self.limit - self.for_clients,
                self.limit,
            )
        if not self.paused:
            self.paused = True
            for accepting in self._accepting:
                accepting.pause()
        if self._timer is None:
            self._look_later()

    def add(self, accepting: Accepting) -> None:
        """A listener accepts from now on, as long as there are descriptors."""
        self._accepting[accepting] = None
        if not self.paused:
            accepting.resume()

    def remove(self, accepting: Accepting) -> None:
        self._accepting.pop(accepting, None)

    def close(self) -> None:
        self._accepting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_AGAIN, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self._is_one_free():
            self._quiet = 0.0
        elif self.paused:
            self.paused = False
            for accepting in self._accepting:
                accepting.resume()
        else:
            self._quiet += LOOK_AGAIN
        if self._quiet >= OVER_AFTER:
            self.short = False
            log.warning("file descriptors are available again; new connections are accepted")
        elif self._timer is None:
            self._look_later()

    def _is_one_free(self) -> bool:
        try:
            descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        os.close(descriptor)
        return self.allow(descriptor)
