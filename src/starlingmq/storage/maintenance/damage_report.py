"""Damage that was found in files, for the log, the health page and ``storage check``."""

from __future__ import annotations

from dataclasses import dataclass

REPORTS_MAX = 1000  # a slowly dying disk must not fill the memory with reports


@dataclass(frozen=True, slots=True)
class Damage:
    """Records ``offset_first``..``offset_last`` of ``path`` are lost; none if the last is below the first."""

    path: str
    offset_first: int
    offset_last: int
    bytes: int  # unreadable, or cut off
    what: str  # one sentence

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"

    @property
    def lost(self) -> int:
        """The number of lost records."""
        return max(0, self.offset_last - self.offset_first + 1)


class Damages:
    """Each damage once, in the order of discovery, at most REPORTS_MAX."""

    def __init__(self) -> None:
        self._found: dict[Damage, None] = {}
        self.omitted = 0  # damages beyond REPORTS_MAX

    def add(self, damage: Damage) -> None:
        if damage in self._found:
            return
        if len(self._found) < REPORTS_MAX:
            self._found[damage] = None
        else:
            self.omitted += 1

    def all(self) -> list[Damage]:
        return list(self._found)
