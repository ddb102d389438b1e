"""Records of a stream's log as columns, in Arrow's array layout: the compiled hot path of reading.

A record is located, checked, split and appended to the columns without allocating an object: the heads are those of
storage/segment/segment_format.py, their content is a MESSAGE record of storage/records.py.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, read_f64_le, read_i32_le, write_i32_le, write_i64_le
from zlib_ng.zlib_ng import crc32

from starlingmq.core.topics.topics import matches
from starlingmq.storage.records import EXPIRES, MESSAGE, NAMED, PASSED, RecordError
from starlingmq.storage.segment.segment_format import HEAD_SIZE, LENGTH, LOW
from starlingmq.wire.named_properties import NAMES
from starlingmq.wire.properties import USER_PROPERTY, decode_property_bytes

TOPICS_MAX: Final = 65536  # topics whose match is cached
# Why ``gather`` returned.
DONE: Final = 0  # reached the offset or a maximum
SHORT: Final = 1  # the data ends within a record
DAMAGED: Final = 2  # the checksum of the next record is wrong


class TopicFilter:
    """The requested topics: those that one of the filters matches; no filter: all."""

    filters: list[bytes]
    known: dict[bytes, bool]

    def __init__(self, filters: list[bytes]) -> None:
        self.filters = filters
        self.known = {}

    def wants(self, topic: bytes) -> bool:
        found = self.known.get(topic)
        if found is not None:
            return found
        wanted = len(self.filters) == 0
        for filter in self.filters:
            if matches(filter, topic):
                wanted = True
                break
        if len(self.known) >= TOPICS_MAX:
            self.known.clear()
        self.known[topic] = wanted
        return wanted


class Texts:
    """A column of strings or bytes: all values concatenated, and the end of each."""

    data: BytesWriter
    ends: BytesWriter

    def __init__(self) -> None:
        self.data = BytesWriter()
        self.ends = BytesWriter()
        write_i32_le(self.ends, 0)

    def add(self, value: bytes) -> None:
        self.data.write(value)
        write_i32_le(self.ends, len(self.data))


class Columns:
    """``count`` rows. ``at`` and ``next``: the position in the data and the offset at which reading continues."""

    count: int
    topics: Texts
    payloads: Texts
    clients: Texts
    qos: BytesWriter  # one byte per row
    retain: BytesWriter  # one byte per row, 0 or 1
    times: BytesWriter  # microseconds since 1970
    offsets: BytesWriter
    property_ends: BytesWriter  # of each row's properties in the two columns
    names: Texts
    values: Texts
    properties: int
    size: int  # bytes of topics, payloads, client ids and properties
    lost: int  # damaged records before ``next``
    at: int
    next: int

    def __init__(self, at: int, next: int) -> None:
        self.count = 0
        self.topics = Texts()
        self.payloads = Texts()
        self.clients = Texts()
        self.qos = BytesWriter()
        self.retain = BytesWriter()
        self.times = BytesWriter()
        self.offsets = BytesWriter()
        self.property_ends = BytesWriter()
        write_i32_le(self.property_ends, 0)
        self.names = Texts()
        self.values = Texts()
        self.properties = 0
        self.size = 0
        self.lost = 0
        self.at = at
        self.next = next

    def add_properties(self, raw: bytes) -> None:
        found = decode_property_bytes(raw)
        for identifier, value in found.items():
            if identifier == USER_PROPERTY:
                assert isinstance(value, list)
                for pair in value:
                    assert isinstance(pair, tuple)
                    self._property(pair[0], pair[1])
            elif identifier in NAMES:
                self._property(NAMES[identifier], value.hex() if isinstance(value, bytes) else str(value))

    def _property(self, name: str, value: str) -> None:
        self.names.add(name.encode())
        self.values.add(value.encode())
        self.properties += 1


def gather(data: bytes, salt: int, stop: int, rows_max: int, bytes_max: int, wanted: TopicFilter, out: Columns) -> int:
    """Append records to ``out``, from its position, up to the offset ``stop`` or until it has ``rows_max`` rows or
    ``bytes_max`` bytes. Returns why it ended. Raises RecordError for an invalid record with a correct checksum.
    """
    size = len(data)
    at = out.at
    offset = out.next
    checksum = crc32
    length_mask, low, head = LENGTH, LOW, HEAD_SIZE
    all_wanted = len(wanted.filters) == 0
    why = DONE
    while offset < stop and out.count < rows_max and out.size < bytes_max:
        if at + head > size:
            why = SHORT
            break
        word: int = read_i32_le(data, at)  # signed, and an int is wider than the field
        crc: int = read_i32_le(data, at + 4)
        low_bits: int = read_i32_le(data, at + 8)
        word &= low
        begin = at + head
        end = begin + (word & length_mask)
        if end > size:
            why = SHORT
            break
        record = data[begin:end]
        if low_bits & low != offset & low or checksum(record, (word + salt + offset) & low) != crc & low:
            why = DAMAGED
            break
        if end == begin:  # a message that was removed
            at = end
            offset += 1
            continue
        if not take(record, offset, wanted, all_wanted, out):
            raise RecordError(f"offset {offset}: this record does not belong to a stream")
        at = end
        offset += 1
    out.at = at
    out.next = offset
    return why


def take(record: bytes, offset: int, wanted: TopicFilter, all_wanted: bool, out: Columns) -> bool:
    """Append one record if its topic is requested; False if it is no message."""
    size = len(record)
    if size < 14 or record[0] != MESSAGE:
        return False
    flags = record[1]
    published = read_f64_le(record, 2)
    at = 10
    if flags & EXPIRES:
        at += 8
    if flags & NAMED:
        at += 1 + record[at]  # shorter than 128 bytes
    numbers = 6 if flags & PASSED else 4
    topic_size = client_size = property_size = receiver_size = 0
    for index in range(6 - numbers, 6):
        value = shift = 0
        while True:
            if at >= size:
                return False
            byte = record[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
        if index == 2:
            topic_size = value
        elif index == 3:
            client_size = value
        elif index == 4:
            property_size = value
        elif index == 5:
            receiver_size = value
    topic_end = at + topic_size
    client_end = topic_end + client_size
    property_end = client_end + property_size
    payload_at = property_end + receiver_size
    if payload_at > size:
        return False
    topic = record[at:topic_end]
    if not all_wanted and not wanted.wants(topic):
        return True
    out.topics.add(topic)
    out.clients.add(record[topic_end:client_end])
    out.payloads.add(record[payload_at:])
    out.qos.append(flags & 3)
    out.retain.append(flags >> 2 & 1)
    write_i64_le(out.times, int(published * 1e6))
    write_i64_le(out.offsets, offset)
    if property_size != 0:
        out.add_properties(record[client_end:property_end])
    write_i32_le(out.property_ends, out.properties)
    out.size += size - at
    out.count += 1
    return True


def skip(data: bytes, at: int, offset: int, target: int) -> tuple[int, int]:
    """Skip records by their heads up to ``target`` or the end of the data; return position and offset."""
    size = len(data)
    while offset < target and at + HEAD_SIZE <= size:
        word: int = read_i32_le(data, at)
        low_bits: int = read_i32_le(data, at + 8)
        end = at + HEAD_SIZE + (word & LENGTH)
        if end > size or low_bits & LOW != offset & LOW:
            break
        at = end
        offset += 1
    return at, offset
