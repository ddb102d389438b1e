"""This node's requests about owners of client ids, to the leaders of their shares.

Law: each request is answered once. It is sent to the leader of its share in each version of the table until then; an
answer in an earlier version does not count, as the channels do not deliver it. Of each share one request is under way,
so those that wait for a lost leader or deputy keep no other share waiting, and a storm comes in parts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from starlingmq.cluster.shares.share_messages import Claim, OwnerAnswer, Read, Release
from starlingmq.cluster.shares.share_table import NO_TABLE, ShareTable, share_of
from starlingmq.cluster.takeover.owner_store import CLEAN, Claimed, OwnerKey

Request = Claim | Release | Read


class OwnerRequests:
    """An ``OwnerStore``."""

    newest: int  # the newest epoch that this node knows
    answered_at: float

    def __init__(self) -> None:
        self.newest = 0
        self.answered_at = 0.0
        self._me = 0
        self._incarnation = 0
        self._table = NO_TABLE
        self._taking_part = False
        self._tickets = 0
        self._asked: dict[int, tuple[Request, Callable[[OwnerAnswer], None]]] = {}  # by ticket
        self._under_way: dict[int, Request] = {}  # by share
        self._lines: dict[int, deque[Request]] = {}  # by share: those that wait for the one that is under way
        self._messages: list[tuple[int, Request]] = []  # to leaders
        self._answers: list[tuple[OwnerAnswer, Callable[[OwnerAnswer], None]]] = []

    def enter(self, me: int, incarnation: int, newest: int) -> None:
        """``newest``: the newest epoch of a session here."""
        self._me, self._incarnation, self.newest = me, incarnation, newest

    def enter_again(self, incarnation: int) -> None:
        self._incarnation = incarnation

    # The store

    def claim(self, client_id: str, floor: int, answered: Callable[[str, Claimed], None]) -> None:
        claim = Claim(self._ticket(), client_id, self._incarnation, floor, self.newest)
        self._ask(claim, lambda answer: answered(client_id, self._claimed(answer)))

    def _claimed(self, answer: OwnerAnswer) -> Claimed:
        others = [key for key in answer.keys if key.node != self._me]
        floor = max([key.epoch if key.floor == CLEAN else key.floor for key in others], default=0)
        return Claimed(answer.epoch, {key.node: key.epoch for key in others}, floor)

    def release(self, client_id: str, node: int, epoch: int, answered: Callable[[str, int, int, int], None]) -> None:
        def released(answer: OwnerAnswer) -> None:
            answered(client_id, node, answer.epoch, answer.keys[0].epoch if answer.keys else 0)

        self._ask(Release(self._ticket(), client_id, node, epoch), released)

    def read(self, client_id: str, answered: Callable[[str, int, tuple[OwnerKey, ...]], None]) -> None:
        read = Read(self._ticket(), client_id)
        self._ask(read, lambda answer: answered(client_id, answer.epoch, answer.keys))

    def _ticket(self) -> int:
        self._tickets += 1
        return self._tickets

    def _ask(self, message: Request, answered: Callable[[OwnerAnswer], None]) -> None:
        self._asked[message.ticket] = message, answered
        share = share_of(message.client_id)
        if share in self._under_way:
            self._lines.setdefault(share, deque()).append(message)
        else:
            self._begin(share, message)

    def _begin(self, share: int, message: Request) -> None:
        self._under_way[share] = message
        if self._taking_part:
            self._messages.append((self._table.pairs[share].leader, message))

    # For the shares

    def idle(self) -> bool:
        return not self._asked

    def has_answers(self) -> bool:
        return bool(self._answers)

    def give_answers(self, now: float) -> None:
        """Tells those who have asked."""
        answers, self._answers = self._answers, []
        for answer, answered in answers:
            self.answered_at = now
            answered(answer)

    def leaders(self) -> dict[int, None]:
        """The nodes from which answers are missing; 0: a share has no leader."""
        return {self._table.pairs[share].leader: None for share in self._under_way}

    def set_table(self, table: ShareTable, taking_part: bool) -> None:
        self._table, self._taking_part = table, taking_part
        self._messages = []
        if taking_part:
            for share, message in self._under_way.items():
                self._begin(share, message)

    def take_messages(self) -> list[tuple[int, Request]]:
        """(leader, message): to be sent."""
        messages, self._messages = self._messages, []
        return messages

    def answered(self, answer: OwnerAnswer) -> None:
        asked = self._asked.pop(answer.ticket, None)
        if asked is None:
            return
        self.newest = max(self.newest, answer.epoch)
        self._answers.append((answer, asked[1]))
        share = share_of(asked[0].client_id)
        line = self._lines.get(share)
        if line is None:
            del self._under_way[share]
            return
        self._begin(share, line.popleft())
        if not line:
            del self._lines[share]
