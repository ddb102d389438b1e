"""The pictures of docs/CONCEPTS.md and docs/ARCHITECTURE.md: what the code does when it is asked everything in every
state, and what it says.

Nothing of them is written down here but the order of the boxes: states and arrows are what was seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, get_args

from starlingmq.cluster.links.control_frames import HandshakeCall, HandshakeReply
from starlingmq.cluster.membership.members import Members, State
from starlingmq.cluster.takeover.inbound_states import INBOUND_TABLE, SOURCE_TABLE, InboundState, SourceState
from starlingmq.cluster.takeover.migrations import Migrations
from starlingmq.cluster.takeover.outbound_states import OUTBOUND_TABLE, OutboundState
from starlingmq.cluster.takeover.transfer_frames import Passed, TransferFrame
from starlingmq.core.messages.message import Message
from starlingmq.core.messages.outgoing import PUBLISHED, RELEASED, Outgoing
from starlingmq.core.session.qos import Inbound, SendWindow
from starlingmq.core.structures.state_table import StateTable
from starlingmq.wire.mqtt import Ack, Publish, Subscribe, SubscribeRequest
from starlingmq.wire.packets import PUBACK, PUBREC, PUBREL
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL
from tests.cluster.fleet import Fleet
from tests.cluster.test_members import SETTLE, Town
from tests.cluster.test_takeover import lasting, publish, subscribe
from tests.docs.drawing import Edges, sequence, states
from tests.harness import FakeClient, World

ID = 7


def note(edges: Edges, start: str, end: str, label: str) -> None:
    labels = edges.setdefault((start, end), [])
    if label not in labels:
        labels.append(label)


def message(qos: int) -> Message:
    return Message(b"t", b"x", qos, False, b"", 0.0, "p", 1.0)


# QoS 2, the receiving end


def qos2_receiver() -> str:
    """Each packet in each state of ``core.session.qos.Inbound``."""

    def state(inbound: Inbound) -> str:
        if inbound.holds(ID):
            return "HELD"
        return "COMPLETED" if inbound.completed(ID) else "unknown"

    def in_state(name: str) -> Inbound:
        inbound = Inbound()
        if name != "unknown":
            inbound.hold(ID, message(2), 1.0)
        if name == "COMPLETED":
            inbound.release(ID, 1.0)
        assert state(inbound) == name
        return inbound

    def on_publish(inbound: Inbound) -> str:
        if inbound.holds(ID):
            return "PUBLISH again: PUBREC"
        inbound.hold(ID, message(2), 1.0)
        return "PUBLISH: kept, PUBREC"

    def on_pubrel(inbound: Inbound) -> str:
        if inbound.release(ID, 1.0) is not None:
            return "PUBREL: routed, PUBCOMP"
        return "PUBREL again: PUBCOMP" if inbound.completed(ID) else "PUBREL: PUBCOMP 0x92"

    def after_long(inbound: Inbound) -> str:
        _, abandoned = inbound.sweep(1000.0)
        return "await_rel_timeout: given up" if abandoned else "await_rel_timeout"

    edges: Edges = {}
    for name in ("unknown", "HELD", "COMPLETED"):
        for event in (on_publish, on_pubrel, after_long):
            inbound = in_state(name)
            label = event(inbound)
            if event is not after_long or state(inbound) != name:
                note(edges, name, state(inbound), label)
    return states("States of a QoS 2 message where it is received", ["unknown", "HELD", "COMPLETED"], edges)


# QoS 1 and 2, the sending end


def sender() -> str:
    """Each acknowledgement in each state of ``core.session.qos.SendWindow``."""
    names = {PUBLISHED: "PUBLISHED", RELEASED: "RELEASED"}

    def state(window: SendWindow) -> str:
        entry = window.entries.get(1)
        return "done" if entry is None else names[entry.stage]

    def in_state(name: str, qos: int) -> SendWindow:
        window = SendWindow(10)
        window.add(Outgoing(message(qos), qos, False, b"", None), 1.0)
        if name == "RELEASED":
            window.received(1, 1.0)
        return window

    events: list[tuple[str, Callable[[SendWindow], object]]] = [
        ("PUBACK", lambda window: window.acknowledged(1)),
        ("PUBREC", lambda window: window.received(1, 1.0)),
        ("PUBREC 0x80 or more", lambda window: window.refused(1)),
        ("PUBCOMP", lambda window: window.completed(1)),
    ]
    edges: Edges = {("in the session queue", "PUBLISHED"): ["room in the window: PUBLISH"]}
    for qos in (1, 2):
        for name in ("PUBLISHED", "RELEASED")[:qos]:
            for label, event in events:
                window = in_state(name, qos)
                taken = event(window)
                if taken and state(window) != name:
                    answer = ": PUBREL" if state(window) == "RELEASED" else ""
                    note(edges, name, state(window), f"{label}{answer} (QoS {qos})")
            again = in_state(name, qos)
            again.owe_all()
            note(edges, name, state(again), f"new connection: {'PUBLISH, DUP' if name == 'PUBLISHED' else 'PUBREL'}")
    order = ["in the session queue", "PUBLISHED", "RELEASED", "done"]
    return states("States of a message on its way to a client", order, edges, ["done"])


# A session


def session_life() -> str:
    """A client's actions, in each state that its session can be in."""
    edges: Edges = {}

    def where(world: World) -> str:
        session = world.state.ctx.sessions.get("c")
        if session is None:
            return "none"
        return "connected" if session.client is not None else "disconnected"

    def connect(world: World, clean: bool, expiry: int) -> FakeClient:
        return world.connect("c", 5, clean, properties={SESSION_EXPIRY_INTERVAL: expiry} if expiry else None)

    def world_in(name: str, expiry: int) -> tuple[World, FakeClient | None]:
        world = World()
        client = None if name == "none" else connect(world, False, expiry)
        if name == "disconnected" and client is not None:
            client.drop()
        assert where(world) == name
        return world, client

    for name in ("none", "connected", "disconnected"):
        for clean in (False, True):
            world, _ = world_in(name, 60)
            before = world.state.ctx.sessions.get("c")
            client = connect(world, clean, 60)
            kept = world.state.ctx.sessions["c"] is before
            assert client.connack.session_present == kept
            label = "clean start: new session" if clean else "CONNECT: same session" if kept else "CONNECT"
            if name != "none" or not clean:
                note(edges, name, where(world), label)
    for expiry, label in ((60, "connection lost"), (0, "connection ends, expiry 0")):
        world, connected = world_in("connected", expiry)
        assert connected is not None
        connected.drop()
        note(edges, "connected", where(world), label)
    world, _ = world_in("disconnected", 60)
    world.advance(61)
    note(edges, "disconnected", where(world), "session expires")
    return states("States of a session", ["none", "connected", "disconnected"], edges, ["none"])


