"""Clients that keep a cluster busy while parts of it fail, and the guarantees that they check.

Every client has a persistent session on *its* node and returns there. Every message acknowledged to a publisher has to
arrive at every subscriber of every node, at QoS 2 once, and in the order of its publisher. A refused message (MQTT 5)
may not arrive, unless it was acknowledged on an earlier connection.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Final

from tests.cluster.missed import Missed
from tests.cluster.real import Node
from tests.peer import Peer

from starlingmq.cli.children import first_of
from starlingmq.wire.mqtt import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Publish,
    Suback,
    Subscribe,
    SubscribeRequest,
    Unsuback,
    Unsubscribe,
)
from starlingmq.wire.packets import PUBACK, PUBCOMP, PUBREC, PUBREL
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL, Properties

WINDOW: Final = 20  # messages a publisher has under way
BURST_SECONDS: Final = 0.005  # at most, between messages of a publisher that keeps its pace
LOST: Final = (OSError, EOFError, TimeoutError)  # no connection, or none any more, or nothing came of it
AGAIN_SECONDS: Final = 0.1  # between attempts to connect, and after a refusal
EXPIRY: Final = 100_000  # seconds
CONNACK_3: Final = 3  # "server unavailable" before MQTT 5
UNAVAILABLE: Final = 0x88
NOT_NOW: Final = 0x83
FAILED: Final = 0x80  # of a SUBSCRIBE, before MQTT 5
VERSIONS: Final = (5, 4)


GROUP: Final = "the group"


class Person:
    """One client; ``version`` is that of the protocol as CONNECT has it."""

    refusals: tuple[int, ...] = (UNAVAILABLE,)  # reasons that CONNACK of MQTT 5 may give

    def __init__(self, load: Load, name: str, node: Node, version: int, qos: int) -> None:
        self.load = load
        self.name = name
        self.node = node
        self.version = version
        self.qos = qos
        self.known = False  # the broker has told the client of its session

    async def live(self) -> None:
        """Connect, go on, come back, until the load is over."""
        while not self.load.over:
            try:
                peer = await Peer.open(self.node.url, self.version)
            except LOST:
                await asyncio.sleep(AGAIN_SECONDS)
                continue
            try:
                if await self.greet(peer):
                    await self.go_on(peer)
            except LOST:
                self.load.lost += 1
            finally:
                peer.abort()
            await asyncio.sleep(AGAIN_SECONDS)

    async def greet(self, peer: Peer) -> bool:
        """Whether the node accepted the connection."""
        expiry: Properties = {SESSION_EXPIRY_INTERVAL: EXPIRY} if self.version == 5 else {}
        peer.send(Connect(self.version, self.name, False, properties=expiry))
        connack = await self.next(peer)
        assert isinstance(connack, Connack), connack
        if connack.reason:
            self.load.refused_connections += 1
            if connack.reason not in (self.refusals if self.version == 5 else (CONNACK_3,)):
                self.load.wrong(f"{self.name} was refused with {connack.reason:#x}")
            self.told(connack.properties)
            return False
        if self.known and not connack.session_present:
            self.session_gone()
        self.known = True
        return True

    def session_gone(self) -> None:
        self.load.wrong(f"{self.name}: its session is gone")

    def told(self, properties: Properties) -> None:
        """The properties with which the broker refused or closed the connection."""

    async def next(self, peer: Peer) -> Packet:
        packet = await peer.receive()
        if isinstance(packet, Disconnect):
            self.told(packet.properties)
        if packet is None or isinstance(packet, Disconnect):
            raise ConnectionResetError
        return packet

    async def go_on(self, peer: Peer) -> None:
        raise NotImplementedError


class Author(Person):
    """Keeps ``WINDOW`` messages to ``t/<name>`` in flight; unfinished ones are sent again in order."""

    def __init__(self, load: Load, name: str, node: Node, version: int, qos: int) -> None:
        super().__init__(load, name, node, version, qos)
        self.sent: dict[int, Publish | Ack] = {}
        self.numbers: dict[int, int] = {}  # packet id -> number of the message
        self.again: set[int] = set()  # numbers that were sent more than once
        self.count = 0
        self.taken: set[int] = set()  # numbers that were acknowledged, since the last time that all was settled
        self.refused: set[int] = set()  # at once, so they may not arrive
        self.began: dict[int, float] = {}  # number -> when it was sent first, and when it was acknowledged
        self.ended: dict[int, float] = {}
        self.idle = asyncio.Event()  # nothing is under way
        self.idle.set()
        self.may = float(WINDOW)  # messages that may be sent now
        self.since = 0.0
        self.quiet_until = 0.0

    async def go_on(self, peer: Peer) -> None:
        for packet_id, sent in self.sent.items():
            if isinstance(sent, Publish):
                sent.dup = True
                self.again.add(self.numbers[packet_id])
        peer.send(*self.sent.values())
        while not self.load.over:
            self.fill(peer)
            if not self.sent:
                if not self.load.talking.is_set():
                    self.idle.set()
                    await self.load.talking.wait()
                await asyncio.sleep(BURST_SECONDS)  # it has its pace
                continue
            packet = await self.next(peer)
            assert isinstance(packet, Ack), packet
            self.take(peer, packet)

    def fill(self, peer: Peer) -> None:
        now = time.monotonic()
        self.may = min(WINDOW, self.may + (now - self.since) * self.load.pace)
        self.since = now
        while now >= self.quiet_until and len(self.sent) < WINDOW and self.may >= 1 and self.load.talking.is_set():
            self.may -= 1
            self.idle.clear()
            self.count += 1
            packet_id = self.count % 65535 + 1
            payload = b"%s %d %d" % (self.name.encode(), self.qos, self.count)
            packet = Publish(b"t/" + self.name.encode(), payload, self.qos, packet_id=packet_id)
            self.sent[packet_id] = packet
            self.numbers[packet_id] = self.count
            self.began[self.count] = now
            peer.send(packet)

    def take(self, peer: Peer, packet: Ack) -> None:
        packet_id = packet.packet_id
        if packet.type == PUBCOMP and packet.reason >= 0x80:
            self.handshake_gone(packet_id)
        elif packet.reason >= 0x80:
            number = self.numbers.pop(packet_id)
            del self.sent[packet_id]
            self.load.refused += 1
            if packet.reason not in self.load.refusals or packet.type not in (PUBACK, PUBREC):
                self.load.wrong(f"{self.name} got {packet!r}")
            elif number not in self.again:
                self.refused.add(number)
            self.quiet_until = time.monotonic() + AGAIN_SECONDS
        elif packet.type == PUBREC:
            if packet_id in self.sent:
                self.sent[packet_id] = Ack(PUBREL, packet_id)
                peer.send(Ack(PUBREL, packet_id))
        elif self.sent.pop(packet_id, None) is not None:
            number = self.numbers.pop(packet_id)
            self.ended[number] = time.monotonic()
            self.taken.add(number)
            self.load.acknowledged()

    def handshake_gone(self, packet_id: int) -> None:
        """The broker does not know the handshake any more, and cannot tell whether it routed the message."""
        self.load.wrong(f"{self.name}: the handshake of {self.numbers[packet_id]} is gone")


class Reader(Person):
    """Subscribed to all that is said, for good."""

    filter = b"t/#"

    def __init__(self, load: Load, name: str, node: Node, version: int, qos: int) -> None:
        super().__init__(load, name, node, version, qos)
        self.got: dict[str, set[int]] = {}  # numbers by author, above the load's floor
        self.highest: dict[str, int] = {}
        self.open: dict[int, tuple[str, int]] = {}  # messages of open handshakes
        self.doubles = 0  # at QoS 1, where they may be
        self.subscribed = asyncio.Event()

    async def go_on(self, peer: Peer) -> None:
        if not self.subscribed.is_set():
            peer.send(Subscribe(1, [SubscribeRequest(self.filter, self.qos)]))
        while not self.load.over:
            packet = await self.next(peer)
            if isinstance(packet, Publish):
                self.take(peer, packet)
            elif isinstance(packet, Ack):
                self.open.pop(packet.packet_id, None)
                peer.send(Ack(PUBCOMP, packet.packet_id))
            elif isinstance(packet, Suback):
                if packet.reasons[0] >= FAILED:
                    await asyncio.sleep(AGAIN_SECONDS)
                    return
                self.subscribed.set()

    def take(self, peer: Peer, packet: Publish) -> None:
        peer.send(Ack(PUBREC if packet.qos == 2 else PUBACK, packet.packet_id))
        author, qos, number = packet.payload.decode().split()
        if packet.qos == 2:
            if packet.packet_id in self.open:
                return
            self.open[packet.packet_id] = (author, int(number))
        self.load.delivered += 1
        self.note(author, int(number), min(self.qos, int(qos)))

    def note(self, author: str, number: int, qos: int) -> None:
        got = self.got.setdefault(author, set())
        if number not in got and number > self.load.floor.get(author, 0):
            got.add(number)
            if number < self.highest.get(author, 0):
                self.load.out_of_order(self.name, author, number, self.highest[author])
            self.highest[author] = max(number, self.highest.get(author, 0))
        elif self.load.missed.came(self.name, author, number):
            pass
        elif qos == 2:
            self.load.doubled(self.name, author, number)
        else:
            self.doubles += 1


class Sharer(Reader):
    """A member of the group that all nodes have one of: each message comes to one of them, in no order among them."""

    filter = b"$share/crew/t/#"

    def note(self, author: str, number: int, qos: int) -> None:
        got = self.load.shared.setdefault(author, set())
        if number not in got and number > self.load.floor.get(author, 0):
            got.add(number)
        elif self.load.missed.came(GROUP, author, number):
            pass
        elif qos == 2:
            self.load.doubled(f"the group, at last {self.name},", author, number)


class Wanderer(Person):
    """Wants another topic again and again. From the SUBACK on what is published elsewhere arrives: it has ``partner``,
    on another node, say something there, and waits for it."""

    def __init__(self, load: Load, name: str, node: Node, version: int, partner: Node) -> None:
        super().__init__(load, name, node, version, 1)
        self.partner = partner
        self.number = 0
        self.waiting = b""
        self.arrived = asyncio.Event()

    async def go_on(self, peer: Peer) -> None:
        listening = asyncio.ensure_future(self.listen(peer))
        try:
            while not self.load.over:
                await self.load.talking.wait()
                await self.wander(peer, listening)
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def listen(self, peer: Peer) -> None:
        while True:
            packet = await self.next(peer)
            if isinstance(packet, Publish):
                peer.send(Ack(PUBACK, packet.packet_id))
                if packet.payload == self.waiting:
                    self.arrived.set()
            elif isinstance(packet, Suback | Unsuback):
                self.answers.append(packet.reasons[0])
                self.answered.set()

    async def wander(self, peer: Peer, listening: asyncio.Future[None]) -> None:
        self.number += 1
        topic = b"w/%s/%d" % (self.name.encode(), self.number)
        self.answers: deque[int] = deque()
        self.answered = asyncio.Event()
        peer.send(Subscribe(1, [SubscribeRequest(topic, 1)]))
        await self._or_lost(self.answered, listening)
        if self.answers.popleft() >= FAILED:
            await asyncio.sleep(AGAIN_SECONDS)
            return
        self.arrived.clear()
        self.waiting = topic
        if await self.have_it_said(topic):
            self.load.promised += 1
            until = time.monotonic() + self.load.patience
            # The connection may be lost meanwhile: the session has it.
            while not self.arrived.is_set():
                if time.monotonic() > until:
                    self.load.wrong(f"{self.name}: what was published after the SUBACK of {topic.decode()} is lost")
                    break
                await self._or_lost(self.arrived, listening)
        self.answered.clear()
        peer.send(Unsubscribe(2, [topic]))
        await self._or_lost(self.answered, listening)

    async def have_it_said(self, topic: bytes) -> bool:
        """Whether the partner's node took a message to that topic."""
        try:
            peer = await Peer.open(self.partner.url, self.version)
        except LOST:
            return False
        try:
            peer.send(Connect(self.version, f"{self.name}-partner", True))
            connack = await self.next(peer)
            if not isinstance(connack, Connack) or connack.reason:
                return False
            peer.send(Publish(topic, topic, 1, packet_id=1))
            answer = await self.next(peer)
            return isinstance(answer, Ack) and answer.reason < FAILED
        except LOST:
            return False
        finally:
            peer.abort()

    async def _or_lost(self, event: asyncio.Event, listening: asyncio.Future[None]) -> None:
        waiting = asyncio.ensure_future(event.wait())
        try:
            await first_of(waiting, listening)
        finally:
            waiting.cancel()
        if not event.is_set():
            raise ConnectionResetError


