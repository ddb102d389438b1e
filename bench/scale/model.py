"""A model of a cluster's cost by its size; its coefficients are fitted by least squares to simulated clusters.

All figures are totals over the nodes. Each is linear in a few terms that follow from the protocol:

- each node sends a heartbeat to each other one, which tells what has changed;
- a filter is sent to each other node;
- a message to another node is one copy in a frame that is acknowledged;
- a CONNECT is a claim at the leader of a share: ``claim_frames``;
- a takeover is a claim; the session goes from its former owner to the new one; each other node is told the filters and
  asked for its cut marker by the new owner, sends the marker to both, and is told by the former owner that the filters
  are gone (docs/SESSIONS.md);
- etcd is written for no client.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from bench.scale.simulated import EACH_STEP, Counted

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


def claim_frames(nodes: int) -> float:
    """F: the frames with claims to leaders of shares at other nodes, per claim, when each node claims for ``EACH_STEP``
    clients in a turn: the more nodes there are, the fewer claims share a frame."""
    return (nodes - 1) * (1 - (1 - 1 / nodes) ** EACH_STEP) / EACH_STEP


LAWS = (
    Law("heartbeats", "bytes/s", _per("idle with clients", "beats"), lambda n: (n * (n - 1),), "N(N-1)"),
    Law("a filter", "bytes", _per("subscribe", "bytes"), lambda n: (n - 1,), "N-1"),
    Law("a message to another node", "bytes", _per("publish there", "bytes"), lambda n: (1,), "1"),
    Law("a first CONNECT", "bytes", _per("connect", "bytes"), lambda n: (1, claim_frames(n)), "1, F"),
    Law("a return", "bytes", _per("return", "bytes"), lambda n: (1, claim_frames(n)), "1, F"),
    Law("a return", "us of CPU", _per("return", "cpu_us"), lambda n: (1, claim_frames(n)), "1, F"),
    Law("a takeover", "bytes", _per("move", "bytes"), lambda n: (1, claim_frames(n), n - 1), "1, F, N-1"),
    Law("a takeover", "us of CPU", _per("move", "cpu_us"), lambda n: (1, n - 1), "1, N-1"),
    Law("a first CONNECT", "etcd writes", _per("connect", "puts"), lambda n: (1,), "1"),
    Law("a takeover", "etcd writes", _per("move", "puts"), lambda n: (1,), "1"),
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
    weights = 1 / np.where(figures == 0, 1.0, figures)
    coefficients, *_ = np.linalg.lstsq(terms * weights[:, None], figures * weights, rcond=None)
    return Fitted(law, tuple(float(one) for one in coefficients))
