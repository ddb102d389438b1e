"""The limits by the model: the load of a fleet, compared with the capacity of a node and a link."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from bench.scale.costs import Costs
from bench.scale.model import Fitted

GIB = 2**30
NODES_MAX = 100


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """The behaviour of each client; the same in the whole page."""

    report_s: float = 30.0  # seconds between two messages, at QoS 1, each to one subscriber
    command_s: float = 300.0  # seconds between two messages to it
    ping_s: float = 60.0  # keep-alive
    visit_s: float = 3_600.0  # seconds until it reconnects, to any node: 1/N of the clients return to theirs
    storm_s: float = 300.0  # seconds in which all reconnect after a network failure


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """The capacities of a node."""

    core: float = 0.6  # share of the one core that a node's event loop may take
    memory: float = 0.7 * 32 * GIB  # bytes of a node
    link: float = 0.5 * 1.25e9  # bytes per second that a node may send, half of 10 Gbit/s
    summary_min: int = 10_000  # cluster.route_summary_min: from so many clients of a node on, it tells a summary


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

    def cpu(name: str) -> float:
        return laws[name, "us of CPU"].predict(nodes)

    def core(coming: float) -> float:
        """Return microseconds per second when so many clients connect to a node. The work of a takeover is that of all
        nodes, so it contains the filters that other nodes tell."""
        passing = messages * (costs.message_us + away * costs.hop_us) + each / fleet.ping_s * costs.ping_us
        return passing + coming * (costs.connection_us + away * cpu("a takeover") + (1 - away) * cpu("a return"))

    def sent(coming: float) -> float:
        """Return bytes per second that a node sends to others."""
        beats = laws["heartbeats", "bytes/s"].predict(nodes) / nodes
        moving = away * size("a takeover") + (1 - away) * size("a return")
        return beats + messages * away * size("a message to another node") + coming * moving

    filters = clients * away * (costs.filter_bytes if each < room.summary_min else costs.summary_bytes)
    memory = each * (costs.connection_bytes + 2 * costs.owner_bytes) + filters
    found = [
        Load("a node's core", core(visits) / 1e6 / room.core),
        Load("a node's core while all reconnect", core(storm) / 1e6 / room.core),
        Load("a node's memory", memory / room.memory),
        Load("filters of other nodes, of a node's memory", filters / room.memory),
        Load("traffic of a node to others", sent(visits) / room.link),
        Load("traffic of a node to others while all reconnect", sent(storm) / room.link),
    ]
    return sorted(found, key=lambda load: -load.share)


def nodes_for(clients: int, fitted: Sequence[Fitted], costs: Costs, fleet: Fleet, room: Room) -> int:
    """Return the smallest number of nodes that suffice, also while all clients reconnect; if none does, the largest one
    that the model was compared with.
    """
    for nodes in range(3, NODES_MAX):
        if loads(clients, nodes, fitted, costs, fleet, room)[0].share <= 1:
            return nodes
    return NODES_MAX
