"""The last hour of a node: samples in a ring, read in buckets that fit those of other nodes."""

from __future__ import annotations

from array import array

import pytest

from starlingmq.admin.history import KEPT, STATES, TOTALS, HistoryRequest, Since, buckets, series_of, since
from starlingmq.core.observe.counters import Histogram

from .conftest import Ask, Serve


def row(time: float, received: float, clients: float = 0, turn: float = 0) -> array[float]:
    """A sample with a few of its figures."""
    values = dict.fromkeys((*TOTALS, *STATES), 0.0) | {"in": received, "clients": clients, "turn_p99_ms": turn}
    return array("d", [time, *values.values()])


async def test_a_bucket_has_the_rate_the_last_state_and_the_largest_latency() -> None:
    samples = [row(*one) for one in ((95, 0, 1, 9), (100, 50, 2, 1), (105, 100, 3, 7), (110, 300, 4, 2))]
    found = await series_of(since(samples, 90), HistoryRequest(120, 10, 3))
    assert found["in"] == [None, 25.0, None], "50 in the bucket up to 100, which has no sample before its first one"
    assert found["clients"] == [2, 4, None]
    assert found["turn_p99_ms"] == [9, 7, None]


async def test_the_first_bucket_counts_from_the_sample_before_it() -> None:
    samples = [row(at, at * 10) for at in range(0, 100, 5)]
    found = await series_of(since(samples, 50), HistoryRequest(100, 10, 5))
    assert found["in"] == [10.0] * 5


async def test_a_node_keeps_the_last_samples_and_no_more(serve: Serve) -> None:
    broker = await serve()
    assert broker._admin is not None
    samples = broker._admin.sampler.samples
    samples.clear()
    for at in range(0, 5 * KEPT + 50, 5):
        samples.append(row(at, at))
    assert [one[0] for one in since(samples, 0)] == [float(at) for at in range(50, 5 * KEPT + 50, 5)]
    assert since(samples, 980)[0][0] == 975.0, "with one sample before"


async def test_after_a_restart_of_the_counters_no_rate_is_negative() -> None:
    samples = [row(5, 1000), row(10, 3)]
    assert (await series_of(since(samples, 0), HistoryRequest(10, 5, 2)))["in"] == [None, 0.0]


async def test_nothing_sampled_is_nothing_shown() -> None:
    assert set((await series_of([], HistoryRequest(10, 5, 2)))["in"]) == {None}


@pytest.mark.parametrize(
    ("seconds", "points", "step", "count"), [(300, 60, 5, 60), (3600, 240, 15, 240), (7, 720, 5, 2)]
)
def test_buckets_end_at_multiples_of_their_length(seconds: int, points: int, step: int, count: int) -> None:
    found = buckets(1_000_003.7, seconds, points)
    assert (found.step, found.points) == (step, count)
    assert found.end % step == 0 and 0 <= 1_000_003.7 - found.end < step


def test_a_latency_is_that_since_the_last_look() -> None:
    found, last = Histogram(), Since()
    found.add(1.0)
    assert last.mean_and_p99(found)[0] == 1000.0
    for _ in range(10):
        found.add(0.001)
    mean, p99 = last.mean_and_p99(found)
    assert mean == 1.0 and 1.0 <= p99 <= 2.1
    assert last.mean_and_p99(found) == (0.0, 0.0)


async def test_the_api_has_what_was_before_the_question(serve: Serve, ask: Ask) -> None:
    broker = await serve()
    assert broker._admin is not None
    now = broker._admin.local_node.driver.clock()
    broker._admin.sampler.samples.clear()
    broker._admin.sampler.samples += [row(now - 20, 0), row(now - 10, 60, clients=7)]
    told = (await ask(broker, "GET", "/api/v1/history", params={"seconds": 60, "points": 12})).json()
    assert (told["step"], told["missing"], told["node"]) == (5, [], broker.config.node.name)
    series = told["nodes"][told["node"]]
    assert {len(values) for values in series.values()} == {12}
    assert set(series) == {*TOTALS, *STATES}
    assert [value for value in series["in"] if value is not None] == [6.0] and 7 in series["clients"]
    for odd in ({"seconds": 0}, {"seconds": 10**9}, {"points": 100_000}):
        assert (await ask(broker, "GET", "/api/v1/history", params=odd)).status_code == 400
