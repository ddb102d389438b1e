"""A node that publishes its filters, and the router of another node that applies the records one by one, beside all
filters kept exactly."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from unittest.mock import patch

from tests.planting import Together

from starlingmq.cluster.routes import filter_shape, filter_summaries
from starlingmq.cluster.routes.filter_summaries import FilterSummaries
from starlingmq.cluster.routes.own_routes import OwnRoutes
from starlingmq.cluster.routes.route_facts import RecoveredRoutes
from starlingmq.core.peers.peer_summaries import PeerSummaries
from starlingmq.core.router.filter_summary import is_summary, mask, mixed
from starlingmq.core.router.router import Router
from starlingmq.core.session.session import Session, Subscription

NODE = 2

SMALL = Together(patch.object(filter_shape, "STALE_MIN", 10), patch.object(filter_shape, "UNWANTED_MIN", 5))
"""Bounds that small fleets reach. Compiled code does not look at them."""


class Twin:
    """``wanted`` is the dumb side. After each record, all of it must be received."""

    def __init__(self, minimum: int) -> None:
        self.minimum = minimum
        self.wanted: dict[bytes, int] = {}
        self.table: dict[bytes, int] = {}
        self.records: list[tuple[bytes, int]] = []
        self.summaries = FilterSummaries(minimum)
        self.received = 0
        self.router = Router(1, 1 << 16, 1 << 10)
        self.session = Session("$node/2")
        self.session.node = NODE
        self.peer = PeerSummaries(self.router)

    def set(self, changes: Mapping[bytes, int]) -> None:
        """Changes filters, and lets everything that follows be done."""
        self.change(changes)
        self.work(100_000)

    def change(self, changes: Mapping[bytes, int]) -> None:
        gone = [filter for filter, value in changes.items() if value == 0]
        for filter in gone:
            self.wanted.pop(filter, None)
        added = {filter: value for filter, value in changes.items() if value != 0}
        records = self.summaries.translate(list(changes.items()), self.table)
        self.publish(records)
        self.wanted |= added
        self.check()

    def work(self, turns: int) -> None:
        for _ in range(turns):
            before = len(self.records)
            self.publish(self._step([]))
            if not self.summaries.pending() and len(self.records) == before:
                break

    def arrive(self, topics: list[bytes], received: int) -> None:
        """Messages without a subscriber have come from the other node."""
        self.received += received
        self.publish(self._step(topics))
        self.work(100_000)

    def _step(self, unwanted: list[bytes]) -> list[tuple[bytes, int]]:
        return self.summaries.step(self.table, unwanted, self.received)

    def restart(self) -> None:
        """This node begins again with the table that it has stored, and publishes the difference."""
        self.summaries = FilterSummaries(self.minimum)
        current = self.summaries.restart(dict(self.wanted), self.table)
        routes = OwnRoutes(1, 2, RecoveredRoutes(), 1 << 30, [])
        routes.table = dict(self.table)
        routes.restart(current)
        self.publish([(record.key, record.value) for record in routes._log])

    def publish(self, records: list[tuple[bytes, int]]) -> None:
        for number, (key, value) in enumerate(records):
            if self.table.get(key, 0) == value:
                continue
            if value:
                self.table[key] = value
            else:
                del self.table[key]
            self.records.append((key, value))
            self._apply(key, value)
            if number % 16 == 0:
                self.check(sample=8)
        self.check()

    def _apply(self, key: bytes, value: int) -> None:
        if is_summary(key):
            self.peer.route(self.session, key, value)
        elif key.startswith(b"$share/"):
            return
        elif value == 0:
            self.session.remove_subscription(key)
            self.router.unsubscribe(key, self.session)
        else:
            subscription = Subscription(self.session, key, 2, False, True, b"")
            subscription.durable = value == 2
            self.session.add_subscription(key, subscription)
            self.router.subscribe(subscription)

    def check(self, sample: int = 100) -> None:
        """All that is wanted is received, also where it comes from the cache of routes."""
        every = max(1, len(self.wanted) // sample)
        for filter in list(self.wanted)[len(self.records) % every :: every]:
            if not filter.startswith(b"$share/"):
                topic = filter.replace(b"+", b"x").replace(b"#", b"y/z")
                assert self.receives(topic), f"{filter!r} is not received after {len(self.records)} records"

    def receives(self, topic: bytes) -> bool:
        return len(self.router.resolve(topic).subscriptions) == 1

    def durable(self, topic: bytes) -> bool:
        return self.router.resolve(topic).subscriptions[0].durable


def shrink() -> None:
    """A fleet has become small, its few new chunks are made and not published, and a filter comes whose bits all other
    filters have set in them. (When a fleet grows, the old chunks have the bits of the new ones.)"""
    twin = Twin(40)
    twin.set({b"d/%d/c" % number: 1 for number in range(2000)})
    twin.change({b"d/%d/c" % number: 0 for number in range(100, 2000)})
    (shape,) = twin.summaries.shapes.values()
    while not shape._unpublished:
        twin.work(1)
        assert twin.summaries.pending(), "the chunks were never made again"
    for number in range(2000, 100_000):
        topic = b"d/%d/c" % number
        word = mixed(b"%d" % number)
        bits = shape._chunks.get(word & ((1 << shape.size) - 1), 0)
        if bits & mask(word) == mask(word) and not twin.receives(topic):
            twin.publish(twin.summaries.translate([(topic, 1)], twin.table))
            assert twin.receives(topic), f"{topic!r} is not received"
            return
    raise LookupError("no filter has only bits of others")


def live(seed: int) -> None:
    """Fleets of several shapes that grow, shrink and come back; restarts with what was stored."""
    random = Random(seed)
    with SMALL, patch.object(filter_summaries, "STEP", random.choice([1, 7, 50])):
        _live(random)


def _live(random: Random) -> None:
    twin = Twin(random.choice([4, 20, 60]))
    shapes = [b"d/%d/c", b"%d", b"d/%d/#", b"a/+/%d/b"]
    for _ in range(40):
        shape = random.choice(shapes)
        first, count = random.randrange(100), random.choice([1, 1, 5, 60])
        value = random.choice([0, 1, 2])
        chance = random.random()
        if chance < 0.9:
            twin.change({shape % number: value for number in range(first, first + count)})
            twin.work(random.choice([0, 1, 3]))
        elif chance < 0.95:
            twin.arrive([b"d/%d/c" % random.randrange(1000) for _ in range(20)], received=20)
        else:
            twin.restart()
    twin.work(100_000)
    assert not twin.summaries.pending(), "it never ends"
    if twin.minimum > 20:
        assert len(twin.table) <= len(twin.wanted) + 20
