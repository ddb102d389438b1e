"""Worlds in which nothing fails and some nodes are slow; ``python -m tests.cluster.slow_world --seeds N``.

A slow node takes up to a third of a second for a turn, its disk up to half a second for a sync, and its frames come
late; but its heartbeats are heard all the time. A takeover takes several times ``takeover_timeout``. Slowness costs
time
and nothing else, so all invariants of calm worlds hold:

- no client that has a session is told that it has none, and none is refused unless its client id is in use elsewhere;
- first deliveries are in the order of publication, also to a client that goes on to a third node before its session has
  moved to the second (``Roamer``);
- of several simultaneous CONNECTs with one client id, at several nodes, one remains connected (``Rivals``).
"""

from __future__ import annotations

import sys
from collections import Counter
from random import Random

import msgspec
from tests.cluster import seeded
from tests.cluster.takeover_world import RoamingWorld
from tests.cluster.takeover_world import figures as roaming_figures
from tests.sim.clients import Person
from tests.sim.node import Node
from tests.sim.plan import PublisherPlan, SubscriberPlan

from starlingmq.wire.mqtt import Ack, Packet, Publish, Subscribe, SubscribeRequest
from starlingmq.wire.packets import PUBACK, PUBCOMP, PUBREC

MEMBER_TIMEOUT = 4.0  # no heartbeat takes as long
ROUND_SECONDS = 20.0  # in which the rivals of a round are to be answered; a slow hand-over takes a few
ROUNDS = 4
SETTLE_SECONDS = 1.0  # after which no client may be closed any more


class Rival(Person):
    """One of several connections with one client id. It connects once in a round, and answers what it gets."""

    reason = -1  # of its CONNACK; -1: none has come
    present = False
    over = False  # its connection has ended
    took = 0.0  # seconds from CONNECT to its CONNACK, or its end

    def rise(self, node: Node) -> None:
        self.node = node
        self.reason, self.present, self.over, self.ending, self.known = -1, False, False, False, False
        self.rose_at = self.schedule.now
        self.come()
        self.ending = True  # it does not come back in this round

    def _give_up(self, tries: int) -> None:
        pass

    def begin(self, present: bool) -> None:
        self.reason, self.present, self.known = 0, present, False
        self.took = self.schedule.now - self.rose_at
        if not present:
            self.say([Subscribe(1, [SubscribeRequest(b"#", 2)])])

    def refused(self, reason: int) -> None:
        self.reason = reason

    def ended(self) -> None:
        if not self.over and self.reason != 0:
            self.took = self.schedule.now - self.rose_at
        self.over = True
        super().ended()

    def take(self, packet: Packet) -> None:
        if isinstance(packet, Publish) and packet.qos:
            self.say([Ack(PUBACK if packet.qos == 1 else PUBREC, packet.packet_id)])
        elif isinstance(packet, Ack):
            self.say([Ack(PUBCOMP, packet.packet_id)])

    def decided(self) -> bool:
        return self.over or self.reason == 0

    def finished(self) -> bool:
        return True


