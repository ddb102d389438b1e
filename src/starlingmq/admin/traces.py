"""Traces and live tails: each node sees what becomes of messages at it, whoever asked puts that together.

A trace has a part at each node, a ``core.observe.message_watch.MessageWatch`` that is asked for what it has seen a few
times a second, and goes when nobody has asked for a while. Nodes that come later, or were started anew, are asked to
begin one, too.
"""

from __future__ import annotations

import asyncio
import base64
from typing import Any, Final

from starlingmq.admin.node_rpc import Missing, NodeRpc
from starlingmq.admin.operator_problem import AdminError
from starlingmq.admin.printable import plain
from starlingmq.admin.sessions import when
from starlingmq.core.observe.audit import Audit
from starlingmq.core.observe.message_watch import PAYLOAD_MAX, Event, MessageWatch
from starlingmq.core.routing.topics import valid_filter
from starlingmq.core.session.session import GROUP_PREFIX, NODE_PREFIX
from starlingmq.net.control_socket import Action, Report
from starlingmq.net.driver import Driver

WATCHES_MAX: Final = 16  # at one node
TRACES_MAX: Final = 8  # that are asked for at one node
FORGOTTEN_SECONDS: Final = 15.0  # without anybody who asks
LOOK_SECONDS: Final = 0.25  # between two looks at all nodes
WAIT_SECONDS: Final = 1.0  # for something to be seen
EXTEND_SECONDS: Final = 3.0  # between two attempts to have a part at nodes that have none
RATE: Final = 100
RATE_MAX: Final = 1000

Arguments = dict[str, str]
Result = dict[str, Any]


class WatchActions:
    """The parts of traces that are at this node."""

    def __init__(self, driver: Driver, audit: Audit) -> None:
        self._driver = driver
        self._audit = audit
        self._watches: dict[str, tuple[MessageWatch, asyncio.TimerHandle]] = {}
        self._last = 0

    def actions(self) -> dict[str, Action]:
        return {"watch.open": self.open, "watch.look": self.look, "watch.close": self.close}

    async def open(self, report: Report, arguments: Arguments) -> Result:
        if len(self._watches) >= WATCHES_MAX:
            raise AdminError(429, f"the limit of {WATCHES_MAX} concurrent traces is reached; end one first")
        client_id, filter = arguments.get("client_id", ""), arguments.get("topic", "").encode()
        if not (client_id or filter) or (filter and not valid_filter(filter)):
            raise AdminError(400, "a trace needs a client id or a topic filter")
        watch = MessageWatch(client_id, filter, arguments.get("tail") == "yes", _rate(arguments))
        self._last += 1
        name = str(self._last)
        self._watches[name] = watch, self._timer(name)
        self._audit.watches.append(watch)
        self._driver.poke()
        return {"watch": name}

    async def look(self, report: Report, arguments: Arguments) -> Result:
        """What was seen since the last look."""
        name = arguments.get("watch", "")
        if name not in self._watches:
            raise AdminError(410, "no such watch; it ended or expired")
        watch, timer = self._watches[name]
        timer.cancel()
        self._watches[name] = watch, self._timer(name)
        events, lost = watch.seen()
        return {"events": [_shown(event) for event in events], "lost": lost}

    async def close(self, report: Report, arguments: Arguments) -> Result:
        self._forget(arguments.get("watch", ""))
        return {"closed": True}

    def _timer(self, name: str) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(FORGOTTEN_SECONDS, self._forget, name)

    def _forget(self, name: str) -> None:
        if name in self._watches:
            watch, timer = self._watches.pop(name)
            timer.cancel()
            self._audit.watches.remove(watch)
            self._driver.poke()

    def stop(self) -> None:
        for name in list(self._watches):
            self._forget(name)


def _shown(event: Event) -> Result:
    """As JSON takes it."""
    shown: Result = {key: value for key, value in event.items() if key not in ("payload", "n")}
    payload = event.get("payload")
    if isinstance(payload, bytes):
        shown["payload_base64"] = base64.b64encode(payload).decode()
    return shown


