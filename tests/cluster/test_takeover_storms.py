"""Many sessions move at once over slow links, while their clients do not wait long: the work grows with the sessions,
and not with the impatience of the clients (``tests.cluster.storm``)."""

from __future__ import annotations

from math import inf

import pytest
from tests.cluster.storm import TURN_SECONDS, WAY_BYTES, Storm
from tests.few import few

pytestmark = pytest.mark.interpreted_only("compiled code takes no stand-ins")

QUEUED = 20
SIZE = 1000


def finished(count: int, patience: float, sent: bool = False) -> Storm:
    storm = Storm(count, patience, QUEUED, SIZE, sent)
    storm.run(60.0)
    assert storm.all_delivered < inf, storm.told()
    return storm


@pytest.mark.parametrize("patience", few([inf, 1.0], 1.0))
def test_a_connect_does_not_wait_for_the_queues_of_other_sessions(patience: float) -> None:
    """All queues together keep the links busy for about 12 s."""
    storm = finished(100, patience)
    assert storm.connects == 100, storm.told()
    assert storm.all_connected < 1.0 < 5.0 < storm.all_delivered, storm.told()


@pytest.mark.long(
    kept="tests/cluster/test_takeover_storms.py::test_sessions_with_large_windows_go_where_their_clients_are_now"
)
def test_clients_that_connect_elsewhere_again_and_again_do_not_multiply_the_work() -> None:
    """They wait for twice as long as a takeover takes without any load (0.33 s). A session may move on before its
    client has got it, but its queue is not far by then."""
    storm = finished(400, 0.6)
    assert storm.connects > 400, "no client was impatient"
    assert storm.parts < 1.5 * 400 * QUEUED, storm.told()


@pytest.mark.parametrize("patience", few([1.0, 2.0, 5.0], 1.0))
def test_sessions_with_large_windows_go_where_their_clients_are_now(patience: float) -> None:
    """All windows together keep the links busy for about 12 s. A client that comes back finds its session at once."""
    storm = finished(100, patience, sent=True)
    assert storm.connects > 100, "no client was impatient"
    assert storm.parts <= 1.2 * 100 * QUEUED, storm.told()
    assert storm.all_connected < 13.0, storm.told()


def test_the_time_until_all_is_delivered_grows_linearly_with_the_sessions() -> None:
    for count in (50, 100):
        storm = finished(count, 1.0)
        ways = 2  # from the first node to each of the others
        least = count * QUEUED * SIZE / (ways * WAY_BYTES) * TURN_SECONDS
        assert storm.all_delivered < 2 * least, storm.told()
