"""The part of the context that needs nothing else of the core: the time, and which node this is."""

from __future__ import annotations

from starlingmq.config.settings import QueueGroupsConfig


class BaseContext:
    now: float  # broker time in seconds, as of the call being served
    node: int  # this node's number in its cluster; 0: it stands alone
    recording: bool  # whether anything keeps ``Ready.writes``
    groups: QueueGroupsConfig

    def __init__(self, now: float) -> None:
        self.now = now
        self.node = 0
        self.recording = False
        self.groups = QueueGroupsConfig()
