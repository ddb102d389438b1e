"""Three nodes on which NATS clients publish while members are slow and nodes cannot be reached for a while.

The invariants: a NATS client's message reaches no NATS client later than ``queue_groups.nats_wait``, and at most one
member of a queue group; an MQTT session at QoS 1 gets every message that was not refused; a message that nothing delays
reaches each subscriber.

    python -m tests.nats.stale_world --seeds 100
"""

from __future__ import annotations

import sys
from collections import Counter
from random import Random

from tests.cluster import seeded
from tests.cluster.fleet import Fleet
from tests.harness import FakeClient
from tests.nats.talk import Msg, NatsPeer, connect

from starlingmq.wire.mqtt import Ack, Publish, Suback, Subscribe, SubscribeRequest
from starlingmq.wire.packets import PUBACK
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL

STEPS = 60
WAIT_SECONDS = 5.0  # the default of ``queue_groups.nats_wait``
SLACK_SECONDS = 1.2  # waits of half a second, at a link and before it, are not told; a turn of ``advance``
NODES = (1, 2, 3)


class StaleWorld:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.seen: Counter[str] = Counter()
        self.fleet = Fleet(len(NODES))
        self.publishers = [connect(node) for node in self.fleet.nodes]
        self.workers = [connect(node) for node in self.fleet.nodes]
        self.readers = [connect(node) for node in self.fleet.nodes]
        for worker, reader in zip(self.workers, self.readers, strict=True):
            worker.said("SUB a g 1", "PING")
            reader.said("SUB a 1", "PING")
        self.session = self._subscribe(self.random.randrange(len(NODES)))
        self.sent_at: dict[bytes, float] = {}
        self.taken: Counter[bytes] = Counter()  # by members of the group
        self.kept: set[bytes] = set()  # by the session
        self.read_by: Counter[bytes] = Counter()  # by subscribers outside of the group
        self.prompt: set[bytes] = set()  # published while all nodes heard each other
        self.slow: set[int] = set()
        self.fleet.advance(2.0)

    def _subscribe(self, place: int) -> FakeClient:
        client = self.fleet.connect(place, "session", properties={SESSION_EXPIRY_INTERVAL: 10_000})
        client.send(Subscribe(1, [SubscribeRequest(b"a", 1)]))
        client.expect(Suback)
        return client

    def live(self) -> None:
        for _ in range(STEPS):
            step = self.random.choice([self.publish, self.publish, self.publish, self.delay, self.part, None])
            if step is not None:
                step()
            self.wait(0 if step is not None else self.random.choice([1, 10, 30, 70]))
        self.fleet.speak()
        for place in list(self.slow):
            self.read(place)
        self.wait(80)
        assert all(self.read_by[payload] == len(NODES) for payload in self.prompt), "each subscriber gets it, once"
        missing = set(self.sent_at) - self.kept
        assert not missing, f"the session at QoS 1 misses {missing}"
        assert sum(group.waiting() for node in self.fleet.nodes for group in node.state.router.groups()) == 0
        for node in self.fleet.nodes:
            self.seen["dropped"] += node.state.ctx.counters.dropped.get("nats_wait", 0)

    def publish(self) -> None:
        publisher = self.random.choice(self.publishers)
        for _ in range(self.random.choice([1, 1, 5])):
            payload = b"%d" % len(self.sent_at)
            self.sent_at[payload] = self.fleet.now
            publisher.pub("a", payload)
            if not self.fleet.mute:
                self.prompt.add(payload)
        assert publisher.heard() == []

    def delay(self) -> None:
        """A member, or a subscriber, stops reading, or goes on."""
        place = self.random.randrange(len(NODES))
        if place in self.slow:
            self.read(place)
        else:
            self.slow.add(place)
            self.fleet[place].state.blocked(self.workers[place].client)

    def read(self, place: int) -> None:
        self.slow.discard(place)
        self.fleet[place].state.drained(self.workers[place].client, self.fleet.now)
        self.fleet.run()

    def part(self) -> None:
        """The messages of a node do not arrive at another one, or do again."""
        if self.fleet.mute and self.random.random() < 0.5:
            self.fleet.speak()
        else:
            one, other = self.random.sample(NODES, 2)
            self.fleet.mute.add((one, other))

    def wait(self, tenths: int) -> None:
        self.look()
        for _ in range(tenths):
            self.fleet.advance(0.1, 0.05)
            self.look()

    def look(self) -> None:
        for place, worker in enumerate(self.workers):
            for payload in self._heard(worker):
                assert place not in self.slow, "nothing is written to a member that does not read"
                self.taken[payload] += 1
                assert self.taken[payload] == 1, f"{payload!r} came to two members"
        for reader in self.readers:
            self.read_by.update(self._heard(reader))
        for packet in self.session.receive():
            if isinstance(packet, Publish):
                self.session.send(Ack(PUBACK, packet.packet_id))
                self.kept.add(packet.payload)

    def _heard(self, peer: NatsPeer) -> list[bytes]:
        payloads = [frame.payload for frame in peer.heard() if isinstance(frame, Msg)]
        for payload in payloads:
            age = self.fleet.now - self.sent_at[payload]
            self.seen["late" if age > 1.0 else "at once"] += 1
            assert age <= WAIT_SECONDS + SLACK_SECONDS, f"{payload!r} came {age:.1f} s after it was published"
        return payloads


def run(seed: int, trace: bool) -> StaleWorld:
    world = StaleWorld(seed)
    world.live()
    if trace:
        print(world.seen)
    return world


if __name__ == "__main__":
    sys.exit(seeded.main("stale_world", __doc__, run, lambda world: world.seen))