def _rate(arguments: Arguments) -> int:
    """Raises AdminError."""
    text = arguments.get("rate", "") or str(RATE)
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= RATE_MAX:
        raise AdminError(400, f"rate: must be 1 to {RATE_MAX:,} messages a second")
    return int(text)


async def _ask(desk: NodeRpc, node: str, action: str, arguments: Arguments) -> Result | Missing:
    """What a node can not do, or not any more, is no reason for the others to stop."""
    try:
        return await desk.attempt(node, action, arguments)
    except AdminError as error:
        return Missing(node, str(error))


class Trace:
    """One that somebody at this node has asked for. ``begin`` it, ``next`` as often as wanted, ``end`` it."""

    def __init__(self, desk: NodeRpc, arguments: Arguments) -> None:
        self._desk = desk
        self._arguments = arguments
        self._parts: dict[str, str] = {}  # node -> its watch
        self._extended_at = 0.0
        self.missing: list[Missing] = []

    async def begin(self) -> None:
        """At all nodes that answer. Raises AdminError."""
        own = await self._desk.here("watch.open", self._arguments)
        self._parts[self._desk.name] = own["watch"]
        await self._extend()

    async def _extend(self) -> None:
        """To the nodes that have no part yet."""
        self._extended_at = asyncio.get_running_loop().time()
        names = [name for _, name in self._desk.members() if name not in self._parts]
        answers = await asyncio.gather(*(_ask(self._desk, name, "watch.open", self._arguments) for name in names))
        self.missing = []
        for name, answer in zip(names, answers, strict=True):
            if isinstance(answer, Missing):
                self.missing.append(answer)
            else:
                self._parts[name] = answer["watch"]

    async def next(self) -> Result:
        """What was seen since, in order of time as far as clocks agree; empty if that is nothing for a while."""
        until = asyncio.get_running_loop().time() + WAIT_SECONDS
        while True:
            found = await self._look()
            if found["events"] or found["lost"] or asyncio.get_running_loop().time() >= until:
                if asyncio.get_running_loop().time() >= self._extended_at + EXTEND_SECONDS:
                    await self._extend()
                found["missing"] = [{"node": one.node, "why": one.why} for one in self.missing]
                return found
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self) -> Result:
        parts = list(self._parts.items())
        asked = (_ask(self._desk, name, "watch.look", {"watch": watch}) for name, watch in parts)
        events: list[Result] = []
        lost = 0
        names = dict(self._desk.members())
        for (name, _), answer in zip(parts, await asyncio.gather(*asked), strict=True):
            if isinstance(answer, Missing):
                del self._parts[name]
                continue
            lost += answer["lost"]
            events += [step(event, name, names) for event in answer["events"]]
        events.sort(key=lambda event: event["at"])  # stable: what is of one node stays as it was told
        for event in events:
            event["at"] = when(event["at"])
        return {"events": events, "lost": lost}

    async def end(self) -> None:
        parts, self._parts = self._parts, {}
        await asyncio.gather(*(_ask(self._desk, name, "watch.close", {"watch": it}) for name, it in parts.items()))


def step(event: Result, node: str, names: dict[int, str]) -> Result:
    """One event as it is told: what happened at ``node``, and to whom."""
    kind, client = event["kind"], event["client"]
    told = {"at": event["at"], "node": node, "id": event["id"], "topic": event["topic"], "qos": event["qos"]}
    if client.startswith(NODE_PREFIX):
        other = client.removeprefix(NODE_PREFIX)
        kind = {"due": "forwarded", "delivered": "arrived"}.get(kind, kind)
        told["peer"] = names.get(int(other), other) if other.isdigit() else other
        client = ""
    elif client.startswith(GROUP_PREFIX):
        told["group"] = client.removeprefix(GROUP_PREFIX)
        client = ""
        kind = {"due": "queued", "delivered": "given"}.get(kind, kind)
    elif kind == "due":
        kind = "matched"
    told |= {"kind": kind, "client": client}
    for key in ("size", "retain", "kept", "dup", "reason", "payload_base64"):
        if key in event:
            told[key] = event[key]
    return told


