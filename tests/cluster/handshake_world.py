"""The worlds of ``tests.sim`` with QoS 2 publishers that change nodes in the middle of their handshakes;
``python -m tests.cluster.handshake_world --seeds N``.

A publisher moves after PUBREC, so that another node gets the PUBREL; after PUBREL, so that PUBCOMP is lost and a third
node gets PUBREL again; or after PUBLISH, so that it is sent again with DUP while the first node still holds the
message.
It often leaves without a DISCONNECT. Packet ids are few, so an older handshake with the same id often exists.

The invariants beside those of every world: nothing answered with PUBCOMP is lost, nothing arrives twice, no publisher
gets PUBCOMP without a PUBREL on that connection, and where all nodes store everything no handshake is ever unknown.
Where a handshake may be lost, the broker closes a 3.1.1 publisher at its PUBREL, and later sends a PUBCOMP that is
counted.
"""

from __future__ import annotations

import sys
from collections import Counter
from random import Random

import msgspec
from tests.cluster import seeded
from tests.cluster.takeover_world import RoamingBooks
from tests.sim.checkers import Promise, Sent
from tests.sim.clients import Publisher, Subscriber
from tests.sim.node import Node
from tests.sim.world import World

from starlingmq.wire.mqtt import Ack, Packet, Publish
from starlingmq.wire.packets import PUBCOMP, PUBREC, PUBREL

IDS = 6  # packet ids of a publisher that are used again and again
FIGURES = ("questions", "hint_hits", "broadcasts", "answers/held", "answers/later", "clients/timed_out")


class HandshakeBooks(RoamingBooks):
    def __init__(self) -> None:
        super().__init__()
        self.nodes: list[Node] = []

    def _owed(self, promise: Promise, sent: Sent, calm: bool) -> bool:
        """Any node may be the one that routes it."""
        if not promise.durable and any(when > sent.at for node in self.nodes for when in node.crashes):
            return False
        return super()._owed(promise, sent, calm) and not any(node.gone for node in self.nodes)


class Hopper(Publisher):
    said: dict[int, None]  # packet ids of the PUBRELs of this connection

    def come(self) -> None:
        if self.ending or self.connection is not None:
            return
        nodes = [node for node in self.world.nodes if not node.gone and node.process is not None]
        if nodes:
            self.node = self.world.more.choice(nodes)
        self.said = {}
        super().come()

    @property
    def world(self) -> HandshakeWorld:
        world = self.node.world
        assert isinstance(world, HandshakeWorld)
        return world

    def hear(self, data: bytes) -> None:
        self.known = False  # the node that has the session may be unreachable
        super().hear(data)

    def new_id(self) -> int:
        packet_id = 1 + self.next_id % IDS
        while packet_id in self.sent:
            packet_id += 1
        self.next_id = packet_id
        return packet_id

    def say(self, packets: list[Packet]) -> None:
        super().say(packets)
        for packet in packets:
            if isinstance(packet, Ack) and packet.type == PUBREL:
                self.said[packet.packet_id] = None
        if any(isinstance(packet, (Publish, Ack)) for packet in packets):
            self.perhaps_hop()

    def take(self, packet: Packet) -> None:
        assert isinstance(packet, Ack)
        if packet.type == PUBREC and packet.reason < 0x80 and self.world.hops():
            if packet.packet_id in self.sent:
                self.released[packet.packet_id] = None
            self.hop()
            return
        if packet.type == PUBCOMP:
            assert packet.packet_id in self.said, f"{self.name}: a PUBCOMP that nobody asked for"
            self.world.unknown += packet.reason >= 0x80 or (self.name, packet.packet_id) in self.books.unknown
        super().take(packet)

    def may_lose_handshakes(self) -> bool:
        """A node that leaves takes its handshakes along."""
        return super().may_lose_handshakes() or any(node.gone or node.leaving for node in self.world.nodes)

    def perhaps_hop(self) -> None:
        if self.connection is not None and self.world.hops():
            connection = self.connection
            self.schedule.after(self.world.more.uniform(0.0, 0.1), self.hop, connection)

    def hop(self, of: object = None) -> None:
        """Go to another node; the one it was at does not always learn of it."""
        connection = self.connection
        if connection is None or (of is not None and of is not connection):
            return
        self.world.hopped += 1
        if self.world.more.random() < 0.5:
            self.cut()
            return
        self.trace.note(self.name, "leaves without a word")
        connection.open = False
        self.ended()


