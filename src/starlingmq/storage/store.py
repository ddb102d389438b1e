"""The store to which the driver commits the writes of a turn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from starlingmq.core.broker import BrokerState
from starlingmq.core.context.ready import Write
from starlingmq.core.messages.message import Message


class NotYetStored(OSError):
    """These writes could not be stored. They are kept in memory and stored as soon as possible. Callers should not wait
    for that: see ``starlingmq.core.conditions.storage_failure``."""


class TooFewCopies(OSError):
    """Fewer nodes than ``cluster.min_copies`` store what is acknowledged here. The disk of this node works."""


class Store(Protocol):
    """Stores the writes of the core, as durably as configured.

    ``keeps`` False: nothing is stored, and the core does not collect writes.
    """

    keeps: bool

    def commit(self, writes: list[Write]) -> Awaitable[None] | None:
        """Accept the writes of one turn as one group. None: they are stored. Otherwise they are stored when the
        awaitable completes; commits become durable in the order in which they were made. Raises (as the awaitable may)
        NotYetStored while nothing can be stored, which ``Context.refusing`` shows, too. After any other OSError the
        writes are lost."""
        ...

    def readable(self) -> bool:
        """Whether all committed messages can be read back, which is False while the storage fails."""
        ...

    def load(self, offsets: Sequence[int]) -> dict[int, Message]:
        """Committed messages by offset, without those that are lost. Raises OSError if they cannot be read at the
        moment."""
        ...

    def maintain(self) -> bool:
        """Do one piece of the store's maintenance, at the end of a turn. Returns whether the next piece should follow
        at once."""
        ...

    def attach(self, state: BrokerState, wake: Callable[[], None]) -> None:
        """Set the broker whose state is stored here; ``wake`` makes the driver call ``maintain`` soon."""
        ...

    async def close(self) -> None:
        """Store the rest and release all resources."""
        ...


class NoStore:
    """``storage.engine: memory``: state is kept in the memory of the core only, and survives nothing."""

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
