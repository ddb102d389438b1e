"""The consumers of a stream and their positions: the basis of lag, and of pins that hold back retention."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

CONSUMERS_MAX: Final = 256  # per stream; the consumer that has not reported for longest is removed


class Consumer(msgspec.Struct):
    """``next``: the first offset that it has not processed. ``pins``: until ``until`` (Unix seconds, extended by each
    report), age does not delete what it has not processed."""

    name: str
    next: int
    heard: float = 0.0
    pins: bool = False
    until: float = 0.0


class Consumers:
    def __init__(self) -> None:
        self.by_name: dict[str, Consumer] = {}  # the consumer that has not reported for longest comes first
        self.path: Path | None = None

    def heard(self, consumer: Consumer) -> None:
        """Record a report. Raises OSError if it cannot be written; it counts all the same."""
        self.by_name.pop(consumer.name, None)
        self.by_name[consumer.name] = consumer
        while len(self.by_name) > CONSUMERS_MAX:
            del self.by_name[next(iter(self.by_name))]
        self._write()

    def forget(self, name: str) -> bool:
        """Returns whether the consumer was known. Raises OSError."""
        found = self.by_name.pop(name, None)
        self._write()
        return found is not None

    def pinned(self, now: float, otherwise: int) -> int:
        """The lowest offset that a pin holds."""
        return min((one.next for one in self.by_name.values() if one.pins and one.until > now), default=otherwise)

    def encode(self) -> bytes:
        return msgspec.json.encode(list(self.by_name.values()))

    def _write(self) -> None:
        if self.path is None:
            return
        new = self.path.with_suffix(".new")
        new.write_bytes(self.encode())
        os.replace(new, self.path)


def read_consumers(path: Path) -> Consumers:
    """The stored consumers; none if the file is unreadable, since consumers report again."""
    found = Consumers()
    found.path = path
    try:
        consumers = msgspec.json.decode(path.read_bytes(), type=list[Consumer])
    except (OSError, msgspec.MsgspecError):
        return found
    found.by_name = {consumer.name: consumer for consumer in consumers}
    return found
