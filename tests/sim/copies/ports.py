"""The parts that the machines of a simulated world with copies share, and a machine as the others see it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from tests.sim.copies.copied_disk import MachineDisk
from tests.sim.node import World
from tests.sim.schedule import Schedule

from starlingmq.cluster.copies.copy_roles import CopyRoles
from starlingmq.cluster.etcd.etcd_requests import Answer


class Life(Protocol):
    """A life of a machine."""

    host: str
    world: World
    schedule: Schedule
    random: Random
    disk: MachineDisk
    alive: bool

    @property
    def roles(self) -> CopyRoles: ...
    def enter(self, call: Callable[[], object]) -> None: ...
    def answered(self, answer: Answer) -> None: ...
    def serve_copy(self, pipe: Any, name: str) -> None: ...
    def failed(self, error: Exception) -> None: ...
    def trace_records(self) -> None: ...


class Ports:
    """``lives``: by machine, who listens for copies. ``incarnation``: the last one that was given to a process.
    ``quiet_at``: since then no dead process may have had a change of a record under way."""

    def __init__(self) -> None:
        self.lives: dict[str, Life] = {}
        self.incarnation = 0
        self.quiet_at = 0.0

    def next_incarnation(self) -> int:
        self.incarnation += 1
        return self.incarnation
