"""A store of owners that answers when a test says so."""

from __future__ import annotations

from collections.abc import Callable

from starlingmq.cluster.takeover.owner_store import Claimed, OwnerKey


class LoneStore:
    def __init__(self) -> None:
        self.answered_at = 0.0
        self.claims: list[tuple[str, Callable[[str, Claimed], None]]] = []
        self.reads: list[tuple[str, Callable[[str, int, tuple[OwnerKey, ...]], None]]] = []

    def claim(self, client_id: str, floor: int, will: bytes, answered: Callable[[str, Claimed], None]) -> None:
        self.claims.append((client_id, answered))

    def leave_out_will(self, client_id: str) -> None:
        raise AssertionError("no claim brings a will")

    def release(self, client_id: str, node: int, epoch: int, answered: Callable[[str, int, int, int], None]) -> None:
        raise AssertionError("nothing is released")

    def read(self, client_id: str, answered: Callable[[str, int, tuple[OwnerKey, ...]], None]) -> None:
        self.reads.append((client_id, answered))
