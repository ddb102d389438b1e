"""The state of one client id's will at this node, and for how long it is left to another node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from starlingmq.cluster.wills.will_records import RegisteredWill
from starlingmq.core.session.session import Will

HOLD_SECONDS: Final = 120.0  # at most, for a node that is connected and has the client now


@dataclass(slots=True, eq=False)
class WillEntry:
    """The state of one client id's will at this node, or of a will taken from another node."""

    due: list[Will] = field(default_factory=list)  # to be published, the oldest first
    known: RegisteredWill | None = None  # the record, as of ``revision`` (0: none)
    revision: int = 0
    lived: bool = False  # a session here had the will since this node started, so it is known when it is cancelled
    allowed_until: float = 0.0  # latest time at which due wills may be published, by the last change of the key
    held_until: float = 0.0  # until then the wills are left to the node that has the client now ...
    held_by: int = 0  # ... and while that node is connected, if it is known ...
    held_max: float = 0.0  # ... up to this time
    published: int = 0  # the id of the taken will that is published
    sequence: int = 0  # of the retained message of the published will

    def hold(self, now: float, seconds: float, node: int) -> None:
        """Leaves due wills to another node, which has the client and publishes its wills and messages in order. 0: it
        is not known which node that is."""
        self.held_until = now + seconds
        self.held_by = node
        self.held_max = now + HOLD_SECONDS

    def end_hold(self) -> None:
        self.held_until, self.held_by, self.held_max = 0.0, 0, 0.0

    def is_held(self, now: float, connected: Callable[[int], bool]) -> bool:
        if now < self.held_until:
            return True
        return now < self.held_max and self.held_by != 0 and connected(self.held_by)

    def held_at_most(self, now: float) -> float:
        """When it has to be looked at again, if it is held: the end of the connection to the other node is told."""
        return self.held_until if now < self.held_until else self.held_max
