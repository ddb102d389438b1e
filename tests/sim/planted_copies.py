"""Mistakes with copies of disks, made on purpose: see ``planted``."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from starlingmq.cluster.copies.copy_roles import CopyRoles
from starlingmq.cluster.peers.process_presence import ProcessPresence
from starlingmq.storage.copies.catch_up import CatchUp


def a_copy_begins_in_the_middle() -> Any:
    """With the journal, and without the checkpoint that it continues."""

    async def nothing(self: CatchUp) -> None:
        pass

    return patch.object(CatchUp, "_send_store", nothing)


def no_successor_without_a_broker() -> Any:
    return patch.object(ProcessPresence, "_is_leading", lambda self: False)


def a_node_leaves_with_the_only_copy() -> Any:
    return patch.object(CopyRoles, "has_left", lambda self: True)
