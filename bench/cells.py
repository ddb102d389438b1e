"""The sections as lists of jobs. The order of the list is the order of measuring: peers alternate."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from typing import Any, TypeVar

import msgspec

from bench import generator, idle, load, paced, peers
from bench.flow import UnexpectedBytesError
from bench.peers import Brokers
from bench.results import Away, Cell, Filters, Idle, LoggingIn, Paced, Results
from bench.wire import SetupError

RUN_TIMEOUT_S = 400.0
AMQTT_WINDOW = 100  # in a flood it reads all input before it delivers
NODELAY = "mosquitto-nodelay"
STARLING_OPTIONS = ["--set", "mqtt.sys_interval=250ms"]  # so that $SYS tells about the stall while the run lasts

T = TypeVar("T")


class Job(msgspec.Struct, frozen=True):
    label: str
    call: Callable[[], None]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The extent of the measurements. ``shapes`` are (name, publishers, subscribers, QoS levels)."""

    peers: list[str]
    broker_core: int
    generator_core: int
    repeats: int = 3
    shapes: tuple[tuple[str, int, int, tuple[int, ...]], ...] = (
        ("pair", 1, 1, (0, 1, 2)),
        ("pairs", 50, 50, (0, 1, 2)),
        ("fan-in", 50, 1, (0, 1, 2)),
        ("fan-out", 1, 50, (0, 1, 2)),
    )
    windows: tuple[int, ...] = (10, 20, 100, 1_000)
    windows_qos0: tuple[int, ...] = (20, 100, 1_000, 10_000, 0)  # 0 is a flood
    warm_up: float = 0.5
    duration: float = 2.0
    probe: float = 0.5
    paced_qos: tuple[int, ...] = (0, 1)
    paced_loads: tuple[tuple[int, float], ...] = ((200, 30_000.0), (1_000, 3_000.0))  # pairs, messages/s in all
    paced_warm_up: float = 1.0
    paced_duration: float = 5.0
    connections: int = 10_000
    settle: float = 1.0  # seconds before memory, or an idle cluster, is measured
    filters: tuple[int, ...] = (1, 1_000, 100_000, 1_000_000)
    wildcards: tuple[int, ...] = (1, 100_000)
    retained: int = 10_000
    replays: int = 5
    load_limit: float = 60.0
    persistent_shapes: tuple[tuple[str, int, int, tuple[int, ...]], ...] = (
        ("pair", 1, 1, (1,)),
        ("pairs", 50, 50, (1,)),
    )
    away: tuple[tuple[str, int, int], ...] = (  # durability, publishers, window
        ("process", 1, 1_000),
        ("process", 50, 100),
        ("power", 1, 1),
        ("power", 64, 1),
        ("power", 64, 20),
    )
    recovered_sessions: int = 100_000
    recovered_each: int = 10
    big_session: int = 100_000
    cluster_window: int = 1_000
    cluster_flood_window: int = 10_000  # at QoS 0
    cluster_paced_rate: float = 2_000.0
    cluster_paced_pairs: int = 50
    storm: int = 100_000
    storm_after: int = 1_000  # filters that a stopped node misses
    quiet: float = 10.0
    kept_messages: int = 50_000
    kept_payload: int = 1_024
    quick: bool = False  # only a check: runs share processes and brokers
    brokers: Brokers = msgspec.field(default_factory=Brokers)
    nats_peers: tuple[str, ...] = ()
    nats_shapes: tuple[tuple[str, int, int], ...] = (("pair", 1, 1), ("pairs", 10, 10))
    nats_windows: tuple[int, ...] = (100, 1_000, 10_000)
    group: tuple[int, int] = (10, 10)  # publishers, members
    balanced: int = 100_000
    group_hop_rate: float = 100.0
    group_hop_pairs: int = 5
    handshake_rounds: int = 200
    returning: int = 10_000
    modelled_nodes: tuple[int, ...] = (3, 10, 30)
    modelled_clients: tuple[int, ...] = (100, 1_000, 10_000, 100_000)
    auth_shapes: tuple[tuple[str, int, int, tuple[int, ...]], ...] = (("pair", 1, 1, (0, 1)), ("pairs", 50, 50, (0, 1)))
    login_rate: float = 1_000.0
    login_duration: float = 5.0
    watched_duration: float = 20.0


