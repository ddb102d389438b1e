"""What goes wrong, in one line for whoever asked."""

from __future__ import annotations

from msgspec import Struct


class Problem(Struct, frozen=True):
    error: str


class ApiError(Exception):
    """What was asked for can not be done: the status, and one line that says why."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
