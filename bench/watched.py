"""A broker with many clients and an open dashboard: ``python -m bench.watched`` with a Spec on stdin.

An open dashboard makes the requests of its page (``ui/app.js``), its views in turn, and Prometheus scrapes. The cost is
the broker's CPU time compared with an equal period before, without requests.
"""

from __future__ import annotations

import http.client
import os
import re
import select
import sys
import time

import msgspec

from bench.idle import FIRST, Client, bring_up
from bench.idle import Spec as IdleSpec
from bench.load import own_stall
from bench.ping import Pings
from bench.process import cpu_seconds
from bench.wire import SetupError

FILES = ("/", "/ui/style.css", "/ui/icon.svg", "/ui/app.js", "/api/v1/overview")  # the first page, with all imports
IMPORTED = re.compile(rb'from "\./([\w.]+)"')
VIEWS = ("cluster/overview", "clients", "sessions", "retained", "groups", "streams", "nodes")
FIRST_PAGES = 5


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """Periods in seconds. Requests and scrapes coincide from time to time, as in practice."""

    port: int
    http_port: int
    broker: int
    core: int
    connections: int = 10_000
    settle_s: float = 1.0
    duration: float = 20.0
    look_every: float = 2.0
    scrape_every: float = 5.0


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """CPU as shares of one core; ``first_page_s`` is the slowest of a few, each with its own connections."""

    connections: int
    unwatched_cpu: float
    watched_cpu: float
    looks: int
    scrapes: int
    look_max_ms: float
    scrape_max_ms: float
    first_page_bytes: int
    first_page_s: float
    ping_max_ms: float
    ping_p99_ms: float
    unwatched_ping_max_ms: float
    stall_max_ms: float | None

    @property
    def costs(self) -> float:
        return self.watched_cpu - self.unwatched_cpu


def get(connection: http.client.HTTPConnection, path: str) -> bytes:
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    if answer.status != 200:
        raise SetupError(f"GET {path} was answered with {answer.status}")
    return body


def first_page(port: int) -> tuple[int, float]:
    """Return the total bytes, and seconds."""
    start = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    size, wanted = 0, list(FILES)
    for path in wanted:  # which grows, as a browser learns of modules
        body = get(connection, path)
        size += len(body)
        if path.endswith(".js"):
            found = (f"/ui/{name.decode()}" for name in IMPORTED.findall(body))
            wanted += [each for each in dict.fromkeys(found) if each not in wanted]
    connection.close()
    return size, time.perf_counter() - start


class Watching:
    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.page = http.client.HTTPConnection("127.0.0.1", spec.http_port, timeout=30)
        self.prometheus = http.client.HTTPConnection("127.0.0.1", spec.http_port, timeout=30)
        self.looks: list[float] = []  # milliseconds each
        self.scrapes: list[float] = []

    def look(self) -> None:
        start = time.perf_counter()
        get(self.page, "/api/v1/overview")
        get(self.page, f"/api/v1/{VIEWS[len(self.looks) % len(VIEWS)]}")
        self.looks.append((time.perf_counter() - start) * 1e3)

    def scrape(self) -> None:
        start = time.perf_counter()
        get(self.prometheus, "/metrics")
        self.scrapes.append((time.perf_counter() - start) * 1e3)

    def run(self) -> None:
        start = time.perf_counter()
        while (now := time.perf_counter() - start) < self.spec.duration:
            if now >= len(self.looks) * self.spec.look_every:
                self.look()
            if now >= len(self.scrapes) * self.spec.scrape_every:
                self.scrape()
            due = min(len(self.looks) * self.spec.look_every, len(self.scrapes) * self.spec.scrape_every)
            time.sleep(max(0.0, min(due, self.spec.duration) - (time.perf_counter() - start)))
        self.page.close()
        self.prometheus.close()


def run(spec: Spec) -> Outcome:
    poll = select.epoll()
    clients: dict[int, Client] = {}
    idle = IdleSpec(port=spec.port, broker=spec.broker, core=spec.core)
    bring_up(idle, poll, clients, 0, min(FIRST, spec.connections))
    bring_up(idle, poll, clients, FIRST, max(0, spec.connections - FIRST))
    pages = [first_page(spec.http_port) for _ in range(FIRST_PAGES)]
    time.sleep(spec.settle_s)
    before, start = cpu_seconds(spec.broker), time.perf_counter()
    with Pings(spec.port, spec.core, 4) as quiet:
        time.sleep(spec.duration)
    unwatched = (cpu_seconds(spec.broker) - before) / (time.perf_counter() - start)
    before, start = cpu_seconds(spec.broker), time.perf_counter()
    watching = Watching(spec)
    with Pings(spec.port, spec.core, 4) as pings:
        watching.run()
    watched = (cpu_seconds(spec.broker) - before) / (time.perf_counter() - start)
    return Outcome(
        connections=len(clients),
        unwatched_cpu=unwatched,
        watched_cpu=watched,
        looks=len(watching.looks),
        scrapes=len(watching.scrapes),
        look_max_ms=max(watching.looks),
        scrape_max_ms=max(watching.scrapes),
        first_page_bytes=max(size for size, _ in pages),
        first_page_s=max(seconds for _, seconds in pages),
        ping_max_ms=pings.max_ms,
        ping_p99_ms=pings.p99_ms,
        unwatched_ping_max_ms=quiet.max_ms,
        stall_max_ms=own_stall(spec.port),
    )


def main() -> None:
    spec = msgspec.json.decode(sys.stdin.buffer.read(), type=Spec)
    os.sched_setaffinity(0, {spec.core})
    sys.stdout.buffer.write(msgspec.json.encode(run(spec)))


if __name__ == "__main__":
    main()
