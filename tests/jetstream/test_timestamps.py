from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starlingmq.jetstream.timestamps import NEVER, duration_text, nanoseconds, time_of, time_text


@given(st.floats(min_value=1e9, max_value=4e9))
def test_a_time_survives_its_text(seconds: float) -> None:
    """So a consumer that starts at the time of a message starts with that message."""
    assert time_of(time_text(seconds)) == seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:00:01Z", 1.0),
        ("2024-01-02T03:04:05.5Z", 1704164645.5),
        ("2024-01-02T05:04:05.5+02:00", 1704164645.5),
        ("2024-01-02T00:34:05.5-02:30", 1704164645.5),
        ("2024-01-02T03:04:05.123456789Z", 1704164645.123456789),
        (NEVER, 0.0),
        ("1969-12-31T23:59:59Z", 0.0),
        ("0001-01-01T00:00:00+14:00", 0.0),
    ],
)
def test_times_are_read(text: str, seconds: float) -> None:
    assert time_of(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "now", "2024-01-02", "2024-01-02T03:04:05", "2024-13-02T03:04:05Z", "2024-01-02T03:04:05.1234567891Z", "0Z"],
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        time_of(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, NEVER), (-5.0, NEVER), (1e300, NEVER), (1.0, "1970-01-01T00:00:01Z"), (1.5, "1970-01-01T00:00:01.5Z")],
)
def test_times_are_written(seconds: float, text: str) -> None:
    assert time_text(seconds) == text


def test_nanoseconds_are_exact() -> None:
    assert nanoseconds(1_800_000_000.5) == 1_800_000_000_500_000_000
    assert nanoseconds(1_800_000_000.25) % 1_000_000_000 == 250_000_000


@pytest.mark.parametrize(
    ("length", "text"),
    [
        (0, "0s"),
        (250_000_000, "250ms"),
        (1_500_000_000, "1.5s"),
        (60_000_000_000, "1m0s"),
        (90_000_000_000, "1m30s"),
        (3_600_000_000_000, "1h0m0s"),
        (3_723_500_000_000, "1h2m3.5s"),
    ],
)
def test_durations_are_written_as_go_does(length: int, text: str) -> None:
    assert duration_text(length) == text
