"""A publisher and a receiver that follow the protocol through any loss of connections, and check that the broker does.

A payload identifies its message: ``publisher topic qos number``. So received messages can be checked from outside.
"""

from __future__ import annotations

from collections import Counter

from tests.harness import FakeClient, World

from starlingmq.core.messages.outgoing import RELEASED
from starlingmq.wire.mqtt import Ack, Connack, Connect, Packet, Publish, Suback, Subscribe, SubscribeRequest
from starlingmq.wire.packets import PUBACK, PUBCOMP, PUBREC, PUBREL
from starlingmq.wire.properties import RECEIVE_MAXIMUM, SESSION_EXPIRY_INTERVAL, Properties

NEVER = 0xFFFFFFFF
NOT_FOUND = 0x92


class Publisher:
    """``sent`` has the unfinished messages, in order; a message is ``acknowledged`` with its PUBACK or PUBCOMP."""

    def __init__(self, world: World, client_id: str, version: int) -> None:
        self.world = world
        self.client_id = client_id
        self.version = version
        self.sent: dict[int, Publish] = {}
        self.released: set[int] = set()  # after PUBREC: PUBREL is sent, never PUBLISH
        self.to_release: list[int] = []
        self.acknowledged: list[bytes] = []
        self.connect()

    def connect(self) -> None:
        """Connect or reconnect: unfinished messages are sent again in order [MQTT-4.4.0-1]."""
        expiry: Properties = {SESSION_EXPIRY_INTERVAL: NEVER} if self.version == 5 else {}
        self.fake = self.world.connect(self.client_id, self.version, clean_start=False, properties=expiry)
        limit = self.fake.connack.properties.get(RECEIVE_MAXIMUM, 65535)
        assert isinstance(limit, int)
        self.receive_maximum = limit
        self.to_release.clear()
        for packet_id, packet in self.sent.items():
            packet.dup = True
            self.fake.send(Ack(PUBREL, packet_id) if packet_id in self.released else packet)

    def lose_connection(self) -> None:
        """Lose the connection, with everything that the broker wrote and the client has not read."""
        self.fake.drop()
        self.connect()

    def publish(self, messages: list[tuple[bytes, bytes, int]], expiry: int = -1) -> None:
        """Publish (topic, payload, QoS) each, in one read; messages above the server's Receive Maximum wait."""
        packets: list[Packet] = []
        for topic, payload, qos in messages:
            packet_id = 0
            if qos != 0:
                if len(self.sent) >= self.receive_maximum:
                    continue
                packet_id = max(self.sent, default=0) + 1
            packet = Publish(topic, payload, qos, packet_id=packet_id, expiry=expiry if self.version == 5 else -1)
            if qos != 0:
                self.sent[packet_id] = packet
            packets.append(packet)
        self.fake.send_all(packets)

    def read(self) -> None:
        for packet in self.fake.receive():
            assert isinstance(packet, Ack), packet
            assert packet.reason < 0x80, packet
            if packet.type == PUBREC:
                if packet.packet_id in self.sent and packet.packet_id not in self.released:
                    self.released.add(packet.packet_id)
                    self.to_release.append(packet.packet_id)
                continue
            self.released.discard(packet.packet_id)
            finished = self.sent.pop(packet.packet_id)
            assert packet.type == (PUBACK if finished.qos == 1 else PUBCOMP)
            self.acknowledged.append(finished.payload)
        assert not self.fake.closed

    def release(self) -> None:
        """Answer the PUBRECs, in their order [MQTT-4.6.0-4]."""
        to_release, self.to_release = self.to_release, []
        packets: list[Packet] = [Ack(PUBREL, packet_id) for packet_id in to_release]
        self.fake.send_all(packets)

    def finish(self) -> None:
        """Complete the handshakes, as far as the broker reads the input."""
        self.read()
        self.release()
        self.read()


