"""Thousands of new filters on one node of a cluster.

All SUBSCRIBE packets are sent at once. Each is acknowledged when every node has applied its routes, so the last SUBACK
marks the time when all nodes have all routes.
"""

from __future__ import annotations

import socket
import time

import msgspec

from bench.frames import subscribe
from bench.wire import check_suback, open_connection, read_suback

CLIENTS = 4
EACH = 500  # filters per packet
VERSION = 4


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    filters: int
    routes_per_s: float
    first_suback_ms: float


class Storm:
    """The clients, which remain subscribed until ``close``; ``outcome`` is set after ``run``."""

    def __init__(self, port: int, filters: int, first: int = 0) -> None:
        """``first`` is the number of the first filter."""
        self.filters = filters
        self.clients = [open_connection(port, f"bench-storm-{first}-{number}", VERSION) for number in range(CLIENTS)]
        self.sizes: list[list[int]] = [[] for _ in self.clients]  # of each packet of each client
        self.packets = [bytearray() for _ in self.clients]
        end = first + filters
        for number, start in enumerate(range(first, end, EACH)):
            names = [filter_of(one) for one in range(start, min(start + EACH, end))]
            self.packets[number % CLIENTS] += subscribe(number % 65_535 + 1, names, 0, VERSION)
            self.sizes[number % CLIENTS].append(len(names))

    def run(self) -> Outcome:
        start = time.perf_counter()
        for sock, packets in zip(self.clients, self.packets, strict=True):
            sock.sendall(packets)
        answered = 0.0
        for sock, sizes in zip(self.clients, self.sizes, strict=True):
            for size in sizes:
                check_suback(read_suback(sock), size, VERSION)
                answered = answered or time.perf_counter()
        seconds = time.perf_counter() - start
        rate = self.filters / seconds
        return Outcome(filters=self.filters, routes_per_s=rate, first_suback_ms=(answered - start) * 1e3)

    def close(self) -> None:
        for sock in self.clients:
            sock.shutdown(socket.SHUT_RDWR)
            sock.close()


def filter_of(number: int) -> str:
    """Return a filter without publishers, every fourth one with a wildcard."""
    return f"s/{number:07d}/+" if number % 4 == 0 else f"s/{number:07d}/state/{number % 10}"