class Load:
    """``async with Load(nodes) as load``: authors and readers on each node talk until the block ends; ``settle`` stops
    the authors, waits, and looks whether all is as promised. ``rate``: messages a second at most, all authors
    together."""

    kinds: tuple[type[Author], type[Reader], type[Sharer], type[Wanderer]] = (Author, Reader, Sharer, Wanderer)

    def __init__(self, nodes: Sequence[Node], rate: int = 2000, authors: int = 2, patience: float = 60.0) -> None:
        self.nodes = nodes
        self.pace = rate / (authors * len(nodes))
        self.patience = patience
        self.talking = asyncio.Event()
        self.over = False
        self.acks = 0
        self.delivered = 0
        self.lost = 0  # connections
        self.refused = 0
        self.refused_connections = 0
        self.refusals = {NOT_NOW}  # reasons that a message may be refused with
        self.promised = 0  # messages to who had a SUBACK just before
        self.problems: Counter[str] = Counter()
        self.floor: dict[str, int] = {}  # up to there all is settled: what comes can only be there already
        self.shared: dict[str, set[int]] = {}  # messages that the group received, above the floor
        self.missed = Missed()
        self.unheard = 0  # refusals that were not heard, by the messages that came late
        self._said = {node.name: node.said_bytes() for node in nodes}  # up to the last time that all was settled
        self._fuse = 0
        self._burnt = asyncio.Event()
        author, reader, sharer, wanderer = self.kinds
        ways = [(version, qos) for qos in (1, 2) for version in VERSIONS]
        self.authors = [
            author(self, f"author{len(nodes) * turn + place}", node, *ways[(place + turn) % len(ways)])
            for turn in range(authors)
            for place, node in enumerate(nodes)
        ]
        self.readers = [
            reader(self, f"reader{place}", node, VERSIONS[place % 2], 2 - (place == 1))
            for place, node in enumerate(nodes)
        ]
        self.sharers = [
            sharer(self, f"sharer{place}", node, VERSIONS[place % 2], 2) for place, node in enumerate(nodes)
        ]
        self.wanderers = [
            wanderer(self, f"wanderer{place}", node, VERSIONS[place % 2], nodes[place - 1])
            for place, node in enumerate(nodes)
        ]
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Load:
        logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns of each packet to a node that is dead
        readers = [*self.readers, *self.sharers]
        self._tasks = [asyncio.create_task(reader.live()) for reader in readers]
        async with asyncio.timeout(self.patience):
            for reader in readers:
                await reader.subscribed.wait()
        self.talking.set()
        self._tasks += [asyncio.create_task(person.live()) for person in (*self.authors, *self.wanderers)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.over = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def wrong(self, problem: str) -> None:
        self.problems[problem] += 1

    def out_of_order(self, reader: str, name: str, number: int, after: int) -> None:
        """An isolated node may have refused it, taken later ones, and been killed before the author heard of either:
        then all are sent again. In MQTT 5, where a refusal does not end the connection."""
        author = next(author for author in self.authors if author.name == name)
        cut_off = "clients are refused" in author.node.said(self._said[author.node.name])
        if author.version == 5 and number in author.again and cut_off:
            self.unheard += 1
        else:
            self.wrong(f"{reader}: {name} {number} came after {after}")

    def doubled(self, reader: str, author: str, number: int) -> None:
        """At QoS 2."""
        self.wrong(f"{reader}: {author} {number} came twice")

    def acknowledged(self) -> None:
        self.acks += 1
        self._fuse -= 1
        if self._fuse == 0:
            self._burnt.set()

    async def more(self, count: int, seconds: float | None = None) -> bool:
        """Wait until so many more are acknowledged; whether that came to be in time (None: it has to)."""
        self._fuse = count
        self._burnt.clear()
        try:
            await asyncio.wait_for(self._burnt.wait(), seconds or self.patience)
        except TimeoutError:
            assert seconds is not None, f"only {count - self._fuse} of {count} messages were acknowledged"
            return False
        self.look()
        return True

    async def settle(self) -> None:
        """No more is said; all that was taken arrives everywhere. Raises AssertionError with what is wrong."""
        self.talking.clear()
        try:
            async with asyncio.timeout(self.patience):
                for author in self.authors:
                    await author.idle.wait()
                while any(missing for _, _, missing in self._missing()):
                    self.look()
                    await asyncio.sleep(AGAIN_SECONDS)
        except TimeoutError:
            for author in self.authors:
                if author.sent:
                    self.wrong(f"{author.name} on {author.node.name} waits for {len(author.sent)} acknowledgements")
        self.look()
        for who, author, missing in self._missing():
            if missing:
                self.wrong(f"{who} lacks {len(missing)} of {author.name} on {author.node.name}: {sorted(missing)[:10]}")
        for author in self.authors:
            for reader in self.readers:
                forged = author.refused & reader.got.get(author.name, set())
                if forged:
                    self.wrong(f"{reader.name} got {sorted(forged)[:10]} of {author.name}, which were refused")
        assert not self.problems, "\n".join(f"{problem} ({count})" for problem, count in self.problems.items())

    def go_on(self) -> None:
        """Talk again, after ``settle``."""
        self._said = {node.name: node.said_bytes() for node in self.nodes}
        books = [(GROUP, self.shared), *((reader.name, reader.got) for reader in self.readers)]
        for author in self.authors:
            self.floor[author.name] = self.missed.close(author, books)
        self.talking.set()

    def _missing(self) -> Iterator[tuple[str, Author, set[int]]]:
        """For each subscriber and author, the numbers that are missing."""
        for author in self.authors:
            yield GROUP, author, author.taken - self.shared.get(author.name, set())
            for reader in self.readers:
                yield f"{reader.name} on {reader.node.name}", author, author.taken - reader.got.get(author.name, set())

    def look(self) -> None:
        """Raise what went wrong in a client, if anything did."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()
