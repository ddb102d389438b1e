"""Which offsets of the journal were given back, so that no new reference may be made to them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.storage.memory_engine import MemoryJournal

from starlingmq.storage.journal_gc import JournalGc
from starlingmq.storage.storage_thread import StorageThread

RANGES = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 10)), max_size=12)


@given(RANGES)
def test_exactly_the_freed_offsets_are_known_as_freed(ranges: list[tuple[int, int]]) -> None:
    """Segments go in any order: one in the middle may be needed for longer than those around it."""
    gc = JournalGc(MemoryJournal(), StorageThread(), False, 1)
    gone: set[int] = set()
    for first, count in ranges:
        gc._withdraw_offsets(first, first + count)
        gone |= set(range(first, first + count))
        assert {offset for offset in range(60) if not gc.keep(offset)} == gone
