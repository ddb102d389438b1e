"""How fast routes are: ``python -m tests.cluster.figures [ROUTES]``. The tests run it in small.

One node gets that many new filters, in batches as a turn makes them, and another one is told: originate, log, facts,
frames; apply, facts, changes. The bytes of frames and the store are not in it. The longest call is the one that takes
most processor time; the garbage collector, which a node keeps away from what is old, does not run.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from time import perf_counter, thread_time
from typing import TypeVar

from starlingmq.cluster.links.control_frames import SyncRequest
from starlingmq.cluster.links.peer_frames import Body
from starlingmq.cluster.routes.route_table import RouteTable

BATCH = 1000
LOG_LENGTH = 65536

T = TypeVar("T")


class Figures:
    def __init__(self, routes: int) -> None:
        self.longest = 0.0  # seconds
        self.found: dict[str, float] = {}
        filters = [(b"site/%d/line/%d/sensor/%d" % (n % 7, n % 101, n), 1) for n in range(routes)]
        one, two = RouteTable(1, 1, {}, LOG_LENGTH), RouteTable(2, 1, {}, LOG_LENGTH)
        gc.collect()
        gc.disable()
        try:
            self.measure(one, two, filters)
        finally:
            gc.enable()

    def measure(self, one: RouteTable, two: RouteTable, filters: list[tuple[bytes, int]]) -> None:
        routes = len(filters)
        one.restart({})
        two.restart({})
        self.synchronise(one, two)
        self.tell(one, two, filters)
        assert two.vector()[1] == (1, routes)
        late = RouteTable(3, 1, {}, LOG_LENGTH)
        begin = perf_counter()
        self.synchronise(one, late)
        self.found["routes/s by snapshot, both ends"] = routes / (perf_counter() - begin)
        assert late.vector()[1] == (1, routes)
        self.found["longest call, ms"] = self.longest * 1e3

    def timed(self, call: Callable[[], T]) -> T:
        begin = thread_time()
        result = call()
        self.longest = max(self.longest, thread_time() - begin)
        return result

    def tell(self, one: RouteTable, two: RouteTable, filters: list[tuple[bytes, int]]) -> None:
        sending = 0.0
        bodies: list[Body] = []
        for start in range(0, len(filters), BATCH):
            records = filters[start : start + BATCH]
            begin = perf_counter()
            self.timed(lambda records=records: one.originate(records))  # type: ignore[misc]
            bodies += [body for _, body in self.timed(one.take_out)]
            self.timed(one.take_facts)
            sending += perf_counter() - begin
        begin = perf_counter()
        for body in bodies:
            two.received(1, body, 0.0)
            self.turn(two)
        self.found["routes/s originated, kept and told"] = len(filters) / sending
        self.found["routes/s applied and kept"] = len(filters) / (perf_counter() - begin)

    def turn(self, routes: RouteTable) -> list[tuple[int | None, Body]]:
        self.timed(routes.take_changes)
        out = self.timed(routes.take_out)
        self.timed(routes.take_facts)
        return out

    def synchronise(self, one: RouteTable, other: RouteTable) -> None:
        one.received(other.me, SyncRequest(0, 0), 0.0)
        while one.pending() or other.pending():
            for _, body in self.turn(one):
                self.timed(lambda body=body: other.received(one.me, body, 0.0))  # type: ignore[misc]
            self.turn(other)


if __name__ == "__main__":
    for name, value in Figures(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000).found.items():
        print(f"{name:40} {value:12,.1f}")
