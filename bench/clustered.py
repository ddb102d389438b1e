"""Measurements of a cluster: one run each, on running nodes. CPU figures are of the node's own process, in microseconds
per published message (or route), including set-up and end of the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from bench import generator, nodes, paced, peers, storm
from bench.load import own_stall
from bench.nodes import Node
from bench.ping import Pings
from bench.process import cpu_seconds, memory

Run = Callable[[str, msgspec.Struct], bytes]


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """All clients on one node of three, and on a single broker."""

    qos: int
    alone: generator.Outcome
    clustered: generator.Outcome
    data_frames: int  # between nodes during the run


class Across(msgspec.Struct, frozen=True, kw_only=True):
    """Publisher and subscriber on different nodes. ``cpu_us``: the publisher's node, the subscriber's, the third."""

    qos: int
    outcome: generator.Outcome
    cpu_us: list[float]
    data_frames: int


class Hop(msgspec.Struct, frozen=True, kw_only=True):
    """The same paced load within a node, and between two nodes."""

    qos: int
    same: paced.Outcome
    across: paced.Outcome
    cpu_us: list[float]  # of a message between nodes: on its publisher's node, its subscriber's, the third

    @property
    def added_ms(self) -> float:
        """Median latency added by the hop between nodes."""
        return (self.across.latency_us[0] - self.same.latency_us[0]) / 1e3


class Storm(msgspec.Struct, frozen=True, kw_only=True):
    """New filters on one node; ``message_*`` is the latency of messages meanwhile, from that node to another one."""

    outcome: storm.Outcome
    message_max_ms: float
    message_p99_ms: float
    stall_ms: list[float | None]  # of each node's event loop, as it reports
    cpu_us: list[float]  # per route, on the node with the new filters and on both others
    rss_per_route: list[float]
    bytes_per_peer: float  # bytes of the routes
    missed: int  # routes made while a node was stopped
    sync_bytes: int  # received by this node from its start until it had them


class Quiet(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of a core that idle nodes and their etcds use."""

    broker: list[float]
    etcd: list[float]


def beside(found: list[Node], alone: peers.Broker, spec: generator.Spec, run: Run) -> Beside:
    """``spec`` is for the node; ``alone`` gets the same load. Node and broker use one core alternately."""
    node = found[0]
    node.pin({spec.broker_core})
    first = outcome(run, msgspec.structs.replace(spec, port=alone.port, broker=alone.pid))
    before = nodes.data_frames(found)
    second = outcome(run, spec)
    frames = nodes.data_frames(found) - before
    return Beside(qos=spec.qos, alone=first, clustered=second, data_frames=frames)


def across(found: list[Node], spec: generator.Spec, run: Run) -> Across:
    before, cpu = nodes.data_frames(found), [node.cpu() for node in found]
    result = outcome(run, spec)
    used = [(node.cpu() - start) * 1e6 / result.published for node, start in zip(found, cpu, strict=True)]
    frames = nodes.data_frames(found) - before
    return Across(qos=spec.qos, outcome=result, cpu_us=used, data_frames=frames)


def outcome(run: Run, spec: generator.Spec) -> generator.Outcome:
    return msgspec.json.decode(run("generator", spec), type=generator.Outcome)


def hop(found: list[Node], spec: paced.Spec, core: int, run: Run) -> Hop:
    """All nodes share a core, because the generator needs its own."""
    for node in found:
        node.pin({core})
    same = msgspec.json.decode(run("paced", spec), type=paced.Outcome)
    cpu = [node.cpu() for node in found]
    other = msgspec.json.decode(
        run("paced", msgspec.structs.replace(spec, subscriber_port=found[1].port)), type=paced.Outcome
    )
    messages = spec.rate * (spec.warm_up + spec.duration)
    used = [(node.cpu() - start) * 1e6 / messages for node, start in zip(found, cpu, strict=True)]
    return Hop(qos=spec.qos, same=same, across=other, cpu_us=used)


def take_by_storm(found: list[Node], filters: int, after: int) -> Storm:
    first, second, third = found
    resident = [memory(node.pid).rss for node in found]
    clients = storm.Storm(first.port, filters)
    with Pings(first.port, -1, storm.VERSION, second.port) as pings:
        sent, cpu = first.status()["traffic"]["bytes_out"], [node.cpu() for node in found]
        result = clients.run()
        used = [(node.cpu() - start) * 1e6 / filters for node, start in zip(found, cpu, strict=True)]
        sent = first.status()["traffic"]["bytes_out"] - sent
    nodes.until_routes(found, first.name, filters)
    grown = [(memory(node.pid).rss - start) / filters for node, start in zip(found, resident, strict=True)]
    stalls = [own_stall(node.port) for node in found]
    nodes.end(third)
    later = storm.Storm(first.port, after, filters)
    later.run()
    with nodes.again(third) as back:
        nodes.until_routes([back], first.name, filters + after)
        received = back.status()["traffic"]["bytes_in"]
    later.close()
    clients.close()
    return Storm(
        outcome=result,
        message_max_ms=pings.max_ms,
        message_p99_ms=pings.p99_ms,
        stall_ms=stalls,
        cpu_us=used,
        rss_per_route=grown,
        bytes_per_peer=sent / (len(found) - 1),
        missed=after,
        sync_bytes=received,
    )


def quiet(found: list[Node], settle: float, seconds: float) -> Quiet:
    time.sleep(settle)
    start = time.perf_counter()
    brokers, etcds = [node.cpu() for node in found], [cpu_seconds(node.etcd) for node in found]
    time.sleep(seconds)
    passed = time.perf_counter() - start
    return Quiet(
        broker=[(node.cpu() - before) / passed for node, before in zip(found, brokers, strict=True)],
        etcd=[(cpu_seconds(node.etcd) - before) / passed for node, before in zip(found, etcds, strict=True)],
    )
