"""The few MQTT frames the load generator needs, encoded once, written without the package under test.

A cell uses PUBLISH frames of one fixed size, so that a receiver can count them by arithmetic. For QoS 1 and 2 the
size is also a multiple of four, the size of an acknowledgement: a mixed stream of PUBLISH and PUBREL is then a
stream of 4-byte words in which every frame starts on a word (see ``flow.Subscriber``).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

PUBACK: Final = 0x40
PUBREC: Final = 0x50
PUBREL: Final = 0x62
PUBCOMP: Final = 0x70
ACK_SIZE: Final = 4
CONNACK: Final = 0x20
SUBACK: Final = 0x90


def varint(value: int) -> bytes:
    """A remaining length."""
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def text(value: str) -> bytes:
    data = value.encode()
    return len(data).to_bytes(2, "big") + data


def connect(
    client_id: str,
    version: int,
    persistent: bool = False,
    login: tuple[str, str] | None = None,
    keep_alive: int = 0,
) -> bytes:
    """CONNECT; version 4 is MQTT 3.1.1, 5 is MQTT 5. ``persistent`` sessions only with 3.1.1. ``login`` is a user name
    and a password, ``keep_alive`` is in seconds."""
    if persistent and version == 5:
        raise ValueError("persistent sessions are made with MQTT 3.1.1")
    flags = (0 if persistent else 0x02) | (0xC0 if login else 0)
    body = text("MQTT") + bytes((version, flags)) + keep_alive.to_bytes(2, "big")
    body += (b"\0" if version == 5 else b"") + text(client_id)
    body += b"".join(map(text, login or ()))
    return b"\x10" + varint(len(body)) + body


def subscribe(packet_id: int, filters: list[str], qos: int, version: int) -> bytes:
    option = bytes((qos,))
    body = packet_id.to_bytes(2, "big") + (b"\0" if version == 5 else b"")
    body += b"".join(text(item) + option for item in filters)
    return b"\x82" + varint(len(body)) + body


def publish(topic: str, payload: bytes, qos: int, packet_id: int, version: int, retain: bool = False) -> bytes:
    body = text(topic) + (packet_id.to_bytes(2, "big") if qos else b"") + (b"\0" if version == 5 else b"") + payload
    return bytes((0x30 | qos << 1 | retain,)) + varint(len(body)) + body


def frame_size(data: bytes | bytearray, at: int = 0) -> int:
    """Return the size of the frame that starts at ``at``, 0 while its remaining length is incomplete."""
    size = shift = 0
    for position in range(at + 1, min(at + 5, len(data))):
        size |= (data[position] & 127) << shift
        shift += 7
        if data[position] < 128:
            return position + 1 - at + size
    return 0


class Layout:
    """The layout of the PUBLISH frames of one cell.

    ``frame`` is the size in bytes, ``packet_id`` the offset of the packet identifier (0 for QoS 0), ``payload`` the
    offset of the payload. The topic is ten characters, nine in MQTT 5 where an empty property length takes its place;
    neither puts a word that looks like the start of a frame inside one.
    """

    def __init__(self, qos: int, version: int, payload_size: int) -> None:
        self.qos = qos
        self.version = version
        self.topic_size = 10 if version == 4 else 9
        self.packet_id = 4 + self.topic_size if qos else 0
        self.payload_size = payload_size
        self.payload = 4 + self.topic_size + (2 if qos else 0) + (version == 5)
        self.frame = self.payload + payload_size
        if self.frame > 129:
            raise ValueError("the payload is too large for a remaining length of one byte")
        if qos and self.frame % ACK_SIZE:
            raise ValueError("QoS 1 and 2 frames need a size that is a multiple of four")
        first = bytes((0x30 | qos << 1, self.frame - 2, 0, self.topic_size))
        self.head = int.from_bytes(first, "little")
        self.body_size = self.frame - 2

    def topic(self, number: int) -> str:
        return f"b/{number:0{self.topic_size - 2}d}"

    def publishes(self, topics: list[str], count: int) -> Bytes:
        """``count`` frames one after the other, the topics in turn, packet identifiers from 1; shape (count, frame)."""
        payload = b"." * self.payload_size
        frames = [publish(topic, payload, self.qos, 1, self.version) for topic in topics]
        rows = np.frombuffer(b"".join(frames), np.uint8).reshape(len(topics), self.frame)
        block = np.ascontiguousarray(np.resize(rows, (count, self.frame)))
        if self.qos:
            numbers = np.arange(1, count + 1, dtype=">u2").view(np.uint8).reshape(count, 2)
            block[:, self.packet_id : self.packet_id + 2] = numbers
        return block


def blank_acks(first: int, count: int) -> Bytes:
    """``count`` acknowledgements whose identifiers are still to be written; shape (count, 4)."""
    acks = np.zeros((count, ACK_SIZE), np.uint8)
    acks[:, 0] = first
    acks[:, 1] = 2
    return acks
