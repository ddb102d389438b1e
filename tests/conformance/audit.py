"""Watch everything the broker writes to a client against the rules that hold for every packet it sends.

The parser here is deliberately not the broker's own: a mistake in the codec must not hide itself. Every conformance
test is audited when it ends (see conftest.py); test_audit.py shows that each rule can fail.
"""

from __future__ import annotations

from typing import Protocol

CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = 2, 3, 4, 5, 6, 7
SUBACK, UNSUBACK, PINGRESP, DISCONNECT, AUTH = 9, 11, 13, 14, 15

# Fixed-header flags of what a server may send; PUBLISH has its own rules.
FLAGS = {CONNACK: 0, PUBACK: 0, PUBREC: 0, PUBREL: 2, PUBCOMP: 0, SUBACK: 0, UNSUBACK: 0, PINGRESP: 0}
FLAGS_V5 = {**FLAGS, DISCONNECT: 0, AUTH: 0}

# Reason codes a server may send, by packet (MQTT 5, tables 3-1, 3-4 to 3-9 and 3-10 to 3-13).
REASONS = {
    CONNACK: {0x00, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, *range(0x99, 0xA0)} - {0x8B},
    PUBACK: {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99},
    PUBREC: {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99},
    PUBREL: {0x00, 0x92},
    PUBCOMP: {0x00, 0x92},
    SUBACK: {0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2},
    UNSUBACK: {0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91},
    DISCONNECT: {0x00, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, *range(0x8D, 0x91), *range(0x93, 0xA3)} - {0x91},
    AUTH: {0x00, 0x18, 0x19},
}
RETURN_CODES = set(range(6))  # CONNACK in 3.x
SUBACK_CODES = {0, 1, 2, 0x80}  # 3.1.1

# Properties a server may send, by packet.
COMMON = {0x1F, 0x26}  # reason string, user property
PROPERTIES = {
    CONNACK: COMMON | {0x11, 0x12, 0x13, 0x15, 0x16, 0x1A, 0x1C, 0x21, 0x22, 0x24, 0x25, 0x27, 0x28, 0x29, 0x2A},
    PUBLISH: {0x01, 0x02, 0x03, 0x08, 0x09, 0x0B, 0x23, 0x26},
    DISCONNECT: COMMON | {0x1C},
    AUTH: COMMON | {0x15, 0x16},
}
REPEATABLE = {0x0B, 0x26}
BYTE = {0x01, 0x17, 0x19, 0x24, 0x25, 0x28, 0x29, 0x2A}
TWO = {0x13, 0x21, 0x22, 0x23}
FOUR = {0x02, 0x11, 0x18, 0x27}


