"""Requests between nodes that restart, over a network that loses, duplicates, delays and reorders, by seed.

The invariants: a request has one outcome, and in time; an answer belongs to its request; a request is done at most
once.
Planted bugs each break one of these within some seeds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Final
from unittest.mock import patch

import pytest

from starlingmq.cluster.links.control_frames import OperatorCall, OperatorReply
from starlingmq.cluster.view.operator_rpc import OperatorRpc, Outcome, _Seen

STEP = 0.1  # seconds
SECONDS = 2.0  # for an answer
NODES = (1, 2, 3)

Frame = tuple[int, int, int, int, OperatorCall | OperatorReply]  # source, its life, target, its life as known, body


class World:
    """Nodes with one ``OperatorRpc`` each, which restart; the seed determines the network's faults."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = 1000.0
        self.lives = dict.fromkeys(NODES, 1)
        self.calls = {node: self._begin(node) for node in NODES}
        self.frames: list[tuple[float, Frame]] = []
        self.asked: dict[tuple[int, int, int], tuple[bytes, float]] = {}  # (node, life, number) -> question, deadline
        self.done: Counter[bytes] = Counter()
        self.count = 0
        self.complaint = ""

    def _begin(self, node: int) -> OperatorRpc:
        calls = OperatorRpc(lambda _: True)
        calls.begin_incarnation(self.lives[node])
        return calls

    def run(self) -> str:
        for _ in range(120):
            self._act()
            self._step()
        for _ in range(40):
            self._step()
        open_ = [key for key in self.asked if self.lives[key[0]] == key[1]]
        return self.complaint or ("a question has no outcome" if open_ else "")

    def _act(self) -> None:
        node = self.random.choice(NODES)
        if self.random.random() < 0.03:
            self.lives[node] += 1
            self.calls[node] = self._begin(node)
            return
        other = self.random.choice([each for each in NODES if each != node])
        self.count += 1
        question = b"%d" % self.count
        number = self.calls[node].ask(other, question, self.now, SECONDS)
        self.asked[node, self.lives[node], number] = question, self.now + SECONDS

    def _step(self) -> None:
        self.now += STEP
        for node, calls in self.calls.items():
            calls.turn(self.now)
            for target, body in calls.take_frames():
                self._send((node, self.lives[node], target, self.lives[target], body))
        due = [frame for at, frame in self.frames if at <= self.now]
        self.frames = [(at, frame) for at, frame in self.frames if at > self.now]
        self.random.shuffle(due)
        for frame in due:
            self._take(frame)
        for node, calls in self.calls.items():
            for called in calls.take_called():
                self.done[called.question] += 1
                if self.done[called.question] > 1:
                    self.complaint = "a question was acted upon twice"
                if self.random.random() < 0.9:
                    calls.answer(called, b"to " + called.question)
            for outcome in calls.take_outcomes():
                self._outcome(node, outcome)

    def _send(self, frame: Frame) -> None:
        for _ in range(self.random.choice((0, 1, 1, 1, 1, 2))):
            self.frames.append((self.now + self.random.choice((0.0, 0.0, 0.3, 1.0, 3.0)), frame))

    def _take(self, frame: Frame) -> None:
        """As ``ClusterState`` does: frames for an earlier incarnation are ignored."""
        source, life, target, target_life, body = frame
        if target_life != self.lives[target]:
            return
        if isinstance(body, OperatorCall):
            self.calls[target].called(source, life, body)
        elif life == self.lives[source]:
            self.calls[target].replied(source, body, self.now)

    def _outcome(self, node: int, outcome: Outcome) -> None:
        question, deadline = self.asked.pop((node, self.lives[node], outcome.number), (b"", 0.0))
        if not question:
            self.complaint = "an outcome of nothing, or a second one"
        elif not outcome.problem and outcome.answer != b"to " + question:
            self.complaint = "the answer to another question"
        elif self.now > deadline + 2 * STEP:
            self.complaint = "an outcome that comes too late"


@pytest.mark.parametrize("seed", range(60))
def test_questions_have_one_outcome_and_are_acted_upon_once(seed: int) -> None:
    assert World(seed).run() == ""


called, replied = OperatorRpc.called, OperatorRpc.replied


def remembers_nothing(self: OperatorRpc, node: int, incarnation: int, call: OperatorCall) -> None:
    self._seen[node] = _Seen()
    called(self, node, incarnation, call)


def hears_former_lives(self: OperatorRpc, node: int, incarnation: int, call: OperatorCall) -> None:
    """A late question of a former life begins that life once more."""
    if incarnation < self._incarnations.get(node, 0):
        self._incarnations[node] = 0
    called(self, node, incarnation, call)


def takes_any_answer(self: OperatorRpc, node: int, reply: OperatorReply, now: float) -> None:
    if reply.number not in self._waiting and self._waiting:
        reply = OperatorReply(next(iter(self._waiting)), reply.answer)
    replied(self, node, reply, now)


def forgets_that_it_was_answered(self: OperatorRpc, node: int, reply: OperatorReply, now: float) -> None:
    waiting = self._waiting.get(reply.number)
    replied(self, node, reply, now)
    if waiting is not None:
        self._waiting[reply.number] = waiting


MISTAKES: Final[dict[str, tuple[str, Callable[..., None]]]] = {
    "remembers nothing": ("called", remembers_nothing),
    "hears former lives": ("called", hears_former_lives),
    "takes any answer": ("replied", takes_any_answer),
    "numbers from one in each life": ("begin_incarnation", lambda self, incarnation: None),
    "never gives up": ("turn", lambda self, now: None),
    "forgets that it was answered": ("replied", forgets_that_it_was_answered),
}


@pytest.mark.interpreted_only("what is compiled can not be patched")
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_made_on_purpose_show(name: str) -> None:
    with patch.object(OperatorRpc, *MISTAKES[name]):
        assert any(World(seed).run() for seed in range(60))
