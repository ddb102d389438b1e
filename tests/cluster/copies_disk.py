"""The disks of ``tests.cluster.copies_world``: for each origin a log of items, with the generations that wrote it."""

from __future__ import annotations

from copy import deepcopy


class Log:
    """``generation``: the one that wrote here last. ``starts``: where each generation began, as its server said."""

    def __init__(self) -> None:
        self.generation = 0
        self.items: list[int] = []
        self.starts: list[tuple[int, int]] = []

    def cut(self, starts: list[tuple[int, int]], end: int) -> int:
        """Up to where a copy with these ``starts``, which ends at ``end``, agrees with this log
        (``copy_facts.ends_after``): either may have missed a generation that the other has."""
        common = {began for began, _ in starts}.intersection(began for began, _ in self.starts)
        later = [start for began, start in (*self.starts, *starts) if common and began > max(common)]
        return min([*later, end]) if common else 0

    def begin(self, generation: int) -> None:
        self.starts.append((generation, len(self.items)))
        self.generation = generation

    def follow(self, generation: int, starts: list[tuple[int, int]], cut: int) -> None:
        del self.items[cut:]
        self.generation, self.starts = generation, list(starts)


class Disk:
    """``incarnations``: those of the processes that have used it since the last one that all records knew."""

    def __init__(self) -> None:
        self.incarnations: set[int] = set()
        self.logs: dict[str, Log] = {}

    def log(self, origin: str) -> Log:
        return self.logs.setdefault(origin, Log())

    def snapshot(self) -> Disk:
        return deepcopy(self)
