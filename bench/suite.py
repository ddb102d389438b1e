"""``python -m bench.suite``: the scenarios of the Open MQTT Benchmark Suite, by name, scaled to this machine.

A scenario that exceeds the machine is scaled down: clients and rate by the same factor, which the table shows. The
limits are the open files of a process, and the throughput of one generator in Python.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console

from bench import peers
from bench.cells import RunError, child
from bench.scenario import Outcome, Spec
from bench.tables import grid

SPARE_FILES: Final = 300  # StarlingMQ keeps 256 for storage and other nodes
DELIVERIES_MAX: Final = 12_000.0  # per second, each timed by the generator
CONNECTING_S: Final = 10.0
RATE_MIN: Final = 10.0


class Scenario(msgspec.Struct, frozen=True):
    """A scenario as the suite defines it; ``rate`` is of published messages, or of connections without publishers."""

    name: str
    publishers: int
    subscribers: int
    rate: float
    filters: str = "own"

    @property
    def deliveries(self) -> float:
        return self.rate * (self.subscribers if self.filters == "all" else 1)

    def factor(self, files: int) -> float:
        if not self.publishers:
            return min(1.0, files / self.subscribers, self.rate * CONNECTING_S / self.subscribers)
        return min(1.0, files / (self.publishers + self.subscribers), DELIVERIES_MAX / self.deliveries)

    def scaled(self, factor: float) -> Scenario:
        if not self.publishers:  # the same rate for a shorter time
            return msgspec.structs.replace(self, subscribers=int(self.subscribers * factor))
        if self.filters == "all":  # fewer messages; fewer subscribers when there are hardly any messages left
            rate = max(self.rate * factor, RATE_MIN)
            return msgspec.structs.replace(self, rate=rate, subscribers=int(self.deliveries * factor / rate))
        return msgspec.structs.replace(
            self,
            publishers=max(1, int(self.publishers * factor)),
            subscribers=max(1, int(self.subscribers * factor)),
            rate=self.rate * factor,
        )


SCENARIOS: Final = (
    Scenario("conn-tcp-10k-100", 0, 10_000, 100),
    Scenario("conn-tcp-1M-5K", 0, 1_000_000, 5_000),
    Scenario("p2p-1K-1K-1K-1K", 1_000, 1_000, 1_000),
    Scenario("p2p-50K-50K-50K-50K", 50_000, 50_000, 50_000),
    Scenario("fanout-5-1000-5-250K", 5, 1_000, 250, "all"),
    Scenario("sharedsub-50K-500-50K-50K", 50_000, 500, 50_000, "shared"),
)


class Result(msgspec.Struct, frozen=True, kw_only=True):
    scenario: Scenario
    factor: float
    peer: str
    outcome: Outcome | None
    error: str = ""


def measure(whole: Scenario, peer: str, factor: float, seconds: float) -> Result:
    part = whole.scaled(factor)
    cores = sorted(os.sched_getaffinity(0))
    try:
        with peers.started(peer, cores[0]) as broker:
            spec = Spec(
                port=broker.port,
                broker=broker.pid,
                core=cores[-1],
                publishers=part.publishers,
                subscribers=part.subscribers,
                rate=part.rate,
                filters=part.filters,
                duration=seconds,
            )
            outcome = child("scenario", spec, Outcome)
    except (RunError, peers.PeerError) as error:
        return Result(scenario=whole, factor=factor, peer=peer, outcome=None, error=str(error))
    return Result(scenario=whole, factor=factor, peer=peer, outcome=outcome)


def show(results: list[Result], console: Console) -> None:
    columns = ("scenario", "of it", "peer", "/s", "CPU us", "cores", "p50 ms", "p90", "p99", "max", "missing", "MB")
    table = grid("Open MQTT Benchmark Suite: messages delivered, or connections made", *columns)
    for each in results:
        name, part = each.scenario.name, f"{each.factor:.2%}" if each.factor < 1 else "whole"
        if each.outcome is None:
            table.add_row(name, part, each.peer, each.error)
            continue
        found = each.outcome
        latencies = [f"{value / 1e3:.2f}" for value in found.latency_us]
        figures = [f"{found.per_s:,.0f}", f"{found.cpu_us:.1f}", f"{found.broker_cpu:.2f}", *latencies]
        table.add_row(name, part, each.peer, *figures, f"{found.missing:,}", f"{found.rss_bytes / 1e6:.1f}")
    console.print(table)


def main() -> None:
    names = [each.name for each in SCENARIOS]
    parser = argparse.ArgumentParser(prog="python -m bench.suite", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--peers", default="starlingmq,mosquitto", help="names with commas between them")
    parser.add_argument("--only", default=",".join(names), help="names of scenarios with commas between them")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--scale", type=float, default=1.0, help="a part of what the machine holds")
    parser.add_argument("--out", type=Path, default=Path("out/suite"))
    options = parser.parse_args()
    if unknown := set(options.only.split(",")) - set(names):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(names)}")
    files = peers.raise_file_limit() - SPARE_FILES
    results: list[Result] = []
    for peer in options.peers.split(","):
        try:
            peers.install(peer)
        except peers.PeerError as error:
            print(f"{peer}: skipped: {error}", file=sys.stderr)
            continue
        for whole in SCENARIOS:
            if whole.name in options.only.split(","):
                results.append(measure(whole, peer, whole.factor(files) * options.scale, options.seconds))
    results.sort(key=lambda each: names.index(each.scenario.name))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "results.json").write_bytes(msgspec.json.format(msgspec.json.encode(results)))
    show(results, Console(width=None if sys.stdout.isatty() else 160))


if __name__ == "__main__":
    main()