class HandshakeWorld(World):
    def __init__(self, seed: int, trace: bool = False, theme: str = "") -> None:
        super().__init__(seed, trace, theme)
        self.more = Random(f"hopping {seed}")
        self.hopped = self.unknown = 0
        self.settled = False  # no publisher changes nodes any more
        self.share = self.more.choice([0.1, 0.3, 0.6])
        plan = self.plan
        plan.kind = "calm" if plan.kind == "local" else plan.kind
        plan.retained = 0.0
        for sub in plan.subscribers:
            sub.acts = [(when, filter, 2 if qos > 0 else qos) for when, filter, qos in sub.acts]
        for pub in plan.publishers:
            pub.acts = [(when, topic, self.more.choice([1, 2, 2, 2])) for when, topic, _ in pub.acts]
        cluster = msgspec.structs.replace(
            self.settings.cluster,
            handshake_window=self.more.choice([0.001, 0.03, 0.2]),
            handshake_timeout=1000.0,  # unreachable nodes are waited for
            takeover_timeout=self.more.choice([0.5, 2.0]),
        )
        mqtt = msgspec.structs.replace(self.settings.mqtt, max_inflight=0)  # or subscribers take minutes for all of it
        self.settings = self.plan.settings = msgspec.structs.replace(self.settings, cluster=cluster, mqtt=mqtt)
        self.books: HandshakeBooks = HandshakeBooks()
        self.books.nodes = self.nodes

    def hops(self) -> bool:
        return not self.settled and self.more.random() < self.share

    def _bring_people(self) -> None:
        self.books.strict = False
        schedule = self.schedule
        for sub in self.plan.subscribers:
            subscriber = Subscriber(self.books, self.random, self.nodes[sub.host], sub.name, sub.version, sub.lasting)
            self.subscribers.append(subscriber)
            subscriber.left = len(sub.acts)
            for when, filter, qos in sub.acts:
                if qos < 0:
                    schedule.after(when, subscriber.unsubscribe, filter)
                else:
                    schedule.after(when, subscriber.subscribe, filter, qos)
        for pub in self.plan.publishers:
            hopper = Hopper(self.books, self.random, self.nodes[pub.host], pub.name, pub.version, True)
            self.publishers.append(hopper)
            hopper.left = len(pub.acts)
            for when, topic, qos in pub.acts:
                schedule.after(when, hopper.publish, topic, qos)
        self.people = [*self.subscribers, *self.publishers]
        for person in self.people:
            schedule.after(0.2 * self.random.random(), person.come)

    def _liveness(self) -> None:
        schedule_end = self.more.uniform(0.0, 3.0)
        self.schedule.after(schedule_end, self._settle)
        super()._liveness()

    def _settle(self) -> None:
        self.settled = True

    def figures(self) -> dict[str, int]:
        """Of the last life of each node."""
        found = dict.fromkeys(FIGURES, 0)
        for node in self.nodes:
            if node.process is not None:
                figures = node.process.cluster.qos2.counters.figures()
                for name in FIGURES:
                    found[name] += figures[name]
        return found


def run(seed: int, trace: bool = False, theme: str = "") -> HandshakeWorld:
    world = HandshakeWorld(seed, trace, theme)
    world.live()
    return world


def figures(world: HandshakeWorld) -> Counter[str]:
    more = {"hops": world.hopped, "told that a handshake is unknown": world.unknown}
    return Counter({**world.figures(), **more, "acknowledged": world.books.acknowledged_count})


if __name__ == "__main__":
    sys.exit(seeded.main("handshake_world", __doc__, run, figures))
