"""What the driver commits a turn's writes to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from starlingmq.core.broker import BrokerState
from starlingmq.core.message import Message
from starlingmq.core.ready import Write


class NotYetStored(OSError):
    """These writes could not be stored; they are kept in memory and stored as soon as that is possible. Nobody should
    wait for it: see ``starlingmq.core.limits.storage_failure``."""


class Store(Protocol):
    """Keeps what the core wrote, as durably as it was set up to.

    ``keeps`` says whether anything is kept at all: if not, the core does not even collect writes.
    """

    keeps: bool

    def commit(self, writes: list[Write]) -> Awaitable[None] | None:
        """Take the writes of one turn as one group. None: they are stored. Else they are once the awaitable is done;
        commits become durable in the order in which they were made. Raises (as the awaitable may) NotYetStored while
        nothing can be stored, which ``Context.refusing`` says too; any other OSError: they are lost."""
        ...

    def readable(self) -> bool:
        """Whether everything that was committed can be read back (it can not while storage fails)."""
        ...

    def load(self, offsets: Sequence[int]) -> dict[int, Message]:
        """Messages that were committed, by offset; those that are lost are missing. Raises OSError when
        they can not be read at the moment."""
        ...

    def maintain(self) -> bool:
        """Do a piece of the store's own work, at the end of a turn; whether there is more to do right away."""
        ...

    def attach(self, state: BrokerState, wake: Callable[[], None]) -> None:
        """The broker that is stored here; ``wake`` has ``maintain`` called soon."""
        ...

    async def close(self) -> None:
        """Store what is left and let go of everything."""
        ...


class NoStore:
    """``storage.engine: memory``: the core's own memory is all there is, and it survives nothing."""

    keeps = False

    def commit(self, writes: list[Write]) -> Awaitable[None] | None:
        return None

    def readable(self) -> bool:
        return False

    def load(self, offsets: Sequence[int]) -> dict[int, Message]:
        return {}

    def maintain(self) -> bool:
        return False

    def attach(self, state: BrokerState, wake: Callable[[], None]) -> None:
        pass

    async def close(self) -> None:
        pass
