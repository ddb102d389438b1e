"""The two ends of a connection without a network: a client under the test's clock, and a server that is a dumb twin.

``PeerTransport`` scripts the server packet by packet. ``Server`` answers by itself, as plainly as the protocol can be
followed, and ``Journey`` runs both against each other over connections that break or stutter where the test wants it.
"""

from __future__ import annotations

from collections.abc import Callable

from starlingmq.client.client_frames import Frames
from starlingmq.client.events import Completed, Event, Message
from starlingmq.client.options import ConnectOptions
from starlingmq.client.state import ClientState
from starlingmq.wire.mqtt import decode, encode
from starlingmq.wire.packets import (
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    Ack,
    Connack,
    Connect,
    Packet,
    Publish,
)
from starlingmq.wire.properties import Properties
from starlingmq.wire.reasons import Reason

VERSIONS = [3, 4, 5]


def only(events: list[Event]) -> Event:
    (event,) = events
    return event


def packets(data: bytes, version: int) -> list[Packet]:
    return [decode(first, whole, start, end, version) for first, whole, start, end in Frames().feed(data)]


class Line:
    """A client and the test in the place of its server; ``now`` is the only clock."""

    def __init__(self, options: ConnectOptions) -> None:
        self.state = ClientState(options)
        self.version = options.version
        self.now = 100.0

    def sent(self) -> list[Packet]:
        return packets(self.state.take(self.now), self.version)

    def receive(self, *answers: Packet) -> list[Event]:
        return self.state.receive(b"".join(encode(answer, self.version) for answer in answers), self.now)

    def connect(self, session_present: bool = False, properties: Properties | None = None) -> list[Event]:
        """From an open transport to CONNACK; CONNECT is taken, what follows it is left to ``sent``."""
        self.state.connection_made(self.now)
        (connect,) = self.sent()
        assert isinstance(connect, Connect)
        return self.receive(Connack(session_present, 0, properties))

    def reconnect(self, session_present: bool = True, properties: Properties | None = None) -> list[Packet]:
        """Lose the connection and open another one; returns the packets that the client sends at once."""
        self.state.connection_lost()
        self.connect(session_present, properties)
        return self.sent()


def line(version: int = 5, clean_start: bool = False, keep_alive: int = 0) -> Line:
    options = ConnectOptions(client_id="c", version=version, clean_start=clean_start, keep_alive=keep_alive)
    return Line(options)


class Server:
    """One session as the specification tells it: QoS 2 is held at PUBLISH and routed at PUBREL."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.known = False
        self.routed: list[bytes] = []
        self._held: dict[int, bytes] = {}
        self._completed: list[int] = []
        self._sending: dict[int, Packet] = {}  # PUBLISH until answered, then PUBREL
        self._next_id = 1

    def deliver(self, payload: bytes, qos: int) -> Packet:
        packet = Publish(b"t", payload, qos, packet_id=self._next_id)
        self._sending[self._next_id] = packet
        self._next_id += 1
        return packet

    def receive(self, packet: Packet) -> list[Packet]:
        if isinstance(packet, Connect):
            answer = [Connack(self.known, 0), *[_repeated(each) for each in self._sending.values()]]
            self.known = True
            return answer
        if isinstance(packet, Publish):
            return self._publish(packet)
        if isinstance(packet, Ack):
            return self._ack(packet)
        return []

    def _publish(self, packet: Publish) -> list[Packet]:
        if packet.qos == 0:
            self.routed.append(packet.payload)
            return []
        if packet.qos == 1:
            self.routed.append(packet.payload)
            return [Ack(PUBACK, packet.packet_id)]
        self._held.setdefault(packet.packet_id, packet.payload)
        return [Ack(PUBREC, packet.packet_id)]

    def _ack(self, packet: Ack) -> list[Packet]:
        if packet.type == PUBREL:
            held = self._held.pop(packet.packet_id, None)
            if held is not None:
                self.routed.append(held)
                self._completed.append(packet.packet_id)
                return [Ack(PUBCOMP, packet.packet_id)]
            known = packet.packet_id in self._completed or self.version < 5
            return [Ack(PUBCOMP, packet.packet_id, 0 if known else Reason.PACKET_IDENTIFIER_NOT_FOUND)]
        if packet.type == PUBREC:
            if packet.packet_id in self._sending:
                self._sending[packet.packet_id] = Ack(PUBREL, packet.packet_id)
            return [Ack(PUBREL, packet.packet_id)]
        self._sending.pop(packet.packet_id, None)  # PUBACK, PUBCOMP
        return []


def _repeated(packet: Packet) -> Packet:
    if isinstance(packet, Publish):
        return Publish(packet.topic, packet.payload, packet.qos, dup=True, packet_id=packet.packet_id)
    return packet


PASS, LOSE, DOUBLE = "pass", "lose", "double"
Fault = Callable[[int, Packet], str]
TRANSMISSIONS_MAX = 2000


class Journey:
    """Runs client and server until neither has anything more to say.

    ``fault`` decides over each transmission by its number: PASS it, DOUBLE it (not CONNECT and CONNACK: that is no
    stutter but another protocol), or LOSE it - and on a byte stream with it everything behind it: the connection.
    """

    def __init__(self, version: int, fault: Fault) -> None:
        self.client = line(version)
        self.server = Server(version)
        self.received: list[bytes] = []
        self.completed: list[int] = []
        self.transmissions = 0
        self._fault = fault
        self._to_server: list[Packet] = []
        self._to_client: list[Packet] = []

    def open(self) -> None:
        self.client.state.connection_made(self.client.now)

    def say(self, packet: Packet) -> None:
        """The server says something of its own accord."""
        self._to_client.append(packet)

    def run(self) -> None:
        while True:
            self._to_server += self.client.sent()
            if self._to_server:
                self._carry(self._to_server, self._arrive_at_server)
            elif self._to_client:
                self._carry(self._to_client, self._arrive_at_client)
            else:
                return
            assert self.transmissions < TRANSMISSIONS_MAX, "the two never come to an end"

    def _carry(self, queue: list[Packet], arrive: Callable[[Packet], None]) -> None:
        packet = queue.pop(0)
        verdict = self._fault(self.transmissions, packet)
        self.transmissions += 1
        if verdict == LOSE:
            self._to_server.clear()
            self._to_client.clear()
            self.client.state.connection_lost()
            self.open()
            return
        arrive(packet)
        if verdict == DOUBLE and not isinstance(packet, Connect | Connack):
            arrive(packet)

    def _arrive_at_server(self, packet: Packet) -> None:
        self._to_client += self.server.receive(packet)

    def _arrive_at_client(self, packet: Packet) -> None:
        self.take(self.client.receive(packet))

    def take(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Message):
                self.received.append(event.payload)
                self.client.state.taken(event)
            elif isinstance(event, Completed):
                self.completed.append(event.token)


__all__ = ["DOUBLE", "LOSE", "PASS", "PUBLISH", "Journey", "Line", "Server", "line", "packets"]
