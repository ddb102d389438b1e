"""Stream definitions for all nodes: created or deleted. Nodes that join later or were away receive them when they
connect.

The newest entry for a name holds. An entry that a stream was created does not change a stream of that name that exists;
an entry that it was deleted deletes a stream that was created earlier.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from starlingmq.admin.declared_actions import action
from starlingmq.admin.node_rpc import NodeRpc
from starlingmq.admin.operator_problem import AdminError, UnansweredError
from starlingmq.admin.state_files import EntriesFile
from starlingmq.admin.stream_requests import GossipEntry, GossipNews, GossipRequest, NewStream
from starlingmq.admin.typed_actions import texts
from starlingmq.storage.streams.stream_admin import StreamAdmin
from starlingmq.storage.streams.stream_files import StreamActionError

log = logging.getLogger("starlingmq.admin")

FILE: Final = "streams.json"
ENTRIES_MAX: Final = 2000  # above this, the oldest entries of deleted streams are removed


class StreamGossip:
    """``streams`` are those of this node. The entries are kept in ``directory``."""

    def __init__(self, streams: StreamAdmin, directory: Path) -> None:
        self._streams = streams
        self._file = EntriesFile("stream definitions for all nodes", directory / FILE, GossipEntry)
        self._entries = {entry.name: entry for entry in self._file.read()}
        self._turn = asyncio.Lock()

    @action("stream.word")
    async def word(self, request: GossipRequest) -> GossipNews:
        """Make the entry for a request of an operator at this node."""
        before = self._entries.get(request.name)
        at = max(time.time(), 0.0 if before is None else before.at + 1e-3)
        made = {name: text for name, text in texts(NewStream.of(request)).items() if text}
        return GossipNews([GossipEntry(request.name, at, {} if request.deleted else made)])

    @action("stream.hear")
    async def receive(self, request: GossipNews) -> GossipNews:
        """Apply the entries that are newer than those of this node. Returns all entries of this node."""
        await self._merge(request.said)
        return GossipNews(list(self._entries.values()))

    async def exchange(self, rpc: NodeRpc, node: str, seconds: float) -> None:
        """Afterwards both nodes have the newest entries of both. A node without a data directory has no streams, and
        refuses. Raises UnansweredError."""
        try:
            reply = await rpc.ask(node, "stream.hear", GossipNews(list(self._entries.values())), GossipNews, seconds)
        except UnansweredError:
            raise
        except AdminError as error:
            log.debug("exchanging stream definitions with node %s failed: %s", node, error)
            return
        await self._merge(reply.said)

    async def _merge(self, entries: Iterable[GossipEntry]) -> None:
        async with self._turn:
            new = 0
            for entry in entries:
                before = self._entries.get(entry.name)
                if before is not None and entry.at <= before.at:
                    continue
                try:
                    await self._follow(entry)
                except (StreamActionError, OSError) as error:
                    log.error("stream %s could not be changed to its definition for all nodes: %s", entry.name, error)
                    continue
                self._entries[entry.name] = entry
                new += 1
            if new:
                self._forget()
                await self._file.write(list(self._entries.values()))

    async def _follow(self, entry: GossipEntry) -> None:
        log_here = self._streams.logs.find(entry.name)
        if entry.made and log_here is None:
            self._streams.create(NewStream(**entry.made).settings())
            log.info("stream %s created, as defined for all nodes", entry.name)
        elif not entry.made and log_here is not None and log_here.definition.created < entry.at:
            await self._streams.delete(entry.name)
            log.info("stream %s deleted, as for all nodes", entry.name)

    def _forget(self) -> None:
        excess = len(self._entries) - ENTRIES_MAX
        if excess > 0:
            ended = sorted((entry for entry in self._entries.values() if not entry.made), key=lambda entry: entry.at)
            for entry in ended[:excess]:
                del self._entries[entry.name]
