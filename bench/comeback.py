"""All clients of a cluster come back at once: ``python -m bench.comeback`` (make bench-comeback).

20,000 clients with persistent sessions at three nodes lose their connections at the same moment, and connect again at
once, each at a node that is drawn: two thirds of the sessions move. A client that is refused tries again after about a
second. Measured: the seconds until all are back, those that were told session
present, and the CPU time of each node and its etcd meanwhile.

Nodes, etcds and clients share all cores.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from bench import guests
from bench.nodes import Node, cluster
from bench.peers import ROOT, raise_file_limit
from bench.process import cpu_seconds
from bench.wire import SetupError

CLIENTS = 20_000
HOLDERS = 2  # processes that hold the clients
SPARE_FILES = 500  # of a process
SETTLE_S = 3.0  # from the loss of all connections to the storm


class Comeback(msgspec.Struct, frozen=True, kw_only=True):
    """CPU in seconds, by node, from the beginning of the storm until all were back."""

    clients: int
    back: int
    present: int
    moved: int
    refused: int
    closed: int
    half_s: float
    all_s: float
    cpu_s: list[float]
    etcd_cpu_s: list[float]


class Holder:
    """A process with clients."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SetupError("a process with clients has ended")
        return line


@contextmanager
def holder(spec: guests.Spec) -> Iterator[Holder]:
    command = [sys.executable, "-m", "bench.guests"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True) as process:
        found = Holder(process)
        found.say(msgspec.json.encode(spec).decode())
        yield found


def measure(clients: int, at_once: int) -> Comeback:
    with cluster() as nodes, ExitStack() as stack:
        ports = [node.port for node in nodes]
        each = -(-clients // HOLDERS)
        specs = [
            guests.Spec(
                ports=ports,
                source=f"127.0.0.{2 + place}",
                first=place * each,
                count=min(each, clients - place * each),
                at_once=at_once // HOLDERS,
            )
            for place in range(HOLDERS)
        ]
        holders = [stack.enter_context(holder(spec)) for spec in specs]
        for command in ("open", "drop"):
            together(holders, command)
        time.sleep(SETTLE_S)
        before = used(nodes)
        outcomes = [msgspec.json.decode(line, type=guests.Outcome) for line in together(holders, "storm")]
        after = used(nodes)
    times = sorted(moment for outcome in outcomes for moment in outcome.back_s)
    return Comeback(
        clients=clients,
        back=len(times),
        present=sum(outcome.present for outcome in outcomes),
        moved=sum(outcome.moved for outcome in outcomes),
        refused=sum(outcome.refused for outcome in outcomes),
        closed=sum(outcome.closed for outcome in outcomes),
        half_s=times[len(times) // 2],
        all_s=times[-1],
        cpu_s=[end[0] - start[0] for start, end in zip(before, after, strict=True)],
        etcd_cpu_s=[end[1] - start[1] for start, end in zip(before, after, strict=True)],
    )


def together(holders: list[Holder], command: str) -> list[str]:
    for each in holders:
        each.say(command)
    return [each.answer() for each in holders]


def used(nodes: list[Node]) -> list[tuple[float, float]]:
    return [(node.cpu(), cpu_seconds(node.etcd)) for node in nodes]


def told(found: Comeback) -> str:
    cpu = " ".join(f"{each:.1f}" for each in found.cpu_s)
    etcd = " ".join(f"{each:.1f}" for each in found.etcd_cpu_s)
    return (
        f"{found.back} of {found.clients} clients back after {found.all_s:.1f} s"
        f" (half after {found.half_s:.1f} s), {found.present} with session present, {found.moved} moved,\n"
        f"  {found.refused} refused and {found.closed} closed attempts; CPU of the nodes {cpu} s, of etcds {etcd} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.comeback", description=__doc__)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--at-once", type=int, default=0, help="unfinished connections; 0: all clients")
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    arguments = parser.parse_args()
    limit = raise_file_limit()
    if arguments.clients + HOLDERS * SPARE_FILES > HOLDERS * limit:
        parser.error(f"{arguments.clients} clients need more than {limit} open files a process (ulimit -n)")
    found = measure(arguments.clients, arguments.at_once)
    print(told(found), flush=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "comeback.json").write_bytes(msgspec.json.format(msgspec.json.encode(found)))


if __name__ == "__main__":
    main()
