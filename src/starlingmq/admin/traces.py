"""Traces and live tails: each node watches messages, and the node that received the request joins what they see.

A trace has a part on each node, a ``core.observe.message_watch.MessageWatch``. The requesting node polls the parts a
few times a second; a part ends when it has not been polled for a while. Nodes that join or restart later are asked to
begin a part, too.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from operator import itemgetter
from typing import Final, Generic, TypeVar

from msgspec import UNSET, Struct, UnsetType, convert
from msgspec.structs import asdict

from starlingmq.admin.declared_actions import action
from starlingmq.admin.node_rpc import Missing, NodeRpc
from starlingmq.admin.operator_problem import AdminError
from starlingmq.admin.printable import plain
from starlingmq.admin.sessions import when
from starlingmq.core.observe.audit import Audit
from starlingmq.core.observe.event_lines import Event
from starlingmq.core.observe.message_watch import PAYLOAD_MAX, MessageWatch
from starlingmq.core.session.session import GROUP_PREFIX, NODE_PREFIX
from starlingmq.core.topics.topics import valid_filter
from starlingmq.net.driver import Driver

WATCHES_MAX: Final = 16  # on one node
TRACES_MAX: Final = 8  # requested on one node
FORGOTTEN_SECONDS: Final = 15.0  # without a poll
LOOK_SECONDS: Final = 0.25  # between two polls of all nodes
WAIT_SECONDS: Final = 1.0  # a request without events waits so long for some
EXTEND_SECONDS: Final = 3.0  # between two attempts to begin a part on nodes without one
RATE: Final = 100
RATE_MAX: Final = 1000

P = TypeVar("P")
R = TypeVar("R", bound=Struct)


class TraceRequest(Struct, frozen=True):
    """Messages whose topic matches the filter ``topic``, of the client ``client_id``, or both. ``tail``: only messages
    as they are accepted, with their payloads. ``rate``: messages per second and node."""

    client_id: str = ""
    topic: str = ""
    tail: bool = False
    rate: int | None = None


class WatchOpened(Struct, frozen=True):
    watch: str


class OneWatch(Struct, frozen=True):
    watch: str = ""


class EventDetails(Struct, frozen=True, kw_only=True):
    """The details of an event, each of which only some kinds of events have. ``payload_base64`` is set for a tail."""

    size: int | UnsetType = UNSET
    retain: bool | UnsetType = UNSET
    kept: bool | UnsetType = UNSET
    dup: bool | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    payload_base64: str | UnsetType = UNSET


class SeenEvent(EventDetails, frozen=True):
    """An event of ``core.observe.audit``."""

    at: float
    kind: str
    id: str
    topic: str
    qos: int
    client: str


class WatchSeen(Struct, frozen=True):
    """``lost``: messages and events that were left out."""

    events: list[SeenEvent]
    lost: int


class WatchClosed(Struct, frozen=True):
    closed: bool = True


class TraceStep(EventDetails, frozen=True):
    """One event of a message on ``node``, and the client, group or other node that it concerns."""

    at: str
    node: str
    id: str
    topic: str
    qos: int
    kind: str
    client: str
    peer: str | UnsetType = UNSET
    group: str | UnsetType = UNSET


class TraceBegun(Struct, frozen=True):
    trace: str
    missing: list[Missing]


class OneTrace(Struct, frozen=True):
    trace: str = ""


class TraceSeen(Struct, frozen=True):
    """``lost``: messages and events that were left out."""

    events: list[TraceStep]
    lost: int
    missing: list[Missing]


class TraceEnded(Struct, frozen=True):
    ended: bool = True


class TailMessage(Struct, frozen=True):
    """A message of a live tail. ``payload`` is None if it is not valid UTF-8."""

    at: str
    node: str
    client: str
    topic: str
    qos: int
    retain: bool
    size: int
    payload: str | None
    payload_base64: str
    truncated: bool


class Polled(Generic[P]):
    """Things that end when they have not been polled for ``FORGOTTEN_SECONDS``. They are named by number, since each
    request comes on a connection of its own. ``end`` is called with each that is forgotten."""

    def __init__(self, what: str, most: int, end: Callable[[P], object]) -> None:
        self._what = what
        self._most = most
        self._end = end
        self._found: dict[str, tuple[P, asyncio.TimerHandle]] = {}
        self._last = 0

    def refuse_more(self) -> None:
        """Raises AdminError."""
        if len(self._found) >= self._most:
            raise AdminError(429, f"the limit of {self._most} concurrent traces is reached; end one first")

    def add(self, one: P) -> str:
        """Return its name."""
        self._last += 1
        self._keep(str(self._last), one)
        return str(self._last)

    def polled(self, name: str) -> P:
        """Raises AdminError."""
        if name not in self._found:
            raise AdminError(410, f"no such {self._what}; it ended or expired")
        one, timer = self._found[name]
        timer.cancel()
        self._keep(name, one)
        return one

    def _keep(self, name: str, one: P) -> None:
        self._found[name] = one, asyncio.get_running_loop().call_later(FORGOTTEN_SECONDS, self.forget, name)

    def forget(self, name: str) -> None:
        if name in self._found:
            one, timer = self._found.pop(name)
            timer.cancel()
            self._end(one)

    def forget_all(self) -> None:
        for name in list(self._found):
            self.forget(name)

    def leave_all(self) -> None:
        """Forget them without their ends."""
        for _, timer in self._found.values():
            timer.cancel()
        self._found.clear()


class WatchActions:
    """The parts of traces on this node."""

    def __init__(self, driver: Driver, audit: Audit) -> None:
        self._driver = driver
        self._audit = audit
        self._watches: Polled[MessageWatch] = Polled("watch", WATCHES_MAX, self._close)
        self.stop = self._watches.forget_all

    @action("watch.open")
    async def open(self, request: TraceRequest) -> WatchOpened:
        self._watches.refuse_more()
        client_id, filter = request.client_id, request.topic.encode()
        if not (client_id or filter) or (filter and not valid_filter(filter)):
            raise AdminError(400, "a trace needs a client id or a topic filter")
        rate = RATE if request.rate is None else request.rate
        if not 1 <= rate <= RATE_MAX:
            raise AdminError(400, f"rate: must be 1 to {RATE_MAX:,} messages a second")
        watch = MessageWatch(client_id, filter, request.tail, rate)
        self._audit.watches.append(watch)
        self._driver.request_turn()
        return WatchOpened(self._watches.add(watch))

    @action("watch.look")
    async def look(self, request: OneWatch) -> WatchSeen:
        """The events since the last poll."""
        events, lost = self._watches.polled(request.watch).seen()
        return WatchSeen([_shown(event) for event in events], lost)

    @action("watch.close")
    async def close(self, request: OneWatch) -> WatchClosed:
        self._watches.forget(request.watch)
        return WatchClosed()

    def _close(self, watch: MessageWatch) -> None:
        self._audit.watches.remove(watch)
        self._driver.request_turn()


def _shown(event: Event) -> SeenEvent:
    payload = event.get("payload")
    shown = dict(event)
    if isinstance(payload, bytes):
        shown["payload_base64"] = base64.b64encode(payload).decode()
    return convert(shown, SeenEvent)


class Trace:
    """A trace that was requested on this node. Call ``begin``, then ``next`` repeatedly, then ``end``."""

    def __init__(self, rpc: NodeRpc, request: TraceRequest) -> None:
        self._rpc = rpc
        self._request = request
        self._parts: dict[str, str] = {}  # node -> its watch
        self._extended_at = 0.0
        self.missing: list[Missing] = []

    async def _ask(self, node: str, action: str, request: Struct, reply: type[R]) -> R | Missing:
        """A node that refuses counts as missing, and does not stop the trace on the others."""
        try:
            return await self._rpc.ask(node, action, request, reply)
        except AdminError as error:
            return Missing(node, error.why)

    async def begin(self) -> None:
        """Begin a part on each node that answers. Raises AdminError."""
        own = await self._rpc.ask("", "watch.open", self._request, WatchOpened)
        self._parts[self._rpc.name] = own.watch
        await self._extend()

    async def _extend(self) -> None:
        """Begin a part on the nodes without one."""
        self._extended_at = asyncio.get_running_loop().time()
        names = [name for _, name in self._rpc.members() if name not in self._parts]
        asked = (self._ask(name, "watch.open", self._request, WatchOpened) for name in names)
        self.missing = []
        for name, answer in zip(names, await asyncio.gather(*asked), strict=True):
            if isinstance(answer, Missing):
                self.missing.append(answer)
            else:
                self._parts[name] = answer.watch

    async def next(self) -> TraceSeen:
        """The steps since the last call, ordered by time as far as the clocks of the nodes agree; empty if there are
        none for ``WAIT_SECONDS``."""
        until = asyncio.get_running_loop().time() + WAIT_SECONDS
        while True:
            events, lost = await self._look()
            if events or lost or asyncio.get_running_loop().time() >= until:
                if asyncio.get_running_loop().time() >= self._extended_at + EXTEND_SECONDS:
                    await self._extend()
                return TraceSeen(events, lost, self.missing)
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self) -> tuple[list[TraceStep], int]:
        parts = list(self._parts.items())
        asked = (self._ask(name, "watch.look", OneWatch(watch), WatchSeen) for name, watch in parts)
        events: list[tuple[float, TraceStep]] = []
        lost = 0
        names = dict(self._rpc.members())
        for (name, _), answer in zip(parts, await asyncio.gather(*asked), strict=True):
            if isinstance(answer, Missing):
                del self._parts[name]
                continue
            lost += answer.lost
            events += [(event.at, step(event, name, names)) for event in answer.events]
        events.sort(key=itemgetter(0))  # stable: the events of one node keep their order
        return [one for _, one in events], lost

    async def end(self) -> None:
        parts, self._parts = self._parts, {}
        asked = (self._ask(name, "watch.close", OneWatch(watch), WatchClosed) for name, watch in parts.items())
        await asyncio.gather(*asked)


def step(event: SeenEvent, node: str, names: dict[int, str]) -> TraceStep:
    """One event as operators see it: what happened on ``node``, with names of nodes for numbers."""
    kind, client = event.kind, event.client
    peer: str | UnsetType = UNSET
    group: str | UnsetType = UNSET
    if client.startswith(NODE_PREFIX):
        other = client.removeprefix(NODE_PREFIX)
        kind = {"due": "forwarded", "delivered": "arrived"}.get(kind, kind)
        peer = names.get(int(other), other) if other.isdigit() else other
        client = ""
    elif client.startswith(GROUP_PREFIX):
        group = client.removeprefix(GROUP_PREFIX)
        client = ""
        kind = {"due": "queued", "delivered": "given"}.get(kind, kind)
    elif kind == "due":
        kind = "matched"
    changed = {"at": when(event.at), "node": node, "kind": kind, "client": client, "peer": peer, "group": group}
    return TraceStep(**asdict(event) | changed)


def words(told: TraceStep) -> str:
    """A step in one line, without characters that a terminal would interpret."""
    whom = told.client or told.group or told.peer or "the broker"
    way = {"accepted": "from", "refused": "from", "arrived": "at", "forwarded": "to", "matched": "for"}
    line = f"{told.at} {told.node} {told.kind} {way.get(told.kind, 'to')} {whom} {told.topic} (QoS {told.qos})"
    if told.size is not UNSET:
        line += f", {told.size} bytes"
    if told.dup:
        line += ", again"
    if told.reason is not UNSET:
        line += f": {told.reason}"
    return plain(f"{line} [{told.id}]")


class Traces:
    """The traces that were requested on this node."""

    def __init__(self, rpc: NodeRpc) -> None:
        self._rpc = rpc
        self._traces: Polled[Trace] = Polled("trace", TRACES_MAX, self.end_soon)
        self._ending: set[asyncio.Task[None]] = set()
        self.stop = self._traces.leave_all

    async def open(self, request: TraceRequest) -> Trace:
        """A trace that the caller ends. Raises AdminError."""
        trace = Trace(self._rpc, request)
        await trace.begin()
        return trace

    @action("trace.begin")
    async def begin(self, request: TraceRequest) -> TraceBegun:
        self._traces.refuse_more()
        trace = await self.open(request)
        return TraceBegun(self._traces.add(trace), trace.missing)

    @action("trace.next")
    async def next(self, request: OneTrace) -> TraceSeen:
        return await self._traces.polled(request.trace).next()

    @action("trace.end")
    async def end(self, request: OneTrace) -> TraceEnded:
        self._traces.forget(request.trace)
        return TraceEnded()

    def end_soon(self, trace: Trace) -> None:
        """End a trace without waiting, for callers that are being cancelled."""
        task = asyncio.ensure_future(trace.end())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


def message_of(told: TraceStep) -> TailMessage:
    """The message of a step of a live tail."""
    coded, size = told.payload_base64 or "", told.size or 0
    payload = base64.b64decode(coded)
    text: str | None
    try:
        text = payload.decode()
    except UnicodeDecodeError as error:  # the payload may have been cut within a character
        cut = size > PAYLOAD_MAX and error.start > PAYLOAD_MAX - 4
        text = payload[: error.start].decode() if cut else None
    return TailMessage(
        at=told.at,
        node=told.node,
        client=told.client,
        topic=told.topic,
        qos=told.qos,
        retain=told.retain is True,
        size=size,
        payload=text,
        payload_base64=coded,
        truncated=size > PAYLOAD_MAX,
    )
