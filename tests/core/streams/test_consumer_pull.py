"""Pull requests: the statuses are those of nats-server, byte for byte."""

from __future__ import annotations

import pytest
from tests.core.streams.consumer_scene import Scene

from starlingmq.core.streams.acknowledgements import ack_subject, nak_delay
from starlingmq.core.streams.effects import DELETED, Deliver, StatusMessage
from starlingmq.core.streams.go_durations import duration_text

NO_MESSAGES = b"NATS/1.0 404 No Messages\r\n\r\n"


def unfinished(text: bytes, messages: int, octets: int) -> bytes:
    return b"NATS/1.0 %b\r\nNats-Pending-Messages: %d\r\nNats-Pending-Bytes: %d\r\n\r\n" % (text, messages, octets)


def test_a_request_gets_what_is_there_and_then_what_comes() -> None:
    scene = Scene()
    scene.put(b"a", b"b")
    scene.pull(b"inbox", batch=3)
    scene.put(b"c", b"d")
    found = scene.delivered()
    assert [each.reply for each in found] == [
        b"$JS.ACK.S.C.1.1.1.1000000000000.1",
        b"$JS.ACK.S.C.1.2.2.1000000000000.0",
        b"$JS.ACK.S.C.1.3.3.1000000000000.1",
    ]
    assert [each.to for each in found] == [b"inbox"] * 3
    assert scene.numbers() == ((3, 3), (0, 0), 3, 0, 1)


def test_a_request_that_expires_is_told_what_it_did_not_get() -> None:
    scene = Scene()
    scene.put(b"a")
    scene.pull(b"inbox", batch=5, expires=10.0, max_bytes=1000)
    scene.later(10.0)
    message, end = scene.out()
    assert isinstance(message, Deliver) and isinstance(end, StatusMessage)
    used = len(message.message.topic) + len(message.reply) + len(message.message.payload)
    assert end.block == unfinished(b"408 Request Timeout", 4, 1000 - used)
    assert end.to == b"inbox"
    scene.put(b"b")
    assert scene.out() == []


def test_requests_take_turns() -> None:
    scene = Scene()
    for reply in (b"x", b"y", b"z"):
        scene.pull(reply, batch=2)
    scene.put(*[b"a"] * 7)
    assert [each.to for each in scene.delivered()] == [b"x", b"y", b"z", b"x", b"y", b"z"]


def test_no_wait_ends_with_no_messages() -> None:
    scene = Scene()
    scene.pull(batch=5, no_wait=True)
    assert scene.statuses() == [NO_MESSAGES]
    scene.put(b"a", b"b")
    scene.pull(batch=5, no_wait=True)
    first, second, end = scene.out()
    assert isinstance(first, Deliver) and isinstance(second, Deliver) and isinstance(end, StatusMessage)
    assert end.block == NO_MESSAGES
    scene.put(b"c")
    assert scene.out() == []


def test_no_wait_with_a_time_waits_for_the_first_message_only() -> None:
    scene = Scene()
    scene.pull(batch=5, expires=5.0, no_wait=True)
    scene.later(1.0)
    assert scene.out() == []
    scene.put(b"a")
    assert [type(each) for each in scene.out()] == [Deliver, StatusMessage]
    scene.pull(batch=5, expires=5.0, no_wait=True)
    scene.later(5.0)
    assert scene.statuses() == [unfinished(b"408 Request Timeout", 5, 0)]


def test_no_wait_behind_requests_that_take_everything() -> None:
    scene = Scene(max_ack_pending=1)
    scene.put(b"a", b"b", b"c")
    scene.pull(b"x", batch=10)
    scene.out()
    scene.pull(b"y", batch=1, no_wait=True)
    assert scene.statuses() == [b"NATS/1.0 408 Requests Pending\r\n\r\n"]


def test_no_wait_stays_while_too_many_messages_are_pending() -> None:
    scene = Scene(max_ack_pending=1)
    scene.put(b"a", b"b")
    scene.pull(b"x")
    first = scene.delivered()[0]
    scene.pull(b"y", no_wait=True)
    assert scene.out() == []
    scene.ack(first)
    assert scene.sequences() == [2]


