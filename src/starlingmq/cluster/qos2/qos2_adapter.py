"""Connects the broker with the QoS 2 handshakes across nodes: ``Qos2Lookup``, which asks other nodes, and
``Qos2Store``, which answers them.

A call is answered once all of its questions were looked up, a limited number per turn. The reply is sent when the state
that it reports is stored: it uses the stored lane, like acknowledgements.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Final

from starlingmq.cluster.links.control_frames import HandshakeAnswer, HandshakeCall, HandshakeQuestion, HandshakeReply
from starlingmq.cluster.qos2.qos2_lookup import CANCEL, LOOK, Qos2Lookup, Qos2Question
from starlingmq.cluster.qos2.qos2_store import FACTS, HELD, LATER, UNKNOWN, Answer, Qos2Store
from starlingmq.cluster.view.subsystem import NodeLife, Subsystem
from starlingmq.config.settings import ClusterConfig
from starlingmq.core.broker import BrokerState
from starlingmq.core.context import remote_qos2
from starlingmq.core.context.ready import FACT_DELETE, FACT_PUT, Write
from starlingmq.core.context.remote_qos2 import RemoteQos2
from starlingmq.core.messages.message import Message
from starlingmq.core.peers.peer_receivers import link
from starlingmq.core.session.session_user import BY_CLIENT_ID

CALLS_MAX: Final = 1000  # calls of other nodes that may wait for an answer; further ones are dropped and repeated
TOKEN: Final = 8  # bytes


class ReplyPort:
    """Takes the part of ``Client.transport`` for replies: receives the tokens of those that may be sent, eight bytes
    each."""

    __slots__ = ("adapter",)

    def __init__(self, adapter: Qos2Adapter) -> None:
        self.adapter = adapter

    def write(self, data: bytes) -> None:
        self.adapter.stored([int.from_bytes(data[at : at + TOKEN], "big") for at in range(0, len(data), TOKEN)])

    def pause_reading(self) -> None:
        """No effect: nothing is read."""

    def resume_reading(self) -> None:
        """No effect: nothing is read."""

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        """No effect: nothing is open."""

    def abort(self) -> None:
        """No effect: nothing is open."""


class Incoming:
    node: int
    call: HandshakeCall
    answers: list[HandshakeAnswer]  # to the first questions

    def __init__(self, node: int, call: HandshakeCall) -> None:
        self.node = node
        self.call = call
        self.answers = []


class Qos2Adapter(Subsystem):
    """``connected``: whether a node is connected."""

    store: Qos2Store
    lookup: Qos2Lookup
    counters: RemoteQos2
    fact_prefix = FACTS

    def __init__(self, broker: BrokerState, config: ClusterConfig, connected: Callable[[int], bool]) -> None:
        self._broker = broker
        self._ctx = broker.ctx
        self.counters = self._ctx.cluster.share_qos2()
        self.store = Qos2Store(self._route, self._fact, self._give_up, config.handshake_memory)
        self.lookup = Qos2Lookup(
            self.counters, config.handshake_window, config.handshake_timeout, connected, self._look, self._release
        )
        self._since = 0
        self._inbox: deque[Incoming] = deque()
        self._port = link("$handshakes", ReplyPort(self))
        self._tokens = 0
        self._storing: dict[int, tuple[int, HandshakeReply]] = {}  # token -> (node, reply)
        self._replies: list[tuple[int, HandshakeReply]] = []  # stored, to be sent
        self._calls: list[tuple[int, HandshakeCall]] = []

    def enter(self, life: NodeLife, now: float) -> None:
        self.lookup.enter(life.me.number, life.me.incarnation)
        self._since = 0 if self._ctx.recording else life.revision
        self.store.restore(life.facts(FACTS))

    def remembers_since(self, epoch: int) -> None:
        """All sessions of this incarnation have later epochs. Without storage, it knows nothing of earlier ones."""
        if not self._ctx.recording:
            self._since = epoch

    def set_members(self, numbers: dict[int, None]) -> None:
        self.lookup.set_members(numbers)

    # Requests of the two to the broker

    def _route(self, message: Message) -> None:
        self._ctx.spend(1)
        self._broker.publishing.route(message, self._ctx.sessions.get(message.publisher))

    def _fact(self, key: bytes, value: bytes | None) -> None:
        if self._ctx.recording:
            self._ctx.write(Write(FACT_DELETE if value is None else FACT_PUT, topic=key, value=value or b""))

    def _give_up(self, client_id: str, count: int) -> None:
        self._ctx.drop("handshake_memory", client_id, count)

    def _look(self, question: Qos2Question) -> Answer:
        user = self._bound(question.user)
        return self.store.look(question.client_id, question.packet_id, question.epoch, question.floor, user)

    def _release(self, question: Qos2Question) -> Answer:
        if self._ctx.isolated or self._ctx.catching_up:
            return self._look(question)
        return self.store.release(
            question.client_id,
            question.packet_id,
            question.epoch,
            question.floor,
            question.bound,
            self._ctx.now,
            self._bound(question.user),
        )

    def _bound(self, user: str | None) -> str | None:
        """The user whose handshakes count; None: those of all users with that client id."""
        return None if self._ctx.session_owner == BY_CLIENT_ID else user

    # Calls of other nodes

    def called(self, node: int, call: HandshakeCall) -> None:
        if len(self._inbox) < CALLS_MAX:
            self._inbox.append(Incoming(node, call))

    def _answer(self, said: HandshakeQuestion, user: str | None) -> HandshakeAnswer:
        client_id, packet_id, before, floor, bound = said
        ctx = self._ctx
        ctx.spend(1)
        session = ctx.sessions.get(client_id)
        if session is not None and session.epoch < before and session.inbound is not None:
            return (LATER, 0, 0)  # this node has not heard yet that the session has to leave
        store = self.store
        if bound == CANCEL:
            store.cancel(client_id, packet_id, before, user)
            return (UNKNOWN, 0, 0)
        kind, epoch = store.look(client_id, packet_id, before, floor, user)
        if kind == HELD and bound != LOOK and epoch >= bound:
            if ctx.isolated or ctx.catching_up:
                return (LATER, 0, 0)  # a message published now might not reach all subscribers
            kind, epoch = store.release(client_id, packet_id, before, floor, bound, ctx.now, user)
        return (kind, epoch, store.newest(client_id, before, floor, user))

    def _serve(self) -> bool:
        """Answers calls as far as there is time. Returns whether more are left."""
        while self._inbox:
            incoming = self._inbox[0]
            questions, users = incoming.call.questions, incoming.call.users
            for at in range(len(incoming.answers), len(questions)):
                if self._ctx.work <= 0:
                    return True
                user = self._bound(users[at] if at < len(users) else None)
                incoming.answers.append(self._answer(questions[at], user))
            self._inbox.popleft()
            self._tokens += 1
            reply = HandshakeReply(incoming.call.number, self._since, tuple(incoming.answers))
            self._storing[self._tokens] = incoming.node, reply
            self._ctx.send_stored(self._port, self._tokens.to_bytes(TOKEN, "big"))
        return False

    def stored(self, tokens: list[int]) -> None:
        for token in tokens:
            self._replies.append(self._storing.pop(token))

    def replied(self, node: int, reply: HandshakeReply, now: float) -> None:
        self.lookup.replied(node, reply, now)

    # Turns

    def turn(self, now: float) -> None:
        """To be called after sessions were added and removed."""
        lookup = self.lookup
        for left in self.counters.take_left():
            self.store.leave(left.client_id, left.epoch, left.inbound, now, left.owner)
        for asked in self.counters.take_asked():
            if not asked.session.ended and asked.session.client is asked.client:
                lookup.ask(asked, now)
        self._serve()
        self._calls += lookup.turn(now)
        self._tell_clients()
        self.store.sweep(now)

    def _tell_clients(self) -> None:
        resolved = self.lookup.resolved
        if not resolved:
            return
        self.lookup.resolved = []
        for question, outcome in resolved:
            asked = question.asked
            assert asked is not None
            if outcome == remote_qos2.COMPLETED:
                self.counters.answered_completed += 1
            elif outcome != remote_qos2.CANCELLED:
                self.counters.answered_unknown += 1
            self._broker.resolved(asked.client, asked.session, asked.packet_id, outcome)

    def take_frames(self) -> list[tuple[int, HandshakeCall]]:
        calls, self._calls = self._calls, []
        return calls

    def has_input(self) -> bool:
        return bool(self.counters.asked or self.counters.left)

    def is_pending(self) -> bool:
        return len(self._inbox) != 0

    def take_replies(self) -> list[tuple[int, HandshakeReply]]:
        replies = self._replies
        self._replies = []
        return replies

    def wake_at(self, now: float) -> float:
        return min(self.lookup.wake_at(), self.store.wake_at() or inf)
