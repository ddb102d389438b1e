"""The faults of ``tests.cluster.copies_world``: drawn from a seed, and never more than the copies allow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

from tests.cluster.copies_disk import Disk
from tests.cluster.copies_model import CopiesWorld
from tests.cluster.copies_process import ModelNode

from starlingmq.cluster.copies.in_step_table import FollowerState


class Faults:
    def __init__(self, world: CopiesWorld, random: Random, seconds: float) -> None:
        self.world = world
        self.random = random
        self.seen: Counter[str] = Counter()
        self._quiet_at = 0.0  # since then no dead process may have had a change of a record under way
        self._stranded_until = 0.0
        self._pending: list[tuple[float, Callable[[], bool]]] = []
        kinds: list[Callable[[], bool]] = [
            self.kill,
            self.kill,
            self.lose_disk,
            self.lose_disk,
            self.lose_disks,
            self.old_disk,
            self.lone_disk,
            self.lone_disk,
            self.strand,
            self.strand,
            self.cut,
            self.cut,
            self.isolate,
            self.isolate,
            self.stall,
            self.lag,
            self.suspect,
            self.usurp,
            self.usurp,
            self.no_etcd,
            self.cut_etcd,
            self.expire,
            self.compact,
        ]
        mix = random.sample(kinds, random.randint(2, 8))
        for _ in range(random.randint(2, 24)):
            when = world.schedule.now + random.uniform(1.0, seconds)
            self._pending.append((when, random.choice(mix)))

    def step(self) -> None:
        now = self.world.schedule.now
        for each in [each for each in self._pending if each[0] <= now]:
            self._pending.remove(each)
            if each[1]():
                self.seen[each[1].__name__] += 1
            elif each[1] in (self.lose_disk, self.old_disk, self.lose_disks):
                self._pending.append((now + 1.0, each[1]))
        if now < self._stranded_until and self._lose_entering():
            self.seen["lost while it was proposed"] += 1

    def heal(self) -> None:
        world = self.world
        self._pending.clear()
        self._stranded_until = 0.0
        world.cuts.clear()
        world.suspected_until.clear()
        for node in world.nodes.values():
            node.lag = 0.0
            world.etcd.heal(node.name)
            world.schedule.after(self.random.choice([0.0, 3.0, 15.0]), world.start, node.name)

    # Processes

    def _anyone(self) -> str:
        return self.random.choice(list(self.world.nodes))

    def _kill(self, name: str) -> bool:
        process = self.world.nodes[name].process
        if process is None:
            return False
        if self.world.proposals.of(process):
            self._quiet_at = self.world.schedule.now + 8.0
        self.world.stop(name)
        return True

    def _restart_later(self, name: str) -> None:
        self.world.schedule.after(self.random.choice([0.1, 1.0, 4.0, 12.0, 30.0]), self.world.start, name)

    def kill(self) -> bool:
        name = self._anyone()
        killed = self._kill(name)
        if killed:
            self._restart_later(name)
        return killed

    def stall(self) -> bool:
        process = self.world.nodes[self._anyone()].process
        if process is not None:
            process.stalled_until = process.now + self.random.choice([1.0, 5.0, 15.0])
            self.world.trace.note(process.name, f"stands still until {process.stalled_until - 1000.0:.1f}")
        return process is not None

    def lag(self) -> bool:
        self._slow_down(self.world.nodes[self._anyone()], self.random.choice([0.3, 3.0, 30.0]))
        return True

    def _slow_down(self, node: ModelNode, seconds: float) -> None:
        node.lag = seconds
        self.world.trace.note(node.name, f"stores slowly: {node.lag}")
        self.world.schedule.after(self.random.choice([3.0, 15.0]), setattr, node, "lag", 0.0)

    # Disks

    def _may_lose(self, name: str) -> bool:
        """Whether each origin keeps a whole copy in step without that disk, whatever is under way."""
        world = self.world
        if world.schedule.now < self._quiet_at:
            return False
        for origin in world.nodes:
            whole = set(world.whole(origin))
            pending = [whole.intersection(record.in_step) for record in world.proposals.about(origin)]
            if whole and any(left <= {name} for left in (whole, *pending)):
                return False
        return True

    def _damage(self, name: str, disk: Disk) -> bool:
        node = self.world.nodes[name]
        if not self._may_lose(name) or not self._kill(name):
            return False
        node.damaged = node.incarnation
        node.disk = disk
        self.world.trace.note(name, f"has another disk, with {sorted(disk.incarnations)}")
        return True

    def lose_disk(self) -> bool:
        name = self._anyone()
        if not self._damage(name, Disk()):
            return False
        alive = [node for node in self.world.nodes.values() if not node.lost]
        if len(alive) > max(self.world.settings.copies, 2) and self.random.random() < 0.4:
            self.world.nodes[name].lost = True
        else:
            self._restart_later(name)
        return True

    def lose_disks(self) -> bool:
        """As many at once as the copies allow."""
        lost = [self.lose_disk() for _ in range(self.world.settings.copies - 1)]
        return any(lost)

    def _old_disk(self, name: str) -> Disk:
        snapshots = self.world.nodes[name].snapshots
        return self.random.choice(snapshots).snapshot() if snapshots else Disk()

    def old_disk(self) -> bool:
        name = self._anyone()
        damaged = self._damage(name, self._old_disk(name))
        if damaged:
            self._restart_later(name)
        return damaged

    def lone_disk(self) -> bool:
        """A node is back soon with another disk, while all others are away with their good ones."""
        name = self._anyone()
        if not self._damage(name, self.random.choice([Disk(), self._old_disk(name)])):
            return False
        for other in self.world.nodes:
            if other != name and self._kill(other):
                self.world.schedule.after(self.random.choice([4.0, 20.0]), self.world.start, other)
        self.world.schedule.after(0.1, self.world.start, name)
        return True

    def strand(self) -> bool:
        """A server does not reach etcd. A follower that enters the nodes in step meanwhile loses its disk."""
        name, seconds = self._anyone(), self.random.choice([4.0, 12.0])
        self.world.trace.note(name, "does not reach etcd")
        self.world.etcd.cut(name)
        self.world.schedule.after(seconds, self.world.etcd.heal, name)
        self._stranded_until = self.world.schedule.now + seconds
        return True

    def _lose_entering(self) -> bool:
        world = self.world
        for process in world.processes():
            for server in process.copies.servers.values():
                for follower in server.followers.values():
                    if follower.state is FollowerState.ENTERING and self._damage(follower.name, Disk()):
                        world.schedule.after(0.1, world.start, follower.name)
                        self._slow_down(world.nodes[follower.name], 3.0)
                        return True
        return False

    # Networks

    def cut(self) -> bool:
        pair = frozenset(self.random.sample(list(self.world.nodes), 2))
        self.world.cuts.add(pair)
        self.world.trace.note("world", f"cut {sorted(pair)}")
        self.world.schedule.after(self.random.choice([0.5, 4.0, 12.0]), self.world.cuts.discard, pair)
        return True

    def isolate(self) -> bool:
        """A node that no other node and perhaps no etcd reaches, but clients do."""
        name = self._anyone()
        pairs = [frozenset((name, other)) for other in self.world.nodes if other != name]
        self.world.trace.note(name, "is isolated")
        self.world.cuts.update(pairs)
        seconds = self.random.choice([2.0, 6.0, 20.0])
        for pair in pairs:
            self.world.schedule.after(seconds, self.world.cuts.discard, pair)
        if self.random.random() < 0.7:
            self.world.etcd.cut(name)
            self.world.schedule.after(seconds, self.world.etcd.heal, name)
        return True

    def suspect(self) -> bool:
        """All other nodes take a node for gone, which is there."""
        name = self._anyone()
        self.world.suspected_until[name] = self.world.schedule.now + self.random.choice([0.3, 3.0])
        self.world.trace.note(name, "is suspected")
        return True

    def usurp(self) -> bool:
        """All other nodes take a node for gone, which reaches them, but not etcd."""
        name = self._anyone()
        self.world.trace.note(name, "is suspected, and does not hear of it")
        seconds = self.random.choice([1.0, 4.0, 12.0])
        self.world.suspected_until[name] = self.world.schedule.now + seconds
        self.world.etcd.cut(name)
        self.world.schedule.after(seconds, self.world.etcd.heal, name)
        return True

    # etcd

    def no_etcd(self) -> bool:
        self.world.etcd.lose_leader(self.random.choice([0.5, 4.0, 12.0]))
        return True

    def cut_etcd(self) -> bool:
        name = self._anyone()
        self.world.etcd.cut(name)
        self.world.schedule.after(self.random.choice([2.0, 15.0]), self.world.etcd.heal, name)
        return True

    def expire(self) -> bool:
        self.world.etcd.expire_lease(self._anyone())
        return True

    def compact(self) -> bool:
        self.world.etcd.compact()
        return True
