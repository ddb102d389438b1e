"""The core's interface to wills in a cluster: which ones changed, and which are due.

The core does not publish a due will at once: another node may have learned meanwhile that this one is gone, or that the
client is back. ``cluster.wills.cluster_wills`` finds that out, and then calls ``Ending.publish_will``.
"""

from __future__ import annotations

from starlingmq.core.session.session import Will


class WillPort:
    changed: dict[str, None]  # client ids of sessions whose will was set, removed, or became pending
    due: list[tuple[str, Will]]  # client id, and its will

    def __init__(self) -> None:
        self.changed = {}
        self.due = []

    def change(self, client_id: str) -> None:
        self.changed[client_id] = None

    def fire(self, client_id: str, will: Will) -> None:
        self.due.append((client_id, will))
        self.changed[client_id] = None
