"""The worlds of ``tests.sim`` with subscribers that roam: they return at a random node each time, now and then without
having disconnected; ``python -m tests.cluster.takeover_world --seeds N``.

The invariants beside those of every world:

- where nothing fails, no session is ever lost and nothing comes out of order;
- where something fails, a client may be told session present 0 because the owner cannot be reached; messages
  acknowledged for the lost session arrive all the same, once; those sent at QoS 2 do not come again in the next
session;
- at the end each client id has one session, at one node, which has the only key of it in etcd; no migration is under
  way, and a client that connects to another node then finds its session.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from random import Random

from tests.cluster import seeded
from tests.cluster.owner_store import owner_keys
from tests.sim.checkers import Books, Promise, Sent, matches
from tests.sim.clients import Publisher, Subscriber
from tests.sim.node import Node
from tests.sim.world import LIVENESS_MAX, World

from starlingmq.cluster.takeover.transfer_frames import Parts, TransferError, unpack
from starlingmq.core.broker import BrokerState
from starlingmq.core.connect.session_reset import UNSETTLED
from starlingmq.core.context.ready import Event
from starlingmq.core.delivery.forward_batch import FOR_THE_NODE
from starlingmq.core.publish.publishing import RETURNED
from starlingmq.core.session.session import MOVED_PREFIX
from starlingmq.wire.mqtt import Packet, Publish
from starlingmq.wire.packets import Pingreq, Pingresp


class RoamingBooks(Books):
    """``lost``: promises of sessions that were not found, with when the client had asked for its session."""

    def __init__(self) -> None:
        super().__init__()
        self.lost: list[tuple[Promise, float]] = []
        self.ordered = False
        self.gone: dict[str, float] = {}  # client -> when a node with its messages left for good
        self.excused: Counter[str] = Counter()  # unmet promises that are excused, by reason
        self.acted: dict[tuple[str, bytes], None] = {}  # reader and payload of QoS 2 messages that began to come
        self.unsettled: Counter[str] = Counter()  # reader -> messages given up that were sent at QoS 2
        self.returned: Counter[str] = Counter()  # reader -> messages given up that a removed node brought back
        self.brought_back: dict[str, dict[bytes, None]] = {}  # reader -> those that this excuses

    def received(self, subscriber: str, payload: bytes, qos: int, most: int, promises: list[Promise]) -> None:
        self.strict = False  # connections end all the time: QoS 1 comes again, QoS 0 may not come
        super().received(subscriber, payload, qos, most, promises)

    def begun(self, reader: str, payload: bytes) -> None:
        """A handshake for a message. A reader that acts at PUBLISH has acted, whatever becomes of its session."""
        assert self.lossy or (reader, payload) not in self.acted, f"{reader} got {payload!r} again, in another session"
        self.acted[reader, payload] = None

    def _check_order(self, subscriber: str, sent: Sent, qos: int, promises: list[Promise]) -> None:
        if self.ordered:
            super()._check_order(subscriber, sent, qos, promises)

    def excuse(self, promise: Promise) -> bool:
        """Whether it is excused: its messages are gone with a node."""
        if self.lossy:
            self.excused["a node that keeps nothing crashed"] += 1
        elif any(promise.since <= self.gone.get(name, 0.0) for name in self._sharing(promise)):
            self.excused["its session was at a node that left for good"] += 1
        else:
            return False
        return True

    def _sharing(self, promise: Promise) -> list[str]:
        """The subscribers that may have received the promised message instead; a member may have had no SUBACK."""
        if not promise.filter.startswith(b"$share/"):
            return [promise.subscriber]
        return [other.subscriber for other in self.promises if other.filter == promise.filter]

    def _owed(self, promise: Promise, sent: Sent, calm: bool) -> bool:
        if not super()._owed(promise, sent, calm) or self.excuse(promise):
            return False
        return self._has(promise, sent.payload) or not self._is_brought_back(promise, sent)

    def _is_brought_back(self, promise: Promise, sent: Sent) -> bool:
        """Whether it counts as one of those that were given up because the session may have had it elsewhere."""
        excused = self.brought_back.setdefault(promise.subscriber, {})
        if min(sent.qos, promise.qos) != 2 or promise.filter.startswith(b"$share/"):
            return False
        if sent.payload not in excused and len(excused) < self.returned[promise.subscriber]:
            excused[sent.payload] = None
            self.excused["a removed node brought it back, and its session may have had it"] += 1
        return sent.payload in excused

    def owed(self) -> list[str]:
        """Messages that were acknowledged for sessions that their clients did not find, and that never came."""
        found: list[str] = []
        unsettled = self.unsettled.copy()
        lost: dict[tuple[str, bytes], None] = {}
        for promise, asked in self.lost:
            if self.excuse(promise):
                continue
            for sent in self.sent.values():
                due = promise.since <= sent.at and 0.0 < sent.acknowledged_at < asked
                if not due or sent.qos == 0 or promise.qos == 0 or not promise.durable:
                    continue
                if promise.filter.startswith(b"$share/") or not matches(promise.filter, sent.topic):
                    continue
                if sent.node.gone or promise.node.gone or self._has(promise, sent.payload):
                    continue
                if self._is_brought_back(promise, sent):
                    continue
                key = promise.subscriber, sent.payload
                if sent.qos == 2 and key not in lost and unsettled[promise.subscriber]:
                    unsettled[promise.subscriber] -= 1
                    lost[key] = None
                    self.excused["it was sent at QoS 2, and lost with its session"] += 1
                elif key not in lost:
                    found.append(f"{promise.subscriber} is still owed {sent.payload!r} of a session it did not find")
        return found

    def missing(self, calm: bool) -> list[str]:
        self.brought_back.clear()
        return super().missing(False) + self.owed()


class Roamer(Subscriber):
    came_at = 0.0  # its last CONNECT
    homes: Sequence[Node] = ()  # where it may come, while one of them runs; else anywhere

    def come(self) -> None:
        if self.ending or self.connection is not None:
            return
        world = self.node.world
        assert isinstance(world, RoamingWorld)
        nodes = [node for node in world.nodes if not node.gone and node.process is not None]
        nodes = [node for node in nodes if node in self.homes] or nodes
        if nodes:
            self.node = self.random.choice(nodes)
        self.came_at = self.schedule.now
        super().come()

    def hear(self, data: bytes) -> None:
        world = self.node.world
        assert isinstance(world, RoamingWorld)
        if world.plan.faulty:  # its owner may be unreachable, or the client unaware of the session reset
            self.known = self.known and world.strict() and bool(self.promises)
        super().hear(data)

    def begin(self, present: bool) -> None:
        if not present and self.lasting and self.promises:
            assert isinstance(self.books, RoamingBooks)
            for promise in self.promises.values():
                self.books.lost.append((promise, self.came_at))
        super().begin(present)
        if not present:
            self.say([Pingreq()])  # it knows of the session reset

    def take(self, packet: Packet) -> None:
        if self.lasting and len(self.ways) == 1:
            self._look_at_handshake(packet)
        if not isinstance(packet, Pingresp):
            super().take(packet)

    def _look_at_handshake(self, packet: Packet) -> None:
        books = self.books
        assert isinstance(books, RoamingBooks)
        if not isinstance(packet, Publish) or packet.qos != 2 or not packet.payload or packet.retain:
            return
        if packet.packet_id not in self.open:
            books.begun(self.name, packet.payload)

    def hop(self) -> None:
        """Go to another node; the one it was at does not always learn of it."""
        connection = self.connection
        if connection is None:
            return
        if self.random.random() < 0.5:
            self.cut()
            return
        self.trace.note(self.name, "leaves without a word")
        connection.open = False
        self.ended()


class RoamingWorld(World):
    publisher: type[Publisher] = Publisher

    def __init__(self, seed: int, trace: bool = False) -> None:
        super().__init__(seed, trace)
        self.plan.kind = "calm" if self.plan.kind == "local" else self.plan.kind  # all clients roam
        self.books: RoamingBooks = RoamingBooks()
        self.books.refusing = self.copies > 1
        self.numbers: dict[str, int] = {}  # of nodes, by host
        self.left: dict[str, None] = {}  # hosts
        self.more = Random(f"roaming {seed}")
        self.pace = self.more.choice([0.1, 0.5, 2.0])
        self.last_round = False

    def event(self, event: Event) -> None:
        if event.kind == "dropped" and event.detail == UNSETTLED:
            self.books.unsettled[event.client_id] += 1
        elif event.kind == "dropped" and event.detail == RETURNED:
            self.books.returned[event.client_id] += 1

    def strict(self) -> bool:
        return not self.plan.faulty or self.last_round

    def _bring_people(self) -> None:
        self.books.ordered = not self.plan.faulty
        schedule = self.schedule
        for sub in self.plan.subscribers:
            roamer = Roamer(self.books, self.random, self.nodes[sub.host], sub.name, sub.version, sub.lasting)
            self.subscribers.append(roamer)
            roamer.left = len(sub.acts)
            for when, filter, qos in sub.acts:
                if qos < 0:
                    schedule.after(when, roamer.unsubscribe, filter)
                else:
                    schedule.after(when, roamer.subscribe, filter, qos)
            when = self.more.random()
            while when < self.plan.seconds:
                schedule.after(when, roamer.hop)
                when += self.pace * self.more.uniform(0.05, 2.0)
        for pub in self.plan.publishers:
            publisher = self.publisher(
                self.books, self.random, self.nodes[pub.host], pub.name, pub.version, pub.lasting
            )
            self.publishers.append(publisher)
            publisher.left = len(pub.acts)
            for when, topic, qos in pub.acts:
                schedule.after(when, publisher.publish, topic, qos)
        self.people = [*self.subscribers, *self.publishers]
        for person in self.people:
            schedule.after(0.2 * self.random.random(), person.come)

    def _go(self, how: str) -> None:
        self._note_who_is_lost(self.nodes[0])
        super()._go(how)

    def _note_who_is_lost(self, node: Node) -> None:
        """Those of whom that node has a key, or a session: it goes, and takes it along."""
        number = self.numbers.get(node.host, 0)
        clients = [client_id for client_id, keeper in self.owner_keys() if keeper == number]
        if node.process is not None:
            clients += [client_id.split("/")[-1] for client_id in node.process.state.ctx.sessions]
            clients += handed_over(node.process.state)
        self.books.gone.update(dict.fromkeys(clients, self.schedule.now))

    def look(self) -> None:
        super().look()
        self._look_at_owners()
        for node in self.nodes:
            if node.process is None or not node.process.cluster.number:
                continue
            self.numbers[node.host] = node.process.cluster.number
            if node.process.has_left() and node.host not in self.left:
                self.left[node.host] = None
                self._note_who_is_lost(node)

    def _look_at_owners(self) -> None:
        """One epoch of a client id is one node's."""
        owners: dict[tuple[str, int], str] = {}
        for node, state in self._states():
            for client_id, session in state.ctx.sessions.items():
                if session.epoch and not client_id.startswith(MOVED_PREFIX):
                    other = owners.setdefault((client_id, session.epoch), node.host)
                    assert other == node.host, f"{client_id}: {other} and {node.host} own it in epoch {session.epoch}"

    def _liveness(self) -> None:
        super()._liveness()
        self._wait(lambda: not self.unsettled(), LIVENESS_MAX, "sessions are not where they belong")
        self.last_round = True
        for roamer in self.subscribers:
            assert isinstance(roamer, Roamer)
            roamer.hop()
        self._wait(self._settled, LIVENESS_MAX, "who went elsewhere did not get there")
        self._wait(self._balanced, LIVENESS_MAX, "something that was acknowledged is lost")
        self._wait(lambda: not self.unsettled(), LIVENESS_MAX, "sessions are not where they belong")

    def _states(self) -> Iterator[tuple[Node, BrokerState]]:
        for node in self.members():
            if node.process is not None:
                yield node, node.process.state

    def unsettled(self) -> list[str]:
        """Migrations under way, and state in the wrong place."""
        found: list[str] = []
        homes: dict[str, str] = {}
        owners: dict[tuple[str, int], None] = {}
        for node, state in self._states():
            for client_id, session in state.ctx.sessions.items():
                if client_id.startswith(MOVED_PREFIX):
                    found.append(f"{client_id} is still at {node.host}")
                elif session.node == 0 and not session.is_group_queue:
                    if client_id in homes:
                        found.append(f"{client_id} is at {homes[client_id]} and at {node.host}")
                    homes[client_id] = node.host
                    if session.moving is not None:
                        found.append(f"{client_id} is still on its way to {node.host}")
                    owners[client_id, state.ctx.node] = None
        numbers = [state.ctx.node for _, state in self._states()]  # keys of other nodes are deleted on demand
        keys = self.owner_keys()
        found += [f"nobody has what {key} says" for key in keys if key not in owners and key[1] in numbers]
        found += [f"{key[0]} has no key" for key in owners if key not in keys]
        return found

    def owner_keys(self) -> list[tuple[str, int]]:
        running = [node.process.cluster for node in self.nodes if node.process is not None]
        return owner_keys(running)

    def takeovers(self) -> int:
        """Those of the last life of each node."""
        return sum(node.process.cluster.takeovers.completed for node in self.nodes if node.process is not None)

    def why(self) -> str:
        return "; ".join([super().why(), *self.unsettled()[:5]])


def handed_over(state: BrokerState) -> list[str]:
    """Clients of which messages are on their way from there to a new owner that has not acknowledged them."""
    found: list[str] = []
    for link in state.ctx.cluster.links.values():
        waiting = [] if link.window is None else list(link.window.entries.values())
        waiting += [] if link.queue is None else list(link.queue.items)
        for outgoing in waiting:
            if outgoing.ids == FOR_THE_NODE and outgoing.message.loaded:
                with suppress(TransferError):  # of retained messages
                    found += [said.client_id for said in unpack(outgoing.message.payload) if isinstance(said, Parts)]
    return found


def run(seed: int, trace: bool = False) -> RoamingWorld:
    world = RoamingWorld(seed, trace)
    world.live()
    return world


def figures(world: RoamingWorld) -> Counter[str]:
    """``excused``: checks of a promise that is excused, by reason."""
    seen = Counter({"takeovers": world.takeovers(), "messages acknowledged": world.books.acknowledged_count})
    seen["subscriptions of sessions that were not found"] = len(world.books.lost)
    return seen + Counter({f"excused: {reason}": count for reason, count in world.books.excused.items()})


if __name__ == "__main__":
    sys.exit(seeded.main("takeover_world", __doc__, run, figures))
