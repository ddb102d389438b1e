"""In which epochs clients of one share were served, as their nodes have said when a new leader asked.

A client is served once all wills are settled that it had left at other nodes. So a node that registers a will of an
earlier epoch, and has not heard that it is settled, learns it from here: the record that said so was lost with the
leader and the deputy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from starlingmq.cluster.shares.share_messages import Served


class ServedClients:
    def __init__(self) -> None:
        self._served: dict[str, tuple[int, int]] = {}  # client id -> (epoch, node)

    def add(self, served: Iterable[Served]) -> None:
        for client_id, node, epoch in served:
            if epoch > self._served.get(client_id, (0, 0))[0]:
                self._served[client_id] = epoch, node

    def settled_below(self, client_id: str, node: int) -> int:
        """The epoch below which wills of the client at ``node`` are settled, because another node has served it."""
        epoch, there = self._served.get(client_id, (0, 0))
        return 0 if there == node else epoch

    def drop(self, client_id: str) -> None:
        self._served.pop(client_id, None)

    def keep(self, is_needed: Callable[[str], bool]) -> None:
        self._served = {client_id: each for client_id, each in self._served.items() if is_needed(client_id)}

    def all(self) -> Iterator[Served]:
        for client_id, (epoch, node) in self._served.items():
            yield client_id, node, epoch
