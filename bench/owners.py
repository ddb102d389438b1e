"""CONNECT in a cluster of three nodes and at a node alone: ``python -m bench.owners`` (make bench-owners).

The cluster runs beside a node alone that stores on disk as well, and rounds alternate between them. A round is a
CONNECT of each kind, with no other client at the brokers:

- *new*: a client id that has no session;
- *back*: a client returns to the node with its session;
- *moved*: it connects at the next node, which takes the session over (the node alone has no such round).

The time is from CONNECT to CONNACK on a connection that is open already.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from bench import peers
from bench.frames import CONNACK, connect
from bench.nodes import cluster
from bench.process import PROC
from bench.sessions import Spread, spread
from bench.wire import ANSWER_TIMEOUT_S, SetupError, open_connection, read_frame, subscribe_all

VERSION = 4
PAUSE_S = 0.003  # between two connections: what the last one has left to do is over
SETTLE_S = 1.0
WARM_UP = 20  # rounds
GOAL = 1.5


class Connects(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds from CONNECT to CONNACK. ``moved`` of a node alone is None."""

    name: str  # "alone": of the node beside the cluster
    new: Spread
    back: Spread
    moved: Spread | None


class Timer:
    """CONNECTs at the nodes with these ports."""

    def __init__(self, name: str, ports: list[int]) -> None:
        self.name = name
        self.ports = ports
        self.new: list[float] = []
        self.back: list[float] = []
        self.moved: list[float] = []
        self._home = 0
        first = open_connection(ports[0], self._roamer, VERSION, persistent=True)
        subscribe_all(first, [f"owners/{name}"], 1, VERSION)
        first.close()
        time.sleep(SETTLE_S)

    @property
    def _roamer(self) -> str:
        return f"bench-{self.name}"

    def round(self, number: int, kept: bool) -> None:
        """``kept``: whether the times count."""
        port = self.ports[number % len(self.ports)]
        new = timed(port, f"{self._roamer}-{number}", False, False)
        back = timed(self.ports[self._home], self._roamer, True, True)
        moved = 0.0
        if len(self.ports) > 1:
            self._home = (self._home + 1) % len(self.ports)
            moved = timed(self.ports[self._home], self._roamer, True, True)
        if kept:
            self.new.append(new)
            self.back.append(back)
            self.moved.append(moved)

    def result(self) -> Connects:
        moved = spread(self.moved) if len(self.ports) > 1 else None
        return Connects(name=self.name, new=spread(self.new), back=spread(self.back), moved=moved)


def timed(port: int, client_id: str, persistent: bool, present: bool) -> float:
    """Seconds until CONNACK; ``present`` is what it has to say about the session."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_TIMEOUT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    time.sleep(PAUSE_S)  # it is accepted
    began = time.perf_counter()
    sock.sendall(connect(client_id, VERSION, persistent))
    answer = read_frame(sock)
    took = time.perf_counter() - began
    if answer[0] != CONNACK or answer[3] != 0 or bool(answer[2] & 1) != present:
        raise SetupError(f"CONNECT of {client_id} was answered with {answer.hex()}")
    sock.sendall(b"\xe0\x00")
    sock.close()
    time.sleep(PAUSE_S)
    return took


def compare(rounds: int) -> tuple[Connects, Connects]:
    """A node alone, and the cluster beside it."""
    with tempfile.TemporaryDirectory(prefix="starlingmq-bench-") as name, cluster() as nodes:
        folder = Path(name)
        with peers.launched("starlingmq", 0, folder, lambda port: lone(port, folder)) as broker:
            free(broker.pid)
            timers = [Timer("alone", [broker.port]), Timer("cluster", [node.port for node in nodes])]
            for number in range(rounds + WARM_UP):
                for timer in timers:
                    timer.round(number, number >= WARM_UP)
    alone, clustered = [timer.result() for timer in timers]
    return alone, clustered


def free(pid: int) -> None:
    """Let it run on any core, as the nodes of the cluster do."""
    for task in (PROC / str(pid) / "task").iterdir():
        os.sched_setaffinity(int(task.name), range(os.cpu_count() or 1))


def lone(port: int, folder: Path) -> list[str]:
    command = ["-m", "starlingmq", "serve", "--listen", f"mqtt://127.0.0.1:{port}", "--data-dir", str(folder / "data")]
    return [sys.executable, *command]


def told(alone: Connects, clustered: Connects) -> str:
    assert clustered.moved is not None
    rows = [
        ("new", alone.new, clustered.new),
        ("back", alone.back, clustered.back),
        ("moved", alone.back, clustered.moved),
    ]
    lines: list[str] = []
    for kind, one, three in rows:
        times = [f"p50 {each.p50:.2f} p99 {each.p99:.2f} ms" for each in (one, three)]
        lines.append(f"  {kind:6} alone {times[0]}, cluster {times[1]}: {three.p50 / one.p50:.2f} times")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.owners", description=__doc__)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    arguments = parser.parse_args()
    found = compare(arguments.rounds)
    print(told(*found), flush=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "owners.json").write_bytes(msgspec.json.format(msgspec.json.encode(found)))
    print(f"wanted: {GOAL} times for a CONNECT")


if __name__ == "__main__":
    main()