# A node's life


def node_life() -> str:
    """Members on a model of etcd: they join, leave, are forgotten, crash and are replaced."""
    edges: Edges = {}
    town = Town()
    seen: dict[int, str] = {}  # by identity

    def run(seconds: float, **why: str) -> None:
        """``why``: what changes of a state are by, by the state that comes of it."""
        for _ in range(int(seconds / 0.01)):
            town.run(0.01)
            for members in town.members.values():
                before, seen[id(members)] = seen.get(id(members), "new"), members.state
                if members.state != before:
                    note(edges, before, members.state, why[members.state])

    def start(name: str, session: str = "", **why: str) -> Members:
        members = town.start(name, session=session)
        note(edges, "new", members.state, "start")
        seen[id(members)] = members.state
        run(2 * SETTLE, **why)
        return members

    first = start("a", joining="not in the membership yet", registered="a majority knows the membership")
    second = start("b", joining="not in the membership yet", registered="a majority knows the membership")
    start(
        "b",
        session="b again",
        registered="name and address are registered",
        replaced="another process has its name",
    )
    second = town.members["b again"]
    assert first.forget("b", True, True, town.now) == ""
    run(2 * SETTLE, forgotten="ctl cluster forget, at another node")
    third = start("c", joining="not in the membership yet", registered="a majority knows the membership")
    third.leave(town.now)
    run(2 * SETTLE, left="ctl cluster leave")
    assert (second.state, third.state) == ("forgotten", "left")
    order = list(get_args(State))
    assert {name for key in edges for name in key} == set(order)
    return states("States of a node as a member of its cluster", order, edges, ["left", "forgotten", "replaced"])


# A session that moves


def of_table(table: StateTable[Any, Any, Any], order: type[Enum], ends: Sequence[Enum] = ()) -> str:
    """The rows of a table that lead to another state."""
    edges: Edges = {}
    for row in table.rows.values():
        if row.next is not row.state:
            note(edges, row.state.value, row.next.value, row.event.value)
    return states(f"States of {table.about}", [state.value for state in order], edges, [end.value for end in ends])


def inbound_source() -> str:
    return of_table(SOURCE_TABLE, SourceState, [SourceState.GONE])


def inbound_session() -> str:
    return of_table(INBOUND_TABLE, InboundState, [InboundState.FINISHED])


def outbound_session() -> str:
    ends = [OutboundState.GONE, OutboundState.HERE, OutboundState.OWED]
    return of_table(OUTBOUND_TABLE, OutboundState, ends)


