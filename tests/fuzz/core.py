"""The core under fire: mad clients of every kind, and two sane ones that must not notice.

An episode is one broker with settings drawn at random. After every step of a mad client the sane ones still exchange
messages, everything the broker wrote can be read, the books balance; at the end, when the mad clients are gone and
their sessions expired, nothing is left of them.
"""

from __future__ import annotations

from random import Random
from typing import Final

from starlingmq.core.context.ready import AUTHENTICATE, HookQuestion
from starlingmq.core.messages.message import Message
from starlingmq.core.session.connection import NEW, OPEN
from starlingmq.wire.mqtt import Ack, Packet, Publish, Suback, Subscribe, SubscribeRequest
from starlingmq.wire.packets import PUBACK, PUBCOMP, PUBREC, PUBREL
from starlingmq.wire.reasons import Reason
from tests.fuzz import talk
from tests.harness import FakeClient, World

STEPS: Final = 120
CONNECTIONS: Final = 6
EXCHANGE: Final = "sane/exchange"
EXPIRY: Final = 60  # seconds: no session of a mad client lives longer without a connection
SETTINGS: Final = {
    "max_qos": (2, 2, 2, 1, 0),
    "retain_available": (True, True, False),
    "max_inflight": (0, 1, 3),
    "max_mqueue_len": (1000, 10, 1),
    "mqueue_store_qos0": (True, False),
    "max_awaiting_rel": (0, 1, 3),
    "topic_alias_max": (16, 2, 0),
    "retry_interval": (30.0, 2.0, 0.0),
    "retained_batch": (500, 1),
    "max_packet_size": (1 << 20, 400),
    "write_buffer": (1 << 20, 200),
    "max_connections": (0, 0, 5),
    "subscriptions_per_client": (0, 3),
    "retained_messages": (0, 2),
    "topic_levels": (128, 2),
    "queue_bytes": (1 << 20, 500),
    "publisher_hold": (1.0, 0.0),
    "sys_interval": (0.0, 20.0),
    "recording": (False, True),
    "ask_publish": (False, False, True),
    "ask_subscribe": (False, False, True),
    "ask_authenticate": (False, False, True),
}


def run(seed: int) -> int:
    """One episode; how many steps. Raises AssertionError, or whatever the core let through."""
    episode = Episode(seed)
    for _ in range(STEPS):
        episode.step()
    episode.end()
    return STEPS


