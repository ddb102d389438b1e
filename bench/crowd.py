"""One process with a share of many idle connections: ``python -m bench.crowd`` with a Spec as the first line on stdin.

Then it reads one command per line: ``open N`` opens N more connections, ``ping S`` sends a PINGREQ on each within S
seconds. It answers each with the seconds taken, and ends at the end of its input. It keeps only the socket of each
connection.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import sys
import time

import msgspec

from bench.frames import CONNACK, SUBACK, connect, subscribe
from bench.peers import raise_file_limit
from bench.wire import SetupError

AT_ONCE = 100  # unfinished connections: fewer than a listener queues
PING = b"\xc0\x00"
PONG = b"\xd0\x00"
LIMIT_S = 120.0
RESET = struct.pack("ii", 1, 0)
BIND_ADDRESS_NO_PORT = 24  # ip(7): connect chooses the port; bind would need one that is free for all destinations


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """``rate``: maximum connections per second, 0: unlimited. Filters are ``crowd/NUMBER``."""

    port: int
    core: int
    source: str  # loopback source address: each has its own 28,000 ports
    first: int  # number of the first client
    keep_alive: int = 300
    rate: float = 0.0
    subscribes: bool = True


class Crowd:
    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.poll = select.epoll()
        self.socks: list[socket.socket] = []
        self.latencies: list[float] = []  # seconds from connect to CONNACK

    def open(self, count: int) -> float:
        """Open ``count`` more, each with a subscription; return the seconds until the last was granted."""
        spec, poll = self.spec, self.poll
        under_way: dict[int, tuple[socket.socket, int, float]] = {}
        begun = done = 0
        start = time.perf_counter()
        while done < count:
            allowed = count if not spec.rate else min(count, int((time.perf_counter() - start) * spec.rate) + 1)
            while begun < allowed and len(under_way) < AT_ONCE:
                sock = self.begin()
                under_way[sock.fileno()] = sock, spec.first + len(self.socks) + len(under_way), time.perf_counter()
                begun += 1
            for fd, mask in poll.poll(0.002, 256):
                sock, number, begun_at = under_way[fd]
                if mask & select.EPOLLOUT:
                    sock.send(connect(f"crowd-{number}", 4, keep_alive=spec.keep_alive))
                    poll.modify(fd, select.EPOLLIN)
                elif self.granted(sock, number, begun_at):
                    poll.unregister(fd)
                    del under_way[fd]
                    self.socks.append(sock)
                    done += 1
            if time.perf_counter() - start > LIMIT_S:
                raise SetupError(f"{done} of {count} connections within {LIMIT_S} s")
        return time.perf_counter() - start

    def begin(self) -> socket.socket:
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)  # leaves no ports in TIME_WAIT
        sock.setsockopt(socket.IPPROTO_IP, BIND_ADDRESS_NO_PORT, 1)
        sock.bind((self.spec.source, 0))
        code = sock.connect_ex(("127.0.0.1", self.spec.port))
        if code not in (0, errno.EINPROGRESS):
            raise OSError(code, os.strerror(code))
        self.poll.register(sock.fileno(), select.EPOLLOUT)
        return sock

    def granted(self, sock: socket.socket, number: int, begun_at: float) -> bool:
        """Handle one answer. SUBSCRIBE is sent after CONNACK, so answers come one at a time."""
        answer = sock.recv(64)
        if answer[:1] == bytes([CONNACK]) and answer[3] == 0:
            self.latencies.append(time.perf_counter() - begun_at)
            if self.spec.subscribes:
                sock.send(subscribe(1, [f"crowd/{number}"], 0, 4))
            return not self.spec.subscribes
        if answer[:1] == bytes([SUBACK]) and answer[-1] <= 2:
            return True
        raise SetupError(f"the broker answered {answer[:16].hex()}" if answer else "the broker closed a connection")

    def ping(self, seconds: float) -> float:
        """Send a PINGREQ on each, evenly over ``seconds``; the answers are read at the end."""
        start = time.perf_counter()
        for number, sock in enumerate(self.socks):
            if (early := number * seconds / len(self.socks) - (time.perf_counter() - start)) > 0.001:
                time.sleep(early)
            sock.send(PING)
        for sock in self.socks:
            sock.settimeout(LIMIT_S)
            if sock.recv(2) != PONG:
                raise SetupError("a PINGREQ was not answered")
            sock.setblocking(False)
        return time.perf_counter() - start


def main() -> None:
    spec = msgspec.json.decode(sys.stdin.readline(), type=Spec)
    os.sched_setaffinity(0, {spec.core})
    raise_file_limit()
    crowd = Crowd(spec)
    for line in sys.stdin:
        order, argument = line.split()
        seconds = crowd.open(int(argument)) if order == "open" else crowd.ping(float(argument))
        print(f"{seconds:.6f}", flush=True)


if __name__ == "__main__":
    main()
