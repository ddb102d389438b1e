"""A process of ``tests.cluster.copies_world``: the real state of copies, and a model of storage and of the network."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from tests.cluster.copies_disk import Disk, Log
from tests.sim.etcd_shell import EtcdShell
from tests.sim.schedule import Schedule
from tests.sim.trace import Trace

from starlingmq.cluster.copies.copy_registry import StoringNode
from starlingmq.cluster.copies.copy_roles import CloseCopy, CopyRoles, OpenCopy, Require
from starlingmq.cluster.copies.copy_server import CopySettings
from starlingmq.cluster.etcd.election import Election
from starlingmq.cluster.etcd.etcd_requests import Answer

BATCH = 7  # items in one message of a follower that catches up


class Surroundings(Protocol):
    """The world of a process."""

    random: Random
    schedule: Schedule
    trace: Trace
    etcd: EtcdShell
    settings: CopySettings
    nodes: dict[str, ModelNode]
    suspected_until: dict[str, float]
    books: Any

    def linked(self, one: str, other: str) -> bool: ...
    def hears(self, one: str, other: str) -> bool: ...
    def warn(self, name: str, notices: list[str]) -> None: ...


class Feed:
    """A connection from a server to a follower. Messages arrive in order, until it is closed."""

    def __init__(self, server: CopyProcess, follower: CopyProcess, origin: str, generation: int) -> None:
        self.server = server
        self.follower = follower
        self.origin = origin
        self.generation = generation
        self.open = True
        self.live = False
        self.sent = -1  # items that were sent; -1: it has not begun
        self._due = {server: 0.0, follower: 0.0}

    def send(self, to: CopyProcess, extra: float, call: Callable[..., None], *arguments: object) -> None:
        world = self.server.world
        when = world.schedule.now + world.random.uniform(0.0005, 0.01) + extra
        self._due[to] = max(when, self._due[to])
        world.schedule.at(self._due[to], self._arrive, to, call, arguments)

    def _arrive(self, to: CopyProcess, call: Callable[..., None], arguments: tuple[object, ...]) -> None:
        if not self.open or not to.running:
            return
        if to.stalled_until > to.now:
            to.world.schedule.at(to.stalled_until, self._arrive, to, call, arguments)
        else:
            call(self, *arguments)
            to.turn()


class Served:
    """An origin that a process serves. ``waiting``: by item, its index and the client that waits."""

    def __init__(self, origin: str, generation: int, log: Log) -> None:
        self.origin = origin
        self.generation = generation
        self.log = log
        self.index = {item: number for number, item in enumerate(log.items)}
        self.required: tuple[str, ...] = ()
        self.followers: tuple[str, ...] = ()
        self.refusal = ""
        self.serving = False
        self.stored: dict[str, int] = {}
        self.waiting: dict[int, Callable[[], None]] = {}


class CopyProcess:
    def __init__(self, world: Surroundings, node: ModelNode, incarnation: int) -> None:
        self.world = world
        self.node = node
        self.name = node.name
        self.incarnation = incarnation
        self.running = True
        self.stalled_until = 0.0
        self.served: dict[str, Served] = {}
        self.feeds: dict[tuple[str, str], Feed] = {}
        self.followed: dict[str, Feed] = {}
        self._published: list[tuple[str, int, Callable[[], None]]] = []
        self.silent_since: dict[str, float] = {}
        self.election = Election(b"/starlingmq/c/leader")
        me = StoringNode(self.name, incarnation, node.machine, node.zone)
        self.copies = CopyRoles("c", me, tuple(node.disk.incarnations), world.settings, self.written)
        presence = self.copies.presence
        presence.is_gone, presence.is_heard = self.is_gone, self.is_heard
        presence.is_leading = lambda: self.election.leading
        node.disk.incarnations.add(incarnation)
        self.etcd = world.etcd.node(self.name, self.answered)
        self.election.campaign(b"%s/%d" % (self.name.encode(), incarnation), self.now)
        self.turn()

    @property
    def now(self) -> float:
        return self.world.schedule.now

    def stop(self) -> None:
        self.running = False
        self.etcd.close()
        for feed in [*self.feeds.values(), *self.followed.values()]:
            feed.open = False

    # Other nodes, as it hears them

    def look_around(self) -> None:
        for name in self.world.nodes:
            if self.world.hears(self.name, name):
                self.silent_since.pop(name, None)
            else:
                self.silent_since.setdefault(name, self.now)

    def is_heard(self, name: str) -> bool:
        return name == self.name or self.world.hears(self.name, name)

    def is_gone(self, name: str) -> bool:
        if name == self.name:
            return False
        if self.world.suspected_until.get(name, 0.0) > self.now:
            return True
        if self.is_heard(name):
            return False
        if name not in self.copies.registry.nodes:
            return True
        here = [each for each in self.world.nodes if self.is_heard(each)]
        agreed = not any(self.world.hears(each, name) for each in here) and len(here) > len(self.world.nodes) // 2
        return agreed and self.now >= self.silent_since.get(name, self.now) + 2.5

    def written(self, origin: str) -> int:
        return len(self.served[origin].log.items) if origin in self.served else 0

    # Turns

    def answered(self, answer: Answer) -> None:
        if not self.running:
            return
        if self.stalled_until > self.now:
            self.world.schedule.at(self.stalled_until, self.answered, answer)
            return
        self.copies.answered(answer, self.now)
        self.election.answered(answer, self.now)
        self.turn()

    def turn(self) -> None:
        if not self.running or self.stalled_until > self.now:
            return
        self.election.tick(self.now)
        self.copies.turn(self.now)
        published, self._published = self._published, []
        for origin, item, acknowledge in published:  # these are still acknowledged as the last orders say
            self._commit(origin, item, acknowledge)
        for order in self.copies.take_orders():
            self.world.trace.note(self.name, str(order))
            if isinstance(order, OpenCopy):
                delay = self.world.random.choice([0.0, 0.01, 0.3])
                self.world.schedule.after(delay, self._open, order.origin, order.generation)
            elif isinstance(order, CloseCopy):
                self._close(order.origin)
            elif isinstance(order, Require):
                self._require(order)
            else:
                raise AssertionError("no node is forgotten in these worlds")
        if self.copies.settled:
            self.node.disk.incarnations = {self.incarnation}
        for request in [*self.copies.take_requests(self.now), *self.election.take_requests()]:
            self.etcd.request(request)
        self.world.warn(self.name, self.copies.take_notices())

    def _open(self, origin: str, generation: int) -> None:
        if not self.running:
            return
        self.copies.opened(origin, generation, self.now)
        server = self.copies.servers.get(origin)
        if server is None or server.record.generation != generation or origin in self.served:
            return
        log = self.node.disk.log(origin)
        log.begin(generation)
        self.served[origin] = Served(origin, generation, log)
        self.world.books.opened(self, origin, generation)
        self.turn()

    def _close(self, origin: str) -> None:
        self.served.pop(origin, None)
        for key in [key for key in self.feeds if key[0] == origin]:
            self.feeds.pop(key).open = False

    def _require(self, order: Require) -> None:
        served = self.served[order.origin]
        served.required, served.followers = order.nodes, order.followers
        if order.serving and not served.serving:
            self.world.books.serves(self, served)
        served.refusal, served.serving = order.refusal, order.serving
        for feed in [feed for (origin, name), feed in self.feeds.items() if origin == order.origin]:
            if feed.open and feed.follower.name not in order.followers:
                self._lose(feed)
        if served.refusal:
            served.waiting.clear()
        self._release(served)

    # Clients

    def publish(self, origin: str, item: int, acknowledge: Callable[[], None]) -> bool:
        """Takes an item of a client in the next turn; False: it is refused."""
        served = self.served.get(origin)
        if served is None or not self.running or self.stalled_until > self.now:
            return False
        if served.refusal or not served.serving:
            return False
        self._published.append((origin, item, acknowledge))
        return True

    def _commit(self, origin: str, item: int, acknowledge: Callable[[], None]) -> None:
        served = self.served.get(origin)
        if served is None:
            return
        if item not in served.index:
            served.index[item] = len(served.log.items)
            served.log.items.append(item)
            self._feed(served)
        served.waiting[item] = acknowledge
        self._release(served)

    def _release(self, served: Served) -> None:
        """Acknowledges what is copied."""
        copied = min([served.stored.get(name, 0) for name in served.required], default=len(served.log.items))
        for item in [item for item in served.waiting if served.index[item] < copied]:
            acknowledge = served.waiting.pop(item)
            self.world.books.acknowledged(self, served, item)
            acknowledge()

    # Feeds

    def connect(self) -> None:
        """Opens a feed to each follower that has none."""
        for served in list(self.served.values()):
            for name in served.followers:
                follower = self.world.nodes[name].process
                feed = self.feeds.get((served.origin, name))
                if feed is not None and feed.open and self.world.linked(self.name, name):
                    continue
                if feed is not None:
                    self._lose(feed)
                if follower is None or not self.world.linked(self.name, name):
                    continue
                feed = self.feeds[served.origin, name] = Feed(self, follower, served.origin, served.generation)
                feed.send(follower, 0.0, follower.greeted)

    def _lose(self, feed: Feed) -> None:
        feed.open = False
        self.copies.detached(feed.origin, feed.follower.name, self.now)

    def positioned(self, feed: Feed, incarnation: int, starts: list[tuple[int, int]], end: int) -> None:
        """The follower has told how much it has."""
        served = self.served[feed.origin]
        cut = served.log.cut(starts, end)
        if not self.copies.attached(feed.origin, feed.follower.name, incarnation, cut < end, self.now):
            feed.open = False
            return
        served.stored[feed.follower.name] = 0
        feed.sent = cut
        feed.send(feed.follower, 0.0, feed.follower.begun, list(served.log.starts), cut)
        self._feed(served)

    def _feed(self, served: Served) -> None:
        for feed in [feed for (origin, _), feed in self.feeds.items() if origin == served.origin]:
            items = served.log.items
            if feed.open and feed.sent >= 0 and (feed.live or feed.sent == len(items)):
                if feed.sent < len(items):
                    feed.send(feed.follower, 0.0, feed.follower.grouped, feed.sent, items[feed.sent :])
                    feed.sent = len(items)
                if not feed.live:
                    feed.live = True
                    self.copies.caught_up(feed.origin, feed.follower.name, self.now)
            elif feed.open and feed.sent >= 0:
                piece = items[feed.sent : feed.sent + BATCH]
                feed.send(feed.follower, 0.02, feed.follower.grouped, feed.sent, piece)
                feed.sent += len(piece)

    def confirmed(self, feed: Feed, end: int) -> None:
        """The follower has stored all up to there."""
        served = self.served.get(feed.origin)
        if served is None or self.feeds.get((feed.origin, feed.follower.name)) is not feed:
            return
        served.stored[feed.follower.name] = end
        self.copies.stored(feed.origin, feed.follower.name, end)
        self._feed(served)
        self._release(served)

    # As a follower

    def _accepts(self, feed: Feed) -> bool:
        if self.copies.accepts(feed.origin, feed.server.name, feed.generation):
            return True
        feed.open = False
        return False

    def greeted(self, feed: Feed) -> None:
        if self._accepts(feed):
            self.copies.follows(feed.origin, feed.generation)
            self.followed[feed.origin] = feed
            log = self.node.disk.log(feed.origin)
            feed.send(feed.server, 0.0, feed.server.positioned, self.incarnation, list(log.starts), len(log.items))

    def begun(self, feed: Feed, starts: list[tuple[int, int]], cut: int) -> None:
        if self._accepts(feed):
            self.node.disk.log(feed.origin).follow(feed.generation, starts, cut)
            feed.send(feed.server, 0.0, feed.server.confirmed, cut)

    def grouped(self, feed: Feed, start: int, items: list[int]) -> None:
        lag = self.node.lag
        self.world.schedule.after(lag * self.world.random.random(), self._store, feed, start, items)

    def _store(self, feed: Feed, start: int, items: list[int]) -> None:
        if not self.running or not feed.open:
            return
        log = self.node.disk.log(feed.origin)
        if start > len(log.items) and self._accepts(feed):  # an earlier group is still being stored
            self.world.schedule.after(0.05, self._store, feed, start, items)
        elif self._accepts(feed):
            assert start == len(log.items), f"{self.name}: {feed.origin} continues at {start}, not at {len(log.items)}"
            log.items += items
            feed.send(feed.server, 0.0, feed.server.confirmed, len(log.items))


class ModelNode:
    """``damaged``: its disk was lost, or put back to an earlier state, after it was in step in this incarnation."""

    def __init__(self, name: str, machine: str, zone: str) -> None:
        self.name = name
        self.machine = machine
        self.zone = zone
        self.disk = Disk()
        self.snapshots: list[Disk] = []
        self.process: CopyProcess | None = None
        self.incarnation = 0
        self.damaged = 0
        self.lag = 0.0
        self.lost = False
