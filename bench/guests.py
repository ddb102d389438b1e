"""A process with a share of the clients of a storm: ``python -m bench.guests`` with a Spec as the first line on stdin.

Then it reads one command per line, and answers each with one line: ``open`` connects each client to its node, where it
subscribes; ``drop`` closes all connections; ``storm`` connects all at once, each to a node that is drawn, and again
where it is refused, and answers with an Outcome. It ends at the end of its input.
"""

from __future__ import annotations

import errno
import os
import random
import select
import socket
import struct
import sys
import time
from collections import deque
from contextlib import suppress

import msgspec

from bench.frames import CONNACK, SUBACK, connect, subscribe
from bench.peers import raise_file_limit
from bench.wire import SetupError

VERSION = 4
AT_ONCE = 100  # unfinished connections of ``open``
LIMIT_S = 300.0
AGAIN_S = (0.5, 1.5)  # until the next attempt of a client that was refused
RESET = struct.pack("ii", 1, 0)
BIND_ADDRESS_NO_PORT = 24  # ip(7): connect chooses the port


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """``at_once``: maximum of unfinished connections in a storm; 0: all."""

    ports: list[int]  # of the nodes; client N has its session at node N modulo their number
    source: str  # loopback source address
    first: int  # number of the first client
    count: int
    at_once: int = 0


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """``back_s``: when each client had its CONNACK, sorted, from the beginning of the storm."""

    back_s: list[float]
    present: int
    refused: int  # attempts: CONNACK with an error
    closed: int  # attempts without an answer
    moved: int  # clients that came back at another node than their own


class Guests:
    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.poll = select.epoll()
        self.draw = random.Random(spec.first)
        self.socks: dict[int, socket.socket] = {}  # by client

    def open(self) -> float:
        """Connect and subscribe all at their nodes; the seconds that it took."""
        start = time.perf_counter()
        waiting = deque(range(self.spec.count))
        under_way: dict[int, int] = {}  # descriptor -> client
        while waiting or under_way:
            while waiting and len(under_way) < AT_ONCE:
                client = waiting.popleft()
                under_way[self._begin(client, client % len(self.spec.ports))] = client
            for descriptor, mask in self.poll.poll(0.1, 256):
                client = under_way[descriptor]
                if mask & select.EPOLLOUT:
                    self._greet(client)
                elif self._granted(client):
                    self.poll.unregister(descriptor)
                    del under_way[descriptor]
            if time.perf_counter() > start + LIMIT_S:
                raise SetupError(f"{len(waiting) + len(under_way)} clients were not connected within {LIMIT_S} s")
        return time.perf_counter() - start

    def drop(self) -> None:
        for sock in self.socks.values():
            sock.close()
        self.socks.clear()

    def storm(self) -> Outcome:
        start = time.perf_counter()
        spec, nodes = self.spec, len(self.spec.ports)
        due = deque((start, client) for client in range(spec.count))
        under_way: dict[int, tuple[int, int]] = {}  # descriptor -> client, node
        back: list[float] = []
        present = refused = closed = moved = 0
        while len(back) < spec.count:
            now = time.perf_counter()
            if now > start + LIMIT_S:
                break
            while due and due[0][0] <= now and len(under_way) < (spec.at_once or spec.count):
                client = due.popleft()[1]
                node = self.draw.randrange(nodes)
                under_way[self._begin(client, node)] = client, node
            for descriptor, mask in self.poll.poll(0.02, 1024):
                client, node = under_way[descriptor]
                if mask & select.EPOLLOUT and not mask & (select.EPOLLERR | select.EPOLLHUP):
                    self._greet(client)
                    continue
                answer = self._answer(client)
                self.poll.unregister(descriptor)
                del under_way[descriptor]
                if answer[:1] == bytes([CONNACK]) and answer[3] == 0:
                    back.append(time.perf_counter() - start)
                    present += answer[2] & 1
                    moved += node != client % nodes
                    continue
                refused += answer != b""
                closed += answer == b""
                self.socks.pop(client).close()
                due.append((time.perf_counter() + self.draw.uniform(*AGAIN_S), client))
        return Outcome(back_s=sorted(back), present=present, refused=refused, closed=closed, moved=moved)

    def _begin(self, client: int, node: int) -> int:
        sock = self.socks[client] = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)  # leaves no ports in TIME_WAIT
        sock.setsockopt(socket.IPPROTO_IP, BIND_ADDRESS_NO_PORT, 1)
        sock.bind((self.spec.source, 0))
        code = sock.connect_ex(("127.0.0.1", self.spec.ports[node]))
        if code not in (0, errno.EINPROGRESS):
            raise OSError(code, os.strerror(code))
        self.poll.register(sock.fileno(), select.EPOLLOUT)
        return sock.fileno()

    def _name(self, client: int) -> str:
        return f"guest-{self.spec.first + client}"

    def _greet(self, client: int) -> None:
        sock = self.socks[client]
        with suppress(OSError):  # the next poll reports its end
            sock.send(connect(self._name(client), VERSION, True))
        self.poll.modify(sock.fileno(), select.EPOLLIN)

    def _answer(self, client: int) -> bytes:
        """b"": the connection has ended."""
        try:
            return self.socks[client].recv(64)
        except OSError:
            return b""

    def _granted(self, client: int) -> bool:
        answer = self._answer(client)
        if answer[:1] == bytes([CONNACK]) and answer[3] == 0:
            self.socks[client].send(subscribe(1, [f"guests/{self.spec.first + client}"], 1, VERSION))
            return False
        if answer[:1] == bytes([SUBACK]) and answer[-1] <= 2:
            return True
        raise SetupError(f"{self._name(client)} was answered with {answer[:16].hex() or 'the end of its connection'}")


def main() -> None:
    spec = msgspec.json.decode(sys.stdin.readline(), type=Spec)
    raise_file_limit()
    guests = Guests(spec)
    for line in sys.stdin:
        command = line.strip()
        if command == "open":
            print(f"{guests.open():.3f}", flush=True)
        elif command == "drop":
            guests.drop()
            print("dropped", flush=True)
        else:
            print(msgspec.json.encode(guests.storm()).decode(), flush=True)


if __name__ == "__main__":
    main()
