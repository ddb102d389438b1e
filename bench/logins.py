"""Clients that log in at a constant rate, whatever the result: ``python -m bench.logins`` with a Spec on stdin.

At the same time a bystander measures how long other clients wait. The rate of hashing depends on the cores; the purpose
is to show that hashing delays no other client.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import sys
import time

import msgspec

from bench.frames import CONNACK, connect
from bench.load import stall_told
from bench.ping import Pings
from bench.wire import SetupError, open_connection

WAITING_MAX = 8_000  # connections without an answer
POLL_S = 0.002
BUSY = 3  # CONNACK: server unavailable


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """``rate`` CONNECTs a second for ``duration`` seconds, all with the same ``login``."""

    port: int
    core: int
    login: tuple[str, str]
    rate: float = 1_000.0
    duration: float = 5.0


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The results of ``sent`` CONNECTs when the last was sent; those neither accepted nor refused as busy are queued.
    ``lag_ms`` is the maximum lag of the generator; the broker reports ``stall_max_ms``.
    """

    sent_per_s: float
    sent: int
    let_in: int
    busy: int
    latency_p50_ms: float | None
    ping_max_ms: float
    ping_p99_ms: float
    lag_ms: float
    stall_max_ms: float | None


class Logins:
    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.poll = select.epoll()
        self.open: dict[int, tuple[socket.socket, float]] = {}
        self.let_in: list[float] = []  # milliseconds until CONNACK
        self.busy = 0

    def begin(self, number: int) -> None:
        if len(self.open) >= WAITING_MAX:
            raise SetupError(f"{WAITING_MAX:,} CONNECTs have not been answered")
        sock = socket.socket()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        code = sock.connect_ex(("127.0.0.1", self.spec.port))
        if code not in (0, errno.EINPROGRESS):
            raise OSError(code, os.strerror(code))
        self.open[sock.fileno()] = sock, time.perf_counter()
        self.poll.register(sock.fileno(), select.EPOLLOUT)

    def serve(self, seconds: float) -> None:
        for fd, mask in self.poll.poll(seconds, 256):
            sock, begun = self.open[fd]
            if mask & select.EPOLLOUT:
                sock.send(connect(f"login-{fd}-{begun}", 4, login=self.spec.login))
                self.poll.modify(fd, select.EPOLLIN)
                continue
            answer = sock.recv(64)
            if answer[:2] != bytes((CONNACK, 2)) or answer[3] not in (0, BUSY):
                raise SetupError(f"CONNECT was answered with {answer.hex() or 'nothing'}")
            if answer[3] == BUSY:
                self.busy += 1
            else:
                self.let_in.append((time.perf_counter() - begun) * 1e3)
            del self.open[fd]
            sock.close()

    def run(self) -> tuple[int, float, float]:
        """Return how many were sent, in how many seconds, and the maximum lag in milliseconds."""
        sent, late = 0, 0.0
        start = time.perf_counter()
        while (now := time.perf_counter()) < start + self.spec.duration:
            due = start + sent / self.spec.rate
            if now >= due:
                late = max(late, now - due)
                self.begin(sent)
                sent += 1
            self.serve(0 if now >= due else min(POLL_S, due - now))
        return sent, now - start, late * 1e3

    def close(self) -> None:
        for sock, _ in self.open.values():
            sock.close()
        self.poll.close()


def run(spec: Spec) -> Outcome:
    logins = Logins(spec)
    witness = open_connection(spec.port, "bench-sys", 4, login=spec.login)
    with Pings(spec.port, spec.core, 4, login=spec.login) as pings:
        sent, seconds, late = logins.run()
    stall = stall_told(witness, 4)
    logins.close()
    times = sorted(logins.let_in)
    return Outcome(
        sent_per_s=sent / seconds,
        sent=sent,
        let_in=len(times),
        busy=logins.busy,
        latency_p50_ms=times[len(times) // 2] if times else None,
        ping_max_ms=pings.max_ms,
        ping_p99_ms=pings.p99_ms,
        lag_ms=late,
        stall_max_ms=stall,
    )


def main() -> None:
    spec = msgspec.json.decode(sys.stdin.buffer.read(), type=Spec)
    os.sched_setaffinity(0, {spec.core})
    sys.stdout.buffer.write(msgspec.json.encode(run(spec)))


if __name__ == "__main__":
    main()
