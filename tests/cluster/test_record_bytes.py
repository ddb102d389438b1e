"""Route records as bytes between nodes."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starlingmq.cluster.links.record_bytes import KEYS_MAX, RouteRecord, RouteRecordError, pack_records, unpack_records

keys = st.one_of(st.binary(max_size=300), st.text("ab/", max_size=9).map(str.encode))
records = st.lists(st.builds(RouteRecord, keys, st.integers(0, 2**32 - 1)), max_size=12)


@given(records)
def test_records_are_read_as_they_were(some: list[RouteRecord]) -> None:
    assert unpack_records(pack_records(some)) == some


@pytest.mark.parametrize(
    ("first", "second"),
    [(b"", b""), (b"a", b"a"), (b"aa", b"aaa"), (b"aaa", b"aa"), (b"abcabc", b"abc"), (b"a/b", b"a/c/b"), (b"x", b"")],
)
def test_what_two_keys_have_in_common_is_counted_once(first: bytes, second: bytes) -> None:
    some = [RouteRecord(first, 2), RouteRecord(second, 0)]
    assert unpack_records(pack_records(some)) == some


def test_filters_of_one_shape_take_a_few_bytes_each() -> None:
    some = [RouteRecord(b"devices/device-%07d/commands" % number, 2) for number in range(1000)]
    assert len(pack_records(some)) < 7 * len(some)


@given(st.binary(max_size=60))
def test_any_bytes_are_records_or_refused(data: bytes) -> None:
    with suppress(RouteRecordError):
        unpack_records(data)


@pytest.mark.parametrize("data", [b"\x01", b"\x01\x00\x00\x05abc", b"\x01\x01\x00\x00", b"\xff" * 12])
def test_what_is_malformed_is_refused(data: bytes) -> None:
    with pytest.raises(RouteRecordError):
        unpack_records(data)


def test_a_few_bytes_do_not_become_very_many() -> None:
    long = bytes(60_000)
    data = pack_records([RouteRecord(long, 1)] * (KEYS_MAX // len(long) + 1))
    with pytest.raises(RouteRecordError, match="too large"):
        unpack_records(data)
