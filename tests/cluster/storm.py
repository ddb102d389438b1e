"""Many sessions move at once over slow links, and their clients do not wait: the work of the nodes is counted.

In ``SlowFleet`` each turn of a node takes ``TURN_SECONDS`` (its disk is slow), and what it sends arrives before its
receiver's next turn. A way between two nodes carries ``WAY_BYTES`` in a turn, so the queues of the sessions take
long. A ``Nomad`` connects at one node after the other until it gets its session: when it is refused, and when it
has waited for ``patience`` seconds.
"""

from __future__ import annotations

from collections import Counter, deque
from math import inf
from typing import Any, Final

from tests.cluster.fleet import Fleet, NodeWorld
from tests.cluster.test_takeover import LASTING, lasting, subscribe
from tests.harness import FakeClient

from starlingmq.cluster.links.peer_frames import Data, Envelope
from starlingmq.cluster.takeover.transfer_frames import Parts, TransferFrame
from starlingmq.wire.mqtt import Ack, Connack, Connect, Publish
from starlingmq.wire.packets import PUBACK

TURN_SECONDS: Final = 0.03
WINDOW: Final = 4096  # bytes that a link may have in flight
WAY_BYTES: Final = 4096  # that it carries in a turn


class SlowFleet(Fleet):
    """Fast until ``slow_down``, so that a test can prepare its sessions."""

    def __init__(self, count: int, **settings: Any) -> None:
        self.slow = False
        self._ways: dict[tuple[int, int], deque[tuple[NodeWorld, Envelope]]] = {}
        self._room: dict[tuple[int, int], int] = {}  # bytes that a way carries now
        self.bytes = 0  # of data frames, carried while slow
        config = {"link_window": WINDOW, "resend_interval": 60.0}
        super().__init__(count, config=config, write_buffer=WINDOW, **settings)

    def slow_down(self) -> None:
        self.slow = True

    def run(self) -> None:
        if not self.slow:
            super().run()

    def carry(self, source: NodeWorld, hop: int, envelope: Envelope) -> None:
        if self.slow:
            self._ways.setdefault((source.cluster.number, hop), deque()).append((source, envelope))
        else:
            super().carry(source, hop, envelope)

    def turns(self) -> None:
        """One turn of each node."""
        self.advance(TURN_SECONDS, TURN_SECONDS)
        for (_, hop), way in list(self._ways.items()):
            self._carry_all(hop, way)
        self.carried.clear()
        for node in self.nodes:
            node.turn()

    def _carry_all(self, hop: int, way: deque[tuple[NodeWorld, Envelope]]) -> None:
        """A data frame takes one turn for each ``WAY_BYTES``; other frames wait for nothing."""
        if not way:
            return
        key = (way[0][0].cluster.number, hop)
        self._room[key] = self._room.get(key, 0) + WAY_BYTES
        blocked = False
        for _ in range(len(way)):
            source, envelope = way.popleft()
            body = envelope.body
            if isinstance(body, Data):
                blocked = blocked or len(body.blob) > self._room[key]
                if blocked:
                    way.append((source, envelope))
                    continue
                self._room[key] -= len(body.blob)
                self.bytes += len(body.blob)
            super().carry(source, hop, envelope)
        if not blocked:
            self._room[key] = 0


class Nomad:
    """A client with a session at the first node that connects elsewhere."""

    def __init__(self, storm: Storm, number: int) -> None:
        self.storm = storm
        self.name = f"nomad{number}"
        self.place = number
        self.fake: FakeClient | None = None
        self.since = 0.0
        self.connects = 0
        self.connected = False
        self.got: list[bytes] = []

    def look(self, now: float) -> None:
        if self.fake is None:
            self._connect(now)
            return
        for packet in self.fake.receive():
            if isinstance(packet, Connack) and packet.reason == 0:
                assert packet.session_present, f"{self.name} was told that its session is gone"
                self.connected = True
            elif isinstance(packet, Publish):
                self.got.append(packet.payload)
                self.fake.send(Ack(PUBACK, packet.packet_id))
        if self.fake.closed:
            assert not self.connected, f"{self.name} was closed"
            self._connect(now)
        elif not self.connected and now >= self.since + self.storm.patience:
            self.fake.drop()
            self._connect(now)

    def _connect(self, now: float) -> None:
        nodes = self.storm.fleet.nodes
        self.place = (self.place + 1) % len(nodes)
        if self.connects == 0 and self.place == 0:
            self.place = 1
        self.since = now
        self.connects += 1
        self.fake = nodes[self.place].open(5, self.name)
        self.fake.send(Connect(5, self.name, False, properties=LASTING))


class Storm:
    """``count`` sessions at the first of three nodes, each with ``queued`` messages of ``size`` bytes. ``sent``: these
    messages are in the inflight windows."""

    def __init__(
        self, count: int, patience: float = inf, queued: int = 20, size: int = 1000, sent: bool = False
    ) -> None:
        self.patience = patience
        self.queued = queued
        self.fleet = SlowFleet(3)
        self.nomads = [Nomad(self, number) for number in range(count)]
        self.frames: Counter[str] = Counter()  # of transfers between nodes, by kind
        self.parts = 0  # messages in them
        for nomad in self.nomads:
            client = lasting(self.fleet, 0, nomad.name)
            subscribe(client, b"t", 1)
            if not sent:
                client.drop()
        publisher = self.fleet.connect(0, "publisher")
        for number in range(queued):
            publisher.send(Publish(b"t", b"%d " % number + bytes(size), 1, packet_id=number + 1))
        for client in self.fleet[0].clients[:count]:
            if not client.closed:
                client.drop()
        for node in self.fleet.nodes:
            self._count(node)
        self.fleet.slow_down()
        self.began = self.fleet.now
        self.all_connected = inf  # seconds
        self.all_delivered = inf

    def _count(self, world: NodeWorld) -> None:
        migrations = world.cluster.takeovers.migrations
        send = migrations.send

        def counted(node: int, frame: TransferFrame) -> None:
            if node != migrations.me:
                self.frames[type(frame).__name__] += 1
                if isinstance(frame, Parts):
                    self.parts += len(frame.parts)
            send(node, frame)

        migrations.send = counted  # type: ignore[method-assign]

    def run(self, seconds: float) -> None:
        """Until all have their sessions and messages, at most so long."""
        fleet, end = self.fleet, self.fleet.now + seconds
        while fleet.now < end and self.all_delivered == inf:
            for nomad in self.nomads:
                nomad.look(fleet.now)
            fleet.turns()
            if self.all_connected == inf and all(nomad.connected for nomad in self.nomads):
                self.all_connected = fleet.now - self.began
            if all(len(nomad.got) == self.queued for nomad in self.nomads):
                self.all_delivered = fleet.now - self.began

    @property
    def connects(self) -> int:
        return sum(nomad.connects for nomad in self.nomads)

    def told(self) -> str:
        connected = sum(nomad.connected for nomad in self.nomads)
        return (
            f"{len(self.nomads)} sessions, patience {self.patience}: {connected} connected, all after"
            f" {self.all_connected:.1f} s, all delivered after {self.all_delivered:.1f} s;"
            f" {self.connects} CONNECTs, {self.parts} parts, {self.fleet.bytes} bytes, {dict(self.frames)}"
        )
