"""The writer of retained messages into etcd: batches, watermarks, and answers that do not come."""

from __future__ import annotations

from starlingmq.cluster.etcd.etcd_requests import KeyValue, Put, TxnAnswer
from starlingmq.cluster.retained.retained_records import prefix
from starlingmq.cluster.retained.retained_writer import RetainedWriter

# The writer

KEYS = prefix("test")
MARK_KEY = KEYS + b"\x001"


def writer(durable: int = 1000) -> RetainedWriter:
    made = RetainedWriter(KEYS, 0.02, 1e6, 10.0)
    made.be(MARK_KEY)
    made.begin(0, 0)
    made.durable = durable
    return made


def written_by(made: RetainedWriter, now: float) -> dict[bytes, bytes | None]:
    """Of one batch; the mark included."""
    requests = made.take_requests(now)
    operations = requests[0].success if requests else ()
    return {each.key[len(KEYS) :]: each.value if isinstance(each, Put) else None for each in operations if each.key}


def test_nothing_is_written_before_it_is_stored() -> None:
    made = writer(durable=1)
    made.add(b"a", 1, b"x")
    made.add(b"b", 2, None)
    assert written_by(made, 1.0) == {b"a": b"x", b"\x001": b"1"}
    made.answered(TxnAnswer("retained write 1", True, 5), 1.0)
    assert written_by(made, 1.0) == {}
    made.durable = 2
    assert written_by(made, 1.0) == {b"b": None, b"\x001": b"2"}


def test_an_outstanding_write_is_not_replaced_so_that_the_mark_is_true() -> None:
    made = writer()
    for number in range(150):
        made.add(b"%d" % number, number + 1, b"first")
    assert len(written_by(made, 1.0)) == 101
    made.add(b"120", 151, b"second")
    made.answered(TxnAnswer("retained write 1", True, 5), 1.0)
    assert made.mark == 100
    second = written_by(made, 1.0)
    assert second[b"120"] == b"first" and second[b"\x001"] == b"150"
    made.answered(TxnAnswer("retained write 2", True, 6), 1.0)
    assert written_by(made, 1.01) == {}, "the window"
    assert written_by(made, 1.03) == {b"120": b"second", b"\x001": b"151"}


def test_a_batch_without_an_answer_is_not_done_again_if_it_was() -> None:
    made = writer()
    made.add(b"a", 1, b"x")
    written_by(made, 1.0)
    assert made.answered(TxnAnswer("retained write 1", False, 0, error="no answer"), 1.0) is None
    (again,) = made.take_requests(2.0)
    there = fetched(b"1", 7)
    done = made.answered(TxnAnswer(again.tag, False, 9, ((there,),)), 2.0)
    assert done is not None and done.done == {b"a": 1} and done.revision == 7
    assert len(made) == 0


def dated_writer() -> RetainedWriter:
    """Of records that are their own times."""
    made = RetainedWriter(KEYS, 0.02, 1e6, 10.0, lambda value: float(value))
    made.be(MARK_KEY)
    made.begin(0, 3)
    made.durable = 1000
    return made


def late_writer() -> RetainedWriter:
    """Messages a and b were accepted at 1.0 and 2.0, when the revision 5 was known; it is 9.0 now."""
    made = dated_writer()
    made.add(b"a", 1, b"1.0", 1.0, 5)
    made.add(b"b", 2, b"2.0", 2.0, 5)
    return made


def record(topic: bytes, value: bytes, revision: int) -> tuple[KeyValue, ...]:
    return (KeyValue(KEYS + topic, value, 1, revision),)


def test_a_message_that_is_late_does_not_replace_a_later_one() -> None:
    made = late_writer()
    (look,) = made.take_requests(9.0)
    assert [each.key for each in look.success] == [KEYS + b"a", KEYS + b"b"] and not look.compares
    assert made.take_requests(9.0) == [], "one request at a time"
    assert made.answered(TxnAnswer(look.tag, True, 8, (record(b"a", b"1.5", 7), record(b"b", b"1.5", 8))), 9.0) is None
    (write,) = made.take_requests(9.0)
    assert [each.key for each in write.success] == [KEYS + b"b", MARK_KEY]
    assert [(each.key, each.operand) for each in write.compares] == [(MARK_KEY, 3), (KEYS + b"b", 8)]
    done = made.answered(TxnAnswer(write.tag, True, 9), 9.0)
    assert done is not None and done.done == {b"a": 1, b"b": 2} and made.mark == 2
    assert (made.written, made.superseded) == (1, 1) and len(made) == 0


