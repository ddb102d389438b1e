"""``starlingmq bench``: put load on any MQTT broker, and report its throughput and latency."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import multiprocessing.connection
import os
import secrets
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Annotated, Any, Final

import typer

from starlingmq.cli.bench_load import Load, Report, percentile_ms, work
from starlingmq.cli.client_args import ClientArgs, Qos
from starlingmq.cli.declare import CommandError, command_of
from starlingmq.client import parse_url

SHARES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999, "max": 1.0}
DRAIN_MAX: Final = 10.0  # seconds for the last messages to arrive after publishing has stopped ...
DRAIN_QUIET: Final = 1.0  # ... or seconds without a further message
CONNECT_MAX: Final = 120.0  # seconds for all connections to be established
BUSY: Final = 0.9  # of a core: above it a load process may itself be the bottleneck


@dataclass(kw_only=True)
class BenchArgs(ClientArgs):
    publishers: Annotated[int, typer.Option("--publishers", min=0, help="Number of publishers.")] = 1
    subscribers: Annotated[int, typer.Option("--subscribers", min=0, help="Number of subscribers.")] = 1
    topic: Annotated[
        str, typer.Option("-t", "--topic", help="Topic; {n} is the topic number. Default: a name unique to this run.")
    ] = ""
    topics: Annotated[
        int | None,
        typer.Option("--topics", min=1, help="Number of topics. Default: the smaller of publishers and subscribers."),
    ] = None
    rate: Annotated[float, typer.Option("--rate", min=0.0, help="Total messages/s; 0: as fast as possible.")] = 0.0
    qos: Qos = 0
    retain: Annotated[bool, typer.Option("-r", "--retain", help="Publish retained messages.")] = False
    size: Annotated[int, typer.Option("--size", min=8, help="Payload size in bytes.")] = 64
    inflight: Annotated[
        int, typer.Option("--inflight", min=1, max=65535, help="QoS 1, 2: unacknowledged messages per publisher.")
    ] = 100
    duration: Annotated[float, typer.Option("--duration", min=0.1, help="Duration of the measurement in seconds.")] = (
        10.0
    )
    warmup: Annotated[float, typer.Option("--warmup", min=0.0, help="Warm-up in seconds, which is not measured.")] = 1.0
    processes: Annotated[int, typer.Option("--processes", min=1, help="Number of load generator processes.")] = 1
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False

    def loads(self) -> list[Load]:
        """Return a load per process; connections are assigned round-robin. Raises CommandError."""
        if not self.publishers and not self.subscribers:
            raise CommandError("nothing to do: give --publishers or --subscribers")
        self.client()  # refuses options that contradict each other
        names = self._topics()
        fields = self.fields() | {"keep_alive": 0, "receive_maximum": 65_535}
        run = fields["client_id"] or f"bench-{secrets.token_hex(4)}"  # with --id-prefix, too
        loads: list[Load] = []
        for process in range(self.processes):
            mine = range(process, self.publishers, self.processes)
            theirs = range(process, self.subscribers, self.processes)
            loads.append(
                Load(
                    url=self.address(),
                    tls=self.tls_files(),
                    fields=fields,
                    publishers={f"{run}-p{each}": names[each % len(names)] for each in mine},
                    subscribers={f"{run}-s{each}": names[each % len(names)] for each in theirs},
                    qos=self.qos,
                    retain=self.retain,
                    size=self.size,
                    rate=self.rate * len(mine) / max(1, self.publishers),
                    inflight=self.inflight,
                )
            )
        return [load for load in loads if load.publishers or load.subscribers]

    def _topics(self) -> list[str]:
        """Each pair of publisher and subscriber has its own topic; with one publisher or one subscriber all share one
        topic.
        """
        sides = [count for count in (self.publishers, self.subscribers) if count]
        count = self.topics or min(sides)
        template = self.topic or self.url_topic() or f"bench/{secrets.token_hex(4)}/{{n}}"
        if "{n}" not in template:
            return [template]
        return [template.replace("{n}", str(number)) for number in range(count)]


def run(args: BenchArgs) -> int:
    """Measure a broker: `starlingmq bench --publishers 10 --subscribers 10 --rate 5000`."""
    loads = args.loads()
    with _processes(loads) as pipes:
        bench = Bench(args, loads, pipes)
        with _screen(bench, args):
            bench.run()
    result = bench.result()
    print(json.dumps(result) if args.json else "\n".join(_lines(result)))
    return 0


class Bench:
    """One run, in the parent process."""

    def __init__(self, args: BenchArgs, loads: list[Load], pipes: list[Connection]) -> None:
        self._args = args
        self._pipes = pipes
        self._receivers = Counter(name for load in loads for name in load.subscribers.values())
        self._last: dict[Connection, Report] = {}
        self._first: dict[Connection, Report] = {}  # at the start of the measurement
        self._final: dict[Connection, Report] = {}  # at the end of publishing
        self._recent: list[dict[Connection, Report]] = []  # for the rates of the last second
        self.phase = "connecting"

    def run(self) -> None:
        """Raises CommandError when a connection fails or is lost."""
        self._until(CONNECT_MAX, lambda: len(self._last) == len(self._pipes))
        if len(self._last) < len(self._pipes):
            raise CommandError(f"not all connections were established within {CONNECT_MAX:g} s")
        self._order("go")
        self.phase = "warming up"
        self._until(self._args.warmup)
        self._first = dict(self._last)
        self.phase = "measuring"
        self._until(self._args.duration)
        self._final = dict(self._last)
        self._order("stop")
        self.phase = "draining"
        self._drain()
        self._order("end")
        self._until(DRAIN_MAX, lambda: all(report.state == "ended" for report in self._last.values()))

    def _drain(self) -> None:
        give_up = time.monotonic() + DRAIN_MAX
        while time.monotonic() < give_up:
            before = self._received()
            self._until(DRAIN_QUIET, self._all_there)
            if self._all_there() or self._received() == before:
                return

    def _all_there(self) -> bool:
        # only after every process has reported its final count
        stopped = all(report.state == "stopped" for report in self._last.values())
        return stopped and self._received() >= self._expected(self._last)

    def _received(self) -> int:
        return sum(report.latencies.total() for report in self._last.values())

    def _expected(self, reports: dict[Connection, Report]) -> int:
        return sum(
            count * self._receivers[topic] for report in reports.values() for topic, count in report.sent.items()
        )

    def _order(self, order: str) -> None:
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.send(order)

    def _until(self, seconds: float, done: Any = None) -> None:
        """Collect reports for ``seconds``, or until ``done()``."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not (done and done()):
            for pipe in multiprocessing.connection.wait(self._pipes, left):
                assert isinstance(pipe, Connection)
                self._take(pipe)

    def _take(self, pipe: Connection) -> None:
        try:
            report: Report = pipe.recv()
        except EOFError:
            if self._last.get(pipe) is None or self._last[pipe].state != "ended":
                raise CommandError("a load process ended unexpectedly") from None
            self._pipes.remove(pipe)
            return
        if report.state == "failed":
            raise CommandError(report.error)
        self._last[pipe] = report
        self._recent = [*self._recent[-8:], dict(self._last)]

    def now(self) -> dict[str, Any]:
        """Return the rates and latencies of the last second or two."""
        if len(self._recent) < 2:
            return {}
        return _between(self._recent[0], self._recent[-1])

    def result(self) -> dict[str, Any]:
        measured = _between(self._first, self._final)
        sent = sum(report.sent.total() for report in self._last.values())
        expected, received = self._expected(self._last), self._received()
        args = self._args
        return {
            "url": str(parse_url(args.address())),
            "publishers": args.publishers,
            "subscribers": args.subscribers,
            "qos": args.qos,
            "size": args.size,
            "rate_wanted": args.rate,
            **measured,
            "sent": sent,
            "expected": expected,
            "received": received,
            "missing": max(0, expected - received),
        }


