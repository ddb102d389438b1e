"""What an operator can not have, in one line for whoever asked."""

from __future__ import annotations


class AdminError(Exception):
    """What was asked for can not be done: the status that HTTP has for it, and one line that says why. ``why`` is the
    line without the node that said so."""

    def __init__(self, status: int, text: str, why: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.why = why or text


class UnansweredError(AdminError):
    """Another node did not answer: it may have done what it was asked to do, or do it yet."""

    def __init__(self, node: str, why: str) -> None:
        super().__init__(504, f"{node}: {why}", why)
