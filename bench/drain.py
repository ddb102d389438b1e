"""The return of a session with a long queue: ``python -m bench.drain`` with a Spec on stdin.

Session number 0 of ``bench.fill`` reconnects, receives its whole queue, and acknowledges each message.
"""

from __future__ import annotations

import os
import sys
import time

import msgspec

from bench.fill import name
from bench.flow import Group, Subscriber
from bench.frames import Layout
from bench.load import own_stall
from bench.loop import Loop
from bench.ping import Pings
from bench.process import cpu_seconds
from bench.wire import open_connection

QUIET_S = 3.0


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    port: int
    broker: int
    core: int
    messages: int
    tells_stall: bool = False


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """``stall_before_ms`` and ``stall_max_ms`` are the broker's maximum event loop stall before and after. Both are
    since its start, so the second is of the drain only if it is higher than the first.
    """

    delivered: int
    delivered_per_s: float
    cpu_us_per_message: float
    ping_max_ms: float
    stall_before_ms: float | None
    stall_max_ms: float | None


def run(spec: Spec) -> Outcome:
    before = own_stall(spec.port) if spec.tells_stall else None
    layout = Layout(1, 4, 64)
    loop, group = Loop(), Group(1)
    with Pings(spec.port, spec.core, 4) as pings:
        cpu, start = cpu_seconds(spec.broker), time.perf_counter()
        subscriber = Subscriber(loop, open_connection(spec.port, name(0), 4, persistent=True), layout, group)
        last, got = start, 0
        while got < spec.messages and (now := time.perf_counter()) < last + QUIET_S:
            loop.run_until(now + 0.005)
            if subscriber.delivered > got:
                got, last = subscriber.delivered, time.perf_counter()
        cpu = cpu_seconds(spec.broker) - cpu
    return Outcome(
        delivered=got,
        delivered_per_s=got / (last - start),
        cpu_us_per_message=cpu * 1e6 / max(1, got),
        ping_max_ms=pings.max_ms,
        stall_before_ms=before,
        stall_max_ms=own_stall(spec.port) if spec.tells_stall else None,
    )


def main() -> None:
    spec = msgspec.json.decode(sys.stdin.buffer.read(), type=Spec)
    os.sched_setaffinity(0, {spec.core})
    sys.stdout.buffer.write(msgspec.json.encode(run(spec)))


if __name__ == "__main__":
    main()
