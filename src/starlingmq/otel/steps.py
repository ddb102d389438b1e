"""Spans from the events that a node's core reports (core.observe.audit).

Several nodes create the spans of one message without talking to each other. So if a span must be known to another node,
its id is derived from that of the message: *accept*, with which it entered the cluster, and *arrive*, one for each node
that it was forwarded to. All other spans are known only on their node.

    (the application's) > accept > deliver > acknowledge          at the node where it entered
                                 > forward > arrive > deliver     ... arrive: at another one
                                 > queue, refuse, drop

Times are those of the turns of the event loop in which the events happened.
"""

from __future__ import annotations

import hashlib
from typing import Final, Literal, NamedTuple, TypeVar

from starlingmq.core.observe.event_lines import Event
from starlingmq.core.observe.sampling import parent_in
from starlingmq.core.session.session import GROUP_PREFIX, NODE_PREFIX

REMEMBERED_MAX: Final = 10_000  # receivers with an event *due*, and deliveries without acknowledgement

Kind = Literal["server", "producer", "consumer", "internal"]
Key = TypeVar("Key")
Value = TypeVar("Value")


class Step(NamedTuple):
    """A span to create. Ids are numbers; ``parent`` 0: it is the first of its trace. ``remote``: the parent is on
    another node. Times in seconds; ``error`` "" means success."""

    name: str
    kind: Kind
    trace: int
    span: int
    parent: int
    remote: bool
    start: float
    end: float
    attributes: dict[str, str | int | bool]
    error: str


def number_of(size: int, *parts: object) -> int:
    """The same number for the same parts, on each node; never 0."""
    text = "\0".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=size).digest(), "big") or 1


class Steps:
    """The steps of one node. Remembered events only make spans longer: without them a span begins when it ends."""

    def __init__(self, node: str) -> None:
        self.node = node
        self._due: dict[tuple[str, str], float] = {}  # by message and receiver
        self._sent: dict[tuple[str, str], tuple[float, int]] = {}  # ... and the span of the delivery
        self._entries: dict[str, int] = {}  # message -> the span with which it came to this node

    def of(self, kind: str, event: Event, number: int) -> Step | None:
        """The span that this event completes, None if it completes none; ``number`` is that of the next span."""
        id, client, at = event["id"], event["client"], event["at"]
        assert isinstance(id, str) and isinstance(client, str) and isinstance(at, float)
        if kind == "accepted":
            return self._accept(event, id, client, at)
        if kind == "due":
            return self._begin(event, id, client, at)
        if kind == "delivered" and client == f"{NODE_PREFIX}{number}":
            return self._arrive(event, id, client, at)
        if kind == "delivered":
            return self._deliver(event, id, client, at)
        if kind == "acknowledged":
            since, parent = self._sent.pop((id, client), (at, self._entry(id)))
            return self._step("acknowledge", "internal", event, parent, since)
        if kind in ("dropped", "refused"):
            since = self._due.pop((id, client), at)
            return self._step("drop" if kind == "dropped" else "refuse", "internal", event, self._entry(id), since)
        return None

    def _accept(self, event: Event, id: str, client: str, at: float) -> Step:
        origin = parent_in(id)
        parent = 0 if origin is None else int.from_bytes(origin.span, "big")
        span = _accepted(id)
        _put(self._entries, id, span)
        return self._step("accept", "server", event, parent, at, span, origin is not None)

    def _begin(self, event: Event, id: str, client: str, at: float) -> Step | None:
        if not client.startswith(NODE_PREFIX):
            _put(self._due, (id, client), at)
            return None
        return self._step("forward", "producer", event, self._entry(id), at, _forwarded(id, client))

    def _arrive(self, event: Event, id: str, client: str, at: float) -> Step:
        span = number_of(8, id, "arrive", client)
        _put(self._entries, id, span)
        return self._step("arrive", "consumer", event, _forwarded(id, client), at, span, True)

    def _deliver(self, event: Event, id: str, client: str, at: float) -> Step:
        since = self._due.pop((id, client), at)
        if client.startswith(GROUP_PREFIX):
            return self._step("queue", "internal", event, self._entry(id), since)
        step = self._step("deliver", "producer", event, self._entry(id), since)
        if event["qos"]:
            _put(self._sent, (id, client), (at, step.span))
        return step

    def _entry(self, id: str) -> int:
        """The parent of events on this node: the span with which the message came to this node; if that was long ago,
        the span with which it entered the cluster."""
        return self._entries.get(id) or _accepted(id)

    def _step(
        self, name: str, kind: Kind, event: Event, parent: int, since: float, span: int = 0, remote: bool = False
    ) -> Step:
        id, at = str(event["id"]), event["at"]
        assert isinstance(at, float)
        origin = parent_in(id)
        trace = number_of(16, id) if origin is None else int.from_bytes(origin.trace, "big")
        error = str(event.get("reason", "")) if name in ("drop", "refuse") else ""
        span = span or number_of(8, id, self.node, event["n"])
        return Step(name, kind, trace, span, parent, remote, min(since, at), at, _attributes(name, event), error)


def _accepted(id: str) -> int:
    return number_of(8, id, "accept")


def _forwarded(id: str, client: str) -> int:
    return number_of(8, id, "forward", client)


def _put(remembered: dict[Key, Value], key: Key, value: Value) -> None:
    remembered[key] = value
    if len(remembered) > REMEMBERED_MAX:
        del remembered[next(iter(remembered))]


def _attributes(name: str, event: Event) -> dict[str, str | int | bool]:
    """Named as in OpenTelemetry's conventions for messaging, as far as they define a name."""
    qos, size, retain, dup = event["qos"], event.get("size"), event.get("retain"), event.get("dup")
    assert isinstance(qos, int)
    found: dict[str, str | int | bool] = {
        "messaging.system": "starlingmq",
        "messaging.operation.name": name,
        "messaging.destination.name": str(event["topic"]),
        "messaging.message.id": str(event["id"]),
        "starlingmq.qos": qos,
    }
    client = str(event["client"])
    if client.startswith(NODE_PREFIX):
        found["starlingmq.peer"] = client.removeprefix(NODE_PREFIX)
    elif client.startswith(GROUP_PREFIX):
        found["messaging.consumer.group.name"] = client.removeprefix(GROUP_PREFIX)
    elif client:
        found["messaging.client.id"] = client
    if isinstance(size, int):
        found["messaging.message.body.size"] = size
    if retain is True:
        found["starlingmq.retain"] = True
    if dup is True:
        found["starlingmq.dup"] = True
    return found
