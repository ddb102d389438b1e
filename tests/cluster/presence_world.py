"""The worlds of ``tests.sim`` with clients whose presence is retained: will ``offline``, ``online`` after CONNACK;
``python -m tests.cluster.presence_world --seeds N``.

Of each client must hold, whatever fails:

- no will of an earlier connection is published once it has published something over a newer one, unless its share has
  lost its leader and its deputy (docs/KNOWN-ISSUES.md);
- in the end, when it is connected and nothing is wrong any more, its topic retains ``online`` at every node.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from unittest.mock import patch

from tests.cluster import seeded
from tests.cluster.lost_pairs import telling_of_lost_pairs
from tests.sim import faults
from tests.sim.checkers import Books
from tests.sim.clients import FOREVER, Connection, Person
from tests.sim.node import Node
from tests.sim.plan import Plan
from tests.sim.retained import payload_of, retained_in
from tests.sim.world import LIVENESS_MAX, World

from starlingmq.cluster.shares.share_table import share_of
from starlingmq.core.connect.ending import Ending
from starlingmq.core.session.session import Will as CoreWill
from starlingmq.wire.mqtt import Ack, Connect, Disconnect, Packet, Publish, Will
from starlingmq.wire.packets import PUBACK
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL, WILL_DELAY_INTERVAL, Properties


class Present(Person):
    """``said`` is the last of its connections over which it has published that it is online."""

    def __init__(self, books: Books, random: Random, node: Node, name: str) -> None:
        version = random.choice([4, 5])
        super().__init__(books, random, node, name, version, random.random() < 0.5)
        self.retain = random.random() < 0.8
        self.delay = random.choice([0, 0, 0, 3]) if version == 5 else 0
        self.pause = random.choice([0.1, 1.0, 4.0])
        self.topic = b"presence/" + name.encode()
        self.connections = 0
        self.said = 0
        self.acknowledged = 0
        self.staying = False

    def come(self) -> None:
        if self.connection is not None:
            return
        nodes = [node for node in self.node.world.nodes if not node.gone and node.process is not None]  # type: ignore[attr-defined]
        if nodes:
            self.node = self.random.choice(nodes)
        process = self.node.process
        if process is None:
            self.schedule.after(0.3, self.come)
            return
        self._tries += 1
        self.connections += 1
        self.connection = Connection(self, process)
        will = Will(self.topic, b"%d offline" % self.connections, self.random.choice([0, 1]), self.retain, {})
        if self.delay:
            will.properties[WILL_DELAY_INTERVAL] = self.delay
        properties: Properties = {SESSION_EXPIRY_INTERVAL: FOREVER} if self.version == 5 and self.lasting else {}
        self.say([Connect(self.version, self.name, not self.lasting, will=will, properties=properties)])
        self.schedule.after(12.0, self._give_up, self._tries)

    def begin(self, present: bool) -> None:
        self.known = False
        self.said = self.connections
        self._say_online(self._tries)
        self.schedule.after(self.pause * self.random.random(), self.go, self._tries)

    def _say_online(self, tries: int) -> None:
        if self.online and self._tries == tries:
            self.say([Publish(self.topic, b"%d online" % self.said, 1, self.retain, packet_id=self.new_id())])

    def go(self, tries: int) -> None:
        """End this connection, one way or another."""
        if self.staying or not self.online or self._tries != tries or self.connection is None:
            return
        how = self.random.choice(["politely", "cut", "silent", "stay"])
        if how == "politely":
            self.say([Disconnect()])
        elif how == "cut":
            self.cut()
        elif how == "silent":
            self.trace.note(self.name, "leaves without a word")
            self.connection.open = False
            self.ended()
        else:
            self.schedule.after(self.pause, self.go, tries)

    def ended(self) -> None:
        self.trace.note(self.name, "has no connection")
        self.connection = None
        self.online = False
        self.schedule.after(0.05 + self.pause * self.random.random(), self.come)

    def take(self, packet: Packet) -> None:
        assert isinstance(packet, Ack) and packet.type == PUBACK
        if packet.reason < 0x80:
            self.acknowledged = self.said
        else:
            self.schedule.after(0.3, self._say_online, self._tries)

    def finished(self) -> bool:
        return True

    def is_shown_by(self, payload: bytes | None) -> bool:
        """Of two retained messages that two nodes take within ``cluster.retained_window`` the older one may win, so it
        may be an earlier ``online``; never ``offline``."""
        return payload is not None and payload.endswith(b"online")


def lose_nodes(plan: Plan, random: Random) -> None:
    """Three times a node is lost for long. It has ended, or looks like it, or is cut off from the other nodes alone."""
    plan.goes, plan.joins = "", False
    plan.kind, plan.faulty, plan.faults = "faulty", True, min(plan.faults, 1)
    kinds = (faults.cut_off_for_long, faults.crash, faults.proxy_of_one_ends)
    plan.rare = [(random.uniform(0.5, plan.seconds), random.choice(kinds), random.uniform(2.0, 9.0)) for _ in range(3)]


class PresenceWorld(World):
    def __init__(self, seed: int, trace: bool = False, losses: bool = False) -> None:
        """``losses``: nodes are lost again and again, for long, and some of them live."""
        super().__init__(seed, trace)
        if losses or self.loses_nodes:
            lose_nodes(self.plan, Random(f"losses {seed}"))
        self.plan.subscribers = []
        self.plan.publishers = self.plan.publishers[:1]
        self.plan.kind = "calm" if self.plan.kind == "local" else self.plan.kind
        self.more = Random(f"presence {seed}")
        self.present: dict[bytes, Present] = {}
        self.late: list[str] = []
        self.wills = 0
        self.lost_shares: dict[int, None] = {}

    def _lose_pair(self, share: int) -> None:
        self.lost_shares[share] = None

    def _bring_people(self) -> None:
        self.lost_shares = {}  # the first leaders have asked all nodes
        super()._bring_people()
        for number in range(self.more.choice([1, 3, 6])):
            person = Present(self.books, self.more, self.nodes[0], f"p{number}")
            self.present[person.topic] = person
            self.schedule.after(self.more.random(), person.come)

    def _settled(self) -> bool:
        if self.healed:
            for person in self.present.values():
                person.staying = True
        there = all(person.online and person.acknowledged == person.said for person in self.present.values())
        return there and super()._settled()

    def _read_by_all(self) -> bool:
        return True

    def _wrongly_retained(self) -> list[str]:
        return []  # the books do not know what these clients publish

    def _liveness(self) -> None:
        super()._liveness()
        self.pass_time(20.0)  # for wills that come late
        self._wait(lambda: not self.unretained(), LIVENESS_MAX, "what is retained differs")
        assert not self.late, f"{self.late[0]}, {len(self.late)} in all"
        wrong = self.wrongly_present()
        assert not wrong, f"{wrong[0]}, {len(wrong)} in all"

    def wrongly_present(self) -> list[str]:
        found: list[str] = []
        retained = retained_in(self.etcd.model.store)  # which all nodes show: ``unretained``
        processes = [node.process for node in self.members() if node.process is not None]
        for person in self.present.values():
            value = retained.get(person.topic)
            payload = None if value is None else payload_of(processes, person.topic, value)
            if person.online and person.retain and not person.is_shown_by(payload):
                found.append(f"{person.name} is online and {payload!r} is retained")
        return found

    @contextmanager
    def listening(self) -> Iterator[None]:
        publish = Ending.publish_will

        def noting(ending: Ending, will: CoreWill) -> None:
            person = self.present.get(will.message.topic)
            if person is not None:
                self.wills += 1
                number = int(will.message.payload.split()[0])
                told = f"will {number} of {person.name} is published by n{ending.ctx.node}"
                self.trace.note("world", told)
                if number < person.said and share_of(person.name) not in self.lost_shares:
                    self.late.append(
                        f"{self.schedule.now:.3f}: {told} after it was online for the {person.said}th time"
                    )
            publish(ending, will)

        with patch.object(Ending, "publish_will", noting), telling_of_lost_pairs(self._lose_pair):
            yield


def run(seed: int, trace: bool = False, losses: bool = False) -> PresenceWorld:
    world = PresenceWorld(seed, trace, losses)
    with world.listening():
        world.live()
    return world


def figures(world: PresenceWorld) -> Counter[str]:
    connections = sum(person.connections for person in world.present.values())
    return Counter({"connections": connections, "wills": world.wills, "lost pairs": int(bool(world.lost_shares))})


if __name__ == "__main__":
    sys.exit(seeded.main("presence_world", __doc__, run, figures))
