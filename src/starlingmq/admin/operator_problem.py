"""Why an operator action failed, in one line."""

from __future__ import annotations


class AdminError(Exception):
    """The action failed: the HTTP status, and one line that says why. ``why`` is the same line without the name of the
    node that sent it."""

    def __init__(self, status: int, text: str, why: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.why = why or text


class UnansweredError(AdminError):
    """Another node did not answer. It may have performed the action, or may perform it later."""

    def __init__(self, node: str, why: str) -> None:
        super().__init__(504, f"{node}: {why}", why)


class ImpossibleAction(Exception):
    """The state of the node or of the cluster does not allow it; one line says why."""
