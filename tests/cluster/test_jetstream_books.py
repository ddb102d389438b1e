"""The books of a chaos run (``tests.cluster.jetstream_books``) find each mistake of a broker, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.cluster.jetstream_books import Books, Register

ONE, TWO = b"once:0", b"once:1"


def booked() -> Books:
    """Two messages were acknowledged. The consumer is done with the first one."""
    books = Books("S")
    for seq, payload in ((1, ONE), (2, TWO)):
        books.acknowledge(seq, payload)
        books.deliver(seq, payload, 1.0)
        books.read(seq, payload)
    books.confirm(1, 2.0)
    return books


def test_answers_that_agree_are_right() -> None:
    books = booked()
    books.deliver(1, ONE, 1.5)  # to a request that was there before
    books.deliver(2, TWO, 3.0)
    books.follow(1, 2)
    books.read(2, TWO)
    books.read(3, b"any:0")
    books.compare(books.acknowledged, [(1, ONE), (2, TWO), (3, b"any:0")])
    assert not books.wrong


@pytest.mark.parametrize(
    ("mistake", "found"),
    [
        (lambda books: books.acknowledge(2, b"any:0"), "sequence 2 was of"),
        (lambda books: books.deliver(2, b"any:0", 3.0), "sequence 2 was of"),
        (lambda books: books.deliver(1, ONE, 3.0), "before it was delivered again"),
        (lambda books: books.follow(2, 1), "1 was delivered after 2"),
        (lambda books: books.read(4, b"any:0"), "got 4 in place of 3"),
        (lambda books: books.compare(books.acknowledged, [(1, ONE)]), "1 acknowledged messages are not there"),
        (lambda books: books.compare({}, [(2, TWO), (1, ONE)]), "not in order"),
        (lambda books: books.compare({}, [(1, ONE), (2, TWO), (3, TWO)]), "not there once"),
        (lambda books: books.compare({}, [(2, TWO)]), "messages with an id are missing"),
    ],
)
def test_a_mistake_is_found(mistake: Callable[[Books], None], found: str) -> None:
    books = booked()
    mistake(books)
    assert found in books.wrong[0]


def written() -> Register:
    register = Register("B")
    register.write(1, b"0:0:0")
    register.refuse(b"1:0:0")
    register.write(2, b"1:1:1")
    return register


def test_updates_that_follow_each_other_are_right() -> None:
    register = written()
    register.read(0, b"", 0)
    register.read(1, b"0:0:0", 2)
    register.read(3, b"0:1:2", 2)
    assert not register.wrong and (register.latest, register.stale) == (2, 1)


@pytest.mark.parametrize(
    ("mistake", "found"),
    [
        (lambda register: register.write(2, b"0:1:1"), "revision 2 was"),
        (lambda register: register.write(3, b"0:1:1"), "expected another one"),
        (lambda register: register.read(1, b"1:0:0", 0), "revision 1 was"),
        (lambda register: register.refuse(b"1:1:1"), "was refused, and is there"),
    ],
)
def test_a_mistake_with_a_key_is_found(mistake: Callable[[Register], None], found: str) -> None:
    register = written()
    mistake(register)
    assert any(found in line for line in register.wrong)
