"""The faults of a world: each fault is drawn with its beginning and its end, and is undone at the end.

A fault is a function that begins it and returns the function that ends it. Every fault can begin at any time, in any
order, and more than once at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from tests.sim.groups import primaries
from tests.sim.node import Node

if TYPE_CHECKING:
    from tests.sim.world import World

End = Callable[[], None]
Fault = Callable[["World", Random], End]


def nothing() -> None:
    pass


def some_node(world: World, random: Random) -> Node:
    return random.choice([node for node in world.nodes if not node.gone])


def crash(world: World, random: Random) -> End:
    """A node dies, somewhere in what it does next; with ``power`` what is not synced is lost in part."""
    node = some_node(world, random)
    node.down += 1
    node.machine.fuse = random.randint(0, 12)
    soon = 0.05 + 0.5 * random.random()
    if node.process is not None:
        world.schedule.after(soon, die, node, node.process)

    def end() -> None:
        die(node, None)
        let_up(world, node)

    return end


def crash_now(world: World, random: Random) -> End:
    return take_down(world, some_node(world, random))


def die(node: Node, process: object) -> None:
    """The end of a node whose fuse has not burnt down: it had little to do."""
    if node.running and (process is None or node.process is process):
        node.crash(node.world.settings.power)


def crash_all(world: World, random: Random) -> End:
    """The lights go out."""
    ends = [take_down(world, node) for node in world.nodes if not node.gone]

    def end() -> None:
        for each in ends:
            each()

    return end


def let_up(world: World, node: Node) -> None:
    """One fault less keeps it down. None may be left of those before: a node that left and returns starts at once."""
    node.down = max(0, node.down - 1)
    world.start_if_wanted(node)


def take_down(world: World, node: Node) -> End:
    node.down += 1
    die(node, None)

    def end() -> None:
        let_up(world, node)

    return end


def stall(world: World, random: Random) -> End:
    """A node does nothing for a while (a pause of its machine); its input waits."""
    node = some_node(world, random)
    node.stalled_until = max(node.stalled_until, world.schedule.now + random.choice([0.05, 0.5, 2.0, 4.0]))
    world.network.changed_at = node.stalled_until
    return nothing


def freeze(world: World, node: Node, seconds: float) -> None:
    """The process of a node stands still (SIGSTOP). Frames wait in its sockets. The other nodes, which hear nothing
    from it, close their connections with it, and get no answer on new ones."""
    silence = 2 * world.settings.cluster.member_timeout
    world.trace.note(node.host, f"stands still for {seconds:g} s")
    node.stalled_until = max(node.stalled_until, world.schedule.now + seconds)
    world.network.changed_at = node.stalled_until
    world.network.frozen_until[node.host] = node.stalled_until
    if seconds > silence:
        world.seen["connections with a frozen node closed"] += 1
        world.schedule.after(silence, node.given_up)


def cut_ways(world: World, ways: list[tuple[str, str]]) -> End:
    world.network.cut(ways)
    return lambda: world.network.heal(ways)


def cut_pair(world: World, random: Random) -> End:
    one, other = random.sample(world.hosts, 2)
    return cut_ways(world, [(one, other), (other, one)])


def cut_one_way(world: World, random: Random) -> End:
    one, other = random.sample(world.hosts, 2)
    return cut_ways(world, [(one, other)])


def cut_off(world: World, random: Random) -> End:
    """A node reaches no other one, or no other one reaches it, or both."""
    one = random.choice(world.hosts)
    others = [host for host in world.hosts if host != one]
    kind = random.randrange(3)
    ways = [(one, other) for other in others] if kind != 1 else []
    ways += [(other, one) for other in others] if kind != 0 else []
    return cut_ways(world, ways)


def cut_off_for_long(world: World, random: Random) -> End:
    """A node and the others cannot reach each other, but etcd and its clients reach it."""
    one = random.choice(world.hosts)
    others = [host for host in world.hosts if host != one]
    return cut_ways(world, [(one, other) for other in others] + [(other, one) for other in others])


def part(world: World, random: Random) -> End:
    """Two groups that do not reach each other, or only one way."""
    hosts = random.sample(world.hosts, len(world.hosts))
    place = random.randint(1, len(hosts) - 1)
    ways = [(one, other) for one in hosts[:place] for other in hosts[place:]]
    if random.random() < 0.7:
        ways += [(other, one) for one, other in ways]
    return cut_ways(world, ways)


def end_proxy(world: World, ways: list[tuple[str, str]]) -> End:
    both = [*ways, *[(target, source) for source, target in ways]]
    world.network.look_ended(both)
    return lambda: world.network.heal(both)


def proxy_between_two_ends(world: World, random: Random) -> End:
    """To each of two nodes it looks as if the process of the other had ended."""
    one, other = random.sample(world.hosts, 2)
    return end_proxy(world, [(one, other)])


def proxy_of_one_ends(world: World, random: Random) -> End:
    """To all others it looks as if the process of a node had ended, and to that node as if all others had."""
    one = random.choice(world.hosts)
    return end_proxy(world, [(one, other) for other in world.hosts if other != one])


def loses(world: World, random: Random) -> End:
    """All frames of one way are lost, and neither end is told."""
    one, other = random.sample(world.hosts, 2)
    world.network.losing.append((one, other))
    return lambda: world.network.losing.remove((one, other))


def cut_client(world: World, random: Random) -> End:
    random.choice(world.people).cut()
    return nothing


def etcd_without_leader(world: World, random: Random) -> End:
    world.seen["losses of the leader"] += 1
    world.etcd.lose_leader(random.choice([0.1, 1.0, 5.0]))
    return nothing


def etcd_answers_late(world: World, random: Random) -> End:
    """Watch events overtake answers."""
    world.etcd.model.late = 0.2

    def end() -> None:
        world.etcd.model.late = 0.0

    return end


def etcd_compacts(world: World, random: Random) -> End:
    world.etcd.compact()
    return nothing


def lease_expires(world: World, random: Random) -> End:
    world.etcd.expire_lease(random.choice(world.hosts))
    return nothing


def cut_from_etcd(world: World, random: Random) -> End:
    host = random.choice(world.hosts)
    world.etcd.cut(host)
    return lambda: world.etcd.heal(host)


def disk_fails(world: World, random: Random) -> End:
    """A disk takes no records, or does not sync, or no checkpoints, or nothing; each time, or half of them."""
    machine = some_node(world, random).machine
    machine.sick = random.choice([("append",), ("sync",), ("write",), ("append", "sync", "write", "drop")])
    machine.sickness = random.choice([1.0, 1.0, 0.5])

    def end() -> None:
        machine.sick = ()

    return end


def dies_behind_a_cut(world: World, random: Random) -> End:
    """No other node hears a node any more; it dies, and the frames that it had sent arrive after its restart."""
    node = some_node(world, random)
    end = cut_ways(world, [(node.host, other) for other in world.hosts if other != node.host])
    node.down += 1
    if node.process is not None:
        world.schedule.after(0.3 * random.random(), die, node, node.process)

    def live_and_be_heard() -> None:
        die(node, None)
        let_up(world, node)
        end()

    return live_and_be_heard


def syncs_fail(world: World, random: Random) -> End:
    machine = some_node(world, random).machine
    machine.sick, machine.sickness = ("sync",), 1.0

    def end() -> None:
        machine.sick = ()

    return end


def falls_behind(world: World, random: Random) -> End:
    """A node is cut from etcd, which by the end has compacted what it missed."""
    end = cut_from_etcd(world, random)

    def compact_and_heal() -> None:
        world.etcd.compact()
        end()

    return compact_and_heal


def joins_apart(world: World, random: Random) -> End:
    """A new node joins, and reaches only one of the others, which reaches no other node."""
    world.join()
    near = {world.hosts[-1], random.choice(world.hosts[:-1])}
    far = [host for host in world.hosts if host not in near]
    ways = [(one, other) for one in near for other in far]
    return cut_ways(world, ways + [(other, one) for one, other in ways])


def _primary(world: World, random: Random) -> Node:
    """One that is the primary of a group, or any node."""
    return random.choice(primaries(world) or [node for node in world.nodes if not node.gone])


def primary_dies(world: World, random: Random) -> End:
    """At any step of what it does."""
    return _dies(world, random, _primary(world, random))


def writer_dies(world: World, random: Random) -> End:
    """One that may hand over what entered there before any primary knows of it, at any step of what it does."""
    allowed = [
        node
        for node in world.nodes
        if node.process is not None and any(group.standing for group in node.process.state.router.groups())
    ]
    return _dies(world, random, random.choice(allowed) if allowed else _primary(world, random))


def _dies(world: World, random: Random, node: Node) -> End:
    node.down += 1
    node.machine.fuse = random.randint(0, 12)
    if node.process is not None:
        world.schedule.after(0.3 * random.random(), die, node, node.process)

    def end() -> None:
        die(node, None)
        let_up(world, node)

    return end


def primary_is_cut(world: World, random: Random) -> End:
    """From one of the nodes that it pulls from, both ways or one."""
    one = _primary(world, random).host
    other = random.choice([host for host in world.hosts if host != one])
    ways = [(one, other), (other, one)]
    return cut_ways(world, ways[: random.choice([1, 2, 2])])


def primary_loses_its_key(world: World, random: Random) -> End:
    """Its lease is over and it does not hear of it: another one is elected beside it."""
    host = _primary(world, random).host
    world.etcd.cut(host)
    world.etcd.expire_lease(host)
    return lambda: world.etcd.heal(host)


COMMON: tuple[tuple[Fault, int], ...] = (
    (crash, 6),
    (crash_all, 1),
    (stall, 2),
    (cut_pair, 3),
    (cut_one_way, 3),
    (cut_off, 3),
    (part, 3),
    (cut_client, 4),
    (etcd_without_leader, 1),
    (etcd_compacts, 2),
    (lease_expires, 1),
    (cut_from_etcd, 2),
)
"""Faults and their weights."""
RARE: tuple[Fault, ...] = (disk_fails, falls_behind)
"""Those that only some worlds have."""
