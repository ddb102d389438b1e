"""Messages about owners between two nodes: each is taken once, in order, whatever happens to the frames."""

from __future__ import annotations

from math import inf

import pytest

from starlingmq.cluster.links.peer_frames import ShareFrame
from starlingmq.cluster.shares.share_channel import ACKNOWLEDGE_SECONDS, FRAMES_UNDER_WAY, RESEND_SECONDS, ShareChannel
from starlingmq.cluster.shares.share_messages import Ask, Claim, Hasten, Message, OwnerAnswer


def claims(*numbers: int) -> list[Message]:
    return [Claim(number, "c", 1, 0, 0) for number in numbers]


def test_the_messages_of_a_turn_are_one_frame() -> None:
    sender, receiver = ShareChannel(1), ShareChannel(1)
    for message in claims(1, 2, 3):
        sender.add(message)
    (frame,) = sender.take_frames(0.0)
    assert receiver.received(frame) == claims(1, 2, 3)
    assert receiver.take_frames(0.0) == [] and receiver.wake_at() == ACKNOWLEDGE_SECONDS
    (answer,) = receiver.take_frames(ACKNOWLEDGE_SECONDS)
    assert sender.received(answer) == [] and sender.taken == 3 and sender.idle()
    assert receiver.wake_at() == inf and receiver.take_frames(1.0) == []


def test_a_frame_that_goes_back_acknowledges_and_nothing_else_does() -> None:
    sender, receiver = ShareChannel(1), ShareChannel(1)
    sender.add(claims(1)[0])
    receiver.received(sender.take_frames(0.0)[0])
    assert receiver.take_frames(0.0) == []
    receiver.add(OwnerAnswer(1, 5, ()))
    (answer,) = receiver.take_frames(0.001)
    assert sender.received(answer) == [OwnerAnswer(1, 5, ())] and sender.taken == 1
    assert receiver.take_frames(1.0) == [answer], "repeated, and no acknowledgement beside it"


def test_what_is_waited_for_and_half_of_what_may_be_under_way_are_acknowledged_at_once() -> None:
    sender, receiver = ShareChannel(1), ShareChannel(1)
    sender.add(claims(1)[0])
    receiver.received(sender.take_frames(0.0)[0])
    receiver.owe()
    assert len(receiver.take_frames(0.0)) == 1
    for number in range(FRAMES_UNDER_WAY // 2):
        assert receiver.take_frames(0.0) == []
        sender.add(Ask((number,)))
        receiver.received(sender.take_frames(0.0)[0])
    assert len(receiver.take_frames(0.0)) == 1


def test_a_lost_frame_is_repeated_however_much_the_other_node_says() -> None:
    sender, receiver = ShareChannel(1), ShareChannel(1)
    sender.add(Hasten())
    sender.take_frames(0.0)  # it is lost
    for number in range(1, 1 + 2 * round(RESEND_SECONDS / ACKNOWLEDGE_SECONDS)):
        now = number * ACKNOWLEDGE_SECONDS
        receiver.add(Hasten())
        for frame in receiver.take_frames(now):
            sender.received(frame)
        sender.owe()
        for frame in sender.take_frames(now):
            if receiver.received(frame):
                assert now == pytest.approx(RESEND_SECONDS, abs=ACKNOWLEDGE_SECONDS)
                return
    raise AssertionError("it is not repeated")


def test_a_lost_frame_is_repeated_and_a_doubled_one_is_taken_once() -> None:
    sender, receiver = ShareChannel(1), ShareChannel(1)
    sender.add(claims(1)[0])
    sender.take_frames(0.0)  # lost
    sender.add(claims(2)[0])
    (second,) = sender.take_frames(0.1)
    assert receiver.received(second) == [] and sender.taken == 0, "a frame after a gap is not taken"
    assert sender.take_frames(0.2) == []
    first, second = sender.take_frames(0.1 + RESEND_SECONDS)
    assert receiver.received(first) == claims(1)
    assert receiver.received(first) == []
    assert receiver.received(second) == claims(2)
    (answer,) = receiver.take_frames(0.1 + RESEND_SECONDS)
    sender.received(answer)
    assert sender.idle() and sender.taken == 2, "repeated frames are acknowledged at once"


def test_a_slow_receiver_bounds_what_is_under_way() -> None:
    sender = ShareChannel(1)
    frames: list[ShareFrame] = []
    for number in range(FRAMES_UNDER_WAY + 3):
        sender.add(Ask((number,)))
        frames += sender.take_frames(0.0)
    assert len(frames) == FRAMES_UNDER_WAY and sender.full() and not sender.idle()
