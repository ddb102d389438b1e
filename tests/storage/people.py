"""Clients for the lives of ``seeds``: each knows what it is owed, and what the broker may not do to it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.storage.crash_engines import NEVER
from tests.storage.crash_world import Line

from starlingmq.wire.mqtt import Ack, Connack, Connect, Disconnect, Packet, Publish, Suback, Subscribe, SubscribeRequest
from starlingmq.wire.mqtt import Will as WillPacket
from starlingmq.wire.packets import PUBACK, PUBCOMP, PUBREC, PUBREL
from starlingmq.wire.properties import (
    SESSION_EXPIRY_INTERVAL,
    SUBSCRIPTION_IDENTIFIER,
    WILL_DELAY_INTERVAL,
    Properties,
)
from starlingmq.wire.reasons import Reason

if TYPE_CHECKING:
    from tests.storage.seeds import Life

FOREVER = 0xFFFFFFFF
TOPICS = ((b"t/a", 3), (b"t/b", 3), (b"g/a", 2), (b"x/a", 1))
"""Topics and their weights: t for everybody, g for the shared group, x for messages that expire."""
SLACK = 1.0  # seconds by which the broker's view of a deadline may differ from the client's


class Person:
    """A client id with a memory of its own, which survives its connections.

    ``expiry``: seconds that the session outlives its connection; 0: not at all.
    """

    def __init__(self, life: Life, name: str, version: int, expiry: int) -> None:
        self.life = life
        self.world = life.world
        self.name = name
        self.version = version
        self.expiry = expiry
        self.lasting = expiry != 0
        self.fake: Line | None = None
        self.connack: Connack | None = None
        self.known: bool | None = False  # whether the broker has the session; None: unknown to the client
        self.away_since = (0.0, 0.0)  # the broker saw the connection lost between these moments
        self.leaving = False  # whether the broker saw the connection lost before it crashed is unknown
        self.trouble = 0  # disk failures so far when the client connected; -1: the disk was failing

    def call(self, *more: Packet, clean: bool = False, will: WillPacket | None = None) -> None:
        """Connect, and say ``more`` in the same breath."""
        clean = clean or not self.lasting
        properties: Properties = {}
        if self.version == 5 and self.lasting:
            properties = {SESSION_EXPIRY_INTERVAL: self.expiry}
        self.grow_old()
        expected, self.known = (False if clean else self.known), None
        self.expected = expected
        self.connack = None
        self.trouble = -1 if self.world.durable.failure else self.world.machine.trouble
        self.fake = self.world.open(self.version, self.name)
        self.fake.send_all([Connect(self.version, self.name, clean, will=will, properties=properties), *more])
        self.listen()

    def grow_old(self) -> None:
        """Update what the client knows of its session after time has passed."""
        if self.fake is not None or not self.lasting or self.expiry == FOREVER:
            return
        first, last = self.away_since
        if self.world.now - last > self.expiry + SLACK:
            self.known = False
        elif self.world.now - first >= self.expiry - SLACK:
            self.known = None if self.known is not False else False

    def excused(self) -> bool:
        """Whether the broker may refuse the client: its disk has failed since the client connected."""
        return self.trouble != self.world.machine.trouble

    def listen(self) -> None:
        if self.fake is None:
            return
        for packet in self.fake.receive():
            if isinstance(packet, Connack):
                self.greet(packet)
            elif isinstance(packet, Disconnect):
                assert packet.reason == Reason.QUOTA_EXCEEDED and self.excused(), f"{self.name} got {packet!r}"
            else:
                self.hear(packet)
        if self.fake.closed:
            assert self.excused(), f"{self.name} was closed"
            self.cut()

    def greet(self, packet: Connack) -> None:
        if packet.reason:
            assert self.excused(), f"{self.name} got {packet!r}"
            return
        if self.expected is not None:
            assert packet.session_present == self.expected, f"{self.name}: session present is a lie"
        self.connack = packet
        self.known = self.lasting
        self.accepted(packet.session_present)

    def accepted(self, present: bool) -> None:
        pass

    def hear(self, packet: Packet) -> None:
        raise AssertionError(f"{self.name} got {packet!r}")

    def cut(self) -> None:
        """The connection is lost. The client may or may not have read what the broker wrote; the client's answers are
        lost.
        """
        fake = self.fake
        if fake is None:
            return
        self.away_since = (fake.closed_at if fake.closed else self.world.now, self.world.now)
        self.leaving = True
        fake.drop()
        self.leaving = False
        self.fake = None
        self.left()

    def forget(self) -> None:
        """The broker crashed. It comes back now: what it has not written down begins again."""
        now = self.world.now
        if self.fake is not None:
            self.away_since = (self.away_since[0] if self.leaving else now, now)
            self.fake = None
            self.leaving = False
            self.left()
        elif not self.life.surely_kept():
            self.away_since = (self.away_since[0], now)

    def crashed_again(self) -> None:
        """The broker crashed while the client reconnected, perhaps before it had stored that the client is away."""
        self.away_since = (self.away_since[0], self.world.now)

    def left(self) -> None:
        """The client has no connection any more."""

    def say(self, packets: list[Packet]) -> None:
        if self.fake is not None and packets:
            self.fake.send_all(packets)


class Author(Person):
    """Publishes; ``sent`` is what is not finished, in order."""

    def __init__(self, life: Life, name: str, version: int, expiry: int) -> None:
        super().__init__(life, name, version, expiry)
        self.sent: dict[int, Publish] = {}
        self.released: set[int] = set()
        self.to_release: list[int] = []
        self.count = 0

    def connect(self) -> None:
        if not self.lasting:
            self.sent.clear()  # its session is over, and with it what it owes
            self.released.clear()
        self.to_release.clear()
        again: list[Packet] = []
        for packet_id, packet in self.sent.items():
            packet.dup = True
            self.life.resent.add(packet.payload)
            again.append(Ack(PUBREL, packet_id) if packet_id in self.released else packet)
        self.call()
        self.say(again)
        self.listen()

    def publish(self, count: int) -> None:
        random = self.life.random
        packets: list[Packet] = []
        for _ in range(count):
            if random.random() < 0.2:
                qos = random.randrange(3)
                topic = b"r/%b/%d" % (self.name.encode(), qos)
                packets.append(self.message(topic, qos, True, -1, random.random() < 0.3))
            else:
                (topic,) = random.choices([name for name, _ in TOPICS], [weight for _, weight in TOPICS])
                expiring = topic == b"x/a"
                if expiring and self.version != 5:
                    continue
                qos = random.choice([0, 1, 1, 2, 2])
                packets.append(self.message(topic, qos, False, random.choice([1, 10]) if expiring else -1, False))
        self.say(packets)
        self.listen()

    def message(self, topic: bytes, qos: int, retain: bool, expiry: int, empty: bool) -> Publish:
        self.count += 1
        payload = b"" if empty else b"%b %b %d %d" % (self.name.encode(), topic, qos, self.count)
        packet_id = next(number for number in range(1, 65536) if number not in self.sent) if qos else 0
        packet = Publish(topic, payload, qos, retain=retain, packet_id=packet_id, expiry=expiry)
        if qos:
            self.sent[packet_id] = packet
        self.life.published(self, packet)
        return packet

    def hear(self, packet: Packet) -> None:
        assert isinstance(packet, Ack), packet
        if packet.reason >= 0x80:
            self.refused(packet)
        elif packet.type == PUBREC:
            if packet.packet_id in self.sent and packet.packet_id not in self.released:
                self.released.add(packet.packet_id)
                self.to_release.append(packet.packet_id)
        else:
            self.released.discard(packet.packet_id)
            finished = self.sent.pop(packet.packet_id, None)
            if finished is not None:
                assert packet.type == (PUBACK if finished.qos == 1 else PUBCOMP)
                self.life.acknowledged(finished)

    def refused(self, packet: Ack) -> None:
        """Refused for now: the disk fails. The broker has not taken the message; its packet id is free at once."""
        assert packet.reason == Reason.QUOTA_EXCEEDED and self.excused() and packet.type in (PUBACK, PUBREC), packet
        assert packet.packet_id not in self.released, "refused after it was taken"
        refused = self.sent.pop(packet.packet_id)
        if refused.qos == 2 and refused.payload:
            self.life.refused.add(refused.payload)

    def finish(self) -> None:
        self.listen()
        to_release, self.to_release = self.to_release, []
        self.say([Ack(PUBREL, packet_id) for packet_id in to_release])
        self.listen()


class Reader(Person):
    """Subscribes once for the life of its session; ``got`` is what came."""

    def __init__(
        self, life: Life, name: str, version: int, expiry: int, filters: tuple[bytes, ...], ids: int, qos: int = 2
    ) -> None:
        super().__init__(life, name, version, expiry)
        self.filters = filters
        self.ids = ids if version == 5 else 0
        self.qos = qos
        self.granted: set[int] = set()  # places of filters
        self.refused = False  # one of them, not now
        self.got = Counter[bytes]()
        self.places: dict[bytes, int] = {}
        self.open: dict[int, bytes] = {}
        self.answers: list[Packet] = []
        self.blocked = False
        self.restarted = 0
        self.since = NEVER  # how many messages were published before

    def connect(self, clean: bool = False) -> None:
        self.answers.clear()
        self.blocked = False
        if clean or not self.lasting:
            self.begin_anew()
        self.call(clean=clean)
        self.subscribe()

    @property
    def subscribed(self) -> bool:
        return len(self.granted) == len(self.filters)

    def subscribe(self) -> None:
        self.refused = False
        for number, filter in enumerate(self.filters, 1):
            if number not in self.granted and self.fake is not None:
                properties: Properties = {SUBSCRIPTION_IDENTIFIER: [self.ids]} if self.ids else {}
                self.say([Subscribe(number, [SubscribeRequest(filter, self.qos)], properties)])
        self.listen()

    def begin_anew(self) -> None:
        self.granted.clear()
        self.since = NEVER
        self.open.clear()
        self.places.clear()
        self.got.clear()
        self.restarted += 1

    def accepted(self, present: bool) -> None:
        if not present:
            self.open.clear()

    def hear(self, packet: Packet) -> None:
        if isinstance(packet, Suback):
            if packet.reasons[0] >= 0x80:
                assert self.excused()
                self.refused = True
            elif packet.packet_id not in self.granted:
                self.granted.add(packet.packet_id)
                self.since = len(self.life.all)
        elif isinstance(packet, Publish):
            self.take(packet)
        else:
            assert isinstance(packet, Ack) and packet.type == PUBREL, packet
            self.open.pop(packet.packet_id, None)
            self.answers.append(Ack(PUBCOMP, packet.packet_id))

    def take(self, packet: Publish) -> None:
        payload = packet.payload
        if packet.qos == 2:
            self.answers.append(Ack(PUBREC, packet.packet_id))
            if packet.packet_id in self.open:
                assert self.open[packet.packet_id] == payload, "another message under an id that is open"
                return
            self.open[packet.packet_id] = payload
        elif packet.qos == 1:
            self.answers.append(Ack(PUBACK, packet.packet_id))
        if not payload:
            return  # a retained message was taken back
        assert payload in self.life.all, f"{self.name} got {payload!r}, which nobody published"
        if self.ids:
            assert packet.subscription_ids, "without its subscription identifier"
        self.got[payload] += 1
        self.check_order(payload)

    def check_order(self, payload: bytes) -> None:
        key, _, number = payload.rpartition(b" ")
        if self.got[payload] != 1 or not self.life.ordered or payload.split()[1][:1] in b"rwg":
            return
        if self.life.ages[payload] < self.since:
            return  # perhaps published before this subscription, and again after later ones
        if payload in self.life.resent and (payload.split()[1] == b"x/a" or self.world.machine.trouble):
            return  # it may have expired in its queue, or been refused unheard, and come again after later ones
        assert self.places.get(key, 0) < int(number), f"{self.name}: {payload!r} after {self.places[key]}"
        self.places[key] = int(number)

    def answer(self, share: float) -> None:
        """Answer the first of what there is to answer."""
        self.listen()
        if self.refused:
            self.subscribe()
        count = round(len(self.answers) * share + 0.49)
        answers = self.answers[:count]
        del self.answers[:count]
        self.say(answers)
        self.listen()

    def cut(self) -> None:
        self.answers.clear()
        super().cut()

    def block_or_unblock(self) -> None:
        if self.fake is None:
            return
        self.blocked = not self.blocked
        if self.blocked:
            self.fake.block()
        else:
            self.fake.unblock()


class Mortal(Person):
    """Leaves a will with every connection. It is published when the connection has been lost for ``delay`` seconds, or
    when the session ends, if that is sooner; unless the session has a connection again by then."""

    wills = 0
    payload = b""  # of the connection there is
    pending = b""  # of the one that was lost

    def __init__(self, life: Life, name: str, version: int, expiry: int, delay: int) -> None:
        super().__init__(life, name, version, expiry)
        self.delay = delay if version == 5 else 0
        self.wait = min(self.delay, expiry)

    def connect(self, clean: bool = False) -> None:
        self.wills += 1
        qos = 1 + self.wills % 2
        self.payload = b"%b w/%b %d %d" % (self.name.encode(), self.name.encode(), qos, self.wills)
        self.life.begin_will(self)
        self.clean = clean or not self.lasting
        self.came_at = self.world.now
        properties: Properties = {WILL_DELAY_INTERVAL: self.delay} if self.delay else {}
        self.call(will=WillPacket(b"w/" + self.name.encode(), self.payload, qos, properties=properties), clean=clean)

    def accepted(self, present: bool) -> None:
        """The CONNACK was sent after what it means was stored: it decides what became of the last will."""
        pending, self.pending = self.pending, b""
        if not pending:
            return
        first, last = self.away_since_then
        if self.clean or self.came_at - last > self.wait + SLACK:
            self.life.will_is_due(pending)
        elif self.came_at - first < self.wait - SLACK:
            self.life.cancelled.add(pending)

    def call(self, *more: Packet, clean: bool = False, will: WillPacket | None = None) -> None:
        self.away_since_then = self.away_since
        super().call(*more, clean=clean, will=will)

    def left(self) -> None:
        """Nothing is expected of a connection that may not have been accepted, nor of the one before it."""
        if self.payload:
            self.pending = self.payload if self.connack is not None else b""
            self.payload = b""
        if self.pending and self.wait == 0:
            self.life.will_is_due(self.pending)
            self.pending = b""

    def leave(self, with_will: bool) -> None:
        if self.fake is None or self.connack is None:
            return
        fake, payload = self.fake, self.payload
        self.away_since = (self.world.now, self.world.now)
        self.leaving = True
        if with_will and self.version == 5:
            fake.disconnect(Reason.DISCONNECT_WITH_WILL)
        else:
            self.payload = b""
            fake.disconnect()
            if self.life.surely_kept():
                self.life.cancelled.add(payload)
        self.cut()

    def look_back(self) -> None:
        """The time of what is pending is over, and the broker was there to see it."""
        pending, self.pending = self.pending, b""
        if pending:
            assert self.world.now - self.away_since[1] > self.wait + SLACK
            self.life.will_is_due(pending)


class Guest(Person):
    """Comes and goes, and its session expires."""

    def connect(self) -> None:
        self.call()
