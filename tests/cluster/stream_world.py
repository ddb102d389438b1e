"""Publishers and consumers of JetStream at the nodes of a cluster, while homes are lost and served again from their
disks, links are cut, etcd has no leader, or an older registry, or none; and what must be true of it.

A seed says what happens. ``check`` raises AssertionError.
"""

from __future__ import annotations

import json
from collections import Counter
from math import inf
from random import Random
from typing import Any, Final

from tests.cluster.stream_disk import DiskFleet, DiskNode
from tests.cluster.stream_fleet import JetStreamPeer
from tests.core.streams.stream_world import PUBACK, offset_of
from tests.harness import FakeClient
from tests.nats.talk import Msg

from starlingmq.cluster.etcd.etcd_requests import Delete, Put, Txn
from starlingmq.wire.mqtt import Ack, Connack, Connect, Packet, Publish, Suback, Subscribe, SubscribeRequest
from starlingmq.wire.properties import RECEIVE_MAXIMUM, SESSION_EXPIRY_INTERVAL, USER_PROPERTY, Properties

NAMES: Final = ("n1", "n2", "n3")
REGISTRY: Final = b"/starlingmq/test/jetstream"
STEP: Final = 0.05
PATIENCE: Final = 1.0  # of a client that waits for an answer
ACK_WAIT: Final = 3.0
SLOW: Final = 40.0  # a member of a group that takes longer than ack_wait
CALM: Final = 15.0  # after a fault
TRIES: Final = 4  # of an acknowledgement


