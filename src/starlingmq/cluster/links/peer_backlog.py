"""The messages that waited for a node when it was connected again, and what has become of them."""

from __future__ import annotations


class PeerBacklog:
    """The messages that wait for a node when it is lost, and those that come until it is connected again. Some may be
    passed on before: frames that were on their way when the node died are sent again as soon as the node is heard."""

    total: int  # that waited for the node while it was not connected
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

    def lose(self, taken: int, dropped: int) -> None:
        """The node is not connected any more. ``taken``, ``dropped``: all messages that it has stored, and that were
        dropped in place of being sent to it, so far."""
        self.total = self.left = self.passed_on = self.dropped = 0
        self._taken, self._dropped = taken, dropped

    def begin(self, waiting: int, taken: int, dropped: int) -> None:
        """The node is connected."""
        self.total = self.left = waiting + (taken - self._taken) + (dropped - self._dropped)
        self.follow(waiting, taken, dropped)

    def follow(self, waiting: int, taken: int, dropped: int) -> None:
        """Later messages are behind those of the backlog."""
        if self.left == 0:
            return
        taken = min(self.total, taken - self._taken)
        gone = max(self.dropped, min(self.total - taken, dropped - self._dropped))
        self.left = max(0, min(self.total - taken - gone, waiting))
        passed_on = max(self.passed_on, self.total - gone - self.left)  # some have no acknowledgement of their own
        self.all_passed_on += passed_on - self.passed_on
        self.all_dropped += gone - self.dropped
        self.passed_on, self.dropped = passed_on, gone
