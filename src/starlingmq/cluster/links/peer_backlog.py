"""The messages that waited for a node when it was connected again, and what has become of them."""

from __future__ import annotations


class PeerBacklog:
    total: int  # that waited when the node was connected for the last time
    passed_on: int  # that the node has stored; it counts by itself what it drops of them later
    dropped: int  # here, because they had expired or were beyond the retention of the journal
    left: int  # that still wait
    all_passed_on: int  # likewise, over all backlogs of this node
    all_dropped: int

    def __init__(self) -> None:
        self.total = self.passed_on = self.dropped = self.left = 0
        self.all_passed_on = self.all_dropped = 0
        self._taken = 0
        self._dropped = 0

    def begin(self, waiting: int, taken: int, dropped: int) -> None:
        """The node is connected. ``taken``, ``dropped``: all messages that it has stored, and that were dropped in
        place of being sent to it, so far."""
        self.total = self.left = waiting
        self.passed_on = self.dropped = 0
        self._taken, self._dropped = taken, dropped

    def follow(self, waiting: int, taken: int, dropped: int) -> None:
        """Later messages are behind those of the backlog."""
        if self.left == 0:
            return
        passed_on = min(self.total, taken - self._taken)
        gone = max(self.dropped, min(self.total - passed_on, dropped - self._dropped))
        self.all_passed_on += passed_on - self.passed_on
        self.all_dropped += gone - self.dropped
        self.passed_on, self.dropped = passed_on, gone
        self.left = max(0, min(self.total - passed_on - gone, waiting))
