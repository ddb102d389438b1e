"""What was said of streams at all nodes: made, or deleted. Who joins later, or was away, hears of it when it is met.

The last word on a name holds. A stream that is there stays as it is when it is heard that it was made; it goes when it
is heard that it was deleted after it was made here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from starlingmq.admin.node_rpc import NodeRpc, nothing_to_report
from starlingmq.admin.operator_problem import AdminError, UnansweredError
from starlingmq.admin.state_files import replace
from starlingmq.net.control_socket import Action, Report
from starlingmq.storage.streams.stream_files import StreamActionError

log = logging.getLogger("starlingmq.admin")

FILE: Final = "streams.json"
WORDS_MAX: Final = 2000  # the oldest of what was deleted are forgotten first

Result = dict[str, Any]


class GossipEntry(msgspec.Struct, frozen=True):
    """``at``: Unix seconds. ``made``: the arguments of stream.create; without any it was deleted."""

    name: str
    at: float
    made: dict[str, str] = {}


class StreamGossip:
    """``actions`` make, show and delete streams of this node. What was said is kept in ``directory``."""

    def __init__(self, actions: Mapping[str, Action], directory: Path) -> None:
        self._actions = actions
        self._path = directory / FILE
        self._words: dict[str, GossipEntry] = {}
        self._turn = asyncio.Lock()
        try:
            found = msgspec.json.decode(self._path.read_bytes(), type=list[GossipEntry])
        except FileNotFoundError:
            found = []
        except (OSError, msgspec.MsgspecError) as error:
            log.error(
                "%s cannot be read, so the stream definitions for all nodes are unknown until other nodes "
                "send them: %s",
                self._path,
                error,
            )
            found = []
        self._words = {word.name: word for word in found}

    def actions(self) -> dict[str, Action]:
        return {"stream.word": self.word, "stream.hear": self.hear_of}

    async def word(self, report: Report, arguments: dict[str, str]) -> Result:
        """Something new, said here: what all nodes have to hear."""
        made = {key: value for key, value in arguments.items() if key != "deleted"}
        name = arguments.get("name", "")
        before = self._words.get(name)
        at = max(time.time(), 0.0 if before is None else before.at + 1e-3)
        return {"said": msgspec.to_builtins([GossipEntry(name, at, {} if arguments.get("deleted") else made)])}

    async def hear_of(self, report: Report, arguments: dict[str, str]) -> Result:
        """What was said anywhere; what of it is new is done. The answer is all that was said here."""
        try:
            told = msgspec.json.decode(arguments.get("said", "[]"), type=list[GossipEntry])
        except msgspec.MsgspecError as error:
            raise AdminError(400, f"stream definitions are malformed: {error}") from None
        await self._hear(told)
        return {"said": msgspec.to_builtins(list(self._words.values()))}

    async def exchange(self, desk: NodeRpc, node: str, seconds: float) -> None:
        """Each has heard what the other had. Raises UnansweredError; who keeps no streams has nothing to say."""
        said = msgspec.json.encode(list(self._words.values())).decode()
        try:
            answer = await desk.at(node, "stream.hear", {"said": said}, seconds)
        except UnansweredError:
            raise
        except AdminError as error:
            log.debug("exchanging stream definitions with node %s failed: %s", node, error)
            return
        await self._hear(msgspec.convert(answer["said"], list[GossipEntry]))

    async def _hear(self, told: Iterable[GossipEntry]) -> None:
        async with self._turn:
            new = 0
            for word in told:
                before = self._words.get(word.name)
                if before is not None and word.at <= before.at:
                    continue
                try:
                    await self._follow(word)
                except (StreamActionError, OSError) as error:
                    log.error("stream %s could not be changed to its definition for all nodes: %s", word.name, error)
                    continue
                self._words[word.name] = word
                new += 1
            if new:
                self._forget()
                await self._write()

    async def _follow(self, word: GossipEntry) -> None:
        named = {"name": word.name}
        try:
            there = await self._actions["stream.show"](nothing_to_report, named)
        except StreamActionError:
            there = None
        if word.made and there is None:
            await self._actions["stream.create"](nothing_to_report, word.made)
            log.info("stream %s created, as defined for all nodes", word.name)
        elif not word.made and there is not None and there["created"] < word.at:
            await self._actions["stream.delete"](nothing_to_report, named)
            log.info("stream %s deleted, as for all nodes", word.name)

    def _forget(self) -> None:
        excess = len(self._words) - WORDS_MAX
        if excess > 0:
            ended = sorted((word for word in self._words.values() if not word.made), key=lambda word: word.at)
            for word in ended[:excess]:
                del self._words[word.name]

    async def _write(self) -> None:
        data = msgspec.json.encode(list(self._words.values()))
        try:
            await asyncio.to_thread(replace, self._path, data)
        except OSError as error:
            log.error(
                "stream definitions for all nodes cannot be stored and will be forgotten at the next restart: %s: %s",
                self._path,
                error.strerror,
            )
