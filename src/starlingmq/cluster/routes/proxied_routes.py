"""Passes on routes of unreachable nodes to nodes that lack them.

A node that returns may find only nodes that know newer routes of a third node than it does, and it may not serve before
it has those (``peers.serving``). The third node may be away for a long time, so the returning node asks the
others. A state stands for the same routes everywhere, so a snapshot from any node is valid.
"""

from __future__ import annotations

from starlingmq.cluster.links.peer_frames import Body
from starlingmq.cluster.routes.own_routes import RouteAnswer, next_piece
from starlingmq.cluster.routes.peer_routes import PeerRoutes
from starlingmq.cluster.routes.route_facts import State


class ProxiedRoutes:
    """Answers under way, by asking node and by the node whose routes they are."""

    def __init__(self) -> None:
        self._answers: dict[tuple[int, int], RouteAnswer] = {}

    def asked(self, target: int, peer: PeerRoutes, held: State) -> None:
        """A repeated question does not restart the answer."""
        answer = self._answers.get((target, peer.number))
        if peer.busy() or peer.state <= held or (answer is not None and answer.asked == held):
            return
        answer = self._answers[target, peer.number] = RouteAnswer(target, held)
        answer.snapshot(peer.state, peer.table.copy())

    def member_gone(self, number: int) -> None:
        for key in [key for key in self._answers if number in key]:
            del self._answers[key]

    def pending(self) -> bool:
        return len(self._answers) != 0

    def take_out(self, limit: int, out: list[tuple[int | None, Body]]) -> None:
        """Frames of about ``limit`` records together, one for each asking node in turn."""
        while self._answers and limit > 0:
            key = next(iter(self._answers))
            answer = self._answers.pop(key)
            piece = next_piece(answer, key[1])
            out.append((answer.target, piece))
            limit -= len(piece.records) + 1
            if not piece.last:
                self._answers[key] = answer
