"""The cost of copies, on three nodes of this machine: ``python -m bench.copies`` (make bench-copies).

For ``cluster.copies`` 1 and 2 in turn: one publisher sends QoS 1 messages at a fixed rate to a persistent session of
another node, which is connected and acknowledges them. The table has the CPU of all nodes (without their etcds) for a
message, and the latency of PUBACK. With 2 copies, in addition: the rate at which a follower with an empty disk gets its
copy back, and the time from kill -9 of a node until another one gives its session to the client.

Nodes, etcds and this generator share all cores.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bench.frames import connect, publish, subscribe
from bench.nodes import Node, again, cluster, running
from bench.wire import SetupError, read_exactly, read_frame

VERSION = 4
TOPIC = "bench/copies"
PAYLOAD = 64
READY_SECONDS = 120.0
FILL_PAYLOAD = 16 * 1024
WINDOW = 200  # unacknowledged messages while the disk is filled


class Paced(msgspec.Struct, frozen=True, kw_only=True):
    """CPU in microseconds of all nodes for a message; latencies of PUBACK in milliseconds. ``rate``: what was sent."""

    copies: int
    rate: float
    cpu_us: float
    p50_ms: float
    p99_ms: float
    delivered: int
    sent: int


def ask(node: Node, action: str) -> dict[str, Any]:
    from starlingmq.cli.control import ask_broker

    return ask_broker(node.folder / "data", action, {}, lambda *_: None)


def until(condition: Callable[[], bool], what: str) -> float:
    """Seconds that it took. Raises TimeoutError."""
    began = time.perf_counter()
    while not condition():
        if time.perf_counter() > began + READY_SECONDS:
            raise TimeoutError(what)
        time.sleep(0.01)
    return time.perf_counter() - began


def all_in_step(found: list[Node], copies: int) -> bool:
    """Whether that many nodes have the data of each node, which serves it itself."""
    views = ask(found[0], "cluster.copies")["nodes"]
    return copies == 1 or (
        len(views) == len(found)
        and all(len(view["in_step"]) >= copies and view["server"] == view["node"] for view in views)
    )


def client(node: Node, name: str, clean: bool = True) -> tuple[socket.socket, bool]:
    """A connection, and whether there was a session."""
    sock = socket.create_connection(("127.0.0.1", node.port), timeout=10.0)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(connect(name, VERSION, persistent=not clean))
    answer = read_frame(sock)
    if answer[3]:
        raise OSError(f"refused: {answer[3]}")
    return sock, bool(answer[2] & 1)


def take(reader: socket.socket, inbox: bytes, size: int, at: int) -> tuple[bytes, int]:
    """Acknowledge the messages that have arrived. The rest of the bytes, and the number of messages."""
    inbox += reader.recv(1 << 20)
    whole = len(inbox) // size
    ids = [inbox[number * size + at : number * size + at + 2] for number in range(whole)]
    reader.setblocking(True)
    reader.sendall(b"".join(b"@\2" + each for each in ids))
    reader.setblocking(False)
    return inbox[whole * size :], whole


def paced(found: list[Node], copies: int, rate: float, seconds: float) -> Paced:
    """``found``: publisher at the first, session at the second."""
    reader, _ = client(found[1], "reader", clean=False)
    reader.sendall(subscribe(1, [TOPIC], 1, VERSION))
    read_frame(reader)
    writer, _ = client(found[0], "writer")
    frame = bytearray(publish(TOPIC, b"." * PAYLOAD, 1, 1, VERSION))
    at = len(frame) - PAYLOAD - 2
    for sock in (reader, writer):
        sock.setblocking(False)
    sent_at: deque[float] = deque()
    latencies: list[float] = []
    acks = size = sent = delivered = 0
    inbox = b""
    cpu = [node.cpu() for node in found]
    began = time.perf_counter()
    total = int(rate * seconds)
    poll = select.poll()
    for sock in (reader, writer):
        poll.register(sock, select.POLLIN)
    while (len(latencies) < total or delivered < total) and time.perf_counter() < began + 3 * seconds + 5:
        due = min(total, int((time.perf_counter() - began) * rate) + 1)
        burst = bytearray()
        while sent < due and len(sent_at) < 60_000:
            frame[at : at + 2] = (sent % 65_535 + 1).to_bytes(2, "big")
            burst += frame
            sent_at.append(began + sent / rate)  # when it was due, so that a generator that is late counts as latency
            sent += 1
        view = memoryview(burst)
        while view:
            try:
                view = view[writer.send(view) :]
            except BlockingIOError:
                select.select([], [writer], [], 0.1)
        for descriptor, _ in poll.poll(1):
            if descriptor == writer.fileno():
                acks += len(writer.recv(1 << 20))
                now = time.perf_counter()
                while size + 4 <= acks:
                    size += 4
                    latencies.append(now - sent_at.popleft())
            else:
                inbox, count = take(reader, inbox, len(frame), at)
                delivered += count
    took = time.perf_counter() - began
    used = sum(node.cpu() - start for node, start in zip(found, cpu, strict=True))
    reader.close()
    writer.close()
    p50, p99 = [float(each) * 1e3 for each in np.percentile(latencies, (50, 99))]
    return Paced(
        copies=copies,
        rate=sent / took,
        cpu_us=used * 1e6 / sent,
        p50_ms=p50,
        p99_ms=p99,
        delivered=delivered,
        sent=sent,
    )


def fill(node: Node, count: int) -> None:
    """Messages that wait for a session of this node."""
    sleeper, _ = client(node, "sleeper", clean=False)
    sleeper.sendall(subscribe(1, ["bench/fill"], 1, VERSION))
    read_frame(sleeper)
    sleeper.close()
    writer, _ = client(node, "filler")
    waiting = 0
    for number in range(count):
        writer.sendall(publish("bench/fill", os.urandom(FILL_PAYLOAD), 1, number % 65_535 + 1, VERSION))
        waiting += 1
        if waiting == WINDOW:
            read_exactly(writer, 4 * WINDOW // 2)
            waiting -= WINDOW // 2
    read_exactly(writer, 4 * waiting)
    writer.close()


def follower_of(found: list[Node], node: Node) -> Node:
    view = next(each for each in ask(node, "cluster.copies")["nodes"] if each["node"] == node.name)
    return next(each for each in found if each.name == view["followers"][0]["node"])


def kill(node: Node) -> None:
    os.kill(node.pid, signal.SIGKILL)
    until(lambda: not running(node.pid), f"{node.name} has ended")


def catching_up(found: list[Node], count: int) -> Iterator[tuple[str, float]]:
    """Bytes per second at which the third node gets a copy of ``count`` messages in place of a lost one; then the
    seconds until a lost node's session is given by another one."""
    first = found[0]
    fill(first, count)
    follower = follower_of(found, first)
    third = next(each for each in found if each not in (first, follower))
    kill(follower)

    def states() -> list[str]:
        view = next(each for each in ask(first, "cluster.copies")["nodes"] if each["node"] == first.name)
        return [each["state"] for each in view["followers"] if each["node"] == third.name]

    until(lambda: states() != [], "another node gets the copy")
    began = time.perf_counter()
    until(lambda: states() == ["in step"], "it is in step")
    yield "bytes_per_second", count * FILL_PAYLOAD / (time.perf_counter() - began)
    with again(follower):
        until(lambda: all_in_step(found, 2), "all are in step")
        until(lambda: ask(third, "cluster.status")["health"]["status"] == "healthy", "the cluster is healthy")
        began = time.perf_counter()
        kill(first)
        while True:
            try:
                sock, present = client(third, "sleeper", clean=False)
            except (OSError, SetupError):  # SetupError: no answer for a while
                time.sleep(0.02)
                continue
            yield "seconds_to_session", time.perf_counter() - began if present else float("nan")
            sock.close()
            return