def test_more_requests_than_may_wait() -> None:
    scene = Scene(max_waiting=2)
    scene.pull(b"x", expires=100.0)
    scene.pull(b"y", expires=2.0)
    scene.pull(b"z")
    assert scene.statuses() == [b"NATS/1.0 409 Exceeded MaxWaiting\r\n\r\n"]
    scene.pull(b"z", expires=60.0, heartbeat=1.0)
    assert scene.out() == []
    scene.now += 3.0  # nothing has looked at them since, and one is over
    scene.pull(b"z")
    assert scene.statuses() == [unfinished(b"408 Request Timeout", 1, 0)]
    assert scene.consumer.num_waiting(scene.now) == 2


def test_bytes_end_a_request() -> None:
    scene = Scene()
    scene.put(b"t", b"t")
    size = len(b"t" + b"$JS.ACK.S.C.1.1.1.1000000000000.1" + b"t")
    scene.pull(b"x", batch=10, max_bytes=2 * size)
    assert [type(each) for each in scene.out()] == [Deliver, Deliver]
    scene.put(b"t", b"t", b"t")
    scene.pull(b"x", batch=10, max_bytes=size + 1)
    first, end = scene.out()
    assert isinstance(end, StatusMessage)
    assert end.block == unfinished(b"409 Message Size Exceeds MaxBytes", 9, 1)
    scene.pull(b"x", batch=1, max_bytes=size + 7)
    first, end = scene.out()
    assert isinstance(first, Deliver) and isinstance(end, StatusMessage)
    assert end.block == unfinished(b"409 Batch Completed", 0, 7)


def test_a_request_too_small_for_the_next_message_makes_room_for_the_next_request() -> None:
    scene = Scene()
    scene.pull(b"small", batch=10, max_bytes=10)
    scene.pull(b"large")
    scene.put(b"a")
    small, large = scene.out()
    assert isinstance(small, StatusMessage) and small.to == b"small"
    assert small.block == unfinished(b"409 Message Size Exceeds MaxBytes", 10, 10)
    assert isinstance(large, Deliver) and large.to == b"large"
    assert scene.consumer.number == 1


def test_limits_of_the_consumer() -> None:
    scene = Scene(max_batch=10, max_expires=90.0, max_bytes=100)
    scene.pull(batch=11)
    scene.pull(batch=10, expires=91.0)
    scene.pull(batch=10, expires=90.0, max_bytes=101)
    assert scene.statuses() == [
        b"NATS/1.0 409 Exceeded MaxRequestBatch of 10\r\n\r\n",
        b"NATS/1.0 409 Exceeded MaxRequestExpires of 1m30s\r\n\r\n",
        b"NATS/1.0 409 Exceeded MaxRequestMaxBytes of 100\r\n\r\n",
    ]
    assert scene.consumer.num_waiting(scene.now) == 0


def test_requests_as_clients_write_them() -> None:
    scene = Scene()
    scene.ask(b'{"batch":2,"expires":5000000000,"max_bytes":500,"idle_heartbeat":1000000000}')
    request = scene.consumer.requests.first
    assert request is not None
    assert (request.left, request.expires, request.octets, request.heartbeat) == (2, 1005.0, 500, 1.0)
    for payload, messages in ((b"", 1), (b"7", 7), (b" 3 ", 3), (b"some", 1), (b"{}", 0)):
        scene = Scene()
        scene.ask(payload)
        assert scene.consumer.requests.first is not None
        assert scene.consumer.requests.first.left == messages
        scene.put(b"a")
        assert scene.sequences() == [1]


@pytest.mark.parametrize(
    ("payload", "status"),
    [
        (b'{"expires":1000,"idle_heartbeat":501}', b"Bad Request - heartbeat value too large"),
        (b'{"batch":1,"min_pending":5}', b"Bad Request - Not a Overflow Priority consumer"),
        (b'{"batch":1,"id":"x"}', b"Bad Request - Not a Pinned Client Priority consumer"),
        (b'{"batch":1,"priority":10}', b"Bad Request - Priority must be between 0 and 9"),
        (b'{"batch":"1"}', b"Bad Request - batch is no integer"),
        (b'{"batch":1', b"Bad Request - Input data was truncated"),
    ],
)
def test_bad_requests(payload: bytes, status: bytes) -> None:
    scene = Scene()
    scene.ask(payload)
    assert scene.statuses() == [b"NATS/1.0 400 %b\r\n\r\n" % status]
    assert scene.consumer.requests.count == 0


