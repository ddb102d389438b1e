"""Push consumers: interest, heartbeats, flow control, pace."""

from __future__ import annotations

import pytest
from tests.core.streams.consumer_scene import Scene, Shelf

from starlingmq.core.streams.consumer_policy import ACK_NONE, WAIT_MIN
from starlingmq.core.streams.effects import Deliver, StatusMessage
from starlingmq.core.streams.flow_window import WINDOW_MAX, WINDOW_START


def test_messages_go_to_the_deliver_subject_while_somebody_listens() -> None:
    scene = Scene(deliver_to=b"d")
    scene.put(b"a")
    assert scene.out() == []
    scene.listen()
    assert [(each.to, each.sequence) for each in scene.delivered()] == [(b"d", 1)]
    scene.put(b"b")
    scene.listen(False)
    scene.out()
    scene.put(b"c")
    scene.later(30.0)
    assert scene.out() == []
    scene.listen()
    assert scene.sequences() == [1, 2, 3]


def test_a_push_consumer_ends_when_nobody_has_listened_for_long() -> None:
    scene = Scene(deliver_to=b"d", inactive=5.0)
    scene.later(4.0)
    scene.listen()
    scene.later(100.0)
    scene.listen(False)
    scene.later(4.0)
    scene.listen(False)
    assert not scene.consumer.ended
    scene.later(1.0)
    assert scene.consumer.ended
    never = Scene(deliver_to=b"d", inactive=5.0)
    never.later(5.0)
    assert never.consumer.ended


