"""QoS 1 into the queues of disconnected clients: ``python -m bench.offline`` with a Spec on stdin.

As many persistent sessions as publishers, a topic each; the result is the rate of acknowledgements.
"""

from __future__ import annotations

import os
import sys
import time

import msgspec

from bench.fill import DISCONNECT
from bench.flow import Group, Publisher
from bench.frames import Layout
from bench.loop import Loop
from bench.process import core_seconds, cpu_seconds
from bench.wire import open_connection, subscribe_all


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """``window`` counts unacknowledged messages of each publisher."""

    port: int
    broker: int
    core: int
    broker_core: int
    publishers: int
    window: int
    warm_up: float = 0.5
    duration: float = 2.0


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Acknowledged messages per second, and CPU shares of one core (see ``bench.generator.Outcome``)."""

    stored_per_s: float
    stored: int
    broker_cpu: float
    generator_cpu: float
    others_cpu: float


class Unheard(Group):
    """A group without receivers: an acknowledged message counts as done."""

    def delivered(self) -> int:
        return self.released - sum(publisher.unfinished for publisher in self.publishers)


class Mark:
    def __init__(self, spec: Spec, groups: list[Unheard]) -> None:
        self.time = time.perf_counter()
        self.own_cpu = time.process_time()
        self.broker_cpu = cpu_seconds(spec.broker)
        self.cores = sum(core_seconds(core) for core in {spec.core, spec.broker_core})
        self.stored = sum(group.delivered() for group in groups)


def build(spec: Spec, loop: Loop) -> list[Unheard]:
    layout = Layout(1, 4, 64)
    groups = []
    for number in range(spec.publishers):
        group, topic = Unheard(spec.window), layout.topic(number)
        sock = open_connection(spec.port, f"bench-away-{number}", 4, persistent=True)
        subscribe_all(sock, [topic], 1, 4)
        sock.sendall(DISCONNECT)
        sock.close()
        Publisher(loop, open_connection(spec.port, f"bench-pub-{number}", 4), layout, [topic], group)
        groups.append(group)
    return groups


def run(spec: Spec) -> Outcome:
    loop = Loop()
    groups = build(spec, loop)
    for group in groups:
        group.publishers[0].start()
    loop.run_until(time.perf_counter() + spec.warm_up)
    start = Mark(spec, groups)
    loop.run_until(start.time + spec.duration)
    end = Mark(spec, groups)
    loop.close()
    seconds = end.time - start.time
    own = (end.own_cpu - start.own_cpu) / seconds
    broker = (end.broker_cpu - start.broker_cpu) / seconds
    return Outcome(
        stored_per_s=(end.stored - start.stored) / seconds,
        stored=end.stored,
        broker_cpu=broker,
        generator_cpu=own,
        others_cpu=max(0.0, (end.cores - start.cores) / seconds - own - broker),
    )


def main() -> None:
    spec = msgspec.json.decode(sys.stdin.buffer.read(), type=Spec)
    os.sched_setaffinity(0, {spec.core})
    sys.stdout.buffer.write(msgspec.json.encode(run(spec)))


if __name__ == "__main__":
    main()
