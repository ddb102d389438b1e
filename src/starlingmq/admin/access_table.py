"""The table of users and rules that operators make, as this node has it: where it is stored, and how it is changed.

The members of a cluster have it in etcd; a broker alone has it in ``access.json`` of its data directory. A node that
cannot read a table, or reach etcd, keeps the last one that it knew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from starlingmq.admin.operator_problem import AdminError
from starlingmq.admin.state_files import replace
from starlingmq.auth.stored_access import NOTHING_STORED, StoredAccess, TableRefused, decoded
from starlingmq.config.section_types import ConfigError

log = logging.getLogger("starlingmq.admin")

FILE: Final = "access.json"
TRIES: Final = 5  # of a change, when other nodes are faster

Write = Callable[[bytes], Awaitable[str | None]]
"""Stores a document, and has this node adopt it. Returns "", or one line that says why it did not; None: another
node was faster."""


class AccessTable:
    """``use`` applies a table to this node; it raises ConfigError. ``write`` is None where nothing is stored. ``known``
    is the table in force; None: a member of a cluster has not read it yet. ``problem``: why the stored one is not."""

    def __init__(self, use: Callable[[StoredAccess], None]) -> None:
        self.known: StoredAccess | None = NOTHING_STORED
        self.write: Write | None = None
        self.problem = ""
        self._use = use
        self._turn = asyncio.Lock()

    def adopt(self, data: bytes) -> None:
        """Apply this document. If that is impossible, the former one stays in force; also if there is none any more,
        since no operator deletes it."""
        if not data and self.known is not None and self.known.revision:
            self.problem = ""
            log.error("users and rules are gone where they were stored; this node keeps them, and a change stores them")
            return
        try:
            table = decoded(data)
            former, self.known = self.known, table
            try:
                self._use(table)
            except ConfigError:
                self.known = former
                raise
            self.problem = ""
        except ConfigError as error:
            self.problem = str(error)
            log.error("users and rules stay as they were: %s", error)

    def open_file(self, directory: Path) -> None:
        """Store the table in this data directory. Raises ConfigError."""
        path = directory / FILE
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            data = b""
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
        else:
            if not data:
                raise ConfigError(f"{path}: is empty; restore it from a backup, or delete it to begin without users")
            self.adopt(data)
        if self.problem:
            raise ConfigError(f"{path}: {self.problem}")

        async def write(document: bytes) -> str:
            try:
                await asyncio.to_thread(replace, path, document)
            except OSError as error:
                return f"{path} cannot be written: {error.strerror}"
            self.adopt(document)
            return ""

        self.write = write

    def made(self, revision: int | None, make: Callable[[StoredAccess], StoredAccess]) -> StoredAccess:
        """The table that ``change`` would store now. Raises AdminError."""
        if self.write is None:
            raise AdminError(409, "this broker stores nothing: it has no data directory (node.data_dir)")
        if self.known is None or self.problem:
            raise AdminError(503, self.problem or "users and rules have not been read from etcd yet")
        if revision is not None and revision != self.known.revision:
            raise AdminError(409, f"users and rules have changed: revision {self.known.revision}, not {revision}")
        try:
            return make(self.known)
        except TableRefused as refused:
            raise AdminError(refused.status, str(refused)) from None

    async def change(self, revision: int | None, make: Callable[[StoredAccess], StoredAccess]) -> StoredAccess:
        """Store what ``make`` makes of the present table; it is applied here when this returns. ``revision``: that for
        which the change was asked; None: any. An operator who does not wait for it does not stop it. Raises
        AdminError."""
        self._changing = asyncio.ensure_future(self._change(revision, make))
        return await asyncio.shield(self._changing)

    async def _change(self, revision: int | None, make: Callable[[StoredAccess], StoredAccess]) -> StoredAccess:
        async with self._turn:
            for _ in range(TRIES):
                made = self.made(revision, make)
                assert self.write is not None
                try:
                    data = made.encoded()
                    decoded(data)  # before it is stored, since all nodes would refuse it
                except TableRefused as refused:
                    raise AdminError(refused.status, str(refused)) from None
                except ConfigError as error:
                    raise AdminError(400, str(error)) from None
                refusal = await self.write(data)
                if refusal == "":
                    return made
                if refusal is not None:
                    raise AdminError(503, refusal)
        raise AdminError(409, "other nodes change users and rules at the same time; try again")


def refuse_file(directory: Path) -> None:
    """For members of a cluster, which store the table in etcd. Raises ConfigError."""
    if (directory / FILE).exists():
        raise ConfigError(
            f"{directory / FILE} has users and rules of a broker alone, which do not apply in a cluster or with "
            "workers; move it away, and create them again with starlingmq ctl user and ctl rule"
        )
