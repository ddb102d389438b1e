"""Who reads a stream, and how far they say they are: what lag is measured by, and what can hold back retention."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

CONSUMERS_MAX: Final = 256  # of one stream; who was not heard of for longest makes room


class Consumer(msgspec.Struct):
    """``next``: the first offset it has not done with. ``pins``: until ``until`` (Unix seconds, put off whenever it is
    heard of) what it has not done with does not grow too old to be kept."""

    name: str
    next: int
    heard: float = 0.0
    pins: bool = False
    until: float = 0.0


class Consumers:
    def __init__(self) -> None:
        self.by_name: dict[str, Consumer] = {}  # who was not heard of for longest first
        self.path: Path | None = None

    def heard(self, consumer: Consumer) -> None:
        """Raises OSError if it can not be written down; it is known all the same."""
        self.by_name.pop(consumer.name, None)
        self.by_name[consumer.name] = consumer
        while len(self.by_name) > CONSUMERS_MAX:
            del self.by_name[next(iter(self.by_name))]
        self._write()

    def forget(self, name: str) -> bool:
        """Whether it was known. Raises OSError."""
        found = self.by_name.pop(name, None)
        self._write()
        return found is not None

    def pinned(self, now: float, otherwise: int) -> int:
        """The offset from which on somebody wants it kept."""
        return min((one.next for one in self.by_name.values() if one.pins and one.until > now), default=otherwise)

    def _write(self) -> None:
        if self.path is None:
            return
        new = self.path.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(list(self.by_name.values())))
        os.replace(new, self.path)


def read_consumers(path: Path) -> Consumers:
    """What was written down; nothing if that can not be read: consumers tell again."""
    found = Consumers()
    found.path = path
    try:
        consumers = msgspec.json.decode(path.read_bytes(), type=list[Consumer])
    except (OSError, msgspec.MsgspecError):
        return found
    found.by_name = {consumer.name: consumer for consumer in consumers}
    return found
