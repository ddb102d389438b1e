"""Acknowledgements, redelivery, delivery policies, and the stored state."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.streams.consumer_scene import Scene, Shelf

from starlingmq.core.streams.consumer_policy import (
    ACK_ALL,
    ACK_NONE,
    BY_START_SEQUENCE,
    BY_START_TIME,
    LAST,
    LAST_PER_SUBJECT,
    NEW,
)
from starlingmq.core.streams.consumer_state import decode_state
from starlingmq.core.streams.effects import Deliver


def delivered(count: int, **fields: Any) -> tuple[Scene, list[Deliver]]:
    scene = Scene(**fields)
    scene.put(*[b"a"] * count)
    scene.pull(batch=count)
    return scene, scene.delivered()


def test_an_acknowledged_message_is_done() -> None:
    scene, (one, two) = delivered(2)
    assert scene.ack(one) and scene.ack(two, b"+ACK")
    assert scene.done() == [1, 2]
    scene.later(100.0)
    scene.pull()
    assert scene.out() == []
    assert scene.numbers() == ((2, 2), (2, 2), 0, 0, 0)


def test_the_floor_follows_the_lowest_pending_message() -> None:
    scene, (one, two, three, four) = delivered(4)
    scene.ack(two)
    assert scene.numbers()[1] == (0, 0)
    scene.ack(one)
    assert scene.numbers()[1] == (2, 2)
    scene.ack(four)
    assert scene.numbers()[1] == (2, 2)
    scene.ack(three)
    assert scene.numbers()[1] == (4, 4)


def test_unacknowledged_messages_come_again_in_order_and_before_new_ones() -> None:
    scene, messages = delivered(3, ack_wait=5.0)
    scene.put(b"b")
    scene.ack(messages[1])
    scene.later(4.0)
    scene.pull(batch=10)
    assert scene.sequences() == [4]
    scene.later(1.0)
    found = scene.delivered()
    assert [each.reply for each in found] == [
        b"$JS.ACK.S.C.2.1.5.1000000000000.0",
        b"$JS.ACK.S.C.2.3.6.1000000000000.0",
    ]
    assert scene.numbers() == ((6, 4), (0, 0), 3, 2, 0)
    scene.ack(found[0])  # of the second delivery
    scene.ack(messages[2])  # of the first
    assert scene.numbers()[2:4] == (1, 0)


def test_a_nak_brings_it_again_at_once_or_later() -> None:
    scene, (one, two) = delivered(2)
    scene.pull(batch=10)
    assert scene.ack(one, b"-NAK")
    out = scene.out()
    assert [each.sequence for each in out if isinstance(each, Deliver)] == [1]
    scene.ack(two, b'-NAK {"delay": 7000000000}')
    assert scene.advisories() == [("MSG_NAKED", 2, 1)]
    scene.later(6.0)
    assert scene.sequences() == []
    scene.later(1.0)
    assert scene.sequences() == [2]
    scene.ack(one, b"-NAK 2s")
    scene.later(2.0)
    assert scene.sequences() == [1]


def test_work_in_progress_starts_the_wait_again() -> None:
    scene, (one, _) = delivered(2, ack_wait=10.0)
    scene.later(9.0)
    assert scene.ack(one, b"+WPI")
    scene.pull(batch=5)
    scene.later(1.0)
    assert scene.sequences() == [2]
    scene.later(9.0)
    assert scene.sequences() == [1]
    assert not scene.consumer.answer(0, 0, 0, 3, 0.0, "", scene.now)


def test_term_ends_it_and_says_why() -> None:
    scene, (one, two) = delivered(2)
    assert scene.ack(one, b"+TERM not for me")
    assert [each.reason for each in scene.consumer.effects] == ["not for me"]  # type: ignore[attr-defined]
    assert scene.advisories() == [("MSG_TERMINATED", 1, 1)]
    scene.ack(one, b"+TERM")
    assert scene.advisories() == []
    scene.later(30.0)
    scene.pull(batch=2)
    assert scene.sequences() == [2]
    assert scene.done() == [1]
    assert two.sequence == 2


def test_next_acknowledges_and_asks() -> None:
    scene, (one,) = delivered(1)
    scene.put(b"b", b"c", b"d")
    assert not scene.ack(one, b'+NXT {"batch":2}', b"again")
    assert [(each.to, each.sequence) for each in scene.delivered()] == [(b"again", 2), (b"again", 3)]
    assert scene.numbers()[2] == 2


def test_late_doubled_and_unknown_acknowledgements_change_nothing() -> None:
    scene, (one, two) = delivered(2)
    scene.ack(one)
    before = scene.numbers(), scene.done(), scene.consumer.encode()
    scene.consumer.changed = False
    assert scene.ack(one) and scene.ack(one, b"-NAK") and scene.ack(one, b"+WPI") and scene.ack(one, b"+TERM")
    assert not scene.consumer.acknowledge(3, 3, 1, b"", b"", None, scene.now)
    assert not scene.consumer.acknowledge(0, 0, 0, b"", b"", None, scene.now)
    scene.consumer.acknowledge(2, 77, 1, b"-NAK", b"", None, scene.now)
    assert (scene.numbers(), [1], scene.consumer.encode()) == before
    assert scene.out() == [] and scene.done() == [] and not scene.consumer.changed
    assert two.sequence == 2


def test_after_the_last_delivery_there_is_an_advisory_and_the_message_stays() -> None:
    scene, (one,) = delivered(1, ack_wait=5.0, max_deliver=2, max_ack_pending=1)
    scene.put(b"b")
    scene.pull(batch=5)
    scene.later(5.0)
    assert scene.sequences() == [1]
    scene.later(5.0)
    out = scene.consumer.effects[:]
    assert scene.advisories() == [("MAX_DELIVERIES", 1, 2)]
    assert [each.sequence for each in out if isinstance(each, Deliver)] == [2]
    assert scene.done() == [] and scene.consumer.needs(1)
    scene.later(100.0)
    assert 1 not in scene.sequences()
    scene.ack(one)  # late: then no consumer needs it
    assert scene.done() == [1] and not scene.consumer.needs(1)


def test_a_refused_last_delivery_is_the_last() -> None:
    scene, (one,) = delivered(1, max_deliver=1)
    scene.ack(one, b"-NAK")
    assert scene.advisories() == [("MSG_NAKED", 1, 1), ("MAX_DELIVERIES", 1, 1)]
    scene.pull()
    assert scene.sequences() == []
    assert scene.numbers() == ((1, 1), (1, 1), 0, 0, 0)


def test_backoff_waits_longer_each_time() -> None:
    scene, _ = delivered(1, ack_wait=1.0, backoff=[1.0, 5.0, 20.0], max_deliver=5)
    scene.pull(batch=9)
    times = []
    for _second in range(70):
        scene.later(1.0)
        times += [scene.now - 1000.0 for _ in scene.delivered()]
    assert times == [1.0, 6.0, 26.0, 46.0]


def test_no_more_than_max_ack_pending() -> None:
    scene, messages = delivered(3, max_ack_pending=3)
    scene.put(b"a", b"b")
    scene.pull(batch=5)
    assert scene.sequences() == []
    scene.ack(messages[2])
    assert scene.sequences() == [4]
    scene.later(30.0)
    assert scene.sequences() == [1, 2, 4]


def test_ack_all_covers_what_came_before() -> None:
    scene, messages = delivered(5, ack=ACK_ALL)
    scene.ack(messages[2])
    assert scene.numbers() == ((5, 5), (3, 3), 2, 0, 0)
    assert scene.done() == [1, 2, 3]
    assert scene.ack(messages[0])
    assert scene.numbers()[1] == (3, 3)
    scene.later(30.0)
    scene.pull(batch=5)
    assert scene.sequences() == [4, 5]


def test_without_acknowledgement_a_message_is_done_when_it_is_delivered() -> None:
    scene, (one, _) = delivered(2, ack=ACK_NONE)
    assert scene.numbers() == ((2, 2), (2, 2), 0, 0, 0)
    assert scene.done() == [1, 2] and not scene.consumer.needs(2) and scene.consumer.needs(3)
    scene.later(1000.0)
    scene.pull()
    assert scene.sequences() == []
    scene.ack(one, b"-NAK")
    assert scene.out() == []


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, [3, 4, 5, 6, 7, 8]),
        ({"deliver": LAST}, [8]),
        ({"deliver": LAST, "filters": [b"x"]}, [7]),
        ({"deliver": NEW}, []),
        ({"deliver": BY_START_SEQUENCE, "start_seq": 6}, [6, 7, 8]),
        ({"deliver": BY_START_SEQUENCE, "start_seq": 1}, [3, 4, 5, 6, 7, 8]),
        ({"deliver": BY_START_SEQUENCE, "start_seq": 20}, []),
        ({"deliver": BY_START_TIME, "start_time": 104.5}, [5, 6, 7, 8]),
        ({"deliver": BY_START_TIME, "start_time": 104.5, "filters": [b"x"]}, [5, 7]),
        ({"deliver": BY_START_TIME, "start_time": 200.0}, []),
        ({"deliver": LAST_PER_SUBJECT}, [4, 7, 8]),
        ({"deliver": LAST_PER_SUBJECT, "filters": [b"x", b"y/#"]}, [4, 7]),
        ({"filters": [b"x"]}, [3, 5, 7]),
        ({"filters": [b"y/+", b"z"]}, [4, 6, 8]),
        ({"filters": [b"none"]}, []),
    ],
)
def test_a_consumer_begins_where_its_policy_says(fields: dict[str, object], expected: list[int]) -> None:
    shelf = Shelf()
    for at, topic in enumerate((b"x", b"x", b"x", b"y/1", b"x", b"z", b"x", b"z")):
        shelf.put(topic, b"", 100.0 + at + 1)
    shelf.drop(1), shelf.drop(2)
    scene = Scene(shelf, **fields)
    assert scene.consumer.waiting_messages() == len(expected)
    scene.pull(batch=20)
    found = scene.delivered()
    assert [each.sequence for each in found] == expected
    assert [int(each.reply.split(b".")[-1]) for each in found] == list(reversed(range(len(expected))))
    topic = fields.get("filters", [b"x"])[0].replace(b"+", b"5")  # type: ignore[index]
    for _ in range(14):
        scene.put(topic)
    assert (
        scene.sequences() == list(range(20 if "start_seq" in fields and not expected else 9, 23))[: 20 - len(expected)]
    )


def test_an_empty_stream_is_begun_with_its_first_message() -> None:
    for deliver in range(6):
        scene = Scene(deliver=deliver)
        scene.pull(batch=5)
        scene.put(b"a", b"b")
        assert scene.sequences() == [1, 2]


def test_removed_messages_are_not_waited_for() -> None:
    scene, messages = delivered(3)
    scene.put(b"b", b"c", b"d")
    scene.remove(1)
    assert scene.advisories() == [("MSG_TERMINATED", 1, 1)]
    scene.remove(4)
    scene.remove(6)
    assert scene.numbers() == ((3, 3), (1, 1), 2, 0, 1)
    scene.later(30.0)
    scene.shelf.drop(2)  # and the consumer has not heard of it
    scene.pull(batch=5)
    assert scene.sequences() == [3, 5]
    assert scene.numbers()[2] == 2
    scene.ack(messages[0])
    assert scene.done() == []


def test_a_purge_leaves_what_is_there() -> None:
    scene, _ = delivered(3)
    scene.put(*[b"b"] * 5)
    for sequence in (1, 2, 4, 5, 6, 7):
        scene.shelf.drop(sequence)
    scene.consumer.purged()
    assert scene.numbers()[2:] == (1, 0, 1)
    for sequence in (3, 8):
        scene.shelf.drop(sequence)
    scene.consumer.purged()
    scene.out()
    assert scene.numbers() == ((3, 8), (3, 8), 0, 0, 0)
    scene.pull()
    scene.put(b"c")
    assert scene.sequences() == [9]


def test_removals_are_counted_by_filter() -> None:
    scene = Scene(filters=[b"a/+"])
    scene.put(b"a/1", b"b", b"a/2", b"a/3", b"c")
    assert scene.numbers()[4] == 3
    scene.remove(2)
    scene.remove(3)
    assert scene.numbers()[4] == 2
    scene.shelf.drop(4)
    scene.consumer.removed(4)
    assert scene.numbers()[4] == 1


def test_a_restored_consumer_goes_on() -> None:
    scene, messages = delivered(4, ack_wait=5.0)
    scene.ack(messages[0])
    scene.ack(messages[2])
    scene.ack(messages[3], b"-NAK")
    scene.pull()
    scene.out()
    scene.put(b"b")
    before = scene.numbers()
    state = scene.consumer.encode()
    assert len(state) <= 20
    scene.restart()
    assert scene.numbers() == before and scene.consumer.encode() == state
    scene.later(4.0)
    scene.pull(batch=9)
    assert scene.sequences() == [5]
    scene.later(1.0)
    assert [each.reply[:17] for each in scene.delivered()] == [b"$JS.ACK.S.C.2.2.7", b"$JS.ACK.S.C.3.4.8"]
    scene.ack(messages[1])
    assert scene.numbers()[1] == (3, 3)


def test_a_restored_consumer_forgets_what_the_stream_has_not() -> None:
    scene, _ = delivered(4)
    scene.put(b"x")
    state = scene.consumer.encode()
    scene.shelf.drop(1)
    for lost in (4, 5):
        scene.shelf.drop(lost)
    scene.shelf.last = 3
    scene.restart(state)
    assert scene.numbers() == ((4, 3), (1, 1), 2, 0, 0)
    scene.pull(batch=5)
    scene.put(b"y")
    assert scene.sequences() == [4]


def test_a_restored_consumer_still_skips_to_the_last_of_each_subject() -> None:
    shelf = Shelf()
    for topic in (b"a", b"b", b"a", b"c", b"b", b"c", b"d"):
        shelf.put(topic)
    scene = Scene(shelf, deliver=LAST_PER_SUBJECT)
    scene.pull()
    assert scene.sequences() == [3]
    scene.put(b"b", b"e")
    scene.restart()
    assert scene.numbers()[4] == 4
    scene.pull(batch=9)
    assert scene.sequences() == [6, 7, 8, 9]


def test_an_earlier_state_delivers_again_and_ignores_answers_it_does_not_know() -> None:
    scene = Scene()
    early = scene.consumer.encode()
    scene.put(b"a", b"b")
    scene.pull(batch=2)
    one, _ = scene.delivered()
    scene.restart(early)
    assert not scene.ack(one)
    scene.pull(batch=2)
    assert scene.sequences() == [1, 2]


@pytest.mark.parametrize("cut", range(8))
def test_a_state_that_is_not_whole_is_refused(cut: int) -> None:
    scene, messages = delivered(3)
    scene.ack(messages[1], b"-NAK")
    state = scene.consumer.encode()
    assert decode_state(state).pending[-1].sequence == 3
    with pytest.raises(ValueError, match=r"cut short|version"):
        decode_state(state[:cut])
    with pytest.raises(ValueError, match="after its end"):
        decode_state(state + b"\0")
    with pytest.raises(ValueError, match="version"):
        decode_state(b"\x02" + state[1:])


def test_an_unused_pull_consumer_ends() -> None:
    scene = Scene(inactive=60.0, ack_wait=30.0)
    scene.later(50.0)
    scene.pull(expires=100.0)
    scene.later(119.0)
    assert not scene.consumer.ended  # it was looked at while the request was there
    scene.later(1.0)
    assert scene.consumer.ended


def test_a_consumer_whose_messages_are_worked_on_does_not_end() -> None:
    scene, _ = delivered(1, inactive=60.0, ack_wait=100.0)
    scene.later(159.0)
    assert not scene.consumer.ended
    scene.later(1.0)
    assert scene.consumer.ended


def test_a_paused_consumer_delivers_nothing_until_its_time() -> None:
    scene = Scene(paused_until=1010.0)
    scene.put(b"a")
    scene.pull(expires=20.0)
    scene.later(9.0)
    assert scene.out() == []
    scene.later(1.0)
    assert scene.sequences() == [1]


def test_an_update_takes_effect() -> None:
    scene, messages = delivered(3, max_ack_pending=3)
    scene.put(b"a", b"b", b"a")
    scene.pull(batch=9)
    policy = Scene(max_ack_pending=10, filters=[b"b"], ack_wait=10.0, max_deliver=1).policy
    scene.consumer.change(policy, scene.now)
    scene.fill()
    assert scene.sequences() == [5]
    assert scene.numbers()[4] == 0
    scene.later(10.0)
    assert scene.advisories() == [("MAX_DELIVERIES", each, 1) for each in (1, 2, 3, 5)]
    assert messages[0].sequence == 1


def test_headers_only_has_the_size() -> None:
    scene = Scene(headers_only=True)
    scene.shelf.put(b"a", b"12345", 0.0, b"\x26\x00\x01k\x00\x01v")
    scene.put(b"abc")
    scene.pull(batch=2)
    one, two = (each.message for each in scene.delivered())
    assert (one.payload, two.payload) == (b"", b"")
    assert one.properties == b"\x26\x00\x01k\x00\x01v" + b"\x26\x00\x0dNats-Msg-Size\x00\x015"
    assert two.properties == b"\x26\x00\x0dNats-Msg-Size\x00\x013"
