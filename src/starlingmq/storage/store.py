"""What the driver commits a turn's writes to."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from starlingmq.core.ready import Write


class Store(Protocol):
    """Keeps what the core wrote, as durably as it was set up to.

    ``keeps`` says whether anything is kept at all: if not, the core does not even collect writes.
    """

    keeps: bool

    def commit(self, writes: list[Write]) -> Awaitable[None] | None:
        """Take the writes of one turn as one group. None: they are stored. Else they are once the awaitable is done;
        commits become durable in the order in which they were made. Raises OSError when they can not be stored."""


class NoStore:
    """``storage.engine: memory``: the core's own memory is all there is, and it survives nothing."""

    keeps = False

    def commit(self, writes: list[Write]) -> None:
        return None
