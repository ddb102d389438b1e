"""Finds the node with the QoS 2 handshake that a PUBREL continues: asks other nodes, in batches per time window.

::

    PUBREL unknown here --hint is sure--> ASKED ONE --completed--> PUBCOMP
            |                                 '--unknown, older--.
            '--------- no hint ---------------------------> ASKED ALL --all answered--> the highest epoch:
                                                                 |          completed   PUBCOMP
                                                                 |          held        ask that node to RELEASE it
                                                                 |          unknown     0x92, or close the connection
                                                                 '--``timeout`` --> the same

All questions of a window go to each node as one call, and come back as one reply. A question names the epoch by which
the asking node owns the client id, the ``floor`` of its session and a ``bound``. A node that holds the handshake with
an epoch of at least ``bound`` releases it at once (from the hint: no node can have a later one). LOOK: no node releases
anything yet.

Invariants:

- A held handshake is released only when no node is known to have a later one with this packet id. An older one that its
  client abandoned is never mistaken for it.
- A client is told success only after a node has confirmed that it routed the message and stored that.
- A handshake is called unknown before ``timeout`` only if all nodes were asked. Handshakes of a node that is no longer
  a member, or that restarted without storage, are lost and so unknown, whatever older nodes say.

Calls and replies may be lost, duplicated or late: a node without a reply asks again, and a repeated question gets the
same answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from math import inf
from typing import Final

from starlingmq.cluster.links.control_frames import HandshakeCall, HandshakeReply
from starlingmq.cluster.qos2.qos2_store import COMPLETED, HELD, LATER, UNKNOWN, Answer
from starlingmq.core.context import remote_qos2
from starlingmq.core.context.remote_qos2 import Asked, RemoteQos2
from starlingmq.core.session.trail import Trail

LOOK: Final = 0  # in place of a bound: only report
CANCEL: Final = -1  # in place of a bound: forget it
ASK_AGAIN: Final = 0.5  # seconds without a reply
QUESTIONS_MAX: Final = 50_000  # in one call, about 2 MiB; more go in the next window
INCARNATION_SHIFT: Final = 32  # call numbers: those of an earlier incarnation do not match


class Qos2Question:
    asked: Asked | None  # the waiting PUBREL; None: nothing waits
    client_id: str
    packet_id: int
    epoch: int  # by which the asking node owns the client id
    floor: int
    trail: Trail
    user: str | None  # the session's user; None: handshakes are not bound to users
    cancel: bool
    deadline: float
    bound: int
    one: bool  # only the node of the hint was asked
    final: bool  # a node was asked to release it
    done: bool
    lost: bool  # the node with the newest handshakes has restarted without storage
    waiting: dict[int, None]  # nodes
    answers: dict[int, Answer]
    newest: dict[int, int]  # node -> epoch of the newest handshake that it has of this client

    def __init__(
        self, asked: Asked | None, client_id: str, packet_id: int, epoch: int, floor: int, trail: Trail, deadline: float
    ) -> None:
        self.asked = asked
        self.client_id = client_id
        self.packet_id = packet_id
        self.epoch = epoch
        self.floor = floor
        self.trail = trail
        self.user = None if asked is None else asked.session.owner
        self.cancel = asked is None or asked.again
        self.deadline = deadline
        self.bound = CANCEL if self.cancel else LOOK
        self.one = False
        self.final = False
        self.done = False
        self.lost = False
        self.waiting = {}
        self.answers = {}
        self.newest = {}


class Call:
    node: int
    questions: list[Qos2Question]
    again_at: float

    def __init__(self, node: int, questions: list[Qos2Question], again_at: float) -> None:
        self.node = node
        self.questions = questions
        self.again_at = again_at


class Qos2Lookup:
    """Asks. ``look`` and ``release`` answer from this node's own ``Qos2Store``; ``connected``: whether a node can be
    asked. ``resolved`` has the results: (question, an outcome of ``core.context.remote_qos2``)."""

    resolved: list[tuple[Qos2Question, int]]

    def __init__(
        self,
        counters: RemoteQos2,
        window: float,
        timeout: float,
        connected: Callable[[int], bool],
        look: Callable[[Qos2Question], Answer],
        release: Callable[[Qos2Question], Answer],
    ) -> None:
        self.counters = counters
        self.window = window
        self.timeout = timeout
        self._connected = connected
        self._look = look
        self._release = release
        self._me = 0
        self._others: dict[int, None] = {}
        self._number = 0
        self._open: dict[tuple[str, int, bool], Qos2Question] = {}
        self._deadlines: deque[Qos2Question] = deque()  # by deadline; some may be done
        self._queued: dict[int, dict[Qos2Question, None]] = {}  # by node, for the next call
        self._ends_at = inf  # end of the window
        self._away: dict[int, dict[Qos2Question, None]] = {}  # by a node that is not connected
        self._calls: dict[int, Call] = {}  # by number, in order of time
        self.resolved = []

    def enter(self, me: int, incarnation: int) -> None:
        self._me = me
        self._number = incarnation << INCARNATION_SHIFT

    def set_members(self, members: Iterable[int]) -> None:
        """``members``: the numbers of all nodes, including this one."""
        self._others = {member: None for member in members if member != self._me}
        for node in [node for node in self._away if node not in self._others]:
            del self._away[node]
        for question in list(self._open.values()):
            gone = [node for node in question.waiting if node not in self._others]
            for node in gone:
                del question.waiting[node]
            if gone and not question.done:
                self._decide(question)

    def __len__(self) -> int:
        """The number of open questions."""
        return len(self._open)

    # A question

    def ask(self, asked: Asked, now: float) -> None:
        session = asked.session
        key = (session.client_id, asked.packet_id, asked.again)
        earlier = self._open.get(key)
        if earlier is not None:
            assert earlier.asked is not None
            if earlier.asked.client is asked.client:
                return  # a repetition: it is being asked
            self._close(earlier)
        trail = session.trail or Trail(0, 0, False)
        question = Qos2Question(
            asked, session.client_id, asked.packet_id, session.epoch, session.floor, trail, now + self.timeout
        )
        self._open[key] = question
        self._deadlines.append(question)
        self.counters.questions += 1
        if question.cancel:
            self._ask_all(question, now)
        elif trail.sure and trail.node == self._me:
            question.one = True
            question.bound = trail.epoch
            question.answers[self._me] = self._release(question)
        elif trail.sure and trail.node in self._others:
            question.one = True
            question.bound = trail.epoch
            self._want(trail.node, question, now)
        else:
            self._ask_all(question, now)
        self._decide(question, now)

    def _ask_all(self, question: Qos2Question, now: float) -> None:
        question.one = False
        question.bound = CANCEL if question.cancel else LOOK
        self.counters.broadcasts += 1
        if not question.cancel:
            question.answers[self._me] = self._look(question)
            question.newest[self._me] = question.answers[self._me][1]
        for node in self._others:
            if node not in question.answers:
                self._want(node, question, now)

    def _want(self, node: int, question: Qos2Question, now: float) -> None:
        question.waiting[node] = None
        self._queued.setdefault(node, {})[question] = None
        if self._ends_at == inf:
            self._ends_at = now + self.window

    def _close(self, question: Qos2Question) -> None:
        question.done = True
        question.waiting.clear()
        key = (question.client_id, question.packet_id, question.cancel)
        if self._open.get(key) is question:
            del self._open[key]

    def _resolve(self, question: Qos2Question, outcome: int) -> None:
        self._close(question)
        if question.asked is not None:
            self.resolved.append((question, outcome))

    # Decisions

    def _decide(self, question: Qos2Question, now: float = 0.0) -> None:
        if question.done:
            return
        if question.cancel:
            if not question.waiting:
                self._resolve(question, remote_qos2.CANCELLED)
        elif question.waiting:
            return
        elif question.final:
            self._released(question, now)
        elif question.one:
            answer = question.answers.get(question.trail.node)
            if answer is not None and answer[0] == COMPLETED and answer[1] >= question.trail.epoch:
                self.counters.hits += 1
                self._resolve(question, remote_qos2.COMPLETED)
            else:
                self._ask_all(question, now)
                self._decide(question, now)
        else:
            self._conclude(question, now)

    def _conclude(self, question: Qos2Question, now: float) -> None:
        """All nodes have answered."""
        node, (kind, epoch) = max(question.answers.items(), key=_epoch, default=(0, (UNKNOWN, 0)))
        if kind == UNKNOWN or (self._lost(question) and epoch < question.trail.epoch):
            self._resolve(question, remote_qos2.UNKNOWN)
            return
        self._learn(question)
        if kind == COMPLETED:
            self._resolve(question, remote_qos2.COMPLETED)
            return
        question.final = True
        question.bound = epoch
        question.answers.clear()
        if node == self._me:
            question.answers[node] = self._release(question)
            self._released(question, now)
        else:
            self._want(node, question, now)

    def _lost(self, question: Qos2Question) -> bool:
        trail = question.trail
        return question.lost or (trail.node != 0 and trail.node != self._me and trail.node not in self._others)

    def _released(self, question: Qos2Question, now: float) -> None:
        """The node that held the handshake was asked to release it. If it has not, its state has changed since its
        answer."""
        if any(kind == COMPLETED for kind, _ in question.answers.values()):
            self._resolve(question, remote_qos2.COMPLETED)
            return
        question.final = False
        question.answers.clear()
        if not self._others:
            self._resolve(question, remote_qos2.UNKNOWN)
            return
        self._ask_all(question, now)

    def _learn(self, question: Qos2Question) -> None:
        """After all nodes were asked: the next question of this client goes to the node with its newest handshakes."""
        asked = question.asked
        node, epoch = max(question.newest.items(), key=_newest, default=(0, 0))
        if asked is not None and asked.session.trail is question.trail and epoch != 0 and not self._lost(question):
            trail = Trail(node, epoch, True)
            trail.backlog = question.trail.backlog
            asked.session.trail = trail

    # Calls and replies

    def turn(self, now: float) -> list[tuple[int, HandshakeCall]]:
        """The calls to send now: one for each node at the end of a window."""
        for node in [node for node in self._away if self._connected(node)]:
            for question in self._away.pop(node):
                self._again(node, question, now)
        for number, call in list(self._calls.items()):
            if call.again_at > now:
                break
            del self._calls[number]
            for question in call.questions:
                self._again(call.node, question, now)
        while self._deadlines and (self._deadlines[0].done or self._deadlines[0].deadline <= now):
            question = self._deadlines.popleft()
            if not question.done:
                self._give_up(question, now)
        if now < self._ends_at:
            return []
        self._ends_at = inf
        queued = self._queued
        self._queued = {}
        calls: list[tuple[int, HandshakeCall]] = []
        for node, questions in queued.items():
            calls += self._call(node, list(questions), now)
        self.counters.windows += 1
        return calls

    def _again(self, node: int, question: Qos2Question, now: float) -> None:
        if node in question.waiting:
            self._want(node, question, now)

    def _call(self, node: int, questions: list[Qos2Question], now: float) -> list[tuple[int, HandshakeCall]]:
        wanted = [question for question in questions if node in question.waiting and not self._idle(question)]
        if not self._connected(node):
            for question in wanted:
                if question.cancel:  # not worth waiting for: epochs tell which of the two is later
                    del question.waiting[node]
                    self._decide(question, now)
                else:
                    self._away.setdefault(node, {})[question] = None
            return []
        for question in wanted[QUESTIONS_MAX:]:
            self._want(node, question, now)
        wanted = wanted[:QUESTIONS_MAX]
        if not wanted:
            return []
        self._number += 1
        self._calls[self._number] = Call(node, wanted, now + ASK_AGAIN)
        self.counters.calls += 1
        self.counters.entries += len(wanted)
        said = tuple([(q.client_id, q.packet_id, q.epoch, q.floor, q.bound) for q in wanted])
        return [(node, HandshakeCall(self._number, said, tuple([q.user for q in wanted])))]

    def _idle(self, question: Qos2Question) -> bool:
        """Whether nothing waits for the answer any more: the client is at another node, which asks itself."""
        asked = question.asked
        if asked is None or asked.session.client is asked.client:
            return False
        self._close(question)
        return True

    def replied(self, node: int, reply: HandshakeReply, now: float) -> None:
        call = self._calls.get(reply.number)
        if call is None or call.node != node or len(call.questions) != len(reply.answers):
            return
        del self._calls[reply.number]
        later: list[Qos2Question] = []
        counters = self.counters
        for question, (kind, epoch, newest) in zip(call.questions, reply.answers, strict=True):
            if node not in question.waiting:
                continue
            if kind == LATER:
                counters.later += 1
                later.append(question)
                continue
            if kind == COMPLETED:
                counters.completed += 1
            elif kind == HELD:
                counters.held += 1
            else:
                counters.unknown += 1
            del question.waiting[node]
            question.answers[node] = (kind, epoch)
            question.newest[node] = newest
            if node == question.trail.node and reply.since > question.trail.epoch:
                question.lost = True
            self._decide(question, now)
        if later:
            self._number += 1
            self._calls[self._number] = Call(node, later, now + ASK_AGAIN)

    def _give_up(self, question: Qos2Question, now: float) -> None:
        """The timeout of a question: a node that may know the handshake cannot be asked. An MQTT 5 client gets 0x92 and
        is done with the packet id, so nodes that were asked and have not answered have to forget it. A 3.x client will
        repeat its PUBREL."""
        waiting = list(question.waiting)
        if question.cancel:
            self._resolve(question, remote_qos2.CANCELLED)
            return
        self.counters.timed_out += 1
        self._resolve(question, remote_qos2.TIMED_OUT)
        if question.asked is not None and question.asked.client.version != 5:
            return
        forget = Qos2Question(
            None, question.client_id, question.packet_id, question.epoch, question.floor, question.trail, now
        )
        for node in waiting:
            if self._connected(node):
                self._want(node, forget, now)

    def wake_at(self) -> float:
        """When ``turn`` has to be called without an event; ``inf``: never."""
        soonest = self._ends_at
        for call in self._calls.values():
            soonest = min(soonest, call.again_at)
            break
        for question in self._deadlines:
            if not question.done:
                return min(soonest, question.deadline)
        return soonest


def _epoch(item: tuple[int, Answer]) -> int:
    return item[1][1]


def _newest(item: tuple[int, int]) -> int:
    return item[1]
