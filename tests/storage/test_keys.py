"""Key layouts: what is built is parsed again, kinds and sessions keep apart, numbers are in order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starlingmq.storage import keys

sessions = st.integers(0, 2**64 - 1)
KINDS = (keys.SESSION, keys.SUBSCRIPTION, keys.HOLDINGS, keys.RETAINED)
METAS = (keys.META_AS_OF, keys.META_CHECKPOINT, keys.META_NEXT_SESSION)


def within(key: bytes, bounds: tuple[bytes, bytes | None]) -> bool:
    start, end = bounds
    return start <= key and (end is None or key < end)


def keys_of(session: int, text: bytes) -> dict[bytes, bytes]:
    """A key of every kind."""
    return {
        keys.SESSION: keys.session_key(session),
        keys.SUBSCRIPTION: keys.subscription_key(session, text),
        keys.HOLDINGS: keys.holdings_key(session),
        keys.RETAINED: keys.retained_key(text),
    }


@given(session=sessions, text=st.binary(min_size=1, max_size=20))
def test_a_key_is_parsed_into_what_it_was_made_of(session: int, text: bytes) -> None:
    made = keys_of(session, text)
    for kind in KINDS[:-1]:
        assert keys.session_of(made[kind]) == session
    assert keys.filter_of(made[keys.SUBSCRIPTION]) == text
    assert keys.topic_of(made[keys.RETAINED]) == text


@given(session=sessions, other=sessions, text=st.binary(max_size=20))
def test_a_scan_finds_its_kind_and_its_session_and_no_other(session: int, other: int, text: bytes) -> None:
    for kind, key in keys_of(session, text).items():
        assert [found for found in KINDS if within(key, keys.all_of(found))] == [kind]
        if kind == keys.SUBSCRIPTION:
            assert within(key, keys.all_of_session(kind, other)) == (session == other)


@given(one=sessions, other=sessions)
def test_keys_are_in_the_order_of_their_numbers(one: int, other: int) -> None:
    assert (keys.session_key(one) < keys.session_key(other)) == (one < other)


def test_meta_keys_are_apart_from_everything() -> None:
    assert len(set(METAS)) == len(METAS)
    assert not [key for key in METAS for kind in KINDS if within(key, keys.all_of(kind))]


def test_numbers_that_do_not_fit_are_not_cut() -> None:
    for number in (-1, 2**64):
        with pytest.raises(OverflowError):
            keys.session_key(number)


@pytest.mark.parametrize("key", [b"", b"s", b"s1234567"])
def test_a_key_without_a_session_is_refused(key: bytes) -> None:
    with pytest.raises(keys.UnknownKey, match="does not name a session"):
        keys.session_of(key)
