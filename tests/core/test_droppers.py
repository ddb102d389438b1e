"""The counts of dropped messages by client are bounded, and nothing is lost from their sums."""

from __future__ import annotations

from starlingmq.core.observe.counters import DROPPERS_MAX, NAME_CHARS_MAX, Counters


def test_dropped_messages_are_counted_by_client_and_reason_until_they_are_taken() -> None:
    counters = Counters()
    counters.drop_of("a", "expired", 1)
    counters.drop_of("a", "expired", 2)
    counters.drop_of("a", "queue_full", 1)
    counters.drop_of("b", "expired", 1)
    assert counters.take_droppers() == {("a", "expired"): 3, ("a", "queue_full"): 1, ("b", "expired"): 1}
    assert counters.take_droppers() == {}
    assert counters.dropped == {"expired": 4, "queue_full": 1}


def test_clients_beyond_the_limit_are_counted_together() -> None:
    counters = Counters()
    for number in range(DROPPERS_MAX + 100):
        counters.drop_of(f"client-{number}", "expired", 1)
    counters.drop_of("client-0", "expired", 1)
    found = counters.take_droppers()
    assert len(found) == DROPPERS_MAX + 1
    assert found["", "expired"] == 100 and found["client-0", "expired"] == 2
    assert sum(found.values()) == counters.dropped["expired"]


def test_a_long_client_id_takes_little_memory() -> None:
    counters = Counters()
    counters.drop_of("x" * 65_535, "expired", 1)
    counters.drop_of("x" * 65_535, "expired", 1, b"t" * 65_535)
    assert counters.dropped_topics == {"x" * NAME_CHARS_MAX: b"t" * NAME_CHARS_MAX}
    assert counters.take_droppers() == {("x" * NAME_CHARS_MAX, "expired"): 2}
    assert counters.dropped_topics == {}
