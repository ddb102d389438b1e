"""A broker full of subscriptions: ``python -m bench.load`` with a Spec on stdin.

Two questions. Unrelated filters (half of them exact): do they make a PUBLISH more expensive? Wildcard filters that each
match one topic: what does matching cost, how fast are retained messages replayed, and how long do other clients wait
meanwhile?
"""

from __future__ import annotations

import os
import random
import re
import socket
import sys
import time

import msgspec

from bench.flow import Group, Publisher, Subscriber
from bench.frames import Layout, publish, subscribe
from bench.generator import delivered, flow
from bench.loop import Loop
from bench.ping import Pings
from bench.process import cpu_seconds, memory
from bench.wire import FILTERS_PER_PACKET, SetupError, open_connection, read_exactly, subscribe_all

LOADERS = 4
RETAINED_WINDOW = 100
REPLAY_QUIET_S = 1.0
SYS_WAIT_S = 1.5
STALL_TOPIC = "$SYS/broker/event_loop/stall_max_ms"
PULSE_TOPIC = "$SYS/broker/bytes/sent"
PULSE_S = 0.05


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """``topics`` distinct topics are published in turn; ``load_limit_s`` bounds the time spent on loading filters."""

    port: int
    broker: int
    core: int
    filters: int
    wildcards: bool  # filters that match, one per topic, instead of unrelated ones
    topics: int = 1_024
    retained: int = 0
    replays: int = 5
    version: int = 4
    warm_up: float = 0.5
    duration: float = 2.0
    load_limit_s: float = 60.0
    window: int = 0  # 0: flood; a broker that starves in a flood gets a window
    tells_stall: bool = False  # the broker publishes STALL_TOPIC, every second


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """``cpu_us_per_message`` is broker CPU per PUBLISH it took in; ``replay_s`` from SUBSCRIBE to the last retained
    message; ``ping_max_ms`` the longest PINGRESP as seen by a client, ``stall_max_ms`` the broker's own report."""

    filters: int
    load_s: float
    rss: int
    published_per_s: float
    delivered_per_s: float
    cpu_us_per_message: float
    retained: int
    replayed: list[int]
    replay_s: list[float]
    ping_max_ms: float
    ping_p99_ms: float
    stall_max_ms: float | None


def unrelated(number: int) -> str:
    """Return filters that match no published topic: half of them exact, the others with a wildcard at every level."""
    kinds = ("u/{n}/state", "u/{n}/set", "u/x{n}/temp", "v/{n}", "u/{n}/+/temp", "u/{n}/#", "+/y{n}/never", "u/+/{n}")
    return kinds[number % len(kinds)].format(n=number)


def matching(number: int) -> str:
    """Return wildcard filters of which exactly one matches the topic of that number."""
    return ("w/{n:05d}/+", "w/{n:05d}/#", "+/{n:05d}/ab", "w/{n:05d}/+")[number % 4].format(n=number)


def load_filters(spec: Spec) -> tuple[list[socket.socket], float]:
    """Subscribe a few clients to all filters, in large packets, round-robin; return them and the seconds taken."""
    name = matching if spec.wildcards else unrelated
    clients = [open_connection(spec.port, f"bench-load-{number}", spec.version) for number in range(LOADERS)]
    start = time.perf_counter()
    for turn, first in enumerate(range(0, spec.filters, FILTERS_PER_PACKET)):
        filters = [name(number) for number in range(first, min(first + FILTERS_PER_PACKET, spec.filters))]
        subscribe_all(clients[turn % LOADERS], filters, 0, spec.version)
        if time.perf_counter() - start > spec.load_limit_s:
            raise SetupError(f"only {first} of {spec.filters} filters were granted within {spec.load_limit_s:.0f} s")
    return clients, time.perf_counter() - start


def retain(spec: Spec) -> None:
    """Publish the retained messages with QoS 1, one window after the other."""
    sock = open_connection(spec.port, "bench-retain", spec.version)
    for first in range(0, spec.retained, RETAINED_WINDOW):
        numbers = range(first, min(first + RETAINED_WINDOW, spec.retained))
        sock.sendall(b"".join(publish(f"r/{n:08d}", b"." * 64, 1, n % 65_535 + 1, spec.version, True) for n in numbers))
        read_exactly(sock, 4 * len(numbers))
    sock.close()


