"""Clients that behave: every handshake is gone through, on one connection or over several, at the node they belong to.

A ``Person`` is a client id with a memory of its own that survives its connections; it stays at its node and comes back
whenever it was cut, closed or refused. What it sees goes into the ``Books``, which the checkers read. Payloads
say what they are: ``publisher topic qos number``.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING

from tests.harness import body_start
from tests.sim.checkers import GROUP, Books, Promise
from tests.sim.node import Node, Process

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
    decode,
    encode,
    frame_length,
)
from starlingmq.wire.packets import PUBACK, PUBCOMP, PUBREC, PUBREL
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL, Properties

if TYPE_CHECKING:
    from starlingmq.core.session.session import Client

FOREVER = 0xFFFFFFFF
PATIENCE = 12.0  # seconds for the answer to a CONNECT


class Connection:
    """A TCP connection between a person and a node, in order both ways."""

    def __init__(self, person: Person, process: Process) -> None:
        self.person = person
        self.process = process
        self.schedule = process.schedule
        self.open = True
        self.delay = 0.0002 + 0.001 * person.random.random()
        self._arrives = 0.0  # the last of what was sent to the broker ...
        self._comes = 0.0  # ... and to the person
        self.client: Client | None = None
        self.schedule.after(self.delay, self._accepted)

    def _accepted(self) -> None:
        if self.open and self.process.alive:
            self.client = self.process.accept(self, self.person.name)
        else:
            self.closed_by_broker()

    def _when(self, last: float) -> float:
        return max(last, self.schedule.now + self.delay * (0.5 + self.person.random.random()))

    def send(self, data: bytes) -> None:
        self._arrives = self._when(max(self._arrives, self.schedule.now + self.delay))
        self.schedule.at(self._arrives, self._deliver, data)

    def _deliver(self, data: bytes) -> None:
        if self.client is not None:
            self.process.receive(self.client, data)

    def hear(self, data: bytes) -> None:
        self._comes = self._when(self._comes)
        self.schedule.at(self._comes, self._heard, data)

    def _heard(self, data: bytes) -> None:
        if self.open:
            self.person.hear(data)

    def closed_by_broker(self) -> None:
        self._comes = self._when(self._comes)
        self.schedule.at(self._comes, self._ended)

    def _ended(self) -> None:
        if self.open:
            self.open = False
            self.person.ended()

    def cut(self) -> None:
        """The connection is lost: the person hears nothing more, the broker learns of it when it does."""
        self.open = False
        self._arrives = self._when(self._arrives)
        self.schedule.at(self._arrives, self._gone)

    def _gone(self) -> None:
        if self.client is not None:
            self.process.lost(self.client)


class Person:
    def __init__(self, books: Books, random: Random, node: Node, name: str, version: int, lasting: bool) -> None:
        self.books = books
        self.random = random
        self.node = node
        self.trace = node.world.trace
        self.schedule = node.world.schedule
        self.name = name
        self.version = version
        self.lasting = lasting
        self.connection: Connection | None = None
        self.online = False  # CONNACK was read
        self.ending = False  # it does not come back
        self.next_id = 0
        self.known = False  # whether it has seen its session made
        self._tries = 0

    def come(self) -> None:
        """Connect, now and whenever it is needed again."""
        if self.ending or self.connection is not None:
            return
        process = self.node.process
        if process is None:
            self.schedule.after(0.2 + 0.3 * self.random.random(), self.come)
            return
        self._tries += 1
        self.connection = Connection(self, process)
        properties: Properties = {SESSION_EXPIRY_INTERVAL: FOREVER} if self.version == 5 and self.lasting else {}
        self.say([Connect(self.version, self.name, not self.lasting, properties=properties)])
        self.schedule.after(PATIENCE, self._give_up, self._tries)

    def _give_up(self, tries: int) -> None:
        if self._tries == tries and not self.online:
            self.cut()

    def cut(self) -> None:
        """The connection is lost; a new one is tried soon."""
        if self.connection is not None:
            self.trace.note(self.name, "is cut off")
            self.connection.cut()
            self.ended()

    def ended(self) -> None:
        self.trace.note(self.name, "has no connection")
        self.connection = None
        was, self.online = self.online, False
        if was:
            self.offline()
        if not self.ending:
            self.schedule.after(0.05 + 0.5 * self.random.random(), self.come)

    def say(self, packets: list[Packet]) -> None:
        """Send packets so that they arrive in one read."""
        if self.connection is not None and packets:
            if self.trace.on:
                self.trace.note(self.name, "says " + ", ".join(map(told, packets)))
            self.connection.send(b"".join(encode(packet, self.version) for packet in packets))

    def hear(self, data: bytes) -> None:
        for packet in packets_of(data, self.version):
            if self.connection is None:
                return
            if self.trace.on:
                self.trace.note(self.name, f"gets {told(packet)}")
            if isinstance(packet, Connack):
                if packet.reason != 0:
                    self.refused(packet.reason)
                    continue  # it is closed, and tries again
                assert not packet.session_present or self.lasting, f"{self.name}: session present is a lie"
                self.online = True
                lost = self.known and self.lasting and not packet.session_present
                if lost:
                    assert not self.node.world.settings.keeps or self.node.world.in_doubt(), (
                        f"{self.name}: its session is lost"
                    )
                self.known = self.lasting
                self.begin(packet.session_present)
            elif not isinstance(packet, Disconnect):
                self.take(packet)

    def new_id(self) -> int:
        self.next_id += 1
        return self.next_id

    def begin(self, present: bool) -> None:
        """CONNACK has come."""
        raise NotImplementedError

    def refused(self, reason: int) -> None:
        """CONNACK says so; as a rule the node is isolated."""

    def offline(self) -> None:
        pass

    def take(self, packet: Packet) -> None:
        raise NotImplementedError

    def finished(self) -> bool:
        raise NotImplementedError


class Publisher(Person):
    """``sent``: unfinished messages, in order; messages published without a connection wait in ``later``."""

    def __init__(self, books: Books, random: Random, node: Node, name: str, version: int, lasting: bool) -> None:
        super().__init__(books, random, node, name, version, lasting)
        self.sent: dict[int, Publish] = {}
        self.released: dict[int, None] = {}
        self.later: list[tuple[Publish, bytes]] = []
        self.left = 0  # actions of its plan to come
        self.retained = 0.0  # share of its messages at QoS 1 and 2
        self.deletes = 0.0  # share of those that only take away what is retained
        self.names: dict[int, bytes] = {}  # packet id -> what the books know such a message by
        self.count = 0

    def publish(self, topic: bytes, qos: int, retain: bool | None = None, delete: bool = False) -> None:
        """``retain``: None: as ``retained`` and ``deletes`` say."""
        self.left -= 1
        self.count += 1
        payload = b"%b %b %d %d" % (self.name.encode(), topic, qos, self.count)
        if retain is None:
            retain = qos != 0 and self.retained != 0.0 and self.random.random() < self.retained
            delete = retain and self.random.random() < self.deletes
        packet = Publish(topic, b"" if delete else payload, qos, retain)
        self.later.append((packet, payload))
        self._flush()

    def _flush(self) -> None:
        if not self.online or not self.later:
            return
        later, self.later = self.later, []
        for packet, name in later:
            if packet.qos:
                packet.packet_id = self.new_id()
                self.books.unknown.pop((self.name, packet.packet_id), None)
                self.sent[packet.packet_id] = packet
                self.names[packet.packet_id] = name
            self.books.published(packet, name, self.node, self.schedule.now)
        self.say([packet for packet, _ in later])

    def begin(self, present: bool) -> None:
        if not present:
            # Its session is over, and with it what it owes: sent again it would be another message.
            self.sent.clear()
            self.released.clear()
        again: list[Packet] = [Ack(PUBREL, packet_id) for packet_id in self.released]
        for packet_id, packet in self.sent.items():
            if packet_id not in self.released:
                packet.dup = True
                self.books.sent[self.names[packet_id]].again = True
                again.append(packet)
        self.say(again)
        self._flush()

    def take(self, packet: Packet) -> None:
        assert isinstance(packet, Ack), f"{self.name} got {packet!r}"
        packet_id = packet.packet_id
        message = self.sent.get(packet_id)
        if packet.type == PUBREC and packet.reason < 0x80:
            if message is not None:
                self.released[packet_id] = None
                self.say([Ack(PUBREL, packet_id)])
            return
        self.released.pop(packet_id, None)
        if self.sent.pop(packet_id, None) is None or message is None:
            return
        lost = packet.type == PUBCOMP and (packet.reason >= 0x80 or (self.name, packet_id) in self.books.unknown)
        if lost or packet.reason >= 0x80:
            assert not lost or self.may_lose_handshakes(), f"{self.name}: a handshake is lost, {packet!r}"
            self.books.refused(self.names[packet_id], self.schedule.now)
            return
        assert packet.type == (PUBACK if message.qos == 1 else PUBCOMP)
        self.books.acknowledged(self.names[packet_id], self.schedule.now)

    def may_lose_handshakes(self) -> bool:
        return not self.node.world.settings.keeps

    def finished(self) -> bool:
        return not self.left and not self.sent and not self.later


class Subscriber(Person):
    """``wanted`` are the filters it subscribes to as soon as it can, ``unwanted`` those that it takes back.

    One request a filter is under way at a time: what is wanted when its answer comes decides what is next.
    """

    def __init__(self, books: Books, random: Random, node: Node, name: str, version: int, lasting: bool) -> None:
        super().__init__(books, random, node, name, version, lasting)
        self.wanted: dict[bytes, int] = {}  # filter -> QoS
        self.unwanted: dict[bytes, None] = {}
        self.promises: dict[bytes, Promise] = {}  # filter -> since its SUBACK
        self.asked: dict[int, bytes] = {}  # filters of the requests under way, by packet id
        self.asked_at: dict[bytes, float] = {}  # filter -> when its last SUBSCRIBE was sent
        self.open: dict[int, bytes] = {}  # QoS 2 messages whose PUBREL has not come
        self.left = 0  # actions of its plan to come
        self.answer_delay = random.choice([0.0, 0.0, 0.02])
        self.ways: dict[bytes, None] = {}  # by which it may get a message: each group, and all other filters as one

    def subscribe(self, filter: bytes, qos: int) -> None:
        self.left -= 1
        self.wanted[filter] = qos
        self.unwanted.pop(filter, None)
        self._ask(filter)

    def unsubscribe(self, filter: bytes) -> None:
        self.left -= 1
        if self.wanted.pop(filter, None) is not None:
            self._end_promise(filter)
            self.unwanted[filter] = None
            self._ask(filter)

    def _end_promise(self, filter: bytes) -> None:
        promise = self.promises.pop(filter, None)
        if promise is not None:
            promise.until = self.schedule.now

    def _ask(self, filter: bytes) -> None:
        if not self.online or filter in self.asked.values():
            return
        if filter in self.unwanted:
            packet_id = self.new_id()
            self.asked[packet_id] = filter
            self.books.left[filter] = None
            self.say([Unsubscribe(packet_id, [filter])])
        elif filter in self.wanted and filter not in self.promises:
            packet_id = self.new_id()
            self.asked[packet_id] = filter
            self.ways[filter if filter.startswith(GROUP) else b""] = None
            self.asked_at[filter] = self.schedule.now
            self.books.asked.setdefault(self.name, {})[filter] = None
            self.say([Subscribe(packet_id, [SubscribeRequest(filter, self.wanted[filter])])])

    def begin(self, present: bool) -> None:
        if not present:
            for filter in list(self.promises):
                self._end_promise(filter)
            self.unwanted.clear()
            self.open.clear()
            self.books.new_session(self.name)
        for filter in [*self.wanted, *self.unwanted]:
            self._ask(filter)

    def offline(self) -> None:
        self.asked.clear()
        if not self.lasting:
            for filter in list(self.promises):
                self._end_promise(filter)

    def take(self, packet: Packet) -> None:
        if isinstance(packet, Publish):
            self._receive(packet)
        elif isinstance(packet, (Suback, Unsuback)):
            filter = self.asked.pop(packet.packet_id)
            if packet.reasons and packet.reasons[0] >= 0x80:
                self.books.left[filter] = None
                self.schedule.after(0.3, self._ask, filter)
                return
            if isinstance(packet, Unsuback):
                self.unwanted.pop(filter, None)
            elif filter in self.wanted:
                qos, now = packet.reasons[0], self.schedule.now
                promise = self.books.promise(self.name, self.node, filter, qos, self.lasting, now)
                promise.asked_at = self.asked_at[filter]
                self.promises[filter] = promise
            self._ask(filter)
        else:
            assert isinstance(packet, Ack) and packet.type == PUBREL, f"{self.name} got {packet!r}"
            self.open.pop(packet.packet_id, None)
            self._answer(Ack(PUBCOMP, packet.packet_id))

    def _receive(self, packet: Publish) -> None:
        payload = packet.payload
        if packet.qos == 1:
            self._answer(Ack(PUBACK, packet.packet_id))
        elif packet.qos == 2:
            self._answer(Ack(PUBREC, packet.packet_id))
            if packet.packet_id in self.open:
                again = self.open[packet.packet_id] == payload
                told = f"{self.name}: another message under an id that is open"
                assert again or self.books.went_back(self.name), told
                if again:
                    return
            self.open[packet.packet_id] = payload
        if not payload:
            return  # it took away what was retained
        if packet.retain:
            self.books.replayed(self.name, payload, self.schedule.now)
            self.node.world.seen["retained messages replayed"] += 1
        else:
            self.books.received(self.name, payload, packet.qos, len(self.ways), list(self.promises.values()))

    def _answer(self, packet: Packet) -> None:
        if self.answer_delay:
            self.schedule.after(self.answer_delay, self._answer_on, self.connection, packet)
        else:
            self.say([packet])

    def _answer_on(self, connection: Connection, packet: Packet) -> None:
        if self.connection is connection:
            self.say([packet])

    def finished(self) -> bool:
        return not self.left and not self.unwanted and self.online and all(f in self.promises for f in self.wanted)


def packets_of(data: bytes, version: int) -> Iterator[Packet]:
    at = 0
    while at < len(data):
        length = frame_length(data, at)
        assert 0 < length <= len(data) - at, "half a packet"
        frame = data[at : at + length]
        at += length
        yield decode(frame[0], frame, body_start(frame), length, version)


def told(packet: Packet) -> str:
    """A packet in a few words."""
    if isinstance(packet, Publish):
        return f"PUBLISH {packet.packet_id}{' DUP' if packet.dup else ''} {packet.payload!r}"
    if isinstance(packet, Ack):
        name = {PUBACK: "PUBACK", PUBREC: "PUBREC", PUBREL: "PUBREL", PUBCOMP: "PUBCOMP"}[packet.type]
        return f"{name} {packet.packet_id} {packet.reason:#x}"
    return repr(packet)
