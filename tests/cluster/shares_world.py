"""Nodes that keep the owners of client ids in shares, without the rest of a broker: they claim, hand over, give up,
die, are cut off and come back; frames are lost, doubled and late; etcd is away.

``python -m tests.cluster.shares_world`` lives them.

The invariants:

- an epoch of a client id is one node's;
- an epoch is later than all in which the client id was served before it was claimed;
- a claim names every node that holds something of the client id, with an epoch that is not older;
- where not more than one node is away at a time, it names no node that was not asked without need;
- etcd is written when nodes come and go, not for claims;
- once nothing is wrong any more every claim is answered, and the keys are those of the nodes that hold something.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from random import Random

from tests.cluster import seeded
from tests.cluster.shares_node import ShareNode
from tests.sim.etcd_model import EtcdModel

from starlingmq.cluster.etcd.etcd_requests import Put, Txn
from starlingmq.cluster.links.control_frames import MemberInfo
from starlingmq.cluster.links.peer_frames import ShareFrame
from starlingmq.cluster.shares.share_leader import LeadState

START = 1000.0
TICK = 0.005
NOTICED = 1.0  # seconds until a node notices that another one is silent
GONE = 2.0  # seconds until a silent node is taken out of the table
CLIENTS = ("a", "b", "c", "d", "e", "f")
LEADER = b"/leader"


class ShareWorld:
    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.now = START
        self.etcd = EtcdModel(Random(seed + 1))
        self.count = random.choice([1, 2, 3, 3, 3, 4, 5])
        self.gentle = random.random() < 0.25  # one fault at a time
        self.loss = 0.0 if self.gentle else random.choice([0.0, 0.0, 0.02, 0.1])
        self.delay = random.choice([0.001, 0.01, 0.05])
        self.doubling = random.choice([0.0, 0.05])
        self.durable = random.random() < 0.8
        self.seen: Counter[str] = Counter()
        self.nodes = [ShareNode(self, number) for number in range(1, self.count + 1)]
        self.silent: dict[frozenset[int], float] = {}  # pair of nodes -> since when
        self.frames: list[tuple[float, int, int, int, ShareFrame]] = []  # due, source, its incarnation, target, frame
        self.arrives: dict[tuple[int, int], float] = {}
        self.epochs: dict[tuple[str, int], int] = {}  # (client id, epoch) -> node
        self.latest: dict[str, int] = {}  # client id -> the highest epoch that a node has served it in
        self.named: dict[tuple[str, int], dict[int, int]] = {}  # (client id, epoch) -> the others of that claim
        self.leading = self.leading_life = 0
        self.handovers: list[tuple[int, int, str, int, int]] = []  # (new owner, former, client id, epoch, its epoch)
        self.busy_until = 0.0
        for node in self.nodes:
            node.start()

    # The knowledge of the nodes of each other

    def node(self, number: int) -> ShareNode:
        return self.nodes[number - 1]

    def members(self) -> tuple[MemberInfo, ...]:
        return tuple([MemberInfo(f"n{node.number}", node.number, node.lives, "") for node in self.nodes if node.lives])

    def silent_for(self, one: int, other: int) -> float:
        since = self.silent.get(frozenset((one, other)))
        return -1.0 if since is None else self.now - since

    def connected(self, one: int, other: int) -> bool:
        return self.node(one).alive and self.silent_for(one, other) < NOTICED

    def serves(self, number: int) -> bool:
        others = [node for node in self.nodes if node.number != number and self.connected(number, node.number)]
        return self.node(number).alive and len(others) >= len(self.nodes) // 2

    def gone(self, number: int) -> bool:
        """Whether all others that can serve have not heard it for so long that it does not serve."""
        others = [node for node in self.nodes if node.number != number and node.alive]
        return bool(others) and all(
            self.silent_for(number, other.number) >= GONE for other in others if self.serves(other.number)
        )

    def _elect(self) -> None:
        if self.leading and self.serves(self.leading) and self.node(self.leading).lives == self.leading_life:
            return
        able = [node.number for node in self.nodes if self.serves(node.number)]
        if able and self.etcd._leader:
            self.leading = self.random.choice(able)
            self.leading_life = self.node(self.leading).lives
            txn = Txn("elect", (), (Put(LEADER, b"%d %d" % (self.leading, self.leading_life)),))
            self.etcd.store.transact(txn, 0)

    # Faults

    def silence(self, number: int, others: list[int]) -> None:
        for other in others:
            self.silent.setdefault(frozenset((number, other)), self.now)

    def heal(self, number: int) -> None:
        for pair in [pair for pair in self.silent if number in pair]:
            other = next(iter(pair - {number}), number)
            if self.node(other).alive and self.node(number).alive:
                del self.silent[pair]

    def others(self, number: int) -> list[int]:
        return [node.number for node in self.nodes if node.number != number]

    def _fault(self) -> None:
        random = self.random
        if self.gentle and (self.silent or any(not node.alive for node in self.nodes) or self.now < self.busy_until):
            return
        self.busy_until = self.now + 6.0
        node = random.choice(self.nodes)
        kind = random.choice(["crash", "crash", "bounce", "cut", "pair cut", "etcd", "many"])
        if kind in ("pair cut", "many") and self.gentle:
            return
        self.seen[kind] += 1
        if kind == "many":
            for each in random.sample(self.nodes, random.randint(1, len(self.nodes))):
                self._crash(each)
        elif kind in ("crash", "bounce"):
            self._crash(node)
            if kind == "bounce":
                self._restart(node)
        elif kind == "cut":
            self.silence(node.number, self.others(node.number))
        elif kind == "pair cut" and self.count > 3:
            pair = [node.number, random.choice(self.others(node.number))]
            for number in pair:
                self.silence(number, [other for other in self.others(number) if other not in pair])
        elif kind == "etcd":
            self.etcd.lose_leader(self.now, random.choice([1.0, 4.0]))

    def _crash(self, node: ShareNode) -> None:
        if node.alive:
            node.crash(self.durable)
            self.silence(node.number, self.others(node.number))

    def _restart(self, node: ShareNode) -> None:
        if not node.alive:
            node.start()
            self.heal(node.number)

    def _mend(self) -> None:
        node = self.random.choice(self.nodes)
        if node.alive:
            self.heal(node.number)
        else:
            self._restart(node)

    # Frames

    def carry(self, source: ShareNode, target: int, frame: ShareFrame) -> None:
        if self.silent_for(source.number, target) >= 0.0 and self.random.random() < 0.8:
            return  # the rest lies somewhere, and arrives late
        for _ in range(2 if self.random.random() < self.doubling else 1):
            if self.random.random() < self.loss:
                continue
            late = 3.0 * self.random.random() if self.silent_for(source.number, target) >= 0.0 else 0.0
            due = self.now + self.delay * self.random.uniform(0.5, 2.0) + late
            if not self.loss and not late:
                way = (source.number, target)
                due = self.arrives[way] = max(due, self.arrives.get(way, 0.0))
            self.frames.append((due, source.number, source.lives, target, frame))

    def _deliver(self) -> None:
        due = sorted([each for each in self.frames if each[0] <= self.now], key=lambda each: each[0])
        self.frames = [each for each in self.frames if each[0] > self.now]
        for _, source, incarnation, target, frame in due:
            node = self.node(target)
            if node.alive and incarnation == self.node(source).lives:
                node.shares.received(source, incarnation, frame)

    # Clients

    def _act(self) -> None:
        random = self.random
        node, client_id = random.choice(self.nodes), random.choice(CLIENTS)
        if not self.serves(node.number):
            return
        if random.random() < 0.8:
            self._claim(node, client_id)
        elif client_id in node.held and not node.ownership.claiming(client_id):
            node.ownership.release(client_id, node.number, node.held.pop(client_id))

    def _claim(self, node: ShareNode, client_id: str) -> None:
        node.wanted[client_id] = None
        node.asked[client_id] = self.latest.get(client_id, 0)
        node.ownership.claim(client_id, False)

    def owned(self, node: ShareNode, client_id: str, epoch: int, others: dict[int, int]) -> None:
        """The node has the answer to its claim."""
        self.seen["claims"] += 1
        earlier = self.epochs.setdefault((client_id, epoch), node.number)
        assert earlier == node.number, f"{client_id}: epoch {epoch} is of nodes {earlier} and {node.number}"
        for other in self.nodes:
            had = other.held.get(client_id, 0)
            if other is not node and had and had < epoch:
                assert others.get(other.number, 0) >= had, f"{client_id}: node {other.number} was forgotten"
        unknown = [
            n.number for n in self.nodes if n.alive and any(book.unknown for book in n.shares.books.books.values())
        ]
        assert not (self.gentle and unknown), f"nodes {unknown} lack something that could have been asked for"
        self.seen["claims while a node is unknown"] += bool(unknown)
        overtaken = node.overtaken.pop(client_id, 0)
        if overtaken > epoch or not self.serves(node.number) or client_id not in node.wanted:
            node.wanted.pop(client_id, None)  # its client is refused
            if client_id not in node.held:
                node.ownership.release(client_id, node.number, epoch)
            return
        for other in self.nodes:
            had = other.held.get(client_id, 0)
            if other is not node and had > epoch:
                named = self.named.get((client_id, had), {}).get(node.number, 0)
                assert named >= epoch, f"{client_id}: node {node.number} was forgotten by a later claim"
        before = node.asked[client_id]
        assert epoch > before, f"{client_id}: epoch {epoch}, asked for after {before}"
        self.latest[client_id] = max(epoch, self.latest.get(client_id, 0))
        self.named[client_id, epoch] = others
        del node.wanted[client_id]
        node.held[client_id] = epoch
        self.handovers += [(node.number, other, client_id, epoch, had) for other, had in others.items()]

    def _hand_over(self) -> None:
        left: list[tuple[int, int, str, int, int]] = []
        for each in self.handovers:
            target, source, client_id, epoch, had = each
            there, here = self.node(source), self.node(target)
            open_way = there.alive and here.alive and self.silent_for(target, source) < 0.0
            if not open_way or self.random.random() < 0.9:
                left.append(each)
            elif there.held.get(client_id, 0) < epoch:
                if there.ownership.claiming(client_id):
                    there.overtaken[client_id] = max(epoch, there.overtaken.get(client_id, 0))
                there.held.pop(client_id, None)
                here.ownership.release(client_id, source, had)
        self.handovers = left

    # Time

    def tick(self) -> None:
        self.now += TICK
        self._elect()
        for name, answer in self.etcd.advance(self.now):
            node = self.node(int(name[1:]))
            if node.alive:
                node.shares.answered(answer, self.now)
        self._deliver()
        self._hand_over()
        for node in self.nodes:
            if node.alive:
                node.turn(self.now)

    def live(self, seconds: float = 25.0) -> None:
        self._until(self._all_serve, 20.0, "the nodes do not begin")
        end = self.now + seconds
        while self.now < end:
            draw = self.random.random()
            if draw < 0.15:
                self._act()
            elif draw < 0.152:
                self._fault()
            elif draw < 0.158:
                self._mend()
            self.tick()
        for node in self.nodes:
            self._restart(node)
        self.silent.clear()
        self.loss = 0.0
        for node in self.nodes:  # a new stream
            for other in self.others(node.number):
                node.shares.connected(other)
        self._until(self._all_serve, 20.0, "not all shares are served")
        for client_id in CLIENTS:
            node = self.random.choice(self.nodes)
            self._claim(node, client_id)
        self._until(self._settled, 20.0, "claims are not answered, or keys are left")
        assert self.writes() <= self.changes(), f"{self.writes()} tables for {self.changes()} changes of the nodes"

    def _until(self, done: object, seconds: float, complaint: str) -> None:
        assert callable(done)
        end = self.now + seconds
        while not done():
            assert self.now < end, f"{complaint}: {self.why()}"
            self.tick()

    def _all_serve(self) -> bool:
        table = self.nodes[0].shares.table
        nodes = {node.number: node.lives for node in self.nodes}
        if any(node.shares.table is not table and node.shares.table.version != table.version for node in self.nodes):
            return False
        if table.nodes != nodes:
            return False
        states = [self.node(pair.leader).shares.leader.state(share) for share, pair in enumerate(table.pairs)]
        return all(state is LeadState.SERVING for state in states)

    def keys(self) -> Iterator[tuple[str, int]]:
        table = self.nodes[0].shares.table
        for share, pair in enumerate(table.pairs):
            for client_id, key in self.node(pair.leader).shares.books.books[share].entries():
                yield client_id, key.node

    def _settled(self) -> bool:
        if any(node.wanted or not node.ownership.idle() for node in self.nodes) or not self._all_serve():
            return False
        return sorted(self.keys()) == sorted((c, node.number) for node in self.nodes for c in node.held)

    def why(self) -> str:
        wanted = {node.number: list(node.wanted) for node in self.nodes if node.wanted}
        if not self._all_serve():
            return f"{[(n.shares.table.version, n.shares.table.nodes, n.lives) for n in self.nodes]} {self.leading}"
        holders = sorted((c, node.number) for node in self.nodes for c in node.held)
        return f"wanted {wanted}, keys {sorted(self.keys())}, held {holders}, {self.handovers}"

    def writes(self) -> int:
        return sum(node.written() for node in self.nodes)

    def changes(self) -> int:
        """An upper bound of the changes of the table that faults and mending can have caused."""
        cuts = sum(self.seen[kind] for kind in ("cut", "pair cut"))
        return 4 * (self.count + sum(node.lives for node in self.nodes) + cuts) + 20


def run(seed: int) -> ShareWorld:
    world = ShareWorld(seed)
    world.live()
    return world


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    seen: Counter[str] = Counter()
    failed = 0
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        try:
            seen.update(run(seed).seen)
        except Exception as error:  # whatever the code raises: this seed shows it
            failed += 1
            print(f"FAILED seed {seed}: {type(error).__name__} {str(error)[:400]}", flush=True)
    print(f"{arguments.seeds} seeds, {failed} failures; {dict(seen)}")
    return 1 if failed else 0


if __name__ == "__main__":
    seeded.interpreted_only()
    sys.exit(main())
