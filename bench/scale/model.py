"""A model of a cluster's cost by its size; its coefficients are fitted by least squares to simulated clusters.

All figures are totals over the nodes. Each is linear in a few terms that follow from the protocol:

- each node sends a heartbeat to each other one, which names the members, so its bytes grow with them;
- a filter is sent to each other node;
- a message to another node is one copy in a frame that is acknowledged;
- a takeover is announced to each node, and each node sends a cut marker to each other one (docs/SESSIONS.md), the new
  owner announces the filters and the old one withdraws them;
- etcd stores one key for each client id.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from bench.scale.simulated import Counted

Terms = Callable[[int], tuple[float, ...]]


class Law(msgspec.Struct, frozen=True):
    """``figure`` of a cluster is the sum of ``terms``, functions of its number of nodes, each times a coefficient."""

    name: str
    unit: str
    figure: Callable[[Counted], float]
    terms: Terms
    words: str  # the terms as text


def _per(what: str, field: str) -> Callable[[Counted], float]:
    def figure(counted: Counted) -> float:
        work = counted.work[what]
        found: float = getattr(work, field) / work.times
        return found

    return figure


LAWS = (
    Law(
        "heartbeats",
        "bytes/s",
        _per("idle with clients", "beats"),
        lambda n: (n * (n - 1), n * n * (n - 1)),
        "N(N-1), N²(N-1)",
    ),
    Law("a filter", "bytes", _per("subscribe", "bytes"), lambda n: (n - 1,), "N-1"),
    Law("a message to another node", "bytes", _per("publish there", "bytes"), lambda n: (1,), "1"),
    Law("a takeover", "bytes", _per("move", "bytes"), lambda n: (1, n - 1, n * (n - 1)), "1, N-1, N(N-1)"),
    Law("a takeover", "us of CPU", _per("move", "cpu_us"), lambda n: (1, n - 1, n * (n - 1)), "1, N-1, N(N-1)"),
    Law("a client's first CONNECT", "etcd writes", _per("connect", "puts"), lambda n: (1,), "1"),
    Law("a takeover", "etcd writes", _per("move", "puts"), lambda n: (1,), "1"),
    Law("a client id in etcd", "bytes", lambda counted: counted.key_bytes_per_client, lambda n: (1,), "1"),
)


class Fitted(msgspec.Struct, frozen=True):
    law: Law
    coefficients: tuple[float, ...]

    def predict(self, nodes: int) -> float:
        return float(sum(one * term for one, term in zip(self.coefficients, self.law.terms(nodes), strict=True)))


def fit(law: Law, found: list[Counted]) -> Fitted:
    """Fit by least squares of the relative errors, so that small clusters count as much as large ones."""
    figures = np.array([law.figure(counted) for counted in found])
    terms = np.array([law.terms(counted.nodes) for counted in found])
    coefficients, *_ = np.linalg.lstsq(terms / figures[:, None], np.ones(len(found)), rcond=None)
    return Fitted(law, tuple(float(one) for one in coefficients))