class Person:
    """A client that connects again, to any node, when its own is gone, and repeats what was not answered."""

    def __init__(self, world: StreamWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.peer: JetStreamPeer | None = None
        self.node: DiskNode | None = None
        self.asked = ""  # the reply subject of what it waits for ...
        self.until = 0.0  # ... up to this time
        self.later = 0.0

    def step(self) -> None:
        fleet = self.world.fleet
        if self.peer is None or self.node not in fleet.nodes or self.peer.peer.closed:
            self.asked, self.peer, self.node = "", None, None
            serving = [node for node in fleet.nodes if node.cluster.serving]
            if not serving:
                return
            node = self.world.random.choice(serving)
            assert isinstance(node, DiskNode)
            try:
                peer = JetStreamPeer(fleet, fleet.nodes.index(node), f"{self.name}-{self.world.serial()}")
            except AssertionError:  # it is isolated, and answers no PING
                return
            self.peer, self.node = peer, node
            self.begin()
        assert self.peer is not None
        answer = self.peer.answer(self.asked) if self.asked else None
        if answer is not None:
            asked, self.asked = self.asked, ""
            self.answered(asked, answer)
        elif fleet.now >= (self.until if self.asked else self.later):
            self.asked = ""
            self.act(self.peer)

    def wait(self, reply: str, seconds: float = PATIENCE) -> None:
        self.asked, self.until = reply, self.world.fleet.now + seconds

    def rest(self) -> None:
        """Begin the next thing a little later."""
        self.later = self.world.fleet.now + self.world.random.uniform(0.0, 0.4)

    def begin(self) -> None:
        """It is connected, perhaps again."""

    def act(self, peer: JetStreamPeer) -> None:
        raise NotImplementedError

    def answered(self, reply: str, answer: Msg) -> None:
        raise NotImplementedError

    def is_done(self) -> bool:
        raise NotImplementedError


class Publisher(Person):
    """Each of its messages has an id, and is published again until it is acknowledged."""

    def __init__(self, world: StreamWorld, name: str, stream: str, count: int) -> None:
        super().__init__(world, name)
        self.stream = stream
        self.left = count
        self.number = 0

    def act(self, peer: JetStreamPeer) -> None:
        if self.left:
            text = f"{self.name}-{self.number}"
            self.wait(peer.request(self.stream.lower(), text.encode(), f"Nats-Msg-Id: {text}"))

    def answered(self, reply: str, answer: Msg) -> None:
        found: Any = json.loads(answer.payload) if answer.payload else {"error": "no responders"}
        if "error" not in found:
            self.world.acknowledged(self.stream, found["seq"], f"{self.name}-{self.number}")
            self.number += 1
            self.left -= 1
            self.rest()

    def is_done(self) -> bool:
        return self.left == 0


class Worker(Person):
    """It takes messages of a consumer, and acknowledges each of them until that is answered."""

    def __init__(self, world: StreamWorld, name: str, stream: str) -> None:
        super().__init__(world, name)
        self.stream = stream
        self.held: list[Msg] = []
        self.seen = 0
        self.tries = 0

    def act(self, peer: JetStreamPeer) -> None:
        for message in peer.messages[self.seen :]:
            if message.reply:
                self.world.delivered(self.stream, *numbers(message), message.payload.decode())
                self.held.append(message)
        self.seen = len(peer.messages)
        if self.held and self.tries == TRIES:  # the consumer may not know any more that it has delivered it
            self.held.pop(0)
            self.tries = 0
        if self.held:
            self.tries += 1
            self.wait(peer.request(self.held[0].reply, b"+ACK"))
        else:
            asked = json.dumps({"batch": 3, "expires": int(0.5e9)}).encode()
            peer.peer.pub(f"$JS.API.CONSUMER.MSG.NEXT.{self.stream}.c", asked, peer.inbox)
            self.wait(f"{peer.inbox}.nothing", 0.3)

    def begin(self) -> None:
        self.held, self.seen, self.tries = [], 0, 0

    def answered(self, reply: str, answer: Msg) -> None:
        if answer.headers:
            return  # 503: its node does not know the stream yet
        message = self.held.pop(0)
        self.tries = 0
        self.world.done(self.stream, numbers(message)[0])

    def is_done(self) -> bool:
        return not self.held


def numbers(message: Msg) -> tuple[int, int]:
    """The sequence, and the number of the delivery."""
    parts = message.reply.split(".")
    return int(parts[5]), int(parts[6])


class Visitor:
    """An MQTT client with a session that lasts. It goes from node to node, and reads the stream S of whichever node. A
    session that was lost with its node begins again after the last message that came. An earlier subscription holds
    until the client has sent something after CONNACK: what came by it since then comes once more."""

    def __init__(self, world: StreamWorld, name: str) -> None:
        self.world = world
        self.random = world.random
        self.name = name
        self.fake: FakeClient | None = None
        self.node: DiskNode | None = None
        self.last = 0
        self.asked = 1  # where its subscription begins
        self.twice: set[int] = set()  # sequences that may come once more
        self.leaves_at = 0.0
        self.reads = False

    def step(self) -> None:
        fleet = self.world.fleet
        if self.fake is None or self.node not in fleet.nodes or self.fake.closed:
            self.fake = None
            serving = [node for node in fleet.nodes if node.cluster.serving]
            if serving:
                self.connect(self.random.choice(serving))
            return
        for packet in self.fake.receive():
            self.take(self.fake, packet)
        if fleet.now >= self.leaves_at and self.reads:
            if not self.fake.closed:
                self.fake.drop()
            self.fake = None

    def connect(self, node: Any) -> None:
        world = self.world
        properties: Properties = {SESSION_EXPIRY_INTERVAL: 1000, RECEIVE_MAXIMUM: self.random.choice((1, 3, 100))}
        self.node, self.fake, self.reads = node, node.open(5, self.name), False
        self.leaves_at = world.fleet.now + self.random.uniform(0.0, 6.0)
        assert self.fake is not None
        self.fake.send(Connect(5, self.name, False, 0, None, None, None, properties))

    def take(self, fake: FakeClient, packet: Packet) -> None:
        if isinstance(packet, Connack) and packet.reason == 0:
            self.reads = packet.session_present and self.last != 0
            if not self.reads:
                self.asked = self.last + 1
                start: Properties = {USER_PROPERTY: [("offset", f"{self.asked}")]}
                fake.send(Subscribe(1, [SubscribeRequest(b"$stream/S", 1)], start))
        elif isinstance(packet, Suback) and packet.reasons[0] < 0x80:
            self.reads = True
            self.twice.update(range(self.asked, self.last + 1))
        elif isinstance(packet, Suback):  # the node does not know the stream yet
            fake.drop()
        elif isinstance(packet, Publish):
            self.came(packet)
            fake.send(Ack(PUBACK, packet.packet_id))

    def came(self, packet: Publish) -> None:
        seq = offset_of(packet)
        assert seq <= self.last + 1, f"{self.name}: {seq} follows {self.last}"
        again = seq in self.twice or not self.reads  # messages of the new subscription may come before SUBACK
        assert seq == self.last + 1 or packet.dup or again, f"{self.name}: {seq} came again"
        self.twice.discard(seq)
        self.last = max(self.last, seq)
        text = packet.payload.decode()
        known = self.world.arrived["S"].get(seq, text)
        assert known == text, f"S: sequence {seq} is {known} and {text}"
        self.world.seen["read"] += 1

    def is_done(self) -> bool:
        return self.last >= max(self.world.names["S"], default=0)


class Member(Visitor):
    """Of a group that reads the stream S. It acknowledges at once or later, some even after ack_wait, and may leave
    with what it has."""

    def __init__(self, world: StreamWorld, name: str) -> None:
        super().__init__(world, name)
        self.random = Random(f"{world.seed} {name}")  # the others do as they would without it
        self.held: dict[int, tuple[int, float]] = {}  # by sequence: packet id, and when it came
        self.patience = 0.0

    def connect(self, node: Any) -> None:
        super().connect(node)
        self.held.clear()
        self.patience = self.random.choice((0.0, 0.0, 1.0, SLOW)) if self.world.calm_since == inf else 0.0
        if self.patience == SLOW:
            self.leaves_at += 2 * SLOW

    def step(self) -> None:
        super().step()
        fake = self.fake
        if fake is None or fake.closed:
            self.held.clear()
            return
        for seq, (packet_id, since) in list(self.held.items()):
            if self.world.fleet.now >= since + self.patience:
                del self.held[seq]
                fake.send(Ack(PUBACK, packet_id))
                self.world.of_group[seq] = None

    def take(self, fake: FakeClient, packet: Packet) -> None:
        if isinstance(packet, Connack) and packet.reason == 0:
            fake.send(Subscribe(1, [SubscribeRequest(b"$share/g/$stream/S", 1)], {USER_PROPERTY: [("earliest", "")]}))
        elif isinstance(packet, Suback) and packet.reasons[0] < 0x80:
            self.reads = True
        elif isinstance(packet, Suback):
            fake.drop()
        elif isinstance(packet, Publish):
            seq, world = offset_of(packet), self.world
            for other in world.members:
                if other is not self and seq in other.held and not (other.fake is None or other.fake.closed):
                    since = other.held[seq][1]
                    assert since <= world.calm_since, f"{self.name}: {seq} came while {other.name} had it"
            self.held[seq] = (packet.packet_id, world.fleet.now)
            world.seen["group"] += 1

    def is_done(self) -> bool:
        return not self.held and set(self.world.names["S"]) <= set(self.world.of_group)


class Rival(Person):
    """It makes a stream that others make, too, with settings of its own."""

    def __init__(self, world: StreamWorld, name: str) -> None:
        super().__init__(world, name)
        self.result = ""

    def act(self, peer: JetStreamPeer) -> None:
        if not self.result:
            config = {"name": "R", "subjects": ["r", f"r.{self.name}"]}
            self.wait(peer.request("$JS.API.STREAM.CREATE.R", config), 5.0)

    def answered(self, reply: str, answer: Msg) -> None:
        found = json.loads(answer.payload) if answer.payload else {"error": {"err_code": 0}}
        code = found["error"]["err_code"] if "error" in found else 0
        if "error" not in found:
            self.result = "made"
            self.world.made.append(self.name)
        elif code == 10058:
            self.result = "too late"

    def is_done(self) -> bool:
        return self.result != ""


class StreamWorld:
    def __init__(self, seed: int, messages: int = 30) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.fleet = DiskFleet(3)
        self.names: dict[str, dict[int, str]] = {"S": {}, "W": {}}  # id of the message by acknowledged sequence
        # acknowledged, and that was answered, with the number of the last delivery of then
        self.over: dict[str, dict[int, int]] = {"S": {}, "W": {}}
        self.arrived: dict[str, dict[int, str]] = {"S": {}, "W": {}}
        self.of_group: dict[int, None] = {}  # sequences that its members have acknowledged
        self.calm_since = inf  # after the last fault
        self.made: list[str] = []  # rivals that have made the stream
        self.away: dict[str, float] = {}  # when killed nodes are served again
        self.seen: Counter[str] = Counter()
        self.documents: list[Put | Delete] = [Delete(REGISTRY)]  # that the registry had, or none
        self._serial = 0
        makers = [JetStreamPeer(self.fleet, place, f"maker{place}") for place in range(2)]
        for maker, name, retention in ((makers[0], "S", "limits"), (makers[1], "W", "workqueue")):
            found = maker.make(name, name.lower(), storage="file", retention=retention)
            assert "error" not in found, found
            found = maker.consume(name, "c", ack_wait=int(ACK_WAIT * 1e9))
            assert "error" not in found, found
        self.fleet.advance(0.5)
        self.people: list[Person | Visitor] = [
            Publisher(self, f"p{each}{name}", name, messages) for name in "SW" for each in "12"
        ]
        self.people += [Worker(self, f"w{each}{name}", name) for name in "SW" for each in "12"]
        self.people += [Rival(self, f"v{each}") for each in "123"]
        self.people += [Visitor(self, f"m{each}") for each in "12"]
        self.members = [Member(self, f"g{each}") for each in "123"]
        self.people += self.members

    def serial(self) -> int:
        self._serial += 1
        return self._serial

    # Observations of the clients

    def acknowledged(self, stream: str, seq: int, text: str) -> None:
        known = self.names[stream].setdefault(seq, text)
        assert known == text, f"{stream}: sequence {seq} was given to {known} and {text}"
        assert list(self.names[stream].values()).count(text) == 1, f"{stream}: {text} has two sequences"

    def delivered(self, stream: str, seq: int, number: int, text: str) -> None:
        """``number``: of the delivery. One that was sent before may arrive late."""
        last = self.over[stream].get(seq, number)
        assert number <= last, f"{stream}: {seq} was acknowledged, and came again"
        self.seen["delivered" if seq not in self.arrived[stream] else "delivered again"] += 1
        known = self.arrived[stream].setdefault(seq, text)
        assert known == text, f"{stream}: sequence {seq} is {known} and {text}"

    def done(self, stream: str, seq: int) -> None:
        for node in self.fleet.nodes:
            found: Any = node.state.jetstream.streams.get(stream)
            if found is not None:
                self.over[stream][seq] = found.consumers["c"].delivered[0]

    # Time and faults

    def run(self, faults: int = 6) -> StreamWorld:
        """Raises AssertionError."""
        for _ in range(faults):
            self.pass_time(self.random.uniform(0.2, 3.0))
            self.fault()
        self.heal()
        self.pass_time(CALM)
        self.calm_since = self.fleet.now
        for person in self.people:
            if isinstance(person, Publisher):
                person.left += 5
        end = self.fleet.now + 120.0
        while not self.is_over():
            assert self.fleet.now < end, f"not done: {[each.name for each in self.people if not each.is_done()]}"
            self.pass_time(0.5)
        self.check()
        return self

    def pass_time(self, seconds: float) -> None:
        end = self.fleet.now + seconds
        while self.fleet.now < end:
            self.fleet.advance(STEP)
            for name, when in list(self.away.items()):
                if self.fleet.now >= when:
                    del self.away[name]
                    self.fleet.serve(name)
            for person in self.people:
                person.step()

    def fault(self) -> None:
        random, fleet = self.random, self.fleet
        kind = random.choice(("kill", "kill", "cut", "etcd", "heal", "older"))
        self.documents.append(Put(REGISTRY, fleet.nodes[0].cluster.streams.registry._value.value))
        if kind == "kill" and not self.away:
            name = random.choice(NAMES)
            home = [stream for stream in "SW" if stream in self._home(name).state.jetstream.streams]
            self.seen["home killed" if home else "killed"] += 1
            self.fleet.kill(name)
            self.away[name] = fleet.now + random.uniform(0.1, 6.0)
        elif kind == "cut":
            one, other = random.sample([node.cluster.number for node in fleet.nodes], 2)
            self.seen["cut"] += 1
            fleet.cut(one, other, random.random() < 0.7)
        elif kind == "etcd":
            self.seen["etcd"] += 1
            fleet.etcd.lose_leader(fleet.now, random.uniform(0.5, 4.0))
        elif kind == "heal":
            fleet.heal()
        elif kind == "older":  # etcd is rebuilt, or restored from a backup
            self.seen["older"] += 1
            fleet.etcd.session("operator").request(Txn("x", (), (random.choice(self.documents),), ()), fleet.now)

    def heal(self) -> None:
        self.fleet.heal()
        self.fleet._connect_all()
        for name in list(self.away):
            self.away[name] = self.fleet.now

    def is_over(self) -> bool:
        if self.away or len(self.fleet.nodes) < 3 or not all(person.is_done() for person in self.people):
            return False
        if any(sorted(node.cluster.streams.registry.entries) != ["R", "S", "W"] for node in self.fleet.nodes):
            return False
        return all(set(self.names[stream]) <= set(self.arrived[stream]) and self._is_empty(stream) for stream in "SW")

    def _is_empty(self, stream: str) -> bool:
        """Whether the consumer has nothing more to do."""
        for node in self.fleet.nodes:
            found: Any = node.state.jetstream.streams.get(stream)
            if found is not None:
                consumer = found.consumers["c"]
                return bool(consumer.num_ack_pending() == 0 and consumer.waiting_messages() == 0)
        return False

    def check(self) -> None:
        homes: dict[str, list[str]] = {}
        for node in self.fleet.nodes:
            for name in node.state.jetstream.streams:
                homes.setdefault(name, []).append(node.name)
        assert {name: len(found) for name, found in homes.items()} == {"S": 1, "W": 1, "R": 1}, homes
        for node in self.fleet.nodes:
            entries = node.cluster.streams.registry.entries
            assert {name: entry.home for name, entry in entries.items()} == {name: homes[name][0] for name in homes}
        assert len(self.made) == 1, f"one of those who make a stream has made it: {self.made}"
        stream: Any = self._home(homes["S"][0]).state.jetstream.streams["S"]
        kept = {seq: stream.message(seq).payload.decode() for seq in range(1, stream.index.last + 1)}
        for seq, text in self.names["S"].items():
            assert kept[seq] == text, f"S: sequence {seq} is {kept[seq]}, and was acknowledged as {text}"
        assert len(set(kept.values())) == len(kept), "S: a message with an id has two sequences"
        work: Any = self._home(homes["W"][0]).state.jetstream.streams["W"]
        assert work.index.count == 0, "all work is done"

    def _home(self, name: str) -> DiskNode:
        node = self.fleet.named(name)
        assert node is not None
        return node
