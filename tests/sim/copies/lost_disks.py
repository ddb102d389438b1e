"""Disks that are lost, or put back to an earlier state, in worlds with copies: never more than the copies allow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Protocol, cast

from tests.sim.copies.copied_node import CopiedNode, proposals
from tests.sim.etcd_shell import EtcdShell
from tests.sim.node import Node
from tests.sim.schedule import Schedule
from tests.sim.seen import Seen
from tests.sim.trace import Trace

from starlingmq.cluster.copies.copy_record import record_from

PREFIX = b"/starlingmq/starling/copies/"
TRY_AGAIN = 0.3  # seconds


class LosingWorld(Protocol):
    schedule: Schedule
    trace: Trace
    seen: Seen
    etcd: EtcdShell
    nodes: list[Node]
    by_host: dict[str, Node]

    def start_if_wanted(self, node: Node) -> None: ...
    def undo_after(self, seconds: float, end: Callable[[], None], told: str) -> None: ...


def whole(world: LosingWorld, origin: str) -> list[str]:
    """The nodes in step whose disk is what the record means."""
    found = world.etcd.model.store.get(PREFIX + origin.encode())
    in_step: Mapping[str, int] = record_from(origin, found[0].value).in_step if found else {}
    return [name for name, incarnation in in_step.items() if incarnation > _node(world, name).damaged]


def _node(world: LosingWorld, name: str) -> CopiedNode:
    return cast(CopiedNode, world.by_host[name])


def _may_lose(world: LosingWorld, node: CopiedNode) -> bool:
    """Whether each origin keeps a whole copy in step without that disk, whatever is under way."""
    if world.schedule.now < node.ports.quiet_at:
        return False
    under_way = [each for life in node.ports.lives.values() for each in proposals(life)]
    for origin in world.by_host:
        there = set(whole(world, origin))
        pending = [set(each.in_step) for each in under_way if each.origin == origin]
        if there:
            pending = [there, *[there & left for left in pending]]
        if any(left <= {node.host} for left in pending):  # the first record may be under way
            return False
    return True


def lose_disk(world: LosingWorld, random: Random, seconds: float, until: float) -> None:
    """A machine dies, and is back after ``seconds`` with an empty disk or an old one."""
    nodes: Sequence[Node] = [node for node in world.nodes if not node.gone and node.running and not node.leaving]
    able = [node for node in cast(list[CopiedNode], nodes) if _may_lose(world, node)]
    if not able:
        if world.schedule.now < until:
            world.schedule.after(TRY_AGAIN, lose_disk, world, random, seconds, until)
        return
    node = random.choice(able)
    old = random.choice([None, None, *node.snapshots])
    node.down += 1
    node.crash(node.world.settings.power)
    world.trace.note(node.host, "has LOST ITS DISK" if old is None else "has an OLD DISK")
    world.seen["disks lost" if old is None else "old disks"] += 1
    node.lose_disk(old)

    def end() -> None:
        node.down = max(0, node.down - 1)
        world.start_if_wanted(node)

    world.undo_after(seconds, end, "the loss of a disk")
