"""The operations on a node's store that read or write everything, with a note of who asked for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct

from starlingmq.admin.declared_actions import action
from starlingmq.net.control_socket import Action, Report


class BackupTarget(Struct, frozen=True):
    target: Annotated[str, Meta(description="Absolute path of a directory that does not exist, or is empty.")] = ""


class StoreActions:
    """``given`` are those of ``storage.maintenance.store_maintenance``."""

    def __init__(self, given: Mapping[str, Action]) -> None:
        self._given = given

    @action("storage.check", "POST /storage/check", ctl="storage/check", audit="checked the storage", waits=True)
    async def check(self, report: Report) -> dict[str, Any]:
        """Read all that this node stores, and report damage; takes long."""
        return await self._given["storage.check"](report, {})

    @action(
        "storage.compact", "POST /storage/compact", ctl="storage/compact", audit="compacted the storage", waits=True
    )
    async def compact(self, report: Report) -> dict[str, Any]:
        """Write a checkpoint, and free the space of what is not needed."""
        return await self._given["storage.compact"](report, {})

    @action("backup", audit="made a backup in {target!r}", waits=True)
    async def backup(self, report: Report, request: BackupTarget) -> dict[str, Any]:
        return await self._given["backup"](report, {"target": request.target})
