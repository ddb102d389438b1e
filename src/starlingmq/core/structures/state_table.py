"""A state machine as a table: each row names a state, an event, the next state and the actions in their order.

Invariant: a state and an event without a row are an error that names both. A row without a change and without actions
gives its reason, so that no event is ignored by accident. The table only decides; its caller carries out the actions.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Generic, TypeVar

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)
A = TypeVar("A", bound=Enum)


class NoTransition(Exception):
    """The table has no row for this state and event."""


class Row(Generic[S, E, A]):
    """``ignored``: the reason why the event has no effect; empty for a row with an effect."""

    __slots__ = ("actions", "event", "ignored", "next", "state")

    def __init__(self, state: S, event: E, next: S, actions: tuple[A, ...], ignored: str) -> None:
        self.state = state
        self.event = event
        self.next = next
        self.actions = actions
        self.ignored = ignored


class StateTable(Generic[S, E, A]):
    """``about``: the subject of the states, as errors and the drawing name it."""

    def __init__(self, about: str, rows: Iterable[Row[S, E, A]]) -> None:
        self.about = about
        self.rows: dict[tuple[S, E], Row[S, E, A]] = {}
        for row in rows:
            if (row.state, row.event) in self.rows:
                raise ValueError(f"{about}: {row.state.name} on {row.event.name} has two rows")
            self.rows[row.state, row.event] = row

    def step(self, state: S, event: E) -> Row[S, E, A]:
        row = self.rows.get((state, event))
        if row is None:
            raise NoTransition(f"{self.about}: no transition from {state.name} on {event.name}")
        return row


def goes(state: S, event: E, next: S, *actions: A) -> Row[S, E, A]:
    """A row that leads to ``next`` (which may be the same state) with these actions, in this order."""
    return Row(state, event, next, actions, "")


def ignores(state: S, event: E, why: str) -> Row[S, E, A]:
    return Row(state, event, state, (), why)
