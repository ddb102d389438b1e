"""From a kill, and from a graceful stop, to serving again. Runs in the parent: it starts the same data twice more.

Loading is the work of ``bench.fill``. ``ready`` counts from starting the process to its first accepted connection (a
broker listens when it has recovered), ``served`` to the CONNACK of a session that it still knows.
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
    """Seconds, resident bytes right after, and how many of the sampled sessions' messages came."""

    ready_s: float
    served_s: float
    rss: int
    sampled: int
    expected: int


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    filled: fill.Outcome
    rss_loaded: int
    killed: Start | None  # None: not tried, the peer promises nothing
    stopped: Start
    stop_s: float


SAMPLE = 10  # sessions that are asked for their messages


def run(peer: str, core: int, sessions: int, each: int, load: Callable[[peers.Broker], fill.Outcome]) -> Outcome:
    """``load`` fills the broker that it is given. mosquitto keeps nothing when it is killed, so it is not."""
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
    """Starts it on what is there; returns also when it was told to stop."""
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
    """How many of a session's messages come; they are not acknowledged, so they are still there afterwards."""
    with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_TIMEOUT_S) as sock:
        sock.sendall(connect(fill.name(number), 4, True))
        answer = read_exactly(sock, 4)
        if answer[0] != CONNACK or answer[2] != 1 or answer[3] != 0:
            return 0  # the session is gone
        sock.settimeout(2.0)
        found = 0
        while found < each and fill.topic(number).encode() in read_frame(sock):
            found += 1
        return found
