"""Wills of a cluster, as the core sees them: which ones changed, and which are due.

One that is due is not published by the core at once: another node may have been told meanwhile that this one is gone,
or that the client is back. ``cluster.wills.cluster_wills`` finds that out, and says so (``Ending.publish_will``).
"""

from __future__ import annotations

from starlingmq.core.session.session import Will


class DueWill:
    client_id: str
    will: Will

    def __init__(self, client_id: str, will: Will) -> None:
        self.client_id = client_id
        self.will = will


class WillPort:
    changed: dict[str, None]  # client ids whose session has another will, or none, or one that is pending
    due: list[DueWill]

    def __init__(self) -> None:
        self.changed = {}
        self.due = []

    def change(self, client_id: str) -> None:
        self.changed[client_id] = None

    def fire(self, client_id: str, will: Will) -> None:
        self.due.append(DueWill(client_id, will))
        self.changed[client_id] = None
