"""The cost of more workers on one machine: ``python -m bench.workers``. The same paced load for ``serve --workers 1``,
``2`` and ``4``, in turns, each with its own etcd. Of n workers' messages, (n-1)/n go from one worker to another.

The result is the median of the rounds for each QoS: CPU of all workers and their etcd per message, and as a multiple of
one worker's. ``crossing`` is the same for a message that goes from one worker to another, if the others cost what they
cost with one worker.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Final

import msgspec

from bench.paced import Outcome, Spec

COUNTS: Final = (1, 2, 4)
PAIRS: Final = 200
TIMEOUT_S: Final = 120.0


@contextmanager
def serving(directory: str, count: int) -> Iterator[tuple[int, int]]:
    """Yield the process id of the parent of all workers, and their port."""
    command = [sys.executable, "-m", "starlingmq", "serve", "--workers", str(count), "--listen", "mqtt://127.0.0.1:0"]
    with subprocess.Popen(
        [*command, "--data-dir", directory], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.pid, int(process.stdout.readline().rsplit(":", 1)[1])
        finally:
            process.terminate()


def run(broker: int, port: int, qos: int, rate: float, seconds: float) -> Outcome:
    core = max(os.sched_getaffinity(0))
    spec = Spec(port=port, broker=broker, core=core, qos=qos, pairs=PAIRS, rate=rate, duration=seconds)
    done = subprocess.run(
        [sys.executable, "-m", "bench.paced"],
        input=msgspec.json.encode(spec),
        capture_output=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    return msgspec.json.decode(done.stdout, type=Outcome)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.workers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=10_000.0, help="messages per second, all pairs together")
    parser.add_argument("--seconds", type=float, default=4.0)
    given = parser.parse_args()
    print(
        f"{'QoS':<5}{'workers':<9}{'CPU us':>8}{'times':>8}{'crossing':>10}{'p50 us':>10}{'p99 us':>10}{'missing':>9}"
    )
    with tempfile.TemporaryDirectory(prefix="bench-workers-") as directory, ExitStack() as stack:
        brokers = {count: stack.enter_context(serving(f"{directory}/{count}", count)) for count in COUNTS}
        for qos in (0, 1):
            found: dict[int, list[Outcome]] = {count: [] for count in COUNTS}
            for _ in range(given.rounds):
                for count, (pid, port) in brokers.items():
                    found[count].append(run(pid, port, qos, given.rate, given.seconds))
            one = median(each.cpu_us_per_message for each in found[1])
            for count, runs in found.items():
                cost = median(each.cpu_us_per_message for each in runs)
                latencies = [median(each.latency_us[at] for each in runs) for at in (0, 1)]
                missing = sum(each.missing for each in runs)
                times = cost / one if one else float("nan")  # too short a run for the clock of CPU time
                crossing = f"{(count * times - 1) / (count - 1):.2f}" if count > 1 else "-"
                figures = (
                    f"{cost:>8.1f}{times:>8.2f}{crossing:>10}{latencies[0]:>10,.0f}{latencies[1]:>10,.0f}{missing:>9}"
                )
                print(f"{qos:<5}{count:<9}{figures}", flush=True)


if __name__ == "__main__":
    main()
