"""The disks of ``tests.cluster.copies_world``: for each origin a log of items, with the generations that wrote it."""

from __future__ import annotations

from copy import deepcopy


class Log:
    """``generation``: the one that wrote here last. ``starts``: where each generation began, as its server said."""

    def __init__(self) -> None:
        self.generation = 0
        self.items: list[int] = []
        self.starts: list[tuple[int, int]] = []

    def cut(self, generation: int, end: int) -> int:
        """Up to where a copy that was written by ``generation`` last, and ends at ``end``, agrees with this log."""
        return min([start for began, start in self.starts if began > generation] + [end])

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
