"""A broker without a network: fake clients whose bytes go straight into the core, under a clock that tests move.

``World`` plays the shell: after every input it takes turns until nothing is pending, so whatever the broker had to say
is there when a call returns. Settings are given by name, wherever they live (``mqtt``, ``limits`` or the context).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from starlingmq.config.settings import LimitsConfig, MqttConfig
from starlingmq.core.broker import BrokerState
from starlingmq.core.context.ready import Event, HookAnswer, HookQuestion, Notice, Ready, Write
from starlingmq.core.messages.message import Message
from starlingmq.core.session.session import Client
from starlingmq.wire.mqtt import Connack, Connect, Disconnect, Packet, Will, decode, encode, frame_length
from starlingmq.wire.properties import MAXIMUM_PACKET_SIZE, Properties

P = TypeVar("P", bound=Packet)

TURNS_MAX = 100_000  # a broker that wants more turns than this for one input runs in a circle


def body_start(data: bytes) -> int:
    start = 2
    while data[start - 1] >= 0x80:
        start += 1
    return start


class FakeClient:
    """One end of a connection. What the broker writes is decoded when it is looked at."""

    def __init__(self, world: World, client: Client, version: int, client_id: str) -> None:
        self.world = world
        self.client = client
        self.version = version
        self.client_id = client_id
        self.max_packet = 0
        self.output = b""  # everything the broker wrote, since the connection was opened
        self.closed = False  # by the broker
        self.reading = True  # whether the broker reads what is sent
        self.connack = Connack(False, -1)
        self._seen = 0
        self._unread: list[bytes] = []  # sent while the broker does not read

    def send(self, packet: Packet | bytes) -> None:
        self.send_all([packet])

    def send_all(self, packets: Sequence[Packet | bytes]) -> None:
        """Send packets (or raw bytes) so that they arrive in one read."""
        data = b"".join(p if isinstance(p, bytes) else encode(p, self.version) for p in packets)
        if not self.reading:
            self._unread.append(data)
            return
        self.world.state.receive(self.client, data, self.world.now)
        self.world.run()

    def read_again(self) -> None:
        """The broker reads this connection again: hand over what was sent meanwhile."""
        unread, self._unread = self._unread, []
        for data in unread:
            if self.reading:
                self.world.state.receive(self.client, data, self.world.now)
            else:
                self._unread.append(data)

    def receive(self) -> list[Packet]:
        """The packets written since the last look."""
        packets: list[Packet] = []
        while self._seen < len(self.output):
            length = frame_length(self.output, self._seen)
            assert 0 < length <= len(self.output) - self._seen, "half a packet"
            frame = self.output[self._seen : self._seen + length]
            packets.append(decode(frame[0], frame, body_start(frame), length, self.version))
            self._seen += length
        return packets

    def expect(self, kind: type[P]) -> P:
        """The next packet, which must be of this class; later ones stay unread."""
        length = frame_length(self.output, self._seen) if self._seen < len(self.output) else 0
        assert length > 0, f"no {kind.__name__}: nothing more was written"
        frame = self.output[self._seen : self._seen + length]
        packet = decode(frame[0], frame, body_start(frame), length, self.version)
        assert isinstance(packet, kind), f"no {kind.__name__} but {packet!r}"
        self._seen += length
        return packet

    def drop(self) -> None:
        """Cut the connection without a DISCONNECT."""
        self.world.state.closed(self.client, self.world.now)
        self.world.run()

    def disconnect(self, reason: int = 0, properties: Properties | None = None) -> None:
        self.send(Disconnect(reason, properties))

    def block(self) -> None:
        """Take no more bytes: the transport's buffer is full."""
        self.world.state.blocked(self.client)

    def unblock(self) -> None:
        self.world.state.drained(self.client, self.world.now)
        self.world.run()


