"""Short names of sessions that move, as bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from starlingmq.cluster.takeover.short_names import pack_names, unpack_names

epochs = st.one_of(st.integers(0, 1000), st.integers(0, 2**63 - 1))
names = st.lists(st.tuples(epochs, st.integers(0, 0xFFFF)), max_size=9)


@given(names)
def test_names_come_back_sorted(named: list[tuple[int, int]]) -> None:
    assert unpack_names(pack_names(named)) == sorted(named)


@given(names)
def test_names_that_are_cut_off_are_left_out(named: list[tuple[int, int]]) -> None:
    packed = pack_names(named)
    for end in range(len(packed)):
        found = unpack_names(packed[:end])
        assert found == sorted(named)[: len(found)]


@given(st.binary(max_size=40))
def test_any_bytes_are_read(packed: bytes) -> None:
    assert all(epoch >= 0 and 0 <= name <= 0xFFFF for epoch, name in unpack_names(packed))


def test_a_name_takes_three_bytes_after_the_first() -> None:
    epoch = 7 << 40
    assert len(pack_names([(epoch + count, 0xABCD) for count in range(5)])) == 9 + 4 * 3
