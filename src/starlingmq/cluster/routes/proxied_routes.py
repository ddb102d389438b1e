"""Routes of other nodes, told on to who lacks them while those nodes can not be reached.

Who comes back may find nobody but nodes that know more of a third one than it does, and may not serve before it has
that (docs/CLUSTER.md, Quorum): the third one may be gone for long. So it asks those. A state stands for the same
routes wherever it is met, so a snapshot is as good from anybody.
"""

from __future__ import annotations

from starlingmq.cluster.links.peer_frames import Body
from starlingmq.cluster.routes.own_routes import RouteAnswer, next_piece
from starlingmq.cluster.routes.peer_routes import PeerRoutes
from starlingmq.cluster.routes.route_facts import State


class ProxiedRoutes:
    """What is still to be told, by who asked and of whom."""

    def __init__(self) -> None:
        self._answers: dict[tuple[int, int], RouteAnswer] = {}

    def asked(self, target: int, peer: PeerRoutes, held: State) -> None:
        """The same question again does not stop the answer under way."""
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
        """Frames of about ``limit`` records together, one to each who asked, in turn."""
        while self._answers and limit > 0:
            key = next(iter(self._answers))
            answer = self._answers.pop(key)
            piece = next_piece(answer, key[1])
            out.append((answer.target, piece))
            limit -= len(piece.records) + 1
            if not piece.last:
                self._answers[key] = answer
