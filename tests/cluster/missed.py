"""The end of a check of the load (``tests.cluster.load``): its books are closed up to a floor. After a check that
failed, messages are still in flight or missing: the first ones stay above the floor, so that the next check waits for
them, and the others may still come."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Books(Protocol):
    """Those of an author."""

    name: str
    count: int
    numbers: dict[int, int]
    taken: set[int]
    refused: set[int]
    again: set[int]
    began: dict[int, float]
    ended: dict[int, float]


class Missed:
    """Messages below the floor that readers lack. They were told as missing, so they are not doubled when they come."""

    def __init__(self) -> None:
        self.numbers: set[tuple[str, str, int]] = set()  # reader, author, number

    def came(self, reader: str, author: str, number: int) -> bool:
        """Whether that message was missing. It may come once."""
        missed = (reader, author, number)
        if missed not in self.numbers:
            return False
        self.numbers.remove(missed)
        return True

    def close(self, author: Books, books: Iterable[tuple[str, dict[str, set[int]]]]) -> int:
        """``books``: the numbers that each reader received, by author. Returns the floor of this author: nothing up to
        there is in flight."""
        name = author.name
        floor = min(author.numbers.values(), default=author.count + 1) - 1
        for reader, got in books:
            missing = author.taken - got.get(name, set())
            self.numbers.update((reader, name, number) for number in missing if number <= floor)
            got[name] = {number for number in got.get(name, ()) if number > floor}
        author.taken = {number for number in author.taken if number > floor}
        author.refused = {number for number in author.refused if number > floor}
        author.again = {number for number in author.again if number > floor}
        author.began = {number: at for number, at in author.began.items() if number > floor}
        author.ended = {number: at for number, at in author.ended.items() if number > floor}
        return floor
