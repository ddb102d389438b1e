"""Requests of a broker to one service outside of it, by outcome: counted where the service is called."""

from __future__ import annotations

from time import time

PROBLEM_MAX = 300  # characters


class ConnectorCounts:
    """``accepted_at`` and ``failed_at`` are Unix times of the last ones, 0 for never; ``problem`` is that of the last
    failure. ``row`` counts the failures since the last success."""

    def __init__(self) -> None:
        self.accepted = 0
        self.failed = 0
        self.row = 0
        self.accepted_at = 0.0
        self.failed_at = 0.0
        self.problem = ""

    def accept(self, count: int = 1) -> None:
        self.accepted += count
        self.row = 0
        self.accepted_at = time()

    def fail(self, problem: str, count: int = 1) -> None:
        self.failed += count
        self.row += 1
        self.failed_at = time()
        self.problem = " ".join(problem.split())[:PROBLEM_MAX]