def _between(earlier: dict[Connection, Report], later: dict[Connection, Report]) -> dict[str, Any]:
    """Return rates per second and latencies between two sets of reports."""
    seconds = sent = received = acknowledged = 0.0
    busy: list[float] = []
    latencies: Counter[int] = Counter()
    for pipe, end in later.items():
        begin = earlier.get(pipe)
        if begin is None or end.at <= begin.at:
            continue
        span = end.at - begin.at
        grown = end.latencies - begin.latencies
        seconds = max(seconds, span)
        sent += (end.sent.total() - begin.sent.total()) / span
        received += grown.total() / span
        acknowledged += (end.acknowledged - begin.acknowledged) / span
        busy.append(round((end.cpu - begin.cpu) / span, 3))
        latencies += grown
    return {
        "seconds": round(seconds, 3),
        "sent_per_second": round(sent, 1),
        "acknowledged_per_second": round(acknowledged, 1),
        "received_per_second": round(received, 1),
        "latency_ms": {name: round(percentile_ms(latencies, share), 3) for name, share in SHARES.items()},
        "generator_cores": busy,
    }


@contextlib.contextmanager
def _processes(loads: list[Load]) -> Iterator[list[Connection]]:
    """Run a process per load; all have ended when the block is left."""
    # spawn: a forked child would share sockets, threads and terminal state with this process
    context = multiprocessing.get_context("spawn")
    pipes: list[Connection] = []
    children: list[BaseProcess] = []
    try:
        for load in loads:
            ours, theirs = context.Pipe()
            child: BaseProcess = context.Process(target=work, args=(load, theirs), daemon=True)
            child.start()
            theirs.close()
            pipes.append(ours)
            children.append(child)
        yield list(pipes)
    finally:
        for pipe in pipes:
            pipe.close()
        for child in children:
            child.join(2.0)
            if child.is_alive():
                child.kill()
                child.join()


