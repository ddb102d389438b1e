"""Messages between nodes: invalid data is an error of one kind, whatever it is."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starlingmq.core.delivery.forward_batch import ForwardError, ForwardReader, encode_forward
from starlingmq.core.messages.message import Message


def a_message() -> Message:
    message = Message(b"a/b", b"payload", 1, False, b"\0", 30.0, "Ärztin", 1.0)
    message.id = b"id"
    return message


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), max_size=3))
def test_invalid_data_is_a_forward_error(changes: list[tuple[int, int]]) -> None:
    data = bytearray(encode_forward(a_message(), b"$share/g/a/b", True, 2.0))
    for at, byte in changes:
        data[at % len(data)] = byte
    reader = ForwardReader(bytes(data), 1, 2.0)
    with suppress(ForwardError):
        while reader.left():
            reader.next()
    assert reader.at > 0


def test_a_name_that_is_not_utf_8_is_one() -> None:
    data = encode_forward(a_message(), b"", True, 2.0).replace("Ärztin".encode(), b"\xff" * 7)
    with pytest.raises(ForwardError, match="UTF-8"):
        ForwardReader(data, 1, 2.0).next()
