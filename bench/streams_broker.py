"""A broker with streams in its own process, for measurements that read them, and functions to fill it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from bench.frames import ACK_SIZE, publish
from bench.wire import open_connection
from starlingmq.cli.local_cluster import free_port

PAYLOAD = 100
TOPICS = 100
WINDOW = 2000  # QoS 1 messages in flight


TOKEN = "what readers show"


class Broker:
    """A broker in its own process, with streams ``all`` (of t/#) and ``baseline`` (of b/#)."""

    def __init__(self, directory: str) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        command = [sys.executable, "-m", "starlingmq", "serve", "--listen", "mqtt://127.0.0.1:0"]
        command += ["--data-dir", directory, "--set", "node.name=n1", "--set", f"streams.listen={self.address}"]
        command += ["--set", f"streams.token={TOKEN}"]
        command += ["--set", "streams.define=[{name: all, topics: ['t/#']}, {name: baseline, topics: ['b/#']}]"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().rsplit(":", 1)[1])
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        self.service = int(children[0])

    def fill(self, count: int, topic: str = "t") -> None:
        """Publish at QoS 1, as fast as the broker acknowledges."""
        frames = [publish(f"{topic}/{n % TOPICS}", bytes(PAYLOAD), 1, n + 1, 4) for n in range(WINDOW)]
        data = b"".join(frames)
        fill(self.port, (data for _ in range(-(-count // WINDOW))))

    def fill_numbered(self, count: int) -> None:
        """Publish numbered messages below b/."""

        def window(first: int) -> bytes:
            numbers = range(first, first + WINDOW)
            frames = [publish(f"b/{n % TOPICS}", b"%0*d" % (PAYLOAD, n), 1, n - first + 1, 4) for n in numbers]
            return b"".join(frames)

        fill(self.port, (window(first) for first in range(0, count, WINDOW)))

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


def fill(port: int, windows: Iterable[bytes]) -> None:
    """Publish these windows, each after the previous one is acknowledged."""
    sock = open_connection(port, "filler", 4)
    for data in windows:
        sock.sendall(data)
        left = WINDOW * ACK_SIZE
        while left:
            left -= len(sock.recv(left))
    sock.close()
