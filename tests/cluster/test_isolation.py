"""An isolated node: its connected clients, and clients that are just connecting."""

from __future__ import annotations

from tests.cluster.fleet import Fleet

from starlingmq.config.settings import ClusterConfig
from starlingmq.wire.mqtt import Connack, Connect, Disconnect, Publish

KEPT = ClusterConfig().isolation_timeout
NOTICED = ClusterConfig().member_timeout + 1.0  # seconds until a node that is cut off knows


def cut_off(fleet: Fleet) -> None:
    for other in (2, 3):
        fleet.cut(1, other)


def test_clients_are_sent_away_by_a_node_that_stays_cut_off() -> None:
    fleet = Fleet(3)
    client, old = fleet.connect(0, "five"), fleet.connect(0, "four", version=4)
    cut_off(fleet)
    fleet.advance(NOTICED)
    fleet.advance(KEPT - NOTICED)
    assert not client.closed and not old.closed, "it may be over soon"
    fleet.advance(NOTICED)
    assert client.expect(Disconnect).reason == 0x9C and client.closed
    assert old.receive() == [] and old.closed
    assert fleet[0].cluster.isolation.sent_away == 2


def test_clients_of_a_node_that_is_cut_off_for_a_while_only_stay() -> None:
    fleet = Fleet(3)
    client = fleet.connect(0, "c")
    for _ in range(3):
        cut_off(fleet)
        fleet.advance(KEPT - 1.0)
        fleet.heal()
        fleet.advance(NOTICED)
    assert not client.closed


def test_a_session_is_found_elsewhere_by_a_client_that_was_sent_away_and_handed_over_later() -> None:
    fleet = Fleet(3)
    client = fleet.connect(0, "c", clean_start=False, properties={17: 3600})
    cut_off(fleet)
    fleet.advance(KEPT + NOTICED)
    assert client.closed
    again = fleet.connect(1, "c", clean_start=False, properties={17: 3600})
    assert again.connack is not None and again.connack.reason == 0
    fleet.heal()
    fleet.advance(5.0)
    assert not again.closed
    assert "c" not in fleet[0].state.ctx.sessions


def test_a_connect_that_waits_is_refused_as_soon_as_the_majority_is_lost() -> None:
    fleet = Fleet(3)
    fleet.hold_owners(0)
    waiting = [fleet[0].open(version, f"c{version}") for version in (4, 5)]
    for client, version in zip(waiting, (4, 5), strict=True):
        client.send(Connect(version, f"c{version}"))
    cut_off(fleet)
    fleet.advance(0.5)
    assert [client.receive() for client in waiting] == [[], []]
    fleet.advance(NOTICED - 0.5)
    assert [client.expect(Connack).reason for client in waiting] == [3, 0x88]
    assert all(client.closed for client in waiting)


def test_clients_stay_where_no_time_is_set() -> None:
    fleet = Fleet(3)
    fleet[0].cluster.isolation._seconds = 0.0
    client = fleet.connect(0, "c")
    cut_off(fleet)
    fleet.advance(NOTICED + KEPT)
    client.send(Publish(b"t", b"0", 0))
    assert not client.closed
