"""A world of nodes that keep copies of each other, and its checks. ``copies_world`` adds the faults.

The state of ``cluster.copies``, the election and the model of etcd are real; disks, feeds and clients are models
(``copies_process``). Of each origin must hold, while one disk of those in step survives:

- what was acknowledged is on every disk in step at that moment, and in every log that is opened for the origin later;
- a log has no item twice, and its copies agree with it;
- in the end each origin is served, has as many copies as nodes allow, and every client is done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random

from tests.cluster.copies_disk import Log
from tests.cluster.copies_process import CopyProcess, ModelNode, Served
from tests.sim.etcd_shell import EtcdShell
from tests.sim.etcd_store import Store
from tests.sim.schedule import Schedule
from tests.sim.trace import Trace

from starlingmq.cluster.copies.copy_record import CopyRecord, record_from
from starlingmq.cluster.copies.copy_server import CopySettings
from starlingmq.cluster.etcd.etcd_requests import Txn, TxnAnswer

TROUBLE = 40.0  # seconds in which things fail
CALM = 120.0  # seconds after that in which everything has to be well
STEP = 0.1
TIMEOUT = 12.0  # cluster.copy_timeout


class WatchedStore(Store):
    """etcd's content; ``changed`` is called after each transaction."""

    def __init__(self, changed: Callable[[], None]) -> None:
        super().__init__()
        self._changed = changed

    def transact(self, txn: Txn, lease: int) -> TxnAnswer:
        answer = super().transact(txn, lease)
        self._changed()
        return answer


class Proposals:
    """The changes of records that processes have under way."""

    def __init__(self, world: CopiesWorld) -> None:
        self.world = world

    def of(self, process: CopyProcess) -> list[CopyRecord]:
        cas, registry = process.copies._cas, process.copies.registry
        updates = [*cas._waiting.values(), *cas._batch.values()]
        return [record_from(registry.origin_of(each.key), each.value) for each in updates if each.value is not None]

    def about(self, origin: str) -> list[CopyRecord]:
        return [each for process in self.world.processes() for each in self.of(process) if each.origin == origin]


class Books:
    def __init__(self, world: CopiesWorld) -> None:
        self.world = world
        self.acked: dict[str, set[int]] = {}
        self.generations: set[tuple[str, int]] = set()  # those that were opened
        self.latest: dict[str, tuple[int, Log]] = {}  # the newest one that has served
        self.seen: Counter[str] = Counter()

    def acknowledged(self, process: CopyProcess, served: Served, item: int) -> None:
        origin = served.origin
        self.acked.setdefault(origin, set()).add(item)
        self.seen["acknowledged"] += 1
        for name in self.world.whole(origin):
            there = self.world.nodes[name].disk.log(origin).items
            assert item in there, f"{origin}: {process.name} acknowledged {item}, which {name} in step does not have"
        record = process.copies.servers[origin].record
        assert len(record.in_step) >= self.world.settings.required, f"{origin}: {item} is acknowledged by too few nodes"
        generation, log = self.latest[origin]
        if generation > served.generation:
            assert item in log.items, f"{origin}: {item} was acknowledged under {served.generation} after {generation}"

    def opened(self, process: CopyProcess, origin: str, generation: int) -> None:
        opened = (origin, generation)
        assert opened not in self.generations, f"{origin}: {process.name} opens generation {generation} again"
        self.generations.add(opened)
        self.seen["opened"] += 1

    def serves(self, process: CopyProcess, served: Served) -> None:
        """A server begins to serve clients."""
        origin, generation, log = served.origin, served.generation, served.log
        if generation < self.latest.get(origin, (0, log))[0]:
            return  # it does not know yet that another one was named, and can acknowledge nothing
        self.latest[origin] = generation, log
        lost = self.acked.get(origin, set()) - set(log.items)
        assert not lost, f"{origin}: {process.name} serves generation {generation} without {sorted(lost)[:5]}"
        assert len(set(log.items)) == len(log.items), f"{origin}: {process.name} has items twice"


class Publisher:
    """Publishes one item after the other to a node that serves the origin, again and again until it is acknowledged."""

    def __init__(self, world: CopiesWorld, origin: str, number: int) -> None:
        self.world = world
        self.origin = origin
        self.item = number * 100_000
        self.left = world.random.choice([20, 60, 150])
        self.tries = 0
        self.go()

    def go(self) -> None:
        self.tries += 1
        world = self.world
        able = [each for each in world.processes() if self.origin in each.served]
        if able and self.left:
            process = world.random.choice(able)
            process.publish(self.origin, self.item, partial(self._done, self.item))
            process.turn()
        if self.left:
            world.schedule.after(world.random.choice([0.5, 2.0]), self._again, self.tries)

    def _again(self, tries: int) -> None:
        if tries == self.tries:
            self.go()

    def _done(self, item: int) -> None:
        if item == self.item:
            self.item += 1
            self.left -= 1
            self.tries += 1
            self.world.schedule.after(self.world.random.choice([0.01, 0.1, 0.4]), self.go)


