"""A machine of a simulated cluster with ``cluster.copies``: what it stores may be lost for good."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.copies.copied_disk import MachineDisk
from tests.sim.copies.machine_life import MachineLife
from tests.sim.copies.ports import Life, Ports
from tests.sim.node import Node
from tests.storage.crash_engines import NEVER

from starlingmq.cluster.copies.copy_record import CopyRecord, record_from

if TYPE_CHECKING:
    from tests.sim.node import World

QUIET_SECONDS = 3.0  # in which a change that a dead process had under way is made or not


def proposals(life: Life) -> list[CopyRecord]:
    """The changes of records that it has under way."""
    cas, registry = life.roles._cas, life.roles.registry
    updates = [*cas._waiting.values(), *cas._batch.values()]
    return [record_from(registry.origin_of(each.key), each.value) for each in updates if each.value is not None]


class CopiedNode(Node):
    """``damaged``: its disk was lost, or put back to an earlier state, after it was in step in this incarnation."""

    def __init__(self, world: World, host: str, ports: Ports) -> None:
        super().__init__(world, host)
        self.ports = ports
        self.store = MachineDisk(self.machine, world.settings.span)
        self.snapshots: list[MachineDisk] = []
        self.life: MachineLife | None = None
        self.damaged = 0

    @property
    def running(self) -> bool:
        return self.life is not None

    def may_leave(self) -> bool:
        return self.life is not None and not self.life.copies.only_here()

    def given_up(self) -> None:
        super().given_up()
        if self.life is not None:
            self.life.copies.sim_peers.given_up()

    def forget_elsewhere(self) -> None:
        """The broker that serves its data at another node leaves in its name."""
        for life in self.ports.lives.values():
            if life is self.life or not isinstance(life, MachineLife):
                continue
            for broker in life.brokers:
                if broker.name == self.host and broker.joined:
                    broker.leave()

    def start(self) -> None:
        self.machine.fuse = NEVER
        self.lives += 1
        self.world.trace.note(self.host, f"starts, life {self.lives}")
        self.life = MachineLife(self, self.store, self.ports)
        self.life.begin()

    def end(self) -> None:
        """The end of the process, without a power failure."""
        life, self.life = self.life, None
        self.process = None
        self.machine.fuse = NEVER
        if life is not None:
            life.die()

    def crash(self, power: bool) -> None:
        if self.life is None:
            return
        power = power and self.world.random.random() < 0.7
        self.world.trace.note(self.host, "POWER FAILURE" if power else "CRASH")
        self.crashes.append(self.world.schedule.now)
        self.world.seen["crashes"] += 1
        if self.process is not None:
            self.world.seen["group messages sent at once"] += self.process.state.groups.at_once
        if proposals(self.life):
            self.ports.quiet_at = self.world.schedule.now + QUIET_SECONDS
        self.end()
        if power:
            self.world.seen["power failures"] += 1
            self.store.power_failure(self.world.random)
        if len(self.snapshots) < 3:
            self.snapshots.append(self.store.snapshot())

    def lose_disk(self, old: MachineDisk | None) -> None:
        """The machine is down. ``old``: what is there instead; None: nothing."""
        assert self.life is None
        self.damaged = self.ports.incarnation
        self.store = MachineDisk(self.machine, self.world.settings.span) if old is None else old.snapshot()