def measure(rate: float, seconds: float, count: int) -> dict[str, Any]:
    results: dict[str, Any] = {"paced": []}
    for copies in (1, 2):
        options = {
            "STARLINGMQ_CLUSTER__COPIES": str(copies),
            "STARLINGMQ_CLUSTER__COPY_RATE": "0",
            "STARLINGMQ_MQTT__MAX_MQUEUE_LEN": "0",
            "STARLINGMQ_LIMITS__QUEUE_BYTES": "0",
        }
        with cluster(options) as found:
            until(lambda found=found, copies=copies: all_in_step(found, copies), "all are in step")  # type: ignore[misc]
            results["paced"].append(msgspec.to_builtins(paced(found, copies, rate, seconds)))
            if copies > 1:
                results |= dict(catching_up(found, count))
    return results


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.copies", description=__doc__)
    parser.add_argument("--rate", type=float, default=5_000.0, help="messages per second")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--messages", type=int, default=4_000, help="of 16 KiB, for the rate of catching up")
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    arguments = parser.parse_args()
    results = measure(arguments.rate, arguments.seconds, arguments.messages)
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=1))
    print(f"load average {os.getloadavg()[0]:.1f}" + (" (busy machine)" if os.getloadavg()[0] > 4 else ""))
    for run in results["paced"]:
        print(
            f"copies {run['copies']}: {run['rate']:,.0f} messages/s, {run['cpu_us']:.1f} us of CPU per message, "
            f"PUBACK p50 {run['p50_ms']:.2f} ms, p99 {run['p99_ms']:.2f} ms"
        )
    one, two = results["paced"]
    print(f"CPU, copies 2 to copies 1: {two['cpu_us'] / one['cpu_us']:.2f}")
    print(f"a node gets the copy of a lost one at {results['bytes_per_second'] / 1e6:.1f} MB/s")
    print(f"from kill -9 to the session at another node: {results['seconds_to_session']:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
