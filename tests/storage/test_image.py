"""The queue that recovery builds: it stays packed in use, and its content is the same as without packing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from starlingmq.core.messages.stored_messages import Reference, References
from starlingmq.storage.store_image import SessionImage

Entry = tuple[int, bytes]


def held(image: SessionImage) -> list[Entry]:
    """Sorted by offset, because the same message twice may come together when a queue is unpacked."""
    line = image.references()
    return sorted((entry.offset, entry.ids) for entry in map(line.peek, range(len(line))))


def test_a_message_that_waits_twice_keeps_the_identifiers_of_each_time() -> None:
    line = References()
    line.append(7, 1, 0, 10, b"\x0b\x01")
    line.append(7, 1, 0, 10, b"\x0b\x02")
    line.append(8, 1, 0, 10, b"")
    assert line.pop().ids == b"\x0b\x01"
    line = References.unpack(*line.pack())
    assert [line.pop().ids, line.pop().ids] == [b"\x0b\x02", b""]


def test_a_queue_used_as_one_is_not_unpacked() -> None:
    image = SessionImage(1)
    for offset in range(100):
        image.put(offset, 1, 0, 10, b"")
    for offset in range(50):
        image.delete(offset)
    assert image.queue is None
    assert [offset for offset, _ in held(image)] == list(range(50, 100))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 12), st.sampled_from([b"", b"\x0b\x01"]))))
def test_a_queue_holds_what_was_put_and_not_deleted(steps: list[tuple[bool, int, bytes]]) -> None:
    image = SessionImage(1)
    twin: list[Reference] = []
    for put, offset, ids in steps:
        if put:
            image.put(offset, 1, 0, 10, ids)
            twin.append(Reference(offset, 1, 0, 10, ids))
            continue
        image.delete(offset)
        found = next((entry for entry in twin if entry.offset == offset), None)
        if found is not None:
            twin.remove(found)
    assert held(image) == sorted((entry.offset, entry.ids) for entry in twin)
    image.unpacked()
    assert held(image) == sorted((entry.offset, entry.ids) for entry in twin)


@given(st.lists(st.integers(0, 300)), st.booleans(), st.sets(st.integers(0, 300)), st.integers(0, 5))
def test_a_line_marks_what_each_of_its_references_would(
    offsets: list[int], rising: bool, cuts: set[int], popped: int
) -> None:
    line, more = References(), References()
    offsets = sorted(offsets) if rising else offsets
    half = len(offsets) // 2
    for number, offset in enumerate(offsets):
        (line if number < half else more).append(offset, 1, 0, 10, b"\x0b\x01" if offset % 7 == 0 else b"")
    line.extend(more)
    popped = min(popped, len(offsets))
    for _ in range(popped):
        line.pop()
    left = offsets[popped:]
    assert [(entry.offset, bool(entry.ids)) for entry in map(line.peek, range(len(line)))] == [
        (offset, offset % 7 == 0) for offset in left
    ]
    for found in (line, References.unpack(*line.pack())):
        firsts = sorted(cuts)
        marked: set[int] = set()
        assert found.mark(firsts, marked) == min(left, default=-1)
        assert marked == {max(first for first in firsts if first <= one) for one in left if firsts and firsts[0] <= one}
