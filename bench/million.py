"""``python -m bench.million``: as many idle connections to one broker as the machine holds, and the resources for a
million.

Each connection has a session, one filter and a keep-alive of 300 s. They come from several loopback addresses, since
one address has 28,000 ports for a destination. They are opened in steps; after each the memory of the broker and of the
kernel is read. Meanwhile a publisher sends to one of the connections every 20 ms, and the latencies are recorded. At
the end every connection sends one PINGREQ, which gives the cost of keep-alives.

The kernel has both ends of every connection here, so half of its memory counts for the broker.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import numpy as np

from bench import crowd, peers
from bench.frames import publish
from bench.process import cpu_seconds, memory
from bench.wire import open_connection, read_frame, subscribe_all

HOLDER_MAX = 10_000  # connections from one loopback address
SPARE_FILES = 300  # of a process, for everything else; StarlingMQ keeps 256 for storage and other nodes
STEPS = 10
KEEP_ALIVE_S = 300
PROBE_PERIOD_S = 0.02
MILLION = 1_000_000
SETTLE_S = 1.0
PING_S = 2.0


class Step(msgspec.Struct, frozen=True):
    """Bytes, increases since the first connection."""

    connections: int
    seconds: float
    broker_bytes: int
    kernel_bytes: int


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes per connection. ``why``: the reason for no more connections. Latencies are those of the probe, in
    milliseconds at 50, 99 and 100 per cent, while connections were opened (``coming``) and with all of them idle.
    """

    peer: str
    version: str
    connections: int
    why: str
    steps: list[Step]
    opened_per_s: float
    broker_bytes: float
    kernel_bytes: float  # of both ends
    coming_ms: list[float]
    idle_ms: list[float]
    cpu_us_per_connection: float
    cpu_us_per_ping: float

    @property
    def million_broker_bytes(self) -> float:
        return self.broker_bytes * MILLION

    @property
    def million_kernel_bytes(self) -> float:
        """Kernel memory of the broker's ends only: a million clients would be on other machines."""
        return self.kernel_bytes / 2 * MILLION


class Holder:
    """A process with a share of the connections."""

    def __init__(self, port: int, core: int, number: int, size: int) -> None:
        spec = crowd.Spec(
            port=port, core=core, source=f"127.0.1.{number + 1}", first=number * size, keep_alive=KEEP_ALIVE_S
        )
        self.room = size
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.crowd"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.say(msgspec.json.encode(spec).decode())

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def ask(self, order: str) -> float:
        """Send a command and return the seconds taken."""
        self.say(order)
        assert self.process.stdout is not None
        answer = self.process.stdout.readline()
        if not answer:
            raise peers.PeerError("a process that holds connections has failed; what it said is above")
        return float(answer)

    def close(self) -> None:
        self.process.communicate()


class Probe:
    """Publishes to its own subscriber continuously, in a thread. ``take`` returns the latencies since the last call."""

    def __init__(self, port: int) -> None:
        self.subscriber = open_connection(port, "probe-sub", 4)
        subscribe_all(self.subscriber, ["probe"], 1, 4)
        self.publisher = open_connection(port, "probe-pub", 4)
        self.found: list[float] = []
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        while not self.ended.wait(PROBE_PERIOD_S):
            began = time.perf_counter()
            self.publisher.sendall(publish("probe", b"x" * 16, 0, 0, 4))
            read_frame(self.subscriber)
            self.found.append((time.perf_counter() - began) * 1e3)

    def take(self) -> list[float]:
        """Return the latencies in milliseconds, at 50, 99 and 100 per cent."""
        found, self.found = self.found, []
        shares: list[float] = np.percentile(found or [0.0], (50, 99, 100)).tolist()
        return shares

    def close(self) -> None:
        self.ended.set()
        self.thread.join()
        self.publisher.close()
        self.subscriber.close()


def kernel_bytes() -> int:
    """Return the kernel's memory for objects, including sockets, files and epoll, and for TCP buffers."""
    found = 0
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in ("Slab", "PageTables"):
            found += int(rest.split()[0]) * 1024
    for line in Path("/proc/net/sockstat").read_text().splitlines():
        if line.startswith("TCP:"):
            found += int(line.split()[-1]) * os.sysconf("SC_PAGE_SIZE")
    return found


