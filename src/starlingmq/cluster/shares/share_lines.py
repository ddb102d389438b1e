"""Requests of this node to the leaders of shares.

Law: each request is answered once. It is sent to the leader of its share in each version of the table until then; an
answer in an earlier version does not count, as the channels do not deliver it. Of each share one request is under way,
so those that wait for a lost leader or deputy keep no other share waiting, and a storm comes in parts. A read
for which a client waits goes past them (``ask_at_once``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from starlingmq.cluster.shares.share_messages import Asked, OwnerAnswer, WillAnswer, share_asked
from starlingmq.cluster.shares.share_table import NO_TABLE, ShareTable

R = TypeVar("R", bound=Asked)
A = TypeVar("A", OwnerAnswer, WillAnswer)


class AskedRequest(Generic[R, A]):
    """``answered`` gets the answer, and when the request was first sent."""

    __slots__ = ("answered", "message", "sent_at")
    answered: Callable[[A, float], None]

    def __init__(self, message: R, answered: Callable[[A, float], None]) -> None:
        self.message = message
        self.answered = answered
        self.sent_at = 0.0


class ShareLines(Generic[R, A]):
    now: float  # of this turn
    asked: dict[int, AskedRequest[R, A]]  # by ticket, in their order
    last_ticket: int

    def __init__(self) -> None:
        self.now = 0.0
        self.asked = {}
        self.last_ticket = 0
        self._table = NO_TABLE
        self._taking_part = False
        self._under_way: dict[int, AskedRequest[R, A]] = {}  # by share
        self._waiting: dict[int, deque[AskedRequest[R, A]]] = {}  # by share: those that wait for that one
        self._past: dict[int, AskedRequest[R, A]] = {}  # by ticket: those that have gone past the others
        self._messages: list[tuple[int, R]] = []  # to leaders

    def ticket(self) -> int:
        self.last_ticket += 1
        return self.last_ticket

    def ask(self, message: R, answered: Callable[[A, float], None]) -> None:
        """``message`` has a ticket of this object."""
        asked = self.asked[message.ticket] = AskedRequest(message, answered)
        share = share_asked(message)
        if share in self._under_way:
            self._waiting.setdefault(share, deque()).append(asked)
        else:
            self._begin(share, asked)

    def ask_at_once(self, message: R, answered: Callable[[A, float], None]) -> None:
        asked = self.asked[message.ticket] = self._past[message.ticket] = AskedRequest(message, answered)
        asked.sent_at = self.now
        self._send(share_asked(message), asked)

    def _begin(self, share: int, asked: AskedRequest[R, A]) -> None:
        self._under_way[share] = asked
        asked.sent_at = self.now
        self._send(share, asked)

    def _send(self, share: int, asked: AskedRequest[R, A]) -> None:
        if self._taking_part:
            self._messages.append((self._table.pairs[share].leader, asked.message))

    def idle(self) -> bool:
        return not self.asked

    def leaders(self) -> dict[int, None]:
        """The nodes from which answers are missing; 0: a share has no leader."""
        return {self._table.pairs[share].leader: None for share in self._under_way}

    def set_table(self, table: ShareTable, taking_part: bool) -> None:
        self._table, self._taking_part = table, taking_part
        self._messages = []
        for share, asked in self._under_way.items():
            self._send(share, asked)
        for asked in self._past.values():
            self._send(share_asked(asked.message), asked)

    def take_messages(self) -> Sequence[tuple[int, R]]:
        """(leader, message): to be sent."""
        if not self._messages:
            return ()
        messages, self._messages = self._messages, []
        return messages

    def answered(self, answer: A) -> None:
        asked = self.asked.pop(answer.ticket, None)
        if asked is None:
            return
        if self._past.pop(answer.ticket, None) is None:
            self._go_on(asked)
        asked.answered(answer, asked.sent_at)

    def _go_on(self, asked: AskedRequest[R, A]) -> None:
        """The one that was under way in its share is answered."""
        share = share_asked(asked.message)
        waiting = self._waiting.get(share)
        if waiting is None:
            del self._under_way[share]
        else:
            self._begin(share, waiting.popleft())
            if not waiting:
                del self._waiting[share]
