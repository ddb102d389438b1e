"""This node's requests about owners of client ids, to the leaders of their shares."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from starlingmq.cluster.shares.share_lines import ShareLines
from starlingmq.cluster.shares.share_messages import Claim, OwnerAnswer, Read, Release
from starlingmq.cluster.takeover.owner_store import CLEAN, Claimed, OwnerKey


class OwnerRequests:
    """An ``OwnerStore``."""

    newest: int  # the newest epoch that this node knows
    answered_at: float
    lines: ShareLines[Claim | Release | Read, OwnerAnswer]

    def __init__(self) -> None:
        self.newest = 0
        self.answered_at = 0.0
        self.lines = ShareLines()
        self._me = 0
        self._incarnation = 0
        self._with_will: dict[str, int] = {}  # client id -> ticket of its last claim with a will
        self._answers: list[tuple[OwnerAnswer, Callable[[OwnerAnswer], None]]] = []

    def enter(self, me: int, incarnation: int, newest: int) -> None:
        """``newest``: the newest epoch of a session here."""
        self._me, self._incarnation, self.newest = me, incarnation, newest

    def enter_again(self, incarnation: int) -> None:
        self._incarnation = incarnation

    # The store

    def claim(self, client_id: str, floor: int, will: bytes, answered: Callable[[str, Claimed], None]) -> None:
        claim = Claim(self.lines.ticket(), client_id, self._incarnation, floor, self.newest, will)
        if will:
            self._with_will[client_id] = claim.ticket

        def claimed(answer: OwnerAnswer) -> None:
            self._with_will.pop(client_id, None)  # one claim of a client id is outstanding
            answered(client_id, self._claimed(answer))

        self._ask(claim, claimed)

    def leave_out_will(self, client_id: str) -> None:
        asked = self.lines.asked.get(self._with_will.pop(client_id, 0))
        if asked is not None and isinstance(asked.message, Claim):
            asked.message = msgspec.structs.replace(asked.message, will=b"")

    def _claimed(self, answer: OwnerAnswer) -> Claimed:
        others = [key for key in answer.keys if key.node != self._me]
        floor = max([key.epoch if key.floor == CLEAN else key.floor for key in others], default=0)
        return Claimed(answer.epoch, {key.node: key.epoch for key in others}, floor, answer.armed, answer.wills)

    def release(self, client_id: str, node: int, epoch: int, answered: Callable[[str, int, int, int], None]) -> None:
        def released(answer: OwnerAnswer) -> None:
            answered(client_id, node, answer.epoch, answer.keys[0].epoch if answer.keys else 0)

        self._ask(Release(self.lines.ticket(), client_id, node, epoch), released)

    def read(self, client_id: str, answered: Callable[[str, int, tuple[OwnerKey, ...]], None]) -> None:
        read = Read(self.lines.ticket(), client_id)
        self._ask(read, lambda answer: answered(client_id, answer.epoch, answer.keys))

    def _ask(self, message: Claim | Release | Read, answered: Callable[[OwnerAnswer], None]) -> None:
        self.lines.ask(message, lambda answer, sent_at: self._came(answer, answered))

    def _came(self, answer: OwnerAnswer, answered: Callable[[OwnerAnswer], None]) -> None:
        if answer.epoch > self.newest:
            self.newest = answer.epoch
        self._answers.append((answer, answered))

    # For the shares

    def has_answers(self) -> bool:
        return bool(self._answers)

    def give_answers(self, now: float) -> None:
        """Tells those who have asked."""
        if self._answers:
            self.answered_at = now
            answers, self._answers = self._answers, []
            for answer, answered in answers:
                answered(answer)
