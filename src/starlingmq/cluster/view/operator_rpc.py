"""Operator requests to other nodes: questions in bytes, each of which is answered once or fails.

    asker     ask --Call--> waiting --Reply--> answered
                                |---- deadline, or the node is not connected any more ----> unanswered
    answerer  Call --> called (once) ---- answer --Reply-->

Invariant: an answer belongs to the question with its number in the asker's current incarnation. Nothing is sent twice,
and a duplicated frame is handled once, so that a question that changes something takes effect at most once. Without an
answer, the asker does not know whether it did. An empty question is answered right here: it measures the round trip.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final

from starlingmq.cluster.links.control_frames import OperatorCall, OperatorReply
from starlingmq.cluster.view.subsystem import NodeLife, Subsystem

WAITING_MAX: Final = 256  # own questions at once
SERVED_MAX: Final = 32  # questions of one node at once; more are refused
REMEMBERED: Final = 1024  # numbers of one node's questions: duplicates arrive soon
ANSWER_BYTES_MAX: Final = 4 << 20

BUSY: Final = b'{"error":"it is busy with other questions","status":503}'
TOO_MUCH: Final = b'{"error":"the answer would be too long; ask for less","status":413}'


@dataclass(frozen=True, slots=True)
class Called:
    """A question of another node, to be answered with ``OperatorRpc.answer``."""

    node: int
    incarnation: int
    number: int
    question: bytes


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a question: the answer, or ``problem`` in one line; and the ``seconds`` that it took."""

    number: int
    node: int
    answer: bytes
    problem: str
    seconds: float


@dataclass(frozen=True, slots=True)
class _Waiting:
    node: int
    asked_at: float
    deadline: float


class _Seen:
    """The numbers of one incarnation's questions: each is new once, and one far below the highest is not new."""

    def __init__(self) -> None:
        self._numbers: set[int] = set()
        self._highest = 0

    def is_new(self, number: int) -> bool:
        if number in self._numbers or number <= self._highest - REMEMBERED:
            return False
        self._numbers.add(number)
        if number > self._highest:
            self._highest = number
        if len(self._numbers) > 2 * REMEMBERED:
            self._numbers = {one for one in self._numbers if one > self._highest - REMEMBERED}
        return True


class OperatorRpc(Subsystem):
    """``is_connected``: whether a node is connected, directly or through a relay."""

    def __init__(self, is_connected: Callable[[int], bool]) -> None:
        self._is_connected = is_connected
        self._last = 0
        self._waiting: dict[int, _Waiting] = {}
        self._incarnations: dict[int, int] = {}  # node -> the incarnation that the next two are about
        self._seen: dict[int, _Seen] = {}
        self._serving: dict[int, int] = {}  # node -> its questions without an answer yet
        self._out: list[tuple[int, OperatorCall | OperatorReply]] = []
        self._called: list[Called] = []
        self._outcomes: list[Outcome] = []

    def enter(self, life: NodeLife, now: float) -> None:
        self.begin_incarnation(life.me.incarnation)

    def begin_incarnation(self, incarnation: int) -> None:
        """Numbers of this incarnation differ from those of earlier ones, whose answers may still be in transit."""
        self._last = incarnation << 32

    # Asking

    def ask(self, node: int, question: bytes, now: float, seconds: float) -> int:
        """Sends a question. Returns its number; its outcome comes within ``seconds``."""
        self._last += 1
        number = self._last
        if not self._is_connected(node):
            self._outcomes.append(Outcome(number, node, b"", "it is not connected", 0.0))
        elif len(self._waiting) >= WAITING_MAX:
            self._outcomes.append(Outcome(number, node, b"", "too many requests are waiting for its answers", 0.0))
        else:
            self._waiting[number] = _Waiting(node, now, now + seconds)
            self._out.append((node, OperatorCall(number, question)))
        return number

    def replied(self, node: int, reply: OperatorReply, now: float) -> None:
        """A reply from the node's current incarnation to this node's current one."""
        waiting = self._waiting.get(reply.number)
        if waiting is None or waiting.node != node:
            return
        del self._waiting[reply.number]
        self._outcomes.append(Outcome(reply.number, node, reply.answer, "", now - waiting.asked_at))

    # Answering

    def called(self, node: int, incarnation: int, call: OperatorCall) -> None:
        known = self._incarnations.get(node, 0)
        if incarnation < known:
            return
        if incarnation > known:
            self._incarnations[node] = incarnation
            self._seen[node] = _Seen()
            self._serving[node] = 0
        if not self._seen[node].is_new(call.number):
            return
        if not call.question:
            self._out.append((node, OperatorReply(call.number, b"")))
        elif self._serving[node] >= SERVED_MAX:
            self._out.append((node, OperatorReply(call.number, BUSY)))
        else:
            self._serving[node] += 1
            self._called.append(Called(node, incarnation, call.number, call.question))

    def answer(self, called: Called, answer: bytes) -> None:
        """To be called once for each. If the asker has restarted, the answer is dropped."""
        if self._incarnations.get(called.node) != called.incarnation:
            return
        self._serving[called.node] -= 1
        if len(answer) > ANSWER_BYTES_MAX:
            answer = TOO_MUCH
        self._out.append((called.node, OperatorReply(called.number, answer)))

    # Time

    def turn(self, now: float) -> None:
        for number, waiting in list(self._waiting.items()):
            if waiting.deadline <= now:
                self._give_up(number, waiting, f"it did not answer within {now - waiting.asked_at:.1f} s", now)
            elif not self._is_connected(waiting.node):
                self._give_up(number, waiting, "the connection to it was lost", now)

    def _give_up(self, number: int, waiting: _Waiting, problem: str, now: float) -> None:
        del self._waiting[number]
        self._outcomes.append(Outcome(number, waiting.node, b"", problem, now - waiting.asked_at))

    def wake_at(self, now: float) -> float:
        if not self._waiting:
            return inf
        return min([waiting.deadline for waiting in self._waiting.values()])

    def has_input(self) -> bool:
        """Whether there is output."""
        return bool(self._out or self._called or self._outcomes)

    # Output

    def take_frames(self) -> list[tuple[int, OperatorCall | OperatorReply]]:
        taken, self._out = self._out, []
        return taken

    def take_called(self) -> list[Called]:
        taken, self._called = self._called, []
        return taken

    def take_outcomes(self) -> list[Outcome]:
        taken, self._outcomes = self._outcomes, []
        return taken