class Episode:
    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        settings = {name: rng.choice(values) for name, values in SETTINGS.items()}
        asked = {name: settings.pop(name) for name in list(settings) if name.startswith("ask_")}
        self.world = World(session_expiry_v3=EXPIRY, max_session_expiry=EXPIRY, **settings)
        self.state = self.world.state
        self.state.ctx.want_events = True
        self.sane = [self.world.connect(f"sane {version}", version, answer=None) for version in (4, 5)]
        for name, value in asked.items():
            setattr(self.state.ctx, name, value)
        self.mad: list[FakeClient] = []
        self.blocked: set[int] = set()  # their indexes in ``world.clients``
        self.cut: set[int] = set()
        self.waiting: list[HookQuestion] = []  # about mad clients, not yet answered
        self.sent = 0
        for client in self.sane:
            client.send(Subscribe(1, [SubscribeRequest(EXCHANGE.encode(), 2)]))
            self.answer_for_the_sane()
            assert client.expect(Suback).reasons[0] < 3

    # Actions

    def step(self) -> None:
        rng = self.rng
        self.mad = [client for client in self.mad if not client.closed and not client.client.gone]
        kind = rng.random()
        if not self.mad or (kind < 0.1 and len(self.mad) < CONNECTIONS):
            self.begin()
        elif kind < 0.75:
            self.say(rng.choice(self.mad))
        elif kind < 0.80:
            self.acknowledge(rng.choice(self.mad))
        elif kind < 0.86:
            self.answer_something()
        elif kind < 0.90:
            self.block_or_unblock(rng.choice(self.mad))
        elif kind < 0.94:
            self.drop(rng.choice(self.mad))
        else:
            self.world.advance(rng.choice((0.1, 1.0, 2.0, 30.0, 400.0)))
        self.answer_for_the_sane()
        self.check()
        if rng.random() < 0.3:
            self.exchange()

    def begin(self) -> None:
        version = talk.version(self.rng)
        client = self.world.open(version)
        self.mad.append(client)
        self.send(client, talk.opening(self.rng, version))

    def say(self, client: FakeClient) -> None:
        number = self.rng.choice((1, 1, 2, 5))
        self.send(client, b"".join(talk.anything(self.rng, client.version) for _ in range(number)))

    def send(self, client: FakeClient, data: bytes) -> None:
        for piece in talk.pieces(self.rng, data):
            client.send(piece)

    def acknowledge(self, client: FakeClient) -> None:
        """Be well-behaved for a moment: answer every message as its QoS asks."""
        for packet in self.read(client):
            if isinstance(packet, Publish) and packet.qos:
                client.send(Ack(PUBACK if packet.qos == 1 else PUBREC, packet.packet_id))
            elif isinstance(packet, Ack) and packet.type in (PUBREC, PUBREL):
                client.send(Ack(PUBREL if packet.type == PUBREC else PUBCOMP, packet.packet_id))

    def read(self, client: FakeClient) -> list[Packet]:
        """The broker's packets, in the version that the client's CONNECT named, if it came that far."""
        if client.client.state != NEW:
            client.version = client.client.version
        return client.receive()

    def block_or_unblock(self, client: FakeClient) -> None:
        index = self.world.clients.index(client)
        if index in self.blocked:
            self.blocked.discard(index)
            client.unblock()
        else:
            self.blocked.add(index)
            client.block()

    def drop(self, client: FakeClient) -> None:
        self.cut.add(self.world.clients.index(client))
        client.drop()

    def answer_something(self) -> None:
        self.collect_questions()
        if not self.waiting:
            return
        question = self.waiting.pop(self.rng.randrange(len(self.waiting)))
        reason = self.rng.choice((0, 0, 0, Reason.NOT_AUTHORIZED, Reason.IMPLEMENTATION_SPECIFIC_ERROR))
        if question.kind == AUTHENTICATE:
            if question.method and self.rng.random() < 0.3:
                reason = Reason.CONTINUE_AUTHENTICATION
            self.world.answer(question, reason, data=self.rng.choice((None, b"more")))
        else:
            reasons = [self.rng.choice((0, Reason.NOT_AUTHORIZED)) for _ in question.requests]
            self.world.answer(question, reason, message=self.rewritten(question.message), reasons=reasons)

    def rewritten(self, message: Message | None) -> Message | None:
        """A hook's result for a message: itself, nothing, or a message to another topic."""
        if message is None or self.rng.random() < 0.2:
            return None
        topic = message.topic if self.rng.random() < 0.7 else self.rng.choice((b"f/b", b"no/#", b"$SYS/x"))
        return Message(topic, message.payload, message.qos, message.retain, b"", 0.0, message.publisher, self.world.now)

    # The sane clients

    def collect_questions(self) -> None:
        self.waiting += self.world.questions
        self.world.questions.clear()

    def answer_for_the_sane(self) -> None:
        self.collect_questions()
        theirs = {client.client for client in self.sane}
        while asked := [question for question in self.waiting if question.client in theirs]:
            self.waiting.remove(asked[0])
            self.world.allow(asked[0])
            self.collect_questions()

    def exchange(self) -> None:
        """One publishes, both receive: exactly that, with the whole handshake."""
        qos = self.rng.randrange(self.state.ctx.max_qos + 1)
        self.sent += 1
        sender, payload = self.rng.choice(self.sane), b"%d" % self.sent
        sender.send(Publish(EXCHANGE.encode(), payload, qos, packet_id=self.sent if qos else 0))
        self.settle(sender)
        answers: list[Ack] = []
        if qos == 2:
            self.take(sender, answers)
            assert answers == [Ack(PUBREC, self.sent)], answers
            answers.clear()
            sender.send(Ack(PUBREL, self.sent))
            self.settle(sender)
        got = [self.take(client, answers if client is sender else []) for client in self.sane]
        assert got == [[payload], [payload]], got
        assert answers == ([Ack(PUBACK if qos == 1 else PUBCOMP, self.sent)] if qos else []), answers

    def settle(self, sender: FakeClient) -> None:
        """Answer what is asked about the sane; a publisher may be held back for a slow mad client, but not for long."""
        self.answer_for_the_sane()
        if not sender.reading:
            self.world.advance(self.state.ctx.hold_seconds + 0.5)
            self.answer_for_the_sane()
        assert sender.reading, "a publisher is held for longer than publisher_hold"

    def take(self, client: FakeClient, answers: list[Ack]) -> list[bytes]:
        """The payloads that came, each acknowledged; other acknowledgements go to ``answers``."""
        got: list[bytes] = []
        assert not client.closed, "a sane client was closed"
        packets = client.receive()
        for packet in packets:
            if isinstance(packet, Publish):
                got.append(packet.payload)
                if packet.qos:
                    client.send(Ack(PUBACK if packet.qos == 1 else PUBREC, packet.packet_id))
                if packet.qos == 2:
                    packets += client.receive()
            elif isinstance(packet, Ack) and packet.type == PUBREL:
                client.send(Ack(PUBCOMP, packet.packet_id))
            else:
                assert isinstance(packet, Ack), packet
                answers.append(packet)
        return got

    # Invariants

    def check(self) -> None:
        world, ctx = self.world, self.state.ctx
        ended = []
        for index, client in enumerate(world.clients):
            if client.client.session is None and client.client.auth_method:
                continue  # it may have said DISCONNECT in the midst of its authentication: that is no event
            if client.closed and index not in self.cut:
                ended.append(client.client.peer)
            elif not client.closed:
                self.read(client)  # whatever was written can be read
        noticed = [notice.peer for notice in world.notices if notice.closing]
        assert len(noticed) == len(set(noticed)), "a connection was ended twice"
        assert sum(ctx.counters.errors.values()) == len(noticed)
        polite = sum(event.kind == "disconnected" and event.detail == "disconnect" for event in world.events)
        without_reason = len(set(ended) - set(noticed))
        assert without_reason <= polite, f"{without_reason} connections ended without a reason, {polite} by DISCONNECT"
        alive = [client.client for client in world.clients if not client.closed and not client.client.gone]
        assert ctx.counters.connections_open == len(alive)
        connected = [session for session in ctx.sessions.values() if session.client is not None]
        assert ctx.counters.clients_connected == len(connected)
        assert all(session.client.state == OPEN for session in connected if session.client is not None)
        self.check_bounds()

    def check_bounds(self) -> None:
        ctx = self.state.ctx
        assert len(ctx.sessions) <= len(talk.NAMES) + 400
        for session in ctx.sessions.values():
            if (
                session.queue is not None and not session.is_group_queue
            ):  # the waiting messages of a group have another bound
                assert len(session.queue) <= (ctx.max_queue or len(session.queue))
                assert session.queue.bytes <= ctx.max_queue_bytes
            if session.window is not None and session.client is not None:
                assert len(session.window.entries) <= max(session.client.window_limit, 65535)
        for client in self.mad:
            left = len(client.client.rest) + sum(map(len, client.client.chunks or ()))
            assert left <= ctx.max_packet + 400_000

    # The end

    def end(self) -> None:
        """The mad clients go; when their sessions have expired, nothing of them is left."""
        for client in self.mad:
            if not client.closed:
                self.drop(client)
        while True:
            self.answer_for_the_sane()
            if not self.waiting:
                break
            self.world.allow(self.waiting.pop())
        self.world.advance(EXPIRY + 400.0)
        self.answer_for_the_sane()
        while self.waiting:  # wills
            self.world.allow(self.waiting.pop())
            self.collect_questions()
        self.world.advance(1000.0)
        self.check()
        self.exchange()
        ctx = self.state.ctx
        assert sorted(ctx.sessions) == sorted(client.client_id for client in self.sane), list(ctx.sessions)
        assert ctx.counters.connections_open == 2
        assert self.state.router.tree.filters() == [EXCHANGE.encode()]
        assert not self.state.ending.waiting
        assert not self.state.publishing._asked
        assert not self.state.subscribing._asked
        assert not ctx.jobs
        assert not ctx.resumable
        assert not ctx.resumable_last
