"""All sections by name, in the order in which they are measured."""

from __future__ import annotations

from collections.abc import Callable

from bench.auth import auth
from bench.cells import IdleConnections, Job, ManyFilters, PacedLoad, Settings, Throughput
from bench.cluster import Clustered
from bench.handshakes import handshakes
from bench.kept import persistence
from bench.looking_on import looking_on
from bench.nats import nats
from bench.results import Results

SECTIONS: dict[str, Callable[[Settings, Results], list[Job]]] = {
    "throughput": lambda settings, results: Throughput(settings).jobs(results),
    "paced": lambda settings, results: PacedLoad(settings).jobs(results),
    "memory": lambda settings, results: IdleConnections(settings).jobs(results),
    "subscriptions": lambda settings, results: ManyFilters(settings).subscription_jobs(results),
    "wildcards": lambda settings, results: ManyFilters(settings).wildcard_jobs(results),
    "persistence": persistence,
    "cluster": lambda settings, results: Clustered(settings).jobs(results),
    "handshakes": handshakes,
    "nats": nats,
    "auth": auth,
    "http": looking_on,
}
