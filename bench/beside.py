"""The time until PUBACK of a publisher, alternately alone and during a bulk read at full speed.

Reader and publisher stand for other machines: the reader runs at the lowest priority, and in another variant at normal
priority; the publisher has the highest priority if allowed (as root). Service and reader run on other processors than
the broker, as with ``streams.processors`` and a remote reader; the figures without this separation are reported too.
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
from typing import Any

import numpy as np

from bench.frames import ACK_SIZE, publish
from bench.process import cpu_seconds
from bench.streams_broker import PAYLOAD, TOKEN, TOPICS, Broker
from bench.wire import open_connection
from starlingmq.spark.read_options import Options
from starlingmq.spark.row_reading import RowPartition, read_part

BURST_S = 0.001
NICEST = 19
FIRST = -15


def paced(broker: Broker, rate: float, seconds: float) -> dict[str, Any]:
    """Publish QoS 1 at a fixed rate, a burst per millisecond. Returns for each burst the time until its last PUBACK,
    from its due time and from its sending: between the two the publisher itself waits for a processor, or for its
    socket.
    """
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
    """Return medians of several rounds. ``waited``: seconds per second that the broker was runnable but did not run.

    The broker is pinned to one processor. ``apart``: reader and service are pinned to the others; ``together``: the
    kernel places all three; ``greedy``: additionally the reader has normal priority.
    """
    cores = sorted(os.sched_getaffinity(0))

    def read(nice: int, apart: bool) -> dict[str, Any]:
        command = [sys.executable, "-m", "bench.beside", broker.address, "--rows", str(rows), "--nice", str(nice)]
        if apart:
            keep(broker.service, set(cores[1:]))
            command = ["taskset", "-c", ",".join(map(str, cores[1:])), *command]
        else:
            keep(broker.process.pid, set(cores))
        try:
            return read_by(command)
        finally:
            keep(broker.process.pid, {cores[0]})
            keep(broker.service, set(cores))

    def read_by(command: list[str]) -> dict[str, Any]:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
            assert reader.stdout is not None
            reader.stdout.readline()
            used = cpu_seconds(broker.service)
            found = waiting()
            found["service_cpu"] = round((cpu_seconds(broker.service) - used) / seconds, 2)
            assert reader.poll() is None, "the reader has ended, so nothing was measured beside it"
            reader.terminate()
        return found

    def waiting() -> dict[str, Any]:
        before = run_delay(broker.process.pid)
        found = paced(broker, rate, seconds)
        return found | {"waited": round((run_delay(broker.process.pid) - before) / seconds, 3)}

    goes_first = ahead()
    keep(broker.process.pid, {cores[0]})
    paced(broker, rate, 1.0)
    ways: dict[str, Callable[[], dict[str, Any]]] = {"alone": waiting}
    if len(cores) > 1:
        ways["apart"] = lambda: read(NICEST, True)
    ways["together"] = lambda: read(NICEST, False)
    ways["greedy"] = lambda: read(0, False)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            found[name].append(way())
    keep(broker.process.pid, set(cores))
    if goes_first:
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    told: dict[str, Any] = {
        name: {key: round(float(np.median([one[key] for one in some])), 3) for key in some[0]}
        for name, some in found.items()
    }

    def ratios(of: str) -> dict[str, float]:
        return {name: round(told[name][of] / told["alone"][of], 2) for name in ways if name != "alone"}

    told |= {"median_ratio": ratios("median_ms"), "p99_ratio": ratios("p99_ms")}
    return told | {"publisher_goes_first": goes_first}


def keep(pid: int, cores: set[int]) -> None:
    """Pin all threads of a process to these processors."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), cores)


def ahead() -> bool:
    """Raise the priority of this process, the publisher, which takes the times: it stands for another machine, so no
    local process may delay it. Returns False if that is not allowed.
    """
    try:
        os.setpriority(os.PRIO_PROCESS, 0, FIRST)
    except PermissionError:
        return False
    return True


def run_delay(pid: int) -> float:
    """Return the seconds that the main thread has waited for a processor."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


def read_for_ever(address: str, rows: int, nice: int) -> None:
    os.setpriority(os.PRIO_PROCESS, 0, nice)
    options = Options(servers=(address,), stream="all", token=TOKEN)
    print("reading", flush=True)
    while True:
        for _ in read_part(RowPartition("n1", address, 0, rows, False), options):
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