class World:
    """One broker, its clients, and the time (broker time in seconds)."""

    def __init__(self, start: float = 1_000_000.0, **settings: Any) -> None:
        mqtt = {name: settings.pop(name) for name in list(settings) if name in MqttConfig.__struct_fields__}
        limits = {name: settings.pop(name) for name in list(settings) if name in LimitsConfig.__struct_fields__}
        mqtt.setdefault("sys_interval", 0.0)
        self.now = start
        self.state = BrokerState(
            msgspec.convert(mqtt, MqttConfig), msgspec.convert(limits, LimitsConfig), start, b"s" * 32, "test"
        )
        for name, value in settings.items():
            assert hasattr(self.state.ctx, name), f"no such setting: {name}"
            setattr(self.state.ctx, name, value)
        self.clients: list[FakeClient] = []
        self.questions: list[HookQuestion] = []
        self.events: list[Event] = []
        self.notices: list[Notice] = []
        self.writes: list[Write] = []
        self._by_client: dict[Client, FakeClient] = {}

    def open(self, version: int = 5, client_id: str = "") -> FakeClient:
        """A connection that has not said anything yet."""
        client = self.state.open("mqtt://test", f"peer:{len(self.clients)}", self.now)
        fake = FakeClient(self, client, version, client_id)
        self.clients.append(fake)
        self._by_client[client] = fake
        self.run()
        return fake

    def connect(
        self,
        client_id: str = "c",
        version: int = 5,
        clean_start: bool = True,
        keep_alive: int = 0,
        username: str | None = None,
        password: bytes | None = None,
        will: Will | None = None,
        properties: Properties | None = None,
        answer: int | None = None,
    ) -> FakeClient:
        """A connection that has sent CONNECT and read its CONNACK; ``answer`` answers what is asked about it."""
        fake = self.open(version, client_id)
        limit = (properties or {}).get(MAXIMUM_PACKET_SIZE, 0)
        assert isinstance(limit, int)
        fake.max_packet = limit
        fake.send(Connect(version, client_id, clean_start, keep_alive, username, password, will, properties))
        if answer is not None:
            self.answer(self.question(), answer)
        self.wait_for_answer(fake)
        if not fake.closed:
            fake.connack = fake.expect(Connack)
        return fake

    def wait_for_answer(self, fake: FakeClient) -> None:
        """Let a CONNECT be answered that needs more than a turn."""

    # Hooks

    def question(self) -> HookQuestion:
        """The oldest question that is not answered yet."""
        assert self.questions, "the broker asked nothing"
        return self.questions.pop(0)

    def answer(
        self,
        question: HookQuestion,
        reason: int = 0,
        *,
        data: bytes | None = None,
        username: str | None = None,
        message: Message | None = None,
        reasons: list[int] | None = None,
    ) -> None:
        self.state.answer(question, HookAnswer(int(reason), data, username, message, reasons), self.now)
        self.run()

    def allow(self, question: HookQuestion) -> None:
        """Let what was asked about through as it is."""
        self.answer(question, message=question.message, reasons=[0] * len(question.requests))

    # Time and turns

    def advance(self, seconds: float) -> None:
        """Let time pass; everything that falls due meanwhile happens at its time."""
        end = self.now + seconds
        while True:
            wake = self.state.wake_at()
            if wake == 0.0 or wake > end:
                break
            self.now = max(self.now, wake)
            self.run()
        self.now = end
        self.run()

    def run(self) -> None:
        """Take turns until the broker has nothing more to do now."""
        for _ in range(TURNS_MAX):
            self.state.turn(self.now)
            ready = self.state.take_ready()
            self.questions += ready.questions
            self.events += ready.events
            self.notices += ready.notices
            self.writes += ready.writes
            self.carry_out(ready)
            ready.renew()
            more = self.state.ctx.ready
            if not (self.state.pending() or more.urgent() or more.questions):
                return
        raise AssertionError("the broker does not come to rest")

    def carry_out(self, ready: Ready) -> None:
        for client in ready.dirty:
            self._write(client)
        for client in ready.pause:
            fake = self._by_client.get(client)
            if fake is None:
                continue
            fake.reading = client.halted == 0
            if fake.reading:
                fake.read_again()

    def _write(self, client: Client) -> None:
        fake = self._by_client[client]
        client.dirty = False
        client.stored_from = -1
        if not fake.closed:
            data = b"".join(client.frames)
            client.bytes_out += len(data)
            fake.output += data
        client.frames.clear()
        if client.closing and not fake.closed:
            fake.closed = True
            self.state.closed(client, self.now)
        else:
            self.state.sent(client)

    # A look inside

    @property
    def dropped(self) -> dict[str, int]:
        return self.state.ctx.counters.dropped
