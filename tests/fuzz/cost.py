"""Searches for the most expensive bytes that a client can send: each episode changes an attack at random, and keeps the
change if one call of the core took longer.

No call of the core may take long, whatever it was given: then another client's ping waits for one call at most.
"""

from __future__ import annotations

import itertools
from random import Random
from time import thread_time
from typing import Any, Final

from starlingmq import compiled
from starlingmq.core.limits.access import EVERY_PUBLISH, PUBLISH, SUBSCRIBE, Grant, Rights
from starlingmq.wire.mqtt import Publish, Subscribe, SubscribeRequest, Unsubscribe, encode
from starlingmq.wire.properties import SUBSCRIPTION_IDENTIFIER, USER_PROPERTY, Properties, encode_property_bytes
from tests.harness import FakeClient, World
from tests.nats.talk import NatsPeer

ROUNDS: Final = 4  # changes of one attack
READ: Final = 256 * 1024  # bytes that arrive together at most
LONGEST_MS: Final = 50.0 if compiled() else 300.0
KINDS: Final = ("search", "properties", "headers", "filters", "unsubscribe", "retained", "groups", "sids", "rules")


class Clocked:
    """A BrokerState whose calls are timed, in CPU time of this thread."""

    def __init__(self, state: Any) -> None:
        self.state = state
        self.longest = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.state, name)

    def _timed(self, name: str, *args: Any) -> None:
        began = thread_time()
        getattr(self.state, name)(*args)
        self.longest = max(self.longest, thread_time() - began)

    def receive(self, client: Any, data: bytes, now: float) -> None:
        self._timed("receive", client, data, now)

    def turn(self, now: float) -> None:
        self._timed("turn", now)