class CopiesWorld:
    def __init__(self, seed: int, trace: bool = False) -> None:
        self.random = random = Random(f"copies {seed}")
        self.schedule = Schedule(1000.0)
        self.trace = Trace(self.schedule, trace)
        self.etcd = EtcdShell(self.schedule, Random(f"etcd {seed}"), 10.0, 3.0, self._is_stalled)
        self.etcd.model.store = WatchedStore(self._check_listed)
        copies = random.choice([2, 2, 3])
        count = random.randint(copies, 5)
        required = random.choice([max(1, copies - 1), max(1, copies - 1), copies, 1])
        self.settings = CopySettings(copies, required, TIMEOUT, 2.0, random.choice([1.0, 30.0]))
        self.books = Books(self)
        self.proposals = Proposals(self)
        self._listed: dict[str, dict[str, int]] = {}
        self.warnings: list[str] = []
        self.cuts: set[frozenset[str]] = set()
        self.suspected_until: dict[str, float] = {}
        self.nodes = {
            f"n{number}": ModelNode(f"n{number}", f"host{number}", f"zone{number % 2}") for number in range(count)
        }
        for name in self.nodes:
            self.schedule.after(random.choice([0.0, 0.5, 2.0]), self.start, name)
        self.publishers = [Publisher(self, name, number) for name in self.nodes for number in range(2)]

    # Nodes

    def start(self, name: str) -> None:
        node = self.nodes[name]
        if node.process is None and not node.lost:
            node.incarnation += 1
            self.trace.note(name, f"starts incarnation {node.incarnation}")
            node.process = CopyProcess(self, node, node.incarnation)

    def stop(self, name: str) -> None:
        node = self.nodes[name]
        if node.process is not None:
            self.trace.note(name, "is killed")
            node.process.stop()
            node.process = None
            node.snapshots.append(node.disk.snapshot())

    def processes(self) -> list[CopyProcess]:
        return [node.process for node in self.nodes.values() if node.process is not None]

    def _is_stalled(self, name: str) -> bool:
        process = self.nodes[name].process
        return process is not None and process.stalled_until > self.schedule.now

    def linked(self, one: str, other: str) -> bool:
        both = self.nodes[one].process is not None and self.nodes[other].process is not None
        return both and frozenset((one, other)) not in self.cuts

    def hears(self, one: str, other: str) -> bool:
        return self.linked(one, other) and not self._is_stalled(other)

    def warn(self, name: str, notices: list[str]) -> None:
        for notice in notices:
            self.trace.note(name, notice)
            self.warnings.append(notice)

    # Records

    def record(self, origin: str) -> CopyRecord | None:
        found = self.etcd.model.store.get(f"/starlingmq/c/copies/{origin}".encode())
        return record_from(origin, found[0].value) if found else None

    def whole(self, origin: str) -> list[str]:
        """The nodes in step whose disk is what the record means."""
        record = self.record(origin)
        return (
            []
            if record is None
            else [n for n, incarnation in record.in_step.items() if incarnation > self.nodes[n].damaged]
        )

    def _check_listed(self) -> None:
        """A node that enters the nodes in step has all that was acknowledged."""
        for origin in self.nodes:
            record = self.record(origin)
            if record is None or record.in_step == self._listed.get(origin):
                continue
            removed = set(self._listed.get(origin, ())).difference(record.in_step)
            few = len(record.in_step) < self.settings.required
            left = [name for name in removed if self._listed[origin][name] > self.nodes[name].damaged]
            assert not (few and left), f"{origin}: {left} left the nodes in step, and too few remain: {record}"
            self._listed[origin] = dict(record.in_step)
            for name in self.whole(origin):
                missing = self.books.acked.get(origin, set()).difference(self.nodes[name].disk.log(origin).items)
                assert not missing, f"{origin}: {name} is listed in step without {sorted(missing)[:5]}"

    # Time

    def trouble(self) -> None:
        """Something may fail now."""

    def heal(self) -> None:
        """Nothing fails any more."""

    def live(self) -> None:
        end = self.schedule.now + TROUBLE
        while self.schedule.now < end:
            self._step()
        self.heal()
        end = self.schedule.now + CALM
        while self.schedule.now < end and self.unwell():
            self._step()
        assert not self.unwell(), self.unwell()
        self._compare()

    def _step(self) -> None:
        self.schedule.run(self.schedule.now + STEP)
        self.trouble()
        for process in self.processes():
            process.look_around()
            process.turn()
            process.connect()

    def unwell(self) -> str:
        """The first thing that is not as it should be in the end; "": there is none."""
        alive = [name for name, node in self.nodes.items() if not node.lost]
        wanted = min(self.settings.copies, len(alive))
        if len(self.processes()) < len(alive):
            return "not all nodes are back"
        for origin in self.nodes:
            record = self.record(origin)
            if record is None:
                if origin in alive:
                    return f"{origin} has no record"
                continue
            if len(record.in_step) != wanted or not set(alive).issuperset(record.in_step):
                return f"{origin} has the copies {record}"
            serving = [each for each in self.processes() if origin in each.served]
            if [each.name for each in serving] != [record.server] or not serving[0].served[origin].serving:
                return f"{origin} is served by {[each.name for each in serving]}, not by {record.server}"
            feeds = [serving[0].feeds.get((origin, name)) for name in record.followers]
            if any(feed is None or not feed.live for feed in feeds):
                return f"followers of {origin} are not connected"
        left = [publisher.origin for publisher in self.publishers if publisher.left and self.record(publisher.origin)]
        return f"publishers of {left} are not done" if left else ""

    def _compare(self) -> None:
        for origin in self.nodes:
            record = self.record(origin)
            if record is None:
                continue
            items = self.nodes[record.server].disk.log(origin).items
            assert self.books.acked.get(origin, set()) <= set(items), f"{origin} has lost items"
            assert len(set(items)) == len(items), f"{origin} has items twice"
            for name in record.in_step:
                assert self.nodes[name].disk.log(origin).items == items, f"the copy of {origin} on {name} differs"