def takeover() -> str:
    """The frames between two nodes, and to a third, when a client connects to another node."""
    said: list[tuple[str, str, str]] = []
    fleet = Fleet(3)
    names = {2: "former owner", 1: "new owner", 3: "every other node"}
    methods = {name: getattr(Migrations, name) for name in ("send", "send_to_all")}

    def listening(name: str) -> Callable[[Migrations, int | list[int], TransferFrame], None]:
        def listen(migrations: Migrations, to: int | list[int], message: TransferFrame) -> None:
            for node in [to] if isinstance(to, int) else to:
                if node != migrations.me:
                    done = ", done" if isinstance(message, Passed) and message.done else ""
                    told(names[migrations.me], names[node], type(message).__name__ + done)
            methods[name](migrations, to, message)

        return listen

    def told(start: str, end: str, what: str) -> None:
        if (start, end, what) not in said[-3:]:
            said.append((start, end, what))

    publisher, client = fleet.connect(2, "p"), lasting(fleet, 1)
    subscribe(client, b"t", 1)
    client.drop()
    publish(publisher, b"t", b"waits")
    fleet.advance(0.5)
    for name in methods:
        setattr(Migrations, name, listening(name))
    try:
        told("client", "new owner", "CONNECT")
        client = lasting(fleet, 0)
        assert client.connack.session_present
        fleet.advance(2.0)
    finally:
        for name, method in methods.items():
            setattr(Migrations, name, method)
    at = next(number for number, step in enumerate(said) if step[2] == "Whole") + 1
    said.insert(at, ("new owner", "client", "CONNACK, session present"))
    return sequence("Messages of a takeover", ["client", *names_in_order(names)], said)


def names_in_order(names: dict[int, str]) -> list[str]:
    return [names[number] for number in sorted(names)]


# A QoS 2 handshake that goes on at another node


def handshake() -> str:
    fleet = Fleet(3)
    names = {1: "first node", 2: "second node"}
    said: list[tuple[str, str, str]] = []
    first = lasting(fleet, 0)
    first.send(Publish(b"t", b"x", 2, packet_id=5))
    said.append(("publisher", names[1], "PUBLISH"))
    answer = first.expect(Ack)
    assert answer.type == PUBREC
    said.append((names[1], "publisher", "PUBREC"))
    second = lasting(fleet, 1)
    said.append(("publisher", names[2], "CONNECT at this node"))
    fleet.advance(0.5)
    fleet.carried.clear()
    second.send(Ack(PUBREL, 5))
    said.append(("publisher", names[2], "PUBREL"))
    fleet.advance(1.0)
    for envelope in fleet.carried:
        if isinstance(envelope.body, HandshakeCall | HandshakeReply):
            what = type(envelope.body).__name__
            if isinstance(envelope.body, HandshakeReply):
                said.append((names[1], names[1], "routes the message"))
            said.append((names[envelope.source], names[envelope.target], what))
    done = second.expect(Ack)
    said.append((names[2], "publisher", f"PUBCOMP {done.reason:#04x}"))
    return sequence("A QoS 2 handshake that ends at another node", [names[1], "publisher", names[2]], said)


# A message of a queue group


def group_line() -> str:
    """Where a message is while members come, go and acknowledge."""
    edges: Edges = {}

    def where(world: World) -> str:
        group = world.state.router.group(b"$share/g/t")
        if group is not None and group.waiting():
            return "in the group queue"
        lent = [one for one in world.state.ctx.sessions.values() if one.window is not None and one.window.entries]
        return "lent to a member" if lent else "removed"

    def member(world: World, name: str) -> FakeClient:
        client = world.connect(name, 5)
        client.send(Subscribe(1, [SubscribeRequest(b"$share/g/t", 1)]))
        return client

    def happens(world: World, label: str, event: Callable[[], object], before: str = "") -> None:
        start = before or where(world)
        event()
        note(edges, start, where(world), label)

    def published(world: World) -> None:
        client = world.connect("p")
        client.send(Publish(b"t", b"x", 1, packet_id=1))
        assert client.expect(Ack).type == PUBACK

    def acknowledges(client: FakeClient) -> None:
        for packet in client.receive():
            if isinstance(packet, Publish):
                client.send(Ack(PUBACK, packet.packet_id))

    world = World()
    first = member(world, "m1")
    happens(world, "a member can take it", lambda: published(world), "published")
    happens(world, "PUBACK", lambda: acknowledges(first))
    first.drop()
    happens(world, "no member can take it", lambda: published(world), "published")
    members: list[FakeClient] = []
    happens(world, "a member subscribes", lambda: members.append(member(world, "m2")))
    happens(world, "the member is lost", lambda: members[0].drop())
    happens(world, "the last member unsubscribes, or grace is over: dropped", lambda: world.advance(31))
    return states(
        "States of a message of a queue group",
        ["published", "in the group queue", "lent to a member", "removed"],
        edges,
        ["published", "removed"],
    )