def words(told: Result) -> str:
    """A step in one line, which no terminal obeys."""
    whom = told["client"] or told.get("group", "") or told.get("peer", "")
    way = {"accepted": "from", "refused": "from", "arrived": "at", "forwarded": "to", "matched": "for"}
    line = f"{told['at']} {told['node']} {told['kind']} {way.get(told['kind'], 'to')} {whom or 'the broker'}"
    line += f" {told['topic']} (QoS {told['qos']})"
    if "size" in told:
        line += f", {told['size']} bytes"
    if told.get("dup"):
        line += ", again"
    if "reason" in told:
        line += f": {told['reason']}"
    return plain(f"{line} [{told['id']}]")


class Traces:
    """Those that were asked for at this node, through the control socket: by number, as its requests are short."""

    def __init__(self, desk: NodeRpc) -> None:
        self._desk = desk
        self._traces: dict[str, tuple[Trace, asyncio.TimerHandle]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._last = 0

    def actions(self) -> dict[str, Action]:
        return {"trace.begin": self.begin, "trace.next": self.next, "trace.end": self.end}

    async def open(self, arguments: Arguments) -> Trace:
        """For whoever ends it by itself. Raises AdminError."""
        trace = Trace(self._desk, {key: value for key, value in arguments.items() if key != "by"})
        await trace.begin()
        return trace

    async def begin(self, report: Report, arguments: Arguments) -> Result:
        if len(self._traces) >= TRACES_MAX:
            raise AdminError(429, f"the limit of {TRACES_MAX} concurrent traces is reached; end one first")
        trace = await self.open(arguments)
        self._last += 1
        name = str(self._last)
        self._traces[name] = trace, self._timer(name)
        return {"trace": name, "missing": [{"node": one.node, "why": one.why} for one in trace.missing]}

    async def next(self, report: Report, arguments: Arguments) -> Result:
        name = arguments.get("trace", "")
        if name not in self._traces:
            raise AdminError(410, "no such trace; it ended or expired")
        trace, timer = self._traces[name]
        timer.cancel()
        self._traces[name] = trace, self._timer(name)
        return await trace.next()

    async def end(self, report: Report, arguments: Arguments) -> Result:
        self._forget(arguments.get("trace", ""))
        return {"ended": True}

    def _timer(self, name: str) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(FORGOTTEN_SECONDS, self._forget, name)

    def _forget(self, name: str) -> None:
        if name in self._traces:
            trace, timer = self._traces.pop(name)
            timer.cancel()
            self.end_soon(trace)

    def end_soon(self, trace: Trace) -> None:
        """For whoever is cancelled and may not wait."""
        task = asyncio.ensure_future(trace.end())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def stop(self) -> None:
        for _, timer in self._traces.values():
            timer.cancel()
        self._traces.clear()


def message_of(told: Result) -> Result:
    """What a live tail shows of a message."""
    payload = base64.b64decode(told.get("payload_base64", ""))
    text: str | None
    try:
        text = payload.decode()
    except UnicodeDecodeError as error:  # cut within a sign?
        cut = told["size"] > PAYLOAD_MAX and error.start > PAYLOAD_MAX - 4
        text = payload[: error.start].decode() if cut else None
    return {
        "at": told["at"],
        "node": told["node"],
        "client": told["client"],
        "topic": told["topic"],
        "qos": told["qos"],
        "retain": told["retain"],
        "size": told["size"],
        "payload": text,
        "payload_base64": told.get("payload_base64", ""),
        "truncated": told["size"] > PAYLOAD_MAX,
    }
