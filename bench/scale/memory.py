"""The memory that a node takes for clients of other nodes, in bytes: measured in the classes that keep their data."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

from tests.cluster.summary_twin import Twin

from starlingmq.cluster.shares.owner_book import OwnerBook
from starlingmq.cluster.shares.share_messages import Claim
from starlingmq.core.peers.peer_summaries import PeerSummaries
from starlingmq.core.router.router import Router
from starlingmq.core.session.session import Session

CLIENTS = 20_000
BOOKS = 100  # shares
SUMMARY_MIN = 10_000


def taken_by(make: Callable[[], object]) -> float:
    """Return the bytes per client that the result of ``make`` takes."""
    tracemalloc.start()
    try:
        kept = make()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    del kept
    return taken / CLIENTS


def owner_bytes() -> float:
    """A client id in the book of its share. The text of the id counts, as it comes from a frame."""

    def make() -> list[OwnerBook]:
        books = [OwnerBook(1, 0, True) for _ in range(BOOKS)]
        for number in range(CLIENTS):
            books[number % BOOKS].claim(1, Claim(1, f"device-{number:07d}", 123456, 0, 0), 1)
        return books

    return taken_by(make)


def summary_bytes() -> float:
    """A filter of another node that tells a summary of its filters."""
    twin = Twin(SUMMARY_MIN)
    twin.set({b"devices/%d/commands" % number: 2 for number in range(CLIENTS)})
    entries = list(twin.table.items())

    def make() -> tuple[dict[bytes, int], PeerSummaries]:
        routes: dict[bytes, int] = {}
        session = Session("$node/2")
        session.node = 2
        summaries = PeerSummaries(Router(1, 1 << 16, 1 << 10))
        for key, value in entries:
            own = bytes(bytearray(key))  # as it comes from a frame
            routes[own] = value
            summaries.route(session, own, value)
        return routes, summaries

    return taken_by(make)
