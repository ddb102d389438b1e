"""How far the model reaches: what a fleet asks of a cluster, beside what a node, a link and etcd can give."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from bench.scale.costs import Costs
from bench.scale.model import Fitted

GIB = 2**30


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """What each client does; the same everywhere in this page."""

    report_s: float = 30.0  # seconds between two messages, at QoS 1, each to one subscriber
    command_s: float = 300.0  # seconds between two messages to it
    ping_s: float = 60.0  # keep-alive; counted like a message, which it costs less than
    visit_s: float = 3_600.0  # seconds until it comes back, to any node
    storm_s: float = 300.0  # seconds in which all come back after a failure of the network


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """What there is. etcd: its own documentation names 8 GiB as the most that a store should have; its writes are
    those of three machines with a disk each, far below what the same page measures for large batches of small keys."""

    core: float = 0.6  # share of the one core that a node's event loop may take
    memory: float = 0.7 * 32 * GIB  # bytes of a node
    link: float = 0.5 * 1.25e9  # bytes a second that a node may send, half of 10 Gbit/s
    etcd_writes: float = 10_000.0  # keys a second
    etcd_bytes: float = 8 * GIB
    etcd_overhead: float = 4.0  # bytes on disk for each of keys and values: pages, revisions until compaction


class Load(msgspec.Struct, frozen=True):
    """``share`` of what there is; above 1 it does not work."""

    name: str
    share: float


def loads(clients: int, nodes: int, fitted: Sequence[Fitted], costs: Costs, fleet: Fleet, room: Room) -> list[Load]:
    """What this cluster would need of each thing, the most first."""
    laws = {(each.law.name, each.law.unit): each for each in fitted}

    def size(name: str) -> float:
        return laws[name, "bytes"].predict(nodes)

    each = clients / nodes
    away = (nodes - 1) / nodes  # that the other end is at another node
    messages = each * (1 / fleet.report_s + 1 / fleet.command_s)
    visits, storm = each / fleet.visit_s, each / fleet.storm_s

    def core(coming: float) -> float:
        """Microseconds a second when so many clients come to a node."""
        passing = messages * (costs.message_us + away * costs.hop_us) + each / fleet.ping_s * costs.message_us
        told = coming * (nodes - 1) * costs.filter_us  # what all others tell
        return passing + coming * (costs.connection_us + laws["a takeover", "us of CPU"].predict(nodes)) + told

    def sent(coming: float) -> float:
        """Bytes a second that a node sends to others."""
        beats = laws["heartbeats", "bytes/s"].predict(nodes) / nodes
        return beats + messages * away * size("a message to another node") + coming * size("a takeover")

    writes = laws["a takeover", "etcd writes"].predict(nodes)
    memory = each * costs.connection_bytes + clients * away * costs.filter_bytes
    found = [
        Load("a node's core", core(visits) / 1e6 / room.core),
        Load("a node's core while all reconnect", core(storm) / 1e6 / room.core),
        Load("a node's memory", memory / room.memory),
        Load("filters of other nodes, of a node's memory", clients * away * costs.filter_bytes / room.memory),
        Load("traffic of a node to others", sent(visits) / room.link),
        Load("traffic of a node to others while all reconnect", sent(storm) / room.link),
        Load("etcd writes", clients / fleet.visit_s * writes / room.etcd_writes),
        Load("etcd writes while all reconnect", clients / fleet.storm_s * writes / room.etcd_writes),
        Load("data in etcd", clients * size("a client id in etcd") * room.etcd_overhead / room.etcd_bytes),
    ]
    return sorted(found, key=lambda load: -load.share)


def nodes_for(clients: int, fitted: Sequence[Fitted], costs: Costs, fleet: Fleet, room: Room, most: int = 200) -> int:
    """The fewest nodes whose cores and memory are enough in peace; where none are, those that lack least."""
    best, least = 0, float("inf")
    for nodes in range(3, most):
        found = {load.name: load.share for load in loads(clients, nodes, fitted, costs, fleet, room)}
        lacking = max(found["a node's core"], found["a node's memory"])
        if lacking <= 1:
            return nodes
        if lacking < least:
            best, least = nodes, lacking
    return best
