"""``python -m tests.storage.killing --rounds N``: a real broker process is killed under load, again and again.

Publishers and receivers have persistent sessions (QoS 1 and 2, MQTT 3.1.1 and 5) over TCP. In each round the broker
gets SIGKILL after a random number of acknowledgements, restarts on the same port and data directory, and all clients
reconnect. At the end every acknowledged message has arrived at every receiver in order, at QoS 2 once.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import subprocess
import sys
import tempfile
import time
from collections import Counter
from random import Random
from urllib.parse import urlsplit

from tests.patience import slowness
from tests.peer import Peer

from starlingmq.wire.mqtt import Ack, Connack, Connect, Packet, Publish, Suback, Subscribe, SubscribeRequest
from starlingmq.wire.packets import PUBACK, PUBCOMP, PUBREC, PUBREL
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL, Properties

PATIENCE = 60.0
WINDOW = 20  # messages a publisher has under way
LOST = (ConnectionError, asyncio.IncompleteReadError, OSError)


class Server:
    """The broker process. It keeps its port over its deaths."""

    def __init__(self, directory: str, journal: str, durability: str, more: tuple[str, ...] = ()) -> None:
        self.directory = directory
        self.settings = (
            f"storage.journal={journal}",
            f"storage.durability={durability}",
            "storage.segment_size=1MiB",
            "mqtt.max_mqueue_len=0",
            "limits.queue_bytes=0",
            *more,
        )
        self.port = 0
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as this object
        self.start()

    def start(self) -> None:
        words = [sys.executable, "-m", "starlingmq", "serve", "--listen", f"mqtt://127.0.0.1:{self.port}"]
        words += ["--data-dir", self.directory]
        for setting in self.settings:
            words += ["--set", setting]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=self.log, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith("ready "):
            ended = self.process.wait(PATIENCE * slowness())
            raise AssertionError(f"the broker did not start, but said {line!r} and ended ({ended}):\n{self.logged()}")
        self.port = urlsplit(line.split()[1]).port or 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def logged(self) -> str:
        self.log.seek(0)
        return self.log.read()


class Person:
    def __init__(self, trial: Trial, name: str, version: int, qos: int) -> None:
        self.trial = trial
        self.name = name
        self.version = version
        self.qos = qos
        self.known = False  # the broker has told the client of its session

    async def live(self) -> None:
        """Connect, go on, and come back when the broker does, until the trial is over."""
        while not self.trial.over():
            await self.trial.serving.wait()
            try:
                peer = await Peer.open(f"mqtt://127.0.0.1:{self.trial.server.port}", self.version)
            except LOST:
                continue  # dead: ``serving`` tells when it is back, if not yet that it is gone
            try:
                await self.greet(peer)
                await self.go_on(peer)
                return
            except LOST:
                continue
            finally:
                await peer.close()

    async def greet(self, peer: Peer) -> None:
        expiry: Properties = {SESSION_EXPIRY_INTERVAL: 3600} if self.version == 5 else {}
        peer.send(Connect(self.version, self.name, False, properties=expiry))
        connack = await self.next(peer)
        assert isinstance(connack, Connack) and connack.reason == 0, connack
        assert connack.session_present or not self.known, f"{self.name}: the session is gone"
        self.known = True

    async def next(self, peer: Peer) -> Packet:
        packet = await peer.receive()
        if packet is None:
            raise ConnectionResetError
        return packet

    async def go_on(self, peer: Peer) -> None:
        raise NotImplementedError


class Author(Person):
    """Keeps ``WINDOW`` messages in flight; unfinished ones are sent again in order."""

    def __init__(self, trial: Trial, name: str, version: int, qos: int) -> None:
        super().__init__(trial, name, version, qos)
        self.sent: dict[int, Publish | Ack] = {}
        self.count = 0

    async def go_on(self, peer: Peer) -> None:
        for sent in self.sent.values():
            if isinstance(sent, Publish):
                sent.dup = True
        peer.send(*self.sent.values())
        while True:
            self.fill(peer)
            if not self.sent:
                self.trial.finished(self)
                return
            packet = await self.next(peer)
            assert isinstance(packet, Ack), packet
            self.take(peer, packet)

    def fill(self, peer: Peer) -> None:
        while len(self.sent) < WINDOW and not self.trial.closing:
            self.count += 1
            packet_id = self.count % 65535 + 1
            payload = b"%s %d %d" % (self.name.encode(), self.qos, self.count)
            packet = Publish(b"t/" + self.name.encode(), payload, self.qos, packet_id=packet_id)
            self.sent[packet_id] = packet
            peer.send(packet)

    def take(self, peer: Peer, packet: Ack) -> None:
        assert packet.reason < 0x80, packet
        if packet.type == PUBREC:
            if packet.packet_id in self.sent:
                self.sent[packet.packet_id] = Ack(PUBREL, packet.packet_id)
                peer.send(Ack(PUBREL, packet.packet_id))
        elif self.sent.pop(packet.packet_id, None) is not None:
            self.trial.acknowledged()


class Reader(Person):
    """Sees to it that everything arrives, in order; at QoS 2 once."""

    def __init__(self, trial: Trial, name: str, version: int, qos: int) -> None:
        super().__init__(trial, name, version, qos)
        self.got = Counter[bytes]()
        self.highest: dict[bytes, int] = {}
        self.open: set[int] = set()
        self.subscribed = asyncio.Event()

    async def go_on(self, peer: Peer) -> None:
        if not self.subscribed.is_set():
            peer.send(Subscribe(1, [SubscribeRequest(b"t/#", self.qos)]))
        while True:
            packet = await self.next(peer)
            if isinstance(packet, Publish):
                self.take(peer, packet)
            elif isinstance(packet, Ack):
                self.open.discard(packet.packet_id)
                peer.send(Ack(PUBCOMP, packet.packet_id))
            else:
                assert isinstance(packet, Suback)
                self.subscribed.set()
            self.trial.look()
            if self.trial.over():
                return

    def take(self, peer: Peer, packet: Publish) -> None:
        peer.send(Ack(PUBREC if packet.qos == 2 else PUBACK, packet.packet_id))
        if packet.qos == 2:
            if packet.packet_id in self.open:
                return
            self.open.add(packet.packet_id)
        author, qos, number = packet.payload.split()
        self.got[packet.payload] += 1
        if self.got[packet.payload] == 1:
            assert int(number) == self.highest.get(author, 0) + 1, f"{self.name}: {packet.payload!r} out of order"
            self.highest[author] = int(number)
        else:
            assert min(self.qos, int(qos)) < 2, f"{self.name}: {packet.payload!r} twice"


class Trial:
    """One broker, its clients, ``rounds`` deaths."""

    def __init__(self, server: Server, rounds: int, seed: int, talk: bool) -> None:
        self.server = server
        self.rounds = rounds
        self.random = Random(seed)
        self.talk = talk
        self.serving = asyncio.Event()
        self.closing = False
        self.acks = 0
        self.fuse = 1 << 60
        self.burnt = asyncio.Event()
        self.done = asyncio.Event()
        self.readers = [
            Reader(self, f"reader{n}", version, qos) for n, (version, qos) in enumerate(((5, 2), (4, 2), (5, 1)))
        ]
        self.authors = [Author(self, f"author{n}", 4 + n % 2, 1 + n // 2 % 2) for n in range(8)]
        self.ready: set[str] = set()

    def acknowledged(self) -> None:
        self.acks += 1
        self.fuse -= 1
        if self.fuse <= 0:
            self.burnt.set()

    def finished(self, author: Author) -> None:
        self.ready.add(author.name)
        self.look()

    def look(self) -> None:
        """All is said, and has arrived everywhere."""
        if len(self.ready) == len(self.authors) and all(self.complete(reader) for reader in self.readers):
            self.done.set()

    def complete(self, reader: Reader) -> bool:
        return all(reader.highest.get(author.name.encode(), 0) == author.count for author in self.authors)

    def over(self) -> bool:
        return self.done.is_set()

    async def run(self) -> None:
        self.serving.set()
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            lives = [group.create_task(reader.live()) for reader in self.readers]
            for reader in self.readers:
                await asyncio.wait_for(reader.subscribed.wait(), PATIENCE * slowness())
            authors = [group.create_task(author.live()) for author in self.authors]
            for number in range(1, self.rounds + 1):
                await self.round()
                if self.talk:
                    rate = self.acks / (time.perf_counter() - began)
                    print(f"round {number}: {self.acks} acknowledged, {rate:,.0f} a second", flush=True)
            self.closing = True
            await asyncio.wait_for(self.done.wait(), PATIENCE * slowness())
            for task in [*lives, *authors]:
                task.cancel()

    async def round(self) -> None:
        self.burnt.clear()
        self.fuse = int(self.random.expovariate(1 / 1500)) + 1
        await asyncio.wait_for(self.burnt.wait(), PATIENCE * slowness())
        self.fuse = 1 << 60
        self.serving.clear()
        await asyncio.to_thread(self.server.kill)
        await asyncio.to_thread(self.server.start)
        self.serving.set()


def run(journal: str, durability: str, rounds: int, seed: int = 0, talk: bool = False) -> int:
    """One trial; how many messages were acknowledged."""
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns of each packet to a broker that is dead
    with tempfile.TemporaryDirectory() as directory:
        server = Server(directory, journal, durability)
        try:
            trial = Trial(server, rounds, seed, talk)
            asyncio.run(trial.run())
        finally:
            server.kill()
        logged = server.logged()
        server.log.close()
        assert "Traceback" not in logged and "lost" not in logged, logged
        return trial.acks


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.storage.killing", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50, help="for each of the combinations")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--journal", choices=["segment", "rocksdb"])
    parser.add_argument("--durability", choices=["process", "power"])
    arguments = parser.parse_args()
    for journal in [arguments.journal] if arguments.journal else ["segment", "rocksdb"]:
        for durability in [arguments.durability] if arguments.durability else ["process", "power"]:
            print(f"{journal}, {durability}", flush=True)
            acks = run(journal, durability, arguments.rounds, arguments.seed, talk=True)
            print(f"{journal}, {durability}: {arguments.rounds} deaths, {acks} acknowledged, nothing lost", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
