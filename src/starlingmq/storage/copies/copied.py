"""Reports of the store to the followers that keep a copy of it. ``copy_source`` has the implementation; a store without
copies never loads it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from starlingmq.storage.copies.stream_copies import StreamCopies
from starlingmq.storage.kv import Batch

if TYPE_CHECKING:
    from starlingmq.storage.streams.stream_logs import StreamLog


class Copies(StreamCopies, Protocol):
    """See ``CopySource``."""

    lsn: int
    stored_before: int
    refusal: str
    on_refusal: Callable[[str], None]

    @property
    def reaches_followers(self) -> bool: ...

    def commit(self, offset: int, records: list[bytes]) -> None: ...
    def copied(self, local: Awaitable[None] | None) -> Awaitable[None] | None: ...
    def is_copied(self, lsn: int) -> bool: ...
    def when_copied(self, lsn: int, call: Callable[[], None]) -> None: ...
    def show(self, marks: list[tuple[StreamLog, int]]) -> None: ...
    def mark(self, batch: Batch) -> None: ...
    def wrote(self, batch: Batch) -> None: ...
    async def flush(self, seconds: float) -> None: ...
    def close(self) -> None: ...