@contextlib.contextmanager
def _screen(bench: Bench, args: BenchArgs) -> Iterator[None]:
    """Show a live table on stderr, on a terminal only: stdout is for the result."""
    if args.json or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.live import Live

    with Live(get_renderable=lambda: _table(bench), console=Console(stderr=True), refresh_per_second=4, transient=True):
        yield


def _table(bench: Bench) -> Any:
    from rich.table import Table

    table = Table(title=bench.phase, title_justify="left")
    now = bench.now()
    latency = now.get("latency_ms", {})
    for heading in ("sent/s", "recv/s", *[f"{name} ms" for name in SHARES]):
        table.add_column(heading, justify="right", min_width=7)
    if now:
        rates = [f"{now['sent_per_second']:,.0f}", f"{now['received_per_second']:,.0f}"]
        table.add_row(*rates, *[f"{latency[name]:,.2f}" for name in SHARES])
    return table


def _lines(result: dict[str, Any]) -> Iterator[str]:
    yield (
        f"{result['url']}: {result['publishers']} publishers, {result['subscribers']} subscribers, "
        f"QoS {result['qos']}, {result['size']} bytes, {result['seconds']:.1f} s"
    )
    yield f"  sent      {result['sent_per_second']:>12,.0f} msg/s"
    if result["qos"]:
        yield f"  acked     {result['acknowledged_per_second']:>12,.0f} msg/s"
    yield f"  received  {result['received_per_second']:>12,.0f} msg/s"
    if result["received"]:
        latency = ", ".join(f"{name} {value:.2f}" for name, value in result["latency_ms"].items())
        yield f"  latency   {latency} (ms)"
    yield f"  missing   {result['missing']:>12,} of {result['expected']:,}"
    busy = max(result["generator_cores"], default=0.0)
    if busy >= BUSY:
        more = f"; try --processes {min(os.cpu_count() or 2, 2 * len(result['generator_cores']))}"
        yield f"  note: a load process used {busy:.0%} of a core and may be the bottleneck{more}"


command = bench = command_of(BenchArgs, run)