QUICK: dict[str, Any] = {
    "repeats": 1,
    "shapes": (("pair", 1, 1, (0,)), ("pairs", 3, 3, (1,)), ("fan-in", 3, 1, (2,)), ("fan-out", 1, 3, (1,))),
    "windows": (20,),
    "windows_qos0": (0,),
    "warm_up": 0.1,
    "duration": 0.3,
    "paced_qos": (1,),
    "paced_loads": ((10, 1_000.0), (20, 200.0)),
    "paced_warm_up": 0.1,
    "paced_duration": 0.3,
    "connections": 100,
    "settle": 0.1,
    "filters": (1, 1_000),
    "wildcards": (1_000,),
    "retained": 200,
    "replays": 1,
    "persistent_shapes": (("pairs", 3, 3, (1,)),),
    "away": (("process", 3, 20), ("power", 3, 1)),
    "recovered_sessions": 200,
    "recovered_each": 3,
    "big_session": 2_000,
    "kept_messages": 1_000,
    "cluster_paced_rate": 200.0,
    "cluster_paced_pairs": 5,
    "storm": 2_000,
    "storm_after": 100,
    "quiet": 0.5,
    "quick": True,
    "nats_shapes": (("pairs", 3, 3),),
    "nats_windows": (100,),
    "group": (3, 3),
    "balanced": 3_000,
    "handshake_rounds": 2,
    "modelled_nodes": (3, 10),
    "modelled_clients": (100, 500),
    "auth_shapes": (("pairs", 3, 3, (1,)),),
    "login_rate": 100.0,
    "login_duration": 0.3,
    "watched_duration": 0.5,
}


class RunError(Exception):
    """A run failed; the text is one line."""


def child(module: str, spec: msgspec.Struct, outcome: type[T]) -> T:
    """Run a generator process: its spec to stdin, its outcome from stdout."""
    return msgspec.json.decode(output(module, spec), type=outcome)


def output(module: str, spec: msgspec.Struct) -> bytes:
    """Run a generator process and return its raw output."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", f"bench.{module}"],
            input=msgspec.json.encode(spec),
            capture_output=True,
            timeout=RUN_TIMEOUT_S,
            cwd=peers.ROOT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RunError(f"not finished after {RUN_TIMEOUT_S:.0f} s") from None
    if done.returncode:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or ["no output"])[-1]
        raise RunError(last.removeprefix("bench.wire.").removeprefix("bench.flow."))
    return done.stdout


def here(module: str, spec: msgspec.Struct, outcome: type[T]) -> T:
    """Run a generator in this process, one at a time, for checks whose figures do not matter."""
    generator = importlib.import_module(f"bench.{module}")
    try:
        found = generator.run(msgspec.json.decode(msgspec.json.encode(spec), type=type(spec)))
    except (SetupError, UnexpectedBytesError, OSError) as error:
        raise RunError(str(error)) from error
    return msgspec.json.decode(msgspec.json.encode(found), type=outcome)


class Section:
    """Runs peers and stores their results by name: an outcome, or one line with the reason for a failure."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.child = here if settings.quick else child

    def measure(
        self,
        place: Cell | Paced | Idle | Filters | Away | LoggingIn,
        peer: str,
        module: str,
        outcome: type[Any],
        spec: Callable[[peers.Broker], msgspec.Struct],
    ) -> None:
        if peer in place.errors:
            return  # it failed before in this cell, and the reason is stored
        try:
            result = self.once(peer, module, outcome, spec)
        except (RunError, peers.PeerError) as error:
            place.errors[peer] = str(error)
        else:
            place.runs.setdefault(peer, []).append(result)

    def once(
        self,
        peer: str,
        module: str,
        outcome: type[T],
        spec: Callable[[peers.Broker], msgspec.Struct],
        options: list[str] | None = None,
    ) -> T:
        if peer in peers.STARLING_VARIANTS:
            options = STARLING_OPTIONS
        with self.settings.brokers.started(peer, self.settings.broker_core, options) as broker:
            return self.child(module, spec(broker), outcome)


class Throughput(Section):
    def jobs(self, results: Results) -> list[Job]:
        jobs = []
        for shape, publishers, subscribers, levels in self.settings.shapes:
            for qos in levels:
                cell = Cell(shape, publishers, subscribers, qos)
                results.throughput.append(cell)
                jobs += self.cell_jobs(cell, self.settings.peers)
        return jobs

    def cell_jobs(self, cell: Cell, names: list[str]) -> list[Job]:
        name = f"{cell.name} QoS {cell.qos}"
        jobs = [Job(f"{name}: generator capacity", lambda: self.capacity(cell))]
        windows = self.windows(cell)
        if len(windows) > 1:
            for peer in names:
                for window in windows:
                    jobs.append(Job(f"{name}: {peer}, window {window}?", self.bind(self.probe, cell, peer, window)))
        for _ in range(self.settings.repeats):
            jobs += [Job(f"{name}: {peer}", self.bind(self.run, cell, peer)) for peer in names]
        return jobs

    @staticmethod
    def bind(call: Callable[..., None], *arguments: object) -> Callable[[], None]:
        return lambda: call(*arguments)

    def spec(self, cell: Cell, broker: peers.Broker, window: int, duration: float) -> generator.Spec:
        return generator.Spec(
            port=broker.port,
            broker=broker.pid,
            core=self.settings.generator_core,
            broker_core=self.settings.broker_core,
            publishers=cell.publishers,
            subscribers=cell.subscribers,
            qos=cell.qos,
            window=window,
            warm_up=min(self.settings.warm_up, duration),
            duration=duration,
            persistent=cell.persistent,
        )

    def windows(self, cell: Cell) -> tuple[int, ...]:
        return self.settings.windows if cell.qos else self.settings.windows_qos0

    def capacity(self, cell: Cell) -> None:
        window, duration = self.windows(cell)[-1], self.settings.duration / 2
        cell.capacity = self.once(
            "relay",
            "generator",
            generator.Outcome,
            lambda broker: self.spec(cell, broker, window, duration),
            ["--qos", str(cell.qos)],
        )

    def probe(self, cell: Cell, peer: str, window: int) -> None:
        """Make a short run per window; a peer is measured with the window with which it delivers most."""
        found = cell.probes.setdefault(peer, {})
        try:
            outcome = self.once(
                peer,
                "generator",
                generator.Outcome,
                lambda broker: self.spec(cell, broker, window, self.settings.probe),
            )
            found[window] = outcome.delivered_per_s
        except (RunError, peers.PeerError) as error:
            cell.errors[peer] = str(error)
        cell.windows[peer] = max(found, key=lambda item: found[item], default=window)

    def run(self, cell: Cell, peer: str) -> None:
        window = cell.windows.setdefault(peer, self.windows(cell)[-1])
        self.measure(
            cell,
            peer,
            "generator",
            generator.Outcome,
            lambda broker: self.spec(cell, broker, window, self.settings.duration),
        )


