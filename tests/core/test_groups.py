"""Shared groups against a list of members: the chosen member must be able to receive a message now."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.core.session_twins import outgoing
from tests.few import drawn, live

from starlingmq.core.groups.group import Group
from starlingmq.core.groups.member_selection import RANDOM, STRATEGIES
from starlingmq.core.messages.message import Message
from starlingmq.core.session.queue import MessageQueue
from starlingmq.core.session.session import Client, Session, Subscription

CLIENTS = 5
READY, BUSY, AWAY = range(3)
MESSAGE = Message(b"t", b"", 1, False, b"", 0.0, "publisher", 0.0)


def state(session: Session) -> int:
    """The lower the better."""
    if session.client is None:
        return AWAY
    return BUSY if session.client.blocked or session.queue else READY


class GroupAsTheListSays(RuleBasedStateMachine):
    numbers = st.integers(0, CLIENTS - 1)

    @initialize(seed=st.integers(0, 2**64 - 1))
    def begin(self, seed: int) -> None:
        self.group = Group(b"g", b"t", seed)
        self.sessions = [self.new_session(number) for number in range(CLIENTS)]
        self.twin: dict[str, Subscription] = {}

    def new_session(self, number: int) -> Session:
        session = Session(f"client {number}")
        session.client = Client("", "", 0.0)
        return session

    @rule(number=numbers)
    def join(self, number: int) -> None:
        session = self.sessions[number]
        subscription = Subscription(session, b"t", 1, False, False, b"")
        self.group.join(subscription)
        self.twin[session.client_id] = subscription

    @rule(number=numbers)
    def leave(self, number: int) -> None:
        session = self.sessions[number]
        self.group.leave(session)
        member = self.twin.get(session.client_id)
        if member is not None and member.session is session:
            del self.twin[session.client_id]

    @rule(number=numbers)
    def begin_a_new_session(self, number: int) -> None:
        """Begin a new session; the old one leaves later, when it is cleaned up."""
        old = self.sessions[number]
        self.sessions[number] = self.new_session(number)
        self.join(number)
        self.group.leave(old)

    @rule(number=numbers, wanted=st.sampled_from([READY, BUSY, AWAY]), by_queue=st.booleans())
    def change(self, number: int, wanted: int, by_queue: bool) -> None:
        session = self.sessions[number]
        session.client = None if wanted == AWAY else Client("", "", 0.0)
        session.queue = None
        self.group.member_connected(session)
        if wanted == BUSY and session.client is not None:
            session.client.blocked = not by_queue
            if by_queue:
                session.queue = MessageQueue(0, 0)
                session.queue.push(outgoing(1), 0.0)

    @rule(strategy=st.sampled_from(range(len(STRATEGIES))))
    def choose(self, strategy: int) -> None:
        self.group.strategy = strategy
        chosen = self.group.choose(MESSAGE, 1000)
        self.group.strategy = RANDOM
        ready = self.ready()
        assert chosen in ready if ready else chosen is None

    @rule()
    def nobody_is_left_out(self) -> None:
        """Each is chosen at least as often as one of n places is drawn: in 40 n ** 2 choices one that is missing is no
        accident (e to the power of -40 n)."""
        ready = self.ready()
        chosen = {self.group.choose(MESSAGE, 1000) for _ in range(40 * len(ready) ** 2)}
        assert chosen == set(ready)

    def ready(self) -> list[Subscription]:
        return [member for member in self.twin.values() if state(member.session) == READY]

    @invariant()
    def the_members_are_those_of_the_list(self) -> None:
        assert sorted(map(id, self.group.members)) == sorted(map(id, self.twin.values()))
        assert self.group.online() == sum(state(member.session) != AWAY for member in self.twin.values())


@drawn(25, 200)
def test_the_group_is_as_the_list_says(examples: int) -> None:
    live(GroupAsTheListSays, examples)
