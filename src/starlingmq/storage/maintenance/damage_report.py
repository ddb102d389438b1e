"""What was found to be broken in the files, for the log, the health page and ``storage check``."""

from __future__ import annotations

from dataclasses import dataclass

REPORTS_MAX = 1000  # a disk that dies slowly must not fill the memory with what it lost


@dataclass(frozen=True, slots=True)
class Damage:
    """Records ``offset_first``..``offset_last`` of ``path`` are lost; none when the last is below the first."""

    path: str
    offset_first: int
    offset_last: int
    bytes: int  # that can not be read, or were cut off
    what: str  # one sentence

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"

    @property
    def lost(self) -> int:
        """How many records."""
        return max(0, self.offset_last - self.offset_first + 1)


class Damages:
    """Each damage once, in the order of their discovery, at most REPORTS_MAX of them."""

    def __init__(self) -> None:
        self._found: dict[Damage, None] = {}
        self.omitted = 0  # not kept, because there were too many

    def add(self, damage: Damage) -> None:
        if damage in self._found:
            return
        if len(self._found) < REPORTS_MAX:
            self._found[damage] = None
        else:
            self.omitted += 1

    def all(self) -> list[Damage]:
        return list(self._found)
