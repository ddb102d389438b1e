"""A persistence file of mosquitto, written chunk by chunk from the description of its format."""

from __future__ import annotations

import struct

MAGIC = b"\x00\xb5\x00mosquitto db"


def chunk(kind: int, content: bytes) -> bytes:
    return struct.pack(">II", kind, len(content)) + content


def header(version: int) -> bytes:
    return MAGIC + struct.pack(">II", 0, version) + chunk(1, struct.pack("<QBB6x", 9, 1, 8))


def message(
    id: int, topic: bytes, payload: bytes, qos: int = 1, retain: int = 0, properties: bytes = b"", expires: int = 0
) -> bytes:
    head = struct.pack("<Qq", id, expires) + struct.pack(
        ">IHHHHHBB", len(payload), 0, 2, 1, len(topic), 1883, qos, retain
    )
    return chunk(2, head + b"id" + b"u" + topic + payload + properties)


def for_client(
    id: int, client: bytes, packet_id: int, qos: int, state: int, direction: int = 1, properties: bytes = b""
) -> bytes:
    head = struct.pack("<Q", id) + struct.pack(">HHBBBB", packet_id, len(client), qos, state, 0, direction)
    return chunk(3, head + client + properties)


def retained(id: int) -> bytes:
    return chunk(4, struct.pack("<Q", id))


def subscription(client: bytes, topic: bytes, qos: int, options: int = 0, identifier: int = 0) -> bytes:
    return chunk(5, struct.pack(">IHHBBxx", identifier, len(client), len(topic), qos, options) + client + topic)


def client(version: int, name: bytes, expiry: int, expires: int = 0, last_id: int = 0, user: bytes = b"") -> bytes:
    head = struct.pack("<q", expires) + struct.pack(">IHH", expiry, last_id, len(name))
    if version == 6:
        return chunk(6, head + struct.pack(">HH4x", 1883, len(user)) + name + user)
    return chunk(6, head + name)
