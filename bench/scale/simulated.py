"""A whole cluster in one process and in virtual time: counts the work of its nodes and etcd for the actions of clients.

The brokers and their cluster parts are the real ones; only sockets and etcd are replaced. Bytes between nodes are those
of the encoded frames, without gRPC, HTTP/2 and TCP.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from itertools import islice

import msgspec
from tests.cluster.fleet import Fleet, NodeWorld
from tests.harness import FakeClient

from bench.frames import PUBACK, connect, publish, subscribe
from bench.scale.quick_etcd import QuickEtcd
from starlingmq.cluster.links.control_frames import Heartbeat
from starlingmq.cluster.links.peer_frames import Envelope
from starlingmq.net.peers.peer_codec import encode
from starlingmq.node.node_process import YOUNG_MAX, freeze
from starlingmq.wire.mqtt import Publish

VERSION = 4
PHASES = 8  # phases, each announced when it begins
STEP = 0.01  # seconds
REST = 3.0  # seconds for a cluster to become quiet
IDLE = 10.0  # seconds
EACH_STEP = 5  # clients per node and step: 500 per second
PAYLOAD = b"x" * 64
PUBLISHERS = 9_000_000  # number of the first one
SOME = 2_000  # clients that receive messages, that return to their node, and that move
EACH_NODE = 200  # or so many per node, if that is more
SETTLE_MAX = 60.0  # seconds until all requests are answered
NEVER = 0  # cluster.route_summary_min: no node tells a summary of its filters, however many are of one shape


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """The work for one kind of action, total over the nodes."""

    times: int  # number of repetitions, or seconds
    frames: int  # between nodes, without heartbeats
    bytes: int
    beats: int  # bytes of heartbeats, which have their own rate
    requests: int  # etcd transactions
    puts: int  # puts in them
    cpu_us: float  # total over the nodes, including the simulated clients and etcd


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """One simulated cluster. ``work`` by kind of action."""

    nodes: int
    clients: int
    work: dict[str, Work]


class CountingFleet(Fleet):
    """Counts the frames that it carries, and stores none."""

    def __init__(self, count: int) -> None:
        self.frames = self.bytes = self.beats = 0
        self.by_number: dict[int, NodeWorld] = {}
        self.quick = QuickEtcd()
        super().__init__(count, self.quick, {"route_summary_min": NEVER})

    def carry(self, source: NodeWorld, hop: int, envelope: Envelope) -> None:
        if isinstance(envelope.body, Heartbeat):
            self.beats += len(encode(envelope))
        else:
            self.frames += 1
            self.bytes += len(encode(envelope))
        node = self.by_number.get(hop)
        if node is None:
            node = self.by_number[hop] = next(node for node in self.nodes if node.cluster.number == hop)
        node.cluster.received(envelope, self.now)

    def totals(self) -> tuple[int, int, int, int, int]:
        return self.frames, self.bytes, self.beats, self.quick.requests, self.quick.puts


class Device:
    """A client with a persistent session and its own filter, which does not decode received frames."""

    def __init__(self, number: int, place: int) -> None:
        self.name = f"device-{number:07d}"
        self.filter = f"devices/{self.name}/commands"
        self.place = place
        self.fake: FakeClient | None = None

    def enter(self, fleet: CountingFleet, place: int) -> None:
        self.place = place
        node = fleet[place]
        client = node.state.open("mqtt://test", self.name, fleet.now)
        self.fake = FakeClient(node, client, VERSION, self.name)
        node._by_client[client] = self.fake
        self.say(connect(self.name, VERSION, persistent=True))

    def say(self, data: bytes) -> None:
        assert self.fake is not None
        self.forget()
        self.fake.world.state.receive(self.fake.client, data, self.fake.world.now)

    def forget(self) -> None:
        """Discard the received bytes."""
        assert self.fake is not None
        self.fake.output = b""
        self.fake._seen = 0

    def answered(self) -> bool:
        assert self.fake is not None
        assert not self.fake.closed, f"{self.name} was sent away"
        return bool(self.fake.output)


class Counting:
    def __init__(self, nodes: int, clients: int, told: Callable[[str], None]) -> None:
        self.told = told
        self.nodes = nodes
        self.fleet = CountingFleet(nodes)
        self.fleet.advance(REST)
        self.devices = [Device(number, number % nodes) for number in range(clients)]
        self.work: dict[str, Work] = {}

    def count(self) -> Counted:
        self._phase("idle", int(IDLE), lambda: self.fleet.advance(IDLE))
        self._each("connect", self.devices, lambda device: device.enter(self.fleet, device.place))
        self._each("subscribe", self.devices, lambda device: device.say(subscribe(1, [device.filter], 1, VERSION)))
        self.fleet.advance(REST)
        self._phase("idle with clients", int(IDLE), lambda: self.fleet.advance(IDLE))
        self._enter_publishers()
        some = self.devices[: max(SOME, EACH_NODE * self.nodes)]
        self._each("publish here", some, lambda device: self._command(device, device.place))
        self._acknowledge(some)
        self._each("publish there", some, lambda device: self._command(device, (device.place + 1) % self.nodes))
        self._acknowledge(some)
        self._each("return", some, lambda device: device.enter(self.fleet, device.place))
        self.fleet.advance(REST)
        self._each("move", some, lambda device: device.enter(self.fleet, (device.place + 1) % self.nodes))
        return Counted(
            nodes=self.nodes,
            clients=len(self.devices),
            work=self.work,
        )

    def _enter_publishers(self) -> None:
        """Connect one publisher per node."""
        self.publishers = [Device(PUBLISHERS + place, place) for place in range(self.nodes)]
        for publisher in self.publishers:
            publisher.enter(self.fleet, publisher.place)
        while not all(publisher.answered() for publisher in self.publishers):
            self.fleet.advance(STEP, STEP)

    def _command(self, device: Device, place: int) -> None:
        """A publisher on that node publishes to the device, which has received the message when it is acknowledged."""
        device.forget()
        self.publishers[place].say(publish(device.filter, PAYLOAD, 1, 1, VERSION))

    def _acknowledge(self, devices: list[Device]) -> None:
        """Acknowledge all received messages."""
        for device in devices:
            assert device.fake is not None
            received = device.fake.expect(Publish)
            device.say(bytes((PUBACK, 2)) + received.packet_id.to_bytes(2, "big"))
        self.fleet.advance(REST)

    def _each(self, name: str, devices: list[Device], do: Callable[[Device], None]) -> None:
        def all_of_them() -> None:
            waiting: list[Device] = []
            left: Iterator[Device] = iter(devices)
            limit = self.fleet.now + SETTLE_MAX + STEP * len(devices) / EACH_STEP
            while batch := list(islice(left, EACH_STEP * self.nodes)):
                for device in batch:
                    do(device)
                self.fleet.advance(STEP, STEP)
                waiting = [device for device in (*waiting, *batch) if not device.answered()]
            while waiting:
                assert self.fleet.now < limit, f"{len(waiting)} clients are not answered: {name}"
                self.fleet.advance(STEP, STEP)
                waiting = [device for device in waiting if not device.answered()]

        self._phase(name, len(devices), all_of_them)

    def _phase(self, name: str, times: int, do: Callable[[], None]) -> None:
        self.told(f"{self.nodes} nodes, {len(self.devices):,} clients: {name}")
        freeze()
        gc.set_threshold(YOUNG_MAX, 1_000_000, 1_000_000)  # as a node does
        before, began = self.fleet.totals(), time.process_time_ns()
        do()
        cpu_us = (time.process_time_ns() - began) / 1e3
        frames, size, beats, requests, puts = (
            after - was for after, was in zip(self.fleet.totals(), before, strict=True)
        )
        self.work[name] = Work(
            times=times, frames=frames, bytes=size, beats=beats, requests=requests, puts=puts, cpu_us=cpu_us
        )
