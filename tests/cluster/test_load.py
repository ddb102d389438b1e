"""The books of the load (``tests.cluster.load``) when a check fails and the run goes on: what comes late is no fault of
its own, and what was in flight is judged by the next check."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.cluster.chaos import Run
from tests.cluster.load import GROUP, Author, Load, Reader
from tests.cluster.real import Cluster, Node
from tests.cluster.roaming import RoamingLoad


def nodes() -> list[Node]:
    return [cast(Node, SimpleNamespace(name="n1", said_bytes=lambda: 0, url=""))]


def loaded(kind: type[Load]) -> tuple[Load, Author, Reader]:
    """Two messages were acknowledged, of which the reader has the first one; a third one is in flight."""
    load = kind(nodes())
    author, reader = load.authors[0], load.readers[0]
    author.count = 3
    author.taken = {1, 2}
    author.numbers = {4: 3}
    author.began = {1: 1.0, 2: 2.0, 3: 3.0}
    author.ended = {1: 1.5, 2: 2.5}
    for number in (1, 2):
        load.shared.setdefault(author.name, set()).add(number)
    reader.note(author.name, 1, 2)
    assert missing(load) == {(reader.name, 2)}
    return load, author, reader


def missing(load: Load) -> set[tuple[str, int]]:
    return {(who.partition(" on ")[0], number) for who, _, numbers in load._missing() for number in numbers}


def doubles(load: Load) -> int:
    twice = sum(len(numbers) for numbers in load.twice.values()) if isinstance(load, RoamingLoad) else 0
    return twice + sum(load.problems.values())


@pytest.mark.parametrize("kind", [Load, RoamingLoad])
def test_a_message_that_was_missing_may_come_once_after_the_run_went_on(kind: type[Load]) -> None:
    load, author, reader = loaded(kind)
    load.go_on()
    assert missing(load) == set()
    reader.note(author.name, 2, 2)
    assert doubles(load) == 0
    reader.note(author.name, 2, 2)
    assert doubles(load) == 1
    load.sharers[0].note(author.name, 2, 2)
    assert doubles(load) == 2, "the group had it"


@pytest.mark.parametrize("kind", [Load, RoamingLoad])
def test_a_message_in_flight_when_the_run_went_on_is_waited_for_by_the_next_check(kind: type[Load]) -> None:
    load, author, reader = loaded(kind)
    load.go_on()
    author.taken.add(author.numbers.pop(4))
    author.ended[3] = 4.0
    assert missing(load) == {(reader.name, 3), (GROUP, 3)}
    reader.note(author.name, 3, 2)
    load.sharers[0].note(author.name, 3, 2)
    assert missing(load) == set() and doubles(load) == 0


def test_after_a_load_that_was_settled_everything_below_the_floor_has_come() -> None:
    load, author, reader = loaded(Load)
    reader.note(author.name, 2, 2)
    author.numbers.clear()
    load.go_on()
    assert load.floor[author.name] == 3 and not load.missed.numbers
    reader.note(author.name, 2, 2)
    assert doubles(load) == 1


class Stuck:
    """A cluster that is not whole."""

    async def whole(self) -> float:
        raise AssertionError("not within 60 s: the cluster is whole")


def test_a_check_that_fails_before_the_load_was_stopped_leaves_its_books_as_they_are() -> None:
    run: Any = Run(cast(Cluster, Stuck()), 1, 1, 1, False)
    load, author, reader = loaded(RoamingLoad)
    with pytest.raises(AssertionError, match="whole"):
        asyncio.run(run._check(load))
    run._find(load, 1, "not within 60 s: the cluster is whole")
    assert run.findings and missing(load) == {(reader.name, 2)}
    reader.note(author.name, 2, 2)
    assert missing(load) == set() and doubles(load) == 0
    run.settling = True
    run._find(load, 2, "something is missing")
    assert load.floor == {each.name: each.count - (each is author) for each in load.authors}