def test_a_message_is_not_late_because_of_the_window() -> None:
    made = RetainedWriter(KEYS, 1.0, 1e6, 10.0)
    made.be(MARK_KEY)
    made.begin(0, 3)
    made.durable = 1000
    made.add(b"a", 1, b"1.0", 1.0, 5)
    assert written_by(made, 2.2) == {b"a": b"1.0", b"\x001": b"1"}
    made = late_writer()
    (look,) = made.take_requests(2.5)
    assert [each.key for each in look.success] == [KEYS + b"a", KEYS + b"b"]


def test_a_record_that_was_known_is_replaced_whatever_its_clock_says() -> None:
    made = late_writer()
    (look,) = made.take_requests(9.0)
    made.answered(TxnAnswer(look.tag, True, 8, (record(b"a", b"50.0", 5), ())), 9.0)
    (write,) = made.take_requests(9.0)
    assert [each.key for each in write.success] == [KEYS + b"a", KEYS + b"b", MARK_KEY]
    assert [each.operand for each in write.compares] == [3, 5, 0]


def test_a_record_of_an_earlier_message_of_this_node_is_replaced_whatever_its_clock_says() -> None:
    made = dated_writer()
    made.add(b"a", 1, b"2.0", 2.0, 5)
    (write,) = made.take_requests(2.0)
    made.add(b"a", 2, b"1.0", 1.0, 5)  # at QoS 2 the time is that of PUBLISH, the order that of PUBREL
    made.answered(TxnAnswer(write.tag, True, 7), 2.0)
    made.add(b"b", 3, b"1.0", 1.0, 5)  # before the watch tells of revision 7
    (look,) = made.take_requests(9.0)
    assert [each.key for each in look.success] == [KEYS + b"a", KEYS + b"b"]
    made.answered(TxnAnswer(look.tag, True, 7, (record(b"a", b"2.0", 7), record(b"b", b"6.0", 6))), 9.0)
    (write,) = made.take_requests(9.0)
    assert [each.key for each in write.success] == [KEYS + b"a", KEYS + b"b", MARK_KEY]
    made.answered(TxnAnswer(write.tag, True, 8), 9.0)
    assert made.superseded == 0


def test_a_topic_that_is_written_after_the_look_is_looked_at_again() -> None:
    made = late_writer()
    (look,) = made.take_requests(9.0)
    made.answered(TxnAnswer(look.tag, True, 8, ((), ())), 9.0)
    (write,) = made.take_requests(9.0)
    there = KeyValue(MARK_KEY, b"0", 1, 3)
    done = made.answered(TxnAnswer(write.tag, False, 9, ((there,),)), 9.0)
    assert done is not None and done.done == {}
    (again,) = made.take_requests(9.0)
    made.answered(TxnAnswer(again.tag, True, 9, (record(b"a", b"1.5", 9), ())), 9.0)
    (write,) = made.take_requests(9.0)
    assert [each.key for each in write.success] == [KEYS + b"b", MARK_KEY]


def test_a_look_without_an_answer_is_repeated_and_nothing_is_written_before() -> None:
    made = late_writer()
    (look,) = made.take_requests(9.0)
    assert made.answered(TxnAnswer(look.tag, False, 0, error="no answer"), 9.0) is None
    assert made.take_requests(9.0) == []
    (again,) = made.take_requests(made.wake_at())
    assert again.success == look.success and again.tag != look.tag


def test_messages_of_which_none_is_to_be_written_are_done_with_the_mark() -> None:
    made = late_writer()
    (look,) = made.take_requests(9.0)
    made.answered(TxnAnswer(look.tag, True, 8, (record(b"a", b"3.0", 7), record(b"b", b"3.0", 8))), 9.0)
    (write,) = made.take_requests(9.0)
    assert write.success == (Put(MARK_KEY, b"2"),) and len(write.compares) == 1


def fetched(value: bytes, revision: int) -> KeyValue:
    return KeyValue(MARK_KEY, value, 1, revision)


def test_etcd_is_given_no_more_than_it_can_keep_until_it_compacts() -> None:
    made = RetainedWriter(KEYS, 0.0, 1000.0, 10.0)
    made.be(MARK_KEY)
    made.begin(0, 0)
    made.durable = 1000
    now, batches = 100.0, 0
    for number in range(1, 201):
        made.add(b"a", number, b"x" * 50)
        for request in made.take_requests(now):
            made.answered(TxnAnswer(request.tag, True, number), now)
            batches += 1
        now += 0.1
    assert batches <= 8, "some 3000 bytes in 20 s, 500 each"
    assert made.wake_at() > now - 1.0