@contextmanager
def holders(port: int, core: int, connections: int, files: int) -> Iterator[list[Holder]]:
    size = min(HOLDER_MAX, files - SPARE_FILES)
    with ExitStack() as stack:
        found: list[Holder] = []
        for number in range(-(-connections // size)):
            found.append(Holder(port, core, number, size))
            stack.callback(found[-1].close)
        yield found


def measure(peer: str, connections: int, memory_bytes: int) -> Outcome:
    cores = sorted(os.sched_getaffinity(0))
    files = peers.raise_file_limit()
    wanted = min(connections, files - SPARE_FILES)
    why = f"a process may have {files:,} files" if wanted < connections else "as many as were asked for"
    with peers.started(peer, cores[0]) as broker, ExitStack() as stack:
        probe = Probe(broker.port)
        stack.callback(probe.close)
        crowds = stack.enter_context(holders(broker.port, cores[-1], wanted, files))
        time.sleep(SETTLE_S)
        first_held = sum(memory(each.process.pid).rss for each in crowds)
        first_broker, first_kernel, cpu = memory(broker.pid).rss, kernel_bytes(), cpu_seconds(broker.pid)
        probe.take()
        steps: list[Step] = []
        count, spent = 0, 0.0
        while count < wanted:
            begun = count
            goal = min(wanted, count + -(-wanted // STEPS))
            while count < goal:
                holder = next(each for each in crowds if each.room)
                part = min(goal - count, holder.room)
                spent += holder.ask(f"open {part}")
                holder.room -= part
                count += part
            steps.append(
                Step(count, spent, memory(broker.pid).rss - first_broker, kernel_bytes() - first_kernel),
            )
            held = sum(memory(each.process.pid).rss for each in crowds) - first_held
            taken = held + steps[-1].broker_bytes + max(steps[-1].kernel_bytes, 0)
            if count < wanted and taken + taken * (count - begun) // count > memory_bytes:
                why = f"{memory_bytes >> 20:,} MiB of memory were to be used at most"
                break
        coming, cpu_opened = probe.take(), cpu_seconds(broker.pid)
        time.sleep(SETTLE_S)
        last_broker, last_kernel = memory(broker.pid).rss, kernel_bytes()
        time.sleep(SETTLE_S * 2)
        idle, cpu_before = probe.take(), cpu_seconds(broker.pid)
        for holder in crowds:
            holder.ask(f"ping {PING_S}")
        cpu_pings = cpu_seconds(broker.pid) - cpu_before
    return Outcome(
        peer=peer,
        version=peers.version(peer),
        connections=count,
        why=why,
        steps=steps,
        opened_per_s=count / spent,
        broker_bytes=(last_broker - first_broker) / count,
        kernel_bytes=(last_kernel - first_kernel) / count,
        coming_ms=coming,
        idle_ms=idle,
        cpu_us_per_connection=(cpu_opened - cpu) * 1e6 / count,
        cpu_us_per_ping=cpu_pings * 1e6 / count,
    )


def told(outcome: Outcome) -> str:
    gib = 1 << 30
    coming, idle = (", ".join(f"{value:.2f}" for value in shares) for shares in (outcome.coming_ms, outcome.idle_ms))
    return f"""\
{outcome.peer} {outcome.version}: {outcome.connections:,} idle connections ({outcome.why})
  the broker takes {outcome.broker_bytes:,.0f} bytes for each, the kernel {outcome.kernel_bytes:,.0f} for both ends
  opened at {outcome.opened_per_s:,.0f}/s, {outcome.cpu_us_per_connection:.0f} us of the broker's CPU for each
  PUBLISH to a connection among them, ms at 50, 99, 100 %: {coming} while they come; {idle} when they are idle
  a PINGREQ costs {outcome.cpu_us_per_ping:.1f} us of the broker's CPU
for 1,000,000 that is: {outcome.million_broker_bytes / gib:.2f} GiB for the broker and \
{outcome.million_kernel_bytes / gib:.2f} GiB for the kernel's end, {MILLION / outcome.opened_per_s:,.0f} s until all are
  there, {outcome.cpu_us_per_ping * MILLION / KEEP_ALIVE_S / 1e4:.1f} % of a core for keep-alives of {KEEP_ALIVE_S} s, \
{MILLION + SPARE_FILES:,} files"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.million", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--peers", default="starlingmq", help="names with commas between them")
    parser.add_argument("--connections", type=int, default=MILLION)
    parser.add_argument("--memory", type=int, default=1536, help="MiB that all of it may take, the kernel's too")
    parser.add_argument("--out", type=Path, default=Path("out/million"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for peer in options.peers.split(","):
        try:
            peers.install(peer)
            outcome = measure(peer, options.connections, options.memory << 20)
        except peers.PeerError as error:
            print(f"{peer}: skipped: {error}", file=sys.stderr)
            continue
        (options.out / f"{peer}.json").write_bytes(msgspec.json.format(msgspec.json.encode(outcome)))
        print(told(outcome), flush=True)


if __name__ == "__main__":
    main()
