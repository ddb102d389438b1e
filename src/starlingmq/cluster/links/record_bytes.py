"""Route records as bytes between nodes: the filters of a fleet differ in a few characters.

One record: varints of its value, of the number of bytes that its key has in common with the key before it at the
beginning, and at the end after those, and of the bytes in between; then those. The first record follows an empty key.
The stored form (``route_facts``) has each key whole, so that facts do not depend on each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

VALUE_BITS: Final = 128  # of a summary of filters (core.router.filter_summary); all other numbers are smaller
KEYS_MAX: Final = 1 << 20  # bytes of all keys; frames have 64 KiB, or one longer key


class RouteRecordError(ValueError):
    """The bytes are no records: sent by another version, or by a bug."""


class RouteRecord:
    """A node's own route for one filter or shared group.

    ``key`` is a topic filter, ``$share/name/filter`` for a group, or belongs to a summary of filters
    (core.router.filter_summary; only there values have more than 32 bits). ``value`` 0: not wanted any more. For a
    filter 1: wanted, 2: wanted durably (by a persistent session at QoS 1 or 2). For a group: its members on that node.
    """

    __slots__ = ("key", "value")

    def __init__(self, key: bytes, value: int) -> None:
        self.key = key
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RouteRecord) and self.key == other.key and self.value == other.value

    def __repr__(self) -> str:
        return f"RouteRecord(key={self.key!r}, value={self.value})"


class PackedRecords:
    """The records of a frame. The same frame goes to all nodes in turn, so its bytes are made once."""

    __slots__ = ("_packed", "all")

    def __init__(self, records: Sequence[RouteRecord]) -> None:
        self.all = records
        self._packed: bytes | None = None

    def packed(self) -> bytes:
        packed = self._packed
        if packed is None:
            packed = self._packed = pack_records(self.all)
        return packed

    def __len__(self) -> int:
        return len(self.all)

    def __iter__(self) -> Iterator[RouteRecord]:
        return iter(self.all)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PackedRecords) and self.packed() == other.packed()

    def __repr__(self) -> str:
        return repr(self.all)


def pack_records(records: Sequence[RouteRecord]) -> bytes:
    out = bytearray()
    last = b""
    for record in records:
        key = record.key
        most = min(len(last), len(key))
        begin = 0
        if most and key.startswith(last[:most]):
            begin = most
        while begin < most and last[begin] == key[begin]:
            begin += 1
        end = 0
        most -= begin
        while end < most and last[-1 - end] == key[-1 - end]:
            end += 1
        _put(out, record.value)
        _put(out, begin)
        _put(out, end)
        _put(out, len(key) - begin - end)
        out += key[begin : len(key) - end]
        last = key
    return bytes(out)


def unpack_records(data: bytes) -> list[RouteRecord]:
    """Raises RouteRecordError."""
    reader = _RecordReader(data)
    records: list[RouteRecord] = []
    last = b""
    size = 0
    while reader.at < len(data):
        value = reader.number()
        begin = reader.number()
        end = reader.number()
        length = reader.number()
        if begin + end > len(last) or reader.at + length > len(data):
            raise RouteRecordError("the route records are malformed")
        key = last[:begin] + data[reader.at : reader.at + length] + last[len(last) - end :]
        reader.at += length
        size += len(key)
        if size > KEYS_MAX:
            raise RouteRecordError("the route records are too large")
        records.append(RouteRecord(key, value))
        last = key
    return records


def _put(out: bytearray, value: int) -> None:
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)


class _RecordReader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def number(self) -> int:
        value = shift = 0
        while self.at < len(self.data) and shift < VALUE_BITS:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            if byte < 128 and value >> VALUE_BITS == 0:
                return value
            shift += 7
        raise RouteRecordError("the route records are truncated")
