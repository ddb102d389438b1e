"""Stays as facts: what versions before have stored is read."""

from __future__ import annotations

import msgspec
import pytest

from starlingmq.cluster.qos2.stay_values import StayValue, decode_stay, encode_stay

VALUE = StayValue(12.5, b"\x00\x07\x01\x00", True, "alice")


def test_a_stay_is_an_array_and_comes_out_as_it_went_in() -> None:
    assert msgspec.msgpack.decode(encode_stay(VALUE)) == [12.5, b"\x00\x07\x01\x00", True, "alice"]
    assert decode_stay(encode_stay(VALUE)) == VALUE


def test_the_map_of_an_earlier_compiled_node_is_read() -> None:
    stored = {"ended_at": 12.5, "completed": b"\x00\x07\x01\x00", "owned": True, "owner": "alice"}
    assert decode_stay(msgspec.msgpack.encode(stored)) == VALUE
    assert decode_stay(msgspec.msgpack.encode({"ended_at": 1.0, "completed": b""})) == StayValue(1.0, b"")


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x80", b"\x90"])
def test_anything_else_is_an_error(data: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode_stay(data)