class PacedLoad(Section):
    """Without amqtt: 30,000 messages per second exceed its throughput."""

    def jobs(self, results: Results) -> list[Job]:
        jobs = []
        for (pairs, rate), qos in product(self.settings.paced_loads, self.settings.paced_qos):
            place = Paced(qos, rate, pairs)
            results.paced.append(place)
            names = [peer for peer in self.settings.peers if peer != "amqtt"]
            names += [NODELAY] if "mosquitto" in names else []
            for _ in range(self.settings.repeats):
                jobs += [Job(f"paced {rate:,.0f}/s QoS {qos}: {peer}", self.bind(place, peer)) for peer in names]
        return jobs

    def bind(self, place: Paced, peer: str) -> Callable[[], None]:
        return lambda: self.measure(place, peer, "paced", paced.Outcome, lambda broker: self.spec(place, broker))

    def spec(self, place: Paced, broker: peers.Broker) -> paced.Spec:
        return paced.Spec(
            port=broker.port,
            broker=broker.pid,
            core=self.settings.generator_core,
            qos=place.qos,
            pairs=place.pairs,
            rate=place.rate,
            warm_up=self.settings.paced_warm_up,
            duration=self.settings.paced_duration,
        )


class IdleConnections(Section):
    def jobs(self, results: Results) -> list[Job]:
        place = Idle(self.settings.connections)
        results.memory.append(place)
        return [
            Job(f"{place.connections} idle connections: {peer}", self.bind(place, peer))
            for _ in range(self.settings.repeats)
            for peer in self.settings.peers
        ]

    def bind(self, place: Idle, peer: str) -> Callable[[], None]:
        return lambda: self.measure(place, peer, "idle", idle.Outcome, lambda broker: self.spec(place, broker))

    def spec(self, place: Idle, broker: peers.Broker) -> idle.Spec:
        core = self.settings.generator_core
        return idle.Spec(
            port=broker.port,
            broker=broker.pid,
            core=core,
            connections=place.connections,
            settle_s=self.settings.settle,
        )


class ManyFilters(Section):
    """Both sections about filters. A peer that fails at one size is not measured with a larger one."""

    def subscription_jobs(self, results: Results) -> list[Job]:
        results.subscriptions = [Filters(count, False) for count in self.settings.filters]
        return self.jobs(results.subscriptions)

    def wildcard_jobs(self, results: Results) -> list[Job]:
        sizes = self.settings.wildcards
        results.wildcards = [Filters(count, True, self.settings.retained) for count in sizes]
        return self.jobs(results.wildcards)

    def jobs(self, places: list[Filters]) -> list[Job]:
        return [
            Job(
                f"{place.filters} {'wildcard' if place.wildcards else 'unrelated'} filters: {peer}",
                self.bind(places, place, peer),
            )
            for place in places
            for _ in range(self.settings.repeats)
            for peer in self.settings.peers
        ]

    def bind(self, places: list[Filters], place: Filters, peer: str) -> Callable[[], None]:
        return lambda: self.run(places, place, peer)

    def run(self, places: list[Filters], place: Filters, peer: str) -> None:
        for smaller in places:
            if smaller.filters < place.filters and peer in smaller.errors:
                place.errors[peer] = f"not tried: it failed with {smaller.filters}"
        self.measure(place, peer, "load", load.Outcome, lambda broker: self.spec(place, broker))

    def spec(self, place: Filters, broker: peers.Broker) -> load.Spec:
        return load.Spec(
            port=broker.port,
            broker=broker.pid,
            core=self.settings.generator_core,
            filters=place.filters,
            wildcards=place.wildcards,
            topics=8_192 if place.wildcards else 1_024,
            retained=0 if broker.peer == "amqtt" else place.retained,  # see NOTES
            replays=self.settings.replays,
            warm_up=self.settings.warm_up,
            duration=self.settings.duration,
            load_limit_s=self.settings.load_limit,
            window=AMQTT_WINDOW if broker.peer == "amqtt" else 0,
            tells_stall=broker.peer == "starlingmq",
        )
