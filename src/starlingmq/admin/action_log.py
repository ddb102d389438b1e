"""The actions of operators, kept over restarts: lines of JSON in two files of the data directory.

``actions.log`` grows to ``FILE_BYTES_MAX`` and becomes ``actions.log.1``, whose predecessor is deleted. A line is a
whole entry (``ActionEntry``), synced; the part of an entry that a crash leaves is skipped. An action does not wait for
its line: with a disk that is full or fails, the last ``WAITING_MAX`` entries wait in memory, each new one tries again,
and the log has an ERROR. Without a data directory they are in memory only.

Requests without the right to make them are refused, and have no entry.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from errno import ENOSPC
from pathlib import Path
from time import time
from typing import Annotated, Final

from msgspec import DecodeError, Meta, Struct, convert, json
from msgspec.structs import asdict, replace

from starlingmq.admin.declared_actions import ALL, action
from starlingmq.admin.node_rpc import Answers, Missing, NodeRpc
from starlingmq.admin.noted_actions import DONE, ActionEntry, cut
from starlingmq.admin.operator_problem import AdminError
from starlingmq.admin.sessions import when
from starlingmq.config.section_types import parse_duration

log = logging.getLogger("starlingmq.admin")

FILE: Final = "actions.log"
FILE_BYTES_MAX: Final = 4 << 20  # of each of the two files
WAITING_MAX: Final = 1000  # entries in memory
REPLY_BYTES_MAX: Final = 1 << 20  # of one node
OFTEN_SECONDS: Final = 60.0  # those of a kind that come often are one entry for so long
KINDS_MAX: Final = 1000
STOP_SECONDS: Final = 2.0  # for the last entries to be written

Moment = Annotated[
    str, Meta(max_length=40, description="ISO time, UTC where it names no zone; or how long ago, such as 90m.")
]


class ActionSearch(Struct, frozen=True):
    client: Annotated[str, Meta(max_length=65535, description="Only actions on the client with this client id.")] = ""
    operator: Annotated[str, Meta(max_length=200, description="Only operators whose name contains this text.")] = ""
    text: Annotated[str, Meta(max_length=1000, description="Only actions that contain this text, in any case.")] = ""
    since: Moment = ""
    until: Moment = ""
    limit: Annotated[
        int, Meta(ge=1, le=1000, description="Maximum number of actions: the last ones.", extra={"ctl": "--limit -n"})
    ] = 100


class NodeActions(Struct, frozen=True):
    """The last ones first. ``more``: others match."""

    actions: list[ActionEntry]
    more: bool


class ListedAction(Struct, frozen=True):
    time: str
    by: Annotated[str, Meta(description="The operator, and the node that was asked.")]
    address: Annotated[str, Meta(description="Where the request came from.")]
    nodes: Annotated[list[str], Meta(description="The nodes that did the same for the request.")]
    action: str
    what: str
    outcome: Annotated[str, Meta(description="done; begun: its end is another entry; or failed, and why.")]
    before: str
    after: str
    client_id: Annotated[str, Meta(description="The client that it is about; empty: none.")]
    count: Annotated[int, Meta(description="Actions of its kind within a minute, the last of which it shows.")]


class ActionsReply(Struct, frozen=True):
    """The last ones first. ``more``: others match, on the nodes that answered."""

    node: str
    actions: list[ListedAction]
    more: bool
    missing: list[Missing]


def merged(rpc: NodeRpc, answers: Answers[NodeActions], request: ActionSearch) -> ActionsReply:
    """One list. Nodes that did the same for one request are in one entry."""
    found: dict[object, ListedAction] = {}
    entries = [(one, node) for node, told in answers.results.items() for one in told.actions]
    for one, node in sorted(entries, key=lambda each: -each[0].at):
        same = one.request, one.action, one.what, one.outcome, one.before, one.after
        key: object = same if one.request and one.count == 1 else (one, node)
        earlier = found.pop(key, None)
        nodes = [node] if earlier is None else sorted({*earlier.nodes, node})
        found[key] = _listed(one, nodes)
    shown = list(found.values())
    more = len(shown) > request.limit or any(told.more for told in answers.results.values())
    return ActionsReply(rpc.name, shown[: request.limit], more, answers.missing)


def _listed(one: ActionEntry, nodes: list[str]) -> ListedAction:
    told = {"time": when(one.at), "nodes": nodes, "client_id": one.client}
    return convert(asdict(one) | told, ListedAction)


class Often(Struct):
    """Actions of a kind that comes often, since one has an entry. ``last``: one that has none."""

    until: float
    count: int = 0
    last: ActionEntry | None = None


class ActionLog:
    """The entries of one node; ``directory`` None: it has none."""

    def __init__(self, directory: Path | None) -> None:
        self._path = None if directory is None else directory / FILE
        self._waiting: deque[tuple[int, bytes]] = deque(maxlen=WAITING_MAX)  # number and line
        self._last = 0
        self._writing: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        self._often: dict[object, Often] = {}

    def note(self, entry: ActionEntry, often: bool) -> None:
        """Keep an entry. ``often``: those of its kind may come often."""
        self._settle(entry.at)
        if often:
            kind = entry.by, entry.address, entry.action, entry.outcome == DONE
            found = self._often.get(kind)
            if found is not None:
                found.count, found.last = found.count + 1, entry
                return
            if len(self._often) >= KINDS_MAX:
                self._settle()
            self._often[kind] = Often(entry.at + OFTEN_SECONDS)
        self._add(entry)

    def _settle(self, now: float | None = None) -> None:
        """Make entries of those that were counted: of minutes that are over by now, or of all."""
        for kind, found in list(self._often.items()):
            if now is None or not found.until - OFTEN_SECONDS <= now < found.until:
                del self._often[kind]
                if found.last is not None:
                    self._add(replace(found.last, count=found.count))

    def _add(self, entry: ActionEntry) -> None:
        self._last += 1
        self._waiting.append((self._last, json.encode(entry)))
        if self._path is not None and (self._writing is None or self._writing.done()):
            self._writing = asyncio.ensure_future(self._write(self._path))

    async def _write(self, path: Path) -> None:
        async with self._turn:
            while self._waiting:
                last = self._waiting[-1][0]
                try:
                    await asyncio.to_thread(append, path, [line for _, line in self._waiting])
                except OSError as error:
                    log.error(
                        "actions of operators cannot be stored, and wait in memory: %s: %s",
                        path,
                        error.strerror or error,
                    )
                    return
                while self._waiting and self._waiting[0][0] <= last:
                    self._waiting.popleft()

    async def stop(self) -> None:
        self._settle()
        if self._writing is not None:
            await asyncio.wait([self._writing], timeout=STOP_SECONDS)

    @action(
        "actions",
        "GET /actions",
        ALL,
        merge=merged,
        download="actions.jsonl",
        ctl="actions",
        columns="time: time (UTC), by: operator, address: from*, nodes, what: action, outcome, before*, after*, count*",
        none="there are no actions of operators",
    )
    async def search(self, request: ActionSearch) -> NodeActions:
        """List what operators have done: who, from where, at which nodes, and with which outcome. The last ones first;
        kept over restarts. Raises AdminError."""
        now = time()
        since, until = moment("since", request.since, now), moment("until", request.until, now)
        self._settle()
        async with self._turn:
            waiting = [line for _, line in self._waiting]
            return await asyncio.to_thread(_search, self._path, waiting, request, since or 0.0, until or now + 1e9)


def moment(name: str, text: str, now: float) -> float | None:
    """Unix seconds; None for "". Raises AdminError."""
    if not text:
        return None
    try:
        return now - parse_duration(text)
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(text)
        return found.replace(tzinfo=found.tzinfo or UTC).timestamp()
    except (ValueError, OverflowError):
        raise AdminError(400, f"{name}: must be a time such as 2026-01-31T23:15, or a duration such as 90m") from None


def _search(path: Path | None, waiting: list[bytes], request: ActionSearch, since: float, until: float) -> NodeActions:
    """Blocks. Raises AdminError."""
    entries = (one for one in _decoded(_lines(path, waiting)) if since <= one.at < until and _fits(one, request))
    found: list[ActionEntry] = []
    size = 0
    for one in entries:
        size += len(json.encode(one))
        if len(found) == request.limit or size > REPLY_BYTES_MAX:
            return NodeActions(found, True)
        found.append(one)
    return NodeActions(found, False)


def _fits(one: ActionEntry, request: ActionSearch) -> bool:
    if (request.client and cut(request.client) != one.client) or request.operator not in one.by:
        return False
    text = request.text.lower()
    return any(
        text in told.lower() for told in (one.what, one.action, one.outcome, one.before, one.after, one.by, one.address)
    )


def _lines(path: Path | None, waiting: list[bytes]) -> Iterator[bytes]:
    """The last ones first. Raises AdminError."""
    yield from reversed(waiting)
    for file in () if path is None else (path, _older(path)):
        try:
            yield from reversed(file.read_bytes().split(b"\n"))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise AdminError(507, f"{file} cannot be read: {error.strerror}") from None


def _decoded(lines: Iterable[bytes]) -> Iterator[ActionEntry]:
    decoder = json.Decoder(ActionEntry)
    for line in lines:
        try:
            yield decoder.decode(line)
        except (DecodeError, UnicodeDecodeError):  # nothing, what a crash has left of an entry, or a damaged one
            continue


def _older(path: Path) -> Path:
    return path.with_name(f"{FILE}.1")


def append(path: Path, lines: Iterable[bytes]) -> None:
    """Write the lines, and sync them; all or none. Blocks; raises OSError."""
    data = b"\n".join([*lines, b""])
    try:
        size = path.stat().st_size
        if size and size + len(data) > FILE_BYTES_MAX:  # an empty one, which a failure has left, replaces no entries
            path.replace(_older(path))
    except FileNotFoundError:
        pass
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        size = os.fstat(handle).st_size
        if size and os.pread(handle, 1, size - 1) != b"\n":
            data = b"\n" + data  # behind what a crash has left of an entry
        try:
            if os.write(handle, data) < len(data):
                raise OSError(ENOSPC, os.strerror(ENOSPC))
            os.fsync(handle)
        except OSError:
            os.ftruncate(handle, size)
            raise
    finally:
        os.close(handle)
