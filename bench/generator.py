"""The load generator of one throughput run, its own process: ``python -m bench.generator`` with a Spec on stdin.

One epoll loop holds all publishers and subscribers; a second process would have to share the generator's core.
Written to stdout: an Outcome, both as JSON.
"""

from __future__ import annotations

import os
import sys
import time

import msgspec

from bench.flow import Group, Publisher, Subscriber
from bench.frames import Layout
from bench.loop import Loop
from bench.process import core_seconds, cpu_seconds
from bench.wire import open_connection, subscribe_all

LOST_AFTER_S = 0.5
POLL_S = 0.01
FIRST_MAX_S = 5.0  # a slow broker may need seconds to deliver the first message of a flood
DRAIN_QUIET_S = 0.4
DRAIN_MAX_S = 3.0


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """One run. ``publishers`` and ``subscribers`` are either equal (pairs), or one of them is 1; ``window`` counts
    messages in flight per publisher, 0 is a flood; ``core`` is the generator's core; ``broker`` is a process id.

    In a cluster the subscribers may be on another node: at ``subscriber_port``, with ``nodes`` the process ids of all
    others. ``core`` may then be -1: the kernel places the generator.
    """

    port: int
    broker: int
    core: int
    broker_core: int
    publishers: int
    subscribers: int
    qos: int
    version: int = 4
    payload: int = 64
    window: int = 512
    warm_up: float = 0.5
    duration: float = 2.0
    persistent: bool = False  # the subscribers' sessions
    subscriber_port: int = 0  # 0: the same as ``port``
    nodes: tuple[int, ...] = ()
    login: tuple[str, str] | None = None  # user name and password of all clients

    @property
    def copies(self) -> int:
        """Deliveries of each message."""
        return self.subscribers if self.publishers == 1 else 1

    @property
    def cores(self) -> set[int]:
        """The cores of the run."""
        return {self.core, self.broker_core} if self.core >= 0 else os.sched_getaffinity(0)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Messages per second over the interval, CPU shares of one core, and messages missing after the drain."""

    delivered_per_s: float
    published_per_s: float
    broker_cpu: float
    generator_cpu: float
    others_cpu: float  # share of other processes on the two cores: above a few per cent the run was disturbed
    generator_capacity_per_s: float  # deliveries per second of its own CPU time
    published: int
    delivered: int
    missing: int
    drained: bool  # no message arrived any more before the drain's time-out: missing messages are lost
    nodes_cpu: tuple[float, ...] = ()  # of the other nodes; not in ``others_cpu``


class Mark:
    """Counts and clocks at one moment."""

    def __init__(self, spec: Spec, groups: list[Group]) -> None:
        self.time = time.perf_counter()
        self.own_cpu = time.process_time()
        self.broker_cpu = cpu_seconds(spec.broker)
        self.nodes_cpu = [cpu_seconds(pid) for pid in spec.nodes]
        self.cores = sum(core_seconds(core) for core in spec.cores)
        self.published = sum(item.published for group in groups for item in group.publishers)
        self.delivered = delivered(groups)


def build(spec: Spec, loop: Loop) -> list[Group]:
    """Pairs are as many groups, each with a topic; fan-in and fan-out are one group with one topic."""
    layout = Layout(spec.qos, spec.version, spec.payload)
    pairs = spec.publishers == spec.subscribers
    groups = [Group(spec.window) for _ in range(spec.publishers if pairs else 1)]
    for number in range(spec.subscribers):
        place = number % len(groups)
        port = spec.subscriber_port or spec.port
        sock = open_connection(port, f"bench-sub-{number}", spec.version, spec.persistent, spec.login)
        subscribe_all(sock, [layout.topic(place)], spec.qos, spec.version)
        Subscriber(loop, sock, layout, groups[place])
    for number in range(spec.publishers):
        place = number % len(groups)
        sock = open_connection(spec.port, f"bench-pub-{number}", spec.version, login=spec.login)
        Publisher(loop, sock, layout, [layout.topic(place)], groups[place])
    return groups


def delivered(groups: list[Group]) -> int:
    return sum(item.delivered for group in groups for item in group.subscribers)


def flow(loop: Loop, groups: list[Group], seconds: float) -> None:
    """Run for this time, and longer until a message was delivered; at intervals, messages that never arrived are
    written off.
    """
    start = time.perf_counter()
    end, limit = start + seconds, start + seconds + FIRST_MAX_S
    before = delivered(groups)
    while (now := time.perf_counter()) < end or (now < limit and delivered(groups) == before):
        loop.run_until(min(now + LOST_AFTER_S, max(end, now + POLL_S)))
        for group in groups:
            group.forgive_lost()


def drain(spec: Spec, loop: Loop, groups: list[Group]) -> tuple[Mark, bool]:
    """Stop, and wait until everything has arrived, or nothing has for a while; False if messages still arrived."""
    for group in groups:
        for publisher in group.publishers:
            publisher.stop()
    limit = time.perf_counter() + DRAIN_MAX_S
    before = -1
    while True:
        mark = Mark(spec, groups)
        if mark.delivered in (before, spec.copies * mark.published) or mark.time > limit:
            return mark, mark.time <= limit
        before = mark.delivered
        loop.run_until(mark.time + DRAIN_QUIET_S)


def run(spec: Spec) -> Outcome:
    loop = Loop()
    return measure(spec, loop, build(spec, loop))


def measure(spec: Spec, loop: Loop, groups: list[Group]) -> Outcome:
    """Start the publishers, measure, and stop them."""
    for group in groups:
        for publisher in group.publishers:
            publisher.start()
    flow(loop, groups, spec.warm_up)
    start = Mark(spec, groups)
    flow(loop, groups, spec.duration)
    end = Mark(spec, groups)
    last, drained = drain(spec, loop, groups)
    loop.close()
    seconds = end.time - start.time
    rate = (end.delivered - start.delivered) / seconds
    own = (end.own_cpu - start.own_cpu) / seconds
    broker = (end.broker_cpu - start.broker_cpu) / seconds
    nodes = tuple((after - before) / seconds for before, after in zip(start.nodes_cpu, end.nodes_cpu, strict=True))
    return Outcome(
        delivered_per_s=rate,
        published_per_s=(end.published - start.published) / seconds,
        broker_cpu=broker,
        generator_cpu=own,
        others_cpu=max(0.0, (end.cores - start.cores) / seconds - own - broker - sum(nodes)),
        generator_capacity_per_s=rate / own if own else 0.0,
        published=last.published,
        delivered=last.delivered,
        missing=spec.copies * last.published - last.delivered,
        drained=drained,
        nodes_cpu=nodes,
    )


def main() -> None:
    spec = msgspec.json.decode(sys.stdin.buffer.read(), type=Spec)
    if spec.core >= 0:
        os.sched_setaffinity(0, {spec.core})
    sys.stdout.buffer.write(msgspec.json.encode(run(spec)))


if __name__ == "__main__":
    main()
