"""Messages between nodes as bytes: however the bytes come apart, the messages are the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starlingmq.net.peers.peer_wire import (
    REASON_BYTES_MAX,
    SIGN_OF_LIFE,
    MessageReader,
    OlderError,
    WireError,
    ending,
    framed,
    head,
)

LIMIT = 100


@given(st.lists(st.one_of(st.none(), st.binary(max_size=LIMIT))), st.lists(st.integers(1, 60)), st.text(max_size=50))
def test_messages_come_out_as_they_went_in(parts: list[bytes | None], cuts: list[int], reason: str) -> None:
    data = b"".join(SIGN_OF_LIFE if part is None else framed(part) for part in parts) + ending(reason) + framed(b"late")
    reader = MessageReader(LIMIT)
    messages = []
    for size in [*cuts, len(data)]:
        messages += reader.feed(data[:size])
        data = data[size:]
    assert messages == [part for part in parts if part is not None]
    assert reader.reason == reason


def test_a_length_above_the_limit_is_an_error_as_soon_as_it_has_come() -> None:
    reader = MessageReader(LIMIT)
    assert reader.feed(framed(bytes(LIMIT))) == [bytes(LIMIT)]
    with pytest.raises(WireError):
        reader.feed(head(LIMIT + 1, b""))
    with pytest.raises(WireError):
        MessageReader(LIMIT).feed(head(0x8000_0000 + REASON_BYTES_MAX + 1, b""))


def test_a_long_reason_is_cut() -> None:
    reader = MessageReader(LIMIT)
    reader.feed(ending("é" * REASON_BYTES_MAX))
    assert reader.reason is not None and reader.reason.startswith("é" * (REASON_BYTES_MAX // 2))


def test_http2_is_recognised() -> None:
    with pytest.raises(OlderError):
        MessageReader(LIMIT).feed(b"PRI * HTTP/2.0\r\n")
    with pytest.raises(OlderError):
        MessageReader(LIMIT).feed(b"\0\0\x06\x04\0\0\0\0\0\0\x03\0")
    pending = MessageReader(10_000)
    assert pending.feed(b"\0\0\x18\x04\0\0\0\0\0") == [] and pending.is_settings()


@given(st.lists(st.binary(max_size=LIMIT), min_size=1), st.data())
def test_a_flipped_bit_is_an_error_and_no_other_message_comes_out(parts: list[bytes], drawn: st.DataObject) -> None:
    data = bytearray(b"".join(map(framed, parts)))
    flipped = drawn.draw(st.integers(0, 8 * len(data) - 1))
    data[flipped // 8] ^= 1 << flipped % 8
    cut = drawn.draw(st.integers(0, len(data)))
    reader = MessageReader(LIMIT)
    messages: list[bytes] = []
    with pytest.raises(WireError):
        for piece in (data[:cut], data[cut:]):
            messages += reader.feed(bytes(piece))
    assert messages == parts[: len(messages)]