def replay(spec: Spec, number: int) -> tuple[int, float]:
    """Subscribe a new client to all retained messages; return how many it received, and the seconds until the last."""
    sock = open_connection(spec.port, f"bench-replay-{number}", spec.version)
    size = len(publish("r/00000000", b"." * 64, 0, 0, spec.version, True))
    wanted, got = spec.retained * size, 0
    start = last = time.perf_counter()
    subscribe_all(sock, ["r/#"], 0, spec.version)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)  # see Connection.receive
    sock.settimeout(REPLAY_QUIET_S)
    while got < wanted:
        try:
            got += len(sock.recv(262_144))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        except TimeoutError:
            break
        last = time.perf_counter()
    sock.close()
    return got // size, last - start


def own_stall(port: int, version: int = 4) -> float | None:
    """Return the broker's last report about its event loop in ``$SYS``; None if there is none in time."""
    return stall_told(open_connection(port, "bench-sys", version), version)


def stall_told(sock: socket.socket, version: int) -> float | None:
    """Return the same report, on an open connection, which is then closed.

    The broker publishes only changed values; ``PULSE_TOPIC`` always changes, so it marks a new report.
    """
    sock.sendall(subscribe(1, [STALL_TOPIC, PULSE_TOPIC], 0, version))
    end = time.perf_counter() + SYS_WAIT_S
    data = b""
    while (left := end - time.perf_counter()) > 0:
        sock.settimeout(left)
        try:
            data += sock.recv(65_536)
        except TimeoutError:
            break
        if data.count(PULSE_TOPIC.encode()) > 1:  # the first was retained; the second belongs to the new report
            end = min(end, time.perf_counter() + PULSE_S)
    sock.close()
    last = data.rpartition(STALL_TOPIC.encode())[2] if STALL_TOPIC.encode() in data else b""
    figure = re.match(rb"[0-9.]+", last[version == 5 :])  # a SUBACK may follow
    return float(figure[0]) if figure else None


def measure(spec: Spec, clients: list[socket.socket]) -> tuple[float, float, float]:
    """Publish to the topics in turn with QoS 0; return published/s, delivered/s, CPU us per PUBLISH."""
    loop, layout, group = Loop(), Layout(0, spec.version, 64), Group(spec.window, shared=True)
    if spec.wildcards:
        source = random.Random(1)
        numbers = [source.randrange(spec.filters) for _ in range(spec.topics)]
        topics = [f"w/{number:05d}/ab" for number in numbers]
        receivers = clients
    else:
        topics = [layout.topic(number) for number in range(spec.topics)]
        receivers = [open_connection(spec.port, "bench-sub", spec.version)]
        subscribe_all(receivers[0], ["b/+"], 0, spec.version)
    for sock in receivers:
        Subscriber(loop, sock, layout, group)
    publisher = Publisher(loop, open_connection(spec.port, "bench-pub", spec.version), layout, topics, group)
    publisher.start()
    flow(loop, [group], spec.warm_up)
    start = time.perf_counter()
    sent, got, cpu = publisher.published, delivered([group]), cpu_seconds(spec.broker)
    flow(loop, [group], spec.duration)
    seconds = time.perf_counter() - start
    sent, got, cpu = publisher.published - sent, delivered([group]) - got, cpu_seconds(spec.broker) - cpu
    publisher.stop()
    loop.run_until(time.perf_counter() + 0.3)
    loop.close()
    if got == 0:
        raise SetupError(f"nothing was delivered within {seconds:.1f} s")
    # Deliveries are counted: sent messages may still be in a socket. Each message has one receiver.
    return sent / seconds, got / seconds, cpu * 1e6 / got


def run(spec: Spec) -> Outcome:
    with Pings(spec.port, spec.core, spec.version) as pings:
        clients, load_s = load_filters(spec)
        if spec.retained:
            retain(spec)
        replays = [replay(spec, number) for number in range(spec.replays if spec.retained else 0)]
        rss = memory(spec.broker).rss
        published, delivered, cpu = measure(spec, clients)
    stall = own_stall(spec.port, spec.version) if spec.tells_stall else None
    return Outcome(
        filters=spec.filters,
        load_s=load_s,
        rss=rss,
        published_per_s=published,
        delivered_per_s=delivered,
        cpu_us_per_message=cpu,
        retained=spec.retained,
        replayed=[count for count, _ in replays],
        replay_s=[seconds for _, seconds in replays],
        ping_max_ms=pings.max_ms,
        ping_p99_ms=pings.p99_ms,
        stall_max_ms=stall,
    )


def main() -> None:
    spec = msgspec.json.decode(sys.stdin.buffer.read(), type=Spec)
    os.sched_setaffinity(0, {spec.core})
    sys.stdout.buffer.write(msgspec.json.encode(run(spec)))


if __name__ == "__main__":
    main()
