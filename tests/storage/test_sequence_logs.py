"""The messages that a stream reads of its log where records are missing."""

from __future__ import annotations

from typing import Any

import pytest

from starlingmq.core.messages.message import Message
from starlingmq.storage.records import encode_message
from starlingmq.storage.streams.sequence_logs import LogOfStream


class Records:
    """A journal that has lost all but the last record."""

    def __init__(self) -> None:
        self.reads = 0

    def read(self, offset: int, count: int, size: int) -> list[tuple[int, bytes]]:
        self.reads += 1
        message = Message(b"a", b"last", 1, False, b"", 0.0, "p", 1000.0)
        return [(4999, encode_message(message))] if offset <= 4999 else []


class Log:
    def __init__(self) -> None:
        self.journal = Records()


@pytest.mark.interpreted_only("compiled code takes a real log only")
def test_a_wide_gap_is_passed_in_large_steps() -> None:
    log: Any = Log()
    source = LogOfStream(log)
    seq = 1
    while seq <= 5000:
        found = source.read(seq, 1000)
        seq += len(found)
    assert found[-1] is not None and found[-1].payload == b"last"
    assert log.journal.reads <= 6
