"""The limits by the model: the load of a fleet, compared with the capacity of a node, a link and etcd."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from bench.scale.costs import Costs
from bench.scale.model import Fitted

GIB = 2**30


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """The behaviour of each client; the same in the whole page."""

    report_s: float = 30.0  # seconds between two messages, at QoS 1, each to one subscriber
    command_s: float = 300.0  # seconds between two messages to it
    ping_s: float = 60.0  # keep-alive; counted like a message, which it costs less than
    visit_s: float = 3_600.0  # seconds until it reconnects, to any node
    storm_s: float = 300.0  # seconds in which all reconnect after a network failure


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """The capacities. etcd: its documentation recommends at most 8 GiB per store; its writes are those of three
    machines with a disk each, far below the figures of the same page for large batches of small keys.
    """

    core: float = 0.6  # share of the one core that a node's event loop may take
    memory: float = 0.7 * 32 * GIB  # bytes of a node
    link: float = 0.5 * 1.25e9  # bytes per second that a node may send, half of 10 Gbit/s
    etcd_writes: float = 10_000.0  # keys per second
    etcd_bytes: float = 8 * GIB
    etcd_overhead: float = 4.0  # bytes on disk per byte of keys and values: pages, revisions until compaction


class Load(msgspec.Struct, frozen=True):
    """``share`` of the capacity; above 1 it does not work."""

    name: str
    share: float


def loads(clients: int, nodes: int, fitted: Sequence[Fitted], costs: Costs, fleet: Fleet, room: Room) -> list[Load]:
    """Return the load of each resource of this cluster, the highest first."""
    laws = {(each.law.name, each.law.unit): each for each in fitted}

    def size(name: str) -> float:
        return laws[name, "bytes"].predict(nodes)

    each = clients / nodes
    away = (nodes - 1) / nodes  # probability that the other end is on another node
    messages = each * (1 / fleet.report_s + 1 / fleet.command_s)
    visits, storm = each / fleet.visit_s, each / fleet.storm_s

    def core(coming: float) -> float:
        """Return microseconds per second when so many clients connect to a node."""
        passing = messages * (costs.message_us + away * costs.hop_us) + each / fleet.ping_s * costs.message_us
        told = coming * (nodes - 1) * costs.filter_us  # filters announced by all other nodes
        return passing + coming * (costs.connection_us + laws["a takeover", "us of CPU"].predict(nodes)) + told

    def sent(coming: float) -> float:
        """Return bytes per second that a node sends to others."""
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
    """Return the smallest number of nodes whose cores and memory suffice in normal operation; if none does, the one
    with the smallest deficit.
    """
    best, least = 0, float("inf")
    for nodes in range(3, most):
        found = {load.name: load.share for load in loads(clients, nodes, fitted, costs, fleet, room)}
        lacking = max(found["a node's core"], found["a node's memory"])
        if lacking <= 1:
            return nodes
        if lacking < least:
            best, least = nodes, lacking
    return best
