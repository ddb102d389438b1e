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
