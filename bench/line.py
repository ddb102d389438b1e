"""A long line between two network namespaces, as a process of its own: ``python -m bench.line NAME_A NAME_B ...``.

The kernel of a small machine may have no netem. Here each namespace has a TUN device, and this process carries packets
of 1,500 bytes at most between the two: each is lost by chance (seeded), or delivered after a constant delay, so that a
FIFO is enough. Linux gives TCP no offload on such a device: packets are those of a real line.

On standard input, ``cut`` loses every packet until ``heal``, and ``count`` answers with the numbers so far.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import select
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import Random

TUN = "/dev/net/tun"
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
MTU = 1500
QUEUE = 10_000  # packets of a device that wait for this process
ON_THE_LINE = 100_000  # packets each way; more are lost
BATCH = 64  # packets that are read at once
SYN, ACK = 0x02, 0x10
NO_LINE = 3  # exit status


class NoLine(Exception):
    """This system has no namespaces or no TUN for this user."""


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NoLine(f"{' '.join(command)}: {done.stderr.strip()}")


@contextmanager
def namespaces(*names: str) -> Iterator[None]:
    made: list[str] = []
    try:
        for name in names:
            run("ip", "netns", "add", name)
            made.append(name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        yield
    except FileNotFoundError as error:
        raise NoLine(str(error)) from None
    finally:
        for name in made:
            run("ip", "netns", "delete", name)


def device(namespace: str, address: str, peer: str) -> int:
    """A TUN device in a namespace; packets are read from and written to the descriptor."""
    try:
        descriptor = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
        name = f"t{os.getpid()}{address[-1]}"
        fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    except OSError as error:
        raise NoLine(f"{TUN}: {error.strerror}") from None
    run("ip", "link", "set", name, "netns", namespace)
    run("ip", "-n", namespace, "link", "set", name, "mtu", str(MTU), "txqueuelen", str(QUEUE), "up")
    run("ip", "-n", namespace, "address", "add", address, "peer", peer, "dev", name)
    return descriptor


class Line:
    """``delay_s`` one way; ``loss`` of packets, one way."""

    def __init__(self, ends: tuple[int, int], delay_s: float, loss: float, seed: int) -> None:
        self.ends = ends
        self.delay_s = delay_s
        self.loss = loss
        self.cut = False
        self.counts = {"packets": 0, "bytes": 0, "lost": 0, "full": 0, "connections": 0}
        self._chance = Random(seed).random
        self._queues: dict[int, deque[tuple[float, bytes]]] = {end: deque() for end in ends}  # by the end that sends

    def serve(self) -> None:
        """Until standard input ends."""
        poll = select.epoll()
        for descriptor in (*self.ends, 0):
            poll.register(descriptor, select.EPOLLIN)
        while True:
            for descriptor, _ in poll.poll(self._wait()):
                if descriptor:
                    self._take(descriptor)
                elif not self._obey(os.read(0, 4096)):
                    return
            self._deliver()

    def _obey(self, words: bytes) -> bool:
        for word in words.split():
            if word == b"count":
                print(json.dumps(self.counts), flush=True)
            else:
                self.cut = word == b"cut"
        return bool(words)

    def _wait(self) -> float:
        due = [queue[0][0] for queue in self._queues.values() if queue]
        return max(0.0, min(due) - time.monotonic()) if due else -1.0

    def _take(self, end: int) -> None:
        queue, counts, chance = self._queues[end], self.counts, self._chance
        due = time.monotonic() + self.delay_s
        with suppress(BlockingIOError):
            for _ in range(BATCH):
                packet = os.read(end, MTU)
                counts["packets"] += 1
                counts["bytes"] += len(packet)
                if len(packet) < 100 and packet[0] == 0x45 and packet[33] & (SYN | ACK) == SYN:
                    counts["connections"] += 1
                if self.cut or chance() < self.loss:
                    counts["lost"] += 1
                elif len(queue) >= ON_THE_LINE:
                    counts["full"] += 1
                else:
                    queue.append((due, packet))

    def _deliver(self) -> None:
        now = time.monotonic()
        for end, queue in self._queues.items():
            other = self.ends[0] if end == self.ends[1] else self.ends[1]
            while queue and queue[0][0] <= now:
                with suppress(OSError):  # the device has no room, or its namespace is gone
                    os.write(other, queue.popleft()[1])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.line", description=__doc__)
    parser.add_argument("namespaces", nargs=2)
    parser.add_argument("--addresses", nargs=2, default=["10.77.0.1", "10.77.0.2"])
    parser.add_argument("--round-trip-ms", type=float, default=100.0)
    parser.add_argument("--loss", type=float, default=0.01, help="of the packets, each way")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    try:
        near, far = given.addresses
        ends = device(given.namespaces[0], near, far), device(given.namespaces[1], far, near)
    except NoLine as error:
        print(error, file=sys.stderr)
        sys.exit(NO_LINE)
    print("ready", flush=True)
    Line(ends, given.round_trip_ms / 2000, given.loss, given.seed).serve()


if __name__ == "__main__":
    main()
