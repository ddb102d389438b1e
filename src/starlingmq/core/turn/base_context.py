"""The part of the context that depends on nothing else in the core: the time, the number of this node, and the work
that is left in this turn."""

from __future__ import annotations

from starlingmq.config.settings import QueueGroupsConfig


class BaseContext:
    now: float  # broker time in seconds, as of the present call
    node: int  # number of this node in its cluster; 0 without a cluster
    recording: bool  # whether a store keeps ``Ready.writes``
    groups: QueueGroupsConfig
    work: int  # work left in this turn

    def __init__(self, now: float) -> None:
        self.now = now
        self.node = 0
        self.recording = False
        self.groups = QueueGroupsConfig()
        self.work = 0

    def assure_work(self, work: int) -> None:
        """Have at least this much work left in this turn."""
        if self.work < work:
            self.work = work
