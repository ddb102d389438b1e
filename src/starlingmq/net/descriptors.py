"""File descriptors: clients take all but a reserve, so that storage, links to other nodes and HTTP never lack one.

The kernel hands out the lowest free descriptor (POSIX, 2.6). So an accepted socket whose number is ``for_clients`` or
more proves that at least as many descriptors are in use, without counting any. It is closed, and accepting pauses; the
clients that connect meanwhile wait in the queue of the kernel. Every ``LOOK_AGAIN`` seconds one descriptor is opened
and closed, and accepting goes on when its number is low enough.

The reserve, with its workings: storage has up to 2 open files for each 64 MiB that are read and some hundred of RocksDB
(128), each other node of a cluster has 4 connections and etcd some (64), HTTP is bounded by itself (64 and more). Of a
small limit it is a quarter.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
from collections.abc import Callable
from typing import Final

log = logging.getLogger("starlingmq")

RESERVE: Final = 256
SHARE: Final = 4  # the reserve is at most this part of all descriptors
LOOK_AGAIN: Final = 0.2  # seconds
OVER_AFTER: Final = 10.0  # seconds with enough of them until the log says so


def file_limit() -> int:
    """Descriptors that this process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class Descriptors:
    """``limit``: descriptors the process may have. ``changed`` is called with whether they are short."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit = file_limit() if limit is None else limit
        self.for_clients = self.limit - min(RESERVE, self.limit // SHARE)
        self.short = False
        self.waiting: dict[Callable[[], None], None] = {}  # called when accepting may go on
        self._timer: asyncio.TimerHandle | None = None
        self._quiet = 0.0  # seconds since they were last short

    def allow(self, descriptor: int) -> bool:
        """Whether a client may keep the descriptor that its connection got."""
        return descriptor < self.for_clients

    def wait(self, resume: Callable[[], None]) -> None:
        """They are short: call ``resume`` when there are some for clients again."""
        self.waiting[resume] = None
        self._quiet = 0.0
        if not self.short:
            self.short = True
            log.warning(
                "file descriptors run short: %d of %d are kept for storage and links, so new connections wait until "
                "others end; raise the limit (ulimit -n, LimitNOFILE=) or set limits.max_connections",
                self.limit - self.for_clients,
                self.limit,
            )
        if self._timer is None:
            self._look_later()

    def forget(self, resume: Callable[[], None]) -> None:
        self.waiting.pop(resume, None)

    def close(self) -> None:
        self.waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_AGAIN, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self._is_one_free():
            self._quiet = 0.0
        elif self.waiting:
            waiting, self.waiting = self.waiting, {}
            for resume in waiting:
                resume()
        else:
            self._quiet += LOOK_AGAIN
        if self._quiet >= OVER_AFTER:
            self.short = False
            log.warning("there are enough file descriptors again")
        elif self._timer is None:
            self._look_later()

    def _is_one_free(self) -> bool:
        try:
            descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        os.close(descriptor)
        return self.allow(descriptor)
