"""Journal engines against a list."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.few import live
from tests.storage.engines import JOURNAL_ENGINES, ListJournal

from starlingmq.storage.journal import Journal

records = st.lists(st.binary(max_size=6), max_size=5)


@pytest.mark.parametrize("engine", JOURNAL_ENGINES)
def test_an_engine_is_a_list(engine: str) -> None:
    class AsTheListSays(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.journal: Journal = JOURNAL_ENGINES[engine]()
            self.twin = ListJournal()

        @rule(records=records)
        def append(self, records: list[bytes]) -> None:
            assert self.journal.append(records) == len(self.twin.records)
            self.twin.append(records)

        @rule(back=st.integers(-2, 12), count=st.integers(1, 6), size=st.integers(0, 20))
        def read(self, back: int, count: int, size: int) -> None:
            offset = max(0, self.journal.next - back)
            begin = max(offset, self.journal.first)
            assert self.journal.read(offset, count, size) == self.twin.read(begin, count, size)

        @rule(back=st.integers(-2, 12))
        def trim(self, back: int) -> None:
            before = max(0, self.journal.next - back)
            self.journal.trim(before)
            self.twin.trimmed = max(self.twin.trimmed, min(before, len(self.twin.records)))

        @rule()
        def sync(self) -> None:
            self.journal.sync()

        @invariant()
        def nothing_is_gone_that_was_not_trimmed(self) -> None:
            assert self.journal.next == len(self.twin.records)
            assert self.journal.first <= self.twin.trimmed
            kept = self.twin.records[self.journal.first :]
            assert self.journal.size >= sum(map(len, kept))

        def teardown(self) -> None:
            everything = self.journal.read(0, 10_000, 1_000_000)
            assert everything == list(enumerate(self.twin.records))[self.journal.first :]
            self.journal.close()
            self.journal.close()

    live(AsTheListSays, 60)


def test_memory_gives_back_what_is_trimmed() -> None:
    """However far readers lag behind each other, trimming in small steps must not keep the dead."""
    journal = JOURNAL_ENGINES["memory"]()
    for number in range(1000):
        journal.append([b"x" * 100] * 10)
        journal.trim(number * 10)
        assert journal.size == (journal.next - journal.first) * 100 <= 1000
    assert journal.read(0, 1, 0) == [(9990, b"x" * 100)]


def test_an_empty_append_takes_no_offset() -> None:
    journal = JOURNAL_ENGINES["memory"]()
    assert journal.append([]) == 0
    assert journal.append([b"a"]) == 0
    assert journal.next == 1