def test_a_push_consumer_takes_no_requests() -> None:
    scene = Scene(deliver_to=b"d")
    scene.ask(b"1")
    assert scene.statuses() == [b"NATS/1.0 409 Consumer is push based\r\n\r\n"]


def test_heartbeats_of_a_request_begin_after_the_last_message() -> None:
    scene = Scene()
    scene.pull(batch=5, expires=10.0, heartbeat=3.0)
    scene.later(2.0)
    scene.put(b"a", b"b")
    assert scene.sequences() == [1, 2]
    scene.later(2.0)
    assert scene.out() == []
    scene.later(1.0)
    assert scene.statuses() == [b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 2\r\nNats-Last-Stream: 2\r\n\r\n"]
    scene.later(5.0)
    assert scene.statuses()[-1] == unfinished(b"408 Request Timeout", 3, 0)


def test_requests_end_with_their_connection_or_subscription() -> None:
    scene = Scene()
    one, other = object(), object()
    scene.pull(b"x", batch=5, requester=one)
    scene.pull(b"y", batch=5, requester=other)
    scene.pull(b"z", batch=5, requester=one)
    scene.consumer.gone(one)
    scene.put(b"a")
    assert [each.to for each in scene.delivered()] == [b"y"]
    scene.pull(b"x", batch=5, requester=other)
    scene.shelf.deaf.add(b"y")
    scene.put(b"b", b"c")
    assert [each.to for each in scene.delivered()] == [b"x", b"x"]
    assert scene.consumer.requests.count == 1


def test_a_deleted_consumer_says_so_to_all_that_wait() -> None:
    scene = Scene()
    scene.pull(b"x", batch=5, expires=5.0)
    scene.pull(b"y")
    scene.consumer.release(DELETED)
    assert scene.statuses() == [b"NATS/1.0 409 Consumer Deleted\r\n\r\n"] * 2
    assert scene.consumer.requests.count == 0 and scene.consumer.wake_at() == 0.0


def test_a_message_that_must_be_read_first_is_waited_for() -> None:
    scene = Scene()
    scene.shelf.unread.add(1)
    scene.pull(batch=2, no_wait=True, expires=1.0)
    scene.put(b"a", b"b")
    assert scene.out() == []
    scene.shelf.unread.clear()
    scene.fill()
    assert scene.sequences() == [1, 2]


def test_damaged_messages_are_passed_over() -> None:
    scene = Scene(ack_wait=5.0)
    scene.shelf.damaged = {2, 3}
    scene.put(b"a", b"b", b"c", b"d")
    scene.pull(batch=5)
    assert scene.sequences() == [1, 4]
    assert scene.numbers() == ((2, 4), (0, 0), 2, 0, 0)
    scene.shelf.damaged.add(1)
    scene.later(5.0)
    assert scene.sequences() == [4]
    assert scene.numbers()[2] == 1


def test_subjects_of_acknowledgements() -> None:
    short = ack_subject(b"$JS.ACK.S.C.2.30.40.1700000000000000000.5")
    assert short is not None
    assert (short.name, short.deliveries, short.sequence, short.number) == (b"S.C", 2, 30, 40)
    long = ack_subject(b"$JS.ACK.hub.ACCOUNT.S.C.2.30.40.1700000000000000000.5.token")
    assert long is not None and (long.name, long.sequence) == (b"S.C", 30)
    for wrong in (b"$JS.ACK.S.C.2.30.40.17", b"$JS.ACK.S.C.x.30.40.17.5", b"$JX.ACK.S.C.2.30.40.17.5", b"$JS.ACK.S.C"):
        assert ack_subject(wrong) is None


def test_durations_as_go_writes_and_reads_them() -> None:
    for seconds, text in ((0.0, "0s"), (1e-9, "1ns"), (1.5e-6, "1.5µs"), (0.25, "250ms"), (90.0, "1m30s")):
        assert duration_text(seconds) == text
        assert nak_delay(b"-NAK " + text.encode()) == pytest.approx(seconds)
    assert duration_text(7325.25) == "2h2m5.25s"
    assert nak_delay(b'-NAK {"delay": 2500000000}') == 2.5
    for none in (b"-NAK", b"-NAK  ", b"-NAK soon", b"-NAK {", b'-NAK {"delay":"1"}', b"-NAK 5", b"-NAK 1.2.3s"):
        assert nak_delay(none) == -1.0
