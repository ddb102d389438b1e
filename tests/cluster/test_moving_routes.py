"""The changes of a session that moves in the routes of the other nodes."""

from __future__ import annotations

from tests.cluster.fleet import Fleet
from tests.cluster.mistakes import numbers
from tests.cluster.test_takeover import lasting, subscribe

from starlingmq.cluster.links.peer_frames import RouteRecord, RouteRecords


def told(fleet: Fleet) -> dict[tuple[int, int], list[RouteRecord]]:
    """(source, target) -> the route records that have arrived."""
    found: dict[tuple[int, int], list[RouteRecord]] = {}
    for envelope in fleet.carried:
        if isinstance(envelope.body, RouteRecords):
            found.setdefault((envelope.source, envelope.target), []).extend(envelope.body.records)
    return found


def move(fleet: Fleet) -> None:
    fleet.carried.clear()
    assert lasting(fleet, 0).connack.session_present
    fleet.advance(1.0)
    assert not any(node.cluster.takeovers.migrations.busy() for node in fleet.nodes), "the move is not complete"


def test_each_of_both_nodes_tells_each_other_node_once() -> None:
    fleet = Fleet(4)
    new, former, *others = numbers(fleet)
    client = lasting(fleet, 1)
    subscribe(client, b"devices/c/commands", 1)
    subscribe(client, b"devices/c/files", 0)
    client.drop()
    move(fleet)
    there = [RouteRecord(b"devices/c/commands", 2), RouteRecord(b"devices/c/files", 1)]
    gone = [RouteRecord(b"devices/c/commands", 0), RouteRecord(b"devices/c/files", 0)]
    expected = {(new, other): there for other in (former, *others)} | {
        (former, other): gone for other in (new, *others)
    }
    assert {way: sorted(records, key=lambda record: record.key) for way, records in told(fleet).items()} == expected


def moved(fleet: Fleet) -> None:
    """A client with a filter has just moved from the second node to the first one."""
    client = lasting(fleet, 1)
    subscribe(client, b"devices/c/commands", 1)
    client.drop()
    fleet.advance(1.0)
    assert lasting(fleet, 0).connack.session_present
    fleet.advance(0.05)
    assert not any(node.cluster.takeovers.migrations.busy() for node in fleet.nodes), "the move is not complete"
    fleet.carried.clear()


def test_a_filter_that_has_moved_away_goes_with_what_its_node_tells_next() -> None:
    fleet = Fleet(3)
    _, former, other = numbers(fleet)
    moved(fleet)
    subscribe(lasting(fleet, 1, "d"), b"devices/d/commands", 1)
    fleet.advance(1.0)
    frames = [
        envelope.body.records
        for envelope in fleet.carried
        if isinstance(envelope.body, RouteRecords) and (envelope.source, envelope.target) == (former, other)
    ]
    assert [sorted(record.key for record in records) for records in frames] == [
        [b"devices/c/commands", b"devices/d/commands"]
    ]


def test_a_filter_that_is_wanted_again_at_once_changes_nothing() -> None:
    fleet = Fleet(3)
    moved(fleet)
    subscribe(lasting(fleet, 1, "d"), b"devices/c/commands", 1)
    fleet.advance(1.0)
    assert told(fleet) == {}


def test_a_filter_that_both_nodes_want_anyway_changes_nothing() -> None:
    fleet = Fleet(4)
    for place in (0, 1):
        subscribe(lasting(fleet, place, f"stays-{place}"), b"all/#", 1)
    client = lasting(fleet, 1)
    subscribe(client, b"all/#", 1)
    client.drop()
    fleet.advance(1.0)
    move(fleet)
    assert told(fleet) == {}