class SlowWorld(RoamingWorld):
    """Some nodes, disks and ways are slow until the world is healed."""

    def __init__(self, seed: int, trace: bool = False) -> None:
        super().__init__(seed, False)
        draw = self.draw = Random(f"slow {seed}")
        plan = self.plan
        plan.kind, plan.faulty, plan.early, plan.joins, plan.goes = "calm", False, False, False, ""
        plan.faults, plan.rare, plan.retained = 0, [], 0.0
        plan.loss = plan.doubling = 0.0
        plan.overtaking = False
        plan.theme = ""
        plan.seconds = 10.0
        while len(self.nodes) < 3:
            self._add_node(f"n{len(self.nodes) + 1}")
        plan.nodes = len(self.nodes)
        cluster = msgspec.structs.replace(
            self.settings.cluster,
            member_timeout=MEMBER_TIMEOUT,
            lease_ttl=10,
            subscribe_ack_timeout=60.0,
            resend_interval=3.0,
            takeover_timeout=draw.choice([0.5, 0.5, 3.0, 30.0]),
        )
        mqtt = msgspec.structs.replace(self.settings.mqtt, max_inflight=draw.choice([0, 1, 3, 20]))
        self.settings = plan.settings = msgspec.structs.replace(
            self.settings, cluster=cluster, mqtt=mqtt, keeps=True, sync_seconds=0.001
        )
        self.trace.on = trace
        self.pace = draw.choice([0.3, 1.0, 3.0])
        self._people()
        if trace:
            print(plan.told())

    def _people(self) -> None:
        draw, plan = self.draw, self.plan
        plan.subscribers = [
            SubscriberPlan(f"sub{number}", draw.randrange(plan.nodes), draw.choice([4, 5]), True, [(0.0, b"#", 2)])
            for number in range(2)
        ]
        plan.publishers = []
        for number in range(3):
            acts: list[tuple[float, bytes, int]] = []
            when, pause = draw.uniform(0.0, 1.0), draw.choice([0.02, 0.05, 0.2])
            while when < plan.seconds and len(acts) < 200:
                acts.append((when, b"a/1", draw.choice([1, 2])))
                when += pause * draw.uniform(0.1, 2.0)
            plan.publishers.append(PublisherPlan(f"pub{number}", number, draw.choice([4, 5]), True, acts))

    def _bring_people(self) -> None:
        super()._bring_people()
        self._slow_down()

    def _slow_down(self) -> None:
        draw, network = self.draw, self.network
        for node in self.nodes:
            if draw.random() < 0.6:
                node.turn_seconds = draw.choice([0.05, 0.2, 0.3])
                if node.process is not None:
                    node.process.loop.sync_seconds = draw.choice([0.001, 0.1, 0.3])
            for other in self.nodes:
                if other is not node and draw.random() < 0.5:
                    network.slow[node.host, other.host] = draw.choice([0.05, 0.3, 0.8])

    def _liveness(self) -> None:
        self.network.slow = {}
        for node in self.nodes:
            node.turn_seconds = 0.0
            if node.process is not None:
                node.process.loop.sync_seconds = 0.001
        super()._liveness()


class RaceWorld(SlowWorld):
    """Three connections with one client id come at once, at some of the nodes, again and again."""

    slowest = 0.0  # seconds from a CONNECT to its CONNACK, or its end

    def _people(self) -> None:
        super()._people()
        self.plan.subscribers = []
        for pub in self.plan.publishers:
            pub.acts = pub.acts[:50]
        cluster = msgspec.structs.replace(self.settings.cluster, takeover_timeout=60.0)
        self.settings = self.plan.settings = msgspec.structs.replace(self.settings, cluster=cluster)

    def _safety(self) -> None:
        self._bring_people()
        self.ends = []
        draw = self.draw
        rivals = [Rival(self.books, draw, self.nodes[0], "rival", draw.choice([4, 5]), True) for _ in range(3)]
        rivals[0].rise(self.nodes[0])
        self._wait(lambda: rivals[0].reason == 0, ROUND_SECONDS, "the first one is not served")
        self.pass_time(1.0)
        for number in range(ROUNDS):
            spread = draw.choice([0.0, 0.01, 0.1, 0.5])
            nodes = draw.sample(self.nodes, 3) if draw.random() < 0.7 else [draw.choice(self.nodes) for _ in rivals]
            for rival, node in zip(rivals, nodes, strict=True):
                if rival.connection is not None:
                    rival.cut()
                self.schedule.after(spread * draw.random(), rival.rise, node)
            self.pass_time(spread)
            self._wait(lambda: all(rival.decided() for rival in rivals), ROUND_SECONDS, f"round {number} stands still")
            self.pass_time(SETTLE_SECONDS)
            self.slowest = max(self.slowest, *[rival.took for rival in rivals])
            told = ", ".join(f"{r.node.host} {r.reason:#x}{' closed' if r.over else ''}" for r in rivals)
            remaining = [rival for rival in rivals if not rival.over]
            assert len(remaining) == 1, f"round {number}: {len(remaining)} remain: {told}"
            assert all(r.present for r in rivals if r.reason == 0), f"round {number}: session present 0: {told}"
            assert all(r.reason in (0, -1, 3, 0x89) for r in rivals), f"round {number}: {told}"


def run(seed: int, trace: bool = False) -> SlowWorld:
    """Roamers by an even seed, rivals by an odd one."""
    world = SlowWorld(seed, trace) if seed % 2 == 0 else RaceWorld(seed, trace)
    world.live()
    return world


def figures(world: SlowWorld) -> Counter[str]:
    return roaming_figures(world)


if __name__ == "__main__":
    sys.exit(seeded.main("slow_world", __doc__, run, figures))