class Attack:
    """``count`` is the number of the things that the kind is about, ``levels`` and ``size`` are those of its topics."""

    def __init__(self, kind: str, count: int, levels: int, size: int) -> None:
        self.kind = kind
        self.count = count
        self.levels = levels
        self.size = size

    def __repr__(self) -> str:
        return f"{self.kind}: {self.count} of {self.levels} levels, {self.size} bytes each"

    def changed(self, rng: Random) -> Attack:
        def moved(value: int, most: int) -> int:
            return max(1, min(most, round(value * rng.choice((0.25, 0.5, 1, 1, 2, 4)))))

        return Attack(self.kind, moved(self.count, 50_000), moved(self.levels, 250), moved(self.size, 60_000))

    def take(self, rng: Random) -> float:
        """Attack a broker. Returns the longest call in milliseconds."""
        world = World(mqueue_store_qos0=False)
        clocked = Clocked(world.state)
        client = world.connect("attacker")
        world.state = clocked  # type: ignore[assignment]
        for data in getattr(self, f"_{self.kind}")(world, client, rng):
            for first in range(0, len(data), READ):
                client.send(data[first : first + READ])
        client.send(b"\xc0\x00")
        assert client.closed or client.output.endswith(b"\xd0\x00")
        return clocked.longest * 1000.0

    def _topic(self, number: int) -> bytes:
        level = b"x" * min(self.size // self.levels, 200)
        return b"/".join([level] * (self.levels - 1) + [b"%d" % number])[:60_000]

    def _search(self, world: World, client: FakeClient, rng: Random) -> list[bytes]:
        levels = min(self.levels, 16)
        patterns = itertools.islice(itertools.product((b"a", b"+"), repeat=levels), min(self.count, 3000))
        filters = [SubscribeRequest(b"/".join(parts) + b"/#") for parts in patterns]
        identifier: Properties = {SUBSCRIPTION_IDENTIFIER: [268_435_455]}
        subscribe = encode(Subscribe(1, filters, identifier), 5)
        return [subscribe, *(encode(Publish(b"a/" * levels + b"%d" % number), 5) for number in range(20))]

    def _properties(self, world: World, client: FakeClient, rng: Random) -> list[bytes]:
        pair = encode_property_bytes({USER_PROPERTY: [("", "x" * (self.size % 100))]})
        return [encode(Publish(b"t", properties=pair * min(self.count, 900_000 // len(pair))), 5)] * 3

    def _headers(self, world: World, client: FakeClient, rng: Random) -> list[bytes]:
        peer = NatsPeer(world)
        peer.send('CONNECT {"verbose":false,"headers":true}', "SUB > 1")
        block = b"NATS/1.0\r\n" + (b"a:" + b" " * (self.size % 50) + b"\r\n") * min(self.count, 19_000) + b"\r\n"
        for _ in range(3):
            peer.send(b"HPUB t %d %d\r\n%b" % (len(block), len(block), block))
        return []

    def _filters(self, world: World, client: FakeClient, rng: Random) -> list[bytes]:
        filters = [SubscribeRequest(b"%b/%d" % (self._topic(0)[:20], number)) for number in range(self.count)]
        return [encode(Subscribe(1, filters), 5)]

    def _unsubscribe(self, world: World, client: FakeClient, rng: Random) -> list[bytes]:
        return [encode(Unsubscribe(1, [b"+/" * min(self.levels, 7) + b"#"] * self.count), 5)]

    def _retained(self, world: World, client: FakeClient, rng: Random) -> list[bytes]:
        data = [encode(Publish(self._topic(number), b"1", retain=True), 5) for number in range(min(self.count, 300))]
        wanted = [SubscribeRequest(b"+/" * (self.levels - 1) + b"%d" % number) for number in range(0, 200, 2)]
        return [*data, encode(Subscribe(1, wanted), 5)]

    def _groups(self, world: World, client: FakeClient, rng: Random) -> list[bytes]:
        filters = [SubscribeRequest(b"$share/g%d/t" % number) for number in range(min(self.count, 3000))]
        return [encode(Subscribe(1, filters), 5), *([encode(Publish(b"t", b"1"), 5)] * 5)]

    def _sids(self, world: World, client: FakeClient, rng: Random) -> list[bytes]:
        peer = NatsPeer(world)
        peer.send('CONNECT {"verbose":false}', *(f"SUB t {number}" for number in range(min(self.count, 3000))))
        return [encode(Publish(b"t", b"1"), 5)] * 5

    def _rules(self, world: World, client: FakeClient, rng: Random) -> list[bytes]:
        levels: list[bytes | None] = [None] * min(self.levels, 20)
        grants = [
            Grant(True, PUBLISH | SUBSCRIBE, EVERY_PUBLISH, [*levels, b"%d" % number], False, b"")
            for number in range(min(self.count, 3000))
        ]
        world.state.ctx.give_rights(client.client, Rights(grants, False))
        topics = [b"a/" * len(levels) + b"x%d" % number for number in range(50)]
        return [encode(Publish(topic), 5) for topic in topics] + [
            encode(Subscribe(1, [SubscribeRequest(topic) for topic in topics]), 5)
        ]


def run(seed: int) -> int:
    """One episode: a search for the most expensive attack of one kind. Returns the number of attacks."""
    rng = Random(seed)
    best = Attack(rng.choice(KINDS), rng.choice((10, 1000, 20_000)), rng.choice((2, 10, 100)), rng.choice((20, 5000)))
    most = check(best, rng)
    for _ in range(ROUNDS):
        attack = best.changed(rng)
        took = check(attack, rng)
        if took > most:
            most, best = took, attack
    return ROUNDS + 1


def check(attack: Attack, rng: Random) -> float:
    took = attack.take(rng)
    if took > LONGEST_MS:  # once more, to exclude others that use the same caches of the processor
        took = min(took, attack.take(rng))
    assert took <= LONGEST_MS, f"{attack}: a call took {took:.0f} ms, at most {LONGEST_MS:.0f} ms are allowed"
    return took
