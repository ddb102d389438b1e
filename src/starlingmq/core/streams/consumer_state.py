"""The stored form of a consumer's state: varints, sequences as differences. Times are not in it: after a restart a
pending message waits for its acknowledgement from the beginning."""

from __future__ import annotations

from typing import Final

VERSION: Final = 1


class StoredPending:
    sequence: int
    number: int

    def __init__(self, sequence: int, number: int) -> None:
        self.sequence = sequence
        self.number = number


class ConsumerState:
    next: int  # stream sequence to look at next
    delivered: int  # stream sequence
    number: int  # consumer sequence delivered last
    floor: int
    floor_number: int
    resume: int  # last_per_subject: up to here, only the last message of each subject is delivered; 0: past
    pending: list[StoredPending]  # sequences rise
    redelivered: list[tuple[int, int]]  # sequences rise

    def __init__(self) -> None:
        self.next = 1
        self.delivered = 0
        self.number = 0
        self.floor = 0
        self.floor_number = 0
        self.resume = 0
        self.pending = []
        self.redelivered = []


def encode_state(state: ConsumerState) -> bytes:
    out = bytearray()
    for value in (
        VERSION,
        state.next,
        state.delivered,
        state.number,
        state.floor,
        state.floor_number,
        state.resume,
        len(state.pending),
    ):
        _add(out, value)
    sequence, number = 0, 0
    for each in state.pending:
        _add(out, each.sequence - sequence)
        _add_signed(out, each.number - number)
        sequence, number = each.sequence, each.number
    _add(out, len(state.redelivered))
    sequence = 0
    for again, count in state.redelivered:
        _add(out, again - sequence)
        _add(out, count)
        sequence = again
    return bytes(out)


def decode_state(data: bytes) -> ConsumerState:
    """Raises ValueError for anything but a whole state."""
    reader = _StateReader(data)
    if reader.take() != VERSION:
        raise ValueError("the state of a consumer has an unknown version")
    state = ConsumerState()
    state.next = reader.take()
    state.delivered = reader.take()
    state.number = reader.take()
    state.floor = reader.take()
    state.floor_number = reader.take()
    state.resume = reader.take()
    sequence, number = 0, 0
    for _ in range(reader.take()):
        sequence += reader.take()
        number += reader.take_signed()
        state.pending.append(StoredPending(sequence, number))
    sequence = 0
    for _ in range(reader.take()):
        sequence += reader.take()
        state.redelivered.append((sequence, reader.take()))
    if reader.at != len(data):
        raise ValueError("the state of a consumer has bytes after its end")
    return state


def _add(out: bytearray, value: int) -> None:
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)


def _add_signed(out: bytearray, value: int) -> None:
    _add(out, value * 2 if value >= 0 else -value * 2 - 1)


class _StateReader:
    at: int
    _data: bytes

    def __init__(self, data: bytes) -> None:
        self.at = 0
        self._data = data

    def take(self) -> int:
        value = 0
        shift = 0
        while self.at < len(self._data) and shift < 63:
            byte = self._data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
        raise ValueError("the state of a consumer is cut short, or a number is too large")

    def take_signed(self) -> int:
        value = self.take()
        return -(value + 1 >> 1) if value & 1 else value >> 1
