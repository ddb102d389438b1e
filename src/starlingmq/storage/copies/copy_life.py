"""The beginning and the end of the lives of a data directory that has copies (``copy_facts``)."""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec

from starlingmq.storage.copies.copy_facts import Life, begin_life
from starlingmq.storage.copies.copy_source import CopySource
from starlingmq.storage.directory_store import DirectoryStore
from starlingmq.storage.keys import META_COPY
from starlingmq.storage.kv import Batch, Kv


def begin_copies(
    store: DirectoryStore, owner: str, generation: int, required: Collection[str], clock: Callable[[], float]
) -> CopySource:
    """From now on followers may store what this store does. Called after it was opened, before anything is committed.
    ``generation``: above that of all lives before. ``required``: the followers in step; recovered records are shown
    to readers of streams once they have them. ``clock``: monotonic seconds. Blocks. Raises Fenced, NotWhole,
    OSError."""
    ends = {number: log.stream.next for number, log in store.streams.by_number.items()}
    facts = begin_life(store.data_dir.path, owner, Life(generation, store.journal.next, ends))
    source = CopySource(
        store.journal,
        store.streams,
        facts,
        store.engine,
        store.segment_size,
        marked(store.kv, generation, known=len(facts.lives) > 1),
        store.stream_directory.ends,
        clock,
    )
    source.required = required
    store.copy_to(source)
    source.show(store.streams.mark())
    return source


def marked(kv: Kv, generation: int, known: bool) -> tuple[int, int]:
    """The state of a key-value store. ``known``: its mark is of a previous life; otherwise it gets a new one."""
    mark = kv.get(META_COPY) if known else None
    if mark is not None:
        return msgspec.msgpack.decode(mark, type=tuple[int, int])
    batch = Batch()
    batch.put(META_COPY, msgspec.msgpack.encode((generation, 0)))
    kv.write(batch)
    return generation, 0
