"""Brokers with NATS bridges between them, in virtual time: the core as it ships at both ends of each relay.

A seed decides the layout, the pieces in which bytes arrive, how late, what clients do, and which connections are cut.
At the end all is healed and carried. Without a cut every message has then come exactly once wherever it belongs, and
every request has got every reply; with cuts, at most once.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Final

from tests.harness import FakeClient, World
from tests.nats.talk import LISTENER, Msg, NatsPeer, connect

from starlingmq.bridges.bridge_relay import BridgeCounts
from starlingmq.bridges.nats_relay import RUNNING, NatsLeg, NatsRelay
from starlingmq.bridges.subject_maps import SubjectMap
from starlingmq.config.bridges_section import BridgeTopic
from starlingmq.core.session.session import BRIDGE_LISTENER
from starlingmq.wire.nats_subjects import topic_of

SINGLE: Final = (
    BridgeTopic(filter="b/#", direction="both"),
    BridgeTopic(filter="o/+"),
    BridgeTopic(filter="o/#"),
    BridgeTopic(filter="i/#", direction="in", local_prefix="x/"),
    BridgeTopic(filter="$share/g/q/#", direction="both"),
    BridgeTopic(filter="s/#", direction="both"),
)
OUTWARDS: Final = (BridgeTopic(filter="b/#"),)
LAYOUTS: Final[dict[str, list[tuple[int, int, tuple[BridgeTopic, ...]]]]] = {
    "single": [(0, 1, SINGLE)],
    "facing": [(0, 1, OUTWARDS), (1, 0, OUTWARDS)],
    "ring": [(0, 1, OUTWARDS), (1, 2, OUTWARDS), (2, 0, OUTWARDS)],
}
STEPS: Final = 150
MOVES_MAX: Final = 1000  # after the steps, until all is carried
SUBJECTS: Final = ("b.a", "b.a.c", "b", "o.a", "o.a.b", "i.a", "q.a")
REQUESTS: Final = ("s.both", "s.here", "s.there", "s.none")


class End:
    """A connection of a relay to a broker, in pieces."""

    def __init__(self, world: World, listener: str) -> None:
        self.world = world
        client = world.state.open(listener, f"peer:{len(world.clients)}", world.now)
        if listener == BRIDGE_LISTENER:
            world.state.nats.open(client)
        self.fake = FakeClient(world, client, 0, "")
        world.clients.append(self.fake)
        world._by_client[client] = self.fake
        world.run()
        self.seen = 0
        self.sending = b""

    def subscriptions(self) -> int:
        return len(self.world.state.nats.clients[self.number].protocol_handler.subscriptions)  # type: ignore[union-attr]

    @property
    def number(self) -> int:
        """Of the connection."""
        return next(n for n, each in self.world.state.nats.clients.items() if each is self.fake.client)


class Link:
    """A bridge from one world to another, which begins again after each cut."""

    def __init__(self, near: World, far: World, topics: tuple[BridgeTopic, ...], number: int) -> None:
        self.worlds = near, far
        self.topics = topics
        self.number = number
        self.counts = BridgeCounts()
        self.relay: NatsRelay | None = None
        self.far_end: End | None = None
        self.near_end: End | None = None

    def begin(self) -> NatsRelay:
        near, far = self.worlds
        self.number += 100
        inbox = b"_INBOX.%d." % self.number
        self.relay = NatsRelay(
            NatsLeg(SubjectMap(self.topics, outwards=False), inbox, "unknown"),
            NatsLeg(SubjectMap(self.topics, outwards=True), inbox, near.state.ctx.site),
            lambda info: {"name": "bridge"},
            self._alone,
            False,
            60.0,
            self.counts,
            near.now,
        )
        self.far_end = End(far, LISTENER)
        self.near_end = None
        return self.relay

    def _alone(self, subject: bytes) -> bool:
        route = self.worlds[0].state.router.resolve(topic_of(subject))
        assert self.near_end is not None
        own = self.near_end.fake.client.session
        return all(each.session is own for each in route.subscriptions) and not route.groups

    def cut(self) -> None:
        for end in (self.far_end, self.near_end):
            if end is not None and not end.fake.closed:
                end.fake.drop()
        self.relay = self.far_end = self.near_end = None

    def step(self, random: Random, now: float) -> bool:
        """Carry a piece of what is on its way. False: nothing is."""
        relay = self.relay or self.begin()
        if relay.ended():
            raise AssertionError(relay.problem)
        if self.near_end is None and relay.joins():
            self.near_end = End(self.worlds[0], BRIDGE_LISTENER)
        moves = []
        for leg, end in ((relay.far, self.far_end), (relay.near, self.near_end)):
            if end is None:
                continue
            assert not end.fake.closed, end.world.notices
            end.sending += relay.take(leg)
            moves += [(leg, end, True)] if end.sending else []
            moves += [(leg, end, False)] if end.seen < len(end.fake.output) else []
        if not moves:
            return False
        leg, end, sends = random.choice(moves)
        if sends:
            size = random.choice([1, 7, 60, len(end.sending)])
            data, end.sending = end.sending[:size], end.sending[size:]
            end.fake.send(data)
        else:
            size = random.choice([1, 7, 60, len(end.fake.output)])
            data = end.fake.output[end.seen : end.seen + size]
            end.seen += len(data)
            relay.received(leg, data, now)
        return True


class BridgedWorld:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.layout = self.random.choice(list(LAYOUTS))
        self.cuts = self.random.random() < 0.4
        self.was_cut = False
        plan = LAYOUTS[self.layout]
        self.worlds = [World() for _ in range(len(plan) if len(plan) > 1 else 2)]
        for number, world in enumerate(self.worlds):
            world.state.ctx.site = f"site{number}"
            world.state.nats.info.server_id = f"N{number}"
        self.links = [
            Link(self.worlds[near], self.worlds[far], topics, number) for number, (near, far, topics) in enumerate(plan)
        ]
        self.readers = [connect(world) for world in self.worlds]
        self.workers = [connect(world) for world in self.worlds]
        self.askers = [connect(world) for world in self.worlds]
        self.services = [connect(world) for world in self.worlds]
        self.held: list[tuple[NatsPeer, Msg]] = []
        self.sent: list[tuple[int, str, bytes]] = []
        self.asked: list[tuple[int, str, str]] = []
        self.read: list[Counter[tuple[str, bytes]]] = [Counter() for _ in self.worlds]
        self.worked: Counter[bytes] = Counter()
        self.replied: Counter[tuple[str, bytes]] = Counter()
        for number, world in enumerate(self.worlds):
            self.readers[number].send("SUB b.> 1", "SUB b 2", "SUB o.> 3", "SUB i.> 4", "SUB x.> 5")
            self.workers[number].send("SUB q.> g 1")
            self.askers[number].send("SUB in.box.> 1")
            self.services[number].send("SUB s.both 1", f"SUB s.{'there' if number else 'here'} 2")
            world.run()

    # Steps

    def run(self) -> None:
        for link in self.links:
            self.settle(link)
        for _ in range(STEPS):
            self.random.choices([self.publish, self.ask, self.answer, self.carry, self.pass_time], [4, 2, 3, 14, 1])[
                0
            ]()
            if self.cuts and self.random.random() < 0.02:
                self.was_cut = True
                self.random.choice(self.links).cut()
        self.heal()
        self.check()

    def settle(self, link: Link) -> None:
        while link.step(self.random, self.worlds[0].now):
            pass
        assert link.relay is not None and link.relay.phase == RUNNING

    def heal(self) -> None:
        for _ in range(MOVES_MAX):
            if not self.carry() and not self.answer():
                return
        raise AssertionError("messages go round")

    def publish(self) -> None:
        side = self.random.randrange(len(self.worlds))
        subject = self.random.choice(SUBJECTS)
        payload = b"%d\r\nMSG %b" % (len(self.sent), b"\r\n" * self.random.randrange(3))
        self.sent.append((side, subject, payload))
        peer = self.askers[side]
        if self.random.random() < 0.5:
            peer.pub(subject, payload)
        else:
            peer.hpub(subject, "K: v", payload)

    def ask(self) -> None:
        if self.layout != "single":
            return
        side, subject = self.random.randrange(2), self.random.choice(REQUESTS)
        inbox = f"in.box.{len(self.asked)}"
        self.asked.append((side, subject, inbox))
        self.askers[side].pub(subject, b"?", inbox)

    def answer(self) -> bool:
        for peer in self.services:
            self.held += [(peer, each) for each in peer.heard() if isinstance(each, Msg)]
        if not self.held:
            return False
        peer, request = self.held.pop(self.random.randrange(len(self.held)))
        for word in (b"by", b"more by"):
            peer.pub(request.reply, b"%b %d" % (word, self.services.index(peer)))
        return True

    def carry(self) -> bool:
        moved = [link.step(self.random, self.worlds[0].now) for link in self.links]
        return any(moved)

    def pass_time(self, seconds: float = 0.5) -> None:
        for world in self.worlds:
            world.advance(seconds)
        for link in self.links:
            if link.relay is not None:
                link.relay.tick(self.worlds[0].now)

    # Checks

    def check(self) -> None:
        for number in range(len(self.worlds)):
            self.read[number].update(self.heard(self.readers[number]))
            self.worked.update(payload for _, payload in self.heard(self.workers[number]))
            for frame in self.askers[number].heard():
                assert isinstance(frame, Msg), frame
                self.replied[frame.subject, frame.payload or frame.headers.strip().encode()] += 1
        self.check_messages()
        self.check_requests()
        self.check_growth()

    def heard(self, peer: NatsPeer) -> list[tuple[str, bytes]]:
        frames = peer.heard()
        assert all(isinstance(frame, Msg) for frame in frames), frames
        return [(frame.subject, frame.payload) for frame in frames if isinstance(frame, Msg)]

    def check_messages(self) -> None:
        for number, read in enumerate(self.read):
            wanted = {
                (name, payload): side
                for side, subject, payload in self.sent
                if (name := self.name_at(number, side, subject))
            }
            assert set(read) <= set(wanted), set(read) - set(wanted)
            assert max(read.values(), default=1) == 1, f"twice: {read.most_common(3)}"
            for message, side in wanted.items():
                assert message in read or (self.was_cut and side != number), f"lost: {message}"
        jobs = [payload for side, subject, payload in self.sent if subject == "q.a"]
        if self.layout == "single":
            assert max(self.worked.values(), default=1) == 1 and set(self.worked) <= set(jobs)
            assert self.was_cut or len(self.worked) == len(jobs)

    def name_at(self, number: int, side: int, subject: str) -> str:
        """The name of what was published at ``side``, at another broker; "" if it does not get there."""
        first = subject[0]
        if number == side:
            return subject if first in "boi" else ""
        if first == "b":
            return subject
        if self.layout == "single" and ((first, number) == ("o", 1) or (first, number) == ("i", 0)):
            return subject if first == "o" else f"x.{subject}"
        return ""

    def check_requests(self) -> None:
        """``s.here`` is a service at the broker with the bridge, ``s.there`` one at the other."""
        for side, subject, inbox in self.asked:
            got = {payload: count for (name, payload), count in self.replied.items() if name == inbox}
            services = {"s.both": [0, 1], "s.here": [0], "s.there": [1], "s.none": []}[subject]
            by = [b"%b %d" % (word, number) for number in services for word in (b"by", b"more by")]
            assert set(got) <= {*by, b"503"}, (side, subject, got)
            assert all(count == 1 for count in got.values()), (side, subject, got)
            if (by or side == 1) and not self.was_cut:
                assert b"503" not in got, f"a service was contradicted: {side} {subject} {got}"
            if not self.was_cut:
                assert set(by) <= set(got), (side, subject, got)
                assert by or side == 1 or b"503" in got

    def check_growth(self) -> None:
        for _ in range(3):
            self.pass_time(60.0)
            self.heal()
        for link in self.links:
            assert link.relay is not None and link.far_end is not None and link.near_end is not None
            assert link.far_end.subscriptions() == len(link.relay.far.subjects.wanted)
            assert link.near_end.subscriptions() == len(link.relay.near.subjects.wanted) + 1
            assert link.relay.far.replies.due_at() == link.relay.near.replies.due_at() == float("inf")
