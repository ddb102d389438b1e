"""The last hour of a node: samples in a ring, read in buckets that fit those of other nodes."""

from __future__ import annotations

from array import array

import pytest

from starlingmq.admin.history import STATES, TOTALS, WIDTH, HistoryRequest, Samples, Since, buckets, series_of
from starlingmq.core.observe.counters import Histogram

from .conftest import Ask, Serve


def row(time: float, received: float, clients: float = 0, turn: float = 0) -> list[float]:
    """A sample with a few of its figures."""
    values = dict.fromkeys((*TOTALS, *STATES), 0.0) | {"in": received, "clients": clients, "turn_p99_ms": turn}
    return [time, *values.values()]


async def test_a_bucket_has_the_rate_the_last_state_and_the_largest_latency() -> None:
    samples = Samples()
    for at, received, clients, turn in ((95, 0, 1, 9), (100, 50, 2, 1), (105, 100, 3, 7), (110, 300, 4, 2)):
        samples.add(row(at, received, clients, turn))
    found = await series_of(samples.since(90), HistoryRequest(120, 10, 3))
    assert found["in"] == [None, 25.0, None], "50 in the bucket up to 100, which has no sample before its first one"
    assert found["clients"] == [2, 4, None]
    assert found["turn_p99_ms"] == [9, 7, None]


async def test_the_first_bucket_counts_from_the_sample_before_it() -> None:
    samples = Samples()
    for at in range(0, 100, 5):
        samples.add(row(at, at * 10))
    found = await series_of(samples.since(50), HistoryRequest(100, 10, 5))
    assert found["in"] == [10.0] * 5


async def test_the_ring_keeps_the_last_samples_and_no_more() -> None:
    samples = Samples(kept=10)
    for at in range(0, 1000, 5):
        samples.add(row(at, at))
    assert len(samples) == 10
    kept = samples.since(0)
    assert list(kept[::WIDTH]) == [float(at) for at in range(950, 1000, 5)]
    assert samples.since(980)[0] == 975.0, "with one sample before"


async def test_after_a_restart_of_the_counters_no_rate_is_negative() -> None:
    samples = Samples()
    samples.add(row(5, 1000))
    samples.add(row(10, 3))
    assert (await series_of(samples.since(0), HistoryRequest(10, 5, 2)))["in"] == [None, 0.0]


async def test_nothing_sampled_is_nothing_shown() -> None:
    assert set((await series_of(array("d"), HistoryRequest(10, 5, 2)))["in"]) == {None}


@pytest.mark.parametrize(
    ("seconds", "points", "step", "count"), [(300, 60, 5, 60), (3600, 240, 15, 240), (7, 720, 5, 2)]
)
def test_buckets_end_at_multiples_of_their_length(seconds: int, points: int, step: int, count: int) -> None:
    found = buckets(1_000_003.7, seconds, points)
    assert (found.step, found.points) == (step, count)
    assert found.end % step == 0 and 0 <= 1_000_003.7 - found.end < step


def test_a_latency_is_that_since_the_last_look() -> None:
    found, since = Histogram(), Since()
    found.add(1.0)
    assert since.mean_and_p99(found)[0] == 1000.0
    for _ in range(10):
        found.add(0.001)
    mean, p99 = since.mean_and_p99(found)
    assert mean == 1.0 and 1.0 <= p99 <= 2.1
    assert since.mean_and_p99(found) == (0.0, 0.0)


async def test_the_api_has_what_was_before_the_question(serve: Serve, ask: Ask) -> None:
    broker = await serve()
    assert broker._admin is not None
    now = broker._admin.local_node.driver.clock()
    samples = broker._admin.sampler.samples = Samples()
    samples.add(row(now - 20, 0))
    samples.add(row(now - 10, 60, clients=7))
    told = (await ask(broker, "GET", "/api/v1/history", params={"seconds": 60, "points": 12})).json()
    assert (told["step"], told["missing"], told["node"]) == (5, [], broker.config.node.name)
    series = told["nodes"][told["node"]]
    assert {len(values) for values in series.values()} == {12}
    assert set(series) == {*TOTALS, *STATES}
    assert [value for value in series["in"] if value is not None] == [6.0] and 7 in series["clients"]
    for odd in ({"seconds": 0}, {"seconds": 10**9}, {"points": 100_000}):
        assert (await ask(broker, "GET", "/api/v1/history", params=odd)).status_code == 400
