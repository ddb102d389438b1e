"""Key-value engines against a dict."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from tests.few import live
from tests.storage.engines import KV_ENGINES, DictKv

from starlingmq.storage.kv import Batch, Kv, after, prefix_end

# Short keys of few bytes meet each other; the last byte and the empty key are where bounds go wrong.
keys = st.text("\x00\x01ab\xfe\xff", max_size=3).map(lambda text: text.encode("latin-1"))
changes = st.lists(st.tuples(keys, st.none() | st.binary(max_size=3)), max_size=8)


def batch(wanted: list[tuple[bytes, bytes | None]]) -> Batch:
    made = Batch()
    for key, value in wanted:
        if value is None:
            made.delete(key)
        else:
            made.put(key, value)
    return made


@pytest.mark.parametrize("engine", KV_ENGINES)
def test_an_engine_is_a_sorted_dict(engine: str) -> None:
    class AsTheDictSays(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.kv: Kv = KV_ENGINES[engine]()
            self.twin = DictKv()

        @rule(changes=changes)
        def write(self, changes: list[tuple[bytes, bytes | None]]) -> None:
            self.kv.write(batch(changes))
            self.twin.write(batch(changes))

        @rule(key=keys)
        def get(self, key: bytes) -> None:
            assert self.kv.get(key) == self.twin.values.get(key)

        @rule(start=keys, end=st.none() | keys, limit=st.integers(0, 6), reverse=st.booleans())
        def scan(self, start: bytes, end: bytes | None, limit: int, reverse: bool) -> None:
            assert self.kv.scan(start, end, limit, reverse) == self.twin.scan(start, end, limit, reverse)

        @rule(prefix=keys)
        def everything_below_a_prefix_a_piece_at_a_time(self, prefix: bytes) -> None:
            found: list[tuple[bytes, bytes]] = []
            start = prefix
            while piece := self.kv.scan(start, prefix_end(prefix), 2):
                found += piece
                start = after(piece[-1][0])
            assert found == sorted(item for item in self.twin.values.items() if item[0].startswith(prefix))

        @rule()
        def sync(self) -> None:
            self.kv.sync()

        def teardown(self) -> None:
            assert self.kv.scan(b"", None, 10_000) == self.twin.scan(b"", None, 10_000, False)
            self.kv.close()
            self.kv.close()

    live(AsTheDictSays, 60)


@given(prefix=keys, key=keys)
def test_the_end_of_a_prefix(prefix: bytes, key: bytes) -> None:
    end = prefix_end(prefix)
    assert (prefix <= key and (end is None or key < end)) == key.startswith(prefix)


@given(key=keys, other=keys)
def test_nothing_lies_between_a_key_and_the_one_after_it(key: bytes, other: bytes) -> None:
    assert (other > key) == (other >= after(key))


def test_the_last_change_to_a_key_counts() -> None:
    assert batch([(b"a", b"1"), (b"a", None), (b"b", None), (b"b", b"2")]).changes == {b"a": None, b"b": b"2"}
