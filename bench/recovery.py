"""The time from a kill, and from a graceful stop, to serving. Runs in the parent: it starts the broker twice more on
the same data.

``bench.fill`` creates the data. ``ready`` is the time from the start of the process to its first accepted connection (a
broker listens after recovery), ``served`` to the CONNACK with session present.
"""

from __future__ import annotations

import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from bench import fill, peers
from bench.frames import CONNACK, connect
from bench.process import memory
from bench.wire import ANSWER_TIMEOUT_S, read_exactly, read_frame


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds, resident bytes directly afterwards, and how many messages of the sampled sessions were delivered."""

    ready_s: float
    served_s: float
    rss: int
    sampled: int
    expected: int


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    filled: fill.Outcome
    rss_loaded: int
    killed: Start | None  # None: not measured, the peer guarantees nothing
    stopped: Start
    stop_s: float


SAMPLE = 10  # sessions whose messages are counted


def run(peer: str, core: int, sessions: int, each: int, load: Callable[[peers.Broker], fill.Outcome]) -> Outcome:
    """``load`` fills the broker. mosquitto is not killed, because it would lose everything."""
    kill = peer.startswith("starlingmq")
    with tempfile.TemporaryDirectory(prefix="starlingmq-bench-") as folder:
        with peers.running(peer, core, Path(folder)) as broker:
            filled = load(broker)
            loaded = memory(broker.pid).rss
            if kill:
                os.kill(broker.pid, signal.SIGKILL)
            stopping = time.perf_counter()
        killed = None
        if kill:
            killed, stopping = again(peer, core, Path(folder), sessions, each, 0)
        stop_s = time.perf_counter() - stopping
        stopped, _ = again(peer, core, Path(folder), sessions, each, SAMPLE)
    return Outcome(filled=filled, rss_loaded=loaded, killed=killed, stopped=stopped, stop_s=stop_s)


def again(peer: str, core: int, folder: Path, sessions: int, each: int, sample_from: int) -> tuple[Start, float]:
    """Start it on the existing data; return also the time of the stop signal."""
    start = time.perf_counter()
    with peers.running(peer, core, folder) as broker:
        ready = time.perf_counter() - start
        expected = min(SAMPLE, max(0, sessions - sample_from))
        sampled = take(broker.port, sample_from, each) if expected else 0
        served = time.perf_counter() - start
        rss = memory(broker.pid).rss
        sampled += sum(take(broker.port, sample_from + number, each) for number in range(1, expected))
        stopping = time.perf_counter()
    found = Start(ready_s=ready, served_s=served, rss=rss, sampled=sampled, expected=expected * each)
    return found, stopping


def take(port: int, number: int, each: int) -> int:
    """Return how many messages of a session are delivered; they are not acknowledged, so they remain queued."""
    with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_TIMEOUT_S) as sock:
        sock.sendall(connect(fill.name(number), 4, True))
        answer = read_exactly(sock, 4)
        if answer[0] != CONNACK or answer[2] != 1 or answer[3] != 0:
            return 0  # the session does not exist
        sock.settimeout(2.0)
        found = 0
        while found < each and fill.topic(number).encode() in read_frame(sock):
            found += 1
        return found
