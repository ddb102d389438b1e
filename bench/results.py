"""The JSON of a whole run: settings, machine, versions, every raw run, and their medians."""

from __future__ import annotations

import statistics

import msgspec

from bench import (
    clustered,
    drain,
    generator,
    handshake_cost,
    handshake_model,
    idle,
    load,
    logins,
    nats_generator,
    offline,
    paced,
    recovery,
    returning,
    watched,
)


class Cell(msgspec.Struct):
    """One throughput cell. ``windows`` is the window with the highest throughput of each peer, from ``probes``."""

    shape: str
    publishers: int
    subscribers: int
    qos: int
    persistent: bool = False
    capacity: generator.Outcome | None = None
    windows: dict[str, int] = {}
    probes: dict[str, dict[int, float]] = {}
    runs: dict[str, list[generator.Outcome]] = {}
    errors: dict[str, str] = {}

    @property
    def name(self) -> str:
        return f"{self.shape} {self.publishers}:{self.subscribers}"

    def rate(self, peer: str) -> float | None:
        """Median of the deliveries per second."""
        runs = self.runs.get(peer)
        return statistics.median(run.delivered_per_s for run in runs) if runs else None


class Paced(msgspec.Struct):
    qos: int
    rate: float
    pairs: int
    runs: dict[str, list[paced.Outcome]] = {}
    errors: dict[str, str] = {}


class Idle(msgspec.Struct):
    connections: int
    runs: dict[str, list[idle.Outcome]] = {}
    errors: dict[str, str] = {}


class Filters(msgspec.Struct):
    """One number of filters, unrelated ones or wildcards that match."""

    filters: int
    wildcards: bool
    retained: int = 0
    runs: dict[str, list[load.Outcome]] = {}
    errors: dict[str, str] = {}


class Away(msgspec.Struct):
    """Messages into the queues of disconnected clients. ``window``: unacknowledged messages per publisher."""

    durability: str
    publishers: int
    window: int
    runs: dict[str, list[offline.Outcome]] = {}
    errors: dict[str, str] = {}

    @property
    def name(self) -> str:
        return f"away, {self.durability}, {self.publishers} x {self.window}"

    def rate(self, peer: str) -> float | None:
        runs = self.runs.get(peer)
        return statistics.median(run.stored_per_s for run in runs) if runs else None


class Recovery(msgspec.Struct):
    sessions: int
    each: int
    runs: dict[str, recovery.Outcome] = {}
    errors: dict[str, str] = {}


class Kept(msgspec.Struct):
    """A long queue that drains; and, for ``kept`` messages of ``payload`` bytes, disk space relative to topic and
    payload.
    """

    messages: int
    kept: int
    payload: int
    drains: dict[str, list[drain.Outcome]] = {}
    disk: dict[str, float] = {}
    errors: dict[str, str] = {}


class Cluster(msgspec.Struct):
    """Three nodes on this machine; all repetitions."""

    beside: list[clustered.Beside] = []
    across: list[clustered.Across] = []
    hops: list[clustered.Hop] = []
    storms: list[clustered.Storm] = []
    quiet: list[clustered.Quiet] = []
    errors: list[str] = []


class Handshakes(msgspec.Struct):
    """QoS 2 handshakes on one node, continued on another node, and in virtual time."""

    local: list[handshake_cost.Local] = []
    returning: list[returning.Returning] = []
    modelled: list[handshake_model.Modelled] = []
    errors: list[str] = []


class NatsCell(msgspec.Struct):
    """NATS clients: pairs, or with ``queue`` one subject and one queue group. ``windows`` as in Cell; ``shares`` is the
    busiest member's part of ``balanced`` messages, relative to an equal share.
    """

    name: str
    publishers: int
    subscribers: int
    queue: str = ""
    balanced: int = 0
    windows: dict[str, int] = {}
    probes: dict[str, dict[int, float]] = {}
    runs: dict[str, list[nats_generator.Outcome]] = {}
    shares: dict[str, list[float]] = {}
    errors: dict[str, str] = {}

    def rate(self, peer: str) -> float | None:
        runs = self.runs.get(peer)
        return statistics.median(run.delivered_per_s for run in runs) if runs else None

    def per_cpu_second(self, peer: str) -> float | None:
        runs = self.runs.get(peer)
        return statistics.median(run.per_cpu_second for run in runs) if runs else None


class GroupHops(msgspec.Struct):
    """Light load between two nodes: to a plain subscription, and to a group whose primary is on its member's node."""

    notify: bool
    plain: list[paced.Outcome] = []
    grouped: list[paced.Outcome] = []
    errors: list[str] = []

    @property
    def added_ms(self) -> float:
        """Median latency that the group adds."""
        before, after = (median([run.latency_us[0] for run in runs]) for runs in (self.plain, self.grouped))
        return (after - before) / 1e3


class LoggingIn(msgspec.Struct):
    """Logins at a constant rate; ``what``: the kind of password check."""

    what: str
    runs: dict[str, list[logins.Outcome]] = {}
    errors: dict[str, str] = {}


class Auth(msgspec.Struct):
    """The same cells with and without passwords and rules, and logins."""

    cells: list[Cell] = []
    logins: list[LoggingIn] = []


class LookingOn(msgspec.Struct):
    connections: int
    runs: list[watched.Outcome] = []
    errors: list[str] = []


class Machine(msgspec.Struct):
    cpu: str
    cores: int
    memory_bytes: int
    kernel: str
    python: str
    broker_core: int
    generator_core: int
    load_before: list[float]
    load_after: list[float] = []


class Results(msgspec.Struct):
    started: str
    commit: str
    quick: bool
    machine: Machine
    versions: dict[str, str]
    notes: list[str]
    throughput: list[Cell] = []
    paced: list[Paced] = []
    memory: list[Idle] = []
    subscriptions: list[Filters] = []
    wildcards: list[Filters] = []
    persistent: list[Cell] = []
    away: list[Away] = []
    recovery: list[Recovery] = []
    kept: list[Kept] = []
    cluster: Cluster | None = None
    handshakes: Handshakes | None = None
    nats: list[NatsCell] = []
    group_hops: list[GroupHops] = []
    auth: Auth | None = None
    http: LookingOn | None = None
    summary: dict[str, object] = {}


def median(values: list[float]) -> float:
    return statistics.median(values) if values else float("nan")
