"""What a publisher waits for its PUBACK, alone and with a reader at full speed beside it, in turns.

Reader and publisher stand for other machines: the reader is as nice as can be, and once more it is not; the publisher
goes before all others, where it may (as root).
``python -m bench.beside ADDRESS --rows N`` is the reader.
"""

from __future__ import annotations

import argparse
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.frames import ACK_SIZE, publish
from bench.process import cpu_seconds
from bench.wire import open_connection
from starlingmq.spark.options import Options
from starlingmq.spark.source import Part, read_part

if TYPE_CHECKING:
    from bench.pipeline import Broker

PAYLOAD = 100
TOPICS = 100
BURST_S = 0.001
NICEST = 19
FIRST = -15


def paced(broker: Broker, rate: float, seconds: float) -> dict[str, Any]:
    """QoS 1 at a fixed rate, bursts a millisecond; what each burst waits for its last PUBACK, from when it was due, and
    from when it was sent: between the two the publisher waits for a processor itself, or for its socket."""
    sock = open_connection(broker.port, "paced", 4)
    burst = round(rate * BURST_S)
    data = b"".join(publish(f"t/{n % TOPICS}", bytes(PAYLOAD), 1, n + 1, 4) for n in range(burst))
    waiting: list[tuple[float, float]] = []
    waits: list[tuple[float, float]] = []
    acked = sent = 0
    began = time.monotonic()
    while (now := time.monotonic()) < began + seconds or waiting:
        if now < began + seconds and now >= began + sent * BURST_S:
            sock.sendall(data)
            waiting.append((began + sent * BURST_S, now))
            sent += 1
        if select.select([sock], [], [], BURST_S / 4)[0]:
            acked += len(sock.recv(1 << 16)) // ACK_SIZE
            now = time.monotonic()
            while waiting and acked >= burst:
                acked -= burst
                due, at = waiting.pop(0)
                waits.append((now - due, now - at))
    sock.close()
    times = np.array(waits) * 1000
    return {
        "messages_per_s": round(sent * burst / seconds),
        "median_ms": round(float(np.median(times[:, 0])), 2),
        "p99_ms": round(float(np.percentile(times[:, 0], 99)), 2),
        "p99_from_send_ms": round(float(np.percentile(times[:, 1], 99)), 2),
    }


def beside(broker: Broker, rate: float, seconds: float, rows: int, rounds: int) -> dict[str, Any]:
    """Medians of some rounds. ``waited``: seconds a second that the broker could have run, and did not."""

    def read(nice: int) -> dict[str, Any]:
        command = [sys.executable, "-m", "bench.beside", broker.address, "--rows", str(rows)]
        with subprocess.Popen([*command, "--nice", str(nice)], stdout=subprocess.PIPE, text=True) as reader:
            assert reader.stdout is not None
            reader.stdout.readline()
            used = cpu_seconds(broker.service)
            found = waiting()
            found["service_cpu"] = round((cpu_seconds(broker.service) - used) / seconds, 2)
            reader.terminate()
        return found

    def waiting() -> dict[str, Any]:
        before = run_delay(broker.process.pid)
        found = paced(broker, rate, seconds)
        return found | {"waited": round((run_delay(broker.process.pid) - before) / seconds, 3)}

    goes_first = ahead()
    paced(broker, rate, 1.0)
    ways: dict[str, Callable[[], dict[str, Any]]] = {
        "alone": waiting,
        "with_reader": lambda: read(NICEST),
        "with_greedy_reader": lambda: read(0),
    }
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            found[name].append(way())
    if goes_first:
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    told: dict[str, Any] = {"publisher_goes_first": goes_first} | {
        name: {key: round(float(np.median([one[key] for one in some])), 3) for key in some[0]}
        for name, some in found.items()
    }
    for name, ratio in (("with_reader", "p99_ratio"), ("with_greedy_reader", "p99_ratio_greedy")):
        told[ratio] = round(told[name]["p99_ms"] / told["alone"]["p99_ms"], 2)
    return told


def ahead() -> bool:
    """The publisher, which is this process and holds the clock, stands for another machine as well: no process of this
    one may keep it waiting. False where that is not allowed."""
    try:
        os.setpriority(os.PRIO_PROCESS, 0, FIRST)
    except PermissionError:
        return False
    return True


def run_delay(pid: int) -> float:
    """Seconds that the main thread has waited for a processor."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


def read_for_ever(address: str, rows: int, nice: int) -> None:
    os.setpriority(os.PRIO_PROCESS, 0, nice)
    options = Options(servers=(address,), stream="all")
    print("reading", flush=True)
    while True:
        for _ in read_part(Part("n1", address, 0, rows, False), options):
            pass


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.beside", description=__doc__)
    parser.add_argument("address")
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--nice", type=int, default=0)
    given = parser.parse_args()
    read_for_ever(given.address, given.rows, given.nice)


if __name__ == "__main__":
    main()