class Watched(Protocol):
    """An audited client of the test harness."""

    version: int
    output: bytes  # everything written to it, since it was opened
    max_packet: int  # its Maximum Packet Size, 0 without


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Value and end of a variable byte integer. AssertionError unless it has the fewest bytes [MQTT-1.5.5-1]."""
    value = shift = 0
    for end in range(at, at + 4):
        value |= (data[end] & 0x7F) << shift
        shift += 7
        if data[end] < 0x80:
            assert end == at or data[end] != 0, "variable byte integer longer than needed"
            return value, end + 1
    raise AssertionError("variable byte integer of more than four bytes")


def split(data: bytes) -> list[tuple[int, bytes, int]]:
    """The packets in what was written: first byte, body, size in all."""
    packets = []
    at = 0
    while at < len(data):
        length, body = varint(data, at + 1)
        assert body + length <= len(data), "packet cut short"
        packets.append((data[at], data[body : body + length], body + length - at))
        at = body + length
    return packets


def text(data: bytes, at: int) -> int:
    """End of a string or of binary data."""
    return at + 2 + int.from_bytes(data[at : at + 2])


def properties(data: bytes, at: int) -> tuple[list[tuple[int, bytes]], int]:
    """Property ids with their raw values, and where the section ends."""
    length, at = varint(data, at)
    end = at + length
    found = []
    while at < end:
        start, id = at + 1, data[at]
        if id in BYTE:
            at = start + 1
        elif id in TWO:
            at = start + 2
        elif id in FOUR:
            at = start + 4
        elif id == 0x0B:
            at = varint(data, start)[1]
        elif id == 0x26:
            at = text(data, text(data, start))
        else:
            at = text(data, start)
        found.append((id, data[start:at]))
    assert at == end <= len(data), "properties do not fill their section"
    return found, end


def property_complaints(kind: int, found: list[tuple[int, bytes]]) -> list[str]:
    ids = [id for id, _ in found]
    lines = [f"property {id:#04x} does not belong here" for id in ids if id not in PROPERTIES.get(kind, COMMON)]
    return lines + [f"property {id:#04x} repeated" for id in set(ids) - REPEATABLE if ids.count(id) > 1]


def publish_complaints(flags: int, body: bytes, version: int) -> list[str]:
    qos, dup = flags >> 1 & 3, flags >> 3
    lines = ["QoS 3"] if qos == 3 else []
    if qos == 0 and dup:
        lines.append("DUP with QoS 0")
    at = text(body, 0)
    topic = body[2:at]
    if b"+" in topic or b"#" in topic or b"\0" in topic:
        lines.append(f"topic name {topic!r}")
    if qos:
        if body[at : at + 2] == b"\0\0":
            lines.append("packet identifier 0")
        at += 2
    if version == 5:
        found, _ = properties(body, at)
        lines += property_complaints(PUBLISH, found)
        if not topic and 0x23 not in dict(found):
            lines.append("neither topic nor alias")
    elif not topic:
        lines.append("empty topic")
    return lines


def codes(kind: int, body: bytes, version: int) -> tuple[list[int], list[tuple[int, bytes]]]:
    """Reason codes and properties of any packet but PUBLISH."""
    if kind == CONNACK:
        found = properties(body, 2)[0] if version == 5 else []
        return [body[1]], found
    if kind in (SUBACK, UNSUBACK):
        if version != 5:
            return list(body[2:]), []
        found, end = properties(body, 2)
        return list(body[end:]), found
    at = 0 if kind in (DISCONNECT, AUTH) else 2
    if len(body) <= at:
        return [], []
    assert version == 5, "reason code before MQTT 5"
    return [body[at]], properties(body, at + 1)[0] if len(body) > at + 1 else []


def code_complaints(kind: int, found: list[int], version: int) -> list[str]:
    allowed = REASONS.get(kind, set())
    if version != 5:
        allowed = {CONNACK: RETURN_CODES, SUBACK: SUBACK_CODES}.get(kind, set())
    return [f"reason code {code:#04x}" for code in found if code not in allowed]


def packet_complaints(first: int, body: bytes, version: int) -> list[str]:
    """The violations in one packet, without its context."""
    kind, flags = first >> 4, first & 15
    if kind == PUBLISH:
        return publish_complaints(flags, body, version)
    known = FLAGS_V5 if version == 5 else FLAGS
    if kind not in known:
        return ["not for a server to send"]
    lines = [f"flags {flags:04b}"] if flags != known[kind] else []
    if kind in (PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK) and body[:2] == b"\0\0":
        lines.append("packet identifier 0")
    if kind == CONNACK and body[0] > 1:
        lines.append("reserved CONNACK flags")
    if kind == CONNACK and body[1] and body[0]:
        lines.append("session present in a refusal")
    found, props = codes(kind, body, version)
    return lines + code_complaints(kind, found, version) + property_complaints(kind, props)


def order_complaints(packets: list[tuple[int, bytes, int]], version: int) -> list[str]:
    """CONNACK once and first (after AUTH), nothing after a refusal or a DISCONNECT."""
    kinds = [first >> 4 for first, _, _ in packets]
    lines = []
    before = [kind for kind in kinds[: kinds.index(CONNACK)] if kind != AUTH] if CONNACK in kinds else kinds
    lines += [f"packet {kind} before CONNACK" for kind in before if kind != AUTH]
    if kinds.count(CONNACK) > 1:
        lines.append("more than one CONNACK")
    for index, (first, body, _) in enumerate(packets[:-1]):
        last_word = first >> 4 == DISCONNECT or (first >> 4 == CONNACK and body[1] != 0)
        if last_word:
            lines.append(f"packet {kinds[index + 1]} after the last word of packet {first >> 4}")
    return lines


def complaints(client: Watched) -> list[str]:
    """Everything the broker did wrong in what it wrote to this client."""
    try:
        packets = split(client.output)
        lines = order_complaints(packets, client.version)
        for first, body, size in packets:
            lines += [f"packet {first >> 4}: {line}" for line in packet_complaints(first, body, client.version)]
            if client.max_packet and size > client.max_packet:
                lines.append(f"packet {first >> 4}: {size} bytes, and the client takes {client.max_packet}")
    except (AssertionError, IndexError) as error:
        return [f"unreadable: {error or type(error).__name__}: {client.output.hex()}"]
    return lines
