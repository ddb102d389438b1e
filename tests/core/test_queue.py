"""MessageQueue against a list that is measured again every time."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.core.session_twins import ListQueue, outgoing
from tests.few import drawn, live

from starlingmq.core.session.queue import MessageQueue


class QueueAsTheListSays(RuleBasedStateMachine):
    @initialize(max_length=st.integers(0, 6), max_bytes=st.sampled_from([0, 1, 10, 30]))
    def begin(self, max_length: int, max_bytes: int) -> None:
        self.queue = MessageQueue(max_length, max_bytes)
        self.twin = ListQueue(max_length, max_bytes)
        self.now = 1000.0

    @rule(qos=st.integers(0, 2), size=st.integers(0, 12), lifetime=st.sampled_from([0.0, 0.0, 1.0, 3.0, 9.0]))
    def push(self, qos: int, size: int, lifetime: float) -> None:
        item = outgoing(qos, b"x" * size, self.now + lifetime if lifetime else 0.0)
        gone = self.queue.push(item, self.now)
        assert (gone or []) == self.twin.push(item, self.now)

    @precondition(lambda self: self.twin.items)
    @rule()
    def pop(self) -> None:
        assert self.queue.pop() is self.twin.items.pop(0)

    @rule()
    def expire(self) -> None:
        assert self.queue.expire(self.now) == self.twin.expire(self.now)

    @rule(time=st.sampled_from([0.5, 1.0, 5.0]))
    def time_passes(self, time: float) -> None:
        self.now += time

    @invariant()
    def order_counts_and_bounds(self) -> None:
        assert [*self.queue.items] == self.twin.items
        assert len(self.queue) == len(self.twin.items)
        assert self.queue.bytes == self.twin.bytes()
        assert self.queue.qos0 == sum(item.qos == 0 for item in self.twin.items)
        assert not self.twin.over()


@drawn(25, 200)
def test_the_queue_is_as_the_list_says(examples: int) -> None:
    live(QueueAsTheListSays, examples)


def test_promised_messages_have_room_beside_the_limit_until_as_many_others_have_come() -> None:
    queue = MessageQueue(3, 0)
    assert [queue.push(outgoing(1, b"promised"), 0.0, True) for _ in range(5)] == [None] * 5
    assert [queue.push(outgoing(1), 0.0) for _ in range(3)] == [None] * 3
    lengths = []
    for _ in range(6):
        gone = queue.push(outgoing(1), 0.0)
        assert gone is not None
        lengths.append(len(queue))
    assert lengths == [7, 6, 5, 4, 3, 3], "the queue comes back to its limit"


def test_messages_that_leave_take_their_room_along() -> None:
    queue = MessageQueue(3, 100)
    for _ in range(5):
        queue.push(outgoing(1, b"x" * 100, 50.0), 0.0, True)
    for _ in range(5):
        queue.pop()
    assert (queue.promised, queue.promised_bytes) == (0, 0)
    for _ in range(5):
        queue.push(outgoing(1, b"x" * 100, 50.0), 0.0, True)
    assert len(queue.expire(60.0)) == 5
    for _ in range(3):
        queue.push(outgoing(1), 60.0)
    assert queue.push(outgoing(1), 60.0) is not None


def test_promised_bytes_have_room_beside_the_limit() -> None:
    queue = MessageQueue(0, 100)
    for _ in range(4):
        assert queue.push(outgoing(1, b"x" * 60), 0.0, True) is None
    for _ in range(50):
        queue.push(outgoing(1, b"x" * 60), 0.0)
    assert len(queue) == 1 and queue.bytes <= 100


def restored(queue: MessageQueue, offset: int) -> MessageQueue:
    """The queue after a restart of its node."""
    for item in queue.items:
        if item.message.offset < 0:
            item.message.offset = offset
    after = MessageQueue(queue.max_length, queue.max_bytes)
    after.restore(queue.references())
    after.loaded([outgoing(1, b"x" * 60).message for _ in range(len(after))])
    return after


def test_restarts_do_not_raise_the_limits() -> None:
    """A client is away, and its node restarts again and again while messages come."""
    for limits in ((3, 0), (0, 180), (3, 180)):
        queue = MessageQueue(*limits)
        for life in range(6):
            for _ in range(4):
                queue.push(outgoing(1, b"x" * 60), 0.0)
            assert len(queue) <= 3
            queue = restored(queue, life)


def test_what_exceeds_the_limits_after_a_restart_stays_until_others_come() -> None:
    """The limits were higher, or an earlier version did not store what was promised."""
    for limits in ((3, 0), (0, 180)):
        queue = MessageQueue(0, 0)
        for _ in range(10):
            queue.push(outgoing(1, b"x" * 60), 0.0)
        queue.max_length, queue.max_bytes = limits
        for life in range(3):
            queue = restored(queue, life)
            assert len(queue) == 10
        lengths = []
        for _ in range(9):
            queue.push(outgoing(1, b"x" * 60), 0.0)
            lengths.append(len(queue))
        assert lengths[0] < 11 and lengths[-1] <= 3
