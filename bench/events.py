"""The cost of the broker's own events: ``python -m bench.events``. Separate brokers with the same journal: without
events, with events but no receiver, and with events in a stream; alternately with the same load.

The result is the median of the rounds for each QoS: messages per second, each with one receiver, and the broker's CPU
per message.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Final

import msgspec

from bench.generator import Outcome, Spec

WAYS: Final = {
    "off": [],
    "told": ["streams.events=true"],
    "kept": ["streams.define=[{name: events, topics: ['$events/#']}]"],
}
PAIRS: Final = 4
TIMEOUT_S: Final = 120.0


@contextmanager
def serving(directory: str, settings: list[str]) -> Iterator[tuple[int, int]]:
    """Yield process id and port."""
    command = [sys.executable, "-m", "starlingmq", "serve", "--listen", "mqtt://127.0.0.1:0", "--data-dir", directory]
    words = [word for setting in ["node.name=n1", *settings] for word in ("--set", setting)]
    with subprocess.Popen([*command, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.pid, int(process.stdout.readline().rsplit(":", 1)[1])
        finally:
            process.terminate()


def run(broker: int, port: int, qos: int, seconds: float) -> Outcome:
    spec = Spec(
        port=port,
        broker=broker,
        core=-1,
        broker_core=-1,
        publishers=PAIRS,
        subscribers=PAIRS,
        qos=qos,
        duration=seconds,
    )
    done = subprocess.run(
        [sys.executable, "-m", "bench.generator"],
        input=msgspec.json.encode(spec),
        capture_output=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    return msgspec.json.decode(done.stdout, type=Outcome)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.events", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    given = parser.parse_args()
    print(f"{'QoS':<5}{'events':<8}{'messages/s':>12}{'CPU us':>9}{'times':>8}")
    with tempfile.TemporaryDirectory(prefix="bench-events-") as directory, ExitStack() as stack:
        brokers = {way: stack.enter_context(serving(f"{directory}/{way}", settings)) for way, settings in WAYS.items()}
        for qos in (0, 1, 2):
            rates: dict[str, list[float]] = {way: [] for way in WAYS}
            costs: dict[str, list[float]] = {way: [] for way in WAYS}
            for _ in range(given.rounds):
                for way, (pid, port) in brokers.items():
                    found = run(pid, port, qos, given.seconds)
                    rates[way].append(found.delivered_per_s)
                    costs[way].append(found.broker_cpu / found.delivered_per_s * 1e6)
            for way in WAYS:
                cost, times = median(costs[way]), median(costs[way]) / median(costs["off"])
                print(f"{qos:<5}{way:<8}{median(rates[way]):>12,.0f}{cost:>9.2f}{times:>8.2f}", flush=True)


if __name__ == "__main__":
    main()
