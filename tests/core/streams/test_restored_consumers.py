"""Consumers at a start: what they were done with stays done."""

from __future__ import annotations

from tests.core.streams.test_sequenced_stream import NOW, Log
from tests.harness import World

from starlingmq.core.messages.message import Message
from starlingmq.core.streams.consumer_policy import ConsumerPolicy
from starlingmq.core.streams.consumer_state import ConsumerState, encode_state
from starlingmq.core.streams.policies import StreamPolicy
from starlingmq.core.streams.sequenced_stream import SequencedStream


def test_a_consumer_knows_what_it_was_done_with_before_other_nodes_have_its_messages() -> None:
    """With copies nothing is shown that the other nodes in step do not have, at a start nothing at all."""
    world = World(start=NOW)
    hub = world.state.jetstream
    policy = StreamPolicy()
    policy.subjects = [b"s"]
    log = Log()
    stream = SequencedStream(world.state.ctx, "S", 7, policy, b"{}", NOW, log, 1)
    for _ in range(10):
        message = Message(b"s", b"", 1, False, b"", 0.0, "", NOW)
        stream.restore(message)
        log.messages.append(message)
    hub._know(stream)
    state = ConsumerState()
    state.next, state.delivered, state.number, state.floor, state.floor_number = 6, 5, 5, 5, 5
    log.messages.clear()
    after = hub.add_consumer(stream, "after", ConsumerPolicy(), b"{}", NOW, encode_state(state))
    assert (after.delivered, after.ack_floor) == ((5, 5), (5, 5))