def test_heartbeats_come_while_there_are_no_messages() -> None:
    scene = Scene(deliver_to=b"d", heartbeat=5.0)
    scene.later(6.0)
    assert scene.out() == []
    scene.listen()
    scene.put(b"a", b"b")
    scene.out()
    scene.later(4.9)
    assert scene.out() == []
    scene.later(0.2)
    assert scene.statuses() == [b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 2\r\nNats-Last-Stream: 2\r\n\r\n"]


def test_flow_control() -> None:
    scene = Scene(deliver_to=b"d", flow_control=True, heartbeat=1.0, ack=ACK_NONE)
    scene.listen()
    payload = bytes(WINDOW_START // 4)
    for _ in range(8):
        scene.shelf.put(b"a", payload)
    scene.fill()
    *messages, last = scene.out()
    assert [type(each) for each in [*messages, last]] == [Deliver, Deliver, StatusMessage, Deliver, Deliver]
    request = messages[2]
    assert isinstance(request, StatusMessage)
    assert request.block == b"NATS/1.0 100 FlowControl Request\r\n\r\n"
    assert (request.to, request.reply) == (b"d", b"$JS.FC.S.C.1000")
    scene.later(1.0)
    assert scene.statuses() == [
        b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 4\r\nNats-Last-Stream: 4\r\n"
        b"Nats-Consumer-Stalled: $JS.FC.S.C.1000\r\n\r\n"
    ]
    scene.consumer.flow(b"$JS.FC.S.C.9999")
    scene.fill()
    assert scene.out() == []
    scene.consumer.flow(request.reply)
    scene.fill()
    answered = scene.out()
    assert [each.sequence for each in answered if isinstance(each, Deliver)] == [5, 6, 7, 8]
    assert [each.reply for each in answered if isinstance(each, StatusMessage)] == [b"$JS.FC.S.C.2000"]
    scene.later(1.0)
    assert b"Stalled" in scene.statuses()[0]


def test_the_window_grows_to_its_limit() -> None:
    scene = Scene(deliver_to=b"d", flow_control=True, ack=ACK_NONE)
    scene.listen()
    payload = bytes(1 << 20)
    most = 0
    for _ in range(40):
        for _ in range(40):
            scene.shelf.put(b"a", payload)
        scene.fill()
        out = scene.out()
        most = max(most, sum(isinstance(each, Deliver) for each in out))
        for each in out:
            if isinstance(each, StatusMessage):
                scene.consumer.flow(each.reply)
    assert WINDOW_START >> 20 < WINDOW_MAX >> 21 < most <= (WINDOW_MAX >> 20) + 1


def test_an_ordered_consumer_starts_over_at_a_sequence() -> None:
    """As its client does it after a gap: another consumer, from the sequence that it lacks."""
    shelf = Shelf()
    for _ in range(5):
        shelf.put(b"a")
    fields = {
        "deliver_to": b"d",
        "ack": ACK_NONE,
        "flow_control": True,
        "heartbeat": 5.0,
        "max_deliver": 1,
        "inactive": 300.0,
        "memory": True,
    }
    first = Scene(shelf, **fields)
    first.listen()
    assert first.sequences() == [1, 2, 3, 4, 5]
    again = Scene(shelf, **fields, deliver=3, start_seq=3)
    again.listen()
    assert [each.reply for each in again.delivered()] == [
        b"$JS.ACK.S.C.1.3.1.0.2",
        b"$JS.ACK.S.C.1.4.2.0.1",
        b"$JS.ACK.S.C.1.5.3.0.0",
    ]
    first.listen(False)
    first.later(300.0)
    assert first.consumer.ended


def test_a_rate_limit_spreads_messages() -> None:
    scene = Scene(deliver_to=b"d", rate_limit=8 * 1000, burst=500, ack=ACK_NONE)
    for _ in range(10):
        scene.shelf.put(b"a", bytes(200))
    scene.listen()
    times = [0.0] * len(scene.delivered())
    for _ in range(40):
        scene.later(0.1)
        times += [scene.now - 1000.0] * len(scene.delivered())
    assert len(times) == 10
    size = len(b"a" + b"$JS.ACK.S.C.1.1.1.0.9") + 200
    assert times[:2] == [0.0, 0.0]
    assert times[-1] == pytest.approx((10 * size - 500) / 1000, abs=0.15)


def test_an_original_replay_keeps_the_gaps_until_it_has_caught_up() -> None:
    shelf = Shelf()
    for time in (100.0, 101.0, 101.0005, 104.0):
        shelf.put(b"a", b"", time)
    scene = Scene(shelf, deliver_to=b"d", replay_original=True)
    scene.listen()
    times = []
    for _ in range(50):
        times += [round(scene.now - 1000.0, 1) for _ in scene.delivered()]
        scene.later(0.1)
    assert times == [0.0, 1.0, 1.0, 4.0]
    shelf.put(b"a", b"", 9000.0)
    scene.fill()
    assert scene.sequences() == [5]


def test_another_deliver_subject_gets_what_is_pending() -> None:
    scene = Scene(deliver_to=b"d")
    scene.listen()
    scene.put(b"a", b"b")
    scene.out()
    scene.consumer.change(Scene(deliver_to=b"e").policy, scene.now)
    scene.fill()
    assert [(each.to, each.sequence) for each in scene.delivered()] == [(b"e", 1), (b"e", 2)]


def test_without_a_subscriber_there_are_no_heartbeats_and_nothing_to_wake_up_for() -> None:
    scene = Scene(deliver_to=b"d", heartbeat=0.1)
    assert scene.consumer.wake_at() == 0.0
    scene.consumer.interest(True, scene.now)
    assert scene.consumer.wake_at() == scene.now + 0.1
    scene.consumer.interest(False, scene.now)
    assert scene.consumer.wake_at() == 0.0


def test_redeliveries_leave_time_for_others() -> None:
    scene = Scene(deliver_to=b"d", ack_wait=1e-9, backoff=[])
    scene.consumer.interest(True, scene.now)
    scene.put(b"a")
    assert scene.consumer.wake_at() >= scene.now + WAIT_MIN


@pytest.mark.parametrize("limit", [-1, 0])
def test_without_a_limit_not_all_of_a_stream_is_pending(limit: int) -> None:
    scene = Scene(deliver_to=b"d", max_ack_pending=limit)
    scene.consumer.interest(True, scene.now)
    scene.put(*[b"a"] * 20)
    scene.consumer._room = 25  # of PENDING_MAX
    scene.put(*[b"a"] * 20)
    assert scene.consumer.num_ack_pending() == 25