class Witness:
    """Receives all routed messages at QoS 0, immediately and in order."""

    def __init__(self, world: World) -> None:
        self.fake = world.connect("witness")
        self.fake.send(Subscribe(1, [SubscribeRequest(b"t/#", 0)]))
        self.fake.expect(Suback)

    def read(self) -> list[bytes]:
        return [packet.payload for packet in self.fake.receive() if isinstance(packet, Publish)]


class Receiver:
    """A client with a subscription at QoS 2.

    It handles a packet twice: ``observe`` checks the packets that the broker writes; ``read`` gets those that reach the
    client, which a lost connection cuts off anywhere.
    """

    def __init__(self, world: World, witness: Witness, max_inflight: int) -> None:
        self.world = world
        self.witness = witness
        self.max_inflight = max_inflight
        self.fake: FakeClient | None = None
        self.blocked = False
        self.lasting = False
        # on the wire
        self.attached = False  # a session exists, so routed messages are for this client
        self.seen = Counter[bytes]()  # all routed messages
        self.routed: list[bytes] = []  # for this client
        self.written = 0  # of those, without DUP
        self.places: dict[bytes, int] = {}  # publisher, topic and QoS -> position in ``routed`` of the last one
        self.inflight: dict[int, Publish] = {}  # in the broker's window, as far as can be observed from outside
        self.rec: set[int] = set()  # of ``inflight``, answered with PUBREC
        self.here: set[int] = set()  # unfinished PUBLISHes on this connection
        self.last_again = -1  # place in ``inflight`` of the last one that was sent again on this connection
        self.releases = Counter[int]()  # expected PUBRELs on this connection
        self.unanswered = 0  # in flight when a session ended
        # in the client
        self.inbox: list[Publish | Ack] = []
        self.answers: list[Ack] = []
        self.open: dict[int, bytes] = {}  # QoS 2 between PUBLISH and PUBREL
        self.delivered = Counter[bytes]()

    # Connections

    def connect(self, version: int, *, clean: bool, lasting: bool, receive_maximum: int) -> None:
        self.note_routed()
        present = self.attached and not clean
        properties: Properties = {}
        self.limit = self.max_inflight or 65535
        if version == 5:
            properties = {SESSION_EXPIRY_INTERVAL: NEVER if lasting else 0, RECEIVE_MAXIMUM: receive_maximum}
            self.limit = min(self.limit, receive_maximum)
        fake = self.fake = self.world.open(version, "sub")
        connect = Connect(version, "sub", clean, properties=properties)
        # In one read, so that nothing is routed between a new session and its subscription.
        packets: list[Packet] = [connect]
        if not present:
            packets.append(Subscribe(1, [SubscribeRequest(b"t/#", 2)]))
        fake.send_all(packets)
        connack = fake.expect(Connack)
        assert connack.reason == 0
        assert connack.session_present == present or version == 3
        if not present:
            self.end_session()
            fake.expect(Suback)
        self.version = version
        self.lasting = lasting if version == 5 else not clean
        self.attached = True
        self.releases = Counter(self.rec)
        self.last_again = -1
        self.observe()

    def lose_connection(self, arrived: int) -> None:
        """``arrived`` of the packets in flight still reach the client, its answers do not reach the broker."""
        assert self.fake is not None
        self.read(arrived)
        self.note_routed()
        self.attached = self.lasting
        self.fake.drop()
        self.fake = None
        self.blocked = False
        self.inbox.clear()
        self.answers.clear()
        self.here.clear()
        if not self.lasting:
            self.end_session()

    def end_session(self) -> None:
        self.unanswered += len(self.inflight) - len(self.rec)
        self.inflight.clear()
        self.rec.clear()
        self.open.clear()

    def block(self) -> None:
        assert self.fake is not None
        self.blocked = True
        self.fake.block()

    def unblock(self) -> None:
        assert self.fake is not None
        self.blocked = False
        self.fake.unblock()

    # On the wire

    def note_routed(self) -> None:
        payloads = self.witness.read()
        self.seen.update(payloads)
        if self.attached:
            self.routed += payloads

    def observe(self) -> None:
        self.note_routed()
        if self.fake is None:
            return
        assert not self.fake.closed
        for packet in self.fake.receive():
            if isinstance(packet, Publish):
                self.check_publish(packet)
                self.inbox.append(packet)
            else:
                assert isinstance(packet, Ack)
                self.check_pubrel(packet)
                self.inbox.append(packet)

    def check_publish(self, packet: Publish) -> None:
        if packet.dup:
            known = self.inflight.get(packet.packet_id)
            assert known is not None and known.payload == packet.payload and known.qos == packet.qos
            assert packet.packet_id not in self.rec, "PUBLISH again after PUBREC"
            assert self.version != 5 or packet.packet_id not in self.here, "sent again within an MQTT 5 connection"
            place = list(self.inflight).index(packet.packet_id)
            assert place > self.last_again or packet.packet_id in self.here, "not in its first order"
            self.last_again = place
        else:
            assert packet.packet_id not in self.inflight, "an id in use, or sent again without DUP"
            assert packet.expiry != 0, "expired"
            self.check_order(packet)
            self.written += 1
        if packet.qos != 0:
            self.inflight[packet.packet_id] = packet
            self.here.add(packet.packet_id)
            assert len(self.here) <= self.limit

    def check_order(self, packet: Publish) -> None:
        """Check that first transmissions of each publisher, topic and QoS are the routed messages in order, with
        gaps.
        """
        key, _, _ = packet.payload.rpartition(b" ")
        assert key.split()[1:] == [packet.topic, b"%d" % packet.qos]
        place = self.places.get(key, 0)
        while self.routed[place] != packet.payload:  # IndexError: out of order, or never published
            place += 1
        self.places[key] = place + 1

    def check_pubrel(self, packet: Ack) -> None:
        assert packet.type == PUBREL
        if packet.packet_id in self.inflight:
            assert packet.packet_id in self.rec and packet.reason == 0
        else:
            assert packet.reason == (NOT_FOUND if self.version == 5 else 0)
        self.releases[packet.packet_id] -= 1
        assert self.version != 5 or self.releases[packet.packet_id] >= 0, "PUBREL again within an MQTT 5 connection"

    # In the client

    def read(self, count: int) -> None:
        for packet in self.inbox[:count]:
            if isinstance(packet, Ack):
                self.open.pop(packet.packet_id, None)
                self.answers.append(Ack(PUBCOMP, packet.packet_id))
            elif packet.qos == 2:
                if packet.packet_id not in self.open:
                    self.open[packet.packet_id] = packet.payload
                    self.delivered[packet.payload] += 1
                assert self.open[packet.packet_id] == packet.payload, "another message under an id that is open"
                self.answers.append(Ack(PUBREC, packet.packet_id))
            else:
                self.delivered[packet.payload] += 1
                if packet.qos == 1:
                    self.answers.append(Ack(PUBACK, packet.packet_id))
        del self.inbox[:count]

    def answer(self, index: int, times: int) -> None:
        """Send one of the answers that are due, ``times`` times."""
        assert self.fake is not None
        ack = self.answers.pop(index % len(self.answers))
        for _ in range(times):
            packet_id = ack.packet_id
            if ack.type == PUBREC:
                self.releases[packet_id] += 1
                if packet_id in self.inflight:
                    self.rec.add(packet_id)
            else:
                self.last_again -= packet_id in list(self.inflight)[: self.last_again + 1]
                self.inflight.pop(packet_id, None)
                self.rec.discard(packet_id)
                self.here.discard(packet_id)
        packets: list[Packet] = [ack] * times
        self.fake.send_all(packets)

    # The broker's state

    def check_inside(self, max_queue: int) -> None:
        session = self.world.state.ctx.sessions.get("sub")
        assert (session is not None) == self.attached
        if session is None:
            return
        window = {} if session.window is None else session.window.entries
        assert list(window) == list(self.inflight)
        assert {packet_id for packet_id, entry in window.items() if entry.stage == RELEASED} == self.rec
        queued = 0 if session.queue is None else len(session.queue)
        assert max_queue == 0 or queued <= max_queue
        assert len(self.routed) == self.written + queued + sum(self.world.dropped.values()) - self.unanswered
