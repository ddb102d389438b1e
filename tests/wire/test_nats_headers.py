from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starlingmq.wire.nats_headers import carried, properties_of
from starlingmq.wire.properties import (
    CONTENT_TYPE,
    CORRELATION_DATA,
    MESSAGE_EXPIRY_INTERVAL,
    PAYLOAD_FORMAT_INDICATOR,
    RESPONSE_TOPIC,
    SUBSCRIPTION_IDENTIFIER,
    TOPIC_ALIAS,
    USER_PROPERTY,
    Properties,
    decode_property_bytes,
    encode_property_bytes,
)

CASES: list[tuple[bytes, list[tuple[str, str]]]] = [
    (b"NATS/1.0\r\n\r\n", []),
    (b"NATS/1.0\r\nA: b\r\n\r\n", [("A", "b")]),
    (b"NATS/1.0\r\nA:b\r\na:  c \r\nA: b\r\n\r\n", [("A", "b"), ("a", "c"), ("A", "b")]),
    (b"NATS/1.0\r\nEmpty:\r\nUrl: http://x:1\r\n\r\n", [("Empty", ""), ("Url", "http://x:1")]),
    (b"NATS/1.0 503\r\n\r\n", [("Status", "503")]),
    (
        b"NATS/1.0 100 Idle Heartbeat\r\nX: y\r\n\r\n",
        [("Status", "100"), ("Description", "Idle Heartbeat"), ("X", "y")],
    ),
]


@pytest.mark.parametrize(("block", "pairs"), CASES)
def test_headers_are_user_properties(block: bytes, pairs: list[tuple[str, str]]) -> None:
    told: Any = decode_property_bytes(properties_of(block, b"")).get(USER_PROPERTY, [])
    if told[0][0] == "NATS/1.0":
        assert told.pop(0)[1].encode() == block.removeprefix(b"NATS/1.0")
    assert told == pairs
    assert carried(properties_of(block, b"")).headers == block
    found = decode_property_bytes(properties_of(block, b"_INBOX/1"))
    assert found.get(RESPONSE_TOPIC) == "_INBOX/1"


@pytest.mark.parametrize(
    "block",
    [
        b"A: b\r\n\r\n",
        b"NATS/1.0\r\nA: b\r\n",
        b"NATS/1.0\r\nA\r\n\r\n",
        b"NATS/1.0\r\n: b\r\n\r\n",
        b"NATS/1.0\r\nA: \xff\r\n\r\n",
        b"NATS/1.0\r\nA: \0\r\n\r\n",
        b"NATS/1.0\r\nA: " + b"x" * 65536 + b"\r\n\r\n",
    ],
)
def test_invalid_header_blocks_are_refused(block: bytes) -> None:
    with pytest.raises(ValueError):
        properties_of(block, b"")


def test_nats_gets_user_properties_and_response_topic_of_mqtt_messages() -> None:
    properties: Properties = {
        PAYLOAD_FORMAT_INDICATOR: 1,
        MESSAGE_EXPIRY_INTERVAL: 60,
        CONTENT_TYPE: "text/plain",
        USER_PROPERTY: [("A", "b"), ("", "no name"), ("B C", "a blank"), ("D", "two\r\nlines"), ("E:", "x"), ("F", "")],
        RESPONSE_TOPIC: "answers/1",
        CORRELATION_DATA: b"\x26\x00",
    }
    told = carried(encode_property_bytes(properties))
    assert told.response_topic == b"answers/1"
    assert told.headers == b"NATS/1.0\r\nA: b\r\nF: \r\n\r\n"


def test_properties_of_every_shape_are_stepped_over() -> None:
    raw = (
        encode_property_bytes({TOPIC_ALIAS: 5}) + b"\x0b\xff\x7f" + encode_property_bytes({USER_PROPERTY: [("A", "b")]})
    )
    assert SUBSCRIPTION_IDENTIFIER == 0x0B
    assert carried(raw).headers == b"NATS/1.0\r\nA: b\r\n\r\n"


name = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=":"), min_size=1, max_size=10)
value = st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"]), max_size=10)


@settings(deadline=None)
@given(st.lists(st.tuples(name, value), max_size=5), st.sampled_from([b"", b"a/b"]))
def test_headers_come_back(pairs: list[tuple[str, str]], reply: bytes) -> None:
    lines = "".join(f"{name}: {value}\r\n" for name, value in pairs)
    block = f"NATS/1.0\r\n{lines}\r\n".encode()
    properties = properties_of(block, reply)
    assert not pairs or b"NATS/1.0" not in properties, "the usual spelling needs no second copy"
    told = carried(properties)
    assert told.response_topic == reply
    assert told.headers == block


blank = st.text(" \t", max_size=3)


@settings(deadline=None)
@given(blank, st.lists(st.tuples(blank, name, blank, value, blank), max_size=5))
def test_headers_come_back_as_they_were_spelled(status: str, rows: list[tuple[str, str, str, str, str]]) -> None:
    lines = "".join(f"{before}{name}:{gap}{value}{after}\r\n" for before, name, gap, value, after in rows)
    block = f"NATS/1.0{status}\r\n{lines}\r\n".encode()
    assert carried(properties_of(block, b"a")).headers == block


odd_value = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=10)


@settings(deadline=None)
@given(st.lists(st.tuples(name, odd_value), min_size=1, max_size=5))
def test_headers_come_back_whatever_their_values_have(pairs: list[tuple[str, str]]) -> None:
    """A lone CR or LF, control characters, line separators of Unicode. CR LF ends a value."""
    lines = "".join(f"{name}: {value.replace(chr(13) + chr(10), '|')}\r\n" for name, value in pairs)
    block = f"NATS/1.0\r\n{lines}\r\n".encode()
    assert carried(properties_of(block, b"a")).headers == block


@pytest.mark.parametrize("over", range(-5, 6))
def test_a_block_that_needs_a_little_more_than_one_property_comes_back(over: int) -> None:
    head, end = b"NATS/1.0\r\nA:", b"\r\n\r\n"
    block = head + b"x" * 30_000 + b"\r\nB:" + b"y" * (65_535 + 8 + over - len(head) - 30_004 - len(end)) + end
    assert len(block) - 8 == 65_535 + over
    assert carried(properties_of(block, b"")).headers == block


@pytest.mark.parametrize("size", [65_000, 65_535, 65_536, 70_000, 200_000])
def test_large_blocks_of_an_unusual_form_come_back(size: int) -> None:
    lines = "".join(f"N{number}:\u20ac{'x' * (size // 100)}\ry\r\n" for number in range(100))
    block = f"NATS/1.0\r\n{lines}\r\n".encode()
    properties = properties_of(block, b"")
    decode_property_bytes(properties)  # each of them is valid
    assert carried(properties).headers == block


def test_a_block_that_mqtt_made_up_ends_like_a_block_or_counts_as_a_header() -> None:
    for values in (["x", "y"], ["x", "\r\n", "y"]):
        found = carried(encode_property_bytes({USER_PROPERTY: [("NATS/1.0", value) for value in values]})).headers
        assert found == b"NATS/1.0\r\nNATS/1.0: x\r\nNATS/1.0: y\r\n\r\n"
    for value in ("", "x", " 100\r\n", "\r\nA: b"):
        assert carried(encode_property_bytes({USER_PROPERTY: [("NATS/1.0", value)]})).headers in (
            b"",
            b"NATS/1.0\r\nNATS/1.0: %b\r\n\r\n" % value.encode(),
        )
