"""The load generator of one NATS run: ``python -m bench.nats_generator`` with a Spec on stdin, an Outcome on stdout.

Pairs with a subject each, or one subject for all publishers and a queue group of all subscribers.
"""

from __future__ import annotations

import os
import sys
import time

import msgspec

from bench import generator
from bench.flow import Group
from bench.loop import Loop
from bench.nats_flow import NatsPublisher, NatsSubscriber
from bench.nats_frames import NatsLayout, NatsSetup, subscribed

COUNTED_MAX_S = 60.0


class Spec(generator.Spec, frozen=True, kw_only=True):
    """``queue`` is the name of the group, empty for pairs. ``messages`` measures the distribution over members: about
    so many are sent and nothing else is measured (0: run for ``duration``).
    """

    queue: str = ""
    messages: int = 0

    @property
    def copies(self) -> int:
        return 1


class Outcome(generator.Outcome, frozen=True, kw_only=True):
    members: tuple[int, ...] = ()  # messages received by each subscriber

    @property
    def per_cpu_second(self) -> float:
        """Messages per second of the broker's CPU time."""
        return self.delivered_per_s / self.broker_cpu if self.broker_cpu else 0.0

    @property
    def busiest(self) -> float:
        """Messages of the busiest member, relative to an equal share."""
        total = sum(self.members)
        return max(self.members) * len(self.members) / total if total else 0.0


def build(spec: Spec, loop: Loop) -> list[Group]:
    layout = NatsLayout(spec.payload)
    groups = [Group(spec.window, shared=bool(spec.queue)) for _ in range(1 if spec.queue else spec.publishers)]
    for number in range(spec.subscribers):
        place = number % len(groups)
        sock = subscribed(spec.subscriber_port or spec.port, layout.topic(place), spec.queue)
        NatsSubscriber(loop, sock, layout, groups[place])
    for number in range(spec.publishers):
        place = number % len(groups)
        NatsPublisher(loop, NatsSetup(spec.port).close(), layout, layout.topic(place), groups[place])
    return groups


def share_out(spec: Spec, loop: Loop, groups: list[Group]) -> None:
    """Send until about ``spec.messages`` have been delivered."""
    for publisher in groups[0].publishers:
        publisher.start()
    limit = time.perf_counter() + COUNTED_MAX_S
    while generator.delivered(groups) < spec.messages and time.perf_counter() < limit:
        loop.run_until(time.perf_counter() + generator.POLL_S)


def run(spec: Spec) -> Outcome:
    loop = Loop()
    groups = build(spec, loop)
    if spec.messages:
        share_out(spec, loop, groups)
        spec = msgspec.structs.replace(spec, warm_up=0.0, duration=generator.POLL_S)
    measured = generator.measure(spec, loop, groups)
    members = tuple(item.delivered for group in groups for item in group.subscribers)
    return Outcome(**msgspec.structs.asdict(measured), members=members)


def main() -> None:
    spec = msgspec.json.decode(sys.stdin.buffer.read(), type=Spec)
    if spec.core >= 0:
        os.sched_setaffinity(0, {spec.core})
    sys.stdout.buffer.write(msgspec.json.encode(run(spec)))


if __name__ == "__main__":
    main()
