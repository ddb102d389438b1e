"""Every case of the table: whole, byte by byte, followed by the next frame, cut at every length, mutated."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from starlingmq.wire.mqtt import Packet, Publish, decode, decode_publish, encode, frame_length
from starlingmq.wire.reasons import MalformedPacket, MqttError, ProtocolError

from .case_builders import Case
from .cases import BAD, CASES, GOOD

LONG = 1_000  # longer cases are cut and mutated at their ends only
NEXT = b"\x30\x05\x00\x01tab\xd0\x00"


def at(case: Case, step: str) -> str:
    return f"{case.name} ({step}): {case.frame[:40].hex(' ')}"


def header(frame: bytes) -> int:
    """Return the start of the body."""
    start = 2
    while frame[start - 1] & 128:
        start += 1
    return start


def outcome(first: int, data: bytes, start: int, end: int, version: int) -> Packet | int:
    """Return the packet, or the reason code of the MqttError; any other exception fails the test."""
    try:
        return decode(first, data, start, end, version)
    except MqttError as error:
        assert error.reason >= 0x80
        assert error.detail
        return error.reason


def expected(case: Case) -> Packet | int:
    return case.reason if case.packet is None else case.packet


def places(case: Case) -> list[int]:
    """The positions in the body of ``case`` to try something at."""
    start, end = header(case.frame), len(case.frame)
    if end - start <= LONG:
        return list(range(start, end))
    return [*range(start, start + LONG // 2), *range(end - LONG // 2, end)]


def test_names_are_unique() -> None:
    assert [name for name, count in Counter(case.name for case in CASES).items() if count > 1] == []


def test_whole() -> None:
    for case in CASES:
        got = outcome(case.frame[0], case.frame, header(case.frame), len(case.frame), case.version)
        assert got == expected(case), at(case, "whole")


def test_the_exception_says_who_is_at_fault() -> None:
    for case in BAD:
        kind = MalformedPacket if case.reason == 0x81 else ProtocolError
        with pytest.raises(kind):
            decode(case.frame[0], case.frame, header(case.frame), len(case.frame), case.version)


def test_publish_has_a_door_of_its_own() -> None:
    for case in GOOD:
        if isinstance(case.packet, Publish):
            got = decode_publish(case.frame[0], case.frame, header(case.frame), len(case.frame), case.version)
            assert got == case.packet, at(case, "decode_publish")


def test_encoded() -> None:
    for case in GOOD:
        assert case.packet is not None
        raw = encode(case.packet, case.version)
        if case.canonical:
            assert raw == case.frame, at(case, "encoded")
        else:
            assert outcome(raw[0], raw, header(raw), len(raw), case.version) == case.packet, at(case, "encoded")


def test_byte_by_byte() -> None:
    for case in CASES:
        known_from = header(case.frame)
        for have in range(min(len(case.frame), 64) + 1):
            want = len(case.frame) if have >= known_from else 0
            assert frame_length(case.frame[:have], 0) == want, at(case, f"first {have} bytes")
            assert frame_length(b"\xc0\0" + case.frame[:have], 2) == want, at(case, f"first {have} bytes, later")


def test_between_other_frames() -> None:
    for case in CASES:
        for before, after in ((b"", NEXT), (NEXT, b""), (NEXT, NEXT), (b"", b"\0" * 8), (b"", b"\xff" * 8)):
            data, pos = before + case.frame + after, len(before)
            end = pos + frame_length(data, pos)
            assert end == pos + len(case.frame), at(case, "length")
            got = outcome(data[pos], data, pos + header(case.frame), end, case.version)
            assert got == expected(case), at(case, f"between {before!r} and {after!r}")


def test_cut_at_every_length() -> None:
    """A body that ends early gives the same result whatever bytes follow it."""
    for case in CASES:
        first, start = case.frame[0], header(case.frame)
        for end in places(case):
            alone = outcome(first, case.frame[:end], start, end, case.version)
            assert outcome(first, case.frame, start, end, case.version) == alone, at(case, f"cut at {end}")
            if isinstance(alone, Packet):
                assert_stable(alone, case, f"cut at {end}")


def test_cut_packets_do_not_pass_as_whole_ones() -> None:
    for case in GOOD:
        start = header(case.frame)
        for end in places(case):
            got = outcome(case.frame[0], case.frame, start, end, case.version)
            assert got != case.packet or not case.canonical, at(case, f"cut at {end}")


def test_mutated_at_every_byte() -> None:
    rng = random.Random(20_010)
    for case in CASES:
        for place in [0, *places(case)]:
            old = case.frame[place]
            values = (
                {old ^ (1 << rng.randrange(8)), rng.randrange(256), 0, 255} if len(case.frame) < 200 else {old ^ 255}
            )
            for value in sorted(values):
                data = case.frame[:place] + bytes((value,)) + case.frame[place + 1 :]
                got = outcome(data[0], data, header(case.frame), len(data), case.version)
                if isinstance(got, Packet):
                    assert_stable(got, case, f"byte {place} is {value}")


def assert_stable(packet: Packet, case: Case, step: str) -> None:
    """Check that decoding, encoding and decoding again gives the same packet."""
    raw = encode(packet, case.version)
    assert frame_length(raw, 0) == len(raw), at(case, step)
    assert outcome(raw[0], raw, header(raw), len(raw), case.version) == packet, at(case, step)


def test_noise_of_every_packet_type() -> None:
    rng = random.Random(20_011)
    for _ in range(20_000):
        body = rng.randbytes(rng.randrange(24))
        outcome(rng.randrange(256), body, 0, len(body), rng.choice((3, 4, 5)))


@pytest.mark.parametrize(
    ("raw", "length"),
    [
        ("", 0),
        ("30", 0),
        ("30 00", 2),
        ("30 7f", 129),
        ("30 80", 0),
        ("30 80 01", 131),
        ("30 ff 7f", 16_386),
        ("30 80 80", 0),
        ("30 80 80 01", 16_388),
        ("30 ff ff 7f", 2_097_155),
        ("30 ff ff ff", 0),
        ("30 80 80 80 01", 2_097_157),
        ("30 ff ff ff 7f", 268_435_460),
    ],
)
def test_remaining_length(raw: str, length: int) -> None:
    data = bytes.fromhex(raw)
    assert frame_length(data, 0) == length
    assert frame_length(b"\xff\xff" + data, 2) == length


@pytest.mark.parametrize("last", [0x80, 0x81, 0xFF])
def test_remaining_length_of_five_bytes(last: int) -> None:
    with pytest.raises(MalformedPacket):
        frame_length(b"\x30\x80\x80\x80" + bytes((last,)), 0)


@pytest.mark.parametrize("length", ["8000", "8400", "ff00", "808000", "ffff00", "80808000", "ffffff00"])
def test_a_remaining_length_of_more_bytes_than_it_needs_is_malformed_in_mqtt_5(length: str) -> None:
    """[MQTT-1.5.5-1]"""
    for first in range(256):
        packet = bytes((first,)) + bytes.fromhex(length)
        with pytest.raises(MalformedPacket):
            frame_length(packet, 0)
        value = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(packet[1:]))
        assert frame_length(packet, 0, shortest=False) == len(packet) + value
