"""The number of calls between nodes when all clients reconnect to other nodes in the middle of a QoS 2 handshake: the
real state machines, on nodes in virtual time, for more nodes and clients than a machine holds.
"""

from __future__ import annotations

import random
from math import ceil

import msgspec

from starlingmq.cluster.links.control_frames import HandshakeCall, HandshakeReply
from starlingmq.cluster.qos2.qos2_lookup import Qos2Lookup, Qos2Question
from starlingmq.cluster.qos2.qos2_store import HELD, Answer, Qos2Store
from starlingmq.core.context.remote_qos2 import COMPLETED, Asked, RemoteQos2
from starlingmq.core.messages.message import Message
from starlingmq.core.session.qos import Inbound
from starlingmq.core.session.session import Client, Session
from starlingmq.core.session.trail import Trail

SECONDS = 1.0  # in which all clients reconnect
DELAY = 0.001  # latency of a frame between two nodes
TICK = 0.002
WINDOW = 0.03
LEFT, BACK = 10, 20  # epochs: of the stay with the PUBLISH, and since the return
START = 1_000.0


class Modelled(msgspec.Struct, frozen=True, kw_only=True):
    """``hint``: the takeover provided the node to ask; otherwise all are asked."""

    nodes: int
    clients: int
    hint: bool
    calls: int
    windows: int  # windows with a request, of all nodes together
    bound: int  # elapsed windows per node, times the nodes that it may ask
    one_by_one: int
    seconds: float  # from the first PUBREL to the last PUBCOMP


class Node:
    def __init__(self, number: int, nodes: int) -> None:
        self.number = number
        self.routed = 0
        self.counters = RemoteQos2()
        self.stays = Qos2Store(self._route, lambda *_: None, lambda *_: None, 86_400.0)
        self.handshakes = Qos2Lookup(
            self.counters, WINDOW, 10.0, lambda _: True, self._look, lambda question: self._look(question)
        )
        self.handshakes.enter(number, 1)
        self.handshakes.set_members(range(1, nodes + 1))

    def _route(self, _: Message) -> None:
        self.routed += 1

    def _look(self, question: Qos2Question) -> Answer:
        return self.stays.look(question.client_id, question.packet_id, question.epoch, question.floor)

    def hold(self, client_id: str) -> None:
        inbound = Inbound()
        inbound.hold(1, Message(b"t", b"x", 2, False, b"", 0.0, client_id, START), START)
        self.stays.leave(client_id, LEFT, inbound, START)

    def answer(self, call: HandshakeCall, now: float) -> HandshakeReply:
        answers = []
        for client_id, packet_id, before, floor, bound in call.questions:
            kind, epoch = self.stays.look(client_id, packet_id, before, floor)
            if kind == HELD and 0 < bound <= epoch:
                kind, epoch = self.stays.release(client_id, packet_id, before, floor, bound, now)
            answers.append((kind, epoch, self.stays.newest(client_id, before, floor)))
        return HandshakeReply(call.number, 0, tuple(answers))


def model(nodes: int, clients: int, hint: bool) -> Modelled:
    draw = random.Random(f"{nodes} {clients}")
    members = {number: Node(number, nodes) for number in range(1, nodes + 1)}
    arrivals: list[tuple[float, Node, Session]] = []
    for count in range(clients):
        client_id = f"client-{count}"
        home, back = draw.sample(range(1, nodes + 1), 2)
        members[home].hold(client_id)
        session = Session(client_id)
        session.epoch = BACK
        session.trail = Trail(home, LEFT, True) if hint else Trail(0, 0, False)
        session.client = Client("mqtt://model", client_id, START)
        arrivals.append((START + SECONDS * draw.random(), members[back], session))
    arrivals.sort(key=lambda arrival: arrival[0])
    now = START
    done = came = 0
    calls: list[tuple[float, Node, Node, HandshakeCall]] = []
    replies: list[tuple[float, Node, int, HandshakeReply]] = []
    while done < clients:
        now += TICK
        while came < clients and arrivals[came][0] <= now:
            _, node, session = arrivals[came]
            came += 1
            assert session.client is not None
            node.handshakes.ask(Asked(session.client, session, 1, False), now)
        due, calls = [c for c in calls if c[0] <= now], [c for c in calls if c[0] > now]
        replies += [(now + DELAY, asker, target.number, target.answer(call, now)) for _, asker, target, call in due]
        heard, replies = [r for r in replies if r[0] <= now], [r for r in replies if r[0] > now]
        for _, asker, number, reply in heard:
            asker.handshakes.replied(number, reply, now)
        for node in members.values():
            if node.handshakes.wake_at() <= now:
                calls += [(now + DELAY, node, members[target], call) for target, call in node.handshakes.turn(now)]
            assert all(outcome == COMPLETED for _, outcome in node.handshakes.resolved)
            done += len(node.handshakes.resolved)
            node.handshakes.resolved.clear()
    assert sum(node.routed for node in members.values()) == clients, "each message goes its way once"
    elapsed = now - arrivals[0][0]
    return Modelled(
        nodes=nodes,
        clients=clients,
        hint=hint,
        calls=sum(node.counters.calls for node in members.values()),
        windows=sum(node.counters.windows for node in members.values()),
        bound=ceil(elapsed / WINDOW) * nodes * (nodes - 1),
        one_by_one=sum(node.counters.entries for node in members.values()),
        seconds=elapsed,
    )
